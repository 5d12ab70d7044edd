//! A Service that no node can take: one node says so, once, and whoever can serve it later does.

use super::*;
use crate::network::fixtures::{self, link};
use crate::view::InterfaceWish;

const MINUTE: u64 = 60_000;

fn on_uplink(view: ServiceView) -> ServiceView {
    ServiceView { interface: InterfaceWish::Named("uplink7".into()), ..view }
}

/// An address that belongs to node-1, whom the tests see, or to another node.
fn address(here: bool) -> String {
    let mut addresses = (5..250).map(|last| format!("10.0.0.{last}"));
    let belongs = |address: &String| (crate::ownership::node::preferred(address, ALL) == Some("node-1")) == here;
    addresses.find(belongs).expect("they spread over the nodes")
}

#[test]
fn a_name_that_no_node_knows_is_told_once_by_the_node_where_the_address_would_be() {
    let mut cluster = Cluster::new(&ALL, &[on_uplink(view("web", &[&address(true)]))]);
    cluster.quiet(2500, &[], &ALL);
    assert!(cluster.node.told.is_empty(), "a node that has it would need a moment: {:?}", cluster.node.told);
    cluster.quiet(5 * MINUTE, &[], &ALL);
    let [(name, told)] = &cluster.node.told[..] else { panic!("once: {:?}", cluster.node.told) };
    assert_eq!((name.as_str(), told.warning, told.reason), ("web", true, Reason::CannotAnnounce));
    for part in ["\"uplink7\"", "does not exist", "eth0", "node-1"] {
        assert!(told.text.contains(part), "{}", told.text);
    }
    assert_eq!((cluster.node.swaps.len(), cluster.node.records), (0, 0), "nothing is written");

    let mut cluster = Cluster::new(&ALL, &[on_uplink(view("web", &[&address(false)]))]);
    cluster.quiet(MINUTE, &[], &ALL);
    assert!(cluster.node.told.is_empty(), "another node tells: {:?}", cluster.node.told);
}

#[test]
fn the_node_on_which_the_interface_appears_takes_the_address_wherever_it_would_belong() {
    let mut cluster = Cluster::new(&ALL, &[on_uplink(view("web", &[&address(false)]))]);
    cluster.quiet(10_000, &[], &ALL);
    assert!(cluster.node.swaps.is_empty());
    // In the same LAN as the interface that the other nodes have: they could still not use that one.
    cluster.node.kernel.network.links.push(link(7, "uplink7"));
    cluster.node.kernel.network.addresses.push(fixtures::address(7, "10.0.0.201/24"));
    cluster.node.feed(Input::NetworkChanged);
    cluster.node.pass_ms(100);
    assert_eq!(cluster.node.swaps.len(), 1);
    assert!(cluster.node.cards.last().unwrap().links.iter().any(|link| link.name == "uplink7"), "the others know");
}

#[test]
fn an_owner_whose_service_names_an_interface_that_no_node_has_does_not_pass_it_round() {
    let mut cluster = owner(&ALL);
    cluster.node.upsert(on_uplink(seated("web", "10.0.0.5", "node-1", 4)));
    cluster.quiet(10_000, &[], &ALL);
    assert!(cluster.node.swaps.is_empty() && !cluster.has());
    assert_eq!(cluster.node.reasons(), ["CannotAnnounce"]);
}

#[test]
fn where_no_node_is_well_the_least_bad_one_announces_it_and_says_what_is_wrong() {
    for (kube_proxy, facts, part) in [
        (false, Some(FACTS), "kube-proxy is not healthy"),
        (true, Some(NodeFacts { ready: false, ..FACTS }), "not ready"),
        (true, None, "no Node object"),
    ] {
        let mut cluster = Cluster::new(&["node-1"], &[]);
        cluster.node.feed(Input::KubeProxy(kube_proxy));
        cluster.node.feed(Input::Node("node-1".into(), facts));
        cluster.node.upsert(view("web", &["10.0.0.5"]));
        cluster.quiet(1000, &[], &["node-1"]);
        cluster.won();
        cluster.quiet(15_000, &[], &["node-1"]);
        assert!(cluster.has() && !cluster.node.reasons().contains(&"NoHealthyNode"), "{:?}", cluster.node.told);
        // A Node that is not ready counts as such after 10 s.
        cluster.quiet(20_000, &[], &["node-1"]);
        let found = cluster.node.told.iter().find(|(_, told)| told.reason == Reason::NoHealthyNode);
        let (_, told) = found.unwrap_or_else(|| panic!("{part}: {:?}", cluster.node.told));
        assert!(told.warning && told.text.contains(part), "{}", told.text);
    }
}

#[test]
fn the_address_of_a_dead_owner_is_taken_by_a_node_of_which_nothing_good_is_known() {
    let mut cluster = Cluster::new(&ALL, &[seated("web", "10.0.0.5", "node-3", 4)]);
    for node in ALL {
        cluster.node.feed(Input::Node(node.into(), Some(NodeFacts { ready: false, cordoned: true, ..FACTS })));
    }
    cluster.node.feed(Input::KubeProxy(false));
    cluster.quiet(2000, &[("node-3", "10.0.0.5"), ("node-2", "10.0.0.2")], &ALL);
    let died = cluster.node.now;
    while cluster.node.swaps.is_empty() {
        cluster.node.pass_ms(5);
        cluster.answers("node-2", "10.0.0.2");
        assert!(cluster.node.now < died + Duration::from_millis(500), "{:?}", cluster.node.log);
    }
}

