//! Helpers for reading objects that both `status` and `doctor` use.

use announcer_core::Config;
use announcer_core::status::Listed;
pub use contract::config_maps::record::{CLUSTER_NAME, IDENTITY, PAUSED, POSSIBLE_ORPHANS, SAFE_MODE};
pub use contract::config_maps::{HOST_UPGRADE, RECORD};
use contract::keys::kubernetes::FINALIZER;
pub use contract::leases::MEMBER_PREFIX;
use contract::{config_maps, leases};
use harvester_api::keys;
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Container, Node, Service};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta};
use kube::ResourceExt;
use serde_json::Value;

use crate::snapshot::Snapshot;

/// Types of the cloud controller's conditions on Services.
const READY: &str = "LoadBalancerReady";
const WARNING: &str = "LoadBalancerWarning";
/// Type of the cloud controller's condition on Nodes.
pub const NODE_CONDITION: &str = "HarvesterHostMaintenance";
/// Lease of the cloud controller.
pub const CONTROLLER_LEASE: &str = "cloud-controller-manager";
/// Seconds without a renewal after which the cloud controller that leads counts as gone; it renews every two seconds.
pub const CONTROLLER_SILENT: i64 = 60;
/// Key of the record with the time of a suspected restore of etcd, and for how long in seconds the suspicion lasts.
const RESTORE_SUSPECTED: (&str, i64) = ("restore-suspected", 24 * 60 * 60);

/// `namespace/name`.
pub fn key(metadata: &ObjectMeta) -> String {
    let name = metadata.name.as_deref().unwrap_or_default();
    match metadata.namespace.as_deref() {
        Some(namespace) => format!("{namespace}/{name}"),
        None => name.to_owned(),
    }
}

pub fn annotation<'a>(metadata: &'a ObjectMeta, key: &str) -> &'a str {
    metadata.annotations.as_ref().and_then(|all| all.get(key)).map_or("", String::as_str)
}

pub fn label<'a>(metadata: &'a ObjectMeta, key: &str) -> &'a str {
    metadata.labels.as_ref().and_then(|all| all.get(key)).map_or("", String::as_str)
}

/// Whether the key of the record pauses the whole controller. Its flag is not seen from outside.
pub fn controller_is_paused(snapshot: &Snapshot) -> bool {
    snapshot.config(RECORD, PAUSED).is_some_and(|value| value.trim() == "true")
}

/// Since when a restore of etcd is suspected; `None` if none is, or if that is over. Meanwhile the cloud controller
/// collects no garbage.
pub fn restore_suspected(snapshot: &Snapshot) -> Option<Timestamp> {
    let (key, lasts) = RESTORE_SUSPECTED;
    let stamp = snapshot.config(RECORD, key)?.trim().parse().ok()?;
    (since(snapshot, stamp) < lasts).then_some(stamp)
}

/// Why the cloud controller changes nothing: its cluster may be a copy of another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ControllerDoubt<'a> {
    /// It is in safe mode, for the reason in this text.
    SafeMode(&'a str),
    /// It does not know yet which cluster this is.
    NotKnown,
}

/// The doubt of the cloud controller, from the record, else from the Lease of the one that leads. What a former leader
/// has left on the Lease does not count.
pub fn doubt(snapshot: &Snapshot) -> Option<ControllerDoubt<'_>> {
    if let Some(text) = snapshot.config(RECORD, SAFE_MODE) {
        return Some(ControllerDoubt::SafeMode(text));
    }
    let lease = controller_lease(snapshot)?;
    renewed(snapshot, lease).filter(|(ago, _)| *ago <= CONTROLLER_SILENT)?;
    let said = annotation(&lease.metadata, keys::cloudprovider::SAFE_MODE);
    let by = annotation(&lease.metadata, keys::cloudprovider::SAFE_MODE_HOLDER);
    let holder = lease.spec.as_ref().and_then(|spec| spec.holder_identity.as_deref());
    let counts = !said.is_empty() && (by.is_empty() || Some(by) == holder);
    counts.then_some(match said {
        leases::IDENTITY_NOT_KNOWN => ControllerDoubt::NotKnown,
        reason => ControllerDoubt::SafeMode(reason),
    })
}

/// The Lease of the cloud controller.
pub fn controller_lease(snapshot: &Snapshot) -> Option<&Lease> {
    snapshot.leases.iter().find(|lease| lease.metadata.name.as_deref() == Some(CONTROLLER_LEASE))
}

/// Whether its annotation pauses this Service.
pub fn is_paused(service: &Service) -> bool {
    annotation(&service.metadata, keys::cloudprovider::PAUSED) == "true"
}

