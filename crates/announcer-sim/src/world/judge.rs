//! What users were promised, looked at after every step in which something that matters has changed.

mod rest;
mod troubles;
mod verdicts;

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use announcer_core::ownership::node::Swap;
use announcer_core::view::ServiceKey;
use announcer_core::{ElectionMode, Reason};

use super::World;
use super::node::Node;
use crate::api::{key, uid};
use crate::checks::{Checks, Violation};
use crate::kernel::{Lan, lan_of};
use crate::promises::{BLIP, NO_FALSE_ALARM, NOT_CUT_OFF, number};
use crate::scenario::{CONFLICT, Fault, Kind, Scenario, ServerFault};

/// No fence is this long. An address with a longer lifetime was left for the next process (decisions.md 26).
const LEFT_IN_ORDER: Duration = Duration::from_secs(20);

/// What one node at a time answers for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Vip {
    /// A given address.
    Given(IpAddr),
    /// Whatever DHCP gives this Service.
    Leased(usize),
}

impl Vip {
    /// In which LAN it is.
    pub fn lan(self) -> Lan {
        match self {
            Self::Given(address) => lan_of(address),
            Self::Leased(_) => 0,
        }
    }
}

impl fmt::Display for Vip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Given(address) => write!(f, "{address}"),
            Self::Leased(service) => write!(f, "the leased address of Service {service}"),
        }
    }
}

/// What is known so far.
pub(super) struct Judge {
    /// The promise that was broken first.
    pub violation: Option<Violation>,
    pub checks: Checks,
    /// How often each address came to another node.
    pub moves: Vec<u64>,
    /// The largest number of moves that is not flapping.
    most_moves: u64,
    /// Something has changed since the last judgement.
    pub changed: bool,
    /// How often that was so.
    pub changes: u64,
    /// Set when everything has come to rest: the largest permitted numbers of moves and writes at the end.
    pub at_rest: Option<(u64, u64)>,
    /// The addresses, and the Services of each.
    addresses: Vec<(Vip, Vec<usize>)>,
    /// Which nodes answer for each address, and since when.
    answering: Vec<BTreeMap<usize, Duration>>,
    last_answerer: Vec<Option<usize>>,
    /// The first use of each address since its Service was made.
    first_use: Vec<Option<FirstUse>>,
    /// Since when each pair of nodes has heard each other in each LAN.
    contact: BTreeMap<(Lan, usize, usize), Duration>,
    /// In which LANs a node has heard another one. The life of its process is noted, because the next process knows
    /// nothing of that.
    met: BTreeMap<(Lan, usize, usize), u64>,
    /// Since when each process has run without a pause, and since when all is right between each node and the others,
    /// with each NIC.
    runs_since: BTreeMap<usize, Duration>,
    well_since: BTreeMap<(Lan, usize), Duration>,
}

/// From the first probe until the address is there: three probes, 10 ms after each, and the kernel.
const PROBING: Duration = Duration::from_millis(40);

/// When an address was first used, and whether its node was in reach of the LAN while it probed for strangers.
#[derive(Debug, Clone, Copy)]
struct FirstUse {
    at: Duration,
    in_reach: bool,
}

impl Judge {
    pub fn new(scenario: &Scenario) -> Self {
        let mut addresses: BTreeMap<Vip, Vec<usize>> = BTreeMap::new();
        for service in 0..scenario.services.len() {
            let address = scenario.address(service);
            let vip = if address.is_unspecified() { Vip::Leased(service) } else { Vip::Given(address) };
            addresses.entry(vip).or_default().push(service);
        }
        Self {
            violation: None,
            checks: Checks::new(scenario),
            moves: vec![0; addresses.len()],
            most_moves: rest::most_moves(scenario),
            changed: true,
            changes: 0,
            at_rest: None,
            answering: vec![BTreeMap::new(); addresses.len()],
            last_answerer: vec![None; addresses.len()],
            first_use: vec![None; addresses.len()],
            addresses: addresses.into_iter().collect(),
            contact: BTreeMap::new(),
            met: BTreeMap::new(),
            runs_since: BTreeMap::new(),
            well_since: BTreeMap::new(),
        }
    }

    /// What this address is.
    pub fn vip(&self, index: usize) -> Vip {
        self.addresses[index].0
    }

    /// Whose it is.
    pub fn services(&self, index: usize) -> &[usize] {
        &self.addresses[index].1
    }

    /// The address of this Service.
    pub fn index_of(&self, service: usize) -> usize {
        self.addresses.iter().position(|(_, services)| services.contains(&service)).expect("each has one")
    }

