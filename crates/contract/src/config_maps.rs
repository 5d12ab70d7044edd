//! ConfigMaps that the cloud controller writes in the guest cluster. These are their names, and the keys in them that
//! others read as well: replicas that do not lead, `status` and `doctor`. Neither a flag nor the chart changes them.

/// Namespace of all of them, wherever the workloads are.
pub const NAMESPACE: &str = "kube-system";
/// The record of the cluster: data that must outlive the process and cannot be computed again. Its keys: [`record`].
pub const RECORD: &str = "harvester-cloud-provider";
/// The state of an upgrade of Harvester's hosts. Its keys: [`host_upgrade`].
pub const HOST_UPGRADE: &str = "harvester-host-upgrade";
/// Which Linux interface of the nodes is attached to which network.
pub const NAD_MAPPING: &str = "harvester-nad-mapping";

/// Keys of [`RECORD`].
pub mod record {
    /// The cluster's name on Harvester. An operator who really wants another name writes it here.
    pub const CLUSTER_NAME: &str = "cluster-name";
    /// The identity card.
    pub const IDENTITY: &str = "identity";
    /// The reason why nothing is changed, while the controller is in safe mode. Other replicas, `doctor` and users read
    /// it; writing it has no effect.
    pub const SAFE_MODE: &str = "safe-mode";
    /// The pause. With `"true"` the whole controller observes and reports, and writes nothing.
    pub const PAUSED: &str = "paused";
    /// The LoadBalancers that were left behind at a user's request, one per line (decision 12).
    pub const POSSIBLE_ORPHANS: &str = "possible-orphans";
}

/// Keys of [`HOST_UPGRADE`].
pub mod host_upgrade {
    /// One line for users.
    pub const SUMMARY: &str = "summary";
    /// The whole state, as JSON.
    pub const STATUS: &str = "status.json";
}
