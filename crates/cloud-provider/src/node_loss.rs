//! The node-loss controller: pods of a node that has become silent leave their Services at once. Kubernetes alone waits
//! about forty seconds, until its node lifecycle controller marks the Node as not Ready.
//!
//! The announcers monitor each other's nodes on the network, and write the nodes they no longer hear to their Leases
//! ([`report`]). [`decide`] and [`plan`] decide what follows; [`requests`] sends it. Every replica runs this
//! controller, also one that does not lead, because the leader may have been on the lost node. It writes what
//! Kubernetes itself would write, each time with a precondition. So two replicas do not disturb each other, nor a
//! kubelet that is alive and has newer information.

mod back;
mod case;
mod decide;
mod kubelet;
mod mark;
mod metrics;
mod plan;
mod report;
mod requests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use case::{CaseState, LossCase};
use contract::leases::NAMESPACE;
use decide::{Agreed, LossDoubt, LossFacts, LossVerdict, SeenReport};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{Api, Client};
pub use metrics::NodeLossMetrics;
use report::Report;
use requests::Requests;
use runtime::cache::Cache;
use runtime::error::{api_code, chain};
use runtime::events::Recorder;
use runtime::reflect::Reflector;
use runtime::refusal;
use runtime::shutdown::Token;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::cache::NodeCache;
use crate::provider::{Instances, MachineState};
use crate::view::NodeView;

/// Source component of the Events.
const COMPONENT: &str = "node-loss";
/// Time-out for the answer of the cloud.
const ASK: Duration = Duration::from_millis(300);
/// How long an answer of the cloud is valid. Then it is asked again; the pause doubles while the result stays the same.
/// Without an answer it is asked again at the next occasion.
const SAID: Duration = Duration::from_secs(2);
/// First pause after a failure, and while nothing may be done yet; it doubles.
const AGAIN: Duration = Duration::from_millis(500);
/// Times after the mark at which the node is checked again: whether a kubelet has corrected the mark, and what other
/// programs wrote meanwhile.
const LOOKS: [Duration; 4] =
    [Duration::from_millis(700), Duration::from_secs(2), Duration::from_secs(5), Duration::from_secs(20)];
/// Interval of the checks after the last of these: the Node is not Ready by then, and Kubernetes continues by itself.
/// Also the pause while a right is missing.
const SELDOM: Duration = Duration::from_mins(5);
/// Shorter than any boot: a node that is heard again within this time has not lost its containers.
const BOOT: Duration = Duration::from_secs(2);
/// If a Node is still Ready this long after its last silence, its kubelet is alive: without a kubelet it would not be
/// Ready. A mark that is left then will not be corrected by any other program.
const KUBELET_LIVES: Duration = Duration::from_mins(1);

/// The controller.
pub struct NodeLoss {
    reports: Cache<String, Report>,
    watch: Option<Reflector<Lease, String, Report>>,
    nodes: NodeCache,
    instances: Arc<dyn Instances>,
    requests: Requests,
    kubelet: kubelet::ReachCheck,
    recorder: Recorder,
    metrics: NodeLossMetrics,
    silent: watch::Sender<BTreeSet<String>>,
    seen: BTreeMap<String, SeenReport>,
    cases: BTreeMap<String, LossCase>,
    is_refused: bool,
}

impl NodeLoss {
    /// Creates the controller.
    pub fn new(
        client: &Client,
        instances: Arc<dyn Instances>,
        nodes: NodeCache,
        recorder: &Recorder,
        metrics: NodeLossMetrics,
    ) -> Self {
        let reports: Cache<String, Report> = Cache::new(|old, new| old != new);
        let leases = Api::namespaced(client.clone(), NAMESPACE);
        let watch =
            Reflector::new("silent-nodes", leases, reports.clone(), name, Report::of).labels(&report::selector());
        Self {
            reports,
            watch: Some(watch),
            nodes,
            instances,
            requests: Requests::new(client.clone()),
            kubelet: kubelet::accepts,
            recorder: recorder.for_component(COMPONENT),
            metrics,
            silent: watch::Sender::default(),
            seen: BTreeMap::new(),
            cases: BTreeMap::new(),
            is_refused: false,
        }
    }

    /// The nodes that are considered lost. If the leader runs on one of them, another replica can take over sooner.
    pub fn silent(&self) -> watch::Receiver<BTreeSet<String>> {
        self.silent.subscribe()
    }

