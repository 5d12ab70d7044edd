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
