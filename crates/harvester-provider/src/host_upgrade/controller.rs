//! The loop of the controller of host upgrades. It evaluates the facts when one of them changes and every few seconds,
//! and writes what has changed. Runs on the leader only.

mod tell;

use std::collections::{BTreeMap, HashMap};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use cloud_provider::cache::{NodeCache, ServiceCache};
use futures::FutureExt;
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use runtime::error::{chain, is_absent, is_conflict};
use runtime::events::Recorder;
use runtime::reflect::Status;
use tokio::sync::watch;

use super::cooperation::UpgradeState;
use super::decide::HostUpgrade;
use super::facts::{PlanView, UpgradeFacts, machines, newest};
use super::requests::Requests;
use super::shown::{NodeStatus, Reason, message};
use super::signals::PlanCaches;
use super::suspensions::Suspensions;
use super::undone::Undone;
use super::{show, status};
use crate::identity::Identity;
use crate::instances::view::{VmCache, VmiCache};
use crate::metrics::Metrics;

/// Interval of the evaluation without changes: a silence gets long enough, or a window has settled.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// Changes within this time are evaluated together.
const GATHER: Duration = Duration::from_millis(200);
/// How long the first evaluation waits for the lists of plans and upgrades, and for the state of a former process.
const FIRST_LISTS: Duration = Duration::from_secs(30);
/// A write that failed is repeated after this time.
const AFTER_FAILURE: Duration = Duration::from_secs(30);

/// The caches that the controller reads.
#[derive(Debug, Clone)]
pub struct Sources {
    /// Nodes of the cluster.
    pub nodes: NodeCache,
    /// Its Services.
    pub services: ServiceCache,
    /// All VMs of the namespace.
    pub vms: VmCache,
    /// Their VirtualMachineInstances.
    pub vmis: VmiCache,
    /// Plans and upgrades of the host.
    pub plans: PlanCaches,
    /// State of the watch of the VMs, which shows whether the host's API answers.
    pub watched: watch::Receiver<Status>,
}

/// What was written on a Node.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Shown {
    uid: String,
    reason: Reason,
    message: String,
    /// When the status of the condition changed.
    changed: i64,
}

/// The controller. [`Controller::run`] is called once.
pub struct Controller {
    sources: Sources,
    suspensions: Suspensions,
    /// Forbids all writes while the identity of the cluster is not settled.
    identity: Option<Identity>,
    requests: Requests,
    metrics: Arc<Metrics>,
    /// `--host-upgrade-taint`.
    taint: bool,
    upgrade: HostUpgrade,
    began: tokio::time::Instant,
    /// The published state, for the parts that act on it.
    seen: watch::Sender<Arc<UpgradeState>>,
    shown: HashMap<String, Shown>,
    /// The last patch of annotations and taints, with the resourceVersion of the Node that it was made for.
    marked: HashMap<String, (String, serde_json::Value)>,
    /// The same patches without a resourceVersion, which another writer may undo.
    undone: Undone<serde_json::Value>,
    /// Data of the ConfigMap as it was last read or written.
    written: Option<BTreeMap<String, String>>,
    uid: Option<String>,
    /// The state of a former process was read, or there is none.
    restored: bool,
    /// After a failure, no write of a Node is tried before this time.
    nodes_retry: Option<tokio::time::Instant>,
    /// The same for the ConfigMap. One that is refused must not keep back what Nodes show.
    state_retry: Option<tokio::time::Instant>,
    refused: bool,
}

fn now() -> i64 {
    Timestamp::now().as_second()
}

fn is_ahead(time: Option<tokio::time::Instant>) -> bool {
    time.is_some_and(|at| tokio::time::Instant::now() < at)
}

impl Controller {
    /// Creates the controller. It sends no request before [`Self::run`].
    pub fn new(guest: &Client, sources: Sources, suspensions: Suspensions, metrics: Arc<Metrics>) -> Self {
        Self {
            sources,
            suspensions,
            identity: None,
            requests: Requests::new(guest),
            metrics,
            taint: false,
            upgrade: HostUpgrade::default(),
            began: tokio::time::Instant::now(),
            seen: watch::Sender::default(),
            shown: HashMap::new(),
            marked: HashMap::new(),
            undone: Undone::default(),
            written: None,
            uid: None,
            restored: false,
            nodes_retry: None,
            state_retry: None,
            refused: false,
        }
    }

    /// Makes the controller write nothing while `identity` forbids it.
    pub fn held_by(mut self, identity: Identity) -> Self {
        self.identity = Some(identity);
        self
    }

    /// The published state; the receiver sees every change.
    pub fn seen(&self) -> watch::Receiver<Arc<UpgradeState>> {
        self.seen.subscribe()
    }

