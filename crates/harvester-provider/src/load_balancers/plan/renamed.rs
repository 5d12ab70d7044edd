//! Gives the objects of a Service the present name of the cluster, after the cluster was renamed.
//!
//! Besides the object that serves, one is deleted only under the present name of the cluster, or under the name that is
//! on the serving one (decision 41). If the serving one alone got the present name, the others would stay on Harvester
//! for as long as the Service. So all objects under its name change the name, and the serving one is the last of them.

use std::sync::Arc;
use std::time::Duration;

use cloud_provider::view::ServiceView;

use super::super::booking::BOOKING;
use super::super::desired;
use super::super::view::LbView;
use super::super::wait_reason::{Wait, WaitReason};
use super::object::foreign;
use super::{Action, Plan, PlanVerdict, World};
use crate::identity::proof::cluster_of;

/// Plans the new name of the other objects, except those that `planned` deletes. `Err`: Harvester is busy with one of
/// them, for this time at most, and until then the serving one has to keep its name.
pub(super) fn others(
    service: &ServiceView,
    lb: &LbView,
    planned: &[Action],
    world: &World<'_>,
) -> Result<Vec<Action>, Duration> {
    let config = world.config;
    let Some(former) = cluster_of(lb).filter(|name| *name != config.cluster_name) else { return Ok(Vec::new()) };
    let goes = |other: &LbView| {
        planned.iter().any(|action| matches!(action, Action::Delete { name, .. } if *name == other.name))
    };
    let others = world.others.iter().map(Arc::as_ref);
    let namesakes: Vec<&LbView> = others
        .filter(|other| !other.terminating && cluster_of(other).as_ref() == Some(&former))
        .filter(|other| foreign(service, other, config).is_none() && !goes(other))
        .collect();
    if let Some(rest) = namesakes.iter().filter_map(|other| busy(other, world)).max() {
        return Err(rest);
    }
    let rename = |other: &LbView| {
        let changes = desired::renaming(config, other, service);
        let (name, uid) = (other.name.clone(), other.uid.clone());
        (!changes.is_empty()).then_some(Action::Rename { name, uid, changes })
    };
    Ok(namesakes.into_iter().filter_map(rename).collect())
}

/// Plans the new name of all objects before a step of a move. The object that takes over has the present name, and
/// would not prove one that still has the former name.
pub(super) fn before_move(service: &ServiceView, lb: &LbView, step: Plan, world: &World<'_>) -> Plan {
    let changes = desired::renaming(world.config, lb, service);
    if changes.is_empty() {
        return step;
    }
    match (others(service, lb, &[], world), busy(lb, world)) {
        (Ok(mut actions), None) => {
            actions.push(Action::Update { uid: lb.uid.clone(), changes });
            actions.extend(step.actions);
            Plan { actions, verdict: step.verdict }
        }
        (Err(rest), _) | (Ok(_), Some(rest)) => {
            let message = format!(
                "before service {} moves to another IPPool, its load balancers get the present name of the cluster, \
                 and Harvester is still busy with one of them",
                service.key
            );
            let reason = WaitReason::Booking;
            Plan::only(PlanVerdict::Waiting(Wait { reason, message, needs_user: false, retry_after: Some(rest) }))
        }
    }
}

/// For how long a write may still collide with those of the host; `None`: it collides no more.
fn busy(lb: &LbView, world: &World<'_>) -> Option<Duration> {
    let rest = BOOKING.saturating_sub(world.ages.of(lb));
    (!lb.is_settled() && !rest.is_zero()).then_some(rest)
}
