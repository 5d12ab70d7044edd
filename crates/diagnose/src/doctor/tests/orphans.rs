//! Load balancers on Harvester that no Service wants: which of them an operator is told to delete.

use super::*;

const ADDRESS: &str = "10.0.0.7";

/// The load balancer of Service `default/gone`, and these Services.
fn orphaned(address: &'static str, services: Vec<Value>) -> Vec<Finding> {
    let found = findings_of(move |snapshot: &mut Snapshot| {
        let mut object = healthy::load_balancer("gone", "demo", "cluster-uid");
        object["status"] = json!({"allocatedAddress": {"ip": address}});
        snapshot.load_balancers.push(read(object));
        snapshot.services.extend(services.iter().cloned().map(read));
    });
    found.into_iter().filter(|finding| finding.check == Check::LoadBalancerOrphaned).collect()
}

/// The owner, which was retyped. The controller still has its finalizer on it, or a restore of etcd took it away.
fn retyped(finalizers: &[&str]) -> Value {
    let mut object = healthy::service("gone");
    object["metadata"]["annotations"] = json!({});
    object["metadata"]["finalizers"] = json!(finalizers);
    object["spec"]["type"] = json!("ClusterIP");
    object["status"] = json!({});
    object
}

/// A Service that shows these addresses in its annotation and in its status.
fn sharer(shown: &str, served: &[&str]) -> Value {
    let mut object = healthy::service("sharer");
    object["metadata"]["annotations"]["cloudprovider.harvesterhci.io/primary-service"] = json!("default/gone");
    object["metadata"]["annotations"]["kube-vip.io/loadbalancerIPs"] = json!(shown);
    let ingress: Vec<Value> = served.iter().map(|ip| json!({"ip": ip})).collect();
    object["status"] = json!({"loadBalancer": {"ingress": ingress}});
    object
}

#[test]
fn nobody_is_told_to_delete_a_load_balancer_that_others_are_served_by() {
    let finalizer = ["service.kubernetes.io/load-balancer-cleanup"];
    let mut cluster_ip = sharer(ADDRESS, &[]);
    cluster_ip["spec"]["type"] = json!("ClusterIP");
    for (name, address, services, told) in [
        ("its Service is gone", ADDRESS, vec![], true),
        ("the controller has still to give it up", ADDRESS, vec![retyped(&finalizer)], false),
        ("a restore made the Service a ClusterIP", ADDRESS, vec![retyped(&[])], true),
        ("one that is gone shares with a living one", ADDRESS, vec![sharer(ADDRESS, &[ADDRESS])], false),
        ("the living one shows it", ADDRESS, vec![sharer(ADDRESS, &[])], false),
        ("the living one is served at it", ADDRESS, vec![sharer("", &[ADDRESS])], false),
        ("it shows two, as of two families", ADDRESS, vec![sharer("fd00::7, 10.0.0.7", &[])], false),
        ("both", ADDRESS, vec![retyped(&finalizer), sharer(ADDRESS, &[ADDRESS])], false),
        ("the living one has moved", ADDRESS, vec![sharer("10.0.0.8", &["10.0.0.8"])], true),
        ("it is no load balancer any more", ADDRESS, vec![cluster_ip], true),
        ("two requests for DHCP are no common address", "0.0.0.0", vec![sharer("0.0.0.0", &["10.0.0.8"])], true),
    ] {
        let found = orphaned(address, services);
        assert_eq!(found.len(), usize::from(told), "{name}: {found:?}");
    }
}

/// The user left it behind although others had its address.
#[test]
fn nor_one_that_was_left_behind_under_others() {
    let left = |services: Vec<Value>| {
        findings_of(move |snapshot: &mut Snapshot| {
            record("possible-orphans", "guests/demo-default-gone left by default/gone\n")(snapshot);
            let mut object = healthy::load_balancer("gone", "demo", "another-uid");
            object["metadata"]["labels"] = json!({});
            object["status"] = json!({"allocatedAddress": {"ip": ADDRESS}});
            snapshot.load_balancers.push(read(object));
            snapshot.services.extend(services.iter().cloned().map(read));
        })
        .into_iter()
        .any(|finding| finding.check == Check::LoadBalancerAbandoned)
    };
    assert!(left(Vec::new()));
    assert!(!left(vec![sharer(ADDRESS, &[ADDRESS])]));
}

#[test]
fn where_services_cannot_be_read_no_load_balancer_is_called_an_orphan() {
    let found = findings_of(|snapshot: &mut Snapshot| {
        snapshot.services.clear();
        record("possible-orphans", "guests/demo-default-web left by default/web\n")(snapshot);
        snapshot.unread.push(Unread { what: "Services".into(), why: "the server is busy".into() });
    });
    assert_eq!(found, []);
}

/// docs/backup.md: another snapshot may bring the Service back.
#[test]
fn while_a_restore_is_suspected_the_advice_is_to_wait() {
    for (stamp, waits) in [
        ("2026-01-01T11:00:00Z", true),
        ("2025-12-31T12:00:01Z", true),
        ("2025-12-31T12:00:00Z", false),
        ("no time", false),
    ] {
        let mut snapshot = healthy::snapshot();
        snapshot.load_balancers.push(read(healthy::load_balancer("gone", "demo", "cluster-uid")));
        record("possible-orphans", "guests/demo-default-web left by default/web\n")(&mut snapshot);
        record("restore-suspected", stamp)(&mut snapshot);
        let found = examine(&snapshot).findings;
        let checks: Vec<Check> = found.iter().map(|finding| finding.check).collect();
        assert_eq!(checks, [Check::LoadBalancerAbandoned, Check::LoadBalancerOrphaned], "{stamp}");
        for Finding { remedy, .. } in &found {
            assert_eq!(remedy.contains(" delete "), !waits, "{stamp}: {remedy}");
            assert_eq!(remedy.contains("a restore of etcd"), waits, "{stamp}: {remedy}");
            assert_eq!(remedy.contains("identity confirm"), waits, "{stamp}: {remedy}");
        }
    }
}
