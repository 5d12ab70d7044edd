//! The controller against a scripted API server and a scripted cloud: requests, Events and retries.

use std::collections::VecDeque;

use async_trait::async_trait;
use contract::keys::kubernetes::UNINITIALIZED;
use futures::stream::BoxStream;
use runtime::events::Entry;
use runtime::scenario::{ReceivedRequest, Scenario};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::*;
use crate::cache;
use crate::provider::{Existence, InstanceMetadata, Power, ProviderError};
use crate::test_support::node;
use crate::view::{NodeAddressKind, Taint};

struct Cloud {
    machine: Mutex<VecDeque<Result<InstanceMetadata, ProviderError>>>,
    asked: Mutex<Vec<String>>,
    wakes: Mutex<Option<mpsc::UnboundedReceiver<NodeWake>>>,
}

fn machine() -> InstanceMetadata {
    InstanceMetadata {
        provider_id: "harvester://vm".into(),
        addresses: vec![NodeAddress { kind: NodeAddressKind::InternalIp, address: "10.0.0.1".into() }],
        zone: "rack-1".into(),
        ..InstanceMetadata::default()
    }
}

#[async_trait]
impl Instances for Cloud {
    async fn metadata(&self, node: &NodeView) -> Result<InstanceMetadata, ProviderError> {
        self.asked.lock().push(node.name.clone());
        self.machine.lock().pop_front().unwrap_or_else(|| Ok(machine()))
    }

    async fn existence(&self, _: &NodeView) -> Existence {
        unreachable!("the node controller never asks")
    }

    async fn power(&self, _: &NodeView) -> Power {
        unreachable!("the node controller never asks")
    }

    async fn power_now(&self, _: &NodeView) -> Power {
        unreachable!("the node controller never asks")
    }

    fn steady_since(&self) -> Option<Instant> {
        unreachable!("the node controller never asks")
    }

    fn wakes(&self) -> BoxStream<'static, NodeWake> {
        let receiver = self.wakes.lock().take().expect("asked once");
        futures::stream::unfold(receiver, |mut receiver| async { receiver.recv().await.map(|wake| (wake, receiver)) })
            .boxed()
    }
}

struct Test {
    controller: NodeController,
    cloud: Arc<Cloud>,
    cache: NodeCache,
    scenario: Scenario,
    events: mpsc::Receiver<Entry>,
    wake: mpsc::UnboundedSender<NodeWake>,
}

/// A Node after a merge patch, as far as the controller can tell.
fn patched(request: &ReceivedRequest) -> (u16, Value) {
    let version: u64 = request.body["metadata"]["resourceVersion"].as_str().expect("a precondition").parse().unwrap();
    let name = request.path.split('/').nth(4).unwrap();
    let object = json!({
        "metadata": {"name": name, "uid": format!("uid-{name}"), "resourceVersion": (version + 1).to_string(),
            "creationTimestamp": "2026-01-01T00:00:00Z", "labels": request.body["metadata"]["labels"]},
        "spec": {"taints": request.body["spec"]["taints"], "providerID": "harvester://vm"},
        "status": {"addresses": request.body["status"]["addresses"]},
    });
    (200, object)
}

fn tainted(name: &str) -> NodeView {
    let mut view = node(name);
    let taint = |key: &str| Taint { key: key.into(), value: None, effect: "NoSchedule".into(), time_added: None };
    view.taints = vec![taint(UNINITIALIZED), taint("other")];
    view
}

/// Right as [`machine`] is.
fn settled(name: &str) -> NodeView {
    let mut view = node(name);
    view.provider_id = Some("harvester://vm".into());
    view.addresses = machine().addresses;
    for label in ["topology.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/zone"] {
        view.labels.insert(label, "rack-1");
    }
    view
}

impl Test {
    fn new(nodes: impl IntoIterator<Item = NodeView>) -> Self {
        Self::with(nodes, patched)
    }

