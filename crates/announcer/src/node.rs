//! Runs the engine on a real node: feeds it inputs and performs its actions.

mod kernel_task;
mod liveness;
mod network;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use announcer_core::Reason;
use announcer_core::VipId;
use announcer_core::claim::Claim;
use announcer_core::detect::Ask;
use announcer_core::engine::{Action, ClientStart, Engine, Input, KernelOp, REFRESH, Recorded, ServiceEvent};
use announcer_core::frames;
use announcer_core::ownership::node::{Card, Swap};
use announcer_core::ownership::service::LeaseKey;
use announcer_core::prober::Targets;
use announcer_core::view::{ServiceKey, Uid};
use futures::FutureExt;
use runtime::events::{self, Recorder};
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use kernel_task::perform;
pub use liveness::Liveness;
pub use network::watch_network;

use crate::api_time::ApiTime;
use crate::clients::Clients;
use crate::clock;
use crate::dhcp_driver;
use crate::kernel::Kernel;
use crate::kubelet;
use crate::listen::Listeners;
use crate::metrics::Metrics;
use crate::probing;
use crate::writer::Writer;

/// Limit of frames that wait for the engine; more are dropped.
const FRAMES: usize = 1024;

/// The parts of a node's announcer.
pub struct Parts<K> {
    /// Decides.
    pub engine: Engine,
    /// Performs requests to the kernel.
    pub kernel: K,
    /// Writes records on Services.
    pub writer: Writer,
    /// Creates Events on Services.
    pub recorder: Recorder,
    /// Metrics.
    pub metrics: Arc<Metrics>,
    /// State for the health checks.
    pub liveness: Arc<Liveness>,
    /// Cancelled when the Lease has to be released.
    pub release: CancellationToken,
    /// `service` mode: the elections to take part in.
    pub campaigns: mpsc::UnboundedSender<BTreeSet<LeaseKey>>,
    /// `node` mode: changes the owners of Services.
    pub swaps: mpsc::UnboundedSender<(ServiceKey, Swap)>,
    /// `node` mode: the cards to write into our membership Lease.
    pub cards: mpsc::UnboundedSender<Card>,
    /// Notified when the node's network has changed.
    pub network: Arc<Notify>,
    /// The API server's time, by which recorded facts are judged.
    pub api_time: ApiTime,
    /// The inputs. The sender is kept for tasks that are started later.
    pub inputs: (mpsc::UnboundedSender<Input>, mpsc::UnboundedReceiver<Input>),
}

/// The UIDs of the Services. Events need them, and a new UID tells a new Service from a changed one.
#[derive(Debug, Default)]
struct Uids(BTreeMap<ServiceKey, Uid>);

impl Uids {
    /// What happened to a Service, as an event type of the watch.
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
    /// Questions of the last step that could not be sent.
    unsent: Vec<Ask>,
    clients: Clients,
    kernel_ops: mpsc::UnboundedSender<KernelOp>,
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
    /// Channel to the prober, which is started with the first targets.
    probes: Option<mpsc::UnboundedSender<Targets>>,
}

/// What is taken apart of [`Parts`]: the engine, who works for it, and where its inputs come from.
struct Assembled {
    engine: Engine,
    node: Node,
    liveness: Arc<Liveness>,
    kernel: JoinHandle<()>,
    frames: mpsc::Receiver<Input>,
    inputs: mpsc::UnboundedReceiver<Input>,
}

impl<K: Kernel> Parts<K> {
    /// Starts the task that works on the kernel.
    fn assemble(self) -> Assembled {
        let (sender, inputs) = self.inputs;
        let (kernel_ops, requests) = mpsc::unbounded_channel();
        let (frames_tx, frames) = mpsc::channel(FRAMES);
        let kernel = tokio::spawn(perform(self.kernel, requests, sender.clone()));
        let node = Node {
            listeners: Listeners::new(frames_tx),
            unsent: Vec::new(),
            clients: Clients::default(),
            kernel_ops,
            uids: Uids::default(),
            writer: self.writer,
            recorder: self.recorder,
            metrics: self.metrics,
            release: self.release,
            campaigns: self.campaigns,
            swaps: self.swaps,
            cards: self.cards,
            network: self.network,
            api_time: self.api_time,
            inputs: sender,
            probes: None,
        };
        Assembled { engine: self.engine, node, liveness: self.liveness, kernel, frames, inputs }
    }
}

