//! `service` mode: each Service by its own Lease.

use super::*;
use crate::network::fixtures::{macvlan, own_address};
use crate::ownership::service::LeaseKey;

fn key(name: &str) -> LeaseKey {
    LeaseKey { namespace: "default".into(), name: format!("kubevip-{name}") }
}

fn two() -> Node {
    let mut node = Node::new(&[("svc_election", "true"), ("election_mode", "service")], network());
    node.start_with(&[view("a", &["10.0.0.5"]), view("b", &["10.0.0.6"])], LeaseState::Unknown);
    node.feed(Input::ServiceLease(key("a"), MINE));
    node.feed(Input::ServiceLease(key("b"), theirs()));
    node.pass_ms(1000);
    node
}

#[test]
fn what_its_lease_gives_to_a_node_is_announced_there_and_nothing_else() {
    let node = two();
    assert_eq!(node.campaigns.last().unwrap(), &BTreeSet::from([key("a"), key("b")]));
    assert_eq!(node.kernel.own(), ["eth0 10.0.0.5/32"]);
}

#[test]
fn losing_one_lease_costs_one_address() {
    let mut node = two();
    node.feed(Input::ServiceLease(key("b"), MINE));
    node.pass_ms(100);
    assert_eq!(node.kernel.own(), ["eth0 10.0.0.5/32", "eth0 10.0.0.6/32"]);
    node.feed(Input::ServiceLease(key("a"), theirs()));
    assert_eq!(node.kernel.own(), ["eth0 10.0.0.6/32"]);
}

#[test]
fn an_election_ends_with_its_service() {
    let mut node = two();
    node.gone("a");
    assert_eq!(node.campaigns.last().unwrap(), &BTreeSet::from([key("b")]));
    assert_eq!(node.kernel.own(), Vec::<String>::new());
}

#[test]
fn the_end_hands_all_leases_back_and_serves_until_a_successor_is_heard() {
    let mut node = two();
    node.feed(Input::Stop);
    assert_eq!(node.campaigns.last().unwrap(), &BTreeSet::new());
    node.feed(Input::Released(true));
    node.pass_ms(500);
    assert_eq!(node.kernel.own(), ["eth0 10.0.0.5/32"]);
    node.heard(2, "10.0.0.5", [2, 9, 9, 9, 9, 9], Heard::Claim);
    assert_eq!(node.kernel.own(), Vec::<String>::new());
    node.pass_ms(10);
    assert!(node.exited);
}

/// This machine stood still, and its clock with it. Another node has announced the address meanwhile, and does not
/// announce it again.
#[test]
fn the_end_withdraws_at_once_what_another_node_was_found_to_hold() {
    let mut node = two();
    node.feed(Input::Stop);
    node.feed(Input::ServiceLease(key("b"), theirs()));
    assert_eq!(node.kernel.own(), ["eth0 10.0.0.5/32"], "that of another Service");
    node.feed(Input::ServiceLease(key("a"), theirs()));
    assert_eq!(node.kernel.own(), Vec::<String>::new());
    node.feed(Input::Released(true));
    node.pass_ms(10);
    assert!(node.exited);
}

#[test]
fn a_lease_that_cannot_be_had_is_told_and_keeps_only_what_is_its_services_own() {
    let mut network = network();
    for net in ["10.0.0.6/32", "10.0.0.99/32"] {
        network.addresses.push(own_address(2, net));
    }
    network.links.push(macvlan(50, "vip-deadbeef", 2, Some("deadbeef-uid")));
    network.links.push(macvlan(51, "vip-dhcp0000", 2, Some("dhcp0000-uid")));
    let mut node = Node::new(&[("svc_election", "true"), ("election_mode", "service")], network);
    let views = [view("a", &["10.0.0.5"]), view("b", &["10.0.0.6"]), view("dhcp", &["dhcp"])];
    node.start_with(&views, LeaseState::Unknown);
    node.feed(Input::ServiceLease(key("a"), MINE));
    // The API refuses to make the others.
    node.feed(Input::ServiceLease(key("b"), LeaseState::Other(String::new())));
    node.pass_ms(14_000);
    let own = |node: &Node| BTreeSet::from_iter(node.kernel.own());
    let kept = BTreeSet::from(["eth0 10.0.0.5/32", "eth0 10.0.0.6/32"].map(str::to_owned));
    assert_eq!(own(&node), kept);
    let there = |name: &str| node.kernel.network.link_by_name(name).is_some();
    assert!(there("vip-dhcp0000") && !there("vip-deadbeef"));
    assert!(!node.reasons().contains(&"CannotAnnounce"), "it may be a moment of the API: {:?}", node.told);
    node.pass(Duration::from_mins(2));
    let told = node.told.iter().filter(|(_, tell)| tell.reason == Reason::CannotAnnounce);
    let told: Vec<(&str, bool)> =
        told.map(|(name, tell)| (name.as_str(), tell.text.contains(&key(name).to_string()))).collect();
    assert_eq!(told, [("b", true), ("dhcp", true)]);
    assert_eq!(own(&node), kept, "as long as ever");
}

#[test]
fn an_election_that_comes_to_something_is_not_told() {
    let mut node = two();
    node.pass(Duration::from_mins(2));
    node.feed(Input::ServiceLease(key("a"), LeaseState::Other(String::new())));
    node.pass_ms(14_000);
    node.feed(Input::ServiceLease(key("a"), theirs()));
    node.feed(Input::ServiceLease(key("a"), LeaseState::Other(String::new())));
    node.pass_ms(14_000);
    assert!(!node.reasons().contains(&"CannotAnnounce"), "{:?}", node.told);
}

