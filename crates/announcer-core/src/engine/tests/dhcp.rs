use super::*;
use crate::network::fixtures::{link, macvlan, own_address};
use crate::view::InterfaceWish;

pub(super) fn leased(node: &Node, address: &str, seconds: u64) -> Leased {
    Leased { facts: facts(address), expires: Some(node.now + Duration::from_secs(seconds)) }
}

pub(super) fn bound(name: &str, address: &str) -> Node {
    let mut node = Node::leading(&[view(name, &["dhcp"])]);
    let leased = leased(&node, address, 600);
    node.dhcp(name, DhcpEvent::Bound(leased));
    node.pass_ms(1000);
    node
}

#[test]
fn a_dhcp_service_gets_a_macvlan_a_client_and_what_the_client_is_given() {
    let mut node = Node::leading(&[view("web", &["dhcp"])]);
    node.pass_ms(5000);
    assert_eq!(node.take_log(), ["prepare eth0", "macvlan vip-web00000 on eth0", "start dhcp web00000-uid lease None"]);
    let leased = leased(&node, "10.0.0.50", 600);
    node.dhcp("web", DhcpEvent::Bound(leased));
    node.pass_ms(1000);
    let log = node.take_log();
    assert_eq!(
        log[..3],
        ["add vip-web00000 10.0.0.50/32", "tell web AddressAnnounced", "record web 10.0.0.50 requested 10.0.0.50"]
    );
    assert_eq!(log[3..], vec!["announce vip-web00000 10.0.0.50"; 5]);
    let view = &node.engine.services[&ServiceKey::new("default", "web")];
    assert!(view.published.hwaddr.as_ref().unwrap().starts_with("02:"));
    assert_eq!(view.published.lease, Some(facts("10.0.0.50")));
}

#[test]
fn the_mac_of_a_machine_is_given_to_nobody_until_the_annotation_is_mended() {
    let mut web = view("web", &["dhcp"]);
    // eth1's, on which this Service is not.
    web.dhcp.mac = Some(Mac::new([2, 0, 0, 0, 0, 3]));
    let mut node = Node::leading(&[web.clone()]);
    node.pass_ms(300_000);
    assert!(!node.log.iter().any(|line| line.contains("macvlan")), "{:?}", node.log);
    assert_eq!(node.reasons(), ["CannotAnnounce"]);
    let text = &node.told[0].1.text;
    for part in ["kube-vip.io/hwaddr", "02:00:00:00:00:03", "accepted is a unicast MAC"] {
        assert!(text.contains(part), "{text}");
    }
    web.dhcp.mac = Some(Mac::new([2, 0, 0, 0, 0, 0x33]));
    node.upsert(web);
    assert!(node.log.iter().any(|line| line.contains("macvlan vip-web00000 on eth0")), "{:?}", node.log);
}

#[test]
fn the_kernel_never_keeps_an_address_longer_than_its_lease() {
    let mut node = Node::leading(&[view("web", &["dhcp"])]);
    let leased = leased(&node, "10.0.0.50", 5);
    node.dhcp("web", DhcpEvent::Bound(leased));
    assert!(node.kernel.valid("10.0.0.50/32", node.now).unwrap() <= Duration::from_secs(5));
    // The client is silent, as if it hung.
    node.pass_ms(5100);
    assert!(!node.kernel.has("vip-web00000", "10.0.0.50/32"));
    node.pass_ms(5000);
    assert!(!node.kernel.has("vip-web00000", "10.0.0.50/32"));
}

#[test]
fn a_renewal_extends_and_writes_only_what_a_successor_needs() {
    let mut node = bound("web", "10.0.0.50");
    let records = node.records;
    let mut renewed = leased(&node, "10.0.0.50", 600);
    renewed.facts.expires = Some("2026-01-01T00:11:00Z".parse().unwrap());
    node.dhcp("web", DhcpEvent::Renewed(renewed.clone()));
    assert_eq!(node.records, records, "one minute of ten is not worth a write");
    renewed.facts.expires = Some("2026-01-01T00:15:00Z".parse().unwrap());
    node.dhcp("web", DhcpEvent::Renewed(renewed));
    assert_eq!(node.records, records + 1);
}

