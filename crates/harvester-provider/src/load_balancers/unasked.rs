//! Limits changes that clients of a served Service would notice although the user did not request them. Pure. There are
//! two kinds. A load balancer that is missing on Harvester is created again, and gets another address. An allocation
//! that has changed is published. For one Service that is a repair. For many at once, a wrong view of Harvester is the
//! likelier cause.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use cloud_provider::breaker::{Allowed, Recent, allowed};
use cloud_provider::service::NO_LOAD_BALANCER_YET;
use cloud_provider::view::{ServiceKey, ServiceView};
use k8s_openapi::jiff::Timestamp;
use tokio::time::Instant;

use super::choice::{self, Source};
use super::plan::Action;
use super::service_patch::Role;
use super::view::LbView;

/// A younger Service is assumed to have no clients yet. Its age changes only if it is created again.
const LONG_SERVED: Duration = Duration::from_mins(30);

/// Time between two checks.
const SECOND_LOOK: Duration = Duration::from_secs(2);

/// A refused Service asks again after this time: the reason may have gone.
pub const ASK_AGAIN: Duration = Duration::from_mins(1);

/// A Service that has not asked for this long is paused or held, and no longer counts.
const ASKS_NO_MORE: Duration = Duration::from_mins(5);

/// How long an operator's confirmation is valid.
const WORD_LASTS: Duration = Duration::from_mins(10);

/// Whether a Service has had its load balancer and is served. The controller's condition on it tells that, even across
/// restarts and outages of the announcers. A Service that was just taken over from another controller is served without
/// the condition.
fn is_long_served(service: &ServiceView, now: Timestamp) -> bool {
    let made = service.conditions.ready.as_ref().is_some_and(|ready| ready.reason != NO_LOAD_BALANCER_YET);
    let long = i64::try_from(LONG_SERVED.as_secs()).unwrap_or(i64::MAX);
    made && !service.ingress.is_empty() && service.created.is_some_and(|created| now.as_second() - created >= long)
}

/// Whether clients of the Service would notice this action, although the user did not request it. `objects`: the
/// objects of the Service.
pub fn is_unasked(service: &ServiceView, action: &Action, objects: &[&LbView], now: Timestamp) -> bool {
    match action {
        // The object of a move is created besides the one that serves.
        Action::Create(_) => objects.is_empty() && is_long_served(service, now),
        Action::Patch(patch) if patch.role == Role::Primary && !service.ingress.is_empty() => {
            let (Ok(Source::Pool(_)), Ok(booked)) = (choice::source(service), patch.address.parse::<IpAddr>()) else {
                return false;
            };
            // A move to another pool was requested by the user.
            !service.ingress.contains(&booked) && objects.len() == 1
        }
        _ => false,
    }
}

/// The answer to a Service that asks for a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// The change may be made.
    Yes,
    /// The change may be made if everything it is based on is read again and is unchanged.
    Confirmed,
    /// The Service asks again after this time.
    Later(Duration),
    /// The change needs an operator's confirmation, because this many Services ask.
    No(usize),
}

/// Counts the Services that ask for such changes.
#[derive(Debug, Default)]
pub struct Breaker {
    recent: Recent,
    /// Services that ask: since when, and when they last did.
    asking: BTreeMap<ServiceKey, (Instant, Instant)>,
    /// Services whose change was granted and may still wait for its turn. They do not count again.
    granted: BTreeSet<ServiceKey>,
}

impl Breaker {
    /// Asks whether this Service may be changed. `all`: the number of served Services. `word`: time of the last
    /// confirmation by an operator.
    pub fn ask(&mut self, service: &ServiceKey, all: usize, word: Option<Instant>, now: Instant) -> Answer {
        if self.granted.contains(service) {
            return Answer::Yes;
        }
        self.asking.retain(|_, (_, last)| now.saturating_duration_since(*last) < ASKS_NO_MORE);
        let (since, last) = self.asking.entry(service.clone()).or_insert((now, now));
        *last = now;
        let since = *since;
        if word.is_some_and(|word| now.saturating_duration_since(word) < WORD_LASTS) {
            return Answer::Yes;
        }
        let rest = SECOND_LOOK.saturating_sub(now.saturating_duration_since(since));
        match allowed(self.recent.count(now), self.asking.len(), all) {
            Allowed::Yes => Answer::Yes,
            Allowed::Confirmed if rest.is_zero() => Answer::Confirmed,
            Allowed::Confirmed => Answer::Later(rest),
            Allowed::No => Answer::No(self.asking.len()),
        }
    }

