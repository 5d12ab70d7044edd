//! A Service that is gone or wants no load balancer any more: its objects are deleted and their absence is verified;
//! what cannot be verified names its escape (decision 12).

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cloud_provider::provider::{Deleted, ProviderError, Remark, Waiting};
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
use super::super::wait_reason::WaitReason;
use super::super::wakes::object_name;
use super::perform::Done;
use super::{HarvesterLoadBalancers, Now, ROUNDS, failed, refused, soon};
use crate::identity::proof::is_handed_over;

/// A deletion that takes longer than this is the user's trouble.
const PATIENCE: Duration = Duration::from_mins(1);

/// How often a deletion that fails for so long is tried.
const TRY_AGAIN: Duration = Duration::from_secs(30);

/// An heir whose own deletion waits until this is dropped.
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
    /// Deletes what there is. When that takes long, the user hears what is in the way and how to do without.
    pub(super) async fn delete_patiently(&self, service: &ServiceView) -> Result<Deleted, ProviderError> {
        if let Some(name) = self.abandoned(service) {
            return self.abandon(service, &name).await;
        }
        if let Some(left) = self.leave_if_vanished(service).await? {
            return Ok(left);
        }
        let escapable = [WaitReason::Terminating.word(), WaitReason::Cache.word()];
        let result = self.try_delete(service).await;
        let waits_for_harvester = match &result {
            Ok(Deleted::Waiting(waiting)) => escapable.contains(&waiting.reason),
            Err(error) => !error.permanent,
            Ok(Deleted::Gone { .. } | Deleted::Left(_)) => false,
        };
        if !waits_for_harvester {
            self.memory().not_kept(&service.key);
            return result;
        }
        let now = Instant::now();
        let since = self.memory().kept_since(&service.key, now);
        let late = now.saturating_duration_since(since) > PATIENCE;
        match result {
            Ok(Deleted::Waiting(waiting)) if late => Ok(Deleted::Waiting(self.with_escape(service, &waiting))),
            Err(error) if late => {
                let message = chain(&error);
                let reason = WaitReason::Terminating.word();
                let waiting = Waiting { reason, message, needs_user: true, retry_after: Some(TRY_AGAIN) };
                Ok(Deleted::Waiting(self.with_escape(service, &waiting)))
            }
            other => other,
        }
    }

    /// Decision 12: a finalizer is not for ever.
    fn with_escape(&self, service: &ServiceView, waiting: &Waiting) -> Waiting {
        let name = self.owners.last_name(service, &self.config());
        let message = format!(
            "{}. If Harvester is not to come back, this lets the Service go and leaves the load balancer behind: \
             kubectl annotate service -n {} {} {ABANDON}={name}",
            waiting.message, service.key.namespace, service.key.name
        );
        Waiting { message, needs_user: true, ..*waiting }
    }

    /// The object that the user tells us to leave behind; only under its exact name, and not while the Service wants
    /// it.
    fn abandoned(&self, service: &ServiceView) -> Option<String> {
        let config = self.config();
        let owned = self.owned(service, &config);
        let names = [owned.name, self.owners.last_name(service, &config), object_name(&config, service)];
        plan::abandoned(service, names)
    }

    async fn abandon(&self, service: &ServiceView, name: &str) -> Result<Deleted, ProviderError> {
        if let Some(waiting) = self.withdraw_address(service).await? {
            return Ok(Deleted::Waiting(waiting));
        }
        let owned = self.owned(service, &self.config());
        // The object of a move too: it is left behind with the one that serves.
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
        Ok(Deleted::Left(Remark { reason: "AbandonedLoadBalancer", message, warning: true }))
    }

    async fn note_orphan(&self, service: &ServiceView, name: &str) -> Result<(), ProviderError> {
        let now = Timestamp::from_second(Now::read().unix).unwrap_or_default().to_string();
        let lb = format!("{}/{name}", self.given.namespace);
        let what = format!("{lb} of service {} ({}), abandoned ", service.key, service.uid);
        match self.requests.note_orphan(&what, &now).await {
            Ok(()) => Ok(()),
            // Where it cannot be written the log has to do.
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

    pub(super) async fn try_delete(&self, service: &ServiceView) -> Result<Deleted, ProviderError> {
        if let Some(waiting) = self.not_synced(false) {
            return Ok(Deleted::Waiting(waiting));
        }
        let config = self.config();
        for _ in 0..ROUNDS {
            let owned = self.owned(service, &config);
            // Nothing to be seen: absent is what was there last, whatever its name.
            let name = owned.lb.map_or_else(|| self.owners.last_name(service, &config), |lb| lb.name.clone());
            if let Some(deleted) = self.delete_once(service, &name).await? {
                if let Deleted::Gone { .. } | Deleted::Left(_) = deleted {
                    let left = self.owned(service, &config);
                    // After a hand-over too: the object of a move may stand beside the one that goes on with its heir.
                    if left.lb.is_some_and(|lb| lb.name != name) || !left.others.is_empty() {
                        self.forget_object(&name);
                        continue;
                    }
                    if let Some(waiting) = self.withdraw_address(service).await? {
                        return Ok(Deleted::Waiting(waiting));
                    }
                    let by_rule = self.objects.get(&object_name(&config, service));
                    let kept = by_rule.filter(|lb| is_handed_over(lb, service));
                    self.forget(service, &name);
                    // Its heir must not begin anew while the watch still shows it as this Service's.
                    if let Some(lb) = kept {
                        self.objects.wrote(LbView::clone(&lb));
                    }
                }
                return Ok(deleted);
            }
        }
        let message = format!("load balancers of service {} change faster than they can be read", service.key);
        Ok(Deleted::Waiting(soon(message)))
    }

    pub(super) async fn delete_once(
        &self,
        service: &ServiceView,
        name: &str,
    ) -> Result<Option<Deleted>, ProviderError> {
        let plan = self.plan_deletion(service, name);
        let wanted = matches!(plan, DeletePlan::Send { .. }).then(|| name.to_owned());
        self.pacer.wants_only(&service.key, wanted.as_slice());
        self.delete_as_planned(service, name, plan).await
    }

    /// What is to be done about one object of a Service that wants none.
    pub(super) fn plan_deletion(&self, service: &ServiceView, name: &str) -> DeletePlan {
        let lb = self.objects.get(name);
        let config = self.config();
        let shown = Owned { name: name.to_owned(), lb: lb.clone(), others: Vec::new() };
        let (sharers, users) = (self.sharers(service, &config), self.users(service, &shown));
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
    ) -> Result<Option<Deleted>, ProviderError> {
        if let DeletePlan::Verify | DeletePlan::Send { .. } = plan
            && let Some(waiting) = self.not_fresh(&service.key)
        {
            return Ok(Some(Deleted::Waiting(waiting)));
        }
        match plan {
            DeletePlan::HandedOver => Ok(Some(Deleted::Gone { existed: false })),
            DeletePlan::Soon(message) => Ok(Some(Deleted::Waiting(soon(message)))),
            DeletePlan::Verify => match self.requests.read(name).await.map_err(failed)? {
                None => {
                    let existed = self.memory().was_found_for_deletion(name);
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
                if let Some(waiting) = self.is_wanted_after_all(service).await? {
                    self.pacer.failed(name);
                    return Ok(Some(Deleted::Waiting(waiting)));
                }
                // The same once more for the object as it is at this moment, whatever the cache shows.
                let now = self.requests.read(name).await.inspect_err(|_| self.pacer.failed(name)).map_err(failed)?;
                let Some(now) = now else {
                    self.objects.forget(name);
                    self.pacer.failed(name);
                    return Ok(Some(Deleted::Gone { existed: true }));
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
            DeletePlan::HandOver { uid, heir, changes } => self.hand_over(name, &uid, heir, &changes).await,
            DeletePlan::Waiting(waiting, reason) => {
                if reason == WaitReason::Terminating {
                    self.memory().found_for_deletion(name);
                }
                self.metrics.waits(&service.key, Some(reason));
                Ok(Some(Deleted::Waiting(self.or_stuck(name, waiting))))
            }
            DeletePlan::Refused(refusal) => Err(refused(&refusal)),
        }
    }

    /// What the watch shows of a Service, or shows no more, may be the view of an API server that is behind: before
    /// anything is deleted for it, it is read itself.
    async fn is_wanted_after_all(&self, service: &ServiceView) -> Result<Option<Waiting>, ProviderError> {
        let live = self.requests.read_service(&service.key).await.map_err(failed)?;
        let wanted = live.is_some_and(|live| live.uid == service.uid && wants_load_balancer(&live));
        Ok(wanted.then(|| {
            soon(format!("service {} wants its load balancer, and the watch does not show it yet", service.key))
        }))
    }

    /// The object and its address go on with another Service.
    async fn hand_over(
        &self,
        name: &str,
        uid: &str,
        heir: ServiceKey,
        changes: &[Change],
    ) -> Result<Option<Deleted>, ProviderError> {
        let lb = format!("{}/{name}", self.given.namespace);
        let reserved = Reserved::new(self, &heir);
        // A group whose members are deleted together: the cache shows an heir that has had its last look by now. From
        // here on it waits for us, so it is there if it was just now.
        let seen = self.service(&heir).map(|heir| heir.uid.clone());
        let live = self.requests.read_service(&heir).await.map_err(failed)?;
        if !live.is_some_and(|live| Some(&live.uid) == seen.as_ref() && !live.deleting && wants_load_balancer(&live)) {
            let message = format!(
                "service {heir}, which should have taken over load balancer {lb}, is being deleted \
            too"
            );
            return Ok(Some(Deleted::Waiting(soon(message))));
        }
        if let Done::DecideAnew = self.update(name, uid, changes, false).await? {
            return Ok(None);
        }
        let message = format!("load balancer {lb} and its address go on with service {heir} of the same group");
        self.memory().handed_over(&heir, name);
        drop(reserved);
        Ok(Some(Deleted::Left(Remark { reason: "HandedOverLoadBalancer", message, warning: false })))
    }

    /// A Service that stays and is no load balancer any more must not keep its address for a later life: it may be
    /// another one's by then (W-34). `None`: nothing to withdraw.
    pub(super) async fn withdraw_address(&self, service: &ServiceView) -> Result<Option<Waiting>, ProviderError> {
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
