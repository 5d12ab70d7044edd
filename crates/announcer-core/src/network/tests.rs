use super::fixtures::*;
use super::*;
use crate::view::Uid;

fn chosen(wish: &InterfaceWish, env: &[(&str, &str)], address: Option<&str>) -> Result<String, InterfaceError> {
    network().choose(wish, &config(env), address.map(|text| text.parse().unwrap())).map(|link| link.name.clone())
}

#[test]
fn the_interface_is_looked_for_in_order() {
    let named = InterfaceWish::Named("eth1".into());
    let services = [("vip_servicesinterface", "eth1"), ("vip_interface", "eth0")];
    for (wish, env, address, expected) in [
        (&InterfaceWish::Default, &[][..], Some("10.0.0.5"), "eth0"),
        (&InterfaceWish::Default, &[("vip_interface", "eth1")], Some("10.0.0.5"), "eth1"),
        (&InterfaceWish::Default, &services, Some("10.0.0.5"), "eth1"),
        (&named, &[("vip_interface", "eth0")], None, "eth1"),
        (&InterfaceWish::Auto, &[], Some("10.1.2.3"), "eth1"),
        (&InterfaceWish::Auto, &[], Some("fd00::5"), "eth1"),
        (&InterfaceWish::Auto, &[], Some("192.0.2.1"), "eth0"),
        (&InterfaceWish::Auto, &[("vip_interface", "eth1")], None, "eth1"),
        (&InterfaceWish::Default, &[("vip_servicesinterface", "auto")], Some("10.1.2.3"), "eth1"),
    ] {
        assert_eq!(chosen(wish, env, address).as_deref(), Ok(expected), "{wish:?} {env:?} {address:?}");
    }
}

#[test]
fn a_missing_interface_is_told_with_its_source_and_what_there_is() {
    let text = chosen(&InterfaceWish::Named("eth9".into()), &[], None).unwrap_err().to_string();
    assert!(
        text.contains("kube-vip.io/serviceInterface") && text.contains("\"eth9\"") && text.contains("eth0, eth1"),
        "{text}"
    );
    let text = chosen(&InterfaceWish::Default, &[("vip_interface", "bond0")], None).unwrap_err().to_string();
    assert!(text.contains("vip_interface") && text.contains("bond0"), "{text}");
    let network = Network { default_route: None, ..network() };
    assert!(matches!(
        network.choose(&InterfaceWish::Default, &config(&[]), None),
        Err(InterfaceError::NoDefaultRoute { .. })
    ));
}

#[test]
fn a_vip_prefix_is_a_host_prefix_unless_told_otherwise() {
    let network = network();
    let eth0 = network.link_by_name("eth0").unwrap();
    let prefix =
        |env: &[(&str, &str)], address: &str| network.prefix(&config(env), eth0, address.parse().unwrap()).to_string();
    assert_eq!(prefix(&[], "10.0.0.5"), "10.0.0.5/32");
    assert_eq!(prefix(&[], "fd00::5"), "fd00::5/128");
    assert_eq!(prefix(&[("vip_subnet", "24")], "10.0.0.5"), "10.0.0.5/24");
    assert_eq!(prefix(&[("vip_subnet", "auto")], "10.0.0.5"), "10.0.0.5/24");
    assert_eq!(prefix(&[("vip_subnet", "auto")], "192.0.2.1"), "192.0.2.1/32");
}

#[test]
fn own_macvlans_are_known_by_name_and_kind() {
    assert!(is_own_macvlan(&macvlan(9, "vip-1234abcd", 2, None)));
    assert!(!is_own_macvlan(&macvlan(9, "vip-1234abc", 2, None)));
    assert!(!is_own_macvlan(&macvlan(9, "vip-1234abcz", 2, None)));
    assert!(!is_own_macvlan(&link(9, "vip-1234abcd")));
}

