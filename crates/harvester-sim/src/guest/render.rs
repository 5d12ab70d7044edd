//! From a machine to the objects that KubeVirt and Harvester would show. Harvester spec 9

use std::collections::BTreeMap;

use harvester_api::keys::{harvester, kubernetes};
use serde_json::{Map, Value, json};

use super::machine::{HOSTNAME, MACHINE, Machine, Nic};

/// The VirtualMachine without its status.
pub fn vm(machine: &Machine) -> Value {
    let stored = serde_json::to_string(machine).expect("a machine is plain data");
    json!({
        "apiVersion": "kubevirt.io/v1",
        "kind": "VirtualMachine",
        "metadata": {"name": machine.name, "namespace": machine.namespace, "labels": labels(machine),
            "annotations": {MACHINE: stored}},
        "spec": {
            "runStrategy": if machine.powered || machine.upgrade.shut_down { "RerunOnFailure" } else { "Halted" },
            "template": {"metadata": {"labels": labels(machine)}, "spec": spec(machine)},
        },
    })
}

/// Status of the VirtualMachine, whole.
pub fn vm_status(machine: &Machine) -> Value {
    let printable = match machine {
        Machine { powered: false, .. } => "Stopped",
        machine if machine.upgrade.starting => "Starting",
        machine if machine.migrating() => "Migrating",
        _ => "Running",
    };
    let ready = if machine.powered {
        json!({"type": "Ready", "status": "True"})
    } else {
        json!({"type": "Ready", "status": "False", "reason": "VMINotExists", "message": "VMI does not exist"})
    };
    json!({"created": machine.powered, "ready": machine.powered, "printableStatus": printable, "conditions": [ready]})
}

/// The VirtualMachineInstance, status included; `None` while the machine is off. `owner`: UID of the VM.
pub fn vmi(machine: &Machine, owner: &str) -> Option<Value> {
    if !machine.powered {
        return None;
    }
    let movable = if machine.upgrade.unmovable { "False" } else { "True" };
    let mut conditions =
        vec![json!({"type": "Ready", "status": "True"}), json!({"type": "LiveMigratable", "status": movable})];
    if machine.agent {
        conditions.push(json!({"type": "AgentConnected", "status": "True"}));
    }
    let mut interfaces: Vec<_> = machine.nics.iter().map(|nic| interface(nic, machine.agent)).collect();
    if machine.agent {
        interfaces.push(json!({"mac": "0a:00:00:00:00:03", "interfaceName": "cni0", "infoSource": "guest-agent",
            "ipAddress": "10.42.0.1", "ipAddresses": ["10.42.0.1"]}));
    }
    let phase = if machine.upgrade.starting { "Scheduling" } else { "Running" };
    let mut status =
        json!({"phase": phase, "nodeName": machine.host, "conditions": conditions, "interfaces": interfaces});
    if machine.upgrade.evacuating {
        status["evacuationNodeName"] = json!(machine.host);
    }
    if let Some(migration) = &machine.migration {
        let mut state = json!({"startTimestamp": migration.started, "sourceNode": migration.source,
            "targetNode": migration.target});
        if let Some(ended) = &migration.ended {
            state["endTimestamp"] = json!(ended);
            state["completed"] = json!(true);
            state["failed"] = json!(migration.failed);
        }
        status["migrationState"] = state;
    }
    let mut labels = labels(machine);
    labels.insert(harvester::VM_NAME.to_owned(), machine.name.clone());
    labels.insert("kubevirt.io/nodeName".to_owned(), machine.host.clone());
    Some(json!({
        "apiVersion": "kubevirt.io/v1",
        "kind": "VirtualMachineInstance",
        "metadata": {
            "name": machine.name, "namespace": machine.namespace, "labels": labels, "annotations": annotations(machine),
            "ownerReferences": [{"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "name": machine.name,
                "uid": owner,
                "controller": true, "blockOwnerDeletion": true}],
        },
        "spec": spec(machine),
        "status": status,
    }))
}

fn labels(machine: &Machine) -> BTreeMap<String, String> {
    let mut labels = BTreeMap::new();
    if machine.node_driver {
        labels.insert(harvester::CREATOR.to_owned(), harvester::NODE_DRIVER.to_owned());
    }
    if let Some(cluster) = &machine.cluster {
        labels.insert(harvester::GUEST_CLUSTER_NAME.to_owned(), cluster.clone());
    }
    labels
}

/// Topology is copied from the host node, for node-driver machines only; a label that the host lacks is not there.
fn annotations(machine: &Machine) -> Map<String, Value> {
    let mut annotations = Map::new();
    annotations.insert(HOSTNAME.to_owned(), machine.reported_hostname().into());
    if machine.node_driver {
        annotations.insert(kubernetes::HOSTNAME.to_owned(), machine.host.clone().into());
        let topology = [(kubernetes::TOPOLOGY_ZONE, &machine.zone), (kubernetes::TOPOLOGY_REGION, &machine.region)];
        for (key, value) in topology {
            value.as_ref().map(|value| annotations.insert(key.to_owned(), value.clone().into()));
        }
    }
    annotations
}

