//! What a node says about itself in its membership Lease, for the other announcers.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::Term;

/// One interface of a member on which VIPs can be. `M` is the reader's type for an Ethernet address; it stands there as
/// text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(bound(serialize = "M: Display", deserialize = "M: FromStr"))]
pub struct CardLink<M> {
    /// Its name there.
    pub name: String,
    /// Its MAC, who is asked for VIPs on it.
    #[serde(with = "text")]
    pub mac: M,
    /// Its own addresses, by whose subnets the other nodes find theirs to the same LAN. They are asked to witness too.
    pub addresses: Vec<IpNet>,
    /// It has no IPv6 address at all, not even a link-local one: nobody can be asked from it whether an IPv6 VIP lives,
    /// and most probably the kernel would refuse to set one.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub no_ipv6: bool,
}

/// Another node that this one does not hear any more, in whatever way it asks. Says what was asked and who did answer
/// in the same moment; nothing in it changes while it stands, so that it costs one write when it begins and one when it
/// ends. Since when, a reader counts by its own clock; that it still stands each renewal of the Lease says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Silence {
    /// UID of the Node that is meant, not a later one of its name.
    pub uid: String,
    /// For how long it had been silent when this was found, in milliseconds.
    pub ms: u64,
    /// What it has left unanswered: `arp 192.0.2.11`, `tcp 192.0.2.11:10250`.
    pub unanswered: Vec<String>,
    /// The gateway answered meanwhile.
    #[serde(default)]
    pub gateway: bool,
    /// So many other hosts answered meanwhile.
    #[serde(default)]
    pub witnesses: u8,
}

/// What this node has asked for as a client would, address and port of a Service, and how that ended of late. A later
/// version may know more ways.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Probed {
    /// Somebody accepts connections there.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub served: BTreeSet<SocketAddr>,
    /// They are refused.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub refused: BTreeSet<SocketAddr>,
    /// Nothing comes back.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub silent: BTreeSet<SocketAddr>,
}

impl Probed {
    /// Nobody is asked, or no result is known yet.
    pub fn is_empty(&self) -> bool {
        self.served.is_empty() && self.refused.is_empty() && self.silent.is_empty()
    }

    /// No connection is accepted there, whichever way.
    pub fn is_unserved(&self, at: &SocketAddr) -> bool {
        self.refused.contains(at) || self.silent.contains(at)
    }
}

/// What a node says about itself. Written into its Lease with each renewal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(bound(serialize = "M: Display", deserialize = "M: FromStr"))]
pub struct Card<M> {
    /// Interfaces that are up.
    #[serde(default = "Vec::new")]
    pub links: Vec<CardLink<M>>,
    /// kube-proxy is healthy there, as far as can be told.
    #[serde(default)]
    pub serving: bool,
    /// It is about to end and wants nothing new.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub leaving: bool,
    /// The newest term that its watch has shown (decisions.md 20).
    #[serde(default)]
    pub term: Term,
    /// It has read that somebody else holds the Lease for all Services, and takes nothing (decisions.md 19).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub yields: bool,
    /// How many hosts that are no members answer it, by interface: on which side of a broken LAN clients are. Written
    /// with the next renewal.
    #[serde(default = "BTreeMap::new", skip_serializing_if = "BTreeMap::is_empty")]
    pub hears: BTreeMap<String, u8>,
    /// Groups whose addresses its kernel refuses.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub unable: BTreeSet<String>,
    /// Addresses on its interfaces that are neither its links' own nor those of Services: the VIP of a control plane,
    /// what another program has set. No Service gets them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub occupied: BTreeMap<String, BTreeSet<IpAddr>>,
    /// Nodes that it watches and does not hear any more, by name. Its Lease bears the label
    /// [`crate::keys::cloudprovider::SILENCE`] while there are any.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub silent: BTreeMap<String, Silence>,
    /// How Services answer this node. Written with the next renewal.
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
            unable: BTreeSet::new(),
            occupied: BTreeMap::new(),
            silent: BTreeMap::new(),
            probed: Probed::default(),
        }
    }
}

impl<M: Display + FromStr> Card<M> {
    /// As written in the annotation; what somebody else made of it is as good as an empty card: a node without
    /// interfaces.
    pub fn parse(text: &str) -> Self {
        serde_json::from_str(text).ok().filter(|card: &Self| card.term.is_plausible()).unwrap_or_default()
    }

    /// What to write.
    pub fn to_annotation(&self) -> String {
        serde_json::to_string(self).expect("plain fields are always valid JSON")
    }
}

/// An Ethernet address as the text that people know.
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
