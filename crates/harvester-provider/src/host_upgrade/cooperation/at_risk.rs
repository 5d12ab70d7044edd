//! Warns about hosts that carry so many etcd members of this cluster that the loss of one such host costs the quorum.

use std::collections::BTreeSet;
use std::sync::Arc;

use cloud_provider::node::reference;
use cloud_provider::view::NodeView;
use harvester_api::keys::cloudprovider;
use harvester_api::quorum;
use runtime::events::Recorder;

use super::UpgradeState;

/// Hosts that a warning was written for.
#[derive(Debug, Default)]
pub struct Warned(BTreeSet<String>);

impl Warned {
    /// Writes one warning for each host, until the host is no longer a risk.
    pub fn tell(&mut self, seen: &UpgradeState, nodes: &[Arc<NodeView>], events: &Recorder) {
        let members: Vec<quorum::Member<'_>> = nodes
            .iter()
            .map(|node| {
                let shown = seen.nodes.get(&node.name).map(|status| status.host.as_str());
                let host = shown.or_else(|| node.labels.get(cloudprovider::HOST)).unwrap_or_default();
                quorum::Member::new(&node.name, host, |key| node.labels.contains_key(key))
            })
            .collect();
        let risks = quorum::at_risk(&members);
        // An upgrade moves machines back and forth, so during one a host gets only one warning.
        self.0.retain(|host| seen.open || risks.iter().any(|risk| risk.host == host));
        for risk in risks {
            if !self.0.insert(risk.host.to_owned()) {
                continue;
            }
            let message = format!(
                "Harvester host {} carries {} of the {} etcd members of this cluster ({}): while it is down etcd has \
                 no quorum and the API does not answer. Move one of these VMs to another host and keep them apart \
                 with a pod anti-affinity in their VM templates",
                risk.host,
                risk.nodes.len(),
                risk.of,
                risk.nodes.join(", ")
            );
            tracing::warn!("{message}");
            for node in nodes.iter().filter(|node| risk.nodes.contains(&node.name.as_str())) {
                events.warning(&reference(node), "QuorumAtRisk", &message);
            }
        }
    }
}
