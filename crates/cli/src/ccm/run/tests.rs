//! The whole command against scripted API servers, with paused time: what ends it, and what is written then.

use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use runtime::scenario::{ReceivedRequest, Scenario};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::super::config::configure;
use super::super::config::tests::CLOUD_CONFIG;
use super::super::flags::parse;
use super::*;

/// A guest cluster with one Lease and one Service that never lets itself be written: its controller tries for ever.
struct Guest {
    scenario: Scenario,
    stolen: Arc<AtomicBool>,
    /// Writes to the Service are not answered.
    hangs: Arc<AtomicBool>,
    /// The answer to a GET of the record.
    record: Arc<Mutex<(u16, Value)>>,
    log: Arc<Mutex<Vec<(Instant, ReceivedRequest)>>>,
}

impl Guest {
    fn new() -> Self {
        let (stolen, hangs) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let log: Arc<Mutex<Vec<(Instant, ReceivedRequest)>>> = Arc::default();
        let record = Arc::new(Mutex::new((404, Scenario::status(404, "NotFound", "not found"))));
        let scenario = Scenario::answering({
            let (stolen, hangs, log) = (Arc::clone(&stolen), Arc::clone(&hangs), Arc::clone(&log));
            let record = Arc::clone(&record);
            let lease = Mutex::new(Value::Null);
            move |seen| {
                log.lock().push((Instant::now(), seen.clone()));
                if hangs.load(Ordering::Relaxed) && seen.path.contains(SERVICE) {
                    return (0, Value::Null);
                }
                if seen.method == "GET" && seen.path.ends_with("/configmaps/harvester-cloud-provider") {
                    return record.lock().clone();
                }
                answer(seen, &mut lease.lock(), stolen.load(Ordering::Relaxed))
            }
        });
        Self { scenario, stolen, hangs, record, log }
    }

    /// When a request of this method and path was sent last.
    fn last(&self, method: &str, path: &str) -> Option<Instant> {
        let log = self.log.lock();
        log.iter().rev().find(|(_, seen)| seen.method == method && seen.path.contains(path)).map(|(at, _)| *at)
    }

    fn events(&self) -> Vec<String> {
        let writes = self.scenario.writes();
        let messages = writes.iter().filter_map(|seen| seen.body["message"].as_str());
        // `<host>_<uuid> became leader`
        messages.filter_map(|message| message.split_once(' ')).map(|(_, what)| what.to_owned()).collect()
    }
}

fn answer(seen: &ReceivedRequest, lease: &mut Value, stolen: bool) -> (u16, Value) {
    let list = |kind: &str, items: Value| {
        (200, json!({"kind": kind, "apiVersion": "v1", "metadata": {"resourceVersion": "5"}, "items": items}))
    };
    let service = json!({"metadata": {"namespace": "default", "name": "web", "uid": "u", "resourceVersion": "1"},
        "spec": {"type": "LoadBalancer"}});
    if stolen {
        lease["spec"]["holderIdentity"] = json!("other");
        lease["metadata"]["resourceVersion"] = json!("9000");
    }
    match (seen.method.as_str(), seen.path.as_str()) {
        ("GET", _) if seen.query.contains("watch=true") => (403, Scenario::status(403, "Forbidden", "no watch")),
        ("GET", "/api/v1/services") => list("ServiceList", json!([service])),
        ("GET", "/api/v1/nodes") => list("NodeList", json!([])),
        ("GET", path) if path.ends_with("/leases") => (403, Scenario::status(403, "Forbidden", "no list")),
        ("GET", path) if path.contains("/leases/") && !lease.is_null() => (200, lease.clone()),
        ("POST" | "PUT", path) if path.contains("/leases") => {
            let version = &lease["metadata"]["resourceVersion"];
            if *version != seen.body["metadata"]["resourceVersion"] {
                return (409, Scenario::status(409, "Conflict", "the object has been modified"));
            }
            let next = version.as_str().map_or(1, |version| version.parse::<u64>().unwrap() + 1);
            *lease = seen.body.clone();
            lease["metadata"]["resourceVersion"] = json!(next.to_string());
            (200, lease.clone())
        }
        ("POST", path) if path.ends_with("/events") => (201, seen.body.clone()),
        _ => (404, Scenario::status(404, "NotFound", "not found")),
    }
}

