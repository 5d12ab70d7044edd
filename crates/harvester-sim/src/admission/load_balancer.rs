//! Validation and mutation of LoadBalancers. harvester-side.md 5.2, 5.3

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
pub fn belongs_to(machine: &MachineFacts, cluster: &str) -> bool {
    let label = |key: &str| machine.labels.get(key).map(String::as_str);
    label(harvester::CREATOR) == Some(harvester::NODE_DRIVER) && label(harvester::GUEST_CLUSTER_NAME) == Some(cluster)
}

/// Rancher is removing the whole guest cluster, not just this machine.
pub fn being_removed(annotations: &BTreeMap<String, String>) -> bool {
    annotations.get(harvester::REMOVE_ALL_VOLUMES).is_some_and(|value| value == "true")
}

/// Rancher project of a namespace as the annotation on load balancers has it: first colon replaced. harvester-side.md 3.1
pub fn project_of(namespace_annotations: &BTreeMap<String, String>) -> String {
    namespace_annotations.get(harvester::PROJECT_ID).map(|id| id.replacen(':', "/", 1)).unwrap_or_default()
}

/// JSON patch operations for a create or update. Empty: nothing to change. harvester-side.md 5.3
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
mod tests {
    use super::*;

    fn lb(kind: &str, listeners: &[(&str, i32, &str, i32)], check: Option<[u32; 5]>) -> Candidate {
        let listeners: Vec<_> = listeners
            .iter()
            .map(|(name, port, protocol, backend)| json!({"name": name, "port": port, "protocol": protocol, "backendPort": backend}))
            .collect();
        let mut spec = json!({"workloadType": kind, "listeners": listeners});
        if let Some([port, s, f, p, t]) = check {
            spec["healthCheck"] = json!({"port": port, "successThreshold": s, "failureThreshold": f, "periodSeconds": p, "timeoutSeconds": t});
        }
        Candidate::decode(&json!({"metadata": {"namespace": "ns", "name": "lb"}, "spec": spec})).unwrap()
    }

    fn refusal(lb: &Candidate) -> Option<String> {
        validate_create(lb, &[]).err()
    }

    /// harvester-side.md 7.4, first two tables; rules A to E of 5.2
    #[test]
    fn listeners_and_health_checks_of_vm_load_balancers_are_checked() {
        let good = [("a", 80, "TCP", 80), ("b", 443, "TCP", 443)];
        let udp = [("a", 53, "UDP", 53), ("b", 80, "TCP", 8080)];
        let table: [(Candidate, Option<&str>); 20] = [
            (lb("vm", &[("a", 80, "TCP", 80), ("a", 81, "TCP", 81)], None), Some("listener has duplicate name")),
            (lb("vm", &[("", 80, "TCP", 80), ("", 81, "TCP", 81)], None), Some("listener has duplicate name")),
            (lb("vm", &[("a", 80, "TCP", 80), ("b", 80, "TCP", 81)], None), Some("has duplicate port")),
            (lb("vm", &[("a", 80, "TCP", 80), ("b", 81, "TCP", 80)], None), Some("has duplicate backend port")),
            (lb("vm", &[("a", -1, "TCP", 80)], None), Some("listener port -1 must >= 1")),
            (lb("vm", &[("a", 800_000, "TCP", 80)], None), Some("listener port 800000 must <= 65535")),
            (lb("vm", &[("a", 80, "TCP", 0)], None), Some("listener backend port 0 must >= 1")),
            (lb("vm", &[("a", 80, "TCP", 65536)], None), Some("listener backend port 65536 must <= 65535")),
            (lb("vm", &good, None), None),
            (lb("vm", &[("a", 53, "TCP", 53), ("b", 53, "UDP", 53)], None), None),
            (lb("vm", &[], None), Some("needs to have at least one listener")),
            (lb("cluster", &[], None), None),
            (
                lb("vm", &good, Some([8080, 1, 1, 1, 1])),
                Some("healthcheck port 8080 is not in listener backend port list"),
            ),
            (lb("vm", &udp, Some([53, 1, 1, 1, 1])), Some("can only be a TCP backend port")),
            (lb("vm", &good, Some([80, 0, 1, 1, 1])), Some("healthcheck SuccessThreshold should > 0")),
            (lb("vm", &good, Some([80, 1, 0, 1, 1])), Some("healthcheck FailureThreshold should > 0")),
            (lb("vm", &good, Some([80, 1, 1, 0, 1])), Some("healthcheck PeriodSeconds should > 0")),
            (lb("vm", &good, Some([80, 1, 1, 1, 0])), Some("healthcheck TimeoutSeconds should > 0")),
            (lb("vm", &good, Some([80, 1, 1, 1, 1])), None),
            (lb("cluster", &good, Some([9, 0, 0, 0, 0])), None),
        ];
        for (lb, expected) in table {
            let refusal = refusal(&lb);
            match expected {
                None => assert_eq!(refusal, None),
                Some(fragment) => {
                    let refusal = refusal.expect(fragment);
                    assert!(
                        refusal.starts_with("create loadbalancer ns/lb failed") && refusal.contains(fragment),
                        "{refusal}"
                    );
                }
            }
        }
    }

