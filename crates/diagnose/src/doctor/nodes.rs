//! Checks the Nodes: whether their machines are known, whether they may take addresses, and whether any program on them
//! takes a Service's address for the node's own.

use contract::keys::kubernetes::{EXCLUDED, SHUT_OUT, UNINITIALIZED};
use harvester_api::quorum;
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{Container, Node};
use kube::ResourceExt;

use super::advice;
use super::checks::Check;
use super::finding::Finding;
use crate::facts;
use crate::silence::{self, Silent};
use crate::snapshot::Snapshot;

pub fn findings(snapshot: &Snapshot) -> Vec<Finding> {
    let mut all: Vec<Finding> = snapshot.nodes.iter().flat_map(|node| of(snapshot, node)).collect();
    all.extend(elsewhere(snapshot));
    all.extend(silent(snapshot));
    all.extend(snapshot.daemon_sets.iter().filter_map(|set| calico(snapshot, set)));
    all.extend(cilium(snapshot));
    all
}

/// Whether the machine of any Node is seen; `None` if machines cannot be read, or no Node has one.
fn has_machines(snapshot: &Snapshot) -> Option<bool> {
    let readable = snapshot.harvester.trouble.is_none()
        && !snapshot.namespace.is_empty()
        && snapshot.has_read("VirtualMachines on Harvester");
    let mut placed = snapshot.nodes.iter().filter(|node| facts::vm_uid(node).is_some()).peekable();
    placed.peek().filter(|_| readable)?;
    Some(placed.any(|node| facts::vm_name(node, snapshot).is_some()))
}

/// That no machine of this cluster is in the namespace that was looked at, as text, and the namespace in the record if
/// that is another one.
pub fn machines_elsewhere(snapshot: &Snapshot) -> Option<(String, Option<String>)> {
    if has_machines(snapshot)? {
        return None;
    }
    let namespace = &snapshot.namespace;
    let what = format!("none of this cluster's machines is in namespace {namespace} of Harvester");
    let card = facts::identity_card(snapshot);
    let recorded = card["namespace"].as_str().filter(|recorded| !recorded.is_empty() && recorded != namespace);
    Some(match recorded {
        Some(right) => (format!("{what} (the record says namespace {right})"), Some(right.to_owned())),
        None => (what, None),
    })
}

/// Reports that none of the machines is in the namespace that was looked at. The usual cause is a file of an
/// administrator whose context names no namespace; then every Node is well, and none may be deleted.
fn elsewhere(snapshot: &Snapshot) -> Option<Finding> {
    let (what, recorded) = machines_elsewhere(snapshot)?;
    let namespace = &snapshot.namespace;
    let finding = Finding::error(Check::MachinesElsewhere, format!("namespace {namespace} of Harvester"))
        .why("nothing of this cluster is found there: neither its machines nor its load balancers were checked");
    let Some(right) = recorded else {
        return Some(finding.what(what).remedy(
            "kubectl --kubeconfig harvester.yaml get virtualmachines.kubevirt.io -A     # shows their namespace: name \
             it in the context of the cloud-config; machines restored from a backup have new UIDs: docs/backup.md",
        ));
    };
    let file = &snapshot.cloud_config;
    let remedy = if file.starts_with("Secret ") {
        advice::write_credentials(snapshot, &right, "", &format!("writes {file} anew, for that namespace"))
    } else {
        format!(
            "kubectl --kubeconfig {file} config set-context --current --namespace={right}     # then call doctor with \
             it again; or give a cloud-config whose context names that namespace"
        )
    };
    Some(finding.what(what).remedy(remedy))
}

