//! The product's processes end and start again over healthy Services: nothing is to be written, nothing to be lost.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use e2e::cost::Mark;
use e2e::product::Handle;
use serde::Serialize;
use testbed::{Probe, Traffic};

use crate::bench_bed::{BenchBed, CCM_LEASE, stop};
use crate::figures::{Quantiles, megabytes, ms};
use crate::requests::{Counts, Side};
use crate::steady::{self, Processes};

/// Addresses that are asked every 10 ms meanwhile.
const PROBED: usize = 5;
/// An election that was lost without a word takes the lease's duration and a poll.
const ELECTION: Duration = Duration::from_secs(40);

/// A cloud controller manager that started over healthy Services.
#[derive(Debug, Clone, Serialize)]
pub struct CcmRestart {
    /// Services that were there.
    pub services: usize,
    /// From SIGTERM to its end.
    pub stop_ms: f64,
    /// From its start to `/readyz`.
    pub ready_ms: f64,
    /// From its start until it leads.
    pub leader_ms: f64,
    /// Requests to each API server until it was quiet.
    pub requests: BTreeMap<&'static str, Counts>,
    /// Processor time until it was quiet.
    pub cpu_ms: u64,
    /// Memory then, in megabytes.
    pub rss_mb: f64,
}

impl CcmRestart {
    /// Writes and Events about objects; the Event about the Lease is not one of them.
    pub fn writes(&self) -> usize {
        self.requests.values().map(|counts| counts.writes).sum()
    }
}

/// SIGTERM and a new start of the only replica.
pub async fn of_ccm(bench: &BenchBed, services: usize) -> Result<CcmRestart> {
    let ccm = bench.bed.ccm();
    let former = bench.holder(CCM_LEASE).await?;
    let mark = bench.bed.mark();
    let stop_ms = ms(stop(&ccm).await?);
    let begin = Instant::now();
    ccm.start()?;
    let ready = async {
        bench.wait_until_ccm_is_ready(&ccm).await?;
        Ok::<_, anyhow::Error>(begin.elapsed())
    };
    let leads = async {
        bench.wait_for_other_holder(CCM_LEASE, former.as_deref(), ELECTION).await?;
        Ok::<_, anyhow::Error>(begin.elapsed())
    };
    let (leads, ready) = tokio::try_join!(leads, ready)?;
    bench.wait_until_quiet().await?;
    let tally = bench.tally(mark)?;
    let usage = ccm.usage()?;
    let sides = [Side::CcmGuest, Side::CcmHarvester];
    Ok(CcmRestart {
        services,
        stop_ms,
        ready_ms: ms(ready),
        leader_ms: ms(leads),
        requests: sides.into_iter().map(|side| (side.name(), tally.side(side))).collect(),
        cpu_ms: usage.cpu_ms,
        rss_mb: megabytes(usage.rss_bytes),
    })
}

/// The leading cloud controller manager is told to end while another one waits.
#[derive(Debug, Clone, Serialize)]
pub struct Handover {
    /// Services that were there.
    pub services: usize,
    /// From SIGTERM until the standby leads.
    pub leads_ms: f64,
    /// Requests of both until the product was quiet.
    pub requests: BTreeMap<&'static str, Counts>,
}

/// SIGTERM of the leader; afterwards the roles are back as they were, with the first replica alone.
pub async fn of_leader(bench: &BenchBed, services: usize) -> Result<Handover> {
    let (ccm, standby) = (bench.bed.ccm(), bench.standby());
    let former = bench.holder(CCM_LEASE).await?.context("no cloud controller manager leads")?;
    if !former.starts_with(ccm.host().name()) {
        bail!("the wrong replica leads: {former}");
    }
    let mark = bench.bed.mark();
    let begin = Instant::now();
    let leads = async {
        let holder = bench.wait_for_other_holder(CCM_LEASE, Some(&former), ELECTION).await?;
        Ok((holder, begin.elapsed()))
    };
    let (_, (holder, leads)) = tokio::try_join!(stop(&ccm), leads)?;
    bench.wait_until_quiet().await?;
    let tally = bench.tally(mark)?;
    ccm.start()?;
    bench.wait_until_ccm_is_ready(&ccm).await?;
    stop(&standby).await?;
    bench.wait_for_other_holder(CCM_LEASE, Some(&holder), ELECTION).await?;
    bench.wait_until_quiet().await?;
    let sides = [Side::CcmGuest, Side::CcmHarvester];
    let requests = sides.into_iter().map(|side| (side.name(), tally.side(side))).collect();
    Ok(Handover { services, leads_ms: ms(leads), requests })
}

/// How an announcer ended before it was started again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum End {
    /// SIGKILL.
    Crash,
    /// SIGTERM. As after a crash its addresses stay on the node for the next process.
    Stop,
}

/// The announcer that owns all addresses ended and started again.
#[derive(Debug, Clone, Serialize)]
pub struct AnnouncerRestart {
    /// Services that were there.
    pub services: usize,
    /// How it ended.
    pub end: End,
    /// From SIGTERM to its end.
    pub stop_ms: Option<f64>,
    /// From its start to `/readyz`.
    pub ready_ms: f64,
    /// Requests of all announcers until the product was quiet.
    pub requests: Counts,
    /// Services that another node owns afterwards.
    pub moved: usize,
    /// Addresses that were asked every 10 ms.
    pub probed: usize,
    /// Requests of the probers.
    pub sent: u64,
    /// Not answered within a second.
    pub lost: u64,
    /// The longest time without an answer.
    pub longest_gap_ms: f64,
    /// The longest time in which a prober itself was not scheduled.
    pub prober_stall_ms: f64,
    /// What became of the last request that was lost.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_failure: Option<String>,
    /// Processor time of the new process until the product was quiet.
    pub cpu_ms: u64,
}

