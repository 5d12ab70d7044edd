//! The edge: runs the engine on a real node. Feeds it what happens, performs what it says.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures::StreamExt;
use k8s_openapi::api::core::v1::ObjectReference;
use l2::netlink::{Change, Changes};
use runtime::events::Recorder;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::dhcp_driver::{self, StopSender};
use crate::engine::{Action, DhcpEvent, DhcpStart, Engine, Input, REFRESH, Tell, WireOp};
use crate::listen::{self, Listeners};
use crate::metrics::Metrics;
use crate::record::Writer;
use crate::view::{ServiceKey, Uid};
use crate::wire::Wire;

/// Frames that wait for the engine; more are dropped.
const FRAMES: usize = 1024;
/// However much waits, plan and timers get their turn after this time: without it the deadlines of addresses that are up
/// would not be put off while a thousand others are being set.
const HEAR_AT_MOST: Duration = Duration::from_millis(50);

/// How the loop is doing, for the health checks.
#[derive(Debug, Default)]
pub struct Pulse {
    /// Seconds since boot at the last step.
    beat: AtomicU64,
    ready: AtomicBool,
}

impl Pulse {
    /// Fails if the loop has not gone round for a while: it is woken every second.
    pub fn alive(&self) -> Result<(), String> {
        let silent = l2::clock::since_boot().as_secs().saturating_sub(self.beat.load(Ordering::Relaxed));
        if silent > 30 { Err(format!("the engine has not made a step for {silent} s")) } else { Ok(()) }
    }

    /// Fails until Services and Lease are known.
    pub fn ready(&self) -> Result<(), String> {
        if self.ready.load(Ordering::Relaxed) {
            Ok(())
        } else {
            Err("the Services or the holder of the Lease are not known yet".to_owned())
        }
    }
}

/// What a node is made of.
pub struct Parts<W> {
    /// Decides.
    pub engine: Engine,
    /// The kernel.
    pub wire: W,
    /// Writes on Services; absent where nothing is to be written.
    pub writer: Writer,
    /// Events on Services.
    pub recorder: Recorder,
    /// Metrics.
    pub metrics: Arc<Metrics>,
    /// For health checks.
    pub pulse: Arc<Pulse>,
    /// Cancelled when the Lease is to be handed back.
    pub release: CancellationToken,
    /// What happens. The sender is kept for those who are started on the way.
    pub inputs: (mpsc::UnboundedSender<Input>, mpsc::UnboundedReceiver<Input>),
}

struct Running {
    stop: StopSender,
    task: JoinHandle<()>,
    forward: JoinHandle<()>,
}

struct Node {
    listeners: Listeners,
    clients: BTreeMap<Uid, Running>,
    wire: mpsc::UnboundedSender<WireOp>,
    uids: BTreeMap<ServiceKey, Uid>,
    writer: Writer,
    recorder: Recorder,
    metrics: Arc<Metrics>,
    release: CancellationToken,
    inputs: mpsc::UnboundedSender<Input>,
}

/// Runs until the engine says that all is done.
pub async fn run<W: Wire>(parts: Parts<W>) {
    let Parts { mut engine, wire, writer, recorder, metrics, pulse, release, inputs: (sender, mut receiver) } = parts;
    let (ops, requests) = mpsc::unbounded_channel();
    let (ears, mut frames) = mpsc::channel(FRAMES);
    let kernel = tokio::spawn(perform(wire, requests, sender.clone()));
    let mut node = Node {
        listeners: Listeners::new(ears),
        clients: BTreeMap::new(),
        wire: ops,
        uids: BTreeMap::new(),
        writer,
        recorder,
        metrics,
        release,
        inputs: sender,
    };
    let mut next_status = Instant::now();
    let mut stepped = Instant::now();
    let mut input = Input::Tick;
    'steps: loop {
        // All that waits is taken in before a timer is judged.
        let waiting = frames.try_recv().or_else(|_| receiver.try_recv()).ok();
        node.note(&engine, &input);
        let now = Instant::now();
        let actions = if waiting.is_some() && now < stepped + HEAR_AT_MOST {
            engine.hear(now, input)
        } else {
            stepped = now;
            engine.step(now, input)
        };
        for action in actions {
            if node.act(action) {
                break 'steps;
            }
        }
        pulse.beat.store(l2::clock::since_boot().as_secs(), Ordering::Relaxed);
        pulse.ready.store(engine.is_ready(), Ordering::Relaxed);
        if now >= next_status {
            next_status = now + REFRESH;
            node.metrics.vips(&engine.status(), now);
        }
        input = if let Some(input) = waiting {
            input
        } else {
            tokio::select! {
                biased;
                Some(input) = frames.recv() => input,
                input = receiver.recv() => input.expect("a sender is kept here"),
                () = tokio::time::sleep_until(engine.deadline().into()) => Input::Tick,
            }
        };
    }
    for running in node.clients.into_values() {
        // Dropping the sender ends the client and keeps the lease.
        drop(running.stop);
        let _ = tokio::time::timeout(Duration::from_millis(200), running.task).await;
        running.forward.abort();
    }
    // What was asked of the kernel last is done before the process ends.
    drop(node.wire);
    if tokio::time::timeout(Duration::from_secs(5), kernel).await.is_err() {
        tracing::warn!("the kernel did not finish in time: its deadlines do the rest");
    }
}