/// Reports the nodes that other nodes do not hear any more. Their announcers say so within a second; the Lease of such
/// a node, and its condition `Ready`, look well for longer.
fn silent(snapshot: &Snapshot) -> Vec<Finding> {
    let of = |(name, silent): (String, Silent)| {
        let node = snapshot.nodes.iter().find(|node| node.name_any() == name);
        let machine = node.and_then(|node| facts::vm_name(node, snapshot)).unwrap_or_else(|| "<machine>".to_owned());
        let namespace = if snapshot.namespace.is_empty() { "<namespace>" } else { &snapshot.namespace };
        let unanswered: Vec<&str> = silent.unanswered.iter().map(String::as_str).collect();
        Finding::warning(Check::NodeSilent, format!("Node {name}"))
            .what(format!("it is silent, by {}: no answer to {}", silent.watchers.join(", "), unanswered.join(", ")))
            .why("other nodes take its addresses over; what ran on it alone is away")
            .remedy(format!(
                "kubectl --kubeconfig harvester.yaml -n {namespace} get \
                 virtualmachineinstances.kubevirt.io {machine}     # whether the machine runs, and on which host; then \
                 power, network and that host (docs/node-loss.md)"
            ))
    };
    silence::silent(snapshot).into_iter().map(of).collect()
}

fn has_taint(node: &Node, key: &str) -> bool {
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_ref());
    taints.is_some_and(|taints| taints.iter().any(|taint| taint.key == key))
}

/// How a Node whose machine is not found is registered anew. A machine that was restored from a backup runs and serves:
/// its Node is not deleted without a word about what goes with it.
fn registration(node: &Node) -> String {
    let name = node.name_any();
    let anew = "its kubelet registers it anew when it is restarted; or correct the namespace in the cloud-config";
    let server = quorum::may_be_member(|label| node.labels().contains_key(label));
    match (server, facts::is_ready(node)) {
        (true, true) => "leave this Node while it serves, or replace its machine: docs/backup.md says how. RKE2 and \
                         K3s remove a member of etcd together with its Node, and that server does not start again \
                         until its database is removed by hand"
            .to_owned(),
        (true, false) => format!(
            "first see whether its machine runs under another UID: then bring it back, because RKE2 and K3s remove a \
             member of etcd together with its Node, and that server does not start again until its database is \
             removed by hand (docs/backup.md). If the machine is gone for good, and most of the other servers are \
             Ready: kubectl delete node {name}"
        ),
        (false, true) => format!(
            "kubectl drain {name} --ignore-daemonsets && kubectl delete node {name}     # it is Ready: its pods end \
             with the Node, so they leave it before; {anew}"
        ),
        (false, false) => format!("kubectl delete node {name}     # {anew}"),
    }
}

fn of(snapshot: &Snapshot, node: &Node) -> Vec<Finding> {
    let name = node.name_any();
    let object = format!("Node {name}");
    let mut all = Vec::new();
    if has_taint(node, UNINITIALIZED) {
        all.push(
            Finding::error(Check::NodeNotInitialised, object.clone())
                .what(format!("it still has taint {UNINITIALIZED}"))
                .why("nothing is scheduled on it")
                .remedy(format!(
                    "kubectl describe node {name}     # Event NodeInitializationFailed says what is missing: \
                     usually its machine has another name and no guest agent, or lies in another namespace than {}",
                    if snapshot.namespace.is_empty() { "that of the cloud-config" } else { &snapshot.namespace }
                )),
        );
    }
    // Where no machine at all is seen it is not this Node that is wrong: see `elsewhere`.
    if let Some(uid) = facts::vm_uid(node)
        && has_machines(snapshot) == Some(true)
        && facts::vm_name(node, snapshot).is_none()
    {
        all.push(
            Finding::error(Check::NodeWithoutMachine, object.clone())
                .what(format!("no machine in namespace {} of Harvester has UID {uid}", snapshot.namespace))
                .why(
                    "its machine was deleted, or restored from a backup under a new UID; its addresses and zone \
                    are not followed",
                )
                .remedy(registration(node)),
        );
    }
    if node.labels().contains_key(EXCLUDED) {
        all.push(
            Finding::warning(Check::NodeExcluded, object)
                .what(format!("label {EXCLUDED} shuts it out"))
                .why("it announces no address")
                .remedy(format!("kubectl label node {name} {EXCLUDED}-")),
        );
    }
    all
}

fn env<'a>(container: &'a Container, name: &str) -> Option<&'a str> {
    container.env.as_ref()?.iter().find(|variable| variable.name == name)?.value.as_deref()
}

