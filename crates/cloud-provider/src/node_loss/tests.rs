use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use async_trait::async_trait;
use contract::keys::cloudprovider::CARD;
use futures::StreamExt;
use futures::stream::BoxStream;
use runtime::events::Entry;
use runtime::scenario::{ReceivedRequest as Request, Scenario};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::*;
use crate::provider::{Existence, InstanceMetadata, NodeWake, Power, ProviderError};
use crate::test_support::node;
use crate::view::{NodeAddress, NodeAddressKind};

const RECORD: &str = "/kube-system/configmaps/harvester-cloud-provider";
const UPGRADE: &str = "/kube-system/configmaps/harvester-host-upgrade";

/// The machine as its cloud reports it at the first question, and later.
#[derive(Debug)]
struct Cloud {
    first: MachineState,
    later: MachineState,
    asked: AtomicBool,
}

#[async_trait]
impl Instances for Cloud {
    async fn metadata(&self, _: &NodeView) -> Result<InstanceMetadata, ProviderError> {
        Ok(InstanceMetadata::default())
    }
    async fn existence(&self, _: &NodeView) -> Existence {
        Existence::Exists
    }
    async fn power(&self, _: &NodeView) -> Power {
        Power::On
    }
    async fn power_now(&self, _: &NodeView) -> Power {
        Power::On
    }
    async fn machine_state(&self, _: &NodeView) -> MachineState {
        if self.asked.swap(true, Ordering::Relaxed) { self.later } else { self.first }
    }
    fn steady_since(&self) -> Option<Instant> {
        None
    }
    fn wakes(&self) -> BoxStream<'static, NodeWake> {
        futures::stream::pending().boxed()
    }
}

/// One pod behind one Service on node-2, as the API has it.
#[derive(Clone)]
struct Api2(Arc<Mutex<(Value, Value)>>);

impl Api2 {
    fn new() -> Self {
        let pod = json!({"metadata": {"namespace": "default", "name": "web", "uid": "p", "resourceVersion": "1"},
            "spec": {"containers": []}, "status": {"conditions": [
                {"type": "Ready", "status": "True"}, {"type": "ContainersReady", "status": "True"}]}});
        let slice = json!({"metadata": {"namespace": "default", "name": "web-1", "resourceVersion": "1"},
            "addressType": "IPv4", "endpoints": [{"addresses": ["10.0.0.9"], "nodeName": "node-2",
                "conditions": {"ready": true, "serving": true, "terminating": false},
                "targetRef": {"kind": "Pod", "name": "web", "uid": "p"}}]});
        Self(Arc::new(Mutex::new((pod, slice))))
    }

    fn ready(&self) -> (Value, Value) {
        let (pod, slice) = &*self.0.lock();
        (pod["status"]["conditions"][0]["status"].clone(), slice["endpoints"][0]["conditions"]["ready"].clone())
    }

    /// As a kubelet writes it.
    fn kubelet(&self) {
        self.0.lock().0["status"]["conditions"][0] = json!({"type": "Ready", "status": "True"});
    }

    fn answer(&self, request: &Request) -> (u16, Value) {
        let (pod, slice) = &mut *self.0.lock();
        let list =
            |kind: &str, item: &Value| json!({"kind": kind, "apiVersion": "v1", "metadata": {}, "items": [item]});
        match (request.method.as_str(), request.path.as_str()) {
            ("GET", "/api/v1/pods") => (200, list("PodList", pod)),
            ("GET", path) if path.ends_with("/endpointslices") => (200, list("EndpointSliceList", slice)),
            ("PATCH", path) if path.ends_with("/pods/web/status") => {
                let mut condition = request.body["status"]["conditions"][0].clone();
                condition.as_object_mut().unwrap().retain(|_, value| !value.is_null());
                pod["status"]["conditions"][0] = condition;
                (200, pod.clone())
            }
            ("PATCH", path) if path.ends_with("/endpointslices/web-1") => {
                slice["endpoints"][0]["conditions"] = request.body[1]["value"].clone();
                (200, slice.clone())
            }
            _ => (404, Scenario::status(404, "NotFound", "not found")),
        }
    }
}

struct Lab {
    api: Api2,
    server: Scenario,
    loss: NodeLoss,
    events: mpsc::Receiver<Entry>,
}

