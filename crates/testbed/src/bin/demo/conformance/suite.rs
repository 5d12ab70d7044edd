//! The suite's program: what it can run, and running it, one process per test.

use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use jiff::Timestamp;
use testbed::conformance::{Outcome, Row, Table, judged, quoted, selected};
use testbed::process::run as run_to_end;
use testbed::{Process, programs};

use crate::bed::Bed;
use crate::step_log::StepLog;

/// What `dev/tools.sh --conformance` gets.
pub const PROGRAMS: [&str; 3] = ["e2e.test", "agnhost", "coredns"];
/// The rolling updates take a quarter of an hour; the suite itself waits for a load balancer for as long.
const LIMIT: Duration = Duration::from_mins(25);
/// What a test that never ran is believed to take.
const UNKNOWN: f64 = 120.0;
/// How often it is looked whether a test has ended.
const LOOK: Duration = Duration::from_millis(250);

/// Names of the images that tests ask for.
pub struct Names {
    /// Nearly every pod's.
    pub agnhost: String,
    /// What only sleeps.
    pub pause: String,
}

/// The tests that concern load balancers.
pub fn tests() -> Result<Vec<String>> {
    selected(&asked("--list-tests")?)
}

/// The images that the suite names itself.
pub fn images() -> Result<Names> {
    let list = asked("--list-images")?;
    let newest = |part: &str| {
        let names = list.lines().map(str::trim).filter(|name| name.contains(part));
        let version = |name: &&str| -> Vec<u32> {
            let tag = name.rsplit_once(':').map_or("", |(_, tag)| tag);
            tag.split(['.', '-']).map(|number| number.parse().unwrap_or_default()).collect()
        };
        names.max_by_key(version).map(str::to_owned).with_context(|| format!("the suite names no image {part}"))
    };
    Ok(Names { agnhost: newest("registry.k8s.io/e2e-test-images/agnhost:")?, pause: newest("registry.k8s.io/pause:")? })
}

/// Of what ran.
pub fn versions() -> Result<BTreeMap<String, String>> {
    let said = |program: &str, word: &str, prefix: &str| -> Result<String> {
        let text = run_to_end(Command::new(programs::tool(program)?).arg(word))?;
        let version = text.split_whitespace().find_map(|word| word.strip_prefix(prefix));
        version.map(str::to_owned).with_context(|| format!("{program} names no version: {text}"))
    };
    let versions = [("kubernetes", "kube-apiserver", "--version", "v"), ("coredns", "coredns", "-version", "CoreDNS-")];
    versions
        .into_iter()
        .map(|(what, program, word, prefix)| Ok((what.to_owned(), said(program, word, prefix)?)))
        .collect()
}

fn asked(word: &str) -> Result<String> {
    // Where it finds no cluster it says so at length on standard error, and that is fine.
    run_to_end(Command::new(programs::tool("e2e.test")?).arg(word))
}

/// A test that runs.
struct Running {
    name: String,
    process: Process,
    report: PathBuf,
    begun: Instant,
}

/// How to run them.
pub struct Plan<'a> {
    /// So many at a time.
    pub jobs: usize,
    /// The build that they are tried with.
    pub commit: &'a str,
    /// What became of them before.
    pub table: &'a Table,
    /// Where their output goes.
    pub output: &'a Path,
}

impl Plan<'_> {
    /// How long a test will take, by the last time.
    fn expected(&self, name: &str) -> f64 {
        self.table.seconds(name).unwrap_or(UNKNOWN)
    }

    /// Minutes until all have ended.
    fn minutes_left(&self, running: &[Running], waiting: &VecDeque<(usize, String)>) -> f64 {
        let left = |test: &Running| (self.expected(&test.name) - test.begun.elapsed().as_secs_f64()).max(5.0);
        let left: Vec<f64> =
            running.iter().map(left).chain(waiting.iter().map(|(_, name)| self.expected(name))).collect();
        let together = left.iter().sum::<f64>() / count(self.jobs);
        // An empty sum is minus zero.
        (left.into_iter().fold(together, f64::max) / 60.0).ceil() + 0.0
    }
}