#[test]
fn the_end_waits_for_leases_that_are_still_being_handed_back() {
    let mut node = two();
    node.gone("a");
    node.gone("b");
    assert_eq!(node.campaigns.last().unwrap(), &BTreeSet::new());
    node.feed(Input::Stop);
    node.pass_ms(1000);
    assert!(!node.exited);
    node.feed(Input::Released(true));
    assert!(node.exited);
    // Nothing is under way: at once. Nor is it waited for without end.
    for (answered, patience) in [(true, 0), (false, 4000)] {
        let mut node = two();
        node.gone("a");
        node.gone("b");
        if answered {
            node.feed(Input::Released(true));
        }
        node.feed(Input::Stop);
        node.pass_ms(patience);
        assert!(node.exited, "{answered}");
    }
}

#[test]
fn who_names_a_lease_of_another_namespace_is_told_and_served_by_the_usual_one() {
    let web = ServiceView { lease_name: Some("kube-system/kube-scheduler".into()), ..view("web", &["10.0.0.5"]) };
    for (allowed, campaign, told) in
        [("", key("web").to_string(), 1), ("kube-system, x", "kube-system/kube-scheduler".into(), 0)]
    {
        let env = [("election_mode", "service"), ("svc_lease_namespaces", allowed)];
        let mut node = Node::new(&env, network());
        node.start_with(std::slice::from_ref(&web), LeaseState::Unknown);
        let asked = node.campaigns.last().unwrap().first().unwrap().clone();
        assert_eq!(asked.to_string(), campaign);
        node.feed(Input::ServiceLease(asked, MINE));
        node.pass_ms(1000);
        assert_eq!(node.kernel.own(), ["eth0 10.0.0.5/32"]);
        let warnings: Vec<&ServiceEvent> = node.told.iter().map(|(_, tell)| tell).filter(|tell| tell.warning).collect();
        assert_eq!(warnings.len(), told, "{warnings:?}");
        assert!(warnings.iter().all(|tell| tell.text.contains("kube-vip.io/leaseName")));
    }
}

#[test]
fn an_announcement_of_a_stranger_takes_a_shared_address_down_for_the_length_of_a_lease_and_not_for_ever() {
    // Nobody knows who holds the Lease of `a`, which comes first by its name.
    for rival in [LeaseState::Unknown, theirs()] {
        let (mut b, mut a) = (view("b", &["10.0.0.5"]), view("a", &["10.0.0.5"]));
        (b.created, a.created) = (1, 2);
        a.ports[0].port = 8080;
        let mut node = Node::new(&[("svc_election", "true"), ("election_mode", "service")], network());
        node.start_with(&[b, a], LeaseState::Unknown);
        node.feed(Input::ServiceLease(key("b"), MINE));
        node.pass_ms(1000);
        // For a moment `a` alone was known to clients, and its Lease decided.
        node.feed(Input::ServiceLease(key("b"), MINE));
        node.feed(Input::ServiceLease(key("a"), rival));
        assert_eq!(node.kernel.own(), ["eth0 10.0.0.5/32"]);
        node.heard(2, "10.0.0.5", [2, 9, 9, 9, 9, 9], Heard::Claim);
        assert_eq!(node.kernel.own(), Vec::<String>::new(), "the rival may be the owner");
        node.pass(Duration::from_secs(20));
        assert_eq!(node.kernel.own(), ["eth0 10.0.0.5/32"], "nobody answers for it");
    }
}

/// `old` and `young` share an address, and this node holds the Lease of `old`, which decides.
fn shared(young: LeaseState) -> Node {
    let (mut old, mut junior) = (view("old", &["10.0.0.5"]), view("young", &["10.0.0.5"]));
    (old.created, junior.created) = (1, 2);
    junior.ports[0].port = 8080;
    let mut node = Node::new(&[("svc_election", "true"), ("election_mode", "service")], network());
    node.start_with(&[old, junior], LeaseState::Unknown);
    node.feed(Input::ServiceLease(key("old"), MINE));
    node.feed(Input::ServiceLease(key("young"), young));
    node.pass_ms(1000);
    assert_eq!(node.kernel.own(), ["eth0 10.0.0.5/32"]);
    node
}

#[test]
fn the_lease_of_a_service_that_is_gone_is_kept_for_a_while_where_its_address_goes_on() {
    let mut node = shared(MINE);
    node.gone("old");
    let duration = node.engine.config.lease.duration;
    node.pass(duration.saturating_sub(Duration::from_millis(100)));
    assert_eq!(node.campaigns.last().unwrap(), &BTreeSet::from([key("old"), key("young")]));
    node.pass(Duration::from_millis(1100));
    assert_eq!(node.campaigns.last().unwrap(), &BTreeSet::from([key("young")]));
    assert_eq!(node.kernel.own(), ["eth0 10.0.0.5/32"]);
}

/// The owner goes by the Lease of `young`, because it knows that `old` is gone.
#[test]
fn an_address_goes_to_the_host_that_answers_for_it_where_the_deciding_service_is_said_to_be_gone() {
    for (what, gone, answers, stays) in [
        ("both", "old", true, false),
        ("nobody answers", "old", false, true),
        ("another Service is gone", "young", true, true),
    ] {
        let mut node = shared(theirs());
        node.take_log();
        node.feed(Input::Recorded(ServiceKey::new("default", gone), Recorded::Gone));
        if answers {
            node.heard(2, "10.0.0.5", [2, 9, 9, 9, 9, 9], Heard::Answer);
        }
        let own = node.kernel.own();
        assert_eq!(own.is_empty(), !stays, "{what}");
        let asked = node.take_log().iter().any(|line| line == "probe eth0 10.0.0.5");
        assert_eq!(asked, gone == "old", "{what}");
        node.pass_ms(500);
        assert_eq!(node.kernel.own().is_empty(), !stays, "{what}");
    }
}
