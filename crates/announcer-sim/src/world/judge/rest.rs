//! What is looked at over a whole run: that nothing flaps, that all comes to rest, that nothing is left at the end.

use super::{Vip, World};
use crate::promises::{NO_FLAPPING, NOTHING_AT_REST, ONE_AT_REST, Trouble};
use crate::scenario::{Fault, Kind, REST, Scenario};

/// How often an address may come to another node.
pub(super) fn most_moves(scenario: &Scenario) -> u64 {
    // When the network splits, each half misses the owner and takes the address back. It waits longer each time before
    // it does so again.
    let halves = |fault: &Fault| match fault.kind {
        Kind::Split(_) | Kind::SplitLan(..) => fault.lasts.as_secs() / 20,
        _ => 0,
    };
    let faults: u64 = scenario.faults.iter().map(|fault| 1 + halves(fault)).sum();
    let most = 2 + 3 * faults + if scenario.has_weather() { 6 } else { 0 };
    // Each move may be followed by a move back to the home of the address.
    if scenario.fail_back { 2 * most } else { most }
}

impl World<'_> {
    pub(super) fn check_rest(&mut self) {
        let most = self.judge.most_moves;
        if let Some(index) = self.judge.moves.iter().position(|moves| *moves > most) {
            let (address, moves) = (self.judge.addresses[index].0, self.judge.moves[index]);
            self.broken(NO_FLAPPING, format!("{address} moved {moves} times"));
        }
        // The last seconds before the Services are deleted: nothing moves and nothing is written.
        let deletion = self.scenario.deletion;
        if self.now < deletion.saturating_sub(REST) || self.now >= deletion {
            return;
        }
        let (moves, writes) = (self.judge.moves.iter().sum::<u64>(), self.api.service_writes);
        match self.judge.at_rest {
            None => {
                let (more_moves, more_writes) = self.bearable_at_rest();
                self.judge.at_rest = Some((moves + more_moves, writes + more_writes));
                for index in 0..self.judge.addresses.len() {
                    let (address, nodes) = (self.judge.addresses[index].0, self.judge.answering[index].len());
                    let lost = matches!(address, Vip::Leased(service) if self.lease_is_due_to_change(service));
                    if nodes != 1 && !lost {
                        let seen = format!("{nodes} answer for {address}");
                        self.broken(ONE_AT_REST, seen);
                    }
                }
            }
            Some((most_moves, most_writes)) => {
                if moves > most_moves || writes > most_writes {
                    let seen = format!(
                        "{} moves and {} writes too many",
                        moves.saturating_sub(most_moves),
                        writes.saturating_sub(most_writes)
                    );
                    self.broken(NOTHING_AT_REST, seen);
                }
            }
        }
    }

    /// The number of moves and writes that are permitted at rest. The end of a lease is written again when it has moved
    /// far enough. A server that has lost its leases, or has given an address away, refuses the next renewal or never
    /// answers it. So the lease may end long after everything else has come to rest. The kernel counts whole seconds
    /// and removes the address a moment earlier. A successor may then find the owner silent, and one of them writes the
    /// next lease, the annotations and the status.
    fn bearable_at_rest(&self) -> (u64, u64) {
        let of = |service| if self.lease_is_due_to_change(service) { (1, 4) } else { (0, 1) };
        self.scenario.leasing().map(of).fold((0, 0), |sum, more| (sum.0 + more.0, sum.1 + more.1))
    }

    /// The Services are gone, and so is the time that any kernel keeps an address for a dead process.
    pub(in crate::world) fn check_end(&mut self) {
        if self.judge.violation.is_some() {
            return;
        }
        for n in 0..self.nodes.len() {
            let marked = self.nodes[n].kernel.marked();
            if !marked.is_empty() {
                let seen = format!("{} still has {marked:?} at the end", self.nodes[n].name);
                self.broken(Trouble::LeftBehind(n).promise(), seen);
            }
        }
    }
}