    /// harvester-side.md 7.4, last two tables; rules F and H
    #[test]
    fn ipam_and_workload_type_must_not_cross_their_border() {
        let with = |kind: &str, ipam: &str| {
            Candidate::decode(
                &json!({"metadata": {"namespace": "ns", "name": "lb"}, "spec": {"workloadType": kind, "ipam": ipam,
                "listeners": [{"name": "a", "port": 1, "protocol": "TCP", "backendPort": 1}]}}),
            )
            .unwrap()
        };
        for (old, new, allowed) in [
            ("", "dhcp", false),
            ("pool", "dhcp", false),
            ("dhcp", "pool", false),
            ("dhcp", "", false),
            ("dhcp", "dhcp", true),
            ("pool", "pool", true),
            ("", "", true),
            ("pool", "", true),
            ("", "pool", true),
        ] {
            let outcome = validate_update(&with("cluster", old), &with("cluster", new));
            assert_eq!(outcome.is_ok(), allowed, "{old}->{new}");
            if let Err(text) = outcome {
                assert_eq!(
                    text,
                    format!("update loadbalancer ns/lb failed: can't change the IPAM from {old} to {new}")
                );
            }
        }
        for (old, new, allowed) in [
            ("", "cluster", false),
            ("vm", "cluster", false),
            ("cluster", "vm", false),
            ("cluster", "", false),
            ("cluster", "cluster", true),
            ("vm", "vm", true),
            ("", "", true),
            ("vm", "", true),
            ("", "vm", true),
        ] {
            assert_eq!(validate_update(&with(old, "pool"), &with(new, "pool")).is_ok(), allowed, "{old}->{new}");
        }
    }

    #[test]
    fn a_deleting_object_may_always_be_updated() {
        let old = lb("cluster", &[], None);
        let mut new = lb("vm", &[], None);
        assert!(validate_update(&old, &new).is_err());
        new.metadata.deletion_timestamp = Some("2026-01-01T00:00:00Z".to_owned());
        assert_eq!(validate_update(&old, &new), Ok(()));
        assert!(mutate(HostVersion::V1_9, &new, "", &[]).is_empty());
    }

    /// harvester-side.md 7.4, `BlockNewLBWhenGuestClusterIsOnRemove`
    #[test]
    fn a_guest_cluster_that_is_being_removed_gets_no_new_load_balancer() {
        let machine = |creator: bool, cluster: bool, removing: bool| {
            let mut machine = MachineFacts::default();
            let mut put = |yes: bool, key: &str, value: &str| {
                yes.then(|| machine.labels.insert(key.to_owned(), value.to_owned()))
            };
            put(creator, harvester::CREATOR, harvester::NODE_DRIVER);
            put(cluster, harvester::GUEST_CLUSTER_NAME, "gc1");
            if removing {
                machine.annotations.insert(harvester::REMOVE_ALL_VOLUMES.to_owned(), "true".to_owned());
            }
            machine
        };
        let with_label = |label: Option<&str>| {
            let mut lb = lb("cluster", &[], None);
            label.map(|label| lb.metadata.labels.insert(cloudprovider::CLUSTER.to_owned(), label.to_owned()));
            lb
        };
        let leaving = || vec![machine(true, true, true)];
        let table = [
            (Some("gc1"), leaving(), false),
            (Some("gc1"), vec![], true),
            (Some("gc1"), vec![machine(true, true, false)], true),
            (None, leaving(), true),
            (Some("kubernetes"), leaving(), true),
            (Some(""), leaving(), true),
            (Some("gc1"), vec![machine(false, false, true)], true),
            (Some("gc1"), vec![machine(false, true, true)], true),
            (Some("gc2"), leaving(), true),
        ];
        for (label, machines, allowed) in table {
            let outcome = validate_create(&with_label(label), &machines);
            assert_eq!(outcome.is_ok(), allowed, "{label:?} {machines:?}");
            if let Err(text) = outcome {
                assert!(
                    text.contains("failed with guest cluster check: shows guest cluster gc1 is being removed"),
                    "{text}"
                );
            }
        }
    }

    #[test]
    fn a_negative_number_in_a_health_check_does_not_decode() {
        let object = json!({"metadata": {}, "spec": {"healthCheck": {"port": 80, "periodSeconds": -1}}});
        assert!(Candidate::decode(&object).is_err());
    }

    /// harvester-side.md 7.5
    #[test]
    fn mutation_sends_an_operation_per_member_that_is_not_right() {
        let good = [("a", 80, "TCP", 80)];
        for (check, operations) in [(Some([80, 0, 1, 1, 1]), 2), (Some([80, 1, 1, 1, 1]), 1), (None, 1)] {
            assert_eq!(mutate(HostVersion::V1_9, &lb("vm", &good, check), "", &[]).len(), operations, "{check:?}");
        }
        let mut right = lb("vm", &good, None);
        right.metadata.annotations.insert(loadbalancer::NAMESPACE.to_owned(), "ns".to_owned());
        assert!(mutate(HostVersion::V1_9, &right, "p", &[]).is_empty());
    }

    #[test]
    fn a_cluster_load_balancer_gets_namespace_project_and_network_and_keeps_the_rest() {
        let mut lb = lb("cluster", &[], None);
        lb.metadata.annotations.insert("x".to_owned(), "y".to_owned());
        lb.metadata.annotations.insert(loadbalancer::NAMESPACE.to_owned(), "elsewhere".to_owned());
        let patch = mutate(HostVersion::V1_9, &lb, "local/p-1", &[]);
        assert_eq!(
            patch,
            [json!({"op": "add", "path": "/metadata/annotations", "value": {
                "x": "y", "loadbalancer.harvesterhci.io/namespace": "ns", "loadbalancer.harvesterhci.io/project": "local/p-1",
                "loadbalancer.harvesterhci.io/network": ""}})]
        );
    }

    #[test]
    fn the_project_is_the_namespaces_with_a_slash() {
        let annotated = BTreeMap::from([(harvester::PROJECT_ID.to_owned(), "local:p-abcde".to_owned())]);
        assert_eq!(project_of(&annotated), "local/p-abcde");
        assert_eq!(project_of(&BTreeMap::new()), "");
    }
}
