//! The views of a VirtualMachine and its instance: the fields that the decisions need. No other part reads the objects.

use cloud_provider::view::Tags;
use harvester_api::keys;
use harvester_api::names::ClusterName;
use harvester_api::virtual_machine::{PrintableStatus, VirtualMachine};
use harvester_api::virtual_machine_instance::{Phase, VirtualMachineInstance};
use k8s_openapi::jiff::Timestamp;
use runtime::cache::Cache;

use super::machine_uuid::MachineUuid;

/// All VMs of this cluster's namespace, by name.
pub type VmCache = Cache<String, VmView>;
/// Their instances, by name.
pub type VmiCache = Cache<String, VmiView>;

/// Empty caches for reflectors to fill.
pub fn machine_caches() -> (VmCache, VmiCache) {
    (Cache::new(|old, new| old != new), Cache::new(|old, new| old != new))
}

/// A VirtualMachine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VmView {
    /// `metadata.name`.
    pub name: String,
    /// `metadata.uid`: the stable identity of the machine, part of the provider ID.
    pub uid: String,
    /// `status.printableStatus`.
    pub status: PrintableStatus,
    /// `spec.instancetype.name`, empty where it was made from none.
    pub instance_type: String,
    /// `spec.runStrategy` demands that it runs, unless its guest shuts it down.
    pub should_run: bool,
}

impl From<&VirtualMachine> for VmView {
    fn from(vm: &VirtualMachine) -> Self {
        Self {
            name: vm.metadata.name.clone().unwrap_or_default(),
            uid: vm.metadata.uid.clone().unwrap_or_default(),
            status: vm.printable_status(),
            instance_type: vm.spec.instancetype.as_ref().map(|matcher| matcher.name.clone()).unwrap_or_default(),
            should_run: matches!(vm.spec.run_strategy.as_deref(), Some("Always" | "RerunOnFailure")),
        }
    }
}

/// A VirtualMachineInstance: exists while its VM runs, has the VM's name and a UID of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools)] // facts of an object that have nothing to do with each other
pub struct VmiView {
    /// `metadata.namespace`.
    pub namespace: String,
    /// `metadata.name`.
    pub name: String,
    /// `metadata.uid`: changes with each restart.
    pub uid: String,
    /// `metadata.creationTimestamp`: when the machine was started.
    pub started: Option<Timestamp>,
    /// `metadata.deletionTimestamp` is set.
    pub deleting: bool,
    /// The labels that tell which cluster the machine belongs to; other labels are not kept.
    pub labels: Tags,
    /// Annotation `topology.kubernetes.io/zone`, empty where it is missing.
    pub zone: String,
    /// Annotation `topology.kubernetes.io/region`, empty where it is missing.
    pub region: String,
    /// `status.nodeName`: the host it runs on, empty before it does.
    pub host: String,
    /// Its size, for example `4cpu-8Gi`; empty if unknown.
    pub size: String,
    /// `spec.domain.firmware.uuid`, if it tells this machine from others.
    pub firmware: Option<MachineUuid>,
    /// `status.phase`.
    pub phase: Phase,
    /// A live migration is in progress.
    pub migrating: bool,
    /// `status.evacuationNodeName` is set: its host is being emptied.
    pub evacuating: bool,
    /// Condition `LiveMigratable`, where there is one.
    pub live_migratable: Option<bool>,
    /// Condition `AgentConnected` is `True`.
    pub agent_connected: bool,
    /// `spec.networks`.
    pub networks: Vec<NetworkView>,
    /// `status.interfaces` that have a name; the others belong to the guest (bridges, tunnels, VIP macvlans).
    pub interfaces: Vec<InterfaceView>,
}

/// One of `spec.networks`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NetworkView {
    /// Name of the NIC.
    pub name: String,
    /// NetworkAttachmentDefinition as written, with or without namespace. `None`: pod network, or another source.
    pub multus: Option<String>,
}

/// One of `status.interfaces`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct InterfaceView {
    /// Name of the NIC, joins with [`NetworkView::name`].
    pub name: String,
    /// Addresses as reported.
    pub addresses: Vec<String>,
    /// Name of the interface inside the guest; empty until the guest agent has reported it.
    pub interface_name: String,
}