fn spec(machine: &Machine) -> Value {
    let interfaces: Vec<_> = machine
        .nics
        .iter()
        .map(|nic| json!({"name": nic.name, "model": "virtio", "macAddress": nic.mac, "bridge": {}}))
        .collect();
    let networks: Vec<_> =
        machine.nics.iter().map(|nic| json!({"name": nic.name, "multus": {"networkName": nic.network}})).collect();
    json!({"domain": {"devices": {"interfaces": interfaces}}, "networks": networks})
}

/// With bridge binding the addresses come from the guest agent only; without it the card has name and MAC.
fn interface(nic: &Nic, agent: bool) -> Value {
    let mut interface = json!({"name": nic.name, "mac": nic.mac, "infoSource": "domain, multus-status"});
    if agent {
        interface["infoSource"] = json!("domain, guest-agent, multus-status");
        interface["interfaceName"] = json!(nic.interface);
        if let Some(first) = nic.addresses.first() {
            interface["ipAddress"] = json!(first);
            interface["ipAddresses"] = json!(nic.addresses);
        }
    }
    interface
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guest::machine::Migration;
    use harvester_api::virtual_machine::{PrintableStatus, VirtualMachine};
    use harvester_api::virtual_machine_instance::VirtualMachineInstance;

    fn machine() -> Machine {
        Machine::node("guests", "demo-pool-a1", "demo", "guests/mgmt", &["10.20.0.11", "fe80::1"])
            .located("lab", "rack-1")
    }

    fn read_vmi(machine: &Machine) -> VirtualMachineInstance {
        serde_json::from_value(vmi(machine, "u").expect("powered")).unwrap()
    }

    fn read_vm(machine: &Machine) -> VirtualMachine {
        let mut object = vm(machine);
        object["status"] = vm_status(machine);
        serde_json::from_value(object).unwrap()
    }

    #[test]
    fn a_running_machine_shows_what_the_provider_reads() {
        let machine = machine();
        let vmi = read_vmi(&machine);
        assert_eq!(vmi.label(harvester::GUEST_CLUSTER_NAME), Some("demo"));
        assert_eq!(vmi.label(harvester::CREATOR), Some(harvester::NODE_DRIVER));
        assert_eq!(vmi.annotation(kubernetes::TOPOLOGY_ZONE), Some("rack-1"));
        assert_eq!(vmi.interface("nic-0").unwrap().addresses().collect::<Vec<_>>(), ["10.20.0.11", "fe80::1"]);
        assert!(vmi.agent_connected());
        assert!(
            vmi.status.interfaces.iter().any(|interface| interface.name.is_empty()),
            "the agent also sees the CNI bridge"
        );
        assert_eq!(read_vm(&machine).printable_status(), PrintableStatus::Running);
    }

    #[test]
    fn a_silent_agent_takes_the_addresses_with_it() {
        let vmi = read_vmi(&Machine { agent: false, ..machine() });
        let nic = vmi.interface("nic-0").unwrap();
        assert!(!vmi.agent_connected() && nic.addresses().next().is_none() && !nic.mac.is_empty());
    }

    #[test]
    fn a_machine_that_is_off_has_no_instance() {
        let off = Machine { powered: false, ..machine() };
        assert_eq!(vmi(&off, "u"), None);
        let vm = read_vm(&off);
        assert_eq!(vm.printable_status(), PrintableStatus::Stopped);
        assert!(!vm.status.created && !vm.status.ready);
    }

    #[test]
    fn a_hand_made_machine_never_gets_topology() {
        let vmi = read_vmi(&Machine { node_driver: false, ..machine() });
        assert_eq!(vmi.annotation(kubernetes::TOPOLOGY_ZONE), None);
    }

    #[test]
    fn a_migration_shows_while_it_runs_and_its_record_stays() {
        let mut migration = Migration {
            source: "host-1".to_owned(),
            target: "host-2".to_owned(),
            started: "2026-01-01T00:00:00Z".to_owned(),
            ended: None,
            failed: false,
        };
        let running = Machine { migration: Some(migration.clone()), ..machine() };
        assert!(read_vmi(&running).migrating());
        assert_eq!(read_vm(&running).printable_status(), PrintableStatus::Migrating);
        migration.ended = Some("2026-01-01T00:00:05Z".to_owned());
        let over = read_vmi(&Machine { migration: Some(migration), ..machine() });
        assert!(!over.migrating() && over.status.migration_state.is_some());
    }
}
