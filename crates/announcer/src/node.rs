//! The edge: runs the engine on a real node. Feeds it what happens, performs what it says.

use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures::{FutureExt, Stream, StreamExt};
use k8s_openapi::api::core::v1::ObjectReference;
use l2::netlink::Changes;
use runtime::events::Recorder;
use tokio::sync::{Notify, mpsc};
use tokio_util::sync::CancellationToken;

use crate::Reason;
use crate::VipId;
use crate::api_time::ApiTime;
use crate::clients::Clients;
use crate::clock;
use crate::dhcp_driver;
use crate::engine::{Action, ClientStart, Engine, Input, REFRESH, Recorded, Tell, WireDone, WireOp};
use crate::frames;
use crate::kubelet;
use crate::listen::Listeners;
use crate::metrics::Metrics;
use crate::ownership::node::{Card, Swap};
use crate::ownership::service::LeaseKey;
use crate::view::{ServiceKey, Uid};
use crate::wire::Wire;
use crate::writer::Writer;
use announcer_core::kernel_queue::KernelQueue;

/// Frames that wait for the engine; more are dropped.
const FRAMES: usize = 1024;

/// How the loop is doing, for the health checks.
#[derive(Debug)]
pub struct Liveness {
    /// Seconds since boot at the last step.
    beat: AtomicU64,
    /// What the engine does not know yet.
    unknown: Mutex<Option<&'static str>>,
}

impl Default for Liveness {
    fn default() -> Self {
        Self { beat: AtomicU64::default(), unknown: Mutex::new(Some("the Services")) }
    }
}

impl Liveness {
    /// Fails if the loop has not gone round for a while: it is woken every second.
    pub fn alive(&self) -> Result<(), String> {
        self.alive_at(l2::clock::since_boot())
    }

    /// `now`: since boot.
    fn alive_at(&self, now: Duration) -> Result<(), String> {
        let silent = now.as_secs().saturating_sub(self.beat.load(Ordering::Relaxed));
        if silent > 30 { Err(format!("the engine has not made a step for {silent} s")) } else { Ok(()) }
    }

    /// Fails until all is known that decisions need, and says what is not.
    pub fn ready(&self) -> Result<(), String> {
        let unknown = *self.unknown.lock();
        unknown.map_or(Ok(()), |what| Err(format!("not known yet: {what}")))
    }

    fn beat(&self, now: Duration) {
        self.beat.store(now.as_secs(), Ordering::Relaxed);
    }

    fn knows_all_but(&self, unknown: Option<&'static str>) {
        *self.unknown.lock() = unknown;
    }
}

/// What a node is made of.
pub struct Parts<W> {
    /// Decides.
    pub engine: Engine,
    /// The kernel.
    pub wire: W,
    /// Writes on Services.
    pub writer: Writer,
    /// Events on Services.
    pub recorder: Recorder,
    /// Metrics.
    pub metrics: Arc<Metrics>,
    /// For health checks.
    pub liveness: Arc<Liveness>,
    /// Cancelled when the Lease is to be handed back.
    pub release: CancellationToken,
    /// `service` mode: in which elections to take part.
    pub campaigns: mpsc::UnboundedSender<BTreeSet<LeaseKey>>,
    /// `node` mode: changes the owners of Services.
    pub swaps: mpsc::UnboundedSender<(ServiceKey, Swap)>,
    /// `node` mode: what to write into our membership Lease.
    pub cards: mpsc::UnboundedSender<Card>,
    /// The node's network has changed.
    pub network: Arc<Notify>,
    /// The time that what stands on Services is counted by.
    pub api_time: ApiTime,
    /// What happens. The sender is kept for those who are started on the way.
    pub inputs: (mpsc::UnboundedSender<Input>, mpsc::UnboundedReceiver<Input>),
}

/// The Services by their UIDs: Events need them, and they tell a new Service from a changed one.
#[derive(Debug, Default)]
struct Uids(BTreeMap<ServiceKey, Uid>);

impl Uids {
    /// What happened to a Service, in the words of the watch.
    fn note(&mut self, key: &ServiceKey, uid: Option<&Uid>) -> Option<&'static str> {
        let Some(uid) = uid else {
            return self.0.remove(key).map(|_| "DELETED");
        };
        match self.0.insert(key.clone(), uid.clone()) {
            Some(old) if old == *uid => Some("MODIFIED"),
            _ => Some("ADDED"),
        }
    }
}

