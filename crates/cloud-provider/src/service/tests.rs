//! The controller against a scripted API server and a scripted provider: requests, Events and retries.

mod first_sight;
mod held;
mod scheduling;

use std::collections::{BTreeMap, VecDeque};

use async_trait::async_trait;
use contract::keys::kubernetes::FINALIZER;
use futures::stream::BoxStream;
use runtime::events::Entry;
use runtime::scenario::{ReceivedRequest, Scenario};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::*;
use crate::cache;
use crate::managed_fields::FIELD_MANAGER;
use crate::provider::{AnnouncerPresence, Hold, ProviderError, Remark, Waiting};
use crate::test_support::service;
use crate::view::{Condition, ConditionStatus, Conditions, LOAD_BALANCER_READY, LOAD_BALANCER_WARNING, Uid};

type FirstSight = Result<BTreeMap<String, Option<String>>, Waiting>;

/// A provider that answers from a script; with the script at its end, all is well and gone.
#[derive(Default)]
struct Cloud {
    first_sight: Mutex<VecDeque<FirstSight>>,
    ensure: Mutex<VecDeque<Result<Ensured, ProviderError>>>,
    delete: Mutex<VecDeque<Result<Deleted, ProviderError>>>,
    calls: Mutex<Vec<String>>,
    wakes: Mutex<Option<mpsc::UnboundedReceiver<ServiceKey>>>,
    /// The hold.
    held: Mutex<Option<Arc<Hold>>>,
    /// What was to be deleted.
    deleted: Mutex<Vec<ServiceView>>,
}

#[async_trait]
impl LoadBalancers for Cloud {
    async fn ensure(&self, service: &ServiceView) -> Result<Ensured, ProviderError> {
        let call = format!("ensure {} v{} {}", service.key, service.resource_version, service.finalizers.len());
        self.calls.lock().push(call);
        self.ensure.lock().pop_front().unwrap_or(Ok(Ensured::ready(false)))
    }

    async fn delete(&self, service: &ServiceView) -> Result<Deleted, ProviderError> {
        self.calls.lock().push(format!("delete {} {}", service.key, service.uid));
        self.deleted.lock().push(service.clone());
        self.delete.lock().pop_front().unwrap_or(Ok(Deleted::Gone { existed: false }))
    }

    fn at_first_sight(&self, _: &ServiceView) -> FirstSight {
        self.first_sight.lock().pop_front().unwrap_or(Ok(BTreeMap::new()))
    }

    fn hold(&self, _: &ServiceView) -> Option<Arc<Hold>> {
        self.held.lock().clone()
    }

    fn wakes(&self) -> BoxStream<'static, ServiceKey> {
        match self.wakes.lock().take() {
            Some(receiver) => futures::stream::unfold(receiver, |mut receiver| async {
                receiver.recv().await.map(|key| (key, receiver))
            })
            .boxed(),
            None => futures::stream::pending().boxed(),
        }
    }
}

struct Test {
    controller: Arc<ServiceController>,
    cloud: Arc<Cloud>,
    cache: ServiceCache,
    scenario: Scenario,
    events: mpsc::Receiver<Entry>,
}

/// Applies a merge patch to a Service of this name, as far as the controller can tell.
fn patched(request: &ReceivedRequest) -> (u16, Value) {
    let name = request.path.split('/').nth(6).expect("a path of a Service");
    let metadata = &request.body["metadata"];
    assert!(metadata["resourceVersion"].is_string() || metadata["uid"] == "u1", "a precondition");
    let version: u64 = metadata["resourceVersion"].as_str().unwrap_or("1").parse().unwrap();
    let object = json!({
        "metadata": {"namespace": "default", "name": name, "uid": "u1", "resourceVersion": (version + 1).to_string(),
            "finalizers": [FINALIZER]},
        "spec": {"type": "LoadBalancer"},
        "status": if metadata["finalizers"].is_array() { request.body["status"].clone() } else { json!({}) },
    });
    (200, object)
}

