//! Processes of ours that end, stand still or take over.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use e2e::{Bed, Case, Handle, VM_NAMESPACE, wait_for};
use harvester_api::keys::cloudprovider;
use harvester_api::load_balancer::LoadBalancer;
use k8s_openapi::jiff::Timestamp;
use kube::api::ListParams;
use kube::{Api, ResourceExt};

use super::{PROCESSES, alone, deletions, uid_of_load_balancer, writes_of};

/// Events are called after what they are about.
fn about(request: &testbed::Request, object: &str) -> bool {
    request.name.as_ref().is_none_or(|name| name.starts_with(object))
}

/// Name and UID of the load balancer of each Service of this test.
async fn load_balancers(bed: &Bed, case: &Case<'_>) -> BTreeSet<(String, Option<String>)> {
    let all: Api<LoadBalancer> = Api::namespaced(bed.harvester_client().await.unwrap(), VM_NAMESPACE);
    let ours = format!("{}={}", cloudprovider::SERVICE_NAMESPACE, case.namespace());
    let found = all.list(&ListParams::default().labels(&ours)).await.unwrap();
    found.iter().map(|lb| (lb.name_any(), lb.uid())).collect()
}

#[tokio::test]
async fn h4_h12_a_restart_or_a_pause_in_the_middle_of_an_outage_writes_nothing_over_healthy_services() {
    if e2e::skip() {
        return;
    }
    let (_guard, bed) = alone(&PROCESSES).await;
    let case = bed.case("h4").await.unwrap();
    for n in 0..10 {
        case.created(&format!("web{n}")).await.unwrap();
    }
    tokio::time::sleep(Duration::from_secs(3)).await;
    let (mark, objects) = (bed.mark(), load_balancers(&bed, &case).await);
    assert_eq!(objects.len(), 10, "{objects:?}");
    bed.harvester.api_server().kill();
    bed.ccm().restart().unwrap();
    tokio::time::sleep(Duration::from_secs(5)).await;
    bed.harvester.api_server().start().await.unwrap();
    bed.wait_until_ccm_is_ready().await.unwrap();
    tokio::time::sleep(Duration::from_secs(3)).await;
    let costs = writes_of(&bed, &case, mark);
    assert_eq!(costs.total(), 0, "{costs}");
    // The address of a request that creates has no name, so those are not among the writes of this test. Nothing is new
    // on this bed yet.
    let all = bed.costs(mark).unwrap().ccm_harvester;
    let created: Vec<_> =
        all.iter().filter(|request| request.verb == "create" && request.resource == "loadbalancers").collect();
    assert!(created.is_empty(), "{created:#?}");
    assert_eq!(load_balancers(&bed, &case).await, objects);
    // The new process does its work: silence alone would prove nothing.
    case.created("meanwhile").await.unwrap();
    tokio::time::sleep(Duration::from_secs(3)).await;

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
    case.created("after").await.unwrap();
    let mut costs = writes_of(&bed, &case, mark);
    costs.ccm_guest.retain(|request| request.name.as_deref() != Some("after"));
    costs.ccm_harvester.retain(|request| !request.uri.contains("after"));
    costs.ccm_events.retain(|request| !about(request, "after"));
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

/// Waits until a replica is up, whether it leads or not.
async fn wait_until_ready(replica: Handle<'_>) {
    const READY: [&str; 5] = ["curl", "-fks", "-m", "10", "https://127.0.0.1:10258/readyz"];
    wait_for(&format!("the replica on {} to be ready", replica.host().name()), e2e::PATIENCE, || async {
        replica.check().map_err(|error| format!("{error:#}"))?;
        replica.host().exec(READY).map(drop).map_err(|error| format!("{error:#}"))
    })
    .await
    .unwrap();
}

/// The Lease is handed over at a SIGTERM, and taken when it has run out: after a crash, and when the leader stands
/// still for longer.
#[tokio::test]
async fn h12_a_standby_takes_over_from_a_leader_that_ends_crashes_or_stands_still() {
    if e2e::skip() {
        return;
    }
    let (_guard, bed) = alone(&PROCESSES).await;
    let case = bed.case("h12").await.unwrap();
    let address = case.created("stays").await.unwrap();
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
    wait_until_ready(second).await;
    let mark = bed.mark();

    assert_eq!(first.stop().unwrap().code(), Some(0), "SIGTERM is a clean end");
    let took = wait_for_leader(&bed, "standby").await;
    assert!(took < Duration::from_secs(3), "given back, the Lease is free at once, not after {took:?}");
    case.created("after-sigterm").await.unwrap();

    first.start().unwrap();
    wait_until_ready(first).await;
    second.kill();
    let took = wait_for_leader(&bed, "node1").await;
    assert!(took < Duration::from_secs(15), "the Lease lasts for 6 s, and it took {took:?}");
    case.created("after-crash").await.unwrap();

    second.start().unwrap();
    wait_until_ready(second).await;
    first.pause().unwrap();
    wait_for_leader(&bed, "standby").await;
    case.created("after-pause").await.unwrap();
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
    costs.ccm_events.retain(|request| about(request, "stays"));
    assert_eq!(costs.total(), 0, "{costs}");
    second.stop().unwrap();
}
