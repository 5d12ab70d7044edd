use cloud_provider::view::Ready;
use runtime::scenario::Scenario;
use serde_json::json;

use super::super::shown::{Expect, Reason};
use super::*;

/// A Node that a former leader has cordoned for a drain, and what is sent for it.
async fn sent(seen: &UpgradeState, identity: Identity) -> usize {
    let mut node = crate::load_balancers::build::node("n", &[]);
    node.annotations.insert(cloudprovider::HAND_OVER, "2026-01-01T00:00:00Z");
    node.annotations.insert(cloudprovider::CORDONED, "true");
    let node = NodeView { unschedulable: true, ready: Some(Ready::True), ..node };
    let server = Scenario::answering(|_| (200, json!({"metadata": {"name": "n"}})));
    let sources = Sources {
        nodes: cloud_provider::cache::nodes_with([node]),
        services: cloud_provider::cache::services_with([]),
        seen: watch::Sender::<Arc<UpgradeState>>::default().subscribe(),
    };
    let mut cooperation = Cooperation::new(&server.client(), sources, identity);
    cooperation.wanted(Some(Duration::from_mins(5)));
    let (events, _told) = Recorder::to_channel("test");
    cooperation.look(seen, &events).await;
    server.requests().len()
}

#[tokio::test]
async fn a_new_leader_takes_nothing_back_before_it_knows_that_it_is_over() {
    let unknown = || Identity::unknown(harvester_api::names::ClusterName::from_record("demo"));
    let runs = UpgradeState { power: BTreeMap::from([("n".to_owned(), Power::On)]), ..UpgradeState::default() };
    let over = UpgradeState { known: true, ..runs.clone() };
    let blank = UpgradeState { known: true, ..UpgradeState::default() };
    for (name, seen, identity, requests) in [
        ("nothing is known", &UpgradeState::default(), Identity::known("demo"), 0),
        ("the machine runs, and the rest is not known", &runs, Identity::known("demo"), 0),
        ("who we are is not known", &over, unknown(), 0),
        ("nothing is known of the machine", &blank, Identity::known("demo"), 0),
        ("it is over", &over, Identity::known("demo"), 1),
    ] {
        assert_eq!(sent(seen, identity).await, requests, "{name}");
    }
}

/// Its pods were evicted as far as that was possible, and this was told. Then the clock was set back.
#[tokio::test]
async fn a_mark_that_is_written_anew_begins_no_drain_anew() {
    let mut node = crate::load_balancers::build::node("n", &[]);
    node.annotations.insert(cloudprovider::HAND_OVER, "2100-01-01T00:00:00Z");
    node.annotations.insert(cloudprovider::CORDONED, "true");
    let node = NodeView { unschedulable: true, ready: Some(Ready::True), ..node };
    let status = NodeStatus {
        uid: "uid-of-n".into(),
        vm: "n".into(),
        host: "host-1".into(),
        state: String::new(),
        reason: Reason::PreDraining,
        since: 0,
        expect: Expect::Shutdown,
    };
    let seen = UpgradeState {
        known: true,
        open: true,
        nodes: BTreeMap::from([("n".to_owned(), status)]),
        power: BTreeMap::from([("n".to_owned(), Power::On)]),
    };
    let server = Scenario::answering(|_| (200, json!({"metadata": {"name": "n"}})));
    let sources = Sources {
        nodes: cloud_provider::cache::nodes_with([node]),
        services: cloud_provider::cache::services_with([]),
        seen: watch::Sender::<Arc<UpgradeState>>::default().subscribe(),
    };
    let mut cooperation = Cooperation::new(&server.client(), sources, Identity::known("demo"));
    cooperation.wanted(Some(Duration::from_mins(5)));
    cooperation.drains.insert("n".to_owned(), Drain { told: true, ..Drain::default() });
    let (events, mut told) = Recorder::to_channel("test");
    cooperation.look(&seen, &events).await;
    let requests = server.requests();
    let mark = requests[0].body["metadata"]["annotations"][cloudprovider::HAND_OVER].as_str().unwrap();
    assert!(requests.len() == 1 && !mark.starts_with("2100"), "{requests:?}");
    assert!(cooperation.drains["n"].told && told.try_recv().is_err());
}

