//! Judges whether this cluster is the one that its record describes, and whether this Harvester has its machines. Pure
//! (decisions 11 and 40).
//!
//! A copy of a cluster (an etcd snapshot restored on other machines) has the same UIDs as the original: of Services, of
//! Namespaces, of Nodes. Only the virtual machines that its kubelets run on are different. Therefore the machines
//! decide. While the facts contradict each other, the controller changes nothing anywhere, until they agree again or an
//! operator confirms which of them is right.

mod cards;
mod node_fact;

use std::collections::BTreeSet;

use harvester_api::names::ClusterName;

pub use cards::{OperatorConfirmation, confirmed_card, next_card};
use node_fact::runs_elsewhere;
pub use node_fact::{KubeletLiveness, NodeFact};

use super::identity_card::IdentityCard;

/// All facts that are compared.
#[derive(Debug, Clone)]
pub struct IdentityFacts<'a> {
    /// The card in the record.
    pub card: Option<&'a IdentityCard>,
    /// The name in use, from the record or from proven objects of this cluster. `None` if it is unknown, or identifies
    /// no cluster.
    pub name: Option<&'a ClusterName>,
    /// `--cluster-name`.
    pub flag: &'a ClusterName,
    /// The names under which this cluster has its load balancers, for a card that has none.
    pub names: &'a BTreeSet<String>,
    /// UID of Namespace `kube-system`, if it may be read.
    pub cluster_uid: Option<&'a str>,
    /// UID of Service `default/kubernetes`.
    pub service_uid: Option<&'a str>,
    /// Namespace of the cloud-config's context.
    pub namespace: &'a str,
    /// URL of the Harvester API, for messages.
    pub server: &'a str,
    /// Fingerprint of the certificate authority in the cloud-config.
    pub authority: Option<&'a str>,
    /// Nodes that are not being deleted.
    pub nodes: &'a [NodeFact],
    /// Virtual machines in the namespace.
    pub machines: usize,
    /// The process has watched long enough that a Node without a running kubelet would have become NotReady.
    pub settled: bool,
    /// The Node that this process runs on according to `NODE_NAME`, if no such Node is registered.
    pub unregistered: Option<&'a str>,
}

/// Two facts that cannot both be right.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Contradiction {
    /// One word in CamelCase.
    pub reason: &'static str,
    /// The two facts.
    pub facts: [String; 2],
    /// What to check, and the command that resolves the contradiction.
    pub remedy: String,
}

impl Contradiction {
    /// The complete message.
    pub fn message(&self) -> String {
        let [first, second] = &self.facts;
        format!("{first}, but {second}. {}", self.remedy)
    }
}

/// The result of the comparison.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum IdentityVerdict {
    /// The facts agree; this is the new card.
    Normal(IdentityCard),
    /// There was no card before; this is the first one.
    New(IdentityCard),
    /// The facts contradict each other.
    SafeMode(Contradiction),
    /// The facts do not suffice yet.
    Undecided(String),
}

/// Limit of the Nodes whose kubelets are asked for. One that lives is enough.
const MOST_ASKED: usize = 8;

/// The command by which an operator confirms that the cluster that runs here now is the one in the record.
pub const CONFIRM: &str = "harvester-cloud-provider identity confirm";

/// The command that gives the cluster another name.
pub fn rename(name: &ClusterName) -> String {
    format!("harvester-cloud-provider identity rename {name}")
}

/// The command that makes a copy a cluster of its own.
pub fn copy(name: &ClusterName) -> String {
    format!("{} --copy", rename(name))
}

/// Compares card, cloud-config, flag and machines.
pub fn judge(facts: &IdentityFacts<'_>) -> IdentityVerdict {
    let contradiction = foreign_record(facts).or_else(|| nowhere(facts));
    if let Some(contradiction) = contradiction {
        return IdentityVerdict::SafeMode(contradiction);
    }
    // A copy of a cluster may run its controller before its own kubelet has registered. All Nodes in the snapshot are
    // those of the original then.
    if let Some(name) = facts.unregistered.filter(|_| !facts.card.is_some_and(|card| card.outside)) {
        return IdentityVerdict::Undecided(format!(
            "this process runs on Node {name} (NODE_NAME), and no such Node is registered: on which machine this \
             cluster runs is not known. If NODE_NAME is wrong, correct it. If this controller runs outside the \
             cluster, run `{CONFIRM}`: the record then says so"
        ));
    }
    match facts.card.filter(|card| !card.machines.is_empty()) {
        Some(card) => match continuity(facts, card) {
            None => IdentityVerdict::Normal(next_card(facts)),
            Some(doubt) => doubt,
        },
        None => match without_card(facts) {
            Some(contradiction) => IdentityVerdict::SafeMode(contradiction),
            None if facts.card.is_some() => IdentityVerdict::Normal(next_card(facts)),
            None => IdentityVerdict::New(next_card(facts)),
        },
    }
}

/// Whether the record is that of another cluster.
pub fn has_foreign_record(facts: &IdentityFacts<'_>) -> bool {
    foreign_record(facts).is_some()
}

