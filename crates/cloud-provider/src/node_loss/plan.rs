//! Decides what to write to the pods and endpoints of a lost node, and what to undo. Pure.

use std::collections::{BTreeMap, BTreeSet};

use contract::keys::kubernetes::MIRROR;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use serde_json::{Value, json};

/// Reason of the condition `Ready` that this controller writes. It identifies the marks that may be undone.
pub const REASON: &str = "NodeSilent";

/// The view of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools)] // facts of an object that have nothing to do with each other
pub struct PodView {
    /// `metadata.namespace`.
    pub namespace: String,
    /// `metadata.name`.
    pub name: String,
    /// `metadata.uid`.
    pub uid: String,
    /// `metadata.resourceVersion`.
    pub version: String,
    /// Condition `Ready` is `True`.
    pub ready: bool,
    /// Condition `Ready` is this controller's mark.
    pub marked: bool,
    /// Condition `ContainersReady` is `True`.
    pub containers_ready: bool,
    /// A static pod in the host's network, like those of the control plane: only the kubelet manages it.
    pub is_static: bool,
    /// It is being deleted.
    pub deleting: bool,
}

impl PodView {
    /// Makes the view of a pod.
    pub fn of(pod: &Pod) -> Self {
        let conditions = || pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
        let holds = |kind: &str| conditions().any(|found| found.type_ == kind && found.status == "True");
        let marked = conditions().any(|found| found.type_ == "Ready" && found.reason.as_deref() == Some(REASON));
        let host_network = pod.spec.as_ref().and_then(|spec| spec.host_network).unwrap_or(false);
        let mirror = pod.metadata.annotations.as_ref().is_some_and(|all| all.contains_key(MIRROR));
        Self {
            namespace: pod.metadata.namespace.clone().unwrap_or_default(),
            name: pod.metadata.name.clone().unwrap_or_default(),
            uid: pod.metadata.uid.clone().unwrap_or_default(),
            version: pod.metadata.resource_version.clone().unwrap_or_default(),
            ready: holds("Ready"),
            marked,
            containers_ready: holds("ContainersReady"),
            is_static: host_network && mirror,
            deleting: pod.metadata.deletion_timestamp.is_some(),
        }
    }

    /// The strategic merge patch of the pod's status, with its resourceVersion as precondition: a live kubelet may have
    /// written it meanwhile.
    pub fn ready_patch(&self, ready: bool, why: &str, at: &str) -> Value {
        let (status, reason, message) =
            if ready { ("True", Value::Null, Value::Null) } else { ("False", json!(REASON), json!(why)) };
        let condition =
            json!({"type": "Ready", "status": status, "reason": reason, "message": message, "lastTransitionTime": at});
        json!({"metadata": {"uid": self.uid, "resourceVersion": self.version}, "status": {"conditions": [condition]}})
    }
}

/// The view of an EndpointSlice, with the endpoints that are pods of one node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SliceView {
    /// `metadata.namespace`.
    pub namespace: String,
    /// `metadata.name`.
    pub name: String,
    /// `metadata.resourceVersion`.
    pub version: String,
    /// Endpoints on the node.
    pub endpoints: Vec<EndpointView>,
}

/// One endpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndpointView {
    /// Its index in the list.
    pub index: usize,
    /// UID of its pod.
    pub pod: String,
    /// `conditions.ready` or `conditions.serving` is not `false`: it gets traffic.
    pub serves: bool,
    /// `conditions.terminating`.
    pub terminating: bool,
}

impl SliceView {
    /// Makes the view; `None` if no endpoint is on this node.
    pub fn of(slice: &EndpointSlice, node: &str) -> Option<Self> {
        let endpoints: Vec<EndpointView> = slice
            .endpoints
            .iter()
            .enumerate()
            .filter(|(_, endpoint)| endpoint.node_name.as_deref() == Some(node))
            .filter_map(|(index, endpoint)| {
                let target = endpoint.target_ref.as_ref().filter(|target| target.kind.as_deref() == Some("Pod"))?;
                let conditions = endpoint.conditions.as_ref();
                let is = |of: Option<bool>| of.unwrap_or(true);
                Some(EndpointView {
                    index,
                    pod: target.uid.clone()?,
                    serves: conditions.is_none_or(|all| is(all.ready) || is(all.serving)),
                    terminating: conditions.and_then(|all| all.terminating).unwrap_or(false),
                })
            })
            .collect();
        (!endpoints.is_empty()).then(|| Self {
            namespace: slice.metadata.namespace.clone().unwrap_or_default(),
            name: slice.metadata.name.clone().unwrap_or_default(),
            version: slice.metadata.resource_version.clone().unwrap_or_default(),
            endpoints,
        })
    }