/// Harvester answers nothing, as after a change of the leader while it is away.
#[tokio::test(start_paused = true)]
async fn a_node_that_stays_cordoned_says_why_and_what_can_be_done() {
    let mut node = crate::load_balancers::build::node("n", &[]);
    node.annotations.insert(cloudprovider::CORDONED, "true");
    let sources = Sources {
        nodes: cloud_provider::cache::nodes_with([node]),
        services: cloud_provider::cache::services_with([]),
        seen: watch::Sender::<Arc<UpgradeState>>::default().subscribe(),
    };
    let server = Scenario::answering(|_| (500, json!({})));
    let mut cooperation = Cooperation::new(&server.client(), sources, Identity::known("demo"));
    let (events, mut told) = Recorder::to_channel("test");
    for _ in 0..40 {
        cooperation.look(&UpgradeState::default(), &events).await;
        tokio::time::sleep(LOOK_EVERY).await;
    }
    let event = told.try_recv().unwrap();
    let text = format!("{event:?}");
    assert!(text.contains("NodeStaysCordoned") && text.contains("kubectl uncordon n"), "{text}");
    assert!(told.try_recv().is_err(), "it is told once");
    assert_eq!(server.requests().len(), 0, "nothing is decided");
}

/// Of three Nodes the machine of `n` is about to be shut down, that of `z` moves, and `o` stays. `n` is being drained.
fn draining(server: &Scenario) -> (Cooperation, UpgradeState) {
    let ready = |name: &str| NodeView { ready: Some(Ready::True), ..crate::load_balancers::build::node(name, &[]) };
    let mut drained = NodeView { unschedulable: true, ..ready("n") };
    drained.annotations.insert(cloudprovider::HAND_OVER, &Timestamp::now().to_string());
    drained.annotations.insert(cloudprovider::CORDONED, "true");
    let status = |name: &str, reason, expect| {
        let status = NodeStatus {
            uid: format!("uid-of-{name}"),
            vm: name.into(),
            host: "host-1".into(),
            state: String::new(),
            reason,
            since: 0,
            expect,
        };
        (name.to_owned(), status)
    };
    let leave =
        [status("n", Reason::PreDraining, Expect::Shutdown), status("z", Reason::LiveMigrating, Expect::Migrate)];
    let power = ["n", "o", "z"].map(|name| (name.to_owned(), Power::On));
    let seen = UpgradeState { known: true, open: true, nodes: leave.into(), power: power.into() };
    let sources = Sources {
        nodes: cloud_provider::cache::nodes_with([drained, ready("o"), ready("z")]),
        services: cloud_provider::cache::services_with([]),
        seen: watch::Sender::<Arc<UpgradeState>>::default().subscribe(),
    };
    let mut cooperation = Cooperation::new(&server.client(), sources, Identity::known("demo"));
    cooperation.wanted(Some(Duration::from_mins(5)));
    (cooperation, seen)
}

/// Pods `a` and `b` on one Node; the eviction of `a` is answered like this, and that of `b` is granted.
fn two_pods(code: u16, body: &serde_json::Value) -> Scenario {
    let pod = |name: &str| {
        json!({"metadata": {"namespace": "default", "name": name, "ownerReferences": [{"apiVersion": "apps/v1",
            "kind": "ReplicaSet", "name": "web", "uid": "u", "controller": true}]}, "spec": {"containers": []}})
    };
    let pods = json!({"apiVersion": "v1", "kind": "PodList", "metadata": {}, "items": [pod("a"), pod("b")]});
    let body = body.clone();
    Scenario::answering(move |request| match request.path.as_str() {
        "/api/v1/pods" => (200, pods.clone()),
        "/api/v1/namespaces/default/pods/a/eviction" => (code, body.clone()),
        "/api/v1/namespaces/default/pods/b/eviction" => (201, json!({"kind": "Status", "status": "Success"})),
        _ => (200, json!({"metadata": {"name": "z"}})),
    })
}