    /// Runs until `stop`. In a healthy cluster it sends nothing but a watch request, which delivers no events.
    pub async fn run(mut self, stop: Token) {
        let Some(watch) = self.watch.take() else { return };
        let mut changes = self.reports.subscribe();
        let work = async {
            self.nodes.wait_synced().await;
            self.reports.wait_synced().await;
            self.inherit();
            self.rehearse().await;
            loop {
                let next = self.pass(Instant::now()).await;
                tokio::select! {
                    Some(_) = changes.next() => {}
                    () = async { tokio::time::sleep_until(next.expect("polled only if set")).await },
                        if next.is_some() => {}
                }
            }
        };
        tokio::select! {
            () = stop.cancelled() => {}
            never = watch.run() => match never {},
            () = work => {}
        }
    }

    /// Checks the rights in advance, so that a missing right is reported before it is needed.
    async fn rehearse(&mut self) {
        if let Err(error) = refusal::settled(|| self.requests.may_read()).await
            && api_code(&error) == Some(403)
        {
            self.refused(&error);
        }
    }

    fn refused(&mut self, error: &kube::Error) {
        if !std::mem::replace(&mut self.is_refused, true) {
            tracing::warn!(
                error = chain(error),
                "the controller has no right to take the pods of a lost node out of their Services, so they stay \
                there until Kubernetes finds the node unready; grant list on pods, list and patch on endpointslices \
                and patch on pods/status, or switch this off with --controllers=*,-node-loss"
            );
        }
    }

    /// Evaluates everything once. Returns when to evaluate again if no report changes before.
    async fn pass(&mut self, now: Instant) -> Option<Instant> {
        self.note(now);
        let nodes = self.nodes.all();
        let agreed = decide::agreed(now, &nodes, &self.seen);
        self.open(now, &agreed);
        let lost = |(_, case): &(&String, &LossCase)| case.is_lost();
        let enough = agreed.iter().filter(|(_, word)| word.enough).map(|(name, _)| name);
        let silent: BTreeSet<String> =
            self.cases.iter().filter(lost).map(|(name, _)| name).chain(enough).cloned().collect();
        for (name, case) in &mut self.cases {
            let enough = agreed.get(name).is_some_and(|word| word.enough);
            if case.is_stirred(enough, silent.len()) {
                case.next = now;
            }
        }
        let due: Vec<String> =
            self.cases.iter().filter(|(_, case)| case.next <= now).map(|(name, _)| name.clone()).collect();
        for name in due {
            let Some(mut case) = self.cases.remove(&name) else { continue };
            let node = nodes.iter().find(|node| node.name == name && node.uid.0 == case.uid);
            let stays = match (node, agreed.get(&name)) {
                (Some(node), Some(word)) => {
                    self.follow(node, word, &mut case, &silent, &nodes).await;
                    true
                }
                (Some(node), None) => self.heard(node, &mut case).await,
                // The Node is deleted, and Kubernetes deletes its pods.
                (None, _) => false,
            };
            if stays {
                self.cases.insert(name, case);
            }
        }
        let lost: BTreeSet<String> =
            self.cases.iter().filter(|(_, case)| case.is_lost()).map(|(name, _)| name.clone()).collect();
        self.metrics.lost(lost.len());
        self.silent.send_if_modified(|told| std::mem::replace(told, lost.clone()) != lost);
        let expiries = self.seen.values().filter_map(SeenReport::expiry).filter(|at| *at > now);
        self.cases.values().map(|case| case.next).chain(expiries).min()
    }

    fn told(&self) -> BTreeMap<String, Arc<Report>> {
        self.reports.keys().into_iter().filter_map(|key| Some((key.clone(), self.reports.get(&key)?))).collect()
    }

    /// Takes over the reports that exist at the start. Their announcers may be gone, so a report counts only from its
    /// next renewal on.
    fn inherit(&mut self) {
        let seen =
            |(key, report): (String, Arc<Report>)| (key, SeenReport { report: (*report).clone(), renewed: None });
        self.seen = self.told().into_iter().map(seen).collect();
    }

    /// Notes new reports and renewals. They count from the moment when this process sees them.
    fn note(&mut self, now: Instant) {
        let reports = self.told();
        self.seen.retain(|key, _| reports.contains_key(key));
        for (key, report) in reports {
            let renewed = self.seen.get(&key).filter(|seen| seen.report.renewal == report.renewal);
            let renewed = renewed.map_or(Some(now), |seen| seen.renewed);
            self.seen.insert(key, SeenReport { report: (*report).clone(), renewed });
        }
    }