    /// Records that the Service is being changed.
    pub fn changed(&mut self, service: &ServiceKey, now: Instant) {
        if self.asking.remove(service).is_some() && self.granted.insert(service.clone()) {
            self.recent.note(now);
        }
    }

    /// The Service no longer asks. A granted change stays granted until it is done, because a new object is followed by
    /// a new address.
    pub fn over(&mut self, service: &ServiceKey) {
        self.asking.remove(service);
    }

    /// The Service is repaired or gone.
    pub fn done(&mut self, service: &ServiceKey) {
        self.asking.remove(service);
        self.granted.remove(service);
    }
}

#[cfg(test)]
mod tests {
    use cloud_provider::view::{Condition, ConditionStatus};

    use super::super::build::{config, key, lb, service};
    use super::super::desired::new_object;
    use super::super::service_patch::publish;
    use super::*;

    /// Made at that time, with this condition since a moment ago.
    fn served(created: &str, status: ConditionStatus, reason: &str) -> ServiceView {
        let mut web = service("default/web").ingress("10.0.0.1").done();
        let (message, since) = (String::new(), "2026-01-01T11:59:59Z".to_owned());
        web.conditions.ready = Some(Condition { status, reason: reason.to_owned(), message, since });
        web.created = Some(created.parse::<Timestamp>().unwrap().as_second());
        web
    }

    #[test]
    fn what_nobody_asked_for_and_clients_notice() {
        let now: Timestamp = "2026-01-01T12:00:00Z".parse().unwrap();
        let (long_ago, a_moment_ago) = ("2026-01-01T00:00:00Z", "2026-01-01T11:59:00Z");
        let long = served(long_ago, ConditionStatus::True, "Served");
        let create = Action::Create(Box::new(new_object(&config(), "lb", &long, &Source::Pool(None))));
        let shows = |address: &str| Action::Patch(publish(&long, address, None));
        let of = |annotations: &[(&str, &str)]| {
            let mut web = service("default/web").short(annotations).ingress("10.0.0.1").done();
            web.conditions = long.conditions.clone();
            web.created = long.created;
            web
        };
        let (one, two) = (lb("a").ready("10.0.0.2").done(), lb("b").ready("10.0.0.1").done());
        let (none, one, both): (Vec<&LbView>, _, _) = (vec![], vec![&one], vec![&one, &two]);
        for (sentence, service, action, objects, expected) in [
            ("the object of a served Service is missing", long.clone(), &create, &none, true),
            ("a new Service", service("default/web").done(), &create, &none, false),
            (
                "one that was made a moment ago",
                served(a_moment_ago, ConditionStatus::True, "Served"),
                &create,
                &none,
                false,
            ),
            (
                "one that something else serves, however long",
                served(long_ago, ConditionStatus::True, NO_LOAD_BALANCER_YET),
                &create,
                &none,
                false,
            ),
            (
                "no announcer is left that could say whether it is served",
                served(long_ago, ConditionStatus::Unknown, "NoAnnouncer"),
                &create,
                &none,
                true,
            ),
            (
                "one that an older version served",
                ServiceView { conditions: cloud_provider::view::Conditions::default(), ..long.clone() },
                &create,
                &none,
                false,
            ),
            ("a move to another pool", long.clone(), &create, &one, false),
            ("another booking", long.clone(), &shows("10.0.0.2"), &one, true),
            ("the same booking", long.clone(), &shows("10.0.0.1"), &one, false),
            (
                "a booking of a Service that is not served",
                service("default/web").done(),
                &shows("10.0.0.2"),
                &one,
                false,
            ),
            ("the end of a move", long.clone(), &shows("10.0.0.2"), &both, false),
            (
                "another address that the user names",
                of(&[("ipam", "static"), ("want", "10.0.0.9")]),
                &shows("10.0.0.9"),
                &one,
                false,
            ),
            ("a lease", of(&[("ipam", "dhcp")]), &shows("0.0.0.0"), &one, false),
        ] {
            assert_eq!(is_unasked(&service, action, objects, now), expected, "{sentence}");
        }
    }

