//! Checks the identity of this cluster on Harvester: its name, the labels of its machines, its load balancers, and
//! those of other clusters under its name.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use harvester_api::keys::{cloudprovider, harvester, kube_vip};
use harvester_api::load_balancer::LoadBalancer;
use k8s_openapi::api::core::v1::Service;
use kube::ResourceExt;

use super::advice;
use super::checks::Check;
use super::controllers::{identity, settle};
use super::finding::Finding;
use crate::facts;
use crate::snapshot::{Snapshot, list};

/// Without these objects every load balancer looks as if no Service had it.
const SERVICES: &str = list::SERVICES;

pub fn findings(snapshot: &Snapshot) -> Vec<Finding> {
    let mut all = Vec::new();
    let name = snapshot.config(facts::RECORD, facts::CLUSTER_NAME).unwrap_or_default();
    all.extend(labels(snapshot, name));
    all.extend(flag(snapshot, name));
    all.extend(load_balancers(snapshot, name));
    all.extend(orphans(snapshot));
    all
}

/// The machines of this cluster's Nodes, with the names of the Nodes.
fn machines(snapshot: &Snapshot) -> BTreeMap<String, String> {
    let named = snapshot.nodes.iter().filter_map(|node| Some((facts::vm_name(node, snapshot)?, node.name_any())));
    named.collect()
}

fn labels(snapshot: &Snapshot, name: &str) -> Vec<Finding> {
    let ours = machines(snapshot);
    let flag = facts::controller_flag(snapshot, "--cluster-name").unwrap_or_default();
    let mut all = Vec::new();
    for vm in &snapshot.machines {
        let machine = vm.name_any();
        let Some(node) = ours.get(&machine) else { continue };
        let instance = snapshot.instances.iter().find(|vmi| vmi.name_any() == machine);
        let metadata = instance.map_or(&vm.metadata, |vmi| &vmi.metadata);
        let label = facts::label(metadata, harvester::GUEST_CLUSTER_NAME);
        let namespace = &snapshot.namespace;
        let command = |value: &str| {
            format!(
                "kubectl --kubeconfig harvester.yaml -n {namespace} label --overwrite \
                 virtualmachineinstance/{machine} virtualmachine/{machine} {}={value} {}={}",
                harvester::GUEST_CLUSTER_NAME,
                harvester::CREATOR,
                harvester::NODE_DRIVER
            )
        };
        if label.is_empty() {
            all.push(
                Finding::warning(Check::MachineLabelMissing, format!("VM {namespace}/{machine}"))
                    .what(format!("the machine of node {node} has no label {}", harvester::GUEST_CLUSTER_NAME))
                    .why(
                        "Harvester finds the network of a load balancer by it, and pools that are for one cluster only",
                    )
                    .remedy(match [name, flag.as_str()].into_iter().find(|name| !name.is_empty()) {
                        Some(name) => command(name),
                        None => advice::noted(command("<cluster>"), &["<cluster>: as in --cluster-name"]),
                    }),
            );
        } else if !name.is_empty() && label != name {
            all.push(
                Finding::error(Check::ClusterNameMismatch, format!("VM {namespace}/{machine}"))
                    .what(format!(
                        "the machine of node {node} is labelled as cluster {label}, load balancers are \
                        made for {name}"
                    ))
                    .why(
                        "Harvester's webhook refuses load balancers of a cluster that has no machines, and \
                        deletes those of a removed one",
                    )
                    .remedy(unless_in_doubt(snapshot, command(name))),
            );
        }
    }
    all
}

