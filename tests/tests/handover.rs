//! What clients notice when an address moves in `node` mode: a machine that only stood still, long-lived connections,
//! session affinity, a cluster next door. `make bench-announcer` measures; bounds here are generous.
#![allow(clippy::unwrap_used)] // clippy knows test functions, but not their helpers

mod vip;

use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use e2e::watch::{OVERLAP, let_it_happen};
use e2e::{Bed, Beds, Exposed, Neighbour, PATIENCE, journal, service, wait_for};
use serde_json::json;
use testbed::echo::field;
use testbed::{Connection, SimPod};
use tokio::sync::MutexGuard;
use vip::{Vip, only_what_was_under_way_was_lost, seen, somebody_answered};

static BEDS: Beds = Beds::new();

/// A pause that lasts until another node has taken over, and at least this long.
const LONG_MS: u64 = 3000;

async fn alone() -> (MutexGuard<'static, ()>, Arc<Bed>) {
    vip::alone(&BEDS).await
}

/// A machine that is migrated stands still, process, kernel and network, and goes on as if nothing had been: its kernel
/// answers for what it has lost until its announcer hears the claim (decisions.md 23). 50 ms on an idle machine.
#[tokio::test]
async fn an_owner_that_stood_still_gives_way_as_soon_as_it_goes_on() {
    if e2e::skip() {
        return;
    }
    let (_alone, bed) = alone().await;
    let case = bed.case("paused").await.unwrap();
    let mut vip = Vip::new(&bed, &case, 161).await;
    for paused_ms in [300, 1000, LONG_MS] {
        let (paused, nic) = (bed.announcer(vip.owner), bed.lan.host(vip.owner).nic("eth0"));
        let answerers = bed.lan.client().ask_who_has(vip.v4, Duration::from_millis(5)).unwrap();
        nic.isolate().unwrap();
        paused.pause().unwrap();
        let begun = Instant::now();
        let left = || Duration::from_millis(paused_ms).saturating_sub(begun.elapsed());
        tokio::time::sleep(left()).await;
        if paused_ms == LONG_MS {
            vip.web.wait_for_other_vip_host(vip.owner).await.unwrap();
        }
        nic.plug().unwrap();
        paused.resume().unwrap();
        let_it_happen(3).await;
        let answers = answerers.report();
        eprintln!("stood still for {paused_ms} ms: who has: {answers}");
        journal::answered("stood still", &answers);
        somebody_answered("stood still", &answers);
        // Two answered in one stretch right after the machine went on, and not again.
        assert!(answers.overlap < OVERLAP, "{paused_ms} ms: {answers}");
        let owner = bed.wait_for_owner(vip.address).await.unwrap();
        vip.is_announced_by(owner).await;
        // Of a shorter pause others may not have noticed anything.
        assert!(paused_ms < LONG_MS || owner != vip.owner, "{paused_ms} ms: nobody has taken it over");
        vip.owner = owner;
    }
    vip.is_deleted().await;
}

/// The node that the announcer of `vip` hands over to when it ends; it is started again.
async fn hand_over(bed: &Bed, vip: &mut Vip<'_>) {
    let former = vip.owner;
    bed.announcer(former).stop().unwrap();
    vip.owner = vip.moved_from(former).await;
    bed.announcer(former).start().unwrap();
    bed.wait_until_announcing(former).await.unwrap();
}

