//! The product's processes, as their pods would run them: arguments, environment and rights come from the chart, so
//! that the tests fail when it no longer fits the program.

use parking_lot::Mutex;
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Output};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::process::Signal;
use serde_json::Value;
use testbed::helm::{VERSIONS, chart};
use testbed::process::{Usage, confined, tail};
use testbed::{Helm, Host, Process, programs};

/// ServiceAccount of the cloud controller manager, in `kube-system`.
pub const CCM_ACCOUNT: &str = "harvester-cloud-provider";
/// ServiceAccount of the announcer, in `kube-system`.
pub const ANNOUNCER_ACCOUNT: &str = "kube-vip";

/// Overrides the program that is tested: `make bench` measures the one that is shipped.
pub const BINARY_VARIABLE: &str = "HCP_BINARY";

/// How long a process may take to end after SIGTERM.
const GRACE: Duration = Duration::from_secs(30);

/// What the chart renders for one of its two workloads.
#[derive(Debug)]
pub struct Manifest(Vec<Value>);

impl Manifest {
    /// Renders the chart, with a Secret for the cloud-config and these values, and keeps the objects that are called
    /// `name`.
    pub fn of(name: &str, values: &[String]) -> Result<Self> {
        let values = values.iter().flat_map(|value| ["--set-string", value]);
        let words: Vec<&str> = ["--set", "cloudConfig.secretName=cloud-config"].into_iter().chain(values).collect();
        let rendered = Helm::new(VERSIONS[0])?.template(&chart(), &words)?;
        Ok(Self(rendered.into_iter().filter(|document| document["metadata"]["name"] == *name).collect()))
    }

    /// Everything but the pods: accounts, roles, bindings.
    pub fn rights(&self) -> Vec<Value> {
        self.0.iter().filter(|document| !is_workload(document)).cloned().collect()
    }

    fn container(&self) -> Result<&Value> {
        let workload = self.0.iter().find(|document| is_workload(document)).context("the manifest has no workload")?;
        let container = &workload["spec"]["template"]["spec"]["containers"][0];
        if container.is_null() {
            bail!("the workload has no container");
        }
        Ok(container)
    }

    /// Arguments of its container.
    pub fn args(&self) -> Result<Vec<String>> {
        let args = self.container()?["args"].as_array().cloned().unwrap_or_default();
        Ok(args.iter().filter_map(Value::as_str).map(str::to_owned).collect())
    }

    /// Environment of its container; a value from `spec.nodeName` becomes `node`.
    pub fn env(&self, node: &str) -> Result<Vec<(String, String)>> {
        let variables = self.container()?["env"].as_array().cloned().unwrap_or_default();
        variables
            .iter()
            .map(|variable| {
                let name = variable["name"].as_str().context("a variable has no name")?.to_owned();
                if let Some(value) = variable["value"].as_str() {
                    return Ok((name, value.to_owned()));
                }
                match variable["valueFrom"]["fieldRef"]["fieldPath"].as_str() {
                    Some("spec.nodeName") => Ok((name, node.to_owned())),
                    other => bail!("variable {name} comes from {other:?}, which this fixture does not know"),
                }
            })
            .collect()
    }

    /// Capabilities that are added to its container after all were dropped, in lower case.
    pub fn capabilities(&self) -> Result<Vec<String>> {
        let capabilities = &self.container()?["securityContext"]["capabilities"];
        if capabilities["drop"] != serde_json::json!(["ALL"]) {
            bail!("the container keeps capabilities: {capabilities}");
        }
        let added = capabilities["add"].as_array().cloned().unwrap_or_default();
        Ok(added.iter().filter_map(Value::as_str).map(str::to_ascii_lowercase).collect())
    }
}

fn is_workload(document: &Value) -> bool {
    matches!(document["kind"].as_str(), Some("Deployment" | "DaemonSet"))
}

/// The program that is tested.
pub fn binary() -> Result<PathBuf> {
    match std::env::var_os(BINARY_VARIABLE) {
        Some(path) => std::fs::canonicalize(&path)
            .with_context(|| format!("{BINARY_VARIABLE}={} is not there; make release builds it", path.display())),
        None => programs::own("harvester-cloud-provider", "harvester-cloud-provider"),
    }
}

