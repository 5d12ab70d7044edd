//! Addresses that DHCPv6 gives.

use l2_types::Address;

use super::*;
use crate::annotations::LeaseFacts6;
use crate::network::fixtures::{address, own_address, without_marks};

fn with_ipv6() -> Network {
    let mut network = network();
    network.addresses.push(address(2, "fe80::2/64"));
    network
}

fn leased(node: &Node, text: &str, seconds: u64) -> Leased<LeaseFacts6> {
    let facts = LeaseFacts6 {
        address: text.parse().unwrap(),
        server: "00010203".into(),
        expires: Some("2026-01-01T00:10:00Z".parse().unwrap()),
    };
    Leased { facts, expires: Some(node.now + Duration::from_secs(seconds)) }
}

fn say(node: &mut Node, event: DhcpEvent<LeaseFacts6>) {
    let generation = node.clients[&Uid(format!("{}/6", uid("web")))];
    node.feed(Input::Dhcp(uid("web"), generation, ClientEvent::V6(event)));
}

fn bound() -> Node {
    let mut node = Node::started(&[view("web", &["dhcp6"])], MINE, with_ipv6());
    node.pass_ms(1000);
    let lease = leased(&node, "fd00::50", 600);
    say(&mut node, DhcpEvent::Bound(lease));
    node.pass_ms(1000);
    node
}

#[test]
fn the_address_stands_on_the_nodes_interface_and_everywhere_in_the_record() {
    let mut node = bound();
    assert_eq!(node.kernel.own(), ["eth0 fd00::50/128"]);
    let log = node.take_log();
    assert!(log.contains(&"start dhcp6 web00000-uid lease None".to_owned()), "{log:?}");
    assert!(log.contains(&"announce eth0 fd00::50".to_owned()) && !log.iter().any(|line| line.starts_with("probe")));
    let published = &node.engine.services[&ServiceKey::new("default", "web")].published;
    assert!(published.has("fd00::50".parse().unwrap()));
    assert_eq!(published.requested_ip.as_deref(), Some("fd00::50"));
    assert_eq!(published.lease6.as_ref().unwrap().server, "00010203");
    assert_eq!(published.hwaddr, None, "it has no MAC of its own");
}

#[test]
fn an_address_that_the_kernel_refuses_is_tried_again_long_before_its_lease_is_renewed() {
    let mut node = Node::started(&[view("web", &["dhcp6"])], MINE, with_ipv6());
    node.pass_ms(1000);
    node.kernel.refuse = true;
    let lease = leased(&node, "fd00::50", 86_400);
    say(&mut node, DhcpEvent::Bound(lease));
    node.pass_ms(100);
    assert!(node.kernel.own().is_empty());
    node.kernel.refuse = false;
    node.pass_ms(5200);
    assert_eq!(node.kernel.own(), ["eth0 fd00::50/128"]);
}

#[test]
fn it_ends_with_its_lease_and_goes_with_its_service_which_gives_it_back() {
    let mut node = bound();
    let renewed = leased(&node, "fd00::50", 3);
    say(&mut node, DhcpEvent::Renewed(renewed));
    node.pass_ms(3100);
    assert!(node.kernel.own().is_empty(), "the client is silent, as if it hung");

    let mut node = bound();
    node.take_log();
    node.gone("web");
    assert_eq!(node.take_log()[..2], ["stop dhcp6 web00000-uid release true", "remove eth0 fd00::50/128"]);

    let mut node = Node::new(&[("election_mode", "global")], with_ipv6());
    node.start_with(&[view("web", &["dhcp6"])], MINE);
    let lease = leased(&node, "fd00::50", 600);
    say(&mut node, DhcpEvent::Bound(lease));
    node.pass_ms(1000);
    node.take_log();
    node.feed(Input::Lease(theirs()));
    assert_eq!(node.take_log()[0], "stop dhcp6 web00000-uid release false", "the successor goes on with it");
}

