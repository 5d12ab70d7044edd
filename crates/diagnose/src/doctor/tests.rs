//! One planted fault per check, each named with a remedy that is a command or says what to change.

mod addresses;
mod advice;
mod causes;
mod identity;
mod orphans;
mod surroundings;
mod workloads;

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::*;
use crate::healthy::{self, read};
use crate::snapshot::{Right, Trouble, TroubleKind};

fn service(change: impl Fn(&mut Value)) -> impl Fn(&mut Snapshot) {
    move |snapshot| {
        let mut object = healthy::service("web");
        change(&mut object);
        snapshot.services[1] = read(object);
    }
}

fn condition(reason: &'static str) -> impl Fn(&mut Snapshot) {
    service(move |object| {
        object["status"] = json!({"conditions": [{"type": "LoadBalancerReady", "status": "False", "reason": reason,
            "message": "the whole story", "lastTransitionTime": "2026-01-01T11:00:00Z"}]});
    })
}

fn event(reason: &'static str, message: &'static str) -> impl Fn(&mut Snapshot) {
    move |snapshot| {
        snapshot.events = vec![read(json!({
            "metadata": {"namespace": "default", "name": "e"}, "reason": reason, "message": message,
            "involvedObject": {"kind": "Service", "namespace": "default", "name": "web", "uid": "uid-web"},
            "lastTimestamp": "2026-01-01T11:59:00Z",
        }))];
    }
}

fn trouble(guest: bool, kind: TroubleKind) -> impl Fn(&mut Snapshot) {
    move |snapshot| {
        let side = if guest { &mut snapshot.guest } else { &mut snapshot.harvester };
        side.trouble = Some(Trouble { kind, text: "the server's words".into() });
    }
}

fn denied(guest: bool) -> impl Fn(&mut Snapshot) {
    move |snapshot| {
        let side = if guest { &mut snapshot.guest } else { &mut snapshot.harvester };
        let resource = "loadbalancers.loadbalancer.harvesterhci.io".into();
        side.denied = vec![Right {
            account: "system:serviceaccount:kube-system:a".into(),
            verb: "create".into(),
            resource,
            namespace: "guests".into(),
        }];
    }
}

fn node(change: impl Fn(&mut Value)) -> impl Fn(&mut Snapshot) {
    move |snapshot| {
        let mut object = healthy::node("node2");
        change(&mut object);
        snapshot.nodes[1] = read(object);
    }
}

fn member(change: impl Fn(&mut Value)) -> impl Fn(&mut Snapshot) {
    move |snapshot| {
        let mut object = healthy::member("node2");
        change(&mut object);
        snapshot.leases[2] = read(object);
    }
}

fn set(name: &'static str, container: Value) -> impl Fn(&mut Snapshot) {
    move |snapshot| {
        snapshot.daemon_sets.push(read(json!({"metadata": {"namespace": "kube-system", "name": name},
            "spec": {"selector": {}, "template": {"spec": {"containers": [container]}}}})));
    }
}

fn calico(method: Option<&str>) -> impl Fn(&mut Snapshot) {
    let mut env = vec![json!({"name": "IP", "value": "autodetect"})];
    env.extend(method.map(|method| json!({"name": "IP_AUTODETECTION_METHOD", "value": method})));
    set("calico-node", json!({"name": "calico-node", "env": env}))
}

fn record(key: &'static str, value: &'static str) -> impl Fn(&mut Snapshot) {
    move |snapshot| {
        let map = snapshot.config_maps.get_mut("harvester-cloud-provider").unwrap();
        map.data.get_or_insert_default().insert(key.into(), value.into());
    }
}

fn upgrade(reason: &'static str) -> impl Fn(&mut Snapshot) {
    move |snapshot| {
        let status = json!({"window": {"suspended": false}, "plan": {"name": "UpgradePlan p"},
            "nodes": {"node1": {"reason": reason, "host": "host-1"}}});
        let map = json!({"metadata": {"name": "harvester-host-upgrade"},
            "data": {"summary": "s", "status.json": status.to_string()}});
        snapshot.config_maps.insert("harvester-host-upgrade".into(), read(map));
    }
}

