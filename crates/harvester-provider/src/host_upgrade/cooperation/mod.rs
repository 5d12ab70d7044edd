//! Cooperation with an upgrade of the hosts, if it is switched on. Workloads and addresses leave a Node before its
//! machine moves or is shut down. The controller writes only Nodes and pods of this cluster, never the host. The host
//! does not wait: what is still on the Node at the shutdown goes off with it.
//!
//! `decide` computes what is due for a Node, `places` whether other Nodes can take what it has, `pods` which pods are
//! evicted, `evictions` does that. This module contains the loop around them.
//! Runs on the leader only.

mod at_risk;
mod decide;
mod evictions;
mod held_nodes;
mod places;
mod pods;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use cloud_provider::cache::{NodeCache, ServiceCache};
use cloud_provider::node::reference;
use cloud_provider::view::NodeView;
use harvester_api::keys::{cloudprovider, kube_vip};
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use runtime::error::{chain, is_absent, is_conflict};
use runtime::events::Recorder;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::facts::Power;
use super::requests::Requests;
use super::shown::NodeStatus;
use super::undone::Undone;
use crate::identity::Identity;
use decide::{Change, CooperationCase};
use evictions::DrainPass;
use held_nodes::{HeldNodes, Missing};
use places::{has_heir, has_refuge};
use pods::listed;

/// Interval of the checks: deadlines pass although nothing changes.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// Pause after a failure, and between attempts to evict a pod that a PodDisruptionBudget protects.
const AGAIN: Duration = Duration::from_secs(10);
/// How long the loop waits for a pass over the pods of a Node, which as a rule takes a fraction of that. A longer one
/// goes on beside the loop: other Nodes must not miss their time because an eviction hangs.
const PROMPT: Duration = Duration::from_secs(1);

/// The state that the controller of host upgrades publishes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UpgradeState {
    /// All lists have arrived, and the state of a former process was read. While this is false, the other fields mean
    /// nothing: a closed window may only mean that no upgrade was looked for yet.
    pub known: bool,
    /// An upgrade is in progress, and has not lasted too long.
    pub open: bool,
    /// The status that is shown for each Node.
    pub nodes: BTreeMap<String, NodeStatus>,
    /// The power state of each Node's machine.
    pub power: BTreeMap<String, Power>,
}

/// The caches and states that the loop reads.
#[derive(Debug)]
pub struct Sources {
    /// Nodes of the cluster.
    pub nodes: NodeCache,
    /// Its Services.
    pub services: ServiceCache,
    /// The state of the upgrade.
    pub seen: watch::Receiver<Arc<UpgradeState>>,
}

/// The progress of one drain.
#[derive(Debug, Default)]
struct Drain {
    /// No eviction is tried before this time.
    next: Option<Instant>,
    /// The pass over its pods that is under way. It ends with the drain.
    pass: JoinSet<Result<DrainPass, kube::Error>>,
    /// The end of the drain was reported.
    told: bool,
    evicted: BTreeSet<String>,
    /// Pods whose eviction was refused, with the reason.
    refused: BTreeMap<String, String>,
    left: BTreeSet<String>,
}

/// The loop. [`Cooperation::run`] is called once.
pub struct Cooperation {
    sources: Sources,
    requests: Requests,
    identity: Identity,
    /// Longest duration of a drain. `None`: cooperation is off, nothing is begun, and what was begun is undone.
    limit: Option<Duration>,
    drains: HashMap<String, Drain>,
    /// Hosts with a warning about too many etcd members.
    at_risk: at_risk::Warned,
    /// Nodes that stay cordoned because too little is known about them.
    held: HeldNodes,
    /// Nodes whose last patch is recent or has failed, with the time of the next attempt.
    waits: HashMap<String, Instant>,
    /// Marks that another writer takes away.
    undone: Undone<Change>,
}

impl Cooperation {
    /// Creates the loop. It sends no request before [`Self::run`].
    pub fn new(guest: &Client, sources: Sources, identity: Identity) -> Self {
        Self {
            sources,
            requests: Requests::new(guest),
            identity,
            limit: None,
            drains: HashMap::new(),
            at_risk: at_risk::Warned::default(),
            held: HeldNodes::default(),
            waits: HashMap::new(),
            undone: Undone::default(),
        }
    }

    /// Sets the longest duration of a drain; `None` switches cooperation off.
    pub fn wanted(&mut self, limit: Option<Duration>) {
        self.limit = limit;
    }

