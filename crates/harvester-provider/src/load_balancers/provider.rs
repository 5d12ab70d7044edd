//! The trait: look at the caches, let `plan.rs` decide, let `apply.rs` send, and remember what was sent.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use cloud_provider::cache::ServiceCache;
use cloud_provider::provider::{Deleted, Ensured, LoadBalancers, ProviderError, Waiting};
use cloud_provider::service::wants_load_balancer;
use cloud_provider::view::{ServiceKey, ServiceView};
use futures::stream::{BoxStream, Stream, StreamExt, select_all};
use harvester_api::keys::cloudprovider::NUDGED;
use runtime::reflect::Status;
use tokio::sync::watch;

use super::apply::{self, Created, RequestError, Requests, Updated};
use super::booking;
use super::desired::{Change, cluster_name_warning};
use super::network::wanted_network;
use super::own_writes::{LbCache, Objects, PatchedServices};
use super::plan::{self, Action, DeletePlan, Plan, Verdict, World};
use super::service_patch::{Role, ServicePatch};
use super::sharing::{self, Occupant};
use super::view::LbView;
use super::wait_reason::WaitReason;
use super::wakes::{ObjectWakes, ServiceWakes, object_name, with_network};
use crate::config::{CHECK_CLOUD_CONFIG, LoadBalancerConfig};
use crate::metrics::Metrics;
use crate::nad_mapping::MappingSource;

/// How often one call decides anew because the world was not as the caches showed it.
const ROUNDS: usize = 3;

/// While a cache has not got its first list.
const CACHE_PAUSE: Duration = Duration::from_secs(1);

/// Load balancers on Harvester.
#[derive(Debug)]
pub struct HarvesterLoadBalancers {
    config: LoadBalancerConfig,
    services: ServiceCache,
    lbs: LbCache,
    /// How the reflector of `lbs` is doing.
    watched: watch::Receiver<Status>,
    objects: Objects,
    patched: PatchedServices,
    mapping: MappingSource,
    requests: Requests,
    memory: Mutex<Memory>,
    /// Services whose last call did not end well: an outage may have been the reason.
    unsettled: Arc<Mutex<BTreeSet<ServiceKey>>>,
    metrics: Arc<Metrics>,
}

/// What is not worth losing while the process lives, and no harm if it is lost.
#[derive(Debug, Default)]
struct Memory {
    /// Our POSTs without a published address, for the metrics.
    created: HashMap<String, Instant>,
    /// When an object that waits for an address was last sent, or first seen waiting.
    sent: HashMap<String, Instant>,
    /// When a deletion was first held back because the host is still booking.
    held: HashMap<String, Instant>,
    /// Objects that a deletion found.
    deleted: HashSet<String>,
    /// By primary: secondaries whose patch is on its way, so that two applicants cannot take one port (W-20).
    claims: HashMap<ServiceKey, Vec<Occupant>>,
}

#[cfg(test)]
impl Memory {
    fn is_empty(&self) -> bool {
        self.created.is_empty()
            && self.sent.is_empty()
            && self.held.is_empty()
            && self.deleted.is_empty()
            && self.claims.is_empty()
    }
}

impl Memory {
    fn age(&self, name: &str, lb: Option<&LbView>, now: i64) -> Duration {
        let held = self.held.get(name).map(Instant::elapsed).unwrap_or_default();
        lb.map(|lb| booking::age(lb, now, held)).unwrap_or_default()
    }

    /// Remembers since when a deletion is held back, as long as it is.
    fn hold(&mut self, name: &str, reason: Option<WaitReason>) {
        if reason == Some(WaitReason::Booking) {
            self.held.entry(name.to_owned()).or_insert_with(Instant::now);
        } else {
            self.held.remove(name);
        }
    }
}

fn unix_seconds() -> i64 {
    k8s_openapi::jiff::Timestamp::now().as_second()
}

impl HarvesterLoadBalancers {
    /// Nothing is sent or watched before the first call.
    pub fn new(
        config: LoadBalancerConfig,
        services: ServiceCache,
        (lbs, watched): (LbCache, watch::Receiver<Status>),
        mapping: MappingSource,
        requests: Requests,
        metrics: Arc<Metrics>,
    ) -> Self {
        Self {
            config,
            services,
            objects: Objects::new(lbs.clone()),
            lbs,
            watched,
            patched: PatchedServices::default(),
            mapping,
            requests,
            memory: Mutex::default(),
            unsettled: Arc::default(),
            metrics,
        }
    }

