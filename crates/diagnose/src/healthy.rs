//! An installation without any fault, for tests to plant one in.

use jiff::Timestamp;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::snapshot::{Side, Snapshot};

pub const NOW: &str = "2026-01-01T12:00:00Z";
const AGO: &str = "2026-01-01T11:59:58Z";

pub fn read<T: DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).expect("a test's object")
}

pub fn node(name: &str) -> Value {
    json!({
        "metadata": {"name": name, "labels": {"cloudprovider.harvesterhci.io/host": "host-1"}},
        "spec": {"providerID": format!("harvester://uid-{name}")},
        "status": {"conditions": [{"type": "Ready", "status": "True"}],
            "addresses": [{"type": "InternalIP", "address": "10.0.0.11"}]},
    })
}

pub fn member(name: &str) -> Value {
    json!({
        "metadata": {"name": format!("harvester-announcer-{name}"), "namespace": "kube-system",
            "annotations": {"cloudprovider.harvesterhci.io/announcer-card": "{\"links\":[],\"serving\":true}"},
            "managedFields": [{"manager": "x", "operation": "Update", "time": AGO}]},
        "spec": {"holderIdentity": name, "leaseDurationSeconds": 15, "renewTime": "2026-01-01T11:59:58.000000Z"},
    })
}

pub fn service(name: &str) -> Value {
    json!({
        "metadata": {"namespace": "default", "name": name, "uid": format!("uid-{name}"),
            "creationTimestamp": "2026-01-01T11:00:00Z",
            "annotations": {"kube-vip.io/loadbalancerIPs": "10.0.0.100", "kube-vip.io/vipHost": "node1",
                "cloudprovider.harvesterhci.io/announcer-term": "1"}},
        "spec": {"type": "LoadBalancer", "ports": [{"port": 80}]},
        "status": {"loadBalancer": {"ingress": [{"ip": "10.0.0.100"}]}},
    })
}

/// One endpoint of that Service.
pub fn slice(service: &str, ready: bool) -> Value {
    json!({
        "metadata": {"namespace": "default", "name": format!("{service}-1"),
            "labels": {"kubernetes.io/service-name": service}},
        "addressType": "IPv4", "endpoints": [{"addresses": ["10.42.0.5"], "conditions": {"ready": ready}}],
    })
}

pub fn deployment(name: &str, arguments: &[&str]) -> Value {
    json!({
        "metadata": {"namespace": "kube-system", "name": name},
        "spec": {"replicas": 1, "selector": {}, "template": {"spec": {"serviceAccountName": name, "containers": [
            {"name": "c", "image": "rancher/harvester-cloud-provider:v1", "command": ["harvester-cloud-provider"],
                "args": arguments}]}}},
    })
}

pub fn load_balancer(service: &str, cluster: &str, uid: &str) -> Value {
    json!({
        "apiVersion": "loadbalancer.harvesterhci.io/v1beta1", "kind": "LoadBalancer",
        "metadata": {"namespace": "guests", "name": format!("demo-default-{service}"),
            "labels": {"cloudprovider.harvesterhci.io/cluster": cluster,
                "cloudprovider.harvesterhci.io/serviceNamespace": "default",
                "cloudprovider.harvesterhci.io/serviceName": service},
            "annotations": {"cloudprovider.harvesterhci.io/clusterUID": uid}},
        "spec": {"workloadType": "cluster", "ipam": "pool"},
    })
}

pub fn machine(name: &str) -> Value {
    json!({"metadata": {"namespace": "guests", "name": name, "uid": format!("uid-{name}")}})
}

pub fn instance(name: &str, cluster: &str) -> Value {
    json!({
        "metadata": {"namespace": "guests", "name": name, "labels": {"guestcluster.harvesterhci.io/name": cluster}},
        "status": {"phase": "Running", "nodeName": "host-1"},
    })
}

pub fn config() -> announcer_core::Config {
    announcer_core::Config::from_env_and_args([], ["manager".to_owned()], "desk").expect("defaults are accepted")
}

/// Two nodes, one Service.
pub fn snapshot() -> Snapshot {
    let kubernetes = json!({"metadata": {"namespace": "default", "name": "kubernetes", "uid": "former-uid"},
        "spec": {"type": "ClusterIP"}});
    let controller = json!({"metadata": {"name": "cloud-controller-manager"},
        "spec": {"holderIdentity": "p", "leaseDurationSeconds": 15, "renewTime": "2026-01-01T11:59:59.000000Z"}});
    let record = json!({"metadata": {"name": "harvester-cloud-provider"}, "data": {"cluster-name": "demo"}});
    let set = json!({
        "metadata": {"namespace": "kube-system", "name": "kube-vip"},
        "spec": {"selector": {}, "template": {"spec": {"containers": [
            {"name": "kube-vip", "image": "rancher/harvester-cloud-provider:v1", "args": ["manager"]}]}}},
    });
    let pool = json!({"metadata": {"name": "edge"}, "spec": {"ranges": [], "selector": {"network": "guests/mgmt"}},
        "status": {"total": 50, "available": 49}});
    let mut snapshot = Snapshot {
        now: NOW.parse().expect("a time"),
        guest: Side { server: "https://guest:6443/".into(), version: "v1.33.1".into(), ..Side::default() },
        harvester: Side { server: "https://harvester:6443".into(), version: "v1.32.1".into(), ..Side::default() },
        cloud_config: "Secret kube-system/harvester-cloud-config".into(),
        namespace: "guests".into(),
        services: vec![read(kubernetes), read(service("web"))],
        endpoint_slices: vec![read(slice("web", true))],
        cluster_uid: Some("cluster-uid".into()),
        nodes: ["node1", "node2"].map(|name| read(node(name))).into(),
        leases: vec![read(controller), read(member("node1")), read(member("node2"))],
        deployments: vec![read(deployment("harvester-cloud-provider", &["--cloud-config=/x", "--cluster-name=demo"]))],
        daemon_sets: vec![read(set)],
        config_maps: [("harvester-cloud-provider".to_owned(), read(record))].into(),
        load_balancers: vec![read(load_balancer("web", "demo", "cluster-uid"))],
        machines: ["node1", "node2"].map(|name| read(machine(name))).into(),
        instances: ["node1", "node2"].map(|name| read(instance(name, "demo"))).into(),
        pools: vec![read(pool)],
        ..Snapshot::default()
    };
    announce(&mut snapshot);
    snapshot
}

/// The announcer of `watcher` gets no answer from this node.
pub fn fall_silent(snapshot: &mut Snapshot, name: &str, watcher: &str) {
    for node in snapshot.nodes.iter_mut().filter(|node| node.metadata.name.as_deref() == Some(name)) {
        node.metadata.uid = Some(format!("node-{name}"));
    }
    let silence =
        json!({"uid": format!("node-{name}"), "ms": 230, "unanswered": ["arp 10.0.0.12", "tcp 10.0.0.12:10250"]});
    let card = json!({"links": [], "serving": true, "silent": {name: silence}}).to_string();
    let mut lease = member(watcher);
    lease["metadata"]["annotations"]["cloudprovider.harvesterhci.io/announcer-card"] = json!(card);
    let lease: k8s_openapi::api::coordination::v1::Lease = read(lease);
    snapshot.leases.retain(|one| one.metadata.name != lease.metadata.name);
    snapshot.leases.push(lease);
}

/// What the announcer's report makes of it by now.
pub fn announce(snapshot: &mut Snapshot) {
    let now: Timestamp = snapshot.now;
    snapshot.announcer = Some(crate::facts::announced(&config(), snapshot, now));
}