    fn with(
        nodes: impl IntoIterator<Item = NodeView>,
        answer: impl Fn(&ReceivedRequest) -> (u16, Value) + Send + Sync + 'static,
    ) -> Self {
        let scenario = Scenario::answering(answer);
        let (wake, receiver) = mpsc::unbounded_channel();
        let cloud =
            Arc::new(Cloud { machine: Mutex::default(), asked: Mutex::default(), wakes: Mutex::new(Some(receiver)) });
        let cache = cache::nodes_with(nodes);
        let (recorder, events) = Recorder::to_channel("test");
        let provider: Arc<dyn Instances> = Arc::<Cloud>::clone(&cloud);
        let controller =
            NodeController::new(scenario.client(), provider, cache.clone(), &recorder, NodeSettings::default());
        Self { controller, cloud, cache, scenario, events, wake }
    }

    fn will_answer(&self, answers: impl IntoIterator<Item = Result<InstanceMetadata, ProviderError>>) {
        self.cloud.machine.lock().extend(answers);
    }

    fn asked(&self) -> usize {
        std::mem::take(&mut *self.cloud.asked.lock()).len()
    }

    fn told(&mut self) -> Vec<String> {
        let events = std::iter::from_fn(|| self.events.try_recv().ok());
        events.map(|event| format!("{} {} {}", event.component, event.reason, event.message)).collect()
    }

    fn requests(&self) -> Vec<String> {
        self.scenario.requests().iter().map(|seen| format!("{} {}", seen.method, seen.path)).collect()
    }
}

#[tokio::test]
async fn a_new_node_gets_its_addresses_before_the_taint_goes() {
    let mut test = Test::new([tainted("n")]);
    assert_eq!(test.controller.process("n").await, Next::OnChange);
    assert_eq!(test.requests(), ["PATCH /api/v1/nodes/n/status", "PATCH /api/v1/nodes/n"]);
    let bodies: Vec<Value> = test.scenario.requests().into_iter().map(|seen| seen.body).collect();
    assert_eq!(bodies[0]["metadata"]["resourceVersion"], "1");
    assert_eq!(bodies[1]["metadata"]["resourceVersion"], "2");
    assert_eq!(test.told(), ["cloud-node-controller Synced Node synced successfully"]);

    // Until the watch shows it, our own write counts: nothing is written twice.
    test.scenario.clear();
    assert_eq!(test.controller.process("n").await, Next::OnChange);
    assert_eq!(test.requests(), Vec::<String>::new());
}

#[tokio::test]
async fn a_node_whose_addresses_are_right_already_is_initialised_by_one_request() {
    let test = Test::new([NodeView { addresses: machine().addresses, ..tainted("n") }]);
    test.controller.process("n").await;
    assert_eq!(test.requests(), ["PATCH /api/v1/nodes/n"]);
}

#[tokio::test]
async fn a_status_write_that_fails_leaves_the_node_tainted() {
    let test = Test::with([tainted("n")], |_| (500, Scenario::status(500, "InternalError", "etcd is away")));
    assert_eq!(test.controller.process("n").await, Next::BackOff);
    assert_eq!(test.requests(), ["PATCH /api/v1/nodes/n/status"]);
}

#[tokio::test]
async fn a_refused_node_stays_tainted_and_its_user_hears_once_which_step_is_missing() {
    let mut test = Test::new([tainted("n")]);
    let missing = || ProviderError::caused("VM guests/n has no address yet", std::io::Error::other("no guest agent"));
    let gone = ProviderError::new("VM guests/n not found").permanent();
    test.will_answer([Err(missing()), Err(missing()), Err(missing()), Err(gone)]);
    assert_eq!(test.controller.process("n").await, Next::BackOff);
    assert_eq!(test.told(), Vec::<String>::new(), "it may pass in a moment");
    test.controller.memory.lock().get_mut("n").unwrap().refused_since = Instant::now().checked_sub(SETTLING);
    assert_eq!(test.controller.process("n").await, Next::BackOff);
    assert_eq!(
        test.told(),
        ["cloud-node-controller NodeInitializationFailed Node cannot be initialized: failed to get instance \
          metadata for node n: VM guests/n has no address yet: no guest agent"]
    );
    assert_eq!(test.controller.process("n").await, Next::BackOff);
    assert_eq!(test.told(), Vec::<String>::new());
    assert_eq!(test.controller.process("n").await, Next::OnChange, "nothing to retry until something changes");
    assert_eq!(test.told().len(), 1);
    assert_eq!(test.requests(), Vec::<String>::new());
    test.controller.process("n").await;
    assert_eq!(test.told(), ["cloud-node-controller Synced Node synced successfully"]);
}

