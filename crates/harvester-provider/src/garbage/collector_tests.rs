use futures::StreamExt;
use harvester_api::keys::cloudprovider::GUEST_REVISION;
use harvester_api::keys::harvester::LB_FINALIZER;
use prometheus_client::registry::Registry;
use runtime::cache::Cache;
use runtime::events::Entry;
use runtime::scenario::Scenario;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::super::super::load_balancers::build::{config, lb, service};
use super::*;
use crate::identity::keeper::record_cache;
use crate::identity::record::{CONFIRMED_LOST, Record};
use crate::load_balancers::own_writes::lb_cache;
use crate::load_balancers::pacing::Turn;
use crate::load_balancers::view::LbView;

const NAME_OF_LB: &str = "demo-default-web-1";

struct Lab {
    server: Scenario,
    collector: Collector,
    sources: Sources,
    recorder: Recorder,
    events: mpsc::Receiver<Entry>,
    registry: Registry,
}

fn lab(mode: GarbageMode, service_there: bool) -> Lab {
    let object = object();
    let server = Scenario::answering(move |request| {
        let missing = (404, Scenario::status(404, "NotFound", "not found"));
        let named = |uid: &str| (200, json!({"metadata": {"name": "x", "namespace": "default", "uid": uid}}));
        match (request.method.as_str(), request.path.rsplit('/').next().unwrap()) {
            ("GET", "web") if service_there => named("uid-of-default-web"),
            ("GET", "web") => missing,
            ("GET" | "DELETE", NAME_OF_LB) => (200, object.clone()),
            other => panic!("unexpected {other:?}"),
        }
    });
    let lbs = lb_cache();
    let view = LbView { uid: "lb-1".into(), ..lb(NAME_OF_LB).ready("10.0.0.1").done() };
    lbs.replace([(NAME_OF_LB.to_owned(), view)].into());
    let mut cluster = service("default/kubernetes").done();
    cluster.uid.0 = "uid-of-cluster".into();
    let sources = Sources {
        services: cloud_provider::cache::services_with([cluster]),
        nodes: cloud_provider::cache::nodes(),
        lbs,
        vms: Cache::in_memory(|old, new| old != new, []),
        vmis: Cache::in_memory(|old, new| old != new, []),
        machines: std::array::from_fn(|_| watch::Sender::default().subscribe()),
        record: record_cache(),
    };
    let settings = GarbageConfig::new(mode, Duration::ZERO);
    let (recorder, events) = Recorder::to_channel("test");
    let mut registry = Registry::default();
    let collector = Collector::new(
        settings,
        (config(), Identity::known("demo")),
        sources.clone(),
        std::array::from_fn(|_| watch::Sender::default().subscribe()),
        Requests::new(server.client(), server.client(), "guests"),
        Arc::default(),
        Arc::new(Metrics::register(&mut registry)),
    );
    Lab { server, collector, sources, recorder, events, registry }
}

fn object() -> Value {
    let view = super::super::super::load_balancers::desired::new_object(
        &config(),
        NAME_OF_LB,
        &service("default/web").done(),
        &super::super::super::load_balancers::choice::Source::Pool(None),
    );
    let mut object = serde_json::to_value(view).unwrap();
    object["metadata"]["uid"] = json!("lb-1");
    object["metadata"]["finalizers"] = json!([LB_FINALIZER]);
    object["status"] = json!({
        "allocatedAddress": {"ip": "10.0.0.1"}, "conditions": [{"type": "Ready", "status": "True"}]
    });
    object
}

