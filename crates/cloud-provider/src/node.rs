//! The node controller: every Node shows what the cloud knows about its machine, and is not used before it does.
//!
//! `plan` says what to write, `addresses` which addresses a Node shows, `topology` when its place is believed to have
//! changed; this file is the loop around them.

mod addresses;
mod metrics;
mod plan;
mod preview;
mod topology;
mod writer;

use parking_lot::Mutex;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use runtime::error::{chain, is_conflict};
use runtime::events::Recorder;
use runtime::shutdown::Token;
use runtime::work_queue::{Backoff, QueueMetrics, WorkQueue};
use tokio::time::Instant;
use tracing::Instrument;

pub use addresses::{NodeIpError, PROVIDED_NODE_IP, desired_addresses, parse_node_ips};
pub use metrics::NodeMetrics;
pub(crate) use plan::taints_value;
pub use plan::{INSTANCE_TYPE, UNINITIALIZED, is_uninitialized};
pub(crate) use preview::preview;
pub(crate) use writer::Writer;

use crate::cache::NodeCache;
use crate::damping::{Damper, undone};
use crate::own_write::OwnWrite;
use crate::provider::{Instances, NodeWake};
use crate::view::{NodeAddress, NodeView};
use crate::worker::{self, Next};

/// Source component of the Events.
pub const COMPONENT: &str = "cloud-node-controller";

/// A machine that has no address yet is reported by a wake-up; this is for everything else.
const BACKOFF: Backoff = Backoff { min: Duration::from_millis(500), max: Duration::from_mins(1) };

/// The kubelet writes its Node too: the watch brings the new state at once, or this does.
const AFTER_CONFLICT: Duration = Duration::from_millis(100);
const CONFLICTS: u32 = 20;

/// A refusal that lasts is told again: Events are kept for an hour.
const TOLD_AGAIN: Duration = Duration::from_mins(10);

/// A new Node may be ahead of its machine, and we of our own watches, for a moment: only what lasts longer is told.
const SETTLING: Duration = Duration::from_secs(2);

/// How many workers there are, how often all nodes are looked at, and where metrics go.
#[derive(Debug, Clone)]
pub struct NodeSettings {
    /// `--concurrent-node-syncs`.
    pub workers: usize,
    /// `--node-status-update-frequency`.
    pub refresh_every: Duration,
    /// Zone and region labels of an initialised Node follow its machine.
    pub follow_topology: bool,
    /// The kubelet's `--node-ip` decides about addresses.
    pub obey_node_ip: bool,
    /// Metrics of the queue `Nodes`.
    pub queue_metrics: QueueMetrics,
    /// Metrics of the controller.
    pub metrics: NodeMetrics,
}

impl Default for NodeSettings {
    fn default() -> Self {
        Self {
            workers: 1,
            refresh_every: Duration::from_mins(5),
            follow_topology: true,
            obey_node_ip: true,
            queue_metrics: QueueMetrics::default(),
            metrics: NodeMetrics::default(),
        }
    }
}

/// Passes that may be under way at one time, whatever `--concurrent-node-syncs` says, for the same reason as with
/// Services.
const PASSES: usize = 16;

/// The controller. One instance leads; [`NodeController::run`] is called once.
pub struct NodeController {
    provider: Arc<dyn Instances>,
    cache: NodeCache,
    writer: Writer,
    recorder: Recorder,
    queue: WorkQueue<String>,
    settings: NodeSettings,
    /// Nodes whose machine has to be asked for, although the Node itself may look right.
    stale: Mutex<BTreeSet<String>>,
    memory: Mutex<HashMap<String, NodeState>>,
}

impl std::fmt::Debug for NodeController {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NodeController").field("settings", &self.settings).finish_non_exhaustive()
    }
}

/// What is kept about a Node between passes.
#[derive(Debug, Default)]
struct NodeState {
    written: OwnWrite<NodeView>,
    /// The addresses that were right when last compared with the machine's.
    settled: Option<Vec<NodeAddress>>,
    /// Since when a step has been missing.
    refused_since: Option<Instant>,
    /// The refusal that the user has heard last, and when.
    refused: Option<(String, Instant)>,
    /// The machine is said to be elsewhere.
    moving: Option<topology::Moving>,
    conflicts: u32,
    /// States of the Node that were corrected again and again. Its version is left out of them.
    damper: Damper<NodeView>,
}

