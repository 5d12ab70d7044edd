//! `demo conformance`: Kubernetes' own end-to-end tests about load balancers, on the demo's bed, from the client host
//! of the LAN.
//!
//! Each test is a process of its own, several at a time: most of a test is waiting. What became of each goes into a
//! table that is kept; the run fails on what docs/compatibility.md does not expect.

mod dns;
mod images;
mod suite;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use testbed::conformance::{Row, Table, exceptions, junit, surprises};
use testbed::programs;
use tokio::signal::unix::{SignalKind, signal};

use crate::bed::Bed;
use crate::install;
use crate::keep;
use crate::registry::Registration;
use crate::report::Figures;
use crate::step_log::{self, StepLog};

/// What the upstream default of kube-proxy is.
const KUBE_PROXY_MIN_SYNC: Duration = Duration::from_secs(1);
/// Where clients are: outside of the nodes' /16, which is how the suite tells a preserved source address from a
/// masqueraded one.
const OUTSIDE: &str = "172.31.0.50";

/// How to run the suite.
#[derive(Debug, Clone, Args)]
pub struct Arguments {
    /// The static binary to put into the image
    #[arg(long, env = "HCP_BINARY", value_name = "FILE")]
    binary: PathBuf,
    /// Only tests whose names contain one of these
    #[arg(long, value_name = "TEXT")]
    only: Vec<String>,
    /// All but tests whose names contain one of these
    #[arg(long, value_name = "TEXT")]
    skip: Vec<String>,
    /// Only tests that passed in at most so many seconds when they ran last
    #[arg(long, value_name = "SECONDS")]
    quick: Option<f64>,
    /// How many tests run at a time
    #[arg(long, value_name = "N", default_value_t = 6)]
    jobs: usize,
    /// Name the tests and end
    #[arg(long)]
    list: bool,
    /// The build that each row is of; dev/machine.py names it as in all of docs/data
    #[arg(long, value_name = "COMMIT", default_value = "unknown")]
    commit: String,
    /// The table of all tests; rows of this run replace older ones
    #[arg(long, value_name = "FILE", default_value = "docs/data/conformance.json")]
    table: PathBuf,
    /// Where the report in JUnit's form and the tests' own output go
    #[arg(long, value_name = "DIRECTORY", default_value = "target/conformance")]
    output: PathBuf,
}

/// True if everything was as expected.
pub fn run(args: &Arguments) -> Result<bool> {
    for program in suite::PROGRAMS {
        programs::tool(program).context("get it with: dev/tools.sh --conformance")?;
    }
    let all = suite::tests()?;
    let table = read(&args.table)?;
    let chosen: Vec<String> = all.iter().filter(|name| args.wants(name, &table)).cloned().collect();
    if args.list {
        for name in &chosen {
            step_log::line(name);
        }
        return Ok(true);
    }
    ensure!(!chosen.is_empty(), "no test is left to run: see --list");
    ensure!(rustix::process::geteuid().is_root(), "needs root: it makes network namespaces");
    if !args.binary.exists() {
        bail!("{} does not exist; build it with: make release", args.binary.display());
    }
    let file = programs::workspace().join("docs/compatibility.md");
    let text = std::fs::read_to_string(&file).with_context(|| format!("failed to read {}", file.display()))?;
    let known = exceptions(&text)?;
    std::fs::create_dir_all(&args.output).with_context(|| format!("failed to create {}", args.output.display()))?;
    let runtime = tokio::runtime::Runtime::new().context("failed to make a runtime")?;
    let versions = suite::versions()?;
    let rows = runtime.block_on(told(args, &chosen, &Table { versions, ..table }))?;
    let found = surprises(&all, &rows, &known);
    let explained = rows.iter().filter(|row| known.contains_key(&row.name)).count();
    step_log::chapter(&format!(
        "{} tests, {explained} of them known not to pass, {} surprises; table: {}",
        rows.len(),
        found.len(),
        args.table.display()
    ));
    for text in &found {
        step_log::line(&format!("  {text}"));
    }
    Ok(found.is_empty())
}

impl Arguments {
    fn wants(&self, name: &str, table: &Table) -> bool {
        let named = self.only.is_empty() || self.only.iter().any(|part| name.contains(part));
        let named = named && !self.skip.iter().any(|part| name.contains(part));
        let quick = |limit| table.passed_within(name, limit);
        named && self.quick.is_none_or(quick)
    }
}

