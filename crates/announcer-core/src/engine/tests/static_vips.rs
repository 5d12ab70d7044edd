use super::*;
use crate::view::{InterfaceWish, Port};

const STRANGER: [u8; 6] = [2, 9, 9, 9, 9, 9];

#[test]
fn what_waits_is_taken_in_before_anything_is_planned() {
    let mut node = Node::leading(&[]);
    let views: Vec<ServiceView> =
        (5..50).map(|n| view(&format!("web{n}"), &[format!("10.0.0.{n}").as_str()])).collect();
    for view in &views {
        let input = Input::Service(view.key.clone(), Some(Box::new(view.clone())));
        assert!(node.engine.handle(node.now, input).is_empty());
    }
    let probes = node.engine.poll(node.now, false);
    // The others have their turn later.
    assert_eq!(probes.iter().filter(|action| matches!(action, Action::Probe { .. })).count(), 32);
    assert_eq!(node.engine.vips.len(), views.len());
}

#[test]
fn a_new_address_is_probed_then_set_then_published_then_announced() {
    let mut node = Node::leading(&[view("web", &["10.0.0.5"])]);
    node.pass_ms(29);
    assert!(!node.kernel.has("eth0", "10.0.0.5/32"), "not before the probes are over");
    node.pass_ms(1000);
    assert_eq!(
        node.log,
        [
            "0 prepare eth0",
            "0 probe eth0 10.0.0.5",
            "10 probe eth0 10.0.0.5",
            "20 probe eth0 10.0.0.5",
            "30 add eth0 10.0.0.5/32",
            "30 tell web AddressAnnounced",
            "30 record web 10.0.0.5",
            "30 announce eth0 10.0.0.5",
            "50 announce eth0 10.0.0.5",
            "90 announce eth0 10.0.0.5",
            "180 announce eth0 10.0.0.5",
            "530 announce eth0 10.0.0.5",
        ]
    );
    assert_eq!(node.kernel.valid("10.0.0.5/32", node.now), Some(Duration::from_millis(11_971)));
}

#[test]
fn what_was_asked_without_a_cable_nobody_has_heard_and_is_asked_anew_when_it_is_back() {
    let mut node = Node::leading(&[]);
    let plug = |node: &mut Node, carrier: bool| {
        let links = &mut node.kernel.network.links;
        links.iter_mut().filter(|link| link.name == "eth0").for_each(|link| link.carrier = carrier);
        node.feed(Input::NetworkChanged);
        node.pass_ms(50);
    };
    plug(&mut node, false);
    node.upsert(view("web", &["10.0.0.5"]));
    node.pass_ms(3000);
    assert!(!node.kernel.has("eth0", "10.0.0.5/32"));
    node.take_log();
    plug(&mut node, true);
    let probes = node.take_log().iter().filter(|line| line.starts_with("probe")).count();
    assert_eq!(probes, 3);
    assert!(node.kernel.has("eth0", "10.0.0.5/32"), "and nobody has answered");
}

#[test]
fn a_stranger_who_answers_when_the_cable_is_back_keeps_the_address() {
    let mut node = Node::leading(&[]);
    let links = &mut node.kernel.network.links;
    links.iter_mut().filter(|link| link.name == "eth0").for_each(|link| link.carrier = false);
    node.feed(Input::NetworkChanged);
    node.pass_ms(50);
    node.upsert(view("web", &["10.0.0.5"]));
    node.pass_ms(500);
    node.kernel.network.links.iter_mut().for_each(|link| link.carrier = true);
    node.feed(Input::NetworkChanged);
    node.pass_ms(5);
    node.heard(2, "10.0.0.5", STRANGER, Heard::Answer);
    node.pass_ms(1000);
    assert!(!node.kernel.has("eth0", "10.0.0.5/32"));
    assert!(node.reasons().contains(&"AddressConflict"));
}

