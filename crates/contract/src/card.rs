//! The card: what a node reports about itself in its membership Lease, for the other announcers.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::Term;

/// One interface of a member that can carry VIPs. `M` is the reader's type for a MAC address, which is stored as text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(bound(serialize = "M: Display", deserialize = "M: FromStr"))]
pub struct CardLink<M> {
    /// Its name there.
    pub name: String,
    /// Its MAC address, to which checks of VIPs on the interface are sent.
    #[serde(with = "text")]
    pub mac: M,
    /// Its own addresses. Their subnets tell the other nodes which of their interfaces is on the same LAN. They also
    /// serve as witnesses.
    pub addresses: Vec<IpNet>,
    /// It has no IPv6 address at all, not even a link-local one. It cannot check IPv6 VIPs then, and the kernel would
    /// probably refuse to set one.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub no_ipv6: bool,
}

/// A node that this one does not hear any more by any kind of check. Contains the evidence, and which others answered
/// at the same time. The content is constant while the silence lasts, so it costs one write at the beginning and one at
/// the end. A reader measures the duration by its own clock; each renewal of the Lease confirms that the silence lasts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Silence {
    /// UID of the silent Node, so that a later Node of the same name is not meant.
    pub uid: String,
    /// Milliseconds that the node had been silent when this was detected.
    pub ms: u64,
    /// The checks without an answer: `arp 192.0.2.11`, `tcp 192.0.2.11:10250`.
    pub unanswered: Vec<String>,
    /// The gateway answered at the same time.
    #[serde(default)]
    pub gateway: bool,
    /// Number of other hosts that answered at the same time.
    #[serde(default)]
    pub witnesses: u8,
}

/// Results of this node's recent probes: connections to addresses and ports of Services, as a client makes them. A
/// later version may add further results.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Probed {
    /// The connection was accepted.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub served: BTreeSet<SocketAddr>,
    /// The connection was refused.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub refused: BTreeSet<SocketAddr>,
    /// There was no answer.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub silent: BTreeSet<SocketAddr>,
}

impl Probed {
    /// Whether there is no probe, or no result yet.
    pub fn is_empty(&self) -> bool {
        self.served.is_empty() && self.refused.is_empty() && self.silent.is_empty()
    }

    /// Whether no connection is accepted there, for whatever reason.
    pub fn is_unserved(&self, at: &SocketAddr) -> bool {
        self.refused.contains(at) || self.silent.contains(at)
    }
}

/// The report of a node about itself. Written to its Lease with each renewal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(bound(serialize = "M: Display", deserialize = "M: FromStr"))]
pub struct Card<M> {
    /// Interfaces that are up.
    #[serde(default = "Vec::new")]
    pub links: Vec<CardLink<M>>,
    /// kube-proxy on the node is healthy, as far as is known.
    #[serde(default)]
    pub serving: bool,
    /// The announcer is about to stop and takes no further VIPs.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub leaving: bool,
    /// The newest term that its watch has shown (decisions.md 20).
    #[serde(default)]
    pub term: Term,
    /// It has read that another program holds the Lease for all Services, and takes no VIP (decisions.md 19).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub yields: bool,
    /// Number of hosts that answer it and are no members, by interface. In a split LAN this tells which side the
    /// clients are on. Written with the next renewal.
    #[serde(default = "BTreeMap::new", skip_serializing_if = "BTreeMap::is_empty")]
    pub hears: BTreeMap<String, u8>,
    /// Whether its default gateway answers it, by interface. Only interfaces with such a gateway, and only once that
    /// is known. Written with the next renewal.
    #[serde(default = "BTreeMap::new", skip_serializing_if = "BTreeMap::is_empty")]
    pub gateways: BTreeMap<String, bool>,
    /// Groups whose addresses the kernel of the node refuses.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub unable: BTreeSet<String>,
    /// Addresses on its interfaces that belong neither to the interfaces themselves nor to Services: the VIP of a
    /// control plane, or addresses that another program has set. No Service gets them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub occupied: BTreeMap<String, BTreeSet<IpAddr>>,
    /// Nodes that it watches and does not hear any more, by name. While there are any, its Lease has the label
    /// [`crate::keys::cloudprovider::SILENCE`].
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub silent: BTreeMap<String, Silence>,
    /// Results of its probes of Services. Written with the next renewal.
    #[serde(default, skip_serializing_if = "Probed::is_empty")]
    pub probed: Probed,
}

