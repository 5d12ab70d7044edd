//! Reads the pods of the cloud controller and of the announcers, and the Events that say why they wait.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Event, Pod};
use kube::{Api, Client, ResourceExt};

use super::list;
use crate::facts;
use crate::snapshot::Snapshot;

pub async fn read(client: &Client, snapshot: &mut Snapshot) {
    for namespace in namespaces(snapshot) {
        let pods: Api<Pod> = Api::namespaced(client.clone(), &namespace);
        let what = format!("Pods in {namespace}");
        let mut pods = list(pods, &what, "", &mut snapshot.unread).await;
        pods.retain(is_ours);
        // A volume that cannot be mounted is told by Events only.
        if pods.iter().any(|pod| pod.status.as_ref().is_some_and(|status| status.phase.as_deref() == Some("Pending"))) {
            let events: Api<Event> = Api::namespaced(client.clone(), &namespace);
            let what = format!("Events of Pods in {namespace}");
            let fields = "involvedObject.kind=Pod,reason=FailedMount";
            let events = list(events, &what, fields, &mut snapshot.unread).await;
            snapshot.events.extend(events);
        }
        snapshot.pods.extend(pods);
    }
}

/// Where the chart installs by default, and where the workloads are.
fn namespaces(snapshot: &Snapshot) -> BTreeSet<String> {
    let announcers = snapshot.daemon_sets.iter().filter(|one| facts::is_announcer(&facts::containers_of_set(one)));
    let found = facts::controllers(snapshot)
        .filter_map(ResourceExt::namespace)
        .chain(announcers.filter_map(ResourceExt::namespace));
    found.chain(["kube-system".to_owned()]).collect()
}

/// Also if its image is called otherwise, which may be why it waits.
fn is_ours(pod: &Pod) -> bool {
    let containers = pod.spec.as_ref().map(|spec| spec.containers.clone()).unwrap_or_default();
    let chart = facts::label(&pod.metadata, "helm.sh/chart").starts_with("harvester-cloud-provider");
    facts::is_controller(&containers)
        || facts::is_announcer(&containers)
        || chart
        || facts::label(&pod.metadata, "app.kubernetes.io/name") == "harvester-cloud-provider"
        || pod.owner_references().iter().any(|owner| owner.name.starts_with("harvester-cloud-provider"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::healthy::{self, read};

    #[test]
    fn pods_of_the_product_are_known_by_program_label_or_owner() {
        let made = |image: &str, argument: &str, label: &str, owner: &str| {
            is_ours(&read(json!({
                "metadata": {"name": "p", "labels": {"app.kubernetes.io/name": label},
                    "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": owner, "uid": "u"}]},
                "spec": {"containers": [{"name": "c", "image": image, "args": [argument]}]},
            })))
        };
        assert!(made("x/harvester-cloud-provider:v1", "manager", "kube-vip", "kube-vip"));
        assert!(made("x/mistyped:v1", "--cloud-config=/x", "harvester-cloud-provider", "y"));
        assert!(made("x/mistyped:v1", "--cloud-config=/x", "", "harvester-cloud-provider-5d8f"));
        assert!(!made("ghcr.io/kube-vip/kube-vip:v1", "manager", "kube-vip", "kube-vip"));
        assert_eq!(namespaces(&healthy::snapshot()), ["kube-system".to_owned()].into());
    }
}
