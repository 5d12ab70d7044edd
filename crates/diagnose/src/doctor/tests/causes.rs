//! Faults with one cause and several victims, and those whose cause stands in an Event.

use super::*;

fn exhausted(name: &str, pool: &str) -> Value {
    let mut object = healthy::service(name);
    object["status"] = json!({"conditions": [{"type": "LoadBalancerReady", "status": "False",
        "reason": "PoolExhausted", "lastTransitionTime": "2026-01-01T11:00:00Z",
        "message": format!("ip is not allocated, mode: pool, message: fail to get ip from pool {pool}, error: x")}]});
    object
}

fn exhausted_pools(snapshot: &mut Snapshot) {
    for (name, pool) in [("a", "edge"), ("b", "edge"), ("c", "core")] {
        snapshot.services.push(read(exhausted(name, pool)));
    }
}

/// It has an address by DHCP, and wants another one of the other family.
fn half_silent(snapshot: &mut Snapshot) {
    service(|object| {
        object["spec"]["ipFamilies"] = json!(["IPv4", "IPv6"]);
        object["metadata"]["annotations"]["cloudprovider.harvesterhci.io/ipam"] = json!("dhcp");
    })(snapshot);
    event("DHCPNoAnswer", "no DHCP server answered on the network of interface eth0")(snapshot);
}

pub fn faults() -> Vec<(&'static str, Plant)> {
    vec![("pool-exhausted", Box::new(exhausted_pools)), ("dhcp-silent", Box::new(half_silent))]
}

#[test]
fn services_that_wait_for_one_pool_are_one_finding_that_names_it() {
    let found = findings_of(exhausted_pools);
    let objects: Vec<&str> = found.iter().map(|finding| finding.object.as_str()).collect();
    assert_eq!(objects, ["Service default/c", "Services default/a, default/b"]);
    assert!(found[0].remedy.contains("ippools.loadbalancer.harvesterhci.io core "), "{found:?}");
    assert!(found[1].remedy.contains("ippools.loadbalancer.harvesterhci.io edge "), "{found:?}");
}

#[test]
fn rights_that_one_account_lacks_are_one_finding() {
    let found = findings_of(|snapshot: &mut Snapshot| {
        denied(false)(snapshot);
        let lacks = |verb: &str, resource: &str| Right {
            verb: verb.into(),
            resource: resource.into(),
            ..snapshot.harvester.denied[0].clone()
        };
        let more = [lacks("delete", "loadbalancers.loadbalancer.harvesterhci.io"), lacks("list", "virtualmachines")];
        snapshot.harvester.denied.extend(more);
    });
    let whats: Vec<&str> = found.iter().map(|finding| finding.what.as_str()).collect();
    let said = "may not create, delete loadbalancers.loadbalancer.harvesterhci.io; list virtualmachines in namespace \
                guests of Harvester";
    assert_eq!(whats, [said]);
}

#[test]
fn a_service_that_one_family_serves_is_not_said_to_have_no_address() {
    let found = findings_of(half_silent);
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].severity, Severity::Warning);
    assert!(found[0].what.starts_with("no DHCPv6 server answered; 10.0.0.100 is served. "), "{found:?}");
    assert!(!found[0].remedy.contains("=pool"), "{found:?}");
    let renewal = findings_of(event("DHCPNoAnswer", "the lease is not renewed"));
    assert_eq!((renewal[0].check, renewal[0].severity), (Check::DhcpSilent, Severity::Warning));
    assert_eq!(renewal[0].why, "10.0.0.100 is served until its lease ends");
    let nothing = findings_of(|snapshot: &mut Snapshot| {
        service(|object| object["status"] = json!({}))(snapshot);
        event("DHCPNoAnswer", "no DHCP server answered")(snapshot);
    });
    assert_eq!(nothing[0].severity, Severity::Error, "{nothing:?}");
}

