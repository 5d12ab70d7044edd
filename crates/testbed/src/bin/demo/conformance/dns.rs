//! Cluster DNS: CoreDNS behind the Service that the kubelets tell pods to ask.

use anyhow::Result;
use serde_json::{Value, json};

use super::images::DNS;
use crate::bed::Bed;

/// The address that the kubelets write into the pods' resolv.conf.
const ADDRESS: &str = "10.96.0.10";
/// Above those that only root may open.
const PORT: u16 = 1053;

/// Starts it and waits until it answers its own readiness probe.
pub async fn serve(bed: &Bed) -> Result<((), String)> {
    let file = bed.control_plane.dir().write("coredns.json", objects().to_string())?;
    bed.kubectl(&["apply", "-f", &file.display().to_string()]).await?;
    bed.pods_ready("kube-system", "k8s-app=kube-dns", 1).await?;
    Ok(((), format!("cluster DNS at {ADDRESS}: CoreDNS")))
}

fn objects() -> Value {
    let name = |name: &str| json!({ "name": name, "namespace": "kube-system" });
    let labels = json!({ "k8s-app": "kube-dns" });
    let corefile = format!(
        ".:{PORT} {{\n  errors\n  ready\n  kubernetes cluster.local in-addr.arpa ip6.arpa {{\n    \
             pods insecure\n  }}\n}}\n"
    );
    let verbs = ["list", "watch"];
    let read = |group: &str, kinds: &[&str]| json!({ "apiGroups": [group], "resources": kinds, "verbs": verbs });
    let port =
        |name: &str, protocol: &str| json!({ "name": name, "port": 53, "targetPort": PORT, "protocol": protocol });
    json!({ "apiVersion": "v1", "kind": "List", "items": [
        { "apiVersion": "v1", "kind": "ServiceAccount", "metadata": name("coredns") },
        { "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": { "name": "system:coredns" },
            "rules": [
            read("", &["endpoints", "services", "pods", "namespaces"]),
            read("discovery.k8s.io", &["endpointslices"]),
        ] },
        { "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
            "metadata": { "name": "system:coredns" },
          "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "system:coredns" },
          "subjects": [{ "kind": "ServiceAccount", "name": "coredns", "namespace": "kube-system" }] },
        { "apiVersion": "v1", "kind": "ConfigMap", "metadata": name("coredns"), "data": { "Corefile": corefile } },
        { "apiVersion": "apps/v1", "kind": "Deployment", "metadata": name("coredns"), "spec": {
            "selector": { "matchLabels": labels },
            "template": { "metadata": { "labels": labels }, "spec": {
                "serviceAccountName": "coredns", "dnsPolicy": "Default",
                "containers": [{
                    "name": "coredns", "image": DNS, "args": ["-conf", "/etc/coredns/Corefile"],
                    "readinessProbe": { "httpGet": { "path": "/ready", "port": 8181 }, "periodSeconds": 1 },
                    "volumeMounts": [{ "name": "config", "mountPath": "/etc/coredns" }],
                }],
                "volumes": [{ "name": "config", "configMap": { "name": "coredns" } }],
            } },
        } },
        { "apiVersion": "v1", "kind": "Service", "metadata": name("kube-dns"), "spec": {
            "clusterIP": ADDRESS, "selector": labels, "ports": [port("udp", "UDP"), port("tcp", "TCP")],
        } },
    ] })
}