#[test]
fn an_interface_whose_settings_are_refused_is_not_asked_at_each_plan() {
    let mut node = Node::new(&[], network());
    let mut asked = 0;
    node.tick();
    node.feed(Input::Synced);
    node.feed(Input::Lease(MINE));
    // A new Service every ten seconds: each has everything planned anew.
    for n in 5..35 {
        let view = view(&format!("web{n}"), &[format!("10.0.0.{n}").as_str()]);
        let mut inputs = vec![Input::Service(view.key.clone(), Some(Box::new(view)))];
        while let Some(input) = inputs.pop() {
            for action in node.engine.step(node.now, input) {
                if let Action::Kernel(KernelOp::Prepare { link }) = action {
                    asked += 1;
                    inputs.push(Input::Kernel(KernelDone::Prepared(link, Err("read-only".into()))));
                }
            }
        }
        node.now += Duration::from_secs(10);
    }
    assert_eq!(asked, 5, "once a minute");
}

#[test]
fn nothing_is_sent_or_written_in_the_steady_state_and_the_deadline_is_put_off() {
    let mut node = Node::leading(&[view("web", &["10.0.0.5", "fd00::5"])]);
    node.pass_ms(2000);
    node.take_log();
    node.pass(Duration::from_hours(1));
    assert_eq!(node.take_log(), Vec::<String>::new());
    assert_eq!(node.kernel.own(), ["eth0 10.0.0.5/32", "eth0 fd00::5/128"]);
    assert!(node.kernel.valid("fd00::5/128", node.now).unwrap() > Duration::from_secs(10));
}

#[test]
fn one_service_with_two_families_costs_one_record() {
    let mut node = Node::leading(&[view("web", &["10.0.0.5", "fd00::5"])]);
    node.pass_ms(2000);
    let records: Vec<String> = node.take_log().into_iter().filter(|line| line.starts_with("record")).collect();
    assert_eq!(records, ["record web 10.0.0.5+fd00::5"]);
}

#[test]
fn the_periodic_habit_is_kept_where_it_was_asked_for() {
    let mut node = Node::new(&[("vip_arpRate", "1000")], network());
    node.start_with(&[view("web", &["10.0.0.5"])], MINE);
    node.pass_ms(2000);
    node.take_log();
    node.pass(Duration::from_secs(10));
    assert_eq!(node.take_log(), vec!["announce eth0 10.0.0.5"; 10]);
}

#[test]
fn an_address_in_use_is_left_alone_told_and_taken_when_it_is_free() {
    let mut node = Node::leading(&[view("web", &["10.0.0.5"])]);
    node.heard(2, "10.0.0.5", STRANGER, Heard::Answer);
    node.pass_ms(5000);
    assert_eq!(node.kernel.own(), Vec::<String>::new());
    assert_eq!(node.reasons(), ["AddressConflict"]);
    let text = &node.told[0].1.text;
    assert!(text.contains("10.0.0.5") && text.contains("02:09:09:09:09:09") && text.contains("eth0"), "{text}");
    // Nobody answers the next time.
    node.pass_ms(6000);
    assert!(node.kernel.has("eth0", "10.0.0.5/32"));
}

#[test]
fn another_host_that_probes_for_the_same_address_stops_us_too() {
    let mut node = Node::leading(&[view("web", &["10.0.0.5"])]);
    node.heard(2, "10.0.0.5", STRANGER, Heard::Probe);
    node.pass_ms(100);
    assert_eq!(node.reasons(), ["AddressConflict"]);
    assert!(node.kernel.own().is_empty());
}

#[test]
fn the_answer_on_another_interface_is_no_conflict() {
    let mut node = Node::leading(&[view("web", &["10.0.0.5"])]);
    node.heard(3, "10.0.0.5", STRANGER, Heard::Answer);
    node.pass_ms(100);
    assert!(node.kernel.has("eth0", "10.0.0.5/32"));
}

#[test]
fn the_announcement_does_not_wait_for_ever_for_the_status() {
    let mut node = Node::new(&[], network());
    node.api = false;
    node.start_with(&[view("web", &["10.0.0.5"])], MINE);
    node.pass_ms(1029);
    assert!(!node.log.iter().any(|line| line.contains("announce")));
    node.pass_ms(1);
    assert!(node.log.iter().any(|line| line == "1030 announce eth0 10.0.0.5"));
}

