//! Defects of the reference chart that are mended, each said by itself: what is written down whole can be written down
//! anew.

use serde_json::{Value, json};

use super::{announcer, ccm, env, render, title};

/// D-4.
#[test]
fn ports_of_a_node_are_closed_on_its_vips_unless_values_open_them() {
    let switch = |values: &str| env(&announcer(&render(values)), "enable_service_security").map(ToOwned::to_owned);
    assert_eq!(switch("").as_deref(), Some("true"));
    assert_eq!(switch("kube-vip: {env: {enable_service_security: 'false'}}").as_deref(), Some("false"));
}

/// D-5, W-46.
#[test]
fn both_workloads_have_probes_a_priority_requests_and_few_rights() {
    let objects = render("cloudConfig: {secretName: x}");
    for (pod, priority, alive, ready) in [
        (ccm(&objects), "system-cluster-critical", "/livez", "/readyz"),
        (announcer(&objects), "system-node-critical", "/livez", "/readyz"),
    ] {
        let container = &pod["containers"][0];
        assert_eq!(container["livenessProbe"]["httpGet"]["path"], alive);
        assert_eq!(container["readinessProbe"]["httpGet"]["path"], ready);
        assert_eq!(pod["priorityClassName"], priority);
        for resource in ["cpu", "memory"] {
            assert!(container["resources"]["requests"][resource].is_string(), "{resource} of {priority}");
        }
        let rights = &container["securityContext"];
        assert_eq!(rights["capabilities"]["drop"], json!(["ALL"]));
        assert_eq!(rights["allowPrivilegeEscalation"], false);
        assert_eq!(rights["readOnlyRootFilesystem"], true);
        assert_eq!(pod["securityContext"]["seccompProfile"]["type"], "RuntimeDefault");
    }
    assert_eq!(ccm(&objects)["securityContext"]["runAsUser"], 65532);
}

fn tolerates(pod: &Value, key: &str, effect: &str) -> bool {
    let tolerations = pod["tolerations"].as_array().expect("it has tolerations");
    let of = |value: &Value, wanted: &str| value.is_null() || value == wanted;
    tolerations.iter().any(|toleration| {
        toleration["operator"] == "Exists" && of(&toleration["key"], key) && of(&toleration["effect"], effect)
    })
}

/// D-6: the controller has to run on a node that it alone can set free.
#[test]
fn no_taint_that_the_controller_itself_lifts_keeps_it_away_and_none_at_all_the_announcer() {
    let objects = render("");
    for (key, effect) in [
        ("node.cloudprovider.kubernetes.io/uninitialized", "NoSchedule"),
        ("node.cloudprovider.kubernetes.io/shutdown", "NoSchedule"),
        ("node.kubernetes.io/not-ready", "NoSchedule"),
        ("node.kubernetes.io/network-unavailable", "NoSchedule"),
        ("node-role.kubernetes.io/control-plane", "NoSchedule"),
        ("node-role.kubernetes.io/etcd", "NoExecute"),
    ] {
        assert!(tolerates(&ccm(&objects), key, effect), "{key}");
    }
    // A node that has been away for long is left, so that another one gets the pod.
    assert!(!tolerates(&ccm(&objects), "node.kubernetes.io/not-ready", "NoExecute"));
    assert!(tolerates(&announcer(&objects), "anything", "NoExecute"));
}

/// D-9, W-07.
#[test]
fn config_maps_are_granted_by_name_and_in_one_namespace() {
    let objects = render("");
    let about = |rule: &&Value| {
        let resources = rule["resources"].as_array().expect("it has resources");
        resources.iter().any(|resource| resource == "configmaps" || resource == "*")
    };
    // Two Roles have one name, in two namespaces.
    let (mut looked_at, mut own) = (0, Vec::new());
    for object in objects.iter().filter(|object| object["kind"] == "ClusterRole" || object["kind"] == "Role") {
        let granted: Vec<&Value> = object["rules"].as_array().expect("it has rules").iter().filter(about).collect();
        let (title, namespace) = (title(object), &object["metadata"]["namespace"]);
        if title == "Role harvester-cloud-provider" && namespace == "kube-system" {
            own = granted;
        } else {
            assert!(granted.is_empty(), "{title} in {namespace}: {granted:?}");
        }
        looked_at += 1;
    }
    assert_eq!(looked_at, 5);
    let (named, unnamed): (Vec<&Value>, Vec<&Value>) =
        own.into_iter().partition(|rule| rule["resourceNames"].is_array());
    let [rule] = named.as_slice() else { panic!("{named:?}") };
    for name in ["harvester-nad-mapping", "harvester-cloud-provider"] {
        assert!(
            rule["resourceNames"].as_array().is_some_and(|names| names.iter().any(|known| known == name)),
            "{name}"
        );
    }
    for verb in ["get", "watch"] {
        assert!(rule["verbs"].as_array().is_some_and(|verbs| verbs.iter().any(|known| known == verb)), "{verb}");
    }
    // A name cannot be asked for before the object exists.
    assert!(unnamed.iter().all(|rule| rule["verbs"] == json!(["create"])), "{unnamed:?}");
}
