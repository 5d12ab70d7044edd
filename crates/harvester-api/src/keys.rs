//! Keys of annotations, labels and finalizers that Harvester and Rancher define, besides those of [`contract`], with
//! their fixed values (CCM spec 2, Harvester spec 2.4, 4.3 and 9.3).
//!
//! Constants are named after the key. There is a module per owner, because last parts like `network` and `cluster`
//! occur more than once.

pub use contract::keys::{cloudprovider, kube_vip, kubernetes};

/// Keys below `loadbalancer.harvesterhci.io/`: the host's vocabulary, on LoadBalancers and IPPools.
pub mod loadbalancer {
    /// LoadBalancer: network used for pool selection. Filled in and kept by the host's webhook: preserve it on update.
    pub const NETWORK: &str = "loadbalancer.harvesterhci.io/network";
    /// LoadBalancer: Rancher project, overwritten by the host's webhook.
    pub const PROJECT: &str = "loadbalancer.harvesterhci.io/project";
    /// LoadBalancer: namespace, overwritten by the host's webhook.
    pub const NAMESPACE: &str = "loadbalancer.harvesterhci.io/namespace";
    /// LoadBalancer: guest cluster name, never touched by the host.
    pub const CLUSTER: &str = "loadbalancer.harvesterhci.io/cluster";

    /// IPPool label: `"true"` on the one global pool.
    pub const GLOBAL_IP_POOL: &str = "loadbalancer.harvesterhci.io/global-ip-pool";
    /// IPPool label: VLAN id in decimal, informational.
    pub const VID: &str = "loadbalancer.harvesterhci.io/vid";
    /// IPPool annotation: `<ip>: <namespace>/<name>` that an administrator wants released.
    pub const MANUALLY_RELEASE_IP: &str = "loadbalancer.harvesterhci.io/manuallyReleaseIP";
}

/// Keys that Harvester and Rancher put on virtual machines and namespaces.
pub mod harvester {
    /// VM and VMI label: the program that made the machine.
    pub const CREATOR: &str = "harvesterhci.io/creator";
    /// Value of [`CREATOR`] on nodes of guest clusters made by the node driver.
    pub const NODE_DRIVER: &str = "docker-machine-driver-harvester";
    /// VM and VMI label: name of the guest cluster.
    pub const GUEST_CLUSTER_NAME: &str = "guestcluster.harvesterhci.io/name";
    /// VMI label: name of the VM.
    pub const VM_NAME: &str = "harvesterhci.io/vmName";
    /// VM annotation, `"true"`: the whole guest cluster is being removed.
    pub const REMOVE_ALL_VOLUMES: &str = "harvesterhci.io/removeAllPersistentVolumeClaims";
    /// Namespace annotation: Rancher project as `<cluster id>:<project id>`.
    pub const PROJECT_ID: &str = "field.cattle.io/projectId";
    /// NetworkAttachmentDefinition label: VLAN id.
    pub const VLAN_ID: &str = "network.harvesterhci.io/vlan-id";
    /// Finalizer of the host's LoadBalancer controller. An implementation detail of the host: learn it, do not rely on
    /// it (decision 8).
    pub const LB_FINALIZER: &str = "wrangler.cattle.io/harvester-lb-controller";
    /// Finalizer of the host's IPPool controller.
    pub const POOL_FINALIZER: &str = "wrangler.cattle.io/harvester-ipam-controller";
    /// ClusterRole that a guest cluster's service account is bound to.
    pub const CLOUD_PROVIDER_ROLE: &str = "harvesterhci.io:cloudprovider";
}

/// Name of this provider, as in `--cloud-provider` and before `://` of a provider id.
const PROVIDER_NAME: &str = "harvester";

/// `spec.providerID` of the node on the VM with this UID. CCM spec 4.1.
pub fn provider_id(vm_uid: &str) -> String {
    format!("{PROVIDER_NAME}://{vm_uid}")
}

/// The VM's UID in a provider id of ours; `None` for another provider's or an empty one.
pub fn vm_uid(provider_id: &str) -> Option<&str> {
    provider_id.strip_prefix(PROVIDER_NAME)?.strip_prefix("://").filter(|uid| !uid.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_provider_id_gives_the_uid_back_and_nobody_elses_does() {
        assert_eq!(vm_uid(&provider_id("1-2")), Some("1-2"));
        for foreign in ["", "harvester", "harvester://", "aws:///i-1", "harvester2://x"] {
            assert_eq!(vm_uid(foreign), None, "{foreign}");
        }
    }
}