#[test]
fn services_that_share_an_address_have_one_vip_that_goes_with_the_last() {
    let mut second = view("b", &["10.0.0.5"]);
    second.ports[0].port = 81;
    let mut node = Node::leading(&[view("a", &["10.0.0.5"]), second]);
    node.pass_ms(1000);
    assert_eq!(node.take_log().iter().filter(|line| line.starts_with("add")).count(), 1);
    node.gone("a");
    node.pass_ms(100);
    assert!(node.kernel.has("eth0", "10.0.0.5/32"));
    node.gone("b");
    assert!(!node.kernel.has("eth0", "10.0.0.5/32"));
    assert_eq!(node.take_log(), ["remove eth0 10.0.0.5/32", "restore eth0"]);
}

#[test]
fn a_port_of_an_address_has_one_service_until_that_one_is_gone() {
    let mut node = Node::leading(&[published("served", "10.0.0.5", "node-1"), view("another", &["10.0.0.5"])]);
    node.pass_ms(1000);
    let told = node.told.iter().filter(|(_, tell)| tell.text.contains("is in use by Service default/served"));
    assert_eq!(told.count(), 1, "{:?}", node.told);
    let has = |node: &Node| !node.engine.services[&ServiceKey::new("default", "another")].published.ingress.is_empty();
    assert!(!has(&node), "clients are not sent to it");
    node.gone("served");
    node.pass_ms(1000);
    assert!(has(&node), "{:?}", node.log);
}

#[test]
fn each_service_publishes_its_own_ports() {
    let mut second = view("b", &["10.0.0.5"]);
    second.ports = vec![Port { port: 53, protocol: "UDP".into() }];
    let mut node = Node::leading(&[view("a", &["10.0.0.5"]), second]);
    node.pass_ms(1000);
    let ports = |name: &str| node.engine.services[&ServiceKey::new("default", name)].published.ingress[0].ports[0].port;
    assert_eq!((ports("a"), ports("b")), (80, 53));
}

#[test]
fn changed_ports_are_published() {
    let mut node = Node::leading(&[view("web", &["10.0.0.5"])]);
    node.pass_ms(1000);
    let mut changed = node.engine.services[&ServiceKey::new("default", "web")].clone();
    changed.ports.push(Port { port: 443, protocol: "TCP".into() });
    let before = node.records;
    node.upsert(changed);
    assert_eq!(node.records, before + 1);
    assert_eq!(node.engine.services[&ServiceKey::new("default", "web")].published.ingress[0].ports.len(), 2);
}

#[test]
fn a_changed_address_replaces_the_old_one() {
    let mut node = Node::leading(&[view("web", &["10.0.0.5"])]);
    node.pass_ms(1000);
    let mut changed = node.engine.services[&ServiceKey::new("default", "web")].clone();
    changed.wanted = view("web", &["10.0.0.6"]).wanted;
    node.upsert(changed);
    assert!(!node.kernel.has("eth0", "10.0.0.5/32"));
    node.pass_ms(1000);
    assert_eq!(node.kernel.own(), ["eth0 10.0.0.6/32"]);
    let ingress = &node.engine.services[&ServiceKey::new("default", "web")].published.ingress;
    assert_eq!(ingress.iter().map(|entry| entry.ip.unwrap().to_string()).collect::<Vec<_>>(), ["10.0.0.6"]);
}

#[test]
fn a_changed_interface_moves_the_address_without_probing_itself() {
    let mut node = Node::leading(&[view("web", &["10.0.0.5"])]);
    node.pass_ms(1000);
    node.take_log();
    let mut changed = node.engine.services[&ServiceKey::new("default", "web")].clone();
    changed.interface = InterfaceWish::Named("eth1".into());
    node.upsert(changed);
    assert_eq!(node.kernel.own(), ["eth1 10.0.0.5/32"]);
    let log = node.take_log();
    assert!(!log.iter().any(|line| line.starts_with("probe")), "{log:?}");
    assert!(log.contains(&"restore eth0".to_owned()) && log.contains(&"prepare eth1".to_owned()), "{log:?}");
}