#[test]
fn a_changed_address_is_replaced_everywhere() {
    let mut node = bound("web", "10.0.0.50");
    node.dhcp("web", DhcpEvent::Lost { address: "10.0.0.50".parse().unwrap(), why: "NAK".into() });
    assert!(!node.kernel.has("vip-web00000", "10.0.0.50/32"));
    let leased = leased(&node, "10.0.0.60", 600);
    node.dhcp("web", DhcpEvent::Bound(leased));
    node.pass_ms(100);
    assert_eq!(node.kernel.own(), ["vip-web00000 10.0.0.60/32"]);
    let published = &node.engine.services[&ServiceKey::new("default", "web")].published;
    assert_eq!(published.requested_ip.as_deref(), Some("10.0.0.60"));
    assert_eq!(published.ingress.len(), 1);
    assert!(published.has("10.0.0.60".parse().unwrap()));
    assert!(node.reasons().contains(&"DHCPLeaseLost"));
}

#[test]
fn a_lease_that_was_refused_here_is_not_gone_on_with_when_the_service_comes_back() {
    for (written_anew, expected) in [(false, "lease None"), (true, "lease Some(\"10.0.0.50\")")] {
        let mut node = bound("web", "10.0.0.50");
        node.dhcp("web", DhcpEvent::Lost { address: "10.0.0.50".parse().unwrap(), why: "NAK".into() });
        node.feed(Input::Lease(theirs()));
        if written_anew {
            let mut view = node.engine.services[&ServiceKey::new("default", "web")].clone();
            let mut lease = facts("10.0.0.50");
            lease.expires = Some("2026-01-01T01:00:00Z".parse().unwrap());
            (view.dhcp.lease, view.published.lease) = (Some(lease.clone()), Some(lease));
            node.upsert(view);
        }
        node.take_log();
        node.feed(Input::Lease(MINE));
        node.pass_ms(100);
        let log = node.take_log();
        assert!(log.contains(&format!("start dhcp web00000-uid {expected}")), "{log:?}");
    }
}

#[test]
fn a_leased_address_that_the_kernel_refuses_is_tried_again_long_before_its_lease_is_renewed() {
    let mut node = Node::leading(&[view("web", &["dhcp"])]);
    node.pass_ms(1000);
    node.kernel.refuse = true;
    let leased = leased(&node, "10.0.0.50", 86_400);
    node.dhcp("web", DhcpEvent::Bound(leased));
    node.pass_ms(100);
    assert!(node.reasons().contains(&"CannotAnnounce"));
    assert!(!node.kernel.has("vip-web00000", "10.0.0.50/32"));
    node.kernel.refuse = false;
    node.pass_ms(5200);
    assert!(node.kernel.has("vip-web00000", "10.0.0.50/32"));
}

#[test]
fn a_lease_that_is_still_being_obtained_is_given_back_too() {
    let mut node = Node::leading(&[view("web", &["dhcp"])]);
    node.pass_ms(1000);
    node.take_log();
    node.gone("web");
    assert_eq!(node.take_log(), ["stop dhcp web00000-uid release true", "restore eth0"]);
    node.dhcp("web", DhcpEvent::Stopped);
    assert_eq!(node.take_log(), ["delete vip-web00000"]);
}

#[test]
fn the_lease_is_given_back_when_the_service_goes_and_only_then() {
    let mut node = bound("web", "10.0.0.50");
    node.take_log();
    node.gone("web");
    assert_eq!(
        node.take_log(),
        ["stop dhcp web00000-uid release true", "restore eth0"],
        "the address stays until the RELEASE is out"
    );
    assert!(node.kernel.has("vip-web00000", "10.0.0.50/32"));
    node.dhcp("web", DhcpEvent::Stopped);
    assert_eq!(node.take_log(), ["delete vip-web00000"]);

    let mut node = bound("web", "10.0.0.50");
    node.take_log();
    node.feed(Input::Lease(theirs()));
    assert_eq!(node.take_log(), ["stop dhcp web00000-uid release false", "delete vip-web00000", "restore eth0"]);
}

