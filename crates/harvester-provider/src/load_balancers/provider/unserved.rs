//! Addresses that are published and that nobody serves: the announcer is missing or cannot, and only we can say so on the Service.

use std::collections::{BTreeSet, HashMap};
use std::time::{Duration, Instant};

use cloud_provider::cache::ServiceCache;
use cloud_provider::service::wants_load_balancer;
use cloud_provider::view::{ServiceKey, ServiceView};
use futures::stream::{Stream, StreamExt};
use harvester_api::keys::kube_vip;

use super::super::plan::UNSERVED;
use super::super::wait_reason::WaitReason;

/// How often it is looked for: nothing changes when an announcer does nothing, so nothing wakes.
const EVERY: Duration = Duration::from_secs(10);

/// It shows an address and has none in its status.
pub(super) fn is_unserved(service: &ServiceView) -> bool {
    let shows = service.annotations.get(kube_vip::LOADBALANCER_IPS).is_some_and(|ips| !ips.is_empty());
    shows && service.ingress.is_empty() && wants_load_balancer(service)
}

/// What a former process has said already: for at least so long it is unserved. Saying "all is well" for a minute after each restart
/// would be two writes and a lie.
pub(super) fn told_before(service: &ServiceView) -> Duration {
    let told = service.condition.as_ref();
    let told = told.is_some_and(|condition| !condition.status && condition.reason == WaitReason::Unserved.word());
    if told { UNSERVED + Duration::from_secs(1) } else { Duration::ZERO }
}

/// Since when Services are not served, and whether they were woken for that.
#[derive(Debug, Default)]
struct Seen(HashMap<ServiceKey, (Instant, bool)>);

impl Seen {
    /// Who has been waiting for too long now, each once.
    fn late(&mut self, now: Instant, unserved: BTreeSet<ServiceKey>) -> Vec<ServiceKey> {
        self.0.retain(|key, _| unserved.contains(key));
        let late = |entry: &mut (Instant, bool)| {
            now.saturating_duration_since(entry.0) > UNSERVED && !std::mem::replace(&mut entry.1, true)
        };
        unserved.into_iter().filter(|key| late(self.0.entry(key.clone()).or_insert((now, false)))).collect()
    }
}

/// Services to look at because nobody serves them.
pub(super) fn wakes(services: ServiceCache) -> impl Stream<Item = ServiceKey> {
    let ticks = futures::stream::unfold((), |()| async {
        tokio::time::sleep(EVERY).await;
        Some(((), ()))
    });
    let mut seen = Seen::default();
    ticks.flat_map(move |()| {
        let unserved = services.all().into_iter().filter(|service| is_unserved(service));
        let unserved = unserved.map(|service| service.key.clone()).collect();
        futures::stream::iter(seen.late(Instant::now(), unserved))
    })
}

#[cfg(test)]
mod tests {
    use cloud_provider::view::Condition;

    use super::super::super::build::{key, service};
    use super::*;

    #[test]
    fn a_service_is_woken_once_when_nobody_serves_it_for_too_long() {
        let start = Instant::now();
        let mut seen = Seen::default();
        let web = || BTreeSet::from([key("default/web")]);
        let none = BTreeSet::new;
        assert_eq!(seen.late(start, web()), []);
        let late = start + UNSERVED + Duration::from_secs(1);
        assert_eq!((seen.late(late, web()), seen.late(late + EVERY, web())), (vec![key("default/web")], vec![]));
        assert_eq!(seen.late(late, none()), [], "served");
        assert_eq!(seen.late(late + EVERY, web()), [], "it counts anew");
    }

    #[test]
    fn only_a_condition_that_says_so_counts_from_a_former_process() {
        let with = |status, reason: &str| {
            let condition = Condition { status, reason: reason.into(), message: String::new(), since: String::new() };
            ServiceView { condition: Some(condition), ..service("default/web").done() }
        };
        assert!(told_before(&with(false, "NotServed")) > UNSERVED);
        for other in [with(true, "Ready"), with(false, "NoSuchPool"), service("default/web").done()] {
            assert_eq!(told_before(&other), Duration::ZERO, "{:?}", other.condition);
        }
    }

    #[test]
    fn only_a_published_address_can_be_unserved() {
        let published = || service("default/web").short(&[("ip", "10.0.0.1")]);
        assert!(is_unserved(&published().done()));
        assert!(!is_unserved(&published().ingress("10.0.0.1").done()));
        assert!(!is_unserved(&service("default/web").done()), "nothing is published yet");
        assert!(!is_unserved(&ServiceView { has_class: true, ..published().done() }));
    }
}