type Plant = Box<dyn Fn(&mut Snapshot)>;

/// Name of the check, and what is wrong.
fn faults() -> Vec<(&'static str, Plant)> {
    let plant = |check, plant: Plant| (check, plant);
    vec![
        plant("guest-credentials-missing", Box::new(trouble(true, TroubleKind::NoCredentials))),
        plant("guest-api-unreachable", Box::new(trouble(true, TroubleKind::Unreachable))),
        plant("guest-certificate-refused", Box::new(trouble(true, TroubleKind::Certificate))),
        plant("guest-token-refused", Box::new(trouble(true, TroubleKind::Unauthorized))),
        plant("cloud-config-missing", Box::new(trouble(false, TroubleKind::NoCredentials))),
        plant("harvester-api-unreachable", Box::new(trouble(false, TroubleKind::Unreachable))),
        plant("harvester-certificate-refused", Box::new(trouble(false, TroubleKind::Certificate))),
        plant("harvester-token-refused", Box::new(trouble(false, TroubleKind::Unauthorized))),
        plant("guest-right-missing", Box::new(denied(true))),
        plant("harvester-right-missing", Box::new(denied(false))),
        plant(
            "cluster-name-mismatch",
            Box::new(|snapshot| snapshot.instances[0] = read(healthy::instance("node1", "other"))),
        ),
        plant(
            "machine-label-missing",
            Box::new(|snapshot| snapshot.instances[0] = read(healthy::instance("node1", ""))),
        ),
        plant(
            "cluster-name-changed",
            Box::new(|snapshot| {
                snapshot.deployments = vec![read(healthy::deployment(
                    "harvester-cloud-provider",
                    &["--cloud-config=/x", "--cluster-name=new"],
                ))];
            }),
        ),
        plant(
            "cluster-name-default",
            Box::new(|snapshot| {
                snapshot.config_maps.clear();
                snapshot.deployments =
                    vec![read(healthy::deployment("harvester-cloud-provider", &["--cloud-config=/x"]))];
            }),
        ),
        plant(
            "cluster-copy",
            Box::new(|snapshot| {
                snapshot.load_balancers.push(read(healthy::load_balancer("api", "demo", "uid-of-a-copy")));
            }),
        ),
        plant(
            "load-balancer-orphaned",
            Box::new(|snapshot| {
                snapshot.load_balancers.push(read(healthy::load_balancer("gone", "demo", "cluster-uid")));
            }),
        ),
        plant(
            "cluster-name-default",
            Box::new(|snapshot| {
                record("cluster-name", "kubernetes")(snapshot);
                snapshot.load_balancers.clear();
                snapshot.instances = ["node1", "node2"].map(|name| read(healthy::instance(name, "kubernetes"))).into();
                snapshot.deployments =
                    vec![read(healthy::deployment("harvester-cloud-provider", &["--cloud-config=/x"]))];
            }),
        ),
        plant("safe-mode", Box::new(record("safe-mode", "MachinesReplaced: the whole story"))),
        plant("paused", Box::new(record("paused", "true\n"))),
        plant(
            "load-balancer-abandoned",
            Box::new(record("possible-orphans", "guests/demo-default-web left by default/web\n")),
        ),
        plant(
            "controller-missing",
            Box::new(|snapshot| snapshot.leases.retain(|lease| facts_name(lease) != "cloud-controller-manager")),
        ),
        plant(
            "controller-missing",
            Box::new(|snapshot| {
                // Uninstalled half a minute ago: the Lease still has its holder.
                snapshot.deployments.clear();
                snapshot.leases[0].spec.as_mut().unwrap().renew_time = Some(read(json!("2026-01-01T11:59:30.000000Z")));
            }),
        ),
        plant(
            "two-controllers",
            Box::new(|snapshot| {
                snapshot.deployments.push(read(healthy::deployment("old-provider", &["--cloud-config=/etc/x"])));
            }),
        ),
        plant("host-upgrade-failed", Box::new(upgrade("HostUpgradeFailed"))),
        plant("host-upgrade-paused", Box::new(upgrade("HostUpgradePaused"))),
        plant(
            "node-not-initialised",
            Box::new(node(|object| {
                object["spec"]["taints"] =
                    json!([{"key": "node.cloudprovider.kubernetes.io/uninitialized", "effect": "NoSchedule"}]);
            })),
        ),
        plant(
            "node-without-machine",
            Box::new(node(|object| object["spec"]["providerID"] = json!("harvester://another"))),
        ),
        plant(
            "node-excluded",
            Box::new(node(|object| {
                object["metadata"]["labels"] = json!({"node.kubernetes.io/exclude-from-external-load-balancers": ""});
            })),
        ),
        plant("cni-autodetection", Box::new(calico(None))),
        plant("cni-autodetection", Box::new(calico(Some("interface=eth.*,vip-.*")))),
        plant(
            "cni-autodetection",
            Box::new(|snapshot| {
                let map = json!({"metadata": {"name": "cilium-config"}, "data": {"devices": "eth0 vip+"}});
                snapshot.config_maps.insert("cilium-config".into(), read(map));
            }),
        ),
        plant("announcer-missing", Box::new(|snapshot| snapshot.leases.truncate(1))),
        plant(
            "announcer-missing",
            Box::new(|snapshot| {
                for lease in &mut snapshot.leases[1..] {
                    lease.spec.as_mut().unwrap().renew_time = Some(read(json!("2026-01-01T11:50:00.000000Z")));
                    lease.metadata.managed_fields = None;
                }
            }),
        ),
        plant(
            "announcer-silent",
            Box::new(member(|object| {
                object["spec"]["renewTime"] = json!("2026-01-01T11:50:00.000000Z");
                object["metadata"]["managedFields"][0]["time"] = json!("2026-01-01T11:50:00Z");
            })),
        ),
        plant(
            "kube-proxy-not-ready",
            Box::new(member(|object| {
                object["metadata"]["annotations"] =
                    json!({"cloudprovider.harvesterhci.io/announcer-card": "{\"serving\":false}"});
            })),
        ),
        plant(
            "clock-skew",
            Box::new(member(|object| object["metadata"]["managedFields"][0]["time"] = json!("2026-01-01T11:58:00Z"))),
        ),
        plant(
            "no-eligible-node",
            Box::new(|snapshot| {
                for (at, name) in ["node1", "node2"].into_iter().enumerate() {
                    let mut object = healthy::node(name);
                    object["metadata"]["labels"] =
                        json!({"node.kubernetes.io/exclude-from-external-load-balancers": "true"});
                    snapshot.nodes[at] = read(object);
                }
            }),
        ),
        plant(
            "two-announcers",
            Box::new(|snapshot| {
                snapshot.leases.push(read(json!({"metadata": {"name": "plndr-svcs-lock"},
                    "spec": {"holderIdentity": "old", "leaseDurationSeconds": 15,
                        "renewTime": "2026-01-01T11:59:59.000000Z"}})));
            }),
        ),
        plant(
            "service-class",
            Box::new(service(|object| {
                object["spec"]["loadBalancerClass"] = json!("example.org/other");
                object["status"] = json!({});
            })),
        ),
        plant(
            "service-ignored",
            Box::new(service(|object| object["metadata"]["annotations"]["kube-vip.io/ignore"] = json!("true"))),
        ),
        plant(
            "service-paused",
            Box::new(service(|object| {
                object["metadata"]["annotations"]["cloudprovider.harvesterhci.io/paused"] = json!("true");
            })),
        ),
        plant(
            "service-not-deleted",
            Box::new(service(|object| {
                object["metadata"]["deletionTimestamp"] = json!("2026-01-01T11:50:00Z");
                object["metadata"]["finalizers"] = json!(["service.kubernetes.io/load-balancer-cleanup"]);
                object["metadata"]["annotations"]["kube-vip.io/ignore"] = json!("true");
            })),
        ),
        plant("pool-exhausted", Box::new(condition("PoolExhausted"))),
        plant("pool-missing", Box::new(condition("NoMatchingPool"))),
        plant("harvester-webhook-refuses", Box::new(condition("RefusedByHarvester"))),
        plant("harvester-controller-silent", Box::new(condition("HarvesterSilent"))),
        plant("harvester-forbids", Box::new(condition("HarvesterForbidden"))),
        plant("address-taken", Box::new(condition("AddressTaken"))),
        plant("service-not-served", Box::new(condition("NotServed"))),
        plant("network-missing", Box::new(condition("NoSuchNetwork"))),
        plant("load-balancer-name-taken", Box::new(condition("NameTaken"))),
        plant("quota-reached", Box::new(condition("QuotaReached"))),
        plant("share-impossible", Box::new(condition("PortTaken"))),
        plant("service-not-ready", Box::new(condition("SomethingNew"))),
        plant(
            "address-unowned",
            Box::new(service(|object| {
                object["metadata"]["annotations"].as_object_mut().unwrap().remove("kube-vip.io/vipHost");
            })),
        ),
        plant(
            "macvlan-missing",
            Box::new(event("CannotAnnounce", "the macvlan vip-uid-web1 cannot be made: Operation not supported")),
        ),
        plant("interface-missing", Box::new(event("CannotAnnounce", "interface eth9 does not exist"))),
        plant(
            "cannot-announce",
            Box::new(event("CannotAnnounce", "a port of the address is in use by another Service")),
        ),
        plant("dhcp-silent", Box::new(event("DHCPNoAnswer", "no DHCP server answers on eth0"))),
        plant(
            "dhcp-refused",
            Box::new(|snapshot| {
                service(|object| object["status"] = json!({}))(snapshot);
                event("DHCPRefused", "the server refuses 10.0.0.5")(snapshot);
            }),
        ),
        plant("address-conflict", Box::new(event("AddressConflict", "10.0.0.100 is used by 52:54:00:00:00:01"))),
        plant("no-local-endpoint", Box::new(event("NoLocalEndpoint", "no ready endpoint on node1"))),
        plant("pool-full", Box::new(|snapshot| snapshot.pools[0].status.as_mut().unwrap().available = 0)),
    ]
}