/// Checks the name on the command line of the cloud controller.
fn flag(snapshot: &Snapshot, name: &str) -> Option<Finding> {
    let deployment = facts::controllers(snapshot).next()?;
    let given = facts::controller_flag(snapshot, "--cluster-name").filter(|given| !given.is_empty());
    let given = given.as_deref().unwrap_or("kubernetes");
    let object = format!("Deployment {}", facts::key(&deployment.metadata));
    let set = |value: &str, note: &str| {
        advice::helm_upgrade(snapshot, &format!(" --set global.cattle.clusterName={value}"), note)
    };
    let adopted = if name.is_empty() { given } else { name };
    if adopted == "kubernetes" {
        let default = Finding::warning(Check::ClusterNameDefault, object)
            .why("two clusters in one namespace of Harvester would take each other's load balancers for their own");
        // The name in the record takes precedence over the flag.
        let labelled = advice::labelled_name(snapshot);
        let note = match labelled {
            Some(_) => "its machines have this name by their labels".to_owned(),
            None => advice::free_name(snapshot),
        };
        let new = labelled.as_deref().unwrap_or("<name>");
        return Some(if name.is_empty() {
            default.what("no cluster name is given, so that it is \"kubernetes\"").remedy(set(new, &note))
        } else {
            default
                .what("load balancers are made for \"kubernetes\", which is remembered")
                .remedy(advice::noted(identity(snapshot, &format!("rename {new}")), &[&note]))
        });
    }
    (given != adopted && given != "kubernetes").then(|| {
        Finding::warning(Check::ClusterNameChanged, object)
            .what(format!("--cluster-name is {given}, load balancers are made for {adopted}, which is remembered"))
            .why(
                "the flag is not followed; with a name that no load balancer has all of them would be made anew, \
                with other addresses",
            )
            .remedy(unless_in_doubt(snapshot, set(adopted, "")))
    })
}

/// The UIDs that this cluster's load balancers may carry: that of Namespace `kube-system`, and that of Service
/// `default/kubernetes`, which older versions wrote.
fn uids(snapshot: &Snapshot) -> Vec<String> {
    let is_api = |service: &&Service| facts::key(&service.metadata) == "default/kubernetes";
    let former = snapshot.services.iter().find(is_api).and_then(Service::uid);
    snapshot.cluster_uid.iter().cloned().chain(former).collect()
}

/// The remedy, unless the controller is in doubt: then the name in the record may be that of the original of which this
/// cluster is a copy.
fn unless_in_doubt(snapshot: &Snapshot, remedy: String) -> String {
    facts::doubt(snapshot).map_or(remedy, |doubt| settle(doubt).to_owned())
}

/// How to delete load balancers on Harvester. A copy of a cluster, or a restored one, has the UID of the original, so
/// load balancers without a Service here may serve clients of the original.
fn deletion(snapshot: &Snapshot, name: &str) -> String {
    if let Some(doubt) = facts::doubt(snapshot) {
        return format!("nothing here, it may be another cluster's: {}", settle(doubt));
    }
    if let Some(stamp) = facts::restore_suspected(snapshot) {
        return format!(
            "nothing for 24 h from {stamp}, nor in the first hour of a controller that starts later: since then a \
             restore of etcd is suspected, and another snapshot may bring its Service back (docs/backup.md). If no \
             other is to come: {}, then call doctor again",
            identity(snapshot, "confirm")
        );
    }
    format!(
        "kubectl --kubeconfig harvester.yaml -n {} delete loadbalancers.loadbalancer.harvesterhci.io {name}     # only \
         if no snapshot or copy of this cluster is in use",
        snapshot.namespace
    )
}

/// The addresses in these texts. A placeholder for DHCP is none.
fn addresses<'a>(texts: impl IntoIterator<Item = &'a str>) -> BTreeSet<IpAddr> {
    let parsed = texts.into_iter().flat_map(|text| text.split(',')).filter_map(|text| text.trim().parse().ok());
    parsed.filter(|address: &IpAddr| !address.is_unspecified()).collect()
}

/// Whether a Service of type LoadBalancer shows the address of this object, or is served at it. Services that share an
/// address have no object of their own, and the one that the object is named after may be gone, or of another type.
fn serves(snapshot: &Snapshot, lb: &LoadBalancer) -> bool {
    let booked = addresses([lb.allocated_ip(), lb.address()].into_iter().flatten());
    snapshot.services.iter().filter(|service| facts::is_load_balancer(service)).any(|service| {
        let told = facts::told(service);
        let shown = facts::annotation(&service.metadata, kube_vip::LOADBALANCER_IPS);
        !booked.is_disjoint(&addresses(told.iter().map(String::as_str).chain([shown])))
    })
}