/// kube-proxy's translation of a connection is in the kernel of the node where it began. The next node translates the
/// client's next packet anew, under its own address, and the pod knows no such connection: it is refused at once, so
/// the client does not hang.
#[tokio::test]
async fn a_long_lived_connection_ends_at_once_when_its_address_moves_and_is_made_anew() {
    if e2e::skip() {
        return;
    }
    let (_alone, bed) = alone().await;
    let case = bed.case("long-lived").await.unwrap();
    let affine = service("affine").set("sessionAffinity", json!("ClientIP"));
    for (last, spec) in [(162, service("plain")), (163, affine)] {
        let mut vip = Vip::of(&bed, &case, last, spec).await;
        // One pod, which is there before and after: nothing but the way to it changes.
        let third = bed.pods().into_iter().find(|pod| pod.node != bed.lan.host(vip.owner).name()).unwrap();
        only(&bed, &vip.web, third).await;
        let (watch, connection) = (vip.watch(), connect(&bed, &vip));
        hand_over(&bed, &mut vip).await;
        let broken = wait_for("the old connection to end", PATIENCE, || async {
            connection.broken().ok_or_else(|| connection.to_string())
        })
        .await
        .unwrap();
        eprintln!("{}: old connection: {connection}", vip.web);
        // It would hang for minutes.
        assert!(broken.how.contains("reset"), "{connection}");
        let anew = connect(&bed, &vip);
        let pod = Some(third.node.as_str());
        assert_eq!((connection.answered_by().as_deref(), anew.answered_by().as_deref()), (pod, pod));
        only_what_was_under_way_was_lost("new connections meanwhile", 1, watch).unwrap();
        assert_eq!(anew.broken(), None, "{anew}");
        vip.is_deleted().await;
    }
}

/// Waits until kube-proxy of every node knows of this pod and of no other. Where requests of a node end up does not
/// tell: with affinity they go where the first one went, whatever else there is.
async fn only(bed: &Bed, web: &Exposed<'_>, pod: &SimPod) {
    let cluster_ip: IpAddr = web.get().await.unwrap().spec.unwrap().cluster_ip.unwrap().parse().unwrap();
    web.publish(&[]).await.unwrap();
    for host in bed.lan.hosts() {
        wait_for(&format!("{} to know of no pod", host.name()), PATIENCE, || async {
            match host.http_get((cluster_ip, 80).into(), Duration::from_secs(1)) {
                Ok(reply) => Err(reply),
                Err(error) => match error.root_cause().downcast_ref::<io::Error>() {
                    Some(cause) if cause.kind() == io::ErrorKind::ConnectionRefused => Ok(()),
                    _ => Err(format!("{error:#}")),
                },
            }
        })
        .await
        .unwrap();
    }
    web.publish(&[pod]).await.unwrap();
    web.wait_until_every_node_serves(80).await.unwrap();
}

fn connect(bed: &Bed, vip: &Vip<'_>) -> Connection {
    bed.lan.client().hold_connection((vip.address, 80).into(), Duration::from_millis(10)).unwrap()
}

/// A new process on the same node changes nothing on the wire: connections go on.
#[tokio::test]
async fn a_long_lived_connection_does_not_notice_a_new_process_on_its_node() {
    if e2e::skip() {
        return;
    }
    let (_alone, bed) = alone().await;
    let case = bed.case("same-node").await.unwrap();
    let vip = Vip::new(&bed, &case, 164).await;
    let connection = connect(&bed, &vip);
    bed.announcer(vip.owner).kill();
    bed.announcer(vip.owner).start().unwrap();
    bed.wait_until_announcing(vip.owner).await.unwrap();
    let_it_happen(6).await;
    assert_eq!(connection.broken(), None, "{connection}");
    vip.is_deleted().await;
}

/// Which pods answer this client, of twenty requests.
async fn answered_by(web: &Exposed<'_>, address: IpAddr) -> Vec<String> {
    let mut pods = Vec::new();
    for _ in 0..20 {
        let reply = web.reply(address, 80).await.unwrap();
        pods.push(field(&reply, "pod").unwrap().to_owned());
    }
    pods.sort();
    pods.dedup();
    pods
}

/// It is kube-proxy's, in each node's own kernel: a client stays with one pod as long as the address stays on one node.
#[tokio::test]
async fn session_affinity_holds_on_each_owner() {
    if e2e::skip() {
        return;
    }
    let (_alone, bed) = alone().await;
    let case = bed.case("affinity").await.unwrap();
    let mut vip = Vip::of(&bed, &case, 165, service("web").set("sessionAffinity", json!("ClientIP"))).await;
    vip.web.publish(&bed.pods()).await.unwrap();
    vip.web.wait_until_every_node_serves(80).await.unwrap();
    assert_eq!(answered_by(&vip.web, vip.address).await.len(), 1);
    hand_over(&bed, &mut vip).await;
    assert_eq!(answered_by(&vip.web, vip.address).await.len(), 1, "another pod perhaps, but one");
    let spec = vip.web.get().await.unwrap().spec.unwrap();
    assert_eq!(spec.session_affinity.as_deref(), Some("ClientIP"), "nothing of it is ours to change");
    vip.web.patch(json!({"spec": {"sessionAffinity": "None"}})).await.unwrap();
    wait_for("another pod to answer too", PATIENCE, || async {
        let pods = answered_by(&vip.web, vip.address).await;
        if pods.len() > 1 { Ok(()) } else { Err(format!("{pods:?}")) }
    })
    .await
    .unwrap();
    vip.is_deleted().await;
}