/// Whether an address of a Service can be on a node's interface: on an existing one, or on a macvlan for DHCP.
fn has_addresses(snapshot: &Snapshot) -> bool {
    snapshot.services.iter().any(|service| facts::is_load_balancer(service) && facts::class(service).is_empty())
}

fn calico(snapshot: &Snapshot, set: &DaemonSet) -> Option<Finding> {
    let containers = facts::containers_of_set(set);
    let container = containers.iter().find(|container| container.name == "calico-node")?;
    // Calico detects an address only if the variable `IP` does not contain one.
    let detects = env(container, "IP").is_some_and(|ip| ip == "autodetect");
    let method = env(container, "IP_AUTODETECTION_METHOD").unwrap_or("first-found");
    let safe = ["kubernetes-internal-ip", "cidr=", "can-reach=", "skip-interface="];
    let picks_vips = match method.strip_prefix("interface=") {
        Some(names) => names.split(',').any(may_be_a_vip_interface),
        None => {
            !safe.iter().any(|known| method.starts_with(known))
                || method.starts_with("skip-interface=") && !method.contains("vip-")
        }
    };
    (detects && picks_vips && has_addresses(snapshot)).then(|| {
        Finding::warning(Check::CniAutodetection, format!("DaemonSet {}", facts::key(&set.metadata)))
            .what(format!(
                "Calico finds a node's address by IP_AUTODETECTION_METHOD={method}, which may pick a \
                Service's address"
            ))
            .why(
                "the node would tell the others an address that moves to another node: its pods lose the network \
                 at the next fail-over",
            )
            .remedy(format!(
                "kubectl -n {} set env daemonset/{} IP_AUTODETECTION_METHOD=kubernetes-internal-ip     # with the \
                 Tigera operator: spec.calicoNetwork.nodeAddressAutodetectionV4.kubernetes: NodeInternalIP",
                set.namespace().unwrap_or_default(),
                set.name_any()
            ))
    })
}

/// Whether the pattern can match the macvlan of a Service, whose name is `vip-` and eight characters; patterns are
/// regular expressions.
fn may_be_a_vip_interface(pattern: &str) -> bool {
    let pattern = pattern.trim_start_matches('^');
    let wild = pattern.split(['.', '*', '+', '[', '(', '$']).next().unwrap_or_default();
    let open = pattern.len() > wild.len();
    pattern.starts_with("vip-") || open && "vip-".starts_with(wild)
}

fn cilium(snapshot: &Snapshot) -> Option<Finding> {
    let devices = snapshot.config("cilium-config", "devices")?;
    let picked: Vec<&str> = devices
        .split([' ', ','])
        .filter(|device| !device.is_empty() && may_be_a_vip_interface(&device.replace('+', ".*")))
        .collect();
    // What else is named there are the NICs of the nodes.
    let kept: Vec<&str> =
        devices.split([' ', ',']).filter(|device| !device.is_empty() && !picked.contains(device)).collect();
    let kept = kept.join(" ");
    (!picked.is_empty() && has_addresses(snapshot)).then(|| {
        Finding::warning(Check::CniAutodetection, "ConfigMap kube-system/cilium-config")
            .what(format!("devices: {devices:?} takes the interfaces of Services (vip-…) for the node's"))
            .why("Cilium would attach its programs to an interface that goes to another node at the next fail-over")
            .remedy(advice::noted(
                format!(
                    "kubectl -n kube-system patch configmap cilium-config --type merge -p \
                     '{{\"data\":{{\"devices\":\"{}\"}}}}' && kubectl -n kube-system rollout restart daemonset/cilium",
                    if kept.is_empty() { "<NIC of the nodes>" } else { &kept }
                ),
                &[if kept.is_empty() { "<NIC of the nodes>: ip -o link shows it on a node" } else { "" }],
            ))
    })
}

/// Whether the Node object excludes the node from announcing addresses.
pub fn is_shut_out(node: &Node) -> bool {
    node.labels().contains_key(EXCLUDED) || SHUT_OUT.iter().any(|key| has_taint(node, key))
}
