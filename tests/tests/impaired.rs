//! `node` mode when something works by half: a LAN that carries frames in one direction only or is split, an API server
//! that takes requests and does not answer, or late, several nodes at once, strangers. Three nodes. What moves moves
//! once, and what need not move stays.
#![allow(clippy::unwrap_used)] // clippy knows test functions, but not their helpers

#[path = "impaired/minority.rs"]
mod minority;
#[path = "impaired/played.rs"]
mod played;
mod vip;

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use e2e::lan_faults::groups::{self, Impairment};
use e2e::lan_faults::{BEYOND_THE_LEASE, ObservedOutage};
use e2e::watch::{FAILOVER, let_it_happen, nothing_was_written};
use e2e::{Bed, Beds, PATIENCE, wait_for};
use testbed::{Fault, Nic};
use tokio::sync::MutexGuard;
use vip::{Vip, at_most};

// These tests wait: longer than Leases last, several times.
static BEDS: Beds<4> = Beds::new();

async fn alone() -> (MutexGuard<'static, ()>, Arc<Bed>) {
    vip::alone(&BEDS).await
}

/// The owner of a new VIP gets `fault` on its way to the LAN: one move, and none when the fault is gone.
async fn is_replaced_once(what: &str, last: u8, fault: impl Fn(&Nic) -> Result<Fault>) {
    let (_alone, bed) = alone().await;
    let case = bed.case("one-way").await.unwrap();
    let vip = Vip::new(&bed, &case, last).await;
    let term = vip.term().await;
    let watch = vip.watch();
    let fault = fault(&bed.lan.host(vip.owner).nic("eth0")).unwrap();
    let second = vip.moved_from(vip.owner).await;
    vip.is_gone_from(vip.owner).await;
    // It believes to be well, and its API is: it may not come back as long as clients do not reach it.
    let_it_happen(BEYOND_THE_LEASE).await;
    vip.is_announced_by(second).await;
    drop(fault);
    let_it_happen(5).await;
    vip.is_announced_by(second).await;
    vip.is_gone_from(vip.owner).await;
    at_most(FAILOVER, what, watch).unwrap();
    assert_eq!(vip.term().await, term + 1, "{what}: one move");
    vip.is_deleted().await;
}

#[tokio::test]
async fn an_owner_that_nobody_hears_is_replaced_once() {
    if e2e::skip() {
        return;
    }
    is_replaced_once("mute owner", 181, |nic| nic.segment().mute(nic)).await;
}

/// It cannot hear that it has lost: it reads it.
#[tokio::test]
async fn an_owner_that_hears_nobody_is_replaced_once() {
    if e2e::skip() {
        return;
    }
    is_replaced_once("deaf owner", 182, |nic| nic.segment().deafen(nic)).await;
}

/// What is wrong with the nodes that do not own the VIP, one after the other: nobody notices.
async fn standbys_take_nothing_over(last: u8, faults: &[Impairment<'_>]) {
    let (_alone, bed) = alone().await;
    let case = bed.case("standby").await.unwrap();
    let what = ("deaf and mute standbys", faults);
    groups::standbys_take_nothing_over(&bed, &case, last, what).await.unwrap().went_unnoticed().unwrap();
}

fn deaf(nic: &Nic) -> Result<Fault> {
    nic.segment().deafen(nic)
}

fn mute(nic: &Nic) -> Result<Fault> {
    nic.segment().mute(nic)
}

/// To a node that hears no answers everybody is dead; it takes nothing over, because no witness answers it either. Both
/// at a time: of the owner's two successors none is well.
#[tokio::test]
async fn standbys_that_hear_nobody_take_nothing_over() {
    if e2e::skip() {
        return;
    }
    standbys_take_nothing_over(
        183,
        &[&|standbys| Ok(vec![deaf(&standbys[0])?]), &|standbys| Ok(vec![deaf(&standbys[1])?]), &|standbys| {
            standbys.iter().map(|standby| deaf(standby)).collect()
        }],
    )
    .await;
}

#[tokio::test]
async fn standbys_that_nobody_hears_take_nothing_over() {
    if e2e::skip() {
        return;
    }
    standbys_take_nothing_over(
        185,
        &[&|standbys| Ok(vec![mute(&standbys[0])?]), &|standbys| Ok(vec![mute(&standbys[1])?])],
    )
    .await;
}

/// The API server stands still until this is dropped: other tests need it, also when this one fails.
struct Frozen<'a>(&'a Bed);

impl<'a> Frozen<'a> {
    fn new(bed: &'a Bed) -> Self {
        bed.control_plane.api_server().pause().unwrap();
        Self(bed)
    }
}

impl Drop for Frozen<'_> {
    fn drop(&mut self) {
        self.0.control_plane.api_server().resume().unwrap();
    }
}

/// Connections stand, requests are taken, nobody answers; and then all that queued up is done at once, late.
#[tokio::test]
async fn an_api_server_that_stands_still_and_goes_on_moves_nothing() {
    if e2e::skip() {
        return;
    }
    let (_alone, bed) = alone().await;
    let case = bed.case("frozen").await.unwrap();
    let vip = Vip::new(&bed, &case, 184).await;
    let_it_happen(3).await;
    for (what, seconds) in [("API frozen for 12 s", 12), ("API frozen beyond the Leases", BEYOND_THE_LEASE)] {
        let (term, mark, watch) = (vip.term().await, bed.mark(), vip.watch());
        let frozen = Frozen::new(&bed);
        // On a busy machine its threads take a moment to stop.
        let silent = async || tokio::time::timeout(Duration::from_secs(1), vip.web.get()).await.is_err();
        wait_for("the API server to stand still", PATIENCE, || async {
            if silent().await { Ok(()) } else { Err("it answers".to_owned()) }
        })
        .await
        .unwrap();
        let_it_happen(seconds).await;
        assert!(silent().await, "{what}: it answers");
        assert_eq!(bed.owner_of(vip.address).unwrap(), Some(vip.owner), "{what}");
        drop(frozen);
        for n in 1..=3 {
            bed.wait_until_announcing(n).await.unwrap();
        }
        let_it_happen(20).await;
        ObservedOutage::nothing(what, watch).unwrap();
        assert_eq!((vip.term().await, bed.owner_of(vip.address).unwrap()), (term, Some(vip.owner)), "{what}");
        nothing_was_written(&bed, mark).unwrap();
    }
    vip.is_deleted().await;
    bed.restart_proxies().unwrap();
}