/// Two clusters, two API servers, one LAN, and one address that both were given by mistake.
#[tokio::test]
async fn of_two_clusters_with_one_address_the_first_serves_and_the_other_is_told() {
    if e2e::skip() {
        return;
    }
    let (_alone, bed) = alone().await;
    let other = Neighbour::of(&bed, "other1", 61, &[("election_mode", "node")]).await.unwrap();
    let case = bed.case("clusters").await.unwrap();
    let vip = Vip::new(&bed, &case, 166).await;
    let term = vip.term().await;

    let watch = vip.watch();
    other.expose(service("web").at(&vip.address.to_string()).tcp(80)).await.unwrap();
    let told = other.wait_for_event("web", "AddressConflict", &vip.address.to_string()).await.unwrap();
    assert_eq!(told.kind, "Warning");
    assert!(told.message.contains(&bed.lan.host(vip.owner).mac()), "{}", told.message);
    // Longer than the loser waits before it tries again.
    let_it_happen(15).await;
    bed.wait_for_mac(vip.address, &bed.lan.host(vip.owner).mac()).await.unwrap();
    assert_eq!(other.addresses("web").await.unwrap(), Vec::<IpAddr>::new());
    assert!(!other.host().has_address(vip.address).unwrap());
    assert_eq!(vip.term().await, term);
    let (report, answers) = seen("one address, two clusters", watch);
    assert_eq!((report.lost, answers.double), (0, Duration::ZERO), "{report}; {answers}");

    // The first gives it up: the other one has it, and now it is the first that is told.
    vip.web.delete().await.unwrap();
    other.wait_for_address("web", vip.address).await.unwrap();
    bed.wait_for_mac(vip.address, &other.host().mac()).await.unwrap();
    let back = case.expose(service("back").at(&vip.address.to_string()).tcp(80)).await.unwrap();
    back.wait_for_event("AddressConflict", &other.host().mac()).await.unwrap();
    let reply = back.reply(vip.address, 80).await.unwrap();
    assert_eq!(field(&reply, "pod"), Some("echo-other1"));
    back.delete().await.unwrap();
}

/// Neither has it when both begin: each hears the other's probe, gives way, and comes back at another time.
#[tokio::test]
async fn of_two_clusters_that_begin_with_one_address_together_one_gets_it() {
    if e2e::skip() {
        return;
    }
    let (_alone, bed) = alone().await;
    let other = Neighbour::of(&bed, "other2", 62, &[("election_mode", "node")]).await.unwrap();
    let case = bed.case("together").await.unwrap();
    let address = IpAddr::from(bed.lan.ipv4(167));
    let answerers = bed.lan.client().ask_who_has(bed.lan.ipv4(167), Duration::from_millis(20)).unwrap();
    let spec = || service("web").at(&address.to_string()).tcp(80);
    let (ours, theirs) = tokio::join!(case.expose(spec()), other.expose(spec()));
    let ours = ours.unwrap();
    theirs.unwrap();
    ours.reply(address, 80).await.unwrap();
    let_it_happen(15).await;
    let answers = answerers.report();
    eprintln!("who has: {answers}");
    bed.wait_for_one_mac(address).await.unwrap();
    let here = bed.owner_of(address).unwrap().is_some();
    assert_ne!(here, other.host().has_address(address).unwrap());
    if here {
        other.wait_for_event("web", "AddressConflict", &address.to_string()).await.unwrap();
    } else {
        ours.wait_for_event("AddressConflict", &address.to_string()).await.unwrap();
    }
    somebody_answered("two clusters at once", &answers);
    journal::answered("two clusters at once", &answers);
    assert!(answers.overlap < OVERLAP, "{answers}");
    ours.delete().await.unwrap();
}
