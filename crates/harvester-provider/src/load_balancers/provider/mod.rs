//! Implements the trait `LoadBalancers`: reads the caches (`observe`), lets `plan` decide, sends the requests
//! (`perform`, `deletion`), and wakes the Services that have to be reconciled (`streams`).

mod deletion;
mod failure;
mod fresh;
mod groups;
mod memory;
mod observe;
mod perform;
mod preview;
mod streams;
mod undone;
mod unserved;
mod upgrading;
mod vanished;
mod within_reason;

use parking_lot::{Mutex, MutexGuard};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use cloud_provider::cache::{NodeCache, ServiceCache};
use cloud_provider::preview::Write;
use cloud_provider::provider::{AnnouncerPresence, Deleted, Ensured, Hold, LoadBalancers, ProviderError, Waiting};
use cloud_provider::view::{ServiceKey, ServiceView};
use futures::stream::BoxStream;
use harvester_api::keys::cloudprovider::PAUSED;
use harvester_api::keys::kube_vip;
use runtime::reflect::Status;
use tokio::sync::watch;

use super::apply::Requests;
use super::breaker::Breaker;
use super::choice;
use super::neighbours::Neighbours;
use super::network::wanted_network;
use super::own_writes::{LbCache, Objects, PatchedServices};
use super::owned::{Owned, Owners};
use super::pacing::Pacer;
use super::plan::{self, Action, Plan, PlanVerdict};
use super::spelling::misspelt;
use super::wait_reason::{Wait, WaitReason};
use crate::config::{LoadBalancerConfig, remedy};
use crate::host_upgrade::Suspensions;
use crate::identity::{Identity, NAME_NOT_KNOWN, keeper};
use crate::metrics::Metrics;
use crate::nad_mapping::MappingSource;
use failure::{failed, refused};
use memory::{Now, ProviderState};
use perform::Pass;
use undone::Undone;

/// How often one call decides again because the objects differed from the caches.
const ROUNDS: usize = 3;

/// Pause while a cache has not received its first list.
const CACHE_PAUSE: Duration = Duration::from_secs(1);

/// Load balancers on Harvester.
pub struct HarvesterLoadBalancers {
    /// The configuration from the command line, with the name from the flag; see [`Self::config`].
    given: LoadBalancerConfig,
    identity: Identity,
    services: ServiceCache,
    nodes: NodeCache,
    neighbours: Arc<Neighbours>,
    lbs: LbCache,
    /// State of the reflector of `lbs`.
    watched: watch::Receiver<Status>,
    /// State of a watch on the guest cluster; the other watches on it fail together with it.
    guest: watch::Receiver<Status>,
    objects: Objects,
    owners: Owners,
    patched: PatchedServices,
    pacer: Arc<Pacer>,
    mapping: MappingSource,
    requests: Requests,
    memory: Mutex<ProviderState>,
    breaker: Mutex<Breaker>,
    undone: Mutex<Undone>,
    unsettled: Arc<Mutex<Unsettled>>,
    metrics: Arc<Metrics>,
    suspensions: Suspensions,
    announced: watch::Receiver<AnnouncerPresence>,
}

/// The Services that have to be woken after an outage.
#[derive(Debug, Default)]
struct Unsettled {
    /// Services whose last call did not succeed, perhaps because of an outage.
    services: BTreeSet<ServiceKey>,
    /// Number of outages that are over.
    recoveries: u64,
}

impl HarvesterLoadBalancers {
    /// Creates the provider. It sends and watches nothing before the first call.
    pub fn new(
        (given, identity): (LoadBalancerConfig, Identity),
        (services, nodes): (ServiceCache, NodeCache),
        (lbs, watched): (LbCache, watch::Receiver<Status>),
        mapping: MappingSource,
        requests: Requests,
        metrics: Arc<Metrics>,
    ) -> Self {
        Self {
            given,
            identity,
            neighbours: Arc::new(Neighbours::new(services.clone())),
            services,
            nodes,
            objects: Objects::new(lbs.clone()),
            owners: Owners::new(lbs.clone()),
            lbs,
            watched,
            guest: watch::Sender::default().subscribe(),
            patched: PatchedServices::default(),
            pacer: Arc::default(),
            mapping,
            requests,
            memory: Mutex::default(),
            breaker: Mutex::default(),
            undone: Mutex::default(),
            unsettled: Arc::default(),
            metrics,
            suspensions: Suspensions::default(),
            announced: watch::Sender::new(AnnouncerPresence::Running).subscribe(),
        }
    }

    /// Sets the source of what is known about the announcers.
    pub fn announced_by(mut self, announced: watch::Receiver<AnnouncerPresence>) -> Self {
        self.announced = announced;
        self
    }

    /// Sets a watch on the guest cluster: while it fails, nothing is deleted.
    pub fn watching(mut self, guest: watch::Receiver<Status>) -> Self {
        self.guest = guest;
        self
    }

