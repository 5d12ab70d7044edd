//! The two objects by which Harvester reports an upgrade of its hosts: `UpgradePlan` of the Upgrade Toolkit, and
//! `Upgrade` of the older mechanism (V1). Both are only read. The strings in their status vary between versions, so
//! this module does not interpret them.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::core::{ClusterResourceScope, NamespaceResourceScope};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use crate::lenient;
use crate::resource::resource;

/// Namespace of every [`Upgrade`].
pub const UPGRADE_NAMESPACE: &str = "harvester-system";
/// Label of the current [`Upgrade`], with value `true`.
pub const LATEST_UPGRADE: &str = "harvesterhci.io/latestUpgrade";
/// Label of an [`Upgrade`]: the stage it is in.
pub const UPGRADE_STATE: &str = "harvesterhci.io/upgradeState";

/// Plan of the Upgrade Toolkit for all hosts.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct UpgradePlan {
    /// Name, UID, age.
    #[serde(default)]
    pub metadata: ObjectMeta,
    /// The progress.
    #[serde(default, deserialize_with = "lenient::or_default")]
    pub status: UpgradePlanStatus,
}

resource!(UpgradePlan, "management.harvesterhci.io", "v1beta1", "UpgradePlan", "upgradeplans", ClusterResourceScope);

/// Trimmed `status`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct UpgradePlanStatus {
    /// For example `NodeUpgrading`.
    #[serde(default, deserialize_with = "lenient::or_default")]
    pub current_phase: String,
    /// By name of the host.
    #[serde(default, deserialize_with = "lenient::or_default")]
    pub node_upgrade_statuses: BTreeMap<String, HostStatus>,
    /// There is one host only, so no machine can move to another one.
    #[serde(default, deserialize_with = "truthy")]
    pub single_node: bool,
    /// `Available`, `Progressing`, `Degraded`.
    #[serde(default, deserialize_with = "lenient::items")]
    pub conditions: Vec<UpgradeCondition>,
}

/// Upgrade of all hosts, before the Upgrade Toolkit.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Upgrade {
    /// Name, UID, labels.
    #[serde(default)]
    pub metadata: ObjectMeta,
    /// The progress.
    #[serde(default, deserialize_with = "lenient::or_default")]
    pub status: UpgradeStatus,
}

resource!(Upgrade, "harvesterhci.io", "v1beta1", "Upgrade", "upgrades", NamespaceResourceScope);

/// Trimmed `status`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct UpgradeStatus {
    /// By name of the host.
    #[serde(default, deserialize_with = "lenient::or_default")]
    pub node_statuses: BTreeMap<String, HostStatus>,
    /// There is one host only; Harvester stores its name here.
    #[serde(default, deserialize_with = "truthy")]
    pub single_node: bool,
    /// `Completed` and those of the stages.
    #[serde(default, deserialize_with = "lenient::items")]
    pub conditions: Vec<UpgradeCondition>,
}

/// State of one host.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostStatus {
    /// The state as Harvester stores it.
    #[serde(default, deserialize_with = "lenient::or_default")]
    pub state: String,
    /// Reason, one word.
    #[serde(default, deserialize_with = "lenient::or_default", skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// Message for users.
    #[serde(default, deserialize_with = "lenient::or_default", skip_serializing_if = "String::is_empty")]
    pub message: String,
}

/// One entry of `status.conditions`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UpgradeCondition {
    /// For example `Progressing`.
    #[serde(rename = "type", default, deserialize_with = "lenient::or_default")]
    pub kind: String,
    /// `True`, `False` or `Unknown`.
    #[serde(default, deserialize_with = "lenient::or_default")]
    pub status: String,
    /// One word.
    #[serde(default, deserialize_with = "lenient::or_default", skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// Message for users.
    #[serde(default, deserialize_with = "lenient::or_default", skip_serializing_if = "String::is_empty")]
    pub message: String,
}

/// Parses a flag that one kind stores as a boolean, and the other as the name of the only host.
fn truthy<'de, D: Deserializer<'de>>(deserializer: D) -> Result<bool, D::Error> {
    Ok(match Value::deserialize(deserializer)? {
        Value::Bool(yes) => yes,
        Value::String(text) => !text.is_empty() && text != "false",
        _ => false,
    })
}

/// The condition of this type.
pub fn condition<'a>(conditions: &'a [UpgradeCondition], kind: &str) -> Option<&'a UpgradeCondition> {
    conditions.iter().find(|condition| condition.kind == kind)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_not_as_expected_reads_as_absent() {
        let plan: UpgradePlan = serde_json::from_value(json!({
            "metadata": {"name": "p"},
            "spec": {"version": "v1.9.0"},
            "status": {"currentPhase": 5, "singleNode": "host-1",
                "nodeUpgradeStatuses": {"host-1": {"state": "SomethingNew", "reason": null}},
                "conditions": [{"type": "Progressing", "status": "True"}, {"status": "True"}, 3]}
        }))
        .unwrap();
        assert!(plan.status.single_node && plan.status.current_phase.is_empty());
        assert_eq!(plan.status.node_upgrade_statuses["host-1"].state, "SomethingNew");
        assert_eq!(plan.status.conditions.len(), 2);
        assert_eq!(condition(&plan.status.conditions, "Progressing").unwrap().status, "True");
        let bare: Upgrade = serde_json::from_value(json!({"metadata": {}, "status": null})).unwrap();
        assert_eq!(bare, Upgrade::default());
        let one: Upgrade = serde_json::from_value(json!({"metadata": {}, "status": {"singleNode": ""}})).unwrap();
        assert!(!one.status.single_node);
    }
}