impl Test {
    fn new(services: impl IntoIterator<Item = ServiceView>) -> Self {
        Self::with(services, Cloud::default(), patched)
    }

    fn with(
        services: impl IntoIterator<Item = ServiceView>,
        cloud: Cloud,
        answer: impl Fn(&ReceivedRequest) -> (u16, Value) + Send + Sync + 'static,
    ) -> Self {
        let scenario = Scenario::answering(answer);
        let cloud = Arc::new(cloud);
        let cache = cache::services_with(services);
        let (recorder, events) = Recorder::to_channel("test");
        let provider: Arc<dyn LoadBalancers> = Arc::<Cloud>::clone(&cloud);
        let settings = ServiceSettings::default();
        let controller = ServiceController::new(scenario.client(), provider, cache.clone(), &recorder, settings);
        Self { controller: Arc::new(controller), cloud, cache, scenario, events }
    }

    async fn pass(&self) -> Next {
        self.controller.process(&service("default/web").key).await
    }

    fn will_ensure(&self, answers: impl IntoIterator<Item = Result<Ensured, ProviderError>>) {
        self.cloud.ensure.lock().extend(answers);
    }

    fn will_delete(&self, answers: impl IntoIterator<Item = Result<Deleted, ProviderError>>) {
        self.cloud.delete.lock().extend(answers);
    }

    fn calls(&self) -> Vec<String> {
        std::mem::take(&mut self.cloud.calls.lock())
    }

    fn told(&mut self) -> Vec<String> {
        let events = std::iter::from_fn(|| self.events.try_recv().ok());
        events.map(|event| format!("{} {}", event.reason, event.message)).collect()
    }

    fn bodies(&self) -> Vec<Value> {
        self.scenario.writes().into_iter().map(|seen| seen.body).collect()
    }
}

fn changed(change: impl FnOnce(&mut ServiceView)) -> ServiceView {
    let mut view = service("default/web");
    change(&mut view);
    view
}

fn finalized(change: impl FnOnce(&mut ServiceView)) -> ServiceView {
    changed(|view| {
        view.finalizers = vec![FINALIZER.into()];
        view.conditions.ready = condition::first(view, AnnouncerPresence::Running, "2026-01-01T00:00:00Z");
        change(view);
    })
}

/// What lets a Service go.
fn released() -> Value {
    json!({"$deleteFromPrimitiveList/finalizers": [FINALIZER], "resourceVersion": "1"})
}

fn waiting(message: &str, retry_after: Option<Duration>) -> Waiting {
    Waiting { reason: "Test", message: message.into(), needs_user: false, failure: false, retry_after }
}

#[tokio::test]
async fn a_new_service_costs_one_patch_and_two_events() {
    let mut test = Test::new([service("default/web")]);
    test.will_ensure([Ok(Ensured::Waiting(waiting("allocating", None))), Ok(Ensured::ready(true))]);
    assert_eq!(test.pass().await, Next::OnChange);
    // The cache has not caught up with our own write yet: no second patch, and the provider sees the state after it.
    assert_eq!(test.pass().await, Next::OnChange);
    assert_eq!(test.told(), ["EnsuringLoadBalancer Ensuring load balancer"], "nobody serves it yet");
    let first = test.bodies()[0]["status"]["conditions"][0].clone();
    assert_eq!((&first["status"], &first["reason"]), (&json!("False"), &json!("Pending")));
    let served = finalized(|view| {
        view.resource_version = "2".into();
        view.ingress = vec!["10.0.0.1".parse().unwrap()];
    });
    test.cache.apply(served.key.clone(), served);
    assert_eq!(test.pass().await, Next::OnChange);

    assert_eq!(test.calls(), ["ensure default/web v2 1"; 3]);
    let writes = test.scenario.writes();
    assert_eq!(writes.len(), 2, "the finalizer with the first condition, and that it is served");
    let last = &writes[1].body["status"]["conditions"][0];
    assert_eq!((&last["status"], &last["reason"]), (&json!("True"), &json!("Served")));
    assert_eq!(
        (writes[0].method.as_str(), writes[0].path.as_str()),
        ("PATCH", "/api/v1/namespaces/default/services/web/status")
    );
    assert_eq!(writes[0].content_type, "application/strategic-merge-patch+json");
    assert_eq!(writes[0].body["metadata"], json!({"finalizers": [FINALIZER], "resourceVersion": "1"}));
    assert_eq!(test.told(), ["EnsuredLoadBalancer Ensured load balancer"]);
}