/// A program of ours that can be started many times; at most one process of it runs at a time.
#[derive(Debug)]
pub struct Program {
    name: String,
    binary: PathBuf,
    args: Mutex<Vec<String>>,
    env: Mutex<Vec<(String, String)>>,
    files: Mutex<Vec<(PathBuf, String)>>,
    capabilities: Vec<String>,
    process: Mutex<Option<Process>>,
}

impl Program {
    /// A program that does not run yet.
    pub fn new(name: &str, args: Vec<String>, env: Vec<(String, String)>, capabilities: Vec<String>) -> Result<Self> {
        Ok(Self {
            name: name.into(),
            binary: binary()?,
            args: Mutex::new(args),
            env: Mutex::new(env),
            files: Mutex::default(),
            capabilities,
            process: Mutex::default(),
        })
    }

    /// A second program with the same arguments, environment and rights, as a replica on another host.
    pub fn twin(&self) -> Self {
        Self {
            name: self.name.clone(),
            binary: self.binary.clone(),
            args: Mutex::new(self.args.lock().clone()),
            env: Mutex::new(self.env.lock().clone()),
            files: Mutex::new(self.files.lock().clone()),
            capabilities: self.capabilities.clone(),
            process: Mutex::default(),
        }
    }

    /// Capabilities that it has after all others were dropped, in lower case.
    pub fn capabilities(&self) -> &[String] {
        &self.capabilities
    }

    /// To act with it on a host.
    pub fn on<'a>(&'a self, host: &'a Host) -> Handle<'a> {
        Handle { host, program: self }
    }

    /// The command as a container with `readOnlyRootFilesystem` and dropped capabilities would run it: root with
    /// nothing but the capabilities named, `/` and `/proc/sys` read-only.
    fn command(&self) -> Command {
        let mut command = Command::new(&self.binary);
        // The program never gets the KUBECONFIG of the machine's user. It gets what a test sets.
        command.env_remove("KUBECONFIG").env("RUST_BACKTRACE", "1");
        command.args(&*self.args.lock()).envs(self.env.lock().iter().cloned());
        let capabilities: Vec<&str> = self.capabilities.iter().map(String::as_str).collect();
        let confined = confined(&command, &capabilities);
        let mut wrapped = Command::new("unshare");
        let files = self.files.lock();
        let files = files.iter().map(|(own, at)| format!("mount --bind {} {at} && ", own.display()));
        let files = files.collect::<Vec<_>>().concat();
        wrapped
            .args(["--mount", "--", "sh", "-c"])
            .arg(format!(
                "{files}mount -o remount,bind,ro / && mount --bind /proc/sys /proc/sys && \
                 mount -o remount,bind,ro /proc/sys && exec \"$@\""
            ))
            .arg(&self.name)
            .arg(confined.get_program())
            .args(confined.get_args());
        for (key, value) in confined.get_envs() {
            match value {
                Some(value) => wrapped.env(key, value),
                None => wrapped.env_remove(key),
            };
        }
        wrapped
    }
}

/// A program and the host on which it runs.
#[derive(Debug, Clone, Copy)]
pub struct Handle<'a> {
    pub(crate) host: &'a Host,
    pub(crate) program: &'a Program,
}

impl<'a> Handle<'a> {
    /// The program.
    pub fn program(&self) -> &'a Program {
        self.program
    }
}

