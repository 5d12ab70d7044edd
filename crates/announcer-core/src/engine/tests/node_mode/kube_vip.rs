//! A kube-vip that holds its Lease, and what it has left.

use super::*;

fn lock(holder: &str, renewal: u32) -> Input {
    let (holder, renewal) = (holder.to_owned(), renewal.to_string());
    Input::Foreign(Some(ForeignLock { holder, renewal, duration: LEASE, leftover: false }))
}

#[test]
fn a_kube_vip_that_lives_is_respected_until_it_is_gone() {
    let mut cluster = owner(&ALL);
    cluster.node.feed(lock("node-2", 1));
    cluster.node.pass_ms(1900);
    assert!(cluster.has(), "it may need a moment");
    cluster.node.pass_ms(200);
    assert!(!cluster.has());
    cluster.node.feed(lock("node-2", 2));
    cluster.node.pass_ms(10_000);
    assert!(!cluster.has());
    cluster.node.feed(lock("", 3));
    assert!(cluster.has(), "released: at once");
}

#[test]
fn what_a_kube_vip_has_on_this_very_node_is_left_alone_while_it_lives() {
    use crate::network::fixtures::{macvlan, own_address};
    for (holder, lives) in [("Node-1", true), ("node-2", false)] {
        let mut network = network();
        let bare = |link, net| Address { protocol: None, valid: AddressLifetime::Forever, ..own_address(link, net) };
        network.links.push(macvlan(50, "vip-deadbeef", 2, None));
        network.links.push(macvlan(51, "vip-beefdead", 2, Some("beefdead-uid")));
        network.addresses.extend([bare(2, "10.0.0.5/32"), bare(50, "10.0.0.6/32"), own_address(2, "10.0.0.7/32")]);
        let mut node = Node::new(&[("election_mode", "node")], network);
        node.feed(lock(holder, 1));
        node.start_with(&[published("web", "10.0.0.5", "node-1")], LeaseState::Unknown);
        let mut cluster = Cluster { node, renewals: 0 };
        cluster.node.feed(Input::KubeProxy(true));
        cluster.node.feed(Input::NodesSynced { readable: false });
        cluster.renew(&ALL);
        cluster.node.feed(Input::MembersSynced);
        cluster.node.pass_ms(5000);
        let kernel = &cluster.node.kernel;
        let there = [
            kernel.has("eth0", "10.0.0.5/32"),
            kernel.has("vip-deadbeef", "10.0.0.6/32"),
            kernel.network.link_by_name("vip-beefdead").is_some() || kernel.has("eth0", "10.0.0.7/32"),
        ];
        assert_eq!(there, [lives, lives, false], "held by {holder}: what is ours goes all the same");
    }
}

#[test]
fn what_a_kube_vip_left_goes_when_another_node_writes_the_first_term_and_what_was_never_on_record_stays() {
    for (name, known, stays) in [("clients knew it", true, false), ("it was only asked for", false, true)] {
        let mut network = network();
        let bare = Address { protocol: None, ..crate::network::fixtures::own_address(2, "10.0.0.5/32") };
        network.addresses.push(Address { valid: AddressLifetime::Forever, ..bare });
        let mut node = Node::new(&[("election_mode", "node")], network);
        let before = if known { published("web", "10.0.0.5", "node-1") } else { view("web", &["10.0.0.5"]) };
        node.start_with(&[before], LeaseState::Unknown);
        node.upsert(seated("web", "10.0.0.5", "node-2", 4));
        let mut cluster = Cluster { node, renewals: 0 };
        cluster.node.feed(Input::KubeProxy(true));
        cluster.node.feed(Input::NodesSynced { readable: false });
        cluster.renew(&ALL);
        cluster.node.feed(Input::MembersSynced);
        cluster.node.pass_ms(1000);
        assert_eq!(cluster.has(), stays, "{name}");
    }
}
