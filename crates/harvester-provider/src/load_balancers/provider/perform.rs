//! Sends the requests of a plan when the pacer grants a turn, and stores what was sent.

use std::time::Instant;

use cloud_provider::provider::ProviderError;
use cloud_provider::view::{ServiceKey, ServiceView};
use harvester_api::keys::cloudprovider::NUDGED;
use harvester_api::keys::harvester::LB_FINALIZER;
use harvester_api::load_balancer::{Ipam, LoadBalancer};

use super::super::apply::{self, Created, Updated};
use super::super::booking;
use super::super::desired::{self, Change, cluster_name_warning};
use super::super::pacing::{self, Turn, Work};
use super::super::plan::Action;
use super::super::service_patch::Role;
use super::super::view::LbView;
use super::super::wait_reason::{Wait, WaitReason};
use super::{HarvesterLoadBalancers, failed};

/// The outcome of an action.
pub(super) enum Done {
    /// The user's Service changed.
    Seen,
    /// Only an object on Harvester changed.
    Unseen,
    /// The state differs from what the caches showed.
    DecideAnew,
    /// The request may not be sent yet.
    NotYet(Wait),
}

/// How far the requests of one plan have come.
pub(super) enum Pass {
    /// All of them are done.
    Complete,
    /// The state differs from what the caches showed.
    DecideAnew,
    /// The next one may not be sent yet.
    NotYet(Wait),
}

/// Whether the object is still the same, apart from its resourceVersion.
pub(super) fn is_alike(judged: &LbView, now: &LbView) -> bool {
    *judged == LbView { resource_version: judged.resource_version.clone(), ..now.clone() }
}

/// Whether the Service is still the one that was decided on, apart from the resourceVersion and the conditions: the
/// controller writes the conditions itself and decides nothing by them.
fn is_same(decided: &ServiceView, live: &ServiceView) -> bool {
    let alike = || {
        let (resource_version, conditions) = (live.resource_version.clone(), live.conditions.clone());
        *live == ServiceView { resource_version, conditions, ..decided.clone() }
    };
    let version = &live.resource_version;
    decided.uid == live.uid && (!version.is_empty() && *version == decided.resource_version || alike())
}

impl HarvesterLoadBalancers {
    /// Counts a leaked address. Called only after the DELETE was accepted (decision 7).
    pub(super) fn count_leak(&self, name: &str) {
        self.metrics.possible_leaks.inc();
        tracing::warn!(
            lb = name,
            "the controller deleted the load balancer although Harvester had not finished booking its address after \
            {} s, or does not release it without spec.ipam; the address may stay booked, see status.allocated of the \
            IPPools on Harvester",
            booking::BOOKING.as_secs()
        );
    }

    /// Sends the requests of the plan in their order. `changed` is set as soon as the user's Service has changed.
    pub(super) async fn perform_all(
        &self,
        service: &ServiceView,
        name: &str,
        actions: Vec<Action>,
        changed: &mut bool,
    ) -> Result<Pass, ProviderError> {
        let wanted: Vec<_> = actions.iter().filter_map(Action::takes_turn_for).map(str::to_owned).collect();
        self.pacer.wants_only(&service.key, &wanted);
        self.forget_what_is_over(service, &actions);
        let mut asked = 0;
        let mut pass = Ok(Pass::Complete);
        for action in actions {
            asked += usize::from(action.takes_turn_for().is_some());
            pass = match self.perform(service, name, action).await {
                Ok(Done::Seen) => {
                    *changed = true;
                    continue;
                }
                Ok(Done::Unseen) => continue,
                Ok(Done::NotYet(wait)) => Ok(Pass::NotYet(wait)),
                Ok(Done::DecideAnew) => Ok(Pass::DecideAnew),
                Err(error) => Err(error),
            };
            break;
        }
        // The pass may have ended early; turns that are reserved for its other requests would stay unused.
        self.pacer.wants_only(&service.key, &wanted[..asked]);
        self.memory().passes.end(&service.key);
        pass
    }

