//! Handles a Service that is gone or no longer wants a load balancer. Its objects are deleted, and their absence is
//! verified. If that is impossible, the message names the way out (decision 12).

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cloud_provider::provider::{Deleted, ProviderError, Remark};
use cloud_provider::service::wants_load_balancer;
use cloud_provider::view::{ServiceKey, ServiceView};
use harvester_api::keys::cloudprovider::ABANDON;
use k8s_openapi::jiff::Timestamp;
use runtime::error::chain;

use super::super::apply::{self, RequestError};
use super::super::desired::Change;
use super::super::owned::Owned;
use super::super::plan::{self, DeletePlan, Leaving};
use super::super::service_patch::ServicePatch;
use super::super::view::LbView;
use super::super::wait_reason::{Wait, WaitReason};
use super::super::wakes::object_name;
use super::perform::Done;
use super::{HarvesterLoadBalancers, Now, ROUNDS, failed, refused, soon};
use crate::identity::proof::is_handed_over;

/// A deletion that takes longer than this is reported to the user.
const PATIENCE: Duration = Duration::from_mins(1);

/// Interval of the retries of a deletion that has failed for that long.
const TRY_AGAIN: Duration = Duration::from_secs(30);

/// How far a deletion has come: [`Deleted`], as decisions see it.
#[derive(Debug)]
pub(super) enum Deletion {
    /// Nothing is left in the cloud.
    Gone {
        /// This call or an earlier one found something to delete.
        existed: bool,
    },
    /// It is under way, or something else has to happen first.
    Waiting(Wait),
    /// An object is left that no longer belongs to this Service.
    Left(Remark),
}

impl From<Deletion> for Deleted {
    fn from(deletion: Deletion) -> Self {
        match deletion {
            Deletion::Gone { existed } => Self::Gone { existed },
            Deletion::Waiting(wait) => Self::Waiting(wait.into()),
            Deletion::Left(remark) => Self::Left(remark),
        }
    }
}

/// An heir whose own deletion waits until this guard is dropped.
struct Reserved<'a>(&'a HarvesterLoadBalancers, ServiceKey);

impl<'a> Reserved<'a> {
    fn new(provider: &'a HarvesterLoadBalancers, heir: &ServiceKey) -> Self {
        provider.memory().passes.begin_hand_over(heir);
        Self(provider, heir.clone())
    }
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        self.0.memory().passes.end_hand_over(&self.1);
    }
}

impl HarvesterLoadBalancers {
    /// Deletes the objects of the Service. If that takes long, the user is told what prevents it, and how to release
    /// the Service without it.
    pub(super) async fn delete_patiently(&self, service: &ServiceView) -> Result<Deletion, ProviderError> {
        if let Some(name) = self.abandoned(service) {
            return match self.is_being_listed() {
                Some(wait) => Ok(Deletion::Waiting(wait)),
                None => self.abandon(service, &name).await,
            };
        }
        // Asked once for both steps: if the lists arrived in between, the load balancer of a Service that vanished
        // would be deleted.
        let result = match self.not_synced(false) {
            Some(wait) => Ok(Deletion::Waiting(wait)),
            None => match self.leave_if_vanished(service).await? {
                Some(left) => return Ok(Deletion::Left(left)),
                None => match self.try_delete(service).await {
                    Ok(Deletion::Waiting(wait)) if wait.reason == WaitReason::Shared => {
                        Ok(self.leave_to_sharers(service).map_or(Deletion::Waiting(wait), Deletion::Left))
                    }
                    result => result,
                },
            },
        };
        let waits_for_harvester = match &result {
            Ok(Deletion::Waiting(wait)) => wait.reason.is_harvesters(),
            Err(error) => !error.permanent,
            Ok(Deletion::Gone { .. } | Deletion::Left(_)) => false,
        };
        if !waits_for_harvester {
            self.memory().not_kept(&service.key);
            return result;
        }
        let now = Instant::now();
        let since = self.memory().kept_since(&service.key, now);
        let late = now.saturating_duration_since(since) > PATIENCE;
        match result {
            Ok(Deletion::Waiting(wait)) if late => Ok(Deletion::Waiting(self.with_escape(service, &wait))),
            Err(error) if late => {
                let (reason, message) = (WaitReason::DeletionFails, chain(&error));
                let wait = Wait { reason, message, needs_user: true, retry_after: Some(TRY_AGAIN) };
                Ok(Deletion::Waiting(self.with_escape(service, &wait)))
            }
            other => other,
        }
    }