#[test]
fn a_lease_is_given_back_only_if_its_service_was_seen_to_go() {
    let key = ServiceKey::new("default", "web");
    let made = |uid: &str, created| ServiceView { uid: Uid(uid.into()), created, ..view("web", &["dhcp"]) };
    let retired = ServiceView { retired: true, wanted: Vec::new(), ..made("web00000-uid", 5) };
    let service = |view: ServiceView| Input::Service(view.key.clone(), Some(Box::new(view)));
    for (what, inputs, released) in [
        ("deleted", vec![Input::Service(key.clone(), None)], true),
        ("missing in a new list", vec![Input::Missing(key.clone())], false),
        ("seen on its way", vec![service(retired), Input::Missing(key.clone())], true),
        ("replaced", vec![service(made("other", 6))], true),
        ("replaced by one of before", vec![service(made("other", 4))], false),
        ("asks for another address", vec![service(ServiceView { created: 5, ..view("web", &["10.0.0.7"]) })], true),
        (
            "back, and deleted then",
            vec![Input::Missing(key.clone()), service(made("web00000-uid", 5)), Input::Service(key.clone(), None)],
            true,
        ),
    ] {
        let mut node = Node::leading(&[made("web00000-uid", 5)]);
        let leased = leased(&node, "10.0.0.50", 600);
        node.dhcp("web", DhcpEvent::Bound(leased));
        node.pass_ms(1000);
        node.take_log();
        for input in inputs {
            node.feed(input);
        }
        let log = node.take_log();
        let stopped = log.iter().rfind(|line| line.starts_with("stop dhcp web00000-uid"));
        assert_eq!(stopped, Some(&format!("stop dhcp web00000-uid release {released}")), "{what}: {log:?}");
        assert!(!node.kernel.own().iter().any(|own| own.contains("10.0.0.50")) || released, "{what}");
    }
}

#[test]
fn a_client_that_does_not_end_keeps_no_macvlan() {
    let mut node = bound("web", "10.0.0.50");
    node.gone("web");
    node.pass_ms(1100);
    assert!(node.kernel.network.link_by_name("vip-web00000").is_none());
}

#[test]
fn a_secondary_shares_the_macvlan_and_never_gets_the_address_on_the_node() {
    let mut node = bound("first", "10.0.0.50");
    let mut second = view("second", &["10.0.0.50"]);
    second.ports[0].port = 81;
    node.upsert(second);
    node.pass_ms(1000);
    assert_eq!(node.kernel.own(), ["vip-first000 10.0.0.50/32"]);
    let published = &node.engine.services[&ServiceKey::new("default", "second")].published;
    assert!(published.has("10.0.0.50".parse().unwrap()));
    assert_eq!(published.hwaddr, None, "MAC and lease are the primary's");
    // The address goes with the last of them.
    node.gone("first");
    node.pass_ms(1000);
    assert_eq!(node.kernel.own(), ["vip-first000 10.0.0.50/32"]);
    node.gone("second");
    assert!(node.log.iter().any(|line| line.ends_with("stop dhcp first000-uid release true")));
}