#[test]
fn a_client_hears_once_that_its_link_is_lost_and_once_that_it_is_back() {
    let mut node = bound();
    let carrier = |node: &mut Node, carrier: bool| {
        node.take_log();
        node.kernel.network.links.iter_mut().find(|found| found.index == 2).unwrap().carrier = carrier;
        node.feed(Input::NetworkChanged);
        node.pass_ms(100);
        node.feed(Input::NetworkChanged);
        node.pass_ms(100);
        node.take_log().into_iter().filter(|line| line.starts_with("link of")).collect::<Vec<_>>()
    };
    assert_eq!(carrier(&mut node, false), ["link of dhcp6 web00000-uid down"]);
    assert_eq!(node.kernel.own(), ["eth0 fd00::50/128"], "the lease is still ours");
    assert_eq!(carrier(&mut node, true), ["link of dhcp6 web00000-uid up"]);
}

#[test]
fn a_lease_stays_where_it_is_while_the_interface_that_is_named_now_has_no_ipv6() {
    let mut node = bound();
    let interface = crate::view::InterfaceWish::Named("eth1".into());
    let changed = ServiceView { interface, ..node.engine.services[&ServiceKey::new("default", "web")].clone() };
    node.upsert(changed);
    node.pass_ms(1000);
    assert_eq!(node.kernel.own(), ["eth0 fd00::50/128"]);
    let told = node.told.iter().map(|(_, tell)| tell).filter(|tell| tell.reason == Reason::CannotAnnounce);
    let told: Vec<&str> = told.map(|tell| tell.text.as_str()).collect();
    assert!(told.len() == 1 && told[0].contains("eth1") && told[0].contains("link-local"), "{told:?}");
    node.kernel.network.addresses.push(address(3, "fe80::3/64"));
    node.feed(Input::NetworkChanged);
    node.pass_ms(1000);
    assert_eq!(node.kernel.own(), ["eth1 fd00::50/128"]);
}

#[test]
fn a_lease_that_another_service_shares_is_given_back_with_the_last_of_them() {
    let mut node = bound();
    let mut second = view("second", &["fd00::50"]);
    second.ports[0].port = 81;
    node.upsert(second);
    node.pass_ms(1000);
    node.take_log();
    // It is deleted; the cloud controller keeps it until nobody shares its address.
    let mut first = node.engine.services[&ServiceKey::new("default", "web")].clone();
    first.retired = true;
    first.wanted.clear();
    node.upsert(first);
    node.pass_ms(1000);
    node.gone("web");
    node.pass_ms(1000);
    assert_eq!(node.kernel.own(), ["eth0 fd00::50/128"]);
    let log = node.take_log();
    assert!(!log.iter().any(|line| line.starts_with("stop") || line.starts_with("remove")), "{log:?}");
    node.gone("second");
    assert_eq!(node.take_log()[..2], ["stop dhcp6 web00000-uid release true", "remove eth0 fd00::50/128"]);
}

#[test]
fn an_address_that_is_taken_back_is_replaced_everywhere() {
    let mut node = bound();
    say(&mut node, DhcpEvent::Lost { address: "fd00::50".parse().unwrap(), why: "taken back".into() });
    assert!(node.kernel.own().is_empty());
    let lease = leased(&node, "fd00::60", 600);
    say(&mut node, DhcpEvent::Bound(lease));
    node.pass_ms(100);
    assert_eq!(node.kernel.own(), ["eth0 fd00::60/128"]);
    let published = &node.engine.services[&ServiceKey::new("default", "web")].published;
    assert_eq!(published.requested_ip.as_deref(), Some("fd00::60"));
    assert!(published.has("fd00::60".parse().unwrap()) && published.ingress.len() == 1);
    assert!(node.reasons().contains(&"DHCPLeaseLost"));
}

fn bound_twice() -> Node {
    let mut node = Node::started(&[view("web", &["dhcp", "dhcp6"])], MINE, with_ipv6());
    node.pass_ms(1000);
    let (four, six) = (Leased { facts: facts("10.0.0.50"), expires: None }, leased(&node, "fd00::50", 600));
    node.dhcp("web", DhcpEvent::Bound(four));
    say(&mut node, DhcpEvent::Bound(six));
    node.pass_ms(1000);
    node
}

