//! A machine: one set of namespaces (net, mount, pid, uts, ipc, cgroup) with its own containerd, kubelet and
//! kube-proxy.
//!
//! The pid namespace is the power switch. Killing its first process takes the daemons, the shims and the pods with it;
//! the mount namespace dies with them, and only empty cgroups and the network namespace are left, which guards remove.

use parking_lot::{Mutex, MutexGuard};
use std::ffi::OsStr;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::jiff::Timestamp;
use kube::api::Api;

use crate::addresses::{MANAGEMENT_PREFIX, lan4, lan6, pod4};
use crate::cluster::control_plane::ControlPlane;
use crate::cluster::sim_node::ProxyMode;
use crate::net::host::Host;
use crate::net::lan::Lan;
use crate::net::segment::Segment;
use crate::node::cgroups::{CgroupVersion, Cgroups};
use crate::node::config;
use crate::process::{Process, Usage, mortal, run};
use crate::programs;
use crate::run_dir::RunDir;
use crate::wait::wait_for;

const INIT: &str = include_str!("init.sh");
/// All pods of a cluster of machines. IPv4 only, like the pod network that the CNI files make.
pub(super) const PODS: &str = "10.244.0.0/16";

/// What a machine shall be.
#[derive(Debug, Clone)]
pub struct MachineSpec {
    /// Its name, as host and as Node.
    pub name: String,
    /// From 1; the LAN address is `.10+number`, the pods are `10.244.<number>.0/24`.
    pub number: u8,
    /// How many machines there are: each gets routes to the pods of all others.
    pub of: u8,
    /// `--cloud-provider=external`.
    pub external_cloud_provider: bool,
    /// kube-proxy's mode.
    pub proxy: ProxyMode,
    /// The least time between two updates of kube-proxy's rules. Its default is a second, which is then the least time
    /// from a new Service to its first reply: the Service itself causes one update, its address the next.
    pub proxy_min_sync: Duration,
    /// Archives of images that it imports when it boots.
    pub images: Vec<PathBuf>,
}

/// A machine, with or without power. Dropping it destroys it, disk and all.
#[derive(Debug)]
pub struct Machine {
    pub(super) spec: MachineSpec,
    running: Mutex<Option<Running>>,
    segment: Arc<Segment>,
    management: Arc<Segment>,
    management_address: Ipv4Addr,
    subnet: u8,
    pub(super) config: PathBuf,
    disk: PathBuf,
    script: PathBuf,
    pub(super) dir: Arc<RunDir>,
}

#[derive(Debug)]
struct Running {
    /// Outside: the `unshare` that waits for process 1.
    outer: Process,
    host: Arc<Host>,
    booted: Timestamp,
    _cgroups: Cgroups,
}

impl Machine {
    /// Makes its disk and configuration, joins it to the control plane and switches it on. It returns while the machine
    /// still boots: see [`Machine::wait_until_ready`].
    pub fn boot(spec: MachineSpec, lan: &Lan, control_plane: &ControlPlane) -> Result<Self> {
        let dir = RunDir::new(&spec.name)?;
        let management_address = control_plane.next_management_address();
        let server = control_plane.api_server_of(spec.number.into());
        let kubelet =
            server.user(&format!("kubelet-{}", spec.name), &format!("system:node:{}", spec.name), &["system:nodes"])?;
        let proxy = server.user("system_kube-proxy", "system:kube-proxy", &[])?;
        let address = lan4(lan.subnet(), 10 + spec.number);
        let serving = server.authority().issue(
            &format!("system:node:{}", spec.name),
            &["system:nodes"],
            &[address.into()],
            &[&spec.name],
        )?;
        let config = dir.path().join("config");
        if spec.proxy == ProxyMode::None {
            bail!("a machine without kube-proxy serves nothing: choose nftables or iptables");
        }
        let json = |value: serde_json::Value| value.to_string();
        dir.write("config/cni/10-pods.conflist", json(config::cni(&format!("{}/24", pod4(spec.number, 0)))))?;
        dir.write("config/containerd.toml", config::containerd(&config))?;
        dir.write(
            "config/kubelet.json",
            json(config::kubelet(&config, &control_plane.ca_file(), Ipv4Addr::new(10, 96, 0, 10))),
        )?;
        dir.write("config/kubelet.crt", serving.certificate_pem)?;
        dir.write("config/kubelet.key", serving.key_pem)?;
        copy(&kubelet.inside, &config.join("kubelet.kubeconfig"))?;
        copy(&proxy.inside, &config.join("kube-proxy.kubeconfig"))?;
        let script = dir.write("init.sh", INIT)?;
        // The API server speaks to kubelets by their LAN address: logs, exec, port-forward.
        control_plane.namespace().ip([format!("route replace {address}/32 via {management_address}")])?;
        let machine = Self {
            running: Mutex::new(None),
            segment: lan.segment().clone(),
            management: control_plane.management().clone(),
            management_address,
            subnet: lan.subnet(),
            config,
            disk: dir.path().join("disk"),
            script,
            dir,
            spec,
        };
        machine.write_proxy_config(machine.spec.proxy_min_sync)?;
        machine.power_on()?;
        Ok(machine)
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.spec.name
    }

