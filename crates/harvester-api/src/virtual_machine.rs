//! KubeVirt's `VirtualMachine`, trimmed to the fields that decisions use. Only read (Harvester spec 9.1).

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::core::NamespaceResourceScope;
use serde::{Deserialize, Serialize};

use crate::lenient;
use crate::resource::resource;

/// A virtual machine. The object exists whether the machine runs or not; its UID is the machine's identity.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct VirtualMachine {
    /// Name, UID, labels.
    #[serde(default)]
    pub metadata: ObjectMeta,
    /// Run strategy.
    #[serde(default, deserialize_with = "lenient::or_default")]
    pub spec: VirtualMachineSpec,
    /// Power state.
    #[serde(default, deserialize_with = "lenient::or_default")]
    pub status: VirtualMachineStatus,
}

resource!(VirtualMachine, "kubevirt.io", "v1", "VirtualMachine", "virtualmachines", NamespaceResourceScope);

/// Trimmed `spec`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct VirtualMachineSpec {
    /// `Always`, `Halted`, `Manual`, `RerunOnFailure`, `Once`, or a value that this version does not know.
    #[serde(default, deserialize_with = "lenient::or_default", skip_serializing_if = "Option::is_none")]
    pub run_strategy: Option<String>,
    /// The instance type that it was created from, if any.
    #[serde(default, deserialize_with = "lenient::or_default", skip_serializing_if = "Option::is_none")]
    pub instancetype: Option<InstanceTypeMatcher>,
}

/// `spec.instancetype`, trimmed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct InstanceTypeMatcher {
    /// Name of the (cluster) instance type.
    #[serde(default, deserialize_with = "lenient::or_default")]
    pub name: String,
}

/// Trimmed `status`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct VirtualMachineStatus {
    /// A VMI exists.
    #[serde(default, deserialize_with = "lenient::or_default")]
    pub created: bool,
    /// A VMI exists and is Ready; `false` also while booting, paused or failing a probe, so it does not mean powered
    /// off.
    #[serde(default, deserialize_with = "lenient::or_default")]
    pub ready: bool,
    /// Meant for users, but the best evidence of the power state: see [`PrintableStatus`].
    #[serde(default, deserialize_with = "lenient::or_default", skip_serializing_if = "Option::is_none")]
    pub printable_status: Option<String>,
}

/// `status.printableStatus`, reduced to what matters for the power state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PrintableStatus {
    /// `Stopped`.
    Stopped,
    /// `Stopping` or `Terminating`.
    Stopping,
    /// `Running`.
    Running,
    /// The machine is starting, or its start is delayed: `Starting`, `Provisioning`, `WaitingForVolumeBinding`,
    /// problems with images and scheduling.
    Starting,
    /// `Migrating`.
    Migrating,
    /// `Paused`.
    Paused,
    /// Absent, or a value that this version does not know.
    Unknown,
}

impl VirtualMachine {
    /// The machine's identity, `None` on an object without `metadata.uid`.
    pub fn uid(&self) -> Option<&str> {
        self.metadata.uid.as_deref().filter(|uid| !uid.is_empty())
    }

    /// The printable status, reduced to what matters.
    pub fn printable_status(&self) -> PrintableStatus {
        match self.status.printable_status.as_deref().unwrap_or_default() {
            "Stopped" => PrintableStatus::Stopped,
            "Stopping" | "Terminating" => PrintableStatus::Stopping,
            "Running" => PrintableStatus::Running,
            "Migrating" => PrintableStatus::Migrating,
            "Paused" => PrintableStatus::Paused,
            "Starting"
            | "Provisioning"
            | "WaitingForVolumeBinding"
            | "WaitingForReceiver"
            | "ErrorPvcNotFound"
            | "DataVolumeError"
            | "ErrorUnschedulable"
            | "ErrImagePull"
            | "ImagePullBackOff"
            | "CrashLoopBackOff" => PrintableStatus::Starting,
            _ => PrintableStatus::Unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn only_what_we_use_is_kept_and_odd_members_read_as_absent() {
        let vm: VirtualMachine = serde_json::from_value(json!({
            "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "metadata": {"name": "a", "uid": "u"},
            "spec": {"runStrategy": "Halted", "template": {"spec": {}}},
            "status": {"ready": "yes", "created": true, "printableStatus": "Stopped"}
        }))
        .unwrap();
        assert_eq!(vm.uid(), Some("u"));
        assert_eq!(vm.spec.run_strategy.as_deref(), Some("Halted"));
        assert!(vm.status.created && !vm.status.ready);
        assert_eq!(vm.printable_status(), PrintableStatus::Stopped);
        let bare: VirtualMachine = serde_json::from_value(json!({"metadata": {}, "status": null})).unwrap();
        assert_eq!(bare.printable_status(), PrintableStatus::Unknown);
        assert_eq!(bare.uid(), None);
    }
}
