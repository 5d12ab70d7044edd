//! A Service that is gone although it wanted its load balancer and bore our finalizer, which nobody takes off but us,
//! or a
//! user by hand. Else the etcd of the guest cluster was restored from a snapshot that is older than the Service. What
//! was made for it is left where
//! it is. It is garbage from then on, and its collection waits
//! ([`Identity::suspects_restore`](crate::identity::Identity)).

use cloud_provider::provider::{Deleted, ProviderError, Remark};
use cloud_provider::service::{has_finalizer, wants_load_balancer};
use cloud_provider::view::ServiceView;

use super::{HarvesterLoadBalancers, failed};
use crate::identity::RESTORE_SUSPECTED;

impl HarvesterLoadBalancers {
    /// What becomes of the load balancer of a Service that has vanished; `None`: it has not, or there is nothing to
    /// leave.
    pub(super) async fn leave_if_vanished(&self, service: &ServiceView) -> Result<Option<Deleted>, ProviderError> {
        // As it was last seen.
        if !(wants_load_balancer(service) && has_finalizer(service)) || self.not_synced(false).is_some() {
            return Ok(None);
        }
        // As it is now: the watch has to show it gone, or made anew.
        if self.service(&service.key).is_some_and(|shown| shown.uid == service.uid) {
            return Ok(None);
        }
        let owned = self.owned(service, &self.config());
        let Some(name) = owned.lb.as_ref().or(owned.others.first()).map(|lb| lb.name.clone()) else { return Ok(None) };
        let live = self.requests.read_service(&service.key).await.map_err(failed)?;
        if live.is_some_and(|live| live.uid == service.uid) {
            return Ok(None);
        }
        self.identity.service_vanished();
        self.forget(service, &name);
        let message = format!(
            "service {} is gone with its finalizer on, as after a restore of etcd: load balancer {}/{name} stays on Harvester with its \
             address. It is garbage unless an older or newer snapshot brings the Service back, and is not collected for {} h by this \
             process, or until `{}`; set --garbage-collection=list before a restart",
            service.key,
            self.given.namespace,
            RESTORE_SUSPECTED.as_secs() / 3600,
            crate::identity::judge::CONFIRM
        );
        tracing::warn!("{message}");
        Ok(Some(Deleted::Left(Remark { reason: "ServiceVanished", message, warning: true })))
    }
}