struct Node {
    listeners: Listeners,
    clients: Clients,
    wire: mpsc::UnboundedSender<WireOp>,
    uids: Uids,
    writer: Writer,
    recorder: Recorder,
    metrics: Arc<Metrics>,
    release: CancellationToken,
    campaigns: mpsc::UnboundedSender<BTreeSet<LeaseKey>>,
    swaps: mpsc::UnboundedSender<(ServiceKey, Swap)>,
    cards: mpsc::UnboundedSender<Card>,
    network: Arc<Notify>,
    api_time: ApiTime,
    inputs: mpsc::UnboundedSender<Input>,
}

/// Runs until the engine says that all is done.
pub async fn run<W: Wire>(parts: Parts<W>) {
    let Parts {
        mut engine,
        wire,
        writer,
        recorder,
        metrics,
        liveness,
        release,
        campaigns,
        swaps,
        cards,
        network,
        api_time,
        inputs,
    } = parts;
    let (sender, mut receiver) = inputs;
    let (ops, requests) = mpsc::unbounded_channel();
    let (ears, mut frames) = mpsc::channel(FRAMES);
    let kernel = tokio::spawn(perform(wire, requests, sender.clone()));
    let mut node = Node {
        listeners: Listeners::new(ears),
        clients: Clients::default(),
        wire: ops,
        uids: Uids::default(),
        writer,
        recorder,
        metrics,
        release,
        campaigns,
        swaps,
        cards,
        network,
        api_time,
        inputs: sender,
    };
    let mut next_status = clock::now();
    let mut input = None;
    let mut wake = clock::now();
    'steps: loop {
        let now = clock::now();
        let mut actions = node.take_frames(&mut engine, now, wake, &mut frames);
        // All that waits is taken in before a timer is judged; but not for ever: the deadlines of addresses that are up
        // have to be put off while a thousand others are being set.
        let waiting = receiver.try_recv().ok();
        if let Some(input) = input.take() {
            node.note(&engine, &input);
            actions.extend(engine.handle(now, input));
        }
        actions.extend(engine.poll(now, waiting.is_some()));
        for action in actions {
            if node.act(action) {
                break 'steps;
            }
        }
        wake = engine.wake_at(clock::now());
        liveness.beat(l2::clock::since_boot());
        liveness.knows_all_but(engine.unknown());
        if now >= next_status {
            next_status = now + REFRESH;
            node.metrics.vips(&engine.status(), now);
            node.metrics.observed(&engine.observations());
        }
        input = waiting;
        if input.is_none() {
            input = tokio::select! {
                biased;
                Some(input) = frames.recv() => Some(input),
                input = receiver.recv() => Some(input.expect("a sender is kept here")),
                () = node.network.notified() => Some(Input::NetworkChanged),
                () = clock::sleep_until(wake) => None,
            };
        }
    }
    node.clients.end().await;
    // What was asked of the kernel last is done before the process ends.
    drop(node.wire);
    if tokio::time::timeout(Duration::from_secs(5), kernel).await.is_err() {
        tracing::warn!("the kernel did not finish in time: its deadlines do the rest");
    }
}

/// Performs requests to the kernel in the order of [`KernelQueue`], one after the other and rules beside them, until all that
/// was asked for is done.
async fn perform<W: Wire>(
    wire: W,
    mut requests: mpsc::UnboundedReceiver<WireOp>,
    inputs: mpsc::UnboundedSender<Input>,
) {
    let mut queue = KernelQueue::default();
    let (mut next, mut rules, mut is_asked) = (None, None, true);
    let tell = |done: Option<WireDone>| {
        if let Some(done) = done {
            let _ = inputs.send(Input::Wire(done));
        }
    };
    loop {
        // What was asked for by now is in the queue before the next one is chosen.
        while let Ok(op) = requests.try_recv() {
            queue.push(op);
        }
        if next.is_none() {
            next = queue.next_in_order().map(|op| Box::pin(wire.perform(op)));
        }
        if rules.is_none() {
            rules = queue.next_rules().map(|op| Box::pin(wire.perform(op)));
        }
        if !is_asked && next.is_none() && rules.is_none() {
            return;
        }
        tokio::select! {
            op = requests.recv(), if is_asked => match op {
                Some(op) => queue.push(op),
                None => is_asked = false,
            },
            done = result_of(&mut next) => {
                next = None;
                tell(done);
            }
            done = result_of(&mut rules) => {
                rules = None;
                tell(done);
            }
        }
    }
}

/// What came of the request that is under way; never, if none is.
async fn result_of<F: Future + Unpin>(request: &mut Option<F>) -> F::Output {
    match request {
        Some(request) => request.await,
        None => std::future::pending().await,
    }
}

