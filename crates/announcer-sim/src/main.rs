//! `sim`: runs many seeds on some cores, says now and then how far it is, and tells the first that breaks a promise.

use parking_lot::{Condvar, Mutex};
use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use announcer_core::ElectionMode;
use announcer_sim::{Outcome, SABOTAGES, Sabotage, Scenario, run, shrink};
use clap::Parser;
use clap::builder::{PossibleValuesParser, TypedValueParser};

#[derive(Debug, Parser)]
#[command(name = "sim", about = "Simulates announcers on a virtual LAN, one run per seed")]
struct Cli {
    /// How many seeds, from each first one on
    #[arg(long, default_value_t = 1000)]
    seeds: u64,
    /// The first of them; several after commas, as 0,20000000
    #[arg(long, default_value = "0", value_delimiter = ',')]
    from: Vec<u64>,
    /// Only this seed, with its trace
    #[arg(long)]
    seed: Option<u64>,
    /// How many run at a time; without it one on each core
    #[arg(long)]
    jobs: Option<NonZeroUsize>,
    /// Seconds between two lines about how far it is, on the error output; 0: none
    #[arg(long, default_value_t = 30)]
    progress: u64,
    /// Ownership mode: global, service or node
    #[arg(long, default_value = "global", value_parser = mode)]
    mode: ElectionMode,
    /// Break the engines in one way
    #[arg(long, value_parser = sabotages())]
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

/// Its help names all.
fn sabotages() -> impl TypedValueParser<Value = Sabotage> {
    PossibleValuesParser::new(SABOTAGES.map(|(name, _)| name)).try_map(|name| name.parse::<Sabotage>())
}

impl Cli {
    /// The seed that is run as this one, those from one first seed on before those from the next.
    fn seed_number(&self, number: u64) -> Option<u64> {
        let first = usize::try_from(number.checked_div(self.seeds)?).ok()?;
        self.from.get(first)?.checked_add(number % self.seeds)
    }

    fn seeds_in_all(&self) -> u64 {
        self.from.iter().map(|_| self.seeds).sum()
    }
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

/// Runs the seeds; unless all are wanted, until one breaks a promise.
fn sum(cli: &Cli, jobs: usize) -> Sum {
    let next = AtomicU64::new(0);
    let failed = AtomicU64::new(u64::MAX);
    let sum = Mutex::new(Sum::default());
    let over = (Mutex::new(false), Condvar::new());
    std::thread::scope(|scope| {
        let run_seeds = || {
            while let Some(seed) = cli.seed_number(next.fetch_add(1, Ordering::Relaxed)) {
                if !cli.all && failed.load(Ordering::Relaxed) != u64::MAX {
                    break;
                }
                let outcome = run(&Scenario::of(seed, cli.mode), cli.sabotage, false);
                if let Some(violation) = &outcome.violation {
                    failed.fetch_min(seed, Ordering::Relaxed);
                    eprintln!("seed {seed}: {violation}");
                }
                sum.lock().add(seed, outcome);
            }
        };
        if cli.progress > 0 {
            scope.spawn(|| tell_progress(cli, &sum, &over));
        }
        let running: Vec<_> = (0..jobs).map(|_| scope.spawn(run_seeds)).collect();
        for thread in running {
            thread.join().expect("a run that panics is told by its panic");
        }
        *over.0.lock() = true;
        over.1.notify_all();
    });
    sum.into_inner()
}

/// Says now and then how far it is, until it is over.
fn tell_progress(cli: &Cli, sum: &Mutex<Sum>, over: &(Mutex<bool>, Condvar)) {
    let begun = Instant::now();
    let mut is_over = over.0.lock();
    loop {
        over.1.wait_for(&mut is_over, Duration::from_secs(cli.progress));
        if *is_over {
            return;
        }
        let (done, broken) = {
            let sum = sum.lock();
            (sum.seeds, sum.broken.len())
        };
        let (all, rate) = (cli.seeds_in_all(), per_second(done, begun.elapsed()));
        #[allow(clippy::cast_precision_loss, reason = "for people")]
        let left = (all - done) as f64 / rate;
        eprintln!("{done} of {all} seeds, {rate:.0} per second, {broken} broke a promise, {left:.0} s to go");
    }
}

#[allow(clippy::cast_precision_loss, reason = "for people")]
fn per_second(count: u64, time: Duration) -> f64 {
    count as f64 / time.as_secs_f64()
}

/// What this process has had of processors so far, where the kernel tells it.
fn processor_time() -> Option<Duration> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    // The name in parentheses may hold anything; utime and stime are the 14th and 15th field, in hundredths.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks: u64 = fields.get(11..13)?.iter().filter_map(|field| field.parse::<u64>().ok()).sum();
    Some(Duration::from_millis(10 * ticks))
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    if let Some(seed) = cli.seed {
        return tell(seed, &cli);
    }
    let jobs = cli.jobs.or_else(|| std::thread::available_parallelism().ok()).map_or(1, usize::from);
    let begun = Instant::now();
    let sum = sum(&cli, jobs);
    let took = begun.elapsed();
    println!(
        "mode {}: {} seeds in {:.1} s on {jobs} cores, {:.0} seeds/s; {} events, {} moves of an address",
        cli.mode.as_str(),
        sum.seeds,
        took.as_secs_f64(),
        per_second(sum.seeds, took),
        sum.events,
        sum.moves
    );
    if let Some(used) = processor_time() {
        println!("{:.2} ms of a processor per seed", 1000.0 / per_second(sum.seeds, used));
    }
    println!("longest time for which each promise did not hold yet:");
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
