//! The Harvester side: an API server of its own on the same etcd, and `harvester-sim` as a process beside it.

use parking_lot::Mutex;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use kube::Client;

use crate::addresses::{HARVESTER, HARVESTER_SERVICE_RANGE, MANAGEMENT_PREFIX, OTHER_HARVESTER};
use crate::cluster::api_server::{ApiServer, Settings};
use crate::cluster::audit::AuditLog;
use crate::cluster::control_plane::{ControlPlane, ControlPlaneBuilder};
use crate::cluster::controllers::start_controller_manager;
use crate::cluster::credentials::Credentials;
use crate::cluster::relay::Relay;
use crate::net::namespace::Namespace;
use crate::net::segment::Nic;
use crate::process::{Process, mortal, run};
use crate::programs;
use crate::run_dir::RunDir;
use crate::wait::wait_for;

/// Controllers that the Harvester side needs: tokens, CA bundles, owners and namespaces. It runs no workloads.
const CONTROLLERS: &str = "serviceaccount-controller,serviceaccount-token-controller,\
    root-ca-certificate-publisher-controller,namespace-controller,garbage-collector-controller";
/// Ports of the stand-in, inside.
const WEBHOOK_PORT: u16 = 9443;
const SUBRESOURCES_PORT: u16 = 9444;
const CONTROL_PORT: u16 = 9445;
/// Of its API with faults, inside.
const PROXY_PORT: u16 = 6444;

/// Harvester's API as a guest cluster sees it.
#[derive(Debug)]
pub struct HarvesterSide {
    sim: Mutex<Option<Process>>,
    settings: HarvesterBuilder,
    control: Relay,
    _controllers: Process,
    api_server: ApiServer,
    namespace: Arc<Namespace>,
    nic: Arc<Nic>,
    _dir: Arc<RunDir>,
}

/// What the Harvester side shall be.
#[derive(Debug, Clone, Default)]
pub struct HarvesterBuilder {
    install_flags: Vec<String>,
    run_flags: Vec<String>,
    proxied: bool,
    other: bool,
}

/// A virtual machine that runs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VmSpec {
    /// Namespace on Harvester.
    pub namespace: String,
    /// Name, and host name in the guest unless flags say otherwise.
    pub name: String,
    /// Guest cluster that it belongs to.
    pub cluster: String,
    /// Network of its NIC, `namespace/name`.
    pub network: String,
    /// Addresses of its NIC, which the guest calls `eth0`.
    pub addresses: Vec<String>,
    /// Topology zone of its host.
    pub zone: Option<String>,
    /// Topology region of its host.
    pub region: Option<String>,
    /// Further flags of `harvester-sim vm create`.
    pub flags: Vec<String>,
}

impl HarvesterSide {
    /// With everything as Harvester has it.
    pub fn builder() -> HarvesterBuilder {
        HarvesterBuilder::default()
    }

    /// A client of the test with all rights. Make one per test.
    pub async fn client(&self) -> Result<Client> {
        self.api_server.client().await
    }

    /// The administrator's kubeconfigs.
    pub fn admin(&self) -> Result<Credentials> {
        self.api_server.admin()
    }

    /// The URL of its API for hosts that joined the management network.
    pub fn url_inside(&self) -> String {
        self.api_server.url_inside()
    }

    /// The URL that guests get.
    fn url_of_guests(&self) -> String {
        let address = self.settings.address();
        if self.settings.proxied { format!("https://{address}:{PROXY_PORT}") } else { self.url_inside() }
    }

    /// What was asked of its API server.
    pub fn audit(&self) -> AuditLog {
        self.api_server.audit()
    }

    /// Its API server, to kill it and to start it again. etcd stays.
    pub fn api_server(&self) -> &ApiServer {
        &self.api_server
    }

    /// Its cable to the management network: cut it, and no guest reaches Harvester.
    pub fn nic(&self) -> &Nic {
        &self.nic
    }

