//! The node-loss controller: pods of a node that has fallen silent leave their Services at once, and not when the node lifecycle
//! controller calls the Node unready, forty seconds later.
//!
//! The announcers watch one another's nodes on the wire and write whom they do not hear on their Leases ([`report`]). What follows is
//! decided in [`decide`] and [`plan`]; [`requests`] sends it. Every replica runs it, also one that does not lead: the leader may have
//! been on that node. What is written is what Kubernetes would write, with a precondition each, so that two replicas do no harm to each
//! other, nor to a kubelet that lives and knows better.

mod decide;
mod metrics;
mod plan;
mod report;
mod requests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use decide::{Agreed, Circumstances, Doubt, Finding, Seen};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{Api, Client};
pub use metrics::NodeLossMetrics;
use plan::Tenants;
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
use crate::node::reference;
use crate::provider::{Instances, Standing};
use crate::view::{NodeView, Ready};

/// Source component of the Events.
const COMPONENT: &str = "node-loss";
/// Where the announcers' Leases are.
const NAMESPACE: &str = "kube-system";
/// How long the cloud is waited for.
const ASK: Duration = Duration::from_millis(300);
/// What the cloud has said counts for so long.
const SAID: Duration = Duration::from_secs(2);
/// After a failure, and while nothing may be done yet.
const AGAIN: Duration = Duration::from_millis(500);
/// When it is looked again after the mark: whether a kubelet has put it right, and what was written meanwhile.
const LOOKS: [Duration; 4] =
    [Duration::from_millis(700), Duration::from_secs(2), Duration::from_secs(5), Duration::from_secs(20)];
/// After the last of them: the Node is unready by then, and Kubernetes goes on by itself.
const SELDOM: Duration = Duration::from_mins(5);
/// A Node that is Ready so long after its last silence has a kubelet that lives: without one it would be unready. What still bears our mark
/// then, nobody else will put right.
const KUBELET_LIVES: Duration = Duration::from_mins(1);

/// Where a silent node has got to.
#[derive(Debug)]
enum Stage {
    /// Nothing is written; what was said of it last.
    Open(Option<Doubt>),
    /// Its pods are marked; so many looks since.
    Marked(usize),
    /// A kubelet has put a mark right: it lives. Nothing more until it is heard.
    Refuted,
    /// It is heard again since then; so many looks since.
    Heard(Instant, usize),
}

/// A silent node.
#[derive(Debug)]
struct Case {
    uid: String,
    since: Instant,
    stage: Stage,
    next: Instant,
    machine: Option<(Instant, Standing)>,
    /// Pods that we have marked, and whose endpoints.
    pods: BTreeSet<String>,
}

impl Case {
    fn new(now: Instant, uid: &str) -> Self {
        let stage = Stage::Open(None);
        Self { uid: uid.to_owned(), since: now, stage, next: now, machine: None, pods: BTreeSet::new() }
    }

    fn is_lost(&self) -> bool {
        matches!(self.stage, Stage::Marked(_))
    }
}

/// The controller.
pub struct NodeLoss {
    reports: Cache<String, Report>,
    watch: Option<Reflector<Lease, String, Report>>,
    nodes: NodeCache,
    instances: Arc<dyn Instances>,
    requests: Requests,
    recorder: Recorder,
    metrics: NodeLossMetrics,
    silent: watch::Sender<BTreeSet<String>>,
    seen: BTreeMap<String, Seen>,
    cases: BTreeMap<String, Case>,
    is_refused: bool,
}

impl std::fmt::Debug for NodeLoss {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NodeLoss").field("cases", &self.cases).finish_non_exhaustive()
    }
}

impl NodeLoss {
    /// A controller that has not started.
    pub fn new(
        client: &Client,
        instances: Arc<dyn Instances>,
        nodes: NodeCache,
        recorder: &Recorder,
        metrics: NodeLossMetrics,
    ) -> Self {
        let reports: Cache<String, Report> = Cache::new(|old, new| old != new);
        let leases = Api::namespaced(client.clone(), NAMESPACE);
        let watch = Reflector::new("silent-nodes", leases, reports.clone(), name, Report::of).labels(report::SELECTOR);
        Self {
            reports,
            watch: Some(watch),
            nodes,
            instances,
            requests: Requests::new(client.clone()),
            recorder: recorder.for_component(COMPONENT),
            metrics,
            silent: watch::Sender::default(),
            seen: BTreeMap::new(),
            cases: BTreeMap::new(),
            is_refused: false,
        }
    }

    /// Nodes that are believed to be lost: whoever leads there can be succeeded sooner.
    pub fn silent(&self) -> watch::Receiver<BTreeSet<String>> {
        self.silent.subscribe()
    }