    /// Sets the suspensions that the provider asks before it touches an address in use.
    pub fn suspended_by(mut self, suspensions: Suspensions) -> Self {
        self.suspensions = suspensions;
        self
    }

    /// The pacer, for every other part that deletes load balancers with a pool address.
    pub fn pacer(&self) -> Arc<Pacer> {
        Arc::clone(&self.pacer)
    }

    /// Removes state about requests of former passes that this pass does not repeat.
    fn forget_what_is_over(&self, service: &ServiceView, actions: &[Action]) {
        if !actions.iter().any(|action| matches!(action, Action::Delete { .. })) {
            self.memory().spared(&service.key);
        }
        if !actions.iter().any(|action| self.is_unasked(service, action)) {
            self.breaker.lock().over(&service.key);
        }
    }

    /// The configuration with the current name and UIDs of this cluster.
    fn config(&self) -> LoadBalancerConfig {
        self.identity.applied_to(&self.given, &self.services)
    }

    /// The LoadBalancer objects of a Service.
    fn owned(&self, service: &ServiceView, config: &LoadBalancerConfig) -> Owned {
        self.owned_as_remembered(service, config, &self.memory())
    }

    /// The same, for a caller that has locked the memory.
    fn owned_as_remembered(&self, service: &ServiceView, config: &LoadBalancerConfig, memory: &ProviderState) -> Owned {
        let inherited = memory.inherited(&service.key);
        let more = Self::name_of_move(service, config).into_iter().chain(inherited);
        self.owners.of(service, &self.objects, config, more)
    }

    /// Name of the object that a move to the named pool creates.
    fn name_of_move(service: &ServiceView, config: &LoadBalancerConfig) -> Option<String> {
        let source = choice::source(service).ok()?;
        Some(plan::name_in_pool(config, service, source.pool()?))
    }

    fn unsettled(&self) -> MutexGuard<'_, Unsettled> {
        self.unsettled.lock()
    }

    /// Records the end of a call; `recoveries` is the number of recoveries when it began. Returns true if the call
    /// failed in an outage that is over now, so that nothing else would wake the Service.
    fn note(&self, service: &ServiceKey, settled: bool, failed: bool, recoveries: u64) -> bool {
        let mut unsettled = self.unsettled();
        if settled {
            unsettled.services.remove(service);
        } else {
            unsettled.services.insert(service.clone());
        }
        failed && unsettled.recoveries != recoveries
    }

    fn note_ensured(&self, service: &ServiceKey, result: &Result<Ensured, ProviderError>, recoveries: u64) -> bool {
        let settled = matches!(result, Ok(Ensured::Ready { .. }));
        self.note(service, settled, result.as_ref().is_err_and(|error| !error.permanent), recoveries)
    }

    fn note_deleted(&self, service: &ServiceKey, result: &Result<Deleted, ProviderError>, recoveries: u64) -> bool {
        let settled = matches!(result, Ok(Deleted::Gone { .. } | Deleted::Left(_)));
        self.note(service, settled, result.is_err(), recoveries)
    }

    fn memory(&self) -> MutexGuard<'_, ProviderState> {
        self.memory.lock()
    }

    /// The wait state until all caches have their first lists. A decision on an empty cache would create existing
    /// objects and delete used ones (W-18).
    fn not_synced(&self, with_mapping: bool) -> Option<Wait> {
        let not_yet = |what: &str| format!("the first list of {what} has not arrived yet");
        let mut reason = WaitReason::Cache;
        let (message, needs_user) = if !self.services.is_synced() {
            (not_yet("Services"), false)
        } else if !self.lbs.is_synced() {
            match &self.watched.borrow().error {
                None => (not_yet("LoadBalancers on Harvester"), false),
                // Wrong cloud-config, missing rights, or Harvester unreachable: no other part reports this to the user.
                Some((_, error)) => {
                    reason = WaitReason::CacheFails;
                    let message = format!(
                        "cannot list LoadBalancers in namespace {} of Harvester at {}: {error}; {}",
                        self.given.namespace,
                        self.given.server,
                        remedy(error)
                    );
                    (message, true)
                }
            }
        } else if self.identity.name().is_none() {
            // A hold gives the start some time. After that, no other part reports this to the user.
            (NAME_NOT_KNOWN.to_owned(), self.identity.hold_of_services().is_none())
        } else if with_mapping && !self.mapping.is_known() {
            (not_yet("the NAD mapping"), false)
        } else {
            return None;
        };
        Some(Wait { reason, message, needs_user, retry_after: Some(CACHE_PAUSE) })
    }

    async fn try_ensure(&self, service: &ServiceView) -> Result<Ensured, ProviderError> {
        if let Some(mut wait) = self.not_synced(!wanted_network(service).is_empty()) {
            // A Service with an address does not wait for anything: its user need not know that the controller
            // restarted while Harvester was unreachable.
            wait.needs_user &= !service.annotations.contains_key(kube_vip::LOADBALANCER_IPS);
            self.metrics.waits(&service.key, Some(wait.reason));
            return Ok(Ensured::Waiting(wait.into()));
        }
        let config = self.config();
        let mut name = String::new();
        let mut changed = false;
        for _ in 0..ROUNDS {
            let current = self.patched.see(service);
            let owned = self.owned(&current, &config);
            name.clone_from(&owned.name);
            let Plan { actions, verdict } = self.decide(&current, &config, &owned, Now::read());
            let verdict = match self.perform_all(&current, &name, actions, &mut changed).await? {
                Pass::Complete => verdict,
                Pass::NotYet(wait) => PlanVerdict::Waiting(wait),
                Pass::DecideAnew => continue,
            };
            let reason = match &verdict {
                PlanVerdict::Waiting(wait) => Some(wait.reason),
                PlanVerdict::Refused(_) => Some(WaitReason::User),
                PlanVerdict::Ready | PlanVerdict::Served(_) => None,
            };
            self.metrics.waits(&service.key, reason);
            if matches!(verdict, PlanVerdict::Ready | PlanVerdict::Served(_)) {
                self.breaker.lock().done(&service.key);
            }
            return match verdict {
                PlanVerdict::Ready => Ok(Ensured::Ready { changed, remark: misspelt(&current.annotations) }),
                PlanVerdict::Served(less) => Ok(Ensured::Ready { changed, remark: Some(less.remark()) }),
                PlanVerdict::Waiting(wait) => Ok(Ensured::Waiting(wait.into())),
                PlanVerdict::Refused(refusal) => Err(refused(&refusal)),
            };
        }
        let message = format!("load balancer {}/{name} changes faster than it can be read", self.given.namespace);
        Ok(Ensured::Waiting(soon(message).into()))
    }
}

