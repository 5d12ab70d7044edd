use super::*;
use crate::network::fixtures::{link, macvlan, own_address};
use crate::view::InterfaceWish;

fn leased(node: &Node, address: &str, seconds: u64) -> Leased {
    Leased { facts: facts(address), expires: Some(node.now + Duration::from_secs(seconds)) }
}

fn bound(name: &str, address: &str) -> Node {
    let mut node = Node::leading(&[view(name, &["dhcp"])]);
    let leased = leased(&node, address, 600);
    node.feed(Input::Dhcp(uid(name), DhcpEvent::Bound(leased)));
    node.pass_ms(1000);
    node
}

#[test]
fn a_dhcp_service_gets_a_macvlan_a_client_and_what_the_client_is_given() {
    let mut node = Node::leading(&[view("web", &["dhcp"])]);
    node.pass_ms(5000);
    assert_eq!(node.take_log(), ["prepare eth0", "macvlan vip-web00000 on eth0", "start dhcp web00000-uid lease None"]);
    let leased = leased(&node, "10.0.0.50", 600);
    node.feed(Input::Dhcp(uid("web"), DhcpEvent::Bound(leased)));
    node.pass_ms(1000);
    let log = node.take_log();
    assert_eq!(
        log[..3],
        ["add vip-web00000 10.0.0.50/32", "tell web AddressAnnounced", "record web 10.0.0.50 requested 10.0.0.50"]
    );
    assert_eq!(log[3..], vec!["announce vip-web00000 10.0.0.50"; 5]);
    let view = &node.engine.services[&ServiceKey::new("default", "web")];
    assert!(view.published.hwaddr.as_ref().unwrap().starts_with("00:00:6c:"));
    assert_eq!(view.published.lease, Some(facts("10.0.0.50")));
}

#[test]
fn the_kernel_never_keeps_an_address_longer_than_its_lease() {
    let mut node = Node::leading(&[view("web", &["dhcp"])]);
    let leased = leased(&node, "10.0.0.50", 5);
    node.feed(Input::Dhcp(uid("web"), DhcpEvent::Bound(leased)));
    assert!(node.kernel.valid("10.0.0.50/32", node.now).unwrap() <= Duration::from_secs(5));
    // The client is silent, as if it hung.
    node.pass_ms(5100);
    assert!(!node.kernel.has("vip-web00000", "10.0.0.50/32"));
    node.pass_ms(5000);
    assert!(!node.kernel.has("vip-web00000", "10.0.0.50/32"));
}

#[test]
fn a_renewal_extends_and_writes_only_what_a_successor_needs() {
    let mut node = bound("web", "10.0.0.50");
    let records = node.records;
    let mut renewed = leased(&node, "10.0.0.50", 600);
    renewed.facts.expires = Some("2026-01-01T00:11:00Z".parse().unwrap());
    node.feed(Input::Dhcp(uid("web"), DhcpEvent::Renewed(renewed.clone())));
    assert_eq!(node.records, records, "one minute of ten is not worth a write");
    renewed.facts.expires = Some("2026-01-01T00:15:00Z".parse().unwrap());
    node.feed(Input::Dhcp(uid("web"), DhcpEvent::Renewed(renewed)));
    assert_eq!(node.records, records + 1);
}

#[test]
fn a_changed_address_is_replaced_everywhere() {
    let mut node = bound("web", "10.0.0.50");
    node.feed(Input::Dhcp(uid("web"), DhcpEvent::Lost { address: "10.0.0.50".parse().unwrap(), why: "NAK".into() }));
    assert!(!node.kernel.has("vip-web00000", "10.0.0.50/32"));
    let leased = leased(&node, "10.0.0.60", 600);
    node.feed(Input::Dhcp(uid("web"), DhcpEvent::Bound(leased)));
    node.pass_ms(100);
    assert_eq!(node.kernel.own(), ["vip-web00000 10.0.0.60/32"]);
    let published = &node.engine.services[&ServiceKey::new("default", "web")].published;
    assert_eq!(published.requested_ip.as_deref(), Some("10.0.0.60"));
    assert_eq!(published.ingress.len(), 1);
    assert!(published.has("10.0.0.60".parse().unwrap()));
    assert!(node.reasons().contains(&"DHCPLeaseLost"));
}

#[test]
fn the_lease_is_given_back_when_the_service_goes_and_only_then() {
    let mut node = bound("web", "10.0.0.50");
    node.take_log();
    node.gone("web");
    assert_eq!(
        node.take_log(),
        ["stop dhcp web00000-uid release true", "restore eth0"],
        "the address stays until the RELEASE is out"
    );
    assert!(node.kernel.has("vip-web00000", "10.0.0.50/32"));
    node.feed(Input::Dhcp(uid("web"), DhcpEvent::Stopped));
    assert_eq!(node.take_log(), ["delete vip-web00000"]);

    let mut node = bound("web", "10.0.0.50");
    node.take_log();
    node.feed(Input::Lease(theirs()));
    assert_eq!(node.take_log(), ["stop dhcp web00000-uid release false", "delete vip-web00000", "restore eth0"]);
}

