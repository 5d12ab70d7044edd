//! Which Nodes count as not ready. A Node that has lost its kubelet or its connection to the API server still serves
//! clients, so there is no hurry. If many Nodes become not ready together, the cause is elsewhere, and moving addresses
//! would make it worse. Pure.

use std::collections::BTreeMap;
use std::time::Instant;

use super::timing::{READY_REST, UNREADY_FOR};

/// The smallest number of Nodes that counts as many, also in a small cluster.
const MANY: usize = 2;

/// Tracks which Nodes are not ready.
#[derive(Debug, Default)]
pub struct Readiness {
    /// All known Nodes, and since when each is not ready.
    unready: BTreeMap<String, Option<Instant>>,
    /// When many Nodes were last seen not to be ready.
    storm: Option<Instant>,
}

impl Readiness {
    /// Takes in the state of a Node; `None` means it was deleted.
    pub fn note(&mut self, now: Instant, node: &str, ready: Option<bool>) {
        self.keep(now);
        match ready {
            None => {
                self.unready.remove(node);
            }
            Some(true) => {
                self.unready.insert(node.to_owned(), None);
            }
            Some(false) => {
                self.unready.entry(node.to_owned()).or_default().get_or_insert(now);
            }
        }
        self.keep(now);
    }

    /// Remembers a storm up to this moment. Called before and after each change.
    fn keep(&mut self, now: Instant) {
        if self.are_many() {
            self.storm = Some(now);
        }
    }

    fn are_many(&self) -> bool {
        let unready = self.unready.values().flatten().count();
        unready >= MANY && unready * 2 >= self.unready.len()
    }

    /// Whether many Nodes are not ready or were until a moment ago. Optional moves wait for that.
    pub fn is_storm(&self, now: Instant) -> bool {
        self.are_many() || self.storm.is_some_and(|at| now < at + READY_REST)
    }

    /// Whether `node` counts as not ready.
    pub fn counts(&self, now: Instant, node: &str) -> bool {
        let since = self.unready.get(node).copied().flatten();
        since.is_some_and(|since| now >= since + UNREADY_FOR) && !self.is_storm(now)
    }

    /// Whether `node` is ready at this moment.
    pub fn is_ready(&self, node: &str) -> bool {
        self.unready.get(node).is_none_or(Option::is_none)
    }

    /// When something here changes without an event.
    pub fn deadline(&self, now: Instant) -> Option<Instant> {
        let unready = self.unready.values().flatten().map(|since| *since + UNREADY_FOR);
        let storm = self.storm.map(|at| at + READY_REST).filter(|_| !self.are_many());
        unready.chain(storm).filter(|at| *at > now).min()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn one_node_counts_after_a_while_and_many_together_never() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        for (name, nodes, unready, counts) in [
            ("one of three", 3, 1, true),
            ("two of three", 3, 2, false),
            ("both of two", 2, 2, false),
            ("one of two", 2, 1, true),
            ("the only one", 1, 1, true),
            ("two of five", 5, 2, true),
            ("three of five", 5, 3, false),
        ] {
            let mut readiness = Readiness::default();
            for n in 0..nodes {
                readiness.note(at(0), &format!("node-{n}"), Some(true));
            }
            for n in 0..unready {
                readiness.note(at(1), &format!("node-{n}"), Some(false));
            }
            assert!(!readiness.counts(at(10), "node-0"), "{name}: too early");
            assert_eq!(readiness.counts(at(11), "node-0"), counts, "{name}");
            assert!(!readiness.counts(at(11), &format!("node-{unready}")), "{name}: it is ready");
        }
    }

    #[test]
    fn nodes_that_come_back_one_by_one_move_nothing_and_one_that_does_not_come_back_counts_later() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut readiness = Readiness::default();
        for node in ["a", "b", "c"] {
            readiness.note(at(0), node, Some(false));
        }
        readiness.note(at(100), "a", Some(true));
        readiness.note(at(105), "b", Some(true));
        assert!(readiness.is_storm(at(164)) && !readiness.counts(at(164), "c"));
        assert_eq!(readiness.deadline(at(110)), Some(at(165)));
        assert!(readiness.counts(at(165), "c") && !readiness.is_ready("c") && readiness.is_ready("a"));
        readiness.note(at(170), "c", None);
        assert!(!readiness.counts(at(171), "c") && readiness.is_ready("c"), "it is gone");
    }
}