/// What the controller lists on Harvester.
const COLLECTIONS: [&str; 5] =
    ["/loadbalancers", "/ippools", "/virtualmachines", "/virtualmachineinstances", "/virtualmachineinstancemigrations"];

/// Runs the command beside `script`, which gets what stops it; tells how it ended, and when.
async fn run_beside(
    guest: &Guest,
    arguments: &[&str],
    script: impl AsyncFnOnce(Token),
) -> (anyhow::Result<()>, Instant) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("cloud-config");
    std::fs::write(&path, CLOUD_CONFIG).unwrap();
    let file = format!("--cloud-config={}", path.display());
    let flags = parse(["harvester-cloud-provider", &file, "--secure-port=0"].iter().chain(arguments)).unwrap();
    let configuration = configure(&flags).unwrap();
    // It has nothing, and can be listed: before that no Service gets a finalizer.
    let harvester = Scenario::answering(|seen| {
        let list = json!({"kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": "5"}, "items": []});
        match seen.method.as_str() {
            "GET" if seen.query.contains("watch=true") => (403, Scenario::status(403, "Forbidden", "no watch")),
            "GET" if COLLECTIONS.iter().any(|name| seen.path.ends_with(name)) => (200, list),
            _ => (404, Scenario::status(404, "NotFound", "not found")),
        }
    });
    let (harvester, servers) = (harvester.client(), None);
    let clients = Clients { guest: guest.scenario.client(), servers, harvester, connection: None };
    let stop = Token::new();
    let metrics = Metrics::new(&PRODUCT);
    let command = async {
        let command = manage(&flags, &configuration, clients, &metrics, stop.clone());
        let result = Box::pin(command).await;
        (result, Instant::now())
    };
    let limit = tokio::time::timeout(Duration::from_mins(5), command);
    let (ended, ()) = tokio::join!(limit, script(stop.clone()));
    ended.expect("it ends")
}

const SERVICE: &str = "/services/web";

async fn working(guest: &Guest) {
    // Services wait for a first judgement for 15 s.
    tokio::time::sleep(Duration::from_secs(20)).await;
    let last = guest.last("PATCH", SERVICE).expect("the service controller writes");
    assert!(last.elapsed() < Duration::from_secs(1), "and goes on writing");
}

#[tokio::test(start_paused = true)]
async fn nothing_is_written_after_the_lease_is_lost_and_the_process_ends_at_once() {
    let guest = Guest::new();
    let (result, ended) = run_beside(&guest, &[], async |_| {
        working(&guest).await;
        guest.stolen.store(true, Ordering::Relaxed);
    })
    .await;
    let error = result.unwrap_err();
    assert!(error.is::<Ended>(), "no failed start");
    assert!(runtime::error::chain(error.as_ref()).contains("ends: leaderelection lost"));
    let lost = guest.last("GET", "/leases/").expect("the Lease was read after the conflict");
    assert!(guest.last("PATCH", SERVICE).unwrap() <= lost, "somebody else works now");
    assert!(ended - lost < Duration::from_secs(1), "ended {:?} after the loss", ended - lost);
    assert_eq!(guest.events(), ["became leader", "stopped leading"]);
}

/// W-02.
#[tokio::test(start_paused = true)]
async fn a_stop_ends_the_work_then_releases_the_lease_and_reports_it() {
    let guest = Guest::new();
    let mut stopped = None;
    let (result, ended) = run_beside(&guest, &[], async |stop| {
        working(&guest).await;
        stopped = Some(Instant::now());
        stop.cancel();
    })
    .await;
    result.unwrap();
    assert!(ended - stopped.unwrap() < Duration::from_secs(1));
    let writes = guest.scenario.writes();
    let release = writes.iter().rposition(|seen| seen.path.contains("/leases/")).unwrap();
    assert_eq!(writes[release].body["spec"]["holderIdentity"], json!(""));
    assert!(!writes[release..].iter().any(|seen| seen.path.contains(SERVICE)), "the work ended before");
    assert_eq!(guest.events(), ["became leader", "stopped leading"]);
}

