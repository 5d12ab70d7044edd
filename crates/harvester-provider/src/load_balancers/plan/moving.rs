//! Moves an address to another IPPool. First the new address is allocated, then the Service shows it and is served at
//! it, then the old object is deleted.
//!
//! If the pool of an object is changed, the host releases the old address first and allocates the new one then. With an
//! exhausted or mistyped pool the Service would be left without an address. Therefore a second object is created, with
//! a name of its own.

use std::sync::Arc;

use cloud_provider::view::ServiceView;
use harvester_api::load_balancer::DHCP_ADDRESS;

use super::super::booking::{When, when};
use super::super::choice::Source;
use super::super::desired;
use super::super::host_words::MOVES;
use super::super::service_patch::publish;
use super::super::sharing;
use super::super::view::LbView;
use super::super::wait_reason::{Wait, WaitReason};
use super::delete::still_booking;
use super::object::{foreign, over_quota, used_by_static, without_address, wrong_family};
use super::{Action, Plan, PlanVerdict, World, object, wait};
use crate::config::LoadBalancerConfig;
use crate::identity::proof::{cluster_of, unique_in_pool};

/// Name of the object that takes the Service's address from this pool, besides the one that serves.
pub fn name_in_pool(config: &LoadBalancerConfig, service: &ServiceView, pool: &str) -> String {
    config.cluster_name.load_balancer_name(&service.key.namespace, &service.key.name, &unique_in_pool(service, pool))
}

/// The pool that the Service leaves, and the one that it moves to.
fn pools<'a>(lb: &'a LbView, source: &'a Source) -> Option<(&'a str, &'a str)> {
    let wanted = source.pool()?;
    lb.usable_address.as_ref()?;
    let found = lb.pool().filter(|found| *found != wanted)?;
    Some((found, wanted))
}

/// The object that takes over, if the Service moves and such an object exists.
pub fn next_object<'a>(lb: &LbView, others: &'a [Arc<LbView>], source: &Source) -> Option<&'a Arc<LbView>> {
    let (_, wanted) = pools(lb, source)?;
    others.iter().find(|other| !other.terminating && other.pool() == Some(wanted))
}

/// Whether the Service moves, and no object exists yet that takes over.
pub fn needs_object(lb: &LbView, others: &[Arc<LbView>], source: &Source) -> bool {
    pools(lb, source).is_some() && next_object(lb, others, source).is_none()
}

/// Plans one step of a requested move; `None` if the address is where it should be, or there is none to move.
pub(super) fn step(
    service: &ServiceView,
    lb: &LbView,
    source: &Source,
    interface: Option<&str>,
    world: &World<'_>,
) -> Option<Plan> {
    let pool = source.pool()?;
    let address = lb.usable_address.as_deref()?;
    let found = lb.pool().filter(|found| *found != pool)?;
    let moves = format!("moving from IPPool {found} to {pool}, {address} stays until then");
    let plan = match next_object(lb, world.others, source) {
        None => begin(service, lb, source, &name_in_pool(world.config, service, pool), &moves, world),
        Some(next) => {
            if let Some(verdict) = used_by_static(service, source, next, world) {
                Plan { actions: Vec::new(), verdict: prefixed(&moves, verdict) }
            } else if let Some(refusal) = wrong_family(service, source, next) {
                Plan { actions: Vec::new(), verdict: PlanVerdict::Served(refusal) }
            } else if let Some(address) = &next.usable_address {
                let patch = publish(service, address, interface);
                Plan { actions: vec![Action::Patch(patch)], verdict: wait(moves, WaitReason::Allocation) }
            } else {
                let (_, verdict) = without_address(service, next, MOVES, world);
                Plan { actions: Vec::new(), verdict: prefixed(&moves, verdict) }
            }
        }
    };
    Some(plan)
}

/// Creates the object that takes over. What an earlier move has left is deleted first, so that a user who names one
/// pool after the other does not collect an address of each.
fn begin(service: &ServiceView, lb: &LbView, source: &Source, name: &str, moves: &str, world: &World<'_>) -> Plan {
    let actions = given_up(service, lb, world);
    if !actions.is_empty() {
        let message = format!("{moves}: what is left of an earlier move is deleted first");
        return Plan { actions, verdict: wait(message, WaitReason::Terminating) };
    }
    if let Some(waiting) = half_moved(service, lb, world).find_map(|other| booking(other, world)) {
        return Plan::only(prefixed(moves, waiting));
    }
    if world.others.iter().any(|other| other.terminating && other.name == name) {
        let message = format!("{moves}: load balancer {}/{name} is being deleted on Harvester", world.config.namespace);
        return Plan::only(wait(message, WaitReason::Terminating));
    }
    if let Some(limit) = world.quota_reached {
        return Plan::only(prefixed(moves, over_quota(limit)));
    }
    let object = desired::new_object(world.config, name, service, source);
    Plan { actions: vec![Action::Create(Box::new(object))], verdict: wait(moves.to_owned(), WaitReason::Allocation) }
}

