//! Which other Nodes can take what a Node gives away: its pods, or the addresses that it announces. Pure.

use std::sync::Arc;

use cloud_provider::view::{NodeView, Ready, Taint};
use contract::keys::kubernetes::{EXCLUDED, SHUT_OUT};

use super::super::shown::Reason;
use super::UpgradeState;

/// Whether another Node can take the pods of this one.
pub fn has_refuge(node: &NodeView, nodes: &[Arc<NodeView>], seen: &UpgradeState) -> bool {
    others_that_stay(node, nodes, seen).any(|other| !other.unschedulable && admits_pods_of(other, node))
}

/// Whether another Node can take the addresses of this one. Announcers tolerate every taint, and one on a cordoned Node
/// takes an address from a machine that is about to go.
pub fn has_heir(node: &NodeView, nodes: &[Arc<NodeView>], seen: &UpgradeState) -> bool {
    let shut_out = |taint: &Taint| SHUT_OUT.contains(&taint.key.as_str());
    others_that_stay(node, nodes, seen)
        .any(|other| !other.labels.contains_key(EXCLUDED) && !other.taints.iter().any(shut_out))
}

/// The other Nodes that are ready and have a machine that stays in place.
fn others_that_stay<'a>(
    node: &'a NodeView,
    nodes: &'a [Arc<NodeView>],
    seen: &'a UpgradeState,
) -> impl Iterator<Item = &'a NodeView> {
    nodes.iter().map(Arc::as_ref).filter(move |other| {
        let stays = seen.nodes.get(&other.name).is_none_or(|status| {
            matches!(status.reason, Reason::Pending | Reason::Paused | Reason::Failed | Reason::UpToDate)
        });
        other.name != node.name && stays && other.ready == Some(Ready::True) && !other.deleting
    })
}

/// Whether `other` has no taint that keeps away pods which run on `node`. Their tolerations are not read: they tolerate
/// what `node` itself has, and of no other taint is it known.
fn admits_pods_of(other: &NodeView, node: &NodeView) -> bool {
    let hard = |taint: &&Taint| matches!(taint.effect.as_str(), "NoSchedule" | "NoExecute");
    let same = |one: &Taint, two: &Taint| (&one.key, &one.value, &one.effect) == (&two.key, &two.value, &two.effect);
    other.taints.iter().filter(hard).all(|taint| node.taints.iter().any(|own| same(own, taint)))
}

#[cfg(test)]
mod tests {
    use super::super::super::shown::{Expect, NodeStatus};
    use super::*;

    type Taints = &'static [(&'static str, &'static str, &'static str)];
    const CONTROL_PLANE: &str = "node-role.kubernetes.io/control-plane";

    fn node(name: &str, taints: Taints) -> NodeView {
        let taint = |(key, value, effect): &(&str, &str, &str)| Taint {
            key: (*key).into(),
            value: (!value.is_empty()).then(|| (*value).into()),
            effect: (*effect).into(),
            time_added: None,
        };
        let node = crate::load_balancers::build::node(name, &[]);
        NodeView { ready: Some(Ready::True), taints: taints.iter().map(taint).collect(), ..node }
    }

    /// Its pods would be pending from the first eviction on, while their machine still runs.
    #[test]
    fn a_node_with_a_taint_that_the_drained_one_lacks_takes_its_addresses_and_not_its_pods() {
        let table: [(&str, Taints, Taints, bool); 8] = [
            ("two workers", &[], &[], true),
            ("a control plane", &[(CONTROL_PLANE, "", "NoSchedule")], &[], false),
            ("a control plane of RKE2", &[("CriticalAddonsOnly", "true", "NoExecute")], &[], false),
            ("one that is only avoided", &[("a", "", "PreferNoSchedule")], &[], true),
            ("two control planes", &[(CONTROL_PLANE, "", "NoSchedule")], &[(CONTROL_PLANE, "", "NoSchedule")], true),
            ("a worker for a control plane", &[], &[(CONTROL_PLANE, "", "NoSchedule")], true),
            ("another value", &[("team", "a", "NoSchedule")], &[("team", "b", "NoSchedule")], false),
            ("one more", &[("a", "", "NoSchedule"), ("b", "", "NoExecute")], &[("a", "", "NoSchedule")], false),
        ];
        for (name, other, drained, expected) in table {
            let nodes = [Arc::new(node("drained", drained)), Arc::new(node("other", other))];
            let seen = UpgradeState::default();
            assert_eq!(has_refuge(&nodes[0], &nodes, &seen), expected, "{name}");
            assert!(has_heir(&nodes[0], &nodes, &seen), "{name}");
        }
    }

    #[test]
    fn what_excludes_a_node_from_announcing_excludes_it_as_an_heir_and_a_cordon_does_not() {
        let well = || node("other", &[]);
        let mut excluded = well();
        excluded.labels.insert(EXCLUDED, "");
        for (name, other, refuge, heir) in [
            ("well", well(), true, true),
            ("itself", NodeView { name: "drained".into(), ..well() }, false, false),
            ("cordoned", NodeView { unschedulable: true, ..well() }, false, true),
            ("not ready", NodeView { ready: Some(Ready::Unknown), ..well() }, false, false),
            ("being deleted", NodeView { deleting: true, ..well() }, false, false),
            ("excluded by label", excluded, true, false),
            (
                "out of service",
                node("other", &[("node.kubernetes.io/out-of-service", "nodeshutdown", "NoExecute")]),
                false,
                false,
            ),
            (
                "about to be deleted",
                node("other", &[("ToBeDeletedByClusterAutoscaler", "1", "NoSchedule")]),
                false,
                false,
            ),
        ] {
            let nodes = [Arc::new(node("drained", &[])), Arc::new(other)];
            let seen = UpgradeState::default();
            let found = (has_refuge(&nodes[0], &nodes, &seen), has_heir(&nodes[0], &nodes, &seen));
            assert_eq!(found, (refuge, heir), "{name}");
        }
    }

    #[test]
    fn a_machine_that_moves_or_goes_off_itself_takes_nothing() {
        let nodes = [Arc::new(node("drained", &[])), Arc::new(node("other", &[]))];
        for (reason, expected) in [
            (Reason::Pending, true),
            (Reason::Paused, true),
            (Reason::Failed, true),
            (Reason::UpToDate, true),
            (Reason::PreDraining, false),
            (Reason::LiveMigrating, false),
            (Reason::ShutDown, false),
            (Reason::Rebooting, false),
            (Reason::Restoring, false),
        ] {
            let status = NodeStatus {
                uid: "uid-of-other".into(),
                vm: "other".into(),
                host: "host-2".into(),
                state: String::new(),
                reason,
                since: 0,
                expect: Expect::Nothing,
            };
            let seen = UpgradeState { nodes: [("other".to_owned(), status)].into(), ..UpgradeState::default() };
            let found = (has_refuge(&nodes[0], &nodes, &seen), has_heir(&nodes[0], &nodes, &seen));
            assert_eq!(found, (expected, expected), "{reason:?}");
        }
    }
}
