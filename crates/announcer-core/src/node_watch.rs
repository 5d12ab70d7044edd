//! Nodes that this node watches, and what it has found out. If the detector misses a node on the wire, the node's
//! kubelet is asked by TCP. Only if that is silent too, the node is listed on this node's card. Pure.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use contract::Silence;

/// Port of kubelets. A refusal is an answer too, so a kubelet on another port does no harm.
const KUBELET: u16 = 10250;

/// A finding of the detector about a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum NodeFinding {
    /// The node does not answer, while most landmarks do.
    Silent {
        /// Name of the node.
        node: String,
        /// The address that was asked for.
        address: IpAddr,
        /// Whether the gateway has answered in the same burst.
        gateway: bool,
        /// How many landmarks have answered.
        witnesses: u8,
    },
    /// The node answers again.
    Answers {
        /// Name of the node.
        node: String,
    },
}

#[derive(Debug)]
struct Missed {
    since: Instant,
    address: IpAddr,
    gateway: bool,
    witnesses: u8,
    /// How long the node had been silent when TCP was silent too.
    confirmed: Option<Duration>,
}

/// The watched nodes and the findings.
#[derive(Debug, Default)]
pub(crate) struct NodeWatch {
    /// UIDs of the nodes that are watched, and the addresses that are asked for.
    watched: BTreeMap<String, (String, IpAddr)>,
    missed: BTreeMap<String, Missed>,
}

impl NodeWatch {
    /// Sets the watched nodes, with the UIDs of their Nodes and their addresses. Findings about other nodes, other UIDs
    /// or other addresses are forgotten, because no later answer would take them back. Returns true if that changes the
    /// card.
    pub fn watch(&mut self, watched: BTreeMap<String, (String, IpAddr)>) -> bool {
        let before = self.on_card();
        let former = std::mem::replace(&mut self.watched, watched);
        self.missed.retain(|node, _| self.watched.get(node).is_some_and(|now| former.get(node) == Some(now)));
        before != self.on_card()
    }

    /// Takes in a finding. `silent_for`: how long a node has been silent when the detector reports it. Returns the
    /// kubelet to ask.
    pub fn note(&mut self, now: Instant, silent_for: Duration, finding: NodeFinding) -> Option<(String, SocketAddr)> {
        match finding {
            NodeFinding::Silent { node, address, gateway, witnesses } => {
                // A confirmed node stays confirmed, and only one question is open at a time.
                if !self.watched.contains_key(&node) || self.missed.contains_key(&node) {
                    return None;
                }
                let since = now.checked_sub(silent_for).unwrap_or(now);
                self.missed.insert(node.clone(), Missed { since, address, gateway, witnesses, confirmed: None });
                Some((node, SocketAddr::new(address, KUBELET)))
            }
            NodeFinding::Answers { node } => {
                self.missed.remove(&node);
                None
            }
        }
    }

    /// The kubelet's port was asked. `answers` is also true if this cannot be told, as on a busy machine. Returns true
    /// if the node counts as silent from now on.
    pub fn asked(&mut self, now: Instant, node: &str, answers: bool) -> bool {
        if answers {
            // The detector reports the node again if it stays silent on the wire.
            self.missed.retain(|name, missed| name != node || missed.confirmed.is_some());
            return false;
        }
        let Some(missed) = self.missed.get_mut(node).filter(|missed| missed.confirmed.is_none()) else { return false };
        missed.confirmed = Some(now.saturating_duration_since(missed.since));
        true
    }

    /// Since when a node has been silent on the wire.
    pub fn silent_since(&self, node: &str) -> Option<Instant> {
        self.missed.get(node).map(|missed| missed.since)
    }

