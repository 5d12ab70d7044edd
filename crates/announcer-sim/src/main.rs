//! `sim`: runs many seeds on all cores, and tells the first that breaks a promise.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use announcer_core::ElectionMode;
use announcer_sim::{Outcome, Sabotage, Scenario, run, shrink};
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
    /// Break the engines, as no-fence; with a wrong name all are told
    #[arg(long)]
    sabotage: Option<Sabotage>,
    /// Do not look for a shorter run that fails in the same way
    #[arg(long)]
    as_is: bool,
    /// Go on after a broken promise, and list all of them
    #[arg(long)]
    all: bool,
}

fn mode(text: &str) -> Result<ElectionMode, String> {
    [ElectionMode::Global, ElectionMode::Service, ElectionMode::Node]
        .into_iter()
        .find(|mode| mode.as_str() == text)
        .ok_or_else(|| format!("{text:?} is no mode: accepted are global, service and node"))
}

/// What all runs were together.
#[derive(Debug, Default)]
struct Sum {
    seeds: u64,
    events: u64,
    moves: u64,
    longest: BTreeMap<&'static str, (Duration, u64)>,
    broken: BTreeMap<u64, String>,
}

impl Sum {
    fn add(&mut self, seed: u64, outcome: Outcome) {
        self.seeds += 1;
        self.events += outcome.events;
        self.moves += outcome.moves;
        for (promise, lasted) in outcome.longest {
            let longest = self.longest.entry(promise).or_default();
            *longest = (*longest).max((lasted, seed));
        }
        if let Some(violation) = outcome.violation {
            self.broken.insert(seed, violation.to_string());
        }
    }
}

/// Runs the seeds on all cores; unless all are wanted, until one breaks a promise.
fn sum(cli: &Cli) -> (Sum, usize) {
    let next = AtomicU64::new(cli.from);
    let end = cli.from.saturating_add(cli.seeds);
    let failed = AtomicU64::new(u64::MAX);
    let sum = Mutex::new(Sum::default());
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= end || (!cli.all && failed.load(Ordering::Relaxed) != u64::MAX) {
                        break;
                    }
                    let outcome = run(&Scenario::of(seed, cli.mode), cli.sabotage, false);
                    if outcome.violation.is_some() {
                        failed.fetch_min(seed, Ordering::Relaxed);
                    }
                    sum.lock().add(seed, outcome);
                }
            });
        }
    });
    (sum.into_inner(), cores)
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    if let Some(seed) = cli.seed {
        return tell(seed, &cli);
    }
    let begun = Instant::now();
    let (sum, cores) = sum(&cli);
    let took = begun.elapsed().as_secs_f64();
    #[allow(clippy::cast_precision_loss, reason = "for people")]
    let rate = sum.seeds as f64 / took;
    println!(
        "mode {}: {} seeds in {took:.1} s on {cores} cores, {rate:.0} seeds/s; {} events, {} moves of an address",
        cli.mode.as_str(),
        sum.seeds,
        sum.events,
        sum.moves
    );
    println!("longest time in which it was not so that");
    for (promise, (lasted, seed)) in &sum.longest {
        println!("  {promise}: {:.3} s (seed {seed})", lasted.as_secs_f64());
    }
    match sum.broken.first_key_value() {
        None => {
            println!("no promise was broken");
            ExitCode::SUCCESS
        }
        Some(_) if cli.all => {
            for (seed, violation) in &sum.broken {
                println!("seed {seed}: {violation}");
            }
            ExitCode::FAILURE
        }
        Some((seed, _)) => tell(*seed, &cli),
    }
}

/// One seed with its trace, shrunk if it breaks a promise.
fn tell(seed: u64, cli: &Cli) -> ExitCode {
    let mut scenario = Scenario::of(seed, cli.mode);
    let mut outcome = run(&scenario, cli.sabotage, true);
    if outcome.violation.is_some() && !cli.as_is {
        scenario = shrink(&scenario, cli.sabotage);
        outcome = run(&scenario, cli.sabotage, true);
    }
    println!("{}\n\nseed {seed}: {scenario}", outcome.trace.join("\n"));
    match outcome.violation {
        Some(violation) => {
            println!("{violation}");
            ExitCode::FAILURE
        }
        None => ExitCode::SUCCESS,
    }
}