fn all_faults() -> impl Iterator<Item = (&'static str, Plant)> {
    let more = surroundings::faults().into_iter().chain(workloads::faults());
    faults().into_iter().chain(more).chain(causes::faults()).chain(addresses::faults()).chain(identity::faults())
}

fn facts_name(lease: &k8s_openapi::api::coordination::v1::Lease) -> &str {
    lease.metadata.name.as_deref().unwrap_or_default()
}

fn planted(plant: &Plant) -> Examination {
    let mut snapshot = healthy::snapshot();
    plant(&mut snapshot);
    healthy::announce(&mut snapshot);
    examine(&snapshot)
}

fn findings_of(plant: impl Fn(&mut Snapshot) + 'static) -> Vec<Finding> {
    planted(&(Box::new(plant) as Plant)).findings
}

#[test]
fn a_healthy_installation_has_no_finding() {
    let found = examine(&healthy::snapshot());
    assert_eq!(found.findings, []);
    assert_eq!(found.exit_status(), 0);
    assert!(found.to_text().ends_with("\nnothing is wrong\n"), "{}", found.to_text());
}

#[test]
fn each_planted_fault_is_named_with_why_it_matters_and_what_mends_it() {
    for (check, plant) in all_faults() {
        let found = planted(&plant);
        let finding = found.findings.iter().find(|finding| finding.check.name() == check);
        let finding = finding.unwrap_or_else(|| panic!("{check} is not found: {found:?}"));
        for text in [&finding.object, &finding.what, &finding.why, &finding.remedy] {
            assert!(text.len() > 3, "{finding:?}");
        }
        let expected = if finding.severity == Severity::Error { 4 } else { 3 };
        assert!(found.exit_status() >= expected, "{finding:?}");
        let text = found.to_text();
        assert!(text.contains(&finding.what) && text.contains(&finding.remedy), "{text}");
        // What goes into a shell has its quotes closed.
        assert!(finding.remedy.matches('\'').count() % 2 == 0, "{}", finding.remedy);
    }
}

