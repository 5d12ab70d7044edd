//! `plan` over scripted clusters: what it says, and that it sends nothing but reads.

mod support;

use cloud_provider::preview::{Place, Verb};
use cloud_provider::start::{Caches, Settings};
use harvester_api::names::ClusterName;
use harvester_provider::{Foresight, HarvesterProvider, IdentityCard, Unreadable};
use prometheus_client::registry::Registry;
use runtime::health::Health;
use runtime::scenario::{ReceivedRequest, Scenario};
use runtime::shutdown::Token;
use runtime::tasks::Tasks;
use serde_json::{Value, json};

const FINALIZER: &str = "service.kubernetes.io/load-balancer-cleanup";

fn service(name: &str, finalizers: &[&str], address: Option<&str>) -> Value {
    let mut annotations = json!({});
    if let Some(address) = address {
        annotations["kube-vip.io/loadbalancerIPs"] = json!(address);
    }
    let ingress: Vec<Value> = address.iter().map(|address| json!({"ip": address})).collect();
    json!({
        "metadata": {"namespace": "default", "name": name, "uid": format!("uid-{name}"), "resourceVersion": "7",
            "finalizers": finalizers,
            "annotations": annotations},
        "spec": {"type": "LoadBalancer", "ipFamilies": ["IPv4"], "ports": [{"protocol": "TCP", "port": 80}]},
        "status": {"loadBalancer": {"ingress": ingress}},
    })
}

/// As the Go provider writes it: no UID of anybody stands on it.
fn load_balancer(service: &str, address: &str) -> Value {
    let name = ClusterName::from_record("prod").load_balancer_name("default", service, &format!("uid-{service}"));
    json!({
        "metadata": {"namespace": "guests", "name": name, "uid": format!("lb-{service}"), "resourceVersion": "9",
            "finalizers": ["wrangler.cattle.io/harvester-lb-controller"],
            "labels": {"cloudprovider.harvesterhci.io/cluster": "prod",
                "cloudprovider.harvesterhci.io/serviceName": service,
                "cloudprovider.harvesterhci.io/serviceNamespace": "default"},
            "annotations": {"cloudprovider.harvesterhci.io/lb-network": "",
                "loadbalancer.harvesterhci.io/cluster": "prod"}},
        "spec": {"ipam": "pool", "workloadType": "cluster"},
        "status": {"address": address,
            "allocatedAddress": {"ip": address, "ipPool": "edge", "mask": "255.255.0.0", "gateway": "10.20.0.1"},
            "conditions": [{"type": "Ready", "status": "True"}]},
    })
}

/// Cluster `prod` of the Go provider: one Service is served, one is new, and its only Node runs on machine `vm-1`.
fn answer(request: &ReceivedRequest) -> (u16, Value) {
    if request.query.contains("watch=true") {
        return (0, Value::Null);
    }
    let node = json!({"metadata": {"name": "node-1", "uid": "n", "resourceVersion": "3"},
        "spec": {"providerID": "harvester://vm-1"},
        "status": {"conditions": [{"type": "Ready", "status": "True"}]}});
    let vm = json!({"metadata": {"namespace": "guests", "name": "node-1", "uid": "vm-1"},
        "spec": {"runStrategy": "RerunOnFailure"},
        "status": {"printableStatus": "Running"}});
    let items = match request.path.rsplit('/').next().expect("a path has parts") {
        "services" => vec![service("old", &[FINALIZER], Some("10.20.0.5")), service("new", &[], None)],
        "loadbalancers" => vec![load_balancer("old", "10.20.0.5")],
        "nodes" => vec![node],
        "virtualmachines" => vec![vm],
        "kube-system" => return (200, json!({"metadata": {"name": "kube-system", "uid": "cluster"}})),
        "harvester-cloud-provider" => return (404, Scenario::status(404, "NotFound", "not found")),
        _ => Vec::new(),
    };
    (200, json!({"metadata": {"resourceVersion": "100"}, "items": items}))
}

