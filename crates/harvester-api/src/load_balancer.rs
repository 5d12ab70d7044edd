//! `LoadBalancer` (loadbalancer.harvesterhci.io/v1beta1), the one Harvester object that the provider writes.
//!
//! The kind has no status subresource: one PUT contains spec, annotations and status, so it must also contain the
//! fields that this version does not know. Therefore unknown fields of spec, status, conditions and the object itself
//! survive a round trip (Harvester spec 1, 8.2).

mod not_ready;

use std::fmt;
use std::net::IpAddr;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::core::NamespaceResourceScope;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

pub use not_ready::{NO_ALLOCATOR, NotReady};

use crate::keys::harvester::LB_FINALIZER;
use crate::lenient;
use crate::resource::resource;

/// API group of [`LoadBalancer`] and [`crate::ip_pool::IpPool`].
pub const GROUP: &str = "loadbalancer.harvesterhci.io";
/// The only version that a provider may use.
pub const VERSION: &str = "v1beta1";
/// `apiVersion` of both kinds.
pub const API_VERSION: &str = "loadbalancer.harvesterhci.io/v1beta1";

/// Value of `status.allocatedAddress.ip` that tells the announcer to ask a DHCP server. Never a usable address.
pub const DHCP_ADDRESS: &str = "0.0.0.0";
/// The same for IPv6, between cloud provider and announcer only: the host knows one address per load balancer.
pub const DHCP6_ADDRESS: &str = "::";

/// A load balancer as the Harvester host sees it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LoadBalancer {
    /// Always [`API_VERSION`].
    #[serde(default = "api_version")]
    pub api_version: String,
    /// Always `LoadBalancer`.
    #[serde(default = "kind")]
    pub kind: String,
    /// Name, namespace, labels, annotations, finalizers.
    #[serde(default)]
    pub metadata: ObjectMeta,
    /// The requested state.
    #[serde(default, deserialize_with = "lenient::or_default")]
    pub spec: LoadBalancerSpec,
    /// The allocated address, and `address`. A newly created object may have no status.
    #[serde(default, deserialize_with = "lenient::or_default", skip_serializing_if = "Option::is_none")]
    pub status: Option<LoadBalancerStatus>,
    /// Fields that this version does not know.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

pub(crate) fn api_version() -> String {
    API_VERSION.to_owned()
}

fn kind() -> String {
    "LoadBalancer".to_owned()
}

resource!(
    LoadBalancer,
    "loadbalancer.harvesterhci.io",
    "v1beta1",
    "LoadBalancer",
    "loadbalancers",
    NamespaceResourceScope
);

/// The requested state. Listeners, selectors and health checks, which a cluster load balancer does not have, stay in
/// `other`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LoadBalancerSpec {
    /// Free text.
    #[serde(default, deserialize_with = "lenient::or_default", skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// `cluster` or `vm`; absent behaves as `vm`.
    #[serde(default, deserialize_with = "lenient::or_default", skip_serializing_if = "Option::is_none")]
    pub workload_type: Option<String>,
    /// `pool` or `dhcp`. Must always be written: without it the host allocates as for `pool`, but leaks the address on
    /// deletion.
    #[serde(default, deserialize_with = "lenient::or_default", skip_serializing_if = "Option::is_none")]
    pub ipam: Option<String>,
    /// Name of a pool, which overrides all selection rules.
    #[serde(default, deserialize_with = "lenient::or_default", skip_serializing_if = "Option::is_none")]
    pub ip_pool: Option<String>,
    /// Fields that this version does not know.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

/// The state that the host allocated.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LoadBalancerStatus {
    /// For cluster load balancers, the address in use as the provider reports it; shown by `kubectl get lb`.
    #[serde(default, deserialize_with = "lenient::or_default", skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// Written by the host. It is always sent, even if empty: a PUT without it would erase the allocation.
    #[serde(default, deserialize_with = "lenient::or_default")]
    pub allocated_address: AllocatedAddress,
    /// Only `Ready`.
    #[serde(default, deserialize_with = "lenient::items", skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
    /// Fields that this version does not know.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

