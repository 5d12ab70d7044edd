//! The controller against a scripted API server and a scripted cloud.

use parking_lot::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

use async_trait::async_trait;
use contract::keys::kubernetes::OUT_OF_SERVICE;
use futures::stream::BoxStream;
use runtime::events::Entry;
use runtime::scenario::{ReceivedRequest, Scenario};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::decide::{AFTER_REFUSAL, SHUTDOWN};
use super::*;
use crate::cache;
use crate::provider::{Existence, Hold, InstanceMetadata, NodeWake, Power, ProviderError};
use crate::test_support::node;
use crate::view::Ready;

struct Cloud {
    existence: Mutex<Existence>,
    power: Power,
    held: std::sync::atomic::AtomicBool,
    /// What a live read says.
    power_now: Mutex<Power>,
    /// How often the cloud was asked for a machine.
    asked: AtomicU32,
}

#[async_trait]
impl Instances for Cloud {
    async fn metadata(&self, _: &NodeView) -> Result<InstanceMetadata, ProviderError> {
        unreachable!("the lifecycle controller never asks")
    }

    async fn existence(&self, _: &NodeView) -> Existence {
        self.asked.fetch_add(1, Ordering::Relaxed);
        self.existence.lock().clone()
    }

    async fn power(&self, _: &NodeView) -> Power {
        self.power.clone()
    }

    fn hold(&self) -> Option<Arc<Hold>> {
        let held = self.held.load(Ordering::Relaxed);
        let hold = Hold { reason: "Test", message: "not now".into(), initialises_nodes: true, passing: false };
        held.then(|| Arc::new(hold))
    }

    async fn power_now(&self, _: &NodeView) -> Power {
        self.power_now.lock().clone()
    }

    fn steady_since(&self) -> Option<Instant> {
        Some(Instant::now().checked_sub(Duration::from_mins(1)).unwrap())
    }

    fn wakes(&self) -> BoxStream<'static, NodeWake> {
        futures::stream::pending().boxed()
    }
}

struct Test {
    controller: LifecycleController,
    cloud: Arc<Cloud>,
    cache: NodeCache,
    scenario: Scenario,
    events: mpsc::Receiver<Entry>,
}

fn gone() -> Existence {
    Existence::Gone("404 for guests/n".into())
}

impl Test {
    fn new(
        existence: Existence,
        power: Power,
        answer: impl Fn(&ReceivedRequest) -> (u16, Value) + Send + Sync + 'static,
    ) -> Self {
        let scenario = Scenario::answering(answer);
        let power_now = Mutex::new(power.clone());
        let (asked, held) = (AtomicU32::new(0), false.into());
        let cloud = Arc::new(Cloud { existence: Mutex::new(existence), power, held, power_now, asked });
        let cache = cache::nodes_with([
            NodeView { ready: Some(Ready::Unknown), provider_id: Some("harvester://vm".into()), ..node("n") },
            node("ready"),
        ]);
        let (recorder, events) = Recorder::to_channel("test");
        let provider: Arc<dyn Instances> = Arc::<Cloud>::clone(&cloud);
        let settings = LifecycleSettings::default();
        let controller = LifecycleController::new(scenario.client(), provider, cache.clone(), &recorder, settings);
        Self { controller, cloud, cache, scenario, events }
    }

    fn told(&mut self) -> Vec<String> {
        let events = std::iter::from_fn(|| self.events.try_recv().ok());
        events.map(|event| format!("{} {}", event.reason, event.message)).collect()
    }
}

fn deleted(_: &ReceivedRequest) -> (u16, Value) {
    (200, json!({"kind": "Status", "apiVersion": "v1", "status": "Success"}))
}

#[tokio::test]
async fn a_node_without_machine_is_deleted_at_the_second_look_as_it_was_judged_and_no_other() {
    let mut test = Test::new(gone(), Power::On, deleted);
    test.controller.pass().await;
    assert_eq!((test.scenario.requests().len(), test.told().len()), (0, 0));
    test.controller.pass().await;
    let requests = test.scenario.requests();
    assert_eq!(requests.len(), 1, "and the Ready one is left alone");
    assert_eq!((requests[0].method.as_str(), requests[0].path.as_str()), ("DELETE", "/api/v1/nodes/n"));
    assert_eq!(requests[0].body["preconditions"], json!({"uid": "uid-n", "resourceVersion": "1"}));
    assert_eq!(test.told(), ["DeletingNode Deleting node n because it does not exist in the cloud provider"]);
}