impl From<&VirtualMachineInstance> for VmiView {
    fn from(vmi: &VirtualMachineInstance) -> Self {
        let annotation = |key| vmi.annotation(key).unwrap_or_default().to_owned();
        let labels = [keys::harvester::CREATOR, keys::harvester::GUEST_CLUSTER_NAME];
        Self {
            namespace: vmi.metadata.namespace.clone().unwrap_or_default(),
            name: vmi.metadata.name.clone().unwrap_or_default(),
            uid: vmi.metadata.uid.clone().unwrap_or_default(),
            started: vmi.metadata.creation_timestamp.as_ref().map(|time| time.0),
            deleting: vmi.metadata.deletion_timestamp.is_some(),
            labels: labels.iter().filter_map(|key| Some((key, vmi.label(key)?))).collect(),
            zone: annotation(keys::kubernetes::TOPOLOGY_ZONE),
            region: annotation(keys::kubernetes::TOPOLOGY_REGION),
            host: vmi.status.node_name.clone().unwrap_or_default(),
            size: size(vmi),
            firmware: vmi
                .spec
                .domain
                .firmware
                .as_ref()
                .and_then(|firmware| MachineUuid::parse(firmware.uuid.as_deref()?)),
            phase: vmi.phase(),
            migrating: vmi.migrating(),
            evacuating: vmi.status.evacuation_node_name.as_ref().is_some_and(|host| !host.is_empty()),
            live_migratable: vmi.live_migratable(),
            agent_connected: vmi.agent_connected(),
            networks: vmi
                .spec
                .networks
                .iter()
                .map(|network| NetworkView {
                    name: network.name.clone(),
                    multus: network.multus.as_ref().map(|multus| multus.network_name.clone()),
                })
                .collect(),
            interfaces: vmi
                .status
                .interfaces
                .iter()
                .filter(|interface| !interface.name.is_empty())
                .map(|interface| InterfaceView {
                    name: interface.name.clone(),
                    addresses: interface.addresses().map(str::to_owned).collect(),
                    interface_name: interface.interface_name.clone(),
                })
                .collect(),
        }
    }
}

fn size(vmi: &VirtualMachineInstance) -> String {
    let domain = &vmi.spec.domain;
    let (Some(cpu), Some(memory)) = (&domain.cpu, domain.memory.as_ref().and_then(|memory| memory.guest.as_ref()))
    else {
        return String::new();
    };
    let factors = [cpu.cores, cpu.sockets, cpu.threads];
    let processors: u32 = factors.into_iter().map(|factor| factor.unwrap_or(1).max(1)).fold(1, u32::saturating_mul);
    format!("{processors}cpu-{memory}")
}

impl VmiView {
    /// `namespace/name`.
    pub fn key(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }

    /// The NAD name with its namespace; without one it is in the VMI's namespace (Harvester spec 9.2).
    pub fn qualified_network(&self, nad: &str) -> String {
        if nad.contains('/') { nad.to_owned() } else { format!("{}/{nad}", self.namespace) }
    }

    /// Whether it may belong to this cluster: it is not labelled with another one. A machine without a label may belong
    /// to any cluster, because clusters that were set up by hand have no labels (W-26), and a cluster with the default
    /// name may have any label.
    pub fn may_be_of(&self, cluster: &ClusterName) -> bool {
        cluster.is_default() || self.guest_cluster().is_none_or(|other| other == cluster.as_str())
    }

    /// Label `guestcluster.harvesterhci.io/name`, if not empty.
    pub fn guest_cluster(&self) -> Option<&str> {
        self.labels.get(keys::harvester::GUEST_CLUSTER_NAME).filter(|name| !name.is_empty())
    }
}

#[cfg(test)]
pub(crate) mod build {
    //! Views for tests.

    use super::*;

    pub fn vm(name: &str, uid: &str) -> VmView {
        let (name, uid) = (name.into(), uid.into());
        VmView { name, uid, status: PrintableStatus::Running, instance_type: String::new(), should_run: true }
    }

    /// A running instance whose agent is connected.
    pub fn vmi(name: &str) -> VmiView {
        VmiView {
            namespace: "guests".into(),
            name: name.into(),
            uid: format!("vmi-{name}"),
            started: None,
            deleting: false,
            labels: Tags::default(),
            zone: String::new(),
            region: String::new(),
            host: "host-1".into(),
            size: String::new(),
            firmware: None,
            phase: Phase::Running,
            migrating: false,
            evacuating: false,
            live_migratable: None,
            agent_connected: true,
            networks: Vec::new(),
            interfaces: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_size_of_a_machine_is_told_where_both_halves_are_known() {
        let size = |domain: serde_json::Value| {
            let vmi = json!({"metadata": {"name": "a"}, "spec": {"domain": domain}, "status": {}});
            VmiView::from(&serde_json::from_value::<VirtualMachineInstance>(vmi).unwrap()).size
        };
        assert_eq!(
            size(json!({"cpu": {"cores": 2, "sockets": 2, "threads": 1}, "memory": {"guest": "8Gi"}})),
            "4cpu-8Gi"
        );
        assert_eq!(size(json!({"cpu": {"cores": 4}, "memory": {"guest": "8192Mi"}})), "4cpu-8192Mi");
        assert_eq!(size(json!({"cpu": {"cores": 4}})), "");
        assert_eq!(size(json!({})), "");
    }

    #[test]
    fn the_uuid_of_the_firmware_is_read_where_it_is_one() {
        let firmware = |domain: serde_json::Value| {
            let vmi = json!({"metadata": {"name": "a"}, "spec": {"domain": domain}});
            VmiView::from(&serde_json::from_value::<VirtualMachineInstance>(vmi).unwrap()).firmware
        };
        let uuid = "00112233-4455-6677-8899-aabbccddeeff";
        assert_eq!(firmware(json!({"firmware": {"uuid": uuid, "serial": "x"}})), MachineUuid::parse(uuid));
        for domain in [json!({}), json!({"firmware": null}), json!({"firmware": {"uuid": 7}})] {
            assert_eq!(firmware(domain.clone()), None, "{domain}");
        }
    }
}