fn prefixed(moves: &str, verdict: PlanVerdict) -> PlanVerdict {
    match verdict {
        PlanVerdict::Waiting(waiting) => {
            let message = format!("{moves}: {}", waiting.message);
            PlanVerdict::Waiting(Wait { message, ..waiting })
        }
        other => other,
    }
}

/// Plans to delete objects whose address is no longer needed, because the Service is served at the address of another
/// object. They are proven to belong to the Service.
pub(super) fn superseded(service: &ServiceView, lb: &LbView, world: &World<'_>) -> Vec<Action> {
    let current = lb.usable_address.as_deref();
    let dhcp = current == Some(DHCP_ADDRESS);
    let served = service.ingress.first().map(ToString::to_string);
    if current.is_none() || !dhcp && served.as_deref() != current {
        return Vec::new();
    }
    deletions(unused(service, lb, world), world)
}

/// Plans to delete objects of moves that were cancelled. The Service need not be served for that, because their
/// addresses were never published.
pub(super) fn given_up(service: &ServiceView, lb: &LbView, world: &World<'_>) -> Vec<Action> {
    deletions(half_moved(service, lb, world), world)
}

fn half_moved<'a>(service: &'a ServiceView, lb: &'a LbView, world: &'a World<'_>) -> impl Iterator<Item = &'a LbView> {
    // For a DHCP lease, the address does not tell which object it belongs to.
    let shown = |other: &LbView| other.effective_ipam() == "dhcp" || sharing::has_address_of(service, other);
    unused(service, lb, world).filter(move |other| !shown(other))
}

/// The wait state, if a deletion of this object now would leak its address.
fn booking(lb: &LbView, world: &World<'_>) -> Option<PlanVerdict> {
    match when(lb, world.ages.of(lb)) {
        When::Now { .. } => None,
        When::In(rest) => Some(PlanVerdict::Waiting(still_booking(lb, world.config, rest))),
    }
}

/// Whether the object has the name of this cluster, or that of the serving object, which has the former name until all
/// objects of the Service have the present one ([`super::renamed`]). A copy of this cluster has the same UIDs, so they
/// do not prove an object well enough to give its address away.
fn is_of_this_cluster(other: &LbView, lb: &LbView, config: &LoadBalancerConfig) -> bool {
    let name = cluster_of(other);
    name.is_some() && (name.as_ref() == Some(&config.cluster_name) || name == cluster_of(lb))
}

/// Objects of this cluster other than the serving one, whose address no other Service has.
fn unused<'a>(service: &'a ServiceView, lb: &'a LbView, world: &'a World<'_>) -> impl Iterator<Item = &'a LbView> {
    let open = world.config.share_across_namespaces;
    let has = move |user: &ServiceView, lb: &LbView| sharing::has_address(user, service, lb, open);
    let used = move |lb: &LbView| world.sharers.iter().chain(world.users).any(|user| has(user, lb));
    let others = world.others.iter().map(Arc::as_ref);
    let others = others.filter(move |other| !other.terminating && other.name != lb.name && !used(other));
    others
        .filter(|other| foreign(service, other, world.config).is_none())
        .filter(|other| is_of_this_cluster(other, lb, world.config))
}

/// The deletions that the general rules allow now (decision 7).
fn deletions<'a>(objects: impl Iterator<Item = &'a LbView>, world: &World<'_>) -> Vec<Action> {
    let delete = |lb: &LbView| match when(lb, world.ages.of(lb)) {
        When::Now { leaks } => {
            tracing::debug!(
                lb = object(world.config, lb),
                "another load balancer serves in the place of this one; the controller deletes this one"
            );
            Some(Action::Delete { name: lb.name.clone(), uid: lb.uid.clone(), leaks })
        }
        When::In(_) => None,
    };
    objects.filter_map(delete).collect()
}