#[tokio::test]
async fn an_answer_in_doubt_starts_the_count_anew() {
    let mut test = Test::new(gone(), Power::On, deleted);
    test.controller.pass().await;
    *test.cloud.existence.lock() = Existence::Unknown("Harvester is away".into());
    test.controller.pass().await;
    *test.cloud.existence.lock() = gone();
    test.controller.pass().await;
    assert_eq!(test.scenario.requests().len(), 0);
}

#[tokio::test(start_paused = true)]
async fn without_the_right_to_delete_it_is_told_once_and_tried_again_later() {
    let mut test =
        Test::new(gone(), Power::On, |_| (403, Scenario::status(403, "Forbidden", "nodes \"n\" is forbidden")));
    for _ in 0..5 {
        test.controller.pass().await;
    }
    assert_eq!(test.scenario.requests().len(), 1);
    assert_eq!(
        test.told(),
        [
            "DeletingNode Deleting node n because it does not exist in the cloud provider",
            "DeletingNodeFailed Failed deleting node n: nodes \"n\" is forbidden",
        ]
    );
    // Hundreds of such Nodes would cost the cloud hundreds of questions in each pass.
    assert_eq!(test.cloud.asked.load(Ordering::Relaxed), 2, "nobody asks while nothing can come of it");
    tokio::time::advance(AFTER_REFUSAL + Duration::from_secs(1)).await;
    for _ in 0..5 {
        test.controller.pass().await;
    }
    assert_eq!((test.scenario.requests().len(), test.cloud.asked.load(Ordering::Relaxed)), (2, 4));
    tokio::time::advance(AFTER_REFUSAL + Duration::from_secs(1)).await;
    test.controller.pass().await;
    assert_eq!(test.cloud.asked.load(Ordering::Relaxed), 4, "and more seldom each time");
}

#[tokio::test(start_paused = true)]
async fn a_node_is_out_of_service_only_if_the_cloud_itself_says_that_its_machine_is_off() {
    let answer = |_: &ReceivedRequest| (200, json!({"metadata": {"name": "n"}}));
    let mut test = Test::new(Existence::Exists, Power::Off, answer);
    test.controller.settings.out_of_service_after = Some(Duration::from_secs(15));
    let tainted = |test: &Test| {
        let keys = |seen: &ReceivedRequest| seen.body["spec"]["taints"].to_string().contains(OUT_OF_SERVICE);
        test.scenario.requests().iter().filter(|seen| keys(seen)).count()
    };
    *test.cloud.power_now.lock() = Power::On;
    for _ in 0..10 {
        test.controller.pass().await;
        tokio::time::advance(Duration::from_secs(5)).await;
    }
    assert_eq!(tainted(&test), 0, "the cache is wrong, and its word begins to count anew each time");
    *test.cloud.power_now.lock() = Power::Off;
    for _ in 0..5 {
        test.controller.pass().await;
        tokio::time::advance(Duration::from_secs(5)).await;
    }
    assert!(tainted(&test) > 0);
}

/// A webhook chooses the code of its refusal.
#[tokio::test(start_paused = true)]
async fn a_deletion_that_is_refused_with_any_code_costs_the_cloud_no_questions_without_end() {
    for (code, expected) in [(400, 2), (403, 2), (413, 2), (422, 2), (500, 6), (503, 6)] {
        let mut test = Test::new(gone(), Power::On, move |_| (code, Scenario::status(code, "No", "no")));
        for _ in 0..6 {
            test.controller.pass().await;
        }
        assert_eq!(test.cloud.asked.load(Ordering::Relaxed), expected, "{code}");
    }
}

/// A webhook may have something against one Node.
#[tokio::test(start_paused = true)]
async fn a_node_whose_deletion_is_refused_does_not_keep_the_others() {
    let mut test = Test::new(gone(), Power::On, |seen| match seen.path.rsplit('/').next() {
        Some("n") => (403, Scenario::status(403, "Forbidden", "admission webhook denied the request")),
        _ => deleted(seen),
    });
    for _ in 0..3 {
        test.controller.pass().await;
    }
    let other = NodeView { ready: Some(Ready::Unknown), provider_id: Some("harvester://vm".into()), ..node("other") };
    test.cache.apply("other".into(), other);
    for _ in 0..2 {
        test.controller.pass().await;
    }
    let asked: Vec<String> = test.scenario.requests().into_iter().map(|seen| seen.path).collect();
    assert_eq!(asked, ["/api/v1/nodes/n", "/api/v1/nodes/other"]);
}

#[tokio::test]
async fn a_node_that_was_registered_anew_or_written_meanwhile_is_looked_at_again() {
    let mut test =
        Test::new(gone(), Power::On, |_| (409, Scenario::status(409, "Conflict", "the precondition does not match")));
    for _ in 0..3 {
        test.controller.pass().await;
    }
    assert_eq!(test.scenario.requests().len(), 1, "the count starts anew");
    assert_eq!(test.told().len(), 1, "and it is no failure");
}

