//! Tables 8.7, 8.8, 8.9 and 8.13 of the CCM spec, and what we do better (W-05, W-13, W-29, W-30, W-32).

use cloud_provider::view::{Tags, Taint, Uid};
use contract::keys::kubernetes::UNINITIALIZED;
use proptest::prelude::*;

use super::super::view::{InterfaceView, NetworkView, build};
use super::*;

const A: &str = "192.168.100.10";
const B: &str = "192.168.120.10";
const C: &str = "192.168.130.10";
const D: &str = "192.168.130.12";

fn node(annotations: &[(&str, &str)]) -> NodeView {
    NodeView {
        name: "test".into(),
        uid: Uid("node-uid".into()),
        resource_version: String::new(),
        created: None,
        provider_id: None,
        annotations: annotations.iter().copied().collect(),
        labels: Tags::default(),
        taints: Vec::new(),
        unschedulable: false,
        ready: None,
        addresses: Vec::new(),
        system_uuid: None,
        deleting: false,
    }
}

/// NICs `nic-0`, `nic-1`, … on these networks; `""` is the pod network. `None` instead of addresses: no status for the
/// NIC.
fn vmi(nics: &[(&str, Option<&[&str]>)]) -> VmiView {
    let mut vmi = build::vmi("vm");
    for (index, (network, ips)) in nics.iter().enumerate() {
        let name = format!("nic-{index}");
        let multus = (!network.is_empty()).then(|| (*network).to_owned());
        vmi.networks.push(NetworkView { name: name.clone(), multus });
        if let Some(ips) = ips {
            vmi.interfaces.push(InterfaceView {
                name,
                addresses: ips.iter().map(|ip| (*ip).to_owned()).collect(),
                ..InterfaceView::default()
            });
        }
    }
    vmi
}

#[derive(Default)]
struct Flags {
    management: &'static str,
    cidr: &'static [&'static str],
    exclude: &'static [&'static str],
    disable: bool,
}

impl Flags {
    fn rules(&self) -> AddressRules {
        AddressRules {
            management_network: (!self.management.is_empty()).then(|| self.management.to_owned()),
            node_ip_cidr: nets(self.cidr),
            exclude_ranges: nets(self.exclude),
            ignore_node_annotations: self.disable,
        }
    }
}

fn nets(texts: &[&str]) -> Vec<IpNet> {
    texts.iter().map(|text| text.parse().unwrap_or_else(|_| IpNet::from(text.parse::<IpAddr>().unwrap()))).collect()
}

fn ips(texts: &[&str]) -> Vec<IpAddr> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

/// `I:` and `E:` before the addresses, the host name left out; `hostname only`, `unknown`. What is shown during a wait
/// stands before `later:`.
fn show(addresses: &Addresses) -> Vec<String> {
    match addresses {
        Addresses::Known(list) => {
            let (last, list) = list.split_last().expect("at least the host name");
            assert_eq!(last, &NodeAddress { kind: NodeAddressKind::Hostname, address: "test".into() });
            short(list)
        }
        Addresses::HostnameOnly(_) => vec!["hostname only".into()],
        Addresses::Unknown(_) => vec!["unknown".into()],
        Addresses::Incomplete { meanwhile, addresses, .. } => {
            let known = |list: &[NodeAddress]| show(&Addresses::Known(list.to_vec()));
            let now = if meanwhile.is_empty() { Vec::new() } else { known(meanwhile) };
            [now, vec!["later:".into()], known(addresses)].concat()
        }
    }
}

fn short(list: &[NodeAddress]) -> Vec<String> {
    let letter = |kind: &NodeAddressKind| match kind {
        NodeAddressKind::InternalIp => 'I',
        NodeAddressKind::ExternalIp => 'E',
        other => panic!("unexpected {other:?}"),
    };
    list.iter().map(|address| format!("{}:{}", letter(&address.kind), address.address)).collect()
}

fn e(ip: &str) -> String {
    format!("E:{ip}")
}

fn i(ip: &str) -> String {
    format!("I:{ip}")
}

