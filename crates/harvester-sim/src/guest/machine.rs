//! A pretended virtual machine: what a test or the demo says about it. Everything KubeVirt would show follows from
//! this.

use serde::{Deserialize, Serialize};

/// Annotation on the VM that holds the [`Machine`] as JSON, so that separate processes work on the same machine.
pub const MACHINE: &str = "harvester-sim/machine";
/// Annotation on the VMI: host name that the guest agent reports.
pub const HOSTNAME: &str = "harvester-sim/hostname";

/// One machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Machine {
    /// Namespace of VM and VMI.
    pub namespace: String,
    /// Name of VM and VMI.
    pub name: String,
    /// Guest cluster label; none for a machine that nobody labelled.
    pub cluster: Option<String>,
    /// Made by the node driver (label); hand-made clusters are not.
    pub node_driver: bool,
    /// What the guest agent reports, the machine's name if not given.
    pub hostname: Option<String>,
    /// Host node.
    pub host: String,
    /// Topology of the host node. Harvester copies it for node-driver machines only.
    pub zone: Option<String>,
    /// Topology of the host node.
    pub region: Option<String>,
    /// Network cards, in order.
    pub nics: Vec<Nic>,
    /// Switched on.
    pub powered: bool,
    /// The guest agent answers.
    pub agent: bool,
    /// The last migration.
    pub migration: Option<Migration>,
    /// What an upgrade of its host does to it.
    #[serde(default)]
    pub upgrade: Upgraded,
}

/// What an upgrade of its host does to a machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[allow(clippy::struct_excessive_bools)] // facts that have nothing to do with each other
pub struct Upgraded {
    /// It cannot move while it runs (a device or a local volume holds it).
    pub unmovable: bool,
    /// Its host is being emptied.
    pub evacuating: bool,
    /// Switched off by the host: its run strategy still says that it runs.
    pub shut_down: bool,
    /// Switched on, and not running yet.
    pub starting: bool,
}

/// A network card on a Multus network.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Nic {
    /// `nic-0`, …
    pub name: String,
    /// `namespace/name` of the network.
    pub network: String,
    /// MAC address.
    pub mac: String,
    /// Name inside the guest.
    pub interface: String,
    /// All addresses.
    pub addresses: Vec<String>,
}

/// A live migration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Migration {
    /// From.
    pub source: String,
    /// To.
    pub target: String,
    /// RFC 3339.
    pub started: String,
    /// RFC 3339; none while it runs.
    pub ended: Option<String>,
    /// Ended without success.
    pub failed: bool,
}

impl Machine {
    /// A running node-driver machine of a guest cluster on `host-1`, with one NIC on `network`.
    pub fn node(namespace: &str, name: &str, cluster: &str, network: &str, addresses: &[&str]) -> Self {
        Self {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            cluster: Some(cluster.to_owned()),
            node_driver: true,
            hostname: None,
            host: "host-1".to_owned(),
            zone: None,
            region: None,
            nics: vec![Nic::new(name, 0, network, "eth0", addresses)],
            powered: true,
            agent: true,
            migration: None,
            upgrade: Upgraded::default(),
        }
    }

    /// In this zone and region.
    #[must_use]
    pub fn located(mut self, region: &str, zone: &str) -> Self {
        self.region = Some(region.to_owned());
        self.zone = Some(zone.to_owned());
        self
    }

    /// The guest calls itself differently.
    #[must_use]
    pub fn called(mut self, hostname: &str) -> Self {
        self.hostname = Some(hostname.to_owned());
        self
    }

    /// What the guest agent reports as host name.
    pub fn reported_hostname(&self) -> &str {
        self.hostname.as_deref().unwrap_or(&self.name)
    }

    /// A migration is under way.
    pub fn migrating(&self) -> bool {
        self.migration.as_ref().is_some_and(|migration| migration.ended.is_none())
    }
}

impl Nic {
    /// Card number `index` of a machine; its MAC address follows from both.
    pub fn new(machine: &str, index: usize, network: &str, interface: &str, addresses: &[&str]) -> Self {
        // Any stable spread will do; `52:54:00` is what virtual machines use.
        let hash =
            machine.bytes().fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
        let [_, a, b, _] = hash.to_be_bytes();
        Self {
            name: format!("nic-{index}"),
            network: network.to_owned(),
            mac: format!("52:54:00:{a:02x}:{b:02x}:{:02x}", index % 256),
            interface: interface.to_owned(),
            addresses: addresses.iter().map(|address| (*address).to_owned()).collect(),
        }
    }
}