#[test]
fn each_check_has_a_fault_that_it_finds_and_a_line_in_the_documents() {
    let names: Vec<&str> = Check::ALL.iter().map(|check| check.name()).collect();
    assert!(names.is_sorted_by(|a, b| a < b), "in alphabetical order, each once");
    let known: BTreeSet<&str> = names.into_iter().collect();
    let planted: BTreeSet<&str> = all_faults().map(|(check, _)| check).collect();
    assert_eq!(planted, known, "each check is planted in a test, and each is in the list");
    let document = include_str!("../../../../docs/troubleshooting.md");
    let table = document.split_once("| check of `doctor` |").expect("the table of checks").1;
    let rows = table.lines().skip(2).take_while(|line| line.starts_with('|'));
    let cells = rows.filter_map(|row| row.split('|').nth(1));
    let named: BTreeSet<&str> =
        cells.flat_map(|cell| cell.split(',')).map(|name| name.trim().trim_matches('`')).collect();
    assert_eq!(named, known, "docs/troubleshooting.md has a line for each check");
}

/// A copy has the UID of the original, whose younger load balancers have no Service here.
#[test]
fn in_a_copy_nobody_is_told_to_delete_what_the_original_serves_or_to_take_its_name() {
    let remedy = |snapshot: &Snapshot, check: &str| {
        let found = examine(snapshot).findings;
        found
            .into_iter()
            .find(|finding| finding.check.name() == check)
            .map(|finding| finding.remedy)
            .unwrap_or_default()
    };
    let mut copy = healthy::snapshot();
    for (service, uid) in [("younger", "cluster-uid"), ("api", "uid-of-another")] {
        copy.load_balancers.push(read(healthy::load_balancer(service, "demo", uid)));
    }
    record("possible-orphans", "guests/demo-default-web left by default/web\n")(&mut copy);
    copy.instances[0] = read(healthy::instance("node1", "demo2"));
    let arguments = ["--cloud-config=/x", "--cluster-name=demo2"];
    copy.deployments = vec![read(healthy::deployment("harvester-cloud-provider", &arguments))];
    let checks = [
        "load-balancer-orphaned",
        "load-balancer-abandoned",
        "cluster-copy",
        "cluster-name-mismatch",
        "cluster-name-changed",
    ];
    for check in &checks[..2] {
        let remedy = remedy(&copy, check);
        assert!(remedy.contains(" delete ") && remedy.contains("only if no snapshot or copy"), "{remedy}");
    }
    let mut unknown = copy.clone();
    identity::not_known(&mut unknown);
    record("safe-mode", "MachinesReplaced: the whole story")(&mut copy);
    for check in checks {
        for doubtful in [&copy, &unknown] {
            let remedy = remedy(doubtful, check);
            assert!(remedy.contains("docs/backup.md") && !remedy.contains("kubectl"), "{check}: {remedy}");
        }
    }
    let said = examine(&copy).to_text();
    assert!(said.contains("MachinesReplaced: the whole story"), "{said}");
}

