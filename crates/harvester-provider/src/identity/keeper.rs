//! Finds out the cluster's name at the start, remembers it, and follows the record in the guest cluster. Runs on the leader only.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use cloud_provider::cache::ServiceCache;
use cloud_provider::view::ServiceKey;
use harvester_api::names::ClusterName;
use runtime::cache::Cache;
use runtime::error::chain;
use runtime::events::Recorder;
use runtime::refusal;

use super::Identity;
use super::decide::{Clues, Decision, decide};
use super::proof::{CLUSTER_SERVICE, cluster_of, is_proven};
use super::record::{self, NAME, NAMESPACE, Record, RecordError, Records};
use crate::instances::provider::VmiCache;
use crate::load_balancers::own_writes::LbCache;
use crate::metrics::Metrics;

/// The record as it is watched: at most one entry.
pub type RecordCache = Cache<String, Record>;

/// A cache for a reflector to fill.
pub fn record_cache() -> RecordCache {
    Cache::new(|old, new| old != new)
}

/// After a read or write of the record that failed. Doubled after each further write that fails.
const TRY_AGAIN: Duration = Duration::from_secs(2);
const LONGEST_PAUSE: Duration = Duration::from_mins(1);

/// UID of the guest cluster, if its Services are known.
pub fn cluster_uid(services: &ServiceCache) -> Option<String> {
    let (namespace, name) = CLUSTER_SERVICE;
    let key = ServiceKey { namespace: namespace.to_owned(), name: name.to_owned() };
    services.get(&key).map(|service| service.uid.0.clone())
}

/// What the keeper looks at.
#[derive(Debug, Clone)]
pub struct Sources {
    /// All Services.
    pub services: ServiceCache,
    /// All LoadBalancers of the namespace.
    pub lbs: LbCache,
    /// All virtual machine instances of the namespace.
    pub vmis: VmiCache,
    /// The record.
    pub record: RecordCache,
}

/// Keeps [`Identity`] right.
#[derive(Debug)]
pub struct Keeper {
    identity: Identity,
    sources: Sources,
    records: Records,
    metrics: Arc<Metrics>,
}

impl Keeper {
    /// Nothing is sent before [`Self::run`].
    pub fn new(identity: Identity, sources: Sources, records: Records, metrics: Arc<Metrics>) -> Self {
        Self { identity, sources, records, metrics }
    }

    /// Never ends. Until the name is known, nothing is done for any Service.
    pub async fn run(self, events: Recorder) -> Infallible {
        let mut touched = self.sources.record.subscribe();
        let mut record = self.first_look().await;
        let mut may_write = record.is_some();
        let mut refused = None;
        let mut failing = false;
        loop {
            let found = record.clone().unwrap_or_default();
            let decision = self.decide(&found).await;
            self.adopt(&decision, &found, &events);
            if let Some(bad) = &found.bad_name
                && refused.as_ref() != Some(bad)
            {
                let text = not_followed(bad, &decision.name);
                tracing::warn!("{text}");
                events.warning(&record::reference(found.uid.clone()), "ClusterNameRefused", &text);
            }
            refused = found.bad_name;
            let mut owed = may_write && decision.is_to_be_remembered();
            let mut pause = TRY_AGAIN;
            // Until the record changes: somebody may write another name while ours cannot be written.
            loop {
                if owed {
                    match refusal::settled(|| self.records.remember(&decision.name)).await {
                        Ok(_) => {
                            tracing::info!(
                                cluster = decision.name.as_str(),
                                "remembered in ConfigMap {NAMESPACE}/{NAME}"
                            );
                            (owed, failing) = (false, false);
                        }
                        Err(error) if error.is_forbidden() => {
                            not_allowed(&error);
                            (owed, may_write) = (false, false);
                        }
                        Err(error) => not_yet(&error, std::mem::replace(&mut failing, true)),
                    }
                }
                tokio::select! {
                    key = touched.next() => match key {
                        Some(_) => break,
                        None => return std::future::pending().await,
                    },
                    () = tokio::time::sleep(pause), if owed => pause = (pause * 2).min(LONGEST_PAUSE),
                }
            }
            record = self.sources.record.get(&NAME.to_owned()).map(Arc::unwrap_or_clone);
        }
    }

