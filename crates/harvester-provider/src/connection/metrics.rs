//! Metrics of the connection to Harvester.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use runtime::metrics::Register;

#[derive(Debug, Clone)]
pub(super) struct LinkMetrics {
    pub(super) reachable: Gauge,
    pub(super) accepted: Gauge,
    pub(super) reloads: Family<[(&'static str, &'static str); 1], Counter>,
}

impl LinkMetrics {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let metrics = Self {
            reachable: registry.make("harvester_api_reachable", "0 while no endpoint of the Harvester API answers"),
            accepted: registry
                .make("harvester_api_credentials_accepted", "0 while the Harvester API answers 401 Unauthorized"),
            reloads: registry.make(
                "harvester_cloud_config_reloads",
                "Changes of the cloud-config file, by whether they could be used",
            ),
        };
        metrics.reachable.set(1);
        metrics.accepted.set(1);
        metrics
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use cloud_provider::view::ServiceKey;
    use prometheus_client::encoding::text::encode;

    use super::*;
    use crate::garbage::list::Kind;
    use crate::load_balancers::wait_reason::WaitReason;
    use crate::metrics::Metrics;

    /// Names, as a reader of the metrics finds them, and types of all that the provider tells of Harvester.
    fn shown() -> BTreeMap<String, String> {
        let mut registry = Registry::default();
        let (metrics, link) = (Metrics::register(&mut registry), LinkMetrics::register(&mut registry));
        metrics.waits(&ServiceKey { namespace: "default".into(), name: "web".into() }, Some(WaitReason::Allocation));
        metrics.host_feature("feature", true);
        metrics.garbage(Kind::Ours, 1);
        metrics.host_upgrade_nodes("HostRebooting", 1);
        metrics.host_upgrade_signal("upgradeplan").set(1);
        link.reloads.get_or_create(&[("result", "used")]).inc();
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        runtime::metrics::shown_types(&text)
    }

    #[test]
    fn dashboards_and_alerts_find_these_names_and_types() {
        let expected = [
            ("harvester_announcer_missing", "gauge"),
            ("harvester_api_credentials_accepted", "gauge"),
            ("harvester_api_reachable", "gauge"),
            ("harvester_cloud_config_reloads_total", "counter"),
            ("harvester_cluster_name_mismatch", "gauge"),
            ("harvester_garbage_loadbalancers", "gauge"),
            ("harvester_guest_agent_failures_total", "counter"),
            ("harvester_host_feature", "gauge"),
            ("harvester_host_upgrade_nodes", "gauge"),
            ("harvester_host_upgrade_signal", "gauge"),
            ("harvester_host_upgrade_window", "gauge"),
            ("harvester_known_hostnames", "gauge"),
            ("harvester_loadbalancer_allocation_seconds", "histogram"),
            ("harvester_loadbalancer_possible_leaks_total", "counter"),
            ("harvester_loadbalancer_waiting", "gauge"),
            ("harvester_loadbalancer_window", "gauge"),
            ("harvester_nad_mapping_networks", "gauge"),
            ("harvester_paused", "gauge"),
            ("harvester_safe_mode", "gauge"),
        ];
        assert_eq!(shown(), expected.map(|(name, kind)| (name.to_owned(), kind.to_owned())).into());
    }

    #[test]
    fn the_manual_names_every_metric_and_none_that_there_is_not() {
        let manual = include_str!("../../../../docs/metrics.md");
        let (_, table) = manual.split_once("\n| metric (`harvester_…`)").expect("the table is there");
        let rows = table.lines().skip(2).take_while(|line| line.starts_with('|'));
        let cells = rows.filter_map(|row| row.split('|').nth(1));
        let names = cells.flat_map(|cell| cell.split('`').skip(1).step_by(2));
        let documented: BTreeSet<String> =
            names.map(|name| format!("harvester_{}", name.split('{').next().unwrap_or_default())).collect();
        assert_eq!(documented, shown().into_keys().collect());
    }
}