#[tokio::test]
async fn trouble_is_written_on_the_service_once_and_taken_back_once() {
    let test = Test::with([finalized(|_| {})], Cloud::default(), |_| (200, json!({"metadata": {"name": "web"}})));
    let refused = || Err(ProviderError::new("port 80 is taken").permanent().because("PortTaken"));
    test.will_ensure([refused(), refused(), refused(), Ok(Ensured::ready(true))]);
    test.pass().await;
    test.pass().await;
    let writes = test.scenario.writes();
    assert_eq!(writes.len(), 1, "the cache does not show it yet: {writes:?}");
    assert_eq!(writes[0].content_type, "application/strategic-merge-patch+json");
    assert_eq!(writes[0].path, "/api/v1/namespaces/default/services/web/status");
    let condition = &writes[0].body["status"]["conditions"][0];
    assert_eq!(
        (&condition["type"], &condition["status"], &condition["reason"], &condition["message"]),
        (&json!("LoadBalancerReady"), &json!("False"), &json!("PortTaken"), &json!("port 80 is taken"))
    );
    let shown = Some(written(condition));
    let served = || vec!["10.0.0.1".parse().unwrap()];
    test.cache.apply(service("default/web").key, finalized(|view| view.conditions.ready = shown.clone()));
    test.pass().await;
    assert_eq!(test.scenario.writes().len(), 1);
    let view = finalized(|view| (view.conditions.ready, view.ingress) = (shown, served()));
    test.cache.apply(view.key.clone(), view);
    test.pass().await;
    let writes = test.scenario.writes();
    assert_eq!(writes.len(), 2);
    assert_eq!(writes[1].body["status"]["conditions"][0]["status"], "True");
}

/// One that is in a request.
fn written(entry: &Value) -> Condition {
    let text = |key: &str| entry[key].as_str().unwrap().to_owned();
    Condition {
        status: entry["status"].as_str().unwrap().into(),
        reason: text("reason"),
        message: text("message"),
        since: text("lastTransitionTime"),
    }
}

/// A wrong edit takes nothing from the clients.
#[tokio::test]
async fn a_wrong_edit_of_a_service_that_is_served_leaves_it_ready_and_adds_a_warning() {
    let ready = Condition {
        status: ConditionStatus::True,
        reason: "Served".into(),
        message: "10.0.0.1 is served".into(),
        since: "2026-01-01T00:00:00Z".into(),
    };
    let served = |warning: Option<Condition>| {
        finalized(|view| {
            view.ingress = vec!["10.0.0.1".parse().unwrap()];
            view.conditions = Conditions { ready: Some(ready.clone()), warning };
        })
    };
    let test = Test::with([served(None)], Cloud::default(), |_| (200, json!({"metadata": {"name": "web"}})));
    let wrong = || Err(ProviderError::new("no such mode").permanent().because("UnknownIPAM"));
    test.will_ensure([wrong(), wrong(), Ok(Ensured::ready(false))]);
    test.pass().await;
    let written = test.bodies()[0]["status"]["conditions"].as_array().unwrap().clone();
    assert_eq!(written.len(), 1, "Ready stays True: {written:?}");
    assert_eq!(
        (&written[0]["type"], &written[0]["status"], &written[0]["reason"]),
        (&json!(LOAD_BALANCER_WARNING), &json!("True"), &json!("UnknownIPAM"))
    );
    test.cache.apply(service("default/web").key, served(Some(self::written(&written[0]))));
    test.pass().await;
    assert_eq!(test.bodies().len(), 1);
    test.pass().await;
    let forgotten = json!([{"type": LOAD_BALANCER_WARNING, "$patch": "delete"}]);
    assert_eq!((test.bodies().len(), &test.bodies()[1]["status"]["conditions"]), (2, &forgotten));
}

