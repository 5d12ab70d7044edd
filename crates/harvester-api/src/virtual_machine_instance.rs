//! KubeVirt's `VirtualMachineInstance`, trimmed to the fields that decisions use, and the answer of the guest agent.
//! Only read (Harvester spec 9.2).

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::core::NamespaceResourceScope;
use serde::{Deserialize, Serialize};

use crate::lenient;
use crate::resource::resource;

/// A machine that runs, starts, or has just ended. The object is deleted and created again at each restart, with the
/// VM's name.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct VirtualMachineInstance {
    /// Name (the VM's), labels, and the topology annotations.
    #[serde(default)]
    pub metadata: ObjectMeta,
    /// Networks.
    #[serde(default, deserialize_with = "lenient::or_default")]
    pub spec: VirtualMachineInstanceSpec,
    /// Phase, interfaces, migration.
    #[serde(default, deserialize_with = "lenient::or_default")]
    pub status: VirtualMachineInstanceStatus,
}

resource!(
    VirtualMachineInstance,
    "kubevirt.io",
    "v1",
    "VirtualMachineInstance",
    "virtualmachineinstances",
    NamespaceResourceScope
);

/// Trimmed `spec`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VirtualMachineInstanceSpec {
    /// NICs, in order.
    #[serde(default, deserialize_with = "lenient::items", skip_serializing_if = "Vec::is_empty")]
    pub networks: Vec<Network>,
    /// Processors and memory.
    #[serde(default, deserialize_with = "lenient::or_default")]
    pub domain: Domain,
}

/// `spec.domain`, trimmed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Domain {
    /// Processors.
    #[serde(default, deserialize_with = "lenient::or_default", skip_serializing_if = "Option::is_none")]
    pub cpu: Option<Cpu>,
    /// Memory.
    #[serde(default, deserialize_with = "lenient::or_default", skip_serializing_if = "Option::is_none")]
    pub memory: Option<Memory>,
    /// What the firmware tells the guest.
    #[serde(default, deserialize_with = "lenient::or_default", skip_serializing_if = "Option::is_none")]
    pub firmware: Option<Firmware>,
}

/// `spec.domain.firmware`, trimmed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Firmware {
    /// UUID that the guest reads as the system UUID of SMBIOS. KubeVirt sets it where the user has not.
    #[serde(default, deserialize_with = "lenient::or_default", skip_serializing_if = "Option::is_none")]
    pub uuid: Option<String>,
}

/// `spec.domain.cpu`, trimmed; a missing factor is 1.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cpu {
    /// Cores per socket.
    #[serde(default, deserialize_with = "lenient::or_default")]
    pub cores: Option<u32>,
    /// Sockets.
    #[serde(default, deserialize_with = "lenient::or_default")]
    pub sockets: Option<u32>,
    /// Threads per core.
    #[serde(default, deserialize_with = "lenient::or_default")]
    pub threads: Option<u32>,
}

/// `spec.domain.memory`, trimmed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memory {
    /// What the guest sees, as a quantity such as `8Gi`.
    #[serde(default, deserialize_with = "lenient::or_default")]
    pub guest: Option<String>,
}

/// One entry of `spec.networks`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Network {
    /// Joins with [`Interface::name`].
    #[serde(default, deserialize_with = "lenient::or_default")]
    pub name: String,
    /// Set for a Multus network; the pod network and others have none.
    #[serde(default, deserialize_with = "lenient::or_default", skip_serializing_if = "Option::is_none")]
    pub multus: Option<MultusNetwork>,
}

/// `spec.networks[].multus`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MultusNetwork {
    /// `<namespace>/<name>`, or a bare name in the VMI's own namespace.
    #[serde(default, deserialize_with = "lenient::or_default")]
    pub network_name: String,
}

/// Trimmed `status`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct VirtualMachineInstanceStatus {
    /// See [`Phase`].
    #[serde(default, deserialize_with = "lenient::or_default", skip_serializing_if = "Option::is_none")]
    pub phase: Option<String>,
    /// Host node; during a migration the source until hand-over.
    #[serde(default, deserialize_with = "lenient::or_default", skip_serializing_if = "Option::is_none")]
    pub node_name: Option<String>,
    /// NICs and what the guest agent adds.
    #[serde(default, deserialize_with = "lenient::items", skip_serializing_if = "Vec::is_empty")]
    pub interfaces: Vec<Interface>,
    /// The last migration; stays after its end.
    #[serde(default, deserialize_with = "lenient::or_default", skip_serializing_if = "Option::is_none")]
    pub migration_state: Option<MigrationState>,
    /// The host that this machine is to leave, while it is being emptied.
    #[serde(default, deserialize_with = "lenient::or_default", skip_serializing_if = "Option::is_none")]
    pub evacuation_node_name: Option<String>,
    /// `Ready`, `Paused`, `AgentConnected`, …
    #[serde(default, deserialize_with = "lenient::items", skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<InstanceCondition>,
}

