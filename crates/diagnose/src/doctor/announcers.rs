//! Checks the announcers: whether they run, whether one of them may take an address, and whether another program
//! announces.

use announcer_core::status::table::age;
use contract::leases::GLOBAL;
use harvester_api::keys::{cloudprovider, kube_vip};
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::coordination::v1::Lease;
use kube::ResourceExt;

use super::advice;
use super::checks::Check;
use super::finding::Finding;
use super::nodes::is_shut_out;
use super::pods;
use crate::facts;
use crate::silence;
use crate::snapshot::{Snapshot, list};

pub fn findings(snapshot: &Snapshot) -> Vec<Finding> {
    if snapshot.guest.trouble.is_some() || !snapshot.has_read(list::LEASES) {
        return Vec::new();
    }
    let mut all = Vec::new();
    let members: Vec<&Lease> = snapshot.leases.iter().filter(|lease| facts::member(lease).is_some()).collect();
    all.extend(nobody(snapshot, &members));
    all.extend(members.iter().filter_map(|lease| member(snapshot, lease)));
    all.extend(members.iter().filter_map(|lease| no_macvlans(snapshot, lease)));
    all.extend(nobody_eligible(snapshot, &members));
    all.extend(beside(snapshot, &members));
    all
}

fn wants_addresses(snapshot: &Snapshot) -> bool {
    let ours = |service: &&k8s_openapi::api::core::v1::Service| {
        facts::is_load_balancer(service) && facts::class(service).is_empty()
    };
    snapshot.services.iter().any(|service| ours(&service))
}

fn global(snapshot: &Snapshot) -> Option<&Lease> {
    let held = |lease: &&Lease| lease.metadata.name.as_deref() == Some(GLOBAL) && facts::is_fresh(snapshot, lease);
    snapshot.leases.iter().find(held)
}

fn nobody(snapshot: &Snapshot, members: &[&Lease]) -> Option<Finding> {
    let alive = members.iter().any(|lease| facts::is_fresh(snapshot, lease)) || global(snapshot).is_some();
    // In mode `service` each Service also has a Lease of its own; only mode `node` writes terms.
    let by_node =
        snapshot.services.iter().any(|service| !facts::annotation(&service.metadata, cloudprovider::TERM).is_empty());
    let told =
        snapshot.services.iter().any(|service| facts::is_load_balancer(service) && !facts::told(service).is_empty());
    let by_service = members.is_empty() && told && !by_node;
    if alive || by_service || !wants_addresses(snapshot) {
        return None;
    }
    let what = if members.is_empty() { "no announcer has ever run" } else { "no announcer renews its Lease" };
    let set = workload(snapshot);
    let (namespace, name) = set.map_or((advice::NAMESPACE.to_owned(), "kube-vip".to_owned()), |set| {
        (set.namespace().unwrap_or_default(), set.name_any())
    });
    let finding = Finding::error(Check::AnnouncerMissing, format!("DaemonSet {namespace}/{name}"))
        .why("no new address is announced; what was announced is served until its node goes");
    Some(if is_not_installed(snapshot) {
        finding.what(format!("no announcer is installed, and {what}")).remedy(advice::helm_upgrade(
            snapshot,
            " --set kube-vip.enabled=true",
            "the announcers are part of that chart",
        ))
    } else if set.is_some_and(wants_no_node) {
        finding.what(format!("it wants 0 nodes, and {what}")).remedy(advice::helm_upgrade(
            snapshot,
            " --set kube-vip.nodes=all",
            "no node matches its affinity and nodeSelector",
        ))
    } else if let Some(waits) = pods::of(snapshot, &format!("DaemonSet {namespace}/{name}")) {
        // A restart does not help pods that cannot start.
        finding.what(what).remedy(waits.remedy)
    } else {
        finding.what(what).remedy(format!(
            "kubectl -n {namespace} rollout restart daemonset/{name}     # DESIRED 0: no node matches its affinity \
             and nodeSelector, set value kube-vip.nodes to all"
        ))
    })
}

/// The workload of the announcers: this project's, else kube-vip's.
fn workload(snapshot: &Snapshot) -> Option<&DaemonSet> {
    let ours = snapshot.daemon_sets.iter().find(|set| facts::is_announcer(&facts::containers_of_set(set)));
    ours.or_else(|| snapshot.daemon_sets.iter().find(|set| is_announcer(set)))
}

/// The command that restarts the announcer of a node.
pub fn restart_on(snapshot: &Snapshot, node: &str) -> String {
    let namespace = workload(snapshot).and_then(ResourceExt::namespace).unwrap_or_else(|| advice::NAMESPACE.to_owned());
    format!(
        "kubectl -n {namespace} delete pod --field-selector spec.nodeName={node} -l app.kubernetes.io/name=kube-vip"
    )
}

/// Whether it announces Services: this project's, or kube-vip itself, which it replaces.
fn is_announcer(set: &DaemonSet) -> bool {
    let containers = facts::containers_of_set(set);
    facts::is_announcer(&containers)
        || containers.iter().any(|one| one.image.as_deref().is_some_and(|image| image.contains("kube-vip")))
}

/// Whether it is certain that no announcer is installed.
pub fn is_not_installed(snapshot: &Snapshot) -> bool {
    snapshot.has_read("DaemonSets") && !snapshot.daemon_sets.iter().any(is_announcer)
}