/// Seen: 149 writes per second on one Service.
#[tokio::test(start_paused = true)]
async fn a_write_that_somebody_undoes_is_repeated_more_seldom_each_time_and_the_other_writer_is_named() {
    let fields = json!([
        {"manager": "argocd", "operation": "Update", "time": "2026-01-01T00:05:00Z"},
        {"manager": FIELD_MANAGER, "operation": "Update", "time": "2026-01-01T00:05:01Z"},
    ]);
    let mut test = Test::with([finalized(|_| {})], Cloud::default(), move |_| {
        let metadata = json!({"name": "web", "managedFields": fields});
        (200, json!({"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata", "metadata": metadata}))
    });
    test.will_ensure((0..100).map(|_| Ok(Ensured::ready(true))));
    let start = Instant::now();
    let mut version = 10;
    while start.elapsed() < Duration::from_mins(10) {
        // Undone: the same state under another version.
        version += 1;
        let view = finalized(|view| view.resource_version = version.to_string());
        test.cache.apply(view.key.clone(), view);
        match test.pass().await {
            Next::After(rest) => tokio::time::advance(rest).await,
            _ => tokio::time::advance(Duration::from_millis(7)).await,
        }
    }
    let repairs = test.calls().len();
    assert!((10..20).contains(&repairs), "{repairs}");
    let told: Vec<String> = test.told().into_iter().filter(|told| told.starts_with("UndoneByOthers")).collect();
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(told[0].contains("\"argocd\" (Update at 2026-01-01T00:05:00Z)"), "{}", told[0]);
    // What the user changes meanwhile is answered at once.
    let asked = finalized(|view| {
        view.resource_version = "999".into();
        view.ports = [(crate::view::Protocol::Tcp, 8080)].into();
    });
    test.cache.apply(asked.key.clone(), asked);
    assert_eq!((test.pass().await, test.calls().len()), (Next::OnChange, 1));
}

/// Not as asked for, and no failure: `SyncLoadBalancerFailed` would say that nothing is served.
#[tokio::test]
async fn who_is_served_otherwise_than_asked_for_is_told_so_once_and_counts_as_served() {
    let served = || {
        let message = "10 is served".to_owned();
        Ok(Ensured::Ready { changed: false, remark: Some(Remark { reason: "NotAsAsked", message, warning: true }) })
    };
    let answer = |_: &ReceivedRequest| (200, json!({"metadata": {"name": "web"}}));
    let shown = |conditions: Conditions| {
        finalized(|view| {
            view.ingress = vec!["10.0.0.1".parse().unwrap()];
            view.conditions = conditions;
        })
    };
    let mut test = Test::with([shown(Conditions::default())], Cloud::default(), answer);
    test.will_ensure([served(), served()]);
    assert_eq!((test.pass().await, test.pass().await), (Next::OnChange, Next::OnChange));
    let writes = test.scenario.writes();
    assert_eq!(writes.len(), 1, "{writes:?}");
    let written = &writes[0].body["status"]["conditions"];
    let reasons = [&written[0], &written[1]].map(|written| (&written["type"], &written["status"], &written["reason"]));
    let ready = (&json!(LOAD_BALANCER_READY), &json!("True"), &json!("Served"));
    assert_eq!(reasons, [ready, (&json!(LOAD_BALANCER_WARNING), &json!("True"), &json!("NotAsAsked"))]);
    assert_eq!(test.told(), ["NotAsAsked 10 is served"]);

    let known = Conditions { ready: Some(self::written(&written[0])), warning: Some(self::written(&written[1])) };
    let mut successor = Test::with([shown(known)], Cloud::default(), answer);
    successor.will_ensure([served()]);
    successor.pass().await;
    assert_eq!((successor.scenario.requests().len(), successor.told().len()), (0, 0), "a restart says nothing again");
}

