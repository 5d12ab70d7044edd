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
pub(crate) enum Finding {
    /// The node does not answer, while most landmarks do, or the gateway and most nodes.
    Silent {
        /// Name of the node.
        node: String,
        /// The address that was asked for.
        address: IpAddr,
        /// Whether the gateway has answered in the same burst.
        gateway: bool,
        /// How many landmarks have answered.
        witnesses: u8,
        /// Most hosts are missed too. So the clients may be with that node, unless it stops to renew its Lease.
        doubtful: bool,
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
    /// When the detector first reported it, if it is silent only if it stops to renew its Lease.
    doubted: Option<Instant>,
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
        let before = self.on_card(|_, _| true);
        let former = std::mem::replace(&mut self.watched, watched);
        self.missed.retain(|node, _| self.watched.get(node).is_some_and(|now| former.get(node) == Some(now)));
        before != self.on_card(|_, _| true)
    }

    /// Takes in a finding. `silent_for`: how long a node has been silent when the detector reports it. Returns the
    /// kubelet to ask.
    pub fn note(&mut self, now: Instant, silent_for: Duration, finding: Finding) -> Option<(String, SocketAddr)> {
        match finding {
            Finding::Silent { node, address, gateway, witnesses, doubtful } => {
                // A confirmed node stays confirmed, and only one question is open at a time.
                if let Some(missed) = self.missed.get_mut(&node) {
                    missed.doubted = missed.doubted.filter(|_| doubtful);
                    return None;
                }
                if !self.watched.contains_key(&node) {
                    return None;
                }
                let since = now.checked_sub(silent_for).unwrap_or(now);
                let doubted = doubtful.then_some(now);
                let missed = Missed { since, doubted, address, gateway, witnesses, confirmed: None };
                self.missed.insert(node.clone(), missed);
                Some((node, SocketAddr::new(address, KUBELET)))
            }
            Finding::Answers { node } => {
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

    /// Whether the Lease of `node`, or our own, may settle whether a node is silent.
    pub fn waits_for(&self, node: &str, is_ours: bool) -> bool {
        self.missed.iter().any(|(missed, found)| found.doubted.is_some() && (is_ours || missed == node))
    }

    /// The nodes that this node reports as silent. `has_stopped`: whether a node that was reported silent at that time
    /// has stopped to renew its Lease.
    pub fn on_card(&self, has_stopped: impl Fn(&str, Instant) -> bool) -> BTreeMap<String, Silence> {
        let said = |(node, missed): (&String, &Missed)| {
            if missed.doubted.is_some_and(|at| !has_stopped(node, at)) {
                return None;
            }
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

    fn silent(node: &str) -> Finding {
        let address = "10.0.0.12".parse().unwrap();
        Finding::Silent { node: node.into(), address, gateway: true, witnesses: 2, doubtful: false }
    }

    fn doubted(node: &str) -> Finding {
        let Finding::Silent { node, address, gateway, witnesses, .. } = silent(node) else { unreachable!() };
        Finding::Silent { node, address, gateway, witnesses, doubtful: true }
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
        assert!(watch.on_card(|_, _| true).is_empty(), "one protocol alone says nothing");
        assert_eq!((watch.silent_since("node-2"), watch.silent_since("node-9")), (now.checked_sub(AFTER), None));
        assert_eq!(watch.note(now, AFTER, silent("node-2")), None, "it is being asked");
        assert!(watch.asked(now + Duration::from_millis(200), "node-2", false));
        let card = watch.on_card(|_, _| true);
        let said = &card["node-2"];
        assert_eq!((said.uid.as_str(), said.ms, said.gateway, said.witnesses), ("u-2", 380, true, 2));
        assert_eq!(said.unanswered, ["arp 10.0.0.12", "tcp 10.0.0.12:10250"]);
        assert!(
            !watch.asked(now, "node-2", false) && watch.on_card(|_, _| true) == card,
            "nothing changes while it stands"
        );
        watch.note(now, AFTER, Finding::Answers { node: "node-2".into() });
        assert!(watch.on_card(|_, _| true).is_empty());
    }

    #[test]
    fn where_most_hosts_are_missed_too_a_node_is_called_silent_only_while_it_does_not_renew_its_lease() {
        let now = Instant::now() + Duration::from_secs(1);
        for (name, findings, stopped, said) in [
            ("few hosts are missed, and it renews", &[silent("node-2")][..], false, true),
            ("most are, and it renews", &[doubted("node-2")], false, false),
            ("most are, and it has stopped", &[doubted("node-2")], true, true),
            ("the others were found again", &[doubted("node-2"), silent("node-2")], false, true),
            ("and missed once more", &[doubted("node-2"), silent("node-2"), doubted("node-2")], false, true),
        ] {
            let mut watch = watching();
            for finding in findings {
                watch.note(now, AFTER, finding.clone());
            }
            watch.asked(now, "node-2", false);
            assert_eq!(
                watch.on_card(|node, at| node == "node-2" && at == now && stopped).len(),
                usize::from(said),
                "{name}"
            );
            let doubts = findings.iter().all(|finding| *finding == doubted("node-2"));
            for (of, is_ours, waits) in [("node-2", false, doubts), ("node-9", false, false), ("node-1", true, doubts)]
            {
                assert_eq!(watch.waits_for(of, is_ours), waits, "{name}: {of}");
            }
        }
    }

    #[test]
    fn a_kubelet_that_answers_refutes_the_wire_and_is_asked_again_when_it_is_missed_again() {
        let (mut watch, now) = (watching(), Instant::now());
        watch.note(now, AFTER, silent("node-2"));
        assert!(!watch.asked(now, "node-2", true) && watch.on_card(|_, _| true).is_empty());
        assert!(watch.note(now, AFTER, silent("node-2")).is_some());
        assert!(!watch.asked(now, "node-9", false));
    }

    #[test]
    fn what_was_found_out_about_a_node_at_another_address_is_forgotten() {
        let (mut watch, now) = (watching(), Instant::now());
        watch.note(now, AFTER, silent("node-2"));
        watch.asked(now, "node-2", false);
        let watched = |address: &str| [("node-2".to_owned(), ("u-2".to_owned(), address.parse().unwrap()))].into();
        assert!(!watch.watch(watched("10.0.0.2")) && watch.on_card(|_, _| true).len() == 1, "nothing has changed");
        assert!(watch.watch(watched("10.0.0.3")) && watch.on_card(|_, _| true).is_empty());
    }

    #[test]
    fn of_a_node_that_is_not_watched_any_more_nothing_is_said() {
        let (mut watch, now) = (watching(), Instant::now());
        watch.note(now, AFTER, silent("node-2"));
        watch.asked(now, "node-2", false);
        assert!(watch.watch(BTreeMap::new()) && watch.on_card(|_, _| true).is_empty());
    }
}
