//! A network namespace (with its own host name) that lives as long as its guard.

use std::ffi::OsStr;
use std::future::Future;
use std::io::Write;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;

use anyhow::{Context, Result, anyhow, bail};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use tokio::sync::oneshot;

use crate::process::{self, Process};
use crate::run_dir::RunDir;

type Job = Box<dyn FnOnce() + Send>;

/// A network namespace without a name in the file system: the kernel removes it with the last thing that holds it.
///
/// A thread of its own stands in it for as long as the guard lives. Processes are started from that thread: children
/// inherit its namespaces, and the kernel kills them when it ends.
#[derive(Debug)]
pub struct Namespace {
    name: String,
    network: OwnedFd,
    uts: OwnedFd,
    jobs: mpsc::Sender<Job>,
    dir: Arc<RunDir>,
}

impl Namespace {
    /// A new namespace with only `lo`, which is up. `name` becomes the host name that its processes see.
    pub fn new(name: &str, dir: &Arc<RunDir>) -> Result<Self> {
        // This is started outside of the namespace: threads that measure stalls would keep the namespace alive for
        // ever.
        crate::stall::begin();
        let (jobs, queue) = mpsc::channel::<Job>();
        let (ready, made) = mpsc::channel();
        let host_name = name.to_owned();
        std::thread::Builder::new()
            .name(format!("ns-{name}"))
            .spawn(move || {
                let made = become_a_namespace(&host_name);
                let failed = made.is_err();
                if ready.send(made).is_err() || failed {
                    return;
                }
                for job in queue {
                    job();
                }
            })
            .context("failed to start a thread")?;
        let (network, uts) = made
            .recv()
            .map_err(|_| anyhow!("the thread of namespace {name} ended at once"))?
            .with_context(|| format!("failed to create namespace {name}; the test-bed needs root"))?;
        let namespace = Self { name: name.into(), network, uts, jobs, dir: dir.clone() };
        namespace.ip(["link set lo up"])?;
        Ok(namespace)
    }

    /// The host name inside.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Where its processes log.
    pub fn dir(&self) -> &Arc<RunDir> {
        &self.dir
    }

    /// A path by which `ip ... netns PATH` and `nsenter --net=PATH` find it while this process lives.
    pub fn path(&self) -> PathBuf {
        format!("/proc/{}/fd/{}", std::process::id(), self.network.as_raw_fd()).into()
    }