async fn told(args: &Arguments, chosen: &[String], table: &Table) -> Result<Vec<Row>> {
    let _registration = Registration::new()?;
    let mut interrupt = signal(SignalKind::interrupt()).context("failed to listen for SIGINT")?;
    let mut terminate = signal(SignalKind::terminate()).context("failed to listen for SIGTERM")?;
    let mut step_log = StepLog::begin();
    let mut bed = None;
    let outcome = tokio::select! {
        outcome = tests(&mut step_log, &mut bed, args, chosen, table) => outcome,
        _ = interrupt.recv() => Err(anyhow::anyhow!("interrupted")),
        _ = terminate.recv() => Err(anyhow::anyhow!("told to end")),
    };
    let broken = !outcome.as_ref().is_ok_and(|rows| rows.iter().all(Row::is_well));
    if let (true, Some(bed)) = (broken, &bed) {
        let file = args.output.join("diagnostics.txt");
        match keep::diagnose(bed, &file).await {
            Ok(()) => step_log.tell(&format!("state and logs of the cluster: {}", file.display())),
            Err(error) => step_log.tell(&format!("no diagnostics: {error:#}")),
        }
    }
    // On a thread that may block: guards wait for processes.
    tokio::task::spawn_blocking(move || drop(bed)).await.context("the thread that takes down panicked")?;
    keep::nothing_is_left(testbed::run_dir::base()?)?;
    outcome
}

async fn tests(
    step_log: &mut StepLog,
    slot: &mut Option<Bed>,
    args: &Arguments,
    chosen: &[String],
    table: &Table,
) -> Result<Vec<Row>> {
    step_log::chapter("Bring up a LAN, a guest cluster with real nodes, and the Harvester side");
    let bed = slot.insert(Bed::up(step_log, &args.binary, KUBE_PROXY_MIN_SYNC, images::build).await?);
    install::install(step_log, bed, &mut Figures::default()).await?;
    step_log.step("dns", dns::serve(bed)).await?;
    step_log.step("client", async { place_client(bed) }).await?;
    step_log::chapter(&format!("{} tests of Kubernetes, {} at a time", chosen.len(), args.jobs));
    // After each test: what was seen is kept, however the run ends.
    let keep = |rows: &[Row]| keep_results(args, table.clone(), rows);
    let plan = suite::Plan { jobs: args.jobs, commit: &args.commit, table, output: &args.output };
    suite::run(step_log, bed, chosen, &plan, keep).await
}

/// The client host reaches the API, and the addresses of the LAN from outside the nodes' network, as through a router.
fn place_client(bed: &Bed) -> Result<((), String)> {
    let client = bed.lan.client();
    bed.control_plane.join(client)?;
    client.namespace().sysctl("net/ipv4/conf/eth0/arp_announce", "2")?;
    client.ip([
        format!("addr add {OUTSIDE}/32 dev lo"),
        format!("route replace {}/24 dev eth0 proto kernel scope link src {OUTSIDE}", bed.lan.ipv4(0)),
    ])?;
    for machine in &bed.machines {
        machine.host()?.ip([format!("route add {OUTSIDE}/32 via {}", client.ipv4())])?;
    }
    Ok(((), format!("the tests run on host {}, as client {OUTSIDE}", client.name())))
}

fn read(file: &Path) -> Result<Table> {
    match std::fs::read_to_string(file) {
        Ok(text) => serde_json::from_str(&text).with_context(|| format!("{} is no table", file.display())),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Table::default()),
        Err(error) => Err(error).with_context(|| format!("failed to read {}", file.display())),
    }
}

fn keep_results(args: &Arguments, mut table: Table, rows: &[Row]) -> Result<()> {
    let report = args.output.join("junit.xml");
    std::fs::write(&report, junit(rows)).with_context(|| format!("failed to write {}", report.display()))?;
    table.update(rows.iter().cloned());
    let text = serde_json::to_string_pretty(&table).context("failed to make JSON")? + "\n";
    if let Some(directory) = args.table.parent() {
        std::fs::create_dir_all(directory).with_context(|| format!("failed to create {}", directory.display()))?;
    }
    std::fs::write(&args.table, text).with_context(|| format!("failed to write {}", args.table.display()))
}
