//! The settings of a bed, and the order in which its parts are started.

use anyhow::{Context, Result};
use harvester_sim::install::{Install, Network, install};
use kube::Client;
use testbed::{ControlPlane, DhcpOptions, HarvesterSide, Host, Lan, NodeSpec, ProxyMode, RunDir, SimNode, wait_for};

use super::{Bed, CLUSTER, ECHO_PORTS, NETWORK, POOL, POOL_RANGE, Side, VM_NAMESPACE};
use crate::PATIENCE;
use crate::product::{ANNOUNCER_ACCOUNT, CCM_ACCOUNT, Handle, Manifest, Program};

/// What a bed shall have.
#[derive(Debug, Clone)]
#[allow(clippy::struct_excessive_bools)] // switches that have nothing to do with each other
pub struct BedBuilder {
    nodes: u8,
    dhcp: DhcpOptions,
    proxy: ProxyMode,
    controllers: Option<String>,
    networks: Vec<(String, String)>,
    pool: bool,
    ccm: bool,
    announcers: bool,
    started: bool,
    ccm_args: Vec<String>,
    announcer_env: Vec<(String, String)>,
    chart_values: Vec<String>,
    harvester_flags: Vec<String>,
    proxied: bool,
    etcd_members: Option<u8>,
}

impl BedBuilder {
    /// See [`Bed::builder`].
    pub(super) fn new() -> Self {
        Self {
            nodes: 2,
            dhcp: DhcpOptions::default(),
            proxy: ProxyMode::default(),
            controllers: None,
            networks: Vec::new(),
            pool: true,
            ccm: true,
            announcers: true,
            started: true,
            ccm_args: Vec::new(),
            announcer_env: Vec::new(),
            chart_values: Vec::new(),
            harvester_flags: Vec::new(),
            proxied: false,
            etcd_members: None,
        }
    }

    /// How many nodes.
    #[must_use]
    pub fn nodes(mut self, nodes: u8) -> Self {
        self.nodes = nodes;
        self
    }

    /// Another DHCP server.
    #[must_use]
    pub fn dhcp(mut self, options: DhcpOptions) -> Self {
        self.dhcp = options;
        self
    }

    /// How kube-proxy works.
    #[must_use]
    pub fn proxy(mut self, mode: ProxyMode) -> Self {
        self.proxy = mode;
        self
    }

    /// With a kube-controller-manager that runs these controllers, `*` for all.
    #[must_use]
    pub fn controllers(mut self, controllers: &str) -> Self {
        self.controllers = Some(controllers.into());
        self
    }

    /// One more NIC on each machine: `network` as `namespace/name`, and the interface's name in the guest. Machines of
    /// Harvester only: the hosts get no such interface.
    #[must_use]
    pub fn network(mut self, network: &str, interface: &str) -> Self {
        self.networks.push((network.into(), interface.into()));
        self
    }

    /// Without the pool `edge`, and without Harvester where nothing else wants it either.
    #[must_use]
    pub fn without_pool(mut self) -> Self {
        self.pool = false;
        self
    }

    /// Without the cloud controller manager: nodes stay uninitialised.
    #[must_use]
    pub fn without_ccm(mut self) -> Self {
        self.ccm = false;
        // Nobody gives Services addresses: they get what they ask for.
        self.announcer_env("svc_controller", "false")
    }

    /// Without announcers.
    #[must_use]
    pub fn without_announcers(mut self) -> Self {
        self.announcers = false;
        self
    }

    /// The product is prepared, but the test starts it: `bed.ccm().start()`, `bed.announcer(1).start()`.
    #[must_use]
    pub fn not_started(mut self) -> Self {
        self.started = false;
        self
    }

    /// A further argument of the cloud controller manager; replaces one of the same flag.
    #[must_use]
    pub fn ccm_arg(mut self, arg: &str) -> Self {
        self.ccm_args.push(arg.into());
        self
    }

    /// A variable in the environment of the announcers; replaces the manifest's.
    #[must_use]
    pub fn announcer_env(mut self, name: &str, value: &str) -> Self {
        self.announcer_env.push((name.into(), value.into()));
        self
    }