    /// Works until `stop`. At rest it sends nothing but its watch, on which nothing comes.
    pub async fn run(mut self, stop: Token) {
        let Some(watch) = self.watch.take() else { return };
        let mut changes = self.reports.subscribe();
        let work = async {
            self.nodes.wait_synced().await;
            self.rehearse().await;
            loop {
                let next = self.pass(Instant::now()).await;
                tokio::select! {
                    Some(_) = changes.next() => {}
                    () = async { tokio::time::sleep_until(next.expect("polled only if set")).await }, if next.is_some() => {}
                }
            }
        };
        tokio::select! {
            () = stop.cancelled() => {}
            never = watch.run() => match never {},
            () = work => {}
        }
    }

    /// A right that is missing is told before it is needed.
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
                "pods of a node that is lost stay in their Services until Kubernetes finds it unready: grant list on pods and list and \
                 patch on endpointslices, and patch on pods/status, or switch this off with --controllers=*,-node-loss"
            );
        }
    }

    /// One look at everything; when to look again if nothing is told before.
    async fn pass(&mut self, now: Instant) -> Option<Instant> {
        self.note(now);
        let nodes = self.nodes.all();
        let agreed = decide::agreed(now, &nodes, &self.seen);
        self.open(now, &agreed);
        let lost = |(_, case): &(&String, &Case)| case.is_lost();
        let enough = agreed.iter().filter(|(_, word)| word.enough).map(|(name, _)| name);
        let silent: BTreeSet<String> =
            self.cases.iter().filter(lost).map(|(name, _)| name).chain(enough).cloned().collect();
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
                // Its pods go with it.
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
        let expiries = self.seen.values().map(|seen| seen.renewed + seen.report.duration).filter(|at| *at > now);
        self.cases.values().map(|case| case.next).chain(expiries).min()
    }

    /// Renewals count from when we see them.
    fn note(&mut self, now: Instant) {
        let reports = self.reports.keys().into_iter().filter_map(|key| Some((key.clone(), self.reports.get(&key)?)));
        let reports: BTreeMap<String, Arc<Report>> = reports.collect();
        self.seen.retain(|key, _| reports.contains_key(key));
        for (key, report) in reports {
            let renewed = self.seen.get(&key).filter(|seen| seen.report.renewal == report.renewal);
            let renewed = renewed.map_or(now, |seen| seen.renewed);
            self.seen.insert(key, Seen { report: (*report).clone(), renewed });
        }
    }

    /// Begins what is new, and ends what is over.
    fn open(&mut self, now: Instant, agreed: &BTreeMap<String, Agreed>) {
        for (name, word) in agreed {
            let case = self.cases.entry(name.clone()).or_insert_with(|| Case::new(now, &word.uid));
            if case.uid != word.uid || matches!(case.stage, Stage::Heard(..)) {
                *case = Case::new(now, &word.uid);
            }
            // A second watcher has come to the same conclusion: not to wait for the next look.
            if matches!(case.stage, Stage::Open(Some(Doubt::OneWatcher))) && word.enough {
                case.next = now;
            }
        }
        for (_, case) in self.cases.iter_mut().filter(|(name, _)| !agreed.contains_key(*name)) {
            if !matches!(case.stage, Stage::Heard(..)) {
                (case.stage, case.next) = (Stage::Heard(now, 0), now);
            }
        }
    }

    /// Watchers call it silent.
    async fn follow(
        &mut self,
        node: &NodeView,
        word: &Agreed,
        case: &mut Case,
        silent: &BTreeSet<String>,
        nodes: &[Arc<NodeView>],
    ) {
        match case.stage {
            Stage::Open(_) => self.judge(node, word, case, silent, nodes).await,
            Stage::Marked(looks) => {
                self.mark(node, word, case, true).await;
                if matches!(case.stage, Stage::Marked(_)) {
                    case.stage = Stage::Marked(looks + 1);
                    case.next = Instant::now() + LOOKS.get(looks + 1).copied().unwrap_or(SELDOM);
                }
            }
            Stage::Refuted | Stage::Heard(..) => case.next = Instant::now() + SELDOM,
        }
    }

    async fn judge(
        &mut self,
        node: &NodeView,
        word: &Agreed,
        case: &mut Case,
        silent: &BTreeSet<String>,
        nodes: &[Arc<NodeView>],
    ) {
        let host_upgrade = decide::host_upgrade(nodes);
        let judge = |case: &Case, machine| {
            let known = Circumstances {
                now: Instant::now(),
                since: case.since,
                silent,
                nodes: nodes.len(),
                host_upgrade,
                machine,
            };
            decide::decide(word, known)
        };
        let said = case.machine.filter(|(at, _)| at.elapsed() < SAID).map(|(_, machine)| machine);
        let many = matches!(judge(case, Standing::Unknown), Finding::Refused(Doubt::TooMany { .. }));
        let machine = match said {
            Some(machine) => machine,
            None if many => Standing::Unknown,
            None => {
                let asked = tokio::time::timeout(ASK, self.instances.standing(node)).await;
                let machine = asked.unwrap_or(Standing::Unknown);
                case.machine = Some((Instant::now(), machine));
                machine
            }
        };
        let (doubt, next) = match judge(case, machine) {
            Finding::Lost => return self.mark(node, word, case, false).await,
            Finding::Wait(until, doubt) => (doubt, until.min(Instant::now() + AGAIN)),
            Finding::Refused(doubt) => (doubt, Instant::now() + SAID),
        };
        let told = Stage::Open(Some(doubt.clone()));
        if !matches!(&case.stage, Stage::Open(Some(before)) if before.word() == doubt.word()) {
            tracing::warn!(node = node.name, evidence = word.evidence, "a node is silent, and its pods stay: {doubt}");
            self.metrics.verdict(doubt.word());
        }
        (case.stage, case.next) = (told, next);
    }

    /// Marks what is not marked. `again`: it was done before, and what a kubelet has put right since shows that it lives.
    async fn mark(&mut self, node: &NodeView, word: &Agreed, case: &mut Case, again: bool) {
        case.next = Instant::now() + AGAIN;
        if self.instances.hold().is_some() {
            return;
        }
        let tenants = match self.requests.tenants(&node.name, again).await {
            Ok(tenants) => tenants,
            Err(error) => return self.failed(&node.name, &error),
        };
        if again && tenants.is_refuted(&case.pods) {
            tracing::warn!(
                node = node.name,
                evidence = word.evidence,
                "the kubelet of a node that was called silent lives"
            );
            self.metrics.is_false();
            case.stage = Stage::Refuted;
            self.take_back(case, &tenants, false).await;
            return;
        }
        let plan = tenants.marks();
        let why = format!(
            "node {} does not answer ({}). The condition goes when the node is heard again: docs/node-loss.md",
            node.name, word.evidence
        );
        let done = self.requests.perform(&plan, false, &why).await;
        let endpoints = plan.slices.iter().flat_map(|(_, chosen)| chosen).map(|endpoint| endpoint.pod.clone());
        case.pods.extend(plan.pods.iter().map(|pod| pod.uid.clone()).chain(endpoints));
        if let Some(error) = &done.error {
            return self.failed(&node.name, error);
        }
        if again {
            return;
        }
        case.stage = Stage::Marked(0);
        case.next = Instant::now() + if done.conflicts > 0 { AGAIN / 5 } else { LOOKS[0] };
        self.metrics.verdict("lost");
        // The other replica says it otherwise.
        if !done.pods.is_empty() {
            let pods = done.pods.len();
            let text = format!(
                "node {} does not answer: {}. {pods} of its pods were taken out of their Services until it is heard again",
                node.name, word.evidence
            );
            tracing::warn!(
                node = node.name,
                pods,
                evidence = word.evidence,
                "a node is lost: its pods leave their Services"
            );
            self.recorder.warning(&reference(node), plan::REASON, &text);
        }
    }

    /// It is heard again. False: there is nothing left to do.
    async fn heard(&mut self, node: &NodeView, case: &mut Case) -> bool {
        let Stage::Heard(at, looks) = case.stage else { return false };
        if case.pods.is_empty() {
            return false;
        }
        if looks == 0 {
            tracing::info!(node = node.name, "a node that was silent is heard again");
            self.recorder.normal(
                &reference(node),
                "NodeHeardAgain",
                "its kubelet puts its pods back into their Services",
            );
        }
        let last = at.elapsed() >= KUBELET_LIVES;
        match self.requests.tenants(&node.name, true).await {
            Ok(tenants) => self.take_back(case, &tenants, last && node.ready == Some(Ready::True)).await,
            Err(error) => self.failed(&node.name, &error),
        }
        let pause = LOOKS.get(looks).copied().unwrap_or(KUBELET_LIVES.saturating_sub(at.elapsed()).max(AGAIN));
        (case.stage, case.next) = (Stage::Heard(at, looks + 1), Instant::now() + pause);
        !last
    }

    async fn take_back(&mut self, case: &Case, tenants: &Tenants, pods: bool) {
        let plan = tenants.unmarks(&case.pods, pods);
        let done = self.requests.perform(&plan, true, "").await;
        if let Some(error) = &done.error {
            self.failed("", error);
        }
    }

    fn failed(&mut self, node: &str, error: &kube::Error) {
        if api_code(error) == Some(403) {
            return self.refused(error);
        }
        tracing::warn!(
            node,
            error = chain(error),
            "cannot take the pods of a lost node out of their Services, trying again"
        );
    }
}

fn name(metadata: &ObjectMeta) -> String {
    metadata.name.clone().unwrap_or_default()
}

#[cfg(test)]
mod tests;