    /// Adds to the message how to release the Service, because a finalizer must not block forever (decision 12).
    fn with_escape(&self, service: &ServiceView, wait: &Wait) -> Wait {
        let name = self.owners.last_name(service, &self.config());
        let message = format!(
            "{}. If Harvester is not to come back, this lets the Service go and leaves the load balancer behind: \
             kubectl annotate service -n {} {} {ABANDON}={name}",
            wait.message, service.key.namespace, service.key.name
        );
        Wait { reason: wait.reason.with_escape(), message, needs_user: true, ..*wait }
    }

    /// The object that the user tells the controller to leave behind. It must be named exactly, and it is ignored while
    /// the Service wants a load balancer. Nobody can annotate a Service that is gone: then the next one of its name may
    /// say so. The name of the object has the UID of the one that is gone, so it cannot mean another object.
    fn abandoned(&self, service: &ServiceView) -> Option<String> {
        let config = self.config();
        let owned = self.owned(service, &config);
        let names = [owned.name, self.owners.last_name(service, &config), object_name(&config, service)];
        let next = self.services.get(&service.key).filter(|next| next.uid != service.uid);
        let told = next.map(|next| {
            let annotations = next.annotations.clone();
            ServiceView { annotations, deleting: true, ..service.clone() }
        });
        plan::abandoned(service, names.clone()).or_else(|| plan::abandoned(&told?, names))
    }

    /// The wait state while the first list of load balancers is under way. Only the list shows the object of a move,
    /// which is left behind together with the one that the user names. A Harvester that does not answer is not waited
    /// for.
    fn is_being_listed(&self) -> Option<Wait> {
        let under_way = !self.lbs.is_synced() && self.watched.borrow().error.is_none();
        if under_way { self.not_synced(false) } else { None }
    }

    async fn abandon(&self, service: &ServiceView, name: &str) -> Result<Deletion, ProviderError> {
        if let Some(wait) = self.withdraw_address(service).await? {
            return Ok(Deletion::Waiting(wait));
        }
        let owned = self.owned(service, &self.config());
        // The object of a move is left behind together with the one that serves.
        let more: BTreeSet<String> = owned.lb.iter().chain(&owned.others).map(|lb| lb.name.clone()).collect();
        for name in more.iter().map(String::as_str).filter(|more| *more != name).chain([name]) {
            self.note_orphan(service, name).await?;
        }
        let lb = format!("{}/{name}", self.given.namespace);
        self.forget(service, name);
        self.memory().not_kept(&service.key);
        let message = format!(
            "load balancer {lb} is left behind on Harvester, as annotation {ABANDON} asks; its address may stay booked"
        );
        Ok(Deletion::Left(Remark { reason: "AbandonedLoadBalancer", message, warning: true }))
    }

    async fn note_orphan(&self, service: &ServiceView, name: &str) -> Result<(), ProviderError> {
        let now = Timestamp::from_second(Now::read().unix).unwrap_or_default().to_string();
        let lb = format!("{}/{name}", self.given.namespace);
        let what = format!("{lb} of service {} ({}), abandoned ", service.key, service.uid);
        match self.requests.note_orphan(&what, &now).await {
            Ok(()) => Ok(()),
            // If the note cannot be written, the log has to suffice.
            Err(error) if error.is_final() => {
                tracing::warn!(
                    lb,
                    error = chain(&error),
                    "the controller cannot record the abandoned load balancer in the cluster; this line is its only \
                    record"
                );
                Ok(())
            }
            Err(error) => {
                Err(ProviderError::caused(format!("load balancer {lb} is abandoned and cannot be noted"), error))
            }
        }
    }

