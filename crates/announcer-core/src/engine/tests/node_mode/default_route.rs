//! No interface is named, so addresses are where the default route is. A network daemon or a DHCP client replaces it.

use super::*;
use crate::view::InterfaceWish;

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

/// Other nodes would give it an address, or wait for it to watch, which it cannot.
#[test]
fn a_node_whose_default_route_stays_away_has_no_interface_on_its_card() {
    let mut cluster = owner(&ALL);
    let names = |cluster: &Cluster| {
        let card = cluster.node.cards.last().unwrap();
        card.links.iter().map(|link| link.name.clone()).collect::<Vec<_>>()
    };
    assert_eq!(names(&cluster), ["eth0"]);
    routed(&mut cluster, None);
    cluster.quiet(10_500, &[], &ALL);
    cluster.won();
    cluster.node.feed(Input::NetworkChanged);
    cluster.quiet(6000, &[], &ALL);
    assert!(names(&cluster).is_empty(), "{:?}", names(&cluster));
}

/// A node that has another interface on its card gets nothing that belongs on the one that is named.
#[test]
fn an_address_goes_to_a_node_that_has_the_interface_that_is_named() {
    for (env, wish) in [(&[("vip_interface", "eth1")][..], InterfaceWish::Default), (&[], InterfaceWish::Auto)] {
        let nodes = ["node-1", "node-2", "node-3", "node-4"];
        for able in ["node-2", "node-3", "node-4"] {
            let service = ServiceView { interface: wish.clone(), ..seated("web", "10.1.0.5", "node-1", 4) };
            let mut cluster = Cluster::with(env, &nodes, &[service]);
            let mut there = card(able);
            let address = format!("10.1.0.{}/16", able.bytes().last().unwrap() - b'0').parse().unwrap();
            there.links.push(CardLink { name: "eth1".into(), addresses: vec![address], ..there.links[0].clone() });
            cluster.member(able, there);
            let links = &mut cluster.node.kernel.network.links;
            links.iter_mut().filter(|link| link.name == "eth1").for_each(|link| link.carrier = false);
            cluster.node.kernel.network.default_route = None;
            cluster.node.feed(Input::NetworkChanged);
            cluster.node.pass_ms(100);
            let to = cluster.node.swaps.last().map(|(_, swap)| swap.owner_record.host.as_str());
            assert_eq!(to, Some(able), "{wish:?}");
        }
    }
}

/// None of two nodes has the route, and each has an interface on its card that another Service uses.
#[test]
fn an_address_that_comes_back_is_given_at_a_pace() {
    let mut cluster = owner(&["node-1"]);
    let mut there = card("node-2");
    there.links[0].name = "eth7".into();
    cluster.member("node-2", there.clone());
    routed(&mut cluster, None);
    let mut gives = 0;
    for second in 0..125 {
        cluster.member("node-2", there.clone());
        for _ in 0..20 {
            cluster.node.pass_ms(50);
            let Some((_, swap)) = cluster.node.swaps.last().cloned() else { continue };
            gives += 1;
            assert!(gives <= 2 || second >= 13, "the third one waits for 4 s");
            cluster.won();
            let term = swap.owner_record.term.next();
            cluster.node.upsert(seated("web", "10.0.0.5", "node-1", term.0));
        }
    }
    assert!((12..=17).contains(&gives), "{gives} in two minutes");
    let there = card("node-2");
    cluster.quiet(10_000, &[], &[]);
    cluster.member("node-2", there);
    cluster.node.pass_ms(50);
    assert!(!cluster.node.swaps.is_empty(), "8 s after the last one at the latest");
}

/// It belongs on an interface that is named, and is made anew.
#[test]
fn an_interface_that_was_named_stays_on_the_card_for_a_while() {
    let service =
        || ServiceView { interface: InterfaceWish::Named("eth1".into()), ..seated("web", "10.1.0.5", "node-1", 4) };
    let mut cluster = Cluster::new(&ALL, &[service()]);
    cluster.quiet(6000, &[], &ALL);
    cluster.node.gone("web");
    cluster.node.feed(Input::NetworkChanged);
    cluster.quiet(10_000, &[], &ALL);
    assert!(cluster.node.cards.last().unwrap().links.iter().any(|link| link.name == "eth1"));
    cluster.quiet(30_000, &[], &ALL);
    assert!(cluster.node.cards.last().unwrap().links.iter().all(|link| link.name != "eth1"));
}
