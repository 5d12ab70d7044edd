//! The node lifecycle controller: marks Nodes whose machine is switched off and deletes Nodes whose machine is gone.
//!
//! A Node is deleted for one reason only: it is not Ready, and its machine was proven absent in several consecutive
//! passes. An unknown state changes nothing.

mod decide;
mod preview;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use kube::Client;
use runtime::error::{chain, is_absent, is_conflict, is_refused_write};
use runtime::events::Recorder;
use runtime::shutdown::Token;
use tokio::time::{Instant, MissedTickBehavior};

use decide::{Action, Circumstances, CloudAnswers, LifecycleDecision, MachineHistory, Question};
pub(crate) use preview::preview;

use crate::at_once::{self, Allowed};
use crate::cache::NodeCache;
use crate::node::{Writer, reference, taints_value};
use crate::provider::{Instances, Power};
use crate::view::{NodeView, Ready, Taint};

/// Source component of the Events.
pub const COMPONENT: &str = "cloud-node-lifecycle-controller";

/// Number of machines that the cloud is asked about concurrently.
const PARALLEL: usize = 8;

/// Configuration of the controller.
#[derive(Debug, Clone)]
pub struct LifecycleSettings {
    /// `--node-monitor-period`.
    pub period: Duration,
    /// After a machine was off for this long, its Node gets the out-of-service taint, which releases its pods and
    /// volumes; `None`: never. It is opt-in, because an operator who switches a machine off for maintenance may want
    /// the pods to stay.
    pub out_of_service_after: Option<Duration>,
}

impl Default for LifecycleSettings {
    fn default() -> Self {
        Self { period: Duration::from_secs(5), out_of_service_after: None }
    }
}

/// The controller. One instance leads; [`LifecycleController::run`] is called once.
pub struct LifecycleController {
    provider: Arc<dyn Instances>,
    cache: NodeCache,
    writer: Writer,
    recorder: Recorder,
    settings: LifecycleSettings,
    memory: HashMap<String, MachineHistory>,
    deleted: at_once::Recent,
    barred: Option<Barred>,
    /// When it was last reported that too many Nodes would be deleted.
    told: Option<Instant>,
}

/// A Node that is to be deleted, with the evidence.
struct Doomed {
    node: Arc<NodeView>,
    evidence: String,
    /// Number of consecutive passes in which the machine was proven absent.
    proofs: u32,
}

/// Nodes that are not deleted because they are too many. The cloud is not asked about their machines until the next
/// report is due, or until an operator has deleted some of the Nodes.
struct Barred {
    since: Instant,
    /// Number of Nodes in the cluster at that time.
    nodes: usize,
    uids: HashSet<String>,
}

impl Barred {
    fn lasts(&self, nodes: usize, now: Instant) -> bool {
        nodes >= self.nodes && now.duration_since(self.since) < TELL_AGAIN
    }

    fn holds(&self, node: &NodeView) -> bool {
        self.uids.contains(&node.uid.0)
    }
}

/// Interval of the reports that too many Nodes would be deleted.
const TELL_AGAIN: Duration = Duration::from_mins(10);

impl LifecycleController {
    /// A controller that has not started.
    pub fn new(
        client: Client,
        provider: Arc<dyn Instances>,
        cache: NodeCache,
        recorder: &Recorder,
        settings: LifecycleSettings,
    ) -> Self {
        Self {
            provider,
            cache,
            writer: Writer::new(client),
            recorder: recorder.for_component(COMPONENT),
            settings,
            memory: HashMap::new(),
            deleted: at_once::Recent::default(),
            barred: None,
            told: None,
        }
    }