/// One entry of `status.interfaces`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Interface {
    /// Joins with [`Network::name`]; empty on interfaces that only the guest agent knows (CNI bridges, tunnels, VIP
    /// macvlans).
    #[serde(default, deserialize_with = "lenient::or_default", skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// MAC address.
    #[serde(default, deserialize_with = "lenient::or_default", skip_serializing_if = "String::is_empty")]
    pub mac: String,
    /// First of the addresses.
    #[serde(default, deserialize_with = "lenient::or_default", skip_serializing_if = "String::is_empty")]
    pub ip_address: String,
    /// All addresses, secondary ones and link-local IPv6 included.
    #[serde(default, deserialize_with = "lenient::items", skip_serializing_if = "Vec::is_empty")]
    pub ip_addresses: Vec<String>,
    /// Name inside the guest.
    #[serde(default, deserialize_with = "lenient::or_default", skip_serializing_if = "String::is_empty")]
    pub interface_name: String,
}

/// `status.migrationState`, trimmed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MigrationState {
    /// RFC 3339.
    #[serde(default, deserialize_with = "lenient::or_default", skip_serializing_if = "Option::is_none")]
    pub start_timestamp: Option<String>,
    /// RFC 3339.
    #[serde(default, deserialize_with = "lenient::or_default", skip_serializing_if = "Option::is_none")]
    pub end_timestamp: Option<String>,
    /// The migration has ended, successfully or not.
    #[serde(default, deserialize_with = "lenient::or_default")]
    pub completed: bool,
    /// The migration has failed.
    #[serde(default, deserialize_with = "lenient::or_default")]
    pub failed: bool,
}

/// One entry of `status.conditions`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct InstanceCondition {
    /// For example `Ready`.
    #[serde(rename = "type")]
    pub kind: String,
    /// `True`, `False` or `Unknown`.
    pub status: String,
    /// For example `PodTerminating`.
    #[serde(default, deserialize_with = "lenient::or_default", skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// `status.phase`, reduced to what matters for the power state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Before `Running`.
    Starting,
    /// `Running`.
    Running,
    /// `Succeeded` or `Failed`: the machine is off.
    Ended,
    /// `Unknown`, or a value that this version does not know.
    Unknown,
}

impl VirtualMachineInstance {
    /// The phase, reduced to what matters.
    pub fn phase(&self) -> Phase {
        match self.status.phase.as_deref().unwrap_or_default() {
            "" | "Pending" | "Scheduling" | "Scheduled" | "WaitingForSync" => Phase::Starting,
            "Running" => Phase::Running,
            "Succeeded" | "Failed" => Phase::Ended,
            _ => Phase::Unknown,
        }
    }

    /// Whether a migration has started and not ended. The block stays in the status after a migration, so its presence
    /// proves nothing.
    pub fn migrating(&self) -> bool {
        self.status.migration_state.as_ref().is_some_and(|state| {
            state.start_timestamp.is_some() && state.end_timestamp.is_none() && !state.completed && !state.failed
        })
    }

    /// Status of a condition, `None` where it is missing.
    pub fn condition(&self, kind: &str) -> Option<&InstanceCondition> {
        self.status.conditions.iter().find(|condition| condition.kind == kind)
    }

    /// Whether it can be live-migrated; `None` if KubeVirt has not reported it.
    pub fn live_migratable(&self) -> Option<bool> {
        self.condition("LiveMigratable").map(|condition| condition.status == "True")
    }

    /// Whether the guest agent is connected; otherwise a request to it is pointless.
    pub fn agent_connected(&self) -> bool {
        self.condition("AgentConnected").is_some_and(|condition| condition.status == "True")
    }

    /// The status of a NIC by its name in the spec.
    pub fn interface(&self, name: &str) -> Option<&Interface> {
        self.status.interfaces.iter().find(|interface| !name.is_empty() && interface.name == name)
    }

