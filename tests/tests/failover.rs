//! `node` mode when something goes wrong: power, processes, API, cables, strangers. Three nodes, one fault at a time.
//! Counts, order and bounds are asserted; `make bench-announcer` measures.
#![allow(clippy::unwrap_used)] // clippy knows test functions, but not their helpers

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, ensure};
use e2e::watch::{FAILOVER, OVERLAP_OF_MODES, let_it_happen, nothing_was_written, one_of_three};
use e2e::{Bed, Beds, EventFact, Mark, PATIENCE, service, wait_for};
use testbed::{Answerers, Probe};
use tokio::sync::MutexGuard;
use vip::{Vip, at_most, nothing_was_lost, only_what_was_under_way_was_lost, seen};

#[path = "failover/many.rs"]
mod many;
mod vip;
#[path = "failover/without_kube_proxy.rs"]
mod without_kube_proxy;

// These tests wait: for Leases, and for what should not happen.
static BEDS: Beds<4> = Beds::new();

/// The bed with all nodes alive and well, also after a test that failed.
async fn alone() -> (MutexGuard<'static, ()>, Arc<Bed>) {
    vip::alone(&BEDS).await
}

#[tokio::test]
async fn power_process_and_orderly_end_of_the_owner() {
    if e2e::skip() {
        return;
    }
    let (_alone, bed) = alone().await;
    let case = bed.case("owner").await.unwrap();
    let vip = Vip::new(&bed, &case, 151).await;
    let term = vip.term().await;

    // A process that dies and comes back is no event: the kernel answers meanwhile, the next life adopts.
    let mark = bed.mark();
    let watch = vip.watch();
    bed.announcer(vip.owner).kill();
    bed.announcer(vip.owner).start().unwrap();
    bed.wait_until_announcing(vip.owner).await.unwrap();
    let_it_happen(6).await;
    nothing_was_lost("process killed and started", watch).unwrap();
    nothing_was_written(&bed, mark).unwrap();
    assert_eq!(bed.owner_of(vip.address).unwrap(), Some(vip.owner));
    assert_eq!(vip.term().await, term);

    // Power loss, and its return without a memory: the bed's kernel goes on, so what it had has to reach its deadline
    // first.
    let watch = vip.watch();
    bed.power_off(vip.owner).unwrap();
    let second = vip.moved_from(vip.owner).await;
    let_it_happen(2).await;
    at_most(FAILOVER, "power loss", watch).unwrap();
    let newer = vip.term().await;
    assert!(newer > term, "{newer} after {term}");
    vip.is_gone_from(vip.owner).await;
    let watch = vip.watch();
    bed.power_on(vip.owner).unwrap();
    bed.wait_until_announcing(vip.owner).await.unwrap();
    let_it_happen(3).await;
    vip.is_gone_from(vip.owner).await;
    vip.is_announced_by(second).await;
    let (report, answers) = seen("the lost node returns", watch);
    assert_eq!(answers.double, Duration::ZERO, "the lost node returns: {answers}");
    assert_eq!(report.lost, 0, "the lost node returns: {report}");

    // An orderly end: the successor announces before the owner withdraws.
    let all: Vec<_> = bed.pods().into_iter().collect();
    vip.web.publish(&all).await.unwrap();
    vip.web.wait_until_every_node_serves(80).await.unwrap();
    let watch = vip.watch();
    let status = bed.announcer(second).stop().unwrap();
    assert_eq!(status.code(), Some(0), "SIGTERM is a clean end");
    let third = vip.moved_from(second).await;
    vip.is_gone_from(second).await;
    // The end itself takes less time than the watch needs to have seen enough.
    let_it_happen(2).await;
    only_what_was_under_way_was_lost("orderly end", 1, watch).unwrap();
    bed.announcer(second).start().unwrap();
    bed.wait_until_announcing(second).await.unwrap();
    vip.is_announced_by(third).await;

    // All of them end: nobody is there to take over, so everything stays for the next processes.
    let watch = vip.watch();
    for n in 1..=3 {
        bed.announcer(n).terminate().unwrap();
    }
    for n in 1..=3 {
        bed.announcer(n).wait(PATIENCE).unwrap().expect("it ends");
    }
    for n in 1..=3 {
        bed.announcer(n).start().unwrap();
    }
    for n in 1..=3 {
        bed.wait_until_announcing(n).await.unwrap();
    }
    let_it_happen(3).await;
    // The first one to end may still hand over to one that ends a moment later, and that one to the last.
    only_what_was_under_way_was_lost("all replaced at once", 2, watch).unwrap();
    vip.is_deleted().await;
}

