//! The bed: everything that a user of the product has, in network namespaces of this process.
//!
//! * LAN `192.168.100.0/24` with a client host (`.50`), a DHCP server (`.200`-`.250`) and nodes `node1`, `node2`, …
//!   (`.11`, `.12`, …);
//! * guest cluster: real etcd, kube-apiserver, and kube-proxy on each node; a controller manager only where a test asks
//!   for one. One echo pod per node, `echo-node1`, …, listens on TCP and UDP 8080 and 8081;
//! * Harvester side: its own API server with `harvester-sim` as a process beside it, a pool `edge` (`.100`-`.149`) for
//!   the network
//!   [`NETWORK`], and a virtual machine for each node in namespace [`VM_NAMESPACE`]. A bed with neither cloud
//!   controller manager nor pool has none of it: announcers do not know Harvester, and a second API server costs as
//!   much as the first;
//! * the product: cloud controller manager on the last node, an announcer on each, with the rights of their
//!   ServiceAccounts.

mod builder;
mod pools;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::{Deref, RangeInclusive};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use harvester_sim::guest::machine::{Machine, Nic};
use k8s_openapi::api::core::v1::Node;
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt};
use testbed::{ControlPlane, HarvesterSide, Host, Lan, RunDir, SimNode, SimPod, wait_for};

pub use builder::BedBuilder;
pub(crate) use builder::{announcers, grant};

use crate::PATIENCE;
use crate::machines::is_initialized;
use crate::product::{Handle, Program};

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
    pub harvester: Side,
    /// The guest cluster's control plane.
    pub control_plane: ControlPlane,
    /// The LAN with its hosts, client and DHCP server.
    pub lan: Lan,
    networks: Vec<(String, String)>,
    dir: Arc<RunDir>,
}

/// The Harvester side of a bed that has one; to use it is a panic on a bed without.
#[derive(Debug)]
pub struct Side(pub(crate) Option<HarvesterSide>);

impl Deref for Side {
    type Target = HarvesterSide;

    fn deref(&self) -> &HarvesterSide {
        self.0.as_ref().expect("this bed was built with neither cloud controller manager nor pool: it has no Harvester")
    }
}

impl Bed {
    /// Two nodes and everything else as in the module's description, unless told otherwise.
    pub fn builder() -> BedBuilder {
        BedBuilder::new()
    }

    /// One node without an announcer, and a controller that looks at the node each second.
    pub fn one_node() -> BedBuilder {
        Self::builder().nodes(1).without_announcers().ccm_arg("--node-monitor-period=1s")
    }

    /// The cloud controller manager; panics if the bed was built without.
    pub fn ccm(&self) -> Handle<'_> {
        let program = self.ccm.as_ref().expect("this bed was built without a cloud controller manager");
        Handle { host: self.lan.host(self.nodes.len()), program }
    }

    /// True if that is where the cloud controller manager is.
    pub(crate) fn has_ccm_on(&self, n: usize) -> bool {
        self.ccm.is_some() && n == self.nodes.len()
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

    /// The MAC addresses that answer the client's ARP requests for this address: one is right, none is dead, two is a
    /// conflict.
    pub fn macs(&self, address: IpAddr) -> Result<Vec<String>> {
        match address {
            IpAddr::V4(address) => self.lan.client().who_has(address),
            IpAddr::V6(_) => anyhow::bail!("who-has is an IPv4 question, not for {address}"),
        }
    }

    /// Power loss of node `n`: every process of it stops and every cable is cut in the same moment. Its virtual machine
    /// on Harvester stays.
    pub fn power_off(&self, n: usize) -> Result<()> {
        let announcer = (!self.announcers.is_empty()).then(|| self.announcer(n));
        let ccm = self.has_ccm_on(n).then(|| self.ccm());
        let ours: Vec<Handle<'_>> = announcer.into_iter().chain(ccm).filter(|ours| ours.check().is_ok()).collect();
        // A signal stops a process at once, but its end takes time. So all are stopped before one is killed.
        self.lan.host(n).lose_power(|| ours.iter().try_for_each(Handle::pause))?;
        ours.iter().for_each(Handle::kill);
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

    /// Ends of the product's logs, for the message of a failed test: lines that contain `needle` and the very last
    /// ones.
    pub fn log_lines_about(&self, needle: &str) -> String {
        let ccm = self.ccm.iter().map(|_| ("cloud controller manager".to_owned(), self.ccm()));
        let announcers = self.announcers().map(|handle| (format!("announcer on {}", handle.host().name()), handle));
        let mut found = String::new();
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
            found.extend([title, relevant[first..].join("\n"), "\n".to_owned()]);
        }
        found
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