    fn note(&self, service: &ServiceKey, settled: bool) {
        let mut unsettled = self.unsettled.lock().unwrap_or_else(PoisonError::into_inner);
        if settled {
            unsettled.remove(service);
        } else {
            unsettled.insert(service.clone());
        }
    }

    fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A decision on a cache without content would create what exists and delete what is used (W-18).
    fn not_synced(&self, with_mapping: bool) -> Option<Waiting> {
        let not_yet = |what: &str| format!("the first list of {what} has not arrived yet");
        let (message, needs_user) = if !self.services.is_synced() {
            (not_yet("Services"), false)
        } else if !self.lbs.is_synced() {
            match &self.watched.borrow().error {
                None => (not_yet("LoadBalancers on Harvester"), false),
                // Wrong cloud-config, missing rights, Harvester away: nobody else tells the user.
                Some((_, error)) => (
                    format!(
                        "cannot list LoadBalancers in namespace {} of Harvester at {}: {error}; {CHECK_CLOUD_CONFIG}",
                        self.config.namespace, self.config.server
                    ),
                    true,
                ),
            }
        } else if with_mapping && !self.mapping.is_known() {
            (not_yet("the NAD mapping"), false)
        } else {
            return None;
        };
        Some(Waiting { reason: WaitReason::Cache.word(), message, needs_user, retry_after: Some(CACHE_PAUSE) })
    }

    fn service(&self, key: &ServiceKey) -> Option<Arc<ServiceView>> {
        self.services.get(key).map(|service| Arc::new(self.patched.see(&service)))
    }

    fn all_services(&self) -> Vec<Arc<ServiceView>> {
        self.services.all().into_iter().map(|service| Arc::new(self.patched.see(&service))).collect()
    }

    fn sharers(&self, primary: &ServiceKey) -> Vec<Arc<ServiceView>> {
        let sharers = sharing::sharers(primary, self.services.all());
        sharers.into_iter().map(|service| Arc::new(self.patched.see(&service))).collect()
    }

    /// Observes and decides. A secondary that is about to be patched holds its ports from here on.
    fn decide(&self, service: &ServiceView, name: &str) -> Plan {
        let lb = self.objects.get(name);
        let primary = sharing::primary_of(service, |key| self.service(key));
        let shared = primary.as_ref().ok().and_then(Clone::clone);
        let primary_lb = shared.as_ref().and_then(|primary| self.objects.get(&object_name(&self.config, primary)));
        let sharers = self.sharers(&service.key);
        let mapping = self.mapping.get();

        let mut memory = self.memory();
        let occupants = match &shared {
            Some(primary) => {
                let claims = memory.claims.get(&primary.key).cloned().unwrap_or_default();
                plan::occupants(primary, &self.sharers(&primary.key), claims)
            }
            None => plan::occupants(service, &sharers, Vec::new()),
        };
        let idle = match &lb {
            Some(lb) if lb.usable_address.is_none() && !lb.terminating => {
                Some(memory.sent.entry(name.to_owned()).or_insert_with(Instant::now).elapsed())
            }
            _ => {
                memory.sent.remove(name);
                None
            }
        };
        let now = unix_seconds();
        let age = memory.age(name, lb.as_deref(), now);
        let world = World {
            config: &self.config,
            name,
            lb: lb.as_deref(),
            mapping: mapping.as_deref(),
            primary,
            primary_lb: primary_lb.as_deref(),
            sharers: &sharers,
            taken: lb.is_none() && sharing::is_taken(service, &self.all_services()),
            occupants: &occupants,
            now,
            idle,
            age,
        };
        let plan = plan::ensure(service, &world);
        memory.hold(name, if let Verdict::Waiting(_, reason) = &plan.verdict { Some(*reason) } else { None });
        if let Some(primary) = &shared
            && plan.actions.iter().any(|action| matches!(action, Action::Patch(_)))
        {
            memory.claims.entry(primary.key.clone()).or_default().push(Occupant::from(service));
        }
        plan
    }

    fn release_claims(&self, service: &ServiceKey) {
        self.memory().claims.retain(|_, claims| {
            claims.retain(|claim| claim.key != *service);
            !claims.is_empty()
        });
    }

    /// Nothing of the Service is left on Harvester, and after this call nothing of it is left here.
    fn forget(&self, service: &ServiceKey, name: &str) {
        self.objects.forget(name);
        self.patched.forget(service);
        self.metrics.waits(service, None);
        let mut memory = self.memory();
        memory.created.remove(name);
        memory.sent.remove(name);
        memory.held.remove(name);
        memory.deleted.remove(name);
    }