/// The second one while the first is still down: the last node has nobody to ask about itself but the LAN.
#[tokio::test]
async fn two_power_losses_in_a_row_leave_the_address_on_the_last_node() {
    if e2e::skip() {
        return;
    }
    let (_alone, bed) = alone().await;
    let case = bed.case("twice").await.unwrap();
    let vip = Vip::new(&bed, &case, 157).await;
    let watch = vip.watch();
    bed.power_off(vip.owner).unwrap();
    let second = vip.moved_from(vip.owner).await;
    let_it_happen(2).await;
    at_most(FAILOVER, "first power loss", watch).unwrap();

    let last = (1..=3).find(|n| ![vip.owner, second].contains(n)).unwrap();
    vip.web.publish(&[bed.pod(last)]).await.unwrap();
    // What the first one's kernel still has goes at its deadline, and kube-proxy learns of the endpoint.
    vip.is_gone_from(vip.owner).await;
    let_it_happen(3).await;
    let term = vip.term().await;
    let watch = vip.watch();
    bed.power_off(second).unwrap();
    assert_eq!(vip.moved_from(second).await, last);
    let_it_happen(2).await;
    at_most(FAILOVER, "second power loss", watch).unwrap();
    let newer = vip.term().await;
    assert!(newer > term, "{newer} after {term}");

    // Both come back and take nothing away.
    vip.is_gone_from(second).await;
    let watch = vip.watch();
    for n in [vip.owner, second] {
        bed.power_on(n).unwrap();
        bed.wait_until_announcing(n).await.unwrap();
    }
    let_it_happen(3).await;
    nothing_was_lost("the lost nodes return", watch).unwrap();
    vip.is_announced_by(last).await;
    vip.is_deleted().await;
}

