//! Two replicas on a scripted API server that keeps one Lease with compare-and-swap.

use crate::leader::Annotation;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};

use super::super::{OnLoss, Timing};
use super::*;
use crate::log_lines::Lines;
use crate::scenario::{ReceivedRequest, Scenario};

const PATH: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases";

struct Server {
    scenario: Scenario,
    away: Arc<AtomicBool>,
    /// List and watch are granted, for one watch that shows the Lease and ends.
    granted: Arc<AtomicBool>,
    lease: Arc<Mutex<Option<Value>>>,
}

impl Server {
    fn new() -> Self {
        let (away, granted) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let lease: Arc<Mutex<Option<Value>>> = Arc::default();
        let scenario = Scenario::answering({
            let (away, granted, lease) = (Arc::clone(&away), Arc::clone(&granted), Arc::clone(&lease));
            move |seen| {
                if away.load(Ordering::Relaxed) {
                    return (503, Scenario::status(503, "ServiceUnavailable", "away"));
                }
                let mut lease = lease.lock();
                if seen.path == PATH && seen.method == "GET" && granted.load(Ordering::Relaxed) {
                    return listed(seen, lease.as_ref(), &granted);
                }
                answer(seen, &mut lease)
            }
        });
        Self { scenario, away, granted, lease }
    }

    fn holder(&self) -> String {
        let lease = self.lease.lock();
        lease.as_ref().map_or("-", |lease| lease["spec"]["holderIdentity"].as_str().unwrap()).to_owned()
    }
}

fn listed(seen: &ReceivedRequest, lease: Option<&Value>, granted: &AtomicBool) -> (u16, Value) {
    match lease {
        Some(lease) if seen.query.contains("watch=true") && granted.swap(false, Ordering::Relaxed) => {
            (200, json!({"type": "MODIFIED", "object": lease}))
        }
        lease => {
            let items: Vec<&Value> = lease.into_iter().collect();
            (
                200,
                json!({"kind": "LeaseList", "apiVersion": "coordination.k8s.io/v1",
                    "metadata": {"resourceVersion": "1"}, "items": items}),
            )
        }
    }
}