pub fn is_load_balancer(service: &Service) -> bool {
    service.spec.as_ref().and_then(|spec| spec.type_.as_deref()) == Some("LoadBalancer")
}

/// Whether the cloud controller has still to give up the load balancer of this Service.
pub fn has_finalizer(service: &Service) -> bool {
    service.finalizers().iter().any(|finalizer| finalizer == FINALIZER)
}

/// The load balancer class; empty if the Service has none.
pub fn class(service: &Service) -> &str {
    service.spec.as_ref().and_then(|spec| spec.load_balancer_class.as_deref()).unwrap_or_default()
}

/// The addresses in the status, which clients know.
pub fn told(service: &Service) -> Vec<String> {
    let status = service.status.as_ref().and_then(|status| status.load_balancer.as_ref());
    let ingress = status.and_then(|status| status.ingress.as_ref()).into_iter().flatten();
    ingress.filter_map(|entry| entry.ip.clone().or_else(|| entry.hostname.clone())).collect()
}

fn condition<'a>(service: &'a Service, kind: &str) -> Option<&'a Condition> {
    let conditions = service.status.as_ref()?.conditions.as_ref()?;
    conditions.iter().find(|condition| condition.type_ == kind)
}

/// The cloud controller's condition about the address.
pub fn ready_condition(service: &Service) -> Option<&Condition> {
    condition(service, READY)
}

/// The cloud controller's condition about a problem of a Service: it is not served, or is served otherwise than
/// requested. Up to version 0.3 both were in the same condition.
pub fn trouble(service: &Service) -> Option<&Condition> {
    let trouble = |condition: &&Condition| !["Served", "Ready"].contains(&condition.reason.as_str());
    let warning = condition(service, WARNING).filter(|condition| condition.status == "True");
    let ready = ready_condition(service).filter(trouble);
    ready.filter(|ready| ready.status != "True").or(warning).or(ready)
}

/// Status, reason and message of a Node's condition.
pub fn node_condition<'a>(node: &'a Node, kind: &str) -> Option<(&'a str, &'a str, &'a str)> {
    let conditions = node.status.as_ref()?.conditions.as_ref()?;
    let condition = conditions.iter().find(|condition| condition.type_ == kind)?;
    let text = |text: &'a Option<String>| text.as_deref().unwrap_or_default();
    Some((&condition.status, text(&condition.reason), text(&condition.message)))
}

pub fn is_ready(node: &Node) -> bool {
    node_condition(node, "Ready").is_some_and(|(status, ..)| status == "True")
}

/// UID of the machine that the Node runs on.
pub fn vm_uid(node: &Node) -> Option<&str> {
    keys::vm_uid(node.spec.as_ref()?.provider_id.as_deref()?)
}

/// Name of the machine that the Node runs on.
pub fn vm_name(node: &Node, snapshot: &Snapshot) -> Option<String> {
    let uid = vm_uid(node)?;
    snapshot.machines.iter().find(|vm| vm.uid() == Some(uid)).map(ResourceExt::name_any)
}

/// Seconds since that time.
pub fn since(snapshot: &Snapshot, time: Timestamp) -> i64 {
    snapshot.now.as_second() - time.as_second()
}

/// Seconds that the deletion of a Service may take; after that its Events name what is in the way.
pub const DELETION_TAKES: i64 = 60;

/// Seconds since the user deleted it; `None` if it is not being deleted.
pub fn deleted_ago(snapshot: &Snapshot, service: &Service) -> Option<i64> {
    service.metadata.deletion_timestamp.as_ref().map(|time| since(snapshot, time.0))
}

/// Seconds since the renewal of the Lease, and its duration in seconds; `None` if it has no holder.
pub fn renewed(snapshot: &Snapshot, lease: &Lease) -> Option<(i64, i64)> {
    let spec = lease.spec.as_ref()?;
    spec.holder_identity.as_deref().filter(|holder| !holder.is_empty())?;
    let ago = since(snapshot, spec.renew_time.as_ref()?.0);
    Some((ago, i64::from(spec.lease_duration_seconds.unwrap_or_default())))
}

/// Whether the Lease is held now.
pub fn is_fresh(snapshot: &Snapshot, lease: &Lease) -> bool {
    renewed(snapshot, lease).is_some_and(|(ago, duration)| ago <= duration)
}

/// Name of the node whose announcer holds this Lease.
pub fn member(lease: &Lease) -> Option<&str> {
    lease.metadata.name.as_deref()?.strip_prefix(MEMBER_PREFIX)
}

/// Containers of a Deployment.
pub fn containers(deployment: &Deployment) -> Vec<Container> {
    let pod = deployment.spec.as_ref().and_then(|spec| spec.template.spec.as_ref());
    pod.map(|pod| pod.containers.clone()).unwrap_or_default()
}

