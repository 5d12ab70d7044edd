//! Processes of ours that end, stand still or take over.

use std::time::{Duration, Instant};

use e2e::{Bed, wait_for};
use k8s_openapi::jiff::Timestamp;

use super::{PROCESSES, alone, deletions, uid_of_load_balancer, writes_of};

/// Events are called after what they are about.
fn about(request: &testbed::Request, object: &str) -> bool {
    request.name.as_ref().is_none_or(|name| name.starts_with(object))
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
    let mark = bed.mark();
    bed.harvester.api_server().kill();
    bed.ccm().restart().unwrap();
    tokio::time::sleep(Duration::from_secs(5)).await;
    bed.harvester.api_server().start().await.unwrap();
    bed.wait_until_ccm_is_ready().await.unwrap();
    tokio::time::sleep(Duration::from_secs(3)).await;
    let costs = writes_of(&bed, &case, mark);
    assert_eq!(costs.total(), 0, "{costs}");
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
    tokio::time::sleep(Duration::from_secs(3)).await;
    let mark = bed.mark();

    assert_eq!(first.stop().unwrap().code(), Some(0), "SIGTERM is a clean end");
    let took = wait_for_leader(&bed, "standby").await;
    assert!(took < Duration::from_secs(3), "given back, the Lease is free at once, not after {took:?}");
    case.created("after-sigterm").await.unwrap();

    first.start().unwrap();
    tokio::time::sleep(Duration::from_secs(3)).await;
    second.kill();
    let took = wait_for_leader(&bed, "node1").await;
    assert!(took < Duration::from_secs(15), "the Lease lasts for 6 s, and it took {took:?}");
    case.created("after-crash").await.unwrap();

    second.start().unwrap();
    tokio::time::sleep(Duration::from_secs(3)).await;
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
