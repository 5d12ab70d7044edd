//! How much memory a healthy Service takes at rest, in everything that looks after it. A program of its own: it counts
//! what the whole process allocates.

mod support;

use std::alloc::System;
use std::time::Duration;

use cloud_provider::start::{Caches, CloudProvider, ControllerMetrics, Settings};
use harvester_api::names::ClusterName;
use harvester_provider::{HarvesterProvider, IdentityCard};
use runtime::Product;
use runtime::events::Recorder;
use runtime::health::Health;
use runtime::metrics::Metrics;
use runtime::scenario::{ReceivedRequest, Scenario};
use runtime::shutdown::Token;
use runtime::tasks::Tasks;
use serde_json::{Value, json};
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};

#[global_allocator]
static COUNTED: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// No Service waits for a pass.
const IDLE: &str = "workqueue_depth{name=\"service\"} 0\n";

/// What is allocated now.
fn in_use() -> usize {
    let stats = COUNTED.stats();
    stats.bytes_allocated - stats.bytes_deallocated
}

fn cluster() -> ClusterName {
    ClusterName::from_record("demo")
}

fn uid(number: usize) -> String {
    format!("5822b3a1-0a74-4c52-9a53-{number:012}")
}

fn address(number: usize) -> String {
    format!("10.20.{}.{}", number / 250, number % 250 + 1)
}

/// As an API server shows a Service that Helm made and that has been served for a while.
fn service(number: usize) -> Value {
    let fields =
        json!({"f:metadata": {"f:annotations": {"f:kube-vip.io/loadbalancerIPs": {}}}, "f:spec": {"f:type": {}}});
    json!({
        "metadata": {
            "namespace": "customers", "name": format!("shop-{number}"), "uid": uid(number),
            "resourceVersion": format!("{}", 70_000 + number), "creationTimestamp": "2026-01-02T03:04:05Z",
            "finalizers": ["service.kubernetes.io/load-balancer-cleanup"],
            "labels": {"app.kubernetes.io/name": "shop", "app.kubernetes.io/managed-by": "Helm"},
            "annotations": {
                "cloudprovider.harvesterhci.io/ipam": "pool",
                "kube-vip.io/loadbalancerIPs": address(number),
                "kubectl.kubernetes.io/last-applied-configuration": "{}".repeat(300),
            },
            "managedFields": [
                {"manager": "helm", "operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1",
                    "fieldsV1": fields}
            ],
        },
        "spec": {
            "type": "LoadBalancer", "ipFamilies": ["IPv4"], "ipFamilyPolicy": "SingleStack",
            "selector": {"app": "shop"},
            "ports": [{"name": "http", "protocol": "TCP", "port": 80, "targetPort": 8080, "nodePort": 30_000 + number}],
        },
        "status": {
            "loadBalancer": {"ingress": [{"ip": address(number), "ipMode": "VIP"}]},
            "conditions": [{
                "type": "LoadBalancerReady", "status": "True", "reason": "Served",
                "message": format!("{} is served", address(number)),
                "lastTransitionTime": "2026-01-02T03:04:07Z",
            }],
        },
    })
}

/// Its load balancer, as Harvester shows it.
fn load_balancer(number: usize) -> Value {
    let name = format!("shop-{number}");
    json!({
        "metadata": {
            "namespace": "guests", "name": cluster().load_balancer_name("customers", &name, &uid(number)),
            "uid": uid(number),
            "resourceVersion": format!("{}", 90_000 + number), "creationTimestamp": "2026-01-02T03:04:05Z",
            "finalizers": ["wrangler.cattle.io/harvester-lb-controller"],
            "labels": {
                "cloudprovider.harvesterhci.io/cluster": "demo",
                "cloudprovider.harvesterhci.io/serviceNamespace": "customers",
                "cloudprovider.harvesterhci.io/serviceName": name,
            },
            "annotations": {
                "cloudprovider.harvesterhci.io/lb-network": "",
                "cloudprovider.harvesterhci.io/serviceUID": uid(number),
                "cloudprovider.harvesterhci.io/clusterUID": uid(0),
                "loadbalancer.harvesterhci.io/cluster": "demo",
                "loadbalancer.harvesterhci.io/namespace": "guests",
                "loadbalancer.harvesterhci.io/network": "guests/mgmt",
                "loadbalancer.harvesterhci.io/project": "local/p-demo1",
            },
        },
        "spec": {"ipam": "pool", "workloadType": "cluster"},
        "status": {
            "address": address(number),
            "allocatedAddress": {"ip": address(number), "ipPool": "edge", "mask": "255.255.0.0",
                "gateway": "10.20.0.1"},
            "conditions": [{"type": "Ready", "status": "True", "lastUpdateTime": "2026-01-02T03:04:06Z"}],
        },
    })
}