    /// A value of the chart, `kube-vip.env.svc_election=true`: what it changes in rights, arguments and environment.
    #[must_use]
    pub fn chart_value(mut self, value: &str) -> Self {
        self.chart_values.push(value.into());
        self
    }

    /// A further flag of `harvester-sim run`.
    #[must_use]
    pub fn harvester_flag(mut self, flag: &str) -> Self {
        self.harvester_flags.push(flag.into());
        self
    }

    /// The product reaches Harvester's API through the stand-in, which can be stale, busy and strict there: see
    /// [`harvester_sim::faults::Faults`].
    #[must_use]
    pub fn proxied(mut self) -> Self {
        self.proxied = true;
        self
    }

    /// With so many members of etcd on machines of their own, which can be lost.
    #[must_use]
    pub fn etcd_members(mut self, count: u8) -> Self {
        self.etcd_members = Some(count);
        self
    }

    /// Builds it, and waits until nodes are initialised and announcers ready.
    pub async fn start(self) -> Result<Bed> {
        let dir = RunDir::new("bed")?;
        let lan = Lan::builder().hosts(self.nodes).dhcp(self.dhcp.clone()).build()?;
        let mut builder = ControlPlane::builder();
        if let Some(controllers) = &self.controllers {
            builder = builder.controllers(controllers);
        }
        if let Some(count) = self.etcd_members {
            builder = builder.etcd_members(count);
        }
        let control_plane = builder.start().await?;
        let (harvester, nodes) =
            tokio::try_join!(self.start_harvester(&control_plane), self.start_nodes(&control_plane, &lan))?;
        let pods = nodes
            .iter()
            .enumerate()
            .map(|(index, node)| node.pod(lan.host(index + 1), &format!("echo-{}", node.name()), &ECHO_PORTS))
            .collect::<Result<Vec<_>>>()?;
        let pairs: Vec<(&Host, &SimNode)> = lan.hosts().iter().zip(&nodes).collect();
        control_plane.route_pods(&pairs)?;
        let mut bed = Bed {
            ccm: None,
            announcers: Vec::new(),
            pods,
            nodes,
            harvester: Side(harvester),
            control_plane,
            lan,
            networks: self.networks.clone(),
            dir,
        };
        if bed.harvester.0.is_some() {
            self.furnish_harvester(&bed).await?;
        }
        if self.ccm {
            bed.ccm = Some(self.prepare_ccm(&bed).await?);
        }
        if self.announcers {
            bed.announcers = self.prepare_announcers(&bed).await?;
        }
        if self.started {
            self.start_product(&bed).await.map_err(|error| error.context(bed.log_lines_about("error")))?;
        }
        Ok(bed)
    }

    async fn start_product(&self, bed: &Bed) -> Result<()> {
        if self.ccm {
            bed.ccm().start()?;
        }
        bed.announcers().try_for_each(|announcer| announcer.start())?;
        if self.ccm {
            bed.wait_until_initialized().await?;
        }
        for n in 1..=bed.announcers.len() {
            bed.wait_until_announcing(n).await?;
        }
        Ok(())
    }

    /// Only a cloud controller manager asks it, or a test about pools.
    async fn start_harvester(&self, control_plane: &ControlPlane) -> Result<Option<HarvesterSide>> {
        if !self.ccm && !self.pool {
            return Ok(None);
        }
        let side = if self.proxied { HarvesterSide::builder().proxied() } else { HarvesterSide::builder() };
        // The host is fast, except in tests about its pace.
        let paced = self.harvester_flags.iter().any(|flag| flag.starts_with("--profile="));
        let side = if paced { side } else { side.run_flag("--profile=fast") };
        let side = self.harvester_flags.iter().fold(side, |side, flag| side.run_flag(flag));
        side.start(control_plane).await.map(Some)
    }

