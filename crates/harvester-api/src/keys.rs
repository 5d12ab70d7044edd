//! Every annotation, label, finalizer and taint key that the provider, the announcer and the Harvester side share, and their
//! fixed values. ccm.md 2, harvester-side.md 2.4, 4.3 and 9.3, kube-vip spec 0.
//!
//! Constants are named after the key; a module per owner keeps equal last parts (`network`, `cluster`) apart.

/// Keys below `cloudprovider.harvesterhci.io/`: the guest's own vocabulary, on Services, Nodes and LoadBalancers.
pub mod cloudprovider {
    /// Service: where the address comes from, `pool` (also when absent), `dhcp` or `static`.
    pub const IPAM: &str = "cloudprovider.harvesterhci.io/ipam";
    /// Service: network as `namespace/name` of a NetworkAttachmentDefinition; immutable once the LoadBalancer exists.
    pub const NETWORK: &str = "cloudprovider.harvesterhci.io/network";
    /// Service: Rancher project, copied to the LoadBalancer.
    pub const PROJECT: &str = "cloudprovider.harvesterhci.io/project";
    /// Service: namespace, copied to the LoadBalancer.
    pub const NAMESPACE: &str = "cloudprovider.harvesterhci.io/namespace";
    /// Service annotation: `namespace/name` of the Service whose address is shared. As a **label** on the same Service:
    /// `namespace.name`, the index of who shares with whom.
    pub const PRIMARY_SERVICE: &str = "cloudprovider.harvesterhci.io/primary-service";

    /// Service: name of a group in its namespace whose members share one address of a pool.
    pub const SHARE_GROUP: &str = "cloudprovider.harvesterhci.io/share-group";

    /// LoadBalancer: network at the time of creation, the frozen copy that later changes are compared with.
    pub const LB_NETWORK: &str = "cloudprovider.harvesterhci.io/lb-network";
    /// LoadBalancer: the provider's management network, one source of the host's network choice.
    pub const MANAGEMENT_NETWORK: &str = "cloudprovider.harvesterhci.io/managementNetwork";
    /// LoadBalancer **label**: name of the guest cluster. Harvester cleans up by it.
    pub const CLUSTER: &str = "cloudprovider.harvesterhci.io/cluster";
    /// LoadBalancer label: namespace of the Service.
    pub const SERVICE_NAMESPACE: &str = "cloudprovider.harvesterhci.io/serviceNamespace";
    /// LoadBalancer label: name of the Service.
    pub const SERVICE_NAME: &str = "cloudprovider.harvesterhci.io/serviceName";
    /// Service: the IPPool on Harvester to take the address from, past its selection rules.
    pub const IP_POOL: &str = "cloudprovider.harvesterhci.io/ippool";
    /// Service: the address that is asked for. With IPAM `static` it is the address.
    pub const IP: &str = "cloudprovider.harvesterhci.io/ip";
    /// Service that is being deleted: name of the LoadBalancer to leave behind on Harvester (decision 12).
    pub const ABANDON: &str = "cloudprovider.harvesterhci.io/abandon";
    /// Service annotation, `"true"`: the provider observes the Service and writes nothing for it, neither here nor on Harvester.
    pub const PAUSED: &str = "cloudprovider.harvesterhci.io/paused";
    /// LoadBalancer annotation: UID of the guest cluster, which is that of its Namespace `kube-system` (of Service `default/kubernetes`
    /// where that may not be read, and in versions before 0.4).
    pub const CLUSTER_UID: &str = "cloudprovider.harvesterhci.io/clusterUID";
    /// LoadBalancer annotation: UID of the Service.
    pub const SERVICE_UID: &str = "cloudprovider.harvesterhci.io/serviceUID";
    /// LoadBalancer annotation: changes when we wake the host's controller out of its back-off.
    pub const NUDGED: &str = "cloudprovider.harvesterhci.io/nudged";
    /// LoadBalancer annotation, `"true"`: we set the host controller's finalizer ourselves, so it proves nothing about the host.
    pub const PRESET_FINALIZER: &str = "cloudprovider.harvesterhci.io/preset-finalizer";

    /// Node: JSON array of addresses that are not to be shown.
    pub const ADDITIONAL_INTERNAL_IPS: &str = "cloudprovider.harvesterhci.io/additional-internal-ips";
    /// Label of a Node: the Harvester host that its machine runs on, for anti-affinity across physical machines.
    pub const HOST: &str = "cloudprovider.harvesterhci.io/host";
}

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

// The announcer has a list of its own and depends on nothing of Harvester; a test of `crates/cli` compares them.
/// Keys below `kube-vip.io/`, on Services: the contract between cloud provider and announcer.
pub mod kube_vip {
    /// Addresses to announce; `0.0.0.0` and `::` ask for DHCP. Output of the cloud provider.
    pub const LOADBALANCER_IPS: &str = "kube-vip.io/loadbalancerIPs";
    /// Network interface for the address.
    pub const SERVICE_INTERFACE: &str = "kube-vip.io/serviceInterface";
    /// MAC address of the DHCP macvlan. Refused: one that an interface of a node or another Service's lease has. Those of the gateway and of other machines cannot be told: do not name them.
    pub const HWADDR: &str = "kube-vip.io/hwaddr";
    /// Last DHCP address, asked for again.
    pub const REQUESTED_IP: &str = "kube-vip.io/requestedIP";
    /// Node that announces.
    pub const VIP_HOST: &str = "kube-vip.io/vipHost";
    /// `true`: not for kube-vip.
    pub const IGNORE: &str = "kube-vip.io/ignore";
}

/// Keys that Kubernetes itself defines and that stand on machines too. Those of Nodes alone are the framework's.
pub mod kubernetes {
    /// Zone: label on Nodes, annotation on VMIs.
    pub const TOPOLOGY_ZONE: &str = "topology.kubernetes.io/zone";
    /// Region: label on Nodes, annotation on VMIs.
    pub const TOPOLOGY_REGION: &str = "topology.kubernetes.io/region";
    /// Host name: label on Nodes, annotation on VMIs.
    pub const HOSTNAME: &str = "kubernetes.io/hostname";
}

/// Keys that Harvester and Rancher put on virtual machines and namespaces.
pub mod harvester {
    /// VM and VMI label: who made the machine.
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
    /// Finalizer of the host's LoadBalancer controller. An implementation detail of the host: learn it, do not rely on it
    /// (decision 8).
    pub const LB_FINALIZER: &str = "wrangler.cattle.io/harvester-lb-controller";
    /// Finalizer of the host's IPPool controller.
    pub const POOL_FINALIZER: &str = "wrangler.cattle.io/harvester-ipam-controller";
    /// ClusterRole that a guest cluster's service account is bound to.
    pub const CLOUD_PROVIDER_ROLE: &str = "harvesterhci.io:cloudprovider";
}

/// Name of this provider, as in `--cloud-provider` and before `://` of a provider id.
const PROVIDER_NAME: &str = "harvester";

/// `spec.providerID` of the node on the VM with this UID. ccm.md 4.1.
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