/// The hold, if the user has paused this Service.
fn paused(service: &ServiceView) -> Option<Arc<Hold>> {
    service.annotations.get(PAUSED).filter(|value| *value == "true")?;
    let message = format!("service {} is paused by annotation {PAUSED}", service.key);
    Some(Arc::new(Hold { reason: keeper::PAUSED, message, initialises_nodes: true, passing: false }))
}

fn soon(message: String) -> Wait {
    Wait { reason: WaitReason::Cache, message, needs_user: false, retry_after: Some(CACHE_PAUSE) }
}

#[async_trait]
impl LoadBalancers for HarvesterLoadBalancers {
    async fn ensure(&self, service: &ServiceView) -> Result<Ensured, ProviderError> {
        self.memory().not_kept(&service.key);
        if let Some(waiting) = upgrading::served(service, self.suspensions.window()) {
            return Ok(Ensured::Waiting(waiting));
        }
        let recoveries = self.unsettled().recoveries;
        let mut result = self.try_ensure(service).await;
        if self.note_ensured(&service.key, &result, recoveries) {
            result = self.try_ensure(service).await;
            self.note_ensured(&service.key, &result, recoveries);
        }
        if result.as_ref().is_err_and(upgrading::is_webhook_failure) {
            self.suspensions.webhook_failed();
        }
        upgrading::patiently(result, self.suspensions.window())
    }

    async fn delete(&self, service: &ServiceView) -> Result<Deleted, ProviderError> {
        let recoveries = self.unsettled().recoveries;
        let mut result = self.delete_patiently(service).await.map(Deleted::from);
        if self.note_deleted(&service.key, &result, recoveries) {
            result = self.delete_patiently(service).await.map(Deleted::from);
            self.note_deleted(&service.key, &result, recoveries);
        }
        result
    }

    fn hold(&self, service: &ServiceView) -> Option<Arc<Hold>> {
        // Nobody can take the annotation off a Service that is gone.
        let is_there = || self.services.get(&service.key).is_some_and(|there| there.uid == service.uid);
        self.identity.hold_of_services().or_else(|| paused(service).filter(|_| is_there()))
    }

    fn preview(&self, service: &ServiceView) -> (Vec<Write>, Result<Ensured, ProviderError>) {
        self.foresee(service)
    }

    fn preview_deletion(&self, service: &ServiceView) -> (Vec<Write>, Result<Deleted, ProviderError>) {
        self.foresee_deletion(service)
    }

    fn at_first_sight(&self, service: &ServiceView) -> Result<BTreeMap<String, Option<String>>, Waiting> {
        if let Some(mut wait) = self.not_synced(false) {
            // The user of a Service that another program serves does not wait for anything.
            wait.needs_user &= service.ingress.is_empty();
            self.metrics.waits(&service.key, Some(wait.reason));
            return Err(wait.into());
        }
        // A Service with an object was served before, so what it shows was written by the controller.
        let is_new = self.owned(service, &self.config()).lb.is_none();
        Ok(if is_new { choice::at_first_sight(service) } else { BTreeMap::new() })
    }

    fn announced(&self) -> AnnouncerPresence {
        *self.announced.borrow()
    }

    fn wakes(&self) -> BoxStream<'static, ServiceKey> {
        self.streams()
    }
}

#[cfg(test)]
#[path = "../provider_tests.rs"]
mod tests;