impl Node {
    /// failover-protocol.md R1: what the wire has said counts before any timer, whoever got processor time first. It
    /// costs no plan, so it is taken in whole.
    fn take_frames(
        &self,
        engine: &mut Engine,
        now: Instant,
        wake: Instant,
        frames: &mut mpsc::Receiver<Input>,
    ) -> Vec<Action> {
        let mut actions = Vec::new();
        for _ in 0..FRAMES {
            let Ok(frame) = frames.try_recv() else { break };
            actions.extend(engine.handle(now, frame));
        }
        // Also while so much else waits that nobody would listen.
        if self.network.notified().now_or_never().is_some() {
            actions.extend(engine.handle(now, Input::NetworkChanged));
        }
        if now >= wake {
            for frame in self.listeners.drain() {
                actions.extend(engine.handle(now, Input::Heard(frame)));
            }
        }
        actions
    }

    fn note(&mut self, engine: &Engine, input: &Input) {
        match input {
            Input::Service(key, view) => {
                self.metrics.services.seen(key, view.as_deref(), clock::now());
                if let Some(event) = self.uids.note(key, view.as_ref().map(|view| &view.uid)) {
                    self.metrics.service_event(event);
                }
            }
            Input::Lease(state) => self.metrics.lease(engine.lease(), state),
            Input::Recorded(key, Recorded::Failed) if self.uids.0.contains_key(key) => {
                self.metrics.services.unwritten(key);
            }
            _ => {}
        }
    }

    /// True if this was the last one.
    fn act(&mut self, action: Action) -> bool {
        match action {
            Action::Wire(op) => {
                let _ = self.wire.send(op);
            }
            Action::Announce { link, mac, address } => {
                let sent = frames::announcement(mac, address)
                    .iter()
                    .filter(|frame| self.listeners.send(link, address, frame))
                    .count();
                self.metrics.announced(sent.try_into().unwrap_or(0));
            }
            Action::Probe { link, mac, address } => {
                self.listeners.send(link, address, &frames::probe(mac, address));
            }
            Action::Ask { mac, source, ask } => {
                if let Some(frame) = frames::question(mac, source, ask.address, ask.to) {
                    self.listeners.ask(ask.link, ask.address, &frame);
                }
            }
            Action::AskKubelet { node, address } => {
                let inputs = self.inputs.clone();
                tokio::spawn(async move {
                    let answers = kubelet::answers(address).await;
                    let _ = inputs.send(Input::Kubelet { node, answers });
                });
            }
            Action::Claim { link, mac, address, to, payload } => {
                self.listeners.send(link, address, &frames::claim(mac, address, to, &payload));
            }
            Action::Listen(links) => self.listeners.set(&links),
            Action::StartDhcp(uid, ClientStart::V4(start)) => {
                let (orders, task) =
                    dhcp_driver::client(uid.clone(), start, self.inputs.clone(), self.api_time.clone());
                self.clients.start(VipId::Dhcp(uid), orders, task);
            }
            Action::StartDhcp(uid, ClientStart::V6(start)) => {
                let (orders, task) =
                    dhcp_driver::client6(uid.clone(), start, self.inputs.clone(), self.api_time.clone());
                self.clients.start(VipId::Dhcp6(uid), orders, task);
            }
            Action::StopDhcp { id, release } => self.clients.stop(&id, release),
            Action::DhcpLink { id, up } => self.clients.link(&id, up),
            Action::DhcpTaken { id, address, by } => self.clients.taken(&id, address, by),
            Action::Record(key, record) => self.writer.want(key, record),
            Action::Campaign(wanted) => {
                self.metrics.services.campaigns(&wanted);
                let _ = self.campaigns.send(wanted);
            }
            Action::Swap(key, swap) => {
                let _ = self.swaps.send((key, swap));
            }
            Action::Membership(card) => {
                let _ = self.cards.send(card);
            }
            Action::Forget(key) => self.writer.forget(&key),
            Action::Tell(key, tell) => self.tell(&key, &tell),
            Action::ReleaseLease => self.release.cancel(),
            Action::Exit => return true,
        }
        false
    }

