//! What happens on a LAN that lies, or to many at once, played once on a bed: tests hold what was seen to their limits,
//! `bench-announcer` plays it again and again and writes down what was seen.

pub mod groups;
pub mod late_writes;
pub mod strangers;
pub mod upgrade;

use std::time::Duration;

use anyhow::{Result, ensure};
use testbed::{AnswerReport, Answerers, Probe, ProbeReport};

use crate::{journal, watch};

/// Longer than a membership Lease lasts.
pub const BEYOND_THE_LEASE: u64 = 22;

/// How long a client may be without answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OutageLimits {
    /// The longest outage on an idle machine. Zero: the client loses nothing.
    pub bound: Duration,
    /// What tests assert: more, because other tests run beside them. The machine's stalls are subtracted.
    pub limit: Duration,
}

impl OutageLimits {
    /// Nothing is lost, in tests neither; where the watch is long they let three packets go
    /// ([`ObservedOutage::lost_three_at_most`]).
    pub const NOTHING_IS_LOST: Self = Self { bound: Duration::ZERO, limit: Duration::ZERO };

    const fn within(bound_ms: u64, limit: Duration) -> Self {
        Self { bound: Duration::from_millis(bound_ms), limit }
    }
}

/// Who answered for the address. A watch that saw nobody proves nothing.
pub fn answers_of(what: &str, answerers: &Answerers) -> Result<AnswerReport> {
    let answers = answerers.report();
    eprintln!("{what}: who has: {answers}");
    journal::answered(what, &answers);
    ensure!(answers.asked > 10 && !answers.by.is_empty(), "{what}, nobody listened: {answers}");
    Ok(answers)
}

/// What one client saw of a fault.
#[derive(Debug)]
pub struct ObservedOutage {
    /// What it was.
    pub what: String,
    /// The limits of its outage.
    pub limits: OutageLimits,
    /// Its answers.
    pub report: ProbeReport,
    /// Who answered for the address, where that was asked.
    pub answers: Option<AnswerReport>,
}

impl ObservedOutage {
    fn end(what: &str, limits: OutageLimits, probe: Probe) -> Result<Self> {
        let report = watch::end(what, probe, Some(limits.limit))?;
        Ok(Self { what: what.into(), limits, report, answers: None })
    }

    fn end_both(what: &str, limits: OutageLimits, (probe, answerers): (Probe, Answerers)) -> Result<Self> {
        let seen = Self::end(what, limits, probe)?;
        Ok(Self { answers: Some(answers_of(what, &answerers)?), ..seen })
    }

    /// Ends a watch during which nothing may be noticed.
    pub fn nothing(what: &str, watch: (Probe, Answerers)) -> Result<()> {
        Self::end_both(what, OutageLimits::NOTHING_IS_LOST, watch)?.went_unnoticed()
    }

    /// Checks that the outage was within the limit of tests.
    pub fn holds(&self) -> Result<()> {
        let Self { what, limits: OutageLimits { limit, .. }, report, .. } = self;
        if limit.is_zero() {
            ensure!(report.lost == 0, "{what}: {report}");
        } else {
            ensure!(report.outage < *limit, "{what}, at most {limit:?}: {report}");
        }
        self.no_two_answered_for_long()
    }

    /// Nothing was lost. Of many thousand connections on a busy machine one packet may get lost, which is no outage.
    pub fn lost_three_at_most(&self) -> Result<()> {
        let Self { what, report, .. } = self;
        ensure!(report.lost <= 3 && report.outage < watch::ORDERLY, "{what}: {report}");
        self.no_two_answered_for_long()
    }

    fn no_two_answered_for_long(&self) -> Result<()> {
        let Self { what, answers, .. } = self;
        let overlap = answers.as_ref().map_or(Duration::ZERO, |answers| answers.overlap);
        ensure!(overlap < watch::OVERLAP, "{what}: {answers:?}");
        Ok(())
    }

    /// One node answered all the time, and the client had its answers.
    pub fn went_unnoticed(&self) -> Result<()> {
        let Self { what, answers, .. } = self;
        self.lost_three_at_most()?;
        let one = |answers: &AnswerReport| answers.double.is_zero() && answers.by.len() == 1;
        ensure!(answers.as_ref().is_none_or(one), "{what}: {answers:?}");
        Ok(())
    }
}
