//! Nothing happens, for long, while every core is busy: each fail-over is a false one.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;
use e2e::{Bed, service};
use serde::Serialize;
use testbed::Traffic;

const TERM: &str = "cloudprovider.harvesterhci.io/announcer-term";
const ADDRESSES: u8 = 6;

/// What a soak has shown.
#[derive(Debug, Clone, Serialize)]
pub struct Soak {
    /// How long.
    pub minutes: f64,
    /// Threads that did nothing but turn.
    pub busy_threads: usize,
    /// Changes of owner. Each is a false fail-over.
    pub failovers: u64,
    /// Requests of a client to one of the addresses, and how many were lost.
    pub asked: u64,
    /// Of these.
    pub lost: u64,
    /// The longest time without an answer.
    pub longest_gap_ms: f64,
}

/// For so long.
pub async fn run(time: Duration) -> Result<Soak> {
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
    let busy_threads = 2 * std::thread::available_parallelism().map_or(1, usize::from);
    let done = Arc::new(AtomicBool::new(false));
    let threads: Vec<_> = (0..busy_threads)
        .map(|_| {
            let done = Arc::clone(&done);
            std::thread::spawn(move || {
                while !done.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            })
        })
        .collect();
    let probe = bed.lan.client().probe(Traffic::http((bed.lan.ipv4(151), 80).into()))?;
    let begun = Instant::now();
    while begun.elapsed() < time {
        tokio::time::sleep(Duration::from_mins(1).min(time)).await;
        eprintln!("  {:.0} min: {}", begun.elapsed().as_secs_f64() / 60.0, probe.report());
    }
    let report = probe.stop();
    done.store(true, Ordering::Relaxed);
    for thread in threads {
        let _ = thread.join();
    }
    let mut after = 0;
    for web in &services {
        after += web.annotation(TERM).await?.parse::<u64>()?;
    }
    let soak = Soak {
        minutes: (begun.elapsed().as_secs_f64() / 6.0).round() / 10.0,
        busy_threads,
        failovers: after.saturating_sub(before),
        asked: report.sent,
        lost: report.lost,
        longest_gap_ms: crate::cases::ms(report.longest_gap),
    };
    println!(
        "soak of {} min, {busy_threads} busy threads: {} fail-overs, {} of {} requests lost, longest gap {} ms",
        soak.minutes, soak.failovers, soak.lost, soak.asked, soak.longest_gap_ms
    );
    Ok(soak)
}
