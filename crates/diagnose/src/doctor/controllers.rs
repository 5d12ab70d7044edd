//! Checks the cloud controller: whether exactly one is installed and whether anything holds it; also the upgrade of
//! hosts that it follows.

use std::collections::BTreeSet;

use announcer_core::status::table::age;
use contract::config_maps::host_upgrade;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use serde_json::Value;

use super::advice;
use super::announcers;
use super::checks::Check;
use super::finding::Finding;
use super::pods;
use crate::facts::{self, ControllerDoubt};
use crate::snapshot::{Snapshot, list};

/// Seconds within which a kubelet is seen to report by a controller that asks for it.
const KUBELET_REPORTS: i64 = 5 * 60;

/// The object of findings about the controller that leads.
const LEASE: &str = "Lease kube-system/cloud-controller-manager";
const INSTALL: &str = concat!(
    "helm install harvester-cloud-provider <chart> -n kube-system -f values.yaml     # <chart>: the archive \
     harvester-cloud-provider-",
    env!("CARGO_PKG_VERSION"),
    ".tgz, or its name in your repository; README and quick starts say where it comes from and what values.yaml has; \
     RKE2 installs it where its cloud-provider-name is harvester"
);
/// Ends the pause of the whole controller.
pub const RESUME: &str = "kubectl -n kube-system patch configmap harvester-cloud-provider --type merge -p \
                          '{\"data\":{\"paused\":null}}'";