fn asked(server: &Scenario, path: &str) -> usize {
    server.requests().iter().filter(|seen| seen.path == path).count()
}

/// A webhook that is asked about one pod does not answer. All other pods and Nodes waited for it, for ten seconds.
#[tokio::test(start_paused = true)]
async fn an_eviction_that_hangs_holds_up_neither_other_pods_nor_other_nodes() {
    let server = two_pods(0, &json!(null));
    let (mut cooperation, seen) = draining(&server);
    let (events, _told) = Recorder::to_channel("test");
    let start = Instant::now();
    cooperation.look(&seen, &events).await;
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    for path in ["/api/v1/namespaces/default/pods/a/eviction", "/api/v1/namespaces/default/pods/b/eviction"] {
        assert_eq!(asked(&server, path), 1, "{path}");
    }
    assert_eq!(asked(&server, "/api/v1/nodes/z"), 1, "it is marked in time");
    cooperation.look(&seen, &events).await;
    assert_eq!(asked(&server, "/api/v1/pods"), 1, "the pass goes on");
    // The end of the drain ends what is under way.
    cooperation.drains.clear();
    cooperation.look(&seen, &events).await;
    assert_eq!(asked(&server, "/api/v1/pods"), 2);
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_a_budget_protects_is_tried_again_every_ten_seconds_and_told_with_the_reason() {
    let protected = "Cannot evict pod as it would violate the pod's disruption budget.";
    let server = two_pods(429, &Scenario::status(429, "TooManyRequests", protected));
    let (mut cooperation, seen) = draining(&server);
    let (events, mut told) = Recorder::to_channel("test");
    for _ in 0..10 {
        cooperation.look(&seen, &events).await;
        tokio::time::sleep(LOOK_EVERY).await;
    }
    assert_eq!(asked(&server, "/api/v1/namespaces/default/pods/a/eviction"), 2, "within 20 s");
    // No watch shows the mark of `z`.
    let others = std::iter::from_fn(|| told.try_recv().ok()).filter(|event| event.reason != "UndoneByOthers");
    assert_eq!(others.count(), 0);
    // Its time is over.
    cooperation.wanted(Some(Duration::ZERO));
    cooperation.look(&seen, &events).await;
    let event = told.try_recv().unwrap();
    assert_eq!(event.reason, "NodeDrainIncomplete");
    let expected = "default/a stay: Cannot evict pod as it would violate the pod's disruption budget. Check their";
    assert!(event.message.contains(expected), "{}", event.message);
}

/// A GitOps tool takes the mark of `z` away as soon as it is there.
#[tokio::test(start_paused = true)]
async fn a_mark_that_somebody_takes_away_is_written_more_seldom_each_time_and_the_other_writer_is_named() {
    let fields = json!([{"manager": "argocd", "operation": "Update", "time": "2026-01-01T00:05:00Z"}]);
    let server = Scenario::answering(move |request| match request.path.as_str() {
        "/api/v1/pods" => (200, json!({"apiVersion": "v1", "kind": "PodList", "metadata": {}, "items": []})),
        _ if request.method == "PATCH" => (200, json!({"metadata": {"name": "z"}})),
        _ => {
            let metadata = json!({"name": "z", "managedFields": fields});
            (200, json!({"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata", "metadata": metadata}))
        }
    });
    let (mut cooperation, seen) = draining(&server);
    let (events, mut told) = Recorder::to_channel("test");
    for _ in 0..300 {
        cooperation.look(&seen, &events).await;
        tokio::time::sleep(LOOK_EVERY).await;
    }
    let marks = server.writes().iter().filter(|seen| seen.path == "/api/v1/nodes/z").count();
    assert!((10..20).contains(&marks), "{marks} within ten minutes");
    let told: Vec<String> = std::iter::from_fn(|| told.try_recv().ok())
        .filter(|event| event.reason == "UndoneByOthers")
        .map(|event| event.message)
        .collect();
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(told[0].contains("this Node") && told[0].contains("\"argocd\" (Update at 2026"), "{}", told[0]);
}
