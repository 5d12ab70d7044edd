//! `demo`: the main job on real components, step by step on the terminal and as `report.json`.
//!
//! `demo run` builds a LAN, a guest cluster and a Harvester side in namespaces, installs the chart, exposes Services in
//! every mode, breaks things, removes everything. Exit status 0 only if every step held.

mod bed;
mod cleanup;
mod clients;
mod conformance;
mod failures;
mod install;
mod keep;
mod node_loss;
mod registry;
mod report;
mod services;
mod step_log;
mod upgrade;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::{Args, Parser, Subcommand};
use testbed::programs;
use tokio::signal::unix::{SignalKind, signal};

use crate::bed::Bed;
use crate::registry::Registration;
use crate::report::Figures;
use crate::step_log::StepLog;

#[derive(Debug, Parser)]
#[command(
    name = "demo",
    about = "The Harvester cloud provider's main job on real components, in namespaces of this machine. Needs root."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run all steps
    Run(RunArgs),
    /// Run Kubernetes' own tests about load balancers on the same bed
    Conformance(conformance::Arguments),
    /// Take down what `run --keep` left up, and what is left of crashed runs
    Down {
        /// Also runs that are still going on
        #[arg(long)]
        all: bool,
    },
    /// Run a command on a host of a kept run: client, router, node1, ... (a shell if none is given)
    Exec {
        /// The host
        host: String,
        /// The command
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        command: Vec<String>,
    },
}

#[derive(Debug, Clone, Args)]
struct RunArgs {
    /// The static binary to put into the image
    #[arg(long, env = "HCP_BINARY", value_name = "FILE")]
    binary: PathBuf,
    /// Leave everything up at the end and say how to use it
    #[arg(long)]
    keep: bool,
    /// minSyncPeriod of kube-proxy in milliseconds. Its default, 1000, would hide what is measured: every first reply
    /// waits for it
    #[arg(long, value_name = "MS", default_value_t = 100)]
    kube_proxy_min_sync: u64,
    /// Where the report goes
    #[arg(long, value_name = "FILE", default_value = "target/demo/report.json")]
    report: PathBuf,
}

fn main() -> std::process::ExitCode {
    let outcome = match Cli::parse().command {
        Command::Run(args) if args.keep && !keep::is_holder() => keep::hold_in_background(),
        Command::Run(args) => run(&args),
        Command::Conformance(args) => conformance::run(&args),
        Command::Down { all } => registry::down(all).map(|()| true),
        Command::Exec { host, command } => registry::exec(&host, &command).map(|()| true),
    };
    match outcome {
        Ok(true) => std::process::ExitCode::SUCCESS,
        Ok(false) => std::process::ExitCode::FAILURE,
        Err(error) => {
            eprintln!("demo: {error:#}");
            std::process::ExitCode::FAILURE
        }
    }
}

/// True if every step held.
fn run(args: &RunArgs) -> Result<bool> {
    if !rustix::process::geteuid().is_root() {
        bail!("needs root: it makes network namespaces");
    }
    if !args.binary.exists() {
        bail!("{} does not exist; build it with: make release", args.binary.display());
    }
    programs::tools()?;
    testbed::node::cgroups::CgroupVersion::detect()?;
    let runtime = tokio::runtime::Runtime::new().context("failed to make a runtime")?;
    runtime.block_on(tell(args))
}