impl Lab {
    fn new(machine: MachineState) -> Self {
        let api = Api2::new();
        let answering = api.clone();
        Self::answered_by(machine, api, move |request| answering.answer(request))
    }

    /// The cloud reports the one at the first question, the other one later.
    fn of_two_answers(first: MachineState, later: MachineState) -> Self {
        let mut lab = Self::new(first);
        lab.cloud_answers(first, later);
        lab
    }

    fn cloud_answers(&mut self, first: MachineState, later: MachineState) {
        self.loss.instances = Arc::new(Cloud { first, later, asked: AtomicBool::new(false) });
    }

    fn answered_by(
        machine: MachineState,
        api: Api2,
        answer: impl Fn(&Request) -> (u16, Value) + Send + Sync + 'static,
    ) -> Self {
        let server = Scenario::answering(answer);
        let with_address = |name: &str| {
            let address = NodeAddress { kind: NodeAddressKind::InternalIp, address: "192.0.2.1".into() };
            NodeView { addresses: vec![address], ..node(name) }
        };
        let nodes = crate::cache::nodes_with(["node-1", "node-2", "node-3"].map(with_address));
        let (recorder, events) = Recorder::to_channel("test");
        let cloud: Arc<dyn Instances> =
            Arc::new(Cloud { first: machine, later: machine, asked: AtomicBool::new(false) });
        let mut loss = NodeLoss::new(&server.client(), cloud, nodes, &recorder, NodeLossMetrics::default());
        loss.kubelet = |_| Box::pin(std::future::ready(false));
        Self { api, server, loss, events }
    }

    fn say(&self, watcher: &str, silent: bool) {
        self.renew(watcher, silent, 0);
    }

    fn renew(&self, watcher: &str, silent: bool, second: u8) {
        let key = format!("harvester-announcer-{watcher}");
        let card = json!({"silent": {"node-2": {"uid": "uid-node-2", "ms": 200, "unanswered": ["arp 10.0.0.2"]}}});
        let lease = json!({"metadata": {"name": key, "annotations": {CARD: card.to_string()}},
            "spec": {"leaseDurationSeconds": 15, "renewTime": format!("2026-01-01T00:00:0{second}.000000Z")}});
        match Report::of(&serde_json::from_value(lease).unwrap()).filter(|_| silent) {
            Some(report) => self.loss.reports.apply(key, report),
            None => self.loss.reports.remove(&key),
        }
    }

    async fn pass(&mut self) {
        self.loss.pass(Instant::now()).await;
    }

    /// Works for so long as `run` would.
    async fn work(&mut self, seconds: u64) {
        let end = Instant::now() + Duration::from_secs(seconds);
        while let Some(next) = self.loss.pass(Instant::now()).await.filter(|next| *next < end) {
            tokio::time::sleep_until(next).await;
        }
        tokio::time::sleep_until(end).await;
    }

    fn told(&mut self) -> Vec<String> {
        std::iter::from_fn(|| self.events.try_recv().ok()).map(|event| event.reason).collect()
    }

    fn writes(&self) -> usize {
        self.server.writes().len()
    }
}

const OUT: (Value, Value) = (Value::Null, Value::Bool(false));

fn out() -> (Value, Value) {
    (json!("False"), OUT.1)
}

fn serving() -> (Value, Value) {
    (json!("True"), json!(true))
}

#[tokio::test(start_paused = true)]
async fn pods_leave_their_services_when_two_watchers_agree_and_come_back_with_the_kubelet() {
    let mut lab = Lab::new(MachineState::Running);
    let silent = lab.loss.silent();
    lab.say("node-1", true);
    lab.pass().await;
    assert_eq!((lab.api.ready(), lab.writes()), (serving(), 0), "one watcher");
    lab.say("node-3", true);
    lab.pass().await;
    assert_eq!((lab.api.ready(), lab.writes(), lab.told()), (out(), 2, vec!["NodeSilent".to_owned()]));
    assert_eq!(*silent.borrow(), ["node-2".to_owned()].into());
    lab.work(14).await;
    assert_eq!(lab.writes(), 2, "what is marked is not written again");
    lab.say("node-1", false);
    lab.say("node-3", false);
    lab.pass().await;
    assert!(silent.borrow().is_empty());
    assert_eq!(
        (lab.api.ready(), lab.told()),
        (out(), vec!["NodeHeardAgain".to_owned()]),
        "its kubelet may not be up yet"
    );
    lab.api.kubelet();
    lab.work(3).await;
    assert_eq!(lab.api.ready(), serving(), "the endpoint controller may be away");
    lab.work(120).await;
    assert_eq!((lab.writes(), lab.loss.cases.len()), (3, 0));
}