/// Whether Kubernetes has looked for nodes, and found none that it may run on.
fn wants_no_node(set: &DaemonSet) -> bool {
    let status = set.status.as_ref();
    status.is_some_and(|status| status.observed_generation.is_some() && status.desired_number_scheduled == 0)
}

fn node_of<'a>(snapshot: &'a Snapshot, lease: &Lease) -> Option<&'a k8s_openapi::api::core::v1::Node> {
    let name = facts::member(lease)?;
    snapshot.nodes.iter().find(|node| node.name_any() == name)
}

/// The card in the Lease of a node's announcer.
fn card(lease: &Lease) -> serde_json::Value {
    let text = facts::annotation(&lease.metadata, cloudprovider::CARD);
    serde_json::from_str(text).unwrap_or_default()
}

fn member(snapshot: &Snapshot, lease: &Lease) -> Option<Finding> {
    let name = facts::member(lease)?;
    let node = node_of(snapshot, lease)?;
    let object = format!("announcer of node {name}");
    if !facts::is_fresh(snapshot, lease) {
        // A node that is off has no announcer and needs none, and one that is silent has a finding of its own.
        return (facts::is_ready(node) && !silence::silent(snapshot).contains_key(name)).then(|| {
            let ago = facts::renewed(snapshot, lease).map_or(0, |(ago, _)| ago);
            Finding::warning(Check::AnnouncerSilent, object)
                .what(format!("it has not renewed its Lease for {}", age(ago)))
                .why("the node gets no new address, and nobody knows whether it serves those that it has")
                .remedy(restart_on(snapshot, name))
        });
    }
    let card = card(lease);
    let says = |key: &str, value: bool| card.get(key).and_then(serde_json::Value::as_bool) == Some(value);
    (says("serving", false) && !says("leaving", true)).then(|| {
        Finding::error(Check::KubeProxyNotReady, object)
            .what("kube-proxy does not answer 200 on 127.0.0.1:10256/healthz of that node")
            .why(
                "traffic for an address there would go nowhere: the node hands its addresses over, and gets none \
                while another one is well",
            )
            .remedy(format!(
                "kubectl -n kube-system delete pod --field-selector spec.nodeName={name} -l \
                k8s-app=kube-proxy     # RKE2: component=kube-proxy"
            ))
    })
}

/// The macvlan check that the announcer makes at its start, before any Service needs one.
fn no_macvlans(snapshot: &Snapshot, lease: &Lease) -> Option<Finding> {
    let name = facts::member(lease)?;
    let why = facts::annotation(&lease.metadata, cloudprovider::NO_MACVLANS);
    (!why.is_empty() && node_of(snapshot, lease).is_some()).then(|| {
        Finding::warning(Check::MacvlanMissing, format!("node {name}"))
            .what(format!("its kernel has no macvlan: {why}"))
            .why("a Service with ipam dhcp gets no address there; those from a pool are served")
            .remedy(format!("on that node: {LOAD_MACVLAN}; then: {}     {NO_SUCH_MODULE}", restart_on(snapshot, name)))
    })
}

/// The command to run on a node.
pub const LOAD_MACVLAN: &str = "modprobe macvlan && echo macvlan > /etc/modules-load.d/macvlan.conf";
/// The advice if that module does not exist.
pub const NO_SUCH_MODULE: &str = "# module not found: SLES minimal images have kernel-default-base without it, install \
                                  kernel-default (docs/requirements.md)";

fn nobody_eligible(snapshot: &Snapshot, members: &[&Lease]) -> Option<Finding> {
    let alive: Vec<&&Lease> = members.iter().filter(|lease| facts::is_fresh(snapshot, lease)).collect();
    let may = |lease: &&&Lease| {
        let node = node_of(snapshot, lease);
        node.is_some_and(|node| !is_shut_out(node)) && card(lease).get("leaving") != Some(&true.into())
    };
    if alive.is_empty() || alive.iter().any(may) || !wants_addresses(snapshot) {
        return None;
    }
    let names: Vec<&str> = alive.iter().filter_map(|lease| facts::member(lease)).collect();
    Some(
        Finding::error(Check::NoEligibleNode, "all announcers")
            .what(format!("each of their nodes is shut out by a label or taint: {}", names.join(", ")))
            .why("no address is announced")
            .remedy(format!(
                "kubectl label node {} node.kubernetes.io/exclude-from-external-load-balancers-     # \
                or remove the taint",
                names[0]
            )),
    )
}

fn beside(snapshot: &Snapshot, members: &[&Lease]) -> Option<Finding> {
    let lease = global(snapshot)?;
    let alive = members.iter().any(|member| facts::is_fresh(snapshot, member));
    let holder = lease.spec.as_ref().and_then(|spec| spec.holder_identity.clone()).unwrap_or_default();
    alive.then(|| {
        Finding::error(Check::TwoAnnouncers, "Lease kube-system/plndr-svcs-lock")
            .what(format!("{holder} holds kube-vip's Lease beside announcers in mode node"))
            .why(format!(
                "it is respected: no announcer of ours sets an address while it is renewed ({} is its)",
                kube_vip::VIP_HOST
            ))
            .remedy(
                "kubectl get daemonset -A | grep kube-vip     # delete the other one; if its holder is gone: \
                kubectl -n kube-system delete lease plndr-svcs-lock",
            )
    })
}
