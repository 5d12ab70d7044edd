use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

fn service(change: impl FnOnce(&mut Value)) -> Service {
    let mut object = json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"namespace": "default", "name": "web", "uid": "12345678-aaaa-bbbb-cccc-1234567890ab",
            "annotations": {}},
        "spec": {"type": "LoadBalancer", "ports": [{"port": 80, "protocol": "TCP"}, {"port": 53, "protocol": "UDP"}]},
    });
    change(&mut object);
    serde_json::from_value(object).unwrap()
}

fn annotated(annotations: &[(&str, &str)]) -> ServiceView {
    ServiceView::of(
        &service(|object| {
            for (key, value) in annotations {
                object["metadata"]["annotations"][*key] = json!(value);
            }
        }),
        &ClassRules::default(),
    )
    .unwrap()
}

fn address(text: &str) -> AddressRequest {
    AddressRequest::Static(text.parse().unwrap())
}

#[test]
fn a_primary_without_a_namespace_is_in_the_one_of_the_service() {
    for (text, expected) in [("main", "default/main"), (" main ", "default/main"), ("infra/main", "infra/main")] {
        let primary = annotated(&[(keys::PRIMARY_SERVICE, text)]).primary;
        assert_eq!(primary.map(|key| key.to_string()).as_deref(), Some(expected), "{text:?}");
    }
}

#[test]
fn of_a_service_that_is_none_of_ours_only_its_addresses_inside_the_cluster_are_kept() {
    let seen = |cluster_ips: Value| {
        let object = service(|object| {
            object["spec"]["type"] = json!("ClusterIP");
            object["spec"]["clusterIPs"] = cluster_ips;
        });
        SeenService::of(&object, &ClassRules::default())
    };
    let cluster_ips = ["10.96.0.7", "fd00:96::7"].map(|text| text.parse().unwrap()).to_vec();
    let expected = SeenService { cluster_ips, macvlan: None, view: None };
    assert_eq!(seen(json!(["10.96.0.7", "fd00:96::7"])), Some(expected));
    assert_eq!(seen(json!(["None"])), None);
}

#[test]
fn of_a_load_balancer_of_another_class_the_macvlan_is_known_that_a_kube_vip_may_have_for_it() {
    let seen = |class: &str, kind: &str| {
        let object = service(|object| {
            object["spec"]["type"] = json!(kind);
            object["spec"]["loadBalancerClass"] = json!(class);
        });
        SeenService::of(&object, &ClassRules::default()).map(|seen| (seen.macvlan, seen.view.is_some()))
    };
    assert_eq!(seen("example.com/lan-b", "LoadBalancer"), Some((Some("vip-12345678".to_owned()), false)));
    assert_eq!(seen("kube-vip.io/kube-vip-class", "LoadBalancer"), Some((None, true)));
    assert_eq!(seen("example.com/lan-b", "ClusterIP"), None);
}

#[test]
fn a_term_that_was_written_by_hand_counts_as_missing_and_is_told() {
    assert_eq!(annotated(&[(keys::TERM, "7")]).published.term, Some(Term(7)));
    let view = annotated(&[(keys::TERM, "18446744073709551615")]);
    assert_eq!(view.published.term, None);
    let told = view.problems.iter().next().unwrap().to_string();
    assert!(told.contains(keys::TERM) && told.contains("18446744073709551615"), "{told}");
}

#[test]
fn only_living_load_balancers_that_are_not_ignored_are_ours() {
    let ours = |change: fn(&mut Value)| ServiceView::of(&service(change), &ClassRules::default()).is_some();
    assert!(ours(|_| {}));
    assert!(!ours(|object| object["spec"]["type"] = json!("NodePort")));
    assert!(!ours(|object| object["spec"]["type"] = json!("ClusterIP")));
    assert!(!ours(|object| object["metadata"]["annotations"][keys::IGNORE] = json!("true")));
    assert!(ours(|object| object["metadata"]["annotations"][keys::IGNORE] = json!("false")));
    assert!(!ours(|object| object["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z")));
    assert!(!ours(|object| object["spec"]["loadBalancerClass"] = json!("example.com/other")));
    assert!(ours(|object| object["spec"]["loadBalancerClass"] = json!("kube-vip.io/kube-vip-class")));
}

