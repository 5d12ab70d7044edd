//! The bed: everything that a user of the product has, in network namespaces of this process.
//!
//! * LAN `192.168.100.0/24` with a client host (`.50`), a DHCP server (`.200`-`.250`) and nodes `node1`, `node2`, … (`.11`, `.12`, …);
//! * guest cluster: real etcd, kube-apiserver, and kube-proxy on each node; a controller manager only where a test asks for one. One
//!   echo pod per node, `echo-node1`, …, listens on TCP and UDP 8080 and 8081;
//! * Harvester side: its own API server with `harvester-sim` as a process beside it, a pool `edge` (`.100`-`.149`) for the network
//!   [`NETWORK`], and a virtual machine for each node in namespace [`VM_NAMESPACE`];
//! * the product: cloud controller manager on the last node, an announcer on each, with the rights of their ServiceAccounts.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use harvester_api::ip_pool::{IpPool, IpPoolSpec, IpRange, PoolSelector, ScopeTuple};
use harvester_sim::guest::machine::{Machine, Nic};
use harvester_sim::install::{Install, Network, install};
use k8s_openapi::api::core::v1::Node;
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::{Api, Client, ResourceExt};
use testbed::{
    ControlPlane, DhcpOptions, HarvesterSide, Host, Lan, NodeSpec, ProxyMode, RunDir, SimNode, SimPod, wait_for,
};

use crate::PATIENCE;
use crate::machines::is_initialized;
use crate::product::{ANNOUNCER_ACCOUNT, CCM_ACCOUNT, Handle, Manifest, Program};

/// Name of the guest cluster.
pub const CLUSTER: &str = "demo";
/// Namespace of its virtual machines on Harvester.
pub const VM_NAMESPACE: &str = "guests";
/// Network of the machines' first NIC, `eth0`.
pub const NETWORK: &str = "guests/mgmt";
/// The pool that a bed begins with.
pub const POOL: &str = "edge";
/// Its addresses on the LAN.
pub const POOL_RANGE: RangeInclusive<u8> = 100..=149;
/// Region of every machine.
pub const REGION: &str = "lab";
/// Zone of every machine.
pub const ZONE: &str = "rack-1";
/// Ports of the echo pods, TCP and UDP.
pub const ECHO_PORTS: [u16; 2] = [8080, 8081];

/// See the module's description.
#[derive(Debug)]
pub struct Bed {
    // Order of drop: the product first, then what it uses.
    ccm: Option<Program>,
    announcers: Vec<Program>,
    pods: Vec<SimPod>,
    /// The nodes; `nodes[0]` is `node1`.
    pub nodes: Vec<SimNode>,
    /// Harvester.
    pub harvester: HarvesterSide,
    /// The guest cluster's control plane.
    pub control_plane: ControlPlane,
    /// The LAN with its hosts, client and DHCP server.
    pub lan: Lan,
    networks: Vec<(String, String)>,
    dir: Arc<RunDir>,
}

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
    etcd_members: Option<u8>,
}

impl Bed {
    /// Two nodes and everything else as in the module's description, unless told otherwise.
    pub fn builder() -> BedBuilder {
        BedBuilder {
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
            etcd_members: None,
        }
    }

