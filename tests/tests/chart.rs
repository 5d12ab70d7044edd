//! The chart as text: what it renders for the values of chart spec 14, with both Helms, and what it says to values that
//! it cannot use.
//!
//! What a case renders is written down in `chart-golden/<case>.yaml`, sorted by kind and name; HCP_UPDATE=1
//! writes it anew.

use std::path::{Path, PathBuf};

use serde_json::Value;
use testbed::Helm;
use testbed::helm::{RELEASE, VERSIONS, chart};

#[path = "chart/announcer_values.rs"]
mod announcer_values;
#[path = "chart/archives.rs"]
mod archives;
#[path = "chart/defects.rs"]
mod defects;
#[path = "chart/monitoring.rs"]
mod monitoring;
#[path = "chart/names.rs"]
mod names;
#[path = "chart/notes.rs"]
mod notes;
#[path = "chart/refusals.rs"]
mod refusals;
#[path = "chart/rights.rs"]
mod rights;

/// Values, and the file in which what they render is written down.
struct Case {
    name: &'static str,
    values: &'static str,
}

const CASES: &[Case] = &[
    Case { name: "01-defaults", values: "" },
    Case {
        name: "03-cluster-name-and-arguments",
        values: "global: {cattle: {clusterName: gc1}}\nextraArgs: ['--a=b: c', 7, true]\n",
    },
    Case {
        name: "04-secret",
        values: "cloudConfig: {secretName: x, secretKey: kubeconfig}\ncloudConfigPath: /ignored\n",
    },
    Case {
        name: "10-monitoring",
        values: "replicasCount: 2\nkube-vip: {podMonitor: {enabled: true, labels: {release: prom}}}\n\
                 serviceMonitor: {enabled: true}\nprometheusRule: {enabled: true}\ngrafanaDashboard: {enabled: true}\n",
    },
    Case { name: "reference-values", values: include_str!("chart-golden/reference-values.values.yaml") },
];

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/chart-golden").join(format!("{name}.yaml"))
}

fn helms() -> Vec<Helm> {
    VERSIONS.map(|version| Helm::new(version).expect("dev/tools.sh has got it")).into()
}

/// What both Helms render for these values; they have to agree.
fn render(values: &str) -> Vec<Value> {
    try_render(&chart(), values).unwrap_or_else(|error| panic!("{error:#}\nwith values:\n{values}"))
}

fn try_render(chart: &Path, values: &str) -> anyhow::Result<Vec<Value>> {
    let mut all = Vec::new();
    for helm in helms() {
        let file = helm.write("values.yaml", values)?;
        let mut objects = helm.template(chart, &["--values", &file])?;
        objects.sort_by_key(title);
        all.push(objects);
    }
    assert_eq!(all[0], all[1], "the two Helms render different objects");
    Ok(all.remove(0))
}

/// What Helm says instead of rendering. Both have to say it.
fn refusal(values: &str) -> String {
    let said = helms().into_iter().map(|helm| {
        let file = helm.write("values.yaml", values).expect("the directory is ours");
        match helm.template(&chart(), &["--values", &file]) {
            Ok(_) => panic!("these values should be refused:\n{values}"),
            Err(error) => format!("{error:#}"),
        }
    });
    said.collect::<Vec<_>>().join("\n---\n")
}

fn title(object: &Value) -> String {
    format!("{} {}", object["kind"].as_str().unwrap_or("?"), object["metadata"]["name"].as_str().unwrap_or("?"))
}

fn titles(objects: &[Value]) -> Vec<String> {
    objects.iter().map(title).collect()
}

fn find<'a>(objects: &'a [Value], wanted: &str) -> &'a Value {
    objects
        .iter()
        .find(|object| title(object) == wanted)
        .unwrap_or_else(|| panic!("no {wanted} in {:?}", titles(objects)))
}

fn pod(objects: &[Value], wanted: &str) -> Value {
    find(objects, wanted)["spec"]["template"]["spec"].clone()
}

fn ccm(objects: &[Value]) -> Value {
    pod(objects, "Deployment harvester-cloud-provider")
}

fn announcer(objects: &[Value]) -> Value {
    pod(objects, "DaemonSet kube-vip")
}

