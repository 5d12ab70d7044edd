//! The tables that a person reads, and `report.json`.

use std::path::Path;

use anyhow::{Context, Result};
use serde::Serialize;

use crate::creation::Creation;
use crate::failover::Failover;
use crate::figures::{Quantiles, megabytes};
use crate::parts::PartResult;
use crate::requests::Counts;
use crate::restarts::{AnnouncerRestart, AtRest, CcmRestart, Handover};
use crate::steady::Steady;

/// Load of the machine, averaged over a minute.
pub fn load() -> f64 {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().and_then(|first| first.parse().ok()).unwrap_or_default()
}

/// Lines of a table, indented.
#[derive(Default)]
struct Table(Vec<String>);

impl Table {
    fn row(&mut self, row: impl AsRef<str>) -> &mut Self {
        self.0.push(format!("    {}", row.as_ref()));
        self
    }

    fn heading(&mut self, first: &str) -> &mut Self {
        self.row(format!("{first:<34} {:>9} {:>9} {:>9}   {:>5}", "median ms", "p99 ms", "max ms", "n"))
    }

    fn quantiles(&mut self, name: &str, quantiles: Option<&Quantiles>) -> &mut Self {
        match quantiles {
            Some(found) => self.row(format!(
                "{name:<34} {:>9.0} {:>9.0} {:>9.0}   {:>5}",
                found.median_ms, found.p99_ms, found.max_ms, found.samples
            )),
            None => self.row(format!("{name:<34} {:>9} {:>9} {:>9}   {:>5}", "-", "-", "-", 0)),
        }
    }

    fn requests<'a>(&mut self, requests: impl IntoIterator<Item = (&'a &'static str, &'a Counts)>) -> &mut Self {
        for (name, Counts { reads, writes, events, leases, .. }) in requests {
            self.row(format!("{name}: {reads} reads, {writes} writes, {events} Events, {leases} of Leases"));
        }
        self
    }

    fn text(&self) -> String {
        self.0.join("\n") + "\n"
    }
}

/// See [`AtRest`].
pub fn rest(rest: &AtRest) -> String {
    let mut table = Table::default();
    table.row(format!("size of the program: {:.1} MB", megabytes(rest.binary_bytes)));
    table.heading("from start to ready");
    table.quantiles("cloud controller manager", rest.ccm_ready.as_ref());
    table.quantiles("announcer", rest.announcer_ready.as_ref());
    for (name, mb) in &rest.rss_mb {
        table.row(format!("RSS of {name}: {mb:.1} MB"));
    }
    table.text()
}

/// See [`Creation`].
pub fn creation(creation: &Creation) -> String {
    let mut table = Table::default();
    table.heading(&format!("{} {} Services, from POST to", creation.services, creation.ipam));
    table.quantiles("address in the status", creation.address.as_ref());
    table.quantiles("first announcement on the LAN", creation.announced.as_ref());
    table.quantiles("first HTTP reply", creation.reply.as_ref());
    if creation.services > 1 {
        table.row(format!("all have their address after {:.1} s", creation.all_ms / 1000.0));
    }
    table.row(format!(
        "{:<22} {:>8} {:>8} {:>8} {:>8} {:>8}   per Service: reads, writes, Events",
        "requests", "reads", "writes", "Events", "Leases", "refused"
    ));
    for (name, asked) in &creation.requests {
        let Counts { reads, writes, events, leases, refused, .. } = &asked.total;
        table.row(format!(
            "{name:<22} {reads:>8} {writes:>8} {events:>8} {leases:>8} {refused:>8}   {:.2}, {:.2}, {:.2}",
            asked.reads_per_service, asked.writes_per_service, asked.events_per_service
        ));
    }
    let cpu: Vec<String> = creation.cpu_ms.iter().map(|(name, ms)| format!("{name} {:.2} s", seconds(*ms))).collect();
    table.row(format!("processor time meanwhile: {}", cpu.join(", "))).text()
}

/// See [`Steady`].
pub fn steady(steady: &Steady) -> String {
    let mut table = Table::default();
    table.row(format!(
        "{:<34} {:>9} {:>9} {:>7} {:>10} {:>7}",
        format!("{} Services, quiet for {:.0} s", steady.services, steady.seconds),
        "req/min",
        "of Leases",
        "writes",
        "CPU s/min",
        "RSS MB"
    ));
    for process in &steady.processes {
        table.row(format!(
            "{:<34} {:>9.1} {:>9.1} {:>7} {:>10.2} {:>7.1}",
            process.name,
            process.requests_per_minute,
            process.leases_per_minute,
            process.writes,
            process.cpu_seconds_per_minute,
            process.rss_mb
        ));
    }
    table.row(format!("ARP and NDP frames of the nodes: {:.1} per minute", steady.frames_per_minute)).text()
}

/// See [`Handover`].
pub fn handover(handover: &Handover) -> String {
    let mut table = Table::default();
    table.row(format!("the standby leads after {:.0} ms", handover.leads_ms)).requests(&handover.requests).text()
}

/// See [`CcmRestart`].
pub fn ccm_restart(restart: &CcmRestart) -> String {
    let mut table = Table::default();
    table.row(format!(
        "over {} Services: stops in {:.0} ms, ready after {:.0} ms, leads after {:.0} ms, {} writes, CPU {:.2} s, RSS \
         {:.1} MB",
        restart.services,
        restart.stop_ms,
        restart.ready_ms,
        restart.leader_ms,
        restart.writes(),
        seconds(restart.cpu_ms),
        restart.rss_mb,
    ));
    table.requests(&restart.requests).text()
}

/// See [`AnnouncerRestart`].
pub fn announcer_restart(restart: &AnnouncerRestart) -> String {
    let end = restart.stop_ms.map_or("SIGKILL".to_owned(), |stop| format!("SIGTERM: ends after {stop:.0} ms"));
    let mut table = Table::default();
    table.row(format!(
        "over {} Services: {end}; ready {:.0} ms after the new start, {} moved, CPU {:.2} s",
        restart.services,
        restart.ready_ms,
        restart.moved,
        seconds(restart.cpu_ms)
    ));
    table.row(format!(
        "{} of {} probes of {} addresses lost, longest gap {:.0} ms (prober stalled {:.0} ms)",
        restart.lost, restart.sent, restart.probed, restart.longest_gap_ms, restart.prober_stall_ms
    ));
    if let Some(failure) = &restart.last_failure {
        table.row(format!("the last one: {failure}"));
    }
    table.requests([(&"announcers", &restart.requests)]).text()
}

/// See [`Failover`].
pub fn failover(failover: &Failover) -> String {
    let mut table = Table::default();
    table.heading("power loss of the owner").quantiles("time without an answer", failover.gap.as_ref()).text()
}

fn seconds(ms: u64) -> f64 {
    std::time::Duration::from_millis(ms).as_secs_f64()
}

/// Writes `report.json`.
pub fn write(path: &Path, quick: bool, found: &[PartResult]) -> Result<()> {
    #[derive(Serialize)]
    struct Report<'a> {
        ok: bool,
        quick: bool,
        processors: usize,
        kernel: String,
        parts: &'a [PartResult],
    }
    let report = Report {
        ok: found.iter().all(|found| found.failures.is_empty()),
        quick,
        processors: std::thread::available_parallelism().map_or(0, usize::from),
        kernel: std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned(),
        parts: found,
    };
    let text = serde_json::to_string_pretty(&report).context("failed to make JSON of the report")?;
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent).with_context(|| format!("failed to create {}", parent.display()))?;
    }
    std::fs::write(path, text + "\n").with_context(|| format!("failed to write {}", path.display()))
}
