//! Nodes that this controller has cordoned and that stay so, because it is not yet known whether their machines are
//! back. The operator is told what is missing and what can be done. Pure.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

/// How long a Node may wait before it is reported. A new leader reads all lists within seconds.
const PATIENCE: Duration = Duration::from_mins(1);

/// The reason why no decision is made about a cordoned Node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Missing {
    /// The lists of machines and upgrades have not arrived.
    Lists,
    /// The identity of this cluster is not settled.
    Identity,
    /// The machine of this Node is in no list.
    Machine,
}

impl Missing {
    /// The reason as text for an Event.
    pub fn words(self) -> &'static str {
        match self {
            Self::Lists => "Harvester has not answered which machines run and whether an upgrade is under way",
            Self::Identity => "the cluster's name on Harvester is not settled, see ConfigMap harvester-cloud-provider",
            Self::Machine => "Harvester does not list the node's machine",
        }
    }
}

/// The waiting Nodes: since when each waits, and whether it was reported.
#[derive(Debug, Default)]
pub struct HeldNodes {
    nodes: BTreeMap<String, (Instant, bool)>,
}

impl HeldNodes {
    /// Updates the waiting Nodes. `held` are the cordoned Nodes without a decision, each with the reason. Returns those
    /// to be reported now: once, until a decision about the Node was possible again.
    pub fn look(&mut self, now: Instant, held: &BTreeMap<String, Missing>) -> Vec<(String, Missing)> {
        self.nodes.retain(|name, _| held.contains_key(name));
        let mut due = Vec::new();
        for (name, missing) in held {
            let (since, told) = self.nodes.entry(name.clone()).or_insert((now, false));
            if !*told && now.duration_since(*since) >= PATIENCE {
                *told = true;
                due.push((name.clone(), *missing));
            }
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_stays_cordoned_is_told_of_once_after_a_minute_and_again_only_after_it_was_decided_about() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let held = BTreeMap::from([("n".to_owned(), Missing::Lists)]);
        let told = vec![("n".to_owned(), Missing::Lists)];
        let none = BTreeMap::new();
        let mut nodes = HeldNodes::default();
        for (seconds, held, expected) in [
            (0, &held, vec![]),
            (59, &held, vec![]),
            (60, &held, told.clone()),
            (600, &held, vec![]),
            (610, &none, vec![]),
            (620, &held, vec![]),
            (680, &held, told),
        ] {
            assert_eq!(nodes.look(at(seconds), held), expected, "{seconds}");
        }
    }
}