    /// Decision 7: only after a DELETE that was accepted.
    fn count_leak(&self, name: &str) {
        self.metrics.possible_leaks.inc();
        tracing::warn!(
            lb = name,
            "deleted although Harvester had not finished booking after {} s: its pool address may stay booked, see \
             status.allocated of the IPPools on Harvester",
            booking::BOOKING.as_secs()
        );
    }

    /// Sends what was decided.
    async fn perform(&self, service: &ServiceView, name: &str, action: Action) -> Result<Done, ProviderError> {
        match action {
            Action::Create(object) => self.create(name, &object).await,
            Action::Update { uid, changes } => self.update(name, &uid, &changes, false).await,
            Action::Readmit { uid } => self.update(name, &uid, &[], true).await,
            Action::Delete { uid, leaks } => {
                let answer = self.requests.delete(name, &uid).await.map_err(failed)?;
                if leaks && !matches!(answer, apply::Deleted::Gone) {
                    self.count_leak(name);
                }
                match answer {
                    apply::Deleted::Terminating(view) => self.objects.wrote(*view),
                    apply::Deleted::Accepted => {}
                    apply::Deleted::Gone => self.objects.forget(name),
                }
                Ok(Done::Unseen)
            }
            Action::Patch(patch) => {
                let sent = self.requests.patch_service(&service.key, &service.uid, &patch).await;
                let version = sent.map_err(failed)?;
                if patch.role == Role::Primary
                    && !patch.address.is_empty()
                    && let Some(created) = self.memory().created.remove(name)
                {
                    self.metrics.allocated(created.elapsed());
                }
                self.patched.patched(service, patch, version);
                Ok(Done::Seen)
            }
        }
    }

    async fn create(
        &self,
        name: &str,
        object: &harvester_api::load_balancer::LoadBalancer,
    ) -> Result<Done, ProviderError> {
        if let Some(warning) = cluster_name_warning(&self.config.cluster_name) {
            tracing::warn!(lb = name, cluster_name = self.config.cluster_name.as_str(), "{warning}");
        }
        match self.requests.create(object).await.map_err(failed)? {
            Created::New(view) => {
                self.objects.created(*view);
                let now = Instant::now();
                let mut memory = self.memory();
                memory.created.insert(name.to_owned(), now);
                memory.sent.insert(name.to_owned(), now);
                Ok(Done::Unseen)
            }
            // Made by a former leader, or by us in a life that ended between request and answer: look at it and go on.
            Created::AlreadyExists => {
                match self.requests.read(name).await.map_err(failed)? {
                    Some(view) => self.objects.wrote(view),
                    None => self.objects.forget(name),
                }
                Ok(Done::DecideAnew)
            }
        }
    }

    async fn update(&self, name: &str, uid: &str, changes: &[Change], readmit: bool) -> Result<Done, ProviderError> {
        let resent = readmit || changes.iter().any(|change| matches!(change, Change::Annotation(NUDGED, _)));
        if resent {
            self.memory().sent.insert(name.to_owned(), Instant::now());
        }
        match self.requests.update(name, uid, changes, readmit).await.map_err(failed)? {
            Updated::Written(view) | Updated::Unchanged(view) => {
                self.objects.wrote(view);
                Ok(Done::Unseen)
            }
            Updated::Different(view) => {
                match view {
                    Some(view) => self.objects.wrote(view),
                    None => self.objects.forget(name),
                }
                Ok(Done::DecideAnew)
            }
        }
    }

