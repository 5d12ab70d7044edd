//! The identity card: the part of the record that says which cluster this is, and which Harvester has its machines.

use std::collections::BTreeSet;

use serde_json::{Value, json};

/// The identity of this cluster, besides its name. (The name was in the record before there were cards.)
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct IdentityCard {
    /// UID of Namespace `kube-system`; empty if it could not be read.
    pub cluster_uid: String,
    /// Further UIDs that mark objects as this cluster's: that of Service `default/kubernetes`, which earlier versions
    /// used, and which changes when the Service is created again.
    pub former_uids: BTreeSet<String>,
    /// Namespace on Harvester of the machines and load balancers.
    pub namespace: String,
    /// Fingerprint of the certificate authority of the Harvester API; empty if the cloud-config has none.
    pub authority: String,
    /// Names under which load balancers belong to this cluster: the present one and former ones. Empty only on a card
    /// of an earlier version, where it stood for any name; see [`next_card`](super::judge::next_card).
    pub names: BTreeSet<String>,
    /// UIDs of the virtual machines that this cluster's Nodes run on.
    pub machines: BTreeSet<String>,
    /// Those of them whose kubelet has reported the UUID of their firmware as its system UUID. If it reports another
    /// one later, it runs elsewhere: in a copy of the machine.
    pub started_on: BTreeSet<String>,
    /// UIDs of machines in provider IDs of Nodes that Harvester does not show, as an operator has confirmed. They prove
    /// nothing.
    pub absent: BTreeSet<String>,
    /// The controller runs outside this cluster, as an operator has confirmed. It is no evidence then that its own Node
    /// is not registered.
    pub outside: bool,
}

impl IdentityCard {
    /// The card as it is written to the record.
    pub fn to_text(&self) -> String {
        let mut card = json!({
            "clusterUID": self.cluster_uid,
            "formerUIDs": self.former_uids,
            "namespace": self.namespace,
            "authority": self.authority,
            "names": self.names,
            "machines": self.machines,
        });
        if !self.started_on.is_empty() {
            card["startedOn"] = json!(self.started_on);
        }
        if !self.absent.is_empty() {
            card["absent"] = json!(self.absent);
        }
        if self.outside {
            card["outside"] = json!(true);
        }
        card.to_string()
    }

    /// Parses the card from the record; `None` if there is none, or it cannot be parsed.
    pub fn from_text(text: &str) -> Option<Self> {
        let value: Value = serde_json::from_str(text).ok()?;
        let text = |key: &str| value[key].as_str().unwrap_or_default().to_owned();
        let set = |key: &str| -> BTreeSet<String> {
            value[key].as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
        };
        value.is_object().then(|| Self {
            cluster_uid: text("clusterUID"),
            former_uids: set("formerUIDs"),
            namespace: text("namespace"),
            authority: text("authority"),
            names: set("names"),
            machines: set("machines"),
            started_on: set("startedOn"),
            absent: set("absent"),
            outside: value["outside"].as_bool().unwrap_or_default(),
        })
    }
}

/// A fingerprint of a certificate authority, short enough for messages.
pub fn fingerprint(authority: &[u8]) -> String {
    let digest = ring::digest::digest(&ring::digest::SHA256, authority.trim_ascii());
    let bytes = digest.as_ref().first_chunk::<8>().copied().unwrap_or_default();
    format!("{:016x}", u64::from_be_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_card_survives_being_written_down() {
        let card = IdentityCard {
            cluster_uid: "uid-1".into(),
            former_uids: ["uid-2".to_owned()].into(),
            namespace: "guests".into(),
            authority: "ab".into(),
            names: ["prod".to_owned()].into(),
            machines: ["vm-1".to_owned(), "vm-2".to_owned()].into(),
            started_on: ["vm-2".to_owned()].into(),
            absent: ["vm-0".to_owned()].into(),
            outside: true,
        };
        assert_eq!(IdentityCard::from_text(&card.to_text()), Some(card));
    }

    #[test]
    fn what_is_no_card_is_none_and_what_a_later_version_adds_is_no_harm() {
        for text in ["", "x", "[]", "7"] {
            assert_eq!(IdentityCard::from_text(text), None, "{text}");
        }
        let later = IdentityCard::from_text(r#"{"clusterUID": "u", "machines": ["a", 7], "new": {}}"#).unwrap();
        assert_eq!((later.cluster_uid.as_str(), later.machines.len(), later.outside), ("u", 1, false));
    }
}
