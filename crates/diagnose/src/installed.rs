//! Checks whether the chart's workloads do their work, for `helm test`, which also checks whether they answer: an
//! announcer has to be ready on each node that should have one, and Leases have to be renewed.

use announcer_core::status::table::age;
use contract::leases::MEMBER_PREFIX;
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;

/// The pod of an announcer that is not being deleted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Announcer {
    /// Name of the pod.
    pub pod: String,
    /// The node it runs on.
    pub node: String,
    ready: bool,
}

/// Name of the membership Lease of a node.
pub fn member_lease(node: &str) -> String {
    format!("{MEMBER_PREFIX}{node}")
}

/// The problem of a Lease called `namespace/name` that has to be held; `None` if there is none.
pub fn lease(name: &str, lease: Option<&Lease>, now: Timestamp) -> Option<String> {
    let Some(spec) = lease.and_then(|lease| lease.spec.as_ref()) else {
        return Some(format!("Lease {name} does not exist: its program has not begun its work; look at its log"));
    };
    let holder = spec.holder_identity.as_deref().filter(|holder| !holder.is_empty());
    let (Some(holder), Some(renewed)) = (holder, spec.renew_time.as_ref()) else {
        return Some(format!("Lease {name} is held by nobody: its program does not run; look at its log"));
    };
    let ago = now.as_second() - renewed.0.as_second();
    let counts = i64::from(spec.lease_duration_seconds.unwrap_or_default());
    (ago > counts).then(|| {
        format!(
            "Lease {name} was renewed {} ago by {holder}, and counts for {counts}s: that program has stopped, or it \
             does not reach the API server, or the clocks of two nodes differ; look at its log",
            age(ago)
        )
    })
}

/// The announcers that are not being deleted, in the order of their nodes.
pub fn announcers(pods: &[Pod]) -> Vec<Announcer> {
    let mut all: Vec<Announcer> = pods
        .iter()
        .filter(|pod| pod.metadata.deletion_timestamp.is_none())
        .map(|pod| {
            let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
            let mut ready = conditions.into_iter().flatten().filter(|condition| condition.type_ == "Ready");
            Announcer {
                pod: pod.name_any(),
                node: pod.spec.as_ref().and_then(|spec| spec.node_name.clone()).unwrap_or_default(),
                ready: ready.any(|condition| condition.status == "True"),
            }
        })
        .collect();
    all.sort_by(|a, b| (&a.node, &a.pod).cmp(&(&b.node, &b.pod)));
    all
}

/// The problem of a `DaemonSet` called `namespace/name` that has to have a ready pod on each of its nodes; `None` if
/// there is none.
pub fn daemonset(name: &str, set: &DaemonSet, announcers: &[Announcer]) -> Option<String> {
    let status = set.status.clone().unwrap_or_default();
    if status.observed_generation.unwrap_or_default() < set.metadata.generation.unwrap_or_default() {
        return Some(format!("DaemonSet {name} was changed, and its controller has not looked at it yet"));
    }
    let wanted = status.desired_number_scheduled;
    if wanted == 0 {
        return Some(format!(
            "DaemonSet {name} wants no node: no node matches its affinity and nodeSelector; set value kube-vip.nodes \
             to all, or label the nodes"
        ));
    }
    let waiting: Vec<String> = announcers
        .iter()
        .filter(|announcer| !announcer.ready)
        .map(|announcer| {
            let Announcer { pod, node, .. } = announcer;
            if node.is_empty() { format!("pod {pod} has no node") } else { format!("pod {pod} of node {node}") }
        })
        .collect();
    if !waiting.is_empty() {
        return Some(format!("DaemonSet {name}: not ready: {}; kubectl describe says why", waiting.join(", ")));
    }
    let updated = status.updated_number_scheduled.unwrap_or_default();
    let ready = status.number_ready.min(updated);
    (ready < wanted)
        .then(|| format!("DaemonSet {name}: {ready} of {wanted} nodes have a ready pod of the newest template"))
}

