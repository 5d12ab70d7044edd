//! Makes the views from API objects. No other part of this crate reads the objects themselves.

use std::net::IpAddr;

use k8s_openapi::api::core::v1::{Node, Service};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{self as meta, ObjectMeta};

use crate::view::{
    Condition, Conditions, Family, LOAD_BALANCER_READY, LOAD_BALANCER_WARNING, NodeAddress, NodeAddressKind, NodeView,
    Protocol, Ready, ServiceKey, ServiceView, Tags, Taint, Uid,
};

/// The key of a Service.
pub fn service_key(meta: &ObjectMeta) -> ServiceKey {
    ServiceKey { namespace: meta.namespace.clone().unwrap_or_default(), name: meta.name.clone().unwrap_or_default() }
}

/// The view of a Service.
pub fn service(service: &Service) -> ServiceView {
    let meta = &service.metadata;
    let spec = service.spec.as_ref();
    let ports = spec.and_then(|spec| spec.ports.as_ref()).into_iter().flatten();
    let families = spec.and_then(|spec| spec.ip_families.as_ref()).into_iter();
    let cluster_ips = spec.and_then(|spec| spec.cluster_ips.as_ref()).into_iter().flatten();
    let ingress = service.status.as_ref().and_then(|status| status.load_balancer.as_ref()?.ingress.as_ref());
    let conditions = service.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    let ips = ingress.into_iter().flatten().filter_map(|entry| entry.ip.as_ref());
    ServiceView {
        key: service_key(meta),
        uid: Uid(meta.uid.clone().unwrap_or_default()),
        resource_version: meta.resource_version.clone().unwrap_or_default(),
        is_load_balancer: spec.is_some_and(|spec| spec.type_.as_deref() == Some("LoadBalancer")),
        has_class: spec.is_some_and(|spec| spec.load_balancer_class.is_some()),
        deleting: meta.deletion_timestamp.is_some(),
        finalizers: meta.finalizers.clone().unwrap_or_default(),
        annotations: decided_on(meta),
        labels: meta.labels.iter().flatten().collect(),
        created: meta.creation_timestamp.as_ref().map(|time| time.0.as_second()),
        families: families.flatten().filter_map(|name| family(name)).collect(),
        requires_both_families: spec.is_some_and(|spec| spec.ip_family_policy.as_deref() == Some("RequireDualStack")),
        ports: ports
            .filter_map(|port| Some((protocol(port.protocol.as_deref()), u16::try_from(port.port).ok()?)))
            .collect(),
        load_balancer_ip: spec.and_then(|spec| spec.load_balancer_ip.clone()).filter(|ip| !ip.is_empty()),
        cluster_ips: cluster_ips.filter_map(|ip| ip.parse().ok()).collect(),
        ingress: ips.filter_map(|ip| ip.parse::<IpAddr>().ok()).collect(),
        conditions: Conditions {
            ready: condition(conditions, LOAD_BALANCER_READY),
            warning: condition(conditions, LOAD_BALANCER_WARNING),
        },
    }
}

fn condition(conditions: &[meta::Condition], kind: &str) -> Option<Condition> {
    let found = conditions.iter().find(|condition| condition.type_ == kind)?;
    Some(Condition {
        status: found.status.as_str().into(),
        reason: found.reason.clone(),
        message: found.message.clone(),
        since: found.last_transition_time.0.to_string(),
    })
}

/// The annotations without kubectl's copy of the whole object, which is the largest one, and which no decision uses.
fn decided_on(meta: &ObjectMeta) -> Tags {
    let annotations = meta.annotations.iter().flatten();
    annotations.filter(|(key, _)| *key != "kubectl.kubernetes.io/last-applied-configuration").collect()
}

fn family(name: &str) -> Option<Family> {
    match name {
        "IPv4" => Some(Family::V4),
        "IPv6" => Some(Family::V6),
        _ => None,
    }
}

fn protocol(text: Option<&str>) -> Protocol {
    match text {
        Some("UDP") => Protocol::Udp,
        Some("SCTP") => Protocol::Sctp,
        _ => Protocol::Tcp,
    }
}

/// The key of a Node.
pub(crate) fn node_key(meta: &ObjectMeta) -> String {
    meta.name.clone().unwrap_or_default()
}

/// The view of a Node.
pub(crate) fn node(node: &Node) -> NodeView {
    let meta = &node.metadata;
    let spec = node.spec.as_ref();
    let status = node.status.as_ref();
    let taints = spec.and_then(|spec| spec.taints.as_ref()).into_iter().flatten();
    let addresses = status.and_then(|status| status.addresses.as_ref()).into_iter().flatten();
    let conditions = status.and_then(|status| status.conditions.as_ref()).into_iter().flatten();
    let ready = conditions.into_iter().find(|condition| condition.type_ == "Ready");
    NodeView {
        name: node_key(meta),
        uid: Uid(meta.uid.clone().unwrap_or_default()),
        resource_version: meta.resource_version.clone().unwrap_or_default(),
        created: meta.creation_timestamp.as_ref().map(|time| time.0.as_second()),
        provider_id: spec.and_then(|spec| spec.provider_id.clone()).filter(|id| !id.is_empty()),
        annotations: meta.annotations.iter().flatten().collect(),
        labels: meta.labels.iter().flatten().collect(),
        taints: taints.map(taint).collect(),
        unschedulable: spec.and_then(|spec| spec.unschedulable).unwrap_or(false),
        ready: ready.map(|condition| match condition.status.as_str() {
            "True" => Ready::True,
            "False" => Ready::False,
            _ => Ready::Unknown,
        }),
        addresses: addresses
            .map(|address| NodeAddress { kind: address.type_.as_str().into(), address: address.address.clone() })
            .collect(),
        system_uuid: status
            .and_then(|status| status.node_info.as_ref())
            .map(|info| info.system_uuid.clone())
            .filter(|uuid| !uuid.is_empty()),
        deleting: meta.deletion_timestamp.is_some(),
    }
}