#[test]
fn an_interface_that_does_not_exist_is_told_and_used_when_it_appears() {
    let wish = ServiceView { interface: InterfaceWish::Named("eth9".into()), ..view("web", &["10.0.0.5"]) };
    let mut node = Node::leading(&[wish]);
    node.pass_ms(5000);
    assert_eq!(node.reasons(), ["CannotAnnounce"]);
    assert!(node.told[0].1.text.contains("eth9") && node.told[0].1.text.contains("eth0, eth1"));
    node.kernel.network.links.push(crate::network::fixtures::link(9, "eth9"));
    node.feed(Input::NetworkChanged);
    node.pass_ms(100);
    assert_eq!(node.kernel.own(), ["eth9 10.0.0.5/32"]);
}

/// As `netplan apply` or a DHCP client leaves the node for a moment.
#[test]
fn a_default_route_that_is_being_replaced_takes_no_address_off() {
    for other in [None, Some(3)] {
        let mut node = Node::leading(&[view("web", &["10.0.0.5"])]);
        node.pass_ms(2000);
        node.take_log();
        for default_route in [other, Some(2)] {
            node.kernel.network.default_route = default_route;
            node.feed(Input::NetworkChanged);
            node.pass_ms(200);
        }
        node.pass(Duration::from_secs(20));
        assert_eq!(node.take_log(), Vec::<String>::new(), "{other:?}");
        assert_eq!(node.kernel.own(), ["eth0 10.0.0.5/32"]);
        assert!(!node.reasons().contains(&"CannotAnnounce"), "{:?}", node.told);
    }
}

#[test]
fn an_address_that_somebody_removes_is_back_at_once() {
    let mut node = Node::leading(&[view("web", &["10.0.0.5"])]);
    node.pass_ms(1500);
    node.kernel.remove(2, "10.0.0.5/32".parse().unwrap());
    node.feed(Input::NetworkChanged);
    assert!(node.kernel.has("eth0", "10.0.0.5/32"));
}

#[test]
fn a_returned_link_is_announced_on_again() {
    let mut node = Node::leading(&[view("web", &["10.0.0.5"])]);
    node.pass_ms(1500);
    node.take_log();
    let carrier = |node: &mut Node, carrier| {
        node.kernel.network.links[1].carrier = carrier;
        node.feed(Input::NetworkChanged);
    };
    carrier(&mut node, false);
    node.pass_ms(1000);
    assert_eq!(node.take_log(), Vec::<String>::new());
    carrier(&mut node, true);
    node.pass_ms(1000);
    assert_eq!(node.take_log(), vec!["announce eth0 10.0.0.5"; 5]);
}

#[test]
fn an_address_outside_the_interfaces_network_is_announced_and_its_event_says_who_reaches_it() {
    for (address, routed) in [("10.0.0.5", false), ("192.0.2.5", true)] {
        let mut node = Node::leading(&[view("web", &[address])]);
        node.pass_ms(100);
        let announced = node.told.iter().find(|(_, tell)| tell.reason == Reason::AddressAnnounced);
        let text = &announced.expect("it is announced").1.text;
        assert_eq!(text.contains("is not in network 10.0.0.0/24 of interface eth0"), routed, "{text}");
    }
}

#[test]
fn a_kernel_that_refuses_is_asked_again() {
    let mut node = Node::new(&[], network());
    node.kernel.refuse = true;
    node.start_with(&[view("web", &["10.0.0.5"])], MINE);
    node.pass_ms(100);
    assert!(node.reasons().contains(&"CannotAnnounce"));
    node.kernel.refuse = false;
    node.pass_ms(5200);
    assert!(node.kernel.has("eth0", "10.0.0.5/32"));
}

#[test]
fn nothing_is_written_where_service_updates_are_disabled() {
    let mut node = Node::new(&[("disable_service_updates", "true")], network());
    node.start_with(&[view("web", &["10.0.0.5"])], MINE);
    node.pass_ms(100);
    assert_eq!(node.records, 0);
    assert!(node.log.contains(&"30 announce eth0 10.0.0.5".to_owned()), "{:?}", node.log);
}