/// Where the Go provider answered "hostname only" for something that can change, we answer "unknown" (W-05); a VMI that
/// does not exist is `lookup`'s business.
#[test]
fn ccm_8_7_node_addresses() {
    type Case<'a> = (&'a str, &'a Flags, &'a [(&'a str, &'a str)], VmiView, Vec<String>);
    let hostname_only = || vec!["hostname only".to_owned()];
    let unknown = || vec!["unknown".to_owned()];
    let vlan = Flags { management: "default/mgmt-vlan", ..Flags::default() };
    let none = Flags::default();
    let exclude_single = Flags { cidr: &["192.168.130.0/24"], exclude: &[D], ..Flags::default() };
    let exclude_prefix = Flags { cidr: &["192.168.0.0/16"], exclude: &["192.168.0.0/16"], ..Flags::default() };
    let mismatch = Flags { cidr: &["192.168.200.0/24"], ..Flags::default() };
    let additional = format!("[\"{B}\"]");
    let additional = [(keys::cloudprovider::ADDITIONAL_INTERNAL_IPS, additional.as_str())];
    let provided_b = [(PROVIDED_NODE_IP, B)];
    let invalid = [(PROVIDED_NODE_IP, "invalid-ip-string")];

    let cases: Vec<Case> = vec![
        ("P1 wins 1", &vlan, &provided_b, vmi(&[("default/mgmt-vlan", Some(&[A, B]))]), vec![e(A), i(B)]),
        ("P1 wins 2", &vlan, &provided_b, vmi(&[("default/mgmt-vlan", Some(&[B, A]))]), vec![i(B), e(A)]),
        ("P1 invalid annotation", &none, &invalid, vmi(&[("mgmt", Some(&[B, A]))]), vec![e(B), e(A)]),
        ("P2 exclude single IP", &exclude_single, &[], vmi(&[("any/net", Some(&[C, D]))]), vec![i(C)]),
        ("P2 exclude prefix", &exclude_prefix, &[], vmi(&[("mgmt", Some(&[A, B, C, D]))]), vec![i(A)]),
        ("P2 CIDR mismatch", &mismatch, &[], vmi(&[("mgmt", Some(&[A, B]))]), vec![e(A), e(B)]),
        ("P3 dual stack", &none, &[], vmi(&[("default/none", Some(&[A, "fd00::1"]))]), vec![i(A), i("fd00::1")]),
        ("P3 annotation exclusion", &vlan, &additional, vmi(&[("default/mgmt-vlan", Some(&[A, B]))]), vec![i(A)]),
        ("pod network only", &none, &[], vmi(&[("", Some(&[A]))]), hostname_only()),
        ("no IPs", &none, &[], vmi(&[("mgmt", Some(&[]))]), unknown()),
        ("loopback only", &none, &[], vmi(&[("mgmt", Some(&["127.0.0.1"]))]), unknown()),
        ("status not reported", &none, &[], vmi(&[("mgmt/mgmt-vlan", None)]), unknown()),
    ];
    for (name, flags, annotations, vmi, expected) in cases {
        let got = node_addresses(&node(annotations), &vmi, &flags.rules(), &BTreeSet::new());
        assert_eq!(show(&got), expected, "{name}: {got:?}");
    }
}

#[test]
fn ccm_8_8_network_selection() {
    let both = vmi(&[("default/management-vlan", None), ("default/data-vlan", None), ("", None)]);
    assert_eq!(candidate_networks(&both, Some("default/management-vlan")), ["nic-0"]);
    assert_eq!(candidate_networks(&both, None), ["nic-0", "nic-1"]);
    assert_eq!(candidate_networks(&vmi(&[("", None)]), None), Vec::<String>::new());
}

