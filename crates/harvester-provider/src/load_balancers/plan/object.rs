//! Evaluates an existing object for a Service: which Service owns it, whether it matches the request, why it has no
//! address yet, and which other Services have that address.

use std::net::IpAddr;
use std::time::Duration;

use cloud_provider::view::{Family, ServiceView};
use harvester_api::keys::cloudprovider;

use super::super::choice::Source;
use super::super::host_words::{self, Resend, Waited};
use super::super::network::wanted_network;
use super::super::view::LbView;
use super::super::wait_reason::{Wait, WaitReason};
use super::{PlanRefusal, PlanVerdict, World};
use crate::config::LoadBalancerConfig;

/// Interval at which a Service checks whether another one with a static address still uses the address that was
/// allocated for it.
const STATIC_INTERVAL: Duration = Duration::from_secs(30);

/// Interval at which a Service checks whether the cluster may have one more load balancer.
const QUOTA_INTERVAL: Duration = Duration::from_secs(30);

/// Longer than any patience with the host.
const LONG: Waited = Waited { known: Duration::MAX, idle: Duration::MAX };

/// Whether a condition of the Service has this trouble already.
fn is_told(service: &ServiceView, wait: &Wait) -> bool {
    let conditions = service.conditions.by_type();
    let mut reasons = conditions.iter().filter_map(|(_, shown)| shown.as_ref()).map(|shown| shown.reason.as_str());
    reasons.any(|reason| reason == wait.reason.word())
}

/// The refusal, if the object's labels name another Service.
pub(super) fn foreign(service: &ServiceView, lb: &LbView, config: &LoadBalancerConfig) -> Option<PlanRefusal> {
    let (namespace, name) = lb.service()?;
    if (namespace, name) == (service.key.namespace.as_str(), service.key.name.as_str()) {
        return None;
    }
    let owner = format!("{namespace}/{name}");
    Some(PlanRefusal::Foreign {
        lb: format!("{}/{}", config.namespace, lb.name),
        owner,
        service: service.key.to_string(),
    })
}

/// The refusal, if the network has changed. Only an existing and different copy of the network counts: objects from
/// before v0.2.7 have none (W-01).
pub(super) fn network_changed(service: &ServiceView, lb: &LbView, config: &LoadBalancerConfig) -> Option<PlanRefusal> {
    let found = lb.annotations.get(cloudprovider::LB_NETWORK)?;
    let wanted = wanted_network(service);
    (wanted != found).then(|| PlanRefusal::NetworkChanged {
        service: service.key.to_string(),
        lb: format!("{}/{}", config.namespace, lb.name),
        wanted: wanted.to_owned(),
        found: found.to_owned(),
    })
}

/// Why there is no address yet, and whether to send the object again. `then`: the sentence about what follows when
/// there is an address.
pub(super) fn without_address(
    service: &ServiceView,
    lb: &LbView,
    then: &str,
    world: &World<'_>,
) -> (Option<Resend>, PlanVerdict) {
    let config = world.config;
    let known = world.ages.of(lb);
    // The object that takes over in a move has no time of its own, and waits for as long as it is known.
    let waited = Waited { known, idle: world.idle.unwrap_or(known) };
    let after = |waited| host_words::no_address(lb, (config.cluster_name.as_str(), &config.namespace), then, waited);
    // What a former process has already told needs no second patience: a restart would report that the Service is on
    // its way, which would be two writes and untrue.
    let lasts = after(LONG);
    let told = if is_told(service, &lasts.waiting) { lasts } else { after(waited) };
    let mut waiting = told.waiting;
    let due = told.resend.filter(|resend| world.idle.is_some_and(|idle| idle >= resend.interval()));
    if let (Some(resend), None) = (told.resend, due) {
        waiting.retry_after = Some(resend.interval().saturating_sub(world.idle.unwrap_or_default()));
    }
    (due, PlanVerdict::Waiting(waiting))
}

/// Harvester has allocated an address that another Service has: a static one, or one whose allocation Harvester has
/// lost. Two nodes must not answer for it, so the Service that has it keeps it.
pub(super) fn used_by_static(
    service: &ServiceView,
    source: &Source,
    lb: &LbView,
    world: &World<'_>,
) -> Option<PlanVerdict> {
    let (Source::Pool(_), Some(address), Some(by)) = (source, &lb.usable_address, &world.address_user) else {
        return None;
    };
    let service = &service.key;
    let message = format!(
        "Harvester booked address {address} for service {service}, and service {by} has it. If service {by} asks for \
         it by annotation {ip}: static addresses must lie outside all pools; give service {by} another address, or \
         exclude {address} from the IPPool and create service {service} anew. If not, the pool was made anew or \
         Harvester was restored: service {by} keeps the address until it has another one",
        ip = cloudprovider::IP
    );
    let (reason, retry_after) = (WaitReason::AddressTaken, Some(STATIC_INTERVAL));
    Some(PlanVerdict::Waiting(Wait { reason, message, needs_user: true, retry_after }))
}

/// The host ignores families and allocates what the pool has.
pub(super) fn wrong_family(service: &ServiceView, source: &Source, lb: &LbView) -> Option<PlanRefusal> {
    let booked = lb.usable_address.as_ref().filter(|_| matches!(source, Source::Pool(_)))?.parse::<IpAddr>().ok()?;
    let wrong = !service.families.is_empty() && !service.families.contains(&Family::from(booked));
    wrong.then(|| PlanRefusal::WrongFamily { service: service.key.clone(), booked, families: service.families.clone() })
}

/// The wait state for a cluster that has reached its limit of load balancers.
pub(super) fn over_quota(limit: usize) -> PlanVerdict {
    let message = format!(
        "this cluster may have {limit} load balancers and has them (--max-load-balancers): delete a Service that needs \
         no address, share one with annotation {}, or raise the limit",
        cloudprovider::PRIMARY_SERVICE
    );
    let (reason, retry_after) = (WaitReason::Quota, Some(QUOTA_INTERVAL));
    PlanVerdict::Waiting(Wait { reason, message, needs_user: true, retry_after })
}
