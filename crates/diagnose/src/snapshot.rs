//! Everything that was read, as it was read.

use std::collections::BTreeMap;

use harvester_api::ip_pool::IpPool;
use harvester_api::load_balancer::LoadBalancer;
use harvester_api::virtual_machine::VirtualMachine;
use harvester_api::virtual_machine_instance::VirtualMachineInstance;
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Event, Node, Service};
use serde::Serialize;

/// Both clusters at one time.
#[derive(Debug, Clone, Default)]
pub struct Snapshot {
    /// When it was read, by this machine's clock.
    pub now: Timestamp,
    /// The guest cluster's API.
    pub guest: Side,
    /// Harvester's API, by the cloud-config.
    pub harvester: Side,
    /// What Harvester tells of itself.
    pub host: Host,
    /// Where the cloud-config was found, in words; empty where none was looked for.
    pub cloud_config: String,
    /// Namespace of the machines on Harvester.
    pub namespace: String,
    /// All Services.
    pub services: Vec<Service>,
    /// UID of Namespace `kube-system`, by which the cloud controller marks what it makes; absent where it may not be
    /// read.
    pub cluster_uid: Option<String>,
    /// All Nodes.
    pub nodes: Vec<Node>,
    /// Leases of `kube-system`.
    pub leases: Vec<Lease>,
    /// Those of the kubelets.
    pub kubelet_leases: Vec<Lease>,
    /// All Deployments.
    pub deployments: Vec<Deployment>,
    /// All `DaemonSets`.
    pub daemon_sets: Vec<DaemonSet>,
    /// Events about Services and Nodes.
    pub events: Vec<Event>,
    /// Those of `kube-system` that are ours, and that of Cilium.
    pub config_maps: BTreeMap<String, ConfigMap>,
    /// Load balancers in [`Self::namespace`].
    pub load_balancers: Vec<LoadBalancer>,
    /// Machines there.
    pub machines: Vec<VirtualMachine>,
    /// Their instances.
    pub instances: Vec<VirtualMachineInstance>,
    /// Pools, where they may be read.
    pub pools: Vec<IpPool>,
    /// What the announcer's own report says.
    pub announcer: Option<announcer_core::status::Report>,
    /// What could not be read, and is therefore not looked at.
    pub unread: Vec<Unread>,
}

/// One API.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Side {
    /// Its URL.
    pub server: String,
    /// Version, if it tells.
    pub version: String,
    /// Why nothing can be read there.
    pub trouble: Option<Trouble>,
    /// Rights that our account there needs and has not.
    pub denied: Vec<Right>,
    /// Certificates by which both sides know each other.
    pub certificates: Vec<Certificate>,
    /// Seconds by which its clock is ahead of this machine's; absent where it does not say.
    pub clock_ahead: Option<i64>,
}

/// A certificate, as far as it can be looked at from here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Certificate {
    /// Who shows it.
    pub owner: Owner,
    /// When it runs out.
    pub expires: Timestamp,
}

/// Who shows a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owner {
    /// The API server.
    Server,
    /// Whoever uses the credentials.
    Credentials,
}

/// What Harvester tells of itself, to a guest that may read next to nothing there.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Host {
    /// Its own version, where these credentials may read it.
    pub version: String,
    /// By name; what is not known is absent.
    pub features: BTreeMap<&'static str, bool>,
}

/// Names of [`Host::features`].
pub mod feature {
    /// Kind LoadBalancer in the version that we write.
    pub const LOAD_BALANCERS: &str = "load-balancers";
    /// KubeVirt's kinds.
    pub const MACHINES: &str = "virtual-machines";
    /// LoadBalancers may have a second pool.
    pub const IPV6_POOL: &str = "ipv6-pool";
    /// A load balancer keeps the network that it was created for.
    pub const NETWORK_AWARE: &str = "network-aware";
    /// Kind `UpgradePlan` of the Upgrade Toolkit.
    pub const UPGRADE_PLANS: &str = "upgrade-plans";
}

/// Why an API gives nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trouble {
    /// What kind of trouble.
    pub kind: TroubleKind,
    /// In the words of the library or the server.
    pub text: String,
}

/// See [`Trouble`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TroubleKind {
    /// There are no credentials, or they cannot be read.
    NoCredentials,
    /// No connection, or no answer.
    Unreachable,
    /// Its certificate is not trusted.
    Certificate,
    /// It does not know the token (any more).
    Unauthorized,
}

/// Something that an account may do, or may not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Right {
    /// Whose it would be.
    pub account: String,
    /// For example `list`.
    pub verb: String,
    /// With group, for example `loadbalancers.loadbalancer.harvesterhci.io`.
    pub resource: String,
    /// Empty: in all.
    pub namespace: String,
}

/// Something that could not be read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Unread {
    /// Which objects.
    pub what: String,
    /// Why.
    pub why: String,
}

impl Snapshot {
    /// Whether these objects could be read.
    pub fn has_read(&self, what: &str) -> bool {
        !self.unread.iter().any(|unread| unread.what == what)
    }

    /// A value of one of our `ConfigMaps` in `kube-system`.
    pub fn config(&self, name: &str, key: &str) -> Option<&str> {
        self.config_maps.get(name)?.data.as_ref()?.get(key).map(String::as_str)
    }
}
