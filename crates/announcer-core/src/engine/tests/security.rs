//! Service security: rules before the address, and none left behind.

use super::*;
use crate::security::Port;

fn ports(node: &Node, vip: &str) -> Vec<Port> {
    node.kernel.protection.vips[&vip.parse::<IpAddr>().unwrap()].iter().copied().collect()
}

#[test]
fn rules_stand_before_the_address_and_go_after_it() {
    let mut node = Node::started(&[view("web", &["10.0.0.50"])], MINE, network());
    node.pass_ms(500);
    assert_eq!(node.kernel.own().len(), 1);
    assert_eq!(ports(&node, "10.0.0.50"), [Port::new("TCP", 80).unwrap()]);
    node.gone("web");
    node.pass_ms(500);
    assert_eq!(node.kernel.own().len(), 0);
    assert!(node.kernel.protection.is_empty());
    assert_eq!(node.kernel.exposed, 0, "an address stood without rules");
}

#[test]
fn a_node_that_owns_nothing_has_the_rules_ready_and_changes_of_ports_reach_it() {
    let mut web = view("web", &["10.0.0.50"]);
    let mut node = Node::started(std::slice::from_ref(&web), LeaseState::Other("other".into()), network());
    node.pass_ms(500);
    assert_eq!(node.kernel.own().len(), 0);
    assert_eq!(ports(&node, "10.0.0.50"), [Port::new("TCP", 80).unwrap()]);
    web.ports[0].port = 443;
    node.upsert(web);
    node.pass_ms(500);
    assert_eq!(ports(&node, "10.0.0.50"), [Port::new("TCP", 443).unwrap()]);
}

#[test]
fn the_kernel_is_asked_when_something_changes_and_once_a_minute() {
    let mut node = Node::started(&[view("web", &["10.0.0.50"])], MINE, network());
    node.pass(Duration::from_secs(50));
    assert_eq!(node.kernel.protects, 1);
    node.pass(Duration::from_mins(1));
    assert_eq!(node.kernel.protects, 2);
}

#[test]
fn switched_off_means_no_rules() {
    let mut node = Node::new(&[("enable_service_security", "false")], network());
    node.start_with(&[view("web", &["10.0.0.50"])], MINE);
    node.pass_ms(500);
    assert_eq!(node.kernel.own().len(), 1);
    assert!(node.kernel.protection.is_empty());
}

#[test]
fn a_leaving_node_without_vips_keeps_no_rules() {
    let mut node = Node::started(&[view("web", &["10.0.0.50"])], LeaseState::Other("other".into()), network());
    node.pass_ms(500);
    node.feed(Input::Stop);
    node.pass(Duration::from_secs(5));
    assert!(node.exited && node.kernel.protection.is_empty());
}

/// A node that serves 10.0.0.50, whose kernel does not get to set further rules.
fn busy() -> Node {
    let mut node = Node::started(&[view("web", &["10.0.0.50"])], MINE, network());
    node.pass_ms(500);
    node.kernel.busy = true;
    node
}

/// The kernel sets the rules that it was asked for first, or refuses them.
fn set_rules(node: &mut Node, result: Result<(), String>) {
    let done = node.kernel.set_rules(result);
    node.feed(Input::Kernel(done));
}

#[test]
fn an_address_waits_for_its_rules_and_what_is_served_waits_for_nothing() {
    let mut node = busy();
    node.upsert(view("new", &["10.0.0.51"]));
    for _ in 0..30 {
        node.pass_ms(1000);
        assert_eq!(node.kernel.own(), ["eth0 10.0.0.50/32"]);
    }
    set_rules(&mut node, Ok(()));
    assert_eq!(node.kernel.own(), ["eth0 10.0.0.50/32", "eth0 10.0.0.51/32"]);
    assert_eq!(node.kernel.exposed, 0, "an address stood without rules");
}

