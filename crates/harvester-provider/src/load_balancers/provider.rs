//! The trait: look at the caches, let `plan.rs` decide, let `apply.rs` send, and remember what was sent.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use cloud_provider::cache::ServiceCache;
use cloud_provider::provider::{Deleted, Ensured, LoadBalancers, ProviderError, Waiting};
use cloud_provider::service::wants_load_balancer;
use cloud_provider::view::{ServiceKey, ServiceView};
use futures::stream::{BoxStream, Stream, StreamExt, select_all};
use harvester_api::keys::cloudprovider::{CLUSTER_UID, NUDGED};
use harvester_api::keys::harvester::LB_FINALIZER;
use harvester_api::keys::kube_vip;
use harvester_api::load_balancer::{Ipam, LoadBalancer};
use harvester_api::names::ClusterName;
use runtime::reflect::Status;
use tokio::sync::watch;

use super::apply::{self, Created, RequestError, Requests, Updated};
use super::booking;
use super::choice::{self, Source};
use super::desired::{self, Change, cluster_name_warning};
use super::neighbours::Neighbours;
use super::network::wanted_network;
use super::own_writes::{LbCache, Objects, PatchedServices};
use super::owned::{Owned, Owners};
use super::pacing::{self, Pacer, Turn, Work};
use super::plan::{self, Action, DeletePlan, Plan, Verdict, World};
use super::service_patch::{Role, ServicePatch};
use super::sharing::{self, Occupant};
use super::view::LbView;
use super::wait_reason::WaitReason;
use super::wakes::{ObjectWakes, ServiceWakes, with_network};
use crate::config::{CHECK_CLOUD_CONFIG, LoadBalancerConfig};
use crate::identity::Identity;
use crate::identity::keeper::cluster_uid;
use crate::identity::proof::cluster_of;
use crate::metrics::Metrics;
use crate::nad_mapping::MappingSource;

/// How often one call decides anew because the world was not as the caches showed it.
const ROUNDS: usize = 3;

/// While a cache has not got its first list.
const CACHE_PAUSE: Duration = Duration::from_secs(1);

