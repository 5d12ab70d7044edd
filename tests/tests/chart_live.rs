//! The chart against a real API server, without nodes: taking the place of the Go provider's release, and being alone.

use testbed::helm::{RELEASE, VERSIONS, chart};
use testbed::{ControlPlane, Helm};

const REFERENCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/chart-golden/reference");

/// D-14.
#[tokio::test]
async fn a_release_of_the_go_providers_chart_is_upgraded_in_place_and_back_with_its_own_values() {
    if e2e::skip() {
        return;
    }
    let control_plane = ControlPlane::builder().start().await.unwrap();
    let kubectl = |words: &[&str]| control_plane.kubectl(words).unwrap_or_else(|error| panic!("{error:#}"));
    let uids = || {
        let names = ["deployment/harvester-cloud-provider", "daemonset/kube-vip", "serviceaccount/kube-vip"];
        let path = "-o=jsonpath={.items[*].metadata.uid}";
        kubectl(&[&["get", "-n=kube-system"], &names[..], &[path]].concat())
    };
    let ours = chart().display().to_string();
    for version in VERSIONS {
        let helm = Helm::of(version, &control_plane).unwrap();
        let run = |words: &[&str]| {
            helm.run(&[words, &["-n=kube-system"]].concat()).unwrap_or_else(|error| panic!("{error:#}"))
        };
        run(&["install", RELEASE, REFERENCE]);
        let before = uids();

        // Somebody who types this has the old defaults as values, and none of our new ones.
        let upgraded = run(&["upgrade", RELEASE, &ours, "--reuse-values"]);
        assert!(upgraded.contains("REVISION: 2") && upgraded.contains("STATUS: deployed"), "{upgraded}");
        assert_eq!(uids(), before, "{version}: objects were made anew");
        let pod = |workload: &str, path: &str| {
            kubectl(&["get", "-n=kube-system", workload, &format!("-o=jsonpath={{.spec.template.spec.{path}}}")])
        };
        let own = format!("rancher/harvester-cloud-provider:v{}", env!("CARGO_PKG_VERSION"));
        assert_eq!(pod("deployment/harvester-cloud-provider", "containers[0].image"), own);
        assert_eq!(pod("daemonset/kube-vip", "containers[0].image"), own);
        assert_eq!(
            pod("deployment/harvester-cloud-provider", "volumes[0].hostPath.path"),
            "/var/lib/rancher/rke2/etc/config-files"
        );
        assert_eq!(pod("daemonset/kube-vip", "containers[0].securityContext.runAsUser"), "0");
        assert_eq!(pod("daemonset/kube-vip", "containers[0].env[?(@.name==\"svc_enable\")].value"), "true");

        run(&["rollback", RELEASE, "1"]);
        assert_eq!(uids(), before, "{version}: objects were made anew on the way back");
        assert_eq!(pod("deployment/harvester-cloud-provider", "volumes[0].hostPath.type"), "File");
        assert_eq!(pod("deployment/harvester-cloud-provider", "containers[0].readinessProbe"), "");

        // A second provider in one cluster would fight with the first: refused, and the message says by whom.
        run(&["upgrade", RELEASE, &ours, "--reset-values"]);
        let second = helm.run(&["install", "second", &ours, "-n=default"]).unwrap_err().to_string();
        assert!(second.contains("release harvester-cloud-provider in namespace kube-system has installed"), "{second}");
        run(&["uninstall", RELEASE]);
    }
}

#[tokio::test]
async fn the_notes_say_when_no_node_is_one_for_the_announcer_and_when_there_is_no_cloud_config() {
    const NOWHERE: &str = "no node of this cluster matches kube-vip.affinity and kube-vip.nodeSelector";
    const NO_SECRET: &str = "there is no Secret kube-system/mine with key cloud-config";
    if e2e::skip() {
        return;
    }
    let control_plane = ControlPlane::builder().start().await.unwrap();
    let ours = chart().display().to_string();
    let says = |said: &str, version: &str, options: &[&str]| {
        let helm = Helm::of(version, &control_plane).unwrap();
        let words = [&["upgrade", "--install", RELEASE, &ours, "-n=kube-system", "--dry-run=server"], options].concat();
        helm.run(&words).unwrap_or_else(|error| panic!("{error:#}")).contains(said)
    };
    let warned = |version: &str, options: &[&str]| says(NOWHERE, version, options);
    for version in VERSIONS {
        assert!(says(NO_SECRET, version, &["--set", "cloudConfig.secretName=mine"]), "{version}");
        assert!(!says(NO_SECRET, version, &[]), "{version}");
    }
    control_plane
        .kubectl(&["-n=kube-system", "create", "secret", "generic", "mine", "--from-literal=cloud-config=x"])
        .unwrap();
    assert!(!says(NO_SECRET, VERSIONS[0], &["--set", "cloudConfig.secretName=mine"]));
    let other = ["--set", "cloudConfig.secretName=mine,cloudConfig.secretKey=other"];
    assert!(says("kube-system/mine with key other", VERSIONS[0], &other));
    assert!(!warned(VERSIONS[0], &[]), "nothing is known before the first node");
    let node = r#"{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1", "labels": {"role": "lb"}}}"#;
    let file = Helm::new(VERSIONS[0]).unwrap();
    let node = file.write("node.yaml", node).unwrap();
    control_plane.kubectl(&["apply", "-f", &node]).unwrap();
    for version in VERSIONS {
        let everywhere = "Announcers run on all nodes, because no node has a control plane label";
        assert!(says(everywhere, version, &[]) && !warned(version, &[]), "{version}");
        assert!(warned(version, &["--set", "kube-vip.nodes=control-plane"]), "{version}");
        assert!(!warned(version, &["--set", "kube-vip.nodes=all"]), "{version}");
        assert!(!warned(version, &["--set", "kube-vip.affinity=null"]), "{version}");
        assert!(!warned(version, &["--set", "kube-vip.affinity=null,kube-vip.nodeSelector.role=lb"]), "{version}");
        assert!(warned(version, &["--set", "kube-vip.affinity=null,kube-vip.nodeSelector.role=web"]), "{version}");
    }
    let label = "node-role.kubernetes.io/control-plane=";
    control_plane.kubectl(&["label", "node", "n1", label]).unwrap();
    assert!(!warned(VERSIONS[1], &[]) && !says("run on all nodes", VERSIONS[1], &[]));
}