/// Ends the owner of `addresses` in this way and starts it again.
pub async fn of_announcer(bench: &BenchBed, addresses: &[IpAddr], end: End) -> Result<AnnouncerRestart> {
    let first = *addresses.first().context("there are no addresses")?;
    let owner = bench.owner(first)?;
    let announcer = bench.bed.announcer(owner);
    let probed = steady::spread(addresses, PROBED);
    let probes = probes(bench, &probed)?;
    let mark = bench.bed.mark();
    let stop_ms = match end {
        End::Crash => {
            announcer.kill();
            None
        }
        End::Stop => Some(ms(stop(&announcer).await?)),
    };
    let (ready, cpu_ms, requests) = start_again(bench, &announcer, mark).await?;
    let mut restart = AnnouncerRestart {
        services: addresses.len(),
        end,
        stop_ms,
        ready_ms: ms(ready),
        requests,
        moved: addresses.len() - bench.owned(owner, addresses)?,
        probed: probed.len(),
        sent: 0,
        lost: 0,
        longest_gap_ms: 0.0,
        prober_stall_ms: 0.0,
        last_failure: None,
        cpu_ms,
    };
    for probe in probes {
        let report = probe.stop_after(e2e::ENOUGH, e2e::PATIENCE)?;
        restart.sent += report.sent;
        restart.lost += report.lost;
        restart.longest_gap_ms = restart.longest_gap_ms.max(ms(report.longest_gap));
        restart.prober_stall_ms = restart.prober_stall_ms.max(ms(report.longest_stall));
        restart.last_failure = report.last_failure.or(restart.last_failure);
    }
    Ok(restart)
}

async fn start_again(bench: &BenchBed, announcer: &Handle<'_>, mark: Mark) -> Result<(Duration, u64, Counts)> {
    let begin = Instant::now();
    announcer.start()?;
    bench.wait_until_announcer_is_ready(announcer).await?;
    let ready = begin.elapsed();
    bench.wait_until_quiet().await?;
    Ok((ready, announcer.usage()?.cpu_ms, bench.tally(mark)?.side(Side::Announcer)))
}

fn probes(bench: &BenchBed, addresses: &[IpAddr]) -> Result<Vec<Probe>> {
    let client = bench.bed.lan.client();
    let probes = addresses.iter().map(|address| client.probe(Traffic::Http(SocketAddr::from((*address, 80)))));
    let probes = probes.collect::<Result<Vec<_>>>()?;
    probes.iter().try_for_each(|probe| probe.wait_for_answers(20, e2e::PATIENCE))?;
    Ok(probes)
}

/// What starting costs where there is nothing to do.
#[derive(Debug, Clone, Serialize)]
pub struct AtRest {
    /// Size of the program, in bytes.
    pub binary_bytes: u64,
    /// From the start of a cloud controller manager to `/readyz`.
    pub ccm_ready: Option<Quantiles>,
    /// From the start of an announcer to `/readyz`.
    pub announcer_ready: Option<Quantiles>,
    /// Memory of each process after it was quiet, in megabytes.
    pub rss_mb: BTreeMap<String, f64>,
}

/// Starts each program `runs` times on a cluster without Services.
pub async fn at_rest(bench: &BenchBed, runs: usize) -> Result<AtRest> {
    let (mut ccm_ready, mut announcer_ready) = (Vec::new(), Vec::new());
    for run in 0..runs {
        let ccm = bench.bed.ccm();
        let begin = Instant::now();
        ccm.start()?;
        bench.wait_until_ccm_is_ready(&ccm).await?;
        ccm_ready.push(begin.elapsed());
        let announcer = bench.bed.announcer(1);
        let begin = Instant::now();
        announcer.start()?;
        bench.wait_until_announcer_is_ready(&announcer).await?;
        announcer_ready.push(begin.elapsed());
        if run + 1 < runs {
            stop(&announcer).await?;
            stop(&ccm).await?;
        }
    }
    for n in 2..=bench.bed.nodes.len() {
        bench.bed.announcer(n).start()?;
    }
    bench.standby().start()?;
    bench.bed.wait_until_initialized().await?;
    bench.wait_until_quiet().await?;
    crate::progress::sleep("at rest", Duration::from_secs(10)).await;
    let binary = e2e::product::binary()?;
    let size = std::fs::metadata(&binary).with_context(|| format!("failed to look at {}", binary.display()))?.len();
    let usage = Processes::of(bench).usage()?;
    let rss_mb = usage.into_iter().map(|(name, usage)| (name, megabytes(usage.rss_bytes))).collect();
    let (ccm_ready, announcer_ready) = (Quantiles::of(ccm_ready), Quantiles::of(announcer_ready));
    Ok(AtRest { binary_bytes: size, ccm_ready, announcer_ready, rss_mb })
}