    /// Its address on the LAN.
    pub fn ipv4(&self) -> Ipv4Addr {
        lan4(self.subnet, 10 + self.spec.number)
    }

    /// Its MAC on the LAN; the same after every boot.
    pub fn mac(&self) -> String {
        format!("02:c0:de:01:00:{:02x}", self.spec.number)
    }

    /// True while it has power.
    pub fn is_on(&self) -> bool {
        self.slot().is_some()
    }

    /// The network side of the running machine: cables, addresses, captures.
    pub fn host(&self) -> Result<Arc<Host>> {
        self.slot()
            .as_ref()
            .map(|running| running.host.clone())
            .with_context(|| format!("{} has no power", self.name()))
    }

    /// Switches it on again; what was on its disk is still there.
    pub fn power_on(&self) -> Result<()> {
        let mut slot = self.slot();
        if slot.is_some() {
            return Ok(());
        }
        let booted = Timestamp::now();
        let host = Arc::new(self.wire()?);
        let cgroups = Cgroups::new(&format!(
            "{}-{}",
            crate::run_dir::base()?.file_name().unwrap_or_default().to_string_lossy(),
            self.name()
        ))?;
        let images: Vec<String> = self.spec.images.iter().map(|archive| archive.display().to_string()).collect();
        let list = self.dir.write("images", images.join("\n") + "\n")?;
        let mut script = vec!["set -e".to_owned()];
        script.extend(cgroups.entrances().map(|entrance| format!("echo $$ >{}", entrance.display())));
        script.push(
            "exec unshare --pid --fork --kill-child --mount --uts --ipc --cgroup --propagation private -- sh \"$1\""
                .to_owned(),
        );
        let mut command = Command::new("sh");
        command
            .args(["-c", &script.join("\n"), "machine"])
            .arg(&self.script)
            .env("NODE", self.name())
            .env("DISK", &self.disk)
            .env("CONFIG", &self.config)
            .env("IMAGES", list)
            .env("TOOLS", programs::tools()?)
            .env("CGROUPS", if cgroups.version() == CgroupVersion::Two { "2" } else { "1" })
            .env("NODE_IP", self.ipv4().to_string())
            .env("EXTERNAL", if self.spec.external_cloud_provider { "yes" } else { "" })
            .env("LC_ALL", "C");
        let outer = host.spawn("machine", command)?;
        *slot = Some(Running { outer, host, booted, _cgroups: cgroups });
        Ok(())
    }

    /// Switches the machine off in one moment. No process can end in order.
    pub fn power_off(&self) -> Result<()> {
        let Some(running) = self.slot().take() else { return Ok(()) };
        let init = running.init();
        running.host.lose_power(|| {
            if let Ok(init) = &init {
                let _ = rustix::process::kill_process(*init, rustix::process::Signal::KILL);
            }
            Ok(())
        })?;
        if init.is_ok() {
            // `unshare` ends when the kernel has collected every process of the pid namespace.
            if running.outer.wait(Duration::from_secs(20)).is_none() {
                bail!("the processes of {} did not end within 20 s after its power was cut", self.name());
            }
        }
        Ok(())
    }

    /// Waits until the API says that it is Ready, and said so after the last boot: for some 40 s after a power loss it
    /// repeats what it heard before.
    pub async fn wait_until_ready(&self, control_plane: &ControlPlane) -> Result<()> {
        let client = control_plane.client().await?;
        let nodes: Api<Node> = Api::all(client.clone());
        let leases: Api<Lease> = Api::namespaced(client, "kube-node-lease");
        wait_for(&format!("node {} to be Ready", self.name()), Duration::from_mins(2), || async {
            let booted = {
                let slot = self.slot();
                let running = slot.as_ref().ok_or("it has no power")?;
                running.outer.check().map_err(|error| format!("{error:#}"))?;
                running.booted
            };
            let node = match nodes.get_opt(self.name()).await {
                Ok(Some(node)) => node,
                Ok(None) => return Err("it has not registered".into()),
                Err(error) => return Err(error.to_string()),
            };
            let conditions = node.status.and_then(|status| status.conditions).unwrap_or_default();
            let ready =
                conditions.iter().find(|condition| condition.type_ == "Ready").ok_or("it has no condition Ready")?;
            let said = ready.last_heartbeat_time.as_ref().map(|time| time.0);
            let renewed = match leases.get_opt(self.name()).await {
                Ok(lease) => lease.and_then(|lease| lease.spec).and_then(|spec| spec.renew_time).map(|time| time.0),
                Err(error) => return Err(error.to_string()),
            };
            // Stamps of conditions have full seconds.
            let fresh = said.max(renewed).is_some_and(|at| at.as_second() >= booted.as_second());
            if ready.status == "True" && fresh {
                return Ok(());
            }
            Err(format!(
                "Ready={} ({}) at {said:?}, Lease renewed at {renewed:?}",
                ready.status,
                ready.message.as_deref().unwrap_or("")
            ))
        })
        .await
        .with_context(|| format!("logs of the machine: {}", self.disk.join("log").display()))
    }

