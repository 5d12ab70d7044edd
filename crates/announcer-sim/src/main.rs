//! `sim`: runs many seeds on all cores, and tells the first that breaks a promise.

use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use announcer::ElectionMode;
use announcer_sim::{Sabotage, Scenario, run, shrink};
use clap::Parser;

#[derive(Debug, Parser)]
#[command(name = "sim", about = "Simulates announcers on a virtual LAN, one run per seed")]
struct Cli {
    /// How many seeds
    #[arg(long, default_value_t = 1000)]
    seeds: u64,
    /// The first of them
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// Only this seed, with its trace
    #[arg(long)]
    seed: Option<u64>,
    /// Ownership mode: global, service or node
    #[arg(long, default_value = "global", value_parser = mode)]
    mode: ElectionMode,
    /// Break the engines: no-fence, no-sweep or no-cas
    #[arg(long)]
    sabotage: Option<Sabotage>,
    /// Do not look for a shorter run that fails in the same way
    #[arg(long)]
    as_is: bool,
}

fn mode(text: &str) -> Result<ElectionMode, String> {
    [ElectionMode::Global, ElectionMode::Service, ElectionMode::Node]
        .into_iter()
        .find(|mode| mode.as_str() == text)
        .ok_or_else(|| format!("{text:?} is no mode: accepted are global, service and node"))
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    if let Some(seed) = cli.seed {
        let outcome = run(&Scenario::of(seed, cli.mode), cli.sabotage, true);
        println!("{}", outcome.trace.join("\n"));
        return match outcome.violation {
            Some(violation) => {
                println!("seed {seed}: {violation}");
                ExitCode::FAILURE
            }
            None => ExitCode::SUCCESS,
        };
    }
    let begun = Instant::now();
    let next = AtomicU64::new(cli.from);
    let end = cli.from.saturating_add(cli.seeds);
    let failed = AtomicU64::new(u64::MAX);
    let (events, moves) = (AtomicU64::new(0), AtomicU64::new(0));
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= end || failed.load(Ordering::Relaxed) != u64::MAX {
                        break;
                    }
                    let outcome = run(&Scenario::of(seed, cli.mode), cli.sabotage, false);
                    events.fetch_add(outcome.events, Ordering::Relaxed);
                    moves.fetch_add(outcome.moves, Ordering::Relaxed);
                    if outcome.violation.is_some() {
                        failed.fetch_min(seed, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    let took = begun.elapsed().as_secs_f64();
    let done = next.load(Ordering::Relaxed).min(end) - cli.from;
    #[allow(clippy::cast_precision_loss, reason = "for people")]
    let rate = done as f64 / took;
    println!(
        "mode {}: {done} seeds in {took:.1} s on {cores} cores, {rate:.0} seeds/s; {} events, {} moves of an address",
        cli.mode.as_str(),
        events.load(Ordering::Relaxed),
        moves.load(Ordering::Relaxed)
    );
    let seed = failed.load(Ordering::Relaxed);
    if seed == u64::MAX {
        println!("no promise was broken");
        return ExitCode::SUCCESS;
    }
    let scenario = Scenario::of(seed, cli.mode);
    let small = if cli.as_is { scenario } else { shrink(&scenario, cli.sabotage) };
    let outcome = run(&small, cli.sabotage, true);
    println!("{}", outcome.trace.join("\n"));
    println!("\nseed {seed}, shrunk to: {small}");
    if let Some(violation) = outcome.violation {
        println!("{violation}");
    }
    ExitCode::FAILURE
}
