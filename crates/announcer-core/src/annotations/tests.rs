use proptest::prelude::*;

use super::*;

fn addresses(list: &str) -> (Vec<String>, usize) {
    let (wanted, problems) = parse_addresses(LOADBALANCER_IPS, list);
    let texts = wanted
        .iter()
        .map(|wanted| match wanted {
            AddressRequest::Static(address) => address.to_string(),
            AddressRequest::Dhcp4 => "dhcp".into(),
            AddressRequest::Dhcp6 => "dhcp6".into(),
        })
        .collect();
    (texts, problems.len())
}

#[test]
fn address_lists() {
    for (list, expected, problems) in [
        ("10.0.0.5", &["10.0.0.5"][..], 0),
        (" 10.0.0.5 , fd00::0:1 ", &["10.0.0.5", "fd00::1"], 0),
        ("10.0.0.5,10.0.0.5", &["10.0.0.5"], 0),
        ("::ffff:10.0.0.5", &["10.0.0.5"], 0),
        ("0.0.0.0", &["dhcp"], 0),
        ("0.0.0.0,fd00::1", &["dhcp", "fd00::1"], 0),
        ("0.0.0.0,10.0.0.1,10.0.0.2", &[], 1),
        ("::", &["dhcp6"], 0),
        ("0.0.0.0,::", &["dhcp", "dhcp6"], 0),
        ("", &[], 0),
        (" , ", &[], 0),
        ("web.example", &[], 1),
        ("web.example,10.0.0.5", &["10.0.0.5"], 1),
        ("127.0.0.1", &[], 1),
        ("255.255.255.255", &[], 1),
        ("224.0.0.1", &[], 1),
        ("0.1.2.3", &[], 1),
        ("fe80::1", &[], 1),
        ("010.0.0.5", &[], 1),
        ("10.0.0.5/24", &[], 1),
    ] {
        assert_eq!(addresses(list), (expected.iter().map(|text| (*text).to_owned()).collect(), problems), "{list:?}");
    }
}

#[test]
fn a_problem_names_annotation_value_and_remedy() {
    let (_, problems) = parse_addresses(LOADBALANCER_IPS, "web.example");
    let text = problems[0].to_string();
    assert!(text.contains(LOADBALANCER_IPS) && text.contains("web.example") && text.contains("accepted"), "{text}");
}

#[test]
fn one_service_has_so_many_addresses_or_none() {
    let list =
        |count: usize| (1..=count).map(|n| format!("10.0.{}.{}", n / 250, n % 250)).collect::<Vec<_>>().join(",");
    assert_eq!(addresses(&list(MAX_ADDRESSES)).0.len(), MAX_ADDRESSES);
    for count in [MAX_ADDRESSES + 1, 10_000] {
        let (wanted, problems) = parse_addresses(LOADBALANCER_IPS, &list(count));
        assert!(wanted.is_empty() && problems.len() == 1, "{count}");
        let text = problems[0].to_string();
        let names = [LOADBALANCER_IPS, &count.to_string(), &format!("at most {MAX_ADDRESSES} ")];
        assert!(names.iter().all(|name| text.contains(name)), "{text}");
    }
}

#[test]
fn a_field_of_the_spec_is_not_called_an_annotation() {
    let (_, problems) = parse_addresses("spec.loadBalancerIP", "foo");
    assert!(problems[0].to_string().starts_with("spec.loadBalancerIP is \"foo\":"), "{}", problems[0]);
}

#[test]
fn what_users_wrote_is_cut_and_escaped() {
    let value = format!("\u{1b}[31m\n{}", "x".repeat(5000));
    let (_, problems) = parse_addresses(LOADBALANCER_IPS, &value);
    let text = problems[0].to_string();
    assert!(text.len() < 400 && text.contains("...") && !text.contains(char::is_control), "{text}");
    assert_eq!(cut("eth0"), "eth0");
    assert_eq!(cut(&"é".repeat(65)), format!("{}...", "é".repeat(64)));
    assert_eq!(printable("a\u{1b}b\u{9b}c\nd é"), "a\\u{1b}b\\u{9b}c\\nd é");
    assert!(printable(&"é".repeat(5000)).len() <= 1003);
}