fn taint(taint: &k8s_openapi::api::core::v1::Taint) -> Taint {
    Taint {
        key: taint.key.clone(),
        value: taint.value.clone(),
        effect: taint.effect.clone(),
        time_added: taint.time_added.as_ref().map(|time| time.0.to_string()),
    }
}

impl From<&str> for NodeAddressKind {
    fn from(text: &str) -> Self {
        match text {
            "InternalIP" => Self::InternalIp,
            "ExternalIP" => Self::ExternalIp,
            "Hostname" => Self::Hostname,
            other => Self::Other(other.to_owned()),
        }
    }
}

impl NodeAddressKind {
    /// The value of the `type` field.
    pub fn as_str(&self) -> &str {
        match self {
            Self::InternalIp => "InternalIP",
            Self::ExternalIp => "ExternalIP",
            Self::Hostname => "Hostname",
            Self::Other(other) => other,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, from_value, json};

    use super::*;

    #[test]
    fn a_service_is_reduced_to_what_is_decided_on() {
        let object = json!({
            "metadata": {"namespace": "default", "name": "web", "uid": "u", "resourceVersion": "7", "finalizers": ["f"],
                "annotations": {"a": "1"}, "labels": {"l": "2"}, "deletionTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {"type": "LoadBalancer", "loadBalancerClass": "x", "loadBalancerIP": "",
                "ipFamilies": ["IPv6", "IPv4"], "ipFamilyPolicy": "RequireDualStack", "ports": [
                {"port": 53, "protocol": "UDP"}, {"port": 53, "protocol": "TCP"}, {"port": 80}]},
            "status": {"loadBalancer": {"ingress": [{"hostname": "h"}, {"ip": "10.0.0.1"}, {"ip": "fd00::1"}]}},
        });
        let view = service(&from_value(object).unwrap());
        assert_eq!(view.key.to_string(), "default/web");
        assert!(view.is_load_balancer && view.has_class && view.deleting);
        assert_eq!(view.load_balancer_ip, None, "empty means not set");
        assert_eq!((view.families, view.requires_both_families), (vec![Family::V6, Family::V4], true));
        assert_eq!(view.ports, [(Protocol::Tcp, 53), (Protocol::Tcp, 80), (Protocol::Udp, 53)].into());
        assert_eq!(view.ingress, ["10.0.0.1".parse::<IpAddr>().unwrap(), "fd00::1".parse().unwrap()]);
    }

    #[test]
    fn a_node_without_a_ready_condition_is_neither_ready_nor_not_ready() {
        let with = |conditions: Value| {
            let object = json!({"metadata": {"name": "n"}, "spec": {"providerID": "", "taints": [
                {"key": "k", "effect": "NoExecute", "timeAdded": "2026-01-02T03:04:05Z"}]},
                "status": {"conditions": conditions, "addresses": [{"type": "InternalDNS", "address": "x"}]}});
            node(&from_value(object).unwrap())
        };
        assert_eq!(with(json!([{"type": "MemoryPressure", "status": "True"}])).ready, None);
        assert_eq!(with(json!([{"type": "Ready", "status": "False"}])).ready, Some(Ready::False));
        assert_eq!(with(json!([{"type": "Ready", "status": "Unknown"}])).ready, Some(Ready::Unknown));
        let view = with(json!([{"type": "Ready", "status": "True"}]));
        assert_eq!((view.ready, view.provider_id.clone()), (Some(Ready::True), None));
        assert_eq!(view.addresses[0].kind.as_str(), "InternalDNS");
        assert_eq!(
            (view.taints[0].value.clone(), view.taints[0].time_added.as_deref()),
            (None, Some("2026-01-02T03:04:05Z"))
        );
    }

    #[test]
    fn the_system_uuid_of_a_node_is_what_its_kubelet_has_written() {
        let uuid = |status: Value| node(&from_value(json!({"metadata": {"name": "n"}, "status": status})).unwrap());
        let info = |uuid: &str| {
            json!({"nodeInfo": {"architecture": "", "bootID": "", "containerRuntimeVersion": "", "kernelVersion": "",
                "kubeProxyVersion": "", "kubeletVersion": "", "machineID": "m", "operatingSystem": "", "osImage": "",
                "systemUUID": uuid}})
        };
        assert_eq!(uuid(info("U")).system_uuid.as_deref(), Some("U"));
        assert_eq!((uuid(info("")).system_uuid, uuid(json!({})).system_uuid), (None, None));
    }
}