#[test]
fn who_shares_a_lease_by_its_address_does_not_have_it_unasked_when_the_lease_is_lost() {
    for used in [true, false] {
        let mut node = bound("first", "10.0.0.50");
        let mut second = view("second", &["10.0.0.50"]);
        second.ports[0].port = 81;
        node.upsert(second);
        node.pass_ms(1000);
        node.take_log();
        node.dhcp("first", DhcpEvent::Lost { address: "10.0.0.50".parse().unwrap(), why: "NAK".into() });
        let other = leased(&node, "10.0.0.60", 600);
        node.dhcp("first", DhcpEvent::Bound(other));
        node.pass_ms(10);
        let log = node.take_log();
        assert!(log.contains(&"probe eth0 10.0.0.50".to_owned()), "{log:?}");
        if used {
            node.heard(2, "10.0.0.50", [2, 9, 9, 9, 9, 9], Heard::Answer);
        }
        node.pass_ms(1000);
        assert_eq!(node.kernel.has("eth0", "10.0.0.50/32"), !used, "{:?}", node.log);
        assert_eq!(node.reasons().contains(&"AddressConflict"), used);
        if !used {
            // Since then it is the Service's own.
            node.feed(Input::Lease(theirs()));
            node.take_log();
            node.feed(Input::Lease(MINE));
            assert!(!node.take_log().iter().any(|line| line.starts_with("probe")));
        }
    }
}

#[test]
fn a_restart_adopts_the_macvlan_and_goes_on_with_the_lease() {
    let mut network = network();
    let mut service = view("web", &["dhcp"]);
    service.dhcp.mac = Some(Mac::new([2, 0, 0, 0, 0, 50]));
    service.dhcp.lease = Some(facts("10.0.0.50"));
    service.published.lease = service.dhcp.lease.clone();
    service.published.ingress = vec![Ingress { ip: "10.0.0.50".parse().ok(), ports: service.ports.clone() }];
    network.links.push(macvlan(50, "vip-web00000", 2, Some("web00000-uid")));
    network.addresses.push(own_address(50, "10.0.0.50/32"));
    let mut node = Node::started(&[service], MINE, network);
    assert_eq!(
        node.take_log(),
        ["prepare eth0", "adopt vip-web00000", "start dhcp web00000-uid lease Some(\"10.0.0.50\")"]
    );
    let leased = leased(&node, "10.0.0.50", 600);
    node.dhcp("web", DhcpEvent::Bound(leased));
    assert!(
        !node.log.iter().any(|line| line.contains("remove") || line.contains("delete") || line.contains("add")),
        "{:?}",
        node.log
    );
    assert!(node.kernel.has("vip-web00000", "10.0.0.50/32"));
}

#[test]
fn a_parent_that_is_missing_is_named_and_used_when_it_appears() {
    let mut node =
        Node::leading(&[ServiceView { interface: InterfaceWish::Named("mgmt".into()), ..view("web", &["dhcp"]) }]);
    node.pass_ms(3000);
    assert!(node.told[0].1.text.contains("mgmt"), "{:?}", node.told);
    node.kernel.network.links.push(link(9, "mgmt"));
    node.feed(Input::NetworkChanged);
    assert!(node.kernel.network.link_by_name("vip-web00000").is_some());
    // It goes, and the macvlan with it; it comes back, and so does the macvlan, with the lease that was not given back.
    let leased = leased(&node, "10.0.0.50", 600);
    node.dhcp("web", DhcpEvent::Bound(leased));
    node.pass_ms(1000);
    node.kernel.delete(9);
    node.feed(Input::NetworkChanged);
    node.pass_ms(1000);
    assert!(node.kernel.own().is_empty());
    node.take_log();
    node.kernel.network.links.push(link(10, "mgmt"));
    node.feed(Input::NetworkChanged);
    let log = node.take_log();
    assert!(log.contains(&"start dhcp web00000-uid lease Some(\"10.0.0.50\")".to_owned()), "{log:?}");
}

#[test]
fn trouble_is_told_once_in_a_while() {
    let mut node = Node::leading(&[view("web", &["dhcp"])]);
    for _ in 0..10 {
        node.dhcp("web", DhcpEvent::Report { reason: Reason::DhcpNoAnswer, text: "no DHCP server answered".into() });
        node.pass_ms(1000);
    }
    assert_eq!(node.reasons(), ["DHCPNoAnswer"]);
}

#[test]
fn a_failed_client_is_started_again() {
    let mut node = Node::leading(&[view("web", &["dhcp"])]);
    node.take_log();
    node.dhcp("web", DhcpEvent::Failed("no socket".into()));
    node.pass_ms(6000);
    assert_eq!(node.take_log().iter().filter(|line| line.starts_with("start dhcp")).count(), 1);
}

