//! Plans the deletion for a Service that is gone or no longer wants a load balancer, and decides when its object may be
//! deleted.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use cloud_provider::service::wants_load_balancer;
use cloud_provider::view::{ServiceKey, ServiceView};
use harvester_api::keys::cloudprovider::ABANDON;
use harvester_api::load_balancer::Ipam;

use super::super::booking::{When, when};
use super::super::desired::{self, Change};
use super::super::sharing;
use super::super::view::LbView;
use super::super::wait_reason::{Wait, WaitReason};
use super::object::foreign;
use super::{PlanRefusal, object};
use crate::config::LoadBalancerConfig;
use crate::identity::proof::is_handed_over;

/// What to do for a Service that is gone or no longer wants a load balancer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DeletePlan {
    /// The object meanwhile belongs to another Service: nothing of this one is left.
    HandedOver,
    /// Try again soon, for this reason: another reconciliation is about to change the state.
    Soon(String),
    /// No object is known: ask the API server before the Service is released (W-04).
    Verify,
    /// Delete the object.
    Send {
        /// UID of the object, as precondition.
        uid: String,
        /// The host had not finished the allocation, or does not release it, so the address leaks.
        leaks: bool,
    },
    /// Hand the object over to another member of the group that shares its address.
    HandOver {
        /// UID of the object, as precondition.
        uid: String,
        /// The Service that gets the object.
        heir: ServiceKey,
        /// The changes that make the object the heir's.
        changes: Vec<Change>,
    },
    /// Something else has to happen first.
    Waiting(Wait),
    /// Refuse: the object must not be deleted by this Service.
    Refused(PlanRefusal),
}

/// Everything that the deletion of one of a Service's objects depends on.
#[derive(Debug, Clone, Copy)]
pub struct Leaving<'a> {
    /// Cluster name, namespace.
    pub config: &'a LoadBalancerConfig,
    /// The object, if it is known.
    pub lb: Option<&'a LbView>,
    /// Services that want to share this one's address.
    pub sharers: &'a [Arc<ServiceView>],
    /// Services that have an address of the object, whatever they request; see [`sharing::users`].
    pub users: &'a [Arc<ServiceView>],
    /// How long this process has known the object.
    pub age: Duration,
    /// Another Service is handing its object over to this one right now.
    pub inherits: bool,
    /// Another Service is just being given the address.
    pub claimed: bool,
}

/// The object that the user tells the controller to leave behind (decision 12), if it is one of `names`. It is ignored
/// while the Service wants a load balancer.
pub fn abandoned(service: &ServiceView, names: impl IntoIterator<Item = String>) -> Option<String> {
    let wanted = service.annotations.get(ABANDON).filter(|_| !wants_load_balancer(service))?;
    names.into_iter().find(|name| name == wanted)
}

/// Plans the deletion (CCM spec 3.9). It depends on the Service's own name, not on what was published or whether its
/// primary still exists (W-04, W-23). Two kinds of other Services prevent it: sharers that have joined, and `users`,
/// which have the address whatever they request; see [`sharing::users`].
pub fn delete(service: &ServiceView, leaving: &Leaving<'_>) -> DeletePlan {
    let Leaving { config, lb, sharers, users, age, inherits, claimed } = *leaving;
    if lb.is_some_and(|lb| is_handed_over(lb, service)) {
        return DeletePlan::HandedOver;
    }
    // This Service could be gone before the object belongs to it, and the object would be orphaned.
    if inherits {
        let message = format!("another service is handing its load balancer over to service {}", service.key);
        return DeletePlan::Soon(message);
    }
    // Afterwards the other Service is either an heir, or prevents the deletion.
    if claimed {
        return DeletePlan::Soon(format!("another service is about to share the address of service {}", service.key));
    }
    let Some(lb) = lb else { return DeletePlan::Verify };
    if let Some(refusal) = foreign(service, lb, config) {
        return DeletePlan::Refused(refusal);
    }
    if lb.terminating {
        let message = format!("load balancer {} is being deleted on Harvester", object(config, lb));
        // The watch reports when the object is gone; the retry covers a broken watch.
        let (reason, retry_after) = (WaitReason::Terminating, Some(Duration::from_mins(1)));
        return DeletePlan::Waiting(Wait { reason, message, needs_user: false, retry_after });
    }
    if let Some(plan) = hand_over(service, config, lb, sharers) {
        return plan;
    }
    if let Some(message) = still_used(service, lb, sharers, users, config) {
        let reason = WaitReason::Shared;
        return DeletePlan::Waiting(Wait { reason, message, needs_user: true, retry_after: None });
    }
    match when(lb, age) {
        When::Now { leaks } => DeletePlan::Send { uid: lb.uid.clone(), leaks },
        When::In(rest) => DeletePlan::Waiting(still_booking(lb, config, rest)),
    }
}

/// Hands the object over. The object and its address stay; only its labels and the proof of ownership change.
fn hand_over(
    service: &ServiceView,
    config: &LoadBalancerConfig,
    lb: &LbView,
    sharers: &[Arc<ServiceView>],
) -> Option<DeletePlan> {
    lb.usable_address.as_ref().filter(|_| lb.effective_ipam() == "pool" && lb.is_settled())?;
    let heir = sharing::heir(service, &joined(service, lb, sharers))?;
    let mut changes = desired::drift(config, lb, heir, Ipam::Pool);
    changes.extend(desired::missing_proof(config, lb, heir));
    Some(DeletePlan::HandOver { uid: lb.uid.clone(), heir: heir.key.clone(), changes })
}

/// The sharers that have the address. A Service whose port was refused is no user of the address.
fn joined<'a>(service: &ServiceView, lb: &LbView, sharers: &'a [Arc<ServiceView>]) -> Vec<&'a Arc<ServiceView>> {
    let uses =
        |sharer: &&Arc<ServiceView>| sharing::has_joined(sharer, service) || sharing::shows_address_of(sharer, lb);
    sharers.iter().filter(uses).collect()
}

pub(super) fn still_used(
    service: &ServiceView,
    lb: &LbView,
    sharers: &[Arc<ServiceView>],
    users: &[Arc<ServiceView>],
    config: &LoadBalancerConfig,
) -> Option<String> {
    let users = users.iter().filter(|user| sharing::uses(user, service, lb, config.share_across_namespaces));
    let keys: BTreeSet<&ServiceKey> =
        joined(service, lb, sharers).into_iter().chain(users).map(|user| &user.key).collect();
    let names: Vec<String> = keys.into_iter().map(ToString::to_string).collect();
    let (share, them) = if names.len() == 1 { ("shares", "it") } else { ("share", "them") };
    (!names.is_empty()).then(|| {
        format!(
            "the load balancer of service {key} stays, because {} {share} its address: delete {them} or let {them} \
             name another service first",
            names.join(", "),
            key = service.key
        )
    })
}

/// The wait state for a deletion that would leak the address.
pub(super) fn still_booking(lb: &LbView, config: &LoadBalancerConfig, rest: Duration) -> Wait {
    let message = format!(
        "load balancer {} is deleted as soon as Harvester has finished booking its address",
        object(config, lb)
    );
    Wait { reason: WaitReason::Booking, message, needs_user: false, retry_after: Some(rest) }
}
