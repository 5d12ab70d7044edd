//! Validation and mutation of LoadBalancers. Harvester spec 5.2, 5.3

use std::collections::BTreeMap;

use harvester_api::keys::{cloudprovider, harvester, loadbalancer};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::network::{self, InstanceFacts};
use crate::version::HostVersion;

/// A LoadBalancer as the webhooks decode it. Unlike the provider they need listeners, and refuse what does not decode.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Candidate {
    /// Name, labels, annotations.
    pub metadata: Metadata,
    /// What is asked for.
    pub spec: Spec,
}

/// Trimmed object metadata.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Metadata {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Annotations.
    pub annotations: BTreeMap<String, String>,
    /// Set: the object is going away.
    pub deletion_timestamp: Option<String>,
}

/// `spec`, with what only VM load balancers use.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Spec {
    /// `cluster`, `vm` or empty.
    pub workload_type: String,
    /// `pool`, `dhcp` or empty.
    pub ipam: String,
    /// Front and back ports.
    pub listeners: Vec<Listener>,
    /// Only if its port is not 0.
    pub health_check: Option<HealthCheck>,
}

/// One entry of `spec.listeners`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Listener {
    /// May be empty, but two empty ones collide.
    pub name: String,
    /// Front port.
    pub port: i32,
    /// `TCP` or `UDP`.
    pub protocol: String,
    /// Back port.
    pub backend_port: i32,
}

/// `spec.healthCheck`. Unsigned on the host, so a negative number does not decode.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct HealthCheck {
    /// 0: no health check.
    pub port: u32,
    /// Results in a row until healthy.
    pub success_threshold: u32,
    /// Results in a row until unhealthy.
    pub failure_threshold: u32,
    /// Between probes.
    pub period_seconds: u32,
    /// Per probe.
    pub timeout_seconds: u32,
}

/// What a rule needs to know about a virtual machine.
#[derive(Debug, Clone, Default)]
pub struct MachineFacts {
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Annotations.
    pub annotations: BTreeMap<String, String>,
}

impl Candidate {
    /// Decodes an object of a review.
    pub fn decode(object: &Value) -> Result<Self, String> {
        serde_json::from_value(object.clone()).map_err(|error| format!("decode loadbalancer: {error}"))
    }

    fn is_cluster(&self) -> bool {
        self.spec.workload_type == "cluster"
    }

    fn full_name(&self) -> String {
        format!("{}/{}", self.metadata.namespace, self.metadata.name)
    }
}

/// Rules for a create. `machines`: VMs in the namespace of the load balancer.
pub fn validate_create(lb: &Candidate, machines: &[MachineFacts]) -> Result<(), String> {
    let refused =
        |extra: &str, problem: &str| Err(format!("create loadbalancer {} failed{extra}: {problem}", lb.full_name()));
    if let Err(problem) = check_listeners(lb) {
        return refused("", &problem);
    }
    if let Err(problem) = check_health_check(lb) {
        return refused(" with healthyCheck", &problem);
    }
    if let Err(problem) = check_guest_cluster(lb, machines) {
        return refused(" with guest cluster check", &problem);
    }
    Ok(())
}

/// Rules for an update. A deleting object may always be updated, or its finalizer could not go.
pub fn validate_update(old: &Candidate, new: &Candidate) -> Result<(), String> {
    if new.metadata.deletion_timestamp.is_some() {
        return Ok(());
    }
    let refused =
        |extra: &str, problem: &str| Err(format!("update loadbalancer {} failed{extra}: {problem}", new.full_name()));
    if let Err(problem) = check_listeners(new) {
        return refused("", &problem);
    }
    if let Err(problem) = check_health_check(new) {
        return refused(" with healthyCheck", &problem);
    }
    let (from, to) = (&old.spec.ipam, &new.spec.ipam);
    if (from == "dhcp") != (to == "dhcp") {
        return refused("", &format!("can't change the IPAM from {from} to {to}"));
    }
    let (from, to) = (&old.spec.workload_type, &new.spec.workload_type);
    if (from == "cluster") != (to == "cluster") {
        return refused("", &format!("can't change the WorkloadType from {from} to {to}"));
    }
    Ok(())
}

/// Rules A to D, VM type only.
fn check_listeners(lb: &Candidate) -> Result<(), String> {
    if lb.is_cluster() {
        return Ok(());
    }
    let listeners = &lb.spec.listeners;
    if listeners.is_empty() {
        return Err("the loadbalancer needs to have at least one listener".to_owned());
    }
    for (index, listener) in listeners.iter().enumerate() {
        let earlier = &listeners[..index];
        let same_protocol = || earlier.iter().filter(|other| other.protocol == listener.protocol);
        if earlier.iter().any(|other| other.name == listener.name) {
            return Err(format!("listener has duplicate name {:?}", listener.name));
        }
        if same_protocol().any(|other| other.port == listener.port) {
            return Err(format!("listener {:?} has duplicate port {}", listener.name, listener.port));
        }
        if same_protocol().any(|other| other.backend_port == listener.backend_port) {
            return Err(format!("listener {:?} has duplicate backend port {}", listener.name, listener.backend_port));
        }
        for (kind, port) in [("port", listener.port), ("backend port", listener.backend_port)] {
            if port < 1 {
                return Err(format!("listener {kind} {port} must >= 1"));
            }
            if port > 65535 {
                return Err(format!("listener {kind} {port} must <= 65535"));
            }
        }
    }
    Ok(())
}