#[tokio::test]
async fn garbage_is_told_once_and_always_when_asked() {
    let mut lab = lab(GarbageMode::List, false);
    let (garbage, mut told) = (lab.collector.look(), LastReported::default());
    assert_eq!(garbage.len(), 1);
    lab.collector.tell(&garbage, &mut told, &lab.recorder);
    lab.collector.tell(&garbage, &mut told, &lab.recorder);
    let event = lab.events.try_recv().unwrap();
    assert_eq!(event.reason, "GarbageLoadBalancers");
    assert!(event.message.contains(&format!("{NAME_OF_LB} of default/web (ours)")), "{}", event.message);
    assert!(lab.events.try_recv().is_err(), "the same list is no news");
    lab.sources.record.apply(NAME.into(), Record { list_garbage: Some("now".into()), ..Record::default() });
    lab.collector.tell(&[], &mut told, &lab.recorder);
    assert_eq!(lab.events.try_recv().unwrap().reason, "NoGarbage");
    assert_eq!(lab.server.requests(), [], "dry run");
}

/// W-53.
#[tokio::test]
async fn garbage_is_counted_by_its_kind_until_it_is_gone() {
    let lab = lab(GarbageMode::List, false);
    for (what, ours) in [("one without a Service", 1), ("none", 0)] {
        lab.collector.look();
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &lab.registry).unwrap();
        for (kind, count) in [("ours", ours), ("suspected", 0)] {
            let line = format!("harvester_garbage_loadbalancers{{kind=\"{kind}\"}} {count}");
            assert!(text.lines().any(|shown| shown == line), "{what}: {line} is not in\n{text}");
        }
        lab.sources.lbs.remove(&NAME_OF_LB.to_owned());
    }
}

#[tokio::test]
async fn both_api_servers_are_asked_before_anything_is_deleted() {
    let gone = lab(GarbageMode::Delete, false);
    let garbage = gone.collector.look();
    gone.collector.delete(&garbage[0], 0, &gone.recorder).await.unwrap();
    let writes = gone.server.writes();
    assert_eq!((writes.len(), writes[0].method.as_str()), (1, "DELETE"));
    assert_eq!(writes[0].body["preconditions"]["uid"], "lb-1");
}

#[tokio::test(start_paused = true)]
async fn garbage_takes_turns_with_the_load_balancers_of_services() {
    let lab = lab(GarbageMode::Delete, false);
    let garbage = lab.collector.look();
    assert!(pacing::releases(&garbage[0].lb));
    let pacer = Arc::clone(&lab.collector.pacer);
    let key = ServiceKey { namespace: "default".into(), name: "other".into() };
    assert_eq!(pacer.ask("other", &key, Work::CreateNew), Turn::Now);
    pacer.sent("other");
    let wakes = tokio::spawn(Arc::clone(&pacer).wakes().for_each(|_| std::future::ready(())));
    let mut deletion = std::pin::pin!(lab.collector.delete(&garbage[0], 0, &lab.recorder));
    let begin = tokio::time::Instant::now();
    assert!(tokio::time::timeout(Duration::from_secs(1), &mut deletion).await.is_err());
    assert_eq!(lab.server.requests(), [], "another one has the only place");
    pacer.seen("other", None);
    deletion.await.unwrap();
    assert_eq!(begin.elapsed(), Duration::from_secs(1), "it goes when the place is free, and not later");
    assert_eq!(lab.server.writes().len(), 1);
    assert!(matches!(pacer.ask("other", &key, Work::CreateNew), Turn::NotYet { .. }), "the host releases");
    wakes.abort();
}

#[tokio::test(start_paused = true)]
async fn trouble_that_came_and_went_while_a_turn_was_waited_for_keeps_the_object() {
    let guest = watch::Sender::<Status>::default();
    let mut lab = lab(GarbageMode::Delete, false);
    lab.collector.watched[1] = guest.subscribe();
    let garbage = lab.collector.look();
    let pacer = Arc::clone(&lab.collector.pacer);
    let key = ServiceKey { namespace: "default".into(), name: "other".into() };
    pacer.ask("other", &key, Work::CreateNew);
    pacer.sent("other");
    let wakes = tokio::spawn(Arc::clone(&pacer).wakes().for_each(|_| std::future::ready(())));
    let mut deletion = std::pin::pin!(lab.collector.delete(&garbage[0], 0, &lab.recorder));
    assert!(tokio::time::timeout(Duration::from_secs(1), &mut deletion).await.is_err());
    guest.send_replace(Status { synced: true, troubles: 1, ..Status::default() });
    pacer.seen("other", None);
    deletion.await.unwrap();
    assert_eq!(lab.server.requests(), []);
    wakes.abort();
}

