//! The keeper finds out which cluster this is, and whether its record, its cloud-config and its machines agree. It
//! writes the result to the record in the guest cluster, and follows changes of the record. Runs on the leader only.

mod naming;
mod news;
mod outcome;
mod progress;
mod restore;
mod words;
mod write;

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use cloud_provider::cache::{NodeCache, ServiceCache};
use cloud_provider::provider::Hold;
use k8s_openapi::jiff::Timestamp;
use runtime::cache::Cache;
use runtime::error::chain;
use runtime::events::Recorder;
use runtime::reflect::Status;
use runtime::refusal;
use tokio::sync::watch;
use tokio::time::Instant;

use naming::gets_names;
pub(crate) use news::until;
use news::{Changed, News};
use outcome::{pause, tell_refused};
use progress::Progress;
use words::not_allowed;

use super::decide::{NameDecision, Source};
use super::evidence::node_facts;
use super::judge::{IdentityFacts, IdentityVerdict, is_own_elsewhere, judge, worth_asking};
use super::proof::service_uid;
use super::record::{NAME, NAMESPACE, Record, RecordNote, Records};
use super::{Identity, IdentityDoubt};
use crate::config::OwnNode;
use crate::instances::view::{VmCache, VmiCache};
use crate::load_balancers::own_writes::LbCache;
use crate::metrics::Metrics;

/// Cache of the record: it has at most one entry.
pub type RecordCache = Cache<String, Record>;

/// A cache for a reflector to fill.
pub fn record_cache() -> RecordCache {
    Cache::new(|old, new| old != new)
}

/// Pause after a failed read or write of the record. It doubles with each further failed write.
const TRY_AGAIN: Duration = Duration::from_secs(2);
const LONGEST_PAUSE: Duration = Duration::from_mins(1);
/// Pause when the right is missing: an administrator has to grant it.
const WITHOUT_RIGHT: Duration = Duration::from_mins(10);
/// The longest pause while an operator waits for his confirmation to be followed. Whoever grants the right then has no
/// other way to say so: the same confirmation once more does not change the record.
const CONFIRMATION_WAITS: Duration = Duration::from_secs(10);

/// Shortest time between two writes of the record for machines that come and go.
const WRITE_EVERY: Duration = Duration::from_secs(2);

/// After this time a Node whose kubelet does not run is no longer Ready: 50 s, plus the start of the Kubernetes
/// controller manager.
const SETTLED: Duration = Duration::from_secs(90);

/// Services wait for so long until the identity was judged once. Then their users are told what their load balancers
/// wait for. A refusal at the start of an API server is waited out before.
const UNJUDGED: Duration = Duration::from_secs(15);

/// Reason of the hold at the start, while it is not known whether this cluster is a copy.
pub const NOT_KNOWN: &str = contract::leases::IDENTITY_NOT_KNOWN;

/// Reason of the hold that a user asked for.
pub const PAUSED: &str = "Paused";

/// The caches that the keeper reads.
#[derive(Debug, Clone)]
pub struct Sources {
    /// All Services.
    pub services: ServiceCache,
    /// All Nodes.
    pub nodes: NodeCache,
    /// All LoadBalancers of the namespace.
    pub lbs: LbCache,
    /// All virtual machines of the namespace.
    pub vms: VmCache,
    /// Their VirtualMachineInstances.
    pub vmis: VmiCache,
    /// State of the two watches that fill `vms` and `vmis`.
    pub machines: [watch::Receiver<Status>; 2],
    /// The record.
    pub record: RecordCache,
}

/// Facts from the command line and the cloud-config, for the comparison.
#[derive(Debug, Clone, Default)]
pub struct Place {
    /// Namespace of the cloud-config's context.
    pub namespace: String,
    /// URL of the Harvester API.
    pub server: String,
    /// Fingerprint of the authority in the cloud-config.
    pub authority: Option<String>,
    /// The Node that this process runs on.
    pub own_node: Option<OwnNode>,
    /// `--paused`.
    pub paused: bool,
}

/// Keeps [`Identity`] up to date.
pub struct Keeper {
    identity: Identity,
    place: Place,
    sources: Sources,
    records: Records,
    metrics: Arc<Metrics>,
}

impl Keeper {
    /// Creates the keeper. It sends no request before [`Self::run`].
    pub fn new(identity: Identity, place: Place, sources: Sources, records: Records, metrics: Arc<Metrics>) -> Self {
        // In force from the first moment: the record is read later, and a judgement needs Harvester.
        if place.paused {
            identity.set_hold(Some(pause()));
        }
        Self { identity, place, sources, records, metrics }
    }

    /// Runs the keeper. Until the name is known, no load balancer is touched.
    pub async fn run(self, events: Recorder) -> Infallible {
        tokio::select! {
            never = self.keep(&events) => never,
            never = self.let_services_speak() => never,
        }
    }

