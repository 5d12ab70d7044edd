//! This node's card: what the first one waits for, and which interfaces a card names.

use super::*;

/// An address is announced on the interface in whose subnet it is: 10.1.0.5 on `eth1`, which has no default route.
const AUTO: (&str, &str) = ("vip_servicesinterface", "auto");

fn links(card: &Card) -> Vec<&str> {
    card.links.iter().map(|link| link.name.as_str()).collect()
}

fn service() -> ServiceView {
    seated("web", "10.1.0.5", "node-1", 4)
}

/// What a process learns of the cluster while it starts.
fn learnt() -> [(&'static str, Vec<Input>); 3] {
    let services = vec![Input::Service(service().key, Some(Box::new(service()))), Input::Synced];
    let nodes = vec![Input::Node("node-1".into(), Some(FACTS)), Input::NodesSynced { readable: true }];
    [("the Services", services), ("the Leases", vec![Input::MembersSynced]), ("the Nodes", nodes)]
}

/// The API is away, or answers one list much later than the others.
#[test]
fn the_first_card_waits_for_all_that_it_depends_on_and_names_every_interface() {
    for last in learnt().map(|(name, _)| name) {
        let mut node = Node::new(&[("election_mode", "node"), AUTO], network());
        node.tick();
        node.feed(Input::KubeProxy(true));
        let (late, others): (Vec<_>, Vec<_>) = learnt().into_iter().partition(|(name, _)| *name == last);
        others.into_iter().flat_map(|(_, inputs)| inputs).for_each(|input| node.feed(input));
        node.pass(Duration::from_secs(30));
        assert!(node.cards.is_empty(), "{last} are not known: {:?}", node.cards);
        late.into_iter().flat_map(|(_, inputs)| inputs).for_each(|input| node.feed(input));
        node.pass_ms(100);
        let first = node.cards.first().map(links);
        assert_eq!(first, Some(vec!["eth0", "eth1"]), "{last} came last");
    }
}

/// The kernel tells of a change, and the network is read.
fn changed(cluster: &mut Cluster) {
    cluster.node.feed(Input::NetworkChanged);
    cluster.node.pass_ms(100);
}

/// A slow kernel goes on answering for a while, with the MAC of that interface. An interface that carries none of ours
/// counts for 30 s more.
#[test]
fn an_interface_is_named_until_it_is_seen_to_carry_no_address_of_ours() {
    let mut cluster = Cluster::with(&[AUTO], &["node-1"], &[service()]);
    cluster.quiet(3000, &[], &["node-1"]);
    assert!(cluster.node.kernel.has("eth1", "10.1.0.5/32"));
    changed(&mut cluster);
    cluster.node.gone("web");
    cluster.quiet(31_000, &[], &["node-1"]);
    let said = |cluster: &Cluster| cluster.node.cards.last().map(|card| links(card).contains(&"eth1"));
    assert_eq!(said(&cluster), Some(true), "its removal was only asked for");
    changed(&mut cluster);
    assert_eq!(said(&cluster), Some(false));
}
