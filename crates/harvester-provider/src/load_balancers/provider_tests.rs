//! The trait against a scripted API server: bodies of requests, their number, and what follows an answer.

#[path = "provider_tests/adoption.rs"]
mod adoption;
#[path = "provider_tests/groups.rs"]
mod groups;
#[path = "provider_tests/leaving.rs"]
mod leaving;
#[path = "provider_tests/outages.rs"]
mod outages;
#[path = "provider_tests/static_addresses.rs"]
mod static_addresses;
#[path = "provider_tests/undone.rs"]
mod undone;
#[path = "provider_tests/vanished.rs"]
mod vanished;
#[path = "provider_tests/within_reason.rs"]
mod within_reason;

use std::collections::{BTreeMap, BTreeSet};

use futures::StreamExt;
use harvester_api::load_balancer::LoadBalancer;
use prometheus_client::registry::Registry;
use runtime::error::chain;
use runtime::scenario::{ReceivedRequest, Scenario};
use serde_json::{Value, json};

use super::super::booking;
use super::super::build::{config, key, service};
use super::super::own_writes::lb_cache;
use super::super::view::LbView;
use super::super::wakes::object_name;
use super::*;

const IP: &str = "10.20.4.1";
const SERVICES: &str = "/api/v1/namespaces/default/services/";
const LBS: &str = "/apis/loadbalancer.harvesterhci.io/v1beta1/namespaces/guests/loadbalancers";

/// LoadBalancer objects on the server, the caches of the provider, and the provider.
struct Lab {
    server: Scenario,
    stored: Arc<Mutex<BTreeMap<String, Value>>>,
    conflicts: Arc<Mutex<usize>>,
    /// Services that are being deleted, which the cache does not show yet.
    going: Arc<Mutex<BTreeSet<String>>>,
    services: ServiceCache,
    nodes: NodeCache,
    lbs: LbCache,
    provider: HarvesterLoadBalancers,
}

impl Lab {
    fn new(services: Vec<ServiceView>) -> Self {
        let stored: Arc<Mutex<BTreeMap<String, Value>>> = Arc::default();
        let conflicts: Arc<Mutex<usize>> = Arc::default();
        let going: Arc<Mutex<BTreeSet<String>>> = Arc::default();
        let (objects, refuse, leaving) = (Arc::clone(&stored), Arc::clone(&conflicts), Arc::clone(&going));
        let services = cloud_provider::cache::services_with(services);
        let known = services.clone();
        let server = Scenario::answering(move |request| {
            if let Some(name) = request.path.strip_prefix(SERVICES).filter(|_| request.method == "GET") {
                let shown = known.get(&key(&format!("default/{name}")));
                let going = leaving.lock().contains(name)
                    || shown.as_ref().is_some_and(|shown| shown.deleting && name == "web");
                let mut object = live(name, going);
                if shown.as_ref().is_some_and(|shown| !shown.is_load_balancer) {
                    object["spec"]["type"] = json!("ClusterIP");
                }
                // The watch is not behind, except where a test has it so.
                let version = shown.filter(|_| !going).map(|shown| shown.resource_version.clone());
                object["metadata"]["resourceVersion"] = json!(version.unwrap_or_else(|| "9999".into()));
                return (200, object);
            }
            answer(request, &mut objects.lock(), &mut refuse.lock())
        });
        let nodes = cloud_provider::cache::nodes_with([]);
        let lbs = lb_cache();
        lbs.replace(BTreeMap::new());
        let requests = Requests::new(server.client(), server.client(), "guests");
        let metrics = Arc::new(Metrics::register(&mut Registry::default()));
        let mapping = MappingSource::in_memory(None);
        let provider = HarvesterLoadBalancers::new(
            (config(), Identity::known("demo")),
            (services.clone(), nodes.clone()),
            (lbs.clone(), watched()),
            mapping,
            requests,
            metrics,
        );
        Self { server, stored, conflicts, going, services, nodes, lbs, provider }
    }

    fn name(&self) -> String {
        object_name(&config(), &self.service())
    }

    fn service(&self) -> ServiceView {
        self.services.get(&key("default/web")).unwrap().as_ref().clone()
    }

    /// The host changes an object; the watch does not show it yet.
    fn host(&self, change: impl FnOnce(&mut Value)) {
        let mut stored = self.stored.lock();
        let object = stored.get_mut(&self.name()).expect("an object");
        change(object);
        bump(object);
    }