    /// Its namespace.
    pub fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    /// Runs `harvester-sim <words>` with the administrator's rights; what it printed.
    pub fn sim<S: AsRef<str>>(&self, words: impl IntoIterator<Item = S>) -> Result<String> {
        let mut command = Command::new(programs::own("harvester-sim", "harvester-sim")?);
        command.env("KUBECONFIG", self.admin()?.outside).args(words.into_iter().map(|word| word.as_ref().to_owned()));
        run(&mut mortal(&command))
    }

    /// Makes a virtual machine.
    pub fn create_vm(&self, vm: &VmSpec) -> Result<()> {
        let nic = [&[vm.network.clone(), "eth0".to_owned()], &vm.addresses[..]].concat().join(",");
        let mut words =
            vec!["vm", "create", &vm.name, "--namespace", &vm.namespace, "--cluster", &vm.cluster, "--nic", &nic];
        for (flag, value) in [("--zone", &vm.zone), ("--region", &vm.region)] {
            if let Some(value) = value {
                words.extend([flag, value.as_str()]);
            }
        }
        words.extend(vm.flags.iter().map(String::as_str));
        self.sim(words).map(drop)
    }

    /// Makes a pool that everybody may use; `range` as `SUBNET[,start=IP][,end=IP][,gateway=IP]`.
    pub fn create_pool(&self, name: &str, network: &str, range: &str) -> Result<()> {
        self.sim(["pool", "create", name, "--network", network, "--range", range]).map(drop)
    }

    /// The cloud-config of a guest cluster: a kubeconfig that works on hosts that joined, with the rights of
    /// Harvester's `harvesterhci.io:cloudprovider` role in `namespace`.
    pub fn cloud_config(&self, namespace: &str, cluster: &str) -> Result<String> {
        let ca = self.ca_file().display().to_string();
        self.sim([
            "credentials",
            "--namespace",
            namespace,
            "--name",
            cluster,
            "--server",
            &self.url_of_guests(),
            "--ca-file",
            &ca,
        ])
    }

    /// Where the stand-in's control endpoint (faults, counters) answers, outside.
    pub fn control_address(&self) -> SocketAddr {
        self.control.address()
    }

    /// Waits for the API server, then installs Harvester's kinds and roles and starts the stand-in.
    pub async fn wait_until_ready(&self) -> Result<()> {
        self.api_server.wait_until_ready().await?;
        self.sim(["install".to_owned()].iter().chain(&self.settings.install_flags))?;
        self.start_sim().await
    }

    /// Ends the stand-in without a word: nothing is allocated, no webhook answers.
    pub fn kill_sim(&self) {
        drop(self.slot().take());
    }

    /// Starts the stand-in, again if need be, and waits until it serves.
    pub async fn start_sim(&self) -> Result<()> {
        self.kill_sim();
        let address = self.settings.address();
        let mut command = Command::new(programs::own("harvester-sim", "harvester-sim")?);
        command
            .env("KUBECONFIG", self.admin()?.inside)
            .arg("run")
            .arg(format!("--webhook-bind={address}:{WEBHOOK_PORT}"))
            .arg(format!("--subresources-bind={address}:{SUBRESOURCES_PORT}"))
            .arg(format!("--control-bind=127.0.0.1:{CONTROL_PORT}"))
            .args(&self.settings.run_flags);
        if self.settings.proxied {
            let file = |name: &str| self.api_server.file(name).display().to_string();
            command
                .arg(format!("--api-bind={address}:{PROXY_PORT}"))
                .arg(format!("--api-cert-file={}", file("server.crt")))
                .arg(format!("--api-key-file={}", file("server.key")));
        }
        let process = self.namespace.spawn("harvester-sim", command)?;
        *self.slot() = Some(process);
        wait_for("harvester-sim to serve", Duration::from_mins(1), || async {
            self.with_sim(Process::check).map_err(|error| format!("{error:#}"))?;
            let health = crate::echo::get_path(self.control.address(), "/healthz", Duration::from_secs(2)).await;
            health.map(drop).map_err(|error| format!("{error:#}"))
        })
        .await
    }

