//! Checks the pods of the cloud controller and of the announcers: whether their containers can start.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{ContainerStatus, Event, Pod};
use kube::ResourceExt;

use super::advice;
use super::checks::Check;
use super::finding::Finding;
use crate::facts;
use crate::snapshot::Snapshot;

/// Seconds that a container may take to be created.
const CREATION_TAKES: i64 = 60;

/// Why a container waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Cause {
    Image,
    Crash,
    Creation,
}

impl Cause {
    fn of(reason: &str, age: i64) -> Option<Self> {
        match reason {
            "ImagePullBackOff" | "ErrImagePull" | "InvalidImageName" | "ErrImageNeverPull" => Some(Self::Image),
            "CrashLoopBackOff" => Some(Self::Crash),
            "CreateContainerConfigError" | "CreateContainerError" | "RunContainerError" => Some(Self::Creation),
            "ContainerCreating" | "PodInitializing" if age > CREATION_TAKES => Some(Self::Creation),
            _ => None,
        }
    }
}

/// One finding for each workload and cause: all pods of a workload wait for the same reason.
pub fn findings(snapshot: &Snapshot) -> Vec<Finding> {
    let mut causes: BTreeMap<(String, Cause), Vec<(&Pod, &ContainerStatus)>> = BTreeMap::new();
    for pod in snapshot.pods.iter().filter(|pod| pod.metadata.deletion_timestamp.is_none()) {
        if let Some((cause, status)) = waiting(snapshot, pod) {
            causes.entry((workload(pod), cause)).or_default().push((pod, status));
        }
    }
    causes.iter().filter_map(|((workload, cause), pods)| finding(snapshot, workload, *cause, pods)).collect()
}

/// The finding about this workload, `Kind namespace/name`: why it does not do its work.
pub fn of(snapshot: &Snapshot, workload: &str) -> Option<Finding> {
    findings(snapshot).into_iter().find(|finding| finding.object == workload)
}

/// The first container of the pod that waits too long. Those of the start come first: the others wait for them.
fn waiting<'a>(snapshot: &Snapshot, pod: &'a Pod) -> Option<(Cause, &'a ContainerStatus)> {
    let status = pod.status.as_ref()?;
    let begun = status.start_time.as_ref().or(pod.metadata.creation_timestamp.as_ref());
    let age = begun.map_or(0, |time| facts::since(snapshot, time.0));
    let first = status.init_container_statuses.iter().flatten();
    first.chain(status.container_statuses.iter().flatten()).find_map(|container| {
        let reason = container.state.as_ref()?.waiting.as_ref()?.reason.as_deref()?;
        Some((Cause::of(reason, age)?, container))
    })
}

/// The workload of the pod, as users know it: not the ReplicaSet, but its Deployment.
fn workload(pod: &Pod) -> String {
    let namespace = pod.namespace().unwrap_or_default();
    let Some(owner) = pod.owner_references().first() else {
        return format!("Pod {namespace}/{}", pod.name_any());
    };
    let hash = format!("-{}", facts::label(&pod.metadata, "pod-template-hash"));
    match owner.name.strip_suffix(&hash) {
        Some(name) if owner.kind == "ReplicaSet" => format!("Deployment {namespace}/{name}"),
        _ => format!("{} {namespace}/{}", owner.kind, owner.name),
    }
}

fn finding(snapshot: &Snapshot, workload: &str, cause: Cause, pods: &[(&Pod, &ContainerStatus)]) -> Option<Finding> {
    let (pod, container) = pods.first()?;
    let (namespace, name) = (pod.namespace().unwrap_or_default(), pod.name_any());
    let waits = container.state.as_ref()?.waiting.as_ref()?;
    let reason = waits.reason.as_deref().unwrap_or_default();
    let said = waits.message.as_deref().unwrap_or_default();
    let waiting = match pods.len() - 1 {
        0 => format!("Pod {name} waits"),
        more => format!("Pod {name} waits, and {more} more of this workload"),
    };
    let told = |text: String| if text.is_empty() { String::new() } else { format!(": {text}") };
    let (what, remedy) = match cause {
        Cause::Image => (
            format!("the image {} cannot be pulled ({reason}){}", container.image, told(said.to_owned())),
            advice::helm_upgrade_with_values(
                snapshot,
                "import that image on the nodes, or correct image.repository and image.tag in values.yaml",
            ),
        ),
        Cause::Crash => (
            format!("container {} stops again and again{}", container.name, told(last_words(container))),
            format!("kubectl -n {namespace} logs {name} -c {} --previous", container.name),
        ),
        Cause::Creation => {
            let event = failed_mount(snapshot, pod).and_then(|event| event.message.clone());
            let text = event.unwrap_or_else(|| said.to_owned());
            (
                format!("container {} is not created ({reason}){}", container.name, told(text)),
                format!("kubectl -n {namespace} describe pod {name}     # its last Events say what is missing"),
            )
        }
    };
    Some(
        Finding::error(Check::PodWaiting, workload)
            .what(format!("{waiting}: {what}"))
            .why("this program does not run there")
            .remedy(remedy),
    )
}

/// What the container left behind when it stopped last.
fn last_words(container: &ContainerStatus) -> String {
    let stopped = container.last_state.as_ref().and_then(|state| state.terminated.as_ref());
    let Some(stopped) = stopped else { return String::new() };
    let message = stopped.message.as_deref().unwrap_or_default().trim();
    let reason = stopped.reason.as_deref().filter(|reason| *reason != "Error").unwrap_or_default();
    let code = format!("exit code {}", stopped.exit_code);
    [code.as_str(), reason, message].into_iter().filter(|text| !text.is_empty()).collect::<Vec<_>>().join(", ")
}

fn failed_mount<'a>(snapshot: &'a Snapshot, pod: &Pod) -> Option<&'a Event> {
    let uid = pod.uid();
    let ours = snapshot.events.iter().filter(|event| {
        let about = &event.involved_object;
        event.reason.as_deref() == Some("FailedMount") && about.kind.as_deref() == Some("Pod") && about.uid == uid
    });
    ours.max_by_key(|event| event.last_timestamp.as_ref().map(|time| time.0).or(event.event_time.as_ref().map(|t| t.0)))
}