    /// Ends the time in which Services wait for the first judgement, also without one. Their users have to learn that
    /// the record cannot be read, or that Harvester cannot be reached.
    async fn let_services_speak(&self) -> Infallible {
        tokio::time::sleep(UNJUDGED).await;
        if self.identity.await_judgement(false) {
            tracing::warn!(
                "for {} s the controller could not tell which cluster this is, nor whether its record \
                 {NAMESPACE}/{NAME} forbids its writes; Services are told from now on what their load balancers wait \
                 for",
                UNJUDGED.as_secs()
            );
        }
        std::future::pending().await
    }

    async fn keep(&self, events: &Recorder) -> Infallible {
        let mut news = News::new(&self.sources);
        let mut record = self.begin().await;
        let mut progress = Progress::new(self.read_cluster_uid().await, record.is_none());
        loop {
            let found = record.clone().unwrap_or_default();
            let note = self.look(&found, &mut progress, events).await;
            let owed = note.filter(|note| note.is_news_to(&found));
            if let Some(note) = owed.as_ref().filter(|note| progress.may_write(note))
                && let Some(written) = self.write(note, &mut progress, events).await
            {
                record = Some(written);
                continue;
            }
            let again = owed.map(|note| progress.not_before(&note));
            let settles = progress.since.map(|since| since + SETTLED).filter(|at| *at > Instant::now());
            let forgets = self.identity.restore_suspected(Instant::now()).map(|(_, end)| end);
            tokio::select! {
                changed = news.next() => if changed == Changed::Record {
                    record = self.sources.record.get(&NAME.to_owned()).map(Arc::unwrap_or_clone);
                    progress.try_again();
                },
                () = until(again) => {}
                () = until(settles) => {}
                () = until(forgets) => {}
                () = until(progress.confirmation_at.take()) => {}
                () = until(progress.kubelets.due()) => progress.kubelets.ask(&self.records.client).await,
            }
        }
    }

    /// Evaluates once for a preview: the name and the hold are taken into use, but nothing is written. Returns what the
    /// record does not contain yet. The settling time counts as over, and kubelets as seen to report, as for a
    /// leader that has run for a while.
    pub async fn foresee(&self, events: &Recorder) -> (NameDecision, Option<RecordNote>) {
        let record = self.begin().await;
        let mut progress = Progress::new(self.read_cluster_uid().await, record.is_none());
        (progress.since, progress.kubelets.all) = (Instant::now().checked_sub(SETTLED), true);
        let found = record.unwrap_or_default();
        // Only the leader acts on an operator's confirmation.
        let found = Record { confirmation: None, ..found };
        self.sources.services.wait_synced().await;
        self.sources.lbs.wait_synced().await;
        self.sources.vmis.wait_synced().await;
        // Before the look, after which this process remembers the name without a source.
        let checked = self.checked(&found, &mut progress, events);
        let decision = checked.and_then(|checked| self.decide(&checked)).expect("all lists have arrived");
        let note = self.look(&found, &mut progress, events).await;
        (decision, note.filter(|note| note.is_news_to(&found)))
    }

    /// Judges the facts, applies and reports the result, and returns what has to be written to the record. `None`: no
    /// judgement is possible yet.
    async fn look(&self, found: &Record, progress: &mut Progress, events: &Recorder) -> Option<RecordNote> {
        let known = || self.identity.restore_suspected(Instant::now()).map(|(stamp, _)| stamp);
        if let Some(stamp) = found.restore_suspected.or_else(known) {
            self.identity.restore_is_recorded(stamp, Timestamp::now(), Instant::now());
        }
        progress.told_confirmation.take_if(|_| found.confirmation.is_none());
        progress.told_refusal.take_if(|_| found.confirmation.is_none());
        let Some(checked) = self.checked(found, progress, events) else {
            self.hold_if_paused(found);
            return None;
        };
        let is_anothers = checked.cluster_name != found.cluster_name;
        let (mut known, lost) = progress.with_memory(&checked);
        let refused = self.refuse_name(&mut known, progress, events);
        if let Some(name) = &lost.name {
            tell_refused(found, name, progress, events);
        }
        let note = match self.judged(&known, progress, events).await {
            // Nothing follows from the facts yet, and what is lost goes back all the same, and what is refused away.
            None if refused || !lost.is_nothing() => {
                Some(RecordNote { safe_mode: found.safe_mode.clone(), ..RecordNote::default() })
            }
            note => note,
        };
        let restore_suspected = self.suspected(found, progress, events);
        note.map(|note| RecordNote {
            // The name of another cluster is written over, if need be with a default one: it could be followed once
            // the load balancers are gone that tell whose it is.
            name: note.name.or(lost.name).or_else(|| self.identity.name().filter(|_| is_anothers)),
            card: note.card.or(lost.card),
            restore_suspected,
            followed: note.followed || refused,
            ..note
        })
    }