impl NodeController {
    /// A controller that has not started.
    pub fn new(
        client: Client,
        provider: Arc<dyn Instances>,
        cache: NodeCache,
        recorder: &Recorder,
        settings: NodeSettings,
    ) -> Self {
        Self {
            provider,
            cache,
            writer: Writer::new(client),
            recorder: recorder.for_component(COMPONENT),
            queue: WorkQueue::new(BACKOFF, settings.queue_metrics.clone()),
            settings,
            stale: Mutex::default(),
            memory: Mutex::default(),
        }
    }

    /// Works until `stop`; passes under way are finished.
    pub async fn run(self, stop: Token) {
        let controller = &self;
        let process = |name: String| {
            let span = tracing::info_span!("node", %name);
            async move { controller.process(&name).await }.instrument(span)
        };
        let workers = self.settings.workers.max(PASSES);
        worker::run(&self.cache, self.feed(), &self.queue, workers, process, &stop).await;
    }

    async fn feed(&self) {
        let mut touched = self.cache.subscribe();
        let mut wakes = self.provider.wakes();
        let mut refresh = tokio::time::interval(self.settings.refresh_every);
        loop {
            tokio::select! {
                Some(name) = touched.next() => self.queue.add(name),
                Some(wake) = wakes.next() => match wake {
                    NodeWake::Node(name) => self.ask_for([name]),
                    NodeWake::All => self.ask_for(self.cache.keys()),
                },
                _ = refresh.tick() => self.ask_for(self.cache.keys()),
                else => return,
            }
        }
    }

    /// Looks at these Nodes and at their machines.
    fn ask_for(&self, names: impl IntoIterator<Item = String>) {
        for name in names {
            self.stale.lock().insert(name.clone());
            self.queue.add(name);
        }
    }

    /// The machine is still to be asked for.
    fn remember(&self, stale: bool, name: &str) {
        if stale {
            self.stale.lock().insert(name.to_owned());
        }
    }

    async fn process(&self, name: &str) -> Next {
        let mut memory = self.memory.lock().remove(name).unwrap_or_default();
        let Some(node) = memory.written.newest(self.cache.get(&name.to_owned())) else {
            self.stale.lock().remove(name);
            return Next::OnChange;
        };
        let next = self.pass(node, &mut memory).await;
        self.memory.lock().insert(name.to_owned(), memory);
        next
    }

    async fn pass(&self, node: Arc<NodeView>, memory: &mut NodeState) -> Next {
        if node.deleting {
            return Next::OnChange;
        }
        let stale = self.stale.lock().remove(&node.name);
        let tampered = memory.settled.as_ref().is_some_and(|addresses| *addresses != node.addresses);
        let uninitialized = is_uninitialized(&node);
        if let Some(hold) = self.provider.hold().filter(|hold| !(hold.initialises_nodes && uninitialized)) {
            self.remember(stale, &node.name);
            tracing::debug!(reason = hold.reason, "the controller leaves the Node unchanged for now: {}", hold.message);
            return Next::OnChange;
        }
        let found = NodeView { resource_version: String::new(), ..NodeView::clone(&node) };
        if let Some(rest) = memory.damper.rest(&found, Instant::now()) {
            self.remember(stale, &node.name);
            return Next::After(rest);
        }
        let (plan, unsettled) = if stale || tampered || uninitialized {
            match self.planned(&node, uninitialized, memory).await {
                Ok(planned) => planned,
                Err((text, permanent)) => {
                    self.remember(stale, &node.name);
                    return self.refused(&node, text, permanent, memory);
                }
            }
        } else {
            (plan::Plan { labels: plan::reconcile_labels(&node), ..plan::Plan::default() }, None)
        };
        let started = Instant::now();
        let version = node.resource_version.clone();
        match self.apply(node, &plan, memory).await {
            Ok(node) => {
                if !uninitialized && node.resource_version != version {
                    let members: &[&str] =
                        if plan.status_patch(&version).is_some() { &["addresses"] } else { &["labels", "taints"] };
                    self.corrected(&node, found, members, memory).await;
                }
                memory.conflicts = 0;
                memory.refused_since = None;
                if stale || tampered || uninitialized {
                    memory.settled = Some(node.addresses.clone());
                }
                if uninitialized {
                    memory.refused = None;
                    tracing::info!(
                        provider_id = node.provider_id,
                        took = ?started.elapsed(),
                        "the controller initialised the Node"
                    );
                    self.recorder.normal(&reference(&node), "Synced", "Node synced successfully");
                    self.settings.metrics.initialised(&node);
                }
                let Some(left) = unsettled else { return Next::OnChange };
                self.remember(true, &node.name);
                Next::After(left)
            }
            Err((node, error)) => {
                self.remember(stale, &node.name);
                if is_conflict(&error) && memory.conflicts < CONFLICTS {
                    memory.conflicts += 1;
                    tracing::debug!("another client changed the Node; the controller reads it again");
                    return Next::After(AFTER_CONFLICT);
                }
                if runtime::error::api_code(&error) == Some(404) {
                    return Next::OnChange;
                }
                let text = format!("failed to update node {}: {}", node.name, chain(&error));
                self.refused(&node, text, false, memory)
            }
        }
    }

