use super::*;
use crate::network::fixtures::{address, macvlan, own_address, without_marks};

fn left_behind(nets: &[(u32, &str)]) -> Network {
    let mut network = network();
    network.addresses.extend(nets.iter().map(|(link, net)| own_address(*link, net)));
    network
}

fn with_deadlines(node: &mut Node, nets: &[(u32, &str)]) {
    for (link, net) in nets {
        node.kernel.deadlines.push((*link, net.parse().unwrap(), node.now + Duration::from_secs(12)));
    }
}

#[test]
fn a_restart_adopts_without_a_lost_packet_and_writes_nothing() {
    let nets = [(2, "10.0.0.5/32")];
    let mut node = Node::new(&[], left_behind(&nets));
    with_deadlines(&mut node, &nets);
    node.start_with(&[published("web", "10.0.0.5", "node-1")], MINE);
    node.pass(Duration::from_secs(30));
    assert!(node.kernel.has("eth0", "10.0.0.5/32"));
    let log = node.take_log();
    assert!(
        !log.iter().any(|line| line.starts_with("remove") || line.starts_with("probe") || line.starts_with("add")),
        "{log:?}"
    );
    assert_eq!(node.records, 0);
    assert!(node.told.is_empty());
}

#[test]
fn what_is_found_is_kept_while_it_is_not_known_whose_it_is_but_not_for_ever() {
    let nets = [(2, "10.0.0.5/32")];
    let mut node = Node::new(&[], left_behind(&nets));
    with_deadlines(&mut node, &nets);
    // The API is away: neither Services nor Lease.
    node.tick();
    node.pass(Duration::from_secs(299));
    assert!(node.kernel.has("eth0", "10.0.0.5/32"));
    node.pass(Duration::from_secs(15));
    assert!(!node.kernel.has("eth0", "10.0.0.5/32"));
}

#[test]
fn what_was_left_in_order_keeps_its_time_while_nothing_is_known() {
    let net = "10.0.0.5/32";
    let mut network = left_behind(&[(2, net)]);
    let left = Duration::from_mins(5);
    network.addresses.iter_mut().filter(|found| found.is_ours()).for_each(|found| {
        found.valid = l2_types::AddressLifetime::For(left);
    });
    let mut node = Node::new(&[], network);
    node.kernel.deadlines.push((2, net.parse().unwrap(), node.now + left));
    node.tick();
    // Should it end here, for whatever reason, the next one may take its time.
    assert!(node.kernel.valid(net, node.now).unwrap() > Duration::from_mins(4));
    // It may also take its time itself.
    node.pass(Duration::from_secs(299));
    assert!(node.kernel.has("eth0", net));
}

/// Not even the process knows of the pause until it looks at the clock.
fn stand_still(node: &mut Node, seconds: u64) {
    node.now += Duration::from_secs(seconds);
    node.kernel.expire(node.now);
}

#[test]
fn what_fell_at_its_deadline_during_a_pause_is_not_set_again() {
    let nets = [(2, "10.0.0.5/32")];
    let mut node = Node::new(&[], left_behind(&nets));
    with_deadlines(&mut node, &nets);
    node.tick();
    node.pass_ms(3000);
    assert!(node.kernel.has("eth0", "10.0.0.5/32"));
    stand_still(&mut node, 20);
    assert!(!node.kernel.has("eth0", "10.0.0.5/32"));
    // Another node may have it by now, and an answer from before the pause is still on its way.
    let before = left_behind(&nets);
    node.feed(Input::Kernel(KernelDone::Observed(Ok(before))));
    node.pass_ms(5000);
    assert_eq!(node.kernel.own(), Vec::<String>::new(), "{:?}", node.log);
    let log = node.take_log();
    assert!(!log.iter().any(|line| line.starts_with("add")), "{log:?}");
}

#[test]
fn what_is_still_there_after_a_pause_is_kept_from_the_first_look_on() {
    let nets = [(2, "10.0.0.5/32")];
    let mut node = Node::new(&[], left_behind(&nets));
    with_deadlines(&mut node, &nets);
    node.tick();
    node.pass_ms(3000);
    stand_still(&mut node, 10);
    assert!(node.kernel.valid("10.0.0.5/32", node.now).is_some_and(|left| left < Duration::from_secs(3)));
    node.tick();
    assert_eq!(node.kernel.valid("10.0.0.5/32", node.now), Some(node.engine.config.fence()));
}