    fn host_books(&self) {
        self.host(|object| booked(object, IP));
    }

    /// The watch catches up.
    fn watch(&self) {
        let stored = self.stored.lock();
        let view = |object: &Value| LbView::from(&serde_json::from_value::<LoadBalancer>(object.clone()).unwrap());
        self.lbs.replace(stored.iter().map(|(name, object)| (name.clone(), view(object))).collect());
    }

    fn guest(&self, change: impl FnOnce(&mut ServiceView)) {
        let mut service = self.service();
        change(&mut service);
        service.resource_version = "9000".into();
        self.services.apply(service.key.clone(), service);
    }

    /// Long after what the provider has seen so far: no deletion waits for a booking any more.
    fn later(&self) {
        self.provider.objects.grow_older(booking::BOOKING);
    }

    fn quota_reached(&self, config: &LoadBalancerConfig) -> Option<usize> {
        self.provider.quota_reached(&key("default/new"), &self.provider.memory(), config)
    }

    async fn ensure(&self) -> Result<Ensured, ProviderError> {
        self.provider.ensure(&self.service()).await
    }

    /// The API has it that the Service is being deleted, or is gone.
    async fn delete(&self) -> Deleted {
        self.going.lock().insert("web".into());
        self.provider.delete(&self.service()).await.unwrap()
    }

    /// The requests since the last call, as `METHOD resource`.
    fn sent(&self) -> Vec<ReceivedRequest> {
        let seen = self.server.requests();
        self.server.clear();
        seen
    }

    /// The same without what only reads.
    fn written(&self) -> Vec<ReceivedRequest> {
        self.sent().into_iter().filter(|seen| seen.method != "GET").collect()
    }

    /// Up to a served Service whose mailbox is written.
    async fn served(&self) {
        self.ensure().await.unwrap();
        self.host_books();
        self.watch();
        self.ensure().await.unwrap();
        self.guest(|service| {
            service.annotations.insert("kube-vip.io/loadbalancerIPs", IP);
            service.ingress = vec![IP.parse().unwrap()];
        });
        self.ensure().await.unwrap();
        self.watch();
        self.sent();
    }
}

/// What the host writes when it has booked this address.
fn booked(object: &mut Value, ip: &str) {
    object["metadata"]["finalizers"] = json!(["wrangler.cattle.io/harvester-lb-controller"]);
    object["metadata"]["annotations"]["loadbalancer.harvesterhci.io/network"] = json!("guests/mgmt");
    object["spec"]["fromTheFuture"] = json!({"a": 1});
    object["status"] = json!({
        "allocatedAddress": {"ip": ip, "ipPool": "edge", "mask": "255.255.0.0", "gateway": "<nil>"},
        "conditions": [{"type": "Ready", "status": "True", "lastUpdateTime": "2026-01-01T00:00:00Z"}]
    });
}

fn watched() -> watch::Receiver<Status> {
    watch::Sender::default().subscribe()
}

fn methods(seen: &[ReceivedRequest]) -> Vec<&str> {
    seen.iter().map(|seen| seen.method.as_str()).collect()
}

fn bump(object: &mut Value) {
    let version: u64 = object["metadata"]["resourceVersion"].as_str().and_then(|text| text.parse().ok()).unwrap_or(100);
    object["metadata"]["resourceVersion"] = json!((version + 1).to_string());
}

/// A Service as the API has it now.
fn live(name: &str, is_going: bool) -> Value {
    let deleted = is_going.then_some("2026-01-01T00:00:00Z");
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"namespace": "default", "name": name, "uid": format!("uid-of-default-{name}"),
            "deletionTimestamp": deleted},
        "spec": {"type": "LoadBalancer", "ports": [{"port": 80}]},
    })
}