    async fn delete_once(&self, service: &ServiceView, name: &str) -> Result<Option<Deleted>, ProviderError> {
        let lb = self.objects.get(name);
        let age = self.memory().age(name, lb.as_deref(), unix_seconds());
        let plan = plan::delete(service, &self.config, lb.as_deref(), &self.sharers(&service.key), age);
        self.memory().hold(name, if let DeletePlan::Waiting(_, reason) = &plan { Some(*reason) } else { None });
        match plan {
            DeletePlan::Verify => match self.requests.read(name).await.map_err(failed)? {
                None => {
                    let existed = self.memory().deleted.contains(name);
                    Ok(Some(Deleted::Gone { existed }))
                }
                Some(view) => {
                    self.objects.wrote(view);
                    Ok(None)
                }
            },
            DeletePlan::Send { uid, leaks } => {
                let answer = self.requests.delete(name, &uid).await.map_err(failed)?;
                self.memory().deleted.insert(name.to_owned());
                if leaks && !matches!(answer, apply::Deleted::Gone) {
                    self.count_leak(name);
                }
                match answer {
                    apply::Deleted::Gone => return Ok(Some(Deleted::Gone { existed: true })),
                    apply::Deleted::Terminating(view) => self.objects.wrote(*view),
                    apply::Deleted::Accepted => {}
                }
                let message = format!("load balancer {}/{name} is being deleted on Harvester", self.config.namespace);
                let reason = WaitReason::Terminating.word();
                let waiting = Waiting { reason, message, needs_user: false, retry_after: Some(Duration::from_mins(1)) };
                self.metrics.waits(&service.key, Some(WaitReason::Terminating));
                Ok(Some(Deleted::Waiting(waiting)))
            }
            DeletePlan::Waiting(waiting, reason) => {
                if reason == WaitReason::Terminating {
                    self.memory().deleted.insert(name.to_owned());
                }
                self.metrics.waits(&service.key, Some(reason));
                Ok(Some(Deleted::Waiting(waiting)))
            }
            DeletePlan::Refused(refusal) => Err(refused(&refusal)),
        }
    }
}

impl HarvesterLoadBalancers {
    /// A Service that stays and is no load balancer any more must not keep its address for a later life: it may be another one's by
    /// then (W-34). `None`: nothing to withdraw.
    async fn withdraw_address(&self, service: &ServiceView) -> Result<Option<Waiting>, ProviderError> {
        let stays = |now: &Arc<ServiceView>| now.uid == service.uid && !now.deleting && !wants_load_balancer(now);
        let Some(now) = self.service(&service.key).filter(stays) else { return Ok(None) };
        let patch = ServicePatch::forget_address(&now);
        if patch.is_empty() {
            return Ok(None);
        }
        match self.requests.patch_service(&now.key, &now.uid, &patch).await {
            Ok(version) => self.patched.patched(&now, patch, version),
            // Gone, or a successor of the same name.
            Err(RequestError::Patch { source, .. })
                if matches!(runtime::error::api_code(&source), Some(404 | 409 | 422)) =>
            {
                return Ok(None);
            }
            Err(error) => return Err(failed(error)),
        }
        // The finalizer goes with the version that has the change, which wakes the Service.
        let message = format!("the address of service {} is withdrawn", now.key);
        Ok(Some(soon(message)))
    }
}

/// Harvester answers again: Services that failed meanwhile need not wait for their back-off. A status that went bad and well between
/// two looks counts too.
fn recoveries(watched: watch::Receiver<Status>) -> impl Stream<Item = ()> {
    futures::stream::unfold(watched, |mut watched| async {
        loop {
            watched.changed().await.ok()?;
            let well = {
                let status = watched.borrow_and_update();
                status.synced && status.error.is_none()
            };
            if well {
                return Some(((), watched));
            }
        }
    })
}

fn soon(message: String) -> Waiting {
    Waiting { reason: WaitReason::Cache.word(), message, needs_user: false, retry_after: Some(CACHE_PAUSE) }
}

/// How an action ended.
enum Done {
    /// The user's object changed.
    Seen,
    /// Only the host's did.
    Unseen,
    /// The world is not what the caches showed.
    DecideAnew,
}

/// What the Service itself should show of a failed request: what stays until somebody mends it. The rest passes.
fn condition_reason(error: &RequestError) -> &'static str {
    let (RequestError::Write { source, .. } | RequestError::Read { source, .. } | RequestError::Delete { source, .. }) =
        error
    else {
        return "";
    };
    match source {
        kube::Error::Api(status) if status.message.contains("denied the request") => WaitReason::Refused.word(),
        kube::Error::Api(status) if matches!(status.code, 401 | 403) => "HarvesterForbidden",
        kube::Error::Api(status) if status.code == 422 => WaitReason::Refused.word(),
        _ => "",
    }
}

fn failed(error: RequestError) -> ProviderError {
    let message = error.to_string();
    let reason = condition_reason(&error);
    let source = match error {
        RequestError::Write { source, .. }
        | RequestError::Read { source, .. }
        | RequestError::Delete { source, .. }
        | RequestError::Patch { source, .. } => source.into(),
        RequestError::Malformed { source, .. } => source.into(),
    };
    ProviderError { message, source: Some(source), permanent: false, reason }
}

fn refused(refusal: &plan::Refusal) -> ProviderError {
    ProviderError::new(refusal.to_string()).permanent().because(refusal.word())
}