    /// Opens cases for new silent nodes, and closes those that are over.
    fn open(&mut self, now: Instant, agreed: &BTreeMap<String, Agreed>) {
        for (name, word) in agreed {
            let case = self.cases.entry(name.clone()).or_insert_with(|| LossCase::new(now, &word.uid));
            if case.uid != word.uid || matches!(case.state, CaseState::Heard(..)) {
                *case = LossCase::new(now, &word.uid);
            }
        }
        for (_, case) in self.cases.iter_mut().filter(|(name, _)| !agreed.contains_key(*name)) {
            if !matches!(case.state, CaseState::Heard(..)) {
                (case.state, case.next) = (CaseState::Heard(now, 0), now);
            }
        }
    }

    /// Whether the node's kubelet accepts a connection from here.
    async fn lives(&self, node: &NodeView) -> bool {
        match kubelet::address(node) {
            Some(address) => (self.kubelet)(address).await,
            None => false,
        }
    }

    /// Handles a node that watchers report as silent.
    async fn follow(
        &mut self,
        node: &NodeView,
        word: &Agreed,
        case: &mut LossCase,
        silent: &BTreeSet<String>,
        nodes: &[Arc<NodeView>],
    ) {
        match case.state {
            CaseState::Open(_) => self.judge(node, word, case, silent, nodes).await,
            CaseState::Marked(looks) => {
                let went_well = self.mark(node, word, case).await;
                if went_well && case.is_lost() {
                    case.state = CaseState::Marked(looks + 1);
                    case.next = Instant::now() + LOOKS.get(looks + 1).copied().unwrap_or(SELDOM);
                }
            }
            CaseState::Refuted(false) => self.withdraw(node, case).await,
            CaseState::Refuted(true) | CaseState::Heard(..) => case.next = Instant::now() + SELDOM,
        }
    }

    async fn judge(
        &mut self,
        node: &NodeView,
        word: &Agreed,
        case: &mut LossCase,
        silent: &BTreeSet<String>,
        nodes: &[Arc<NodeView>],
    ) {
        let judge = |case: &LossCase, machine, host_upgrade| {
            let known =
                LossFacts { now: Instant::now(), since: case.since, silent, nodes: nodes.len(), host_upgrade, machine };
            decide::decide(word, known)
        };
        let valid = |machine| if machine == MachineState::Unknown { ASK } else { SAID };
        let said = case.machine.filter(|(at, machine, _)| at.elapsed() < valid(*machine));
        let said = said.map(|(_, machine, upgrade)| (machine, upgrade));
        let many = matches!(judge(case, MachineState::Unknown, false), LossVerdict::Refused(LossDoubt::TooMany { .. }));
        let (machine, host_upgrade) = match said {
            Some(said) => said,
            None if many => (MachineState::Unknown, false),
            None => {
                let answer = tokio::time::timeout(ASK, self.instances.machine_state(node));
                let (answer, upgrade) = tokio::join!(answer, self.requests.host_upgrade());
                let cached = self.instances.cached_machine_state(node);
                let machine = decide::settle(answer.unwrap_or(MachineState::Unknown), cached, case.former);
                case.former = Some(machine);
                let upgrade = match upgrade {
                    Ok(upgrade) => upgrade,
                    Err(error) => return self.failed(&node.name, case, &error),
                };
                case.machine = Some((Instant::now(), machine, upgrade));
                (machine, upgrade)
            }
        };
        let (doubt, until) = match judge(case, machine, host_upgrade) {
            LossVerdict::Lost => {
                // The doubt is resolved. If the mark fails, only the back-off decides when it is tried again.
                case.state = CaseState::Open(None);
                self.mark(node, word, case).await;
                return;
            }
            LossVerdict::Wait(until, doubt) => (doubt, Some(until)),
            LossVerdict::Refused(doubt) => (doubt, None),
        };
        let (text, kind) = (doubt.to_string(), doubt.word());
        if case.doubted(doubt, until) {
            tracing::warn!(
                node = node.name,
                evidence = word.evidence,
                "the node does not answer, but the controller leaves its pods in their Services: {text}"
            );
            self.metrics.verdict(kind);
        }
    }

    fn failed(&mut self, node: &str, case: &mut LossCase, error: &kube::Error) {
        if api_code(error) == Some(403) {
            case.rest();
            return self.refused(error);
        }
        case.back_off();
        tracing::warn!(
            node,
            error = chain(error),
            "the controller cannot take the pods of a lost node out of their Services, or put them back; it tries again"
        );
    }
}

fn name(metadata: &ObjectMeta) -> String {
    metadata.name.clone().unwrap_or_default()
}

#[cfg(test)]
mod tests;