    /// Sets whether Nodes are tainted whose host is being upgraded.
    pub fn taint(&mut self, yes: bool) {
        self.taint = yes;
    }

    /// Never ends.
    pub async fn run(mut self, events: Recorder) -> Infallible {
        self.restore().await;
        self.began = tokio::time::Instant::now();
        let mut plans = self.sources.plans.plans.subscribe();
        let mut upgrades = self.sources.plans.upgrades.subscribe();
        let mut vmis = self.sources.vmis.subscribe();
        let mut vms = self.sources.vms.subscribe();
        let mut ticks = tokio::time::interval(LOOK_EVERY);
        loop {
            let touched = tokio::select! {
                _ = ticks.tick() => false,
                Some(_) = plans.next() => true,
                Some(_) = upgrades.next() => true,
                Some(_) = vmis.next() => true,
                Some(_) = vms.next() => true,
            };
            if touched {
                tokio::time::sleep(GATHER).await;
                for touched in [&mut plans, &mut upgrades, &mut vmis, &mut vms] {
                    while touched.next().now_or_never().flatten().is_some() {}
                }
            }
            if !self.restored && !touched {
                self.restore().await;
            }
            // Evaluated before the facts: lists that arrive in between make the facts more complete, never less.
            let known = self.is_known();
            let facts = self.facts();
            let step = self.upgrade.step(now(), &facts);
            self.suspensions.set(self.upgrade.suspended());
            self.publish(&facts, known);
            self.tell(&step, &events);
            self.measure();
            self.write(facts.plan.as_deref(), &events).await;
            if step.resync {
                self.suspensions.resync();
            }
        }
    }

    /// Reads the state that a former process wrote. If it cannot be read, the next tick tries again.
    async fn restore(&mut self) {
        match self.requests.state().await {
            Ok(Some(found)) => {
                let data = found.data.unwrap_or_default();
                // The answer may come late, so it must not close a window that this process has opened meanwhile.
                if self.upgrade.window.is_none() {
                    self.upgrade = status::restore(&data, now());
                }
                self.restored = true;
                self.uid = found.metadata.uid;
                self.written = Some(data);
            }
            Ok(None) => self.restored = true,
            Err(error) => {
                tracing::debug!(error = chain(&error), "the controller could not read ConfigMap {}", status::NAME);
                return;
            }
        }
        for (name, node) in &self.upgrade.nodes {
            let shown =
                Shown { uid: node.uid.clone(), reason: node.reason, message: String::new(), changed: node.since };
            self.shown.entry(name.clone()).or_insert(shown);
        }
        self.suspensions.set(self.upgrade.suspended());
    }

    fn facts(&self) -> UpgradeFacts {
        let Sources { nodes, vms, vmis, plans, watched, .. } = &self.sources;
        let silent = watched.borrow().error.as_ref().map(|(since, _)| since.elapsed().as_secs());
        let known = plans.plans.all().into_iter().chain(plans.upgrades.all());
        UpgradeFacts {
            running: i64::try_from(self.began.elapsed().as_secs()).unwrap_or(i64::MAX),
            plan: newest(known),
            machines: if vms.is_synced() && vmis.is_synced() && self.may_begin() {
                machines(&nodes.all(), &vms.all(), &vmis.all())
            } else {
                Vec::new()
            },
            silent_seconds: silent.map(|seconds| i64::try_from(seconds).unwrap_or(i64::MAX)),
            webhooks_fail: self.suspensions.webhooks_fail(),
        }
    }

    /// Whether the published state can be acted on. Before the lists have arrived, it looks as if an upgrade were over.
    fn is_known(&self) -> bool {
        let Sources { nodes, vms, vmis, plans, .. } = &self.sources;
        // The cache is also synced if the host refuses access to plans, or does not have the API.
        let plans = plans.plans.is_synced() && plans.upgrades.is_synced();
        let named = self.identity.as_ref().is_none_or(|identity| identity.name().is_some());
        self.restored && named && plans && nodes.is_synced() && vms.is_synced() && vmis.is_synced()
    }

    /// Whether the first evaluation may begin. Without the plan, and without what a former process has seen, the
    /// machines lead to wrong conclusions, but the wait for an API that does not answer ends after [`FIRST_LISTS`].
    fn may_begin(&self) -> bool {
        let plans = &self.sources.plans;
        let known = self.restored && plans.plans.is_synced() && plans.upgrades.is_synced();
        known || self.began.elapsed() >= FIRST_LISTS
    }

    fn publish(&self, facts: &UpgradeFacts, known: bool) {
        let power = facts.machines.iter().map(|machine| (machine.node.clone(), machine.power));
        let open = self.upgrade.suspended().is_some_and(|window| window.upgrade);
        let seen = UpgradeState { known, open, nodes: self.upgrade.nodes.clone(), power: power.collect() };
        self.seen.send_if_modified(|before| {
            let news = **before != seen;
            if news {
                *before = Arc::new(seen);
            }
            news
        });
    }