#[test]
fn a_macvlan_is_a_services_own_by_alias_or_by_kube_vips_name() {
    let uid = Uid("1234abcd-0000".into());
    for (link, own) in [
        (macvlan(9, "vip-1234abcd", 2, None), true),
        (macvlan(9, "lan", 2, Some("1234abcd-0000")), true),
        (macvlan(9, "lan", 2, None), false),
        (macvlan(9, "vip-1234abcd", 2, Some("1234abcd-1111")), false),
        (macvlan(9, "vip-00000000", 2, None), false),
        (Link { alias: Some("1234abcd-0000".into()), ..link(9, "vip-1234abcd") }, false),
    ] {
        assert_eq!(is_macvlan_of(&link, &uid), own, "{link:?}");
    }
}

#[test]
fn the_nodes_own_addresses_are_known_wherever_they_stand() {
    let mut network = network();
    network.links.push(link(7, "kube-ipvs0"));
    network.addresses.push(address(1, "10.9.9.9/32"));
    network.addresses.push(address(7, "10.0.0.7/32"));
    network.addresses.push(own_address(2, "10.0.0.5/24"));
    network.addresses.push(Address { protocol: None, ..own_address(2, "10.0.0.6/32") });
    network.addresses.push(Address { protocol: None, ..own_address(2, "10.0.0.8/24") });
    network.addresses.push(Address { protocol: None, ..own_address(2, "10.0.0.10/32") });
    for (text, on) in [
        ("10.0.0.1", Some("eth0")),
        ("10.1.0.1", Some("eth1")),
        ("fd00::1", Some("eth1")),
        ("10.9.9.9", Some("lo")),
        ("10.0.0.8", Some("eth0")),
        ("10.0.0.5", None),
        // kube-vip has left it for a Service, and this one is that of a control plane.
        ("10.0.0.6", None),
        ("10.0.0.10", Some("eth0")),
        ("10.0.0.7", None),
        ("10.0.0.9", None),
    ] {
        let on_record = |address: IpAddr| address.to_string() == "10.0.0.6";
        let found = network.own_interface(text.parse().unwrap(), |own| network.is_left_over(own, on_record));
        assert_eq!(found.map(|(_, link)| link.name.as_str()), on, "{text}");
    }
    let own = |address: &Address| network.is_left_over(address, |_| false);
    let link = contract::CardLink {
        name: "eth0".into(),
        mac: Mac::ZERO,
        addresses: vec!["10.0.0.1/24".parse().unwrap()],
        no_ipv6: false,
    };
    let occupied = network.occupied(&[link], own);
    let all: Vec<(&str, Vec<String>)> =
        occupied.iter().map(|(link, all)| (link.as_str(), all.iter().map(ToString::to_string).collect())).collect();
    let texts = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
    let expected = [
        ("eth0", texts(&["10.0.0.6", "10.0.0.8", "10.0.0.10"])),
        ("eth1", texts(&["10.1.0.1", "fd00::1"])),
        ("lo", texts(&["10.9.9.9"])),
    ];
    assert_eq!(all, expected);
}

#[test]
fn of_many_addresses_of_others_those_of_a_vips_form_are_told_and_those_of_pods_are_not() {
    let mut network = network();
    let pod = Link { kind: LinkKind::Virtual("veth".into()), ..link(9, "cali0") };
    network.links.extend([pod, link(8, "other")]);
    network.addresses.push(address(9, "10.7.0.1/32"));
    for number in 0..=u8::MAX {
        network.addresses.push(address(8, &format!("10.8.0.{number}/24")));
    }
    let bare = Address { protocol: None, valid: AddressLifetime::Forever, ..own_address(2, "10.200.0.1/32") };
    network.addresses.push(bare);
    let occupied = network.occupied(&[], Address::is_ours);
    assert_eq!(occupied.values().map(BTreeSet::len).sum::<usize>(), MOST_OCCUPIED);
    assert!(occupied["eth0"].contains(&"10.200.0.1".parse().unwrap()) && !occupied.contains_key("cali0"));
    network.addresses.reverse();
    assert_eq!(network.occupied(&[], Address::is_ours), occupied, "whatever the kernel's order");
}