#[tokio::test]
async fn who_waits_for_an_answer_grows_no_back_off_and_a_limit_of_the_pause_is_kept() {
    let test = Test::new([tainted("n")]);
    let (error, limit) = (|| ProviderError::new("VM guests/n is not known yet"), Duration::from_secs(30));
    for (error, next) in [
        (error(), Next::BackOff),
        (error().permanent(), Next::OnChange),
        (error().under_way(limit), Next::After(limit)),
        (ProviderError { longest_pause: Some(limit), ..error() }, Next::BackOffWithin(limit)),
    ] {
        test.will_answer([Err(error)]);
        assert_eq!(test.controller.process("n").await, next);
    }
}

#[tokio::test]
async fn a_conflict_with_the_kubelet_is_tried_again_at_once_and_not_told() {
    let mut test =
        Test::with([tainted("n")], |_| (409, Scenario::status(409, "Conflict", "the object has been modified")));
    assert_eq!(test.controller.process("n").await, Next::After(AFTER_CONFLICT));
    assert_eq!(test.told(), Vec::<String>::new());
}

#[tokio::test]
async fn an_initialised_node_asks_nothing_of_the_cloud_unless_it_was_woken_or_tampered_with() {
    let test = Test::new([settled("n")]);
    test.controller.process("n").await;
    assert_eq!((test.asked(), test.requests().len()), (0, 0));
    test.controller.ask_for(["n".to_owned()]);
    test.controller.process("n").await;
    test.controller.process("n").await;
    assert_eq!((test.asked(), test.requests().len()), (1, 0));

    let mut tampered = settled("n");
    tampered.addresses.clear();
    test.cache.apply("n".into(), tampered);
    test.controller.process("n").await;
    assert_eq!((test.asked(), test.requests()), (1, vec!["PATCH /api/v1/nodes/n/status".to_owned()]));
}

#[tokio::test]
async fn a_wake_up_whose_write_failed_is_not_forgotten() {
    let test = Test::with([NodeView { addresses: Vec::new(), ..settled("n") }], |_| {
        (409, Scenario::status(409, "Conflict", "the object has been modified"))
    });
    test.controller.ask_for(["n".to_owned()]);
    test.controller.process("n").await;
    test.controller.process("n").await;
    assert_eq!((test.asked(), test.requests().len()), (2, 2));
}

#[tokio::test]
async fn a_beta_label_is_copied_without_asking_the_cloud() {
    let mut view = node("n");
    view.labels.insert("failure-domain.beta.kubernetes.io/zone", "z");
    let test = Test::new([view]);
    test.controller.process("n").await;
    assert_eq!(test.asked(), 0);
    assert_eq!(
        test.scenario.requests()[0].body,
        json!({"metadata": {"resourceVersion": "1", "labels": {"topology.kubernetes.io/zone": "z"}}})
    );
}

#[tokio::test(start_paused = true)]
async fn all_nodes_are_looked_at_at_start_then_every_five_minutes_and_on_a_wake_up() {
    let test = Test::new((0..50).map(|number| settled(&format!("n{number}"))));
    let Test { controller, cloud, scenario, wake, .. } = test;
    let asked = || std::mem::take(&mut *cloud.asked.lock()).len();
    let stop = Token::new();
    let task = tokio::spawn(controller.run(stop.clone()));
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(asked(), 50);
    tokio::time::sleep(Duration::from_secs(298)).await;
    assert_eq!(asked(), 0);
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(asked(), 50);
    wake.send(NodeWake::Node("n7".into())).unwrap();
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert_eq!(asked(), 1);
    wake.send(NodeWake::All).unwrap();
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert_eq!(asked(), 50);
    assert_eq!(scenario.requests().len(), 0, "nodes that are right cost nothing");
    stop.cancel();
    task.await.unwrap();
}

