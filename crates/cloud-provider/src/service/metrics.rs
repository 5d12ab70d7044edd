//! Metrics of the service controller. The Go framework's names stay registered, so that dashboards keep working.
//! Additional metrics measure the ensure path, with buckets below a second.

use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

type Labels<const N: usize> = [(&'static str, &'static str); N];

/// The service controller's metrics.
#[derive(Debug, Clone)]
pub struct ServiceMetrics {
    calls: Family<Labels<2>, Counter>,
    duration: Family<Labels<1>, Histogram, fn() -> Histogram>,
}

impl Default for ServiceMetrics {
    fn default() -> Self {
        let buckets = || Histogram::new([0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0]);
        Self { calls: Family::default(), duration: Family::new_with_constructor(buckets as fn() -> Histogram) }
    }
}

impl ServiceMetrics {
    /// Registers the metrics.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        registry.register(
            "hcp_service_calls",
            "Calls of the provider by operation (ensure, delete) and result (unchanged, changed, waiting, failed, \
             gone, left)",
            metrics.calls.clone(),
        );
        registry.register("hcp_service_call_duration_seconds", "Duration of these calls", metrics.duration.clone());
        // There is no node sync, because the cloud does not use the list of nodes: these metrics stay 0.
        let seconds = || Histogram::new((0..15).map(|power| f64::from(1 << power)));
        for (name, help) in [
            (
                "service_controller_loadbalancer_sync",
                "Load balancer syncs caused by node changes (always 0: not needed)",
            ),
            ("service_controller_nodesync_error", "Failed node syncs (always 0: not needed)"),
        ] {
            registry.register(name, help, Counter::<u64>::default());
        }
        for (name, help) in [
            ("service_controller_nodesync_latency_seconds", "Latency of node syncs (always empty: not needed)"),
            (
                "service_controller_update_loadbalancer_host_latency_seconds",
                "Latency of host updates (always empty: not needed)",
            ),
        ] {
            registry.register(name, help, seconds());
        }
        metrics
    }

    pub(super) fn called(&self, operation: &'static str, result: &'static str, took: Duration) {
        self.calls.get_or_create(&[("operation", operation), ("result", result)]).inc();
        self.duration.get_or_create(&[("operation", operation)]).observe(took.as_secs_f64());
    }
}