    fn measure(&self) {
        self.metrics.host_upgrade_window.set(i64::from(self.upgrade.suspended().is_some()));
        for reason in Reason::ALL {
            let count = self.upgrade.nodes.values().filter(|node| node.reason == reason).count();
            self.metrics.host_upgrade_nodes(reason.word(), count);
        }
    }

    /// Writes everything that differs from what was written before.
    async fn write(&mut self, plan: Option<&PlanView>, events: &Recorder) {
        if self.identity.as_ref().is_some_and(|identity| identity.hold().is_some()) {
            return;
        }
        if !is_ahead(self.nodes_retry) {
            self.nodes_retry = None;
            self.write_nodes(plan, events).await;
        }
        // The state of a former process must not be overwritten before it was read.
        if self.restored
            && !is_ahead(self.state_retry)
            && let Some(data) = status::news(&self.upgrade, self.written.as_ref())
        {
            match self.requests.write_state(data.clone()).await {
                Ok(uid) => {
                    self.uid = uid;
                    self.written = Some(data);
                }
                Err(error) => {
                    self.state_retry =
                        self.failed(&format!("ConfigMap {}/{}", status::NAMESPACE, status::NAME), &error);
                }
            }
        }
    }

    async fn write_nodes(&mut self, plan: Option<&PlanView>, events: &Recorder) {
        let title = plan.map(PlanView::title);
        let open = self.upgrade.window.as_ref().is_some_and(|window| window.upgrade);
        let nodes: Vec<(String, NodeStatus)> =
            self.upgrade.nodes.iter().map(|(name, status)| (name.clone(), status.clone())).collect();
        for (name, node) in nodes {
            let marks = (title.as_deref(), open);
            if let Err(error) = self.show(&name, &node, plan, marks, events).await {
                self.nodes_retry = self.failed(&format!("Node {name}"), &error).or(self.nodes_retry);
            }
        }
        self.shown.retain(|name, _| self.upgrade.nodes.contains_key(name));
        self.marked.retain(|name, _| self.upgrade.nodes.contains_key(name));
    }

    /// Handles a failed write: a missing right is reported once. Returns the time of the next attempt, where it has to
    /// wait.
    fn failed(&mut self, what: &str, error: &kube::Error) -> Option<tokio::time::Instant> {
        let text = chain(error);
        if is_conflict(error) || is_absent(error) {
            tracing::debug!(error = text, "another client changed {what} meanwhile");
            return None;
        }
        if std::mem::replace(&mut self.refused, true) {
            tracing::debug!(error = text, "the controller cannot show the upgrade of hosts on {what}; it tries again");
        } else {
            tracing::warn!(
                error = text,
                "the controller cannot show the upgrade of hosts on {what}; it tries again and does not repeat this \
                warning"
            );
        }
        Some(tokio::time::Instant::now() + AFTER_FAILURE)
    }

    async fn show(
        &mut self,
        name: &str,
        node: &NodeStatus,
        plan: Option<&PlanView>,
        (title, open): (Option<&str>, bool),
        events: &Recorder,
    ) -> Result<(), kube::Error> {
        let Some(view) = self.sources.nodes.get(&name.to_owned()).filter(|view| view.uid.0 == node.uid) else {
            return Ok(());
        };
        let text = message(node, plan);
        let before = self.shown.get(name).filter(|shown| shown.uid == node.uid);
        // After a restart the message that the former process wrote is unknown. A write only to repeat it is not
        // worthwhile.
        let right = before
            .is_some_and(|shown| shown.reason == node.reason && (shown.message.is_empty() || shown.message == text));
        if !right {
            let kept = before.filter(|shown| shown.reason.is_active() == node.reason.is_active());
            let changed = kept.map_or(node.since, |shown| shown.changed);
            self.requests.patch_condition(name, &show::condition(node, &text, now(), changed)).await?;
            let shown = Shown { uid: node.uid.clone(), reason: node.reason, message: text, changed };
            self.shown.insert(name.to_owned(), shown);
        }
        if let Some(patch) = show::marks(&view, node, title, open, self.taint) {
            // The watch delivers the written Node only later, so the same patch for the same resourceVersion is not
            // sent twice.
            let mark = (view.resource_version.clone(), patch);
            let state = show::without_version(&mark.1);
            if self.marked.get(name) != Some(&mark) && !self.undone.rests(name, &state) {
                self.requests.patch_node(name, &mark.1).await?;
                self.marked.insert(name.to_owned(), mark);
                self.undone.written(&view, state, &self.requests, events).await;
            }
        }
        Ok(())
    }
}