    /// An annotation, `None` where absent.
    pub fn annotation(&self, key: &str) -> Option<&str> {
        self.metadata.annotations.as_ref()?.get(key).map(String::as_str)
    }

    /// A label, `None` where absent.
    pub fn label(&self, key: &str) -> Option<&str> {
        self.metadata.labels.as_ref()?.get(key).map(String::as_str)
    }
}

impl Interface {
    /// All addresses as text: those of the list, or the single one if there is no list.
    pub fn addresses(&self) -> impl Iterator<Item = &str> {
        let single = (self.ip_addresses.is_empty() && !self.ip_address.is_empty()).then_some(self.ip_address.as_str());
        self.ip_addresses.iter().map(String::as_str).chain(single)
    }
}

/// Answer of the subresource `guestosinfo`, trimmed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestOsInfo {
    /// Host name as the guest's agent reports it: may be empty, an FQDN, or upper case.
    #[serde(default, deserialize_with = "lenient::or_default")]
    pub hostname: String,
}

impl GuestOsInfo {
    /// Name of the subresource.
    pub const SUBRESOURCE: &str = "guestosinfo";

    /// Path of the collection with this subresource: it is in an API group of its own, without the machines themselves.
    pub fn collection_path(namespace: &str) -> String {
        format!("/apis/subresources.kubevirt.io/v1/namespaces/{namespace}/virtualmachineinstances")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Harvester spec 9.4
    fn fixture() -> VirtualMachineInstance {
        serde_json::from_value(json!({
            "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
            "metadata": {"name": "demo-pool-a1", "namespace": "guests",
                "labels": {"guestcluster.harvesterhci.io/name": "demo"},
                "annotations": {"topology.kubernetes.io/zone": "rack-1"}},
            "spec": {"domain": {"devices": {}}, "networks": [
                {"name": "nic-0", "multus": {"networkName": "guests/mgmt"}},
                {"name": "nic-1", "multus": {"networkName": "data"}},
                {"name": "nic-2", "pod": {}}]},
            "status": {"phase": "Running", "nodeName": "host-1",
                "conditions": [{"type": "Ready", "status": "True"}, {"type": "AgentConnected", "status": "True"}, 7],
                "interfaces": [
                    {"name": "nic-0", "mac": "52:54:00:00:00:01", "interfaceName": "enp1s0",
                     "ipAddress": "10.20.0.11", "ipAddresses": ["10.20.0.11", "fe80::1"]},
                    {"name": "nic-1", "ipAddress": "10.9.0.1"},
                    {"mac": "0a:00:00:00:00:03", "interfaceName": "cni0",
                        "ipAddresses": ["10.42.0.1"]}]}
        }))
        .unwrap()
    }

    #[test]
    fn nics_join_by_name() {
        let vmi = fixture();
        let nic = vmi.interface("nic-0").unwrap();
        assert_eq!(nic.addresses().collect::<Vec<_>>(), ["10.20.0.11", "fe80::1"]);
        assert_eq!(vmi.interface("nic-1").unwrap().addresses().collect::<Vec<_>>(), ["10.9.0.1"]);
        assert!(vmi.interface("").is_none(), "an interface without a name is no NIC");
        assert!(vmi.agent_connected());
        assert_eq!(vmi.phase(), Phase::Running);
    }

    #[test]
    fn a_migration_counts_while_it_runs_and_not_by_its_record() {
        let table = [
            (json!(null), false),
            (json!({}), false),
            (json!({"startTimestamp": "2026-01-01T00:00:00Z"}), true),
            (json!({"startTimestamp": "2026-01-01T00:00:00Z", "completed": true}), false),
            (json!({"startTimestamp": "2026-01-01T00:00:00Z", "endTimestamp": "2026-01-01T00:00:09Z"}), false),
        ];
        for (state, expected) in table {
            let vmi: VirtualMachineInstance =
                serde_json::from_value(json!({"metadata": {}, "status": {"migrationState": state}})).unwrap();
            assert_eq!(vmi.migrating(), expected, "{state}");
        }
    }

    #[test]
    fn an_agent_that_knows_no_hostname_reports_an_empty_one() {
        for (answer, hostname) in
            [(json!({"hostname": "node-1", "os": {}}), "node-1"), (json!({"hostname": null}), ""), (json!({}), "")]
        {
            assert_eq!(serde_json::from_value::<GuestOsInfo>(answer).unwrap().hostname, hostname);
        }
    }
}