#[test]
fn the_mac_must_be_one_that_an_interface_can_have() {
    assert_eq!(parse_mac(" 00:00:6C:01:02:03 ").unwrap().to_string(), "00:00:6c:01:02:03");
    for text in
        ["", "00:00:6c:01:02", "ff:ff:ff:ff:ff:ff", "01:00:5e:00:00:01", "00:00:00:00:00:00", "zz:00:6c:01:02:03"]
    {
        assert!(parse_mac(text).is_err(), "{text}");
    }
}

#[test]
fn the_requested_address() {
    assert_eq!(parse_requested("10.0.0.5").unwrap(), Some(Ipv4Addr::new(10, 0, 0, 5)));
    assert_eq!(parse_requested("fd00::1,10.0.0.5").unwrap(), Some(Ipv4Addr::new(10, 0, 0, 5)));
    assert_eq!(parse_requested("fd00::1").unwrap(), None);
    assert_eq!(parse_requested("").unwrap(), None);
    assert_eq!(parse_requested("0.0.0.0").unwrap(), None);
    for text in ["x", "10.0.0.5,10.0.0.6", "10.0.0.5,fd00::1,fd00::2", "224.0.0.1", "127.0.0.1", "10.0.0.5,ff02::1"] {
        assert!(parse_requested(text).is_err(), "{text}");
    }
}

#[test]
fn lease_facts_survive_the_annotation() {
    let facts = LeaseFacts {
        address: Ipv4Addr::new(10, 0, 0, 5),
        server: Ipv4Addr::new(10, 0, 0, 1),
        expires: Some("2026-01-02T03:04:05Z".parse().unwrap()),
    };
    assert_eq!(LeaseFacts::parse(&facts.to_annotation()), Some(facts.clone()));
    for address in ["0.0.0.0", "127.0.0.1", "224.0.0.1", "255.255.255.255"] {
        let odd = LeaseFacts { address: address.parse().unwrap(), ..facts.clone() };
        assert_eq!(LeaseFacts::parse(&odd.to_annotation()), None, "{address}");
    }
    assert_eq!(LeaseFacts::parse("nonsense"), None);
    let duid = [0, 1, 0xab, 0xff];
    let facts = LeaseFacts6 { address: "fd00::5".parse().unwrap(), server: LeaseFacts6::digits(&duid), expires: None };
    assert_eq!(facts.server_duid().unwrap(), duid);
    assert_eq!(LeaseFacts6::parse(&facts.to_annotation()), Some(facts.clone()));
    for server in ["", "abc", "zz", "+1"] {
        let odd = LeaseFacts6 { server: server.into(), ..facts.clone() };
        assert_eq!(LeaseFacts6::parse(&odd.to_annotation()), None, "{server:?}");
    }
}

proptest! {
    #[test]
    fn no_annotation_makes_a_parser_panic(text in "\\PC*", list in "[0-9a-f:., x/]*") {
        for text in [&text, &list] {
            let (wanted, _) = parse_addresses(LOADBALANCER_IPS, text);
            let unspecified = |address: &IpAddr| address.is_unspecified();
            let is_unspecified =
                |wanted: &AddressRequest| matches!(wanted, AddressRequest::Static(address) if unspecified(address));
            prop_assert!(!wanted.iter().any(is_unspecified));
            let _ = parse_mac(text);
            let _ = parse_requested(text);
            let _ = parse_rp_filter(text);
            let _ = LeaseFacts::parse(text);
        }
    }

    #[test]
    fn every_usable_address_is_found_in_any_order(
        addresses in proptest::collection::btree_set(any::<Ipv6Addr>(), 1..4),
    ) {
        let canonical = addresses.iter().map(|v6| IpAddr::V6(*v6).to_canonical());
        let usable: Vec<IpAddr> = canonical.filter(|ip| is_unicast(*ip) && !ip.is_unspecified()).collect();
        let list = usable.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        let (wanted, problems) = parse_addresses(LOADBALANCER_IPS, &list);
        prop_assert_eq!(wanted, usable.into_iter().map(AddressRequest::Static).collect::<Vec<_>>());
        prop_assert!(problems.is_empty());
    }
}