fn args(pod: &Value) -> Vec<&str> {
    pod["containers"][0]["args"]
        .as_array()
        .expect("it has arguments")
        .iter()
        .map(|arg| arg.as_str().expect("an argument is text"))
        .collect()
}

fn env<'a>(pod: &'a Value, name: &str) -> Option<&'a str> {
    let variables = pod["containers"][0]["env"].as_array().expect("it has variables");
    variables.iter().find(|variable| variable["name"] == name)?["value"].as_str()
}

fn image(pod: &Value) -> &str {
    pod["containers"][0]["image"].as_str().expect("it has an image")
}

/// A container of the image that this chart belongs to, unless values say otherwise.
fn own_image() -> String {
    format!("rancher/harvester-cloud-provider:v{}", env!("CARGO_PKG_VERSION"))
}

/// D-4, D-5, D-6, D-9.
#[test]
fn what_is_rendered_is_what_is_written_down() {
    let update = std::env::var("HCP_UPDATE").is_ok_and(|value| value == "1");
    for case in CASES {
        let found = Value::Array(render(case.values));
        let path = golden(case.name);
        if update {
            std::fs::write(&path, serde_saphyr::to_string(&found).unwrap()).unwrap();
        }
        let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        // The version stands in labels and images only; a release changes nothing else.
        let text = text.replace("@VERSION@", env!("CARGO_PKG_VERSION"));
        let expected: Value = serde_saphyr::from_str(&text).unwrap();
        e2e::facts::assert_same(case.name, &found, &expected);
        if update {
            std::fs::write(&path, text.replace(env!("CARGO_PKG_VERSION"), "@VERSION@")).unwrap();
        }
    }
}

#[test]
fn defaults_give_the_reference_objects_and_two_roles_more() {
    let objects = render("");
    assert_eq!(
        titles(&objects),
        [
            "ClusterRole harvester-cloud-provider",
            "ClusterRole kube-vip",
            "ClusterRoleBinding harvester-cloud-provider",
            "ClusterRoleBinding kube-vip",
            "DaemonSet kube-vip",
            "Deployment harvester-cloud-provider",
            "Role harvester-cloud-provider",
            "Role harvester-cloud-provider",
            "Role kube-vip",
            "RoleBinding harvester-cloud-provider",
            "RoleBinding harvester-cloud-provider",
            "RoleBinding kube-vip",
            "ServiceAccount harvester-cloud-provider",
            "ServiceAccount kube-vip",
        ]
    );
    assert_eq!(args(&ccm(&objects)), ["--cloud-config=/etc/kubernetes/cloud-config/cloud-provider-config"]);
    assert_eq!(ccm(&objects)["volumes"][0]["hostPath"]["path"], "/var/lib/rancher/rke2/etc/config-files");
    assert_eq!((image(&ccm(&objects)), image(&announcer(&objects))), (&*own_image(), &*own_image()));
}

#[test]
fn the_cluster_name_comes_second_and_further_arguments_follow_as_given() {
    for (values, expected) in [
        ("global: {cattle: {clusterName: gc1}}", vec!["--cluster-name=gc1"]),
        ("global: {cattle: {clusterName: 123}}", vec!["--cluster-name=123"]),
        ("global: {cattle: {clusterName: 20240101}}", vec!["--cluster-name=20240101"]),
        ("global: {cattle: null}", vec![]),
        ("global: null", vec![]),
        ("clusterName: old", vec!["--cluster-name=old"]),
        ("clusterName: old\nglobal: {cattle: {clusterName: new}}", vec!["--cluster-name=new"]),
        (
            "global: {cattle: {clusterName: gc1}}\nextraArgs: ['--a=b: c', 7, true]",
            vec!["--cluster-name=gc1", "--a=b: c", "7", "true"],
        ),
    ] {
        assert_eq!(args(&ccm(&render(values)))[1..], expected, "{values}");
    }
    let required = refusal("global: {requireClusterName: true}");
    assert!(required.contains("global.cattle.clusterName is empty"), "{required}");
}