/// `status.allocatedAddress`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AllocatedAddress {
    /// Pool that the address was allocated from.
    #[serde(default, deserialize_with = "lenient::or_default", skip_serializing_if = "Option::is_none")]
    pub ip_pool: Option<String>,
    /// The address, or [`DHCP_ADDRESS`].
    #[serde(default, deserialize_with = "lenient::or_default", skip_serializing_if = "Option::is_none")]
    pub ip: Option<String>,
    /// Network mask in dotted form.
    #[serde(default, deserialize_with = "lenient::or_default", skip_serializing_if = "Option::is_none")]
    pub mask: Option<String>,
    /// Gateway; the literal text `<nil>` if the range has none.
    #[serde(default, deserialize_with = "lenient::or_default", skip_serializing_if = "Option::is_none")]
    pub gateway: Option<String>,
    /// Fields that this version does not know.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

/// A condition of a LoadBalancer or IPPool. The host writes no reason and no transition time.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// `Ready`.
    #[serde(rename = "type")]
    pub kind: String,
    /// `True` or `False`.
    pub status: String,
    /// The host's only explanation; absent on success.
    #[serde(default, deserialize_with = "lenient::or_default", skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// RFC 3339; changes only when status or message change.
    #[serde(default, deserialize_with = "lenient::or_default", skip_serializing_if = "Option::is_none")]
    pub last_update_time: Option<String>,
    /// Fields that this version does not know.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

/// Values of `spec.ipam` in the host's schema.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Ipam {
    /// Allocate an address of an IPPool.
    Pool,
    /// The guest's announcer requests a DHCP lease.
    Dhcp,
}

impl Ipam {
    /// As written in `spec.ipam`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pool => "pool",
            Self::Dhcp => "dhcp",
        }
    }
}

impl fmt::Display for Ipam {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl LoadBalancer {
    /// A cluster load balancer to create. Workload type and IPAM are always explicit, and the status is empty, as in
    /// the Go provider. The caller adds labels and annotations.
    pub fn for_cluster(namespace: &str, name: &str, ipam: Ipam) -> Self {
        Self {
            api_version: api_version(),
            kind: kind(),
            metadata: ObjectMeta {
                name: Some(name.to_owned()),
                namespace: Some(namespace.to_owned()),
                ..ObjectMeta::default()
            },
            spec: LoadBalancerSpec {
                workload_type: Some("cluster".to_owned()),
                ipam: Some(ipam.as_str().to_owned()),
                ..LoadBalancerSpec::default()
            },
            status: Some(LoadBalancerStatus::default()),
            other: Map::new(),
        }
    }

    /// The condition `Ready`, if the host has written one.
    pub fn ready_condition(&self) -> Option<&Condition> {
        self.status.as_ref()?.conditions.iter().find(|condition| condition.kind == "Ready")
    }

    /// Whether condition `Ready` is `True`. This is not enough to use the address: see [`Self::usable_address`].
    pub fn ready(&self) -> bool {
        self.ready_condition().is_some_and(|condition| condition.status == "True")
    }

    /// The host's message about why it is not ready; `None` if it is ready, or if the host has not written a condition.
    pub fn not_ready_message(&self) -> Option<&str> {
        let condition = self.ready_condition().filter(|condition| condition.status != "True")?;
        Some(condition.message.as_deref().unwrap_or_default())
    }

    /// `status.allocatedAddress.ip`, if not empty, whether the object is ready or not.
    pub fn allocated_ip(&self) -> Option<&str> {
        self.status.as_ref()?.allocated_address.ip.as_deref().filter(|ip| !ip.is_empty())
    }

    /// `status.allocatedAddress.ipPool`, if not empty.
    pub fn allocated_pool(&self) -> Option<&str> {
        self.status.as_ref()?.allocated_address.ip_pool.as_deref().filter(|pool| !pool.is_empty())
    }