#[tokio::test]
async fn a_machine_that_is_off_marks_its_node_with_a_precondition() {
    let mut test = Test::new(Existence::Exists, Power::Off, |_| (200, json!({"metadata": {"name": "n"}})));
    test.controller.pass().await;
    let requests = test.scenario.requests();
    assert_eq!(requests.len(), 1);
    assert_eq!(
        requests[0].body,
        json!({"metadata": {"resourceVersion": "1"}, "spec": {"taints": [{"key": SHUTDOWN, "effect": "NoSchedule"}]}})
    );
}

#[tokio::test(start_paused = true)]
async fn it_looks_at_once_and_then_every_period() {
    let test = Test::new(gone(), Power::On, deleted);
    let stop = Token::new();
    let task = tokio::spawn(test.controller.run(stop.clone()));
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert_eq!(test.scenario.requests().len(), 0);
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(test.scenario.requests().len(), 1);
    test.cache.remove(&"n".to_owned());
    tokio::time::sleep(Duration::from_mins(1)).await;
    assert_eq!(test.scenario.requests().len(), 1);
    stop.cancel();
    task.await.unwrap();
}

#[tokio::test]
async fn while_nothing_may_be_written_no_node_goes_and_what_was_seen_before_does_not_count() {
    let mut test = Test::new(gone(), Power::On, |_| (200, json!({"metadata": {"name": "n"}})));
    test.controller.pass().await;
    test.cloud.held.store(true, Ordering::Relaxed);
    for _ in 0..3 {
        test.controller.pass().await;
    }
    test.cloud.held.store(false, Ordering::Relaxed);
    test.controller.pass().await;
    assert_eq!(test.scenario.writes(), []);
    test.controller.pass().await;
    assert_eq!(test.scenario.writes().len(), 1, "two looks decide");
    test.told();
}

#[tokio::test(start_paused = true)]
async fn more_than_a_third_of_all_nodes_is_deleted_by_nobody_but_a_human() {
    let mut test = Test::new(gone(), Power::On, |_| (200, json!({"metadata": {"name": "n"}})));
    let sick = |name: String| {
        let provider_id = Some(format!("harvester://{name}"));
        (name.clone(), NodeView { ready: Some(Ready::Unknown), provider_id, ..node(&name) })
    };
    let well = |name: String| (name.clone(), node(&name));
    let nodes = (0..4).map(|n| sick(format!("sick-{n}"))).chain((0..7).map(|n| well(format!("well-{n}"))));
    test.cache.replace(nodes.collect());
    for _ in 0..5 {
        test.controller.pass().await;
    }
    assert_eq!(test.scenario.writes(), [], "4 of 11");
    let told = test.told();
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(told[0].starts_with("NodesNotDeleted") && told[0].contains("kubectl delete node sick-"), "{told:?}");
    // Seen: a GET for each of them every five seconds, for ever.
    assert_eq!(test.cloud.asked.load(Ordering::Relaxed), 8, "two looks at each of them");
    // One more that goes meanwhile is not judged for itself.
    let (name, node) = sick("sick-4".into());
    test.cache.apply(name.clone(), node);
    for _ in 0..5 {
        test.controller.pass().await;
    }
    assert_eq!((test.scenario.writes(), test.cloud.asked.load(Ordering::Relaxed)), (vec![], 10));
    test.cache.remove(&name);
    // Three are few enough for any cluster.
    test.cache.remove(&"sick-3".to_owned());
    test.controller.pass().await;
    assert_eq!(test.scenario.writes().len(), 3);
}

#[tokio::test(start_paused = true)]
async fn nodes_that_are_too_many_are_looked_at_again_and_told_again_after_a_while() {
    let mut test = Test::new(gone(), Power::On, |_| (200, json!({"metadata": {"name": "n"}})));
    let sick = |name: String| {
        let provider_id = Some(format!("harvester://{name}"));
        (name.clone(), NodeView { ready: Some(Ready::Unknown), provider_id, ..node(&name) })
    };
    test.cache.replace((0..4).map(|n| sick(format!("sick-{n}"))).collect());
    for _ in 0..3 {
        for _ in 0..5 {
            test.controller.pass().await;
        }
        tokio::time::advance(TELL_AGAIN + Duration::from_secs(1)).await;
    }
    assert_eq!((test.scenario.writes().len(), test.told().len()), (0, 3));
    assert!(test.cloud.asked.load(Ordering::Relaxed) <= 4 * 2 * 3);
    // Their machines are there again.
    *test.cloud.existence.lock() = Existence::Exists;
    test.controller.pass().await;
    assert!(test.controller.barred.is_none());
}