/// The address that a Service has came after the server refused another one, whatever the order of the Events.
#[test]
fn a_refusal_of_a_dhcp_server_is_over_once_the_service_has_an_address() {
    let of = |reason: &'static str, served: bool| {
        let found = findings_of(move |snapshot: &mut Snapshot| {
            if !served {
                service(|object| object["status"] = json!({}))(snapshot);
            }
            event(reason, "the server's words")(snapshot);
        });
        found.iter().map(|finding| (finding.check, finding.severity)).collect::<Vec<_>>()
    };
    for (reason, without, with) in [
        ("DHCPRefused", Severity::Error, None),
        ("DHCPLeaseLost", Severity::Error, None),
        ("DHCPTrouble", Severity::Error, Some(Severity::Warning)),
    ] {
        let expected = |severity: Option<Severity>| -> Vec<_> {
            severity.map(|severity| (Check::DhcpRefused, severity)).into_iter().collect()
        };
        assert_eq!(of(reason, false), expected(Some(without)), "{reason}");
        assert_eq!(of(reason, true), expected(with), "{reason}");
    }
    let half = findings_of(|snapshot: &mut Snapshot| {
        half_silent(snapshot);
        event("DHCPRefused", "the server's words")(snapshot);
    });
    assert_eq!((half[0].check, half[0].severity), (Check::DhcpRefused, Severity::Warning), "{half:?}");
    assert_eq!(half[0].why, "10.0.0.100 is served, and it has no IPv6 address");
}

/// No pool has a static address, and its Service alone names it.
#[test]
fn of_a_static_address_that_cannot_be_had_the_remedy_is_another_one() {
    let remedy = |ipam: &'static str, condition: Option<&'static str>, reason: &'static str, message: &'static str| {
        let found = findings_of(move |snapshot: &mut Snapshot| {
            service(|object| {
                object["metadata"]["annotations"]["cloudprovider.harvesterhci.io/ipam"] = json!(ipam);
                if let Some(condition) = condition {
                    object["status"] = json!({"conditions": [{"type": "LoadBalancerReady", "status": "False",
                        "reason": condition, "message": "m", "lastTransitionTime": "2026-01-01T11:00:00Z"}]});
                }
            })(snapshot);
            event(reason, message)(snapshot);
        });
        assert_eq!(found.len(), 1, "{found:?}");
        found[0].remedy.clone()
    };
    let another = "kubectl -n default annotate --overwrite service web cloudprovider.harvesterhci.io/ip=<a free \
                   address of the network of the nodes>";
    for message in [
        "address 10.0.0.1 is the default gateway: it is not announced. Give this Service another one",
        "address 10.0.0.0 is the network address of 10.0.0.0/24: it is not announced. Give this Service another one",
        "address 10.0.0.9 is set on interface eth0 of node node1, but the record of no Service names it",
    ] {
        for condition in [None, Some("Pending"), Some("NotServed")] {
            assert_eq!(remedy("static", condition, "CannotAnnounce", message), another, "{condition:?}");
            let pool = remedy("pool", condition, "CannotAnnounce", message);
            assert!(pool.starts_with("kubectl -n default describe service web"), "{pool}");
        }
    }
    let conflict = remedy("static", Some("NotServed"), "AddressConflict", "10.0.0.9 is already used");
    assert!(conflict.starts_with(another) && !conflict.contains("pool"), "{conflict}");
    assert!(remedy("pool", Some("NotServed"), "AddressConflict", "x").ends_with("exclude it from the pool"));
    let card = remedy("static", None, "CannotAnnounce", "interface eth9 does not exist");
    assert!(card.ends_with("kube-vip.io/serviceInterface-"), "{card}");
}

