//! Plans for a Service that shares another one's address. Such a Service has no object of its own.

use std::sync::Arc;

use cloud_provider::view::ServiceView;

use super::super::booking::{When, when};
use super::super::network::wanted_network;
use super::super::service_patch::share;
use super::super::sharing::{self, PortClash, ShareError, first_clash};
use super::super::wait_reason::WaitReason;
use super::delete::{still_booking, still_used};
use super::object::{foreign, network_changed};
use super::{Action, Plan, PlanRefusal, PlanVerdict, World, user_wait};

/// Plans for the secondary (CCM spec 3.6).
pub(super) fn ensure(service: &ServiceView, primary: &Arc<ServiceView>, world: &World<'_>) -> Plan {
    if !sharing::may_share(service, primary, world.config.share_across_namespaces) {
        let (primary, namespace) = (primary.key.clone(), service.key.namespace.clone());
        return Plan::only(PlanRefusal::Share(ShareError::NoConsent { primary, namespace }));
    }
    if primary.deleting {
        let text = format!("primary service {} is being deleted: name another one, or make it again", primary.key);
        return Plan::only(user_wait(text, WaitReason::Primary));
    }
    // A primary that is no longer a load balancer gives its address up when the last sharer has left, so no Service
    // joins it.
    let stays = primary.is_load_balancer && !primary.has_class;
    let Some(ip) = primary.ingress.first().filter(|_| stays || sharing::has_joined(service, primary)) else {
        let named = &primary.key;
        let text = if stays {
            format!(
                "primary service {named} has no address yet: this Service gets the same one as soon as there is one; \
                 the Events of {named} say what it waits for"
            )
        } else {
            format!(
                "primary service {named} has no address to share: it is not of type LoadBalancer, or it has a \
                 loadBalancerClass; name another Service"
            )
        };
        return Plan::only(user_wait(text, WaitReason::Primary));
    };
    if let Some((port, by)) = first_clash(service, world.occupants) {
        let (primary, secondary) = (primary.key.clone(), service.key.clone());
        return Plan::only(PlanRefusal::Share(
            Box::new(PortClash { primary, secondary, port, by, shares_by: sharing::shares_by(service) }).into(),
        ));
    }
    if let Some(lb) = world.primary_lb {
        // A secondary without a network uses its primary's.
        let inherits = wanted_network(service).is_empty();
        if let Some(refusal) = network_changed(service, lb, world.config).filter(|_| !inherits) {
            return Plan::only(refusal);
        }
    }
    if let Some(lb) = world.lb
        && let Some(text) = still_used(service, lb, world.sharers, world.users, world.config)
    {
        return Plan::only(user_wait(text, WaitReason::Shared));
    }

    let mut actions = Vec::new();
    let patch = share(service, primary, world.primary_lb, *ip);
    if !patch.is_empty() {
        actions.push(Action::Patch(patch));
    }
    // The object that this Service had as a primary. It is deleted after the patch of the annotation, and when the
    // Service is served at the other address, because an address must not be released while it is announced. So it is
    // with an address that moves to another pool, too: the Service is looked at again when it is served elsewhere.
    let own = world.lb.filter(|lb| !lb.terminating && foreign(service, lb, world.config).is_none());
    let is_the_same = |address: &str| address.parse() == Ok(*ip);
    if let Some(lb) = own
        && (!sharing::is_served_at(service, lb) || lb.usable_address.as_deref().is_some_and(is_the_same))
    {
        match when(lb, world.ages.of(lb)) {
            When::Now { leaks } => actions.push(Action::Delete { name: lb.name.clone(), uid: lb.uid.clone(), leaks }),
            When::In(rest) => {
                return Plan { actions, verdict: PlanVerdict::Waiting(still_booking(lb, world.config, rest)) };
            }
        }
    }
    Plan { actions, verdict: PlanVerdict::Ready }
}