fn load_balancers(snapshot: &Snapshot, name: &str) -> Vec<Finding> {
    let ours = uids(snapshot);
    if snapshot.cluster_uid.is_none() || name.is_empty() || !snapshot.has_read(SERVICES) {
        return Vec::new();
    }
    // The finalizer stays on a Service until the cloud controller has deleted its load balancer or handed it over.
    let services: BTreeSet<String> = snapshot
        .services
        .iter()
        .filter(|service| facts::is_load_balancer(service) || facts::has_finalizer(service))
        .map(|s| facts::key(&s.metadata))
        .collect();
    let mut all = Vec::new();
    let mut copies: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for lb in &snapshot.load_balancers {
        if lb.label(cloudprovider::CLUSTER) != Some(name) || lb.terminating() {
            continue;
        }
        let by = lb.annotation(cloudprovider::CLUSTER_UID).unwrap_or_default();
        let is_ours = ours.iter().any(|uid| uid == by);
        if !by.is_empty() && !is_ours {
            copies.entry(by).or_default().push(lb.name_any());
            continue;
        }
        let service = format!(
            "{}/{}",
            lb.label(cloudprovider::SERVICE_NAMESPACE).unwrap_or_default(),
            lb.label(cloudprovider::SERVICE_NAME).unwrap_or_default()
        );
        if is_ours && !services.contains(&service) && !serves(snapshot, lb) {
            let namespace = &snapshot.namespace;
            all.push(
                Finding::warning(Check::LoadBalancerOrphaned, format!("LoadBalancer {namespace}/{}", lb.name_any()))
                    .what(format!("this cluster has no Service {service} of type LoadBalancer any more"))
                    .why("its address stays booked in the pool")
                    .remedy(deletion(snapshot, &lb.name_any())),
            );
        }
    }
    for (other, names) in copies {
        all.push(
            Finding::error(Check::ClusterCopy, format!("cluster {name} with UID {other}"))
                .what(format!("another cluster has load balancers under our name: {}", names.join(", ")))
                .why(
                    "a copy of a cluster, or two of one name, write each other's load balancers; what one \
                    deletes the other loses",
                )
                .remedy(unless_in_doubt(
                    snapshot,
                    advice::noted(
                        identity(snapshot, "rename <name>"),
                        &[
                            "in one of them; with --copy where that one is a copy of the other. If the other is gone \
                             for good, delete these objects on Harvester",
                            &advice::free_name(snapshot),
                        ],
                    ),
                )),
        );
    }
    all
}

fn orphans(snapshot: &Snapshot) -> Option<Finding> {
    let lines = snapshot.config(facts::RECORD, facts::POSSIBLE_ORPHANS).filter(|_| snapshot.has_read(SERVICES))?;
    // A line begins with namespace and name. The remedy deletes, so nothing less than the whole name counts.
    let of = |line: &str, lb: &str| line.split([' ', ',']).next().and_then(|key| key.rsplit('/').next()) == Some(lb);
    let unused = snapshot.load_balancers.iter().filter(|lb| !serves(snapshot, lb));
    let unused: Vec<String> = unused.map(ResourceExt::name_any).collect();
    let left: Vec<&str> = lines.lines().filter(|line| unused.iter().any(|name| of(line, name))).collect();
    let named: Vec<String> = unused.into_iter().filter(|name| left.iter().any(|line| of(line, name))).collect();
    (!left.is_empty()).then(|| {
        Finding::warning(Check::LoadBalancerAbandoned, facts::record())
            .what(format!("load balancers were left on Harvester at somebody's request: {}", left.join("; ")))
            .why("their addresses stay booked in the pool")
            .remedy(deletion(snapshot, &named.join(" ")))
    })
}