#[test]
fn a_dhcp_service_on_its_way_out_asks_for_nothing_but_says_what_it_leased() {
    let leased = |object: &mut Value| {
        object["metadata"]["annotations"] = json!({
            keys::LOADBALANCER_IPS: "0.0.0.0", keys::REQUESTED_IP: "10.0.0.50", keys::HWADDR: "00:00:6c:01:02:03",
        });
    };
    let of = |change: &dyn Fn(&mut Value)| ServiceView::of(&service(|object| change(object)), &ClassRules::default());
    let deleting = of(&|object| {
        leased(object);
        object["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    });
    let retyped = of(&|object| {
        leased(object);
        object["spec"]["type"] = json!("ClusterIP");
        object["metadata"]["finalizers"] = json!([FINALIZER]);
    });
    for view in [deleting.unwrap(), retyped.unwrap()] {
        assert!(view.retired && view.wanted.is_empty());
        assert_eq!(view.last_leased(), Some("10.0.0.50".parse().unwrap()));
        assert!(view.dhcp.mac.is_some());
    }
    for (wanted, four, six) in [
        ("::", None, Some("fd00::50")),
        ("0.0.0.0,::", Some("10.0.0.50"), Some("fd00::50")),
        ("10.0.0.50,::", None, Some("fd00::50")),
    ] {
        let view = of(&|object| {
            object["metadata"]["annotations"] = json!({
                keys::LOADBALANCER_IPS: wanted, keys::REQUESTED_IP: "10.0.0.50,fd00::50",
            });
            object["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
            object["status"] = json!({"loadBalancer": {"ingress": [{"ip": "10.0.0.50"}, {"ip": "fd00::50"}]}});
        });
        let view = view.unwrap();
        assert!(view.retired && view.wanted.is_empty(), "{wanted}");
        let told = (view.told_leased(), view.told_leased6());
        assert_eq!(told, (four.map(|ip| ip.parse().unwrap()), six.map(|ip| ip.parse().unwrap())), "{wanted}");
    }
    assert!(
        of(&|object| {
            leased(object);
            object["spec"]["type"] = json!("ClusterIP");
        })
        .is_none(),
        "without the finalizer it is done with"
    );
    assert!(
        of(&|object| {
            leased(object);
            object["metadata"]["annotations"][keys::LOADBALANCER_IPS] = json!("10.0.0.50");
            object["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        })
        .is_none(),
        "its address did not come by DHCP"
    );
}

#[test]
fn addresses_come_from_annotation_then_status_then_spec() {
    // annotation, spec.loadBalancerIP, status -> wanted
    for (annotation, spec, status, expected) in [
        (Some("10.0.0.5"), Some("10.0.0.6"), &["10.0.0.7"][..], vec![address("10.0.0.5")]),
        (Some(""), Some("10.0.0.6"), &["10.0.0.7"], vec![]),
        (None, Some("10.0.0.6"), &[], vec![address("10.0.0.6")]),
        (None, None, &["10.0.0.7"], vec![address("10.0.0.7")]),
        (None, Some("10.0.0.6"), &["10.0.0.7"], vec![address("10.0.0.6")]),
        (None, Some("10.0.0.7"), &["10.0.0.7"], vec![address("10.0.0.7")]),
        (None, Some("fd00::1"), &["10.0.0.7"], vec![address("10.0.0.7")]),
        (None, Some("10.0.0.6"), &["10.0.0.7", "fd00::7"], vec![address("10.0.0.6"), address("fd00::7")]),
        // Without this a DHCP Service would become a static one after the first lease.
        (None, Some("0.0.0.0"), &["10.0.0.7"], vec![AddressRequest::Dhcp4]),
        (None, Some("0.0.0.0"), &[], vec![AddressRequest::Dhcp4]),
        (None, None, &[], vec![]),
    ] {
        let object = service(|object| {
            if let Some(annotation) = annotation {
                object["metadata"]["annotations"][keys::LOADBALANCER_IPS] = json!(annotation);
            }
            if let Some(spec) = spec {
                object["spec"]["loadBalancerIP"] = json!(spec);
            }
            if !status.is_empty() {
                let ingress: Vec<Value> = status.iter().map(|ip| json!({"ip": ip})).collect();
                object["status"] = json!({"loadBalancer": {"ingress": ingress}});
            }
        });
        let view = ServiceView::of(&object, &ClassRules::default()).unwrap();
        assert_eq!(view.wanted, expected, "{annotation:?} {spec:?} {status:?}");
    }
}

#[test]
fn the_wishes_for_dhcp_are_read() {
    let view = annotated(&[
        (keys::LOADBALANCER_IPS, "0.0.0.0"),
        (keys::HWADDR, "00:00:6c:01:02:03"),
        (keys::REQUESTED_IP, "10.0.0.9"),
        (keys::LOADBALANCER_HOSTNAME, "web"),
        (keys::DHCP_BROADCAST, "true"),
        (keys::RP_FILTER, "0"),
        (keys::SERVICE_INTERFACE, "eth1"),
    ]);
    assert_eq!(view.dhcp.mac.unwrap().to_string(), "00:00:6c:01:02:03");
    assert_eq!(view.last_leased(), Some(Ipv4Addr::new(10, 0, 0, 9)));
    assert_eq!(view.dhcp.hostname.as_deref(), Some("web"));
    assert!(view.dhcp.broadcast);
    assert_eq!(view.dhcp.rp_filter, RpFilter::Off);
    assert_eq!(view.interface, InterfaceWish::Named("eth1".into()));
    assert!(view.problems.is_empty());
    assert_eq!(view.uid.link_name(), "vip-12345678");
}

#[test]
fn a_bad_mac_stops_dhcp_and_says_so() {
    let view = annotated(&[(keys::LOADBALANCER_IPS, "0.0.0.0,fd00::1"), (keys::HWADDR, "nonsense")]);
    assert_eq!(view.wanted, [address("fd00::1")]);
    assert_eq!(view.problems.iter().map(|problem| problem.annotation).collect::<Vec<_>>(), [keys::HWADDR]);
}

#[test]
fn bad_values_of_lesser_weight_are_told_and_replaced() {
    let view = annotated(&[
        (keys::LOADBALANCER_IPS, "0.0.0.0"),
        (keys::RP_FILTER, "7"),
        (keys::REQUESTED_IP, "x"),
        (keys::SERVICE_VLAN, "eth0.5"),
        (keys::MACVLAN_NAME, "a/b"),
    ]);
    assert_eq!(view.wanted, [AddressRequest::Dhcp4]);
    assert_eq!(view.dhcp.rp_filter, RpFilter::Loose);
    assert_eq!(view.problems.len(), 4);
}

#[test]
fn the_macvlan_of_another_service_is_no_name_to_ask_for() {
    let of = |name: &str| annotated(&[(keys::LOADBALANCER_IPS, "0.0.0.0"), (keys::MACVLAN_NAME, name)]);
    let own = of("lan").uid.link_name();
    assert_eq!(of("vip-0badcafe").dhcp.link_name, None);
    assert_eq!(of("vip-0badcafe").problems.len(), 1);
    for name in ["lan", "vip-lan", own.as_str()] {
        assert_eq!((of(name).dhcp.link_name.as_deref(), of(name).problems.len()), (Some(name), 0), "{name}");
    }
    let on = annotated(&[(keys::LOADBALANCER_IPS, "10.0.0.5"), (keys::SERVICE_INTERFACE, "vip-0badcafe")]);
    assert_eq!(on.problems.len(), 1);
}

#[test]
fn what_is_published_is_seen() {
    let object = service(|object| {
        object["metadata"]["annotations"][keys::VIP_HOST] = json!("node-1");
        object["status"] = json!({"loadBalancer": {"ingress": [
            {"ip": "10.0.0.7", "ipMode": "VIP", "ports": [{"port": 80, "protocol": "TCP"}]}, {"hostname": "x"},
        ]}});
    });
    let view = ServiceView::of(&object, &ClassRules::default()).unwrap();
    assert_eq!(view.published.vip_host.as_deref(), Some("node-1"));
    assert!(view.published.has("10.0.0.7".parse().unwrap()));
    assert_eq!(view.published.ingress.len(), 2);
}

proptest! {
    #[test]
    fn no_annotation_makes_the_view_panic(values in proptest::collection::vec("\\PC*", 12), spec in "\\PC*") {
        let keys = [
            keys::LOADBALANCER_IPS, keys::HWADDR, keys::REQUESTED_IP, keys::VIP_HOST, keys::SERVICE_INTERFACE,
            keys::IGNORE, keys::LOADBALANCER_HOSTNAME, keys::DHCP_BROADCAST, keys::RP_FILTER, keys::MACVLAN_NAME,
            keys::SERVICE_VLAN, keys::DHCP_LEASE,
        ];
        let object = service(|object| {
            for (key, value) in keys.iter().zip(&values) {
                object["metadata"]["annotations"][*key] = json!(value);
            }
            object["spec"]["loadBalancerIP"] = json!(spec);
        });
        let _ = ServiceView::of(&object, &ClassRules::default());
    }

    #[test]
    fn a_link_name_always_fits(uid in "\\PC*") {
        prop_assert!(Uid(uid).link_name().chars().count() <= 12);
    }
}