    /// Sends one request of the plan.
    async fn perform(&self, service: &ServiceView, name: &str, action: Action) -> Result<Done, ProviderError> {
        if let Some(done) = self.within_reason(service, name, &action).await? {
            return Ok(done);
        }
        match action {
            Action::Create(object) => {
                let name = object.metadata.name.clone().unwrap_or_default();
                self.create_in_turn(service, &name, object).await
            }
            Action::Update { uid, changes } => self.change(name, &uid, &changes).await,
            Action::Rename { name, uid, changes } => self.change(&name, &uid, &changes).await,
            Action::Readmit { uid } => self.update(name, &uid, &[], true).await,
            Action::Delete { name, uid, leaks } => {
                let name = name.as_str();
                if let Some(wait) = self.turn_to_delete(&service.key, name) {
                    return Ok(Done::NotYet(wait));
                }
                if let Some(wait) = self.not_fresh(&service.key) {
                    self.pacer.failed(name);
                    return Ok(Done::NotYet(wait));
                }
                // For seconds two processes may both act as leader, and a watch may lag behind. An object that was
                // unused when the plan was made may serve the Service now.
                if !self.is_as_decided(service).await.inspect_err(|_| self.pacer.failed(name))? {
                    self.pacer.failed(name);
                    return Ok(Done::DecideAnew);
                }
                // The current object decides, whatever the cache shows.
                let judged = self.objects.get(name);
                match self.requests.read(name).await.inspect_err(|_| self.pacer.failed(name)).map_err(failed)? {
                    None => {
                        self.objects.forget(name);
                        self.pacer.failed(name);
                        return Ok(Done::Unseen);
                    }
                    Some(now) if !judged.is_some_and(|judged| is_alike(&judged, &now)) => {
                        self.objects.wrote(now);
                        self.pacer.failed(name);
                        return Ok(Done::DecideAnew);
                    }
                    Some(_) => {}
                }
                let answer = self.send_delete(name, &uid).await?;
                self.memory().forget_request(name);
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
                    self.memory().served(&service.key);
                }
                self.patched.patched(service, patch, version);
                Ok(Done::Seen)
            }
        }
    }

    /// Reads the Service and returns whether it is still as decided on.
    pub(super) async fn is_as_decided(&self, service: &ServiceView) -> Result<bool, ProviderError> {
        let live = self.requests.read_service(&service.key).await.map_err(failed)?;
        // The controller's own recent patch, perhaps of this pass, is no change.
        let decided = self.patched.see(service);
        Ok(live.is_some_and(|live| is_same(&decided, &live)))
    }

    pub(super) async fn create_in_turn(
        &self,
        service: &ServiceView,
        name: &str,
        mut object: Box<LoadBalancer>,
    ) -> Result<Done, ProviderError> {
        if object.spec.ipam.as_deref() != Some(Ipam::Pool.as_str()) {
            return self.create(name, &object).await;
        }
        let again = self.memory().is_backlog(&service.key);
        let work = if again { Work::CreateAgain } else { Work::CreateNew };
        if let Some(wait) = self.turn(&service.key, name, work) {
            return Ok(Done::NotYet(wait));
        }
        if self.pacer.creates(name) {
            desired::preset_finalizer(&mut object);
        }
        self.create(name, &object).await.inspect_err(|_| self.pacer.failed(name))
    }

    /// When the object was created whose address is published now: the serving one, or that of a move.
    pub(super) fn created(&self, service: &ServiceView, name: &str) -> Option<Instant> {
        let moving = Self::name_of_move(service, &self.config());
        let mut memory = self.memory();
        let next = moving.and_then(|name| memory.take_created(&name));
        next.or_else(|| memory.take_created(name))
    }

    /// Requests a turn (decision 6). `None`: the request may be sent now.
    pub(super) fn turn(&self, service: &ServiceKey, name: &str, work: Work) -> Option<Wait> {
        let turn = self.pacer.ask(name, service, work);
        self.metrics.window.set(i64::try_from(self.pacer.window()).unwrap_or(i64::MAX));
        let Turn::NotYet { ahead } = turn else { return None };
        let message = format!(
            "load balancer {}/{name} waits for its turn on Harvester, {ahead} others go before",
            self.given.namespace
        );
        Some(Wait { reason: WaitReason::Turn, message, needs_user: false, retry_after: None })
    }

    pub(super) fn turn_to_delete(&self, service: &ServiceKey, name: &str) -> Option<Wait> {
        let paced = self.objects.get(name).is_some_and(|lb| pacing::releases(&lb));
        if paced { self.turn(service, name, Work::Delete) } else { None }
    }

    pub(super) async fn send_delete(&self, name: &str, uid: &str) -> Result<apply::Deleted, ProviderError> {
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

    /// The wait state for an object whose deletion is blocked by a finalizer that the controller has preset (decision
    /// 8).
    pub(super) fn or_stuck(&self, name: &str, wait: Wait) -> Wait {
        match self.pacer.patience(name) {
            None => wait,
            Some(left) if !left.is_zero() => Wait { retry_after: Some(left), ..wait },
            Some(_) => {
                let message = format!(
                    "load balancer {}/{name} does not go: Harvester's load balancer controller does not take its \
                     finalizer off. See whether harvester-load-balancer runs in namespace harvester-system of \
                     Harvester; if it does, remove finalizer {LB_FINALIZER} from the object",
                    self.given.namespace
                );
                Wait { message, needs_user: true, ..wait }
            }
        }
    }

    pub(super) async fn create(&self, name: &str, object: &LoadBalancer) -> Result<Done, ProviderError> {
        if let Some(warning) = cluster_name_warning(&self.identity.name_or_flag()) {
            tracing::warn!(lb = name, "{warning}");
        }
        match self.requests.create(object).await.map_err(failed)? {
            Created::New(view) => {
                self.objects.created(*view);
                self.pacer.sent(name);
                self.memory().created(name, Instant::now());
                Ok(Done::Unseen)
            }
            // Created by a former leader, or by this controller before a restart that lost the answer: read the object
            // and continue.
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

    /// Changes an object, unless another writer keeps undoing this change.
    async fn change(&self, name: &str, uid: &str, changes: &[Change]) -> Result<Done, ProviderError> {
        match self.rests(name, changes) {
            Some(rests) => Ok(rests),
            None => self.update(name, uid, changes, false).await,
        }
    }

    pub(super) async fn update(
        &self,
        name: &str,
        uid: &str,
        changes: &[Change],
        readmit: bool,
    ) -> Result<Done, ProviderError> {
        let resent = readmit || changes.iter().any(|change| matches!(change, Change::Annotation(NUDGED, _)));
        if resent {
            self.memory().sent(name, Instant::now());
        }
        match self.requests.update(name, uid, changes, readmit).await.map_err(failed)? {
            Updated::Written(view) => {
                self.objects.wrote(view);
                self.changed(name, changes).await;
                Ok(Done::Unseen)
            }
            Updated::Unchanged(view) => {
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
}

#[cfg(test)]
mod tests {
    use harvester_api::keys::kube_vip;

    use super::super::super::build::service;
    use super::*;

    #[test]
    fn a_service_is_the_one_decided_on_unless_something_in_it_has_changed() {
        let decided = service("default/web").done();
        let newer = || ServiceView { resource_version: "9001".into(), ..service("default/web").done() };
        let mut moved_back = newer();
        moved_back.annotations.insert(kube_vip::LOADBALANCER_IPS, "10.20.4.9");
        let another = ServiceView { uid: cloud_provider::view::Uid("another".into()), ..service("default/web").done() };
        for (name, live, expected) in [
            ("the same", service("default/web").done(), true),
            ("only told about", newer(), true),
            ("changed by another leader", moved_back, false),
            ("made anew", another, false),
        ] {
            assert_eq!(is_same(&decided, &live), expected, "{name}");
        }
    }
}
