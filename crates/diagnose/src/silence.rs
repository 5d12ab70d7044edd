//! Nodes that do not answer, as the announcers of other nodes say on the cards of their Leases. They say so within a
//! second; that the Lease of such a node expires takes 15 s.

use std::collections::{BTreeMap, BTreeSet};

use contract::{Card, Silence};
use harvester_api::keys::cloudprovider;
use kube::ResourceExt;

use crate::facts;
use crate::snapshot::Snapshot;

/// What the others say of a silent node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Silent {
    /// The nodes that get no answer from it, in order.
    pub watchers: Vec<String>,
    /// The checks that it left unanswered.
    pub unanswered: BTreeSet<String>,
}

/// The silent nodes by name. A node that is called silent itself is no witness; a card counts while its Lease does.
pub fn silent(snapshot: &Snapshot) -> BTreeMap<String, Silent> {
    let uid = |name: &str| snapshot.nodes.iter().find(|node| node.name_any() == name).and_then(ResourceExt::uid);
    let meant = |name: &str, silence: &Silence| uid(name).is_some_and(|uid| uid == silence.uid);
    let fresh = snapshot.leases.iter().filter(|lease| facts::is_fresh(snapshot, lease));
    let mut verdicts: Vec<(&str, BTreeMap<String, Silence>)> = fresh
        .filter_map(|lease| {
            let card = Card::<String>::parse(facts::annotation(&lease.metadata, cloudprovider::CARD));
            Some((facts::member(lease)?, card.silent))
        })
        .collect();
    for (_, silent) in &mut verdicts {
        silent.retain(|name, silence| meant(name, silence));
    }
    let accused: BTreeSet<String> = verdicts.iter().flat_map(|(_, silent)| silent.keys().cloned()).collect();
    let mut found: BTreeMap<String, Silent> = BTreeMap::new();
    for (watcher, silent) in verdicts {
        if accused.contains(watcher) || !snapshot.nodes.iter().any(|node| node.name_any() == watcher) {
            continue;
        }
        for (name, silence) in silent {
            let entry = found.entry(name).or_default();
            entry.watchers.push(watcher.to_owned());
            entry.unanswered.extend(silence.unanswered);
        }
    }
    for silent in found.values_mut() {
        silent.watchers.sort();
    }
    found
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::healthy::{self, read};

    fn snapshot(cards: &[(&str, &[(&str, &str)])]) -> Snapshot {
        let mut snapshot = healthy::snapshot();
        snapshot.nodes = ["node1", "node2", "node3"].map(|name| read(healthy::node(name))).into();
        for node in &mut snapshot.nodes {
            node.metadata.uid = Some(format!("uid-{}", node.name_any()));
        }
        snapshot.leases.truncate(1);
        for (watcher, silent) in cards {
            let silent: serde_json::Map<String, Value> = silent
                .iter()
                .map(|(name, uid)| {
                    let unanswered = [format!("arp of {name}"), format!("tcp of {name}")];
                    ((*name).to_owned(), json!({"uid": uid, "ms": 230, "unanswered": unanswered}))
                })
                .collect();
            let mut lease = healthy::member(watcher);
            let card = json!({"links": [], "serving": true, "silent": silent}).to_string();
            lease["metadata"]["annotations"]["cloudprovider.harvesterhci.io/announcer-card"] = json!(card);
            if *watcher == "node3" && silent.contains_key("old") {
                lease["spec"]["renewTime"] = json!("2026-01-01T11:50:00.000000Z");
            }
            snapshot.leases.push(read(lease));
        }
        snapshot
    }

    #[test]
    fn what_counts_is_said_now_by_nodes_that_are_heard_themselves() {
        let two: &[(&str, &str)] = &[("node2", "uid-node2")];
        for (what, cards, expected) in [
            ("nobody says it", vec![("node1", &[][..]), ("node3", &[])], None),
            ("two say it", vec![("node3", two), ("node1", two)], Some("node1, node3")),
            ("one says it", vec![("node1", two), ("node3", &[])], Some("node1")),
            ("of a former Node of the name", vec![("node1", &[("node2", "former")][..])], None),
            ("a node that is gone says it", vec![("node9", two)], None),
            ("its Lease is old", vec![("node3", &[("node2", "uid-node2"), ("old", "x")][..])], None),
            ("they accuse each other", vec![("node1", two), ("node2", &[("node1", "uid-node1")])], None),
        ] {
            let found = silent(&snapshot(&cards));
            let watchers = found.get("node2").map(|silent| silent.watchers.join(", "));
            assert_eq!(watchers.as_deref(), expected, "{what}");
        }
        let found = silent(&snapshot(&[("node1", two)]));
        assert_eq!(found["node2"].unanswered, ["arp of node2".to_owned(), "tcp of node2".to_owned()].into());
    }
}