/// The new owner's macvlan has the same MAC: a probe from ours would lead the LAN's switches back to this node.
#[test]
fn after_a_pause_a_leased_address_is_asked_about_in_the_name_of_the_parent() {
    let mut node = bound("web", "10.0.0.50");
    node.take_log();
    node.now += Duration::from_secs(10);
    node.tick();
    node.pass_ms(100);
    let probes: Vec<String> = node.take_log().into_iter().filter(|line| line.starts_with("probe")).collect();
    assert_eq!(probes, ["probe eth0 10.0.0.50"; 3]);
    // The answer has the same MAC too.
    node.now += Duration::from_secs(10);
    node.tick();
    node.feed(Input::Lease(DOUBTFUL));
    let mac = node.engine.vips[&VipId::Dhcp(uid("web"))].carrier.unwrap().mac;
    node.heard(2, "10.0.0.50", mac.octets(), Heard::Answer);
    assert_eq!(node.kernel.own(), Vec::<String>::new());
}

#[test]
fn what_a_client_that_was_stopped_has_left_in_the_queue_is_not_heard() {
    let mut node = bound("web", "10.0.0.50");
    let old = node.clients[&uid("web")];
    let mut renamed = node.engine.services[&ServiceKey::new("default", "web")].clone();
    renamed.dhcp.broadcast = true;
    node.upsert(renamed);
    assert_ne!(node.clients[&uid("web")], old, "another client runs");
    node.take_log();
    for event in [
        DhcpEvent::Lost { address: "10.0.0.50".parse().unwrap(), why: "NAK".into() },
        DhcpEvent::Bound(leased(&node, "10.0.0.99", 600)),
        DhcpEvent::Failed("the interface is gone".into()),
    ] {
        node.feed(Input::Dhcp(uid("web"), old, ClientEvent::V4(event)));
    }
    node.pass(Duration::from_secs(6));
    assert_eq!(node.take_log(), Vec::<String>::new());
    assert_eq!(node.kernel.own(), ["vip-web00000 10.0.0.50/32"]);
}

#[test]
fn the_macvlan_waits_for_the_client_that_sends_the_release_and_for_no_other() {
    let mut node = bound("web", "10.0.0.50");
    node.gone("web");
    node.take_log();
    let leaving = node.clients[&uid("web")];
    node.feed(Input::Dhcp(uid("web"), leaving - 1, ClientEvent::V4(DhcpEvent::Stopped)));
    assert_eq!(node.take_log(), Vec::<String>::new());
    node.feed(Input::Dhcp(uid("web"), leaving, ClientEvent::V4(DhcpEvent::Stopped)));
    assert_eq!(node.take_log(), ["delete vip-web00000"]);
}

pub(super) fn named(name: &str, link: &str) -> ServiceView {
    let mut named = view(name, &["dhcp"]);
    named.dhcp.link_name = Some(link.into());
    named
}

#[test]
fn an_interface_of_somebody_else_is_never_deleted_for_its_name() {
    let mut network = network();
    network.links.push(link(40, "cni0"));
    network.links.push(macvlan(41, "admin0", 2, None));
    network.links.push(macvlan(42, "other0", 2, Some("other000-uid")));
    for taken in ["cni0", "admin0", "other0", "eth1"] {
        let mut node = Node::started(&[named("web", taken)], MINE, network.clone());
        node.pass(Duration::from_mins(3));
        assert_eq!(node.kernel.network.links, network.links, "{taken}");
        let (_, told) = &node.told[0];
        assert_eq!(told.reason, Reason::CannotAnnounce);
        assert!(told.text.contains("kube-vip.io/macvlanName") && told.text.contains(taken), "{}", told.text);
        assert_eq!(node.told.len(), 1, "once, not with each attempt");
        // A better name is used at once.
        node.upsert(named("web", "lan"));
        assert!(node.kernel.network.link_by_name("lan").is_some());
        node.gone("web");
        node.dhcp("web", DhcpEvent::Stopped);
        assert_eq!(node.kernel.network.links, network.links, "{taken}");
    }
}