    /// The cloud controller manager; panics if the bed was built without.
    pub fn ccm(&self) -> Handle<'_> {
        let program = self.ccm.as_ref().expect("this bed was built without a cloud controller manager");
        Handle { host: self.lan.host(self.nodes.len()), program }
    }

    /// The announcer of node `n`, counted from 1; panics if the bed was built without.
    pub fn announcer(&self, n: usize) -> Handle<'_> {
        let program = self.announcers.get(n - 1).expect("this bed was built without announcers, or has fewer nodes");
        Handle { host: self.lan.host(n), program }
    }

    /// All announcers.
    pub fn announcers(&self) -> impl Iterator<Item = Handle<'_>> {
        (1..=self.announcers.len()).map(|n| self.announcer(n))
    }

    /// A client of the guest API with all rights. Make one per test: its worker belongs to the test's runtime.
    pub async fn client(&self) -> Result<Client> {
        self.control_plane.client().await
    }

    /// A client of the Harvester API with all rights. Make one per test.
    pub async fn harvester_client(&self) -> Result<Client> {
        self.harvester.client().await
    }

    /// The echo pod on node `n`, counted from 1.
    pub fn pod(&self, n: usize) -> &SimPod {
        &self.pods[n - 1]
    }

    /// All echo pods.
    pub fn pods(&self) -> Vec<&SimPod> {
        self.pods.iter().collect()
    }

    /// Directory for files of a test, removed with the bed.
    pub fn dir(&self) -> &Arc<RunDir> {
        &self.dir
    }

    /// Waits until every node is initialised, that is until the cloud controller manager works.
    pub async fn wait_until_initialized(&self) -> Result<()> {
        let nodes: Api<Node> = Api::all(self.client().await?);
        wait_for("the nodes to be initialised", PATIENCE, || async {
            self.ccm().check().map_err(|error| format!("{error:#}"))?;
            let list = nodes.list(&ListParams::default()).await.map_err(|error| error.to_string())?;
            let waiting: Vec<String> =
                list.iter().filter(|node| !is_initialized(node)).map(ResourceExt::name_any).collect();
            if waiting.is_empty() { Ok(()) } else { Err(format!("still tainted: {}", waiting.join(", "))) }
        })
        .await
    }

    /// Waits until the announcer of node `n` says that it is ready.
    pub async fn wait_until_announcing(&self, n: usize) -> Result<()> {
        wait_until_ready(self.announcer(n)).await
    }

    /// The node (counted from 1) that has this address on an interface; an error if several have it.
    pub fn owner_of(&self, address: IpAddr) -> Result<Option<usize>> {
        let mut owner = None;
        for (index, host) in self.lan.hosts().iter().enumerate() {
            if host.has_address(address)?
                && let Some(first) = owner.replace(index + 1)
            {
                anyhow::bail!("node{first} and node{} both have {address}", index + 1);
            }
        }
        Ok(owner)
    }

    /// The MAC addresses that answer the client's ARP requests for this address: one is right, none is dead, two is a conflict.
    pub fn macs(&self, address: IpAddr) -> Result<Vec<String>> {
        match address {
            IpAddr::V4(address) => self.lan.client().who_has(address),
            IpAddr::V6(_) => anyhow::bail!("who-has is an IPv4 question, not for {address}"),
        }
    }

    /// Power loss of node `n`: every process of it dead, cables out. Its virtual machine on Harvester stays.
    pub fn power_off(&self, n: usize) -> Result<()> {
        // Cables first would give the announcer the time to see its carrier go, and to hand over.
        if !self.announcers.is_empty() {
            self.announcer(n).kill();
        }
        self.lan.host(n).cut_off()?;
        self.nodes[n - 1].kill_proxy();
        self.nodes[n - 1].stop_heartbeat();
        Ok(())
    }

    /// A running machine of this cluster with a NIC on each of the bed's networks; the first NIC has these addresses.
    pub fn machine(&self, name: &str, addresses: &[&str]) -> Machine {
        let mut machine = Machine::node(VM_NAMESPACE, name, CLUSTER, NETWORK, addresses).located(REGION, ZONE);
        for (index, (network, interface)) in self.networks.iter().enumerate() {
            machine.nics.push(Nic::new(name, index + 1, network, interface, &[]));
        }
        machine
    }

    /// Makes a pool of LAN addresses for this cluster on `network`, or gives an existing one this range.
    pub async fn set_pool(&self, name: &str, network: &str, range: RangeInclusive<u8>) -> Result<()> {
        let pools: Api<IpPool> = Api::all(self.harvester_client().await?);
        let text = |last: u8| Some(self.lan.ipv4(last).to_string());
        let range = IpRange {
            subnet: format!("{}/24", self.lan.ipv4(0)),
            range_start: text(*range.start()),
            range_end: text(*range.end()),
            gateway: text(1),
        };
        let failed = || format!("failed to set pool {name}");
        // The pool's controller writes its status all the time.
        for _ in 0..20 {
            let outcome = if let Some(mut pool) = pools.get_opt(name).await.with_context(failed)? {
                pool.spec.ranges = vec![range.clone()];
                pools.replace(name, &PostParams::default(), &pool).await
            } else {
                // Not `*` three times: that would be the one global pool, which serves every network.
                let ours =
                    ScopeTuple { project: "*".into(), namespace: VM_NAMESPACE.into(), guest_cluster: "*".into() };
                let selector = PoolSelector { network: network.into(), scope: vec![ours], ..PoolSelector::default() };
                let spec = IpPoolSpec { ranges: vec![range.clone()], selector, ..IpPoolSpec::default() };
                pools.create(&PostParams::default(), &IpPool::new(name, spec)).await
            };
            match outcome {
                Err(kube::Error::Api(status)) if status.code == 409 => {}
                outcome => return outcome.map(drop).with_context(failed),
            }
        }
        anyhow::bail!("{}: conflicts for ever", failed())
    }

    /// Deletes a pool.
    pub async fn delete_pool(&self, name: &str) -> Result<()> {
        let pools: Api<IpPool> = Api::all(self.harvester_client().await?);
        pools.delete(name, &DeleteParams::default()).await.with_context(|| format!("failed to delete pool {name}"))?;
        Ok(())
    }

    /// Addresses of a pool that are booked, by whom.
    pub async fn bookings(&self, pool: &str) -> Result<Vec<(String, String)>> {
        let pools: Api<IpPool> = Api::all(self.harvester_client().await?);
        let pool = pools.get(pool).await.with_context(|| format!("failed to read pool {pool}"))?;
        Ok(pool.status.unwrap_or_default().allocated.into_iter().collect())
    }

    /// Ends of the product's logs, for the message of a failed test: lines that contain `needle` and the very last ones.
    pub fn story(&self, needle: &str) -> String {
        let ccm = self.ccm.iter().map(|_| ("cloud controller manager".to_owned(), self.ccm()));
        let announcers = self.announcers().map(|handle| (format!("announcer on {}", handle.host().name()), handle));
        let mut story = String::new();
        for (name, handle) in ccm.chain(announcers) {
            let state = handle.check().map_or("does not run", |()| "runs");
            let text = handle.log_tail(4000);
            let lines: Vec<&str> = text.lines().collect();
            let last = lines.len().saturating_sub(8);
            let relevant: Vec<&str> = lines
                .iter()
                .enumerate()
                .filter(|(n, line)| *n >= last || line.contains(needle))
                .map(|(_, line)| *line)
                .collect();
            let first = relevant.len().saturating_sub(60);
            let title = format!("--- {name} ({state}), lines about {needle:?} and the last ones\n");
            story.extend([title, relevant[first..].join("\n"), "\n".to_owned()]);
        }
        story
    }
}

