//! What the command line decides for this provider.

use std::collections::BTreeSet;
use std::time::Duration;

use harvester_api::names::{ClusterName, NetworkName};

use crate::identity::proof::cluster_of;
use crate::load_balancers::view::LbView;

/// Configuration of the provider, checked and normalised (ccm.md 1.4). One name of the cluster is used everywhere
/// (W-09).
#[derive(Debug, Clone)]
#[allow(clippy::struct_excessive_bools)] // flags are what they are
pub struct ProviderConfig {
    /// `--cluster-name`.
    pub cluster_name: ClusterName,
    /// `--management-network`.
    pub management_network: Option<NetworkName>,
    /// `--node-ip-cidr`, parsed.
    pub node_ip_cidr: Vec<ipnet::IpNet>,
    /// `--node-exclude-ip-ranges`, parsed.
    pub node_exclude_ip_ranges: Vec<ipnet::IpNet>,
    /// `--disable-annotation-alpha-provided-ip-addr`.
    pub ignore_node_annotations: bool,
    /// `--disable-vmi-controller`: VMIs wake no Nodes, no guest agent is asked, no NAD mapping is written.
    pub disable_vmi_controller: bool,
    /// `--disable-hostname-lookup`: a Node is on the VM of its name; no guest agent is asked for another one.
    pub disable_hostname_lookup: bool,
    /// `--garbage-collection` and its grace period.
    pub garbage: GarbageConfig,
    /// `--max-load-balancers`; `None`: as many as Harvester gives.
    pub max_load_balancers: Option<usize>,
    /// `--share-across-namespaces`: the Service whose address is shared is not asked.
    pub share_across_namespaces: bool,
    /// Namespace on Harvester of all VMs and load balancers of this cluster, from the cloud-config's context.
    pub namespace: String,
    /// URL of the Harvester API, for messages.
    pub server: String,
    /// Fingerprint of the authority that the cloud-config trusts, if it names one.
    pub authority: Option<String>,
    /// The Node that this process runs on, if that is known.
    pub own_node: Option<OwnNode>,
    /// `--paused`.
    pub paused: bool,
}

/// The Node that this process runs on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnNode {
    /// Its name.
    pub name: String,
    /// `NODE_NAME` says so: there is such a Node, or there will be. Else it is the name of the host, which may be none.
    pub told: bool,
}

/// What is done about load balancers of this cluster that no Service has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GarbageMode {
    /// They are not looked for.
    Off,
    /// Metric and Event tell of them.
    List,
    /// What is proven to be ours is deleted after the grace period.
    Delete,
}

/// Configuration of the collection of garbage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GarbageConfig {
    /// `--garbage-collection`.
    pub mode: GarbageMode,
    /// `--garbage-collection-grace-period`.
    pub grace: Duration,
    /// Not the user's to choose.
    pub pace: GarbagePace,
}

impl GarbageConfig {
    /// At the usual pace.
    pub fn new(mode: GarbageMode, grace: Duration) -> Self {
        Self { mode, grace, pace: GarbagePace::default() }
    }
}

/// How often it is looked, and for how long nothing may have gone wrong. Anything but the default is for tests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GarbagePace {
    /// The first look comes after this time, too: a start has other things to do.
    pub every: Duration,
    /// After trouble with an API, or the start of this process, nothing is deleted for so long: caches tell of the past
    /// then.
    pub settled: Duration,
}

impl Default for GarbagePace {
    fn default() -> Self {
        Self { every: Duration::from_mins(10), settled: Duration::from_mins(10) }
    }
}

/// The part that decides about load balancers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoadBalancerConfig {
    /// Name of this guest cluster.
    pub cluster_name: ClusterName,
    /// Stamped on every object.
    pub management_network: Option<NetworkName>,
    /// UID of this guest cluster, if it is known: stamped on new objects.
    pub cluster_uid: Option<String>,
    /// All UIDs that stand on objects of this cluster.
    pub cluster_uids: Vec<String>,
    /// Names of clusters whose objects may be ours; empty: all.
    pub cluster_names: BTreeSet<String>,
    /// So many load balancers may this cluster have.
    pub max_load_balancers: Option<usize>,
    /// A Service of another namespace may share an address without the consent of the Service that has it.
    pub share_across_namespaces: bool,
    /// Namespace of the objects.
    pub namespace: String,
    /// URL of the Harvester API, for messages.
    pub server: String,
}

impl LoadBalancerConfig {
    /// The object is called after this cluster, by its present name or a former one. A copy of this cluster has the
    /// same UIDs, and another name.
    pub(crate) fn may_be_ours(&self, lb: &LbView) -> bool {
        self.cluster_names.is_empty() || cluster_of(lb).is_none_or(|name| self.cluster_names.contains(name.as_str()))
    }
}

/// What to do where Harvester does not answer as it should.
const CHECK_CLOUD_CONFIG: &str = "check server, certificate authority, credentials and namespace in the cloud-config";

/// What to do where Harvester does not know the token.
const RENEW_TOKEN: &str = "the token in the cloud-config expired or was revoked. Make a new one with \
    `harvester-cloud-provider generate-addon <account> <namespace> --rotate`, and put it into the Secret or file that \
    --cloud-config reads (values cloudConfig.secretName, cloudConfigPath); no restart is needed";

/// What to do where Harvester knows the account and its rights do not suffice.
const GRANT_ROLE: &str = "the account of the cloud-config needs role harvesterhci.io:cloudprovider in this namespace \
    of Harvester. `harvester-cloud-provider generate-addon <account> <namespace>` gives it (again); no restart is \
    needed";

/// What to do about a request that Harvester answered with these words.
pub(crate) fn remedy(error: &str) -> &'static str {
    // The message of every 401; what is left of an answer is its text.
    if error.contains("Unauthorized") {
        RENEW_TOKEN
    } else if lacks_rights(error) {
        GRANT_ROLE
    } else {
        CHECK_CLOUD_CONFIG
    }
}

/// A 403 of the authorizer. One of a quota, or of a namespace that is going, has other words, and no role helps.
pub(crate) fn lacks_rights(error: &str) -> bool {
    error.contains(" is forbidden: User ") && error.contains(" cannot ")
}

impl ProviderConfig {
    pub(crate) fn load_balancers(&self) -> LoadBalancerConfig {
        LoadBalancerConfig {
            cluster_name: self.cluster_name.clone(),
            management_network: self.management_network.clone(),
            cluster_uid: None,
            cluster_uids: Vec::new(),
            cluster_names: BTreeSet::new(),
            max_load_balancers: self.max_load_balancers,
            share_across_namespaces: self.share_across_namespaces,
            namespace: self.namespace.clone(),
            server: self.server.clone(),
        }
    }
}
