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
    ensure!(report.lost <= 3 && report.outage() < Duration::from_millis(500), "{what}: {report}");
    let refused = report.last_failure.as_ref().is_none_or(|failure| failure.contains("reset"));
    ensure!(refused, "{what}, something else than a reset: {report}");
    Ok(())
}

/// Ends the watch: there were always answers again before `bound`.
pub fn at_most(bound: Duration, what: &str, probes: impl IntoIterator<Item = Probe>) -> Result<()> {
    for probe in probes {
        let report = stop(what, probe)?;
        ensure!(report.outage() < bound, "{what}, at most {bound:?}: {report}");
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

/// Time for what should not happen.
pub async fn let_it_happen(seconds: u64) {
    tokio::time::sleep(Duration::from_secs(seconds)).await;
}
