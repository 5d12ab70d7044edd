//! Faults of addresses that are served, and what a pool or a network says of those that are given.

use super::*;

/// A Service with this static address, and a pool whose ranges hold 10.0.0.50 to 10.0.0.60.
fn given(address: &'static str) -> impl Fn(&mut Snapshot) {
    move |snapshot| {
        service(|object| {
            let annotations = &mut object["metadata"]["annotations"];
            annotations["cloudprovider.harvesterhci.io/ipam"] = json!("static");
            annotations["cloudprovider.harvesterhci.io/ip"] = json!(address);
        })(snapshot);
        snapshot.pools = vec![read(json!({
            "metadata": {"name": "edge"},
            "spec": {"ranges": [{"subnet": "10.0.1.0/30"},
                {"subnet": "10.0.0.0/24", "rangeStart": "10.0.0.50", "rangeEnd": "10.0.0.60", "gateway": "10.0.0.55"}]},
            "status": {"total": 12, "available": 11, "allocated": {"10.0.0.52": "guests/other"}},
        }))];
        let card = json!({"serving": true, "links": [{"name": "eth0", "mac": "52:54:00:00:00:02",
            "addresses": ["10.0.0.12/24", "10.0.1.12/24", "fe80::1/64", "fd00::12/64"]}]});
        member(|object| {
            object["metadata"]["annotations"]["cloudprovider.harvesterhci.io/announcer-card"] = json!(card.to_string());
        })(snapshot);
    }
}

fn ends(ready: Option<bool>) -> impl Fn(&mut Snapshot) {
    move |snapshot| snapshot.endpoint_slices = ready.iter().map(|ready| read(healthy::slice("web", *ready))).collect()
}

fn owner_is_silent(snapshot: &mut Snapshot) {
    snapshot.leases[1].spec.as_mut().unwrap().renew_time = Some(read(json!("2026-01-01T11:50:00.000000Z")));
    snapshot.leases[1].metadata.managed_fields = None;
    // Of a node that is off nobody expects an announcer.
    let mut off = healthy::node("node1");
    off["status"]["conditions"][0]["status"] = json!("False");
    snapshot.nodes[0] = read(off);
}

fn lease_is_over(snapshot: &mut Snapshot) {
    service(|object| {
        let annotations = &mut object["metadata"]["annotations"];
        annotations["kube-vip.io/loadbalancerIPs"] = json!("0.0.0.0");
        let lease = json!({"address": "10.0.0.100", "server": "10.0.0.2", "expires": "2026-01-01T11:59:00Z"});
        annotations["cloudprovider.harvesterhci.io/dhcp-lease"] = json!(lease.to_string());
    })(snapshot);
}

fn not_as_asked(snapshot: &mut Snapshot) {
    service(|object| {
        object["status"]["conditions"] = json!([{"type": "LoadBalancerWarning", "status": "True",
            "reason": "AddressNotAsAsked", "message": "m", "lastTransitionTime": "2026-01-01T11:00:00Z"}]);
    })(snapshot);
}

pub fn faults() -> Vec<(&'static str, Plant)> {
    let plant = |check, plant: Plant| (check, plant);
    vec![
        plant("static-in-pool", Box::new(given("10.0.0.52"))),
        plant("static-elsewhere", Box::new(given("10.9.0.5"))),
        plant("no-ready-endpoint", Box::new(ends(Some(false)))),
        plant("no-ready-endpoint", Box::new(ends(None))),
        plant("owner-silent", Box::new(owner_is_silent)),
        plant("dhcp-lease-expired", Box::new(lease_is_over)),
        plant("service-not-as-asked", Box::new(not_as_asked)),
    ]
}