/// The record was copied from another cluster, for example by GitOps or a backup tool.
fn foreign_record(facts: &IdentityFacts<'_>) -> Option<Contradiction> {
    let card = facts.card.filter(|card| !card.cluster_uid.is_empty())?;
    let uid = facts.cluster_uid.filter(|uid| *uid != card.cluster_uid)?;
    let other = facts.name.is_some_and(|name| name != facts.flag) && !facts.flag.is_default();
    let command = if other { copy(facts.flag) } else { CONFIRM.to_owned() };
    Some(Contradiction {
        reason: "RecordOfAnotherCluster",
        facts: [
            format!("the record is of the cluster whose Namespace kube-system has UID {}", card.cluster_uid),
            format!("this cluster's has UID {uid}"),
        ],
        remedy: format!(
            "The record was copied from another cluster: take ConfigMap kube-system/harvester-cloud-provider out of \
             what copies it, then run `{command}`, which writes it anew for this cluster"
        ),
    })
}

/// No machine is where the cloud-config points to: it is another Harvester or another namespace, or the machines were
/// moved.
fn nowhere(facts: &IdentityFacts<'_>) -> Option<Contradiction> {
    let declared = |node: &NodeFact| facts.card.is_some_and(|card| node.is_absent(card));
    let members: Vec<&NodeFact> = facts.nodes.iter().filter(|node| node.machine.is_some() && !declared(node)).collect();
    let confirmed = |node: &&&NodeFact| facts.card.is_some_and(|card| node.names_known(card));
    if members.is_empty() || members.iter().any(|node| node.seen) || members.iter().any(|node| confirmed(&node)) {
        return None;
    }
    let first = members[0];
    let machine = first.machine.as_deref().unwrap_or_default();
    let here = format!(
        "none of them is among the {} in namespace {} of Harvester at {}",
        facts.machines, facts.namespace, facts.server
    );
    let nodes = format!("{} Nodes run on virtual machines such as {machine} of Node {}", members.len(), first.name);
    let (reason, before) = match facts.card {
        Some(card) if card.namespace != facts.namespace => {
            ("WrongNamespace", format!("the record says namespace {} of Harvester, and {nodes}", card.namespace))
        }
        Some(card) if facts.authority.is_some_and(|now| !card.authority.is_empty() && now != card.authority) => {
            ("WrongHarvester", format!("the record says a Harvester with authority {}, and {nodes}", card.authority))
        }
        _ => ("MachinesNotSeen", nodes),
    };
    let authority = facts.authority.map(|authority| format!(" (authority {authority})")).unwrap_or_default();
    Some(Contradiction {
        reason,
        facts: [before, here + &authority],
        remedy: format!(
            "If the cloud-config is that of another Harvester or namespace, put the right one in its place; nothing \
             else is needed. If the machines were moved or restored under new UIDs, run `{CONFIRM}`"
        ),
    })
}

/// Reasons to doubt that the machines in the card still belong to this cluster. Machines of a cluster are replaced one
/// by one; in a copy all of them are different.
fn continuity(facts: &IdentityFacts<'_>, card: &IdentityCard) -> Option<IdentityVerdict> {
    let (known, strangers): (Vec<&NodeFact>, Vec<&NodeFact>) =
        facts.nodes.iter().partition(|node| node.is_known(card) || node.is_absent(card));
    if known.iter().any(|node| node.kubelet == KubeletLiveness::Own) {
        return None;
    }
    // A Node whose provider ID names a machine that is not visible is no evidence.
    let strangers: Vec<&NodeFact> =
        strangers.into_iter().filter(|node| node.there().is_some() || node.machine.is_none()).collect();
    let elsewhere = strangers.iter().copied().find(|node| node.is_elsewhere(card));
    // The label of a machine says nothing about a Node that runs on another one.
    let labelled: Vec<&NodeFact> = strangers.iter().copied().filter(|node| !node.is_elsewhere(card)).collect();
    if let Some(contradiction) = another_cluster(facts, &known, &labelled) {
        return Some(IdentityVerdict::SafeMode(contradiction));
    }
    // Seen from outside, or before its own machines have registered, a restored snapshot looks like the original.
    // Therefore the kubelet of a known Node has to be seen alive.
    let alive = |nodes: &[&NodeFact]| nodes.iter().map(|node| node.kubelet).max().unwrap_or(KubeletLiveness::Silent);
    match (alive(&known), alive(&strangers)) {
        (KubeletLiveness::Lives | KubeletLiveness::Own, _) => None,
        (KubeletLiveness::Silent, KubeletLiveness::Reports | KubeletLiveness::Lives | KubeletLiveness::Own)
            if facts.settled =>
        {
            Some(IdentityVerdict::SafeMode(replaced(card, &known, &strangers, elsewhere)))
        }
        (KubeletLiveness::Reports | KubeletLiveness::Silent, _) => Some(IdentityVerdict::Undecided(format!(
            "it is not known yet whether the {} machines in the record are still those of this cluster: no kubelet of \
             them was seen to report since this process started, as in a restored snapshot{}. One that lives is seen \
             within 5 minutes. If this cluster was restored on new machines and the old ones are gone for good, run \
             `{CONFIRM}`",
            card.machines.len(),
            elsewhere.map(|node| format!(" ({})", runs_elsewhere(node))).unwrap_or_default()
        ))),
    }
}