    /// Takes one step of the deletion. The caches have their first lists.
    async fn try_delete(&self, service: &ServiceView) -> Result<Deletion, ProviderError> {
        let config = self.config();
        for _ in 0..ROUNDS {
            let owned = self.owned(service, &config);
            // No object is visible: the last known one is verified as absent, whatever its name was.
            let is_unseen = owned.lb.is_none();
            let name = owned.lb.map_or_else(|| self.owners.last_name(service, &config), |lb| lb.name.clone());
            if let Some(deleted) = self.delete_once(service, &name).await? {
                if let Deletion::Gone { .. } | Deletion::Left(_) = deleted {
                    let left = self.owned(service, &config);
                    // Also after a hand-over: the object of a move may exist besides the one that the heir keeps.
                    if left.lb.is_some_and(|lb| lb.name != name) || !left.others.is_empty() {
                        self.forget_object(&name);
                        continue;
                    }
                    if let Some(wait) = self.withdraw_address(service).await? {
                        return Ok(Deletion::Waiting(wait));
                    }
                    let by_rule = self.objects.get(&object_name(&config, service));
                    let kept = by_rule.filter(|lb| is_handed_over(lb, service));
                    self.forget(service, &name);
                    // The heir must not create a new object while the watch still shows this one as the former
                    // Service's.
                    if let Some(lb) = kept {
                        self.objects.wrote(LbView::clone(&lb));
                    }
                }
                return Ok(deleted);
            }
            // Only the API server shows it, so the rule about a Service that vanished has not seen it yet.
            if is_unseen && let Some(left) = self.leave_if_vanished(service).await? {
                return Ok(Deletion::Left(left));
            }
        }
        let message = format!("load balancers of service {} change faster than they can be read", service.key);
        Ok(Deletion::Waiting(soon(message)))
    }

    pub(super) async fn delete_once(
        &self,
        service: &ServiceView,
        name: &str,
    ) -> Result<Option<Deletion>, ProviderError> {
        let plan = self.plan_deletion(service, name);
        let wanted = matches!(plan, DeletePlan::Send { .. }).then(|| name.to_owned());
        self.pacer.wants_only(&service.key, wanted.as_slice());
        self.delete_as_planned(service, name, plan).await
    }

    /// Plans what to do with one object of a Service that wants none.
    pub(super) fn plan_deletion(&self, service: &ServiceView, name: &str) -> DeletePlan {
        let lb = self.objects.get(name);
        let config = self.config();
        let shown = Owned { name: name.to_owned(), lb: lb.clone(), others: Vec::new() };
        let (sharers, users) = (self.sharers(service, &config), self.users(service, &shown, &config));
        let (inherits, claimed) = {
            let memory = self.memory();
            (memory.passes.is_heir(&service.key), memory.passes.is_claimed(&service.key))
        };
        let leaving = Leaving {
            config: &config,
            lb: lb.as_deref(),
            sharers: &sharers,
            users: &users,
            age: lb.as_deref().map(|lb| self.objects.age(lb)).unwrap_or_default(),
            inherits,
            claimed,
        };
        plan::delete(service, &leaving)
    }

    async fn delete_as_planned(
        &self,
        service: &ServiceView,
        name: &str,
        plan: DeletePlan,
    ) -> Result<Option<Deletion>, ProviderError> {
        if let DeletePlan::Verify | DeletePlan::Send { .. } = plan
            && let Some(wait) = self.not_fresh(&service.key)
        {
            return Ok(Some(Deletion::Waiting(wait)));
        }
        match plan {
            DeletePlan::HandedOver => Ok(Some(Deletion::Gone { existed: false })),
            DeletePlan::Soon(message) => Ok(Some(Deletion::Waiting(soon(message)))),
            DeletePlan::Verify => match self.requests.read(name).await.map_err(failed)? {
                None => {
                    let existed = self.memory().was_found_for_deletion(name);
                    Ok(Some(Deletion::Gone { existed }))
                }
                Some(view) => {
                    self.objects.wrote(view);
                    Ok(None)
                }
            },
            DeletePlan::Send { uid, leaks } => {
                if let Some(wait) = self.turn_to_delete(&service.key, name) {
                    self.metrics.waits(&service.key, Some(wait.reason));
                    return Ok(Some(Deletion::Waiting(wait)));
                }
                if let Some(wait) = self.is_wanted_after_all(service).await.inspect_err(|_| self.pacer.failed(name))? {
                    self.pacer.failed(name);
                    return Ok(Some(Deletion::Waiting(wait)));
                }
                // The plan is made again for the object as the API server has it now, independent of the cache.
                let now = self.requests.read(name).await.inspect_err(|_| self.pacer.failed(name)).map_err(failed)?;
                let Some(now) = now else {
                    self.objects.forget(name);
                    self.pacer.failed(name);
                    return Ok(Some(Deletion::Gone { existed: true }));
                };
                self.objects.wrote(now);
                if !matches!(self.plan_deletion(service, name), DeletePlan::Send { uid: now, .. } if now == uid) {
                    self.pacer.failed(name);
                    return Ok(None);
                }
                let answer = self.send_delete(name, &uid).await?;
                self.memory().found_for_deletion(name);
                if leaks && !matches!(answer, apply::Deleted::Gone) {
                    self.count_leak(name);
                }
                match answer {
                    apply::Deleted::Gone => return Ok(Some(Deletion::Gone { existed: true })),
                    apply::Deleted::Terminating(view) => self.objects.wrote(*view),
                    apply::Deleted::Accepted => {}
                }
                let message = format!("load balancer {}/{name} is being deleted on Harvester", self.given.namespace);
                let (reason, retry_after) = (WaitReason::Terminating, Some(Duration::from_mins(1)));
                self.metrics.waits(&service.key, Some(reason));
                Ok(Some(Deletion::Waiting(Wait { reason, message, needs_user: false, retry_after })))
            }
            DeletePlan::HandOver { uid, heir, changes } => self.hand_over(name, &uid, heir, &changes).await,
            DeletePlan::Waiting(wait) => {
                if wait.reason == WaitReason::Terminating {
                    self.memory().found_for_deletion(name);
                }
                self.metrics.waits(&service.key, Some(wait.reason));
                Ok(Some(Deletion::Waiting(self.or_stuck(name, wait))))
            }
            DeletePlan::Refused(refusal) => Err(refused(&refusal)),
        }
    }