fn answer(seen: &ReceivedRequest, lease: &mut Option<Value>) -> (u16, Value) {
    let version = |lease: &Value| lease["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
    let next = lease.as_ref().map_or(1, |lease| version(lease).parse::<u64>().unwrap() + 1);
    let stored = |lease: &mut Option<Value>| {
        let mut object = seen.body.clone();
        object["metadata"]["resourceVersion"] = json!(next.to_string());
        *lease = Some(object.clone());
        object
    };
    match (seen.method.as_str(), &lease) {
        ("GET", _) if seen.path == PATH => (403, Scenario::status(403, "Forbidden", "cannot list leases")),
        ("GET", Some(lease)) => (200, lease.clone()),
        ("GET", None) => (404, Scenario::status(404, "NotFound", "no such lease")),
        ("POST", None) => (201, stored(lease)),
        ("PUT", Some(current)) if version(current) == version(&seen.body) => (200, stored(lease)),
        _ => (409, Scenario::status(409, "Conflict", "the object has been modified")),
    }
}

struct Replica {
    leadership: watch::Receiver<Leadership>,
    check: Check,
    stop: CancellationToken,
    task: tokio::task::JoinHandle<Result<HandBack, LeaderError>>,
    events: tokio::sync::mpsc::Receiver<crate::events::Entry>,
}

fn config(identity: &str, on_loss: OnLoss) -> LeaderConfig {
    LeaderConfig {
        namespace: "kube-system".into(),
        name: "cloud-controller-manager".into(),
        identity: identity.into(),
        component: "cloud-controller-manager".into(),
        timing: Timing::default(),
        on_loss,
        watch: true,
    }
}

fn start(server: &Server, identity: &str, on_loss: OnLoss) -> Replica {
    let config = config(identity, on_loss);
    let (recorder, events) = Recorder::to_channel("test");
    let election = Election::new(server.scenario.client(), config, Some(&recorder));
    let (leadership, check, stop) = (election.leadership(), election.health(), CancellationToken::new());
    let task = tokio::spawn(election.run(stop.clone()));
    Replica { leadership, check, stop, task, events }
}

impl Replica {
    fn leads(&self) -> bool {
        self.leadership.borrow().is_leading()
    }

    fn told(&mut self) -> Vec<String> {
        std::iter::from_fn(|| self.events.try_recv().ok()).map(|event| event.message).collect()
    }
}

async fn seconds(seconds: u64) {
    tokio::time::sleep(Duration::from_secs(seconds)).await;
}

#[tokio::test(start_paused = true)]
async fn an_annotation_goes_with_the_renewals_while_there_is_something_to_say() {
    let server = Server::new();
    let says = Arc::new(Mutex::new(Annotation::Keep));
    let value = {
        let says = Arc::clone(&says);
        Arc::new(move || says.lock().clone())
    };
    let election = Election::new(server.scenario.client(), config("first", OnLoss::End), None)
        .with_annotation(["key", "key-holder"], value);
    let task = tokio::spawn(election.run(CancellationToken::new()));
    let shown = || server.lease.lock().as_ref().unwrap()["metadata"]["annotations"]["key"].as_str().map(str::to_owned);
    let writes = || server.scenario.requests().iter().filter(|seen| seen.method == "PUT").count();
    seconds(60).await;
    let usual = writes();
    assert_eq!(shown(), None);
    *says.lock() = Annotation::Set("MachinesReplaced".into());
    seconds(3).await;
    assert_eq!(shown().as_deref(), Some("MachinesReplaced"));
    *says.lock() = Annotation::Keep;
    seconds(7).await;
    assert_eq!(shown().as_deref(), Some("MachinesReplaced"), "not known: as it stands");
    *says.lock() = Annotation::Remove;
    seconds(50).await;
    assert_eq!(shown(), None);
    assert!(writes() - usual <= usual + 1, "no write more than the renewals");
    task.abort();
}

/// A right that is missing must not be asked for all the time, and one that is granted later must be noticed.
#[tokio::test(start_paused = true)]
async fn a_watch_that_is_refused_is_tried_again_less_and_less_often() {
    let server = Server::new();
    let _first = start(&server, "first", OnLoss::End);
    let lists = || server.scenario.requests().iter().filter(|seen| seen.method == "GET" && seen.path == PATH).count();
    seconds(10).await;
    let soon = lists();
    assert!((3..=4).contains(&soon), "at once, after 1 s, after 3 s, after 7 s: {soon}");
    seconds(3600).await;
    assert!((5..=20).contains(&(lists() - soon)), "{}", lists() - soon);
}

#[tokio::test(start_paused = true)]
async fn after_a_watch_that_worked_a_refusal_is_tried_again_soon() {
    let server = Server::new();
    let _first = start(&server, "first", OnLoss::End);
    let lists = || server.scenario.requests().iter().filter(|seen| seen.method == "GET" && seen.path == PATH).count();
    seconds(3600).await;
    server.granted.store(true, Ordering::Relaxed);
    let before = lists();
    seconds(1200).await;
    assert!(!server.granted.load(Ordering::Relaxed), "it was watched");
    assert!(lists() - before >= 10, "after 1, 2, 4 s and so on: {}", lists() - before);
}

#[tokio::test(start_paused = true)]
async fn a_missing_right_to_watch_is_told_once_and_only_when_it_lasts() {
    let lines = Lines::default();
    let _collecting = lines.collect();
    let told = || lines.count("no right to list");
    let server = Server::new();
    let _first = start(&server, "first", OnLoss::End);
    seconds(5).await;
    assert_eq!(told(), 0, "a server that has just started");
    seconds(3600).await;
    assert_eq!(told(), 1);
}

#[tokio::test(start_paused = true)]
async fn one_leads_the_other_follows_and_takes_over_within_one_poll_of_a_release() {
    let server = Server::new();
    let mut first = start(&server, "first", OnLoss::End);
    seconds(1).await;
    let mut second = start(&server, "second", OnLoss::End);
    seconds(60).await;
    assert!(first.leads() && !second.leads());
    assert_eq!(*second.leadership.borrow(), Leadership::Following { holder: "first".into() });
    assert_eq!(first.told(), ["first became leader"]);

    first.stop.cancel();
    assert!(first.task.await.unwrap().is_ok());
    assert_eq!(server.holder(), "");
    tokio::time::sleep(Duration::from_millis(2100)).await;
    assert!(second.leads());
    assert_eq!(server.holder(), "second");
    assert_eq!(second.told(), ["second became leader"]);
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_vanished_is_succeeded_after_its_lease_duration_and_one_poll() {
    let server = Server::new();
    let first = start(&server, "first", OnLoss::End);
    seconds(1).await;
    let second = start(&server, "second", OnLoss::End);
    seconds(10).await;
    first.task.abort();
    seconds(13).await;
    assert!(!second.leads());
    seconds(4).await;
    assert!(second.leads());
}

#[tokio::test(start_paused = true)]
async fn a_leader_without_api_server_ends_before_anybody_else_may_begin() {
    let server = Server::new();
    let mut first = start(&server, "first", OnLoss::End);
    seconds(5).await;
    server.away.store(true, Ordering::Relaxed);
    let lost = tokio::time::timeout(Duration::from_secs(13), &mut first.task).await.expect("within 2 + 10 seconds");
    assert!(lost.unwrap().unwrap_err().to_string().starts_with("leaderelection lost"));
    assert_eq!(first.told(), ["first became leader", "first stopped leading"]);
}

#[tokio::test(start_paused = true)]
async fn one_that_keeps_trying_stays_in_its_role_and_health_tells() {
    let server = Server::new();
    let mut first = start(&server, "first", OnLoss::KeepTrying);
    seconds(5).await;
    server.away.store(true, Ordering::Relaxed);
    seconds(20).await;
    assert!(matches!(*first.leadership.borrow_and_update(), Leadership::Leading { confirmed: false, .. }));
    assert!((first.check)().is_ok());
    seconds(20).await;
    assert!((first.check)().unwrap_err().contains("last renewed"));
    server.away.store(false, Ordering::Relaxed);
    seconds(3).await;
    assert!(matches!(*first.leadership.borrow(), Leadership::Leading { confirmed: true, .. }));
    assert!((first.check)().is_ok());
    assert_eq!(first.told(), ["first became leader"], "the role never changed");
}

#[tokio::test(start_paused = true)]
async fn a_put_carries_everything_that_was_in_the_lease() {
    let server = Server::new();
    let first = start(&server, "first", OnLoss::End);
    seconds(1).await;
    if let Some(lease) = server.lease.lock().as_mut() {
        lease["metadata"]["labels"] = json!({"kept": "yes"});
        lease["spec"]["future"] = json!(1);
        lease["metadata"]["resourceVersion"] = json!("100");
    }
    seconds(3).await;
    let lease = server.lease.lock().clone().unwrap();
    assert!(first.leads());
    assert_eq!((&lease["metadata"]["labels"]["kept"], &lease["spec"]["future"]), (&json!("yes"), &json!(1)));
    assert_ne!(lease["metadata"]["resourceVersion"], json!("100"), "it was renewed since");
    let writes = server.scenario.writes();
    assert_eq!(writes.iter().filter(|seen| seen.method == "POST").count(), 1);
}

#[tokio::test(start_paused = true)]
async fn the_lease_is_handed_back_only_after_the_work_under_way_is_finished() {
    let server = Server::new();
    let election = Election::new(server.scenario.client(), config("first", OnLoss::End), None);
    let stop = CancellationToken::new();
    let task = tokio::spawn(super::super::run_while_leading(election, stop.clone(), |stop| async move {
        stop.cancelled().await;
        seconds(5).await;
        "finished"
    }));
    seconds(3).await;
    assert_eq!(server.holder(), "first");
    stop.cancel();
    seconds(4).await;
    assert_eq!(server.holder(), "first");
    seconds(2).await;
    assert_eq!(server.holder(), "");
    assert_eq!(task.await.unwrap().unwrap(), Some("finished"), "what the work came to is handed on");
}

/// Adds itself to the number of those that work, for as long as it lives.
struct Working(Arc<std::sync::atomic::AtomicUsize>);

impl Working {
    fn begin(count: &Arc<std::sync::atomic::AtomicUsize>) -> Self {
        assert_eq!(count.fetch_add(1, Ordering::SeqCst), 0, "somebody works already");
        Self(Arc::clone(count))
    }
}

impl Drop for Working {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

#[tokio::test(start_paused = true)]
async fn two_replicas_with_one_lease_never_work_at_the_same_time() {
    let server = Server::new();
    let working: Arc<std::sync::atomic::AtomicUsize> = Arc::default();
    let mut stops = Vec::new();
    let mut replicas = tokio::task::JoinSet::new();
    let mut worked = 0;
    // By turns a replica is asked to stop, with work that takes its time to finish, and is cut off for longer than its
    // lease.
    for round in 0..12_u32 {
        while replicas.len() < 2 {
            let stop = CancellationToken::new();
            let election =
                Election::new(server.scenario.client(), config(&format!("r{}", stops.len()), OnLoss::End), None);
            let working = Arc::clone(&working);
            replicas.spawn(super::super::run_while_leading(election, stop.clone(), |stop| async move {
                let _working = Working::begin(&working);
                stop.cancelled().await;
                seconds(3).await;
            }));
            stops.push(stop);
        }
        seconds(20).await;
        worked += working.load(Ordering::SeqCst);
        if round % 2 == 0 {
            let leader: usize = server.holder()[1..].parse().expect("somebody leads");
            stops[leader].cancel();
            let stopped = replicas.join_next().await.unwrap().expect("never two at once");
            assert_eq!(stopped.unwrap(), Some(()));
        } else {
            server.away.store(true, Ordering::Relaxed);
            let lost = replicas.join_next().await.unwrap().expect("never two at once");
            assert!(lost.is_err());
            assert_eq!(working.load(Ordering::SeqCst), 0, "the work ended with the Lease");
            server.away.store(false, Ordering::Relaxed);
        }
    }
    assert_eq!(worked, 12, "and one of them always does");
}

#[tokio::test(start_paused = true)]
async fn work_ends_with_the_lease_and_a_follower_stops_without_having_worked() {
    let server = Server::new();
    let election = Election::new(server.scenario.client(), config("first", OnLoss::End), None);
    let task = tokio::spawn(super::super::run_while_leading(election, CancellationToken::new(), |_| {
        std::future::pending::<()>()
    }));
    seconds(3).await;
    let (follower, stop) =
        (Election::new(server.scenario.client(), config("second", OnLoss::End), None), CancellationToken::new());
    let follower = tokio::spawn(super::super::run_while_leading(follower, stop.clone(), |_| async {
        unreachable!("never leads")
    }));
    seconds(3).await;
    stop.cancel();
    assert_eq!(follower.await.unwrap().unwrap(), None::<()>);
    server.away.store(true, Ordering::Relaxed);
    assert!(task.await.unwrap().is_err());
}

#[tokio::test(start_paused = true)]
async fn holding_a_lease_costs_one_request_per_retry_period() {
    let server = Server::new();
    let first = start(&server, "first", OnLoss::End);
    seconds(1).await;
    server.scenario.clear();
    seconds(60).await;
    assert!(first.leads());
    // The watch, which is refused here, is apart.
    assert_eq!(server.scenario.requests().iter().filter(|seen| seen.path != PATH).count(), 30);
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_may_bear_our_name_is_not_called_handed_back() {
    let server = Server::new();
    let first = start(&server, "first", OnLoss::KeepTrying);
    seconds(1).await;
    first.stop.cancel();
    assert_eq!(first.task.await.unwrap().unwrap(), HandBack::Done);
    // Left behind by a former life, and nobody can be asked.
    let former = start(&server, "first", OnLoss::KeepTrying);
    seconds(1).await;
    former.task.abort();
    server.away.store(true, Ordering::Relaxed);
    let again = start(&server, "first", OnLoss::KeepTrying);
    seconds(5).await;
    again.stop.cancel();
    assert_eq!(again.task.await.unwrap().unwrap(), HandBack::Uncertain);

    server.away.store(false, Ordering::Relaxed);
    let other = start(&server, "other", OnLoss::KeepTrying);
    seconds(1).await;
    other.stop.cancel();
    assert_eq!(other.task.await.unwrap().unwrap(), HandBack::Done, "it bears another name");
    assert_eq!(server.holder(), "first");
}

#[test]
fn an_outage_is_told_when_it_begins_and_when_it_is_over() {
    let lines = Lines::default();
    let _collecting = lines.collect();
    let outage = Outage::default();
    outage.over("web");
    for _ in 0..100 {
        outage.failed("web", "read", "away");
    }
    outage.over("web");
    outage.over("web");
    outage.failed("web", "read", "away");
    let text = lines.text();
    let levels: Vec<&str> = text.lines().filter_map(|line| line.split_whitespace().next()).collect();
    assert_eq!(levels, ["WARN", "INFO", "WARN"], "{text}");
}