/// Waits until an announcer says that it is ready.
pub(crate) async fn wait_until_ready(announcer: Handle<'_>) -> Result<()> {
    wait_for(&format!("the announcer of {}", announcer.host().name()), PATIENCE, || async {
        announcer.check().map_err(|error| format!("{error:#}"))?;
        let health = SocketAddr::from((Ipv4Addr::LOCALHOST, 2112));
        get(announcer.host(), health, "/readyz").map(drop).map_err(|error| format!("{error:#}"))
    })
    .await
}

/// One HTTP GET on a host; the body.
pub fn get(host: &Host, target: SocketAddr, path: &str) -> Result<String> {
    let path = path.to_owned();
    host.run(move || {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().context("failed to make a runtime")?;
        runtime.block_on(testbed::echo::get_path(target, &path, Duration::from_secs(3)))
    })
}

impl BedBuilder {
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

    /// One more NIC on each machine: `network` as `namespace/name`, and the interface's name in the guest. Machines of Harvester
    /// only: the hosts get no such interface.
    #[must_use]
    pub fn network(mut self, network: &str, interface: &str) -> Self {
        self.networks.push((network.into(), interface.into()));
        self
    }

    /// Without the pool `edge`.
    #[must_use]
    pub fn without_pool(mut self) -> Self {
        self.pool = false;
        self
    }

    /// Without the cloud controller manager: nodes stay uninitialised.
    #[must_use]
    pub fn without_ccm(mut self) -> Self {
        self.ccm = false;
        self
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
            harvester,
            control_plane,
            lan,
            networks: self.networks.clone(),
            dir,
        };
        self.furnish_harvester(&bed).await?;
        if self.ccm {
            bed.ccm = Some(self.prepare_ccm(&bed).await?);
        }
        if self.announcers {
            bed.announcers = self.prepare_announcers(&bed).await?;
        }
        if self.started {
            self.start_product(&bed).await.map_err(|error| error.context(bed.story("error")))?;
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

    async fn start_harvester(&self, control_plane: &ControlPlane) -> Result<HarvesterSide> {
        let builder =
            self.harvester_flags.iter().fold(HarvesterSide::builder(), |builder, flag| builder.run_flag(flag));
        builder.start(control_plane).await
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
async fn grant(client: &Client, manifest: &Manifest) -> Result<()> {
    // The API server makes kube-system a moment after it is ready.
    wait_for("accounts and roles", PATIENCE, || async {
        harvester_sim::apply::apply_all(client, &manifest.rights())
            .await
            .map_err(|error| format!("{:#}", anyhow::Error::from(error)))
    })
    .await
}