async fn tell(args: &RunArgs) -> Result<bool> {
    let mut registration = Registration::new()?;
    let mut interrupt = signal(SignalKind::interrupt()).context("failed to listen for SIGINT")?;
    let mut terminate = signal(SignalKind::terminate()).context("failed to listen for SIGTERM")?;
    let mut step_log = StepLog::begin();
    let mut figures = Figures::default();
    let mut bed = None;
    let mut interrupted = false;
    let ending = tokio::select! {
        ending = chapters(&mut step_log, &mut figures, &mut bed, args) => ending,
        _ = interrupt.recv() => { interrupted = true; Err(anyhow::anyhow!("interrupted")) }
        _ = terminate.recv() => { interrupted = true; Err(anyhow::anyhow!("told to end")) }
    };
    let held = ending.is_ok() && step_log.held();
    if let Err(error) = &ending {
        step_log.tell(&format!("the run ends here: {error:#}"));
        if let Some(bed) = &bed
            && !interrupted
        {
            let file = args.report.with_file_name("diagnostics.txt");
            match keep::diagnose(bed, &file).await {
                Ok(()) => step_log.tell(&format!("state and logs of the cluster: {}", file.display())),
                Err(error) => step_log.tell(&format!("no diagnostics: {error:#}")),
            }
        }
    }
    if args.keep
        && !interrupted
        && let Some(bed) = &bed
    {
        report::write(&args.report, &step_log, &figures)?;
        registration.keep(held, keep::entrances(bed))?;
        step_log::chapter("Left up");
        keep::explain(&step_log, bed, &args.binary)?;
        epilogue(&step_log, args, held);
        keep::let_go_of_the_terminal()?;
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
        return Ok(held);
    }
    step_log::chapter("Take down");
    let torn = step_log
        .step("take-down", async {
            let directory = testbed::run_dir::base()?;
            // On a thread that may block: guards wait for processes.
            tokio::task::spawn_blocking(move || drop(bed)).await.context("the thread that takes down panicked")?;
            keep::nothing_is_left(directory)?;
            Ok(((), "everything is down; no process, cgroup or directory is left".to_owned()))
        })
        .await;
    report::write(&args.report, &step_log, &figures)?;
    let held = held && torn.is_ok();
    epilogue(&step_log, args, held);
    Ok(held)
}

/// The chapters, and the seconds that each takes on two idle processors.
const CHAPTERS: [(&str, u64); 7] =
    [("Bring up", 16), ("Install", 5), ("Expose", 4), ("Measure", 5), ("Break", 27), ("Upgrade", 7), ("Delete", 18)];

/// A headline, and how long is left from here on.
fn begin(title: &str) {
    let rest = CHAPTERS.iter().skip_while(|(name, _)| !title.starts_with(name));
    let left: u64 = rest.map(|(_, seconds)| seconds).sum();
    step_log::chapter(&format!("{title} (about {left} s left)"));
}

async fn chapters(step_log: &mut StepLog, figures: &mut Figures, slot: &mut Option<Bed>, args: &RunArgs) -> Result<()> {
    begin("Bring up a LAN, a guest cluster with real nodes, and the Harvester side");
    figures.kube_proxy_min_sync_ms = args.kube_proxy_min_sync;
    let pace = Duration::from_millis(args.kube_proxy_min_sync);
    let bed = slot.insert(Bed::up(step_log, &args.binary, pace, |_| Ok(())).await?);
    begin("Install");
    install::install(step_log, bed, figures).await?;
    begin("Expose a Deployment: pool, DHCP, shared address");
    let vips = services::expose(step_log, bed).await?;
    begin("Measure");
    services::measure(step_log, bed, figures).await?;
    begin("Break things");
    let owner = failures::fail(step_log, bed, vips, figures).await?;
    node_loss::lose(step_log, bed, vips, &owner, figures).await?;
    begin("Upgrade a host of Harvester, and ask the doctor");
    upgrade::host_upgrade(step_log, bed, vips).await?;
    upgrade::doctor(step_log, bed).await?;
    begin("Delete");
    cleanup::clean(step_log, bed).await?;
    cleanup::weigh(step_log, bed, figures).await
}

fn epilogue(step_log: &StepLog, args: &RunArgs, held: bool) {
    let steps = step_log.steps();
    let failed: Vec<&str> = steps.iter().filter(|step| !step.ok).map(|step| step.name.as_str()).collect();
    step_log::chapter(&format!(
        "{}: {} steps in {:.0} s{}; report: {}",
        if held { "Every step held" } else { "NOT every step held" },
        steps.len(),
        step_log.elapsed().as_secs_f64(),
        if failed.is_empty() { String::new() } else { format!(", failed: {}", failed.join(", ")) },
        args.report.display()
    ));
}
