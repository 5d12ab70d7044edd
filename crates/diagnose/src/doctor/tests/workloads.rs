//! Faults of what is installed: programs that cannot start or are not there, and machines that are elsewhere.

use super::*;

fn scaled_to_zero(snapshot: &mut Snapshot) {
    let mut object = healthy::deployment("harvester-cloud-provider", &["--cloud-config=/x", "--cluster-name=demo"]);
    object["spec"]["replicas"] = json!(0);
    snapshot.deployments = vec![read(object)];
    snapshot.leases.remove(0);
}

fn no_announcer(snapshot: &mut Snapshot) {
    snapshot.daemon_sets.clear();
    snapshot.leases.truncate(1);
}

fn uninstalled(snapshot: &mut Snapshot) {
    snapshot.deployments.clear();
    snapshot.daemon_sets.clear();
    snapshot.leases.clear();
}

fn wants_no_node(snapshot: &mut Snapshot) {
    snapshot.leases.truncate(1);
    snapshot.daemon_sets[0].status = Some(read(json!({"observedGeneration": 1, "desiredNumberScheduled": 0,
        "currentNumberScheduled": 0, "numberMisscheduled": 0, "numberReady": 0})));
}

/// A file of an administrator whose context names no namespace.
fn machines_elsewhere(snapshot: &mut Snapshot) {
    snapshot.cloud_config = "admin.yaml".into();
    snapshot.namespace = "default".into();
    (snapshot.machines, snapshot.instances, snapshot.load_balancers) = (Vec::new(), Vec::new(), Vec::new());
    record("identity", "{\"namespace\": \"guests\"}")(snapshot);
}

/// A pod of the Deployment whose container waits for this.
fn pod(name: &str, waiting: &Value) -> Value {
    json!({
        "metadata": {"namespace": "kube-system", "name": name, "uid": format!("uid-{name}"),
            "labels": {"pod-template-hash": "5d8f"},
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "uid": "u",
                "name": "harvester-cloud-provider-5d8f"}]},
        "spec": {"containers": [{"name": "c"}]},
        "status": {"phase": "Pending", "startTime": "2026-01-01T11:58:00Z", "containerStatuses": [{"name": "c",
            "image": "registry/mistyped:v1", "imageID": "", "ready": false, "restartCount": 3,
            "state": {"waiting": waiting}}]},
    })
}

fn waiting(reason: &'static str) -> impl Fn(&mut Snapshot) {
    move |snapshot| {
        let pods = ["a", "b"].map(|name| read(pod(name, &json!({"reason": reason, "message": "the kubelet's words"}))));
        snapshot.pods = pods.into();
    }
}

pub fn faults() -> Vec<(&'static str, Plant)> {
    let plant = |check, plant: Plant| (check, plant);
    vec![
        plant("controller-missing", Box::new(scaled_to_zero)),
        plant("controller-missing", Box::new(uninstalled)),
        plant("announcer-missing", Box::new(no_announcer)),
        plant("announcer-missing", Box::new(wants_no_node)),
        plant("machines-elsewhere", Box::new(machines_elsewhere)),
        plant("cloud-config-key-missing", Box::new(trouble(false, TroubleKind::NoKey))),
        plant("pod-waiting", Box::new(waiting("ImagePullBackOff"))),
        plant("pod-waiting", Box::new(waiting("CrashLoopBackOff"))),
        plant("pod-waiting", Box::new(waiting("CreateContainerConfigError"))),
        plant("pod-waiting", Box::new(waiting("ContainerCreating"))),
    ]
}

/// The only finding, with its remedy.
fn only(plant: impl Fn(&mut Snapshot) + 'static) -> Finding {
    let mut found = findings_of(plant);
    assert_eq!(found.len(), 1, "{found:?}");
    found.remove(0)
}

#[test]
fn a_file_that_looks_into_another_namespace_condemns_no_node() {
    let found = only(machines_elsewhere);
    let said =
        "none of this cluster's machines is in namespace default of Harvester (the record says namespace guests)";
    assert_eq!(found.what, said);
    let remedy = "kubectl --kubeconfig admin.yaml config set-context --current --namespace=guests ";
    assert!(found.remedy.starts_with(remedy), "{found:?}");
    let of_the_controller = only(|snapshot| {
        machines_elsewhere(snapshot);
        snapshot.cloud_config = "Secret kube-system/c".into();
    });
    assert!(of_the_controller.remedy.contains("generate-addon <account> guests "), "{of_the_controller:?}");
    let unrecorded = only(|snapshot| {
        machines_elsewhere(snapshot);
        record("identity", "?")(snapshot);
    });
    assert_eq!(unrecorded.check, Check::MachinesElsewhere);
    assert!(!unrecorded.what.contains("record") && !unrecorded.remedy.contains("delete"), "{unrecorded:?}");
    let one_of_two = only(node(|object| object["spec"]["providerID"] = json!("harvester://another")));
    assert_eq!(one_of_two.check, Check::NodeWithoutMachine);
}