impl Handle<'_> {
    /// Starts it; fails if it runs already. Output is appended to the log of earlier lives.
    pub fn start(&self) -> Result<()> {
        let mut slot = self.program.process.lock();
        if slot.as_ref().is_some_and(|process| process.ended().is_none()) {
            bail!("{} on {} runs already", self.program.name, self.host.name());
        }
        *slot = Some(self.host.spawn(&self.program.name, self.program.command())?);
        Ok(())
    }

    /// Runs one of its commands on the same host, with the arguments and environment of the program and these, to its
    /// end.
    pub fn run_beside(&self, word: &str, more: &[&str]) -> Result<Output> {
        let mut command = Command::new(&self.program.binary);
        command.arg(word).args(&*self.program.args.lock()).args(more).envs(self.program.env.lock().iter().cloned());
        command.env_remove("KUBECONFIG");
        Ok(self.host.run(move || command.output())?)
    }

    /// Runs one of its commands on the same host with its rights on the guest cluster, as `kubectl exec` into its pod
    /// does; what it printed. Fails with its complaint if it fails.
    pub fn exec(&self, words: &[&str]) -> Result<String> {
        let mut command = Command::new(&self.program.binary);
        command.args(words).env_remove("KUBECONFIG");
        command.args(self.program.args.lock().iter().filter(|arg| arg.starts_with("--kubeconfig=")));
        let output = self.host.run(move || command.output())?;
        if !output.status.success() {
            bail!("{words:?} ended with {}: {}", output.status, String::from_utf8_lossy(&output.stderr));
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// SIGTERM, as the kubelet does, and waits for the end.
    pub fn stop(&self) -> Result<ExitStatus> {
        self.with(|process| process.stop(GRACE))
    }

    /// SIGTERM, without waiting: see [`Handle::wait`].
    pub fn terminate(&self) -> Result<()> {
        self.with(|process| process.signal(Signal::TERM))
    }

    /// [`Handle::stop`], [`Handle::start`].
    pub fn restart(&self) -> Result<()> {
        self.stop()?;
        self.start()
    }

    /// SIGKILL: a crash.
    pub fn kill(&self) {
        drop(self.program.process.lock().take());
    }

    /// SIGSTOP: it hangs.
    pub fn pause(&self) -> Result<()> {
        self.with(Process::pause)
    }

    /// SIGCONT.
    pub fn resume(&self) -> Result<()> {
        self.with(Process::resume)
    }

    /// Fails with the end of its log if it does not run.
    pub fn check(&self) -> Result<()> {
        self.with(Process::check)
    }

    /// Waits for its end.
    pub fn wait(&self, deadline: Duration) -> Result<Option<ExitStatus>> {
        self.with(|process| Ok(process.wait(deadline)))
    }

    /// Memory and processor time so far.
    pub fn usage(&self) -> Result<Usage> {
        self.with(Process::usage)
    }

    /// Adds an argument, or replaces the one of the same flag (`--flag=value`), from the next start on.
    pub fn set_arg(&self, arg: &str) {
        self.unset_arg(arg.split_once('=').map_or(arg, |(flag, _)| flag));
        self.program.args.lock().push(arg.to_owned());
    }

    /// Takes a flag away, from the next start on.
    pub fn unset_arg(&self, flag: &str) {
        let mut args = self.program.args.lock();
        args.retain(|known| known.split_once('=').map_or(known.as_str(), |(flag, _)| flag) != flag);
    }

    /// Sets a variable of its environment from the next start on.
    pub fn set_env(&self, name: &str, value: &str) {
        let mut env = self.program.env.lock();
        env.retain(|(known, _)| known != name);
        env.push((name.to_owned(), value.to_owned()));
    }

    /// From the next start on it finds this file in the place of one that the machine has, as the kubelet mounts
    /// `/etc/resolv.conf`.
    pub fn set_file(&self, own: PathBuf, at: &str) {
        self.program.files.lock().push((own, at.to_owned()));
    }

    /// The host on which it runs.
    pub fn host(&self) -> &Host {
        self.host
    }

    /// The last `lines` of its log over all lives, for messages. Tests assert on what a user sees, not on this.
    pub fn log_tail(&self, lines: usize) -> String {
        tail(&self.host.namespace().dir().log(&format!("{}.{}", self.host.name(), self.program.name)), lines)
    }

    fn with<T>(&self, act: impl FnOnce(&Process) -> Result<T>) -> Result<T> {
        let slot = self.program.process.lock();
        act(slot.as_ref().with_context(|| format!("{} on {} was not started", self.program.name, self.host.name()))?)
    }
}
