//! Decides what to write to a Node, from its view and what the cloud says about its machine alone.

use std::collections::BTreeMap;

use contract::keys::kubernetes::{TOPOLOGY_REGION, TOPOLOGY_ZONE, UNINITIALIZED};
use serde_json::{Value, json};

use super::addresses::{NodeIpError, desired_addresses};
use crate::provider::InstanceMetadata;
use crate::view::{NodeAddress, NodeView, Taint};

/// The well-known labels, each with its beta predecessor.
const ZONE: (&str, &str) = (TOPOLOGY_ZONE, "failure-domain.beta.kubernetes.io/zone");
const REGION: (&str, &str) = (TOPOLOGY_REGION, "failure-domain.beta.kubernetes.io/region");
const INSTANCE_TYPES: (&str, &str) = (INSTANCE_TYPE, "beta.kubernetes.io/instance-type");

/// Label with the size of the Node's machine. Written once.
pub const INSTANCE_TYPE: &str = "node.kubernetes.io/instance-type";

/// The writes, in this order: addresses come first, so that no Node is schedulable with wrong addresses.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Plan {
    /// New `status.addresses`.
    pub(super) addresses: Option<Vec<NodeAddress>>,
    /// New or changed labels.
    pub(super) labels: BTreeMap<&'static str, String>,
    /// New `spec.providerID`.
    pub(super) provider_id: Option<String>,
    /// New `spec.taints`.
    pub(super) taints: Option<Vec<Taint>>,
}

/// Why a Node cannot be initialised. The texts are the Go framework's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum PlanError {
    #[error("cloud provider does not set node provider ID for node {0}")]
    NoProviderId(String),
    #[error("failed to get node modifiers from cloud provider: provided node ip for node {node:?} is not valid")]
    ProvidedNodeIp { node: String, source: NodeIpError },
}

/// Whether the Node waits for its initialisation.
pub fn is_uninitialized(node: &NodeView) -> bool {
    node.taints.iter().any(|taint| taint.key == UNINITIALIZED)
}

/// The settings that affect the plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Rules {
    /// An initialised Node gets zone, region and host of its machine when they change. (The Go provider taints the Node
    /// again for that; the result is the same.)
    pub(super) follow_topology: bool,
    /// The kubelet's `--node-ip` counts.
    pub(super) obey_node_ip: bool,
}

/// Plans the writes (framework spec 2.2 to 2.6).
pub(super) fn plan(node: &NodeView, machine: &InstanceMetadata, rules: Rules) -> Result<Plan, PlanError> {
    let provided = |source| PlanError::ProvidedNodeIp { node: node.name.clone(), source };
    let desired = desired_addresses(node, &machine.addresses, rules.obey_node_ip).map_err(provided)?;
    let addresses = (!desired.is_empty() && desired != node.addresses).then_some(desired);
    if !is_uninitialized(node) {
        let topology = if rules.follow_topology { topology(machine) } else { BTreeMap::new() };
        let mut labels = changes(node, &topology);
        for (label, value) in reconcile_labels(node) {
            // The zone of the machine takes precedence over an old beta label (CCM spec W-24).
            if !topology.contains_key(label) {
                labels.insert(label, value);
            }
        }
        return Ok(Plan { addresses, labels, ..Plan::default() });
    }
    let provider_id = match &node.provider_id {
        Some(_) => None,
        None if machine.provider_id.is_empty() => return Err(PlanError::NoProviderId(node.name.clone())),
        None => Some(machine.provider_id.clone()),
    };
    let mut wanted = topology(machine);
    wanted.extend(pair(INSTANCE_TYPES, &machine.instance_type));
    let labels = changes(node, &wanted);
    let taints = node.taints.iter().filter(|taint| taint.key != UNINITIALIZED).cloned().collect();
    Ok(Plan { addresses, labels, provider_id, taints: Some(taints) })
}