/// W-46, D-1, D-16.
#[test]
fn the_cloud_config_is_a_whole_directory_from_the_secret_else_from_the_host() {
    let secret = ccm(&render("cloudConfig: {secretName: x, secretKey: kubeconfig}\ncloudConfigPath: /etc/x/y"));
    assert_eq!(secret["volumes"][0]["secret"]["secretName"], "x");
    assert_eq!(secret["volumes"][0]["secret"]["items"][0]["key"], "kubeconfig");
    assert_eq!(secret["volumes"][0]["secret"]["items"][0]["path"], "cloud-config");
    assert!(secret["volumes"][0]["hostPath"].is_null());
    assert_eq!(secret["containers"][0]["volumeMounts"][0]["subPath"], Value::Null, "a subPath never sees a new token");
    assert_eq!(secret["securityContext"]["runAsUser"], 65532);

    let legacy = ccm(&render("cloudConfigPath: /etc/kubernetes/cloud-config"));
    assert_eq!(legacy["volumes"][0]["hostPath"]["path"], "/etc/kubernetes");
    assert_eq!(args(&legacy), ["--cloud-config=/etc/kubernetes/cloud-config/cloud-config"]);
    assert_eq!(legacy["securityContext"]["runAsUser"], 0, "the file is root's alone");
    assert_eq!(legacy["containers"][0]["securityContext"]["capabilities"]["drop"][0], "ALL");

    let last_resort = ccm(&render("cloudConfigPath: ''\ncloudConfig: {hostPath: /opt/c/kc}"));
    assert_eq!(last_resort["volumes"][0]["hostPath"]["path"], "/opt/c");

    let nothing = refusal("cloudConfigPath: ''\ncloudConfig: {hostPath: ''}");
    for key in ["cloudConfig.secretName", "cloudConfigPath", "cloudConfig.hostPath"] {
        assert!(nothing.contains(key), "{key} is not named: {nothing}");
    }
}

#[test]
fn the_registry_goes_before_both_images_unless_they_name_a_host() {
    let registry = "global: {cattle: {systemDefaultRegistry: r.example.com}}\n";
    let both = |objects: &[Value]| (image(&ccm(objects)).to_owned(), image(&announcer(objects)).to_owned());
    let prefixed = format!("r.example.com/{}", own_image());
    assert_eq!(both(&render(registry)), (prefixed.clone(), prefixed.clone()));
    for host in ["ttl.sh/hcp", "localhost/hcp", "reg:5000/a/hcp"] {
        let objects = render(&format!("{registry}image: {{repository: {host}, tag: 1h}}"));
        assert_eq!(both(&objects), (format!("{host}:1h"), format!("{host}:1h")));
    }
    // Both programs are in one image: values for kube-vip's own, from an older chart, do not bring it back.
    let kube_vip = "kube-vip: {image: {repository: rancher/mirrored-kube-vip-kube-vip-iptables, tag: v1.2.3}}";
    assert_eq!(both(&render(&format!("{registry}{kube_vip}"))), (prefixed.clone(), prefixed.clone()));
    assert_eq!(both(&render(&format!("{registry}kube-vip: {{image: {{tag: v1.2.3}}}}"))), (prefixed.clone(), prefixed));
    let other = render("kube-vip: {image: {repository: my/announcer, tag: 2}}");
    assert_eq!(image(&announcer(&other)), "my/announcer:2");
}