#[test]
fn what_is_found_goes_at_once_when_somebody_else_announces_it() {
    let nets = [(2, "10.0.0.5/32")];
    let mut node = Node::new(&[], left_behind(&nets));
    with_deadlines(&mut node, &nets);
    node.tick();
    node.heard(2, "10.0.0.5", [2, 9, 9, 9, 9, 9], Heard::Claim);
    assert!(!node.kernel.has("eth0", "10.0.0.5/32"));
}

/// Its new owner reaches the interface beneath; the macvlan has the MAC that it has everywhere.
#[test]
fn what_is_found_on_a_macvlan_goes_when_its_new_owner_claims_it() {
    let mut network = left_behind(&[(50, "10.0.0.50/32")]);
    network.links.push(macvlan(50, "vip-web00000", 2, Some(uid("web").0.as_str())));
    let mac = network.link(50).unwrap().mac.unwrap().octets();
    let mut node = Node::new(&[], network);
    with_deadlines(&mut node, &[(50, "10.0.0.50/32")]);
    node.tick();
    assert_eq!(node.listening, BTreeSet::from([(2, Family::V4), (50, Family::V4)]));
    node.heard(2, "10.0.0.50", mac, Heard::Claim);
    assert!(!node.kernel.has("vip-web00000", "10.0.0.50/32"));
}

#[test]
fn what_is_found_is_listened_for_in_its_own_family() {
    for (net, claimed, family) in [("10.0.0.5/32", "10.0.0.5", Family::V4), ("fd00::5/128", "fd00::5", Family::V6)] {
        let mut node = Node::new(&[], left_behind(&[(2, net)]));
        node.tick();
        assert_eq!(node.listening, BTreeSet::from([(2, family)]));
        node.heard(2, claimed, [2, 9, 9, 9, 9, 9], Heard::Claim);
        assert!(!node.kernel.has("eth0", net));
    }
}

#[test]
fn nothing_is_swept_before_services_and_owner_are_known() {
    let mut node = Node::new(&[], left_behind(&[(2, "10.0.0.5/32"), (2, "10.0.0.99/32")]));
    node.start_with(&[published("web", "10.0.0.5", "node-1")], LeaseState::Unknown);
    node.pass_ms(3000);
    assert_eq!(node.kernel.own().len(), 2);
    node.feed(Input::Lease(MINE));
    assert_eq!(node.kernel.own(), ["eth0 10.0.0.5/32"]);
}

#[test]
fn everything_of_a_former_life_goes_when_another_node_owns_it() {
    let mut network = left_behind(&[(2, "10.0.0.5/32")]);
    network.links.push(macvlan(50, "vip-deadbeef", 2, None));
    // What kube-vip leaves carries no mark.
    network.addresses.push(Address { protocol: None, ..own_address(2, "10.0.0.6/32") });
    network.addresses.push(own_address(50, "10.0.0.77/32"));
    let mut node =
        Node::started(&[published("a", "10.0.0.5", "node-1"), published("b", "10.0.0.6", "node-1")], theirs(), network);
    node.pass_ms(10);
    assert_eq!(node.kernel.own(), Vec::<String>::new());
    assert!(!node.kernel.has("eth0", "10.0.0.6/32"));
    assert!(node.kernel.network.link_by_name("vip-deadbeef").is_none());
    assert!(node.kernel.has("eth0", "10.0.0.1/24"), "the node's own address is none of our business");
}

#[test]
fn a_macvlan_of_a_kube_vip_that_serves_another_class_stays_while_its_service_exists() {
    let mut network = network();
    network.links.push(macvlan(50, "vip-deadbeef", 2, None));
    network.links.push(macvlan(51, "vip-beefdead", 2, None));
    let mut node = Node::new(&[], network);
    let seen = |macvlan: Option<&str>| Input::Seen {
        key: ServiceKey::new("default", "other"),
        cluster_ips: Vec::new(),
        macvlan: macvlan.map(str::to_owned),
    };
    node.feed(seen(Some("vip-deadbeef")));
    node.start_with(&[published("a", "10.0.0.5", "node-1")], theirs());
    let is_there = |node: &Node, name: &str| node.kernel.network.link_by_name(name).is_some();
    assert!(is_there(&node, "vip-deadbeef") && !is_there(&node, "vip-beefdead"));
    node.feed(seen(None));
    node.feed(Input::NetworkChanged);
    node.pass_ms(100);
    assert!(!is_there(&node, "vip-deadbeef"));
}

