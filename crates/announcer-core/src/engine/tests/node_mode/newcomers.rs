//! Services of others that ask for an address which is served, with records of their author's own making.

use super::*;
use crate::annotations::{AddressRequest, TERM};
use crate::view::{InterfaceWish, Port};

/// Another port of the same address, under a record that nobody has swapped.
fn newcomer(created: i64, term: u64) -> ServiceView {
    let mut view = view("newcomer", &["10.0.0.5"]);
    view.created = created;
    view.ports = vec![Port { port: 9, protocol: "TCP".into() }];
    view.published.vip_host = Some("nosuch".into());
    view.published.term = Some(Term(term));
    view
}

/// node-1 has the address of a Service that was made at 100.
fn served() -> Cluster {
    let web = ServiceView { created: 100, ..view("web", &["10.0.0.5"]) };
    let mut cluster = Cluster::new(&["node-1"], &[web]);
    cluster.won();
    cluster.node.pass_ms(50);
    assert!(cluster.has());
    cluster
}

#[test]
fn a_record_that_a_newcomer_brings_takes_an_address_off_no_node() {
    for term in [7, 1 << 32, (1 << 32) + 1, 1 << 40, 1 << 41] {
        let mut cluster = served();
        cluster.node.upsert(newcomer(200, term));
        cluster.quiet(5000, &[], &["node-1"]);
        assert!(cluster.has(), "term {term}");
        assert_eq!(cluster.node.swaps, [], "term {term}");
    }
}

/// Terms are counted for all Services together: the record of a Service that moved lately is newer than that of one
/// which has stayed where it is.
#[test]
fn a_service_that_was_served_elsewhere_under_a_newer_record_is_written_once_and_stays_when_the_first_goes() {
    for term in [9, 1 << 40, 1 << 41] {
        let mut cluster = served();
        let before = cluster.node.records;
        let asked = newcomer(200, term);
        let elsewhere = published("newcomer", "10.0.0.9", "node-2").published;
        cluster.node.upsert(ServiceView { published: Published { term: asked.published.term, ..elsewhere }, ..asked });
        cluster.quiet(5000, &[], &["node-1"]);
        let written = cluster.node.engine.services[&ServiceKey::new("default", "newcomer")].published.clone();
        let addresses: Vec<_> = written.ingress.iter().filter_map(|entry| entry.ip).collect();
        assert_eq!(addresses, ["10.0.0.5".parse::<IpAddr>().unwrap()], "term {term}");
        assert_eq!(cluster.node.records, before + 1, "term {term}");
        let copy = OwnerRecord { host: "node-1".into(), term: Term(term).next() };
        assert_eq!(written.owner_record(), Some(copy), "the other node has to forget what it had");
        let told = cluster.node.told.iter().any(|(name, tell)| name == "newcomer" && tell.text.contains(TERM));
        assert_eq!(told, term != 9, "{:?}", cluster.node.told);
        cluster.node.gone("web");
        cluster.quiet(1000, &[], &["node-1"]);
        assert!(cluster.has(), "term {term}");
        assert_eq!(cluster.node.swaps, [], "term {term}");
    }
}

#[test]
fn a_record_that_a_newcomer_brings_keeps_no_address_from_a_service_that_has_none_yet() {
    let web = ServiceView { created: 100, ..view("web", &["10.0.0.5"]) };
    let mut cluster = Cluster::new(&["node-1"], &[web, newcomer(200, (1 << 40) + 1)]);
    cluster.won();
    cluster.node.pass_ms(50);
    assert!(cluster.has());
}

/// It asks for an interface that no node has.
fn old() -> ServiceView {
    ServiceView { interface: InterfaceWish::Named("nosuch".into()), ..newcomer(1, 7) }
}