#[tokio::test]
async fn garbage_that_the_host_is_booking_for_is_not_deleted_whatever_the_cache_shows() {
    let lab = lab(GarbageMode::Delete, false);
    let garbage = lab.collector.look();
    let mut booking = object();
    booking["status"]["conditions"] =
        json!([{"type": "Ready", "status": "False", "message": "fail to reserve 10.0.0.1 into edge"}]);
    let host = Scenario::answering(move |request| match request.path.rsplit('/').next().unwrap() {
        "web" => (404, Scenario::status(404, "NotFound", "no")),
        _ => (200, booking.clone()),
    });
    let requests = Requests::new(host.client(), host.client(), "guests");
    let collector = Collector { requests, ..lab.collector };
    collector.delete(&garbage[0], 0, &lab.recorder).await.unwrap();
    assert_eq!((host.requests().len(), host.writes().len()), (2, 0));
}

/// The hold of a safe mode.
fn forbidden() -> cloud_provider::provider::Hold {
    cloud_provider::provider::Hold { reason: "Test", message: String::new(), initialises_nodes: true, passing: false }
}

#[tokio::test]
async fn in_safe_mode_nothing_is_deleted() {
    let lab = lab(GarbageMode::Delete, false);
    let garbage = lab.collector.look();
    let hold = forbidden();
    lab.collector.identity.set_hold(Some(hold));
    lab.collector.delete(&garbage[0], 0, &lab.recorder).await.unwrap();
    assert_eq!(lab.server.requests(), []);
}

#[tokio::test]
async fn a_bare_404_is_no_proof_that_a_service_is_gone() {
    let lab = lab(GarbageMode::Delete, false);
    let garbage = lab.collector.look();
    let ingress = Scenario::answering(|request| match request.path.rsplit('/').next().unwrap() {
        "web" => (404, json!("404 page not found")),
        _ => (200, object()),
    });
    let requests = Requests::new(ingress.client(), ingress.client(), "guests");
    let collector = Collector { requests, ..lab.collector };
    assert!(collector.delete(&garbage[0], 0, &lab.recorder).await.is_err());
    assert_eq!(ingress.writes(), []);
}

/// The load balancer of a Service that a restore has lost: it is newer than the guest cluster.
fn from_the_future() -> LbView {
    let mut newer = LbView { uid: "lb-1".into(), ..lb(NAME_OF_LB).ready("10.0.0.1").done() };
    newer.annotations.insert(GUEST_REVISION, "101");
    newer
}

/// A guest cluster at revision 100 with a record of this data, which can be written. So many questions about its
/// revision fail.
fn guest(data: &Value, fails: usize) -> Scenario {
    let stored = json!({"metadata": {"name": NAME, "resourceVersion": "1"}, "data": data});
    let stored = parking_lot::Mutex::new((stored, fails));
    Scenario::answering(move |request| {
        let mut stored = stored.lock();
        match request.path.rsplit('/').next().unwrap() {
            "services" if stored.1 > 0 => {
                stored.1 -= 1;
                (500, Scenario::status(500, "InternalError", "etcd is away"))
            }
            "services" => (200, json!({"metadata": {"resourceVersion": "100"}, "items": []})),
            _ if request.method == "GET" => (200, stored.0.clone()),
            _ => {
                stored.0 = request.body.clone();
                (200, request.body.clone())
            }
        }
    })
}

