//! Nodes that we have cordoned and that stay so, because nobody knows yet whether their machines are back: that is
//! told, with what is missing and what an operator can do. Pure.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

/// A new leader reads everything within seconds. Who waits for longer wants to know why.
const PATIENCE: Duration = Duration::from_mins(1);

/// Why nothing is decided about a cordoned Node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Missing {
    /// Lists of machines and upgrades.
    Lists,
    /// Which cluster this is.
    Identity,
    /// The machine of this Node is on no list.
    Machine,
}

impl Missing {
    /// In an Event.
    pub fn words(self) -> &'static str {
        match self {
            Self::Lists => "Harvester has not answered which machines run and whether an upgrade is under way",
            Self::Identity => "the cluster's name on Harvester is not settled, see ConfigMap harvester-cloud-provider",
            Self::Machine => "Harvester does not list the node's machine",
        }
    }
}

/// Since when, and who was told.
#[derive(Debug, Default)]
pub struct Stay {
    nodes: BTreeMap<String, (Instant, bool)>,
}

impl Stay {
    /// `held`: the cordoned Nodes that nothing is decided about, each with the reason. Returns those that it is time to
    /// tell of: once, until they are decided about again.
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
        let mut stay = Stay::default();
        for (seconds, held, expected) in [
            (0, &held, vec![]),
            (59, &held, vec![]),
            (60, &held, told.clone()),
            (600, &held, vec![]),
            (610, &none, vec![]),
            (620, &held, vec![]),
            (680, &held, told),
        ] {
            assert_eq!(stay.look(at(seconds), held), expected, "{seconds}");
        }
    }
}
