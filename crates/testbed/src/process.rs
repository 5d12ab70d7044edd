//! Processes that end with their guard, and with us.

use parking_lot::Mutex;
use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal};

use crate::run_dir::{Leftover, remove_at_the_end};
use crate::stall;

/// A running program. Dropping it kills it and everything in its process group.
#[derive(Debug)]
pub struct Process {
    name: String,
    pid: u32,
    log: PathBuf,
    state: Mutex<State>,
    /// Time in which it waits for a processor is nobody's fault.
    _watched: Arc<stall::Watched>,
}

#[derive(Debug)]
struct State {
    child: Child,
    ended: Option<ExitStatus>,
}

impl Process {
    /// Starts `command` from the calling thread: the kernel kills it when that thread ends. Output is appended to
    /// `log`.
    pub fn spawn(name: &str, command: &Command, log: &Path) -> Result<Self> {
        let output = open_log(log)?;
        let errors = output.try_clone().context("failed to duplicate a file descriptor")?;
        let child = mortal(command)
            .stdin(Stdio::null())
            .stdout(output)
            .stderr(errors)
            .spawn()
            .with_context(|| format!("failed to start {name} ({})", command.get_program().display()))?;
        let pid = child.id();
        let state = Mutex::new(State { child, ended: None });
        let process = Self { name: name.into(), pid, log: log.into(), state, _watched: stall::watch(name, pid) };
        // From here on the guard kills it, also if the janitor cannot be told.
        remove_at_the_end(Leftover::Process(pid))?;
        Ok(process)
    }

    /// The name it was started under.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its process id, as seen from here.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Where its output goes.
    pub fn log(&self) -> &Path {
        &self.log
    }

    /// The last `lines` of its output, for error messages.
    pub fn log_tail(&self, lines: usize) -> String {
        tail(&self.log, lines)
    }

    /// How it ended, if it has.
    pub fn ended(&self) -> Option<ExitStatus> {
        let mut state = self.state.lock();
        if state.ended.is_none() {
            state.ended = state.child.try_wait().ok().flatten();
        }
        state.ended
    }

    /// Fails with the end of its log if it no longer runs.
    pub fn check(&self) -> Result<()> {
        match self.ended() {
            None => Ok(()),
            Some(status) => {
                bail!("{} ended ({status}); {} ends with:\n{}", self.name, self.log.display(), self.log_tail(15))
            }
        }
    }