#[tokio::test]
async fn a_restart_over_a_healthy_service_sends_nothing() {
    let mut test = Test::new([finalized(|view| {
        view.ingress = vec!["10.0.0.1".parse().unwrap()];
        let (reason, message, since) = ("Served".into(), "10.0.0.1 is served".into(), "2026-01-01T00:00:00Z".into());
        view.conditions.ready = Some(Condition { status: ConditionStatus::True, reason, message, since });
    })]);
    assert_eq!(test.pass().await, Next::OnChange);
    assert_eq!(test.calls().len(), 1);
    assert_eq!((test.scenario.requests().len(), test.told().len()), (0, 0));
}

#[tokio::test]
async fn a_conflict_is_no_failure_and_is_not_told() {
    let mut test = Test::with([service("default/web")], Cloud::default(), |_| {
        (409, Scenario::status(409, "Conflict", "the object has been modified"))
    });
    for _ in 0..CONFLICTS {
        assert_eq!(test.pass().await, Next::After(AFTER_CONFLICT));
    }
    assert_eq!(test.told(), Vec::<String>::new());
    assert_eq!(test.pass().await, Next::BackOff, "unless it never ends");
}

#[tokio::test]
async fn errors_are_told_with_their_cause_and_backed_off_and_permanent_ones_wait_for_a_change() {
    let mut test = Test::new([finalized(|_| {})]);
    let refused = || ProviderError::caused("failed to create LoadBalancer guests/x", std::io::Error::other("no pool"));
    test.will_ensure([Err(refused()), Err(refused().permanent())]);
    assert_eq!(test.pass().await, Next::BackOff);
    let text = "SyncLoadBalancerFailed Error syncing load balancer: failed to ensure load balancer: failed to create \
        LoadBalancer guests/x: no pool";
    assert_eq!(test.told(), [text]);
    assert_eq!(test.pass().await, Next::OnChange);
    assert_eq!(test.told(), [text]);
}

/// Each attempt would raise the count of one Event, which is a write.
#[tokio::test(start_paused = true)]
async fn the_same_refusal_of_the_cloud_is_told_once_and_again_before_events_expire() {
    let refused = || ProviderError {
        longest_pause: Some(Duration::from_mins(2)),
        ..ProviderError::caused("failed to create lb", std::io::Error::other("denied the request"))
    };
    let because = || {
        let source = std::io::Error::other("denied the request");
        ProviderError::caused("failed to create lb", source).because("RefusedByHarvester")
    };
    let mut test = Test::new([finalized(|_| {})]);
    for (error, told) in [(refused as fn() -> ProviderError, 1), (because, 0)] {
        for _ in 0..5 {
            test.will_ensure([Err(error())]);
            test.pass().await;
        }
        assert_eq!(test.told().len(), told, "the text is the same");
    }
    tokio::time::advance(Duration::from_mins(10)).await;
    test.will_ensure([
        Err(refused()),
        Err(ProviderError::new("denied for another cause").because("RefusedByHarvester")),
    ]);
    test.pass().await;
    test.pass().await;
    assert_eq!(test.told().len(), 2);
    test.cache.remove(&service("default/web").key);
    test.will_delete((0..5).map(|_| Err(because())));
    for _ in 0..5 {
        test.pass().await;
    }
    assert_eq!(test.told().len(), 1, "of a Service that is gone, too");
}