    async fn judged(&self, found: &Record, progress: &mut Progress, events: &Recorder) -> Option<RecordNote> {
        // All names that load balancers of its Services have must be on such a card, or those would be lost.
        let decision =
            self.decide(&progress.for_name(found)).filter(|_| !gets_names(found) || self.has_load_balancers());
        let Some(decision) = decision else {
            self.hold_if_paused(found);
            return None;
        };
        self.sources.nodes.wait_synced().await;
        let names = if gets_names(found) { self.names_in_use(found, &decision) } else { BTreeSet::new() };
        let nodes = self.sources.nodes.all();
        let needs_machines = nodes.iter().any(|node| node.provider_id.is_some())
            || found.card.as_ref().is_some_and(|card| !card.machines.is_empty());
        let stale = self.sources.machines.iter().any(|watched| watched.borrow().error.is_some());
        let synced = self.sources.vms.is_synced() && self.sources.vmis.is_synced();
        if needs_machines && (!synced || stale) {
            self.hold_if_paused(found);
            return None;
        }
        let since = *progress.since.get_or_insert_with(Instant::now);
        let place = &self.place;
        let own = place.own_node.as_ref();
        let unseen = own.filter(|own| own.told && self.sources.nodes.get(&own.name).is_none());
        let facts = node_facts(
            &nodes,
            &self.sources.vms.all(),
            &self.sources.vmis.all(),
            own.map(|own| own.name.as_str()),
            |node| progress.kubelets.lives(node),
        );
        let (cluster_uid, service_uid) = (progress.cluster_uid.clone(), service_uid(&self.sources.services));
        let known = [Source::Remembered, Source::Adopted].contains(&decision.source) && !decision.name.is_default();
        let facts = IdentityFacts {
            card: found.card.as_ref(),
            name: Some(&decision.name).filter(|_| known),
            flag: self.identity.flag(),
            names: &names,
            cluster_uid: cluster_uid.as_deref(),
            service_uid: service_uid.as_deref(),
            namespace: &place.namespace,
            server: &place.server,
            authority: place.authority.as_deref(),
            nodes: &facts,
            machines: self.sources.vms.len(),
            settled: since.elapsed() >= SETTLED,
            unregistered: unseen.map(|own| own.name.as_str()),
        };
        if let Some(note) = self.followed(&facts, &decision, found, progress, events) {
            self.identity.await_judgement(false);
            return Some(note);
        }
        progress.kubelets.watch(Vec::new());
        let note = match judge(&facts) {
            IdentityVerdict::Normal(card) | IdentityVerdict::New(card) => {
                Some(self.go_on(card, &decision, found, progress, events))
            }
            IdentityVerdict::SafeMode(contradiction) => Some(self.stop(contradiction, found, progress, events)),
            IdentityVerdict::Undecided(message) => {
                // Outside the cluster, machines are replaced until none is left whose kubelet was seen to report. Until
                // another one is, no new machine comes into the card.
                progress.kubelets.watch(worth_asking(&facts));
                // A process that was sure of the identity has no reason to doubt, unless a contradiction came after
                // that, or it runs in a copy whose kubelet has reported late. Once a contradiction is gone, also by an
                // operator's word, this hold takes the place of its hold, and ends.
                let doubted = matches!(self.identity.doubt(), IdentityDoubt::Of(_)) || is_own_elsewhere(&facts);
                if self.identity.name().is_none() || doubted {
                    let hold = Hold { reason: NOT_KNOWN, message, initialises_nodes: true, passing: false };
                    self.identity.judged(Some(hold), self.is_paused(found));
                }
                None
            }
        };
        self.hold_if_paused(found);
        self.identity.await_judgement(false);
        note
    }

    /// Takes the first look. What the record forbids is in force from then on.
    async fn begin(&self) -> Option<Record> {
        let record = self.first_look().await;
        self.hold_as_recorded(&record.clone().unwrap_or_default());
        record
    }

    /// UID of Namespace `kube-system`; `None` if there is no right to read it.
    async fn read_cluster_uid(&self) -> Option<String> {
        loop {
            match refusal::settled(|| self.records.cluster_uid()).await {
                Ok(uid) => return uid,
                Err(error) if error.is_forbidden() => {
                    tracing::info!(
                        error = chain(&error),
                        "the controller cannot tell whether its record was copied from another cluster; grant get of \
                        namespaces in {NAMESPACE}"
                    );
                    return None;
                }
                Err(_) => tokio::time::sleep(TRY_AGAIN).await,
            }
        }
    }

    /// The record in the API server; `None` if there is no right to read it, so the controller works without it
    /// (decision 3). If the API server does not answer, the keeper waits: with a guessed name, objects would be created
    /// under a wrong name.
    async fn first_look(&self) -> Option<Record> {
        let mut told = false;
        loop {
            match refusal::settled(|| self.records.read()).await {
                Ok(record) => return Some(record),
                Err(error) if error.is_forbidden() => {
                    not_allowed(&error);
                    return None;
                }
                Err(error) => {
                    if !std::mem::replace(&mut told, true) {
                        tracing::warn!(
                            error = chain(&error),
                            "the controller cannot read the name of this cluster in ConfigMap {NAMESPACE}/{NAME} yet; \
                            it tries again"
                        );
                    }
                    tokio::time::sleep(TRY_AGAIN).await;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
