//! The facts about one Node, and what they say about its machine. Pure.

use harvester_api::names::ClusterName;

use super::super::identity_card::IdentityCard;
use crate::instances::machine_uuid::MachineUuid;

/// Whether the kubelet of a Node is known to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum KubeletLiveness {
    /// Not known: a restored snapshot contains Nodes whose machines no longer belong to this cluster.
    Silent,
    /// Its Node says so, ready or not: without a network plugin no Node is ready. In a restored snapshot this is old,
    /// until the Kubernetes controller manager notices.
    Reports,
    /// It was seen to report while this process watched.
    Lives,
    /// This process runs on it.
    Own,
}

/// The facts about one Node and its machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeFact {
    /// Name of the Node.
    pub name: String,
    /// UID of the machine in its provider ID.
    pub machine: Option<String>,
    /// That machine is in this cluster's namespace on this Harvester.
    pub seen: bool,
    /// UID of the machine there that has the same name as the Node.
    pub namesake: Option<String>,
    /// The cluster name in the label of the machine, or of the namesake if there is no machine.
    pub label: Option<ClusterName>,
    /// Whether its kubelet runs.
    pub kubelet: KubeletLiveness,
    /// The UUID that its kubelet reports of its machine, if no other Node reports the same.
    pub system_uuid: Option<MachineUuid>,
    /// The UUID in the firmware of the machine, or of the namesake if there is no machine.
    pub firmware: Option<MachineUuid>,
}

impl NodeFact {
    /// UID of the machine that the Node runs on, as far as this Harvester shows it.
    pub(super) fn there(&self) -> Option<&String> {
        self.machine.as_ref().filter(|_| self.seen).or(self.namesake.as_ref())
    }

    /// Whether the kubelet has started on the machine that is there; `None` if that is not known.
    pub(super) fn is_on_its_machine(&self) -> Option<bool> {
        Some(self.system_uuid? == self.firmware?)
    }

    /// Whether the kubelet runs, but on another machine than the one that the provider ID names: everything in the Node
    /// was copied with the cluster, except what the kubelet of the copy writes. Counts only where both UUIDs were once
    /// the same, because a hypervisor may hand on another one. What a silent kubelet has reported may be old.
    pub(super) fn is_elsewhere(&self, card: &IdentityCard) -> bool {
        let was_there = || self.there().is_some_and(|uid| card.started_on.contains(uid));
        self.kubelet >= KubeletLiveness::Lives && self.is_on_its_machine() == Some(false) && was_there()
    }

    /// Whether an operator has confirmed that the Node's machine is not visible.
    pub(super) fn is_absent(&self, card: &IdentityCard) -> bool {
        !self.seen && self.machine.as_ref().is_some_and(|uid| card.absent.contains(uid))
    }

    pub(super) fn is_known(&self, card: &IdentityCard) -> bool {
        self.names_known(card) && !self.is_elsewhere(card)
    }

    /// Whether the provider ID or the name of the Node leads to a machine in the card.
    pub(super) fn names_known(&self, card: &IdentityCard) -> bool {
        let has = |uid: &String| card.machines.contains(uid);
        self.machine.as_ref().filter(|_| self.seen).is_some_and(has) || self.namesake.as_ref().is_some_and(has)
    }
}

/// Says what the kubelet of a Node and the firmware of its machine tell.
pub(super) fn runs_elsewhere(node: &NodeFact) -> String {
    let text = |uuid: Option<MachineUuid>| uuid.map(|uuid| uuid.to_string()).unwrap_or_default();
    format!(
        "the kubelet of Node {} runs on a machine with system UUID {}, and virtual machine {}, on which it ran before, \
         has firmware UUID {}",
        node.name,
        text(node.system_uuid),
        node.there().map_or("", String::as_str),
        text(node.firmware)
    )
}
