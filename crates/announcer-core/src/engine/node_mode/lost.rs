//! Nodes that are lost, as far as this node can tell: what the detector, the kubelet's port and the membership Lease
//! say of them.

use std::collections::BTreeSet;
use std::time::Instant;

use super::super::{Action, Engine};
use crate::node_watch::Finding;
use crate::ownership::Owners;
use crate::ownership::node::Member;

impl Engine {
    /// Updates the nodes that are watched for their own sake, on the interfaces with addresses of Services. Without
    /// such addresses no node is watched.
    pub(super) fn watch_nodes(&mut self, now: Instant) {
        let (Owners::Node(cluster), Some(network)) = (&self.ownership, self.observer.network()) else { return };
        let links: BTreeSet<u32> = self.node_mode.links.iter().map(|(link, _)| *link).collect();
        let (targets, uids) = cluster.nodes_to_watch(now, network, &links);
        let changed = self.node_mode.nodes.watch(uids);
        self.out.replan_if(changed);
        if self.node_mode.node_targets != targets {
            self.node_mode.detector.watch_nodes(now, &targets);
            self.node_mode.node_targets = targets;
        }
    }

    /// Takes in a finding of the detector about a node.
    pub(super) fn found(&mut self, now: Instant, finding: Finding) {
        if let Finding::Answers { node } = &finding {
            tracing::info!(node, "the node did not answer for a while and answers again");
            self.out.replan_urgently();
            if let Some(since) = self.node_mode.nodes.silent_since(node) {
                self.announce_since(now, since);
            }
        }
        if let Some((node, address)) = self.node_mode.nodes.note(now, self.node_mode.silent_for, finding) {
            self.out.push(Action::AskKubelet { node, address });
        }
    }

    /// Takes in whether the kubelet of a silent node answers.
    pub(in crate::engine) fn kubelet(&mut self, now: Instant, node: &str, answers: bool) {
        if self.node_mode.nodes.asked(now, node, answers) {
            tracing::warn!(node, "the node answers neither on the network nor at the TCP port of its kubelet");
            self.out.replan_urgently();
        }
    }

    /// Takes in a membership Lease.
    pub(in crate::engine) fn member(&mut self, now: Instant, node: String, member: Option<Member>) {
        let doubted = self.node_mode.nodes.waits_for(&node, node == self.config.node_name);
        let Some(cluster) = self.cluster() else { return };
        let news = cluster.member(now, node, member);
        self.out.replan_if(news || doubted);
        if news {
            self.note_machines();
        }
    }
}