/// k3s#3973, rancher/rke2#1874: with a server's Node goes its member of etcd, and the server does not start again. Two
/// of three that were restored from a backup of Harvester under new UIDs serve as before.
#[test]
fn a_node_that_serves_or_may_be_a_member_of_etcd_is_not_deleted_without_a_word() {
    let remedy = |role: &'static str, ready: &'static str| {
        only(node(move |object| {
            object["spec"]["providerID"] = json!("harvester://another");
            object["status"]["conditions"][0]["status"] = json!(ready);
            if !role.is_empty() {
                object["metadata"]["labels"] = json!({format!("node-role.kubernetes.io/{role}"): "true"});
            }
        }))
        .remedy
    };
    for role in ["etcd", "control-plane", "master"] {
        let serves = remedy(role, "True");
        assert!(!serves.contains("kubectl") && serves.contains("member of etcd"), "{role}: {serves}");
        let silent = remedy(role, "Unknown");
        assert!(silent.starts_with("first see whether its machine runs"), "{role}: {silent}");
        assert!(silent.contains("member of etcd") && silent.ends_with("kubectl delete node node2"), "{role}: {silent}");
    }
    let serves = remedy("worker", "True");
    assert!(serves.starts_with("kubectl drain node2 --ignore-daemonsets && kubectl delete node node2 "), "{serves}");
    let lost = remedy("", "Unknown");
    assert!(lost.starts_with("kubectl delete node node2 "), "{lost}");
}

#[test]
fn without_a_namespace_no_sentence_ends_in_nothing() {
    let found = only(|snapshot| {
        node(|object| {
            object["spec"]["taints"] = json!([{"key": "node.cloudprovider.kubernetes.io/uninitialized",
            "effect": "NoSchedule"}]);
        })(snapshot);
        snapshot.namespace.clear();
    });
    assert!(found.remedy.ends_with("another namespace than that of the cloud-config"), "{found:?}");
}

#[test]
fn nothing_that_does_not_exist_or_has_no_replicas_is_restarted() {
    let stopped = only(scaled_to_zero).remedy;
    assert_eq!(stopped, "kubectl -n kube-system scale deployment/harvester-cloud-provider --replicas=2");
    let both = only(uninstalled);
    assert!(both.what.starts_with("neither a cloud controller of Harvester nor an announcer is installed"), "{both:?}");
    assert!(both.remedy.starts_with("helm install "), "{both:?}");
    let announcer = only(no_announcer);
    assert!(announcer.what.starts_with("no announcer is installed"), "{announcer:?}");
    assert!(announcer.remedy.starts_with("helm ") && !announcer.remedy.contains("restart"), "{announcer:?}");
    let unread = only(|snapshot| {
        no_announcer(snapshot);
        snapshot.unread.push(Unread { what: "DaemonSets".into(), why: "these credentials may not read them".into() });
    });
    assert!(unread.remedy.contains("rollout restart daemonset/kube-vip"), "{unread:?}");
    let nowhere = only(wants_no_node);
    assert!(
        nowhere.what.starts_with("it wants 0 nodes") && nowhere.remedy.contains("kube-vip.nodes=all"),
        "{nowhere:?}"
    );
}

#[test]
fn a_workload_whose_pods_wait_is_one_finding_that_says_for_what() {
    let image = only(waiting("ErrImagePull"));
    assert_eq!(image.object, "Deployment kube-system/harvester-cloud-provider");
    let said =
        "Pod a waits, and 1 more of this workload: the image registry/mistyped:v1 cannot be pulled (ErrImagePull)";
    assert!(image.what.starts_with(said), "{image:?}");
    assert!(image.remedy.contains("image.repository") && image.remedy.contains("import"), "{image:?}");
    let both = findings_of(|snapshot: &mut Snapshot| {
        waiting("ErrImagePull")(snapshot);
        snapshot.leases.remove(0);
    });
    let said: Vec<_> = both.iter().map(|finding| (finding.check, finding.remedy == image.remedy)).collect();
    assert_eq!(said, [(Check::ControllerMissing, true), (Check::PodWaiting, true)], "{both:?}");
    let crash = only(|snapshot| {
        let mut object = pod("a", &json!({"reason": "CrashLoopBackOff", "message": "back-off 5m0s"}));
        object["status"]["containerStatuses"][0]["lastState"] =
            json!({"terminated": {"exitCode": 2, "reason": "Error", "message": "no such flag\n"}});
        snapshot.pods = vec![read(object)];
    });
    assert_eq!(crash.what, "Pod a waits: container c stops again and again: exit code 2, no such flag");
    assert_eq!(crash.remedy, "kubectl -n kube-system logs a -c c --previous");
}

#[test]
fn a_volume_that_cannot_be_mounted_is_told_in_the_words_of_its_newest_event() {
    let event = |message: &str, time: &str| {
        read(json!({"metadata": {"namespace": "kube-system", "name": message}, "reason": "FailedMount",
            "message": message, "lastTimestamp": time,
            "involvedObject": {"kind": "Pod", "namespace": "kube-system", "name": "a", "uid": "uid-a"}}))
    };
    let found = only(move |snapshot| {
        waiting("ContainerCreating")(snapshot);
        snapshot.events =
            vec![event("secret c not found", "2026-01-01T11:59:00Z"), event("old", "2026-01-01T11:58:30Z")];
    });
    assert!(found.what.ends_with("container c is not created (ContainerCreating): secret c not found"), "{found:?}");
    assert!(found.remedy.starts_with("kubectl -n kube-system describe pod a "), "{found:?}");
    let fresh = findings_of(|snapshot: &mut Snapshot| {
        let mut object = pod("a", &json!({"reason": "ContainerCreating"}));
        object["status"]["startTime"] = json!("2026-01-01T11:59:30Z");
        snapshot.pods = vec![read(object)];
    });
    assert_eq!(fresh, [], "a minute is given");
}