#[tokio::test(start_paused = true)]
async fn a_mark_that_no_kubelet_puts_right_is_taken_back_when_the_node_has_been_ready_for_a_minute() {
    let mut lab = Lab::new(MachineState::Running);
    lab.say("node-1", true);
    lab.say("node-3", true);
    lab.pass().await;
    lab.work(3).await;
    lab.say("node-1", false);
    lab.say("node-3", false);
    lab.work(55).await;
    assert_eq!(lab.api.ready(), out());
    lab.work(20).await;
    assert_eq!(lab.api.ready(), serving());
}

#[tokio::test(start_paused = true)]
async fn a_kubelet_that_puts_the_mark_right_refutes_the_verdict_until_the_node_was_heard() {
    let mut lab = Lab::new(MachineState::Running);
    lab.say("node-1", true);
    lab.say("node-3", true);
    lab.pass().await;
    assert_eq!(lab.api.ready(), out());
    lab.api.kubelet();
    lab.work(2).await;
    assert_eq!(lab.api.ready(), serving());
    assert_eq!(lab.loss.metrics.wrong.get(), 1);
    let writes = lab.writes();
    lab.work(10).await;
    assert_eq!((lab.api.ready(), lab.writes()), (serving(), writes), "it is not fought over");
}

#[tokio::test(start_paused = true)]
async fn a_kubelet_that_accepts_connections_refutes_the_verdict_before_it_puts_anything_right() {
    let mut lab = Lab::new(MachineState::Running);
    lab.loss.kubelet = |address| Box::pin(std::future::ready(address.to_string() == "192.0.2.1:10250"));
    lab.say("node-1", true);
    lab.say("node-3", true);
    lab.pass().await;
    assert_eq!(lab.api.ready(), out(), "the first mark waits for nobody");
    lab.work(1).await;
    assert_eq!((lab.api.ready(), lab.loss.metrics.wrong.get(), lab.writes()), (serving(), 1, 4));
    assert!(lab.loss.silent().borrow().is_empty(), "nobody is succeeded because of it");
    lab.work(10).await;
    assert_eq!((lab.api.ready(), lab.writes()), (serving(), 4), "it is not marked again");
}

#[tokio::test(start_paused = true)]
async fn a_node_that_is_heard_again_before_any_machine_could_have_started_gets_its_pods_back_at_once() {
    let mut lab = Lab::new(MachineState::Running);
    lab.say("node-1", true);
    lab.say("node-3", true);
    lab.pass().await;
    assert_eq!(lab.api.ready(), out());
    tokio::time::sleep(Duration::from_millis(1500)).await;
    lab.say("node-1", false);
    lab.say("node-3", false);
    lab.pass().await;
    assert_eq!(lab.api.ready(), serving());
}

#[tokio::test(start_paused = true)]
async fn a_machine_that_stands_still_is_waited_for_and_one_that_is_off_is_believed_at_once() {
    let mut still = Lab::new(MachineState::Still("paused"));
    still.say("node-1", true);
    still.say("node-3", true);
    still.work(9).await;
    assert_eq!(still.writes(), 0);
    still.work(3).await;
    assert_eq!(still.api.ready(), out());
    let mut off = Lab::new(MachineState::Off);
    off.say("node-1", true);
    off.pass().await;
    assert_eq!(off.api.ready(), out());
}

