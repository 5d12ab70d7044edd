//! The host's own tables for LoadBalancers. Harvester spec 7.4, 7.5

use super::*;

fn lb(kind: &str, listeners: &[(&str, i32, &str, i32)], check: Option<[u32; 5]>) -> Candidate {
    let listeners: Vec<_> = listeners
        .iter()
        .map(|(name, port, protocol, backend)| {
            json!({"name": name, "port": port, "protocol": protocol, "backendPort": backend})
        })
        .collect();
    let mut spec = json!({"workloadType": kind, "listeners": listeners});
    if let Some([port, s, f, p, t]) = check {
        spec["healthCheck"] = json!({"port": port, "successThreshold": s, "failureThreshold": f, "periodSeconds": p,
            "timeoutSeconds": t});
    }
    Candidate::decode(&json!({"metadata": {"namespace": "ns", "name": "lb"}, "spec": spec})).unwrap()
}

fn refusal(lb: &Candidate) -> Option<String> {
    validate_create(lb, &[]).err()
}

/// Harvester spec 7.4, first two tables; rules A to E of 5.2
#[test]
fn listeners_and_health_checks_of_vm_load_balancers_are_checked() {
    let good = [("a", 80, "TCP", 80), ("b", 443, "TCP", 443)];
    let udp = [("a", 53, "UDP", 53), ("b", 80, "TCP", 8080)];
    let table: [(Candidate, Option<&str>); 20] = [
        (lb("vm", &[("a", 80, "TCP", 80), ("a", 81, "TCP", 81)], None), Some("listener has duplicate name")),
        (lb("vm", &[("", 80, "TCP", 80), ("", 81, "TCP", 81)], None), Some("listener has duplicate name")),
        (lb("vm", &[("a", 80, "TCP", 80), ("b", 80, "TCP", 81)], None), Some("has duplicate port")),
        (lb("vm", &[("a", 80, "TCP", 80), ("b", 81, "TCP", 80)], None), Some("has duplicate backend port")),
        (lb("vm", &[("a", -1, "TCP", 80)], None), Some("listener port -1 must >= 1")),
        (lb("vm", &[("a", 800_000, "TCP", 80)], None), Some("listener port 800000 must <= 65535")),
        (lb("vm", &[("a", 80, "TCP", 0)], None), Some("listener backend port 0 must >= 1")),
        (lb("vm", &[("a", 80, "TCP", 65536)], None), Some("listener backend port 65536 must <= 65535")),
        (lb("vm", &good, None), None),
        (lb("vm", &[("a", 53, "TCP", 53), ("b", 53, "UDP", 53)], None), None),
        (lb("vm", &[], None), Some("needs to have at least one listener")),
        (lb("cluster", &[], None), None),
        (lb("vm", &good, Some([8080, 1, 1, 1, 1])), Some("healthcheck port 8080 is not in listener backend port list")),
        (lb("vm", &udp, Some([53, 1, 1, 1, 1])), Some("can only be a TCP backend port")),
        (lb("vm", &good, Some([80, 0, 1, 1, 1])), Some("healthcheck SuccessThreshold should > 0")),
        (lb("vm", &good, Some([80, 1, 0, 1, 1])), Some("healthcheck FailureThreshold should > 0")),
        (lb("vm", &good, Some([80, 1, 1, 0, 1])), Some("healthcheck PeriodSeconds should > 0")),
        (lb("vm", &good, Some([80, 1, 1, 1, 0])), Some("healthcheck TimeoutSeconds should > 0")),
        (lb("vm", &good, Some([80, 1, 1, 1, 1])), None),
        (lb("cluster", &good, Some([9, 0, 0, 0, 0])), None),
    ];
    for (lb, expected) in table {
        let refusal = refusal(&lb);
        match expected {
            None => assert_eq!(refusal, None),
            Some(fragment) => {
                let refusal = refusal.expect(fragment);
                assert!(
                    refusal.starts_with("create loadbalancer ns/lb failed") && refusal.contains(fragment),
                    "{refusal}"
                );
            }
        }
    }
}

/// Harvester spec 7.4, last two tables; rules F and H
#[test]
fn ipam_and_workload_type_must_not_cross_their_border() {
    let with = |kind: &str, ipam: &str| {
        Candidate::decode(
            &json!({"metadata": {"namespace": "ns", "name": "lb"}, "spec": {"workloadType": kind, "ipam": ipam,
            "listeners": [{"name": "a", "port": 1, "protocol": "TCP", "backendPort": 1}]}}),
        )
        .unwrap()
    };
    for (old, new, allowed) in [
        ("", "dhcp", false),
        ("pool", "dhcp", false),
        ("dhcp", "pool", false),
        ("dhcp", "", false),
        ("dhcp", "dhcp", true),
        ("pool", "pool", true),
        ("", "", true),
        ("pool", "", true),
        ("", "pool", true),
    ] {
        let outcome = validate_update(&with("cluster", old), &with("cluster", new));
        assert_eq!(outcome.is_ok(), allowed, "{old}->{new}");
        if let Err(text) = outcome {
            assert_eq!(text, format!("update loadbalancer ns/lb failed: can't change the IPAM from {old} to {new}"));
        }
    }
    for (old, new, allowed) in [
        ("", "cluster", false),
        ("vm", "cluster", false),
        ("cluster", "vm", false),
        ("cluster", "", false),
        ("cluster", "cluster", true),
        ("vm", "vm", true),
        ("", "", true),
        ("vm", "", true),
        ("", "vm", true),
    ] {
        assert_eq!(validate_update(&with(old, "pool"), &with(new, "pool")).is_ok(), allowed, "{old}->{new}");
    }
}