    /// Never ends.
    pub async fn run(mut self, events: Recorder) -> Infallible {
        let mut ticks = tokio::time::interval(LOOK_EVERY);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut seen = self.sources.seen.clone();
        loop {
            tokio::select! {
                _ = ticks.tick() => {}
                Ok(()) = seen.changed() => {}
            }
            let seen = Arc::clone(&seen.borrow_and_update());
            self.look(&seen, &events).await;
        }
    }

    /// Evaluates all Nodes once. A new leader waits until the state is known. Otherwise it would take an upgrade that
    /// it has not seen yet for one that is over, and uncordon a Node in the middle of its predecessor's drain.
    async fn look(&mut self, seen: &UpgradeState, events: &Recorder) {
        let held = self.identity.name().is_none() || self.identity.hold().is_some();
        let nodes = self.sources.nodes.all();
        self.tell_who_stays(seen, held, &nodes, events);
        if !seen.known || held || !self.sources.nodes.is_synced() || !self.sources.services.is_synced() {
            return;
        }
        self.at_risk.tell(seen, &nodes, events);
        for node in &nodes {
            self.look_at(node, &nodes, seen, events).await;
        }
        self.drains.retain(|name, _| nodes.iter().any(|node| node.name == *name));
        self.waits.retain(|_, until| *until > Instant::now());
    }

    /// Reports the Nodes that a former leader has cordoned and that stay cordoned, until their machine is known to run.
    fn tell_who_stays(&mut self, seen: &UpgradeState, held: bool, nodes: &[Arc<NodeView>], events: &Recorder) {
        let power = |node: &NodeView| seen.power.get(&node.name).copied().unwrap_or(Power::Unknown);
        let missing = |node: &NodeView| {
            if held {
                Some(Missing::Identity)
            } else if !seen.known {
                Some(Missing::Lists)
            } else if !seen.open && power(node) == Power::Unknown {
                Some(Missing::Machine)
            } else {
                None
            }
        };
        let cordoned = nodes.iter().filter(|node| node.annotations.contains_key(cloudprovider::CORDONED));
        let waits = cordoned.filter_map(|node| Some((node.name.clone(), missing(node)?))).collect();
        for (name, missing) in self.held.look(Instant::now(), &waits) {
            let Some(node) = nodes.iter().find(|node| node.name == name) else { continue };
            let message = format!(
                "The node stays cordoned, as it was for the upgrade of its host: {}. It is uncordoned when its machine \
                 is known to run; if you know that it runs: kubectl uncordon {name}",
                missing.words()
            );
            tracing::warn!(node = name, "{message}");
            events.warning(&reference(node), "NodeStaysCordoned", &message);
        }
    }

    async fn look_at(&mut self, node: &NodeView, nodes: &[Arc<NodeView>], seen: &UpgradeState, events: &Recorder) {
        let wanted = self.limit.is_some() && seen.open;
        let name = node.name.as_str();
        let untouched = [cloudprovider::HAND_OVER, cloudprovider::CORDONED];
        if !wanted && untouched.iter().all(|key| !node.annotations.contains_key(key)) {
            self.drains.remove(name);
            return;
        }
        let status = seen.nodes.get(name).filter(|status| status.uid == node.uid.0);
        let case = CooperationCase {
            now: Timestamp::now().as_second(),
            limit: self.limit.map_or(0, |limit| i64::try_from(limit.as_secs()).unwrap_or(i64::MAX)),
            wanted,
            node,
            status,
            power: seen.power.get(name).copied().unwrap_or(Power::Unknown),
            // A drain that has begun goes on: its pods stop with the machine otherwise.
            refuge: self.drains.contains_key(name) || has_refuge(node, nodes, seen),
            heir: has_heir(node, nodes, seen),
            announces: self.announces(name),
        };
        let decision = case.decide();
        let under_way = self.drains.get_mut(name).is_some_and(|drain| {
            // A Node that an operator has uncordoned during the drain is left alone at once.
            if !node.unschedulable {
                drain.pass.abort_all();
            }
            !drain.pass.is_empty()
        });
        if let Some((patch, change)) = decision.patch {
            self.patch(node, status, &patch, change, events).await;
        } else if decision.evict || under_way {
            self.evict(node, decision.evict, events).await;
        } else if self.drains.get(name).is_some_and(|drain| !drain.told && !drain.refused.is_empty()) {
            self.tell_end(node, events);
        }
    }

    /// Whether the annotation of a Service names this Node as its announcer.
    fn announces(&self, name: &str) -> bool {
        let services = self.sources.services.all();
        services
            .iter()
            .any(|service| service.is_load_balancer && service.annotations.get(kube_vip::VIP_HOST) == Some(name))
    }