    async fn start_nodes(&self, control_plane: &ControlPlane, lan: &Lan) -> Result<Vec<SimNode>> {
        let mut nodes = Vec::new();
        for n in 1..=self.nodes {
            let spec = NodeSpec { uninitialized: self.ccm, proxy: self.proxy, ..NodeSpec::default() };
            nodes.push(control_plane.add_node(lan.host(n.into()), n, spec).await?);
        }
        Ok(nodes)
    }

    /// Namespace, networks, pool and machines.
    async fn furnish_harvester(&self, bed: &Bed) -> Result<()> {
        let client = bed.harvester_client().await?;
        let networks = std::iter::once(NETWORK).chain(self.networks.iter().map(|(network, _)| network.as_str()));
        let networks = networks.zip(1..).map(|(network, vlan)| {
            let (namespace, name) =
                network.split_once('/').with_context(|| format!("{network} is not namespace/name"))?;
            Ok(Network { namespace: namespace.into(), name: name.into(), vlan })
        });
        let wanted = Install {
            namespaces: vec![VM_NAMESPACE.into()],
            project: Some("local:p-demo1".into()),
            networks: networks.collect::<Result<_>>()?,
        };
        install(&client, &wanted).await.context("failed to prepare Harvester")?;
        if self.pool {
            bed.set_pool(POOL, NETWORK, POOL_RANGE).await?;
        }
        let machines = bed.machines().await?;
        for host in bed.lan.hosts() {
            machines.save(&bed.machine(host.name(), &[&host.ipv4().to_string()])).await?;
        }
        Ok(())
    }

    async fn prepare_ccm(&self, bed: &Bed) -> Result<Program> {
        let manifest = Manifest::of(CCM_ACCOUNT, &self.chart_values)?;
        grant(&bed.client().await?, &manifest).await?;
        let kubeconfig = bed.control_plane.service_account("kube-system", CCM_ACCOUNT).await?;
        let cloud_config = bed.harvester.cloud_config(VM_NAMESPACE, CLUSTER)?;
        let cloud_config = bed.dir.write("cloud-config/cloud-config", cloud_config)?;
        let program = Program::new("ccm", manifest.args()?, Vec::new(), manifest.capabilities()?)?;
        let handle = Handle { host: bed.lan.host(1), program: &program };
        handle.set_arg(&format!("--cloud-config={}", cloud_config.display()));
        handle.set_arg(&format!("--cluster-name={CLUSTER}"));
        handle.set_arg(&format!("--kubeconfig={}", kubeconfig.inside.display()));
        self.ccm_args.iter().for_each(|arg| handle.set_arg(arg));
        Ok(program)
    }

    async fn prepare_announcers(&self, bed: &Bed) -> Result<Vec<Program>> {
        announcers(&bed.control_plane, bed.lan.hosts(), &self.chart_values, &self.announcer_env).await
    }
}

/// An announcer for each host, with the rights that the chart gives it in this cluster and not started yet.
pub(crate) async fn announcers(
    control_plane: &ControlPlane,
    hosts: &[Host],
    chart_values: &[String],
    env: &[(String, String)],
) -> Result<Vec<Program>> {
    let manifest = Manifest::of(ANNOUNCER_ACCOUNT, chart_values)?;
    grant(&control_plane.client().await?, &manifest).await?;
    let kubeconfig = control_plane.service_account("kube-system", ANNOUNCER_ACCOUNT).await?;
    let mut programs = Vec::new();
    for host in hosts {
        let program =
            Program::new("announcer", manifest.args()?, manifest.env(host.name())?, manifest.capabilities()?)?;
        let handle = Handle { host, program: &program };
        handle.set_env("k8s_config_file", &kubeconfig.inside.display().to_string());
        for (name, value) in env {
            handle.set_env(name, value);
        }
        programs.push(program);
    }
    Ok(programs)
}

/// Applies the accounts and roles of a manifest, as its installation does.
pub(crate) async fn grant(client: &Client, manifest: &Manifest) -> Result<()> {
    // The API server makes kube-system a moment after it is ready.
    wait_for("accounts and roles", PATIENCE, || async {
        harvester_sim::apply::apply_all(client, &manifest.rights())
            .await
            .map_err(|error| format!("{:#}", anyhow::Error::from(error)))
    })
    .await
}