/// Runs them, the longest first. `keep` gets all rows so far whenever there is one more.
pub async fn run(
    step_log: &StepLog,
    bed: &Bed,
    names: &[String],
    plan: &Plan<'_>,
    keep: impl Fn(&[Row]) -> Result<()>,
) -> Result<Vec<Row>> {
    let mut waiting: Vec<String> = names.to_vec();
    waiting.sort_by(|a, b| plan.expected(b).total_cmp(&plan.expected(a)));
    let mut waiting: VecDeque<(usize, String)> = waiting.into_iter().enumerate().collect();
    let (mut running, mut rows) = (Vec::<Running>::new(), Vec::<Row>::new());
    while !(waiting.is_empty() && running.is_empty()) {
        while running.len() < plan.jobs.max(1)
            && let Some((number, name)) = waiting.pop_front()
        {
            running.push(start(bed, number + 1, name, plan.output)?);
        }
        tokio::time::sleep(LOOK).await;
        let (ended, others): (Vec<Running>, Vec<Running>) = running.into_iter().partition(Running::is_over);
        running = others;
        for test in ended {
            let row = test.row(plan.commit);
            step_log.tell(&format!(
                "{:>2}/{} {:7} {:>4.0} s  {}  ({} running, about {:.0} min left)",
                rows.len() + 1,
                names.len(),
                row.result.word(),
                row.seconds,
                row.name,
                running.len(),
                plan.minutes_left(&running, &waiting)
            ));
            rows.push(row);
            keep(&rows)?;
        }
    }
    rows.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(rows)
}

#[allow(clippy::cast_precision_loss)] // a handful
fn count(jobs: usize) -> f64 {
    jobs.max(1) as f64
}

fn start(bed: &Bed, number: usize, name: String, output: &Path) -> Result<Running> {
    let output = std::path::absolute(output).with_context(|| format!("{} is no path", output.display()))?;
    let report = output.join(format!("{number:02}.json"));
    let _ = std::fs::remove_file(&report);
    let mut command = Command::new(programs::tool("e2e.test")?);
    command
        .current_dir(&output)
        .arg(format!("--kubeconfig={}", bed.control_plane.admin()?.inside.display()))
        .arg(format!("--kubectl-path={}", programs::tool("kubectl")?.display()))
        .args(["--provider=skeleton", "--cluster-ip-range=10.96.0.0/16"])
        .arg(format!("--e2e-output-dir={}", output.display()))
        .arg(format!("--ginkgo.focus={}$", quoted(&name)))
        .args(["--ginkgo.v", "--ginkgo.no-color", "--ginkgo.timeout=24m"])
        .arg(format!("--ginkgo.json-report={}", report.display()));
    let process = bed.lan.client().spawn(&format!("e2e-{number:02}"), command)?;
    // Beside the report, where it outlives the bed.
    let log = output.join(format!("{number:02}.log"));
    let _ = std::fs::remove_file(&log);
    std::fs::hard_link(process.log(), &log)
        .or_else(|_| std::os::unix::fs::symlink(process.log(), &log))
        .with_context(|| format!("failed to create {}", log.display()))?;
    Ok(Running { name, process, report, begun: Instant::now() })
}

impl Running {
    fn is_over(&self) -> bool {
        self.process.ended().is_some() || self.begun.elapsed() > LIMIT
    }

    fn row(self, commit: &str) -> Row {
        let Self { name, process, report, begun } = self;
        let elapsed = (begun.elapsed().as_secs_f64() * 10.0).round() / 10.0;
        let lost = |why: String| (Outcome::Lost, elapsed, Some(why));
        let (result, seconds, why) = match process.ended() {
            None => lost(format!("it did not end within {} s", LIMIT.as_secs())),
            Some(status) => {
                let text = std::fs::read_to_string(&report).context("there is no report");
                text.and_then(|text| judged(&text)).unwrap_or_else(|error| {
                    lost(format!("{status}, {error:#}; its output ends with:\n{}", process.log_tail(10)))
                })
            }
        };
        let _ = std::fs::remove_file(&report);
        let date = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        Row { name, result, seconds, why, commit: commit.to_owned(), date }
    }
}
