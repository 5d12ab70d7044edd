//! Changes that nobody asked for are made within reason: few at once, many after a second look, most of them not
//! without an operator's confirmation. What is unasked for says [`super::super::unasked`], how much of it goes at once
//! [`super::super::breaker`].

use cloud_provider::provider::ProviderError;
use cloud_provider::view::ServiceView;
use k8s_openapi::jiff::Timestamp;
use tokio::time::Instant;

use super::super::breaker::{ASK_AGAIN, BreakerAnswer, served_addresses};
use super::super::plan::Action;
use super::super::unasked::is_unasked;
use super::super::wait_reason::{Wait, WaitReason};
use super::perform::{Done, is_alike};
use super::{HarvesterLoadBalancers, failed};
use crate::identity::judge::CONFIRM;

impl HarvesterLoadBalancers {
    /// The outcome of an action that may not be performed now; `None` if it may.
    pub(super) async fn within_reason(
        &self,
        service: &ServiceView,
        name: &str,
        action: &Action,
    ) -> Result<Option<Done>, ProviderError> {
        if !self.is_unasked(service, action) {
            return Ok(None);
        }
        let all = served_addresses(self.services.all().iter().map(AsRef::as_ref));
        let answer = self.breaker.lock().ask(&service.key, all, self.identity.last_confirmed(), Instant::now());
        let (message, needs_user, retry_after) = match answer {
            BreakerAnswer::Yes => {
                self.breaker.lock().changed(&service.key, Instant::now());
                return Ok(None);
            }
            BreakerAnswer::Confirmed => {
                if !self.is_still_so(service, name).await? {
                    return Ok(Some(Done::DecideAnew));
                }
                self.breaker.lock().changed(&service.key, Instant::now());
                return Ok(None);
            }
            BreakerAnswer::Later(rest) => {
                let message = format!(
                    "load balancer {}/{name} is missing on Harvester or has another address, and others may be so \
                     too: all of them are looked at once more before another address is published",
                    self.given.namespace
                );
                (message, false, Some(rest))
            }
            BreakerAnswer::No(count) => {
                let message = format!(
                    "load balancers of {count} of {all} served addresses are missing on Harvester or have another \
                     address, {}/{name} among them: nothing is changed, because a wrong view of Harvester would look \
                     the same. If it is right, run `{CONFIRM}`: new addresses are published then",
                    self.given.namespace
                );
                (message, true, Some(ASK_AGAIN))
            }
        };
        let reason = WaitReason::TooManyAtOnce;
        Ok(Some(Done::NotYet(Wait { reason, message, needs_user, retry_after })))
    }

    /// Whether clients of the Service would notice the action, although the user did not request it.
    pub(super) fn is_unasked(&self, service: &ServiceView, action: &Action) -> bool {
        if service.ingress.is_empty() || !matches!(action, Action::Create(_) | Action::Patch(_)) {
            return false;
        }
        let owned = self.owned(service, &self.config());
        let objects: Vec<_> = owned.lb.iter().chain(&owned.others).map(AsRef::as_ref).collect();
        is_unasked(service, action, &objects, Timestamp::now())
    }

    /// Reads the Service and its object, and returns whether both are still as decided on.
    async fn is_still_so(&self, service: &ServiceView, name: &str) -> Result<bool, ProviderError> {
        if !self.is_as_decided(service).await? {
            return Ok(false);
        }
        let judged = self.objects.get(name);
        match (judged, self.requests.read(name).await.map_err(failed)?) {
            (None, None) => Ok(true),
            (Some(judged), Some(now)) if is_alike(&judged, &now) => Ok(true),
            (_, Some(now)) => {
                self.objects.wrote(now);
                Ok(false)
            }
            (Some(_), None) => {
                self.objects.forget(name);
                Ok(false)
            }
        }
    }
}
