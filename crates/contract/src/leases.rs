//! Names of the Leases of announcers, by which the cloud provider knows whether anybody announces.

/// The Lease that the one announcer of all Services holds: kube-vip's, and ours where it stands in for it.
pub const GLOBAL: &str = "plndr-svcs-lock";
/// The Lease of one Service (kube-vip spec 4): this, and the name of the Service.
pub const SERVICE_PREFIX: &str = "kubevip-";
/// The membership Lease of one node in `node` mode: this, and the name of the node.
pub const MEMBER_PREFIX: &str = "harvester-announcer-";