/// Containers of a `DaemonSet`.
pub fn containers_of_set(set: &DaemonSet) -> Vec<Container> {
    let pod = set.spec.as_ref().and_then(|spec| spec.template.spec.as_ref());
    pod.map(|pod| pod.containers.clone()).unwrap_or_default()
}

/// The command lines of the containers.
pub fn arguments(containers: &[Container]) -> Vec<String> {
    containers.iter().flat_map(|one| one.command.iter().flatten().chain(one.args.iter().flatten())).cloned().collect()
}

/// Whether one of the containers is a cloud controller for Harvester, this project's or the Go provider. The announcer,
/// which has the same image, does not count.
pub fn is_controller(containers: &[Container]) -> bool {
    let arguments = arguments(containers);
    let announcer = arguments.iter().any(|argument| argument == "announcer" || argument == "manager");
    let image = |one: &Container| one.image.as_deref().is_some_and(|image| image.contains("harvester-cloud-provider"));
    !announcer
        && containers.iter().any(image)
        && arguments.iter().any(|argument| argument.starts_with("--cloud-config"))
}

/// The Deployments that run a cloud controller for Harvester, also if they are scaled to zero.
pub fn controllers(snapshot: &Snapshot) -> impl Iterator<Item = &Deployment> {
    snapshot.deployments.iter().filter(|deployment| is_controller(&containers(deployment)))
}

/// The `DaemonSet`s that do.
pub fn controller_sets(snapshot: &Snapshot) -> impl Iterator<Item = &DaemonSet> {
    snapshot.daemon_sets.iter().filter(|set| is_controller(&containers_of_set(set)))
}

/// What Helm has installed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Release {
    pub namespace: String,
    pub name: String,
    /// Name and version of the chart; empty if no workload says it.
    pub chart: String,
}

/// The Helm release of the cloud controller, else of the announcer. Without either it is the one that the documents
/// install.
pub fn release(snapshot: &Snapshot) -> Release {
    let deployments = controllers(snapshot).map(|one| &one.metadata);
    let announcers = snapshot.daemon_sets.iter().filter(|set| is_announcer(&containers_of_set(set)));
    let sets = controller_sets(snapshot).chain(announcers).map(|one| &one.metadata);
    let helm = |metadata: &&ObjectMeta| !annotation(metadata, "meta.helm.sh/release-name").is_empty();
    let found = deployments.chain(sets).find(helm);
    let text = |key: &str, default: &str| {
        found.map(|one| annotation(one, key)).filter(|text| !text.is_empty()).unwrap_or(default).to_owned()
    };
    Release {
        namespace: text("meta.helm.sh/release-namespace", "kube-system"),
        name: text("meta.helm.sh/release-name", "harvester-cloud-provider"),
        chart: found.map(|one| label(one, "helm.sh/chart").to_owned()).unwrap_or_default(),
    }
}

/// The value of a flag of the cloud controller, as `--flag=value`; the last one counts.
pub fn controller_flag(snapshot: &Snapshot, flag: &str) -> Option<String> {
    let arguments = arguments(&containers(controllers(snapshot).next()?));
    let value = |argument: &String| Some(argument.strip_prefix(flag)?.strip_prefix('=')?.to_owned());
    arguments.iter().rev().find_map(value)
}

/// The record, as the object of a finding.
pub fn record() -> String {
    format!("ConfigMap {}/{RECORD}", config_maps::NAMESPACE)
}

/// The identity card in the record; null if there is none, or nobody can read it.
pub fn identity_card(snapshot: &Snapshot) -> Value {
    snapshot.config(RECORD, IDENTITY).and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
}

/// Whether the Deployment is not scaled to zero.
pub fn wants_replicas(deployment: &Deployment) -> bool {
    deployment.spec.as_ref().and_then(|spec| spec.replicas) != Some(0)
}

/// Whether one of the containers is this project's announcer.
pub fn is_announcer(containers: &[Container]) -> bool {
    let image = |one: &Container| one.image.as_deref().is_some_and(|image| image.contains("harvester-cloud-provider"));
    let arguments = arguments(containers);
    containers.iter().any(image) && arguments.iter().any(|argument| argument == "announcer" || argument == "manager")
}

/// The announcers' status report.
pub fn announced(config: &Config, snapshot: &Snapshot, now: Timestamp) -> announcer_core::status::Report {
    let listed = Listed { services: &snapshot.services, leases: &snapshot.leases, namespace: leases::NAMESPACE };
    announcer_core::status::report(config, listed, now)
}