    /// The nodes that this node reports as silent.
    pub fn on_card(&self) -> BTreeMap<String, Silence> {
        let said = |(node, missed): (&String, &Missed)| {
            let (uid, after) = (self.watched.get(node)?.0.clone(), missed.confirmed?);
            let how = if missed.address.is_ipv4() { "arp" } else { "ndp" };
            let port = SocketAddr::new(missed.address, KUBELET);
            let silence = Silence {
                uid,
                ms: u64::try_from(after.as_millis()).unwrap_or(u64::MAX),
                unanswered: vec![format!("{how} {}", missed.address), format!("tcp {port}")],
                gateway: missed.gateway,
                witnesses: missed.witnesses,
            };
            Some((node.clone(), silence))
        };
        self.missed.iter().filter_map(said).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AFTER: Duration = Duration::from_millis(180);

    fn silent(node: &str) -> NodeFinding {
        NodeFinding::Silent { node: node.into(), address: "10.0.0.12".parse().unwrap(), gateway: true, witnesses: 2 }
    }

    fn watching() -> NodeWatch {
        let mut watch = NodeWatch::default();
        watch.watch([("node-2".to_owned(), ("u-2".to_owned(), "10.0.0.2".parse().unwrap()))].into());
        watch
    }

    #[test]
    fn a_node_is_called_silent_when_arp_and_tcp_are_unanswered_and_until_it_answers() {
        let (mut watch, now) = (watching(), Instant::now() + Duration::from_secs(1));
        assert_eq!(watch.note(now, AFTER, silent("node-9")), None, "it is not watched");
        let (node, address) = watch.note(now, AFTER, silent("node-2")).unwrap();
        assert_eq!((node.as_str(), address.to_string().as_str()), ("node-2", "10.0.0.12:10250"));
        assert!(watch.on_card().is_empty(), "one protocol alone says nothing");
        assert_eq!((watch.silent_since("node-2"), watch.silent_since("node-9")), (now.checked_sub(AFTER), None));
        assert_eq!(watch.note(now, AFTER, silent("node-2")), None, "it is being asked");
        assert!(watch.asked(now + Duration::from_millis(200), "node-2", false));
        let card = watch.on_card();
        let said = &card["node-2"];
        assert_eq!((said.uid.as_str(), said.ms, said.gateway, said.witnesses), ("u-2", 380, true, 2));
        assert_eq!(said.unanswered, ["arp 10.0.0.12", "tcp 10.0.0.12:10250"]);
        assert!(!watch.asked(now, "node-2", false) && watch.on_card() == card, "nothing changes while it stands");
        watch.note(now, AFTER, NodeFinding::Answers { node: "node-2".into() });
        assert!(watch.on_card().is_empty());
    }

    #[test]
    fn a_kubelet_that_answers_refutes_the_wire_and_is_asked_again_when_it_is_missed_again() {
        let (mut watch, now) = (watching(), Instant::now());
        watch.note(now, AFTER, silent("node-2"));
        assert!(!watch.asked(now, "node-2", true) && watch.on_card().is_empty());
        assert!(watch.note(now, AFTER, silent("node-2")).is_some());
        assert!(!watch.asked(now, "node-9", false));
    }

    #[test]
    fn what_was_found_out_about_a_node_at_another_address_is_forgotten() {
        let (mut watch, now) = (watching(), Instant::now());
        watch.note(now, AFTER, silent("node-2"));
        watch.asked(now, "node-2", false);
        let watched = |address: &str| [("node-2".to_owned(), ("u-2".to_owned(), address.parse().unwrap()))].into();
        assert!(!watch.watch(watched("10.0.0.2")) && watch.on_card().len() == 1, "nothing has changed");
        assert!(watch.watch(watched("10.0.0.3")) && watch.on_card().is_empty());
    }

    #[test]
    fn of_a_node_that_is_not_watched_any_more_nothing_is_said() {
        let (mut watch, now) = (watching(), Instant::now());
        watch.note(now, AFTER, silent("node-2"));
        watch.asked(now, "node-2", false);
        assert!(watch.watch(BTreeMap::new()) && watch.on_card().is_empty());
    }
}
