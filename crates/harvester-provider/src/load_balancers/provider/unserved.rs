//! Detects addresses that are published but not served. The announcer is missing or unable to serve, so only the
//! controller can report this on the Service.

use std::collections::{BTreeSet, HashMap};
use std::time::{Duration, Instant};

use cloud_provider::cache::ServiceCache;
use cloud_provider::service::wants_load_balancer;
use cloud_provider::view::{ConditionStatus, ServiceKey, ServiceView};
use futures::stream::{Stream, StreamExt};
use harvester_api::keys::kube_vip;

use super::super::plan::UNSERVED;
use super::super::wait_reason::WaitReason;

/// Interval of the checks: an inactive announcer causes no watch event.
const EVERY: Duration = Duration::from_secs(10);

/// Whether the Service shows an address and has none in its status.
pub(super) fn is_unserved(service: &ServiceView) -> bool {
    !shown(service).is_empty() && service.ingress.is_empty() && wants_load_balancer(service)
}

fn shown(service: &ServiceView) -> &str {
    service.annotations.get(kube_vip::LOADBALANCER_IPS).unwrap_or_default()
}

/// An address that no announcer serves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Unserved {
    address: String,
    since: Instant,
    /// How long a former process had already seen this state, at least.
    before: Duration,
}

impl Unserved {
    /// Updates the state; `known` is the former state of the Service. The time starts anew with another address.
    pub(super) fn of(service: &ServiceView, known: Option<Self>, now: Instant) -> Self {
        let before = if known.is_none() { told_before(service) } else { Duration::ZERO };
        match known {
            Some(known) if known.address == shown(service) => known,
            _ => Self { address: shown(service).to_owned(), since: now, before },
        }
    }

    pub(super) fn elapsed(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.since).max(self.before)
    }
}

/// How long the address has been unserved at least, if a former process has already reported it. Otherwise each restart
/// would report success for a minute, which would be two writes and untrue.
fn told_before(service: &ServiceView) -> Duration {
    let told = service.conditions.ready.as_ref().is_some_and(|condition| {
        condition.status == ConditionStatus::False && condition.reason == WaitReason::Unserved.word()
    });
    if told { UNSERVED + Duration::from_secs(1) } else { Duration::ZERO }
}

/// Since when Services are not served at an address, and whether they were woken for that.
#[derive(Debug, Default)]
struct UnservedSince(HashMap<(ServiceKey, String), (Instant, bool)>);

impl UnservedSince {
    /// The Services that have waited too long now, each once.
    fn late(&mut self, now: Instant, unserved: BTreeSet<(ServiceKey, String)>) -> Vec<ServiceKey> {
        self.0.retain(|one, _| unserved.contains(one));
        let late = |entry: &mut (Instant, bool)| {
            now.saturating_duration_since(entry.0) > UNSERVED && !std::mem::replace(&mut entry.1, true)
        };
        let mut woken = Vec::new();
        for one in unserved {
            if late(self.0.entry(one.clone()).or_insert((now, false))) {
                woken.push(one.0);
            }
        }
        woken
    }
}

/// A stream of Services to reconcile because no announcer serves them.
pub(super) fn wakes(services: ServiceCache) -> impl Stream<Item = ServiceKey> {
    let ticks = futures::stream::unfold((), |()| async {
        tokio::time::sleep(EVERY).await;
        Some(((), ()))
    });
    let mut seen = UnservedSince::default();
    ticks.flat_map(move |()| {
        let unserved = services.all().into_iter().filter(|service| is_unserved(service));
        let unserved = unserved.map(|service| (service.key.clone(), shown(&service).to_owned())).collect();
        futures::stream::iter(seen.late(Instant::now(), unserved))
    })
}

#[cfg(test)]
mod tests {
    use cloud_provider::view::{Condition, Conditions};

    use super::super::super::build::{key, service};
    use super::*;

    #[test]
    fn a_service_is_woken_once_when_nobody_serves_it_for_too_long() {
        let start = Instant::now();
        let mut seen = UnservedSince::default();
        let web = || BTreeSet::from([(key("default/web"), "10.0.0.1".to_owned())]);
        let none = BTreeSet::new;
        assert_eq!(seen.late(start, web()), []);
        let late = start + UNSERVED + Duration::from_secs(1);
        assert_eq!((seen.late(late, web()), seen.late(late + EVERY, web())), (vec![key("default/web")], vec![]));
        assert_eq!(seen.late(late, none()), [], "served");
        assert_eq!(seen.late(late + EVERY, web()), [], "it counts anew");
    }

    #[test]
    fn another_address_has_a_minute_of_its_own() {
        let showing = |address| ServiceView {
            conditions: said(ConditionStatus::False, "NotServed"),
            ..service("default/web").short(&[("ip", address)]).done()
        };
        let start = Instant::now();
        let first = Unserved::of(&showing("10.0.0.1"), None, start);
        assert!(first.elapsed(start) > UNSERVED, "a former process has waited");
        let same = Unserved::of(&showing("10.0.0.1"), Some(first), start);
        assert!(same.elapsed(start) > UNSERVED);
        assert!(Unserved::of(&showing("10.0.0.2"), Some(same), start).elapsed(start) < UNSERVED);
        let mut seen = UnservedSince::default();
        let one = |address: &str| BTreeSet::from([(key("default/web"), address.to_owned())]);
        let late = UNSERVED + Duration::from_secs(1);
        assert_eq!((seen.late(start, one("10.0.0.1")), seen.late(start + late, one("10.0.0.1")).len()), (vec![], 1));
        assert_eq!(seen.late(start + late, one("10.0.0.2")), []);
        assert_eq!(seen.late(start + 2 * late, one("10.0.0.2")).len(), 1);
    }

    fn said(status: ConditionStatus, reason: &str) -> Conditions {
        let condition = Condition { status, reason: reason.into(), message: String::new(), since: String::new() };
        Conditions { ready: Some(condition), warning: None }
    }

    #[test]
    fn only_a_condition_that_says_so_counts_from_a_former_process() {
        let with =
            |status, reason: &str| ServiceView { conditions: said(status, reason), ..service("default/web").done() };
        assert!(told_before(&with(ConditionStatus::False, "NotServed")) > UNSERVED);
        let others = [with(ConditionStatus::True, "Served"), with(ConditionStatus::False, "NoSuchPool")];
        for other in others.into_iter().chain([service("default/web").done()]) {
            assert_eq!(told_before(&other), Duration::ZERO, "{:?}", other.conditions);
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
