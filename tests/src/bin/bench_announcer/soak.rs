//! Nothing happens, for long, while every core is busy: each fail-over is a false one.

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use anyhow::Result;
use e2e::{Bed, ENOUGH, PATIENCE, service};
use harvester_api::keys::cloudprovider::TERM;
use serde::{Deserialize, Serialize};
use testbed::Traffic;

use crate::load::{Busy, ticks};

const ADDRESSES: u8 = 6;

/// What a soak has shown.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Soak {
    /// How long.
    pub minutes: f64,
    /// Threads that did nothing but turn.
    pub busy_threads: usize,
    /// How busy all cores were, in per cent, by these threads and by whatever else ran on the machine.
    pub busy_percent: f64,
    /// Changes of owner. Each is a false fail-over.
    pub failovers: u64,
    /// What the detectors of all nodes have counted.
    pub probes: Probes,
    /// Requests of a client to one of the addresses, and how many were lost.
    pub asked: u64,
    /// Of these.
    pub lost: u64,
    /// The longest time without an answer.
    pub longest_gap_ms: f64,
}

/// Questions to owners, of all nodes.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub struct Probes {
    /// Asked.
    pub asked: u64,
    /// Not answered in time.
    pub unanswered: u64,
    /// Verdicts that were postponed, because the timer of the node that asks was late.
    pub late: u64,
    /// Suspicions: bursts that ask everybody.
    pub bursts: u64,
    /// Bursts in which the owner answered after all.
    pub refuted: u64,
    /// The worst lateness of a timer, in milliseconds.
    pub worst_lateness_ms: f64,
}

impl Probes {
    fn of(bed: &Bed) -> Result<Self> {
        let mut all = Self::default();
        for host in bed.lan.hosts() {
            let metrics = e2e::bed::get(host, (Ipv4Addr::LOCALHOST, 2112).into(), "/metrics")?;
            // Each has the node among its labels, too.
            let read = |name: &str, label: &str| {
                let line = metrics.lines().find(|line| line.starts_with(&format!("{name}{{")) && line.contains(label));
                let value = line.and_then(|line| line.rsplit_once(' '));
                value.and_then(|(_, value)| value.parse::<f64>().ok()).unwrap_or_default()
            };
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // a counter
            let count = |what: &str| read("hcp_announcer_probes_total", &format!("what=\"{what}\"")) as u64;
            all.asked += count("asked");
            all.unanswered += count("unanswered");
            all.late += count("late");
            all.bursts += count("burst");
            all.refuted += count("refuted");
            all.worst_lateness_ms =
                all.worst_lateness_ms.max(read("hcp_announcer_worst_lateness_seconds", "") * 1000.0);
        }
        Ok(all)
    }
}

/// For so long.
pub async fn run(time: Duration, threads: Option<usize>) -> Result<Soak> {
    let bed =
        Bed::builder().nodes(3).without_ccm().without_pool().announcer_env("election_mode", "node").start().await?;
    let place = bed.case("soak").await?;
    let mut services = Vec::new();
    for n in 0..ADDRESSES {
        let web = place.expose(service(&format!("web{n}")).at(&bed.lan.ipv4(151 + n).to_string()).tcp(80)).await?;
        web.reply(bed.lan.ipv4(151 + n).into(), 80).await?;
        services.push(web);
    }
    let mut before = 0;
    for web in &services {
        before += web.annotation(TERM).await?.parse::<u64>()?;
    }
    let busy_threads = threads.unwrap_or_else(|| 2 * std::thread::available_parallelism().map_or(1, usize::from));
    let busy = Busy::threads(busy_threads);
    let before_ticks = ticks();
    let probe = bed.lan.client().probe(Traffic::http((bed.lan.ipv4(151), 80).into()))?;
    let begun = Instant::now();
    while begun.elapsed() < time {
        tokio::time::sleep(Duration::from_mins(1).min(time)).await;
        eprintln!("  {:.0} min: {}; {:?}", begun.elapsed().as_secs_f64() / 60.0, probe.report(), Probes::of(&bed)?);
    }
    let report = probe.stop_after(ENOUGH, PATIENCE)?;
    let after_ticks = ticks();
    let probes = Probes::of(&bed)?;
    drop(busy);
    let mut after = 0;
    for web in &services {
        after += web.annotation(TERM).await?.parse::<u64>()?;
    }
    let soak = Soak {
        minutes: (begun.elapsed().as_secs_f64() / 6.0).round() / 10.0,
        busy_threads,
        busy_percent: after_ticks.busy_since(&before_ticks),
        probes,
        failovers: after.saturating_sub(before),
        asked: report.sent,
        lost: report.lost,
        longest_gap_ms: crate::cases::ms(report.longest_gap),
    };
    println!(
        "soak of {} min, {busy_threads} busy threads, cores busy {} %: {} fail-overs, {} of {} requests lost, longest \
         gap {} ms",
        soak.minutes, soak.busy_percent, soak.failovers, soak.lost, soak.asked, soak.longest_gap_ms
    );
    println!("  {probes:?}");
    Ok(soak)
}
