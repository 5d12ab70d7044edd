//! What was handed over is served for a last moment only where that serves somebody.

use super::*;

/// node-1 serves it and may not any more: it belongs to this node, which has not been heard yet.
fn handed_over() -> (Cluster, String) {
    let mut cluster = owner(&ALL);
    cluster.node.feed(Input::Node("node-1".into(), Some(NodeFacts { shut_out: true, ..FACTS })));
    let to = cluster.node.swaps[0].1.seat.host.clone();
    cluster.won();
    cluster.node.pass_ms(100);
    assert!(cluster.has(), "make before break");
    (cluster, to)
}

#[test]
fn what_a_third_node_has_taken_from_the_successor_is_withdrawn_at_once() {
    let (mut cluster, to) = handed_over();
    let third = if to == "node-2" { "node-3" } else { "node-2" };
    // The successor was dead. The third node claims from that one, and never heard us: nobody will tell us but the API.
    cluster.shows("web", third, 6);
    assert!(!cluster.has());
}

#[test]
fn what_was_handed_over_is_withdrawn_at_once_without_a_cable() {
    let (mut cluster, _) = handed_over();
    let links = &mut cluster.node.kernel.network.links;
    links.iter_mut().filter(|link| link.name == "eth0").for_each(|link| link.carrier = false);
    cluster.node.feed(Input::NetworkChanged);
    cluster.node.pass_ms(50);
    assert!(!cluster.has(), "when the cable is back, another node has long been serving it");
}
