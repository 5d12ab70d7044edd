//! `IPPool` (loadbalancer.harvesterhci.io/v1beta1), cluster-scoped. The provider may not read pools; only the simulated
//! host uses this type (Harvester spec 2).

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::core::ClusterResourceScope;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::lenient;
use crate::load_balancer::{Condition, api_version};
use crate::resource::resource;

/// A pool of addresses, with the rules for its selection.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct IpPool {
    /// Always that of a LoadBalancer.
    #[serde(default = "api_version")]
    pub api_version: String,
    /// Always `IPPool`.
    #[serde(default = "kind")]
    pub kind: String,
    /// Name, labels, annotations.
    #[serde(default)]
    pub metadata: ObjectMeta,
    /// Ranges and selector.
    #[serde(default, deserialize_with = "lenient::or_default")]
    pub spec: IpPoolSpec,
    /// The allocations.
    #[serde(default, deserialize_with = "lenient::or_default", skip_serializing_if = "Option::is_none")]
    pub status: Option<IpPoolStatus>,
}

fn kind() -> String {
    "IPPool".to_owned()
}

resource!(IpPool, "loadbalancer.harvesterhci.io", "v1beta1", "IPPool", "ippools", ClusterResourceScope);

impl IpPool {
    /// A pool with this name, without ranges yet.
    pub fn new(name: &str, spec: IpPoolSpec) -> Self {
        Self {
            api_version: api_version(),
            kind: kind(),
            metadata: ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() },
            spec,
            status: None,
        }
    }
}

/// Ranges and selector of a pool.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct IpPoolSpec {
    /// Free text.
    #[serde(default, deserialize_with = "lenient::or_default", skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// The ranges that addresses are allocated from, in this order.
    #[serde(default, deserialize_with = "lenient::items")]
    pub ranges: Vec<IpRange>,
    /// The load balancers that may use the pool.
    #[serde(default, deserialize_with = "lenient::or_default")]
    pub selector: PoolSelector,
    /// Members that this version does not know.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

/// A range as a user writes it; defaults and checks are Harvester spec 2.3.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct IpRange {
    /// CIDR.
    #[serde(default, deserialize_with = "lenient::or_default")]
    pub subnet: String,
    /// First address; default: the first of the subnet.
    #[serde(default, deserialize_with = "lenient::or_default", skip_serializing_if = "Option::is_none")]
    pub range_start: Option<String>,
    /// Last address; default: the last of the subnet.
    #[serde(default, deserialize_with = "lenient::or_default", skip_serializing_if = "Option::is_none")]
    pub range_end: Option<String>,
    /// Gateway, which is never allocated; default: the first address of the subnet.
    #[serde(default, deserialize_with = "lenient::or_default", skip_serializing_if = "Option::is_none")]
    pub gateway: Option<String>,
}

/// The load balancers that may use a pool.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PoolSelector {
    /// Higher wins; 0 is none.
    #[serde(default, deserialize_with = "lenient::or_default", skip_serializing_if = "is_zero")]
    pub priority: u32,
    /// `namespace/name`, compared as text.
    #[serde(default, deserialize_with = "lenient::or_default", skip_serializing_if = "String::is_empty")]
    pub network: String,
    /// Any of them must match; none at all never matches.
    #[serde(default, deserialize_with = "lenient::items", skip_serializing_if = "Vec::is_empty")]
    pub scope: Vec<ScopeTuple>,
}

#[allow(clippy::trivially_copy_pass_by_ref)] // serde passes a reference
fn is_zero(value: &u32) -> bool {
    *value == 0
}

/// One alternative of a pool's scope; `*` matches anything.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ScopeTuple {
    /// Rancher project, `<cluster id>/<project id>`.
    #[serde(default, deserialize_with = "lenient::or_default", skip_serializing_if = "String::is_empty")]
    pub project: String,
    /// Namespace of the load balancer.
    #[serde(default, deserialize_with = "lenient::or_default", skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// Guest cluster name.
    #[serde(default, deserialize_with = "lenient::or_default", skip_serializing_if = "String::is_empty")]
    pub guest_cluster: String,
}

/// The allocations of a pool.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct IpPoolStatus {
    /// Number of addresses that can be allocated.
    #[serde(default, deserialize_with = "lenient::or_default")]
    pub total: i64,
    /// Number of free addresses.
    #[serde(default, deserialize_with = "lenient::or_default")]
    pub available: i64,
    /// The last allocated address, at which the round robin continues.
    #[serde(default, deserialize_with = "lenient::or_default")]
    pub last_allocated: String,
    /// Address to owner (`<namespace>/<name>` of the load balancer).
    #[serde(default, deserialize_with = "lenient::or_default", skip_serializing_if = "BTreeMap::is_empty")]
    pub allocated: BTreeMap<String, String>,
    /// Released addresses by their last owner, which gets them again if they are still free.
    #[serde(default, deserialize_with = "lenient::or_default", skip_serializing_if = "BTreeMap::is_empty")]
    pub allocated_history: BTreeMap<String, String>,
    /// Only `Ready`.
    #[serde(default, deserialize_with = "lenient::items", skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
    /// Members that this version does not know.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}