    /// What is to be written, and how long a zone that has changed has still to stay as it is. Without: what is wrong,
    /// and whether that stays so.
    async fn planned(
        &self,
        node: &NodeView,
        uninitialized: bool,
        memory: &mut NodeState,
    ) -> Result<(plan::Plan, Option<Duration>), (String, bool)> {
        let machine = self.provider.metadata(node).await.map_err(|error| {
            let text = format!("failed to get instance metadata for node {}: {}", node.name, chain(&error));
            (text, error.permanent)
        })?;
        let mut unsettled = None;
        let mut rules =
            plan::Rules { follow_topology: self.settings.follow_topology, obey_node_ip: self.settings.obey_node_ip };
        if rules.follow_topology && !uninitialized {
            let settled = topology::settled(node, &plan::topology(&machine), &mut memory.moving, Instant::now());
            unsettled = settled.err();
            rules.follow_topology = unsettled.is_none();
        }
        let plan = plan::plan(node, &machine, rules).map_err(|error| (chain(&error), false))?;
        Ok((plan, unsettled))
    }

    /// Addresses first: no Node becomes schedulable with addresses that are wrong (framework spec 7.7).
    async fn apply(
        &self,
        node: Arc<NodeView>,
        plan: &plan::Plan,
        memory: &mut NodeState,
    ) -> Result<Arc<NodeView>, (Arc<NodeView>, kube::Error)> {
        let mut node = node;
        if let Some(patch) = plan.status_patch(&node.resource_version) {
            match self.writer.patch_status(&node.name, patch).await {
                Ok(written) => node = note(&node, written, memory),
                Err(error) => return Err((node, error)),
            }
            tracing::info!(
                addresses = ?node.addresses.iter().map(|address| &address.address).collect::<Vec<_>>(),
                "the controller updated the addresses of the Node"
            );
        }
        if let Some(patch) = plan.node_patch(&node.resource_version) {
            match self.writer.patch(&node.name, patch).await {
                Ok(written) => node = note(&node, written, memory),
                Err(error) => return Err((node, error)),
            }
        }
        Ok(node)
    }

    /// A Node that is in use was written. Whoever undoes that is named, once.
    async fn corrected(&self, node: &NodeView, found: NodeView, members: &[&str], memory: &mut NodeState) {
        if !memory.damper.repaired(found, Instant::now()) {
            return;
        }
        let by = self.writer.other_writer(&node.name, members).await.ok().flatten();
        let text = undone("this Node", by.as_deref(), "addresses, labels, taints and provider ID");
        tracing::warn!("{text}");
        self.recorder.warning(&reference(node), "UndoneByOthers", &text);
    }

    /// A step is missing. The user of a Node that cannot be used hears which one, and again while it lasts; for a Node
    /// that works it is a log line.
    fn refused(&self, node: &NodeView, text: String, permanent: bool, memory: &mut NodeState) -> Next {
        let since = *memory.refused_since.get_or_insert_with(Instant::now);
        let may_pass = !permanent && since.elapsed() < SETTLING;
        let told = memory.refused.as_ref();
        if may_pass || told.is_some_and(|(told, at)| *told == text && at.elapsed() < TOLD_AGAIN) {
            tracing::debug!("{text}");
        } else {
            tracing::warn!("{text}");
            if is_uninitialized(node) {
                let message = format!("Node cannot be initialized: {text}");
                self.recorder.warning(&reference(node), "NodeInitializationFailed", &message);
            }
            memory.refused = Some((text, Instant::now()));
        }
        if permanent { Next::OnChange } else { Next::BackOff }
    }
}

fn note(before: &NodeView, written: NodeView, memory: &mut NodeState) -> Arc<NodeView> {
    let written = Arc::new(written);
    memory.written.note(before.resource_version.clone(), Arc::clone(&written));
    written
}

/// What Events about a Node refer to.
pub fn reference(node: &NodeView) -> ObjectReference {
    ObjectReference {
        api_version: Some("v1".into()),
        kind: Some("Node".into()),
        name: Some(node.name.clone()),
        uid: Some(node.uid.0.clone()),
        ..ObjectReference::default()
    }
}

#[cfg(test)]
mod tests;
