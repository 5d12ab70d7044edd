//! What an object that is there means for a Service: whose it is, whether it is the right one, and why it has no address yet.

use cloud_provider::view::ServiceView;
use harvester_api::keys::cloudprovider;

use super::super::host_words::{self, Resend};
use super::super::network::wanted_network;
use super::super::view::LbView;
use super::{Refusal, Verdict, World};
use crate::config::LoadBalancerConfig;

/// Its labels name another Service.
pub(super) fn foreign(service: &ServiceView, lb: &LbView, config: &LoadBalancerConfig) -> Option<Refusal> {
    let (namespace, name) = lb.service()?;
    if (namespace, name) == (service.key.namespace.as_str(), service.key.name.as_str()) {
        return None;
    }
    let owner = format!("{namespace}/{name}");
    Some(Refusal::Foreign { lb: format!("{}/{}", config.namespace, lb.name), owner, service: service.key.to_string() })
}

/// Only a frozen copy that is present and different is a change: objects from before v0.2.7 have none (W-01).
pub(super) fn network_changed(service: &ServiceView, lb: &LbView, config: &LoadBalancerConfig) -> Option<Refusal> {
    let found = lb.annotations.get(cloudprovider::LB_NETWORK)?;
    let wanted = wanted_network(service);
    (wanted != found).then(|| Refusal::NetworkChanged {
        service: service.key.to_string(),
        lb: format!("{}/{}", config.namespace, lb.name),
        wanted: wanted.to_owned(),
        found: found.to_owned(),
    })
}

/// Why there is no address yet, and whether sending the object again may help; `then` says what follows when there is one.
pub(super) fn without_address(lb: &LbView, then: &str, world: &World<'_>) -> (Option<Resend>, Verdict) {
    let config = world.config;
    let told = host_words::no_address(lb, (config.cluster_name.as_str(), &config.namespace), then, world.ages.of(lb));
    let mut waiting = told.waiting;
    let due = told.resend.filter(|resend| world.idle.is_some_and(|idle| idle >= resend.interval()));
    if let (Some(resend), None) = (told.resend, due) {
        waiting.retry_after = Some(resend.interval().saturating_sub(world.idle.unwrap_or_default()));
    }
    (due, Verdict::Waiting(waiting, told.reason))
}