fn answer(request: &ReceivedRequest, stored: &mut BTreeMap<String, Value>, conflicts: &mut usize) -> (u16, Value) {
    if request.path.starts_with(SERVICES) {
        assert_eq!(request.method, "PATCH");
        let kind = json!({"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata"});
        let mut answer = kind;
        answer["metadata"] = json!({"name": "web", "resourceVersion": "500"});
        return (200, answer);
    }
    let name =
        request.path.strip_prefix(LBS).expect("a request about load balancers").trim_start_matches('/').to_owned();
    let missing = || (404, Scenario::status(404, "NotFound", &format!("loadbalancers \"{name}\" not found")));
    match request.method.as_str() {
        "POST" => {
            let name = request.body["metadata"]["name"].as_str().unwrap().to_owned();
            if stored.contains_key(&name) {
                return (
                    409,
                    Scenario::status(409, "AlreadyExists", &format!("loadbalancers \"{name}\" already exists")),
                );
            }
            let mut object = request.body.clone();
            object["metadata"]["uid"] = json!(format!("uid-{name}"));
            object["metadata"]["creationTimestamp"] = json!("2020-01-01T00:00:00Z");
            bump(&mut object);
            stored.insert(name, object.clone());
            (201, object)
        }
        "GET" => stored.get(&name).map_or_else(missing, |object| (200, object.clone())),
        "PUT" => {
            let Some(object) = stored.get_mut(&name) else { return missing() };
            let stale = request.body["metadata"]["resourceVersion"] != object["metadata"]["resourceVersion"];
            if stale || *conflicts > 0 {
                *conflicts = conflicts.saturating_sub(1);
                bump(object);
                return (409, Scenario::status(409, "Conflict", "the object has been modified"));
            }
            *object = request.body.clone();
            bump(object);
            (200, object.clone())
        }
        "DELETE" => {
            let Some(object) = stored.get_mut(&name) else { return missing() };
            assert_eq!(request.body["preconditions"]["uid"], object["metadata"]["uid"]);
            if object["metadata"]["finalizers"].as_array().is_none_or(Vec::is_empty) {
                stored.remove(&name);
                return (200, json!({"kind": "Status", "apiVersion": "v1", "status": "Success"}));
            }
            object["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
            bump(object);
            (200, object.clone())
        }
        other => panic!("unexpected {other}"),
    }
}

/// ../golden 01-pool: what is sent for a new Service, and nothing twice although the caches are behind.
#[tokio::test]
async fn a_served_service_shows_which_of_its_annotations_nobody_reads() {
    let lab = Lab::new(vec![service("default/web").done()]);
    lab.served().await;
    lab.guest(|service| service.annotations.insert("cloudprovider.harvesterhci.io/ippol", "edge"));
    let Ok(Ensured::Ready { changed: false, remark: Some(remark) }) = lab.ensure().await else { panic!("no remark") };
    assert_eq!(remark.reason, "UnknownAnnotation");
    lab.guest(|service| service.annotations.remove("cloudprovider.harvesterhci.io/ippol"));
    let answer = lab.ensure().await.unwrap();
    assert!(matches!(answer, Ensured::Ready { changed: false, remark: None }), "{answer:?}");
}

/// W-19.
#[tokio::test]
async fn a_new_pool_service_costs_one_post_one_patch_and_one_put() {
    let lab = Lab::new(vec![service("default/web").done()]);
    assert!(matches!(lab.ensure().await.unwrap(), Ensured::Waiting(waiting) if !waiting.needs_user));
    let sent = lab.sent();
    assert_eq!(methods(&sent), ["POST"]);
    assert_eq!(sent[0].path, LBS);
    assert_eq!(sent[0].body["metadata"]["name"], lab.name().as_str());
    assert_eq!(sent[0].body["status"], json!({"allocatedAddress": {}}));

    lab.ensure().await.unwrap();
    assert_eq!(methods(&lab.sent()), Vec::<&str>::new(), "the watch has not shown our object yet");

    lab.host_books();
    lab.watch();
    assert_eq!(lab.ensure().await.unwrap(), Ensured::ready(true));
    let sent = lab.sent();
    assert_eq!(methods(&sent), ["PATCH"]);
    assert_eq!(sent[0].content_type, "application/merge-patch+json");
    assert_eq!(sent[0].path, "/api/v1/namespaces/default/services/web");
    assert_eq!(
        sent[0].body,
        json!({"metadata": {"uid": "uid-of-default-web", "annotations": {"kube-vip.io/loadbalancerIPs": IP}}})
    );

    assert_eq!(lab.ensure().await.unwrap(), Ensured::ready(false));
    assert_eq!(methods(&lab.sent()), Vec::<&str>::new(), "the cache has not shown our patch yet");

    lab.guest(|service| {
        service.annotations.insert("kube-vip.io/loadbalancerIPs", IP);
        service.ingress = vec![IP.parse().unwrap()];
    });
    let before = lab.stored.lock()[&lab.name()].clone();
    assert_eq!(lab.ensure().await.unwrap(), Ensured::ready(false), "bookkeeping is no news for the user");
    let sent = lab.sent();
    assert_eq!(methods(&sent), ["GET", "PUT"]);
    let mut expected = before;
    expected["status"]["address"] = json!(IP);
    assert_eq!(sent[1].body, expected, "everything else is sent as it was read");

    lab.ensure().await.unwrap();
    lab.watch();
    lab.ensure().await.unwrap();
    assert_eq!(methods(&lab.sent()), Vec::<&str>::new());
}

/// W-42.
#[tokio::test]
async fn two_configurations_live_side_by_side_in_one_process() {
    let posted = async |network: Option<&str>| {
        let lab = Lab::new(vec![service("default/web").done()]);
        let network = network.map(|name| harvester_api::names::NetworkName::parse("managementNetwork", name).unwrap());
        let given = LoadBalancerConfig { management_network: network, ..config() };
        let provider = HarvesterLoadBalancers { given, ..lab.provider };
        provider.ensure(&lab.services.get(&key("default/web")).unwrap()).await.unwrap();
        let sent = lab.server.requests();
        sent[0].body["metadata"]["annotations"]["cloudprovider.harvesterhci.io/managementNetwork"].clone()
    };
    let (one, other) = tokio::join!(posted(Some("guests/mgmt")), posted(None));
    assert_eq!((one, other), (json!("guests/mgmt"), Value::Null));
}

#[tokio::test]
async fn an_object_of_a_former_leader_is_adopted() {
    let lab = Lab::new(vec![service("default/web").done()]);
    lab.ensure().await.unwrap();
    lab.host_books();
    lab.sent();
    // A new process whose first list is older than the object.
    let successor = Lab::new(vec![service("default/web").done()]);
    *successor.stored.lock() = lab.stored.lock().clone();
    assert_eq!(successor.ensure().await.unwrap(), Ensured::ready(true));
    assert_eq!(methods(&successor.sent()), ["POST", "GET", "PATCH"]);
}

#[tokio::test]
async fn a_conflict_with_the_host_is_answered_by_a_fresh_read() {
    let lab = Lab::new(vec![service("default/web").short(&[("ip", IP)]).ingress(IP).done()]);
    lab.ensure().await.unwrap();
    lab.host_books();
    lab.watch();
    lab.sent();
    *lab.conflicts.lock() = 2;
    lab.ensure().await.unwrap();
    let sent = lab.sent();
    assert_eq!(methods(&sent), ["GET", "PUT", "GET", "PUT", "GET", "PUT"]);
    assert_eq!(lab.stored.lock()[&lab.name()]["status"]["address"], IP);
}

#[tokio::test]
async fn an_object_that_is_deleted_behind_our_back_is_not_written() {
    let lab = Lab::new(vec![service("default/web").short(&[("ip", IP)]).ingress(IP).done()]);
    lab.ensure().await.unwrap();
    lab.host_books();
    lab.watch();
    lab.host(|object| object["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z"));
    lab.sent();
    assert!(
        matches!(lab.ensure().await.unwrap(), Ensured::Waiting(waiting) if waiting.message.contains("is being deleted"))
    );
    assert_eq!(methods(&lab.sent()), ["GET"]);
}

/// H15, W-40.
#[tokio::test]
async fn a_refusal_of_the_host_reaches_the_user_in_its_words() {
    let message = "admission webhook \"validator\" denied the request: shows guest cluster demo is being removed";
    let server = Scenario::answering(move |_| (500, Scenario::status(500, "InternalError", message)));
    let lab = Lab::new(vec![service("default/web").done()]);
    let requests = Requests::new(server.client(), server.client(), "guests");
    let provider = HarvesterLoadBalancers { requests, ..lab.provider };
    let error = provider.ensure(&lab.services.get(&key("default/web")).unwrap()).await.unwrap_err();
    let name = object_name(&config(), &lab.services.get(&key("default/web")).unwrap());
    assert_eq!((error.permanent, error.longest_pause), (false, Some(Duration::from_mins(2))));
    assert_eq!(chain(&error), format!("create or update lb guests/{name} failed, error: {message}"));
}

#[tokio::test]
async fn a_token_that_harvester_does_not_know_any_more_comes_with_its_remedy() {
    let server = Scenario::answering(|_| (401, Scenario::status(401, "Unauthorized", "Unauthorized")));
    let lab = Lab::new(vec![service("default/web").done()]);
    let requests = Requests::new(server.client(), server.client(), "guests");
    let provider = HarvesterLoadBalancers { requests, ..lab.provider };
    let error = provider.ensure(&lab.services.get(&key("default/web")).unwrap()).await.unwrap_err();
    assert_eq!((error.permanent, error.reason), (false, "HarvesterForbidden"));
    let told = chain(&error);
    for part in ["failed, error: Unauthorized; ", "expired or was revoked", "--rotate", "--cloud-config", "no restart"]
    {
        assert!(told.contains(part), "{part} is missing in {told}");
    }
}

#[tokio::test]
async fn a_missing_right_comes_with_the_role_that_gives_it_and_a_quota_does_not() {
    let told = async |message: &'static str| {
        let server = Scenario::answering(move |_| (403, Scenario::status(403, "Forbidden", message)));
        let lab = Lab::new(vec![service("default/web").done()]);
        let requests = Requests::new(server.client(), server.client(), "guests");
        let provider = HarvesterLoadBalancers { requests, ..lab.provider };
        chain(&provider.ensure(&lab.services.get(&key("default/web")).unwrap()).await.unwrap_err())
    };
    let rights = told(
        "loadbalancers.loadbalancer.harvesterhci.io is forbidden: User \"system:serviceaccount:guests:demo\" cannot \
         create resource \"loadbalancers\" in API group \"loadbalancer.harvesterhci.io\" in the namespace \"guests\"",
    )
    .await;
    for part in ["cannot create resource", "role harvesterhci.io:cloudprovider", "generate-addon demo guests` gives"] {
        assert!(rights.contains(part), "{part} is missing in {rights}");
    }
    let quota =
        told("loadbalancers \"demo\" is forbidden: exceeded quota: lbs, requested: 1, used: 3, limited: 3").await;
    assert!(quota.contains("exceeded quota") && !quota.contains("role "), "{quota}");
}