    /// The record as the API server has it; `None`: no right to read it, so that it is done without (decision 3). An API server that
    /// is away is waited for: whoever guesses the name makes objects under a wrong one.
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
                            "the name of this cluster is not known yet, trying again"
                        );
                    }
                    tokio::time::sleep(TRY_AGAIN).await;
                }
            }
        }
    }

    /// Waits for no more than the decision needs: with a record Harvester may be away.
    async fn decide(&self, record: &Record) -> Decision {
        let flag = Some(self.identity.flag().clone());
        let known = self.identity.name().filter(|name| !name.is_default());
        // A record that somebody deleted changes nothing while we remember it ourselves.
        let remembered = record.cluster_name.clone();
        if remembered.is_none()
            && let Some(name) = known
        {
            return Decision { name, source: super::decide::Source::Adopted };
        }
        let mut clues = Clues { remembered, flag, ..Clues::default() };
        if clues.remembered.as_ref().is_none_or(ClusterName::is_default) {
            self.sources.services.wait_synced().await;
            self.sources.lbs.wait_synced().await;
            clues.adopted = self.adopted();
        }
        if clues.adopted.is_empty() && self.identity.flag().is_default() {
            self.sources.vmis.wait_synced().await;
            let vmis = self.sources.vmis.all();
            clues.machines = vmis.iter().map(|vmi| vmi.guest_cluster().map(ClusterName::from_record)).collect();
        }
        decide(&clues)
    }

    fn adopted(&self) -> Vec<ClusterName> {
        let lbs = self.sources.lbs.all();
        let proven = lbs.iter().filter(|lb| {
            let service = lb.service_key().and_then(|key| self.sources.services.get(&key));
            service.is_some_and(|service| is_proven(lb, &service))
        });
        proven.filter_map(|lb| cluster_of(lb)).collect()
    }

    /// Takes the name into use and says what has to be said about it.
    fn adopt(&self, decision: &Decision, record: &Record, events: &Recorder) {
        let before = self.identity.name();
        let flag = self.identity.flag();
        let differs = decision.differs_from(flag);
        self.metrics.cluster_name_mismatch.set(i64::from(differs));
        if before.as_ref() == Some(&decision.name) {
            return;
        }
        let object = record::reference(record.uid.clone());
        match before {
            None => {
                tracing::info!(cluster = decision.name.as_str(), source = ?decision.source, "this cluster's name on Harvester");
            }
            Some(before) => {
                let text = format!(
                    "this cluster is called {:?} on Harvester from now on, before it was {:?}: new load balancers are named after it, \
                     those that exist keep name and address",
                    decision.name.as_str(),
                    before.as_str()
                );
                tracing::info!("{text}");
                events.normal(&object, "ClusterNameChanged", &text);
            }
        }
        if differs {
            let text = mismatch(&decision.name, flag);
            tracing::warn!("{text}");
            events.warning(&object, "ClusterNameNotChanged", &text);
        }
        self.identity.set(decision.name.clone());
    }
}

/// Once per outage.
fn not_yet(error: &RecordError, told: bool) {
    let error = chain(error);
    if told {
        tracing::debug!(error, "the name of this cluster is not remembered yet, trying again");
    } else {
        tracing::warn!(error, "the name of this cluster is not remembered yet, trying again");
    }
}

fn not_allowed(error: &RecordError) {
    tracing::warn!(
        error = chain(error),
        "the name of this cluster is not remembered, so a changed --cluster-name is noticed only while load balancers exist: grant \
         get, list, watch, create and update of configmaps in namespace {NAMESPACE}"
    );
}

/// A name in the record that is not followed.
fn not_followed(bad: &str, used: &ClusterName) -> String {
    format!(
        "{} in ConfigMap {NAMESPACE}/{NAME} is {bad:?}, and no load balancer can be named after it: {}. This cluster goes on as {:?}",
        record::CLUSTER_NAME,
        ClusterName::ACCEPTED,
        used.as_str()
    )
}

/// What to do about a flag that is not followed.
fn mismatch(used: &ClusterName, flag: &ClusterName) -> String {
    let new = if flag.is_default() { "NEW-NAME" } else { flag.as_str() };
    format!(
        "--cluster-name is {:?}, but this cluster is known on Harvester as {:?} and goes on as that: nothing changes. If the flag was \
         lost or mistyped, set --cluster-name={used}. If the name is really to change: kubectl -n {NAMESPACE} patch configmap {NAME} \
         --type merge -p '{{\"data\":{{\"{}\":\"{new}\"}}}}'",
        flag.as_str(),
        used.as_str(),
        record::CLUSTER_NAME
    )
}

#[cfg(test)]
mod tests;