    fn tell(&self, key: &ServiceKey, tell: &Tell) {
        if tell.reason == Reason::AddressConflict {
            self.metrics.conflict();
        }
        // What is told of a Service that is gone must not bring its series back.
        if tell.reason == Reason::CannotAnnounce && self.uids.0.contains_key(key) {
            self.metrics.services.refused(key);
        }
        let object = ObjectReference {
            api_version: Some("v1".into()),
            kind: Some("Service".into()),
            namespace: Some(key.namespace.clone()),
            name: Some(key.name.clone()),
            uid: self.uids.0.get(key).map(|uid| uid.0.clone()),
            ..ObjectReference::default()
        };
        if tell.warning {
            tracing::warn!(service = %key, reason = tell.reason.as_str(), "{}", tell.text);
            self.recorder.warning(&object, tell.reason.as_str(), &tell.text);
        } else {
            tracing::info!(service = %key, reason = tell.reason.as_str(), "{}", tell.text);
            self.recorder.normal(&object, tell.reason.as_str(), &tell.text);
        }
    }
}

/// Tells the engine that the network has changed. Our own addresses are not reported while they are there.
pub async fn watch_network(changed: Arc<Notify>) -> Result<(), l2::netlink::NetlinkError> {
    wake_for_each(Changes::subscribe()?, &changed).await;
    Err(l2::netlink::NetlinkError::Closed { tried: "hear about changes of the network".to_owned() })
}

