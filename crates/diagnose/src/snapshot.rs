//! The snapshot: all objects as they were read.

use std::collections::BTreeMap;

use harvester_api::cloud_config::Account;
use harvester_api::ip_pool::IpPool;
use harvester_api::load_balancer::LoadBalancer;
use harvester_api::virtual_machine::VirtualMachine;
use harvester_api::virtual_machine_instance::VirtualMachineInstance;
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Event, Node, Pod, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use serde::Serialize;

/// Both clusters at one time.
#[derive(Debug, Clone, Default)]
pub struct Snapshot {
    /// Time of the snapshot, by the clock of the guest's API server if it is known.
    pub now: Timestamp,
    /// State of the guest cluster's API.
    pub guest: Side,
    /// State of Harvester's API, with the cloud-config.
    pub harvester: Side,
    /// Version and features of Harvester.
    pub host: Host,
    /// Origin of the cloud-config, as text; empty if it was not searched.
    pub cloud_config: String,
    /// Namespace of the machines on Harvester.
    pub namespace: String,
    /// The account of the cloud-config, if its token names one.
    pub account: Option<Account>,
    /// All Services.
    pub services: Vec<Service>,
    /// All EndpointSlices.
    pub endpoint_slices: Vec<EndpointSlice>,
    /// UID of Namespace `kube-system`, which the cloud controller writes to its objects; absent if it may not be read.
    pub cluster_uid: Option<String>,
    /// All Nodes.
    pub nodes: Vec<Node>,
    /// Leases of `kube-system`.
    pub leases: Vec<Lease>,
    /// Leases of the kubelets.
    pub kubelet_leases: Vec<Lease>,
    /// All Deployments.
    pub deployments: Vec<Deployment>,
    /// All `DaemonSets`.
    pub daemon_sets: Vec<DaemonSet>,
    /// Pods of the cloud controller and of the announcers.
    pub pods: Vec<Pod>,
    /// Events about Services, and about these pods.
    pub events: Vec<Event>,
    /// The cloud controller's ConfigMaps in `kube-system`, and Cilium's.
    pub config_maps: BTreeMap<String, ConfigMap>,
    /// Load balancers in [`Self::namespace`].
    pub load_balancers: Vec<LoadBalancer>,
    /// Machines there.
    pub machines: Vec<VirtualMachine>,
    /// Their VirtualMachineInstances.
    pub instances: Vec<VirtualMachineInstance>,
    /// Pools, if they may be read.
    pub pools: Vec<IpPool>,
    /// The announcers' status report.
    pub announcer: Option<announcer_core::status::Report>,
    /// Objects that could not be read and are not checked.
    pub unread: Vec<Unread>,
}

/// One API.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Side {
    /// Its URL.
    pub server: String,
    /// Version, if known.
    pub version: String,
    /// Why nothing can be read there.
    pub trouble: Option<Trouble>,
    /// Required rights that the account does not have.
    pub denied: Vec<Right>,
    /// Certificates of the server and of the credentials.
    pub certificates: Vec<Certificate>,
    /// Seconds that its clock is ahead of this machine's; absent if unknown.
    pub clock_ahead: Option<i64>,
}

/// A certificate, as far as it can be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Certificate {
    /// The side that presents it.
    pub owner: Owner,
    /// When it expires.
    pub expires: Timestamp,
}

/// The side that presents a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owner {
    /// The API server.
    Server,
    /// The client, with its credentials.
    Credentials,
}

/// Version and features of Harvester, as far as a guest can read them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Host {
    /// Version of Harvester, if these credentials may read it.
    pub version: String,
    /// Features by name; unknown ones are absent.
    pub features: BTreeMap<&'static str, bool>,
}

/// Names of [`Host::features`].
pub mod feature {
    /// Kind LoadBalancer in the required version.
    pub const LOAD_BALANCERS: &str = "load-balancers";
    /// KubeVirt's kinds.
    pub const MACHINES: &str = "virtual-machines";
    /// LoadBalancers may have a second pool.
    pub const IPV6_POOL: &str = "ipv6-pool";
    /// A load balancer keeps the network that it was created for.
    pub const NETWORK_AWARE: &str = "network-aware";
    /// Kind `UpgradePlan` of the Upgrade Toolkit.
    pub const UPGRADE_PLANS: &str = "upgrade-plans";

    /// What it means, for users.
    pub fn words(name: &str) -> &str {
        match name {
            LOAD_BALANCERS => "load balancers of guest clusters",
            MACHINES => "virtual machines",
            IPV6_POOL => "a second pool, of IPv6, for one load balancer",
            NETWORK_AWARE => "addresses of the network that a Service names",
            UPGRADE_PLANS => "plans of the Upgrade Toolkit",
            other => other,
        }
    }
}

/// Why an API cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trouble {
    /// The kind of problem.
    pub kind: TroubleKind,
    /// The message of the library or the server.
    pub text: String,
}

/// The kind of a [`Trouble`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TroubleKind {
    /// There are no credentials, or they cannot be read.
    NoCredentials,
    /// The Secret that should contain them has other keys.
    NoKey,
    /// No connection, or no answer.
    Unreachable,
    /// Its certificate is not trusted.
    Certificate,
    /// The server does not accept the token (any more).
    Unauthorized,
}

/// A right of an account.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Right {
    /// The account.
    pub account: String,
    /// For example `list`.
    pub verb: String,
    /// With group, for example `loadbalancers.loadbalancer.harvesterhci.io`.
    pub resource: String,
    /// The namespace; empty for all namespaces.
    pub namespace: String,
}

/// Names of lists in [`Snapshot::unread`].
pub mod list {
    /// All Services.
    pub const SERVICES: &str = "Services";
    /// All Nodes.
    pub const NODES: &str = "Nodes";
    /// The Leases of `kube-system`, which show whether announcers run.
    pub const LEASES: &str = "Leases in kube-system";
}

/// Something that could not be read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Unread {
    /// The objects.
    pub what: String,
    /// The reason.
    pub why: String,
}

impl Snapshot {
    /// Whether these objects could be read.
    pub fn has_read(&self, what: &str) -> bool {
        self.why_unread(what).is_none()
    }

    /// These objects and the reason, if they could not be read.
    pub fn why_unread(&self, what: &str) -> Option<&Unread> {
        self.unread.iter().find(|unread| unread.what == what)
    }

    /// A value of a `ConfigMap` in `kube-system`.
    pub fn config(&self, name: &str, key: &str) -> Option<&str> {
        self.config_maps.get(name)?.data.as_ref()?.get(key).map(String::as_str)
    }
}