    /// The address of the Service with this key.
    fn index_of_key(&self, of: &ServiceKey) -> Option<usize> {
        self.addresses.iter().position(|(_, services)| services.iter().any(|service| key(*service) == *of))
    }

    /// Whether a node answers for it.
    pub fn is_answered(&self, index: usize) -> bool {
        !self.answering[index].is_empty()
    }

    /// The given addresses that are this one.
    pub fn indices_of(&self, address: IpAddr) -> Vec<usize> {
        let is = |(vip, _): &(Vip, Vec<usize>)| *vip == Vip::Given(address);
        self.addresses.iter().position(is).into_iter().collect()
    }
}

impl World<'_> {
    pub(super) fn broken(&mut self, promise: &'static str, seen: String) {
        let at = self.now;
        self.note(|| format!("BROKEN: P{}, {promise}: {seen}", number(promise)));
        self.judge.violation.get_or_insert(Violation { at, promise, seen });
    }

    pub(super) fn check(&mut self) {
        let changed = std::mem::take(&mut self.judge.changed);
        self.judge.changes += u64::from(changed);
        if changed || self.judge.checks.is_due(self.now) {
            self.look();
            let troubles = self.troubles();
            self.judge.checks.follow(self.now, troubles);
        }
        if self.judge.checks.is_due(self.now)
            && let Some(found) = self.judge.checks.broken(self.now)
        {
            self.broken(found.promise, found.seen);
        }
        self.check_rest();
    }

    /// In `node` mode a node must not take another node for a stranger. A server that has lost its leases, or takes
    /// them back, gives an address to two clients; then the alarm is right.
    pub(super) fn judge_alarm(&mut self, n: usize, of: &ServiceKey, reason: Reason, text: &str) {
        if reason != Reason::AddressConflict || self.scenario.mode != ElectionMode::Node {
            return;
        }
        let Some(index) = self.judge.index_of_key(of) else { return };
        let (vip, services) = &self.judge.addresses[index];
        let leased = matches!(vip, Vip::Leased(_));
        let begun = |fault: &&Fault| fault.at <= self.now;
        let gives_twice =
            |fault: &Fault| matches!(fault.kind, Kind::Server(ServerFault::Forgets | ServerFault::Refuses));
        let twice = leased && self.scenario.faults.iter().filter(begun).any(gives_twice);
        // A host that answered is told of once more when the address is tried again.
        let stranger = |fault: &Fault| {
            let of_it = match &fault.kind {
                Kind::Thief(service) | Kind::Duplicate(service) | Kind::Claims(service) => services.contains(service),
                Kind::KubeVip(_) | Kind::ProxyArp | Kind::Ipvs | Kind::Fabric => true,
                _ => false,
            };
            of_it && self.now <= fault.is_over_at() + CONFLICT
        };
        let strange = self.scenario.faults.iter().filter(begun).any(stranger);
        // A clock that was paused takes an ended lease for a valid one. The address may belong to another Service by
        // then.
        let lease = Duration::from_secs(self.scenario.dhcp.lease_seconds.into());
        let deceived = self.nodes.iter().any(|node| node.deceived_at.is_some_and(|at| self.now < at + lease));
        if !twice && !strange && !deceived {
            let seen = format!("{} says: {text}", self.nodes[n].name);
            self.broken(NO_FALSE_ALARM, seen);
        }
    }

    /// A node has taken an address from another. A node that is cut off must not take it from an owner that clients
    /// hear.
    pub(super) fn judge_taking(&mut self, n: usize, key: &ServiceKey, swap: &Swap) {
        let Some(from) = &swap.expect else { return };
        let Some(owner) = self.nodes.iter().position(|node| node.name == from.host).filter(|owner| *owner != n) else {
            return;
        };
        let Some(index) = self.judge.index_of_key(key) else { return };
        // Its Lease is known to be fresh, and its card says whom it hears.
        let known = Duration::from_secs(2 * self.scenario.lease[0]).max(Duration::from_secs(15));
        let settled = |since: Option<&Duration>| since.is_some_and(|since| *since + known < self.now);
        let lan = self.judge.vip(index).lan();
        let well = settled(self.judge.well_since.get(&(lan, owner)));
        let heard = well && settled(self.judge.answering[index].get(&owner));
        // A Lease that has run out ends the veto, also where only the API has refused the renewals. A node goes by what
        // it knew when its own last renewal came back, up to a Lease ago. So it may not know of the first renewal after
        // a gap.
        let lease = Duration::from_secs(self.scenario.lease[0]);
        let fresh = self.api.valid_since(&from.host, self.now).is_some_and(|since| since + lease <= self.now);
        if swap.owner_record.host == self.nodes[n].name
            && heard
            && fresh
            && !self.is_heard_outside(lan, n)
            && self.nodes[owner].deceived_at.is_none()
        {
            let seen = format!("{} takes {} from {}", self.nodes[n].name, self.judge.addresses[index].0, from.host);
            self.broken(NOT_CUT_OFF, seen);
        }
    }

    /// Node `n` has an address that another one had.
    fn judge_move(&mut self, index: usize, n: usize) {
        let begun = self.scenario.faults.first().is_some_and(|fault| fault.at <= self.now);
        if self.scenario.blip && begun && self.now < self.scenario.deletion {
            let seen = format!("{} has {}", self.nodes[n].name, self.judge.vip(index));
            self.broken(BLIP, seen);
        }
    }

    /// Who answers for what, and who hears whom.
    fn look(&mut self) {
        for index in 0..self.judge.addresses.len() {
            self.look_for(index);
        }
        for a in 0..self.nodes.len() {
            for lan in self.lans() {
                self.look_around(lan, a);
            }
            if self.nodes[a].runs() {
                self.judge.runs_since.entry(a).or_insert(self.now);
            } else {
                self.judge.runs_since.remove(&a);
            }
            let time = self.kernel_time(a);
            let node = &mut self.nodes[a];
            // A leased one is left until its lease ends, which may be sooner.
            node.left_in_order &= node
                .kernel
                .ours()
                .any(|own| own.lessee.is_some() || own.until.is_some_and(|until| until > time + LEFT_IN_ORDER));
        }
    }

    /// With whom node `a` is in touch in this LAN.
    fn look_around(&mut self, lan: Lan, a: usize) {
        for b in a + 1..self.nodes.len() {
            if self.hear_each_other(lan, a, b) {
                self.judge.contact.entry((lan, a, b)).or_insert(self.now);
                for (one, other) in [(a, b), (b, a)] {
                    self.judge.met.insert((lan, one, other), self.nodes[one].life);
                }
            } else {
                self.judge.contact.remove(&(lan, a, b));
            }
        }
        if self.is_well_in(lan, a) {
            self.judge.well_since.entry((lan, a)).or_insert(self.now);
        } else {
            self.judge.well_since.remove(&(lan, a));
        }
    }

    /// Node `n` answers for the address from now on.
    fn note_first_use(&mut self, index: usize, n: usize) {
        let (vip, services) = &self.judge.addresses[index];
        let made = services.iter().map(|service| self.made[*service]).max().unwrap_or_default();
        if self.judge.first_use[index].is_none_or(|first| first.at < made) {
            let well = self.judge.well_since.get(&(vip.lan(), n));
            // A probe, or its answer, may be lost.
            let lossy = self.stormy() && self.scenario.loss > 0.0;
            let in_reach = !lossy && well.is_some_and(|since| *since + PROBING < self.now);
            self.judge.first_use[index] = Some(FirstUse { at: self.now, in_reach });
        }
    }

    fn look_for(&mut self, index: usize) {
        let vip = self.judge.addresses[index].0;
        let has = |node: &Node| match vip {
            Vip::Given(address) => node.kernel.has(address),
            Vip::Leased(service) => node.kernel.leased(&uid(service, self.generation[service])).next().is_some(),
        };
        let answers = |node: &Node| node.powered && node.paused == 0 && has(node);
        let before = std::mem::take(&mut self.judge.answering[index]);
        let mut now = BTreeMap::new();
        for (n, _) in self.nodes.iter().enumerate().filter(|(_, node)| answers(node)) {
            now.insert(n, before.get(&n).copied().unwrap_or(self.now));
        }
        if let Some(new) = now.keys().find(|n| !before.contains_key(n)).copied()
            && self.judge.last_answerer[index].replace(new).is_some_and(|last| last != new)
        {
            self.judge.moves[index] += 1;
            self.judge_move(index, new);
        }
        if let Some(new) = now.keys().find(|n| !before.contains_key(n)) {
            self.note_first_use(index, *new);
        }
        if !now.keys().eq(before.keys()) {
            self.note(|| format!("ANSWERS for {vip}: {:?}", now.keys().map(|n| n + 1).collect::<Vec<_>>()));
        }
        self.judge.answering[index] = now;
    }
}