#[cfg(test)]
mod tests {
    use serde::de::DeserializeOwned;
    use serde_json::{Value, from_value, json};

    use super::*;

    fn made<T: DeserializeOwned>(value: Value) -> T {
        from_value(value).unwrap()
    }

    #[test]
    fn a_lease_that_nobody_renews_is_named_with_its_holder() {
        let now: Timestamp = "2026-11-24T10:00:20Z".parse().unwrap();
        let at = |holder: &str, renewed: &str| {
            let spec = json!({"holderIdentity": holder, "leaseDurationSeconds": 15, "renewTime": renewed});
            made::<Lease>(json!({"spec": spec}))
        };
        let said = |one: Option<&Lease>| lease("kube-system/cloud-controller-manager", one, now);
        assert_eq!(said(Some(&at("node1_x", "2026-11-24T10:00:18.000000Z"))), None);
        let old = said(Some(&at("node1_x", "2026-11-24T09:58:00.000000Z"))).unwrap();
        assert!(old.contains("renewed 2m20s ago by node1_x") && old.contains("counts for 15s"), "{old}");
        assert!(said(Some(&at("", "2026-11-24T10:00:18.000000Z"))).unwrap().contains("held by nobody"));
        assert!(said(None).unwrap().contains("Lease kube-system/cloud-controller-manager does not exist"));
    }

    fn pod(node: &str, ready: bool, going: bool) -> Pod {
        let mut metadata = json!({"name": format!("kube-vip-{node}")});
        if going {
            metadata["deletionTimestamp"] = json!("2026-11-24T10:00:00Z");
        }
        let status = if ready { "True" } else { "False" };
        let conditions = json!([{"type": "PodScheduled", "status": "True"}, {"type": "Ready", "status": status}]);
        made(json!({"metadata": metadata, "spec": {"nodeName": node, "containers": []},
            "status": {"conditions": conditions}}))
    }

    #[test]
    fn each_node_that_should_have_an_announcer_has_a_ready_one() {
        let set = |wanted: i32, updated: i32, ready: i32| {
            made::<DaemonSet>(json!({"metadata": {"generation": 2}, "status": {"observedGeneration": 2,
                "desiredNumberScheduled": wanted, "currentNumberScheduled": wanted, "numberMisscheduled": 0,
                "numberReady": ready, "updatedNumberScheduled": updated}}))
        };
        let said = |set: &DaemonSet, pods: &[Pod]| daemonset("kube-system/kube-vip", set, &announcers(pods));
        let well = [pod("b", true, false), pod("a", true, false)];
        assert_eq!(said(&set(2, 2, 2), &well), None);
        // One that goes is not waited for.
        let replaced = [pod("a", true, false), pod("b", true, false), pod("b", false, true)];
        assert_eq!(said(&set(2, 2, 2), &replaced), None);
        for (set, pods, expected) in [
            (set(0, 0, 0), &[][..], "wants no node: no node matches"),
            (set(2, 2, 1), &[pod("a", true, false), pod("b", false, false)], "not ready: pod kube-vip-b of node b"),
            (set(2, 2, 1), &[pod("a", true, false)], "1 of 2 nodes have a ready pod"),
            (set(2, 1, 2), &well, "1 of 2 nodes have a ready pod of the newest template"),
        ] {
            let text = said(&set, pods).unwrap_or_else(|| panic!("{expected}"));
            assert!(text.starts_with("DaemonSet kube-system/kube-vip") && text.contains(expected), "{text}");
        }
        let mut changed = set(2, 2, 2);
        changed.metadata.generation = Some(3);
        assert!(said(&changed, &well).unwrap().contains("its controller has not looked at it yet"));
        assert_eq!(announcers(&well).iter().map(|one| one.node.as_str()).collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(member_lease("a"), "harvester-announcer-a");
    }
}