    /// Runs a program inside the machine: its mounts, processes, network.
    pub fn exec<S: AsRef<OsStr>>(&self, words: impl IntoIterator<Item = S>) -> Result<String> {
        let init = {
            let slot = self.slot();
            slot.as_ref().with_context(|| format!("{} has no power", self.name()))?.init()?
        };
        let mut command = Command::new("nsenter");
        command
            .args([
                "-t",
                &init.as_raw_nonzero().to_string(),
                "--mount",
                "--uts",
                "--ipc",
                "--net",
                "--pid",
                "--cgroup",
                "--",
            ])
            .args(words);
        run(&mut mortal(&command)).with_context(|| format!("inside {}", self.name()))
    }

    /// The process id, inside the machine, of a container given as in a pod's status (`containerd://<id>`).
    pub fn container_pid(&self, container_id: &str) -> Result<u32> {
        let id = container_id.trim_start_matches("containerd://");
        let tasks = self.exec(["ctr", "-n", "k8s.io", "tasks", "list"])?;
        tasks
            .lines()
            .find_map(|line| {
                let mut words = line.split_whitespace();
                (words.next() == Some(id)).then(|| words.next()?.parse().ok()).flatten()
            })
            .with_context(|| format!("{} runs no container {id}", self.name()))
    }

    /// What a container costs.
    pub fn container_usage(&self, container_id: &str) -> Result<Usage> {
        let pid = self.container_pid(container_id)?;
        let read = |file: &str| self.exec(["cat", &format!("/proc/{pid}/{file}")]);
        Usage::parse(&read("status")?, &read("stat")?)
            .with_context(|| format!("container {container_id} of {} has ended", self.name()))
    }

    /// Sends a signal, `KILL` for example, to the process of a container; its process id inside the machine.
    pub fn signal_container(&self, container_id: &str, signal: &str) -> Result<u32> {
        let pid = self.container_pid(container_id)?;
        self.exec(["sh", "-c", &format!("kill -s {signal} {pid}")])?;
        Ok(pid)
    }

    /// When a process inside the machine started, in time since this computer's boot; 10 ms exact.
    pub fn started_after_boot(&self, pid: u32) -> Result<Duration> {
        let stat = self.exec(["cat", &format!("/proc/{pid}/stat")])?;
        let ticks = crate::run_dir::start_ticks(&stat)
            .with_context(|| format!("process {pid} of {} has ended", self.name()))?;
        Ok(Duration::from_millis(ticks * 10))
    }

    /// Path of its network namespace and its process 1, both as seen from outside, for `nsenter`.
    pub fn entrance(&self) -> Result<(PathBuf, i32)> {
        let slot = self.slot();
        let running = slot.as_ref().with_context(|| format!("{} has no power", self.name()))?;
        Ok((running.host.namespace().path(), running.init()?.as_raw_nonzero().get()))
    }

    /// Where its daemons log.
    pub fn logs(&self) -> PathBuf {
        self.disk.join("log")
    }

    /// A new network side with the old addresses.
    fn wire(&self) -> Result<Host> {
        let n = self.spec.number;
        let address6 = lan6(self.subnet, 10 + n);
        let host = Host::with_mac(self.name(), &self.dir, &self.segment, self.ipv4(), address6, &self.mac())?;
        host.attach(&self.management, "mgmt0", &[format!("{}/{MANAGEMENT_PREFIX}", self.management_address)])?;
        let mut lines = vec![
            // Service addresses are translated after the route lookup: without a default route every one of them is
            // unreachable.
            format!("route add default via {}", lan4(self.subnet, 1)),
            format!("route add default via {}", lan6(self.subnet, 1)),
        ];
        for other in (1..=self.spec.of).filter(|other| *other != n) {
            lines.push(format!("route add {}/24 via {}", pod4(other, 0), lan4(self.subnet, 10 + other)));
        }
        host.ip(lines)?;
        host.enable_forwarding()?;
        // Pods reach what is outside the pod network, the API server first of all, with the machine's address.
        host.namespace().nft(
            "table ip pods {\n chain out {\n  type nat hook postrouting priority srcnat\n  ip saddr \
            10.244.0.0/16 ip daddr != 10.244.0.0/16 masquerade\n }\n}\n",
        )?;
        Ok(host)
    }

    fn slot(&self) -> MutexGuard<'_, Option<Running>> {
        self.running.lock()
    }
}

impl Running {
    /// Process 1 of the machine, by its id here.
    fn init(&self) -> Result<rustix::process::Pid> {
        self.outer.check()?;
        let path = format!("/proc/{0}/task/{0}/children", self.outer.pid());
        let children = std::fs::read_to_string(&path).with_context(|| format!("failed to read {path}"))?;
        let first = children
            .split_whitespace()
            .next()
            .and_then(|pid| pid.parse().ok())
            .and_then(rustix::process::Pid::from_raw);
        first.with_context(|| format!("{} has no process 1 yet", self.outer.name()))
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        if let Err(error) = self.power_off() {
            tracing::warn!("{error:#}");
        }
    }
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    crate::node::images::copy(from, to)
}