    async fn patch(
        &mut self,
        node: &NodeView,
        status: Option<&NodeStatus>,
        patch: &serde_json::Value,
        change: Change,
        events: &Recorder,
    ) {
        let name = node.name.as_str();
        if self.waits.contains_key(name) || self.undone.rests(name, &change) {
            return;
        }
        // The watch delivers the patched Node only later, so the same patch is not sent again at once.
        self.waits.insert(name.to_owned(), Instant::now() + LOOK_EVERY);
        if let Err(error) = self.requests.patch_node(name, patch).await {
            if !is_conflict(&error) && !is_absent(&error) {
                let error = chain(&error);
                tracing::warn!(
                    error,
                    node = name,
                    "the controller cannot prepare the Node for the upgrade of its host; it tries again"
                );
                self.waits.insert(name.to_owned(), Instant::now() + AGAIN);
            }
            return;
        }
        self.undone.written(node, change, &self.requests, events).await;
        if change != Change::MarksAnew {
            self.drains.remove(name);
        }
        let machine = status.map_or_else(
            || "its machine".to_owned(),
            |status| format!("VM {} with Harvester host {}", status.vm, status.host),
        );
        let (reason, message) = match change {
            Change::Drains => (
                "NodeDrainStarted",
                format!(
                    "Cordoned, because {machine} is about to be shut down: addresses are handed over, then pods are \
                     evicted for at most {} s. It is uncordoned when the machine is back",
                    self.limit.unwrap_or_default().as_secs()
                ),
            ),
            Change::HandsOver | Change::MarksAnew | Change::TakenBack { uncordoned: false } => return,
            Change::TakenBack { uncordoned: true } => {
                ("NodeUncordoned", "The machine is back: the node accepts new pods and addresses again".to_owned())
            }
        };
        tracing::info!(node = name, "{message}");
        events.normal(&reference(node), reason, &message);
    }

    /// Takes in the pass over the pods of the Node when it has ended. If none is under way and `begin` is set, a new
    /// one begins when it is due.
    async fn evict(&mut self, node: &NodeView, begin: bool, events: &Recorder) {
        let drain = self.drains.entry(node.name.clone()).or_default();
        if drain.pass.is_empty() {
            if !begin || drain.told || drain.next.is_some_and(|next| Instant::now() < next) {
                return;
            }
            drain.next = Some(Instant::now() + AGAIN);
            drain.pass.spawn(evictions::pass(self.requests.clone(), node.name.clone()));
        }
        let Ok(Some(Ok(ended))) = tokio::time::timeout(PROMPT, drain.pass.join_next()).await else { return };
        let pass = match ended {
            Ok(pass) => pass,
            Err(error) => {
                let text = chain(&error);
                tracing::warn!(
                    error = text,
                    node = node.name,
                    "the controller cannot list the pods of the Node, so it does not evict them; it tries again"
                );
                drain.refused.insert("its pods".to_owned(), text);
                return;
            }
        };
        drain.evicted.extend(pass.evicted);
        (drain.refused, drain.left) = (pass.refused, pass.left);
        if pass.ending && drain.refused.is_empty() {
            // Pods that are still terminating are checked with one list request.
            drain.next = Some(Instant::now() + LOOK_EVERY);
        } else if drain.refused.is_empty() {
            self.tell_end(node, events);
        }
    }

    fn tell_end(&mut self, node: &NodeView, events: &Recorder) {
        let Some(drain) = self.drains.get_mut(&node.name) else { return };
        drain.told = true;
        let left: Vec<String> = drain.left.iter().cloned().collect();
        let stay = if left.is_empty() {
            String::new()
        } else {
            format!(
                "; {} stay and stop with the machine: no controller would create them again, or they have data in an \
                emptyDir",
                listed(&left)
            )
        };
        let evicted = drain.evicted.len();
        if drain.refused.is_empty() {
            let message = format!("{evicted} pods were evicted{stay}");
            events.normal(&reference(node), "NodeDrained", &message);
            return;
        }
        let refused: Vec<String> = drain.refused.keys().cloned().collect();
        let why = drain.refused.values().next().map(|why| why.trim_end_matches('.')).unwrap_or_default();
        let message = format!(
            "{evicted} pods were evicted, the time is over, and {} stay: {why}{stay}. Check their \
            PodDisruptionBudgets, or run more replicas",
            listed(&refused)
        );
        tracing::warn!(node = node.name, "{message}");
        events.warning(&reference(node), "NodeDrainIncomplete", &message);
    }
}

#[cfg(test)]
mod tests;
