//! A LAN that has fallen apart, with the gateway on one side of it.

use super::*;

/// The default gateway of `network()`.
const GATEWAY: &str = "10.0.0.254";

/// What a node says: whether the gateway answers it, and how many hosts do.
fn hearing(node: &str, gateway: bool, hosts: u8) -> Card {
    let on = "eth0".to_owned();
    Card { hears: [(on.clone(), hosts)].into(), gateways: [(on, gateway)].into(), ..card(node) }
}

fn gateway_answers(cluster: &mut Cluster) {
    let (address, mac) = (GATEWAY.parse().unwrap(), [2, 0, 0, 0, 9, 9].into());
    cluster.node.feed(Input::Heard(Frame { link: 2, address, mac, what: Heard::Answer, to_us: true, payload: None }));
}

/// A host that is no member asks for somebody, and answers.
fn host_answers(cluster: &mut Cluster) {
    let (address, mac) = ("10.0.0.200".parse().unwrap(), [2, 0, 0, 0, 8, 8].into());
    let answer = Frame { link: 2, address, mac, what: Heard::Answer, to_us: true, payload: None };
    cluster.node.feed(Input::Heard(Frame { what: Heard::Claim, to_us: false, ..answer }));
    cluster.node.feed(Input::Heard(answer));
}

/// For so long `others` renew with these cards every five seconds, and the gateway answers or does not.
fn pass(cluster: &mut Cluster, seconds: u64, others: &[Card; 2], gateway: bool) {
    for second in 0..seconds {
        if second % 5 == 0 {
            cluster.renew(&["node-1"]);
            for (node, card) in ["node-2", "node-3"].into_iter().zip(others) {
                cluster.member(node, card.clone());
            }
        }
        for _ in 0..40 {
            host_answers(cluster);
            if gateway {
                gateway_answers(cluster);
            }
            cluster.node.pass_ms(25);
        }
    }
}

/// Both watchers of an owner may be on its side of a LAN that has fallen apart.
#[test]
fn an_owner_that_has_lost_the_gateway_hands_over_to_a_node_that_hears_it() {
    let (there, gone) = (|node| hearing(node, true, 3), |node| hearing(node, false, 1));
    let ill = Card { serving: false, ..there("node-3") };
    let lonely = hearing("node-3", true, 1);
    for (name, wished, gateway, others, to) in [
        ("one hears it", None, false, [gone("node-2"), there("node-3")], Some("node-3")),
        ("a Service wishes its address", Some(GATEWAY), false, [gone("node-2"), there("node-3")], Some("node-3")),
        ("this node hears it, too", None, true, [gone("node-2"), there("node-3")], None),
        ("the gateway has failed", None, false, [gone("node-2"), gone("node-3")], None),
        ("a stranger has its name where nobody else is", None, false, [gone("node-2"), lonely], None),
        ("that one is not well, and would hand it on", None, false, [gone("node-2"), ill], None),
        ("nobody says so: these are of an older version", None, false, [card("node-2"), card("node-3")], None),
    ] {
        let mut cluster = owner(&ALL);
        if let Some(address) = wished {
            cluster.node.upsert(view("wish", &[address]));
        }
        pass(&mut cluster, 20, &[there("node-2"), there("node-3")], true);
        assert_eq!(cluster.node.swaps, [], "{name}: nothing has happened yet");
        pass(&mut cluster, 17, &others, gateway);
        assert_eq!(cluster.node.swaps, [], "{name}: that card may be from before");
        pass(&mut cluster, 8, &others, gateway);
        let given: Option<&str> = cluster.node.swaps.first().map(|(_, swap)| swap.owner_record.host.as_str());
        assert_eq!(given, to, "{name}");
    }
}

/// Also while there is no default route, as when the lease that gave it could not be renewed.
#[test]
fn no_service_gets_the_address_of_the_default_gateway_for_as_long_as_it_is_that() {
    let key = ServiceKey::new("default", "web");
    let mut cluster = Cluster::new(&["node-1"], &[view("web", &[GATEWAY])]);
    for (gateway, refused) in [(GATEWAY, true), ("10.0.0.253", false), (GATEWAY, true), ("", true)] {
        cluster.node.kernel.network.gateway = gateway.parse().ok();
        cluster.node.feed(Input::NetworkChanged);
        cluster.node.pass_ms(100);
        let services = &cluster.node.engine.services;
        assert_eq!(services.refusals().count(), usize::from(refused), "the gateway is {gateway}");
        assert_eq!(services[&key].wanted.is_empty(), refused, "the gateway is {gateway}");
    }
    let told = cluster.node.told.iter().any(|(_, tell)| tell.text.contains("10.0.0.254 is the default gateway"));
    assert!(told, "{:?}", cluster.node.told);
}