    /// Does `act` with the stand-in's process: freeze it, for example.
    pub fn with_sim<T>(&self, act: impl FnOnce(&Process) -> Result<T>) -> Result<T> {
        act(self.slot().as_ref().context("harvester-sim is not running")?)
    }

    /// The file with the certificate of its authority.
    pub fn ca_file(&self) -> PathBuf {
        self.api_server.file("ca.crt")
    }

    fn slot(&self) -> parking_lot::MutexGuard<'_, Option<Process>> {
        self.sim.lock()
    }
}

impl HarvesterBuilder {
    /// With this namespace for virtual machines; `guests` if none is named.
    #[must_use]
    pub fn namespace(mut self, name: &str) -> Self {
        self.install_flags.extend(["--namespace".into(), name.into()]);
        self
    }

    /// With this network, `namespace/name[:vlan]`.
    #[must_use]
    pub fn network(mut self, network: &str) -> Self {
        self.install_flags.extend(["--network".into(), network.into()]);
        self
    }

    /// With all its namespaces in this Rancher project, `cluster:project`.
    #[must_use]
    pub fn project(mut self, project: &str) -> Self {
        self.install_flags.extend(["--project".into(), project.into()]);
        self
    }

    /// Guests reach its API through the stand-in, which can be stale, busy and strict there.
    #[must_use]
    pub fn proxied(mut self) -> Self {
        self.proxied = true;
        self
    }

    /// Another Harvester beside the first one, with an authority, objects and controllers of its own.
    #[must_use]
    pub fn other(mut self) -> Self {
        self.other = true;
        self
    }

    fn address(&self) -> Ipv4Addr {
        if self.other { OTHER_HARVESTER } else { HARVESTER }
    }

    /// A further flag of `harvester-sim run`.
    #[must_use]
    pub fn run_flag(mut self, flag: &str) -> Self {
        self.run_flags.push(flag.into());
        self
    }

    /// Starts it beside the control plane whose etcd it shares, and waits until it serves.
    pub async fn start(self, control_plane: &ControlPlane) -> Result<HarvesterSide> {
        let side = self.launch(control_plane)?;
        side.wait_until_ready().await?;
        Ok(side)
    }

    /// Starts its API server without waiting; see [`HarvesterSide::wait_until_ready`].
    pub fn launch(self, control_plane: &ControlPlane) -> Result<HarvesterSide> {
        let (name, etcd_prefix) = if self.other { ("other", "/other-harvester") } else { ("harvester", "/harvester") };
        let (dir, address) = (RunDir::new(name)?, self.address());
        let namespace = Arc::new(Namespace::new(name, &dir)?);
        let nic =
            control_plane.management().attach(&namespace, "mgmt0", &[format!("{address}/{MANAGEMENT_PREFIX}")])?;
        let settings = Settings {
            name: "harvester-apiserver",
            address,
            etcd: control_plane.etcd_urls(),
            etcd_prefix,
            service_ranges: HARVESTER_SERVICE_RANGE,
            first_service: Ipv4Addr::new(10, 53, 0, 1),
        };
        let api_server = ApiServer::launch(settings, namespace.clone(), dir.clone())?;
        let controllers = start_controller_manager(&api_server, CONTROLLERS)?;
        let control = Relay::start(&namespace, (Ipv4Addr::LOCALHOST, CONTROL_PORT).into())?;
        Ok(HarvesterSide {
            sim: Mutex::new(None),
            settings: self,
            control,
            _controllers: controllers,
            api_server,
            namespace,
            nic,
            _dir: dir,
        })
    }
}

impl ControlPlaneBuilder {
    /// Starts it together with a Harvester side and waits until both are ready: two seconds less than one after the
    /// other.
    pub async fn start_with(self, harvester: HarvesterBuilder) -> Result<(ControlPlane, HarvesterSide)> {
        let control_plane = self.launch()?;
        let harvester = harvester.launch(&control_plane)?;
        tokio::try_join!(control_plane.wait_until_ready(), harvester.wait_until_ready())?;
        Ok((control_plane, harvester))
    }
}