    /// Of `all` Services so many ask, one after the other, and again after two seconds; how many are changed in the
    /// end?
    fn changed(breaker: &mut Breaker, all: usize, ask: usize, word: Option<Instant>) -> usize {
        let start = Instant::now();
        let mut left: Vec<ServiceKey> = (0..ask).map(|number| key(&format!("default/web-{number}"))).collect();
        for round in 0..4 {
            let now = start + SECOND_LOOK * round;
            left.retain(|service| {
                let goes = matches!(breaker.ask(service, all, word, now), Answer::Yes | Answer::Confirmed);
                if goes {
                    breaker.changed(service, now);
                }
                !goes
            });
        }
        ask - left.len()
    }

    #[test]
    fn few_go_at_once_more_after_a_second_look_and_more_than_a_third_never() {
        for (all, ask, expected) in
            [(1, 1, 1), (5, 3, 3), (5, 4, 3), (30, 4, 4), (30, 10, 10), (30, 11, 3), (300, 30, 30), (300, 200, 30)]
        {
            assert_eq!(changed(&mut Breaker::default(), all, ask, None), expected, "{ask} of {all}");
        }
    }

    #[test]
    fn a_humans_word_lets_them_all_go_for_a_while() {
        let mut breaker = Breaker::default();
        assert_eq!(changed(&mut breaker, 30, 20, None), 3);
        let (now, old) = (Instant::now() + SECOND_LOOK * 4, Instant::now().checked_sub(WORD_LASTS));
        assert_eq!(breaker.ask(&key("default/web-9"), 30, old, now), Answer::No(17));
        assert_eq!(changed(&mut breaker, 30, 20, Some(Instant::now())), 20);
    }

    #[test]
    fn who_waits_for_its_turn_counts_once() {
        let (mut breaker, now) = (Breaker::default(), Instant::now());
        for _ in 0..9 {
            assert_eq!(breaker.ask(&key("default/web"), 5, None, now), Answer::Yes);
            breaker.changed(&key("default/web"), now);
        }
        assert_eq!(breaker.ask(&key("default/other"), 5, None, now), Answer::Yes);
        breaker.done(&key("default/web"));
        assert_eq!(breaker.recent.count(now), 1);
    }

    /// The object is made, the next passes wait for its booking, and then the booking is published.
    #[test]
    fn a_repair_in_two_steps_counts_once() {
        let (mut breaker, now) = (Breaker::default(), Instant::now());
        let services: Vec<ServiceKey> = (0..3).map(|number| key(&format!("default/web-{number}"))).collect();
        for step in ["create", "publish"] {
            for service in &services {
                assert_eq!(breaker.ask(service, 9, None, now), Answer::Yes, "{step} {service}");
                breaker.changed(service, now);
                breaker.over(service);
            }
        }
        for service in &services {
            breaker.done(service);
        }
        assert_eq!((breaker.recent.count(now), breaker.granted.len()), (3, 0));
        assert_ne!(breaker.ask(&services[0], 9, None, now), Answer::Yes, "another loss of the same is another one");
    }

    /// It was paused, or may not be written for another reason.
    #[test]
    fn who_has_not_asked_for_long_does_not_count() {
        let (mut breaker, now) = (Breaker::default(), Instant::now());
        for number in 0..10 {
            breaker.ask(&key(&format!("default/web-{number}")), 15, None, now);
        }
        assert_eq!(breaker.ask(&key("default/web-0"), 15, None, now), Answer::No(10));
        assert_eq!(breaker.ask(&key("default/web-0"), 15, None, now + ASKS_NO_MORE), Answer::Yes);
    }

    #[test]
    fn who_asks_no_more_does_not_count() {
        let (mut breaker, now) = (Breaker::default(), Instant::now());
        for number in 0..10 {
            breaker.ask(&key(&format!("default/web-{number}")), 15, None, now);
        }
        assert_eq!(breaker.ask(&key("default/web-0"), 15, None, now), Answer::No(10));
        (1..10).for_each(|number| breaker.over(&key(&format!("default/web-{number}"))));
        assert_eq!(breaker.ask(&key("default/web-0"), 15, None, now), Answer::Yes);
    }
}