/// D-10.
#[test]
fn every_pull_secret_reaches_both_workloads_in_either_notation() {
    let objects = render(
        "imagePullSecrets: [a, {name: b}]\nglobal: {imagePullSecrets: [c]}\nkube-vip: {imagePullSecrets: [{name: d}]}",
    );
    let names = |pod: Value| -> Vec<String> {
        let secrets = pod["imagePullSecrets"].as_array().unwrap().clone();
        secrets.iter().map(|secret| secret["name"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(names(ccm(&objects)), ["a", "b", "c"]);
    assert_eq!(names(announcer(&objects)), ["d", "a", "b", "c"]);
}

#[test]
fn the_announcer_can_be_left_out_and_takes_kube_vips_variables() {
    let without = render("kube-vip: {enabled: false}");
    assert!(titles(&without).iter().all(|title| !title.contains("kube-vip")), "{:?}", titles(&without));

    let with =
        announcer(&render("kube-vip: {env: {foo: bar, election_mode: service, vip_interface: null, number: 5}}"));
    assert_eq!(env(&with, "foo"), Some("bar"));
    assert_eq!(env(&with, "election_mode"), Some("service"));
    assert_eq!(env(&with, "number"), Some("5"));
    assert_eq!(env(&with, "vip_interface"), None);
    assert_eq!(
        env(&with, "enable_service_security"),
        Some("true"),
        "without it every port of the host is open on a VIP"
    );

    let flags = render("kube-vip: {extraArgs: {log: -4, services: null, nodeName: '{{ .Release.Name }}'}}");
    assert_eq!(args(&announcer(&flags)), ["manager", "--log=-4", "--nodeName=harvester-cloud-provider", "--services"]);
}

#[test]
fn a_security_context_that_names_only_capabilities_keeps_user_0() {
    let context = &announcer(&render(
        "kube-vip: {securityContext: {capabilities: {add: [NET_ADMIN, NET_RAW], drop: [ALL]}}}",
    ))["containers"][0]["securityContext"];
    assert_eq!(context["runAsUser"], 0);
    assert_eq!(context["readOnlyRootFilesystem"], true);
}

#[test]
fn scheduling_fields_can_be_taken_away_and_names_changed() {
    let bare = ccm(&render("affinity: null\ntolerations: []\nnodeSelector: null"));
    for field in ["affinity", "tolerations", "nodeSelector"] {
        assert!(bare[field].is_null(), "{field}: {}", bare[field]);
    }
    let renamed = render("nameOverride: mine");
    let apart = &pod(&renamed, "Deployment mine")["affinity"]["podAntiAffinity"];
    let labels =
        &apart["preferredDuringSchedulingIgnoredDuringExecution"][0]["podAffinityTerm"]["labelSelector"]["matchLabels"];
    assert_eq!(labels["app.kubernetes.io/name"], "mine");
    find(&renamed, "ClusterRole mine");
    let account = render("serviceAccount: {create: false, name: theirs}");
    assert_eq!(ccm(&account)["serviceAccountName"], "theirs");
    assert!(!titles(&account).contains(&"ServiceAccount harvester-cloud-provider".to_owned()));
}

/// D-7.
#[test]
fn two_replicas_fit_on_one_node_at_least_once_and_have_a_budget() {
    for replicas in ["2", "'2'"] {
        let objects = render(&format!("replicasCount: {replicas}"));
        let deployment = &find(&objects, "Deployment harvester-cloud-provider")["spec"];
        assert_eq!(deployment["replicas"], 2);
        assert_eq!(deployment["strategy"]["rollingUpdate"]["maxUnavailable"], 1);
        assert!(
            ccm(&objects)["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"].is_null()
        );
        find(&objects, "PodDisruptionBudget harvester-cloud-provider");
    }
}

#[test]
fn values_that_rke2_and_rancher_inject_change_nothing_else() {
    let plain = render("cloudConfigPath: /a/b\nglobal: {cattle: {clusterName: gc1}}");
    let injected = render(
        "cloudConfigPath: /a/b\nglobal: {cattle: {clusterName: gc1, systemDefaultRegistry: '', url: https://rancher}, \
         clusterCIDR: 10.42.0.0/16, clusterCIDRv4: 10.42.0.0/16, clusterCIDRv6: '', clusterDNS: 10.43.0.10, \
         clusterDomain: cluster.local, serviceCIDR: 10.43.0.0/16, rke2DataDir: /var/lib/rancher/rke2, \
         systemDefaultIngressClass: ingress-nginx, systemDefaultRegistry: '', prime: {enabled: false}}",
    );
    assert_eq!(plain, injected);
    let changed: Vec<String> = render("")
        .iter()
        .zip(&plain)
        .filter(|(before, after)| before != after)
        .map(|(object, _)| title(object))
        .collect();
    assert_eq!(changed, ["Deployment harvester-cloud-provider"]);
}

#[test]
fn the_values_of_chart_testing_on_kind_render() {
    let values = std::fs::read_to_string(chart().join("ci/kind-values.yaml")).unwrap();
    assert_eq!(ccm(&render(&values))["volumes"][0]["hostPath"]["path"], "/etc/kubernetes");
}

/// What Helm says after an installation with these options. Helm 3 wants a cluster even for a dry run.
fn notes(helm: &Helm, options: &[&str]) -> String {
    let chart = chart().display().to_string();
    helm.run(&[&["install", RELEASE, &chart, "-n", "kube-system", "--dry-run=client"], options].concat())
        .expect("these values render")
}
