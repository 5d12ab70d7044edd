//! The tables that a person reads, and `report.json`.

use std::path::Path;

use anyhow::{Context, Result};
use serde::Serialize;

use crate::creation::Creation;
use crate::failover::Failover;
use crate::figures::Quantiles;
use crate::parts::Found;
use crate::requests::Counts;
use crate::restarts::{AnnouncerRestart, AtRest, CcmRestart, End, Handover};
use crate::steady::Steady;

/// Load of the machine, averaged over a minute.
pub fn load() -> f64 {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().and_then(|first| first.parse().ok()).unwrap_or_default()
}

fn line(name: &str, quantiles: Option<&Quantiles>) -> String {
    match quantiles {
        Some(found) => format!(
            "    {name:<34} {:>9.0} {:>9.0} {:>9.0}   {:>5}\n",
            found.median_ms, found.p99_ms, found.max_ms, found.samples
        ),
        None => format!("    {name:<34} {:>9} {:>9} {:>9}   {:>5}\n", "-", "-", "-", 0),
    }
}

fn heading(first: &str) -> String {
    format!("    {first:<34} {:>9} {:>9} {:>9}   {:>5}\n", "median ms", "p99 ms", "max ms", "n")
}

/// See [`AtRest`].
pub fn rest(rest: &AtRest) -> String {
    let mut text = format!("    size of the program: {:.1} MB\n", crate::figures::megabytes(rest.binary_bytes));
    text += &heading("from start to ready");
    text += &line("cloud controller manager", rest.ccm_ready.as_ref());
    text += &line("announcer", rest.announcer_ready.as_ref());
    for (name, mb) in &rest.rss_mb {
        text += &format!("    RSS of {name}: {mb:.1} MB\n");
    }
    text
}

/// See [`Creation`].
pub fn creation(creation: &Creation) -> String {
    let mut text = heading(&format!("{} {} Services, from POST to", creation.services, creation.ipam));
    text += &line("address in the status", creation.address.as_ref());
    text += &line("first announcement on the LAN", creation.announced.as_ref());
    text += &line("first HTTP reply", creation.reply.as_ref());
    if creation.services > 1 {
        text += &format!("    all have their address after {:.1} s\n", creation.all_ms / 1000.0);
    }
    text += &format!(
        "    {:<22} {:>8} {:>8} {:>8} {:>8} {:>8}   per Service: reads, writes, Events\n",
        "requests", "reads", "writes", "Events", "Leases", "refused"
    );
    for (name, asked) in &creation.requests {
        let Counts { reads, writes, events, leases, refused, .. } = &asked.total;
        text += &format!(
            "    {name:<22} {reads:>8} {writes:>8} {events:>8} {leases:>8} {refused:>8}   {:.2}, {:.2}, {:.2}\n",
            asked.reads_per_service, asked.writes_per_service, asked.events_per_service
        );
    }
    let cpu: Vec<String> =
        creation.cpu_ms.iter().map(|(name, ms)| format!("{name} {}.{:02} s", ms / 1000, ms % 1000 / 10)).collect();
    text + &format!("    processor time meanwhile: {}\n", cpu.join(", "))
}

/// See [`Steady`].
pub fn steady(steady: &Steady) -> String {
    let mut text = format!(
        "    {:<34} {:>9} {:>9} {:>7} {:>10} {:>7}\n",
        format!("{} Services, quiet for {:.0} s", steady.services, steady.seconds),
        "req/min",
        "of Leases",
        "writes",
        "CPU s/min",
        "RSS MB"
    );
    for process in &steady.processes {
        text += &format!(
            "    {:<34} {:>9.1} {:>9.1} {:>7} {:>10.2} {:>7.1}\n",
            process.name,
            process.requests_per_minute,
            process.leases_per_minute,
            process.writes,
            process.cpu_seconds_per_minute,
            process.rss_mb
        );
    }
    text + &format!("    ARP and NDP frames of the nodes: {:.1} per minute\n", steady.frames_per_minute)
}

fn requests<'a>(requests: impl IntoIterator<Item = (&'a &'static str, &'a Counts)>) -> String {
    let each = requests.into_iter().map(|(name, counts)| {
        let Counts { reads, writes, events, leases, .. } = counts;
        format!("{name}: {reads} reads, {writes} writes, {events} Events, {leases} of Leases")
    });
    each.collect::<Vec<_>>().join("; ")
}

/// See [`Handover`].
pub fn handover(handover: &Handover) -> String {
    format!("    the standby leads after {:.0} ms; {}\n", handover.leads_ms, requests(&handover.requests))
}

/// See [`CcmRestart`].
pub fn ccm_restart(restart: &CcmRestart) -> String {
    format!(
        "    over {} Services: stops in {:.0} ms, ready after {:.0} ms, leads after {:.0} ms, {} writes, CPU {:.2} s, RSS {:.1} MB\n    {}\n",
        restart.services,
        restart.stop_ms,
        restart.ready_ms,
        restart.leader_ms,
        restart.writes(),
        f64::from(u32::try_from(restart.cpu_ms).unwrap_or(u32::MAX)) / 1000.0,
        restart.rss_mb,
        requests(&restart.requests)
    )
}

/// See [`AnnouncerRestart`].
pub fn announcer_restart(restart: &AnnouncerRestart) -> String {
    let end = match (restart.end, restart.stop_ms, restart.moved_ms) {
        (End::Stop, Some(stop), Some(moved)) => {
            format!("SIGTERM: ends after {stop:.0} ms, all moved after {moved:.0} ms")
        }
        _ => "SIGKILL".to_owned(),
    };
    format!(
        "    over {} Services: {end}; ready after {:.0} ms, {} moved; {} of {} probes of {} addresses lost, longest gap {:.0} ms \
         (prober stalled {:.0} ms)\n    {}\n",
        restart.services,
        restart.ready_ms,
        restart.moved,
        restart.lost,
        restart.sent,
        restart.probed,
        restart.longest_gap_ms,
        restart.prober_stall_ms,
        requests([(&"announcers", &restart.requests)])
    ) + &restart.last_failure.iter().map(|failure| format!("    last failure: {failure}\n")).collect::<String>()
}

/// See [`Failover`].
pub fn failover(failover: &Failover) -> String {
    heading("power loss of the owner") + &line("time without an answer", failover.gap.as_ref())
}

/// Writes `report.json`.
pub fn write(path: &Path, quick: bool, found: &[Found]) -> Result<()> {
    #[derive(Serialize)]
    struct Report<'a> {
        ok: bool,
        quick: bool,
        processors: usize,
        kernel: String,
        parts: &'a [Found],
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