/// Load balancers on Harvester.
#[derive(Debug)]
pub struct HarvesterLoadBalancers {
    /// The name in it is what the command line says; see [`Self::config`].
    given: LoadBalancerConfig,
    identity: Identity,
    services: ServiceCache,
    neighbours: Arc<Neighbours>,
    lbs: LbCache,
    /// How the reflector of `lbs` is doing.
    watched: watch::Receiver<Status>,
    objects: Objects,
    owners: Owners,
    patched: PatchedServices,
    pacer: Arc<Pacer>,
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
    /// Services that were there before us and have no address yet.
    backlog: HashSet<ServiceKey>,
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
            && self.backlog.is_empty()
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
        (given, identity): (LoadBalancerConfig, Identity),
        services: ServiceCache,
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
            objects: Objects::new(lbs.clone()),
            owners: Owners::new(lbs.clone()),
            lbs,
            watched,
            patched: PatchedServices::default(),
            pacer: Arc::default(),
            mapping,
            requests,
            memory: Mutex::default(),
            unsettled: Arc::default(),
            metrics,
        }
    }

    /// The configuration under the name and UID of this cluster.
    fn config(&self) -> LoadBalancerConfig {
        LoadBalancerConfig {
            cluster_name: self.identity.name_or_flag(),
            cluster_uid: cluster_uid(&self.services),
            ..self.given.clone()
        }
    }

    /// The LoadBalancer objects of a Service.
    fn owned(&self, service: &ServiceView, config: &LoadBalancerConfig) -> Owned {
        self.owners.of(service, &self.objects, config, Self::name_of_move(service, config))
    }

    /// Name of the object that a move to the named pool makes.
    fn name_of_move(service: &ServiceView, config: &LoadBalancerConfig) -> Option<String> {
        let source = choice::source(service).ok()?;
        Some(plan::name_in_pool(config, service, source.pool()?))
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
                        self.given.namespace, self.given.server
                    ),
                    true,
                ),
            }
        } else if self.identity.name().is_none() {
            ("the name of this cluster on Harvester is not known yet".to_owned(), false)
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

    /// Services that may show an address which this one shows.
    fn beside(&self, service: &ServiceView) -> Vec<Arc<ServiceView>> {
        let services = self.neighbours.beside(service, self.patched.keys());
        services.into_iter().map(|service| Arc::new(self.patched.see(&service))).collect()
    }

    /// Another Service that has the static address which this one asks for.
    fn user_of_static(&self, service: &ServiceView) -> Option<ServiceKey> {
        let Ok(Source::Static(address)) = choice::source(service) else { return None };
        let mut there = service.clone();
        there.annotations.insert(kube_vip::LOADBALANCER_IPS.to_owned(), address.to_string());
        there.ingress = Vec::new();
        sharing::other_user(&there, &self.beside(&there))
    }

    /// The limit, if one more load balancer would exceed it. Those that the watch does not show yet count too.
    fn quota_reached(&self, config: &LoadBalancerConfig) -> Option<usize> {
        let limit = config.max_load_balancers?;
        let ours = |lb: &Arc<LbView>| {
            cluster_of(lb).as_ref() == Some(&config.cluster_name)
                && config.cluster_uid.as_deref().is_none_or(|uid| ["", uid].contains(&lb.annotation(CLUSTER_UID)))
        };
        let shown = self.lbs.all().iter().filter(|lb| ours(lb)).count();
        let unseen = self.memory().created.keys().filter(|name| self.lbs.get(name).is_none()).count();
        (shown + unseen >= limit).then_some(limit)
    }

    fn sharers(&self, primary: &ServiceKey) -> Vec<Arc<ServiceView>> {
        let sharers = sharing::sharers(primary, self.neighbours.naming(primary));
        sharers.into_iter().map(|service| Arc::new(self.patched.see(&service))).collect()
    }

    /// Observes and decides. A secondary that is about to be patched holds its ports from here on.
    fn decide(&self, service: &ServiceView, config: &LoadBalancerConfig, owned: &Owned) -> Plan {
        let (name, lb) = (owned.name.as_str(), &owned.lb);
        let primary = sharing::primary_of(service, |key| self.service(key));
        let shared = primary.as_ref().ok().and_then(Clone::clone);
        let primary_lb = shared.as_ref().and_then(|primary| self.owned(primary, config).lb);
        let sharers = self.sharers(&service.key);
        let mapping = self.mapping.get();
        let quota_reached = if lb.is_none() { self.quota_reached(config) } else { None };

        let mut memory = self.memory();
        let occupants = match &shared {
            Some(primary) => {
                let claims = memory.claims.get(&primary.key).cloned().unwrap_or_default();
                plan::occupants(primary, &self.sharers(&primary.key), claims)
            }
            None => plan::occupants(service, &sharers, Vec::new()),
        };
        let idle = match lb {
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
            config,
            name,
            lb: lb.as_deref(),
            others: &owned.others,
            address_user: self.user_of_static(service),
            quota_reached,
            mapping: mapping.as_deref(),
            primary,
            primary_lb: primary_lb.as_deref(),
            sharers: &sharers,
            taken: lb.is_none() && sharing::is_taken(service, &self.beside(service)),
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
    fn forget(&self, service: &ServiceView, name: &str) {
        self.owners.forget(service);
        let service = &service.key;
        self.objects.forget(name);
        self.patched.forget(service);
        self.pacer.forget(name);
        self.metrics.waits(service, None);
        let mut memory = self.memory();
        memory.backlog.remove(service);
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
            Action::Create(object) => {
                let name = object.metadata.name.clone().unwrap_or_default();
                self.create_in_turn(service, &name, object).await
            }
            Action::Update { uid, changes } => self.update(name, &uid, &changes, false).await,
            Action::Readmit { uid } => self.update(name, &uid, &[], true).await,
            Action::Delete { name, uid, leaks } => {
                let name = name.as_str();
                if let Some(waiting) = self.turn_to_delete(&service.key, name) {
                    return Ok(Done::NotYet(waiting));
                }
                let answer = self.send_delete(name, &uid).await?;
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
                    && let Some(created) = self.created(service, name)
                {
                    self.metrics.allocated(created.elapsed());
                }
                if !patch.address.is_empty() {
                    self.memory().backlog.remove(&service.key);
                }
                self.patched.patched(service, patch, version);
                Ok(Done::Seen)
            }
        }
    }

    async fn create_in_turn(
        &self,
        service: &ServiceView,
        name: &str,
        mut object: Box<LoadBalancer>,
    ) -> Result<Done, ProviderError> {
        if object.spec.ipam.as_deref() != Some(Ipam::Pool.as_str()) {
            return self.create(name, &object).await;
        }
        let again = self.memory().backlog.contains(&service.key);
        let work = if again { Work::CreateAgain } else { Work::CreateNew };
        if let Some(waiting) = self.turn(&service.key, name, work) {
            return Ok(Done::NotYet(waiting));
        }
        if self.pacer.creates(name) {
            desired::preset_finalizer(&mut object);
        }
        self.create(name, &object).await.inspect_err(|_| self.pacer.failed(name))
    }

    /// When we created the object whose address is published now: the one that serves, or that of a move.
    fn created(&self, service: &ServiceView, name: &str) -> Option<Instant> {
        let moving = Self::name_of_move(service, &self.config());
        let mut memory = self.memory();
        let next = moving.and_then(|name| memory.created.remove(&name));
        next.or(memory.created.remove(name))
    }

    /// Decision 6: `None` if the request may be sent now.
    fn turn(&self, service: &ServiceKey, name: &str, work: Work) -> Option<Waiting> {
        let turn = self.pacer.ask(name, service, work);
        self.metrics.window.set(i64::try_from(self.pacer.window()).unwrap_or(i64::MAX));
        let Turn::NotYet { ahead } = turn else { return None };
        let message = format!(
            "load balancer {}/{name} waits for its turn on Harvester, {ahead} others go before",
            self.given.namespace
        );
        Some(Waiting { reason: WaitReason::Turn.word(), message, needs_user: false, retry_after: None })
    }

    fn turn_to_delete(&self, service: &ServiceKey, name: &str) -> Option<Waiting> {
        let paced = self.objects.get(name).is_some_and(|lb| pacing::releases(&lb));
        if paced { self.turn(service, name, Work::Delete) } else { None }
    }

    async fn send_delete(&self, name: &str, uid: &str) -> Result<apply::Deleted, ProviderError> {
        self.pacer.sent(name);
        match self.requests.delete(name, uid).await {
            Ok(answer) => {
                match answer {
                    apply::Deleted::Gone => self.pacer.failed(name),
                    apply::Deleted::Terminating(_) | apply::Deleted::Accepted => self.pacer.sent(name),
                }
                Ok(answer)
            }
            Err(error) => {
                self.pacer.failed(name);
                Err(failed(error))
            }
        }
    }

    /// Decision 8: an object that does not go because of a finalizer which we have preset.
    fn or_stuck(&self, name: &str, waiting: Waiting) -> Waiting {
        match self.pacer.patience(name) {
            None => waiting,
            Some(left) if !left.is_zero() => Waiting { retry_after: Some(left), ..waiting },
            Some(_) => {
                let message = format!(
                    "load balancer {}/{name} does not go: Harvester's load balancer controller does not take its finalizer off. See \
                     whether harvester-load-balancer runs in namespace harvester-system of Harvester; if it does, remove finalizer \
                     {LB_FINALIZER} from the object",
                    self.given.namespace
                );
                tracing::warn!(
                    lb = name,
                    "the host's finalizer is not preset on new load balancers until it is learnt anew"
                );
                Waiting { message, needs_user: true, ..waiting }
            }
        }
    }

    async fn create(&self, name: &str, object: &LoadBalancer) -> Result<Done, ProviderError> {
        if let Some(warning) = cluster_name_warning(&self.identity.name_or_flag()) {
            tracing::warn!(lb = name, "{warning}");
        }
        match self.requests.create(object).await.map_err(failed)? {
            Created::New(view) => {
                self.objects.created(*view);
                self.pacer.sent(name);
                let now = Instant::now();
                let mut memory = self.memory();
                memory.created.insert(name.to_owned(), now);
                memory.sent.insert(name.to_owned(), now);
                Ok(Done::Unseen)
            }
            // Made by a former leader, or by us in a life that ended between request and answer: look at it and go on.
            Created::AlreadyExists => {
                self.pacer.failed(name);
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
        let plan = plan::delete(service, &self.config(), lb.as_deref(), &self.sharers(&service.key), age);
        self.memory().hold(name, if let DeletePlan::Waiting(_, reason) = &plan { Some(*reason) } else { None });
        if !matches!(plan, DeletePlan::Send { .. }) {
            self.pacer.not_wanted(name);
        }
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
                if let Some(waiting) = self.turn_to_delete(&service.key, name) {
                    self.metrics.waits(&service.key, Some(WaitReason::Turn));
                    return Ok(Some(Deleted::Waiting(waiting)));
                }
                let answer = self.send_delete(name, &uid).await?;
                self.memory().deleted.insert(name.to_owned());
                if leaks && !matches!(answer, apply::Deleted::Gone) {
                    self.count_leak(name);
                }
                match answer {
                    apply::Deleted::Gone => return Ok(Some(Deleted::Gone { existed: true })),
                    apply::Deleted::Terminating(view) => self.objects.wrote(*view),
                    apply::Deleted::Accepted => {}
                }
                let message = format!("load balancer {}/{name} is being deleted on Harvester", self.given.namespace);
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
                Ok(Some(Deleted::Waiting(self.or_stuck(name, waiting))))
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

/// The cluster's name became known or changed.
fn changes(name: watch::Receiver<Option<ClusterName>>) -> impl Stream<Item = ()> {
    futures::stream::unfold(name, |mut name| async {
        name.changed().await.ok()?;
        Some(((), name))
    })
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
    /// It is not our turn.
    NotYet(Waiting),
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
        | RequestError::Service { source, .. }
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

    fn at_first_sight(&self, service: &ServiceView) -> BTreeMap<String, String> {
        // Whoever has an object was served before: what the Service shows is our own output.
        let known = self.lbs.is_synced() && self.owned(service, &self.config()).lb.is_none();
        if known { choice::at_first_sight(service) } else { BTreeMap::new() }
    }

    fn wakes(&self) -> BoxStream<'static, ServiceKey> {
        // Called when the first list is there: who is in it has waited already, and who comes later goes first (decision 6).
        let waits = |service: &&Arc<ServiceView>| wants_load_balancer(service) && service.ingress.is_empty();
        self.memory().backlog = self.services.all().iter().filter(waits).map(|service| service.key.clone()).collect();

        let (services, lbs, given, identity) =
            (self.services.clone(), self.lbs.clone(), self.given.clone(), self.identity.clone());
        let mut objects = ObjectWakes::default();
        let pacer = Arc::clone(&self.pacer);
        let by_object = self.lbs.subscribe().filter_map(move |name| {
            let lb = lbs.get(&name);
            pacer.seen(&name, lb.as_deref());
            let config = LoadBalancerConfig {
                cluster_name: identity.name_or_flag(),
                cluster_uid: cluster_uid(&services),
                ..given.clone()
            };
            let owner = objects.touched(&name, lb.as_deref(), &config, || services.all());
            std::future::ready(owner)
        });

        let (services, neighbours) = (self.services.clone(), Arc::clone(&self.neighbours));
        let mut dependents = ServiceWakes::default();
        let by_service = self.services.subscribe().flat_map(move |key| {
            let woken = dependents.touched(&key, services.get(&key).as_deref(), |primary| neighbours.naming(primary));
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
        let by_turn = self.pacer.wakes();
        let services = self.services.clone();
        let by_identity = changes(self.identity.subscribe()).flat_map(move |()| {
            let ours = services.all().into_iter().filter(|service| wants_load_balancer(service));
            futures::stream::iter(ours.map(|service| service.key.clone()).collect::<Vec<_>>())
        });
        select_all([
            by_identity.boxed(),
            by_object.boxed(),
            by_service.boxed(),
            by_mapping.boxed(),
            by_recovery.boxed(),
            by_turn.boxed(),
        ])
        .boxed()
    }
}

impl HarvesterLoadBalancers {
    async fn try_ensure(&self, service: &ServiceView) -> Result<Ensured, ProviderError> {
        if let Some(mut waiting) = self.not_synced(!wanted_network(service).is_empty()) {
            // Who has an address has nothing to wait for: a restart while Harvester is away is none of its user's business.
            waiting.needs_user &= !service.annotations.contains_key(kube_vip::LOADBALANCER_IPS);
            self.metrics.waits(&service.key, Some(WaitReason::Cache));
            return Ok(Ensured::Waiting(waiting));
        }
        let config = self.config();
        let mut name = String::new();
        let mut changed = false;
        'rounds: for _ in 0..ROUNDS {
            let current = self.patched.see(service);
            let owned = self.owned(&current, &config);
            name.clone_from(&owned.name);
            let Plan { actions, verdict } = self.decide(&current, &config, &owned);
            let mut outcome = Ok(());
            let mut decide_anew = false;
            let mut not_yet = None;
            if !actions.iter().any(|action| matches!(action, Action::Create(_) | Action::Delete { .. })) {
                self.pacer.not_wanted(&name);
            }
            for action in actions {
                match self.perform(&current, &name, action).await {
                    Ok(Done::Seen) => changed = true,
                    Ok(Done::Unseen) => {}
                    Ok(Done::NotYet(waiting)) => {
                        not_yet = Some(Verdict::Waiting(waiting, WaitReason::Turn));
                        break;
                    }
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
            let verdict = not_yet.unwrap_or(verdict);
            let reason = if let Verdict::Waiting(_, reason) = &verdict { Some(*reason) } else { None };
            self.metrics.waits(&service.key, reason);
            return match verdict {
                Verdict::Ready => Ok(Ensured::Ready { changed }),
                Verdict::Waiting(waiting, _) => Ok(Ensured::Waiting(waiting)),
                Verdict::Refused(refusal) => Err(refused(&refusal)),
            };
        }
        let message = format!("load balancer {}/{name} changes faster than it can be read", self.given.namespace);
        Ok(Ensured::Waiting(soon(message)))
    }

    async fn try_delete(&self, service: &ServiceView) -> Result<Deleted, ProviderError> {
        if let Some(waiting) = self.not_synced(false) {
            return Ok(Deleted::Waiting(waiting));
        }
        let config = self.config();
        for _ in 0..ROUNDS {
            let owned = self.owned(service, &config);
            // Nothing to be seen: absent is what was there last, whatever its name.
            let name = owned.lb.map_or_else(|| self.owners.last_name(service, &config), |lb| lb.name.clone());
            if let Some(deleted) = self.delete_once(service, &name).await? {
                if let Deleted::Gone { .. } = deleted {
                    let left = self.owned(service, &config);
                    if left.lb.is_some_and(|lb| lb.name != name) {
                        continue;
                    }
                    if let Some(waiting) = self.withdraw_address(service).await? {
                        return Ok(Deleted::Waiting(waiting));
                    }
                    self.forget(service, &name);
                }
                return Ok(deleted);
            }
        }
        let message = format!("load balancers of service {} change faster than they can be read", service.key);
        Ok(Deleted::Waiting(soon(message)))
    }
}

#[cfg(test)]
#[path = "provider_tests.rs"]
mod tests;
