//! Views: small plain structs made from cached objects, with only the fields that decisions use. Decisions do not read
//! the objects themselves.

use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;

pub use contract::{ServiceKey, Uid};

pub use crate::tags::Tags;

/// Transport protocol of a Service port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Protocol {
    /// `TCP`, also where the field is absent.
    Tcp,
    /// `UDP`.
    Udp,
    /// `SCTP`.
    Sctp,
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcp => "TCP",
            Self::Udp => "UDP",
            Self::Sctp => "SCTP",
        })
    }
}

/// An address family of a Service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// `IPv4`.
    V4,
    /// `IPv6`.
    V6,
}

impl From<IpAddr> for Family {
    fn from(address: IpAddr) -> Self {
        if address.is_ipv4() { Self::V4 } else { Self::V6 }
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        })
    }
}

/// The fields of a Service that decisions use.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools)] // facts of an object that have nothing to do with each other
pub struct ServiceView {
    /// Namespace and name.
    pub key: ServiceKey,
    /// `metadata.uid`.
    pub uid: Uid,
    /// `metadata.resourceVersion` of the cached object, empty if unknown.
    pub resource_version: String,
    /// `spec.type == LoadBalancer`.
    pub is_load_balancer: bool,
    /// `spec.loadBalancerClass` is set: another controller serves the Service.
    pub has_class: bool,
    /// `metadata.deletionTimestamp` is set.
    pub deleting: bool,
    /// `metadata.finalizers`.
    pub finalizers: Vec<String>,
    /// `metadata.annotations`.
    pub annotations: Tags,
    /// `metadata.labels`.
    pub labels: Tags,
    /// `metadata.creationTimestamp`, Unix seconds.
    pub created: Option<i64>,
    /// `spec.ports` as (protocol, port).
    pub ports: BTreeSet<(Protocol, u16)>,
    /// `spec.ipFamilies`, the primary family first; empty if the API server has not set it.
    pub families: Vec<Family>,
    /// `spec.ipFamilyPolicy` is `RequireDualStack`.
    pub requires_both_families: bool,
    /// `spec.loadBalancerIP`, if not empty.
    pub load_balancer_ip: Option<String>,
    /// `spec.clusterIPs`; a headless Service has none.
    pub cluster_ips: Vec<IpAddr>,
    /// `status.loadBalancer.ingress[].ip`, in order; entries without an IP are left out.
    pub ingress: Vec<IpAddr>,
    /// This controller's conditions in `status.conditions`.
    pub conditions: Conditions,
}

/// Type of the condition that says whether a node serves the address of a Service. Every Service of this controller has
/// it.
pub const LOAD_BALANCER_READY: &str = "LoadBalancerReady";

/// Type of the condition on a Service that is served, but not completely as its user requested. It is removed when that
/// is over.
pub const LOAD_BALANCER_WARNING: &str = "LoadBalancerWarning";

/// The conditions that this controller writes to a Service.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Conditions {
    /// [`LOAD_BALANCER_READY`].
    pub ready: Option<Condition>,
    /// [`LOAD_BALANCER_WARNING`].
    pub warning: Option<Condition>,
}

impl Conditions {
    /// Each condition with its type.
    pub fn by_type(&self) -> [(&'static str, &Option<Condition>); 2] {
        [(LOAD_BALANCER_READY, &self.ready), (LOAD_BALANCER_WARNING, &self.warning)]
    }
}

/// `status` of a condition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConditionStatus {
    /// `True`.
    True,
    /// `False`.
    False,
    /// `Unknown`, or a value that this version does not know.
    Unknown,
}

impl ConditionStatus {
    /// The value as written in the object.
    pub fn word(self) -> &'static str {
        match self {
            Self::True => "True",
            Self::False => "False",
            Self::Unknown => "Unknown",
        }
    }
}

impl From<&str> for ConditionStatus {
    fn from(word: &str) -> Self {
        match word {
            "True" => Self::True,
            "False" => Self::False,
            _ => Self::Unknown,
        }
    }
}

/// A condition as `metav1.Condition` has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Condition {
    /// `status`.
    pub status: ConditionStatus,
    /// `reason`.
    pub reason: String,
    /// `message`.
    pub message: String,
    /// `lastTransitionTime` as it is in the object.
    pub since: String,
}

/// The fields of a Node that decisions use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeView {
    /// `metadata.name`.
    pub name: String,
    /// `metadata.uid`.
    pub uid: Uid,
    /// `metadata.resourceVersion` of the cached object.
    pub resource_version: String,
    /// `metadata.creationTimestamp`, Unix seconds.
    pub created: Option<i64>,
    /// `spec.providerID`, if not empty.
    pub provider_id: Option<String>,
    /// `metadata.annotations`.
    pub annotations: Tags,
    /// `metadata.labels`.
    pub labels: Tags,
    /// `spec.taints`.
    pub taints: Vec<Taint>,
    /// `spec.unschedulable`: the Node is cordoned.
    pub unschedulable: bool,
    /// Condition `Ready`; `None` where it is missing.
    pub ready: Option<Ready>,
    /// `status.addresses`.
    pub addresses: Vec<NodeAddress>,
    /// `status.nodeInfo.systemUUID`, if not empty. The kubelet reads it from its machine and writes it at each start.
    pub system_uuid: Option<String>,
    /// `metadata.deletionTimestamp` is set.
    pub deleting: bool,
}

/// Status of the `Ready` condition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ready {
    /// `True`.
    True,
    /// `False`.
    False,
    /// `Unknown`, or a value that this version does not know.
    Unknown,
}

/// One entry of `spec.taints`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Taint {
    /// `key`.
    pub key: String,
    /// `value`, if any.
    pub value: Option<String>,
    /// `effect`, for example `NoSchedule`.
    pub effect: String,
    /// `timeAdded` as it is in the object; kept when the list is written back.
    pub time_added: Option<String>,
}

/// One entry of `status.addresses`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct NodeAddress {
    /// `InternalIP`, `ExternalIP` or `Hostname` (others are kept as they are).
    pub kind: NodeAddressKind,
    /// The address as text.
    pub address: String,
}

/// Type of a node address.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum NodeAddressKind {
    /// `InternalIP`.
    InternalIp,
    /// `ExternalIP`.
    ExternalIp,
    /// `Hostname`.
    Hostname,
    /// `InternalDNS`, `ExternalDNS`, or a type that this version does not know.
    Other(String),
}
