//! Builds the patches that show a Node's status: condition, annotations, taint. Pure. A Node whose status is unchanged
//! gets no patch.

use cloud_provider::view::{NodeView, Taint};
use harvester_api::keys::cloudprovider;
use k8s_openapi::jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::shown::NodeStatus;

/// Type of the condition on Nodes.
pub const CONDITION: &str = "HarvesterHostMaintenance";
/// Effect of the optional taint on Nodes whose host is being upgraded.
const EFFECT: &str = "PreferNoSchedule";

/// A strategic merge patch of the status, which leaves the conditions of other controllers alone. `changed`: when the
/// status of the condition last changed.
pub fn condition(status: &NodeStatus, message: &str, now: i64, changed: i64) -> Value {
    let time = |seconds: i64| Timestamp::from_second(seconds).unwrap_or_default().to_string();
    json!({"metadata": {"uid": status.uid}, "status": {"conditions": [{
        "type": CONDITION, "status": if status.reason.is_active() { "True" } else { "False" },
        "reason": status.reason.word(),
        "message": message, "lastHeartbeatTime": time(now), "lastTransitionTime": time(changed),
    }]}})
}

/// A merge patch of annotations and taints; `None` if they are right. When no window is open, the annotations of the
/// upgrade are removed.
pub fn marks(node: &NodeView, status: &NodeStatus, plan: Option<&str>, window: bool, taint: bool) -> Option<Value> {
    let kept = window || status.reason.is_active();
    let wanted = [
        (cloudprovider::HOST_UPGRADE_HOST, Some(status.host.as_str())),
        (cloudprovider::HOST_UPGRADE_STATE, Some(status.state.as_str())),
        (cloudprovider::HOST_UPGRADE_PLAN, plan),
        (cloudprovider::HOST_UPGRADE_EXPECT, Some(status.expect.word())),
    ];
    let mut annotations = Map::new();
    for (key, value) in wanted {
        let value = value.filter(|value| kept && !value.is_empty());
        if node.annotations.get(key) != value {
            annotations.insert(key.to_owned(), json!(value));
        }
    }
    let taints = taints(node, taint && status.reason.is_active());
    if annotations.is_empty() && taints.is_none() {
        return None;
    }
    let mut patch = json!({"metadata": {"uid": status.uid}});
    if !annotations.is_empty() {
        patch["metadata"]["annotations"] = annotations.into();
    }
    if let Some(taints) = taints {
        // A merge patch replaces the list as a whole. The resourceVersion as precondition keeps taints that others
        // added after the read.
        patch["metadata"]["resourceVersion"] = json!(node.resource_version);
        patch["spec"]["taints"] = taints.iter().map(taint_json).collect();
    }
    Some(patch)
}

/// The patch without the version of the Node that it was made for.
pub fn without_version(patch: &Value) -> Value {
    let mut patch = patch.clone();
    if let Some(metadata) = patch["metadata"].as_object_mut() {
        metadata.remove("resourceVersion");
    }
    patch
}

fn taints(node: &NodeView, wanted: bool) -> Option<Vec<Taint>> {
    let ours = |taint: &Taint| taint.key == cloudprovider::HOST_MAINTENANCE && taint.effect == EFFECT;
    if node.taints.iter().any(ours) == wanted {
        return None;
    }
    let mut taints: Vec<Taint> = node.taints.iter().filter(|taint| !ours(taint)).cloned().collect();
    if wanted {
        let key = cloudprovider::HOST_MAINTENANCE.to_owned();
        taints.push(Taint { key, value: None, effect: EFFECT.to_owned(), time_added: None });
    }
    Some(taints)
}

fn taint_json(taint: &Taint) -> Value {
    let mut value = json!({"key": taint.key, "effect": taint.effect});
    for (name, text) in [("value", &taint.value), ("timeAdded", &taint.time_added)] {
        if let Some(text) = text {
            value[name] = json!(text);
        }
    }
    value
}

#[cfg(test)]
mod tests {
    use super::super::shown::{Expect, Reason};
    use super::*;

    fn status(reason: Reason) -> NodeStatus {
        NodeStatus {
            uid: "u".into(),
            vm: "n".into(),
            host: "host-1".into(),
            state: "PreDraining".into(),
            reason,
            since: 0,
            expect: Expect::Migrate,
        }
    }

    #[test]
    fn the_same_marks_for_another_version_are_the_same_write() {
        let node = |version: &str| {
            let node = crate::load_balancers::build::node("n", &[]);
            NodeView { resource_version: version.into(), ..node }
        };
        let patch = |version| marks(&node(version), &status(Reason::PreDraining), None, true, true).unwrap();
        assert_ne!(patch("1"), patch("2"));
        assert_eq!(without_version(&patch("1")), without_version(&patch("2")));
    }

    #[test]
    fn marks_come_once_stay_while_they_are_right_and_go_with_the_window() {
        let mut node = crate::load_balancers::build::node("n", &[]);
        node.taints = vec![Taint { key: "other".into(), value: None, effect: "NoSchedule".into(), time_added: None }];
        let patch = marks(&node, &status(Reason::PreDraining), Some("UpgradePlan p"), true, true).unwrap();
        let annotations = &patch["metadata"]["annotations"];
        assert_eq!(annotations[cloudprovider::HOST_UPGRADE_HOST], "host-1");
        assert_eq!(annotations[cloudprovider::HOST_UPGRADE_EXPECT], "migrate");
        assert_eq!(patch["spec"]["taints"][1]["effect"], "PreferNoSchedule");
        assert_eq!(patch["spec"]["taints"][0]["key"], "other", "others' taints stay");
        for (key, value) in annotations.as_object().unwrap() {
            node.annotations.insert(key, value.as_str().unwrap());
        }
        node.taints = taints(&node, true).unwrap();
        assert_eq!(marks(&node, &status(Reason::PreDraining), Some("UpgradePlan p"), true, true), None);
        let after = marks(&node, &status(Reason::UpToDate), Some("UpgradePlan p"), false, true).unwrap();
        assert_eq!(after["metadata"]["annotations"][cloudprovider::HOST_UPGRADE_PLAN], Value::Null);
        assert_eq!(after["spec"]["taints"].as_array().unwrap().len(), 1);
        let untainted =
            marks(&crate::load_balancers::build::node("n", &[]), &status(Reason::PreDraining), None, true, false);
        assert!(untainted.unwrap().get("spec").is_none(), "the taint is opt-in");
    }
}