#[test]
fn a_deleting_object_may_always_be_updated() {
    let old = lb("cluster", &[], None);
    let mut new = lb("vm", &[], None);
    assert!(validate_update(&old, &new).is_err());
    new.metadata.deletion_timestamp = Some("2026-01-01T00:00:00Z".to_owned());
    assert_eq!(validate_update(&old, &new), Ok(()));
    assert!(mutate(HostVersion::V1_9, &new, "", &[]).is_empty());
}

/// Harvester spec 7.4, `BlockNewLBWhenGuestClusterIsOnRemove`
#[test]
fn a_guest_cluster_that_is_being_removed_gets_no_new_load_balancer() {
    let machine = |creator: bool, cluster: bool, removing: bool| {
        let mut machine = MachineFacts::default();
        let mut put =
            |yes: bool, key: &str, value: &str| yes.then(|| machine.labels.insert(key.to_owned(), value.to_owned()));
        put(creator, harvester::CREATOR, harvester::NODE_DRIVER);
        put(cluster, harvester::GUEST_CLUSTER_NAME, "gc1");
        if removing {
            machine.annotations.insert(harvester::REMOVE_ALL_VOLUMES.to_owned(), "true".to_owned());
        }
        machine
    };
    let with_label = |label: Option<&str>| {
        let mut lb = lb("cluster", &[], None);
        label.map(|label| lb.metadata.labels.insert(cloudprovider::CLUSTER.to_owned(), label.to_owned()));
        lb
    };
    let leaving = || vec![machine(true, true, true)];
    let table = [
        (Some("gc1"), leaving(), false),
        (Some("gc1"), vec![], true),
        (Some("gc1"), vec![machine(true, true, false)], true),
        (None, leaving(), true),
        (Some("kubernetes"), leaving(), true),
        (Some(""), leaving(), true),
        (Some("gc1"), vec![machine(false, false, true)], true),
        (Some("gc1"), vec![machine(false, true, true)], true),
        (Some("gc2"), leaving(), true),
    ];
    for (label, machines, allowed) in table {
        let outcome = validate_create(&with_label(label), &machines);
        assert_eq!(outcome.is_ok(), allowed, "{label:?} {machines:?}");
        if let Err(text) = outcome {
            assert!(
                text.contains("failed with guest cluster check: shows guest cluster gc1 is being removed"),
                "{text}"
            );
        }
    }
}

#[test]
fn a_negative_number_in_a_health_check_does_not_decode() {
    let object = json!({"metadata": {}, "spec": {"healthCheck": {"port": 80, "periodSeconds": -1}}});
    assert!(Candidate::decode(&object).is_err());
}

/// Harvester spec 7.5
#[test]
fn mutation_sends_an_operation_per_member_that_is_not_right() {
    let good = [("a", 80, "TCP", 80)];
    for (check, operations) in [(Some([80, 0, 1, 1, 1]), 2), (Some([80, 1, 1, 1, 1]), 1), (None, 1)] {
        assert_eq!(mutate(HostVersion::V1_9, &lb("vm", &good, check), "", &[]).len(), operations, "{check:?}");
    }
    let mut right = lb("vm", &good, None);
    right.metadata.annotations.insert(loadbalancer::NAMESPACE.to_owned(), "ns".to_owned());
    assert!(mutate(HostVersion::V1_9, &right, "p", &[]).is_empty());
}

#[test]
fn a_cluster_load_balancer_gets_namespace_project_and_network_and_keeps_the_rest() {
    let mut lb = lb("cluster", &[], None);
    lb.metadata.annotations.insert("x".to_owned(), "y".to_owned());
    lb.metadata.annotations.insert(loadbalancer::NAMESPACE.to_owned(), "elsewhere".to_owned());
    let patch = mutate(HostVersion::V1_9, &lb, "local/p-1", &[]);
    assert_eq!(
        patch,
        [json!({"op": "add", "path": "/metadata/annotations", "value": {
            "x": "y", "loadbalancer.harvesterhci.io/namespace": "ns",
            "loadbalancer.harvesterhci.io/project": "local/p-1",
            "loadbalancer.harvesterhci.io/network": ""}})]
    );
}

#[test]
fn the_project_is_the_namespaces_with_a_slash() {
    let annotated = BTreeMap::from([(harvester::PROJECT_ID.to_owned(), "local:p-abcde".to_owned())]);
    assert_eq!(project_of(&annotated), "local/p-abcde");
    assert_eq!(project_of(&BTreeMap::new()), "");
}