#[test]
fn two_services_with_one_macvlan_name_do_not_take_it_from_each_other() {
    let mut node = Node::leading(&[named("a", "lan"), named("b", "lan")]);
    node.pass(Duration::from_mins(10));
    let log = node.take_log();
    assert_eq!(log.iter().filter(|line| line.starts_with("macvlan ")).count(), 1, "{log:?}");
    assert!(!log.iter().any(|line| line.starts_with("delete")), "{log:?}");
    let attempts = log.iter().filter(|line| line.starts_with("refuse lan")).count();
    assert!((10..20).contains(&attempts), "with back-off: {attempts}");
    assert_eq!(node.told.iter().map(|(name, _)| name.as_str()).collect::<BTreeSet<_>>(), BTreeSet::from(["b"]));
}

#[test]
fn a_macvlan_that_keeps_vanishing_is_made_with_growing_pauses() {
    let mut node = Node::leading(&[view("web", &["dhcp"])]);
    let vanish = |node: &mut Node| {
        if let Some(link) = node.kernel.network.link_by_name("vip-web00000").map(|link| link.index) {
            node.kernel.delete(link);
            node.feed(Input::NetworkChanged);
        }
        node.pass_ms(200);
    };
    for _ in 0..1500 {
        vanish(&mut node);
    }
    let made = node.take_log().iter().filter(|line| line.starts_with("macvlan ")).count();
    assert!((5..15).contains(&made), "{made} times in five minutes");
}

#[test]
fn a_mac_that_another_service_has_is_told_by_name_and_waited_for() {
    let with_mac = |name: &str| {
        let mut view = view(name, &["dhcp"]);
        view.dhcp.mac = Some(Mac::new([0, 0, 0x6c, 1, 2, 3]));
        view
    };
    let mut node = Node::leading(&[with_mac("a"), with_mac("b")]);
    node.pass(Duration::from_mins(5));
    assert_eq!(node.told.len(), 1, "{:?}", node.told);
    let (name, told) = &node.told[0];
    assert_eq!((name.as_str(), told.reason), ("b", Reason::CannotAnnounce));
    for part in ["00:00:6c:01:02:03", "kube-vip.io/hwaddr", "default/a"] {
        assert!(told.text.contains(part), "{}", told.text);
    }
    node.gone("a");
    node.pass(Duration::from_mins(2));
    assert!(node.kernel.network.link_by_name("vip-b0000000").is_some());
}

#[test]
fn lease_facts_of_a_copied_manifest_are_not_used_before_the_server_has_answered() {
    let mut copied = view("web", &["dhcp"]);
    copied.dhcp.lease = Some(facts("10.0.0.50"));
    copied.published.lease = copied.dhcp.lease.clone();
    let mut node = Node::leading(&[copied.clone()]);
    assert!(node.take_log().contains(&"start dhcp web00000-uid lease None".to_owned()));
    // What clients know goes on at once.
    copied.published.ingress = vec![Ingress { ip: "10.0.0.50".parse().ok(), ports: copied.ports.clone() }];
    let mut node = Node::leading(&[copied]);
    assert!(node.take_log().contains(&"start dhcp web00000-uid lease Some(\"10.0.0.50\")".to_owned()));
}

