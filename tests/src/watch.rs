//! Clients that ask an address all the time while something happens, and what may not happen meanwhile: losses, long
//! gaps, writes.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use testbed::{Probe, ProbeReport, Traffic, stall};

use crate::bed::Bed;
use crate::cost::Mark;
use crate::{ENOUGH, PATIENCE, journal};

/// In `node` mode another node answers a quarter of a second after its owner was lost: clients go without answers for
/// less than this. What the machine kept waiting is subtracted ([`stall`]).
pub const FAILOVER: Duration = Duration::from_secs(1);
/// While an address moves, two nodes answer for less than this, again without the machine's stalls.
pub const OVERLAP: Duration = Duration::from_millis(100);
/// The same in the other modes, and from one mode to another, where only an announcement tells the former owner: P1 of
/// docs/announcer.md has 0.15 s, and the questions come every 20 ms.
pub const OVERLAP_OF_MODES: Duration = Duration::from_millis(200);
/// An orderly move costs a client nothing but what was under way: its answers before and after are less than this
/// apart.
pub const ORDERLY: Duration = OVERLAP;

/// An attempt may be made again if processes were kept waiting for this long in one second of it: a node that does not
/// get its turn for three periods of the detector is replaced, and rightly.
pub(crate) const EXPLAINS: Duration = Duration::from_millis(150);

/// Asks from the client host every 10 ms, and is answered.
pub fn ask(bed: &Bed, traffic: Traffic) -> Result<Probe> {
    let probe = bed.lan.client().probe(traffic)?;
    probe.wait_for_answers(20, PATIENCE)?;
    Ok(probe)
}

/// Ends the watch when it is answered, and says what was seen.
pub fn stop(what: &str, probe: Probe) -> Result<ProbeReport> {
    end(what, probe, None)
}

/// The same of a client that may have been without answers for less than `bound`; zero is nothing lost.
pub fn end(what: &str, probe: Probe, bound: Option<Duration>) -> Result<ProbeReport> {
    let report = probe.stop_after(ENOUGH, PATIENCE)?;
    eprintln!("{what}: {report}");
    journal::watched(what, &report, bound);
    Ok(report)
}

/// Ends the watch: each request had its answer.
pub fn nothing_was_lost(what: &str, probes: impl IntoIterator<Item = Probe>) -> Result<()> {
    for probe in probes {
        let report = end(what, probe, Some(Duration::ZERO))?;
        ensure!(report.lost == 0, "{what}: {report}");
    }
    Ok(())
}

/// Ends the watch: only what was under way when the address moved, so many times at most, may have lost its answer.
/// kube-proxy's translation of a connection stays behind on the node where it began, so the next node refuses it: that
/// is why this is not [`nothing_was_lost`]. More than three in all are under way only on a machine that stalls.
pub fn only_what_was_under_way_was_lost(what: &str, moves: u64, probe: Probe) -> Result<()> {
    let report = end(what, probe, Some(ORDERLY))?;
    ensure!(report.lost_moments <= moves, "{what}, more than {moves} moves: {report}");
    ensure!(report.lost - report.lost_explained <= 3 && report.outage < ORDERLY, "{what}: {report}");
    let refused = report.last_failure.as_ref().is_none_or(|failure| failure.contains("reset"));
    ensure!(refused, "{what}, something else than a reset: {report}");
    Ok(())
}

/// Ends the watch: there were always answers again before `bound`.
pub fn at_most(bound: Duration, what: &str, probes: impl IntoIterator<Item = Probe>) -> Result<()> {
    for probe in probes {
        let report = end(what, probe, Some(bound))?;
        ensure!(report.outage < bound, "{what}, at most {bound:?}: {report}");
    }
    Ok(())
}

/// The product has written nothing since `mark`. Leases are renewed all the time, and who leads is an Event about one
/// of them.
pub fn nothing_was_written(bed: &Bed, mark: Mark) -> Result<()> {
    let mut costs = bed.costs(mark)?;
    for events in [&mut costs.ccm_events, &mut costs.announcer_events] {
        events.retain(|request| request.namespace.as_deref() != Some("kube-system"));
    }
    ensure!(costs.total() == 0, "{costs}");
    Ok(())
}

/// What a machine that is busy with other things can spoil is tried up to three times, but only if the machine was
/// busy: what fails while nobody had to wait is a fault of the product at the first attempt. Each attempt is written
/// down ([`journal`]), and leaves nothing behind, also one that fails.
pub async fn one_of_three<T>(what: &str, attempt: impl AsyncFnMut() -> Result<T>) -> Result<T> {
    stall::begin();
    explained(what, attempt, worst_second_since, |number, error, stalled| {
        journal::attempt(what, number, error, stalled);
    })
    .await
}

/// For how long processes were kept waiting in the worst second since then.
pub(crate) fn worst_second_since(begun: Instant) -> Duration {
    stall::since(begun).worst(begun, Instant::now(), Duration::from_secs(1))
}

async fn explained<T>(
    what: &str,
    mut attempt: impl AsyncFnMut() -> Result<T>,
    stalled: impl Fn(Instant) -> Duration,
    written: impl Fn(usize, Option<&str>, Duration),
) -> Result<T> {
    let mut number = 1;
    loop {
        let begun = Instant::now();
        let outcome = attempt().await;
        let stalled = stalled(begun);
        let failure = outcome.as_ref().err().map(|error| format!("{error:#}"));
        written(number, failure.as_deref(), stalled);
        let Err(error) = outcome else { return outcome };
        let told = format!("{what}, attempt {number}, while processes waited for up to {stalled:?} in a second");
        if number == 3 || stalled < EXPLAINS {
            return Err(error.context(told));
        }
        eprintln!("{told}: {error:#}");
        number += 1;
    }
}

/// Of a test that has no [`Case`](crate::Case): if it panics, it is written down for how long the machine kept others
/// waiting meanwhile, as a case does.
#[derive(Debug)]
pub struct Excuse(Instant);

impl Excuse {
    /// From now on.
    pub fn begin() -> Self {
        stall::begin();
        Self(Instant::now())
    }
}

impl Drop for Excuse {
    fn drop(&mut self) {
        if std::thread::panicking() {
            journal::failed(worst_second_since(self.0));
        }
    }
}

/// Time for what should not happen.
pub async fn let_it_happen(seconds: u64) {
    tokio::time::sleep(Duration::from_secs(seconds)).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn luck_has_three_attempts_while_the_machine_is_busy_and_a_fault_has_one() {
        let (idle, busy) = (EXPLAINS.saturating_sub(Duration::from_millis(1)), EXPLAINS);
        for (good, stalled, wanted, made) in [
            (1, idle, Some(1), 1),
            (3, busy, Some(3), 3),
            (4, busy, None, 3),
            (2, idle, None, 1),
            (2, busy, Some(2), 2),
        ] {
            let mut attempts = 0;
            // These attempts are not written to the journal, because they are no retries of a run.
            let noted = std::cell::RefCell::new(Vec::new());
            let outcome = explained(
                "a test",
                async || {
                    attempts += 1;
                    ensure!(attempts == good, "bad luck");
                    Ok(attempts)
                },
                |_| stalled,
                |number, error, stalled| noted.borrow_mut().push((number, error.is_some(), stalled)),
            );
            assert_eq!(outcome.await.ok(), wanted, "good is {good}, stalled for {stalled:?}");
            assert_eq!(attempts, made);
            let expected: Vec<_> = (1..=made).map(|number| (number, number != good, stalled)).collect();
            assert_eq!(noted.into_inner(), expected, "each attempt is seen");
        }
    }
}