/// The name in the record wins over the flag: to set the flag changes nothing.
#[test]
fn a_name_that_is_remembered_is_changed_by_identity_rename() {
    let remedies = |check: &str| -> Vec<String> {
        let planted = faults().into_iter().filter(|(planted, _)| *planted == check).map(|(_, plant)| planted(&plant));
        planted.flat_map(|found| found.findings).map(|finding| finding.remedy).collect()
    };
    let default = remedies("cluster-name-default");
    assert!(default[0].contains("--set global.cattle.clusterName="), "{default:?}");
    assert!(default[1].contains("identity rename <name>"), "{default:?}");
    let copy = remedies("cluster-copy");
    assert!(copy[0].contains("identity rename <name>") && copy[0].contains("--copy"), "{copy:?}");
}

#[test]
fn one_fault_is_one_finding_unless_it_causes_another() {
    let causes: BTreeSet<&str> = ["no-eligible-node"].into();
    for (check, plant) in all_faults() {
        let found = planted(&plant);
        let checks: BTreeSet<&str> = found.findings.iter().map(|finding| finding.check.name()).collect();
        assert!(checks.len() == 1 || causes.contains(check), "{check}: {checks:?}");
    }
}

#[test]
fn the_remedy_of_a_wrong_ipam_keeps_the_annotation_and_says_what_is_accepted() {
    let found = planted(&(Box::new(condition("UnknownIPAM")) as Plant));
    let remedy = &found.findings[0].remedy;
    assert!(remedy.ends_with("cloudprovider.harvesterhci.io/ipam=<pool, dhcp or static>"), "{remedy}");
}

