//! Handles a Service that vanished, or is no load balancer any more, although it wanted one and had the controller's
//! finalizer. Only the controller removes this finalizer, or a user by hand. Otherwise the guest cluster's etcd was
//! restored from a snapshot that is older than the Service, or than its type. Its load balancer is left in place. It is
//! garbage from then on, and its collection waits ([`Identity::restore_suspected`](crate::identity::Identity)).
//!
//! The load balancer of a Service that was made again under its name may have to stay, too: others share its address.

use cloud_provider::provider::{ProviderError, Remark};
use cloud_provider::service::{has_finalizer, is_set_back, wants_load_balancer};
use cloud_provider::view::ServiceView;
use k8s_openapi::jiff::Timestamp;
use runtime::error::chain;
use tokio::time::Instant;

use super::super::sharing;
use super::{HarvesterLoadBalancers, failed};
use crate::identity::record;
use crate::identity::suspicion::RESTORE_SUSPECTED;

impl HarvesterLoadBalancers {
    /// Decides about the load balancer of a vanished Service; `None` if the Service did not vanish, or there is nothing
    /// to leave. The caches have their first lists.
    pub(super) async fn leave_if_vanished(&self, service: &ServiceView) -> Result<Option<Remark>, ProviderError> {
        // The Service as it was last seen.
        if !(wants_load_balancer(service) && has_finalizer(service)) {
            return Ok(None);
        }
        // The watch and the API server have to show that it is gone, was created again, or is older now.
        let is_there = |shown: &ServiceView| shown.uid == service.uid && !is_set_back(service, shown);
        let shown = self.services.get(&service.key).filter(|shown| shown.uid == service.uid);
        if shown.as_ref().is_some_and(|shown| is_there(shown)) {
            return Ok(None);
        }
        let owned = self.owned(service, &self.config());
        let Some(name) = owned.lb.as_ref().or(owned.others.first()).map(|lb| lb.name.clone()) else { return Ok(None) };
        let live = self.requests.read_service(&service.key).await.map_err(failed)?;
        if live.is_some_and(|live| is_there(&live)) {
            return Ok(None);
        }
        if service.ingress.is_empty() && self.memory().is_unpublished(&name) {
            // The API server lets a Service go for which the finalizer was added while its deletion was under way: it
            // looks for finalizers first and deletes then. And whatever took it, nobody was told of an address.
            return Ok(None);
        }
        let only_here = self.note_restore(service).await?;
        self.forget(service, &name);
        let what = shown.map_or("is gone with its finalizer on", |_| "is older than it was, and no load balancer");
        let message = format!(
            "service {} {what}, as after a restore of etcd: load balancer {}/{name} stays on Harvester with its \
             address. It is garbage unless an older or newer snapshot brings the Service back, and is not collected \
             for {} h, or until `{}`{only_here}",
            service.key,
            self.given.namespace,
            RESTORE_SUSPECTED.as_secs() / 3600,
            crate::identity::judge::CONFIRM
        );
        tracing::warn!("{message}");
        Ok(Some(Remark { reason: "ServiceVanished", message, warning: true }))
    }

    /// Leaves the load balancer of a Service that is gone to those that share its address, where another Service has
    /// its name by now. That one gets its address after this deletion only, and they leave once it has one: all of them
    /// would wait for ever. `None`: no Service that wants a load balancer has the name, or a user of the address goes
    /// on by itself, and would lose it if garbage is collected.
    pub(super) fn leave_to_sharers(&self, service: &ServiceView) -> Option<Remark> {
        let is_next = |next: &ServiceView| next.uid != service.uid && wants_load_balancer(next);
        self.services.get(&service.key).filter(|next| is_next(next))?;
        let config = self.config();
        let owned = self.owned(service, &config);
        let name = owned.lb.as_ref()?.name.clone();
        if !self.users(service, &owned, &config).iter().all(|user| sharing::goes_with(user, &service.key)) {
            return None;
        }
        for other in &owned.others {
            self.forget_object(&other.name);
        }
        self.forget(service, &name);
        let message = format!(
            "another service is called {} now, and others still share the address of the one that is gone: load \
             balancer {}/{name} stays on Harvester with that address. It is garbage once they have the address of the \
             new one",
            service.key, self.given.namespace
        );
        Some(Remark { reason: "StillSharedLoadBalancer", message, warning: true })
    }

    /// Records the suspected restore before the Service is forgotten, because the next leader has to know of it.
    /// Returns a remark if the record cannot be written.
    async fn note_restore(&self, service: &ServiceView) -> Result<String, ProviderError> {
        let wall = Timestamp::from_second(Timestamp::now().as_second()).unwrap_or_default();
        let stamp = self.identity.service_vanished(wall, Instant::now());
        match self.requests.note_restore(stamp).await {
            Ok(()) => Ok(String::new()),
            Err(error) if error.is_final() => Ok(format!(
                ". Only this process knows of it ({}): before a restart set --garbage-collection=list",
                chain(&error)
            )),
            Err(error) => {
                let what = format!(
                    "service {} vanished as after a restore of etcd, and {} in ConfigMap {}/{} cannot be written",
                    service.key,
                    record::RESTORE_SUSPECTED,
                    record::NAMESPACE,
                    record::NAME
                );
                Err(ProviderError::caused(what, error))
            }
        }
    }
}