#[test]
fn what_clients_know_is_kept_although_it_is_the_address_of_the_default_gateway() {
    let mut cluster = Cluster::new(&["node-1"], &[seated("web", GATEWAY, "node-1", 4)]);
    cluster.node.pass_ms(100);
    let services = &cluster.node.engine.services;
    assert_eq!(services.refusals().count(), 0);
    assert!(!services[&ServiceKey::new("default", "web")].wanted.is_empty());
}

/// Its Lease is still valid. The other node's cards are news, so that there are reviews.
#[test]
fn an_old_card_does_not_show_that_a_node_hears_the_gateway() {
    let (there, gone) = (|node| hearing(node, true, 3), |hosts| hearing("node-2", false, hosts));
    let mut cluster = owner(&ALL);
    pass(&mut cluster, 20, &[there("node-2"), there("node-3")], true);
    pass(&mut cluster, 15, &[gone(1), there("node-3")], false);
    for hosts in [2, 3, 2, 3] {
        cluster.renew(&["node-1"]);
        cluster.member("node-2", gone(hosts));
        host_answers(&mut cluster);
        cluster.node.pass(Duration::from_secs(1));
    }
    assert_eq!(cluster.node.swaps, []);
    cluster.member("node-3", there("node-3"));
    assert!(!cluster.node.swaps.is_empty(), "a new one does");
}

/// A router was away from all nodes. They ask at different moments, so they hear at different moments that it is back.
#[test]
fn a_gateway_that_is_back_moves_nothing_before_the_owner_had_the_time_to_hear_it() {
    let (there, gone) = (|node| hearing(node, true, 3), |node| hearing(node, false, 1));
    let (all_there, all_gone) = (["node-2", "node-3"].map(there), ["node-2", "node-3"].map(gone));
    for api in [true, false] {
        for hears_it in [true, false] {
            let mut cluster = owner(&ALL);
            pass(&mut cluster, 20, &all_there, true);
            if api {
                pass(&mut cluster, 40, &all_gone, false);
            } else {
                cluster.node.pass(Duration::from_secs(40));
            }
            pass(&mut cluster, 17, &all_there, false);
            assert_eq!(cluster.node.swaps, [], "with the API: {api}");
            pass(&mut cluster, 8, &all_there, hears_it);
            assert_eq!(cluster.node.swaps.is_empty(), hears_it, "with the API: {api}");
        }
    }
}

#[test]
fn who_has_lost_the_gateway_is_given_nothing_while_another_node_hears_it() {
    for lost in ["node-2", "node-3"] {
        let mut cluster = owner(&ALL);
        let others = ["node-2", "node-3"].map(|node| hearing(node, node != lost, 1 + u8::from(node != lost)));
        pass(&mut cluster, 20, &others, true);
        cluster.leaves();
        let to = cluster.node.swaps.first().map(|(_, swap)| swap.owner_record.host.clone());
        assert!(to.as_deref().is_some_and(|to| to != lost), "{lost} has lost it, and {to:?} gets it");
    }
}

/// The number of hosts alone would not keep it here.
#[test]
fn nothing_goes_home_to_a_node_without_the_gateway_however_many_hosts_that_one_hears() {
    let mut moved = BTreeSet::new();
    for hears_it in [true, false] {
        for last in 20..28 {
            let views = [seated("web", &format!("10.0.0.{last}"), "node-1", 4)];
            let mut cluster = Cluster::with(&[("vip_failback", "true")], &ALL, &views);
            pass(&mut cluster, 70, &["node-2", "node-3"].map(|node| hearing(node, hears_it, 9)), true);
            if !cluster.node.swaps.is_empty() {
                moved.insert(hears_it);
            }
        }
    }
    assert_eq!(moved, [true].into());
}