#[test]
fn both_families_are_leased_side_by_side() {
    let node = bound_twice();
    assert_eq!(node.kernel.own(), ["vip-web00000 10.0.0.50/32", "eth0 fd00::50/128"]);
    let published = &node.engine.services[&ServiceKey::new("default", "web")].published;
    assert_eq!(published.requested_ip.as_deref(), Some("10.0.0.50,fd00::50"));
    assert_eq!(published.ingress.len(), 2);
    assert!(published.lease.is_some() && published.lease6.is_some());
}

#[test]
fn a_lease_that_is_lost_is_left_to_no_successor_while_the_other_family_is_up() {
    let mut node = bound_twice();
    node.dhcp("web", DhcpEvent::Lost { address: "10.0.0.50".parse().unwrap(), why: "NAK".into() });
    node.pass_ms(1000);
    let published = &node.engine.services[&ServiceKey::new("default", "web")].published;
    assert!(published.lease.is_none() && published.lease6.is_some(), "{published:?}");

    let mut node = bound_twice();
    say(&mut node, DhcpEvent::Lost { address: "fd00::50".parse().unwrap(), why: "no binding".into() });
    node.pass_ms(1000);
    let published = &node.engine.services[&ServiceKey::new("default", "web")].published;
    assert!(published.lease.is_some() && published.lease6.is_none(), "{published:?}");
}

#[test]
fn a_lease_that_was_lost_here_is_not_gone_on_with_before_the_server_gives_it_again() {
    let mut node = bound();
    // It still stands on the Service when that comes back.
    node.api = false;
    let lease = leased(&node, "fd00::50", 600);
    say(&mut node, DhcpEvent::Lost { address: "fd00::50".parse().unwrap(), why: "no binding".into() });
    node.feed(Input::Lease(theirs()));
    node.take_log();
    node.feed(Input::Lease(MINE));
    node.pass_ms(100);
    let log = node.take_log();
    assert!(log.contains(&"start dhcp6 web00000-uid lease None".to_owned()), "{log:?}");
    say(&mut node, DhcpEvent::Bound(lease));
    node.feed(Input::Lease(theirs()));
    node.take_log();
    node.feed(Input::Lease(MINE));
    node.pass_ms(100);
    let log = node.take_log();
    assert!(log.contains(&"start dhcp6 web00000-uid lease Some(\"fd00::50\")".to_owned()), "{log:?}");
}

#[test]
fn a_successor_goes_on_with_what_clients_know() {
    let mut service = published("web", "fd00::50", "node-2");
    service.wanted = view("web", &["dhcp6"]).wanted;
    service.dhcp.lease6 =
        Some(LeaseFacts6 { address: "fd00::50".parse().unwrap(), server: "0001".into(), expires: None });
    let mut node = Node::new(&[("election_mode", "global")], with_ipv6());
    node.start_with(&[service], MINE);
    let log = node.take_log();
    assert!(log.contains(&"start dhcp6 web00000-uid lease Some(\"fd00::50\")".to_owned()), "{log:?}");
}

/// A node on which a former life has left `fd00::50`, the address of a lease.
fn restarted(told: &[&str]) -> Node {
    restarted_without_api(told, Duration::ZERO, true)
}

/// The API comes back after `away`. `marks`: the kernel keeps them.
fn restarted_without_api(told: &[&str], away: Duration, marks: bool) -> Node {
    let mut service = published("web", "fd00::50", "node-1");
    service.published.ingress.retain(|ingress| ingress.ip.is_some_and(|ip| told.contains(&ip.to_string().as_str())));
    service.wanted = view("web", &["dhcp6"]).wanted;
    service.dhcp.lease6 =
        Some(LeaseFacts6 { address: "fd00::50".parse().unwrap(), server: "00010203".into(), expires: None });
    let mut network = with_ipv6();
    network.addresses.push(own_address(2, "fd00::50/128"));
    let mut node = Node::new(&[], if marks { network } else { without_marks(network) });
    node.kernel.deadlines.push((2, "fd00::50/128".parse().unwrap(), node.now + Duration::from_secs(8)));
    node.tick();
    node.pass(away);
    node.start_with(&[service], MINE);
    node
}