#[async_trait]
impl LoadBalancers for HarvesterLoadBalancers {
    async fn ensure(&self, service: &ServiceView) -> Result<Ensured, ProviderError> {
        let result = self.try_ensure(service).await;
        self.note(&service.key, matches!(result, Ok(Ensured::Ready { .. })));
        result
    }

    async fn delete(&self, service: &ServiceView) -> Result<Deleted, ProviderError> {
        let result = self.try_delete(service).await;
        self.note(&service.key, matches!(result, Ok(Deleted::Gone { .. })));
        result
    }

    fn wakes(&self) -> BoxStream<'static, ServiceKey> {
        let (services, lbs, config) = (self.services.clone(), self.lbs.clone(), self.config.clone());
        let mut objects = ObjectWakes::default();
        let by_object = self.lbs.subscribe().filter_map(move |name| {
            let owner = objects.touched(&name, lbs.get(&name).as_deref(), &config, &services.all());
            std::future::ready(owner)
        });

        let services = self.services.clone();
        let mut dependents = ServiceWakes::default();
        let by_service = self.services.subscribe().flat_map(move |key| {
            let woken = dependents.touched(&key, services.get(&key).as_deref(), &services.all());
            futures::stream::iter(woken)
        });

        let services = self.services.clone();
        let by_mapping =
            self.mapping.subscribe().flat_map(move |_: String| futures::stream::iter(with_network(&services.all())));

        let unsettled = Arc::clone(&self.unsettled);
        let by_recovery = recoveries(self.watched.clone()).flat_map(move |()| {
            // Who still fails comes back by itself.
            let woken = std::mem::take(&mut *unsettled.lock().unwrap_or_else(PoisonError::into_inner));
            futures::stream::iter(woken)
        });
        select_all([by_object.boxed(), by_service.boxed(), by_mapping.boxed(), by_recovery.boxed()]).boxed()
    }
}

impl HarvesterLoadBalancers {
    async fn try_ensure(&self, service: &ServiceView) -> Result<Ensured, ProviderError> {
        if let Some(waiting) = self.not_synced(!wanted_network(service).is_empty()) {
            self.metrics.waits(&service.key, Some(WaitReason::Cache));
            return Ok(Ensured::Waiting(waiting));
        }
        let name = object_name(&self.config, service);
        let mut changed = false;
        'rounds: for _ in 0..ROUNDS {
            let current = self.patched.see(service);
            let Plan { actions, verdict } = self.decide(&current, &name);
            let mut outcome = Ok(());
            let mut decide_anew = false;
            for action in actions {
                match self.perform(&current, &name, action).await {
                    Ok(Done::Seen) => changed = true,
                    Ok(Done::Unseen) => {}
                    Ok(Done::DecideAnew) => {
                        decide_anew = true;
                        break;
                    }
                    Err(error) => {
                        outcome = Err(error);
                        break;
                    }
                }
            }
            self.release_claims(&service.key);
            outcome?;
            if decide_anew {
                continue 'rounds;
            }
            let reason = if let Verdict::Waiting(_, reason) = &verdict { Some(*reason) } else { None };
            self.metrics.waits(&service.key, reason);
            return match verdict {
                Verdict::Ready => Ok(Ensured::Ready { changed }),
                Verdict::Waiting(waiting, _) => Ok(Ensured::Waiting(waiting)),
                Verdict::Refused(refusal) => Err(refused(&refusal)),
            };
        }
        let message = format!("load balancer {}/{name} changes faster than it can be read", self.config.namespace);
        Ok(Ensured::Waiting(soon(message)))
    }

    async fn try_delete(&self, service: &ServiceView) -> Result<Deleted, ProviderError> {
        if let Some(waiting) = self.not_synced(false) {
            return Ok(Deleted::Waiting(waiting));
        }
        let name = object_name(&self.config, service);
        for _ in 0..ROUNDS {
            if let Some(deleted) = self.delete_once(service, &name).await? {
                if let Deleted::Gone { .. } = deleted {
                    if let Some(waiting) = self.withdraw_address(service).await? {
                        return Ok(Deleted::Waiting(waiting));
                    }
                    self.forget(&service.key, &name);
                }
                return Ok(deleted);
            }
        }
        let message = format!("load balancer {}/{name} changes faster than it can be read", self.config.namespace);
        Ok(Deleted::Waiting(soon(message)))
    }
}

#[cfg(test)]
#[path = "provider_tests.rs"]
mod tests;