/// Events are kept for an hour, and the Node still waits.
#[tokio::test(start_paused = true)]
async fn a_step_that_stays_missing_is_told_again_every_ten_minutes() {
    let mut test = Test::new([tainted("n")]);
    let missing = || Err(ProviderError::new("VM guests/n has no address yet"));
    test.will_answer((0..100).map(|_| missing()));
    for _ in 0..62 {
        test.controller.process("n").await;
        tokio::time::advance(Duration::from_secs(30)).await;
    }
    assert_eq!(test.told().len(), 4, "in 31 minutes");
}

#[tokio::test(start_paused = true)]
async fn h10_a_zone_is_believed_after_a_while_and_then_written_once() {
    let test = Test::new([settled("n")]);
    let moved = || Ok(InstanceMetadata { zone: "rack-2".into(), ..machine() });
    test.will_answer([moved(), Ok(machine()), moved(), moved()]);
    for expected in [Next::After(topology::SETTLES), Next::OnChange, Next::After(topology::SETTLES)] {
        test.controller.ask_for(["n".to_owned()]);
        assert_eq!(test.controller.process("n").await, expected);
        tokio::time::advance(Duration::from_secs(5)).await;
    }
    assert_eq!(test.requests(), Vec::<String>::new());
    tokio::time::advance(Duration::from_secs(5)).await;
    assert_eq!(test.controller.process("n").await, Next::OnChange);
    assert_eq!(test.requests(), ["PATCH /api/v1/nodes/n"]);
}

/// A replica that starts before Harvester can be listed.
#[tokio::test]
async fn a_machine_that_could_not_be_asked_for_is_asked_for_again() {
    let test = Test::new([settled("n")]);
    test.will_answer([Err(ProviderError::new("VMs could not be listed yet"))]);
    test.controller.ask_for(["n".to_owned()]);
    assert_eq!(test.controller.process("n").await, Next::BackOff);
    assert_eq!(test.controller.process("n").await, Next::OnChange);
    assert_eq!(test.asked(), 2);
}

/// As with Services: two writers of one Node do not write as fast as both can.
#[tokio::test(start_paused = true)]
async fn what_somebody_undoes_on_a_node_is_repeated_more_seldom_each_time_and_the_other_writer_is_named() {
    let fields = json!([
        {"manager": "labeller", "operation": "Update", "time": "2026-01-01T00:05:00Z",
            "fieldsV1": {"f:metadata": {"f:labels": {}}}},
        {"manager": "kubelet", "operation": "Update", "time": "2026-01-01T00:05:02Z", "fieldsV1": {"f:status": {}}},
    ]);
    let without_label = |version: u32| {
        let mut view = NodeView { resource_version: version.to_string(), ..settled("n") };
        view.labels.remove("topology.kubernetes.io/zone");
        view
    };
    let mut test = Test::with([without_label(10)], move |request| {
        if request.method == "PATCH" {
            return patched(request);
        }
        let metadata = json!({"name": "n", "managedFields": fields});
        (200, json!({"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata", "metadata": metadata}))
    });
    let start = Instant::now();
    let mut version = 10;
    while start.elapsed() < Duration::from_mins(10) {
        // Undone: the same state under another version.
        version += 10;
        test.cache.apply("n".into(), without_label(version));
        match test.controller.process("n").await {
            Next::After(rest) => tokio::time::advance(rest).await,
            _ => tokio::time::advance(Duration::from_millis(7)).await,
        }
    }
    let repairs = test.requests().iter().filter(|request| request.starts_with("PATCH")).count();
    assert!((10..20).contains(&repairs), "{repairs}");
    let told: Vec<String> = test.told().into_iter().filter(|told| told.contains("UndoneByOthers")).collect();
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(told[0].contains("\"labeller\" (Update at 2026-01-01T00:05:00Z)"), "{}", told[0]);
}
