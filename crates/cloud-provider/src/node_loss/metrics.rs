//! Metrics about lost nodes.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use runtime::metrics::Register;

/// Metrics of the node-loss controller.
#[derive(Debug, Clone, Default)]
pub struct NodeLossMetrics {
    verdicts: Family<[(&'static str, &'static str); 1], Counter>,
    pub(super) wrong: Counter,
    lost: Gauge,
}

impl NodeLossMetrics {
    /// Registers the metrics.
    pub fn register(registry: &mut Registry) -> Self {
        Self {
            verdicts: registry
                .make("node_loss_verdicts", "Silent nodes by what followed: lost, or why nothing was done"),
            wrong: registry.make(
                "node_loss_false_verdicts",
                "Nodes that were called lost while their kubelet accepted a connection or had put its pods right",
            ),
            lost: registry.make("node_loss_nodes", "Nodes that are called lost now"),
        }
    }

    pub(super) fn verdict(&self, outcome: &'static str) {
        self.verdicts.get_or_create(&[("outcome", outcome)]).inc();
    }

    pub(super) fn is_false(&self) {
        self.wrong.inc();
    }

    pub(super) fn lost(&self, nodes: usize) {
        self.lost.set(i64::try_from(nodes).unwrap_or(i64::MAX));
    }
}
