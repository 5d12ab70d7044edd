//! A Service of `node` mode that is watched while something happens to its owner. Each test program uses a part of it.
#![allow(dead_code)]

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, ensure};
use e2e::{Bed, Beds, Case, Exposed, ServiceSpec, journal, service, watch};
use testbed::{AnswerReport, Answerers, Probe, ProbeReport, Traffic};
use tokio::sync::MutexGuard;

pub const TERM: &str = "cloudprovider.harvesterhci.io/announcer-term";
/// The bed with all nodes alive and well, also after a test that failed.
pub async fn alone<const N: usize>(beds: &'static Beds<N>) -> (MutexGuard<'static, ()>, Arc<Bed>) {
    let builder = Bed::builder()
        .nodes(3)
        .without_ccm()
        .without_pool()
        .announcer_env("election_mode", "node")
        .announcer_env("vip_handover", "true");
    let (guard, bed) = beds.alone(|| builder.start()).await.unwrap();
    for n in 1..=3 {
        bed.lan.host(n).plug_in().unwrap();
        bed.announcer(n).set_env("election_mode", "node");
        if bed.announcer(n).check().is_err() {
            bed.power_on(n).unwrap();
        }
        bed.wait_until_announcing(n).await.unwrap();
    }
    (guard, bed)
}

/// A Service, served by all nodes, announced by one.
pub struct Vip<'a> {
    pub bed: &'a Bed,
    pub web: Exposed<'a>,
    pub v4: Ipv4Addr,
    pub address: IpAddr,
    pub owner: usize,
}

impl<'a> Vip<'a> {
    pub async fn new(bed: &'a Bed, case: &'a Case<'_>, last: u8) -> Self {
        Self::of(bed, case, last, service("web")).await
    }

    /// A Service like this one.
    pub async fn of(bed: &'a Bed, case: &'a Case<'_>, last: u8, spec: ServiceSpec) -> Self {
        let v4 = bed.lan.ipv4(last);
        let address = IpAddr::from(v4);
        let web = case.expose(spec.at(&address.to_string()).tcp(80)).await.unwrap();
        web.reply(address, 80).await.unwrap();
        let owner = bed.wait_for_owner(address).await.unwrap();
        let vip = Self { bed, web, v4, address, owner };
        vip.is_announced_by(owner).await;
        // Its pods must not die with the owner: who announces is what is tested.
        let others: Vec<_> = bed.pods().into_iter().filter(|pod| pod.node != bed.lan.host(owner).name()).collect();
        vip.web.publish(&others).await.unwrap();
        vip.web.wait_until_every_node_serves(80).await.unwrap();
        vip
    }

    pub async fn is_announced_by(&self, n: usize) {
        let host = self.bed.lan.host(n);
        self.web.wait_for_vip_host(host.name()).await.unwrap();
        self.web.wait_for_addresses(&[self.address]).await.unwrap();
        self.bed.wait_for_mac(self.address, &host.mac()).await.unwrap();
        self.web.reply(self.address, 80).await.unwrap();
    }

    /// Waits until the record names another node than `former`; which.
    pub async fn moved_from(&self, former: usize) -> usize {
        let n = self.web.wait_for_other_vip_host(former).await.unwrap();
        self.is_announced_by(n).await;
        n
    }

    pub async fn term(&self) -> u64 {
        self.web.annotation(TERM).await.unwrap().parse().unwrap()
    }

    pub async fn is_gone_from(&self, n: usize) {
        self.bed.wait_until_without(n, self.address).await.unwrap();
    }

    pub fn watch(&self) -> (Probe, Answerers) {
        let probe = watch::ask(self.bed, Traffic::http((self.address, 80).into())).unwrap();
        (probe, self.bed.lan.client().ask_who_has(self.v4, Duration::from_millis(20)).unwrap())
    }

    pub async fn is_deleted(&self) {
        self.web.delete_with(self.address).await.unwrap();
    }
}

/// Ends the watch and says what was seen. A watch that saw nothing proves nothing.
pub fn seen(what: &str, (probe, answerers): (Probe, Answerers)) -> (ProbeReport, AnswerReport) {
    (watch::stop(what, probe).unwrap(), answers(what, &answerers))
}

fn answers(what: &str, answerers: &Answerers) -> AnswerReport {
    let answers = answerers.report();
    eprintln!("{what}: who has: {answers}");
    journal::answered(what, &answers);
    somebody_answered(what, &answers);
    answers
}

pub fn somebody_answered(what: &str, answers: &AnswerReport) {
    assert!(answers.asked > 10 && !answers.by.is_empty(), "{what}, nobody listened: {answers}");
}

pub fn nothing_was_lost(what: &str, (probe, answerers): (Probe, Answerers)) -> Result<()> {
    watch::nothing_was_lost(what, [probe])?;
    moved_quickly(what, &answerers)
}

pub fn only_what_was_under_way_was_lost(what: &str, (probe, answerers): (Probe, Answerers)) -> Result<()> {
    watch::only_what_was_under_way_was_lost(what, probe)?;
    moved_quickly(what, &answerers)
}

pub fn at_most(bound: Duration, what: &str, (probe, answerers): (Probe, Answerers)) -> Result<()> {
    watch::at_most(bound, what, [probe])?;
    moved_quickly(what, &answerers)
}

/// Two nodes may have answered for a moment, but not for longer.
fn moved_quickly(what: &str, answerers: &Answerers) -> Result<()> {
    let answers = answers(what, answerers);
    ensure!(answers.overlap < watch::OVERLAP, "{what}: {answers}");
    Ok(())
}
