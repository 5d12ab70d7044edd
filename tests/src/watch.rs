//! Clients that ask an address all the time while something happens, and what may not happen meanwhile: losses, long gaps, writes.

use std::time::Duration;

use anyhow::{Result, ensure};
use testbed::{Probe, ProbeReport, Traffic};

use crate::bed::Bed;
use crate::cost::Mark;
use crate::{ENOUGH, PATIENCE};

/// Asks from the client host every 10 ms, and is answered.
pub fn ask(bed: &Bed, traffic: Traffic) -> Result<Probe> {
    let probe = bed.lan.client().probe(traffic)?;
    probe.wait_for_answers(20, PATIENCE)?;
    Ok(probe)
}

/// Ends the watch when it is answered, and says what was seen.
pub fn stop(what: &str, probe: Probe) -> Result<ProbeReport> {
    let report = probe.stop_after(ENOUGH, PATIENCE)?;
    eprintln!("{what}: {report}");
    Ok(report)
}

/// Ends the watch: each request had its answer.
pub fn nothing_was_lost(what: &str, probes: impl IntoIterator<Item = Probe>) -> Result<()> {
    for probe in probes {
        let report = stop(what, probe)?;
        ensure!(report.lost == 0, "{what}: {report}");
    }
    Ok(())
}

/// Ends the watch: only what was under way when the address moved may have lost its answer. kube-proxy's translation of a connection stays
/// behind on the node where it began, so the next node refuses it.
pub fn only_what_was_under_way_was_lost(what: &str, probe: Probe) -> Result<()> {
    let report = stop(what, probe)?;
    ensure!(report.lost <= 3 && report.outage < Duration::from_millis(500), "{what}: {report}");
    let refused = report.last_failure.as_ref().is_none_or(|failure| failure.contains("reset"));
    ensure!(refused, "{what}, something else than a reset: {report}");
    Ok(())
}

/// Ends the watch: there were always answers again before `bound`.
pub fn at_most(bound: Duration, what: &str, probes: impl IntoIterator<Item = Probe>) -> Result<()> {
    for probe in probes {
        let report = stop(what, probe)?;
        ensure!(report.outage < bound, "{what}, at most {bound:?}: {report}");
    }
    Ok(())
}

/// The product has written nothing since `mark`. Leases are renewed all the time, and who leads is an Event about one of them.
pub fn nothing_was_written(bed: &Bed, mark: Mark) -> Result<()> {
    let mut costs = bed.costs(mark)?;
    for events in [&mut costs.ccm_events, &mut costs.announcer_events] {
        events.retain(|request| request.namespace.as_deref() != Some("kube-system"));
    }
    ensure!(costs.total() == 0, "{costs}");
    Ok(())
}

/// What a machine that is busy with other things can spoil is tried up to three times: a fault of the product spoils each. An attempt
/// leaves nothing behind, also one that fails.
pub async fn one_of_three<T>(what: &str, mut attempt: impl AsyncFnMut() -> Result<T>) -> Result<T> {
    for number in 1..3 {
        match attempt().await {
            Ok(value) => return Ok(value),
            Err(error) => eprintln!("{what}, attempt {number}: {error:#}"),
        }
    }
    attempt().await
}

/// Time for what should not happen.
pub async fn let_it_happen(seconds: u64) {
    tokio::time::sleep(Duration::from_secs(seconds)).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn luck_has_three_attempts_and_a_fault_none_too_many() {
        for (good, wanted) in [(1, Some(1)), (3, Some(3)), (4, None)] {
            let mut attempts = 0;
            let outcome = one_of_three("a test", async || {
                attempts += 1;
                ensure!(attempts == good, "bad luck");
                Ok(attempts)
            });
            assert_eq!(outcome.await.ok(), wanted);
            assert_eq!(attempts, good.min(3));
        }
    }
}
