//! What the notes say after an installation.

use std::collections::{BTreeMap, BTreeSet};

use super::*;

#[test]
fn announcers_run_where_the_value_says_unless_the_user_has_placed_them() {
    let placed = |values: &str| !announcer(&render(values))["affinity"].is_null();
    for (values, expected) in [
        ("", true),
        ("kube-vip: {nodes: auto}", true),
        ("kube-vip: {nodes: control-plane}", true),
        ("kube-vip: {nodes: all}", false),
        ("kube-vip: {nodes: all, nodeSelector: {edge: 'true'}}", true),
        ("kube-vip: {affinity: null}", false),
    ] {
        assert_eq!(placed(values), expected, "{values}");
    }
}

/// D-12, D-15.
#[test]
fn notes_say_what_to_look_at_and_what_is_wrong() {
    let helm = Helm::new("helm4").unwrap();
    let values = "clusterName: old\nreplicas: 3\nimage: {tag: v0.2.7}\nkube-vip: {image: {repository: \
        ghcr.io/kube-vip/kube-vip}}\n\
                  extraArgs: [--cluster-name=x, --managment-network=a, --v, '4', --kube-api-qps=1]";
    let file = helm.write("values.yaml", values).unwrap();
    let said = notes(&helm, &["--values", &file]);
    for expected in [
        "for cluster \"old\"",
        "rollout status deployment/harvester-cloud-provider",
        "clusterName is deprecated",
        "does not use: replicas.",
        "kube-vip.image.repository names an image of kube-vip",
        "The one in extraArgs wins",
        "does not know: --managment-network. With an unknown flag",
        "image.tag is v0.2.7, a version of the Go provider",
        "|| kubectl -n kube-system logs harvester-cloud-provider-test",
        "skipInterface: vip.*",
        "/etc/kubernetes/cloud-config (value cloudConfigPath)",
        "Where SELinux is",
    ] {
        assert!(said.contains(expected), "{expected:?} is missing in {said}");
    }
    assert!(notes(&helm, &[]).contains("WARNING: global.cattle.clusterName is empty"));
    for name in ["Prod_1", "a b"] {
        let said = notes(&helm, &["--set", &format!("global.cattle.clusterName={name}")]);
        assert!(said.contains(&format!("no load balancer can be named after \"{name}\"")), "{said}");
    }
    let known = "global.cattle.clusterName=a,image.tag=v0.3.7,hostUpgrade.cooperation=true,nodeLoss.enabled=true";
    assert!(!notes(&helm, &["--set", known]).contains("WARNING"));
}

/// Paths of all objects whose keys the schema knows; in `global` and among variables and flags others are welcome.
fn known_objects(schema: &Value, path: &str, into: &mut Vec<String>) {
    let Some(properties) = schema["properties"].as_object().filter(|_| !["global", "kube-vip.env"].contains(&path))
    else {
        return;
    };
    into.push(path.to_owned());
    for (key, inner) in properties {
        known_objects(inner, format!("{path}.{key}").trim_start_matches('.'), into);
    }
}

/// The chart cannot read its own schema, so its notes have a list: a value in one of them only would be warned of, or
/// not be checked.
#[test]
fn the_notes_know_the_values_that_the_schema_knows() {
    let read = |name: &str| std::fs::read_to_string(chart().join(name)).unwrap();
    let schema: Value = serde_json::from_str(&read("values.schema.json")).unwrap();
    let mut paths = Vec::new();
    known_objects(&schema, "", &mut paths);
    let mut expected: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for path in paths {
        let parts = path.split('.').filter(|part| !part.is_empty());
        let object = parts.fold(&schema, |object, part| &object["properties"][part]);
        expected.insert(path, object["properties"].as_object().unwrap().keys().cloned().collect());
    }
    // Older charts have it, always true.
    expected.get_mut("kube-vip.serviceAccount").unwrap().insert("create".to_owned());
    let helpers = read("templates/_helpers.tpl");
    let (_, list) = helpers.split_once("harvester-cloud-provider.knownValues\" -}}").expect("the list is there");
    let (list, _) = list.split_once("{{- end -}}").expect("the list has an end");
    let known: BTreeMap<String, BTreeSet<String>> = serde_saphyr::from_str(list).unwrap();
    assert_eq!(known, expected);
}

#[test]
fn a_mistyped_key_is_named_by_the_notes_wherever_it_stands() {
    let helm = Helm::new("helm4").unwrap();
    let schema = std::fs::read_to_string(chart().join("values.schema.json")).unwrap();
    let mut paths = Vec::new();
    known_objects(&serde_json::from_str(&schema).unwrap(), "", &mut paths);
    let mistyped: Vec<String> =
        paths.iter().map(|path| format!("{path}.typo").trim_start_matches('.').to_owned()).collect();
    let values: Vec<String> = mistyped.iter().map(|path| format!("{path}=1")).collect();
    let said = notes(&helm, &["--set", &values.join(",")]);
    for path in mistyped {
        assert!(said.contains(&format!(" {path}")), "{path} is not named: {said}");
    }
    let old = helm.write("old.yaml", include_str!("../chart-golden/reference-values.values.yaml")).unwrap();
    assert!(
        !notes(&helm, &["--values", &old]).contains("does not know"),
        "values that every older chart has are no news"
    );
}