/// Runs until the engine says that everything is done.
pub async fn run<K: Kernel>(parts: Parts<K>) {
    let Assembled { mut engine, mut node, liveness, kernel, mut frames, inputs: mut receiver } = parts.assemble();
    let mut next_status = clock::now();
    let mut input = None;
    let mut wake = clock::now();
    'steps: loop {
        let now = clock::now();
        let mut actions = node.take_frames(&mut engine, now, wake, &mut frames);
        // All waiting inputs are handled before a timer is judged, but for a limited time: addresses that are up have
        // to be extended while a thousand others are being set.
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
            input = node.next(&mut frames, &mut receiver, wake).await;
        }
    }
    node.clients.end().await;
    // Earlier requests to the kernel are finished before the process ends.
    drop(node.kernel_ops);
    if tokio::time::timeout(Duration::from_secs(5), kernel).await.is_err() {
        tracing::warn!(
            "the kernel did not finish the last changes in time; it removes the remaining addresses when their \
            lifetime ends"
        );
    }
}

impl Node {
    /// Waits for the next input; `None` when the engine has to be polled.
    async fn next(
        &self,
        frames: &mut mpsc::Receiver<Input>,
        inputs: &mut mpsc::UnboundedReceiver<Input>,
        wake: Instant,
    ) -> Option<Input> {
        tokio::select! {
            biased;
            Some(input) = frames.recv() => Some(input),
            input = inputs.recv() => Some(input.expect("a sender is kept here")),
            () = self.network.notified() => Some(Input::NetworkChanged),
            () = clock::sleep_until(wake) => None,
        }
    }

    /// Takes in all received frames before a timer is judged, even if this process had no processor time
    /// (fail-over spec R1), and which questions were not sent. Frames cost no plan, so all of them are taken.
    fn take_frames(
        &mut self,
        engine: &mut Engine,
        now: Instant,
        wake: Instant,
        frames: &mut mpsc::Receiver<Input>,
    ) -> Vec<Action> {
        let mut actions = Vec::new();
        for ask in self.unsent.drain(..) {
            actions.extend(engine.handle(now, Input::NotSent(ask)));
        }
        for _ in 0..FRAMES {
            let Ok(frame) = frames.try_recv() else { break };
            actions.extend(engine.handle(now, frame));
        }
        // This is checked here too, because under load the other branch may not run.
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
            Input::Missing(key) => self.note(engine, &Input::Service(key.clone(), None)),
            Input::Lease(state) => self.metrics.lease(engine.lease(), state),
            Input::Recorded(key, Recorded::Failed) if self.uids.0.contains_key(key) => {
                self.metrics.services.unwritten(key);
            }
            _ => {}
        }
    }

    /// Performs an action. Returns true if it was the last one.
    fn act(&mut self, action: Action) -> bool {
        match action {
            Action::Kernel(op) => {
                let _ = self.kernel_ops.send(op);
            }
            Action::Announce { link, mac, address } => {
                let sent = frames::announcement(mac, address)
                    .iter()
                    .filter(|frame| self.listeners.send(link, address, frame))
                    .count();
                self.metrics.announced(sent.try_into().unwrap_or(0));
            }
            Action::Probe { link, mac, address } => {
                if !self.listeners.ask(link, address, &frames::probe(mac, address)) {
                    self.unsent.push(Ask { link, address, to: l2::Mac::BROADCAST });
                }
            }
            Action::Ask { mac, source, ask } => {
                let frame = frames::question(mac, source, ask.address, ask.to);
                if !frame.is_some_and(|frame| self.listeners.ask(ask.link, ask.address, &frame)) {
                    self.unsent.push(ask);
                }
            }
            Action::AskKubelet { node, address } => {
                let inputs = self.inputs.clone();
                tokio::spawn(async move {
                    let answers = kubelet::answers(address).await;
                    let _ = inputs.send(Input::Kubelet { node, answers });
                });
            }
            Action::ProbeServices(targets) => {
                let start = || probing::start(self.inputs.clone(), Arc::clone(&self.metrics));
                let _ = self.probes.get_or_insert_with(start).send(targets);
            }
            Action::Claim(Claim { link, mac, address, to, payload }) => {
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
            Action::Record(key, record) => self.writer.want(key, *record),
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

    fn tell(&self, key: &ServiceKey, tell: &ServiceEvent) {
        if tell.reason == Reason::AddressConflict {
            self.metrics.conflict();
        }
        // Messages about a deleted Service must not bring its time series back.
        if tell.reason == Reason::CannotAnnounce && self.uids.0.contains_key(key) {
            self.metrics.services.refused(key);
        }
        let uid = self.uids.0.get(key).map(|uid| uid.0.clone());
        let object = events::reference("Service", Some(&key.namespace), &key.name, uid);
        if tell.warning {
            tracing::warn!(service = %key, reason = tell.reason.as_str(), "{}", tell.text);
            self.recorder.warning(&object, tell.reason.as_str(), &tell.text);
        } else {
            tracing::info!(service = %key, reason = tell.reason.as_str(), "{}", tell.text);
            self.recorder.normal(&object, tell.reason.as_str(), &tell.text);
        }
    }
}
