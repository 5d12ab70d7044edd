//! An address that moves to another IPPool: first the new one, then the Service shows it and is served at it, then the old one goes.
//!
//! The host itself would release first and book then; an exhausted or mistyped pool would leave the Service without any address. So
//! a second object is made, under a name of its own.

use std::sync::Arc;

use cloud_provider::provider::Waiting;
use cloud_provider::view::ServiceView;
use harvester_api::load_balancer::DHCP_ADDRESS;

use super::super::booking::{When, when};
use super::super::choice::Source;
use super::super::desired;
use super::super::host_words::MOVES;
use super::super::service_patch::publish;
use super::super::sharing;
use super::super::view::LbView;
use super::super::wait_reason::WaitReason;
use super::object::{foreign, used_by_static, without_address};
use super::{Action, Plan, Refusal, Verdict, World, object, wait};
use crate::config::LoadBalancerConfig;
use crate::identity::proof::unique_in_pool;

/// Name of the object that takes the Service's address from this pool, beside the one that serves.
pub fn name_in_pool(config: &LoadBalancerConfig, service: &ServiceView, pool: &str) -> String {
    config.cluster_name.load_balancer_name(&service.key.namespace, &service.key.name, &unique_in_pool(service, pool))
}

/// The object that takes over, if the Service is to leave this one and there is one.
pub fn next_object<'a>(lb: &LbView, others: &'a [Arc<LbView>], source: &Source) -> Option<&'a Arc<LbView>> {
    let pool = source.pool()?;
    lb.usable_address.as_ref()?;
    lb.pool().filter(|found| *found != pool)?;
    others.iter().find(|other| !other.terminating && other.pool() == Some(pool))
}

/// One step of a move that is asked for; `None`: the address is where it should be, or there is none to move.
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
    if world.config.cluster_uid.is_none() {
        let (service, found, wanted) = (service.key.clone(), found.to_owned(), pool.to_owned());
        return Some(Plan::only(Refusal::CannotMove { service, found, wanted }));
    }
    let moves = format!("moving from IPPool {found} to {pool}, {address} stays until then");
    let plan = match next_object(lb, world.others, source) {
        None => {
            let name = name_in_pool(world.config, service, pool);
            let object = desired::new_object(world.config, &name, service, source);
            Plan { actions: vec![Action::Create(Box::new(object))], verdict: wait(moves, WaitReason::Allocation) }
        }
        Some(next) => {
            if let Some(verdict) = used_by_static(service, source, next, world) {
                Plan { actions: Vec::new(), verdict: prefixed(&moves, verdict) }
            } else if let Some(address) = &next.usable_address {
                let patch = publish(service, address, interface);
                Plan { actions: vec![Action::Patch(patch)], verdict: wait(moves, WaitReason::Allocation) }
            } else {
                let (_, verdict) = without_address(next, MOVES, world);
                Plan { actions: Vec::new(), verdict: prefixed(&moves, verdict) }
            }
        }
    };
    Some(plan)
}

fn prefixed(moves: &str, verdict: Verdict) -> Verdict {
    match verdict {
        Verdict::Waiting(waiting, reason) => {
            let message = format!("{moves}: {}", waiting.message);
            Verdict::Waiting(Waiting { message, ..waiting }, reason)
        }
        other => other,
    }
}

/// Objects whose address nobody needs any more: the Service is served at another one of its own. They are proven to be its.
pub(super) fn superseded(service: &ServiceView, lb: &LbView, world: &World<'_>) -> Vec<Action> {
    let current = lb.usable_address.as_deref();
    let dhcp = current == Some(DHCP_ADDRESS);
    let served = service.ingress.first().map(ToString::to_string);
    if current.is_none() || !dhcp && served.as_deref() != current {
        return Vec::new();
    }
    let unused = world.others.iter().filter(|other| !other.terminating && other.name != lb.name);
    let unused = unused.filter(|other| foreign(service, other, world.config).is_none());
    let used = |lb: &LbView| world.sharers.iter().chain(world.users).any(|user| sharing::has_address_of(user, lb));
    let unused = unused.filter(|other| !used(other));
    unused
        .filter_map(|other| match when(other, world.ages.of(other)) {
            When::Now { leaks } => {
                tracing::debug!(lb = object(world.config, other), "superseded");
                Some(Action::Delete { name: other.name.clone(), uid: other.uid.clone(), leaks })
            }
            When::In(_) => None,
        })
        .collect()
}