/// A machine that is migrated was called lost when the second question about it got no answer.
#[tokio::test(start_paused = true)]
async fn an_answer_that_does_not_come_replaces_none_and_is_asked_for_again() {
    let still = MachineState::Still("being migrated");
    let mut later_mute = Lab::of_two_answers(still, MachineState::Unknown);
    later_mute.say("node-1", true);
    later_mute.say("node-3", true);
    later_mute.work(9).await;
    assert_eq!(later_mute.writes(), 0);
    later_mute.work(3).await;
    assert_eq!(later_mute.api.ready(), out(), "patience has an end");

    let mut first_mute = Lab::of_two_answers(MachineState::Unknown, still);
    first_mute.say("node-1", true);
    first_mute.work(1).await;
    first_mute.say("node-3", true);
    first_mute.pass().await;
    first_mute.work(1).await;
    assert_eq!(first_mute.writes(), 0, "the answer came at the second question");
}

#[tokio::test(start_paused = true)]
async fn a_refused_right_is_told_once_and_an_api_in_doubt_is_left_alone() {
    let api = Api2::new();
    let mut lab = Lab::answered_by(MachineState::Running, api, |request| {
        assert_eq!(request.method, "GET", "nothing is written on half of what is to be known");
        (403, Scenario::status(403, "Forbidden", "cannot list pods"))
    });
    lab.say("node-1", true);
    lab.say("node-3", true);
    lab.work(5).await;
    assert!(lab.loss.is_refused && lab.told().is_empty());
    let mut mute = Lab::answered_by(MachineState::Running, Api2::new(), |_| (0, Value::Null));
    mute.say("node-1", true);
    mute.say("node-3", true);
    mute.work(5).await;
    assert_eq!(mute.writes(), 0);
}

/// Two watchers agree, and every request is answered as `first` says, or else as the API does.
fn lab_where(first: impl Fn(&Request) -> Option<(u16, Value)> + Send + Sync + 'static) -> Lab {
    let api = Api2::new();
    let answering = api.clone();
    let lab = Lab::answered_by(MachineState::Running, api, move |request| {
        first(request).unwrap_or_else(|| answering.answer(request))
    });
    lab.say("node-1", true);
    lab.say("node-3", true);
    lab
}

#[tokio::test(start_paused = true)]
async fn what_the_cloud_said_counts_also_if_the_rest_of_that_look_failed() {
    let failed = AtomicBool::new(false);
    let mut lab = lab_where(move |request| {
        let first = request.path.ends_with(UPGRADE) && !failed.swap(true, Ordering::Relaxed);
        first.then(|| (500, Scenario::status(500, "InternalError", "etcd is slow")))
    });
    lab.cloud_answers(MachineState::Still("being migrated"), MachineState::Unknown);
    lab.work(9).await;
    assert_eq!(lab.writes(), 0);
}

#[tokio::test(start_paused = true)]
async fn reports_that_were_left_behind_count_from_their_next_renewal_on() {
    let mut lab = Lab::new(MachineState::Running);
    lab.say("node-1", true);
    lab.loss.inherit();
    lab.say("node-3", true);
    lab.work(60).await;
    assert_eq!((lab.writes(), lab.api.ready()), (0, serving()), "the one is old, and the other alone");
    let mut lab = Lab::new(MachineState::Running);
    lab.say("node-1", true);
    lab.loss.inherit();
    lab.say("node-3", true);
    lab.pass().await;
    lab.renew("node-1", true, 5);
    lab.pass().await;
    assert_eq!(lab.api.ready(), out());
}

#[tokio::test(start_paused = true)]
async fn a_refusal_is_left_alone_for_minutes_and_other_failures_longer_each_time() {
    let mut refused = lab_where(|request| {
        let forbidden = || (403, Scenario::status(403, "Forbidden", "cannot patch pods/status"));
        request.path.ends_with("/status").then(forbidden)
    });
    refused.work(14).await;
    assert_eq!((refused.writes(), refused.api.ready()), (1, serving()), "nor are endpoints written");
    let mut failing = lab_where(|request| {
        let broken = || (500, Scenario::status(500, "InternalError", "no"));
        (request.path == "/api/v1/pods").then(broken)
    });
    failing.work(14).await;
    let asked = failing.server.requests().iter().filter(|request| request.path == "/api/v1/pods").count();
    assert!((4..=6).contains(&asked), "{asked}");
}