/// The leader sees the word in the record before the safe mode that it ends is over; and one request may fail.
#[tokio::test(start_paused = true)]
async fn a_word_that_ends_a_safe_mode_is_written_down_within_seconds() {
    for (what, fails) in [("all is well", 0), ("the guest's API fails once", 1)] {
        let lab = lab(GarbageMode::List, false);
        lab.sources.lbs.replace([(NAME_OF_LB.to_owned(), from_the_future())].into());
        let guest = guest(&Value::Null, fails);
        let requests = Requests::new(guest.client(), guest.client(), "guests");
        let identity = lab.collector.identity.clone();
        let hold = forbidden();
        identity.set_hold(Some(hold));
        let run = tokio::spawn(Collector { requests, ..lab.collector }.run(lab.recorder));
        tokio::time::sleep(Duration::from_secs(1)).await;
        identity.confirm();
        lab.sources.record.apply(NAME.into(), Record { uid: Some("u".into()), ..Record::default() });
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(guest.writes(), [], "{what}: nothing is written in safe mode");
        identity.set_hold(None);
        tokio::time::sleep(Duration::from_secs(9)).await;
        let lost: Vec<Value> = guest.writes().iter().map(|write| write.body["data"][CONFIRMED_LOST].clone()).collect();
        assert_eq!(lost, [json!("lb-1\n")], "{what}");
        run.abort();
    }
}

/// The first lists may be those of API servers that are behind.
#[tokio::test(start_paused = true)]
async fn what_was_confirmed_leaves_the_record_only_when_the_view_has_settled() {
    let both = Record { confirmed_lost: ["lb-1".to_owned(), "lb-2".to_owned()].into(), ..Record::default() };
    for (settled, expected) in [(Duration::from_hours(1), None), (Duration::ZERO, Some(json!("lb-1\n")))] {
        let mut lab = lab(GarbageMode::List, false);
        lab.collector.settings.pace.settled = settled;
        lab.sources.record.apply(NAME.into(), both.clone());
        let guest = guest(&json!({CONFIRMED_LOST: "lb-1\nlb-2\n"}), 0);
        let requests = Requests::new(guest.client(), guest.client(), "guests");
        let run = tokio::spawn(Collector { requests, ..lab.collector }.run(lab.recorder));
        tokio::time::sleep(Duration::from_secs(1)).await;
        let left: Vec<Value> = guest.writes().iter().map(|write| write.body["data"][CONFIRMED_LOST].clone()).collect();
        assert_eq!(left, expected.into_iter().collect::<Vec<_>>(), "{settled:?}");
        run.abort();
    }
}

#[tokio::test(start_paused = true)]
async fn what_an_operator_confirms_after_a_restore_is_written_down_at_once_for_the_next_leader() {
    // The new leader may have followed the word before anything else began.
    for early in [false, true] {
        let lab = lab(GarbageMode::Delete, false);
        lab.sources.lbs.replace([(NAME_OF_LB.to_owned(), from_the_future())].into());
        let guest = guest(&Value::Null, 0);
        let requests = Requests::new(guest.client(), guest.client(), "guests");
        let identity = lab.collector.identity.clone();
        let suspected = || identity.restore_suspected(tokio::time::Instant::now()).is_some();
        let lost = || guest.writes().iter().filter(|write| write.body["data"][CONFIRMED_LOST] == "lb-1\n").count();
        if early {
            identity.confirm();
        }
        let run = tokio::spawn(Collector { requests, ..lab.collector }.run(lab.recorder));
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!((suspected(), lost()), (!early, usize::from(early)), "{early}");
        identity.confirm();
        let written = Record { confirmed_lost: ["lb-1".to_owned()].into(), ..Record::default() };
        let shown = if early { written.clone() } else { Record::default() };
        lab.sources.record.apply(NAME.into(), shown);
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!((suspected(), lost()), (false, 1), "{early}");
        // Another change of the record is no word.
        lab.sources.record.apply(NAME.into(), Record { safe_mode: Some("x".into()), ..written });
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(lost(), 1, "{early}");
        run.abort();
    }
}
