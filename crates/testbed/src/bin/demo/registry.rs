//! What demos are there: a small file per run, so that `demo down` and `demo exec` find it.

use std::collections::BTreeMap;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal};
use serde::{Deserialize, Serialize};
use testbed::run_dir::start_time;
use testbed::wait_until;

/// One run of the demo.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Entry {
    /// The process that holds everything.
    pub pid: i32,
    /// When it started, in clock ticks since boot: a pid alone may belong to somebody else by now.
    pub started: u64,
    /// The run is over and the bed was left up on request.
    pub kept: bool,
    /// Whether every step held.
    pub held: bool,
    /// Where its logs, keys and data are.
    pub directory: PathBuf,
    /// How to enter hosts: options of `nsenter`.
    pub hosts: BTreeMap<String, Vec<String>>,
}

/// The file of a run; removed with the guard.
#[derive(Debug)]
pub struct Registration {
    path: PathBuf,
    entry: Entry,
}

impl Registration {
    /// Makes this process known.
    pub fn new() -> Result<Self> {
        let pid = rustix::process::getpid().as_raw_nonzero().get();
        let entry = Entry {
            pid,
            started: start_time(pid.unsigned_abs()).context("failed to read our own start time")?,
            kept: false,
            held: false,
            directory: testbed::run_dir::base()?.to_owned(),
            hosts: BTreeMap::new(),
        };
        let registration = Self { path: directory().join(format!("{pid}.json")), entry };
        registration.write()?;
        Ok(registration)
    }

    /// The run is over; what was built stays up.
    pub fn keep(&mut self, held: bool, hosts: BTreeMap<String, Vec<String>>) -> Result<()> {
        self.entry.kept = true;
        self.entry.held = held;
        self.entry.hosts = hosts;
        self.write()
    }

    fn write(&self) -> Result<()> {
        let text = serde_json::to_string_pretty(&self.entry).context("failed to make JSON")?;
        std::fs::create_dir_all(directory()).with_context(|| format!("failed to create {}", directory().display()))?;
        // Readers see the old or the new one, never a half.
        let new = self.path.with_extension("new");
        std::fs::write(&new, text)
            .and_then(|()| std::fs::rename(&new, &self.path))
            .with_context(|| format!("failed to write {}", self.path.display()))
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
        let _ = std::fs::remove_dir(directory()); // refuses while others are in it
    }
}

/// The entry that process `pid` wrote, if any.
pub fn entry_of(pid: u32) -> Option<Entry> {
    read(&directory().join(format!("{pid}.json"))).ok()
}

/// Ends kept runs and removes what crashed ones left; with `all` also those that still go on.
pub fn down(all: bool) -> Result<()> {
    let mut seen = 0;
    for path in files()? {
        let entry = read(&path)?;
        seen += 1;
        if start_time(entry.pid.unsigned_abs()) == Some(entry.started) {
            if !entry.kept && !all {
                println!(
                    "process {} is still running; it cleans up by itself (end it with: demo down --all)",
                    entry.pid
                );
                continue;
            }
            let pid = Pid::from_raw(entry.pid).context("the registry holds a process id of 0")?;
            rustix::process::kill_process(pid, Signal::TERM)
                .with_context(|| format!("failed to end process {}", entry.pid))?;
            wait_until(&format!("demo {} to take everything down", entry.pid), Duration::from_mins(1), || {
                if start_time(entry.pid.unsigned_abs()) == Some(entry.started) {
                    Err("it still runs".to_owned())
                } else {
                    Ok(())
                }
            })?;
            println!("demo {} is down", entry.pid);
        } else {
            println!("demo {} crashed", entry.pid);
        }
        remove_leftovers(&entry)?;
        let _ = std::fs::remove_file(&path);
    }
    if seen == 0 {
        println!("nothing to take down");
    }
    Ok(())
}

/// Processes and namespaces of a dead demo are gone already; the janitor removes the rest, unless it was killed as
/// well.
fn remove_leftovers(entry: &Entry) -> Result<()> {
    let name = entry.directory.file_name().unwrap_or_default().to_string_lossy().into_owned();
    ensure!(name.starts_with(testbed::run_dir::PREFIX), "{} is no directory of a demo", entry.directory.display());
    let find = format!("find /sys/fs/cgroup -depth -type d -path '*/{name}-*' -exec rmdir {{}} + 2>/dev/null || true");
    wait_until(&format!("what is left of demo {} to go", entry.pid), Duration::from_secs(30), || {
        testbed::process::run(Command::new("sh").args(["-c", &find])).map_err(|error| format!("{error:#}"))?;
        match std::fs::remove_dir_all(&entry.directory) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(format!("{}: {error}", entry.directory.display()))
            }
            _ => Ok(()),
        }
    })
}

/// Becomes `command` on a host of a kept run.
pub fn exec(host: &str, command: &[String]) -> Result<()> {
    let entries: Vec<Entry> = files()?.iter().filter_map(|path| read(path).ok()).filter(|entry| entry.kept).collect();
    let Some(entry) = entries.last() else { bail!("no demo is up; start one with: make demo KEEP=1") };
    let names: Vec<&str> = entry.hosts.keys().map(String::as_str).collect();
    let options =
        entry.hosts.get(host).with_context(|| format!("there is no host {host:?}; there are: {}", names.join(", ")))?;
    let shell = ["sh".to_owned()];
    let command = if command.is_empty() { &shell } else { command };
    let error = Command::new("nsenter").args(options).arg("--").args(command).exec();
    Err(error).context("failed to start nsenter")
}

fn directory() -> PathBuf {
    std::env::temp_dir().join("hcp-demo")
}

fn files() -> Result<Vec<PathBuf>> {
    let entries = match std::fs::read_dir(directory()) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other.with_context(|| format!("failed to read {}", directory().display()))?,
    };
    let mut files: Vec<PathBuf> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|e| e == "json"))
        .collect();
    files.sort();
    Ok(files)
}

fn read(path: &Path) -> Result<Entry> {
    let text = std::fs::read_to_string(path).with_context(|| format!("failed to read {}", path.display()))?;
    serde_json::from_str(&text).with_context(|| format!("{} is not a file of ours", path.display()))
}
