//! Finds the Harvester hosts whose loss costs etcd's quorum. Pure.

use std::collections::BTreeMap;

/// Label of Nodes that run etcd, as RKE2 and K3s set it.
const ETCD: &str = "node-role.kubernetes.io/etcd";
/// Label of Nodes that run the control plane. They also run etcd if no Node has the other label.
const CONTROL_PLANE: &str = "node-role.kubernetes.io/control-plane";
/// The former name of [`CONTROL_PLANE`].
const MASTER: &str = "node-role.kubernetes.io/master";

/// Whether a Node may run a member of etcd; `has` tells which labels it has.
pub fn may_be_member(has: impl Fn(&str) -> bool) -> bool {
    [ETCD, CONTROL_PLANE, MASTER].into_iter().any(has)
}

/// The part of a Node that matters for the quorum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Member<'a> {
    /// Its name.
    pub node: &'a str,
    /// The host of its machine; empty if unknown.
    pub host: &'a str,
    /// It has the etcd label.
    pub etcd: bool,
    /// It has the control-plane label.
    pub control_plane: bool,
}

impl<'a> Member<'a> {
    /// Makes a member; `has` tells which labels the Node has.
    pub fn new(node: &'a str, host: &'a str, has: impl Fn(&str) -> bool) -> Self {
        Self { node, host, etcd: has(ETCD), control_plane: has(CONTROL_PLANE) }
    }
}

/// A host whose loss costs etcd its majority.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AtRisk<'a> {
    /// The host.
    pub host: &'a str,
    /// Etcd members on it.
    pub nodes: Vec<&'a str>,
    /// Number of all members.
    pub of: usize,
}

/// The hosts whose loss costs the quorum. With one or two members there are none to report: any loss costs the quorum,
/// wherever they run.
pub fn at_risk<'a>(members: &[Member<'a>]) -> Vec<AtRisk<'a>> {
    let labelled = members.iter().any(|member| member.etcd);
    let members = members.iter().filter(|member| if labelled { member.etcd } else { member.control_plane });
    let mut by_host: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for member in members.clone() {
        by_host.entry(member.host).or_default().push(member.node);
    }
    let of = members.count();
    let majority = of / 2 + 1;
    let lost = |host: &&str, nodes: &Vec<&str>| of >= 3 && !host.is_empty() && of - nodes.len() < majority;
    by_host
        .into_iter()
        .filter(|(host, nodes)| lost(host, nodes))
        .map(|(host, mut nodes)| {
            nodes.sort_unstable();
            AtRisk { host, nodes, of }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_with_more_members_than_etcd_may_lose_is_named() {
        for (name, hosts, expected) in [
            ("spread", vec!["a", "b", "c"], vec![]),
            ("two of three", vec!["a", "a", "b"], vec![("a", 2, 3)]),
            ("three of five", vec!["a", "a", "b", "b", "a"], vec![("a", 3, 5)]),
            ("two of five", vec!["a", "a", "b", "b", "c"], vec![]),
            ("two of four", vec!["a", "a", "b", "b"], vec![("a", 2, 4), ("b", 2, 4)]),
            ("one", vec!["a"], vec![]),
            ("two", vec!["a", "b"], vec![]),
            ("hosts are not known", vec!["", "", ""], vec![]),
        ] {
            let names: Vec<String> = (1..=hosts.len()).map(|n| format!("node{n}")).collect();
            let members: Vec<_> = names
                .iter()
                .zip(&hosts)
                .map(|(node, host)| Member { node, host, etcd: false, control_plane: true })
                .collect();
            let found: Vec<_> = at_risk(&members).iter().map(|risk| (risk.host, risk.nodes.len(), risk.of)).collect();
            assert_eq!(found, expected, "{name}");
        }
    }

    #[test]
    fn where_nodes_say_that_they_run_etcd_only_those_count_and_workers_never_do() {
        let member = |node, host, label: &'static str| Member::new(node, host, move |key| key == label);
        let spread = [("n1", "a", ETCD), ("n2", "b", ETCD), ("n3", "c", ETCD), ("n4", "a", CONTROL_PLANE)];
        assert_eq!(at_risk(&spread.map(|(node, host, label)| member(node, host, label))), []);
        let workers = ["n1", "n2", "n3"].map(|node| member(node, "a", "node-role.kubernetes.io/worker"));
        assert_eq!(at_risk(&workers), []);
    }

    #[test]
    fn each_label_of_a_server_tells_that_etcd_may_run_there() {
        for (label, expected) in
            [("etcd", true), ("control-plane", true), ("master", true), ("worker", false), ("etcd2", false)]
        {
            let label = format!("node-role.kubernetes.io/{label}");
            assert_eq!(may_be_member(|key| key == label), expected, "{label}");
        }
    }
}
