//! `bench`: what the product takes in time, requests, memory and frames, on real components in network namespaces.
//!
//! Each part of [`parts::PARTS`] has a bed of its own. The tables go to standard output, everything to a JSON file.
//! Exit status 1 if something could not be measured. Figures are no tests: nothing here judges whether one is good.

mod bench_bed;
mod ccm;
mod creation;
mod crowd;
mod failover;
mod figures;
mod parts;
mod progress;
mod report;
mod requests;
mod restarts;
mod sampler;
mod steady;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Parser;

use crate::parts::{Effort, LIMITS, PARTS};
use crate::progress::say;

#[derive(Debug, Parser)]
#[command(
    name = "bench",
    about = "Measures the product on real components, in namespaces of this machine. Needs root."
)]
struct Cli {
    /// Without 1,000 Services and a real host's pace; fewer runs, shorter quiet times
    #[arg(long)]
    quick: bool,
    /// Only the cloud controller, against its bounds
    #[arg(long)]
    ccm: bool,
    /// Only this part; may be repeated
    #[arg(long, value_name = "PART", value_parser = clap::builder::PossibleValuesParser::new(names()))]
    only: Vec<String>,
    /// A further argument of the cloud controller manager, to see what it changes
    #[arg(long, value_name = "ARG", allow_hyphen_values = true)]
    ccm_arg: Vec<String>,
    /// Where the report goes
    #[arg(long, value_name = "FILE", default_value = "target/bench/report.json")]
    report: PathBuf,
}

fn names() -> Vec<&'static str> {
    PARTS.iter().map(|(name, ..)| *name).chain(LIMITS.iter().map(|(name, _)| *name)).collect()
}

fn main() -> ExitCode {
    match run(&Cli::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// True if everything could be measured.
fn run(cli: &Cli) -> Result<bool> {
    if !rustix::process::geteuid().is_root() {
        bail!("needs root: it makes network namespaces");
    }
    let binary = e2e::product::binary()?;
    testbed::programs::tools()?;
    testbed::wait::report_progress_to(progress::waits);
    say(format!("measuring {}, load {:.1}", binary.display(), report::load()));
    let effort = if cli.quick {
        Effort { runs: 4, quiet: Duration::from_secs(20) }
    } else {
        Effort { runs: 10, quiet: Duration::from_mins(1) }
    };
    let runtime = tokio::runtime::Runtime::new().context("failed to make a runtime")?;
    let mut found: Vec<parts::PartResult> = Vec::new();
    let limits = LIMITS.into_iter().map(|(name, kind)| (name, kind, None));
    for (name, kind, quick) in PARTS.into_iter().map(|(name, kind, quick)| (name, kind, Some(quick))).chain(limits) {
        let usual = quick.is_some_and(|quick| quick || !cli.quick) && name.starts_with("ccm-") == cli.ccm;
        let wanted = if cli.only.is_empty() { usual } else { cli.only.iter().any(|only| only == name) };
        if wanted {
            found.push(runtime.block_on(parts::run(name, kind, effort, &cli.ccm_arg)));
            // After each part: a run that is interrupted leaves what it has.
            report::write(&cli.report, cli.quick, &found)?;
        }
    }
    let figures: Vec<_> = found.iter().flat_map(|found| &found.figures).collect();
    if !figures.is_empty() {
        progress::show(ccm::table(found.iter().map(|found| (found.load, &found.figures[..]))));
        let missed = figures.iter().filter(|figure| !figure.holds).count();
        say(format!("{} figures, {missed} of them beyond their bound", figures.len()));
    }
    let failures: usize = found.iter().map(|found| found.failures.len()).sum();
    say(format!("report: {}; {failures} measurements failed", cli.report.display()));
    for (found, failure) in found.iter().flat_map(|found| found.failures.iter().map(move |failure| (found, failure))) {
        say(format!("  {}: {failure}", found.part));
    }
    Ok(failures == 0)
}
