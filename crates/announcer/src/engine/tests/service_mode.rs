//! `service` mode: each Service by its own Lease.

use super::*;
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
