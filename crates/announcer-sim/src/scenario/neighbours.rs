//! Seeds from [`NEIGHBOURS`] on: other hosts in the LAN, which stand on the hypervisors of the nodes and are lost with
//! them.

use std::time::Duration;

use rand::RngExt;
use rand::rngs::SmallRng;

use super::wide::{ONE_HOST, millis};
use super::{Fault, Kind, Scenario, WARM_UP};

/// The first seed of these. What older seeds do stays as it was.
pub const NEIGHBOURS: u64 = 40_000_000;

/// An owner that has not renewed its Lease for a third of its duration and this long is given up by nodes that have
/// lost most hosts with it.
const CARD_IS_LATE: Duration = Duration::from_secs(1);

/// Other hosts, and more often than by chance the loss of the hypervisor that has most of them.
pub(super) fn add(rng: &mut SmallRng, scenario: &mut Scenario) {
    let nodes = scenario.nodes;
    if scenario.hosts.is_empty() && scenario.bound.is_none() && rng.random_bool(0.3) {
        scenario.hosts = (0..nodes).map(|node| node / 2).collect();
    }
    let Some(last) = scenario.hosts.last().copied().filter(|_| rng.random_bool(0.7)) else { return };
    // One more than there are: no node of this cluster is there.
    scenario.neighbours = (0..rng.random_range(1..=8)).map(|_| rng.random_range(0..=last + 1)).collect();
    let alone = scenario.bound.is_some() && !scenario.blip;
    if alone && nodes > 2 && rng.random_bool(0.2) {
        let host = rng.random_range(0..=last);
        let most = scenario.neighbours.iter_mut().filter(|_| rng.random_bool(0.8));
        most.for_each(|neighbour| *neighbour = host);
        let lasts = millis(rng, 8_000, 30_000);
        let on_it = (0..nodes).filter(|node| scenario.hosts[*node] == host);
        scenario.faults =
            on_it.map(|node| Fault { at: WARM_UP + WARM_UP, lasts, kind: Kind::PowerLoss(node) }).collect();
        scenario.bound = Some(ONE_HOST);
    }
    if alone && scenario.loses_most_hosts() {
        let third = Duration::from_secs(scenario.lease[0]) / 3;
        scenario.bound = scenario.bound.map(|_| third + CARD_IS_LATE + ONE_HOST);
    }
}

impl Scenario {
    /// Whether nodes that are left may believe that the clients are with those that are lost: most of what a node has
    /// heard is gone, or less than half of the hosts that are no nodes is left.
    fn loses_most_hosts(&self) -> bool {
        let dark = |node: usize| self.faults.iter().any(|fault| fault.kind == Kind::PowerLoss(node));
        let is_lost = |host: &usize| {
            let mut there = (0..self.nodes).filter(|node| self.hosts[*node] == *host).peekable();
            there.peek().is_some() && there.all(dark)
        };
        let lost = self.neighbours.iter().filter(|host| is_lost(host)).count();
        let left = 1 + self.neighbours.len() - lost;
        let members = (0..self.nodes).filter(|node| !dark(*node)).count().saturating_sub(1).min(8);
        lost > left + members || left + lost > 2 * left
    }
}