/// Both clusters: so many Services and their load balancers, no machines. Nothing ever changes.
fn answer(request: &ReceivedRequest, count: usize) -> (u16, Value) {
    if request.query.contains("watch=true") {
        return (0, Value::Null);
    }
    let identity =
        IdentityCard { namespace: "guests".into(), names: ["demo".to_owned()].into(), ..IdentityCard::default() };
    let record = json!({
        "metadata": {"namespace": "kube-system", "name": "harvester-cloud-provider", "uid": uid(0),
            "resourceVersion": "1"},
        "data": {"cluster-name": "demo", "identity": identity.to_text()},
    });
    let items: Vec<Value> = match request.path.rsplit('/').next().expect("a path has parts") {
        "services" => (1..=count).map(service).collect(),
        "loadbalancers" => (1..=count).map(load_balancer).collect(),
        "harvester-cloud-provider" => return (200, record),
        "configmaps" if request.query.contains("harvester-cloud-provider") => vec![record],
        _ => Vec::new(),
    };
    (200, json!({"metadata": {"resourceVersion": "100000"}, "items": items}))
}

/// What is in use when everything leads over so many Services and has looked at each of them.
async fn at_rest(count: usize) -> usize {
    let before = in_use();
    let server = Scenario::answering(move |request| answer(request, count));
    let client = server.client();
    let (stop, health) = (Token::new(), Health::new());
    let metrics = Metrics::new(&Product { name: "test", metrics_prefix: "test", version: "1" });
    let mut tasks = Tasks::new(stop.clone());
    let caches = Caches::watch(&client, &health, &mut tasks);
    let config = support::config(cluster());
    let provider = metrics.register(|registry| {
        HarvesterProvider::new(&config, &client, &client, (&caches.services, &caches.nodes), registry)
    });
    let (recorder, mut events) = Recorder::to_channel("test");
    let controllers = CloudProvider {
        client: client.clone(),
        recorder: recorder.clone(),
        caches,
        load_balancers: provider.load_balancers(),
        instances: provider.instances(),
        settings: Settings::default(),
        metrics: ControllerMetrics::register(&metrics),
    };
    provider.start(&mut tasks, &recorder);
    let working = tokio::spawn({
        let stop = stop.clone();
        async move { controllers.run(&health, stop).await }
    });

    // Services that came before the load balancers were listed are looked at more than once.
    let unchanged = "hcp_service_calls_total{operation=\"ensure\",result=\"unchanged\"} ";
    let looked = || metrics.encode().lines().find_map(|line| line.strip_prefix(unchanged)?.parse::<usize>().ok());
    tokio::time::timeout(Duration::from_mins(1), async {
        while looked().is_none_or(|passes| passes < count) || !metrics.encode().contains(IDLE) {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    })
    .await
    .unwrap_or_else(|_| panic!("{count} Services were not looked at: {}", metrics.encode()));
    // A Service that had to wait keeps its retry, which comes once.
    tokio::time::sleep(Duration::from_mins(1)).await;
    let passes = looked();
    tokio::time::sleep(Duration::from_mins(1)).await;
    assert_eq!(looked(), passes, "nothing is looked at again and again");
    assert_eq!(server.writes(), [], "all are healthy");
    assert!(events.try_recv().is_err(), "there is nothing to tell");
    let used = in_use() - before;

    stop.cancel();
    working.await.expect("the controllers end");
    tasks.run(Duration::from_secs(1)).await.expect("the watches end");
    used
}

/// What one takes is what many take more than few.
#[tokio::test(start_paused = true)]
async fn a_healthy_service_takes_less_than_five_kilobytes_at_rest() {
    let (few, many) = (at_rest(100).await, at_rest(500).await);
    let each = (many - few) / 400;
    assert!(each < 5_000, "{each} bytes for each Service");
}
