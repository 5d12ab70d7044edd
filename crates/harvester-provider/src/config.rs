//! What the command line decides for this provider.

use harvester_api::names::{ClusterName, NetworkName};

use crate::garbage::GarbageConfig;
use crate::identity::Identity;
use crate::instances::addresses::AddressRules;

/// Configuration of the provider, checked and normalised (ccm.md 1.4). One name of the cluster is used everywhere (W-09).
#[derive(Debug, Clone)]
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
    /// `--garbage-collection` and its grace period.
    pub garbage: GarbageConfig,
    /// `--max-load-balancers`; `None`: as many as Harvester gives.
    pub max_load_balancers: Option<usize>,
    /// Namespace on Harvester of all VMs and load balancers of this cluster, from the cloud-config's context.
    pub namespace: String,
    /// URL of the Harvester API, for messages.
    pub server: String,
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
    /// So many load balancers may this cluster have.
    pub max_load_balancers: Option<usize>,
    /// Namespace of the objects.
    pub namespace: String,
    /// URL of the Harvester API, for messages.
    pub server: String,
}

impl LoadBalancerConfig {
    /// The same under the name that this cluster has by now, and its UID.
    pub(crate) fn under(&self, identity: &Identity, cluster_uid: Option<String>) -> Self {
        Self { cluster_name: identity.name_or_flag(), cluster_uid, ..self.clone() }
    }
}

/// What to do where Harvester does not answer as it should.
pub(crate) const CHECK_CLOUD_CONFIG: &str =
    "check server, certificate authority, credentials and namespace in the cloud-config";

impl ProviderConfig {
    pub(crate) fn load_balancers(&self) -> LoadBalancerConfig {
        LoadBalancerConfig {
            cluster_name: self.cluster_name.clone(),
            management_network: self.management_network.clone(),
            cluster_uid: None,
            max_load_balancers: self.max_load_balancers,
            namespace: self.namespace.clone(),
            server: self.server.clone(),
        }
    }

    pub(crate) fn addresses(&self) -> AddressRules {
        AddressRules {
            management_network: self.management_network.as_ref().map(ToString::to_string),
            node_ip_cidr: self.node_ip_cidr.clone(),
            exclude_ranges: self.node_exclude_ip_ranges.clone(),
            ignore_node_annotations: self.ignore_node_annotations,
        }
    }
}
