//! Collects from the caches the facts about the machines of this cluster's Nodes. Pure.

use std::collections::HashMap;
use std::sync::Arc;

use cloud_provider::view::{NodeView, Ready};
use harvester_api::keys;
use harvester_api::names::ClusterName;

use super::judge::{KubeletLiveness, NodeFact};
use crate::instances::machine_uuid::{MachineUuid, system_uuids};
use crate::instances::view::{VmView, VmiView};

/// The facts about each Node. `own`: the Node that this process runs on. `lives`: whether its kubelet was seen alive.
pub fn node_facts(
    nodes: &[Arc<NodeView>],
    vms: &[Arc<VmView>],
    vmis: &[Arc<VmiView>],
    own: Option<&str>,
    lives: impl Fn(&str) -> bool,
) -> Vec<NodeFact> {
    let by_uid: HashMap<&str, &str> = vms.iter().map(|vm| (vm.uid.as_str(), vm.name.as_str())).collect();
    let by_name: HashMap<&str, &str> = vms.iter().map(|vm| (vm.name.as_str(), vm.uid.as_str())).collect();
    let labels: HashMap<&str, &str> =
        vmis.iter().filter_map(|vmi| Some((vmi.name.as_str(), vmi.guest_cluster()?))).collect();
    let firmware: HashMap<&str, MachineUuid> =
        vmis.iter().filter_map(|vmi| Some((vmi.name.as_str(), vmi.firmware?))).collect();
    let system_uuids = system_uuids(nodes.iter().map(Arc::as_ref));
    let present = nodes.iter().filter(|node| !node.deleting);
    let facts = present.map(|node| {
        let machine = node.provider_id.as_deref().and_then(keys::vm_uid);
        let vm = machine.and_then(|uid| by_uid.get(uid)).copied();
        let namesake = by_name.get(node.name.as_str()).copied();
        let there = vm.unwrap_or(node.name.as_str());
        let label = labels.get(there);
        NodeFact {
            name: node.name.clone(),
            machine: machine.map(str::to_owned),
            seen: vm.is_some(),
            namesake: namesake.map(str::to_owned),
            label: label.map(|label| ClusterName::from_record(label)),
            kubelet: match node.ready {
                _ if own == Some(node.name.as_str()) => KubeletLiveness::Own,
                Some(Ready::True | Ready::False) if lives(&node.name) => KubeletLiveness::Lives,
                Some(Ready::True | Ready::False) => KubeletLiveness::Reports,
                _ => KubeletLiveness::Silent,
            },
            system_uuid: system_uuids.get(node.name.as_str()).copied(),
            firmware: firmware.get(there).copied(),
        }
    });
    facts.collect()
}

#[cfg(test)]
mod tests {
    use harvester_api::keys::harvester::GUEST_CLUSTER_NAME;

    use super::super::super::instances::view::build::{vm, vmi};
    use super::*;
    use crate::load_balancers::build::node;

    #[test]
    fn a_node_is_on_the_machine_of_its_provider_id_and_has_a_namesake_by_name() {
        let of = |name: &str, machine: Option<&str>, ready| {
            let provider_id = machine.map(keys::provider_id);
            Arc::new(NodeView { provider_id, ready, ..node(name, &[]) })
        };
        let mut labelled = vmi("vm-1");
        labelled.labels.insert(GUEST_CLUSTER_NAME, "prod");
        let nodes = [
            of("a", Some("u1"), Some(Ready::True)),
            of("b", Some("gone"), Some(Ready::Unknown)),
            of("c", None, None),
            Arc::new(NodeView { deleting: true, ..node("d", &[]) }),
            of("e", None, Some(Ready::False)),
        ];
        let vms = [vm("vm-1", "u1"), vm("b", "u2")].map(Arc::new);
        let facts = node_facts(&nodes, &vms, &[Arc::new(labelled)], Some("c"), |name| name == "a" || name == "b");
        let fact = |index: usize| {
            let NodeFact { machine, seen, namesake, label, kubelet, .. } = &facts[index];
            (machine.as_deref(), *seen, namesake.as_deref(), label.as_ref().map(ClusterName::as_str), *kubelet)
        };
        assert_eq!(facts.len(), 4, "a Node that goes says nothing");
        assert_eq!(fact(0), (Some("u1"), true, None, Some("prod"), KubeletLiveness::Lives));
        assert_eq!(fact(1), (Some("gone"), false, Some("u2"), None, KubeletLiveness::Silent));
        assert_eq!(fact(2), (None, false, None, None, KubeletLiveness::Own));
        assert!(facts.iter().all(|fact| (fact.system_uuid, fact.firmware) == (None, None)));
        assert_eq!(
            fact(3),
            (None, false, None, None, KubeletLiveness::Reports),
            "no network plugin yet, and yet a kubelet"
        );
    }

    #[test]
    fn a_node_has_the_uuid_that_its_kubelet_reports_and_that_of_the_firmware_of_its_machine() {
        let uuid = |digit: &str| format!("00112233-4455-6677-8899-aabbccddee{digit}");
        let of = |name: &str, machine: &str, digit: &str| {
            let (provider_id, system_uuid) = (Some(keys::provider_id(machine)), Some(uuid(digit)));
            Arc::new(NodeView { provider_id, system_uuid, ..node(name, &[]) })
        };
        let with =
            |name: &str, digit: &str| Arc::new(VmiView { firmware: MachineUuid::parse(&uuid(digit)), ..vmi(name) });
        let nodes = [of("a", "u1", "01"), of("b", "gone", "02"), of("c", "u3", "09"), of("d", "u4", "09")];
        let vms = [vm("vm-1", "u1"), vm("b", "u2"), vm("c", "u3"), vm("d", "u4")].map(Arc::new);
        let facts = node_facts(&nodes, &vms, &[with("vm-1", "01"), with("b", "12"), with("c", "09")], None, |_| true);
        let found = facts.iter().map(|fact| (fact.system_uuid, fact.firmware));
        let parsed = |digit: &str| MachineUuid::parse(&uuid(digit));
        let expected = [
            (parsed("01"), parsed("01")),
            (parsed("02"), parsed("12")),
            // Two Nodes report the same one.
            (None, parsed("09")),
            (None, None),
        ];
        assert_eq!(found.collect::<Vec<_>>(), expected);
    }
}
