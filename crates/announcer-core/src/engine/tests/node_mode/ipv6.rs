//! IPv6 addresses, given and leased, in `node` mode.

use super::*;
use crate::annotations::LeaseFacts6;
use crate::network::fixtures::address;

const VIP: &str = "fd00::5";

/// node-1 among others, with or without IPv6 on its interface.
fn cluster(ipv6: bool, view: ServiceView) -> Cluster {
    let mut network = network();
    if ipv6 {
        network.addresses.push(address(2, "fe80::2/64"));
    }
    let mut cluster = Cluster { node: Node::new(&[("election_mode", "node")], network), renewals: 0 };
    cluster.node.tick();
    cluster.node.feed(Input::KubeProxy(true));
    cluster.node.feed(Input::NodesSynced { readable: false });
    cluster.node.upsert(view);
    cluster.node.feed(Input::Synced);
    cluster.renew(&ALL);
    cluster.node.feed(Input::MembersSynced);
    cluster
}

/// A Service whose address came by DHCPv6.
fn leased(host: &str) -> ServiceView {
    let mut service = seated("web", VIP, host, 4);
    service.wanted = view("web", &["dhcp6"]).wanted;
    let lease = LeaseFacts6 { address: VIP.parse().unwrap(), server: "0001".into(), expires: None };
    service.dhcp.lease6 = Some(lease);
    service
}

#[test]
fn the_owner_of_a_leased_address_is_watched_as_any_other() {
    for view in [seated("web", VIP, "node-3", 4), leased("node-3")] {
        let mut cluster = cluster(true, view);
        // R8: its Lease expires, its kernel answers.
        cluster.quiet(40_000, &[("node-3", VIP), ("node-2", "10.0.0.2")], &["node-1", "node-2"]);
        assert_eq!(cluster.node.swaps, []);
        let died = cluster.node.now;
        while cluster.node.swaps.is_empty() {
            cluster.node.pass_ms(5);
            cluster.answers("node-2", "10.0.0.2");
            assert!(cluster.node.now < died + Duration::from_millis(300), "{:?}", cluster.node.log);
        }
    }
}

/// A wish is no lease: while the server is away nobody has the address, and that is not its owner's fault.
#[test]
fn what_is_only_asked_for_is_not_missed() {
    let mut service = seated("web", VIP, "node-3", 4);
    service.wanted = view("web", &["dhcp6", "dhcp"]).wanted;
    service.dhcp.requested6 = VIP.parse().ok();
    service.dhcp.requested = "10.0.0.50".parse().ok();
    service.published.ingress.clear();
    let mut cluster = cluster(true, service);
    cluster.quiet(40_000, &[("node-2", "10.0.0.2")], &ALL);
    assert_eq!(cluster.node.swaps, []);
}

/// What a node writes that has no IPv6 address on its interface.
fn mute(node: &str) -> Card {
    let mut card = card(node);
    card.links.iter_mut().for_each(|link| link.no_ipv6 = true);
    card
}

/// No question about IPv6 leaves such a node. Counted as unanswered, an owner that lives would be robbed.
#[test]
fn a_node_without_ipv6_on_its_interface_blames_no_owner_for_it() {
    let mut cluster = cluster(false, seated("web", VIP, "node-3", 4));
    // It is in the line of successors, because no other node is better off.
    for _ in 0..30 {
        cluster.quiet(1000, &[("node-2", "10.0.0.2")], &["node-1"]);
        for node in ["node-2", "node-3"] {
            cluster.member(node, mute(node));
        }
    }
    assert_eq!(cluster.node.swaps, []);
    let asked = cluster.node.log.iter().any(|line| line.contains(VIP));
    assert!(!asked, "{:?}", cluster.node.log);
}

#[test]
fn addresses_of_ipv6_go_to_nodes_that_can_speak_it_and_to_others_only_if_there_are_none() {
    for (own, others, takes) in [(true, false, true), (false, true, false), (false, false, true)] {
        // Wherever it would be placed otherwise: one of these addresses belongs to node-1.
        let home = (1..100).map(|n| format!("fd00::{n:x}")).find(|address| {
            crate::ownership::node::preferred(address, ALL) == Some(if takes && own { "node-2" } else { "node-1" })
        });
        let home = home.expect("one of a hundred belongs there");
        let mut cluster = cluster(own, view("web", &[home.as_str()]));
        for node in ["node-2", "node-3"] {
            cluster.member(node, if others { card(node) } else { mute(node) });
        }
        // Before those that have it have had their time.
        cluster.quiet(3000, &[], &[]);
        assert_eq!(!cluster.node.swaps.is_empty(), takes, "IPv6 here: {own}, there: {others}");
    }
}

/// From here nobody can be asked for it, and nobody else is there to take it.
#[test]
fn what_cannot_be_asked_for_is_taken_all_the_same_when_its_owner_is_gone() {
    let mut cluster = cluster(false, seated("web", VIP, "node-9", 4));
    let start = cluster.node.now;
    while cluster.node.swaps.is_empty() {
        cluster.quiet(1000, &[], &["node-1"]);
        assert!(cluster.node.now < start + Duration::from_mins(1), "{:?}", cluster.node.log);
    }
    let (_, swap) = &cluster.node.swaps[0];
    assert_eq!(swap.owner_record.host, "node-1");
}