#[test]
fn without_marks_a_short_deadline_is_ours() {
    let (fence, old) = (Duration::from_secs(12), without_marks(network()));
    let unmarked = |seconds| Address {
        protocol: None,
        valid: AddressLifetime::For(Duration::from_secs(seconds)),
        ..own_address(2, "10.0.0.5/24")
    };
    assert!(old.is_ours_without_mark(&unmarked(12), fence));
    assert!(!old.is_ours_without_mark(&unmarked(3600), fence));
    assert!(!old.is_ours_without_mark(&address(2, "10.0.0.5/24"), fence));
    assert!(!old.is_ours_without_mark(&Address { interface: 1, ..unmarked(12) }, fence), "nobody can reach it");
    // With a host prefix also what a process has left that ended in order.
    for (net, seconds, ours) in [
        ("10.0.0.5/32", 300, true),
        ("fd00::5/128", 300, true),
        ("10.0.0.5/32", 301, false),
        ("10.0.0.5/24", 13, false),
        ("10.0.0.5/24", 300, false),
    ] {
        let address = Address { net: net.parse().unwrap(), ..unmarked(seconds) };
        assert_eq!(old.is_ours_without_mark(&address, fence), ours, "{net} {seconds}");
        let valid = AddressLifetime::Forever;
        assert!(!old.is_ours_without_mark(&Address { valid, ..address }, fence), "{net}");
    }
    assert!(!network().is_ours_without_mark(&unmarked(12), fence));
}

#[test]
fn without_marks_what_a_record_puts_here_is_a_vip_whatever_its_prefix_is() {
    let (old, eth0) = (without_marks(network()), 2);
    let left = |seconds| Address {
        protocol: None,
        valid: AddressLifetime::For(Duration::from_secs(seconds)),
        ..own_address(eth0, "10.0.0.5/24")
    };
    let on_record = |address: IpAddr| address.to_string() == "10.0.0.5";
    assert!(old.is_left_over(&left(300), on_record));
    assert!(!old.is_left_over(&left(300), |_| false), "an address of the node that runs out has such lifetimes, too");
    assert!(!old.is_left_over(&left(301), on_record));
    assert!(!old.is_left_over(&Address { valid: AddressLifetime::Forever, ..left(300) }, on_record));
    assert!(!old.is_left_over(&Address { preferred: AddressLifetime::Forever, ..left(300) }, on_record));
    assert!(!network().is_left_over(&left(300), on_record), "this kernel would have kept the mark");
}

#[test]
fn addresses_of_the_node_do_not_look_like_a_vip() {
    let kube_vip = Address { protocol: None, valid: AddressLifetime::Forever, ..own_address(2, "10.0.0.5/32") };
    assert!(looks_like_a_vip(&kube_vip, &link(2, "eth0")));
    assert!(!looks_like_a_vip(&kube_vip, &link(7, "kube-ipvs0")));
    assert!(!looks_like_a_vip(&address(2, "10.0.0.5/32"), &link(2, "eth0")));
    assert!(!looks_like_a_vip(&address(2, "10.0.0.5/24"), &link(2, "eth0")));
    assert!(looks_like_a_vip(&own_address(2, "10.0.0.5/24"), &link(2, "eth0")));
}

#[test]
fn the_macvlan_of_a_dhcp_service_carries_no_other_address() {
    let mut network = network();
    network.links.push(macvlan(9, "vip-0badcafe", 2, Some("uid")));
    let wish = InterfaceWish::Named("vip-0badcafe".into());
    assert!(matches!(network.choose(&wish, &config(&[]), None), Err(InterfaceError::Missing { .. })));
}

#[test]
fn an_address_on_a_macvlan_is_carried_by_the_interface_beneath_it() {
    let mut network = network();
    network.links.push(macvlan(9, "vip-0badcafe", 3, Some("uid")));
    let ours = |network: &Network| network.carrying(Address::is_ours);
    assert_eq!(ours(&network), BTreeSet::new());
    network.addresses.push(own_address(9, "10.1.0.5/32"));
    assert_eq!(ours(&network), BTreeSet::from([3]));
    network.addresses.push(own_address(2, "10.0.0.5/32"));
    assert_eq!(ours(&network), BTreeSet::from([2, 3]));
}