#[test]
fn what_the_node_object_or_the_endpoints_forbid_is_told() {
    let local = ServiceView { local_traffic: true, ..view("web", &["10.0.0.5"]) };
    for (view, facts, reason, part) in [
        (view("web", &["10.0.0.5"]), NodeFacts { shut_out: true, ..FACTS }, Reason::CannotAnnounce, "excluded"),
        (local, FACTS, Reason::NoLocalEndpoint, "endpoint"),
    ] {
        let mut cluster = Cluster::new(&["node-1"], &[]);
        cluster.node.feed(Input::Node("node-1".into(), Some(facts)));
        cluster.node.feed(Input::Endpoints(view.key.clone(), Some(BTreeSet::new())));
        cluster.node.upsert(view);
        cluster.quiet(30_000, &[], &["node-1"]);
        let [(_, told)] = &cluster.node.told[..] else { panic!("{part}: {:?}", cluster.node.told) };
        assert_eq!(told.reason, reason);
        assert!(told.text.contains(part), "{}", told.text);
    }
}

#[test]
fn the_address_of_a_node_an_api_server_the_gateway_or_a_whole_subnet_is_nobodys() {
    let asked = [
        ("of-1", "10.0.0.1"),
        ("of-2", "10.0.0.2"),
        ("gateway", "10.0.0.254"),
        ("broadcast", "10.0.0.255"),
        ("api", "192.0.2.9"),
    ];
    let views = asked.map(|(name, address)| view(name, &[address]));
    let mut cluster = Cluster::new(&["node-1", "node-2"], &[]);
    cluster.node.feed(Input::ApiServers(BTreeSet::from(["192.0.2.9".parse().unwrap()])));
    for view in views {
        cluster.node.upsert(view);
    }
    cluster.node.pass_ms(30_000);
    assert!(cluster.node.swaps.is_empty(), "{:?}", cluster.node.swaps);
    assert_eq!(cluster.node.kernel.own(), Vec::<String>::new());
    // Each has one node that speaks about it: node-2 about its own.
    let mut told: Vec<&str> = cluster.node.told.iter().map(|(name, _)| name.as_str()).collect();
    told.sort_unstable();
    told.dedup();
    assert_eq!(told, ["api", "broadcast", "gateway", "of-1"]);
}

fn local(address: &str) -> ServiceView {
    ServiceView { local_traffic: true, ..view("web", &[address]) }
}

fn endpoints(cluster: &mut Cluster, nodes: &[&str]) {
    let nodes = nodes.iter().map(|node| (*node).to_owned()).collect();
    cluster.node.feed(Input::Endpoints(ServiceKey::new("default", "web"), Some(nodes)));
}

#[test]
fn clients_are_told_of_an_address_that_waits_for_its_first_endpoint() {
    for (here, writes) in [(true, 1), (false, 0)] {
        let address = address(here);
        let mut cluster = Cluster::new(&ALL, &[]);
        endpoints(&mut cluster, &[]);
        cluster.node.upsert(local(&address));
        cluster.quiet(100, &[], &ALL);
        assert_eq!(cluster.node.records, writes, "one node writes, at once: {:?}", cluster.node.log);
        cluster.quiet(5 * MINUTE, &[], &ALL);
        assert_eq!((cluster.node.swaps.len(), cluster.node.records), (0, writes), "and no more");
        assert_eq!(cluster.node.kernel.own(), Vec::<String>::new(), "nobody announces it");
        let published = &cluster.node.engine.services[&ServiceKey::new("default", "web")].published;
        assert_eq!((published.has(address.parse().unwrap()), &published.vip_host), (here, &None));
        let reasons = cluster.node.reasons();
        assert_eq!(reasons, if here { vec!["NoLocalEndpoint"] } else { vec![] });

        endpoints(&mut cluster, &["node-1"]);
        cluster.quiet(5000, &[], &ALL);
        cluster.won();
        cluster.node.pass_ms(1000);
        assert!(cluster.node.kernel.has("eth0", &format!("{address}/32")), "{:?}", cluster.node.log);
        assert!(cluster.node.log.iter().any(|line| line.contains("announce")), "{:?}", cluster.node.log);
    }
}

#[test]
fn an_owner_that_comes_first_is_not_written_over_and_nothing_is_told_while_the_process_ends() {
    let address = address(true);
    let mut cluster = Cluster::new(&ALL, &[]);
    endpoints(&mut cluster, &[]);
    cluster.node.upsert(ServiceView { local_traffic: true, ..seated("web", &address, "node-2", 4) });
    cluster.quiet(1000, &[("node-2", &address)], &ALL);
    assert_eq!(cluster.node.records, 0);

    let mut cluster = Cluster::new(&ALL, &[]);
    endpoints(&mut cluster, &[]);
    cluster.leaves();
    cluster.node.upsert(local(&address));
    cluster.node.pass_ms(1000);
    assert_eq!(cluster.node.records, 0);
}

#[test]
fn a_lease_is_asked_for_by_a_node_without_endpoints_if_no_node_has_one() {
    for (nodes, taken) in [(&[][..], true), (&["node-2"], false)] {
        let mut cluster = Cluster::new(&["node-1", "node-2"], &[]);
        endpoints(&mut cluster, nodes);
        let leased = ServiceView { local_traffic: true, ..view("web", &["dhcp"]) };
        cluster.node.upsert(leased);
        // Long enough for the next in turn, too.
        cluster.quiet(5000, &[], &["node-1", "node-2"]);
        assert_eq!(!cluster.node.swaps.is_empty(), taken, "{nodes:?}");
    }
}
