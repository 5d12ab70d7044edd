//! How many addresses may be changed at once although nobody asked for it ([`super::unasked`]): pure. Services that
//! share an address count once: one of them asks, and the others follow it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use cloud_provider::at_once::{Allowed, Recent, allowed};
use cloud_provider::service::wants_load_balancer;
use cloud_provider::view::{ServiceKey, ServiceView};
use tokio::time::Instant;

/// Two looks are so far apart.
const SECOND_LOOK: Duration = Duration::from_secs(2);

/// After the first Service has asked, a process waits no longer than this for others that are to ask, too.
const LONGEST_FIRST_LOOK: Duration = Duration::from_secs(20);

/// Who is refused asks again after this time: what has kept it may have ended.
pub const ASK_AGAIN: Duration = Duration::from_mins(1);

/// Who has not asked for so long is paused or held, and no part of what is seen now.
const ASKS_NO_MORE: Duration = Duration::from_mins(5);

/// For so long an operator's confirmation counts.
const CONFIRMATION_LASTS: Duration = Duration::from_mins(10);

/// What a Service is answered that asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BreakerAnswer {
    /// It may go on.
    Yes,
    /// It may go on if all that is decided on is read once more, and is as it was.
    Confirmed,
    /// It asks again after this time.
    Later(Duration),
    /// Nothing without an operator's confirmation: so many addresses would change.
    No(usize),
}

/// How many addresses these Services are served at.
pub fn served_addresses<'a>(services: impl IntoIterator<Item = &'a ServiceView>) -> usize {
    let served = services.into_iter().filter(|service| wants_load_balancer(service));
    served.filter_map(|service| service.ingress.first()).collect::<BTreeSet<_>>().len()
}

/// Counts who asks, and who was changed.
#[derive(Debug, Default)]
pub struct Breaker {
    recent: Recent,
    /// Services that ask, since when, and when they last did.
    asking: BTreeMap<ServiceKey, (Instant, Instant)>,
    /// Services that may be changed, and may have to wait for their turn: they do not count twice.
    granted: BTreeSet<ServiceKey>,
    /// When the first Service asked in this life, and until when nothing is granted from then on.
    first_look: Option<(Instant, Instant)>,
}

impl Breaker {
    /// May this Service be changed unasked? `all`: how many addresses are served. `confirmed`: when a human last said
    /// that all is as it is to be.
    pub fn ask(&mut self, service: &ServiceKey, all: usize, confirmed: Option<Instant>, now: Instant) -> BreakerAnswer {
        if self.granted.contains(service) {
            return BreakerAnswer::Yes;
        }
        self.asking.retain(|_, (_, last)| now.saturating_duration_since(*last) < ASKS_NO_MORE);
        let begins = !self.asking.contains_key(service);
        let (since, last) = self.asking.entry(service.clone()).or_insert((now, now));
        *last = now;
        let since = *since;
        if confirmed.is_some_and(|confirmed| now.saturating_duration_since(confirmed) < CONFIRMATION_LASTS) {
            return BreakerAnswer::Yes;
        }
        let first_look = self.first_look(begins, now);
        if !first_look.is_zero() {
            return BreakerAnswer::Later(first_look);
        }
        let rest = SECOND_LOOK.saturating_sub(now.saturating_duration_since(since));
        match allowed(self.recent.count(now), self.asking.len(), all) {
            Allowed::Yes => BreakerAnswer::Yes,
            Allowed::Confirmed if rest.is_zero() => BreakerAnswer::Confirmed,
            Allowed::Confirmed => BreakerAnswer::Later(rest),
            Allowed::No => BreakerAnswer::No(self.asking.len()),
        }
    }

    /// How long nothing is granted yet. Services ask one after the other, so the first ones are few, however many
    /// follow. A new process does not know which Services the former one has refused: without this wait each restart
    /// would let some more of them go. The wait ends when no further Service has begun to ask for [`SECOND_LOOK`].
    fn first_look(&mut self, begins: bool, now: Instant) -> Duration {
        let (first, end) = self.first_look.get_or_insert((now, now + SECOND_LOOK));
        if begins && now < *end {
            *end = (now + SECOND_LOOK).min(*first + LONGEST_FIRST_LOOK);
        }
        end.saturating_duration_since(now)
    }