/// The advice that comes first while the controller is in doubt.
pub fn settle(doubt: ControllerDoubt<'_>) -> &'static str {
    match doubt {
        ControllerDoubt::SafeMode(_) => "first end the safe mode, docs/backup.md says how",
        ControllerDoubt::NotKnown => {
            "first the cloud controller has to know which cluster this is, docs/backup.md says what it waits for"
        }
    }
}

/// The command by which an administrator confirms the identity of the cluster, with these words.
pub fn identity(snapshot: &Snapshot, words: &str) -> String {
    let (namespace, workload) = advice::controller(snapshot);
    format!("kubectl -n {namespace} exec {workload} -- harvester-cloud-provider identity {words}")
}

fn restart(snapshot: &Snapshot) -> String {
    let (namespace, workload) = advice::controller(snapshot);
    format!(
        "kubectl -n {namespace} rollout restart {workload}     # if it does not start: kubectl -n {namespace} logs \
         {workload}"
    )
}

pub fn findings(snapshot: &Snapshot) -> Vec<Finding> {
    let mut all = Vec::new();
    all.extend(lease(snapshot));
    all.extend(two(snapshot));
    all.extend(facts::doubt(snapshot).map(|doubt| in_doubt(snapshot, doubt)));
    all.extend(paused(snapshot));
    all.extend(upgrade(snapshot));
    all
}

fn lease(snapshot: &Snapshot) -> Option<Finding> {
    if snapshot.guest.trouble.is_some() || !snapshot.has_read(list::LEASES) {
        return None;
    }
    let lease = facts::controller_lease(snapshot);
    let renewed = lease.and_then(|lease| facts::renewed(snapshot, lease));
    let installed = !is_not_installed(snapshot);
    let what = match renewed {
        // A leader that is restarted is given time; without a workload nothing restarts it.
        Some((ago, duration)) if ago <= if installed { facts::CONTROLLER_SILENT } else { duration } => return None,
        Some((ago, _)) => {
            format!("nobody has renewed Lease {} for {}", facts::CONTROLLER_LEASE, age(ago))
        }
        None => format!("nobody holds Lease {}", facts::CONTROLLER_LEASE),
    };
    let finding = Finding::error(Check::ControllerMissing, LEASE)
        .why("no Service gets an address and no new node is initialised; what is served goes on");
    Some(if let Some(stopped) = scaled_to_zero(snapshot) {
        let (namespace, name) = (namespace(&stopped.metadata), name(&stopped.metadata));
        finding
            .what(format!("Deployment {namespace}/{name} is scaled to 0, and {what}"))
            .remedy(format!("kubectl -n {namespace} scale deployment/{name} --replicas=2"))
    } else if installed {
        // A restart does not help pods that cannot start.
        let waits = facts::controllers(snapshot)
            .find_map(|one| pods::of(snapshot, &format!("Deployment {}", facts::key(&one.metadata))));
        finding.what(what).remedy(waits.map_or_else(|| restart(snapshot), |waits| waits.remedy))
    } else {
        let missing = if announcers::is_not_installed(snapshot) {
            "neither a cloud controller of Harvester nor an announcer is installed"
        } else {
            "no cloud controller of Harvester is installed"
        };
        finding.what(format!("{missing}, and {what}")).remedy(INSTALL)
    })
}

/// Whether it is certain that no cloud controller is installed. One that runs outside its cluster has no workload
/// there, and the record says so.
pub fn is_not_installed(snapshot: &Snapshot) -> bool {
    can_see_workloads(snapshot) && !has_workload(snapshot) && facts::identity_card(snapshot)["outside"] != true
}

/// The Deployment of the cloud controller, if nothing else runs one and it has no replicas.
fn scaled_to_zero(snapshot: &Snapshot) -> Option<&Deployment> {
    facts::controllers(snapshot).next().filter(|_| workloads(snapshot).is_empty())
}

fn can_see_workloads(snapshot: &Snapshot) -> bool {
    ["Deployments", "DaemonSets"].into_iter().all(|kind| snapshot.has_read(kind))
}

/// Whether there is one, also if it is scaled to zero.
fn has_workload(snapshot: &Snapshot) -> bool {
    facts::controllers(snapshot).next().is_some() || facts::controller_sets(snapshot).next().is_some()
}

/// The workloads that run a cloud controller for Harvester now, as arguments of kubectl.
fn workloads(snapshot: &Snapshot) -> Vec<String> {
    let deployments = facts::controllers(snapshot).filter(|deployment| facts::wants_replicas(deployment));
    let deployments = deployments.map(|one| ("deployment", &one.metadata));
    let sets = facts::controller_sets(snapshot).map(|one| ("daemonset", &one.metadata));
    let all = deployments.chain(sets);
    all.map(|(kind, metadata)| format!("{kind}/{} -n {}", name(metadata), namespace(metadata))).collect()
}

/// Reports several workloads that run a cloud controller for Harvester.
fn two(snapshot: &Snapshot) -> Option<Finding> {
    let all = workloads(snapshot);
    if all.len() < 2 {
        return None;
    }
    let superfluous = all[1..].iter().map(|one| format!("kubectl delete {one}")).collect::<Vec<_>>().join("; ");
    Some(
        Finding::error(Check::TwoControllers, all[0].clone())
            .what(format!("several cloud controllers of Harvester are installed: {}", all.join(", ")))
            .why(
                "with different Leases both work at once and undo each other's changes; with one Lease either \
                may lead, of another version",
            )
            .remedy(format!("{superfluous}     # keep the one that you mean")),
    )
}

fn name(metadata: &k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta) -> &str {
    metadata.name.as_deref().unwrap_or_default()
}

fn namespace(metadata: &k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta) -> &str {
    metadata.namespace.as_deref().unwrap_or_default()
}

fn in_doubt(snapshot: &Snapshot, doubt: ControllerDoubt<'_>) -> Finding {
    match doubt {
        ControllerDoubt::SafeMode(text) => safe_mode(snapshot, text),
        ControllerDoubt::NotKnown => identity_not_known(snapshot),
    }
}

/// Reports the safe mode, with the controller's own text. Where the record has none, the Lease has its reason.
fn safe_mode(snapshot: &Snapshot, text: &str) -> Finding {
    let in_record = snapshot.config(facts::RECORD, facts::SAFE_MODE).is_some();
    let object = if in_record { facts::record() } else { LEASE.to_owned() };
    Finding::error(Check::SafeMode, object)
        .what(format!("the cloud controller is in safe mode: {text}"))
        .why("no Service, Node or load balancer is changed until it is known which cluster this is")
        .remedy(advice::noted(
            identity(snapshot, "show"),
            &["compares; then the command that the text names. docs/backup.md says what fits a copy, a restore and a \
              move"],
        ))
}

/// Reports that the controller does not know yet which cluster this is, and what it waits for. That of a new leader may
/// end by itself.
fn identity_not_known(snapshot: &Snapshot) -> Finding {
    let spec = facts::controller_lease(snapshot).and_then(|lease| lease.spec.as_ref());
    let since = spec.and_then(|spec| spec.acquire_time.as_ref()).map(|time| facts::since(snapshot, time.0));
    let finding = if since.is_some_and(|since| since < KUBELET_REPORTS) {
        Finding::warning(Check::IdentityNotKnown, LEASE)
    } else {
        Finding::error(Check::IdentityNotKnown, LEASE)
    };
    let (waits, command, ends) = if is_not_installed(snapshot) {
        (
            "it runs outside this cluster, or on a Node that is not registered, and the record does not say so"
                .to_owned(),
            "harvester-cloud-provider identity show".to_owned(),
            "compares; if NODE_NAME is wrong, correct it; if this controller is to run outside this cluster: identity \
             confirm",
        )
    } else {
        (
            format!(
                "no kubelet of the machines in the record was seen to report since it started ({})",
                on_recorded_machines(snapshot)
            ),
            identity(snapshot, "show"),
            "compares; one of these kubelets that lives ends it within 5 minutes; if the old machines are gone for \
             good: identity confirm",
        )
    };
    let copy = "if this is a copy of another cluster: identity rename NEW-NAME --copy; docs/backup.md says what fits";
    finding
        .what(format!("the cloud controller does not know yet which cluster this is (IdentityNotKnown): {waits}"))
        .why("no Service, Node or load balancer is changed until that is known; what is served goes on")
        .remedy(advice::noted(command, &[ends, copy]))
}

/// The Nodes whose machines are in the record.
fn on_recorded_machines(snapshot: &Snapshot) -> String {
    let card = facts::identity_card(snapshot);
    let machines: BTreeSet<&str> =
        card["machines"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let is_recorded = |node: &&Node| facts::vm_uid(node).is_some_and(|uid| machines.contains(uid));
    let state = |node: &Node| {
        format!("Node {} is {}", node.name_any(), if facts::is_ready(node) { "Ready" } else { "not Ready" })
    };
    let nodes: Vec<String> = snapshot.nodes.iter().filter(is_recorded).map(state).collect();
    if nodes.is_empty() { "no Node runs on one of them".to_owned() } else { nodes.join(", ") }
}

fn paused(snapshot: &Snapshot) -> Option<Finding> {
    facts::controller_is_paused(snapshot).then(|| {
        Finding::warning(Check::Paused, facts::record())
            .what("the cloud controller is paused by key paused of this ConfigMap")
            .why("no Service gets an address and no new node is initialised; what is served goes on")
            .remedy(RESUME)
    })
}

fn upgrade(snapshot: &Snapshot) -> Option<Finding> {
    let status: Value = serde_json::from_str(snapshot.config(facts::HOST_UPGRADE, host_upgrade::STATUS)?).ok()?;
    let plan = status["plan"]["name"].as_str().unwrap_or_default().to_owned();
    let nodes = status["nodes"].as_object()?;
    let with = |reason: &str| {
        let named = nodes
            .iter()
            .filter(|(_, node)| node["reason"] == reason)
            .map(|(name, node)| format!("{name} (host {})", node["host"].as_str().unwrap_or_default()));
        named.collect::<Vec<_>>().join(", ")
    };
    let object = if plan.is_empty() { "upgrade of Harvester's hosts".to_owned() } else { plan };
    let failed = with("HostUpgradeFailed");
    if !failed.is_empty() {
        return Some(
            Finding::warning(Check::HostUpgradeFailed, object)
                .what(format!("it has failed, on the hosts of nodes {failed}"))
                .why("these hosts are in no defined state; machines may be shut down again when it is repeated")
                .remedy(
                    "kubectl --kubeconfig harvester.yaml get \
                    upgradeplans.management.harvesterhci.io,upgrades.harvesterhci.io -A -o yaml     # its status \
                    says why",
                ),
        );
    }
    let paused = with("HostUpgradePaused");
    (!paused.is_empty() && status["window"]["suspended"] == false).then(|| {
        Finding::warning(Check::HostUpgradePaused, object)
            .what(format!("it has been paused for hours, on the hosts of nodes {paused}"))
            .why("the hosts are of different versions meanwhile")
            .remedy("continue it in the user interface of Harvester, or ask its administrator")
    })
}