/// Seen: 13 of 28 Services that waited were in no figure.
#[tokio::test]
async fn a_service_with_a_wrong_annotation_counts_among_those_that_wait_until_it_is_corrected() {
    let mut registry = Registry::default();
    let mut lab = Lab::new(vec![service("default/web").short(&[("ipam", "dchp")]).done()]);
    lab.provider.metrics = Arc::new(Metrics::register(&mut registry));
    let waiting = || {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        let of = |line: &str| line.strip_prefix("harvester_loadbalancer_waiting{reason=\"user\"} ").map(str::to_owned);
        text.lines().find_map(of).unwrap_or_default()
    };
    for _ in 0..2 {
        assert!(lab.ensure().await.is_err());
        assert_eq!(waiting(), "1");
    }
    lab.services.apply(key("default/web"), service("default/web").done());
    lab.ensure().await.unwrap();
    assert_eq!(waiting(), "0");
}

/// W-34.
#[tokio::test]
async fn a_service_that_stays_without_load_balancer_loses_its_address_once() {
    let lab = Lab::new(vec![service("default/web").done()]);
    lab.served().await;
    lab.guest(|service| service.is_load_balancer = false);
    lab.delete().await;
    lab.stored.lock().clear();
    lab.watch();
    lab.sent();
    assert!(matches!(lab.delete().await, Deleted::Waiting(waiting) if !waiting.needs_user));
    let sent = lab.sent();
    assert_eq!(methods(&sent), ["GET", "PATCH"]);
    assert_eq!(sent[1].body["metadata"]["annotations"], json!({"kube-vip.io/loadbalancerIPs": null}));
    lab.guest(|service| service.annotations.remove("kube-vip.io/loadbalancerIPs"));
    assert_eq!(lab.delete().await, Deleted::Gone { existed: true });
    assert_eq!(methods(&lab.sent()), ["GET"]);
    assert!(lab.provider.memory().is_empty());
}

