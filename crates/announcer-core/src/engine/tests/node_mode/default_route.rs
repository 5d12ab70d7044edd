//! No interface is named, so addresses are where the default route is. A network daemon or a DHCP client replaces it.

use super::*;

/// The kernel has another default route, or none.
fn routed(cluster: &mut Cluster, default_route: Option<u32>) {
    cluster.node.kernel.network.default_route = default_route;
    cluster.node.feed(Input::NetworkChanged);
}

#[test]
fn a_default_route_that_is_away_or_elsewhere_for_a_moment_moves_nothing() {
    for other in [None, Some(3)] {
        let mut cluster = owner(&ALL);
        routed(&mut cluster, other);
        cluster.quiet(200, &[], &ALL);
        routed(&mut cluster, Some(2));
        cluster.quiet(15_000, &[], &ALL);
        assert_eq!(cluster.node.swaps, [], "{other:?}");
        assert_eq!(cluster.node.kernel.own(), ["eth0 10.0.0.5/32"], "{other:?}");
        let log = cluster.node.take_log();
        let moved = |line: &&String| ["add", "remove", "announce"].iter().any(|word| line.starts_with(word));
        assert_eq!(log.iter().find(moved), None, "{other:?}: {log:?}");
    }
}

#[test]
fn an_owner_whose_default_route_stays_away_hands_over_after_ten_seconds() {
    let mut cluster = owner(&ALL);
    routed(&mut cluster, None);
    cluster.quiet(9900, &[], &ALL);
    assert!(cluster.has() && cluster.node.swaps.is_empty());
    cluster.quiet(200, &[], &ALL);
    assert!(!cluster.has() && !cluster.node.swaps.is_empty(), "without any further change");
}

#[test]
fn addresses_follow_a_default_route_that_stays_elsewhere_after_ten_seconds() {
    let mut cluster = owner(&ALL);
    routed(&mut cluster, Some(3));
    cluster.quiet(9900, &[], &ALL);
    assert_eq!(cluster.node.kernel.own(), ["eth0 10.0.0.5/32"]);
    cluster.quiet(200, &[], &ALL);
    assert_eq!(cluster.node.kernel.own(), ["eth1 10.0.0.5/32"]);
}

#[test]
fn an_owner_whose_interface_is_set_down_hands_over_at_once() {
    let mut cluster = owner(&ALL);
    let links = &mut cluster.node.kernel.network.links;
    links.iter_mut().filter(|link| link.index == 2).for_each(|link| link.up = false);
    routed(&mut cluster, None);
    cluster.node.pass_ms(100);
    assert!(!cluster.has() && !cluster.node.swaps.is_empty());
}