    /// Runs `closure` on a thread inside and returns its result. Panics go on in the caller.
    pub fn run<T: Send + 'static>(&self, closure: impl FnOnce() -> T + Send + 'static) -> T {
        let thread = self.thread("closure", closure).expect("threads and namespaces are not exhausted");
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }

    /// Starts a thread inside.
    pub fn thread<T: Send + 'static>(
        &self,
        name: &str,
        closure: impl FnOnce() -> T + Send + 'static,
    ) -> Result<JoinHandle<T>> {
        let network = self.network.try_clone().context("failed to duplicate a file descriptor")?;
        let uts = self.uts.try_clone().context("failed to duplicate a file descriptor")?;
        let place = self.name.clone();
        std::thread::Builder::new()
            .name(format!("{name}@{place}"))
            .spawn(move || {
                enter(&network, &uts).unwrap_or_else(|error| panic!("failed to enter namespace {place}: {error}"));
                closure()
            })
            .context("failed to start a thread")
    }

    /// Runs a future on a thread inside, with a runtime of its own, until the guard is dropped or the future ends. The
    /// future is made by `make` on that thread, so that it need not be `Send`, and sockets opened in it belong to this
    /// namespace.
    pub fn task<F: Future<Output = ()>>(&self, name: &str, make: impl FnOnce() -> F + Send + 'static) -> Result<Task> {
        let (stop, stopped) = oneshot::channel::<()>();
        let thread = self.thread(name, move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .expect("a runtime needs only an epoll descriptor");
            runtime.block_on(async {
                tokio::select! {
                    _ = stopped => {}
                    () = async { make().await } => {}
                }
            });
            runtime.shutdown_background();
        })?;
        Ok(Task { stop: Some(stop), thread: Some(thread) })
    }

    /// Starts a program inside. Its output goes to `log/<namespace>.<name>.log` of the run directory.
    pub fn spawn(&self, name: &str, command: Command) -> Result<Process> {
        let full = format!("{}.{name}", self.name);
        let log = self.dir.log(&full);
        self.job(move || Process::spawn(&full, &command, &log))?
    }

    /// Runs a program inside to its end and returns what it printed.
    pub fn exec<S: AsRef<OsStr>>(&self, words: impl IntoIterator<Item = S>) -> Result<String> {
        let mut words = words.into_iter();
        let mut command = Command::new(words.next().context("no program named")?);
        command.args(words);
        let mut command = process::mortal(&command);
        let place = self.name.clone();
        // Not on the namespace's own thread: a slow program must not keep others from starting.
        self.run(move || process::run(command.stdin(Stdio::null()))).with_context(|| format!("on {place}"))
    }

    /// Runs `ip` commands inside, all in one process: `["link set eth0 up", ...]`. The first one that fails ends it.
    pub fn ip<S: AsRef<str>>(&self, lines: impl IntoIterator<Item = S>) -> Result<()> {
        let mut batch = String::new();
        for line in lines {
            batch.push_str(line.as_ref());
            batch.push('\n');
        }
        self.feed(&["ip", "-batch", "-"], batch)
    }

    /// Runs an nftables script inside.
    pub fn nft(&self, script: impl Into<String>) -> Result<()> {
        self.feed(&["nft", "-f", "-"], script.into())
    }

    /// Writes a kernel setting of this namespace, `net/ipv4/ip_forward` for example.
    pub fn sysctl(&self, key: &str, value: &str) -> Result<()> {
        let path = Path::new("/proc/sys").join(key);
        let value = value.to_owned();
        self.job(move || std::fs::write(&path, value).with_context(|| format!("failed to write {}", path.display())))?
    }

    /// What `ip -json <words>` says.
    pub fn ip_json(&self, words: &str) -> Result<Vec<serde_json::Value>> {
        let text = self.exec(["ip", "-json"].into_iter().chain(words.split_whitespace()))?;
        if text.trim().is_empty() {
            return Ok(Vec::new());
        }
        serde_json::from_str(&text).with_context(|| format!("ip -json {words} printed no JSON: {text}"))
    }

    fn feed(&self, program: &'static [&'static str], input: String) -> Result<()> {
        let place = self.name.clone();
        self.job(move || {
            let mut child = Command::new(program[0])
                .args(&program[1..])
                .stdin(Stdio::piped())
                .stdout(Stdio::null())
                .stderr(Stdio::piped())
                .spawn()
                .with_context(|| format!("failed to start {}", program[0]))?;
            child
                .stdin
                .take()
                .expect("standard input was asked for as a pipe")
                .write_all(input.as_bytes())
                .context("failed to write to a pipe")?;
            let output = child.wait_with_output().context("failed to wait for a child")?;
            if !output.status.success() {
                bail!(
                    "{} on {place} failed: {}; it was told:\n{input}",
                    program[0],
                    String::from_utf8_lossy(&output.stderr).trim()
                );
            }
            Ok(())
        })?
    }

    /// Runs a short closure on the namespace's own thread.
    fn job<T: Send + 'static>(&self, closure: impl FnOnce() -> T + Send + 'static) -> Result<T> {
        let (answer, result) = mpsc::channel();
        let job = Box::new(move || {
            let _ = answer.send(closure());
        });
        self.jobs.send(job).map_err(|_| anyhow!("the thread of namespace {} has ended", self.name))?;
        result.recv().map_err(|_| anyhow!("a job in namespace {} panicked", self.name))
    }
}

/// Something that runs inside a namespace until the guard is dropped.
#[derive(Debug)]
pub struct Task {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Task {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn become_a_namespace(host_name: &str) -> Result<(OwnedFd, OwnedFd)> {
    // `unshare` is deprecated because UnshareFlags::FILES lets a thread see stale descriptors; these two flags do not
    // touch them.
    #[allow(deprecated)]
    rustix::thread::unshare(rustix::thread::UnshareFlags::NEWNET | rustix::thread::UnshareFlags::NEWUTS)
        .context("failed to unshare the network and the host name")?;
    rustix::system::sethostname(host_name.as_bytes()).context("failed to set the host name")?;
    let open = |kind: &str| -> Result<OwnedFd> {
        let path = format!("/proc/thread-self/ns/{kind}");
        Ok(std::fs::File::open(&path).with_context(|| format!("failed to open {path}"))?.into())
    };
    Ok((open("net")?, open("uts")?))
}

fn enter(network: &OwnedFd, uts: &OwnedFd) -> std::io::Result<()> {
    move_into_link_name_space(network.as_fd(), Some(LinkNameSpaceType::Network))?;
    move_into_link_name_space(uts.as_fd(), Some(LinkNameSpaceType::HostNameAndNISDomainName))?;
    Ok(())
}