#[tokio::test]
async fn a_service_that_is_deleted_keeps_its_annotations() {
    let lab = Lab::new(vec![service("default/web").done()]);
    lab.served().await;
    lab.guest(|service| (service.is_load_balancer, service.deleting) = (false, true));
    lab.delete().await;
    lab.stored.lock().clear();
    lab.watch();
    lab.sent();
    assert_eq!(lab.delete().await, Deleted::Gone { existed: true });
    assert_eq!(methods(&lab.sent()), ["GET"]);
}

/// W-20: the two decide at the same time, before any cache shows the other.
#[tokio::test]
async fn of_two_applicants_for_one_port_exactly_one_gets_it() {
    let primary = service("default/web").short(&[("ip", IP)]).ingress(IP).done();
    let applicant = |name| service(name).short(&[("primary", "default/web")]).ports(&["TCP/443"]).done();
    let lab = Lab::new(vec![primary, applicant("default/a"), applicant("default/b")]);
    let (a, b) = (applicant("default/a"), applicant("default/b"));
    let (a, b) = tokio::join!(lab.provider.ensure(&a), lab.provider.ensure(&b));
    let winners = [&a, &b].into_iter().filter(|result| result.is_ok()).count();
    assert_eq!(winners, 1, "{a:?} {b:?}");
    let refused = a.err().or(b.err()).unwrap();
    assert!(
        refused.permanent && refused.message.contains("error: port 443 has been used in service default/"),
        "{refused}"
    );
}