#[test]
fn a_restart_while_the_primary_is_being_deleted_keeps_the_lease_for_its_secondaries() {
    let mac = Mac::new([0, 0, 0x6c, 1, 2, 3]);
    let mut primary = ServiceView { retired: true, ..published("first", "10.0.0.50", "node-1") };
    primary.wanted.clear();
    primary.dhcp.mac = Some(mac);
    primary.dhcp.lease = Some(facts("10.0.0.50"));
    let mut node = Node::leading(&[primary, published("second", "10.0.0.50", "node-1")]);
    let log = node.take_log();
    assert!(log.contains(&"start dhcp first000-uid lease Some(\"10.0.0.50\")".to_owned()), "{log:?}");
    let leased = leased(&node, "10.0.0.50", 600);
    node.dhcp("first", DhcpEvent::Bound(leased));
    node.pass_ms(1000);
    assert_eq!(node.kernel.own(), ["vip-first000 10.0.0.50/32"]);
    assert_eq!(node.kernel.network.link_by_name("vip-first000").unwrap().mac, Some(mac));
    // The finalizer is released: the client goes on, and gives the lease back with the last user.
    node.gone("first");
    node.pass_ms(1000);
    assert_eq!(node.kernel.own(), ["vip-first000 10.0.0.50/32"]);
    node.gone("second");
    assert!(node.log.iter().any(|line| line.ends_with("stop dhcp first000-uid release true")), "{:?}", node.log);
}

#[test]
fn control_characters_from_wherever_do_not_get_into_events() {
    let mut node = Node::leading(&[view("web", &["dhcp"])]);
    node.dhcp("web", DhcpEvent::Report { reason: Reason::DhcpRefused, text: "the server says \u{1b}[2J".into() });
    node.dhcp("web", DhcpEvent::Failed("\u{1b}[2J".into()));
    assert_eq!(node.told.len(), 2);
    assert!(node.told.iter().all(|(_, tell)| !tell.text.contains(char::is_control)), "{:?}", node.told);
}

#[test]
fn an_address_that_another_service_or_the_node_has_is_declined_and_never_set() {
    let mut served = published("served", "10.0.0.5", "node-1");
    served.created = -1;
    let mut node = Node::leading(&[served, view("web", &["dhcp"])]);
    node.pass_ms(1000);
    // The node's own address on eth0.
    for (address, user, by) in
        [("10.0.0.5", "Service default/served", ""), ("10.0.0.1", "own address", " for 02:00:00:00:00:02")]
    {
        node.take_log();
        node.told.clear();
        let given = leased(&node, address, 600);
        node.dhcp("web", DhcpEvent::Bound(given));
        node.dhcp("web", DhcpEvent::Lost { address: address.parse().unwrap(), why: "in use".into() });
        node.pass_ms(20_000);
        let log = node.take_log();
        assert!(log.contains(&format!("decline {address} of dhcp web00000-uid{by}")), "{log:?}");
        assert!(node.kernel.own().iter().all(|own| !own.starts_with("vip-")), "{:?}", node.kernel.own());
        let told: Vec<_> = node.told.iter().map(|(name, tell)| (name.as_str(), tell.reason)).collect();
        assert_eq!(told, [("web", Reason::AddressConflict)]);
        assert!(node.told[0].1.text.contains(user), "{:?}", node.told);
    }
    assert!(node.kernel.has("eth0", "10.0.0.5/32"), "who has it keeps it");
    let free = leased(&node, "10.0.0.60", 600);
    node.dhcp("web", DhcpEvent::Bound(free));
    assert!(node.kernel.has("vip-web00000", "10.0.0.60/32"));
}

#[test]
fn a_lease_that_is_lost_is_left_to_no_successor() {
    let mut node = bound("web", "10.0.0.50");
    let published = |node: &Node| node.engine.services[&ServiceKey::new("default", "web")].published.clone();
    assert!(published(&node).lease.is_some());
    let records = node.records;
    node.dhcp("web", DhcpEvent::Lost { address: "10.0.0.50".parse().unwrap(), why: "NAK".into() });
    node.pass_ms(60_000);
    assert_eq!(published(&node).lease, None);
    assert_eq!(published(&node).requested_ip.as_deref(), Some("10.0.0.50"), "it is asked for again");
    assert_eq!(node.records, records + 1);
    let given = leased(&node, "10.0.0.50", 600);
    node.dhcp("web", DhcpEvent::Bound(given));
    node.pass_ms(1000);
    assert_eq!(published(&node).lease, Some(facts("10.0.0.50")));
}