#[tokio::test(start_paused = true)]
async fn a_conflict_is_not_taken_for_a_kubelet_that_lives() {
    let conflicts = Mutex::new(2);
    let mut lab = lab_where(move |request| {
        let mut left = conflicts.lock();
        if *left == 0 || !request.path.ends_with("/status") {
            return None;
        }
        *left -= 1;
        Some((409, Scenario::status(409, "Conflict", "the object has been modified")))
    });
    lab.pass().await;
    assert_eq!(lab.api.ready(), (json!("True"), json!(false)));
    lab.work(5).await;
    assert_eq!((lab.api.ready(), lab.loss.metrics.wrong.get()), (out(), 0));
    assert!(lab.loss.cases["node-2"].is_lost());
}

#[tokio::test(start_paused = true)]
async fn endpoints_of_a_refuted_verdict_are_taken_back_until_it_succeeds() {
    let failures = Mutex::new(0);
    let mut lab = lab_where(move |request| {
        let is_back = request.path.ends_with("/web-1") && request.body[1]["value"]["ready"] == json!(true);
        let mut seen = failures.lock();
        *seen += u8::from(is_back);
        (is_back && *seen < 3).then(|| (500, Scenario::status(500, "InternalError", "no")))
    });
    lab.pass().await;
    lab.api.kubelet();
    lab.work(1).await;
    assert_eq!(lab.api.ready(), (json!("True"), json!(false)));
    lab.work(5).await;
    assert_eq!((lab.api.ready(), lab.loss.metrics.wrong.get()), (serving(), 1));
}

#[tokio::test(start_paused = true)]
async fn nothing_is_written_while_the_record_forbids_it_or_cannot_be_read() {
    let record = |data: Value| (200, json!({"kind": "ConfigMap", "apiVersion": "v1", "metadata": {}, "data": data}));
    for (answer, writes) in [
        (record(json!({"paused": "true"})), false),
        (record(json!({"safe-mode": "WrongHarvester: x"})), false),
        ((500, Scenario::status(500, "InternalError", "no")), false),
        (record(json!({"paused": "false"})), true),
        ((403, Scenario::status(403, "Forbidden", "no")), true),
        ((404, Scenario::status(404, "NotFound", "no")), true),
    ] {
        let told = answer.clone();
        let mut lab = lab_where(move |request| request.path.ends_with(RECORD).then(|| told.clone()));
        lab.work(14).await;
        assert_eq!(lab.writes() > 0, writes, "{answer:?}");
        let asked = lab.server.requests().iter().filter(|request| request.path.ends_with(RECORD)).count();
        assert!(if writes { asked > 1 } else { (4..=6).contains(&asked) }, "{asked}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_upgrade_of_hosts_is_waited_out_for_as_long_as_its_window_is_open_and_nodes_say_nothing_about_it() {
    let open = json!({"window": {"opened": "2026-01-01T00:00:00Z", "cause": "UpgradePlan p", "suspended": true}});
    let spent = json!({"window": {"opened": "2026-01-01T00:00:00Z", "cause": "UpgradePlan p", "suspended": false}});
    let silence = json!({"window": {"cause": "no usable answer", "suspended": true, "upgrade": false}});
    for (status, lost) in
        [(open.clone(), false), (spent, true), (silence, true), (json!({"lastReport": "failed"}), true)]
    {
        let data = json!({"status.json": status.to_string(), "summary": "for people"});
        let found = json!({"kind": "ConfigMap", "apiVersion": "v1", "metadata": {}, "data": data});
        let mut lab = lab_where(move |request| request.path.ends_with(UPGRADE).then(|| (200, found.clone())));
        lab.work(14).await;
        assert_eq!(lab.writes() > 0, lost, "{status}");
    }
    // It closes while the node is silent.
    let closed = Arc::new(Mutex::new(false));
    let is_closed = closed.clone();
    let mut lab = lab_where(move |request| {
        let status = if *is_closed.lock() { json!({}) } else { open.clone() };
        let data = json!({"status.json": status.to_string()});
        let found = json!({"kind": "ConfigMap", "apiVersion": "v1", "metadata": {}, "data": data});
        request.path.ends_with(UPGRADE).then_some((200, found))
    });
    lab.work(3).await;
    assert_eq!(lab.writes(), 0);
    *closed.lock() = true;
    lab.work(8).await;
    assert_eq!(lab.api.ready(), out());
}