#[tokio::test]
async fn a_change_of_the_object_wakes_its_service_and_a_new_ingress_who_depends_on_it() {
    let sharer = service("default/a").short(&[("primary", "default/web")]).done();
    let lab = Lab::new(vec![service("default/web").done(), sharer]);
    let mut wakes = lab.provider.wakes();
    let mut drain = async || {
        let mut woken = BTreeSet::new();
        while let Ok(Some(key)) = tokio::time::timeout(Duration::from_millis(20), wakes.next()).await {
            woken.insert(key.to_string());
        }
        woken.into_iter().collect::<Vec<_>>()
    };
    drain().await;
    lab.ensure().await.unwrap();
    lab.watch();
    assert_eq!(drain().await, ["default/web"]);
    lab.guest(|service| service.ingress = vec![IP.parse().unwrap()]);
    assert_eq!(drain().await, ["default/a", "default/web"]);
    lab.stored.lock().clear();
    lab.watch();
    assert_eq!(drain().await, ["default/web"]);
}

/// Decisions 6 and 8: the host gets one object at a time, the second one with the finalizer that it put on the first.
#[tokio::test]
async fn the_second_service_waits_until_the_host_is_done_with_the_first() {
    let lab = Lab::new(vec![service("default/web").done()]);
    let mut wakes = lab.provider.wakes();
    // Not there before us.
    let api = service("default/api").done();
    lab.services.apply(api.key.clone(), api.clone());
    lab.ensure().await.unwrap();
    let Ensured::Waiting(waiting) = lab.provider.ensure(&api).await.unwrap() else { panic!("its turn has not come") };
    assert!(!waiting.needs_user && waiting.message.ends_with("1 others go before"), "{}", waiting.message);
    let sent = lab.sent();
    assert_eq!(methods(&sent), ["POST"]);
    assert_eq!(sent[0].body["metadata"]["finalizers"], Value::Null, "nothing is known of the host yet");

    lab.host_books();
    lab.watch();
    let woken: Vec<String> = [wakes.next().await, wakes.next().await].map(|key| key.unwrap().to_string()).into();
    assert!(woken.contains(&"default/api".to_owned()), "{woken:?}");
    lab.provider.ensure(&api).await.unwrap();
    let sent = lab.sent();
    assert_eq!(methods(&sent), ["POST"]);
    assert_eq!(sent[0].body["metadata"]["finalizers"], json!(["wrangler.cattle.io/harvester-lb-controller"]));
    assert_eq!(
        sent[0].body["metadata"]["annotations"]["cloudprovider.harvesterhci.io/preset-finalizer"],
        json!("true")
    );

    // The deletion of the first one waits for the second one, and is sent when its turn comes.
    let Deleted::Waiting(waiting) = lab.delete().await else { panic!("its turn has not come") };
    assert!(waiting.message.contains("waits for its turn"), "{}", waiting.message);
    assert_eq!(methods(&lab.sent()), [""; 0]);
    lab.provider.pacer.failed(&object_name(&config(), &api));
    lab.delete().await;
    assert_eq!(methods(&lab.written()), ["DELETE"]);
}