async fn plan(guest: &Scenario, harvester: &Scenario) -> Result<Foresight, Unreadable> {
    let (guest, harvester) = (guest.client(), harvester.client());
    let mut tasks = Tasks::new(Token::new());
    let caches = Caches::watch(&guest, &Health::new(), &mut tasks);
    let config = support::config(ClusterName::from_record("prod"));
    let both = (&caches.services, &caches.nodes);
    let provider = HarvesterProvider::new(&config, &guest, &harvester, both, &mut Registry::default());
    Box::pin(provider.foresee(&caches, &Settings::default())).await
}

#[tokio::test(start_paused = true)]
async fn a_cluster_of_the_go_provider_is_taken_over_as_it_stands_and_what_is_new_is_shown() {
    let server = Scenario::answering(answer);
    let found = Box::pin(plan(&server, &server)).await.unwrap();
    assert_eq!((found.cluster_name.as_str(), &found.held), ("prod", &None));
    let writes: Vec<_> = found
        .outlook
        .writes
        .iter()
        .map(|write| (write.place, write.verb, write.target.kind, write.target.name.as_str()))
        .collect();
    let lb = ClusterName::from_record("prod").load_balancer_name("default", "new", "uid-new");
    assert_eq!(
        writes,
        [
            (Place::Guest, Verb::Update, "ConfigMap", "harvester-cloud-provider"),
            (Place::Guest, Verb::Update, "Service", "new"),
            (Place::Cloud, Verb::Create, "LoadBalancer", lb.as_str()),
            // That it is served, and nothing else.
            (Place::Guest, Verb::Update, "Service", "old"),
        ],
        "{:?}",
        found.outlook
    );
    let record = &found.outlook.writes[0].body["data"];
    let card = IdentityCard::from_text(record["identity"].as_str().unwrap()).unwrap();
    assert_eq!((&record["cluster-name"], card.machines), (&json!("prod"), ["vm-1".to_owned()].into()));
    assert_eq!(found.outlook.writes[1].body["metadata"]["finalizers"], json!([FINALIZER]));
    let said = &found.outlook.writes[3].body;
    assert_eq!(said["metadata"], json!({"uid": "uid-old"}));
    assert_eq!(said["status"]["conditions"][0]["reason"], "Served");
    assert!(server.requests().iter().all(|request| request.method == "GET"), "nothing is written");
}

#[tokio::test(start_paused = true)]
async fn over_a_wrong_harvester_it_shows_the_safe_mode_and_nothing_else() {
    let guest = Scenario::answering(answer);
    let other = Scenario::answering(|request| match request.path.rsplit('/').next() {
        _ if request.query.contains("watch=true") => (0, Value::Null),
        Some("virtualmachines") => {
            let vm = json!({"metadata": {"namespace": "guests", "name": "x", "uid": "vm-x"}, "spec": {}});
            (200, json!({"metadata": {"resourceVersion": "1"}, "items": [vm]}))
        }
        _ => (200, json!({"metadata": {"resourceVersion": "1"}, "items": []})),
    });
    let found = Box::pin(plan(&guest, &other)).await.unwrap();
    assert_eq!(found.held.as_ref().map(|(reason, _)| *reason), Some("MachinesNotSeen"));
    let written: Vec<_> = found.outlook.writes.iter().map(|write| write.target.kind).collect();
    assert_eq!(written, ["ConfigMap"], "{:?}", found.outlook);
    assert_eq!((guest.writes(), other.writes()), (vec![], vec![]));
}

#[tokio::test(start_paused = true)]
async fn a_harvester_that_may_not_be_read_is_named_with_what_it_says() {
    let guest = Scenario::answering(answer);
    let refusing = Scenario::answering(|_| (403, Scenario::status(403, "Forbidden", "cannot list resource")));
    let error = Box::pin(plan(&guest, &refusing)).await.unwrap_err().to_string();
    assert!(error.contains("LoadBalancers of Harvester") && error.contains("cannot list resource"), "{error}");
    assert_eq!((guest.writes(), refusing.writes()), (vec![], vec![]));
}