    /// It is changed from now on.
    pub fn changed(&mut self, service: &ServiceKey, now: Instant) {
        if self.asking.remove(service).is_some() && self.granted.insert(service.clone()) {
            self.recent.note(now);
        }
    }

    /// It asks no more. What it was granted lasts until it is done: of an object that is made anew the address follows.
    pub fn over(&mut self, service: &ServiceKey) {
        self.asking.remove(service);
    }

    /// It is repaired, or is no Service any more.
    pub fn done(&mut self, service: &ServiceKey) {
        self.asking.remove(service);
        self.granted.remove(service);
    }
}

#[cfg(test)]
mod tests {
    use super::super::build::{key, service};
    use super::*;

    fn webs(count: usize) -> Vec<ServiceKey> {
        (0..count).map(|number| key(&format!("default/web-{number}"))).collect()
    }

    /// A breaker whose first look is over, and the time.
    fn running() -> (Breaker, Instant) {
        let (mut breaker, start) = (Breaker::default(), Instant::now());
        let first = key("default/first");
        assert_eq!(breaker.ask(&first, 1, None, start), BreakerAnswer::Later(SECOND_LOOK));
        breaker.over(&first);
        (breaker, start + SECOND_LOOK)
    }

    /// Of `all` Services these ask from `start` on, one after the other, and again after two seconds; who is left as it
    /// is in the end?
    fn left(
        breaker: &mut Breaker,
        start: Instant,
        all: usize,
        mut ask: Vec<ServiceKey>,
        confirmed: Option<Instant>,
    ) -> Vec<ServiceKey> {
        for round in 0..4 {
            let now = start + SECOND_LOOK * round;
            ask.retain(|service| {
                let goes =
                    matches!(breaker.ask(service, all, confirmed, now), BreakerAnswer::Yes | BreakerAnswer::Confirmed);
                if goes {
                    breaker.changed(service, now);
                }
                !goes
            });
        }
        ask
    }

    #[test]
    fn few_go_at_once_more_after_a_second_look_and_more_than_a_third_never() {
        for (all, ask, expected) in
            [(1, 1, 1), (5, 3, 3), (5, 4, 3), (30, 4, 4), (30, 10, 10), (30, 11, 3), (300, 30, 30), (300, 200, 30)]
        {
            let (mut breaker, start) = running();
            let left = left(&mut breaker, start, all, webs(ask), None);
            assert_eq!(ask - left.len(), expected, "{ask} of {all}");
        }
    }

    /// Who was refused is forgotten with the process: each life let another tenth go, until the rest was less than a
    /// third.
    #[test]
    fn no_restart_lets_go_who_was_refused_before() {
        for (all, ask, expected) in [(5, 4, 0), (30, 11, 0), (300, 200, 0), (300, 30, 30), (30, 10, 10), (5, 3, 3)] {
            let mut waiting = webs(ask);
            for life in 1..=7 {
                waiting = left(&mut Breaker::default(), Instant::now(), all, waiting, None);
                assert_eq!(ask - waiting.len(), expected, "{ask} of {all} in life {life}");
            }
        }
    }

    /// There are thousands of Services, and both a process that begins and an API server are slow.
    #[test]
    fn a_process_that_begins_waits_until_nobody_begins_to_ask_any_more() {
        let (mut breaker, start) = (Breaker::default(), Instant::now());
        let services = webs(11);
        for (service, second) in services.iter().zip(0..) {
            let now = start + Duration::from_secs(second);
            assert_eq!(breaker.ask(service, 30, None, now), BreakerAnswer::Later(SECOND_LOOK), "{second}");
        }
        let late = start + Duration::from_secs(10) + SECOND_LOOK;
        assert_eq!(breaker.ask(&services[0], 30, None, late), BreakerAnswer::No(11));
    }

    #[test]
    fn services_that_begin_to_ask_for_ever_keep_nobody_waiting_for_ever() {
        let (mut breaker, start) = (Breaker::default(), Instant::now());
        let end = LONGEST_FIRST_LOOK.as_secs();
        for (service, second) in webs(30).iter().zip(0..) {
            let answer = breaker.ask(service, 300, None, start + Duration::from_secs(second));
            assert_eq!(matches!(answer, BreakerAnswer::Later(_)), second < end, "{second}: {answer:?}");
        }
    }