/// However many reports come before the engine looks, it looks once: a routing daemon that starts sends ten thousand.
async fn wake_for_each(changes: impl Stream, changed: &Notify) {
    changes.for_each(async |_| changed.notify_one()).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Notes what it is asked for.
    struct Noting(mpsc::UnboundedSender<WireOp>);

    impl Wire for Noting {
        async fn perform(&self, op: WireOp) -> Option<WireDone> {
            let _ = self.0.send(op);
            None
        }
    }

    #[tokio::test]
    async fn deadlines_are_put_off_before_everything_else_that_waits_for_the_kernel() {
        let (noted, mut performed) = mpsc::unbounded_channel();
        let (ops, requests) = mpsc::unbounded_channel();
        let (inputs, _answers) = mpsc::unbounded_channel();
        for link in 0..200 {
            ops.send(WireOp::Delete { link }).unwrap();
        }
        ops.send(WireOp::Extend(Vec::new())).unwrap();
        drop(ops);
        perform(Noting(noted), requests, inputs).await;
        assert_eq!(performed.recv().await, Some(WireOp::Extend(Vec::new())));
        assert_eq!(performed.recv().await, Some(WireOp::Delete { link: 0 }));
        assert_eq!(performed.len(), 199, "and nothing is lost");
    }

    /// The kernel's tables are busy: rules are set when told to. Notes what is begun and what is done.
    struct Busy {
        rules: Arc<Notify>,
        noted: mpsc::UnboundedSender<&'static str>,
    }

    impl Wire for Busy {
        async fn perform(&self, op: WireOp) -> Option<WireDone> {
            let (begun, done) = match op {
                WireOp::Protect(_) => ("rules begun", "rules stand"),
                WireOp::Extend(_) => ("extending", "extended"),
                _ => ("removing", "removed"),
            };
            let _ = self.noted.send(begun);
            if begun == "rules begun" {
                self.rules.notified().await;
            } else {
                tokio::task::yield_now().await;
            }
            let _ = self.noted.send(done);
            None
        }
    }

    #[tokio::test]
    async fn neither_deadlines_nor_removals_wait_for_rules_that_the_kernel_is_slow_to_set() {
        let (noted, mut seen) = mpsc::unbounded_channel();
        let (ops, requests) = mpsc::unbounded_channel();
        let (inputs, _answers) = mpsc::unbounded_channel();
        let rules = Arc::new(Notify::new());
        let kernel = tokio::spawn(perform(Busy { rules: Arc::clone(&rules), noted }, requests, inputs));
        let mut next = async || tokio::time::timeout(Duration::from_secs(5), seen.recv()).await.expect("it goes on");
        let net: ipnet::IpNet = "10.0.0.5/32".parse().unwrap();
        // No address is left without rules: what is removed first is gone before they change.
        ops.send(WireOp::Remove { link: 2, net }).unwrap();
        ops.send(WireOp::Protect(crate::security::Protection::default())).unwrap();
        for expected in ["removing", "removed", "rules begun"] {
            assert_eq!(next().await, Some(expected));
        }
        ops.send(WireOp::Extend(Vec::new())).unwrap();
        ops.send(WireOp::Remove { link: 2, net }).unwrap();
        for expected in ["extending", "extended", "removing", "removed"] {
            assert_eq!(next().await, Some(expected));
        }
        drop(ops);
        rules.notify_one();
        assert_eq!(next().await, Some("rules stand"), "the last request is done before the end");
        kernel.await.unwrap();
    }

    #[tokio::test]
    async fn ten_thousand_changes_of_the_network_wake_the_engine_once() {
        let changed = Notify::new();
        wake_for_each(futures::stream::iter(0..10_000), &changed).await;
        assert_eq!([(); 2].map(|()| changed.notified().now_or_never()), [Some(()), None]);
    }

    #[test]
    fn a_loop_is_alive_for_half_a_minute_after_its_last_step() {
        let (liveness, boot) = (Liveness::default(), Duration::from_hours(24));
        assert_eq!(liveness.alive_at(boot).unwrap_err(), "the engine has not made a step for 86400 s");
        liveness.beat(boot);
        assert_eq!(liveness.alive_at(boot + Duration::from_secs(30)), Ok(()));
        let stuck = liveness.alive_at(boot + Duration::from_secs(31));
        assert_eq!(stuck.unwrap_err(), "the engine has not made a step for 31 s");
        liveness.beat(boot + Duration::from_secs(40));
        assert_eq!(liveness.alive_at(boot + Duration::from_secs(41)), Ok(()));
    }

    fn parts(liveness: &Arc<Liveness>, recorder: Recorder) -> Parts<Noting> {
        let config = crate::Config::from_env_and_args([], [], "node-1").unwrap();
        let api = runtime::scenario::Scenario::answering(|_| (404, serde_json::Value::Null));
        let (sender, receiver) = mpsc::unbounded_channel();
        let mut registry = prometheus_client::registry::Registry::default();
        Parts {
            engine: Engine::new(clock::now(), config),
            wire: Noting(mpsc::unbounded_channel().0),
            writer: Writer::new(api.client(), runtime::work_queue::QueueMetrics::default(), sender.clone()),
            recorder,
            metrics: Arc::new(Metrics::register(&mut registry, "node-1", "lock", "0")),
            liveness: Arc::clone(liveness),
            release: CancellationToken::new(),
            campaigns: mpsc::unbounded_channel().0,
            swaps: mpsc::unbounded_channel().0,
            cards: mpsc::unbounded_channel().0,
            network: Arc::new(Notify::new()),
            api_time: ApiTime::default(),
            inputs: (sender, receiver),
        }
    }

    #[tokio::test]
    async fn only_steps_of_the_loop_are_signs_of_life() {
        let liveness = Arc::new(Liveness::default());
        let (recorder, _events) = Recorder::to_channel("test");
        let mut process = Box::pin(run(parts(&liveness, recorder)));
        let seen = || liveness.beat.load(Ordering::Relaxed);
        assert_eq!(seen(), 0, "it has not begun");
        let two_beats = async {
            let mut first = 0;
            while first == 0 || seen() == first {
                first = if first == 0 { seen() } else { first };
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::select! {
            () = &mut process => panic!("nobody has ended it"),
            ended = tokio::time::timeout(Duration::from_secs(40), two_beats) => ended.expect("it goes round by itself"),
        }
        assert_eq!(liveness.alive(), Ok(()));
        // Now it is stuck: whatever else runs in the process makes up for no step.
        let last = seen();
        tokio::time::sleep(Duration::from_millis(1200)).await;
        assert_eq!(seen(), last);
        assert!(liveness.alive_at(Duration::from_secs(last + 31)).is_err());
        drop(process);
    }

    #[test]
    fn a_process_is_not_ready_until_all_is_known_and_says_what_is_not() {
        let liveness = Liveness::default();
        assert_eq!(liveness.ready().unwrap_err(), "not known yet: the Services");
        liveness.knows_all_but(Some("the Nodes"));
        assert_eq!(liveness.ready().unwrap_err(), "not known yet: the Nodes");
        liveness.knows_all_but(None);
        assert_eq!(liveness.ready(), Ok(()));
    }

    #[test]
    fn a_service_that_is_made_again_is_a_new_one_and_one_that_is_gone_is_forgotten() {
        let (key, first, second) = (ServiceKey::new("default", "web"), Uid("1".into()), Uid("2".into()));
        let mut uids = Uids::default();
        let words = [Some(&first), Some(&first), Some(&second), None, Some(&second)].map(|uid| uids.note(&key, uid));
        assert_eq!(words, ["ADDED", "MODIFIED", "ADDED", "DELETED", "ADDED"].map(Some));
        uids.note(&key, None);
        assert_eq!(uids.note(&key, None), None, "it was none of ours");
        assert!(uids.0.is_empty());
    }
}