/// A pass that waits for an answer which does not come keeps nobody: the Lease is released in time.
#[tokio::test(start_paused = true)]
async fn a_request_that_hangs_does_not_delay_the_end() {
    let guest = Guest::new();
    guest.hangs.store(true, Ordering::Relaxed);
    let mut stopped = None;
    let (result, ended) = run_beside(&guest, &[], async |stop| {
        tokio::time::sleep(Duration::from_secs(20)).await;
        stopped = Some(Instant::now());
        stop.cancel();
    })
    .await;
    result.unwrap();
    assert!(guest.last("PATCH", SERVICE).is_some(), "the work hangs");
    assert!(ended - stopped.unwrap() < Duration::from_secs(1));
    let writes = guest.scenario.writes();
    let lease = writes.iter().rev().find(|seen| seen.path.contains("/leases/")).unwrap();
    assert_eq!(lease.body["spec"]["holderIdentity"], json!(""));
}

#[tokio::test(start_paused = true)]
async fn without_an_election_the_work_begins_and_ends_without_a_lease() {
    let guest = Guest::new();
    let (result, _) = run_beside(&guest, &["--leader-elect=false", "--controllers=*,-node-loss"], async |stop| {
        working(&guest).await;
        stop.cancel();
    })
    .await;
    result.unwrap();
    assert_eq!(guest.last("GET", "/leases"), None);
    assert_eq!(guest.last("POST", "/leases"), None);
}

/// For a minute the command runs, with these arguments.
async fn touches_no_service(guest: &Guest, arguments: &[&str]) {
    let (result, _) = run_beside(guest, arguments, async |stop| {
        tokio::time::sleep(Duration::from_mins(1)).await;
        stop.cancel();
    })
    .await;
    result.unwrap();
    assert_eq!(guest.last("PATCH", SERVICE), None);
}

/// Harvester has nothing: the pause alone keeps the controller from the Service, which it writes to otherwise.
#[tokio::test(start_paused = true)]
async fn a_controller_that_is_paused_touches_no_service_from_its_first_moment_on() {
    let guest = Guest::new();
    touches_no_service(&guest, &["--paused"]).await;
}

#[tokio::test(start_paused = true)]
async fn the_safe_mode_of_a_controller_before_this_one_holds_services_before_anything_is_judged() {
    let guest = Guest::new();
    let identity = json!({"clusterUID": "u", "namespace": "guests", "names": ["prod"], "machines": ["vm-1"]});
    let data = json!({"cluster-name": "prod", "identity": identity.to_string(), "safe-mode": "MachinesReplaced: all"});
    let metadata = json!({"name": "harvester-cloud-provider", "namespace": "kube-system", "resourceVersion": "1"});
    *guest.record.lock() = (200, json!({"metadata": metadata, "data": data}));
    touches_no_service(&guest, &[]).await;
}

/// Whether it forbids to write is not known. But nobody would learn what a Service waits for.
#[tokio::test(start_paused = true)]
async fn services_wait_for_the_record_and_not_for_ever() {
    let guest = Guest::new();
    *guest.record.lock() = (0, Value::Null);
    let (result, _) = run_beside(&guest, &[], async |stop| {
        tokio::time::sleep(Duration::from_secs(10)).await;
        assert_eq!(guest.last("PATCH", SERVICE), None);
        tokio::time::sleep(Duration::from_secs(20)).await;
        assert_ne!(guest.last("PATCH", SERVICE), None, "a condition says what it waits for");
        stop.cancel();
    })
    .await;
    result.unwrap();
}