    /// The gateway of the address's range, if the range has one.
    pub fn gateway(&self) -> Option<IpAddr> {
        self.status.as_ref()?.allocated_address.gateway.as_deref()?.parse().ok()
    }

    /// The allocated address, if it may be used: the object is not being deleted, is Ready, and the address is from the
    /// wanted pool if one is named. (During a switch of the pool, the object is Ready with the old address, or with
    /// none; Harvester spec 4.2.) A text that is no address is never returned. [`DHCP_ADDRESS`] is returned only if
    /// DHCP was requested: on an object with a pool it would start an unwanted DHCP client.
    pub fn usable_address(&self) -> Option<&str> {
        let ip = self.allocated_ip().filter(|_| self.ready() && !self.terminating())?;
        let dhcp = self.spec.ipam.as_deref() == Some(Ipam::Dhcp.as_str());
        if ip.parse::<IpAddr>().map_or(true, |ip| ip.is_unspecified() && !dhcp) {
            return None;
        }
        match self.spec.ip_pool.as_deref().filter(|pool| !pool.is_empty()) {
            Some(wanted) if self.allocated_pool() != Some(wanted) => None,
            _ => Some(ip),
        }
    }

    /// `status.address`, if not empty.
    pub fn address(&self) -> Option<&str> {
        self.status.as_ref()?.address.as_deref().filter(|address| !address.is_empty())
    }

    /// `metadata.deletionTimestamp` is set.
    pub fn terminating(&self) -> bool {
        self.metadata.deletion_timestamp.is_some()
    }

    /// Whether the host controller's finalizer is set, under its known name: then a deletion releases the address.
    pub fn has_host_finalizer(&self) -> bool {
        self.metadata.finalizers.iter().flatten().any(|finalizer| finalizer == LB_FINALIZER)
    }

    /// An annotation, `None` where absent; an empty one is `Some("")`.
    pub fn annotation(&self, key: &str) -> Option<&str> {
        self.metadata.annotations.as_ref()?.get(key).map(String::as_str)
    }