#[test]
fn a_static_address_is_outside_all_pools_and_in_a_network_of_the_nodes() {
    for (address, expected) in [
        ("10.0.0.49", ""),
        ("10.0.0.50", "lies inside IPPool edge"),
        ("10.0.0.52", "lies inside IPPool edge, which has booked it for guests/other"),
        // The gateway of a range is never booked.
        ("10.0.0.55", ""),
        ("10.0.0.60", "lies inside IPPool edge"),
        ("10.0.0.61", ""),
        ("10.0.1.2", "lies inside IPPool edge"),
        ("10.9.0.5", "lies in no network of the nodes, which are 10.0.0.0/24, 10.0.1.0/24"),
        ("fd00::50", ""),
        ("fe80::50", "lies in no network of the nodes, which are fd00::/64"),
        ("nonsense", ""),
        // No Service can have these: the condition says so, and a route would help nobody.
        ("127.0.0.1", ""),
        ("224.0.0.5", ""),
        ("0.0.0.0", ""),
        ("::1", ""),
    ] {
        let found = findings_of(given(address));
        let said = found.first().map(|finding| finding.what.as_str()).unwrap_or_default();
        assert!(said.ends_with(expected) && found.len() == usize::from(!expected.is_empty()), "{address}: {found:?}");
    }
    let inside = findings_of(given("10.0.0.52"));
    assert!(inside[0].remedy.starts_with("kubectl ") && inside[0].remedy.contains(" edge "), "{inside:?}");
}

#[test]
fn an_address_that_is_refused_is_one_finding() {
    for (reason, address) in [
        ("WrongAnnotation", "127.0.0.1"),
        ("WrongAnnotation", "224.0.0.5"),
        ("WrongAnnotation", "0.0.0.0"),
        ("WrongAnnotation", "2001:db8::5"),
        ("AddressTaken", "10.9.0.5"),
        ("AddressTaken", "10.0.0.52"),
    ] {
        let found = findings_of(move |snapshot: &mut Snapshot| {
            given(address)(snapshot);
            let status = json!({"conditions": [{"type": "LoadBalancerReady", "status": "False", "reason": reason,
                "message": "m", "lastTransitionTime": "2026-01-01T11:00:00Z"}]});
            snapshot.services[1].status = Some(read(status));
        });
        assert_eq!(found.len(), 1, "{reason} {address}: {found:?}");
        assert!(found[0].what.starts_with(reason), "{found:?}");
    }
}

#[test]
fn only_a_static_address_of_ours_is_compared_and_only_with_what_is_known() {
    for key in ["cloudprovider.harvesterhci.io/ipam", "cloudprovider.harvesterhci.io/ip"] {
        let found = findings_of(move |snapshot: &mut Snapshot| {
            given("10.0.0.52")(snapshot);
            snapshot.services[1].metadata.annotations.as_mut().unwrap().remove(key);
        });
        assert_eq!(found, [], "{key}");
    }
    let unread = findings_of(|snapshot: &mut Snapshot| {
        given("10.9.0.5")(snapshot);
        member(|_| ())(snapshot);
    });
    assert_eq!(unread, [], "no announcer tells its networks");
}

#[test]
fn a_service_without_a_ready_endpoint_is_named_with_its_pods() {
    let waits = findings_of(ends(Some(false)));
    assert_eq!(waits[0].what, "it has no ready endpoint: none of 1 is ready");
    assert_eq!(waits[0].remedy, "kubectl -n default get endpointslices -l kubernetes.io/service-name=web");
    let selects = findings_of(|snapshot: &mut Snapshot| {
        ends(None)(snapshot);
        service(|object| object["spec"]["selector"] = json!({"app": "web", "tier": "front"}))(snapshot);
    });
    assert!(selects[0].what.ends_with("no pod with an address has the labels app=web,tier=front"), "{selects:?}");
    assert!(selects[0].remedy.ends_with("kubectl -n default get pods -l app=web,tier=front"), "{selects:?}");
    assert!(findings_of(ends(None))[0].what.contains("no selector"));
}

#[test]
fn of_endpoints_nothing_is_said_where_another_cause_is_known_or_nothing_was_read() {
    let pending = findings_of(|snapshot: &mut Snapshot| {
        ends(None)(snapshot);
        condition("PoolExhausted")(snapshot);
    });
    assert_eq!(pending.iter().map(|one| one.check).collect::<Vec<_>>(), [Check::PoolExhausted]);
    let unread = findings_of(|snapshot: &mut Snapshot| {
        ends(None)(snapshot);
        snapshot.unread.push(Unread { what: "EndpointSlices".into(), why: "these credentials may not".into() });
    });
    assert_eq!(unread, []);
    let going = findings_of(|snapshot: &mut Snapshot| {
        ends(None)(snapshot);
        service(|object| object["metadata"]["deletionTimestamp"] = json!("2026-01-01T11:59:50Z"))(snapshot);
    });
    assert_eq!(going, []);
}