/// Rule E, VM type only.
fn check_health_check(lb: &Candidate) -> Result<(), String> {
    let Some(check) = lb.spec.health_check.filter(|check| check.port != 0 && !lb.is_cluster()) else {
        return Ok(());
    };
    let port = check.port;
    let mut behind =
        lb.spec.listeners.iter().filter(|listener| u32::try_from(listener.backend_port) == Ok(port)).peekable();
    if behind.peek().is_none() {
        return Err(format!("healthcheck port {port} is not in listener backend port list"));
    }
    if !behind.any(|listener| listener.protocol.is_empty() || listener.protocol == "TCP") {
        return Err(format!("healthcheck port {port} can only be a TCP backend port"));
    }
    let numbers = [
        ("SuccessThreshold", check.success_threshold),
        ("FailureThreshold", check.failure_threshold),
        ("PeriodSeconds", check.period_seconds),
        ("TimeoutSeconds", check.timeout_seconds),
    ];
    match numbers.iter().find(|(_, value)| *value == 0) {
        Some((name, value)) => Err(format!("healthcheck {name} should > 0, it is {value}")),
        None => Ok(()),
    }
}

/// Rule G: a guest cluster that is being removed gets no new load balancer.
fn check_guest_cluster(lb: &Candidate, machines: &[MachineFacts]) -> Result<(), String> {
    let Some(cluster) =
        lb.metadata.labels.get(cloudprovider::CLUSTER).filter(|name| !matches!(name.as_str(), "" | "kubernetes"))
    else {
        return Ok(());
    };
    let leaving = lb.is_cluster()
        && machines.iter().any(|machine| belongs_to(machine, cluster) && being_removed(&machine.annotations));
    if leaving { Err(format!("shows guest cluster {cluster} is being removed")) } else { Ok(()) }
}

/// A node-driver VM of this guest cluster.
fn belongs_to(machine: &MachineFacts, cluster: &str) -> bool {
    let label = |key: &str| machine.labels.get(key).map(String::as_str);
    label(harvester::CREATOR) == Some(harvester::NODE_DRIVER) && label(harvester::GUEST_CLUSTER_NAME) == Some(cluster)
}

/// Rancher is removing the whole guest cluster, not just this machine.
pub fn being_removed(annotations: &BTreeMap<String, String>) -> bool {
    annotations.get(harvester::REMOVE_ALL_VOLUMES).is_some_and(|value| value == "true")
}

/// Rancher project of a namespace as the annotation on load balancers has it: first colon replaced. Harvester spec
/// 3.1
pub fn project_of(namespace_annotations: &BTreeMap<String, String>) -> String {
    namespace_annotations.get(harvester::PROJECT_ID).map(|id| id.replacen(':', "/", 1)).unwrap_or_default()
}

/// JSON patch operations for a create or update. Empty: nothing to change. Harvester spec 5.3
pub fn mutate(version: HostVersion, lb: &Candidate, project: &str, instances: &[InstanceFacts]) -> Vec<Value> {
    let mut patch = Vec::new();
    if lb.metadata.deletion_timestamp.is_some() {
        return patch;
    }
    let mut annotations = lb.metadata.annotations.clone();
    annotations.insert(loadbalancer::NAMESPACE.to_owned(), lb.metadata.namespace.clone());
    // Older hosts sent load balancers without a type the cluster way.
    let cluster_way = lb.is_cluster() || (version == HostVersion::V1_8 && lb.spec.workload_type.is_empty());
    if cluster_way {
        annotations.insert(loadbalancer::PROJECT.to_owned(), project.to_owned());
        let network = network::effective(version, &lb.metadata.namespace, &lb.metadata.annotations, instances);
        annotations.insert(loadbalancer::NETWORK.to_owned(), network);
    }
    if annotations != lb.metadata.annotations {
        patch.push(json!({"op": "add", "path": "/metadata/annotations", "value": annotations}));
    }
    if let Some(check) = lb.spec.health_check.filter(|check| check.port != 0) {
        let or = |value: u32, default: u32| if value == 0 { default } else { value };
        let filled = HealthCheck {
            port: check.port,
            success_threshold: or(check.success_threshold, 2),
            failure_threshold: or(check.failure_threshold, 2),
            period_seconds: or(check.period_seconds, 1),
            timeout_seconds: or(check.timeout_seconds, 1),
        };
        if filled != check {
            let value = serde_json::to_value(filled).unwrap_or(Value::Object(Map::new()));
            patch.push(json!({"op": "add", "path": "/spec/healthCheck", "value": value}));
        }
    }
    patch
}

#[cfg(test)]
mod tests;
