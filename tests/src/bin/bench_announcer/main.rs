//! `bench-announcer`: what a fault costs a client in `node` mode, and what 200 addresses cost the LAN, the API and the
//! nodes, on real components in network namespaces.
//!
//! Each case has three nodes, or one, with kube-proxy, and an API server and etcd that are on none of them. Tables go
//! to standard output, everything to a JSON file. Figures are no tests: nothing here judges whether one is good.

mod at_rest;
mod case_result;
mod cases;
mod experiment;
mod false_verdicts;
mod lan;
mod load;
mod lost_node;
mod many;
mod renew;
mod report;
mod soak;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Parser;

use crate::case_result::CaseResult;
use crate::cases::CASES;
use crate::lan::FAULTS;
use crate::report::Report;

// What can be measured beside cases and faults of the LAN, by name.
const MANY: &str = "200-vips";
const RENEW: &str = "dhcp-renew";
const LOST_NODE: &str = "lost-node";
const AT_REST: &str = "at-rest";
const FALSE_VERDICTS: &str = "false-verdicts";

#[derive(Debug, Parser)]
#[command(
    name = "bench-announcer",
    about = "Measures fail-over and cost of the announcer in node mode, in namespaces of this machine. Needs root."
)]
struct Cli {
    /// Runs of each case
    #[arg(long, default_value_t = 10)]
    runs: usize,
    /// Only this case; may be repeated
    #[arg(long, value_name = "CASE", value_parser = names())]
    only: Vec<String>,
    /// Add to the runs that are in the report already, instead of beginning it anew
    #[arg(long)]
    add: bool,
    /// How long the API is away in each run of an outage, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    outage: u64,
    /// Instead of the cases: this many minutes with every core busy, counting fail-overs without a reason
    #[arg(long, value_name = "MINUTES")]
    soak: Option<u64>,
    /// Threads of the soak that do nothing but turn [default: two per core]
    #[arg(long, value_name = "THREADS")]
    soak_threads: Option<usize>,
    /// How long `--only false-verdicts` looks, which runs only if it is named, with one busy thread per core
    #[arg(long, value_name = "MINUTES", default_value_t = 30)]
    minutes: u64,
    /// Where the report goes
    #[arg(long, value_name = "FILE", default_value = "target/bench/announcer.json")]
    report: PathBuf,
}

/// What `--only` takes.
fn names() -> clap::builder::PossibleValuesParser {
    let others = [MANY, RENEW, LOST_NODE, AT_REST, FALSE_VERDICTS];
    let faults = FAULTS.iter().map(|(name, ..)| *name);
    clap::builder::PossibleValuesParser::new(CASES.iter().map(|case| case.name).chain(faults).chain(others))
}

fn main() -> ExitCode {
    match run(&Cli::parse()) {
        Ok(0) => ExitCode::SUCCESS,
        Ok(failures) => {
            eprintln!("bench-announcer: {failures} measurements failed");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("bench-announcer: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// How many measurements failed.
fn run(cli: &Cli) -> Result<usize> {
    if !rustix::process::geteuid().is_root() {
        bail!("needs root: it makes network namespaces");
    }
    let binary = e2e::product::binary()?;
    testbed::programs::tools()?;
    let runtime = tokio::runtime::Runtime::new().context("failed to make a runtime")?;
    let mut report = if cli.add { Report::read(&cli.report)? } else { Report::begin(&binary) };
    if let Some(minutes) = cli.soak {
        report.soak = Some(runtime.block_on(soak::run(Duration::from_secs(minutes * 60), cli.soak_threads))?);
        report.write(&cli.report)?;
        return Ok(0);
    }
    let wanted = |name: &str| cli.only.is_empty() || cli.only.iter().any(|only| only == name);
    let outage = Duration::from_secs(cli.outage);
    for case in CASES.iter().filter(|case| wanted(case.name)) {
        let found = runtime.block_on(cases::measure(case, cli.runs, outage));
        report.add(found);
        // After each case: a run that is interrupted leaves what it has.
        report.write(&cli.report)?;
    }
    for fault in FAULTS.into_iter().filter(|(name, ..)| wanted(name)) {
        take(&mut report, &cli.report, fault.0, |report| {
            let mut keep = |found: &CaseResult<lan::Run>| {
                report.played(found);
                report.write(&cli.report)
            };
            runtime.block_on(lan::measure(fault, cli.runs, cli.outage, &mut keep))
        })?;
    }
    if wanted(MANY) {
        take(&mut report, &cli.report, MANY, |report| {
            report.many = Some(runtime.block_on(many::measure(cli.runs))?);
            Ok(())
        })?;
    }
    if wanted(RENEW) {
        take(&mut report, &cli.report, RENEW, |report| {
            report.renew = Some(runtime.block_on(renew::measure(cli.runs))?);
            Ok(())
        })?;
    }
    if wanted(LOST_NODE) {
        take(&mut report, &cli.report, LOST_NODE, |report| {
            let mut keep = |rows: &[lost_node::Row]| {
                report.lost_node = rows.to_vec();
                report.write(&cli.report)
            };
            runtime.block_on(lost_node::measure(cli.runs, &mut keep))
        })?;
    }
    if wanted(AT_REST) {
        take(&mut report, &cli.report, AT_REST, |report| {
            report.at_rest = runtime.block_on(at_rest::measure())?;
            Ok(())
        })?;
    }
    if !cli.only.is_empty() && wanted(FALSE_VERDICTS) {
        take(&mut report, &cli.report, FALSE_VERDICTS, |report| {
            let time = Duration::from_secs(cli.minutes * 60);
            report.false_verdicts = Some(runtime.block_on(false_verdicts::measure(time))?);
            Ok(())
        })?;
    }
    report.print();
    Ok(report.failed())
}

/// Takes one measurement, and keeps the report whatever became of it.
fn take(report: &mut Report, path: &Path, name: &str, measure: impl FnOnce(&mut Report) -> Result<()>) -> Result<()> {
    if let Err(error) = measure(report) {
        report.failures.push(format!("{name}: {error:#}"));
    }
    report.write(path)
}