#[test]
fn an_older_service_that_asks_later_does_not_decide_where_a_served_address_is() {
    let mut cluster = served();
    cluster.node.upsert(old());
    cluster.quiet(5000, &[], &["node-1"]);
    let services = &cluster.node.engine.services;
    let newcomer = services[&ServiceKey::new("default", "newcomer")].clone();
    assert_eq!(newcomer.published.ingress.len(), 1, "clients know it under that address by now");
    assert!(cluster.has());
    assert_eq!(cluster.node.swaps, []);
    // Whatever its author makes of its annotations, and whoever looks at it anew.
    let web = services[&ServiceKey::new("default", "web")].clone();
    let mut restarted = Cluster::new(&["node-1"], &[web, ServiceView { created: 0, ..newcomer }]);
    restarted.quiet(5000, &[], &["node-1"]);
    assert!(restarted.has());
}

#[test]
fn who_names_an_interface_that_no_node_has_does_not_decide_for_others_that_have_the_address() {
    let mut first = seated("first", "10.0.0.5", "node-1", 4);
    first.interface = InterfaceWish::Named("nosuch".into());
    let mut second = ServiceView { created: 100, ..seated("second", "10.0.0.5", "node-1", 4) };
    second.ports = vec![Port { port: 9, protocol: "TCP".into() }];
    let mut cluster = Cluster::new(&["node-1", "node-2"], &[first, second]);
    cluster.quiet(5000, &[("node-2", "10.0.0.2")], &["node-1", "node-2"]);
    assert!(cluster.has());
    assert_eq!(cluster.node.swaps, []);
    let told = &cluster.node.told;
    assert!(told.iter().any(|(name, tell)| name == "first" && tell.text.contains("nosuch")), "{told:?}");
}

/// As `kubectl get service web -o yaml | kubectl apply` under another name makes it.
#[test]
fn a_service_with_the_mac_of_one_that_is_served_elsewhere_gets_no_macvlan_and_says_whose_it_is() {
    let mac = Mac::new([0, 0, 0x6c, 1, 2, 3]);
    let mut web = seated("web", "10.0.0.50", "node-2", 4);
    (web.wanted, web.dhcp.mac, web.created) = (vec![AddressRequest::Dhcp4], Some(mac), 100);
    for name in ["copya", "copyb", "copyc", "copyd", "copye"] {
        let mut copy = view(name, &["dhcp"]);
        (copy.dhcp.mac, copy.created) = (Some(mac), 1);
        let mut cluster = Cluster::new(&["node-1", "node-2"], &[web.clone(), copy]);
        if cluster.node.swaps.is_empty() {
            continue;
        }
        cluster.won();
        cluster.node.pass_ms(2000);
        let log = cluster.node.take_log();
        assert!(log.iter().all(|line| !line.contains("macvlan vip-")), "{log:?}");
        let told = &cluster.node.told;
        assert!(
            told.iter().any(|(told, tell)| told == name && tell.text.contains("by Service default/web")),
            "{told:?}"
        );
        // Once the first is gone it may have the MAC.
        cluster.node.gone("web");
        cluster.node.pass_ms(60_000);
        let log = cluster.node.take_log();
        assert!(log.iter().any(|line| line.contains("macvlan vip-")), "{log:?}");
        return;
    }
    panic!("one of the names belongs to this node");
}

#[test]
fn who_names_an_interface_on_which_no_node_has_vips_is_passed_over_by_plan_and_record_alike() {
    for (interface, env) in [
        (InterfaceWish::Named("lo".into()), ("vip_loglevel", "4")),
        (InterfaceWish::Default, ("vip_interface", "nosuch")),
    ] {
        let first = ServiceView { interface, ..seated("first", "10.0.0.5", "node-1", 4) };
        let mut second = ServiceView { created: 100, ..seated("second", "10.0.0.5", "node-1", 4) };
        second.interface = InterfaceWish::Named("eth0".into());
        second.ports = vec![Port { port: 9, protocol: "TCP".into() }];
        let mut cluster = Cluster::with(&[env], &["node-1", "node-2"], &[first, second]);
        cluster.quiet(5000, &[("node-2", "10.0.0.2")], &["node-1", "node-2"]);
        assert!(cluster.has(), "{env:?}");
        assert_eq!(cluster.node.swaps, [], "{env:?}");
    }
}