/// Nodes whose reports should be read while the verdict is open: some on machines in the card that seem to be alive.
pub fn worth_asking(facts: &IdentityFacts<'_>) -> Vec<String> {
    let card = facts.card.filter(|card| facts.unregistered.is_none() || card.outside);
    let known = facts.nodes.iter().filter(|node| card.is_some_and(|card| node.is_known(card) || node.is_absent(card)));
    known
        .filter(|node| node.kubelet == KubeletLiveness::Reports)
        .take(MOST_ASKED)
        .map(|node| node.name.clone())
        .collect()
}

/// New Nodes run on machines with the label of another cluster, and the flag says the same: this is a copy, or the
/// cluster was renamed. If the machines in the record have that label too, all machines were merely relabelled.
fn another_cluster(facts: &IdentityFacts<'_>, known: &[&NodeFact], strangers: &[&NodeFact]) -> Option<Contradiction> {
    let name = facts.name?;
    let ours = |label: &ClusterName| label == name || known.iter().any(|node| node.label.as_ref() == Some(label));
    let other = strangers.iter().find_map(|node| {
        let label = node.label.as_ref().filter(|label| !ours(label))?;
        (label == facts.flag || node.kubelet == KubeletLiveness::Own).then_some((*node, label))
    });
    other.map(|(node, label)| named_otherwise(name, label, node))
}

fn named_otherwise(name: &ClusterName, label: &ClusterName, node: &NodeFact) -> Contradiction {
    Contradiction {
        reason: "AnotherClusterName",
        facts: [
            format!("the record and the load balancers call this cluster {:?}", name.as_str()),
            format!("Node {} runs on a virtual machine that is labelled with cluster {:?}", node.name, label.as_str()),
        ],
        remedy: format!(
            "If this cluster is a copy of {name}, run `{}`: it gets load balancers of its own and leaves those of \
             {name} alone. If it is {name} itself under a new name, run `{}`. If it is to stay {name}, correct \
             --cluster-name and label guestcluster.harvesterhci.io/name of the machine",
            copy(label),
            rename(label)
        ),
    }
}

/// Whether this process runs on a Node whose machine is not the one in its provider ID.
pub fn is_own_elsewhere(facts: &IdentityFacts<'_>) -> bool {
    let mut own = facts.nodes.iter().filter(|node| node.kubelet == KubeletLiveness::Own);
    own.any(|node| facts.card.is_some_and(|card| node.is_elsewhere(card)))
}

fn replaced(
    card: &IdentityCard,
    known: &[&NodeFact],
    strangers: &[&NodeFact],
    elsewhere: Option<&NodeFact>,
) -> Contradiction {
    let names = |nodes: &[&NodeFact]| {
        let mut names: Vec<&str> = nodes.iter().map(|node| node.name.as_str()).take(5).collect();
        if nodes.len() > names.len() {
            names.push("...");
        }
        names.join(", ")
    };
    let alive: Vec<&NodeFact> =
        strangers.iter().copied().filter(|node| node.kubelet > KubeletLiveness::Silent).collect();
    let silent = if known.is_empty() { String::new() } else { format!(" (Nodes {})", names(known)) };
    Contradiction {
        reason: "MachinesReplaced",
        facts: [
            format!(
                "the record says that this cluster runs on {} virtual machines, and none of them{silent} runs a Node \
                 whose kubelet reports",
                card.machines.len()
            ),
            format!(
                "the Nodes that report ({}) run on others{}",
                names(&alive),
                elsewhere.map(|node| format!(": {}", runs_elsewhere(node))).unwrap_or_default()
            ),
        ],
        remedy: format!(
            "If this cluster was restored on new machines and the old ones are gone for good, run `{CONFIRM}`. If it \
             is a copy and the original still runs, run `harvester-cloud-provider identity rename NEW-NAME --copy`, \
             with a name of its own"
        ),
    }
}

/// The record has no card: it was written by an earlier version, or the Go provider ran before. Then only names can be
/// compared, and the label on the machines decides.
fn without_card(facts: &IdentityFacts<'_>) -> Option<Contradiction> {
    let name = facts.name?;
    if facts.flag.is_default() || facts.flag == name {
        return None;
    }
    let labelled: Vec<&NodeFact> = facts.nodes.iter().filter(|node| node.label.is_some()).collect();
    if labelled.iter().any(|node| node.label.as_ref() == Some(name)) {
        return None;
    }
    let node = labelled.into_iter().find(|node| node.label.as_ref() == Some(facts.flag))?;
    Some(named_otherwise(name, facts.flag, node))
}

#[cfg(test)]
mod tests;
