//! The seniority of Services that share an address. It decides which requests are refused, which Service a group
//! follows, and which Service places the address. Pure, and the same for every caller.
//!
//! It is stored in the status, which authors of Services may not write: the address that clients were told, and the
//! turn in which a Service joined. So it is the same on each node and after each restart.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use crate::view::{ServiceKey, ServiceView};

/// Orders Services: first those whose addresses clients know, then by the turn of joining, then by age. An old Service
/// that asks only now for an address which clients know as another Service's is a newcomer there.
pub fn by_seniority(services: &BTreeMap<ServiceKey, ServiceView>) -> Vec<&ServiceView> {
    let served = served(services.values());
    let mut views: Vec<&ServiceView> = services.values().collect();
    views.sort_by_cached_key(|view| (is_newcomer(view, &served), view.published.turn, view.created, view.uid.clone()));
    views
}

/// The turn in which `view` has joined `members`, all Services that share its addresses. It is written together with
/// its addresses. Zero: there was no other Service before.
pub fn turn<'a>(view: &ServiceView, members: impl Iterator<Item = &'a ServiceView> + Clone) -> u32 {
    let told = |view: &ServiceView| view.asked().iter().any(|address| view.published.has(*address));
    if is_newcomer(view, &served(members.clone())) {
        members
            .filter(|other| told(other))
            .map(|other| other.published.turn)
            .max()
            .map_or(0, |last| last.saturating_add(1))
    } else if told(view) {
        view.published.turn
    } else {
        0
    }
}

/// The addresses that clients know and whose Services still ask for them.
fn served<'a>(views: impl Iterator<Item = &'a ServiceView>) -> BTreeSet<IpAddr> {
    views.flat_map(|view| view.asked().into_iter().filter(|address| view.published.has(*address))).collect()
}

fn is_newcomer(view: &ServiceView, served: &BTreeSet<IpAddr>) -> bool {
    view.asked().iter().any(|address| served.contains(address) && !view.published.has(*address))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::tests::{told, view};

    fn aged(created: i64, view: ServiceView) -> ServiceView {
        ServiceView { created, ..view }
    }

    fn joined(turn: u32, mut view: ServiceView) -> ServiceView {
        view.published.turn = turn;
        view
    }

    fn names(views: &[ServiceView]) -> Vec<String> {
        let services = views.iter().map(|view| (view.key.clone(), view.clone())).collect();
        by_seniority(&services).into_iter().map(|view| view.key.name.clone()).collect()
    }

    #[test]
    fn who_asks_for_what_is_served_comes_after_all_others_and_the_rest_goes_by_age() {
        let old = aged(1, told(view("old", &["10.0.0.6", "10.0.0.5"]), "10.0.0.6"));
        let unserved = aged(2, view("unserved", &["10.0.0.7"]));
        let web = aged(100, told(view("web", &["10.0.0.5", "fd00::5"]), "10.0.0.5"));
        assert_eq!(names(&[old.clone(), unserved, web.clone()]), ["unserved", "web", "old"]);
        // From before turns were written.
        assert_eq!(names(&[told(old, "10.0.0.5"), web]), ["old", "web"]);
    }

    #[test]
    fn who_has_joined_stays_behind_whom_it_has_joined_when_clients_are_told_of_it_too() {
        let web = aged(100, told(view("web", &["10.0.0.5"]), "10.0.0.5"));
        let old = aged(1, view("old", &["10.0.0.5"]));
        let all = [web.clone(), old.clone()];
        assert_eq!(turn(&web, all.iter()), 0);
        assert_eq!(turn(&old, all.iter()), 1);
        let old = joined(1, told(old, "10.0.0.5"));
        let older = aged(0, view("older", &["10.0.0.5"]));
        let all = [web, old.clone(), older.clone()];
        assert_eq!(turn(&old, all.iter()), 1, "it stays");
        assert_eq!(turn(&older, all.iter()), 2);
        assert_eq!(names(&all), ["web", "old", "older"]);
    }

    #[test]
    fn who_gets_an_address_that_nobody_has_joins_nobody() {
        let moved = joined(3, told(view("moved", &["10.0.0.9"]), "10.0.0.5"));
        assert_eq!(turn(&moved, [moved.clone()].iter()), 0);
        let both = [aged(1, view("a", &["10.0.0.5"])), aged(2, view("b", &["10.0.0.5"]))];
        assert!(both.iter().all(|view| turn(view, both.iter()) == 0));
    }

    #[test]
    fn an_address_that_stands_in_the_status_of_one_that_does_not_ask_for_it_is_not_served() {
        let stale = aged(5, told(view("stale", &["10.0.0.9"]), "10.0.0.5"));
        let old = aged(1, view("old", &["10.0.0.5"]));
        assert_eq!(names(&[stale.clone(), old.clone()]), ["old", "stale"]);
        assert_eq!(turn(&old, [stale, old.clone()].iter()), 0);
    }
}
