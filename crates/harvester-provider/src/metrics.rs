//! Metrics of this provider (W-53).

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use cloud_provider::view::ServiceKey;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use runtime::metrics::Register;

use crate::garbage::list::Kind;
use crate::load_balancers::wait_reason::WaitReason;

/// Metrics of the provider.
#[derive(Debug)]
pub struct Metrics {
    /// Seconds from the POST to a published address.
    pub allocation_seconds: Histogram,
    waiting: Family<[(&'static str, &'static str); 1], Gauge>,
    features: Family<[(&'static str, &'static str); 1], Gauge>,
    /// Objects that were deleted before the host had finished the allocation.
    pub possible_leaks: Counter,
    /// Creates and deletes that may be under way on the host concurrently.
    pub window: Gauge,
    /// Guest agents that did not answer.
    pub guest_agent_failures: Counter,
    /// Networks in the NAD mapping.
    pub nad_mapping_networks: Gauge,
    /// Host names learnt from guest agents.
    pub known_hostnames: Gauge<f64, AtomicU64>,
    /// 1 while the command line names another cluster than the name in use.
    pub cluster_name_mismatch: Gauge,
    /// 1 while the facts contradict the identity of this cluster, so that nothing is changed.
    pub safe_mode: Gauge,
    /// 1 while the controller is paused.
    pub paused: Gauge,
    /// 1 while no announcer renews its Lease.
    pub announcer_missing: Gauge,
    /// 1 while an upgrade of the hosts suspends deletions and similar actions.
    pub host_upgrade_window: Gauge,
    /// By kind: 1 while its objects can be read.
    host_upgrade_signals: Family<[(&'static str, &'static str); 1], Gauge>,
    host_upgrade_nodes: Family<[(&'static str, &'static str); 1], Gauge>,
    garbage: Family<[(&'static str, &'static str); 1], Gauge>,
    reasons: Mutex<BTreeMap<ServiceKey, WaitReason>>,
}

impl Metrics {
    /// Registers the metrics.
    pub fn register(registry: &mut Registry) -> Self {
        let buckets = [0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0];
        Self {
            allocation_seconds: registry.keep(
                "harvester_loadbalancer_allocation_seconds",
                "Time from creating a LoadBalancer on Harvester to publishing its address",
                Histogram::new(buckets),
            ),
            waiting: registry.make("harvester_loadbalancer_waiting", "Services that wait for something, by reason"),
            features: registry.make(
                "harvester_host_feature",
                "What this Harvester host can do, as far as it was seen: 1 it can, 0 it cannot",
            ),
            possible_leaks: registry.make(
                "harvester_loadbalancer_possible_leaks",
                "LoadBalancers deleted although Harvester had not finished booking, or without spec.ipam, so that \
                their pool address may stay booked",
            ),
            window: registry.make(
                "harvester_loadbalancer_window",
                "LoadBalancers with a pool that may be created or deleted on Harvester at one time",
            ),
            guest_agent_failures: registry
                .make("harvester_guest_agent_failures", "Questions for a host name that a guest agent did not answer"),
            nad_mapping_networks: registry
                .make("harvester_nad_mapping_networks", "Networks in ConfigMap kube-system/harvester-nad-mapping"),
            known_hostnames: registry.make("harvester_known_hostnames", "Host names of VMs learnt from guest agents"),
            cluster_name_mismatch: registry.make(
                "harvester_cluster_name_mismatch",
                "1 while --cluster-name differs from the name that is remembered and used",
            ),
            safe_mode: registry.make(
                "harvester_safe_mode",
                "1 while record, cloud-config and machines of this cluster contradict each other, so that nothing \
                is changed",
            ),
            paused: registry.make(
                "harvester_paused",
                "1 while the controller is paused: it observes and tells, and writes nothing",
            ),
            announcer_missing: registry.make(
                "harvester_announcer_missing",
                "1 while Services have addresses and no announcer renews its Lease, where one did before",
            ),
            host_upgrade_window: registry.make(
                "harvester_host_upgrade_window",
                "1 while an upgrade of Harvester's hosts, or their silence, suspends deletions, zones and changes \
                of load balancers",
            ),
            host_upgrade_signals: registry.make(
                "harvester_host_upgrade_signal",
                "1 while what the host tells of its upgrade can be read, by kind",
            ),
            host_upgrade_nodes: registry
                .make("harvester_host_upgrade_nodes", "Nodes by reason of their condition HarvesterHostMaintenance"),
            garbage: registry.make(
                "harvester_garbage_loadbalancers",
                "LoadBalancers on Harvester that no Service has, by kind: ours (by the UID of this cluster) or \
                suspected (by its name)",
            ),
            reasons: Mutex::default(),
        }
    }

