//! A Service of `node` mode that is watched while something happens to its owner. Each test program uses a part of it.
#![allow(dead_code)]

use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::lan_faults::answers_of;
use e2e::{Bed, Beds, Case, ServiceSpec, vip, watch};
use testbed::{AnswerReport, Answerers, Probe, ProbeReport};
use tokio::sync::MutexGuard;

pub const TERM: &str = vip::TERM;

/// The bed with all nodes alive and well, also after a test that failed.
pub async fn alone<const N: usize>(beds: &'static Beds<N>) -> (MutexGuard<'static, ()>, Arc<Bed>) {
    let (guard, bed) = beds.alone(|| vip::three_nodes().start()).await.unwrap();
    vip::all_well(&bed).await.unwrap();
    (guard, bed)
}

/// [`vip::Vip`], in a test: what does not come about is a panic.
pub struct Vip<'a>(vip::Vip<'a>);

impl<'a> Deref for Vip<'a> {
    type Target = vip::Vip<'a>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl DerefMut for Vip<'_> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.0
    }
}

impl<'a> Vip<'a> {
    pub async fn new(bed: &'a Bed, case: &'a Case<'_>, last: u8) -> Self {
        Self(vip::Vip::new(bed, case, last).await.unwrap())
    }

    /// A Service like this one.
    pub async fn of(bed: &'a Bed, case: &'a Case<'_>, last: u8, spec: ServiceSpec) -> Self {
        Self(vip::Vip::of(bed, case, last, spec).await.unwrap())
    }

    pub async fn is_announced_by(&self, n: usize) {
        self.0.is_announced_by(n).await.unwrap();
    }

    /// Waits until the record names another node than `former`; which.
    pub async fn moved_from(&self, former: usize) -> usize {
        self.0.moved_from(former).await.unwrap()
    }

    pub async fn term(&self) -> u64 {
        self.0.term().await.unwrap()
    }

    pub async fn is_gone_from(&self, n: usize) {
        self.0.is_gone_from(n).await.unwrap();
    }

    pub fn watch(&self) -> (Probe, Answerers) {
        self.0.watch().unwrap()
    }

    pub async fn is_deleted(&self) {
        self.0.is_deleted().await.unwrap();
    }
}

/// Ends the watch and says what was seen. A watch that saw nothing proves nothing.
pub fn seen(what: &str, (probe, answerers): (Probe, Answerers)) -> (ProbeReport, AnswerReport) {
    (watch::stop(what, probe).unwrap(), answers(what, &answerers))
}

fn answers(what: &str, answerers: &Answerers) -> AnswerReport {
    answers_of(what, answerers).unwrap()
}

pub fn somebody_answered(what: &str, answers: &AnswerReport) {
    assert!(answers.asked > 10 && !answers.by.is_empty(), "{what}, nobody listened: {answers}");
}

pub fn nothing_was_lost(what: &str, (probe, answerers): (Probe, Answerers)) -> Result<()> {
    let lost = watch::nothing_was_lost(what, [probe]);
    // Who answered explains a loss.
    lost.with_context(|| format!("who has: {}", answers(what, &answerers)))?;
    moved_quickly(what, &answerers)
}

pub fn only_what_was_under_way_was_lost(what: &str, moves: u64, (probe, answerers): (Probe, Answerers)) -> Result<()> {
    watch::only_what_was_under_way_was_lost(what, moves, probe)?;
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
