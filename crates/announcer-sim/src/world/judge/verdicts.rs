//! `node` mode: compares what nodes report about silent nodes with the truth.

use std::time::Duration;

use announcer_core::ElectionMode;

use super::World;
use crate::promises::Trouble;

/// After this time the others watch a node: they have renewed their Leases, and the Leases of lost nodes have expired.
const KNOWN: Duration = Duration::from_secs(20);

impl World<'_> {
    /// Nodes that are reported as silent although they answer, and lost nodes that fewer than two others report.
    pub(super) fn misheard(&self, well: &[bool]) -> Vec<Trouble> {
        let mut troubles = Vec::new();
        if self.scenario.mode != ElectionMode::Node {
            return troubles;
        }
        // Nothing is watched while nothing is announced.
        let announced = self.judge.answering.iter().any(|answering| !answering.is_empty());
        for (of, node) in self.nodes.iter().enumerate() {
            let others = || (0..self.nodes.len()).filter(move |by| *by != of);
            let accused_by = |by: &usize| {
                self.api.card(&self.nodes[*by].name).is_some_and(|card| card.silent.contains_key(&node.name))
            };
            // A node must answer on each LAN. If it is silent on the NIC with its Node address, the report is right.
            let answers = |by: &usize| {
                node.powered && node.paused == 0 && self.lans().all(|lan| self.hear_each_other(lan, *by, of))
            };
            troubles.extend(
                others().filter(|by| well[*by] && accused_by(by) && answers(by)).map(|by| Trouble::Slandered(by, of)),
            );
            // A node that was never heard is never called silent.
            let apart = |by: usize| self.apart.contains(&(by.min(of), by.max(of)));
            let long = |by: usize| self.is_well_since(by).is_some_and(|since| since + KNOWN <= self.now);
            let heard = |by: usize| self.nodes[by].started_at < node.lost_at;
            let known = |by: usize| well[by] && !apart(by) && long(by) && heard(by);
            if !node.powered
                && announced
                && others().count() >= 2
                && others().all(known)
                && others().filter(accused_by).count() < 2
            {
                troubles.push(Trouble::Unmissed(of));
            }
        }
        troubles
    }
}
