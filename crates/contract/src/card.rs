//! What a node says about itself in its membership Lease, for the other announcers.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::str::FromStr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::Term;

/// One interface of a member on which VIPs can be. `M` is the reader's type for an Ethernet address; it stands there as text.
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
    /// Groups whose addresses its kernel refuses.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub unable: BTreeSet<String>,
}

impl<M> Default for Card<M> {
    fn default() -> Self {
        Self {
            links: Vec::new(),
            serving: false,
            leaving: false,
            term: Term::default(),
            yields: false,
            unable: BTreeSet::new(),
        }
    }
}

impl<M: Display + FromStr> Card<M> {
    /// As written in the annotation; what somebody else made of it is as good as an empty card: a node without interfaces.
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