    /// The gauge that is 1 while objects of this kind can be read.
    pub fn host_upgrade_signal(&self, kind: &'static str) -> Gauge {
        self.host_upgrade_signals.get_or_create_owned(&[("signal", kind)])
    }

    /// Sets the number of Nodes that show this reason.
    pub fn host_upgrade_nodes(&self, reason: &'static str, count: usize) {
        let count = i64::try_from(count).unwrap_or(i64::MAX);
        self.host_upgrade_nodes.get_or_create(&[("reason", reason)]).set(count);
    }

    /// Sets the number of objects of this kind that have no Service.
    pub fn garbage(&self, kind: Kind, count: usize) {
        self.garbage.get_or_create(&[("kind", kind.label())]).set(i64::try_from(count).unwrap_or(i64::MAX));
    }

    /// Records whether the host has a feature.
    pub fn host_feature(&self, name: &'static str, offered: bool) {
        self.features.get_or_create(&[("feature", name)]).set(i64::from(offered));
    }

    /// Records the time from the POST to the published address.
    pub fn allocated(&self, after: Duration) {
        self.allocation_seconds.observe(after.as_secs_f64());
    }

    /// Records what a Service waits for now; `None`: it does not wait.
    pub fn waits(&self, service: &ServiceKey, reason: Option<WaitReason>) {
        let mut reasons = self.reasons.lock();
        let before = match reason {
            Some(reason) => reasons.insert(service.clone(), reason),
            None => reasons.remove(service),
        };
        if before == reason {
            return;
        }
        if let Some(before) = before {
            self.waiting.get_or_create(&[("reason", before.label())]).dec();
        }
        if let Some(reason) = reason {
            self.waiting.get_or_create(&[("reason", reason.label())]).inc();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// W-53.
    #[test]
    fn allocation_waiting_leaks_mapping_names_and_garbage_have_a_metric_each() {
        let mut registry = Registry::default();
        let metrics = Metrics::register(&mut registry);
        // Families are shown with their first member.
        let key = ServiceKey { namespace: "a".into(), name: "b".into() };
        metrics.waits(&key, Some(WaitReason::Allocation));
        metrics.garbage(Kind::Ours, 1);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        let shown = runtime::metrics::shown_types(&text);
        for (name, kind) in [
            ("harvester_loadbalancer_allocation_seconds", "histogram"),
            ("harvester_loadbalancer_waiting", "gauge"),
            ("harvester_loadbalancer_possible_leaks_total", "counter"),
            ("harvester_nad_mapping_networks", "gauge"),
            ("harvester_known_hostnames", "gauge"),
            ("harvester_cluster_name_mismatch", "gauge"),
            ("harvester_garbage_loadbalancers", "gauge"),
        ] {
            assert_eq!(shown.get(name).map(String::as_str), Some(kind), "{name} in\n{text}");
        }
    }

    /// W-53.
    #[test]
    fn a_service_waits_for_one_thing_at_a_time() {
        let mut registry = Registry::default();
        let metrics = Metrics::register(&mut registry);
        let key = ServiceKey { namespace: "a".into(), name: "b".into() };
        metrics.waits(&key, Some(WaitReason::Allocation));
        metrics.waits(&key, Some(WaitReason::Allocation));
        metrics.waits(&key, Some(WaitReason::Terminating));
        let waiting = |reason| metrics.waiting.get_or_create(&[("reason", reason)]).get();
        assert_eq!((waiting("allocation"), waiting("terminating")), (0, 1));
        metrics.waits(&key, None);
        assert_eq!(waiting("terminating"), 0);
    }
}