#[test]
fn a_take_over_waits_for_no_rules_of_others() {
    let other = LeaseState::Other("other".into());
    let mut node = Node::started(&[published("web", "10.0.0.50", "other")], other, network());
    node.pass_ms(500);
    node.kernel.busy = true;
    node.upsert(view("new", &["10.0.0.51"]));
    node.feed(Input::Lease(MINE));
    node.pass_ms(500);
    assert_eq!(node.kernel.own(), ["eth0 10.0.0.50/32"]);
}

#[test]
fn an_address_that_is_on_the_node_already_does_not_fall_while_its_rules_are_waited_for() {
    let mut network = network();
    network.addresses.push(crate::network::fixtures::own_address(2, "10.0.0.50/32"));
    let mut node = Node::new(&[], network);
    node.kernel.deadlines.push((2, "10.0.0.50/32".parse().unwrap(), node.now + Duration::from_secs(5)));
    node.kernel.busy = true;
    node.start_with(&[published("web", "10.0.0.50", "node-1")], MINE);
    node.pass(Duration::from_secs(30));
    let log = node.take_log();
    assert!(node.kernel.has("eth0", "10.0.0.50/32"), "{log:?}");
    assert!(!log.iter().any(|line| line.starts_with("expired")), "{log:?}");
}

#[test]
fn rules_that_are_refused_keep_no_address_back() {
    let mut node = busy();
    node.upsert(view("new", &["10.0.0.51"]));
    node.pass_ms(500);
    set_rules(&mut node, Err("no nftables".into()));
    assert_eq!(node.kernel.own().len(), 2);
    assert!(node.engine.observations().unprotected);
    // Nor those of the next one.
    node.upsert(view("newer", &["10.0.0.52"]));
    node.pass_ms(500);
    assert_eq!(node.kernel.own().len(), 3);
}

#[test]
fn what_was_given_up_while_its_rules_were_waited_for_is_not_set() {
    let mut node = busy();
    node.upsert(view("new", &["10.0.0.51"]));
    node.pass_ms(500);
    node.gone("new");
    node.pass_ms(500);
    set_rules(&mut node, Ok(()));
    node.pass_ms(500);
    assert_eq!(node.kernel.own(), ["eth0 10.0.0.50/32"]);
    set_rules(&mut node, Ok(()));
    assert!(!node.kernel.protection.vips.contains_key(&"10.0.0.51".parse::<IpAddr>().unwrap()));
}

#[test]
fn a_busy_kernel_is_asked_for_one_set_of_rules_and_then_for_the_last_one() {
    let mut node = busy();
    for number in 51..60 {
        node.upsert(view(&format!("s{number}"), &[&format!("10.0.0.{number}")]));
        node.pass(Duration::from_mins(1));
    }
    assert_eq!(node.kernel.waiting.len(), 1);
    set_rules(&mut node, Ok(()));
    assert_eq!(node.kernel.own().len(), 2);
    assert_eq!(node.kernel.waiting.len(), 1);
    assert_eq!(node.kernel.waiting[0].vips.len(), 10);
    set_rules(&mut node, Ok(()));
    assert_eq!((node.kernel.own().len(), node.kernel.waiting.len(), node.kernel.exposed), (10, 0, 0));
}

#[test]
fn a_macvlan_waits_for_the_rule_that_keeps_it_from_listening_to_routers() {
    let mut node = busy();
    node.upsert(view("leased", &["dhcp"]));
    node.pass_ms(2000);
    assert!(node.clients.is_empty(), "{:?}", node.log);
    set_rules(&mut node, Ok(()));
    assert!(node.clients.contains_key(&uid("leased")), "{:?}", node.log);
}

#[test]
fn an_address_that_waits_for_its_rules_at_the_end_is_not_left_behind_without_them() {
    let mut node = busy();
    node.upsert(view("new", &["10.0.0.51"]));
    node.pass_ms(500);
    node.feed(Input::Stop);
    node.feed(Input::Released(false));
    assert!(node.exited);
    assert_eq!(node.kernel.own(), ["eth0 10.0.0.50/32"]);
}