#[test]
fn addresses_of_others_are_never_touched() {
    let mut network = network();
    network.links.push(crate::network::fixtures::link(7, "kube-ipvs0"));
    network.addresses.push(address(7, "10.0.0.5/32"));
    network.addresses.push(Address { protocol: None, ..own_address(7, "10.0.0.6/32") });
    // A host address that no Service asks for.
    network.addresses.push(Address { protocol: None, ..own_address(2, "10.0.0.200/32") });
    let before = network.addresses.len();
    let mut node = Node::started(&[published("a", "10.0.0.5", "node-2")], theirs(), network);
    node.pass_ms(100);
    assert_eq!(node.kernel.network.addresses.len(), before);
}

#[test]
fn what_kube_vip_left_is_adopted() {
    let mut network = network();
    network.addresses.push(Address { protocol: None, ..own_address(2, "10.0.0.5/32") });
    let mut node = Node::started(&[published("web", "10.0.0.5", "node-1")], MINE, network);
    node.pass_ms(1000);
    let log = node.take_log();
    assert!(!log.iter().any(|line| line.starts_with("remove") || line.starts_with("probe")), "{log:?}");
    assert_eq!(node.kernel.own(), ["eth0 10.0.0.5/32"], "it carries our mark from now on");
}

/// As kube-vip's control plane mode has it on a node, or another daemon: without our mark.
fn of_somebody(net: &str) -> Address {
    Address { protocol: None, valid: l2_types::AddressLifetime::Forever, ..own_address(2, net) }
}

#[test]
fn what_stands_here_and_is_not_proved_to_be_a_services_is_somebodys() {
    let seated = |host: &str| {
        let mut view = published("web", "10.0.0.5", host);
        view.published.term = Some(crate::ownership::node::Term(4));
        view
    };
    let mut copied = view("web", &["10.0.0.5"]);
    copied.published.vip_host = Some("node-1".into());
    for (name, view, lease, stays, ours) in [
        ("it is only asked for", view("web", &["10.0.0.5"]), MINE, true, false),
        ("the same, and another node owns the Service", view("web", &["10.0.0.5"]), theirs(), true, false),
        ("an annotation says that it was here", copied, MINE, true, false),
        ("clients know it as the Service's", published("web", "10.0.0.5", "node-1"), MINE, true, true),
        ("the same, and another node owns it", published("web", "10.0.0.5", "node-1"), theirs(), false, false),
        ("an announcer's record names this node", seated("node-1"), MINE, true, true),
        ("an announcer's record names another node", seated("node-2"), theirs(), true, false),
    ] {
        let mut network = network();
        network.addresses.push(of_somebody("10.0.0.5/32"));
        let mut node = Node::started(&[view], lease, network);
        node.pass(Duration::from_secs(70));
        assert_eq!(node.kernel.has("eth0", "10.0.0.5/32"), stays, "{name}");
        assert_eq!(node.kernel.own() == ["eth0 10.0.0.5/32"], ours, "{name}");
        let guarded = node.kernel.protection.vips.keys().any(|vip| vip.to_string() == "10.0.0.5");
        assert!(!stays || guarded == ours, "{name}: its ports");
    }
}

#[test]
fn the_author_of_a_service_that_asks_for_somebodys_address_reads_where_it_is_and_what_to_do() {
    let mut network = network();
    network.addresses.push(of_somebody("10.0.0.5/32"));
    let node = Node::started(&[view("web", &["10.0.0.5"])], MINE, network);
    let told: Vec<&str> = node.told.iter().map(|(_, tell)| tell.text.as_str()).collect();
    for part in ["10.0.0.5", "eth0", "node-1", "another address", "ip address del 10.0.0.5/32 dev eth0"] {
        assert!(told.iter().any(|text| text.contains(part)), "{part:?} is missing in {told:?}");
    }
    let mut node = node;
    node.kernel.remove(2, "10.0.0.5/32".parse().unwrap());
    node.feed(Input::NetworkChanged);
    node.pass(Duration::from_secs(15));
    assert!(node.kernel.own() == ["eth0 10.0.0.5/32"], "nothing is refused for ever");
}

