//! What both tests of the whole provider begin with.

use std::time::Duration;

use harvester_api::names::ClusterName;
use harvester_provider::{GarbageConfig, GarbageMode, ProviderConfig};

/// A provider as it is without any flag, of the namespace `guests`.
pub fn config(cluster_name: ClusterName) -> ProviderConfig {
    ProviderConfig {
        cluster_name,
        management_network: None,
        node_ip_cidr: Vec::new(),
        node_exclude_ip_ranges: Vec::new(),
        ignore_node_annotations: false,
        disable_vmi_controller: false,
        disable_hostname_lookup: false,
        garbage: GarbageConfig::new(GarbageMode::List, Duration::from_hours(1)),
        max_load_balancers: None,
        share_across_namespaces: false,
        namespace: "guests".to_owned(),
        server: "https://harvester:6443".to_owned(),
        authority: None,
        own_node: None,
        paused: false,
    }
}
