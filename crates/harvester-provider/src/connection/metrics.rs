//! What the metrics say of the way to Harvester.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

#[derive(Debug, Clone)]
pub(super) struct LinkMetrics {
    pub(super) reachable: Gauge,
    pub(super) accepted: Gauge,
    pub(super) reloads: Family<[(&'static str, &'static str); 1], Counter>,
}

impl LinkMetrics {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let metrics = Self { reachable: Gauge::default(), accepted: Gauge::default(), reloads: Family::default() };
        metrics.reachable.set(1);
        metrics.accepted.set(1);
        registry.register(
            "harvester_api_reachable",
            "0 while no endpoint of the Harvester API answers",
            metrics.reachable.clone(),
        );
        registry.register(
            "harvester_api_credentials_accepted",
            "0 while the Harvester API answers 401 Unauthorized",
            metrics.accepted.clone(),
        );
        registry.register(
            "harvester_cloud_config_reloads",
            "Changes of the cloud-config file, by whether they could be used",
            metrics.reloads.clone(),
        );
        metrics
    }
}