/// Linux before 5.18 keeps no marks.
fn left_without_marks(net: &str, valid: l2_types::AddressLifetime) -> Network {
    let mut network = without_marks(network());
    network.addresses.push(Address { protocol: None, valid, ..own_address(2, net) });
    network
}

fn seconds(seconds: u64) -> l2_types::AddressLifetime {
    l2_types::AddressLifetime::For(Duration::from_secs(seconds))
}

#[test]
fn what_a_kernel_without_marks_kept_goes_when_another_node_owns_it_and_what_nobody_was_told_of_stays() {
    let mut seated = published("web", "10.0.0.5", "node-2");
    seated.published.term = Some(crate::ownership::node::Term(5));
    let forever = l2_types::AddressLifetime::Forever;
    for (name, view, net, valid, stays) in [
        ("left in order", seated.clone(), "10.0.0.5/32", seconds(290), false),
        ("left with the prefix of the LAN", seated.clone(), "10.0.0.5/24", seconds(290), false),
        ("left in a crash", seated.clone(), "10.0.0.5/32", seconds(3), false),
        ("without an end, as a control plane's", seated.clone(), "10.0.0.5/32", forever, true),
        ("longer than an announcer gives", seated.clone(), "10.0.0.5/32", seconds(301), true),
        ("of another address", seated, "10.0.0.6/32", seconds(290), true),
        ("only asked for", view("web", &["10.0.0.5"]), "10.0.0.5/32", seconds(290), true),
    ] {
        let mut node = Node::started(&[view], theirs(), left_without_marks(net, valid));
        node.pass(Duration::from_secs(2));
        assert_eq!(node.kernel.has("eth0", net), stays, "{name}");
    }
}

#[test]
fn what_a_kernel_without_marks_kept_is_adopted_whatever_its_prefix_is() {
    for (env, net) in
        [(&[][..], "10.0.0.5/32"), (&[("vip_subnet", "24")], "10.0.0.5/24"), (&[("vip_subnet", "auto")], "10.0.0.5/24")]
    {
        let mut node = Node::new(env, left_without_marks(net, seconds(290)));
        node.start_with(&[published("web", "10.0.0.5", "node-1")], MINE);
        node.pass_ms(1500);
        let left = node.kernel.valid(net, node.now);
        assert!(left.is_some_and(|left| left <= node.engine.config.fence()), "{net}: {left:?}");
        assert!(node.reasons().is_empty(), "{net}: {:?}", node.told);
        node.feed(Input::Lease(theirs()));
        assert!(!node.kernel.has("eth0", net), "{net}: it is withdrawn like every other one");
    }
}

#[test]
fn what_a_kernel_without_marks_kept_stays_while_nothing_is_known() {
    let net = "10.0.0.5/32";
    let mut node = Node::new(&[], left_without_marks(net, seconds(8)));
    with_deadlines(&mut node, &[(2, net)]);
    node.tick();
    node.pass(Duration::from_mins(2));
    assert!(node.kernel.has("eth0", net));
    // It may be another program's, so nothing but its own end takes it away.
    node.heard(2, "10.0.0.5", [2, 9, 9, 9, 9, 9], Heard::Claim);
    assert!(node.kernel.has("eth0", net));
    node.pass(Duration::from_secs(13));
    assert!(!node.kernel.has("eth0", net));

    // What clients know as a Service's is an announcer's.
    let mut node = Node::new(&[], left_without_marks(net, seconds(8)));
    node.start_with(&[published("web", "10.0.0.5", "node-1")], LeaseState::Unknown);
    node.heard(2, "10.0.0.5", [2, 9, 9, 9, 9, 9], Heard::Claim);
    assert!(!node.kernel.has("eth0", net));
}

#[test]
fn the_periodic_sweep_finds_what_appears_later() {
    let mut node = Node::leading(&[]);
    node.kernel.network.addresses.push(own_address(3, "10.0.0.99/32"));
    node.pass(Duration::from_secs(61));
    assert_eq!(node.kernel.own(), Vec::<String>::new());
}

use l2_types::Address;