#[test]
fn a_client_that_does_not_end_keeps_no_macvlan() {
    let mut node = bound("web", "10.0.0.50");
    node.gone("web");
    node.pass_ms(1100);
    assert!(node.kernel.network.link_by_name("vip-web00000").is_none());
}

#[test]
fn a_secondary_shares_the_macvlan_and_never_gets_the_address_on_the_node() {
    let mut node = bound("first", "10.0.0.50");
    node.upsert(view("second", &["10.0.0.50"]));
    node.pass_ms(1000);
    assert_eq!(node.kernel.own(), ["vip-first000 10.0.0.50/32"]);
    let published = &node.engine.services[&ServiceKey::new("default", "second")].published;
    assert!(published.has("10.0.0.50".parse().unwrap()));
    assert_eq!(published.hwaddr, None, "MAC and lease are the primary's");
    // The address goes with the last of them.
    node.gone("first");
    node.pass_ms(1000);
    assert_eq!(node.kernel.own(), ["vip-first000 10.0.0.50/32"]);
    node.gone("second");
    assert!(node.log.iter().any(|line| line.ends_with("stop dhcp first000-uid release true")));
}

#[test]
fn a_restart_adopts_the_macvlan_and_goes_on_with_the_lease() {
    let mut network = network();
    let mut service = view("web", &["dhcp"]);
    service.dhcp.mac = Some(l2::Mac::new([2, 0, 0, 0, 0, 50]));
    service.dhcp.lease = Some(facts("10.0.0.50"));
    service.published.lease = service.dhcp.lease.clone();
    network.links.push(macvlan(50, "vip-web00000", 2, Some("web00000-uid")));
    network.addresses.push(own_address(50, "10.0.0.50/32"));
    let mut node = Node::started(&[service], MINE, network);
    assert_eq!(
        node.take_log(),
        ["prepare eth0", "adopt vip-web00000", "start dhcp web00000-uid lease Some(\"10.0.0.50\")"]
    );
    let leased = leased(&node, "10.0.0.50", 600);
    node.feed(Input::Dhcp(uid("web"), DhcpEvent::Bound(leased)));
    assert!(
        !node.log.iter().any(|line| line.contains("remove") || line.contains("delete") || line.contains("add")),
        "{:?}",
        node.log
    );
    assert!(node.kernel.has("vip-web00000", "10.0.0.50/32"));
}

#[test]
fn a_changed_mac_makes_the_macvlan_anew() {
    let mut node = bound("web", "10.0.0.50");
    node.take_log();
    let mut changed = node.engine.services[&ServiceKey::new("default", "web")].clone();
    changed.dhcp.mac = Some(l2::Mac::new([0, 0, 0x6c, 1, 2, 3]));
    node.upsert(changed);
    let log = node.take_log();
    assert_eq!(
        log[..3],
        ["stop dhcp web00000-uid release false", "delete vip-web00000", "macvlan vip-web00000 on eth0"]
    );
}

#[test]
fn a_parent_that_is_missing_is_named_and_used_when_it_appears() {
    let mut node =
        Node::leading(&[ServiceView { interface: InterfaceWish::Named("mgmt".into()), ..view("web", &["dhcp"]) }]);
    node.pass_ms(3000);
    assert!(node.told[0].1.text.contains("mgmt"), "{:?}", node.told);
    node.kernel.network.links.push(link(9, "mgmt"));
    node.feed(Input::NetworkChanged);
    assert!(node.kernel.network.link_by_name("vip-web00000").is_some());
    // It goes, and the macvlan with it; it comes back, and so does the macvlan, with the lease that was not given back.
    let leased = leased(&node, "10.0.0.50", 600);
    node.feed(Input::Dhcp(uid("web"), DhcpEvent::Bound(leased)));
    node.pass_ms(1000);
    node.kernel.delete(9);
    node.feed(Input::NetworkChanged);
    node.pass_ms(1000);
    assert!(node.kernel.own().is_empty());
    node.take_log();
    node.kernel.network.links.push(link(10, "mgmt"));
    node.feed(Input::NetworkChanged);
    let log = node.take_log();
    assert!(log.contains(&"start dhcp web00000-uid lease Some(\"10.0.0.50\")".to_owned()), "{log:?}");
}

#[test]
fn trouble_is_told_once_in_a_while() {
    let mut node = Node::leading(&[view("web", &["dhcp"])]);
    for _ in 0..10 {
        node.feed(Input::Dhcp(
            uid("web"),
            DhcpEvent::Report { reason: "DHCPNoAnswer", text: "no DHCP server answered".into() },
        ));
        node.pass_ms(1000);
    }
    assert_eq!(node.reasons(), ["DHCPNoAnswer"]);
}

#[test]
fn a_failed_client_is_started_again() {
    let mut node = Node::leading(&[view("web", &["dhcp"])]);
    node.take_log();
    node.feed(Input::Dhcp(uid("web"), DhcpEvent::Failed("no socket".into())));
    node.pass_ms(6000);
    assert_eq!(node.take_log().iter().filter(|line| line.starts_with("start dhcp")).count(), 1);
}
