//! What would change for clients of a served Service although nobody asked for it: pure. How much of that goes at once
//! says [`super::breaker`]. A load balancer that has gone missing on Harvester is made anew, and gets another address;
//! a booking that is another one is published. For one Service that is a repair. For many at once it is what a wrong
//! view of Harvester would look like.

use std::net::IpAddr;
use std::time::Duration;

use cloud_provider::service::NO_LOAD_BALANCER_YET;
use cloud_provider::view::ServiceView;
use k8s_openapi::jiff::Timestamp;

use super::choice::{self, Source};
use super::plan::Action;
use super::service_patch::Role;
use super::view::LbView;

/// A younger Service is assumed to have no clients yet. Its age changes only if it is created again.
const LONG_SERVED: Duration = Duration::from_mins(30);

/// Whether the Service is older than that. One that was made in our future proves that our clock is behind: then it
/// tells no age, and no Service counts as young.
fn is_long_there(created: i64, now: i64) -> bool {
    let long = i64::try_from(LONG_SERVED.as_secs()).unwrap_or(i64::MAX);
    !(0..long).contains(&(now - created))
}

/// Whether a Service has had its load balancer and is served. Our condition on it tells that, also of former processes
/// and through outages of the announcers: whoever is taken over from something else is served without one.
fn is_long_served(service: &ServiceView, now: Timestamp) -> bool {
    let made = service.conditions.ready.as_ref().is_some_and(|ready| ready.reason != NO_LOAD_BALANCER_YET);
    let long = service.created.is_some_and(|created| is_long_there(created, now.as_second()));
    made && long && !service.ingress.is_empty()
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

#[cfg(test)]
mod tests {
    use cloud_provider::view::{Condition, ConditionStatus};

    use super::super::build::{config, lb, service};
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
                "one that was made in our future: our clock is behind",
                served("2026-01-01T12:00:01Z", ConditionStatus::True, "Served"),
                &create,
                &none,
                true,
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
}
