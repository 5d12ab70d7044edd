//! Which caches `/readyz` asks, and what it says when one of them stands still.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use announcer_core::config::Config;
use runtime::cache::Cache;
use runtime::health::{Health, Probe};
use runtime::scenario::Scenario;
use runtime::shutdown::Token;
use runtime::tasks::Tasks;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::{Shared, feeds};
use crate::membership;

/// Longer than a cache may stand still, the next attempt included.
const LONG: Duration = Duration::from_secs(75);

/// An API server that can be away, and what of it may not be read. Nothing may be watched: lists are read every few
/// seconds.
struct Cluster {
    api: Scenario,
    away: Arc<AtomicBool>,
    local: Arc<AtomicBool>,
}

impl Cluster {
    fn refusing(refused: &'static str) -> Self {
        let (away, local) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(true)));
        let (gone, policy) = (Arc::clone(&away), Arc::clone(&local));
        let api = Scenario::answering(move |request| {
            if gone.load(Ordering::Relaxed) {
                return (500, Scenario::status(500, "InternalError", "etcd is away"));
            }
            if request.query.contains("watch=") || request.path.ends_with(refused) {
                return (403, Scenario::status(403, "Forbidden", "no"));
            }
            let services = request.path.ends_with("/services");
            let items = if services { vec![web(policy.load(Ordering::Relaxed))] } else { Vec::new() };
            (200, json!({"metadata": {"resourceVersion": "1"}, "items": items}))
        });
        Self { api, away, local }
    }

    fn start(&self) -> Process {
        let (health, (inputs, heard)) = (Health::new(), mpsc::unbounded_channel());
        let mut tasks = Tasks::new(Token::new());
        let client = self.api.client();
        let config = Config::from_env_and_args([], [], "node-1").unwrap();
        let namespace = "kube-system".to_owned();
        let leases =
            membership::watch_leases(client.clone(), namespace.clone(), "lock".into(), inputs.clone(), health.clone());
        let nodes = Cache::new(|old, new| old != new);
        let nodes = membership::watch_nodes(client.clone(), nodes, inputs.clone(), health.clone());
        let others = [tokio::spawn(leases), tokio::spawn(nodes)];
        let shared = Shared { config: &config, client, namespace, inputs, health: health.clone() };
        feeds::services(&mut tasks, &shared);
        Process { health, _tasks: tasks, _others: others, _heard: heard }
    }
}

/// What an announcer in `node` mode reads, without what it does.
struct Process {
    health: Health,
    _tasks: Tasks,
    _others: [tokio::task::JoinHandle<()>; 2],
    _heard: mpsc::UnboundedReceiver<announcer_core::engine::Input>,
}

impl Process {
    /// Names of the checks of `/readyz` that fail.
    fn stale(&self) -> Vec<String> {
        let text = self.health.ask(Probe::Readyz, &[]).text(true);
        let failed = text.lines().filter_map(|line| line.strip_prefix("[-]")?.split(' ').next());
        failed.map(str::to_owned).collect()
    }
}

fn web(local: bool) -> Value {
    let policy = if local { "Local" } else { "Cluster" };
    json!({
        "metadata": {"namespace": "default", "name": "web", "uid": "1", "resourceVersion": "1",
            "annotations": {"kube-vip.io/loadbalancerIPs": "10.0.0.5"}},
        "spec": {"type": "LoadBalancer", "externalTrafficPolicy": policy, "ports": [{"port": 80}]},
    })
}

async fn pass(time: Duration) {
    tokio::time::sleep(time).await;
}

#[tokio::test(start_paused = true)]
async fn caches_that_stand_still_for_a_minute_make_a_process_unready_and_each_says_so() {
    let cluster = Cluster::refusing("none");
    let process = cluster.start();
    pass(LONG).await;
    assert_eq!(process.stale(), [""; 0]);
    cluster.away.store(true, Ordering::Relaxed);
    pass(Duration::from_secs(40)).await;
    assert_eq!(process.stale(), [""; 0], "a server that is replaced is away for so long");
    pass(LONG).await;
    assert_eq!(process.stale(), ["endpointslices-fresh", "leases-fresh", "nodes-fresh", "services-fresh"]);
    let report = process.health.ask(Probe::Readyz, &[]).text(false);
    assert!(report.contains("services not up to date for") && report.contains("etcd is away"), "{report}");
    assert!(process.health.ask(Probe::Livez, &[]).is_well(), "a restart would mend nothing");
    cluster.away.store(false, Ordering::Relaxed);
    pass(Duration::from_secs(20)).await;
    assert_eq!(process.stale(), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn a_process_that_has_never_read_the_services_is_not_ready() {
    let cluster = Cluster::refusing("none");
    cluster.away.store(true, Ordering::Relaxed);
    let process = cluster.start();
    pass(Duration::from_secs(1)).await;
    assert_eq!(process.stale(), ["services"]);
    pass(LONG).await;
    assert_eq!(
        process.stale(),
        ["leases-fresh", "services", "services-fresh"],
        "slices were not asked for, Nodes not yet"
    );
}

#[tokio::test(start_paused = true)]
async fn what_may_not_be_read_and_is_not_needed_keeps_no_process_unready() {
    for optional in ["/endpointslices", "/nodes"] {
        let process = Cluster::refusing(optional).start();
        pass(LONG * 3).await;
        assert_eq!(process.stale(), [""; 0], "{optional}");
    }
}

#[tokio::test(start_paused = true)]
async fn slices_that_no_service_needs_any_more_are_not_asked_about() {
    let cluster = Cluster::refusing("none");
    let process = cluster.start();
    pass(LONG).await;
    assert!(process.health.names().contains(&"endpointslices-fresh".to_owned()));
    cluster.local.store(false, Ordering::Relaxed);
    pass(LONG).await;
    assert!(!process.health.names().contains(&"endpointslices-fresh".to_owned()));
}