    /// Runs until `stop`.
    pub async fn run(mut self, stop: Token) {
        tokio::select! {
            () = stop.cancelled() => return,
            () = self.cache.wait_synced() => {}
        }
        let mut period = tokio::time::interval(self.settings.period);
        period.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                _ = period.tick() => self.pass().await,
            }
        }
    }

    async fn pass(&mut self) {
        if self.provider.hold().is_some() {
            // Proofs from before the hold are worthless when it is over.
            self.memory.clear();
            return;
        }
        let mut nodes = self.cache.all();
        let there: HashSet<&str> = nodes.iter().map(|node| node.name.as_str()).collect();
        self.memory.retain(|name, _| there.contains(name.as_str()));
        // Hundreds of removed machines would be asked about in each pass, without any effect.
        let now = Instant::now();
        nodes.retain(|node| !self.memory.get(&node.name).is_some_and(|memory| memory.rests(node, now)));
        self.barred = self.barred.take().filter(|barred| barred.lasts(self.cache.len(), now));
        if let Some(barred) = &mut self.barred {
            let lost = |node: &NodeView| node.ready != Some(Ready::True) && !node.deleting;
            barred.uids.retain(|uid| nodes.iter().any(|node| node.uid.0 == *uid && lost(node)));
            nodes.retain(|node| !barred.holds(node));
        }
        let answered: Vec<(Arc<NodeView>, CloudAnswers)> = futures::stream::iter(nodes)
            .map(|node| {
                let provider = Arc::clone(&self.provider);
                async move {
                    let answers = ask(provider.as_ref(), &node).await;
                    (node, answers)
                }
            })
            .buffer_unordered(PARALLEL)
            .collect()
            .await;
        let mut doomed = Vec::new();
        for (node, answers) in answered {
            let remembered = self.memory.entry(node.name.clone()).or_default();
            let circumstances = Circumstances {
                out_of_service_after: self.settings.out_of_service_after,
                steady_since: self.provider.steady_since(),
                now: Instant::now(),
            };
            let LifecycleDecision { action, history } = decide::decide(&node, answers, remembered, circumstances);
            let proofs = history.proofs();
            *remembered = history;
            match action {
                Action::Nothing => {}
                Action::Watch(evidence) => {
                    tracing::info!(
                        node = node.name,
                        evidence,
                        "the Node is not Ready, and its machine seems to be gone; the controller looks again before \
                        it deletes the Node"
                    );
                }
                Action::Keep(why) => {
                    tracing::info!(
                        node = node.name,
                        "the Node is not Ready, and it is not known whether its machine exists; the controller keeps \
                        the Node: {why}"
                    );
                }
                Action::KeepElsewhere(why) => {
                    let text = format!("The Node is not Ready and is kept, because it may live on: {why}");
                    tracing::warn!(node = node.name, "{text}");
                    self.recorder.warning(&reference(&node), "NodeKept", &text);
                }
                Action::SetTaints(taints) => self.set_taints(&node, &taints).await,
                Action::Confirm(expected, taints) => self.confirm(&node, &expected, &taints).await,
                Action::Delete(evidence) => doomed.push(Doomed { node, evidence, proofs }),
            }
        }
        self.delete_within_reason(doomed).await;
    }

    /// Deletes Nodes within limits: many at once only after their machines were checked again, and more than a third of
    /// all Nodes not at all. In that case an operator has to delete them.
    async fn delete_within_reason(&mut self, doomed: Vec<Doomed>) {
        if doomed.is_empty() {
            return;
        }
        let now = Instant::now();
        let recent = self.deleted.count(now);
        let waiting = self.barred.as_ref().map_or(0, |barred| barred.uids.len());
        let allowed = at_once::allowed(recent, doomed.len() + waiting, self.cache.len() + recent);
        if allowed == Allowed::No {
            self.refuse(&doomed, now);
            return;
        }
        let due = |doomed: &Doomed| allowed == Allowed::Yes || doomed.proofs > decide::PROOFS;
        for Doomed { node, evidence, .. } in doomed.into_iter().filter(due) {
            if self.delete(&node, &evidence).await {
                self.deleted.note(Instant::now());
            }
        }
    }

    fn refuse(&mut self, doomed: &[Doomed], now: Instant) {
        let (since, mut uids) = self.barred.take().map_or((now, HashSet::new()), |barred| (barred.since, barred.uids));
        uids.extend(doomed.iter().map(|doomed| doomed.node.uid.0.clone()));
        let barred = self.barred.insert(Barred { since, nodes: self.cache.len(), uids });
        if self.told.is_some_and(|told| told.elapsed() < TELL_AGAIN) {
            return;
        }
        self.told = Some(Instant::now());
        let mut all = self.cache.all();
        all.retain(|node| barred.holds(node));
        all.sort_by(|a, b| a.name.cmp(&b.name));
        let names: Vec<&str> = all.iter().map(|node| node.name.as_str()).collect();
        let text = format!(
            "the machines of {} of {} Nodes are gone, more than a third: their Nodes are not deleted, because a wrong \
             view of the cloud would look the same. If it is right, run: kubectl delete node {}",
            names.len(),
            self.cache.len(),
            names.join(" ")
        );
        tracing::warn!("{text}");
        self.recorder.warning(&reference(&doomed[0].node), "NodesNotDeleted", &text);
    }

    /// Changes the out-of-service taint, which releases pods and volumes or takes them back. The cloud is asked
    /// directly immediately before.
    async fn confirm(&mut self, node: &NodeView, expected: &Power, taints: &[Taint]) {
        let found = self.provider.power_now(node).await;
        if found == *expected {
            self.set_taints(node, taints).await;
            return;
        }
        tracing::debug!(
            node = node.name,
            ?expected,
            ?found,
            "the cloud does not confirm the state of the machine; the controller leaves the taints of the Node as \
            they are"
        );
        if found == Power::On
            && let Some(memory) = self.memory.get_mut(&node.name)
        {
            memory.runs();
        }
    }

    async fn set_taints(&self, node: &NodeView, taints: &[Taint]) {
        let patch = serde_json::json!({
            "metadata": {"resourceVersion": node.resource_version},
            "spec": {"taints": taints_value(taints)},
        });
        match self.writer.patch(&node.name, patch).await {
            Ok(_) if node.ready == Some(Ready::True) => {
                tracing::info!(
                    node = node.name,
                    "the Node is Ready; the controller removed the taints of a machine that is off"
                );
            }
            Ok(_) if taints.len() < node.taints.len() => {
                tracing::info!(node = node.name, "the machine runs again; the controller removed taints from the Node");
            }
            Ok(_) => {
                let keys: Vec<&str> = taints.iter().map(|taint| taint.key.as_str()).collect();
                tracing::info!(
                    node = node.name,
                    taints = ?keys,
                    "the machine is switched off; the controller added a taint to the Node"
                );
            }
            // The next pass tries again.
            Err(error) if is_conflict(&error) || is_absent(&error) => {}
            Err(error) => {
                tracing::warn!(
                    node = node.name,
                    error = chain(&error),
                    "the controller failed to change the taints of the Node of a machine that is off; it tries again"
                );
            }
        }
    }

    /// Deletes the Node. Returns whether it was deleted.
    async fn delete(&mut self, node: &NodeView, evidence: &str) -> bool {
        let object = reference(node);
        let message = format!("Deleting node {} because it does not exist in the cloud provider", node.name);
        tracing::info!(node = node.name, evidence, "the machine of the Node is gone; the controller deletes the Node");
        self.recorder.normal(&object, "DeletingNode", &message);
        let Err(error) = self.writer.delete(node).await else { return true };
        // The Node is gone, was replaced by another one of this name, or was written since the decision: judge again.
        if is_absent(&error) || is_conflict(&error) {
            self.memory.remove(&node.name);
            return false;
        }
        if is_refused_write(&error) {
            self.memory.entry(node.name.clone()).or_default().refuse(Instant::now());
        }
        let text = chain(&error);
        tracing::warn!(node = node.name, error = text, "the controller failed to delete the Node; it tries again");
        self.recorder.warning(&object, "DeletingNodeFailed", &format!("Failed deleting node {}: {text}", node.name));
        false
    }
}

async fn ask(provider: &dyn Instances, node: &NodeView) -> CloudAnswers {
    let mut answers = CloudAnswers::default();
    while let Some(question) = decide::next_question(node, &answers) {
        match question {
            Question::Existence => answers.existence = Some(provider.existence(node).await),
            Question::Power => answers.power = Some(provider.power(node).await),
        }
    }
    answers
}

#[cfg(test)]
mod tests;
