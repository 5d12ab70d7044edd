//! Every annotation and label key that cloud provider and announcer share with users and with each other (CCM spec 2,
//! Harvester spec 2.4, 4.3 and 9.3, kube-vip spec 0), and those of Kubernetes that both read.

/// Constants, and `ALL` of them: what is added here is known to every reader of the list.
macro_rules! keys {
    ($($(#[$comment:meta])* pub const $name:ident: &str = $key:literal;)+) => {
        $($(#[$comment])* pub const $name: &str = $key;)+
        /// All of them.
        pub const ALL: &[&str] = &[$($name),+];
    };
}

/// Keys below `cloudprovider.harvesterhci.io/`: the guest's own vocabulary, on Services, Nodes and LoadBalancers.
pub mod cloudprovider {
    keys! {
        /// Service: where the address comes from, `pool` (also when absent), `dhcp` or `static`.
        pub const IPAM: &str = "cloudprovider.harvesterhci.io/ipam";
        /// Service: network as `namespace/name` of a NetworkAttachmentDefinition; immutable once the LoadBalancer
        /// exists.
        pub const NETWORK: &str = "cloudprovider.harvesterhci.io/network";
        /// Service: Rancher project, copied to the LoadBalancer.
        pub const PROJECT: &str = "cloudprovider.harvesterhci.io/project";
        /// Service: namespace, copied to the LoadBalancer.
        pub const NAMESPACE: &str = "cloudprovider.harvesterhci.io/namespace";
        /// Service annotation: `namespace/name` of the Service whose address is shared. As a **label** on the same
        /// Service: `namespace.name`, the index of Services that share.
        pub const PRIMARY_SERVICE: &str = "cloudprovider.harvesterhci.io/primary-service";

        /// Service: namespaces, comma-separated, whose Services may share its address by naming it as their primary;
        /// `*` means all.
        pub const SHARE_WITH: &str = "cloudprovider.harvesterhci.io/share-with-namespaces";

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
        /// Service annotation, `"true"`: the provider observes the Service and writes nothing for it, neither here nor
        /// on Harvester.
        pub const PAUSED: &str = "cloudprovider.harvesterhci.io/paused";
        /// LoadBalancer annotation: UID of the guest cluster, which is that of its Namespace `kube-system` (of Service
        /// `default/kubernetes` where that may not be read, and in earlier versions).
        pub const CLUSTER_UID: &str = "cloudprovider.harvesterhci.io/clusterUID";
        /// LoadBalancer annotation: UID of the Service.
        pub const SERVICE_UID: &str = "cloudprovider.harvesterhci.io/serviceUID";
        /// LoadBalancer annotation: revision of the guest cluster's etcd when the object was made. If it is later than
        /// the present one, etcd was restored from an older snapshot.
        pub const GUEST_REVISION: &str = "cloudprovider.harvesterhci.io/guestRevision";
        /// LoadBalancer annotation: changes when we wake the host's controller out of its back-off.
        pub const NUDGED: &str = "cloudprovider.harvesterhci.io/nudged";
        /// LoadBalancer annotation, `"true"`: we set the host controller's finalizer ourselves, so it proves nothing
        /// about the host.
        pub const PRESET_FINALIZER: &str = "cloudprovider.harvesterhci.io/preset-finalizer";

        /// Service: `"true"`: two other nodes ask its addresses at its first TCP port now and then, as a client would;
        /// `"false"`: none does, whatever the announcers are told for all Services.
        pub const PROBE: &str = "cloudprovider.harvesterhci.io/probe";

        /// Node: JSON array of addresses that are not shown as ExternalIP. An InternalIP is not filtered. The key has
        /// no effect where `--node-ip-cidr` chooses the InternalIP.
        pub const ADDITIONAL_INTERNAL_IPS: &str = "cloudprovider.harvesterhci.io/additional-internal-ips";
        /// Node, while hosts are being upgraded: the Harvester host that its machine runs on, which the label may not
        /// show before it is over.
        pub const HOST_UPGRADE_HOST: &str = "cloudprovider.harvesterhci.io/host-upgrade-host";
        /// Node, while hosts are being upgraded: state of its host, as Harvester stores it.
        pub const HOST_UPGRADE_STATE: &str = "cloudprovider.harvesterhci.io/host-upgrade-state";
        /// Node, while hosts are being upgraded: kind and name of the plan.
        pub const HOST_UPGRADE_PLAN: &str = "cloudprovider.harvesterhci.io/host-upgrade-plan";
        /// Node, while hosts are being upgraded: what becomes of its machine, `migrate`, `shutdown` or `none`.
        pub const HOST_UPGRADE_EXPECT: &str = "cloudprovider.harvesterhci.io/host-upgrade-expect";
        /// Taint of a Node whose host is being upgraded, with effect `PreferNoSchedule`, where that was asked for.
        pub const HOST_MAINTENANCE: &str = "cloudprovider.harvesterhci.io/host-maintenance";
        /// Node, from the cloud provider to the announcers: since when (RFC 3339) its machine is about to move or to be
        /// shut down, so that it hands over what it announces and is the last to get anything. It excludes no node: the
        /// least bad one serves.
        pub const HAND_OVER: &str = "cloudprovider.harvesterhci.io/hand-over";
        /// Node: the cloud provider has cordoned it before its machine is shut down, and uncordons it when the machine
        /// is back.
        pub const CORDONED: &str = "cloudprovider.harvesterhci.io/cordoned";
        /// Label of a Node: the Harvester host that its machine runs on, for anti-affinity across physical machines.
        pub const HOST: &str = "cloudprovider.harvesterhci.io/host";

        /// Service, of the announcer: a decimal number that grows with each change of owner. It stands beside
        /// `kube-vip.io/vipHost`, which names the owner.
        pub const TERM: &str = "cloudprovider.harvesterhci.io/announcer-term";
        /// Service, of the announcer: what a successor needs to go on with the DHCP lease.
        pub const DHCP_LEASE: &str = "cloudprovider.harvesterhci.io/dhcp-lease";
        /// Service, of the announcer: the same for DHCPv6.
        pub const DHCP6_LEASE: &str = "cloudprovider.harvesterhci.io/dhcp6-lease";
        /// Lease of a node, of the announcer: what the node says about itself.
        pub const CARD: &str = "cloudprovider.harvesterhci.io/announcer-card";
        /// Lease of a node, of the announcer: why the node cannot have macvlans, which addresses by DHCP need; absent
        /// where it can.
        pub const NO_MACVLANS: &str = "cloudprovider.harvesterhci.io/announcer-without-macvlans";
        /// Label of a node's Lease, of the announcer, `"true"`: the card names nodes that are silent. Nobody has to
        /// follow the Leases of a healthy cluster to hear of it.
        pub const SILENCE: &str = "cloudprovider.harvesterhci.io/reports-silence";
        /// Lease of the cloud controller: the reason of its safe mode, while it is in it or does not know yet whether
        /// the cluster is a copy. Announcers follow the Leases of that namespace anyway.
        pub const SAFE_MODE: &str = "cloudprovider.harvesterhci.io/safe-mode";
        /// Lease of the cloud controller: the replica that wrote `safe-mode`, which counts only while that replica
        /// holds the Lease or nobody does.
        pub const SAFE_MODE_HOLDER: &str = "cloudprovider.harvesterhci.io/safe-mode-holder";
        /// ConfigMap `kube-system/harvester-cloud-provider`: a changed value makes the cloud provider look for garbage
        /// at once.
        pub const LIST_GARBAGE: &str = "cloudprovider.harvesterhci.io/list-garbage";
        /// ConfigMap `kube-system/harvester-cloud-provider`: what an operator has said of the identity of this cluster,
        /// written by `identity confirm` and `identity rename`. The cloud provider removes it when it has acted on it.
        pub const CONFIRMATION: &str = "cloudprovider.harvesterhci.io/identity";
    }
}

/// Keys below `kube-vip.io/`, on Services: what cloud provider and users ask of the announcer, and what it answers.
pub mod kube_vip {
    keys! {
        /// Addresses to announce; `0.0.0.0` and `::` ask for DHCP. Output of the cloud provider.
        pub const LOADBALANCER_IPS: &str = "kube-vip.io/loadbalancerIPs";
        /// Network interface for the address, or `auto`: the one whose subnet contains it.
        pub const SERVICE_INTERFACE: &str = "kube-vip.io/serviceInterface";
        /// MAC address of the DHCP macvlan. Refused: one that an interface of a node or another Service's lease has.
        /// Those of the gateway and of other machines cannot be told: do not name them.
        pub const HWADDR: &str = "kube-vip.io/hwaddr";
        /// Last DHCP address, asked for again.
        pub const REQUESTED_IP: &str = "kube-vip.io/requestedIP";
        /// Node that announces.
        pub const VIP_HOST: &str = "kube-vip.io/vipHost";
        /// `true`: the announcer leaves the Service alone, and so does kube-vip.
        pub const IGNORE: &str = "kube-vip.io/ignore";
        /// Host name for the DHCP server. Refused: one with which another Service leases its address, if both name the
        /// same interface.
        pub const LOADBALANCER_HOSTNAME: &str = "kube-vip.io/loadbalancerHostname";
        /// `true`: ask the DHCP server to answer by broadcast.
        pub const DHCP_BROADCAST: &str = "kube-vip.io/dhcp-broadcast";
        /// `rp_filter` of the macvlan.
        pub const RP_FILTER: &str = "kube-vip.io/rp_filter";
        /// Name of the macvlan instead of `vip-<uid8>`.
        pub const MACVLAN_NAME: &str = "kube-vip.io/macvlanName";
        /// Name of the Lease in `service` mode; `namespace/name` where `svc_lease_namespaces` names that namespace.
        pub const LEASE_NAME: &str = "kube-vip.io/leaseName";
        /// `true` on each Service that has the address: its ports are not closed by service security.
        pub const IGNORE_SERVICE_SECURITY: &str = "kube-vip.io/ignore-service-security";
        /// kube-vip: pods send from the address. Without effect; an Event says so.
        pub const EGRESS: &str = "kube-vip.io/egress";
        /// kube-vip: ports are mapped by UPnP. Without effect; an Event says so.
        pub const FORWARD_UPNP: &str = "kube-vip.io/forwardUPNP";
        /// kube-vip: the address belongs to a DNS name. Without effect; an Event says so.
        pub const DDNS: &str = "kube-vip.io/ddns";
        /// kube-vip: tracked connections are forgotten when the Service changes. Without effect; an Event says so.
        pub const FLUSH_CONNTRACK: &str = "kube-vip.io/flush-conntrack";
        /// kube-vip: VLAN sub-interface that it makes for the address. Without effect: make the interface on each node
        /// and name it in `kube-vip.io/serviceInterface`.
        pub const SERVICE_VLAN: &str = "kube-vip.io/serviceVLAN";
    }
}

/// Keys that Kubernetes itself defines and that several parts of the product read.
pub mod kubernetes {
    /// Zone: label on Nodes, annotation on VMIs.
    pub const TOPOLOGY_ZONE: &str = "topology.kubernetes.io/zone";
    /// Region: label on Nodes, annotation on VMIs.
    pub const TOPOLOGY_REGION: &str = "topology.kubernetes.io/region";
    /// Host name: label on Nodes, annotation on VMIs.
    pub const HOSTNAME: &str = "kubernetes.io/hostname";
    /// Service: the finalizer that its controller keeps until its load balancer is cleaned up.
    pub const FINALIZER: &str = "service.kubernetes.io/load-balancer-cleanup";
    /// Label of an EndpointSlice: the name of its Service.
    pub const SERVICE_NAME: &str = "kubernetes.io/service-name";
    /// Taint by which the kubelet marks a Node that no cloud provider has initialised; its effect does not matter
    /// (framework spec 2.1).
    pub const UNINITIALIZED: &str = "node.cloudprovider.kubernetes.io/uninitialized";
    /// Taint that makes Kubernetes move a Node's pods although its kubelet cannot confirm that they have ended.
    pub const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";
    /// Taint of a Node that the cluster autoscaler is about to remove.
    pub const AUTOSCALER: &str = "ToBeDeletedByClusterAutoscaler";
    /// Taints of a Node that announces nothing (decisions.md 21).
    pub const SHUT_OUT: [&str; 2] = [OUT_OF_SERVICE, AUTOSCALER];
    /// Label of a Node that announces nothing.
    pub const EXCLUDED: &str = "node.kubernetes.io/exclude-from-external-load-balancers";
    /// Annotation of the mirror pod of a static pod, which a kubelet runs from a file.
    pub const MIRROR: &str = "kubernetes.io/config.mirror";
}

/// Whether some program of ours reads or writes this key.
pub fn is_known(key: &str) -> bool {
    all().any(|known| known == key)
}

/// All keys of our two prefixes.
pub fn all() -> impl Iterator<Item = &'static str> {
    cloudprovider::ALL.iter().chain(kube_vip::ALL).copied()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_key_stands_once_and_under_its_own_prefix() {
        assert!(cloudprovider::ALL.iter().all(|key| key.starts_with("cloudprovider.harvesterhci.io/")));
        assert!(kube_vip::ALL.iter().all(|key| key.starts_with("kube-vip.io/")));
        assert_eq!(all().collect::<BTreeSet<_>>().len(), all().count());
    }
}