#[tokio::test]
async fn an_api_that_is_away_for_the_owner_moves_nothing() {
    if e2e::skip() {
        return;
    }
    let (_alone, bed) = alone().await;
    // An owner that does not get its turn for seconds is replaced whether there is an API or not.
    one_of_three("owner alone without API", async || {
        let case = bed.case("outage-of-owner").await?;
        let vip = Vip::new(&bed, &case, 152).await;
        let_it_happen(3).await;
        let still = Still::begin(&vip).await;
        let management = bed.lan.host(vip.owner).nic("mgmt0");
        management.cut()?;
        // Beyond the end of its membership Lease.
        let_it_happen(22).await;
        management.plug()?;
        bed.wait_until_announcing(vip.owner).await?;
        let_it_happen(5).await;
        let nothing_moved = still.end("owner alone without API, where the wire wins", &vip).await;
        vip.is_deleted().await;
        nothing_moved
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn an_api_that_is_away_for_all_moves_nothing() {
    if e2e::skip() {
        return;
    }
    let (_alone, bed) = alone().await;
    one_of_three("no API for anybody", async || {
        let case = bed.case("outage-for-all").await?;
        let vip = Vip::new(&bed, &case, 152).await;
        let_it_happen(3).await;
        let still = Still::begin(&vip).await;
        bed.control_plane.api_server().kill();
        let_it_happen(20).await;
        let meanwhile = bed.owner_of(vip.address);
        bed.control_plane.api_server().start().await?;
        for n in 1..=3 {
            bed.wait_until_announcing(n).await?;
        }
        let_it_happen(20).await;
        let nothing_moved = still.end("no API for anybody", &vip).await;
        vip.is_deleted().await;
        bed.restart_proxies()?;
        let meanwhile = meanwhile?;
        ensure!(meanwhile == Some(vip.owner), "during the outage node {meanwhile:?} had it, not {}", vip.owner);
        nothing_moved
    })
    .await
    .unwrap();
}

/// An address that shall stay where it is, without a lost reply and without a write.
struct Still {
    watch: (Probe, Answerers),
    term: u64,
    mark: Mark,
}

impl Still {
    async fn begin(vip: &Vip<'_>) -> Self {
        Self { term: vip.term().await, mark: vip.bed.mark(), watch: vip.watch() }
    }

    async fn end(self, what: &str, vip: &Vip<'_>) -> Result<()> {
        nothing_was_lost(what, self.watch)?;
        let (term, owner) = (vip.term().await, vip.bed.owner_of(vip.address)?);
        ensure!((term, owner) == (self.term, Some(vip.owner)), "{what}: node {owner:?} has it by term {term}");
        nothing_was_written(vip.bed, self.mark)
    }
}

#[tokio::test]
async fn an_owner_whose_cable_or_uplink_fails_is_replaced_and_does_not_take_it_back() {
    if e2e::skip() {
        return;
    }
    let (_alone, bed) = alone().await;
    let case = bed.case("cable").await.unwrap();
    let vip = Vip::new(&bed, &case, 153).await;
    let term = vip.term().await;
    let former = vip.owner;
    let nic = bed.lan.host(former).nic("eth0");

    // The kernel sees that the carrier is gone.
    let watch = vip.watch();
    nic.cut().unwrap();
    vip.moved_from(former).await;
    nic.plug().unwrap();
    let_it_happen(5).await;
    // Whoever of the other two it is by now: one that has to wait for its turn is replaced as well.
    let second = vip.moved_from(former).await;
    vip.is_gone_from(former).await;
    at_most(FAILOVER, "carrier lost", watch).unwrap();
    let moved = vip.term().await;
    assert!(moved > term, "{moved} after {term}");

    // It does not: the fault is further away, and both believe to be well.
    let others: Vec<_> = bed.pods().into_iter().filter(|pod| pod.node != bed.lan.host(second).name()).collect();
    vip.web.publish(&others).await.unwrap();
    vip.web.wait_until_every_node_serves(80).await.unwrap();
    let nic = bed.lan.host(second).nic("eth0");
    let watch = vip.watch();
    nic.isolate().unwrap();
    vip.moved_from(second).await;
    let_it_happen(3).await;
    nic.plug().unwrap();
    let_it_happen(5).await;
    vip.moved_from(second).await;
    vip.is_gone_from(second).await;
    at_most(FAILOVER, "uplink lost", watch).unwrap();
    let again = vip.term().await;
    assert!(again > moved, "{again} after {moved}");
    vip.is_deleted().await;
}

#[tokio::test]
async fn strangers_on_the_lan_change_nothing_and_are_told() {
    if e2e::skip() {
        return;
    }
    let (_alone, bed) = alone().await;
    let case = bed.case("strangers").await.unwrap();
    let vip = Vip::new(&bed, &case, 154).await;
    let term = vip.term().await;
    let stranger = bed.lan.add_host("stranger", 60).unwrap();

    // Another cluster, or a mistake: somebody uses the address and announces it.
    stranger.ip([format!("addr add {}/32 dev eth0", vip.v4)]).unwrap();
    // An owner that has just stood still asks first, and tells of no claim meanwhile.
    wait_for("the claim to be told", PATIENCE, || async {
        let claimed = stranger.exec(["arping", "-A", "-c", "2", "-I", "eth0", &vip.v4.to_string()]);
        claimed.map_err(|error| format!("{error:#}"))?;
        let events = vip.web.events().await.map_err(|error| format!("{error:#}"))?;
        let told = |event: &EventFact| event.reason == "AddressConflict" && event.message.contains(&stranger.mac());
        if events.iter().any(told) { Ok(()) } else { Err(format!("{events:#?}")) }
    })
    .await
    .unwrap();
    has_it_but_for_a_moment(&bed, &vip).await;
    stranger.ip([format!("addr del {}/32 dev eth0", vip.v4)]).unwrap();
    vip.is_announced_by(vip.owner).await;
    assert_eq!(vip.term().await, term);

    // A machine that answers every question: what is announced stays, what is new waits until the machine is gone.
    let rogue = stranger.answer_everything().unwrap();
    let new = IpAddr::from(bed.lan.ipv4(155));
    // Its kernel answers, too: a thread of this test may be later than a probe waits.
    stranger.ip([format!("addr add {new}/32 dev eth0")]).unwrap();
    let late = case.expose(service("late").at(&new.to_string()).tcp(80)).await.unwrap();
    late.wait_for_event("AddressConflict", &stranger.mac()).await.unwrap();
    let_it_happen(3).await;
    has_it_but_for_a_moment(&bed, &vip).await;
    assert_eq!(vip.term().await, term);
    assert_eq!(bed.owner_of(new).unwrap(), None);
    drop(rogue);
    stranger.ip([format!("addr del {new}/32 dev eth0")]).unwrap();
    late.wait_for_addresses(&[new]).await.unwrap();
    late.reply(new, 80).await.unwrap();
    late.delete_with(new).await.unwrap();
    vip.is_deleted().await;
}

/// What the record gives to a node it defends. After 5 s without a turn its kernel has removed the address, and it asks
/// first before it has it again: that takes a moment.
async fn has_it_but_for_a_moment(bed: &Bed, vip: &Vip<'_>) {
    wait_for("its owner to have the address", Duration::from_secs(2), || async {
        let owner = bed.owner_of(vip.address).map_err(|error| format!("{error:#}"))?;
        if owner == Some(vip.owner) { Ok(()) } else { Err(format!("{owner:?} has it")) }
    })
    .await
    .unwrap();
}

/// decisions.md 19: a holder of kube-vip's Lease, whoever it is, has everything while it lives.
#[tokio::test]
async fn announcers_of_different_modes_do_not_share_an_address() {
    if e2e::skip() {
        return;
    }
    let (_alone, bed) = alone().await;
    let case = bed.case("modes").await.unwrap();
    let vip = Vip::new(&bed, &case, 156).await;
    let odd = if vip.owner == 1 { 2 } else { 1 };
    let watch = vip.watch();
    bed.announcer(odd).stop().unwrap();
    bed.announcer(odd).set_env("election_mode", "global");
    bed.announcer(odd).start().unwrap();
    vip.is_announced_by(odd).await;
    vip.is_gone_from(vip.owner).await;
    let_it_happen(3).await;
    assert_eq!(bed.owner_of(vip.address).unwrap(), Some(odd));
    // Back in one mode, it is nobody's privilege any more.
    bed.announcer(odd).stop().unwrap();
    bed.announcer(odd).set_env("election_mode", "node");
    bed.announcer(odd).start().unwrap();
    bed.wait_until_announcing(odd).await.unwrap();
    wait_for("the address to be announced with a term", PATIENCE, || async {
        let owner = bed.owner_of(vip.address).map_err(|error| format!("{error:#}"))?;
        let term = vip.web.annotation(vip::TERM).await.map_err(|error| format!("{error:#}"))?;
        let is_term = term.parse::<u64>().is_ok();
        owner.filter(|_| is_term).ok_or_else(|| format!("{owner:?} has it, and its term is {term:?}"))
    })
    .await
    .unwrap();
    let_it_happen(20).await;
    bed.wait_for_one_mac(vip.address).await.unwrap();
    let (_, answers) = seen("modes", watch);
    assert!(answers.overlap < OVERLAP_OF_MODES, "{answers}");
    vip.is_deleted().await;
}