/// Performs requests to the kernel in order.
async fn perform<W: Wire>(
    wire: W,
    mut requests: mpsc::UnboundedReceiver<WireOp>,
    inputs: mpsc::UnboundedSender<Input>,
) {
    while let Some(op) = requests.recv().await {
        if let Some(done) = wire.perform(op).await {
            let _ = inputs.send(Input::Wire(done));
        }
    }
}

impl Node {
    fn note(&mut self, engine: &Engine, input: &Input) {
        match input {
            Input::Service(key, Some(view)) => {
                let new = self.uids.insert(key.clone(), view.uid.clone()).is_none();
                self.metrics.service_event(if new { "ADDED" } else { "MODIFIED" });
            }
            Input::Service(..) => self.metrics.service_event("DELETED"),
            Input::Lease(state) => self.metrics.lease(engine.lease(), state),
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
                let sent = listen::announcement(mac, address)
                    .iter()
                    .filter(|frame| self.listeners.send(link, address, frame))
                    .count();
                self.metrics.announced(sent.try_into().unwrap_or(0));
            }
            Action::Probe { link, mac, address } => {
                self.listeners.send(link, address, &listen::probe(mac, address));
            }
            Action::Listen(links) => self.listeners.set(&links),
            Action::StartDhcp(uid, start) => self.start_dhcp(uid, start),
            Action::StopDhcp { uid, release } => {
                if let Some(running) = self.clients.remove(&uid) {
                    if !release {
                        // Whatever it still says is about a life that is over.
                        running.forward.abort();
                    }
                    let _ = running.stop.send(release);
                }
            }
            Action::Record(key, record) => self.writer.want(key, record),
            Action::Forget(key) => self.writer.forget(&key),
            Action::Tell(key, tell) => self.tell(&key, &tell),
            Action::ReleaseLease => self.release.cancel(),
            Action::Exit => return true,
        }
        false
    }

    fn start_dhcp(&mut self, uid: Uid, start: DhcpStart) {
        let (events, mut told) = mpsc::unbounded_channel::<DhcpEvent>();
        let (stop, task) = dhcp_driver::spawn(start, events);
        let inputs = self.inputs.clone();
        let whose = uid.clone();
        let forward = tokio::spawn(async move {
            while let Some(event) = told.recv().await {
                if inputs.send(Input::Dhcp(whose.clone(), event)).is_err() {
                    return;
                }
            }
        });
        if let Some(old) = self.clients.insert(uid, Running { stop, task, forward }) {
            old.forward.abort();
        }
    }

    fn tell(&self, key: &ServiceKey, tell: &Tell) {
        if tell.reason == "AddressConflict" {
            self.metrics.conflict();
        }
        let object = ObjectReference {
            api_version: Some("v1".into()),
            kind: Some("Service".into()),
            namespace: Some(key.namespace.clone()),
            name: Some(key.name.clone()),
            uid: self.uids.get(key).map(|uid| uid.0.clone()),
            ..ObjectReference::default()
        };
        if tell.warning {
            tracing::warn!(service = %key, reason = tell.reason, "{}", tell.text);
            self.recorder.warning(&object, tell.reason, &tell.text);
        } else {
            tracing::info!(service = %key, reason = tell.reason, "{}", tell.text);
            self.recorder.normal(&object, tell.reason, &tell.text);
        }
    }
}

/// Tells the engine that the network has changed, unless it is our own doing: each extension of an address is reported
/// too.
pub async fn watch_network(inputs: mpsc::UnboundedSender<Input>) -> Result<(), l2::netlink::NetlinkError> {
    let mut changes = Changes::subscribe()?;
    while let Some(change) = changes.next().await {
        let own = matches!(&change, Change::Address(address) if address.is_ours());
        if !own && inputs.send(Input::NetworkChanged).is_err() {
            return Ok(());
        }
    }
    Err(l2::netlink::NetlinkError::Closed { tried: "hear about changes of the network".to_owned() })
}
