//! The cards that follow from the facts, and from an operator's confirmation. Pure.

use std::collections::BTreeSet;

use harvester_api::names::ClusterName;

use super::super::identity_card::IdentityCard;
use super::{IdentityFacts, KubeletLiveness, NodeFact, foreign_record};

/// The card that follows from the facts. A machine is added with a Node that looks alive, and stays as long as its
/// Node. A machine whose Node is known to be silent is never added.
///
/// After a restore the Nodes of the snapshot look Ready until the Kubernetes controller manager has looked. So a
/// machine may be added whose kubelet reports no more, or to another cluster, and an early confirmation by an operator
/// covers it. This does no harm, because a machine in the card proves nothing by itself:
/// * `continuity` passes only on [`KubeletLiveness::Own`] or [`KubeletLiveness::Lives`] of a Node on a machine in the
///   card. A kubelet that does not report here cannot have these, so the card without that machine would have passed as
///   well.
/// * Before another machine counts as gone, and before a changed cloud-config is used, it stands for the place and not
///   for the cluster. It came into the card because it was seen there, and the provider ID of its Node counts as much.
///
/// To wait for a later report of each kubelet instead would cost requests for every Node, and a cluster would have no
/// card meanwhile.
///
/// A card without names gets those in use. An earlier version kept none for a cluster that has, or once had, a default
/// name. All that is proven was its own then, also what a copy of it had made.
pub fn next_card(facts: &IdentityFacts<'_>) -> IdentityCard {
    let before = facts.card.cloned().unwrap_or_default();
    let members = facts.nodes.iter().filter(|node| node.machine.is_some());
    let machines: BTreeSet<String> = members
        .filter_map(|node| {
            let noted = |uid: &&String| before.machines.contains(*uid);
            let seen =
                node.machine.as_ref().filter(|uid| node.seen && (node.kubelet > KubeletLiveness::Silent || noted(uid)));
            seen.or_else(|| node.namesake.as_ref().filter(noted)).cloned()
        })
        .collect();
    let started_on = started_on(facts.nodes.iter()).chain(before.started_on.iter().cloned());
    let started_on = started_on.filter(|uid| machines.contains(uid)).collect();
    IdentityCard {
        cluster_uid: facts.cluster_uid.map_or(before.cluster_uid, str::to_owned),
        former_uids: before.former_uids.into_iter().chain(facts.service_uid.map(str::to_owned)).collect(),
        namespace: facts.namespace.to_owned(),
        authority: facts.authority.map_or(before.authority, str::to_owned),
        names: known_names(before.names, facts),
        started_on: if machines.is_empty() { before.started_on } else { started_on },
        machines: if machines.is_empty() { before.machines } else { machines },
        // An absent machine is kept as long as such a Node exists and its machine does not become visible.
        absent: unseen(facts.nodes.iter()).filter(|uid| before.absent.contains(uid)).collect(),
        // Kept until the controller runs on a Node of this cluster.
        outside: before.outside && !facts.nodes.iter().any(|node| node.kubelet == KubeletLiveness::Own),
    }
}

/// A confirmation by an operator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OperatorConfirmation {
    /// The cluster that runs here now is the one in the record.
    Confirm,
    /// The cluster has this name from now on, and keeps its load balancers.
    Rename(ClusterName),
    /// The cluster is a copy, has this name from now on, and leaves the load balancers of the original alone.
    Copy(ClusterName),
}

/// The card that follows from a confirmation: it describes everything as it is here and now.
pub fn confirmed_card(facts: &IdentityFacts<'_>, confirmation: &OperatorConfirmation) -> IdentityCard {
    let alive: Vec<&NodeFact> = facts.nodes.iter().filter(|node| node.kubelet > KubeletLiveness::Silent).collect();
    let nodes = if alive.is_empty() { facts.nodes.iter().collect() } else { alive };
    let before = facts.card.filter(|_| foreign_record(facts).is_none()).cloned().unwrap_or_default();
    let known = known_names(before.names, facts);
    let names = match confirmation {
        OperatorConfirmation::Confirm => known,
        OperatorConfirmation::Rename(name) => known.into_iter().chain([name.to_string()]).collect(),
        OperatorConfirmation::Copy(name) => [name.to_string()].into(),
    };
    // A kubelet that runs elsewhere is confirmed by that, too: its UUID counts again when it was once the same.
    let machines: BTreeSet<String> = nodes.iter().filter_map(|node| node.there()).cloned().collect();
    IdentityCard {
        cluster_uid: facts.cluster_uid.unwrap_or_default().to_owned(),
        former_uids: before.former_uids.into_iter().chain(facts.service_uid.map(str::to_owned)).collect(),
        namespace: facts.namespace.to_owned(),
        authority: facts.authority.unwrap_or_default().to_owned(),
        names,
        started_on: started_on(nodes.into_iter()).filter(|uid| machines.contains(uid)).collect(),
        machines,
        absent: unseen(facts.nodes.iter().filter(|node| node.namesake.is_none())).collect(),
        outside: facts.unregistered.is_some(),
    }
}

/// UIDs of the machines that kubelets have started on, by the UUID that they report. What a silent one has reported may
/// be old.
fn started_on<'a>(nodes: impl Iterator<Item = &'a NodeFact>) -> impl Iterator<Item = String> {
    let alive = nodes.filter(|node| node.kubelet > KubeletLiveness::Silent);
    alive.filter(|node| node.is_on_its_machine() == Some(true)).filter_map(|node| node.there().cloned())
}

/// The names on the card, or those in use where it has none.
fn known_names(before: BTreeSet<String>, facts: &IdentityFacts<'_>) -> BTreeSet<String> {
    if before.is_empty() { facts.names.clone() } else { before }
}

/// UIDs of machines in provider IDs of Nodes that Harvester does not show.
fn unseen<'a>(nodes: impl Iterator<Item = &'a NodeFact>) -> impl Iterator<Item = String> {
    nodes.filter(|node| !node.seen).filter_map(|node| node.machine.clone())
}
