//! Configuration of this provider, as the command line gives it.

use std::collections::BTreeSet;
use std::time::Duration;

use harvester_api::cloud_config::Account;
use harvester_api::names::{ClusterName, NetworkName, is_dns_1123_label};

use crate::identity::proof::cluster_of;
use crate::load_balancers::view::LbView;

/// Configuration of the provider, checked and normalised (CCM spec 1.4). One name of the cluster is used everywhere
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
    /// `--max-load-balancers`; `None`: no limit other than Harvester's.
    pub max_load_balancers: Option<usize>,
    /// `--share-across-namespaces`: a Service of another namespace may share an address without the consent of the
    /// Service that has it.
    pub share_across_namespaces: bool,
    /// Namespace on Harvester of all VMs and load balancers of this cluster, from the cloud-config's context.
    pub namespace: String,
    /// URL of the Harvester API, for messages.
    pub server: String,
    /// Fingerprint of the certificate authority in the cloud-config, if it has one.
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
    /// True if the name comes from `NODE_NAME`: then this Node exists or will exist. False if it is the host name,
    /// which may belong to no Node.
    pub told: bool,
}

/// What the controller does about load balancers of this cluster that belong to no Service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GarbageMode {
    /// The controller does not look for them.
    Off,
    /// The controller reports them by metric and Event.
    List,
    /// The controller deletes after the grace period what is proven to belong to this cluster.
    Delete,
}

/// Configuration of the collection of garbage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GarbageConfig {
    /// `--garbage-collection`.
    pub mode: GarbageMode,
    /// `--garbage-collection-grace-period`.
    pub grace: Duration,
    /// Interval and waiting time; not configurable by the user.
    pub pace: GarbagePace,
}

impl GarbageConfig {
    /// Configuration with the default pace.
    pub fn new(mode: GarbageMode, grace: Duration) -> Self {
        Self { mode, grace, pace: GarbagePace::default() }
    }
}

/// How often the collector runs, and how long nothing may have failed before it deletes. Only tests use anything but
/// the default.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GarbagePace {
    /// Interval of the passes. The first pass comes after this time, too, so that it does not burden a start.
    pub every: Duration,
    /// After the start of the process, or a failure of an API, nothing is deleted for this long: the caches may show
    /// the past.
    pub settled: Duration,
}

impl Default for GarbagePace {
    fn default() -> Self {
        Self { every: Duration::from_mins(10), settled: Duration::from_mins(10) }
    }
}

/// The part of the configuration that the decisions about load balancers use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoadBalancerConfig {
    /// Name of this guest cluster.
    pub cluster_name: ClusterName,
    /// Written to every load balancer.
    pub management_network: Option<NetworkName>,
    /// UID of this guest cluster, if it is known; written to new load balancers.
    pub cluster_uid: Option<String>,
    /// All UIDs that the load balancers of this cluster may carry.
    pub cluster_uids: Vec<String>,
    /// Names of the clusters whose objects may belong to this one. Empty before the card is known: all names.
    pub cluster_names: BTreeSet<String>,
    /// The largest number of load balancers that this cluster may have.
    pub max_load_balancers: Option<usize>,
    /// A Service of another namespace may share an address without the consent of the Service that has it.
    pub share_across_namespaces: bool,
    /// Namespace of the load balancers on Harvester.
    pub namespace: String,
    /// URL of the Harvester API, for messages.
    pub server: String,
}

impl LoadBalancerConfig {
    /// Whether the object carries the present name of this cluster, a former one, or none. A copy of this cluster has
    /// the same UIDs but another name. Without known names, every object passes.
    pub(crate) fn may_be_ours(&self, lb: &LbView) -> bool {
        self.cluster_names.is_empty() || cluster_of(lb).is_none_or(|name| self.cluster_names.contains(name.as_str()))
    }
}

/// The advice when Harvester does not answer as expected.
const CHECK_CLOUD_CONFIG: &str = "check server, certificate authority, credentials and namespace in the cloud-config";

/// What to do where Harvester does not know the token.
const RENEW_TOKEN: &str = "the token in the cloud-config expired or was revoked. Make a new one with \
    `harvester-cloud-provider generate-addon <account> <namespace> --rotate` (Event HarvesterCredentialsRefused of \
    Lease kube-system/cloud-controller-manager has both names), and put it into the Secret or file that \
    --cloud-config reads (values cloudConfig.secretName, cloudConfigPath); no restart is needed";

/// What to do where Harvester knows the account, which its answer names, and its rights do not suffice.
fn grant_role(error: &str) -> String {
    let quoted = |after: &str| error.split_once(after)?.1.split('"').next();
    let account = quoted("User \"").and_then(Account::of_user);
    let namespace = quoted("in the namespace \"").filter(|namespace| is_dns_1123_label(namespace));
    let arguments = match (&account, namespace) {
        (Some(account), Some(namespace)) if account.namespace == namespace => format!("{} {namespace}", account.name),
        (_, Some(namespace)) => format!("<account, by custom the name of the cluster> {namespace}"),
        _ => "<account, by custom the name of the cluster> <namespace of its virtual machines>".to_owned(),
    };
    format!(
        "the account of the cloud-config needs role harvesterhci.io:cloudprovider in this namespace of Harvester. \
         `harvester-cloud-provider generate-addon {arguments}` gives it (again); no restart is needed"
    )
}

/// The advice that belongs to the text of an error that a request to Harvester ended with.
pub(crate) fn remedy(error: &str) -> String {
    // The message of every 401 contains this word; at this point only the text of the answer is left.
    if error.contains("Unauthorized") {
        RENEW_TOKEN.to_owned()
    } else if lacks_rights(error) {
        grant_role(error)
    } else {
        CHECK_CLOUD_CONFIG.to_owned()
    }
}

/// Whether the error is a 403 of the authorizer. A 403 of a quota, or of a namespace that is being deleted, is worded
/// differently, and no role would help.
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
