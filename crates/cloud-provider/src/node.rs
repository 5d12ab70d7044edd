//! The node controller: writes to every Node what the cloud knows about its machine, and keeps a new Node tainted until
//! then.
//!
//! `plan` decides what to write, `addresses` which addresses a Node shows, `topology` when a move of the machine is
//! believed; this file contains the loop around them.

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
use runtime::error::{chain, is_absent, is_conflict};
use runtime::events::{self, Recorder};
use runtime::shutdown::Token;
use runtime::work_queue::{Backoff, QueueMetrics, WorkQueue};
use tokio::time::Instant;
use tracing::Instrument;

pub use addresses::{NodeIpError, PROVIDED_NODE_IP, desired_addresses, parse_node_ips};
pub use metrics::NodeMetrics;
pub(crate) use plan::taints_value;
pub use plan::{INSTANCE_TYPE, is_uninitialized};
pub(crate) use preview::preview;
pub(crate) use writer::Writer;

use crate::cache::NodeCache;
use crate::damping::{Damper, undone};
use crate::own_write::OwnWrite;
use crate::provider::{Instances, NodeWake, ProviderError};
use crate::view::{NodeAddress, NodeView};
use crate::worker::{self, Next};

/// Source component of the Events.
pub const COMPONENT: &str = "cloud-node-controller";

/// Back-off for failed passes. A machine that gets an address later causes a wake-up by itself.
const BACKOFF: Backoff = Backoff { min: Duration::from_millis(500), max: Duration::from_mins(1) };

/// Pause after a conflict with the kubelet, which writes the Node too, in case the watch does not deliver the new state
/// first.
const AFTER_CONFLICT: Duration = Duration::from_millis(100);
const CONFLICTS: u32 = 20;

/// An ongoing refusal is reported again after this time, because Events are kept for one hour.
const TOLD_AGAIN: Duration = Duration::from_mins(10);

/// How long a problem has to last before it is reported. A new Node may exist a moment before its machine is visible,
/// and watches lag.
const SETTLING: Duration = Duration::from_secs(2);

/// Configuration of the controller.
#[derive(Debug, Clone)]
pub struct NodeSettings {
    /// `--concurrent-node-syncs`.
    pub workers: usize,
    /// `--node-status-update-frequency`.
    pub refresh_every: Duration,
    /// Zone and region labels of an initialised Node are updated when its machine moves.
    pub follow_topology: bool,
    /// The kubelet's `--node-ip` selects the addresses.
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

/// So many passes may run concurrently at least, for the same reason as with Services; `--concurrent-node-syncs` can
/// only raise the number.
const PASSES: usize = 16;

/// The controller. Only the leader runs it; [`NodeController::run`] is called once.
pub struct NodeController {
    provider: Arc<dyn Instances>,
    cache: NodeCache,
    writer: Writer,
    recorder: Recorder,
    queue: WorkQueue<String>,
    settings: NodeSettings,
    /// Nodes whose machine has to be queried, even if the Node itself looks right.
    stale: Mutex<BTreeSet<String>>,
    memory: Mutex<HashMap<String, NodeMemory>>,
}

/// State of a Node between passes.
#[derive(Debug, Default)]
struct NodeMemory {
    written: OwnWrite<NodeView>,
    /// The addresses of the Node when they last matched the machine's.
    settled: Option<Vec<NodeAddress>>,
    /// Since when a step has failed.
    refused_since: Option<Instant>,
    /// The refusal that was last reported to the user, and when.
    refused: Option<(String, Instant)>,
    /// A move of the machine that is not believed yet.
    moving: Option<topology::Moving>,
    conflicts: u32,
    /// States of the Node that were corrected repeatedly, without their resourceVersion.
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

    /// Runs until `stop`; passes that are under way are finished.
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

    /// Reconciles these Nodes and queries their machines.
    fn ask_for(&self, names: impl IntoIterator<Item = String>) {
        for name in names {
            self.stale.lock().insert(name.clone());
            self.queue.add(name);
        }
    }

    /// Stores that the machine still has to be queried.
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

    async fn pass(&self, node: Arc<NodeView>, memory: &mut NodeMemory) -> Next {
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
                Err((text, next)) => {
                    self.remember(stale, &node.name);
                    return self.refused(&node, text, next, memory);
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
                if is_absent(&error) {
                    return Next::OnChange;
                }
                let text = format!("failed to update node {}: {}", node.name, chain(&error));
                self.refused(&node, text, Next::BackOff, memory)
            }
        }
    }

    /// Plans what to write. Also returns how long a changed zone must not be written yet. `Err`: the problem, and when
    /// to try again.
    async fn planned(
        &self,
        node: &NodeView,
        uninitialized: bool,
        memory: &mut NodeMemory,
    ) -> Result<(plan::Plan, Option<Duration>), (String, Next)> {
        let machine = self.provider.metadata(node).await.map_err(|error| {
            let text = format!("failed to get instance metadata for node {}: {}", node.name, chain(&error));
            (text, next_try(&error))
        })?;
        let mut unsettled = None;
        let mut rules =
            plan::Rules { follow_topology: self.settings.follow_topology, obey_node_ip: self.settings.obey_node_ip };
        if rules.follow_topology && !uninitialized {
            let settled = topology::settled(node, &plan::topology(&machine), &mut memory.moving, Instant::now());
            unsettled = settled.err();
            rules.follow_topology = unsettled.is_none();
        }
        let plan = plan::plan(node, &machine, rules).map_err(|error| (chain(&error), Next::BackOff))?;
        Ok((plan, unsettled))
    }

    /// Writes the plan. The addresses come first, so that no Node becomes schedulable with wrong addresses (framework
    /// spec 7.7).
    async fn apply(
        &self,
        node: Arc<NodeView>,
        plan: &plan::Plan,
        memory: &mut NodeMemory,
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

    /// Records a correction of an initialised Node. If another writer keeps undoing it, that writer is reported once.
    async fn corrected(&self, node: &NodeView, found: NodeView, members: &[&str], memory: &mut NodeMemory) {
        if !memory.damper.repaired(found, Instant::now()) {
            return;
        }
        let by = self.writer.other_writer(&node.name, members).await.ok().flatten();
        let text = undone("this Node", by.as_deref(), "addresses, labels, taints and provider ID");
        tracing::warn!("{text}");
        self.recorder.warning(&reference(node), "UndoneByOthers", &text);
    }

    /// Handles a failed step. For a Node that cannot be used yet, the user is told which step failed, and again while
    /// it lasts. For a working Node there is only a log line.
    fn refused(&self, node: &NodeView, text: String, next: Next, memory: &mut NodeMemory) -> Next {
        let since = *memory.refused_since.get_or_insert_with(Instant::now);
        let may_pass = next != Next::OnChange && since.elapsed() < SETTLING;
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
        next
    }
}

/// When to ask the cloud again after it did not know a machine.
fn next_try(error: &ProviderError) -> Next {
    if error.permanent {
        return Next::OnChange;
    }
    match error.longest_pause {
        Some(longest) if error.under_way => Next::After(longest),
        Some(longest) => Next::BackOffWithin(longest),
        None => Next::BackOff,
    }
}

fn note(before: &NodeView, written: NodeView, memory: &mut NodeMemory) -> Arc<NodeView> {
    let written = Arc::new(written);
    memory.written.note(before.resource_version.clone(), Arc::clone(&written));
    written
}

/// The object that Events about a Node refer to.
pub fn reference(node: &NodeView) -> ObjectReference {
    events::reference("Node", None, &node.name, Some(node.uid.0.clone()))
}

#[cfg(test)]
mod tests;