/// Nothing is told on the Service itself in safe mode.
#[test]
fn a_deletion_that_waits_for_the_end_of_a_pause_or_of_safe_mode_is_said_to() {
    let of = |more: &dyn Fn(&mut Snapshot), paused: &'static str| {
        let mut snapshot = healthy::snapshot();
        service(move |object| {
            object["metadata"]["deletionTimestamp"] = json!("2026-01-01T11:50:00Z");
            object["metadata"]["finalizers"] = json!(["service.kubernetes.io/load-balancer-cleanup"]);
            object["metadata"]["annotations"]["cloudprovider.harvesterhci.io/paused"] = json!(paused);
        })(&mut snapshot);
        more(&mut snapshot);
        let found = examine(&snapshot).findings;
        let finding = found.into_iter().find(|finding| finding.check == Check::ServiceNotDeleted);
        finding.map(|finding| (finding.why, finding.remedy)).expect("a Service that does not go")
    };
    let nothing = |_: &mut Snapshot| {};
    for ((why, remedy), cause, command) in [
        (of(&nothing, "false"), "not given back yet", "describe service web"),
        (of(&nothing, "true"), "annotation pauses it", "annotate service web cloudprovider.harvesterhci.io/paused-"),
        (of(&record("paused", "true"), "true"), "the cloud controller is paused", "patch configmap"),
        (of(&record("safe-mode", "WrongHarvester: x"), "true"), "in safe mode", "first end the safe mode"),
        (of(&identity::not_known, "true"), "does not know yet which cluster", "has to know which cluster this is"),
    ] {
        assert!(why.contains(cause) && remedy.contains(command), "{why}: {remedy}");
    }
}

/// An Event of the first second knows why it stays.
#[test]
fn a_deleted_service_that_others_share_says_so_at_once() {
    let finding = |more: &dyn Fn(&mut Snapshot)| {
        let mut snapshot = healthy::snapshot();
        service(|object| {
            object["metadata"]["deletionTimestamp"] = json!("2026-01-01T12:00:00Z");
            object["metadata"]["finalizers"] = json!(["service.kubernetes.io/load-balancer-cleanup"]);
        })(&mut snapshot);
        more(&mut snapshot);
        examine(&snapshot).findings.into_iter().find(|finding| finding.check == Check::ServiceNotDeleted)
    };
    let sharer = |snapshot: &mut Snapshot| {
        let key = "cloudprovider.harvesterhci.io/primary-service";
        let mut object = healthy::service("shared1");
        object["metadata"]["labels"] = json!({key: "default.web"});
        object["metadata"]["annotations"][key] = json!("web");
        snapshot.services.push(read(object));
    };
    assert_eq!(finding(&|_| ()), None, "it may take a minute");
    let found = finding(&sharer).unwrap();
    assert!(found.why.contains("because default/shared1 shares the address"), "{found:?}");
    let command =
        "kubectl -n default annotate --overwrite service shared1 cloudprovider.harvesterhci.io/primary-service-";
    assert!(found.remedy.starts_with(command), "{found:?}");
    let paused = finding(&|snapshot: &mut Snapshot| {
        sharer(snapshot);
        record("paused", "true")(snapshot);
    });
    assert!(paused.is_some_and(|found| found.why.contains("is paused")), "nothing else matters before that ends");
}

/// What nobody serves is explained by what the announcers have told of it last.
#[test]
fn where_nobody_serves_an_address_the_announcers_words_are_quoted() {
    for reason in ["NotServed", "Pending", "Unowned"] {
        let found = findings_of(move |snapshot: &mut Snapshot| {
            if reason == "Unowned" {
                service(|object| object["metadata"]["annotations"]["kube-vip.io/vipHost"] = json!(""))(snapshot);
            } else {
                condition(reason)(snapshot);
            }
            event("CannotAnnounce", "interface eth9 does not exist")(snapshot);
        });
        assert_eq!(found.len(), 1, "{reason}: {found:?}");
        let quoted = "; an Event of 60s ago says CannotAnnounce: interface eth9 does not exist";
        assert!(found[0].what.ends_with(quoted), "{reason}: {found:?}");
        assert!(found[0].remedy.ends_with("annotate service web kube-vip.io/serviceInterface-"), "{found:?}");
    }
    let other = findings_of(|snapshot: &mut Snapshot| {
        condition("PoolExhausted")(snapshot);
        event("CannotAnnounce", "interface eth9 does not exist")(snapshot);
    });
    assert!(!other[0].what.contains("eth9"), "{other:?}");
}