    /// The JSON patch that sets these endpoints, with the resourceVersion as precondition.
    pub fn patch(&self, endpoints: &[&EndpointView], ready: bool) -> Value {
        let test = json!({"op": "test", "path": "/metadata/resourceVersion", "value": self.version});
        let set = endpoints.iter().map(|endpoint| {
            let conditions = json!({"ready": ready, "serving": ready, "terminating": endpoint.terminating});
            json!({"op": "add", "path": format!("/endpoints/{}/conditions", endpoint.index), "value": conditions})
        });
        Value::Array(std::iter::once(test).chain(set).collect())
    }
}

/// The pods and endpoints on a node.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Tenants {
    /// Its pods.
    pub pods: Vec<PodView>,
    /// Slices with endpoints on it.
    pub slices: Vec<SliceView>,
}

/// The changes to write.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Plan<'a> {
    /// Pods whose condition `Ready` changes.
    pub pods: Vec<&'a PodView>,
    /// Endpoints whose conditions change, by slice.
    pub slices: Vec<(&'a SliceView, Vec<&'a EndpointView>)>,
}

impl Tenants {
    /// The pods and endpoints to mark: Ready pods that back a Service, and their endpoints.
    pub fn marks(&self) -> Plan<'_> {
        let backing: BTreeSet<&str> =
            self.slices.iter().flat_map(|slice| &slice.endpoints).map(|endpoint| endpoint.pod.as_str()).collect();
        let fixed: BTreeSet<&str> = self.pods.iter().filter(|pod| pod.is_static).map(|pod| pod.uid.as_str()).collect();
        let may = |pod: &str| !fixed.contains(pod);
        let pods = self.pods.iter().filter(|pod| pod.ready && may(&pod.uid) && backing.contains(pod.uid.as_str()));
        Plan { pods: pods.collect(), slices: self.endpoints(|endpoint| endpoint.serves && may(&endpoint.pod)) }
    }

    /// The marks to undo: endpoints of pods that are ready again. Pods themselves are included only with `pods`, when
    /// no kubelet will correct them.
    pub fn unmarks(&self, endpoints: &BTreeSet<String>, pods: bool) -> Plan<'_> {
        let of: BTreeMap<&str, &PodView> = self.pods.iter().map(|pod| (pod.uid.as_str(), pod)).collect();
        let ours = |pod: &&PodView| pods && pod.marked && pod.containers_ready && !pod.deleting;
        let back = |uid: &str| of.get(uid).is_some_and(|pod| !pod.deleting && (pod.ready || ours(pod)));
        let due = |endpoint: &EndpointView| {
            !endpoint.serves && !endpoint.terminating && endpoints.contains(&endpoint.pod) && back(&endpoint.pod)
        };
        Plan { pods: self.pods.iter().filter(ours).collect(), slices: self.endpoints(due) }
    }

    fn endpoints(&self, which: impl Fn(&EndpointView) -> bool) -> Vec<(&SliceView, Vec<&EndpointView>)> {
        let of = |slice: &'_ SliceView| {
            slice.endpoints.iter().enumerate().filter(|(_, end)| which(end)).map(|(at, _)| at).collect()
        };
        let chosen = self.slices.iter().map(|slice| (slice, of(slice)));
        chosen
            .filter(|(_, chosen): &(_, Vec<usize>)| !chosen.is_empty())
            .map(|(slice, chosen)| (slice, chosen.into_iter().map(|at| &slice.endpoints[at]).collect()))
            .collect()
    }

    /// Whether a kubelet has corrected one of these marked pods, so that it is alive.
    pub fn is_refuted(&self, marked: &BTreeSet<String>) -> bool {
        self.pods.iter().any(|pod| pod.ready && marked.contains(&pod.uid))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(uid: &str, host: bool, mirror: bool, conditions: &Value) -> PodView {
        let annotations = if mirror { json!({MIRROR: "x"}) } else { json!({}) };
        PodView::of(
            &serde_json::from_value(json!({
                "metadata": {"namespace": "default", "name": uid, "uid": uid, "resourceVersion": "7",
                    "annotations": annotations},
                "spec": {"containers": [], "hostNetwork": host}, "status": {"conditions": conditions}}))
            .unwrap(),
        )
    }

    fn ready() -> Value {
        json!([{"type": "Ready", "status": "True"}, {"type": "ContainersReady", "status": "True"}])
    }

    fn marked() -> Value {
        json!([{"type": "Ready", "status": "False", "reason": REASON}, {"type": "ContainersReady", "status": "True"}])
    }

    fn slice(endpoints: &[(&str, &str, Value)]) -> EndpointSlice {
        let endpoints: Vec<Value> = endpoints
            .iter()
            .map(|(node, pod, conditions)| {
                json!({"addresses": ["10.0.0.9"], "nodeName": node, "conditions": conditions,
                    "targetRef": {"kind": "Pod", "name": pod, "uid": pod}})
            })
            .collect();
        serde_json::from_value(json!({"addressType": "IPv4", "endpoints": endpoints,
            "metadata": {"namespace": "default", "name": "web-1", "resourceVersion": "3"}}))
        .unwrap()
    }

    fn tenants(pods: Vec<PodView>, endpoints: &[(&str, &str, Value)]) -> Tenants {
        Tenants { pods, slices: SliceView::of(&slice(endpoints), "node-2").into_iter().collect() }
    }

    #[test]
    fn pods_that_back_a_service_are_marked_and_static_ones_of_the_control_plane_never() {
        let serves = json!({"ready": true, "serving": true, "terminating": false});
        let pods = vec![
            pod("web", false, false, &ready()),
            pod("alone", false, false, &ready()),
            pod("apiserver", true, true, &ready()),
            pod("daemon", true, false, &ready()),
            pod("starting", false, false, &json!([{"type": "Ready", "status": "False"}])),
        ];
        let endpoints = ["web", "apiserver", "daemon"].map(|pod| ("node-2", pod, serves.clone()));
        let mut endpoints = endpoints.to_vec();
        endpoints.insert(0, ("node-1", "elsewhere", serves));
        let tenants = tenants(pods, &endpoints);
        let plan = tenants.marks();
        let names: Vec<&str> = plan.pods.iter().map(|pod| pod.name.as_str()).collect();
        assert_eq!(names, ["web", "daemon"]);
        let (slice, chosen) = &plan.slices[0];
        assert_eq!(chosen.iter().map(|endpoint| endpoint.index).collect::<Vec<_>>(), [1, 3]);
        let off = json!({"ready": false, "serving": false, "terminating": false});
        assert_eq!(
            slice.patch(chosen, false),
            json!([{"op": "test", "path": "/metadata/resourceVersion", "value": "3"},
                {"op": "add", "path": "/endpoints/1/conditions", "value": off},
                {"op": "add", "path": "/endpoints/3/conditions", "value": off}])
        );
        let patch = plan.pods[0].ready_patch(false, "why", "2026-01-01T00:00:00Z");
        assert_eq!(patch["metadata"], json!({"uid": "web", "resourceVersion": "7"}));
        assert_eq!(patch["status"]["conditions"][0]["reason"], REASON);
    }

    #[test]
    fn what_is_marked_already_is_not_written_again() {
        let off = json!({"ready": false, "serving": false, "terminating": false});
        let tenants = tenants(vec![pod("web", false, false, &marked())], &[("node-2", "web", off)]);
        assert_eq!(tenants.marks(), Plan::default());
        assert!(!tenants.is_refuted(&["web".to_owned()].into()));
    }

    #[test]
    fn only_what_is_ours_is_taken_back() {
        let off = json!({"ready": false, "serving": false, "terminating": false});
        let all: BTreeSet<String> = ["back", "ours", "theirs"].map(str::to_owned).into();
        let pods = vec![
            pod("back", false, false, &ready()),
            pod("ours", false, false, &marked()),
            pod("theirs", false, false, &json!([{"type": "Ready", "status": "False", "reason": "ContainersNotReady"}])),
        ];
        let tenants = tenants(pods, &["back", "ours", "theirs"].map(|pod| ("node-2", pod, off.clone())));
        let indices = |plan: &Plan<'_>| {
            plan.slices.iter().flat_map(|(_, chosen)| chosen.iter().map(|end| end.index)).collect::<Vec<_>>()
        };
        let soon = tenants.unmarks(&all, false);
        assert_eq!((soon.pods.len(), indices(&soon)), (0, vec![0]), "the kubelet puts pods right by itself");
        let late = tenants.unmarks(&all, true);
        assert_eq!((late.pods[0].name.as_str(), indices(&late)), ("ours", vec![0, 1]));
        assert_eq!(late.pods[0].ready_patch(true, "", "t")["status"]["conditions"][0]["reason"], Value::Null);
        let none = tenants.unmarks(&BTreeSet::new(), false);
        assert_eq!(none, Plan::default(), "endpoints that somebody else has marked are his");
        assert!(tenants.is_refuted(&["back".to_owned()].into()));
    }
}
