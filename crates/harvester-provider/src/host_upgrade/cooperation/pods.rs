//! Which pods of a Node are evicted before its machine is shut down, and which stay. Pure; the rules are those of
//! `kubectl drain`.

use contract::keys::kubernetes::MIRROR;
use k8s_openapi::api::core::v1::Pod;

/// What the drain does with a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum PodDrainAction {
    /// It is evicted.
    Evicted,
    /// It was evicted and is terminating.
    Ending,
    /// It stays, and this is not reported: a pod of a DaemonSet, a static pod, or a pod that has ended.
    Belongs,
    /// It stays and goes off with the machine: an eviction would lose data in an `emptyDir`.
    LocalData,
    /// It stays and goes off with the machine: no controller would create it again.
    Unmanaged,
}

/// Decides what the drain does with this pod.
pub fn drain_action(pod: &Pod) -> PodDrainAction {
    let metadata = &pod.metadata;
    let mirror = metadata.annotations.as_ref().is_some_and(|all| all.contains_key(MIRROR));
    let owner = metadata.owner_references.iter().flatten().find(|owner| owner.controller == Some(true));
    let ended = pod
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref())
        .is_some_and(|phase| matches!(phase, "Succeeded" | "Failed"));
    let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    // A volume in memory does not survive the shutdown anyway, so it is no reason to keep the pod.
    let local = volumes
        .into_iter()
        .any(|volume| volume.empty_dir.as_ref().is_some_and(|directory| directory.medium.as_deref() != Some("Memory")));
    if mirror || ended || owner.is_some_and(|owner| owner.kind == "DaemonSet" || owner.kind == "Node") {
        PodDrainAction::Belongs
    } else if metadata.deletion_timestamp.is_some() {
        PodDrainAction::Ending
    } else if owner.is_none() {
        PodDrainAction::Unmanaged
    } else if local {
        PodDrainAction::LocalData
    } else {
        PodDrainAction::Evicted
    }
}

/// `namespace/name`.
pub fn key(pod: &Pod) -> String {
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    format!("{}/{}", text(&pod.metadata.namespace), text(&pod.metadata.name))
}

/// The first three names, and the number of the others.
pub fn listed(pods: &[String]) -> String {
    let shown = pods.iter().take(3).cloned().collect::<Vec<_>>().join(", ");
    match pods.len().saturating_sub(3) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(change: impl Fn(&mut Value)) -> Pod {
        let mut pod = json!({"metadata": {"namespace": "default", "name": "web",
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "u",
                "controller": true}]},
            "spec": {"containers": []}, "status": {"phase": "Running"}});
        change(&mut pod);
        serde_json::from_value(pod).unwrap()
    }

    #[test]
    fn pods_that_come_up_elsewhere_are_evicted_and_no_data_is_lost_for_it() {
        let owner =
            |kind: &'static str| move |pod: &mut Value| pod["metadata"]["ownerReferences"][0]["kind"] = json!(kind);
        let volume = |volume: Value| move |pod: &mut Value| pod["spec"]["volumes"] = json!([volume]);
        for (name, pod, expected) in vec![
            ("a Deployment's", pod(|_| {}), PodDrainAction::Evicted),
            ("a StatefulSet's", pod(owner("StatefulSet")), PodDrainAction::Evicted),
            ("a DaemonSet's", pod(owner("DaemonSet")), PodDrainAction::Belongs),
            ("a static pod's mirror", pod(owner("Node")), PodDrainAction::Belongs),
            (
                "a mirror by its annotation",
                pod(|pod| pod["metadata"]["annotations"] = json!({MIRROR: "x"})),
                PodDrainAction::Belongs,
            ),
            ("an ended one", pod(|pod| pod["status"]["phase"] = json!("Succeeded")), PodDrainAction::Belongs),
            (
                "an ending one",
                pod(|pod| pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z")),
                PodDrainAction::Ending,
            ),
            ("made by hand", pod(|pod| pod["metadata"]["ownerReferences"] = json!([])), PodDrainAction::Unmanaged),
            ("with local data", pod(volume(json!({"name": "v", "emptyDir": {}}))), PodDrainAction::LocalData),
            (
                "with data in memory",
                pod(volume(json!({"name": "v", "emptyDir": {"medium": "Memory"}}))),
                PodDrainAction::Evicted,
            ),
            (
                "with a claim",
                pod(volume(json!({"name": "v", "persistentVolumeClaim": {"claimName": "c"}}))),
                PodDrainAction::Evicted,
            ),
        ] {
            assert_eq!(drain_action(&pod), expected, "{name}");
        }
    }

    #[test]
    fn many_are_named_in_few_words() {
        let names: Vec<String> = (0..5).map(|n| format!("a/p{n}")).collect();
        assert_eq!(listed(&names), "a/p0, a/p1, a/p2 and 2 more");
        assert_eq!(listed(&names[..1]), "a/p0");
    }
}