impl<M> Default for Card<M> {
    fn default() -> Self {
        Self {
            links: Vec::new(),
            serving: false,
            leaving: false,
            term: Term::default(),
            yields: false,
            hears: BTreeMap::new(),
            gateways: BTreeMap::new(),
            unable: BTreeSet::new(),
            occupied: BTreeMap::new(),
            silent: BTreeMap::new(),
            probed: Probed::default(),
        }
    }
}

impl<M: Display + FromStr> Card<M> {
    /// Parses the annotation. A malformed one counts as an empty card, which is a node without interfaces.
    pub fn parse(text: &str) -> Self {
        serde_json::from_str(text).ok().filter(|card: &Self| card.term.is_plausible()).unwrap_or_default()
    }

    /// The text of the annotation.
    pub fn to_annotation(&self) -> String {
        serde_json::to_string(self).expect("plain fields are always valid JSON")
    }
}

/// Stores a MAC address as its usual text.
mod text {
    use std::fmt::Display;
    use std::str::FromStr;

    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub fn serialize<M: Display, S: Serializer>(mac: &M, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(mac)
    }

    pub fn deserialize<'de, M: FromStr, D: Deserializer<'de>>(deserializer: D) -> Result<M, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(|_| D::Error::custom("not a MAC address"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verdict_on_a_card_names_node_evidence_and_witnesses_and_is_absent_without_one() {
        let silence = Silence {
            uid: "u-2".into(),
            ms: 230,
            unanswered: vec!["arp 10.0.0.12".into(), "tcp 10.0.0.12:10250".into()],
            gateway: true,
            witnesses: 2,
        };
        let card = Card::<String> { silent: [("node-2".to_owned(), silence)].into(), ..Card::default() };
        let text = card.to_annotation();
        let expected = concat!(
            r#""silent":{"node-2":{"uid":"u-2","ms":230,"unanswered":["arp 10.0.0.12","tcp 10.0.0.12:10250"],"#,
            r#""gateway":true,"witnesses":2}}"#
        );
        assert!(text.contains(expected), "{text}");
        assert_eq!(Card::parse(&text), card);
        assert!(!Card::<String>::default().to_annotation().contains("silent"));
        let short = r#"{"silent":{"node-2":{"uid":"u","ms":1,"unanswered":[]}}}"#;
        assert!(!Card::<String>::parse(short).silent["node-2"].gateway, "what is not said has not been seen");
    }

    #[test]
    fn a_card_says_how_services_answer_and_nothing_where_none_is_asked() {
        let (web, dns) = ("10.0.0.5:80".parse().unwrap(), "[fd00::5]:53".parse().unwrap());
        let probed = Probed { served: [web].into(), silent: [dns].into(), ..Probed::default() };
        let card = Card::<String> { probed, ..Card::default() };
        let text = card.to_annotation();
        assert!(text.contains(r#""probed":{"served":["10.0.0.5:80"],"silent":["[fd00::5]:53"]}"#), "{text}");
        assert_eq!(Card::parse(&text), card);
        assert!(card.probed.is_unserved(&dns) && !card.probed.is_unserved(&web));
        assert!(!Card::<String>::default().to_annotation().contains("probed"));
        let later = r#"{"probed":{"served":["10.0.0.5:80"],"slow":["10.0.0.5:80"]}}"#;
        assert_eq!(Card::<String>::parse(later).probed.served, [web].into(), "a later version says more");
    }

    /// Announcers of different versions read one another.
    #[test]
    fn a_card_reads_as_it_always_did_and_a_spoilt_one_is_that_of_a_node_without_interfaces() {
        let link = CardLink {
            name: "eth0".into(),
            mac: "02:00:00:00:00:09".to_owned(),
            addresses: vec!["10.0.0.9/24".parse().unwrap()],
            no_ipv6: false,
        };
        let card = Card { links: vec![link], serving: true, term: Term(7), ..Card::default() };
        let text = concat!(
            r#"{"links":[{"name":"eth0","mac":"02:00:00:00:00:09","addresses":["10.0.0.9/24"]}],"#,
            r#""serving":true,"term":7}"#
        );
        assert_eq!(card.to_annotation(), text);
        assert_eq!(Card::parse(text), card);
        assert_eq!(Card::<String>::parse(r#"{"future":1}"#), Card::default(), "a later version says more");
        for spoilt in ["", "nonsense", r#"{"serving":"yes"}"#, r#"{"serving":true,"term":18446744073709551615}"#] {
            assert_eq!(Card::<String>::parse(spoilt), Card::default(), "{spoilt}");
        }
    }
}
