//! Names of the announcers' Leases, by which the cloud provider recognises whether any announcer is running. Also what
//! the cloud provider says on its own Lease.

/// Namespace in which the cloud controller reads them: that of its own ConfigMaps.
pub const NAMESPACE: &str = crate::config_maps::NAMESPACE;
/// The Lease that a single announcer of all Services holds: kube-vip's, or this project's announcer in its place.
pub const GLOBAL: &str = "plndr-svcs-lock";
/// Prefix of the Lease of one Service (kube-vip spec 4); the name of the Service follows.
pub const SERVICE_PREFIX: &str = "kubevip-";
/// Prefix of the membership Lease of one node in `node` mode; the name of the node follows.
pub const MEMBER_PREFIX: &str = "harvester-announcer-";
/// The Lease of the cloud controller, unless `--leader-elect-resource-name` names another one.
pub const CONTROLLER: &str = "cloud-controller-manager";
/// Value of annotation [`SAFE_MODE`](crate::keys::cloudprovider::SAFE_MODE) of the cloud controller's Lease while the
/// controller does not know yet which cluster this is. Any other value is the reason of its safe mode.
pub const IDENTITY_NOT_KNOWN: &str = "IdentityNotKnown";
