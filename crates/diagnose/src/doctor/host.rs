//! Checks Harvester: whether its version is supported, whether it serves the required kinds, and whether the loss of
//! one host costs etcd's quorum.

use harvester_api::keys::cloudprovider;
use harvester_api::quorum::{self, Member};
use kube::ResourceExt;

use super::checks::Check;
use super::finding::Finding;
use crate::facts;
use crate::snapshot::{Snapshot, feature};

/// Minor version of Kubernetes in Harvester 1.2, the first one with the required load balancers.
const OLDEST_HARVESTER: u32 = 25;
/// Oldest supported minor version of Kubernetes in a guest.
const OLDEST_GUEST: u32 = 28;

pub fn findings(snapshot: &Snapshot) -> Vec<Finding> {
    let mut all = Vec::new();
    all.extend(versions(snapshot));
    all.extend(kinds(snapshot));
    all.extend(quorum(snapshot));
    all
}

/// The minor version: 33 for `v1.33.1+rke2r1`.
fn minor(version: &str) -> Option<u32> {
    let mut parts = version.trim_start_matches('v').split('.');
    (parts.next()? == "1").then(|| parts.next()?.parse().ok())?
}

fn versions(snapshot: &Snapshot) -> Vec<Finding> {
    let mut all = Vec::new();
    let older = |version: &str, than: u32| minor(version).is_some_and(|minor| minor < than);
    let harvester = &snapshot.harvester;
    if older(&harvester.version, OLDEST_HARVESTER) {
        all.push(
            Finding::error(Check::HarvesterTooOld, format!("Harvester API {}", harvester.server))
                .what(format!("it runs Kubernetes {}, which is a Harvester before 1.2", harvester.version))
                .why("such a Harvester has no load balancers of guest clusters: no Service gets an address")
                .remedy("upgrade Harvester to 1.2 or later: https://docs.harvesterhci.io, Upgrading Harvester"),
        );
    }
    if older(&snapshot.guest.version, OLDEST_GUEST) {
        all.push(
            Finding::warning(Check::GuestTooOld, format!("guest API {}", snapshot.guest.server))
                .what(format!(
                    "it runs Kubernetes {}; 1.{OLDEST_GUEST} is the oldest supported",
                    snapshot.guest.version
                ))
                .why("nobody has tried this version; parts of the API that are needed may be missing")
                .remedy("upgrade Kubernetes of the guest cluster, in Rancher or with its distribution"),
        );
    }
    all
}

fn kinds(snapshot: &Snapshot) -> Vec<Finding> {
    let missing = |name: &str| snapshot.host.features.get(name) == Some(&false);
    let finding = |kind: &str, why: &str, remedy: &str| {
        Finding::error(Check::HarvesterKindMissing, format!("Harvester API {}", snapshot.harvester.server))
            .what(format!("it serves no {kind}"))
            .why(why)
            .remedy(remedy)
    };
    let mut all = Vec::new();
    if missing(feature::LOAD_BALANCERS) {
        all.push(finding(
            "loadbalancers.loadbalancer.harvesterhci.io of version v1beta1",
            "no Service gets an address",
            "kubectl --kubeconfig harvester.yaml -n harvester-system get deployment harvester-load-balancer     # it \
             brings this kind; if the server of the cloud-config is no Harvester, correct the cloud-config",
        ));
    }
    if missing(feature::MACHINES) {
        all.push(finding(
            "virtualmachineinstances.kubevirt.io",
            "no Node is recognised as a machine: new Nodes keep their taint and get no addresses",
            "kubectl --kubeconfig harvester.yaml -n harvester-system get kubevirt     # it brings this kind; if the \
             server of the cloud-config is no Harvester, correct the cloud-config",
        ));
    }
    all
}

fn quorum(snapshot: &Snapshot) -> Vec<Finding> {
    let hosts: Vec<String> = snapshot
        .nodes
        .iter()
        .map(|node| {
            let machine = facts::vm_name(node, snapshot).unwrap_or_default();
            let instance = snapshot.instances.iter().find(|one| one.name_any() == machine);
            let seen = instance.and_then(|one| one.status.node_name.clone());
            seen.unwrap_or_else(|| facts::label(&node.metadata, cloudprovider::HOST).to_owned())
        })
        .collect();
    let names: Vec<String> = snapshot.nodes.iter().map(ResourceExt::name_any).collect();
    let members = snapshot.nodes.iter().zip(&names).zip(&hosts);
    let members: Vec<Member<'_>> =
        members.map(|((node, name), host)| Member::new(name, host, |key| node.labels().contains_key(key))).collect();
    let risks = quorum::at_risk(&members).into_iter();
    risks
        .map(|risk| {
            Finding::warning(Check::QuorumAtRisk, format!("Harvester host {}", risk.host))
                .what(format!(
                    "it carries {} of the {} etcd members of this cluster: {}",
                    risk.nodes.len(),
                    risk.of,
                    risk.nodes.join(", ")
                ))
                .why("while this host is down etcd has no quorum and the cluster's API does not answer")
                .remedy(
                    "move one of these machines to another host (Migrate, in the user interface of Harvester) and keep \
                     them apart with a pod anti-affinity in their VM templates",
                )
        })
        .collect()
}