    /// Sends a signal to it alone.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        let mut state = self.state.lock();
        if state.ended.is_none() {
            state.ended = state.child.try_wait().ok().flatten();
        }
        if state.ended.is_some() {
            return Ok(()); // its pid may belong to somebody else by now
        }
        rustix::process::kill_process(self.raw_pid(), signal).with_context(|| format!("failed to signal {}", self.name))
    }

    /// Stops it as SIGSTOP does: nothing of it runs, the kernel's part of it goes on.
    pub fn pause(&self) -> Result<()> {
        self.signal(Signal::STOP)
    }

    /// Lets a paused process go on.
    pub fn resume(&self) -> Result<()> {
        self.signal(Signal::CONT)
    }

    /// SIGKILL for it and its process group, and waits until it is gone.
    pub fn kill(&self) {
        let mut state = self.state.lock();
        if state.ended.is_none() {
            let _ = rustix::process::kill_process_group(self.raw_pid(), Signal::KILL);
            state.ended = state.child.wait().ok();
        }
    }

    /// SIGTERM, then SIGKILL if it has not ended after `grace`.
    pub fn stop(&self, grace: Duration) -> Result<ExitStatus> {
        self.signal(Signal::TERM)?;
        if let Some(status) = self.wait(grace) {
            return Ok(status);
        }
        self.kill();
        bail!("{} did not end within {:.1} s after SIGTERM and was killed", self.name, grace.as_secs_f64())
    }

    /// Waits for its end.
    pub fn wait(&self, deadline: Duration) -> Option<ExitStatus> {
        let start = Instant::now();
        loop {
            if let Some(status) = self.ended() {
                return Some(status);
            }
            if start.elapsed() >= deadline {
                return None;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Resident memory and processor time used so far.
    pub fn usage(&self) -> Result<Usage> {
        Usage::of(self.pid)
    }

    fn raw_pid(&self) -> Pid {
        Pid::from_raw(i32::try_from(self.pid).expect("process ids are positive i32"))
            .expect("a child's pid is not zero")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// What a process costs.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct Usage {
    /// Resident set, in bytes.
    pub rss_bytes: u64,
    /// Processor time of user and kernel, in milliseconds.
    pub cpu_ms: u64,
}

impl Usage {
    /// Reads it from `/proc`.
    pub fn of(pid: u32) -> Result<Self> {
        let read = |file: &str| {
            std::fs::read_to_string(format!("/proc/{pid}/{file}"))
                .with_context(|| format!("failed to read /proc/{pid}/{file}"))
        };
        Self::parse(&read("status")?, &read("stat")?).with_context(|| format!("process {pid} has ended"))
    }

    /// From the contents of `/proc/<pid>/status` and `/proc/<pid>/stat`; `None` for a process that has ended.
    pub fn parse(status: &str, stat: &str) -> Option<Self> {
        let rss_kib: u64 =
            status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?.split_whitespace().next()?.parse().ok()?;
        // The program's name may contain spaces and brackets; fields are counted after its closing bracket. 1 tick = 10
        // ms.
        let fields: Vec<&str> = stat.rsplit_once(") ")?.1.split(' ').collect();
        let ticks = |n: usize| fields.get(n).and_then(|field| field.parse::<u64>().ok());
        Some(Self { rss_bytes: rss_kib * 1024, cpu_ms: (ticks(11)? + ticks(12)?) * 10 })
    }
}

/// The same command with only the capabilities named (`net_admin`, ...), as a container with `drop: [ALL]` gets them.
pub fn confined(command: &Command, capabilities: &[&str]) -> Command {
    let mut bounding = "-all".to_owned();
    for capability in capabilities {
        bounding.push_str(",+");
        bounding.push_str(capability);
    }
    let options = ["--no-new-privs", "--inh-caps=-all", "--bounding-set", &bounding, "--"];
    wrap("setpriv", options, command)
}

/// Runs a command to its end; the error carries what it wrote to standard error.
pub fn run(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("failed to start {}", command.get_program().display()))?;
    if !output.status.success() {
        bail!("{} failed ({}): {}", describe(command), output.status, String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// A command line as a person would type it.
fn describe(command: &Command) -> String {
    let mut words =
        vec![Path::new(command.get_program()).file_name().unwrap_or_default().to_string_lossy().into_owned()];
    words.extend(command.get_args().map(|arg| arg.to_string_lossy().into_owned()));
    words.join(" ")
}

/// The last lines of a file.
pub fn tail(path: &Path, lines: usize) -> String {
    let text = std::fs::read(path).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let all: Vec<&str> = text.lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}

fn open_log(path: &Path) -> Result<File> {
    OpenOptions::new()
        .create(true)
        .append(true)
        .open(path)
        .with_context(|| format!("failed to open {}", path.display()))
}

/// Killed by the kernel when the starting thread ends; out of reach of Ctrl-C, so that guards decide about the order.
pub(crate) fn mortal(command: &Command) -> Command {
    let mut wrapped = wrap("setpriv", ["--pdeathsig", "KILL", "--"], command);
    wrapped.process_group(0);
    wrapped
}

fn wrap<S: AsRef<OsStr>>(program: &str, options: impl IntoIterator<Item = S>, command: &Command) -> Command {
    let mut wrapped = Command::new(program);
    wrapped.args(options).arg(command.get_program()).args(command.get_args());
    for (key, value) in command.get_envs() {
        match value {
            Some(value) => wrapped.env(key, value),
            None => wrapped.env_remove(key),
        };
    }
    if let Some(dir) = command.get_current_dir() {
        wrapped.current_dir(dir);
    }
    wrapped
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run_dir::RunDir;

    #[test]
    fn usage_is_read_behind_a_name_with_brackets() {
        let stat = "7 (a) b) S 1 7 7 0 -1 4194560 100 0 0 0 12 30 0 0 20 0 1 0 55 1 2 3";
        let usage = Usage::parse("Name:\ta) b\nVmRSS:\t    2048 kB\n", stat).unwrap();
        assert_eq!(usage, Usage { rss_bytes: 2_097_152, cpu_ms: 420 });
        assert_eq!(Usage::parse("Name:\tzombie\n", stat), None);
    }

    #[test]
    fn a_process_that_ended_says_how_and_shows_the_end_of_its_log() {
        let dir = RunDir::new("process").unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", "echo before the end; exit 3"]);
        let process = Process::spawn("short", &command, &dir.log("short")).unwrap();
        assert_eq!(process.wait(Duration::from_secs(10)).and_then(|status| status.code()), Some(3));
        let error = process.check().unwrap_err().to_string();
        assert!(error.contains("exit status: 3") && error.contains("before the end"), "{error}");
    }

    #[test]
    fn dropping_a_process_ends_its_children_too() {
        let dir = RunDir::new("process").unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 1000 & echo $!; wait"]);
        let process = Process::spawn("parent", &command, &dir.log("parent")).unwrap();
        let child: u32 = crate::wait_until("the child's pid", Duration::from_secs(10), || {
            let said = process.log_tail(1);
            said.trim().parse().map_err(|_| said)
        })
        .unwrap();
        drop(process);
        crate::wait_until("the child to be gone", Duration::from_secs(10), || match Usage::of(child) {
            Ok(_) => Err(format!("{child} lives")),
            Err(_) => Ok(()),
        })
        .unwrap();
    }
}