    /// Whether the Service still wants its load balancer. The watch may be fed by an API server that lags behind, so
    /// the Service is read directly before anything is deleted for it.
    async fn is_wanted_after_all(&self, service: &ServiceView) -> Result<Option<Wait>, ProviderError> {
        let live = self.requests.read_service(&service.key).await.map_err(failed)?;
        let wanted = live.is_some_and(|live| live.uid == service.uid && wants_load_balancer(&live));
        Ok(wanted.then(|| {
            soon(format!("service {} wants its load balancer, and the watch does not show it yet", service.key))
        }))
    }

    /// Hands the object and its address over to another Service.
    async fn hand_over(
        &self,
        name: &str,
        uid: &str,
        heir: ServiceKey,
        changes: &[Change],
    ) -> Result<Option<Deletion>, ProviderError> {
        let lb = format!("{}/{name}", self.given.namespace);
        let reserved = Reserved::new(self, &heir);
        // If all members of a group are deleted together, the cache may show an heir whose last reconciliation is
        // already over. From here on the heir waits for this hand-over, so the read shows whether it still exists.
        let seen = self.service(&heir).map(|heir| heir.uid.clone());
        let live = self.requests.read_service(&heir).await.map_err(failed)?;
        if !live.is_some_and(|live| Some(&live.uid) == seen.as_ref() && !live.deleting && wants_load_balancer(&live)) {
            let message =
                format!("service {heir}, which should have taken over load balancer {lb}, is being deleted too");
            return Ok(Some(Deletion::Waiting(soon(message))));
        }
        if let Done::DecideAnew = self.update(name, uid, changes, false).await? {
            return Ok(None);
        }
        let message = format!("load balancer {lb} and its address go on with service {heir} of the same group");
        self.memory().handed_over(&heir, name);
        drop(reserved);
        Ok(Some(Deletion::Left(Remark { reason: "HandedOverLoadBalancer", message, warning: false })))
    }

    /// Withdraws the address of a Service that stays but is no longer a load balancer: later the address may belong to
    /// another Service (W-34). `None`: there is nothing to withdraw.
    pub(super) async fn withdraw_address(&self, service: &ServiceView) -> Result<Option<Wait>, ProviderError> {
        let stays = |now: &Arc<ServiceView>| now.uid == service.uid && !now.deleting && !wants_load_balancer(now);
        let Some(now) = self.service(&service.key).filter(stays) else { return Ok(None) };
        let patch = ServicePatch::forget_address(&now);
        if patch.is_empty() {
            return Ok(None);
        }
        match self.requests.patch_service(&now.key, &now.uid, &patch).await {
            Ok(version) => self.patched.patched(&now, patch, version),
            // The Service is gone, or a successor has the same name.
            Err(RequestError::Patch { source, .. })
                if matches!(runtime::error::api_code(&source), Some(404 | 409 | 422)) =>
            {
                return Ok(None);
            }
            Err(error) => return Err(failed(error)),
        }
        // The finalizer is removed from the version with this change, whose watch event wakes the Service.
        let message = format!("the address of service {} is withdrawn", now.key);
        Ok(Some(soon(message)))
    }
}