#[tokio::test]
async fn deletion_waits_for_the_cloud_before_the_finalizer_goes() {
    let mut test = Test::new([finalized(|view| {
        view.deleting = true;
        view.ingress = vec!["10.0.0.1".parse().unwrap()];
    })]);
    let second = Duration::from_secs(1);
    test.will_delete([
        Ok(Deleted::Waiting(waiting("terminating", Some(second)))),
        Err(ProviderError::new("Harvester is away")),
        Ok(Deleted::Gone { existed: true }),
    ]);
    assert_eq!(test.pass().await, Next::After(second));
    assert_eq!(test.pass().await, Next::BackOff);
    assert_eq!(test.bodies(), Vec::<Value>::new());
    assert_eq!(test.pass().await, Next::OnChange);
    assert_eq!(test.bodies(), [json!({"metadata": released()})], "one request, no status write");
    assert_eq!(
        test.told(),
        [
            "DeletingLoadBalancer Deleting load balancer",
            "SyncLoadBalancerFailed Error syncing load balancer: failed to delete load balancer: Harvester is away",
            "DeletedLoadBalancer Deleted load balancer",
        ]
    );
    // A pass before the watch shows our own write asks nobody.
    test.calls();
    assert_eq!(test.pass().await, Next::OnChange);
    test.cache.remove(&service("default/web").key);
    assert_eq!(test.pass().await, Next::OnChange);
    assert!(!test.controller.remembers(&service("default/web").key));
}

#[tokio::test]
async fn from_load_balancer_to_cluster_ip_is_one_patch_for_finalizer_and_status() {
    let test = Test::new([finalized(|view| {
        view.is_load_balancer = false;
        view.ingress = vec!["10.0.0.1".parse().unwrap()];
    })]);
    assert_eq!(test.pass().await, Next::OnChange);
    let forgotten = json!([{"type": LOAD_BALANCER_READY, "$patch": "delete"}]);
    let status = json!({"loadBalancer": {"ingress": null}, "conditions": forgotten});
    assert_eq!(test.bodies(), [json!({"metadata": released(), "status": status})]);
}

/// As the API server does it: a patch with an old version is a conflict.
#[tokio::test]
async fn a_service_with_a_condition_is_released_at_the_first_attempt() {
    let version = Mutex::new(1);
    let trouble = |view: &mut ServiceView| {
        let (reason, message, since) = ("PortTaken".into(), "port 80 is taken".into(), String::new());
        view.conditions.ready = Some(Condition { status: ConditionStatus::False, reason, message, since });
        view.is_load_balancer = false;
    };
    let mut test = Test::with([finalized(trouble)], Cloud::default(), move |request| {
        let mut version = version.lock();
        if request.body["metadata"]["resourceVersion"].as_str().is_some_and(|had| had != version.to_string()) {
            return (409, Scenario::status(409, "Conflict", "the object has been modified"));
        }
        *version += 1;
        (
            200,
            json!({"metadata": {"namespace": "default", "name": "web", "uid": "u1",
                "resourceVersion": version.to_string()}}),
        )
    });
    assert_eq!(test.pass().await, Next::OnChange);
    assert_eq!(test.calls(), ["delete default/web u1"]);
    let conditions = json!([{"type": LOAD_BALANCER_READY, "$patch": "delete"}]);
    assert_eq!(test.bodies(), [json!({"metadata": released(), "status": {"conditions": conditions}})]);
    assert_eq!(test.told(), Vec::<String>::new());
    assert_eq!(test.pass().await, Next::OnChange, "before the cache shows it");
    assert_eq!((test.calls().len(), test.bodies().len()), (0, 1));
}

#[tokio::test]
async fn a_finalizer_removal_that_finds_nothing_is_done() {
    let mut test = Test::with([finalized(|view| view.deleting = true)], Cloud::default(), |_| {
        (404, Scenario::status(404, "NotFound", "services \"web\" not found"))
    });
    assert_eq!(test.pass().await, Next::OnChange);
    assert_eq!(test.told(), Vec::<String>::new());
}