#[test]
fn an_address_of_the_node_itself_is_refused_and_never_touched() {
    for subnet in ["32", "24", "auto"] {
        let mut node = Node::new(&[("vip_subnet", subnet)], network());
        let before = node.kernel.network.addresses.clone();
        node.start_with(&[published("web", "10.0.0.1", "node-1"), view("new", &["10.1.0.1"])], MINE);
        node.pass(Duration::from_mins(2));
        node.gone("web");
        node.gone("new");
        node.pass(Duration::from_mins(2));
        assert_eq!(node.kernel.network.addresses, before, "vip_subnet {subnet}");
        let log = node.take_log();
        assert!(
            !log.iter().any(|line| ["add", "remove", "announce", "record"].iter().any(|word| line.starts_with(word))),
            "{log:?}"
        );
        let told: BTreeSet<&str> = node.told.iter().map(|(_, tell)| tell.text.as_str()).collect();
        assert_eq!(told.len(), 2, "{told:?}");
        assert!(told.iter().any(|text| text.contains("10.0.0.1 is this node's own address on eth0")), "{told:?}");
        assert!(told.iter().any(|text| text.contains("10.1.0.1 is this node's own address on eth1")), "{told:?}");
    }
}

#[test]
fn an_address_inside_the_cluster_is_on_no_node_until_its_service_is_gone() {
    let mut node = Node::leading(&[]);
    let dns = ServiceKey::new("kube-system", "dns");
    let seen = |cluster_ips| Input::Seen { key: dns.clone(), cluster_ips, macvlan: None };
    node.feed(seen(vec!["10.0.0.5".parse().unwrap()]));
    node.upsert(view("web", &["10.0.0.5"]));
    node.pass_ms(1000);
    assert!(!node.kernel.has("eth0", "10.0.0.5/32"));
    let told = &node.told[0].1.text;
    assert!(told.contains("10.0.0.5 is that of Service kube-system/dns inside the cluster"), "{told}");
    node.feed(seen(Vec::new()));
    node.pass_ms(1000);
    assert!(node.kernel.has("eth0", "10.0.0.5/32"));
}

#[test]
fn control_characters_of_users_do_not_get_into_events() {
    let mut named = view("web", &["10.0.0.5"]);
    named.interface = InterfaceWish::Named(format!("\u{1b}[31m{}", "x".repeat(5000)));
    let node = Node::leading(&[named]);
    let text = &node.told[0].1.text;
    assert!(text.len() < 400 && !text.contains(char::is_control), "{text}");
}

#[test]
fn a_second_interface_in_the_same_lan_does_not_answer_for_the_address() {
    let mut network = network();
    network.addresses.push(crate::network::fixtures::address(3, "10.0.0.2/24"));
    let mut node = Node::started(&[view("web", &["10.0.0.5"])], MINE, network);
    let log = node.take_log();
    assert!(log.contains(&"prepare eth0".to_owned()) && log.contains(&"prepare eth1".to_owned()), "{log:?}");
    node.pass_ms(100);
    node.gone("web");
    let log = node.take_log();
    assert!(log.contains(&"restore eth0".to_owned()) && log.contains(&"restore eth1".to_owned()), "{log:?}");
}

/// The node's sockets are behind an action: one that failed is opened again when it is asked for.
#[test]
fn what_is_listened_for_is_asked_for_again_with_each_refresh() {
    let mut node = Node::leading(&[view("web", &["10.0.0.5"])]);
    node.pass_ms(2000);
    let wanted = std::mem::take(&mut node.listening);
    assert_eq!(wanted, BTreeSet::from([(2, Family::V4)]));
    node.pass_ms(1000);
    assert_eq!(node.listening, wanted);
}

#[test]
fn an_interface_that_gets_another_mac_or_mtu_keeps_its_address_and_only_a_new_mac_is_announced() {
    let mut node = Node::leading(&[view("web", &["10.0.0.5"])]);
    node.pass_ms(5000);
    node.take_log();
    let eth0 = |node: &mut Node, change: &dyn Fn(&mut l2_types::Link)| {
        node.kernel.network.links.iter_mut().filter(|link| link.name == "eth0").for_each(change);
        node.feed(Input::NetworkChanged);
        node.pass_ms(5000);
        node.take_log()
    };
    assert_eq!(eth0(&mut node, &|link| link.mtu = 9000), Vec::<String>::new());
    assert_eq!(eth0(&mut node, &|link| link.mac = Some([2, 0, 0, 0, 0, 0x77].into())), ["announce eth0 10.0.0.5"; 5]);
    assert_eq!(node.kernel.own(), ["eth0 10.0.0.5/32"]);
}
