//! The node controller's metrics, with the Go framework's names.

use jiff::Timestamp;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use crate::view::NodeView;

/// How long new Nodes waited until they were usable.
#[derive(Debug, Clone)]
pub struct NodeMetrics {
    taint_removal: Histogram,
    initial_sync: Histogram,
}

impl Default for NodeMetrics {
    fn default() -> Self {
        // The framework's buckets (1, 4, 16, 64, 256 and 1024 s), and two smaller ones.
        let buckets = || Histogram::new([0.1, 0.5, 1.0, 4.0, 16.0, 64.0, 256.0, 1024.0]);
        Self { taint_removal: buckets(), initial_sync: buckets() }
    }
}

impl NodeMetrics {
    /// Registers the metrics.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        registry.register(
            "node_controller_cloud_provider_taint_removal_delay_seconds",
            "Seconds from the creation of a Node to the removal of its uninitialized taint",
            metrics.taint_removal.clone(),
        );
        registry.register(
            "node_controller_initial_node_sync_delay_seconds",
            "Seconds from the creation of a Node to its initialisation with addresses",
            metrics.initial_sync.clone(),
        );
        metrics
    }

    /// Records the initialisation of a Node. The addresses are written before the taint is removed, so both delays end
    /// together.
    pub(super) fn initialised(&self, node: &NodeView) {
        let Some(created) = node.created else { return };
        #[allow(clippy::cast_precision_loss)]
        let seconds = (Timestamp::now().as_second() - created).max(0) as f64;
        self.taint_removal.observe(seconds);
        self.initial_sync.observe(seconds);
    }
}
