//! An upgrade of the host, step by step: what the cloud controller manager must not destroy, and how soon it goes on.
//! Each test names the rule it shows. One bed, one test at a time: they break what others need. Without announcers: an
//! address counts as given when it is published on the Service.
//!
//! Rules that are pure have their tests beside the code: h2 (`only_a_status_about_that_very_vm_is_a_proof`), h9 and h10
//! in `crates/cloud-provider`, h11 in `crates/announcer`. h13 concerns the DHCP client.
#![allow(clippy::unwrap_used)] // clippy knows test functions, but not their helpers

use std::sync::Arc;
use std::time::{Duration, Instant};

use e2e::machines::{SHUTDOWN, addresses, is_initialized};
use e2e::{Bed, Case, Exposed, Shared, VM_NAMESPACE, service, wait_for};
use harvester_api::keys::cloudprovider;
use harvester_api::load_balancer::LoadBalancer;
use harvester_sim::faults::Faults;
use harvester_sim::guest::machines::MigrationOutcome;
use harvester_sim::serve::tls::Authority;
use k8s_openapi::api::core::v1::{ConfigMap, Node, Secret, Service};
use k8s_openapi::jiff::Timestamp;
use kube::api::DeleteParams;
use kube::{Api, ResourceExt};
use serde_json::json;
use tokio::sync::{Mutex, MutexGuard};

static BED: (Mutex<()>, Shared<Bed>) = (Mutex::const_new(()), Shared::new());

/// The bed with everything well, also after a test that failed.
async fn alone() -> (MutexGuard<'static, ()>, Arc<Bed>) {
    let guard = BED.0.lock().await;
    let builder = Bed::builder().nodes(1).without_announcers().ccm_arg("--node-monitor-period=1s");
    let builder = builder.ccm_arg("--cloud-config-all-contexts");
    let bed = BED.1.get(|| builder.start()).await.unwrap();
    bed.set_faults(&Faults::default()).unwrap();
    bed.write_cloud_config(&bed.fresh_cloud_config().unwrap()).unwrap();
    if bed.ccm().check().is_err() {
        bed.ccm().start().unwrap();
    }
    bed.wait_until_ccm_is_ready().await.unwrap();
    (guard, bed)
}

/// A Service that is well: its address is published, and served, as the announcer would say.
async fn created(case: &Case<'_>, name: &str) -> String {
    let web = case.create(service(name).tcp(80)).await.unwrap();
    let address = web.published().await.unwrap();
    web.patch_status(json!({"status": {"loadBalancer": {"ingress": [{"ip": address}]}}})).await.unwrap();
    address
}

/// What was written about the Services of one test. Others have Services that nobody serves, which is told again and
/// again.
fn writes_of(bed: &Bed, case: &Case<'_>, mark: e2e::Mark) -> e2e::Costs {
    let mut costs = bed.costs(mark).unwrap();
    costs.ccm_events.clear();
    costs.ccm_guest.retain(|request| request.namespace.as_deref() == Some(case.namespace()));
    costs.ccm_harvester.retain(|request| request.verb != "create" && request.uri.contains(case.namespace()));
    costs
}

async fn uid_of_load_balancer(web: &Exposed<'_>) -> String {
    web.load_balancer().await.unwrap().unwrap().uid().unwrap()
}

async fn wait_for_internal_ip(bed: &Bed, node: &str, ip: &str) {
    let wanted = format!("InternalIP={ip}");
    bed.wait_for_node(node, &wanted, |node| {
        let found = addresses(node);
        if found.contains(&wanted) { Ok(()) } else { Err(format!("{found:?}")) }
    })
    .await
    .unwrap();
}

/// How often the cloud controller manager renewed its Lease between the first answer of Harvester after `away` and the
/// object that it created there: time as the process has it, whatever else the machine does.
fn heartbeats_until_created(bed: &Bed, away: e2e::Mark) -> usize {
    let ours = |user: &str| user.ends_with(":harvester-cloud-provider") || user.ends_with(":demo");
    let mut harvester = bed.harvester.audit().since(away.harvester).unwrap();
    harvester.retain(|request| ours(&request.user) && (1..400).contains(&request.code));
    let first = harvester.iter().filter_map(|request| request.at).min().expect("Harvester has answered");
    let created = harvester.iter().find(|request| request.verb == "create" && request.resource == "loadbalancers");
    let created = created.and_then(|request| request.at).expect("the object was created");
    let guest = bed.control_plane.audit().since(away.guest).unwrap();
    let renewals = guest.iter().filter(|request| {
        ours(&request.user) && request.is_write() && request.name.as_deref() == Some(e2e::host::CCM_LEASE)
    });
    renewals.filter_map(|request| request.at).filter(|at| (first..created).contains(at)).count()
}