    /// A label, `None` where absent.
    pub fn label(&self, key: &str) -> Option<&str> {
        self.metadata.labels.as_ref()?.get(key).map(String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_new_object_is_serialised_as_the_go_provider_does() {
        let mut lb = LoadBalancer::for_cluster("guests", "demo-default-web-1", Ipam::Pool);
        lb.metadata.annotations = Some([("cloudprovider.harvesterhci.io/lb-network".to_owned(), String::new())].into());
        assert_eq!(
            serde_json::to_value(&lb).unwrap(),
            json!({
                "apiVersion": "loadbalancer.harvesterhci.io/v1beta1", "kind": "LoadBalancer",
                "metadata": {"name": "demo-default-web-1", "namespace": "guests",
                             "annotations": {"cloudprovider.harvesterhci.io/lb-network": ""}},
                "spec": {"ipam": "pool", "workloadType": "cluster"},
                "status": {"allocatedAddress": {}}
            })
        );
    }

    #[test]
    fn what_we_do_not_know_survives_a_round_trip() {
        let object = json!({
            "apiVersion": "loadbalancer.harvesterhci.io/v1beta1", "kind": "LoadBalancer",
            "metadata": {"name": "a", "namespace": "b"},
            "spec": {"ipam": "pool", "ipv6Pool": "six",
                "listeners": [{"port": 1, "backendPort": 2, "protocol": "TCP"}]},
            "status": {"addresses": ["::1"], "allocatedAddress": {"ip": "10.0.0.1", "zone": "z"},
                       "conditions": [{"type": "Ready", "status": "True", "reason": "X",
                           "lastUpdateTime": "2026-01-01T00:00:00Z"}]},
            "future": {"x": 1}
        });
        let lb: LoadBalancer = serde_json::from_value(object.clone()).unwrap();
        assert_eq!(serde_json::to_value(&lb).unwrap(), object);
    }

    #[test]
    fn odd_members_read_as_absent() {
        for object in [
            json!({}),
            json!({"metadata": {}, "spec": null, "status": null}),
            json!({"spec": "x", "status": 3}),
            json!({"spec": {"ipam": 1, "ipPool": null},
                "status": {"address": {}, "allocatedAddress": null, "conditions": {"a": 1}}}),
            json!({"status": {"allocatedAddress": [], "conditions": [1, {"type": "Ready"}, {"status": "True"}]}}),
        ] {
            let lb: LoadBalancer = serde_json::from_value(object.clone()).unwrap_or_else(|e| panic!("{object}: {e}"));
            assert!(!lb.ready() && lb.usable_address().is_none() && lb.address().is_none(), "{object}");
        }
    }

    fn with_status(spec: &Value, status: &Value) -> LoadBalancer {
        serde_json::from_value(json!({"metadata": {"name": "a"}, "spec": spec, "status": status})).unwrap()
    }

    #[test]
    fn an_address_is_usable_only_when_ready_and_from_the_wanted_pool() {
        let ready = json!([{"type": "Ready", "status": "True"}]);
        let not_ready = json!([{"type": "Ready", "status": "False", "message": "no matched IPPool with requirement"}]);
        let table = [
            (json!({}), json!({"allocatedAddress": {"ip": "10.0.0.1"}, "conditions": ready}), Some("10.0.0.1")),
            (json!({}), json!({"allocatedAddress": {"ip": "10.0.0.1"}, "conditions": not_ready}), None),
            (json!({}), json!({"allocatedAddress": {"ip": "10.0.0.1"}}), None),
            (json!({}), json!({"allocatedAddress": {}, "conditions": ready}), None),
            (
                json!({"ipPool": "a"}),
                json!({"allocatedAddress": {"ip": "10.0.0.1", "ipPool": "b"}, "conditions": ready}),
                None,
            ),
            (
                json!({"ipPool": "b"}),
                json!({"allocatedAddress": {"ip": "10.0.0.1", "ipPool": "b"}, "conditions": ready}),
                Some("10.0.0.1"),
            ),
            (
                json!({"ipam": "dhcp"}),
                json!({"allocatedAddress": {"ip": "0.0.0.0"}, "conditions": ready}),
                Some("0.0.0.0"),
            ),
        ];
        for (spec, status, expected) in table {
            assert_eq!(with_status(&spec, &status).usable_address(), expected, "{spec} {status}");
        }
    }

    #[test]
    fn what_is_no_address_is_not_usable_and_the_request_for_dhcp_only_where_dhcp_was_asked_for() {
        for (ipam, ip, usable) in [
            ("pool", "10.0.0.1", true),
            ("pool", "fd00::1", true),
            ("pool", "<script>", false),
            ("pool", "10.0.0.1/24", false),
            ("pool", "10.0.0.1,10.0.0.2", false),
            ("pool", "0.0.0.0", false),
            ("pool", "::", false),
            ("", "0.0.0.0", false),
            ("dhcp", "0.0.0.0", true),
            ("dhcp", "x", false),
        ] {
            let status = json!({"allocatedAddress": {"ip": ip}, "conditions": [{"type": "Ready", "status": "True"}]});
            let lb = with_status(&json!({"ipam": ipam}), &status);
            assert_eq!(lb.usable_address().is_some(), usable, "{ipam} {ip}");
        }
    }

    #[test]
    fn a_terminating_object_has_no_usable_address() {
        let mut lb = with_status(
            &json!({}),
            &json!({"allocatedAddress": {"ip": "10.0.0.1"}, "conditions": [{"type": "Ready", "status": "True"}]}),
        );
        assert!(lb.usable_address().is_some());
        lb.metadata = serde_json::from_value(json!({"deletionTimestamp": "2026-01-01T00:00:00Z"})).unwrap();
        assert_eq!(lb.usable_address(), None);
    }
}