#[test]
fn a_lease_of_a_former_life_stays_on_the_interface_all_the_time() {
    for (away_seconds, marks) in [(0, true), (120, true), (0, false), (120, false)] {
        let mut node = restarted_without_api(&["fd00::50"], Duration::from_secs(away_seconds), marks);
        node.pass_ms(2000);
        let lease = leased(&node, "fd00::50", 600);
        say(&mut node, DhcpEvent::Bound(lease));
        node.pass(Duration::from_secs(30));
        assert!(node.kernel.has("eth0", "fd00::50/128"));
        let log = node.take_log();
        let gone = |line: &String| line.starts_with("remove") || line.starts_with("expired");
        assert!(!log.iter().any(gone), "API away for {away_seconds} s, marks: {marks}: {log:?}");
    }
}

#[test]
fn a_lease_of_a_former_life_goes_when_its_client_does_not_go_on_with_it() {
    let mut node = restarted(&["fd00::50"]);
    let lease = leased(&node, "fd00::60", 600);
    say(&mut node, DhcpEvent::Bound(lease));
    assert_eq!(node.kernel.own(), ["eth0 fd00::60/128"]);

    let mut node = restarted(&["fd00::50"]);
    node.pass(Duration::from_secs(12));
    assert!(node.kernel.own().is_empty(), "a client that says nothing does not have the deadline put off");

    let node = restarted(&[]);
    assert!(node.kernel.own().is_empty(), "clients were never told of it: the manifest may be a copy");
}

#[test]
fn the_end_of_the_lease_is_noted_on_the_address_and_bounds_it_when_the_next_process_has_no_api() {
    let mut node = bound();
    let noted = |node: &Node| node.kernel.network.addresses.iter().find(|own| own.is_ours()).unwrap().metric;
    let end = node.now + Duration::from_secs(599);
    assert_eq!(noted(&node), Some(crate::network::noted(end, node.kernel.boot)));
    node.feed(Input::Lease(theirs()));
    assert!(node.kernel.own().is_empty());

    for (left, kept_for, gone_after) in [(Some(120), 117, 121), (None, 290, 320)] {
        let mut network = with_ipv6();
        network.addresses.push(Address { metric: left, ..own_address(2, "fd00::50/128") });
        let mut node = Node::new(&[], network);
        node.kernel.boot = node.now;
        let ends = left.map(|left| ((2, "fd00::50".parse().unwrap()), crate::network::moment(left, node.now)));
        node.kernel.network.address_ends.extend(ends);
        node.kernel.deadlines.push((2, "fd00::50/128".parse().unwrap(), node.now + Duration::from_secs(8)));
        node.tick();
        node.pass(Duration::from_secs(kept_for));
        assert_eq!(node.kernel.own(), ["eth0 fd00::50/128"], "{left:?}");
        assert_eq!(noted(&node), left, "the note outlives this process too");
        node.pass(Duration::from_secs(gone_after - kept_for));
        assert!(node.kernel.own().is_empty(), "{left:?}: not a moment longer");
    }
}

#[test]
fn an_interface_without_ipv6_is_told_and_used_when_it_has_it() {
    let mut node = Node::started(&[view("web", &["dhcp6"])], MINE, network());
    node.pass_ms(1000);
    let (_, told) = &node.told[0];
    assert!(told.reason == Reason::CannotAnnounce && told.text.contains("eth0") && told.text.contains("link-local"));
    node.kernel.network.addresses.push(address(2, "fe80::2/64"));
    node.feed(Input::NetworkChanged);
    node.pass_ms(1000);
    assert!(node.take_log().contains(&"start dhcp6 web00000-uid lease None".to_owned()));
}