/// A busy machine's own trouble, which is told as well.
fn is_bad_luck(event: &e2e::EventFact) -> bool {
    ["deadline exceeded", "timed out", "timeout"].iter().any(|part| event.message.to_lowercase().contains(part))
}

fn deletions(bed: &Bed, mark: e2e::Mark) -> Vec<String> {
    let harvester = bed.harvester.audit().since(mark.harvester).unwrap();
    let guest = bed.control_plane.audit().since(mark.guest).unwrap();
    let ours = |user: &str| user.ends_with(":harvester-cloud-provider") || user.ends_with(":demo");
    let all =
        harvester.into_iter().chain(guest).filter(|request| request.verb.starts_with("delete") && ours(&request.user));
    all.map(|request| format!("{} {}", request.user, request.uri)).collect()
}

#[tokio::test]
async fn h1_h3_h14_an_outage_of_the_harvester_api_destroys_nothing_and_what_was_asked_for_is_done_at_once_after_it() {
    if e2e::skip() {
        return;
    }
    let (_guard, bed) = alone().await;
    let case = bed.case("h1").await.unwrap();
    let address = created(&case, "stays").await;
    let (stays, goes) = (case.named("stays"), case.create(service("goes").tcp(80)).await.unwrap());
    goes.published().await.unwrap();
    let lb = uid_of_load_balancer(&stays).await;
    let lease = bed.ccm_lease().await.unwrap();
    let mark = bed.mark();

    bed.harvester.api_server().kill();
    let away = bed.mark();
    let new = case.create(service("new").tcp(80)).await.unwrap();
    goes.delete().await.unwrap();
    stays.annotate("touched", Some("meanwhile")).await.unwrap();
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(35) {
        let (ready, text) = bed.ccm_readyz().unwrap();
        assert!(ready, "ready but degraded: {text}");
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    let (_, text) = bed.ccm_readyz().unwrap();
    assert!(text.contains("[!]harvester-api degraded: away for"), "{text}");
    bed.wait_for_event("kube-system", "Lease", e2e::host::CCM_LEASE, "HarvesterUnreachable", "has not answered")
        .await
        .unwrap();
    assert_eq!(bed.ccm_lease().await.unwrap(), lease, "it goes on leading");
    let left = goes.get().await.unwrap();
    assert!(left.metadata.deletion_timestamp.is_some() && !left.finalizers().is_empty(), "h14: the finalizer stays");

    bed.harvester.api_server().start().await.unwrap();
    new.published().await.unwrap();
    let beats = heartbeats_until_created(&bed, away);
    goes.wait_until_gone().await.unwrap();
    assert_eq!(goes.load_balancer().await.unwrap(), None);
    // Who waits for its next attempt, backed off during the outage, comes later.
    assert!(beats < 8, "{beats} renewals of its Lease, two seconds apart, between the first answer and the new object");
    eprintln!("created {beats} heartbeats after the first answer");
    assert_eq!((stays.published().await.unwrap(), uid_of_load_balancer(&stays).await), (address, lb));
    assert_eq!(bed.ccm_lease().await.unwrap(), lease);
    let deleted = deletions(&bed, mark);
    assert!(!deleted.is_empty(), "what was asked to go was deleted by us");
    assert!(deleted.iter().all(|deletion| deletion.contains("goes")), "h3: {deleted:?}");
}

/// Decision 12: a finalizer is not for ever. The host does not come back, and says who was left behind if it does.
#[tokio::test]
async fn a_service_leaves_its_load_balancer_behind_when_its_user_says_so_by_name() {
    if e2e::skip() {
        return;
    }
    let (_guard, bed) = alone().await;
    let case = bed.case("abandon").await.unwrap();
    created(&case, "web").await;
    let web = case.named("web");
    let name = web.load_balancer().await.unwrap().unwrap().name_any();
    let mark = bed.mark();
    // Of a Service that lives it means nothing.
    web.annotate(cloudprovider::ABANDON, Some(&name)).await.unwrap();
    bed.harvester.api_server().kill();
    web.annotate(cloudprovider::ABANDON, Some("another")).await.unwrap();
    web.delete().await.unwrap();
    tokio::time::sleep(Duration::from_secs(5)).await;
    let held = web.get().await.unwrap();
    assert!(held.metadata.deletion_timestamp.is_some() && !held.finalizers().is_empty(), "only the exact name counts");

    web.annotate(cloudprovider::ABANDON, Some(&name)).await.unwrap();
    web.wait_until_gone().await.unwrap();
    let told = web.wait_for_event("AbandonedLoadBalancer", &name).await.unwrap();
    assert_eq!(told.kind, "Warning");
    let maps: Api<ConfigMap> = Api::namespaced(bed.client().await.unwrap(), "kube-system");
    let noted = maps.get("harvester-cloud-provider").await.unwrap().data.unwrap_or_default();
    let noted = noted.get("possible-orphans").cloned().unwrap_or_default();
    assert_eq!(noted.matches(&format!("{VM_NAMESPACE}/{name} of service {web}")).count(), 1, "{noted}");

    // The host is back after all: nobody deletes what was left to it, and a Service of the same name has one of its
    // own.
    bed.harvester.api_server().start().await.unwrap();
    created(&case, "other").await;
    let left = bed.harvester_client().await.unwrap();
    let left: Api<LoadBalancer> = Api::namespaced(left, VM_NAMESPACE);
    assert!(left.get(&name).await.is_ok(), "left behind");
    assert_eq!(deletions(&bed, mark), Vec::<String>::new());
    let again = case.create(service("web").tcp(80)).await.unwrap();
    again.published().await.unwrap();
    left.delete(&name, &DeleteParams::default()).await.unwrap();
    again
        .wait_for_load_balancer("one of its own", |lb| if lb.name_any() == name { Err(name.clone()) } else { Ok(()) })
        .await
        .unwrap();
}

#[tokio::test]
async fn h2_a_server_that_knows_nothing_in_the_place_of_the_api_server_proves_nothing() {
    if e2e::skip() {
        return;
    }
    let (_guard, bed) = alone().await;
    let case = bed.case("h2").await.unwrap();
    let address = created(&case, "web").await;
    let lb = uid_of_load_balancer(&case.named("web")).await;
    bed.machine_and_node("h2-sick", "h2-sick", "192.168.100.81").await.unwrap();
    let authority = Authority::new().unwrap();
    bed.write_cloud_config(&bed.cloud_config_trusting(&authority).unwrap()).unwrap();
    bed.wait_for_event("kube-system", "Lease", e2e::host::CCM_LEASE, "CloudConfigReloaded", "in use").await.unwrap();
    let mark = bed.mark();
    bed.set_ready("h2-sick", false).await.unwrap();
    bed.harvester.api_server().kill();
    let impostor = bed.impostor(&authority).unwrap();
    case.named("web").annotate("touched", Some("meanwhile")).await.unwrap();
    let doomed = case.create(service("doomed").tcp(80)).await.unwrap();
    // Of what it says nothing follows; that it was asked at all has to be seen. A server that knows no machine of this
    // cluster is asked for its machines again and again, and for nothing else.
    impostor.wait_until_asked(&["GET", "/virtualmachines"]).await.unwrap();
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert!(bed.node("h2-sick").await.unwrap().is_some());
    assert_eq!(case.named("web").published().await.unwrap(), address);
    drop(impostor);
    bed.harvester.api_server().start().await.unwrap();
    doomed.published().await.unwrap();
    assert_eq!(uid_of_load_balancer(&case.named("web")).await, lb);
    assert_eq!(deletions(&bed, mark), Vec::<String>::new());
    bed.set_ready("h2-sick", true).await.unwrap();
}

#[tokio::test]
async fn h3_h15_refusals_of_the_webhooks_are_waited_out_without_deleting_and_told_once() {
    if e2e::skip() {
        return;
    }
    let (_guard, bed) = alone().await;
    let case = bed.case("h15").await.unwrap();
    let address = created(&case, "stays").await;
    let lb = uid_of_load_balancer(&case.named("stays")).await;
    let mark = bed.mark();
    let refusal = Faults { refuse_creates: Some("the host is being upgraded".into()), ..Faults::default() };
    let outage = Faults { webhook_outage: true, ..Faults::default() };
    // Conflicts are settled by trying again, and that an address takes its time is nobody's mistake.
    let slow = Faults { conflicts: 5, allocation_delay_ms: 12_000, ..Faults::default() };
    for (name, faults, told) in [
        ("refused", refusal, Some("the host is being upgraded")),
        ("outage", outage, Some("webhook")),
        ("slow", slow, None),
    ] {
        bed.set_faults(&faults).unwrap();
        let new = case.create(service(name).tcp(80)).await.unwrap();
        case.named("stays").annotate("touched", Some(name)).await.unwrap();
        if let Some(part) = told {
            new.wait_for_event("SyncLoadBalancerFailed", part).await.unwrap();
        }
        // It is tried again and again.
        tokio::time::sleep(Duration::from_secs(8)).await;
        bed.set_faults(&Faults::default()).unwrap();
        new.published().await.unwrap();
        let mut warnings = new.events().await.unwrap();
        warnings.retain(|event| event.kind == "Warning" && !is_bad_luck(event));
        warnings.retain(|event| told.is_none_or(|part| event.message.contains(part)));
        assert_eq!(warnings.len(), usize::from(told.is_some()), "{name}: {warnings:#?}");
    }
    assert_eq!(case.named("stays").published().await.unwrap(), address);
    assert_eq!(uid_of_load_balancer(&case.named("stays")).await, lb);
    assert_eq!(deletions(&bed, mark), Vec::<String>::new());
}

/// What is wrong with a Service outlives the process: saying "all is well" until it is found out again would be two
/// writes each.
#[tokio::test]
async fn a_restart_writes_nothing_over_a_service_that_nobody_serves() {
    if e2e::skip() {
        return;
    }
    let (_guard, bed) = alone().await;
    let case = bed.case("unserved").await.unwrap();
    let web = case.create(service("web").tcp(80)).await.unwrap();
    web.published().await.unwrap();
    let condition = json!({"type": "LoadBalancerReady", "status": "False", "reason": "NotServed",
        "message": "as a former process said", "lastTransitionTime": "2026-01-01T00:00:00Z"});
    bed.ccm().stop().unwrap();
    web.patch_status(json!({"status": {"conditions": [condition]}})).await.unwrap();
    bed.ccm().start().unwrap();
    let told = |service: &Service| {
        let conditions = service.status.clone().unwrap_or_default().conditions.unwrap_or_default();
        conditions.into_iter().next().map(|condition| (condition.status, condition.reason, condition.message))
    };
    // The first pass brings the message up to date, and the second process finds nothing to do.
    web.wait_for("the message of this version", |service| match told(service) {
        Some((status, reason, message)) if (status.as_str(), reason.as_str()) == ("False", "NotServed") => {
            if message.contains("nobody serves it") { Ok(()) } else { Err(message) }
        }
        other => panic!("the condition flips: {other:?}"),
    })
    .await
    .unwrap();
    let before = web.get().await.unwrap();
    bed.ccm().restart().unwrap();
    bed.wait_until_ccm_is_ready().await.unwrap();
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(web.get().await.unwrap().resource_version(), before.resource_version(), "not one write");
}

#[tokio::test]
async fn h4_h12_a_restart_or_a_pause_in_the_middle_of_an_outage_writes_nothing_over_healthy_services() {
    if e2e::skip() {
        return;
    }
    let (_guard, bed) = alone().await;
    let case = bed.case("h4").await.unwrap();
    for n in 0..10 {
        created(&case, &format!("web{n}")).await;
    }
    tokio::time::sleep(Duration::from_secs(3)).await;
    let mark = bed.mark();
    bed.harvester.api_server().kill();
    bed.ccm().restart().unwrap();
    tokio::time::sleep(Duration::from_secs(5)).await;
    bed.harvester.api_server().start().await.unwrap();
    bed.wait_until_ccm_is_ready().await.unwrap();
    tokio::time::sleep(Duration::from_secs(3)).await;
    let costs = writes_of(&bed, &case, mark);
    assert_eq!(costs.total(), 0, "{costs}");

    // The virtual machine of the leader is moved: it stands still for ten seconds and does not know it.
    let mark = bed.mark();
    bed.ccm().pause().unwrap();
    tokio::time::sleep(Duration::from_secs(10)).await;
    let resumed = Timestamp::now();
    bed.ccm().resume().unwrap();
    // Either it still leads, or it ends and the kubelet starts it again.
    wait_for("the Lease to be renewed after the pause", e2e::PATIENCE, || async {
        if bed.ccm().check().is_err() {
            bed.ccm().start().map_err(|error| format!("{error:#}"))?;
        }
        let renewed = bed.ccm_lease_renewed().await.map_err(|error| format!("{error:#}"))?;
        if renewed.is_some_and(|renewed| renewed > resumed) { Ok(()) } else { Err(format!("{renewed:?}")) }
    })
    .await
    .unwrap();
    bed.wait_until_ccm_is_ready().await.unwrap();
    tokio::time::sleep(Duration::from_secs(3)).await;
    created(&case, "after").await;
    let mut costs = writes_of(&bed, &case, mark);
    costs.ccm_guest.retain(|request| request.name.as_deref() != Some("after"));
    costs.ccm_harvester.retain(|request| !request.uri.contains("after"));
    assert_eq!(costs.total(), 0, "{costs}");
}

/// Waits until the replica on the host of this name leads.
async fn wait_for_leader(bed: &Bed, host: &str) -> Duration {
    let since = Instant::now();
    wait_for(&format!("{host} to lead"), e2e::PATIENCE, || async {
        let (holder, _) = bed.ccm_lease().await.map_err(|error| format!("{error:#}"))?;
        if holder.starts_with(host) { Ok(()) } else { Err(holder) }
    })
    .await
    .unwrap();
    since.elapsed()
}

/// The Lease is handed over at a SIGTERM, and taken when it has run out: after a crash, and when the leader stands
/// still for longer.
#[tokio::test]
async fn h12_a_standby_takes_over_from_a_leader_that_ends_crashes_or_stands_still() {
    if e2e::skip() {
        return;
    }
    let (_guard, bed) = alone().await;
    let case = bed.case("h12").await.unwrap();
    let address = created(&case, "stays").await;
    let lb = uid_of_load_balancer(&case.named("stays")).await;
    bed.ccm().stop().unwrap();
    let host = bed.lan.add_host("standby", 62).unwrap();
    let _cable = bed.control_plane.join(&host).unwrap();
    let programs = [(); 2].map(|()| bed.ccm().program().twin());
    let (first, second) = (programs[0].on(bed.lan.host(1)), programs[1].on(&host));
    for replica in [first, second] {
        for arg in ["lease-duration=6s", "renew-deadline=4s", "retry-period=1s"] {
            replica.set_arg(&format!("--leader-elect-{arg}"));
        }
    }
    first.start().unwrap();
    wait_for_leader(&bed, "node1").await;
    second.start().unwrap();
    tokio::time::sleep(Duration::from_secs(3)).await;
    let mark = bed.mark();

    assert_eq!(first.stop().unwrap().code(), Some(0), "SIGTERM is a clean end");
    let took = wait_for_leader(&bed, "standby").await;
    assert!(took < Duration::from_secs(3), "given back, the Lease is free at once, not after {took:?}");
    created(&case, "after-sigterm").await;

    first.start().unwrap();
    tokio::time::sleep(Duration::from_secs(3)).await;
    second.kill();
    let took = wait_for_leader(&bed, "node1").await;
    assert!(took < Duration::from_secs(15), "the Lease lasts for 6 s, and it took {took:?}");
    created(&case, "after-crash").await;

    second.start().unwrap();
    tokio::time::sleep(Duration::from_secs(3)).await;
    first.pause().unwrap();
    wait_for_leader(&bed, "standby").await;
    created(&case, "after-pause").await;
    // Who stood still does not know it, and may not write as if nothing had happened.
    first.resume().unwrap();
    let status = first.wait(e2e::PATIENCE).unwrap().expect("a leader that was replaced ends");
    assert_ne!(status.code(), Some(0), "so that the kubelet tells of it");
    wait_for_leader(&bed, "standby").await;

    assert_eq!(case.named("stays").published().await.unwrap(), address);
    assert_eq!(uid_of_load_balancer(&case.named("stays")).await, lb);
    assert_eq!(deletions(&bed, mark), Vec::<String>::new());
    let mut costs = writes_of(&bed, &case, mark);
    costs.ccm_guest.retain(|request| request.name.as_deref() == Some("stays"));
    costs.ccm_harvester.retain(|request| request.uri.contains("stays"));
    assert_eq!(costs.total(), 0, "{costs}");
    second.stop().unwrap();
}

#[tokio::test]
async fn h5_h6_h7_h10_a_machine_that_is_moved_and_restarted_keeps_its_node_until_it_speaks_again() {
    if e2e::skip() {
        return;
    }
    let (_guard, bed) = alone().await;
    bed.machine_and_node("h7-vm", "h7-node", "192.168.100.82").await.unwrap();
    let machines = bed.machines().await.unwrap();
    let maps: Api<ConfigMap> = Api::namespaced(bed.client().await.unwrap(), "kube-system");
    let mapping =
        async || maps.get("harvester-nad-mapping").await.unwrap().data.unwrap()["interface-nad-mapping"].clone();
    let known = wait_for("the network mapping", e2e::PATIENCE, || async {
        let map = maps.get_opt("harvester-nad-mapping").await.map_err(|error| error.to_string())?;
        map.and_then(|map| map.data?.remove("interface-nad-mapping"))
            .filter(|text| !text.is_empty())
            .ok_or("none yet".to_owned())
    })
    .await
    .unwrap();
    let mark = bed.mark();
    let stays = async |why: &str| {
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(3) {
            let node = bed.node("h7-node").await.unwrap().expect("the Node stays");
            assert!(
                addresses(&node).contains(&"InternalIP=192.168.100.82".to_owned()),
                "{why}: {:?}",
                addresses(&node)
            );
            assert!(is_initialized(&node), "{why}");
            assert_eq!(mapping().await, known, "{why}");
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    };
    machines.start_migration(VM_NAMESPACE, "h7-vm", "host-2").await.unwrap();
    machines.agent(VM_NAMESPACE, "h7-vm", false).await.unwrap();
    stays("while it is moved, its agent silent").await;
    let moved = MigrationOutcome::Moved { region: Some(e2e::bed::REGION), zone: Some("rack-2") };
    machines.finish_migration(VM_NAMESPACE, "h7-vm", moved).await.unwrap();
    stays("moved, not speaking yet").await;
    machines.power(VM_NAMESPACE, "h7-vm", false).await.unwrap();
    stays("its instance deleted").await;
    assert_eq!(deletions(&bed, mark), Vec::<String>::new(), "h5");

    machines.power(VM_NAMESPACE, "h7-vm", true).await.unwrap();
    machines.addresses(VM_NAMESPACE, "h7-vm", "nic-0", &["192.168.100.83".to_owned()]).await.unwrap();
    machines.agent(VM_NAMESPACE, "h7-vm", true).await.unwrap();
    // A second on an idle machine, and not the next of the looks every five minutes.
    wait_for_internal_ip(&bed, "h7-node", "192.168.100.83").await;
    bed.wait_for_node("h7-node", "the new zone", |node: &Node| {
        let zone = node.labels().get("topology.kubernetes.io/zone").cloned().unwrap_or_default();
        let host = node.labels().get("cloudprovider.harvesterhci.io/host").cloned().unwrap_or_default();
        if (zone.as_str(), host.as_str()) == ("rack-2", "host-2") { Ok(()) } else { Err(format!("{zone} {host}")) }
    })
    .await
    .unwrap();
    let of_node = |request: &testbed::Request| request.verb == "patch" && request.uri.contains("/nodes/h7-node");
    let guest = bed.control_plane.audit().since(mark.guest).unwrap();
    // A write that was refused, for a conflict, has changed nothing and is sent again.
    let ours = |request: &testbed::Request| request.user.ends_with(":harvester-cloud-provider") && request.code < 400;
    let labels = guest.iter().filter(|request| of_node(request) && ours(request)).count();
    assert!(labels <= 2, "h10: one write of addresses, one of labels, not {labels}");
}

#[tokio::test]
async fn h8_h9_a_replica_that_comes_up_while_agents_are_silent_knows_its_nodes_and_lifts_their_taints() {
    if e2e::skip() {
        return;
    }
    let (_guard, bed) = alone().await;
    bed.machine_and_node("h8-vm", "h8-node", "192.168.100.84").await.unwrap();
    let machines = bed.machines().await.unwrap();
    machines.power(VM_NAMESPACE, "h8-vm", false).await.unwrap();
    bed.set_ready("h8-node", false).await.unwrap();
    let taints = |node: &Node| node.spec.clone().unwrap_or_default().taints.unwrap_or_default();
    let tainted =
        |node: &Node| taints(node).iter().any(|taint| taint.key == SHUTDOWN).then_some(()).ok_or("none".to_owned());
    bed.wait_for_node("h8-node", "the shutdown taint", tainted).await.unwrap();

    bed.set_faults(&Faults { agents_silent: true, ..Faults::default() }).unwrap();
    bed.ccm().stop().unwrap();
    machines.power(VM_NAMESPACE, "h8-vm", true).await.unwrap();
    bed.set_ready("h8-node", true).await.unwrap();
    bed.ccm().start().unwrap();
    let lifted = |node: &Node| match tainted(node) {
        Ok(()) => Err("still tainted".to_owned()),
        Err(_) => Ok(()),
    };
    bed.wait_for_node("h8-node", "no shutdown taint", lifted).await.unwrap();
    // Its name says nothing about its machine; its provider ID does.
    machines.addresses(VM_NAMESPACE, "h8-vm", "nic-0", &["192.168.100.85".to_owned()]).await.unwrap();
    wait_for_internal_ip(&bed, "h8-node", "192.168.100.85").await;
}

/// Decision 15: the file is replaced under the running process, which goes on with the new token and through the second
/// endpoint.
#[tokio::test]
async fn a_revoked_token_is_told_and_a_new_one_is_used_without_a_restart() {
    if e2e::skip() {
        return;
    }
    let (_guard, bed) = alone().await;
    let case = bed.case("token").await.unwrap();
    let address = created(&case, "before").await;
    let lease = bed.ccm_lease().await.unwrap();
    let secrets: Api<Secret> = Api::namespaced(bed.harvester_client().await.unwrap(), VM_NAMESPACE);
    secrets.delete("demo-token", &DeleteParams::default()).await.unwrap();
    // The API server remembers a good token for some seconds.
    tokio::time::sleep(Duration::from_secs(11)).await;
    let pending = case.create(service("pending").tcp(80)).await.unwrap();
    let about = ("kube-system", "Lease", e2e::host::CCM_LEASE);
    let told = bed.wait_for_event(about.0, about.1, about.2, "HarvesterCredentialsRefused", "401").await.unwrap();
    assert!(told.message.contains("cloud-config/cloud-config"), "{}", told.message);
    let (ready, text) = bed.ccm_readyz().unwrap();
    assert!(ready && text.contains("[!]harvester-api degraded: refuses the credentials"), "{text}");
    pending.wait_for_event("SyncLoadBalancerFailed", "nauthorized").await.unwrap();

    let text = bed.fresh_cloud_config().unwrap();
    let mut config: serde_json::Value =
        serde_json::to_value(serde_saphyr::from_str::<serde_json::Value>(&text).unwrap()).unwrap();
    // The current context leads nowhere, another one with the same user and namespace to Harvester.
    let good = config["clusters"][0].clone();
    let dead = json!({"name": "dead", "cluster": {"server": "https://127.0.0.1:1", "insecure-skip-tls-verify": true}});
    config["clusters"] = json!([dead, good]);
    let context = |name: &str, cluster: &str| json!({"name": name, "context": {"cluster": cluster, "namespace": VM_NAMESPACE, "user": "default"}});
    config["contexts"] = json!([context("first", "dead"), context("second", "default")]);
    config["current-context"] = json!("first");
    bed.write_cloud_config(&config.to_string()).unwrap();
    pending.published().await.unwrap();
    bed.wait_for_event(about.0, about.1, about.2, "CloudConfigReloaded", "in use").await.unwrap();
    bed.wait_for_event(about.0, about.1, about.2, "HarvesterCredentialsAccepted", "accepts").await.unwrap();
    assert_eq!(case.named("before").published().await.unwrap(), address);
    assert_eq!(bed.ccm_lease().await.unwrap(), lease, "the same process leads");
}