    /// A primary with ten sharers asks for all of them: it is one of the addresses, not one of the Services.
    #[test]
    fn services_that_share_an_address_are_one_of_those_that_are_counted() {
        let at = |count: usize, address: &str| -> Vec<ServiceView> {
            (0..count).map(|number| service(&format!("{address}/web-{number}")).ingress(address).done()).collect()
        };
        let retyped = ServiceView { is_load_balancer: false, ..at(1, "10.0.0.9").remove(0) };
        let mut waits = at(1, "10.0.0.8").remove(0);
        waits.ingress.clear();
        let both =
            ServiceView { ingress: ["10.0.0.1", "fd00::1"].map(|ip| ip.parse().unwrap()).to_vec(), ..waits.clone() };
        for (sentence, services, expected) in [
            ("none", vec![], 0),
            ("each with an address of its own", [at(1, "10.0.0.1"), at(1, "10.0.0.2")].concat(), 2),
            ("a group of ten and one alone", [at(10, "10.0.0.1"), at(1, "10.0.0.2")].concat(), 2),
            ("who has no address, and who wants none", vec![waits, retyped], 0),
            ("both families are one", [at(1, "10.0.0.1"), vec![both]].concat(), 1),
        ] {
            assert_eq!(served_addresses(&services), expected, "{sentence}");
        }
    }

    #[test]
    fn a_humans_word_lets_them_all_go_for_a_while() {
        let (mut breaker, start) = running();
        let waiting = left(&mut breaker, start, 30, webs(20), None);
        assert_eq!(waiting.len(), 17);
        let (now, old) = (start + SECOND_LOOK * 4, Instant::now().checked_sub(CONFIRMATION_LASTS));
        assert_eq!(breaker.ask(&waiting[0], 30, old, now), BreakerAnswer::No(17));
        assert_eq!(left(&mut breaker, start, 30, waiting, Some(start)), []);
        let confirmed = Instant::now();
        assert_eq!(left(&mut Breaker::default(), confirmed, 30, webs(20), Some(confirmed)), [], "also in a new life");
    }

    #[test]
    fn who_waits_for_its_turn_counts_once() {
        let (mut breaker, now) = running();
        for _ in 0..9 {
            assert_eq!(breaker.ask(&key("default/web"), 5, None, now), BreakerAnswer::Yes);
            breaker.changed(&key("default/web"), now);
        }
        assert_eq!(breaker.ask(&key("default/other"), 5, None, now), BreakerAnswer::Yes);
        breaker.done(&key("default/web"));
        assert_eq!(breaker.recent.count(now), 1);
    }

    /// The object is made, the next passes wait for its booking, and then the booking is published.
    #[test]
    fn a_repair_in_two_steps_counts_once() {
        let (mut breaker, now) = running();
        let services = webs(3);
        for step in ["create", "publish"] {
            for service in &services {
                assert_eq!(breaker.ask(service, 9, None, now), BreakerAnswer::Yes, "{step} {service}");
                breaker.changed(service, now);
                breaker.over(service);
            }
        }
        for service in &services {
            breaker.done(service);
        }
        assert_eq!((breaker.recent.count(now), breaker.granted.len()), (3, 0));
        assert_ne!(
            breaker.ask(&services[0], 9, None, now),
            BreakerAnswer::Yes,
            "another loss of the same is another one"
        );
    }

    /// It was paused, or may not be written for another reason.
    #[test]
    fn who_has_not_asked_for_long_does_not_count() {
        let (mut breaker, now) = running();
        for service in webs(10) {
            breaker.ask(&service, 15, None, now);
        }
        assert_eq!(breaker.ask(&key("default/web-0"), 15, None, now), BreakerAnswer::No(10));
        assert_eq!(breaker.ask(&key("default/web-0"), 15, None, now + ASKS_NO_MORE), BreakerAnswer::Yes);
    }

    #[test]
    fn who_asks_no_more_does_not_count() {
        let (mut breaker, now) = running();
        for service in webs(10) {
            breaker.ask(&service, 15, None, now);
        }
        assert_eq!(breaker.ask(&key("default/web-0"), 15, None, now), BreakerAnswer::No(10));
        webs(10)[1..].iter().for_each(|service| breaker.over(service));
        assert_eq!(breaker.ask(&key("default/web-0"), 15, None, now), BreakerAnswer::Yes);
    }
}