/// The labels for the place of the machine, as far as it is known.
pub(super) fn topology(machine: &InstanceMetadata) -> BTreeMap<&'static str, String> {
    let place = machine.labels.iter().filter(|(_, value)| !value.is_empty());
    let place = place.map(|(label, value)| (*label, value.clone()));
    pair(ZONE, &machine.zone).chain(pair(REGION, &machine.region)).chain(place).collect()
}

fn pair(labels: (&'static str, &'static str), value: &str) -> impl Iterator<Item = (&'static str, String)> {
    let known = (!value.is_empty()).then(|| [(labels.0, value.to_owned()), (labels.1, value.to_owned())]);
    known.into_iter().flatten()
}

fn changes(node: &NodeView, wanted: &BTreeMap<&'static str, String>) -> BTreeMap<&'static str, String> {
    let differs = |(label, value): &(&&'static str, &String)| node.labels.get(label) != Some(value.as_str());
    wanted.iter().filter(differs).map(|(label, value)| (*label, value.clone())).collect()
}

/// The label changes that an initialised Node needs without a query to the cloud: the beta labels are copied to the
/// current ones (framework spec 2.5).
pub(super) fn reconcile_labels(node: &NodeView) -> BTreeMap<&'static str, String> {
    let mut changes = BTreeMap::new();
    for (label, beta) in [ZONE, REGION, INSTANCE_TYPES] {
        if let Some(value) = node.labels.get(beta).filter(|value| node.labels.get(label) != Some(*value)) {
            changes.insert(label, value.to_owned());
        }
    }
    changes
}

impl Plan {
    /// The merge patch for `nodes/status`, if there is something to write.
    pub(super) fn status_patch(&self, version: &str) -> Option<Value> {
        let addresses = self.addresses.as_ref()?;
        let addresses: Vec<Value> = addresses
            .iter()
            .map(|address| json!({"type": address.kind.as_str(), "address": address.address}))
            .collect();
        Some(json!({"metadata": {"resourceVersion": version}, "status": {"addresses": addresses}}))
    }

    /// The merge patch for `nodes`, if there is something to write. The resourceVersion is the precondition that makes
    /// it safe to replace the list of taints.
    pub(super) fn node_patch(&self, version: &str) -> Option<Value> {
        let mut patch = json!({"metadata": {"resourceVersion": version}});
        if !self.labels.is_empty() {
            patch["metadata"]["labels"] = json!(self.labels);
        }
        if let Some(id) = &self.provider_id {
            patch["spec"]["providerID"] = json!(id);
        }
        if let Some(taints) = &self.taints {
            patch["spec"]["taints"] = taints_value(taints);
        }
        let empty = self.labels.is_empty() && self.provider_id.is_none() && self.taints.is_none();
        (!empty).then_some(patch)
    }
}

/// The complete value of `spec.taints`, because a merge patch replaces the list as a whole.
pub(crate) fn taints_value(taints: &[Taint]) -> Value {
    let entry = |taint: &Taint| {
        let mut entry = json!({"key": taint.key, "effect": taint.effect});
        if let Some(value) = &taint.value {
            entry["value"] = json!(value);
        }
        if let Some(time) = &taint.time_added {
            entry["timeAdded"] = json!(time);
        }
        entry
    };
    taints.iter().map(entry).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::addresses::PROVIDED_NODE_IP;
    use crate::test_support::node;
    use crate::view::NodeAddressKind;

    const FOLLOW: Rules = Rules { follow_topology: true, obey_node_ip: true };
    const STAY: Rules = Rules { follow_topology: false, ..FOLLOW };

    fn taint(key: &str) -> Taint {
        Taint { key: key.into(), value: None, effect: "NoSchedule".into(), time_added: None }
    }

    fn tainted() -> NodeView {
        let mut view = node("n");
        view.taints = vec![taint(UNINITIALIZED), taint("other")];
        view
    }

    fn internal(address: &str) -> NodeAddress {
        NodeAddress { kind: NodeAddressKind::InternalIp, address: address.into() }
    }

    fn machine() -> InstanceMetadata {
        InstanceMetadata {
            provider_id: "harvester://vm".into(),
            addresses: vec![internal("10.0.0.1")],
            zone: "rack-1".into(),
            region: "lab".into(),
            ..InstanceMetadata::default()
        }
    }

    /// W-10.
    #[test]
    fn an_initialised_node_is_never_tainted_again_whatever_its_machine_says() {
        let mut view = node("n");
        view.taints = vec![taint("other")];
        let moved = InstanceMetadata { zone: "rack-2".into(), addresses: vec![internal("10.0.0.2")], ..machine() };
        for rules in [FOLLOW, STAY] {
            for machine in [machine(), moved.clone()] {
                let plan = plan(&view, &machine, rules).unwrap();
                assert_eq!(plan.taints, None, "{rules:?} {plan:?}");
            }
        }
    }

    #[test]
    fn initialising_writes_addresses_then_id_labels_and_the_other_taints_in_one_request() {
        let plan = plan(&tainted(), &machine(), FOLLOW).unwrap();
        assert_eq!(
            plan.status_patch("7"),
            Some(json!({"metadata": {"resourceVersion": "7"},
                    "status": {"addresses": [{"type": "InternalIP", "address": "10.0.0.1"}]}}))
        );
        assert_eq!(
            plan.node_patch("8"),
            Some(json!({
                "metadata": {"resourceVersion": "8", "labels": {
                    "topology.kubernetes.io/zone": "rack-1", "failure-domain.beta.kubernetes.io/zone": "rack-1",
                    "topology.kubernetes.io/region": "lab", "failure-domain.beta.kubernetes.io/region": "lab",
                }},
                "spec": {"providerID": "harvester://vm", "taints": [{"key": "other", "effect": "NoSchedule"}]},
            }))
        );
    }

    #[test]
    fn a_provider_id_is_never_overwritten_and_one_is_needed() {
        let mut known = tainted();
        known.provider_id = Some("test-provider-id".into());
        assert_eq!(plan(&known, &machine(), FOLLOW).unwrap().provider_id, None);
        let nothing = InstanceMetadata { provider_id: String::new(), ..machine() };
        assert!(plan(&known, &nothing, FOLLOW).is_ok());
        assert_eq!(
            plan(&tainted(), &nothing, FOLLOW).unwrap_err().to_string(),
            "cloud provider does not set node provider ID for node n"
        );
    }

    /// W-24.
    #[test]
    fn an_empty_zone_sets_no_label_and_takes_none_away() {
        let mut view = tainted();
        view.labels.insert(ZONE.0, "by-hand");
        let nowhere = InstanceMetadata { zone: String::new(), region: String::new(), ..machine() };
        assert_eq!(plan(&view, &nowhere, FOLLOW).unwrap().labels, BTreeMap::new());
        let typed = InstanceMetadata { instance_type: "t1.micro".into(), ..nowhere };
        let labels = plan(&view, &typed, FOLLOW).unwrap().labels;
        assert_eq!(
            labels.into_iter().collect::<Vec<_>>(),
            [(INSTANCE_TYPES.1, "t1.micro".into()), (INSTANCE_TYPES.0, "t1.micro".into())]
        );
    }

    #[test]
    fn a_node_ip_that_the_machine_does_not_have_keeps_the_node_tainted() {
        let mut view = tainted();
        view.annotations.insert(PROVIDED_NODE_IP, "10.0.0.2");
        let error = plan(&view, &machine(), FOLLOW).unwrap_err();
        assert_eq!(
            runtime::error::chain(&error),
            "failed to get node modifiers from cloud provider: provided node ip for node \"n\" is not valid: \
             failed to get node address from cloud provider that matches ip: 10.0.0.2"
        );
    }

    #[test]
    fn an_initialised_node_that_is_right_needs_no_request() {
        let mut view = node("n");
        view.addresses = vec![internal("10.0.0.1"), internal("fd00::1")];
        for (label, value) in [(ZONE.0, "rack-1"), (ZONE.1, "rack-1"), (REGION.0, "lab"), (REGION.1, "lab")] {
            view.labels.insert(label, value);
        }
        // W-50: two addresses of one type are no change.
        let both = InstanceMetadata { addresses: view.addresses.clone(), ..machine() };
        let unchanged = plan(&view, &both, FOLLOW).unwrap();
        assert_eq!((unchanged.status_patch("1"), unchanged.node_patch("1")), (None, None));
        assert_eq!(unchanged, Plan::default());
    }

    /// W-50.
    #[test]
    fn order_counts_and_addresses_that_are_not_known_now_are_not_wiped() {
        let mut view = node("n");
        view.addresses = vec![internal("10.0.0.1"), internal("fd00::1")];
        let swapped = InstanceMetadata { addresses: vec![internal("fd00::1"), internal("10.0.0.1")], ..machine() };
        assert!(plan(&view, &swapped, STAY).unwrap().addresses.is_some());
        let unknown = InstanceMetadata { addresses: Vec::new(), ..machine() };
        assert_eq!(plan(&view, &unknown, STAY).unwrap(), Plan::default());
    }

    #[test]
    fn a_machine_that_moved_to_another_zone_takes_all_four_labels_along_if_that_is_wanted() {
        let mut view = node("n");
        for (label, value) in [(ZONE.0, "rack-1"), (ZONE.1, "rack-1"), (REGION.0, "lab"), (REGION.1, "lab")] {
            view.labels.insert(label, value);
        }
        let moved = InstanceMetadata { zone: "rack-2".into(), addresses: Vec::new(), ..machine() };
        let labels = plan(&view, &moved, FOLLOW).unwrap().labels;
        assert_eq!(labels.into_iter().collect::<Vec<_>>(), [(ZONE.1, "rack-2".into()), (ZONE.0, "rack-2".into())]);
        assert_eq!(plan(&view, &moved, STAY).unwrap(), Plan::default());
    }

    #[test]
    fn the_place_of_a_machine_is_labelled_at_initialisation_and_follows_it() {
        let host = "example.org/host";
        let on = |name: &str| InstanceMetadata { labels: [(host, name.to_owned())].into(), ..machine() };
        assert_eq!(plan(&tainted(), &on("host-1"), STAY).unwrap().labels.get(host), Some(&"host-1".to_owned()));
        let mut view = node("n");
        view.labels.insert(host, "host-1");
        assert_eq!(plan(&view, &on("host-2"), FOLLOW).unwrap().labels.get(host), Some(&"host-2".to_owned()));
        assert_eq!(plan(&view, &on("host-2"), STAY).unwrap().labels.get(host), None);
        assert_eq!(plan(&view, &on(""), FOLLOW).unwrap().labels.get(host), None, "not known now");
    }

    /// Framework spec 5.2, Test_reconcileNodeLabels.
    #[test]
    fn beta_labels_are_the_source_of_the_others() {
        let with = |labels: &[(&str, &str)]| {
            let mut view = node("n");
            view.labels = labels.iter().copied().collect();
            reconcile_labels(&view).into_iter().collect::<Vec<_>>()
        };
        assert_eq!(with(&[(ZONE.1, "z"), (REGION.1, "r"), (INSTANCE_TYPES.1, "t")]).len(), 3);
        assert_eq!(with(&[(ZONE.1, "z"), (ZONE.0, "z")]), []);
        assert_eq!(with(&[(ZONE.1, "z"), (ZONE.0, "other")]), [(ZONE.0, "z".into())]);
        assert_eq!(with(&[(ZONE.0, "z")]), []);
    }

    #[test]
    fn an_old_beta_label_does_not_win_over_the_machine() {
        let mut view = node("n");
        view.labels = [(ZONE.0, "rack-1"), (ZONE.1, "old")].into();
        let labels = plan(&view, &InstanceMetadata { region: String::new(), ..machine() }, FOLLOW).unwrap().labels;
        assert_eq!(labels.into_iter().collect::<Vec<_>>(), [(ZONE.1, "rack-1".into())]);
    }
}