#[tokio::test]
async fn a_service_that_vanished_is_cleaned_up_from_memory_until_it_works() {
    let mut test = Test::new([finalized(|_| {})]);
    test.pass().await;
    test.cache.remove(&service("default/web").key);
    test.will_delete([Err(ProviderError::new("Harvester is away")), Ok(Deleted::Gone { existed: true })]);
    assert_eq!(test.pass().await, Next::BackOff);
    assert_eq!(test.pass().await, Next::OnChange);
    assert_eq!(test.calls(), ["ensure default/web v1 1", "delete default/web u1", "delete default/web u1"]);
    assert_eq!(
        test.told(),
        [
            "DeleteLoadBalancerFailed Error deleting load balancer: Harvester is away",
            "DeletingLoadBalancer Deleting load balancer",
            "DeletedLoadBalancer Deleted load balancer",
        ]
    );
    assert_eq!(test.bodies(), Vec::<Value>::new());
}

#[tokio::test]
async fn a_recreated_service_waits_for_the_deletion_of_the_old_load_balancer() {
    let test = Test::new([finalized(|_| {})]);
    test.pass().await;
    test.cache.apply(service("default/web").key, changed(|view| view.uid = Uid("u2".into())));
    test.will_delete([Ok(Deleted::Waiting(waiting("terminating", None))), Ok(Deleted::Gone { existed: true })]);
    test.pass().await;
    assert_eq!(test.calls(), ["ensure default/web v1 1", "delete default/web u1"]);
    assert_eq!(test.bodies(), Vec::<Value>::new());
    test.pass().await;
    assert_eq!(test.calls(), ["delete default/web u1", "ensure default/web v2 1"]);
}

#[tokio::test]
async fn a_service_with_a_class_is_never_touched() {
    let mut test = Test::new([changed(|view| view.has_class = true)]);
    assert_eq!(test.pass().await, Next::OnChange);
    assert_eq!((test.calls().len(), test.scenario.requests().len(), test.told().len()), (0, 0, 0));
}

#[tokio::test]
async fn a_foreign_finalizer_of_the_same_name_stays_where_we_had_nothing() {
    let mut test = Test::new([finalized(|view| (view.has_class, view.deleting) = (true, true))]);
    test.pass().await;
    assert_eq!(test.calls(), ["delete default/web u1"]);
    assert_eq!(test.bodies(), Vec::<Value>::new());

    // The first lists have not arrived, as after each start.
    let waits = || Ok(Deleted::Waiting(waiting("not yet", None)));
    test.will_delete([waits(), waits(), Err(ProviderError::new("away")), Ok(Deleted::Gone { existed: false })]);
    for attempt in 1..=4 {
        test.pass().await;
        assert_eq!(test.calls(), ["delete default/web u1"], "{attempt}");
        assert_eq!(test.bodies(), Vec::<Value>::new(), "{attempt}");
    }
    let begun = test.told().into_iter().filter(|told| told.starts_with("DeletingLoadBalancer")).count();
    assert_eq!(begun, 1, "told once");
    assert!(!test.controller.remembers(&service("default/web").key));

    test.will_delete([waits(), Ok(Deleted::Gone { existed: true })]);
    for _ in 0..2 {
        test.pass().await;
    }
    assert_eq!(test.bodies(), [json!({"metadata": released()})]);
}

#[tokio::test]
async fn nothing_is_remembered_of_a_service_with_a_class_that_goes_while_its_deletion_waits() {
    let test = Test::new([finalized(|view| (view.has_class, view.deleting) = (true, true))]);
    test.will_delete([Ok(Deleted::Waiting(waiting("not yet", None)))]);
    test.pass().await;
    test.cache.remove(&service("default/web").key);
    assert_eq!(test.pass().await, Next::OnChange);
    assert_eq!(test.calls().len(), 1);
    assert!(!test.controller.remembers(&service("default/web").key));
}