#[test]
fn a_refused_token_is_one_finding_however_many_services_wait_for_it() {
    let mut snapshot = healthy::snapshot();
    condition("HarvesterForbidden")(&mut snapshot);
    let checks =
        |snapshot: &Snapshot| examine(snapshot).findings.iter().map(|one| one.check.name()).collect::<Vec<_>>();
    assert_eq!(checks(&snapshot), ["harvester-forbids"]);
    trouble(false, TroubleKind::Unauthorized)(&mut snapshot);
    assert_eq!(checks(&snapshot), ["harvester-token-refused"]);
}

#[test]
fn the_names_of_checks_and_the_form_of_the_json_are_stable_for_scripts() {
    let found = planted(&(Box::new(condition("PoolExhausted")) as Plant));
    let json = serde_json::to_value(&found).unwrap();
    let finding = json["findings"][0].as_object().unwrap();
    let keys: BTreeSet<&str> = finding.keys().map(String::as_str).collect();
    assert_eq!(keys, ["check", "object", "remedy", "severity", "what", "why"].into());
    assert_eq!((finding["check"].as_str(), finding["severity"].as_str()), (Some("pool-exhausted"), Some("error")));
    assert_eq!(finding["object"], "Service default/web");
    assert_eq!(found.exit_status(), 4);
}

#[test]
fn what_could_not_be_read_is_not_judged_and_is_said() {
    let mut snapshot = healthy::snapshot();
    snapshot.leases.clear();
    snapshot.machines.clear();
    for what in ["Leases in kube-system", "VirtualMachines on Harvester"] {
        snapshot.unread.push(Unread { what: what.into(), why: "these credentials may not read them".into() });
    }
    let found = examine(&snapshot);
    assert_eq!(found.findings, []);
    assert!(found.to_text().contains("not looked at: Leases in kube-system"), "{}", found.to_text());
}

#[test]
fn what_was_mended_since_and_what_is_long_ago_is_no_finding() {
    let mut snapshot = healthy::snapshot();
    event("DHCPNoAnswer", "no DHCP server answers")(&mut snapshot);
    let mut announced = snapshot.events[0].clone();
    announced.reason = Some("AddressAnnounced".into());
    announced.last_timestamp = Some(read(json!("2026-01-01T11:59:30Z")));
    snapshot.events.push(announced);
    assert_eq!(examine(&snapshot).findings, []);
    snapshot.events.pop();
    snapshot.events[0].last_timestamp = Some(read(json!("2026-01-01T11:00:00Z")));
    assert_eq!(examine(&snapshot).findings, []);
}

#[test]
fn calico_with_a_method_that_cannot_take_a_vip_is_well() {
    for method in [
        "kubernetes-internal-ip",
        "cidr=10.0.0.0/24",
        "can-reach=10.0.0.1",
        "skip-interface=vip-.*",
        "interface=eth0",
        "interface=^ens.*",
    ] {
        let found = planted(&(Box::new(calico(Some(method))) as Plant));
        assert_eq!(found.findings, [], "{method}");
    }
}