#[test]
fn ccm_8_9_classification() {
    type Case<'a> = (&'a str, Vec<&'a str>, Mode, &'a [&'a str], Vec<String>);
    let (a, b, v6, x) = ("10.0.0.5", "10.0.0.10", "fd00::5", "1.1.1.1");
    let cidr = |prefixes: &[&str]| Mode::Cidr(nets(prefixes));
    let provided = |texts: &[&str]| Mode::Provided(ips(texts));
    let both = || cidr(&["10.0.0.0/24", "fd00::/64"]);
    let cases: Vec<Case> = vec![
        ("provided strict", vec![a, b], provided(&[b]), &[], vec![e(a), i(b)]),
        ("CIDR multi-IP", vec![a, b, v6, x], both(), &[], vec![i(a), e(b), i(v6), e(x)]),
        ("CIDR, exclude b/32", vec![a, b, v6, x], both(), &["10.0.0.10/32"], vec![i(a), i(v6), e(x)]),
        ("CIDR, exclude a/32", vec![a, b, v6, x], both(), &["10.0.0.5/32"], vec![i(a), e(b), i(v6), e(x)]),
        ("first-fit", vec![a, b, v6], Mode::FirstFit, &[], vec![i(a), e(b), i(v6)]),
        ("legacy masking", vec![a, b], Mode::FirstFit, &["10.0.0.10"], vec![i(a)]),
        ("provided IP absent from list", vec![a], provided(&["99.99.99.99"]), &[], vec![e(a)]),
        ("empty input", vec![], cidr(&["10.0.0.0/24"]), &[], vec![]),
        ("CIDR without match", vec![x], cidr(&["10.0.0.0/24"]), &[], vec![e(x)]),
        ("provided family mismatch", vec![v6], provided(&[a]), &[], vec![e(v6)]),
        ("InternalIP protected", vec![a], Mode::FirstFit, &["10.0.0.5"], vec![i(a)]),
        ("first-fit several families", vec![a, b, v6], Mode::FirstFit, &[], vec![i(a), e(b), i(v6)]),
        ("CIDR with empty prefix list", vec![a], cidr(&[]), &[], vec![e(a)]),
        // "unknown mode" cannot be written down here: the mode is an enum.
    ];
    for (name, input, mode, exclude, expected) in cases {
        let as_ranges = Hidden { addresses: BTreeSet::new(), ranges: nets(exclude) };
        let as_addresses = Hidden { addresses: nets(exclude).iter().map(IpNet::addr).collect(), ranges: Vec::new() };
        for hidden in [as_ranges, as_addresses] {
            assert_eq!(short(&classify(&ips(&input), &mode, &hidden, &[])), expected, "{name}");
        }
    }
}

/// W-32: the Go provider rejects a list with one malformed entry; the good ones are kept here.
#[test]
fn ccm_8_13_ip_filter() {
    for (input, expected) in [
        (vec!["10.0.0.1", "2001:db8::1"], vec!["10.0.0.1", "2001:db8::1"]),
        (vec!["10.0.0.1", "not-an-ip", "2001:db8::1"], vec!["10.0.0.1", "2001:db8::1"]),
        (vec!["malformed"], vec![]),
        (vec!["127.0.0.1", "::1", "192.168.1.1"], vec!["192.168.1.1"]),
        (vec!["169.254.10.1", "fe80::1", "10.0.0.5"], vec!["10.0.0.5"]),
        (vec!["224.0.0.1", "255.255.255.255", "8.8.8.8"], vec!["8.8.8.8"]),
        (vec!["0.0.0.0", "::", "ff02::1"], vec![]),
        (vec![], vec![]),
    ] {
        let raw: Vec<String> = input.iter().map(|ip| (*ip).to_owned()).collect();
        assert_eq!(usable(&raw), ips(&expected), "{input:?}");
    }
}

/// W-13.
#[test]
fn a_dual_stack_provided_node_ip_names_one_internal_ip_per_family() {
    let node = node(&[(PROVIDED_NODE_IP, "192.168.120.10,2001:DB8:0::1")]);
    let vmi = vmi(&[("default/mgmt", Some(&[A, B, "2001:db8::2", "2001:db8::1"]))]);
    let got = node_addresses(&node, &vmi, &AddressRules::default(), &BTreeSet::new());
    assert_eq!(show(&got), [e(A), i(B), e("2001:db8::2"), i("2001:db8::1")]);
}

#[test]
fn the_disable_flag_ignores_both_node_annotations() {
    let additional = format!("[\"{B}\"]");
    let node = node(&[(PROVIDED_NODE_IP, B), (keys::cloudprovider::ADDITIONAL_INTERNAL_IPS, &additional)]);
    let rules = Flags { disable: true, ..Flags::default() }.rules();
    let got = node_addresses(&node, &vmi(&[("default/mgmt", Some(&[A, B]))]), &rules, &BTreeSet::new());
    assert_eq!(show(&got), [i(A), e(B)]);
}

#[test]
fn a_malformed_list_of_additional_internal_ips_hides_nothing() {
    for text in ["", "[]", "null", "not json", "{}"] {
        let node = node(&[(keys::cloudprovider::ADDITIONAL_INTERNAL_IPS, text)]);
        let vmi = vmi(&[("default/mgmt", Some(&[A, B]))]);
        let got = node_addresses(&node, &vmi, &AddressRules::default(), &BTreeSet::new());
        assert_eq!(show(&got), [i(A), e(B)], "{text:?}");
    }
}

/// W-29.
#[test]
fn an_address_of_a_service_is_never_an_address_of_a_node() {
    let vips = BTreeSet::from([A.parse().unwrap()]);
    let rules = AddressRules::default();
    let got = node_addresses(&node(&[]), &vmi(&[("default/mgmt", Some(&[A, B]))]), &rules, &vips);
    assert_eq!(show(&got), [i(B)]);
    let got = node_addresses(&node(&[]), &vmi(&[("default/mgmt", Some(&[A]))]), &rules, &vips);
    assert_eq!(show(&got), ["unknown"]);
}

#[test]
fn the_address_that_kubelet_was_started_with_is_kept_even_if_a_service_claims_it() {
    let vips = BTreeSet::from([A.parse().unwrap()]);
    let node = node(&[(PROVIDED_NODE_IP, A)]);
    let got = node_addresses(&node, &vmi(&[("default/mgmt", Some(&[A, B]))]), &AddressRules::default(), &vips);
    assert_eq!(show(&got), [i(A), e(B)]);
}

/// W-29.
#[test]
fn the_current_internal_ip_stays_whatever_the_order_of_the_report() {
    let mut node = node(&[]);
    node.addresses = vec![NodeAddress { kind: NodeAddressKind::InternalIp, address: B.into() }];
    let got = |ips: &[&str], flags: &Flags| {
        show(&node_addresses(&node, &vmi(&[("default/mgmt", Some(ips))]), &flags.rules(), &BTreeSet::new()))
    };
    assert_eq!(got(&[A, B], &Flags::default()), [e(A), i(B)]);
    assert_eq!(got(&[A, C], &Flags::default()), [i(A), e(C)]);
    assert_eq!(got(&[A, B], &Flags { cidr: &["192.168.100.0/24"], ..Flags::default() }), [i(A), e(B)]);
}

/// W-30.
#[test]
fn without_the_flag_the_next_network_serves_while_the_first_has_no_address() {
    let rules = AddressRules::default();
    let got = node_addresses(&node(&[]), &vmi(&[("a/a", None), ("b/b", Some(&[B]))]), &rules, &BTreeSet::new());
    assert_eq!(show(&got), [i(B)]);
    let rules = Flags { management: "a/a", ..Flags::default() }.rules();
    let got = node_addresses(&node(&[]), &vmi(&[("a/a", None), ("b/b", Some(&[B]))]), &rules, &BTreeSet::new());
    assert_eq!(show(&got), ["unknown"]);
}

/// W-05, W-30. Until the guest agent had reported the first NIC, its Node had the address of a storage network.
#[test]
fn an_initialised_node_does_not_move_to_its_next_nic_while_the_first_one_is_silent() {
    let shows = |address: &str| NodeView {
        addresses: vec![NodeAddress { kind: NodeAddressKind::InternalIp, address: address.into() }],
        ..node(&[])
    };
    let none = BTreeSet::new();
    let (first_fit, cidr) = (Flags::default(), Flags { cidr: &["192.168.120.0/24"], ..Flags::default() });
    let silences: [(Option<&[&str]>, &BTreeSet<IpAddr>); 3] =
        [(None, &none), (Some(&[]), &none), (Some(&[C]), &BTreeSet::from([C.parse().unwrap()]))];
    for (silent, vips) in silences {
        let vmi = vmi(&[("a/a", silent), ("b/b", Some(&[B]))]);
        for flags in [&first_fit, &cidr] {
            let got = |node: &NodeView| show(&node_addresses(node, &vmi, &flags.rules(), vips));
            assert_eq!(got(&shows(A)), ["later:".to_owned(), i(B)], "{silent:?}");
            assert_eq!(got(&shows(B)), [i(B)], "{silent:?}: it is on its second NIC already");
            let mut new = shows(A);
            new.taints.push(Taint {
                key: UNINITIALIZED.into(),
                value: Some("true".into()),
                effect: "NoSchedule".into(),
                time_added: None,
            });
            assert_eq!(got(&new), [i(B)], "{silent:?}: a new one needs an address");
            let provided = NodeView { addresses: shows(A).addresses, ..node(&[(PROVIDED_NODE_IP, B)]) };
            assert_eq!(got(&provided), [i(B)], "{silent:?}: its kubelet says so");
        }
    }
    // A NIC that was taken away is waited for no longer.
    let got = node_addresses(&shows(A), &vmi(&[("b/b", Some(&[B]))]), &first_fit.rules(), &none);
    assert_eq!(show(&got), [i(B)]);
}

/// W-05. A DHCP client that restarted took the InternalIP of its Node away for as long as the lease was missing.
#[test]
fn an_initialised_node_keeps_an_internal_ip_while_the_report_of_its_nic_lacks_that_family() {
    type Case<'a> = (&'a str, &'a Flags, NodeView, &'a [&'a str], Vec<String>);
    const V6: &str = "2001:db8::1";
    const OTHER: &str = "2001:db8::2";
    const SERVICE: &str = "2001:db8::3";
    let shows = |addresses: &[&str]| NodeView {
        addresses: addresses
            .iter()
            .map(|address| NodeAddress { kind: NodeAddressKind::InternalIp, address: (*address).into() })
            .collect(),
        ..node(&[])
    };
    let new = |addresses: &[&str]| {
        let mut new = shows(addresses);
        let (key, effect) = (UNINITIALIZED.into(), "NoSchedule".into());
        new.taints.push(Taint { key, value: Some("true".into()), effect, time_added: None });
        new
    };
    let later = |addresses: &[String]| [&["later:".to_owned()], addresses].concat();
    let now = |meanwhile: &[String], addresses: &[String]| [meanwhile, &later(addresses)].concat();
    let (first_fit, cidr) = (Flags::default(), Flags { cidr: &["192.168.0.0/16"], ..Flags::default() });
    let exclude = Flags { exclude: &["192.168.120.0/24"], ..Flags::default() };
    let cidr_both = Flags { cidr: &["192.168.0.0/16", "2001:db8::/64"], ..Flags::default() };
    let cidr_v6 = Flags { cidr: &["2001:db8::/64"], ..Flags::default() };
    let provided =
        |address: &str| NodeView { addresses: shows(&[A]).addresses, ..node(&[(PROVIDED_NODE_IP, address)]) };
    let both = NodeView { addresses: shows(&[A, V6]).addresses, ..provided(&format!("{A},{V6}")) };
    let more = |external: &[&str]| {
        let mut more = shows(&[A, V6]);
        let external = external.iter().map(|address| (*address).into());
        more.addresses.extend(external.map(|address| NodeAddress { kind: NodeAddressKind::ExternalIp, address }));
        more.addresses.push(NodeAddress { kind: NodeAddressKind::Hostname, address: "test".into() });
        more
    };
    let mut after_external = shows(&[C, V6, A]);
    after_external.addresses[0].kind = NodeAddressKind::ExternalIp;
    let cases: Vec<Case> = vec![
        ("only the other family is left", &first_fit, shows(&[A]), &[V6], later(&[i(V6)])),
        ("the same the other way round", &first_fit, shows(&[V6]), &[A], later(&[i(A)])),
        ("no InternalIP would be left", &cidr, shows(&[A]), &[V6], later(&[e(V6)])),
        ("one of two families is left", &first_fit, shows(&[A, V6]), &[V6], now(&[i(A), i(V6)], &[i(V6)])),
        ("the same in the other order", &first_fit, shows(&[V6, A]), &[V6], now(&[i(V6), i(A)], &[i(V6)])),
        ("a new address of it", &first_fit, shows(&[A, V6]), &[B], now(&[i(B), i(V6)], &[i(B)])),
        ("the same, IPv6 first", &first_fit, shows(&[V6, A]), &[B], now(&[i(V6), i(B)], &[i(B)])),
        ("a new address of IPv6", &first_fit, shows(&[A, V6]), &[OTHER], now(&[i(A), i(OTHER)], &[i(OTHER)])),
        ("two new addresses", &first_fit, shows(&[A, V6]), &[B, C], now(&[i(B), i(V6), e(C)], &[i(B), e(C)])),
        ("the new one is hidden as an ExternalIP", &exclude, shows(&[A, V6]), &[C, B], now(&[i(C), i(V6)], &[i(C)])),
        (
            "a new ExternalIP is before it",
            &cidr_both,
            shows(&[A, V6]),
            &["10.0.0.1", B],
            now(&[e("10.0.0.1"), i(B), i(V6)], &[e("10.0.0.1"), i(B)]),
        ),
        ("an ExternalIP before IPv6 has gone", &first_fit, after_external, &[B], now(&[i(V6), i(B)], &[i(B)])),
        ("no new InternalIP", &cidr_both, shows(&[A, V6]), &["10.0.0.1"], later(&[e("10.0.0.1")])),
        ("the kubelet's own is not the new one", &first_fit, both, &[B], later(&[e(B)])),
        ("its ExternalIPs", &first_fit, more(&[OTHER, C]), &[B], now(&[i(B), i(V6), e(OTHER)], &[i(B)])),
        ("no ExternalIP that is a Service's", &first_fit, more(&[SERVICE]), &[B], now(&[i(B), i(V6)], &[i(B)])),
        ("an address of a Service is none", &first_fit, shows(&[A]), &[D, V6], later(&[i(V6)])),
        ("another address of the same family", &first_fit, shows(&[A]), &[B, V6], vec![i(B), i(V6)]),
        ("another address of each family", &first_fit, shows(&[A, V6]), &[B, OTHER], vec![i(B), i(OTHER)]),
        ("a new one needs an address", &first_fit, new(&[A]), &[V6], vec![i(V6)]),
        ("its kubelet was started with the other family", &first_fit, provided(V6), &[V6], vec![i(V6)]),
        ("its kubelet was started with this family", &first_fit, provided(A), &[V6], later(&[e(V6)])),
        ("--node-ip-cidr names the other family", &cidr_v6, shows(&[A]), &[V6], vec![i(V6)]),
        ("one that shows none", &first_fit, shows(&[]), &[V6], vec![i(V6)]),
        ("after the wait, without an InternalIP", &cidr, shows(&[]), &[V6], vec![e(V6)]),
    ];
    let vips = BTreeSet::from([D.parse().unwrap(), SERVICE.parse().unwrap()]);
    for (name, flags, node, report, expected) in cases {
        let got = node_addresses(&node, &vmi(&[("a/a", Some(report))]), &flags.rules(), &vips);
        assert_eq!(show(&got), expected, "{name}: {got:?}");
        // A later NIC does not serve meanwhile, whatever it has.
        let two = vmi(&[("a/a", Some(report)), ("b/b", Some(&[C]))]);
        assert_eq!(node_addresses(&node, &two, &flags.rules(), &vips), got, "{name}");
        // What is shown meanwhile is the result again when the Node shows it: it is written once.
        if let Addresses::Incomplete { meanwhile, .. } = &got
            && !meanwhile.is_empty()
        {
            let next = NodeView { addresses: meanwhile.clone(), ..node };
            assert_eq!(show(&node_addresses(&next, &two, &flags.rules(), &vips)), expected, "{name}: once more");
        }
    }
    // An address of a later NIC is not shown at once: the first one may be back in a moment.
    for (report, expected) in [([B].as_slice(), later(&[i(B)])), (&[A], now(&[i(A), i(V6)], &[i(A)]))] {
        let silent = vmi(&[("a/a", None), ("b/b", Some(report))]);
        let got = node_addresses(&shows(&[A, V6]), &silent, &first_fit.rules(), &vips);
        assert_eq!(show(&got), expected, "{report:?}");
    }
}

/// W-30.
#[test]
fn a_network_without_namespace_is_in_the_namespace_of_the_vmi() {
    let vmi = vmi(&[("other/mgmt", None), ("mgmt", None)]);
    assert_eq!(candidate_networks(&vmi, Some("guests/mgmt")), ["nic-1"]);
    assert_eq!(candidate_networks(&vmi, Some("default/mgmt")), Vec::<String>::new());
}

#[test]
fn a_management_network_that_the_vm_lacks_is_explained() {
    let rules = Flags { management: "a/missing", ..Flags::default() }.rules();
    let got = node_addresses(&node(&[]), &vmi(&[("a/a", None), ("", None)]), &rules, &BTreeSet::new());
    let Addresses::Unknown(reason) = got else { panic!("{got:?}") };
    assert_eq!(
        reason,
        "No management networks found for node test via its VMI guests/vm: --management-network names \"a/missing\", \
         the VM is attached to a/a"
    );
}

/// W-31: the exclusion ranges hide ExternalIPs in every mode.
#[test]
fn exclusion_ranges_hide_external_ips_without_a_node_ip_cidr_too() {
    let rules = Flags { exclude: &["192.168.120.0/24"], ..Flags::default() }.rules();
    let got = node_addresses(&node(&[]), &vmi(&[("a/a", Some(&[A, B]))]), &rules, &BTreeSet::new());
    assert_eq!(show(&got), [i(A)]);
}

proptest! {
    #[test]
    fn at_most_one_internal_ip_per_family_and_no_address_twice(
        raw in prop::collection::vec(prop_oneof![any::<std::net::Ipv4Addr>().prop_map(|ip| ip.to_string()),
            any::<std::net::Ipv6Addr>().prop_map(|ip| ip.to_string()), "[a-z0-9.:]{0,12}"], 0..8),
    ) {
        let texts: Vec<&str> = raw.iter().map(String::as_str).collect();
        let vmi = vmi(&[("a/a", Some(&texts))]);
        let got = node_addresses(&node(&[]), &vmi, &AddressRules::default(), &BTreeSet::new());
        if let Addresses::Known(list) = got {
            let internal = |v4: bool| list.iter().filter(|address| address.kind == NodeAddressKind::InternalIp
                && address.address.parse::<IpAddr>().unwrap().is_ipv4() == v4).count();
            prop_assert!(internal(true) <= 1 && internal(false) <= 1);
            let distinct: std::collections::HashSet<_> = list.iter().map(|address| &address.address).collect();
            prop_assert_eq!(distinct.len(), list.len());
        }
    }
}

/// What the framework makes of the addresses: both sides read the annotation.
fn shown(provided: &str) -> Result<Vec<String>, String> {
    let node = node(&[(PROVIDED_NODE_IP, provided)]);
    let vmi = vmi(&[("default/mgmt", Some(&["10.1.1.2", "10.1.1.1", "fd00::1"]))]);
    let Addresses::Known(addresses) = node_addresses(&node, &vmi, &AddressRules::default(), &BTreeSet::new()) else {
        panic!("the machine has addresses")
    };
    let desired = cloud_provider::node::desired_addresses(&node, &addresses, true);
    desired.map(|addresses| show(&Addresses::Known(addresses))).map_err(|error| error.to_string())
}

#[test]
fn provider_and_framework_read_the_provided_node_ip_alike() {
    let (internal, external) = (i("10.1.1.1"), e("10.1.1.2"));
    for same in ["10.1.1.1", "010.001.001.001", "::ffff:10.1.1.1"] {
        assert_eq!(shown(same), Ok(vec![internal.clone(), external.clone(), e("fd00::1")]), "{same}");
    }
    assert_eq!(shown("10.1.1.1,FD00:0::1"), Ok(vec![internal, i("fd00::1"), external]));
    for bad in ["", "10.1.1.1, fd00::1", "10.1.1.1,10.1.1.2", "node-1"] {
        let told = shown(bad).unwrap_err();
        assert!(told.starts_with(&format!("failed to parse node IP {bad:?}: ")), "{told}");
    }
}
