//! What can be read at `/metrics`: kube-vip's names (kube-vip spec 7.1) and ours for what it does not tell.

mod services;

use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::Hash;
use std::sync::atomic::AtomicU64;
use std::time::Instant;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::engine::{Observations, VipStatus};
use crate::network;
use crate::ownership::LeaseState;
use services::Services;

type Number = Gauge<f64, AtomicU64>;

/// A Service can have a lease of each family.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, EncodeLabelSet)]
struct LeaseLabels {
    namespace: String,
    name: String,
    family: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, EncodeLabelSet)]
struct ClientLabels {
    namespace: String,
    name: String,
    family: &'static str,
    state: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct LeaderLabels {
    node: String,
    lease_name: String,
}

/// Metrics of what comes and goes. A label set goes with what it is about; the others are never missing meanwhile, whenever
/// somebody reads them.
#[derive(Debug)]
struct Present<S, M> {
    family: Family<S, M>,
    shown: Mutex<BTreeSet<S>>,
}

impl<S: Clone + Eq + Ord + Hash, M: Default> Default for Present<S, M> {
    fn default() -> Self {
        Self { family: Family::default(), shown: Mutex::default() }
    }
}

impl<S: Clone + Eq + Ord + Hash, M: Default> Present<S, M> {
    /// These there are now, with these values.
    fn show<V>(&self, values: BTreeMap<S, V>, set: impl Fn(&M, V)) {
        let now: BTreeSet<S> = values.keys().cloned().collect();
        for (labels, value) in values {
            set(&self.family.get_or_create(&labels), value);
        }
        let mut shown = self.shown.lock();
        for gone in shown.difference(&now) {
            self.family.remove(gone);
        }
        *shown = now;
    }
}

/// The metrics of the announcer.
#[derive(Debug)]
pub struct Metrics {
    /// kube-vip's of each Service.
    pub services: Services,
    leader_labels: LeaderLabels,
    events: Family<[(&'static str, &'static str); 1], Gauge>,
    active: Present<[(&'static str, String); 1], Gauge>,
    leader: Family<LeaderLabels, Gauge>,
    transitions: Family<[(&'static str, String); 1], Counter>,
    vips: Family<[(&'static str, &'static str); 1], Gauge>,
    announcements: Counter,
    conflicts: Counter,
    dhcp_state: Present<ClientLabels, Gauge>,
    dhcp_expiry: Present<LeaseLabels, Number>,
    confirmed: Gauge,
    changes: Family<[(&'static str, &'static str); 1], Counter>,
    failed_swaps: Counter,
    gap: Number,
    probes: Family<[(&'static str, &'static str); 1], Counter>,
    lateness: Number,
    claiming: Gauge,
    forged: Counter,
    fallen: Counter,
    unprotected: Gauge,
}

impl Metrics {
    /// Registers all of them.
    pub fn register(registry: &mut Registry, node: &str, lease_name: &str, version: &str) -> Self {
        let metrics = Self {
            services: Services::register(registry, node),
            leader_labels: LeaderLabels { node: node.to_owned(), lease_name: lease_name.to_owned() },
            events: Family::default(),
            active: Present::default(),
            leader: Family::default(),
            transitions: Family::default(),
            vips: Family::default(),
            announcements: Counter::default(),
            conflicts: Counter::default(),
            dhcp_state: Present::default(),
            dhcp_expiry: Present::default(),
            confirmed: Gauge::default(),
            changes: Family::default(),
            failed_swaps: Counter::default(),
            gap: Number::default(),
            probes: Family::default(),
            lateness: Number::default(),
            claiming: Gauge::default(),
            forged: Counter::default(),
            fallen: Counter::default(),
            unprotected: Gauge::default(),
        };
        let build: Family<[(&'static str, String); 3], Gauge> = Family::default();
        build
            .get_or_create(&[("version", version.to_owned()), ("build", String::new()), ("node", node.to_owned())])
            .set(1);
        registry.register("kube_vip_build_info", "Version of the announcer", build);
        // A counter whose name kube-vip never gave the usual ending; as a gauge it keeps that name.
        registry.register(
            "kube_vip_manager_all_services_events",
            "Changes of Services by type",
            metrics.events.clone(),
        );
        registry.register(
            "kube_vip_active_services",
            "Services with an address on this node",
            metrics.active.family.clone(),
        );
        registry.register("kube_vip_is_leader", "Whether this node holds the Lease", metrics.leader.clone());
        registry.register(
            "kube_vip_leader_election_transitions",
            "How often this node has become or ceased to be the holder",
            metrics.transitions.clone(),
        );
        registry.register("hcp_announcer_vips", "VIPs of this node by state", metrics.vips.clone());
        registry.register(
            "hcp_announcer_announcements",
            "Gratuitous ARP and unsolicited neighbour advertisements sent",
            metrics.announcements.clone(),
        );
        registry.register(
            "hcp_announcer_address_conflicts",
            "Times another host was found to use an address of ours",
            metrics.conflicts.clone(),
        );
        registry.register(
            "hcp_announcer_dhcp_state",
            "State of the DHCP client of a Service, for each family: 1 for the state it is in",
            metrics.dhcp_state.family.clone(),
        );
        registry.register(
            "hcp_announcer_dhcp_lease_remaining_seconds",
            "Time until the DHCP lease of a Service ends unless renewed",
            metrics.dhcp_expiry.family.clone(),
        );
        registry.register(
            "hcp_announcer_lease_confirmed",
            "Whether the Lease is held and was renewed in time",
            metrics.confirmed.clone(),
        );
        registry.register(
            "hcp_announcer_owner_changes",
            "VIPs that came to this node, by the reason that the Event gives too",
            metrics.changes.clone(),
        );
        registry.register(
            "hcp_announcer_failed_owner_changes",
            "Times the API did not take a change of owner, all attempts together; each is tried again",
            metrics.failed_swaps.clone(),
        );
        registry.register(
            "hcp_announcer_last_gap_seconds",
            "How long clients had no answer at the last take-over from a node that had gone silent",
            metrics.gap.clone(),
        );
        registry.register(
            "hcp_announcer_probes",
            "Questions to owners of VIPs that this node stands by for: asked, unanswered, late (put off, our own timer was late); confirmation bursts: burst, refuted, isolated (nobody answered us)",
            metrics.probes.clone(),
        );
        registry.register(
            "hcp_announcer_worst_lateness_seconds",
            "The worst lateness of the failure detector's own timers: it adds to the gap of a take-over",
            metrics.lateness.clone(),
        );
        registry.register(
            "hcp_announcer_claiming",
            "VIPs taken over whose former owners have not been seen to know it",
            metrics.claiming.clone(),
        );
        registry.register("hcp_announcer_forged_claims", "Claims heard with a wrong tag", metrics.forged.clone());
        registry.register(
            "hcp_announcer_fallen_addresses",
            "Addresses found gone from their interface, by the kernel's deadline (the fence) or by somebody's hand",
            metrics.fallen.clone(),
        );
        registry.register(
            "hcp_announcer_unprotected",
            "1 while the kernel refuses the rules of service security",
            metrics.unprotected.clone(),
        );
        metrics
    }

    /// What the engine has counted.
    pub fn observed(&self, seen: &Observations) {
        // The engine counts from its start, as these do: what is new is the difference.
        let raise = |counter: &Counter, to: u64| {
            counter.inc_by(to.saturating_sub(counter.get()));
        };
        for (why, count) in &seen.changes {
            raise(&self.changes.get_or_create(&[("reason", *why)]), *count);
        }
        raise(&self.failed_swaps, seen.failed_swaps);
        let probes = seen.probes;
        for (what, count) in [
            ("asked", probes.asked),
            ("unanswered", probes.unanswered),
            ("late", probes.late),
            ("burst", probes.bursts),
            ("refuted", probes.refuted),
            ("isolated", probes.isolated),
        ] {
            raise(&self.probes.get_or_create(&[("what", what)]), count);
        }
        self.lateness.set(probes.worst_lateness.as_secs_f64());
        raise(&self.forged, seen.forged);
        raise(&self.fallen, seen.fallen);
        self.claiming.set(i64::try_from(seen.claims).unwrap_or(i64::MAX));
        self.unprotected.set(i64::from(seen.unprotected));
        if let Some(gap) = seen.last_gap {
            self.gap.set(gap.as_secs_f64());
        }
    }

    /// A Service changed.
    pub fn service_event(&self, kind: &'static str) {
        self.events.get_or_create(&[("type", kind)]).inc();
    }

    /// Frames were sent that say where an address is.
    pub fn announced(&self, frames: u64) {
        self.announcements.inc_by(frames);
    }

    /// Somebody else uses an address.
    pub fn conflict(&self) {
        self.conflicts.inc();
    }

    /// The election says something new.
    pub fn lease(&self, before: &LeaseState, now: &LeaseState) {
        let held = |state: &LeaseState| matches!(state, LeaseState::Held { .. });
        self.leader.get_or_create(&self.leader_labels).set(i64::from(held(now)));
        self.confirmed.set(i64::from(*now == LeaseState::Held { confirmed: true }));
        if held(before) != held(now) {
            self.transitions.get_or_create(&[("lease_name", self.leader_labels.lease_name.clone())]).inc();
        }
    }

    /// The VIPs as they stand. What is gone goes from the metrics too.
    pub fn vips(&self, status: &[VipStatus], now: Instant) {
        let count = |up: bool| i64::try_from(status.iter().filter(|vip| vip.up == up).count()).unwrap_or(i64::MAX);
        self.vips.get_or_create(&[("state", "up")]).set(count(true));
        self.vips.get_or_create(&[("state", "pending")]).set(count(false));
        let services: BTreeSet<_> = status.iter().filter(|vip| vip.up).filter_map(|vip| vip.service.clone()).collect();
        let mut active = BTreeMap::new();
        for service in services {
            *active.entry([("namespace", service.namespace)]).or_insert(0) += 1;
        }
        self.active.show(active, |gauge, count| {
            gauge.set(count);
        });
        let (mut states, mut leases) = (BTreeMap::new(), BTreeMap::new());
        for vip in status {
            let (Some(service), Some(state)) = (&vip.service, vip.dhcp_state) else { continue };
            let (namespace, name) = (service.namespace.clone(), service.name.clone());
            let family = match vip.id.family() {
                network::Family::V4 => "IPv4",
                network::Family::V6 => "IPv6",
            };
            if let Some(expires) = vip.expires {
                let labels = LeaseLabels { namespace: namespace.clone(), name: name.clone(), family };
                leases.insert(labels, expires.saturating_duration_since(now).as_secs_f64());
            }
            states.insert(ClientLabels { namespace, name, family, state }, 1);
        }
        self.dhcp_state.show(states, |gauge, one| {
            gauge.set(one);
        });
        self.dhcp_expiry.show(leases, |gauge, seconds| {
            gauge.set(seconds);
        });
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use prometheus_client::encoding::text::encode;

    use super::*;
    use crate::VipId;
    use crate::ownership::service::LeaseKey;
    use crate::view::{Ingress, ServiceKey, Uid};

    /// Every metric has something to show.
    fn full() -> String {
        let product = runtime::Product { name: "announcer", metrics_prefix: "hcp", version: "1" };
        let whole = runtime::metrics::Metrics::new(&product);
        let metrics = whole.register(|registry| Metrics::register(registry, "node-1", "lock", "1"));
        let (now, key) = (Instant::now(), ServiceKey::new("default", "web"));
        let held = LeaseState::Held { confirmed: true };
        metrics.lease(&LeaseState::default(), &held);
        metrics.service_event("ADDED");
        metrics.vips(&[leased(VipId::Dhcp, "bound", now)], now);
        let changes = BTreeMap::from([("placed", 1)]);
        metrics.observed(&Observations {
            changes,
            last_gap: Some(Duration::from_millis(230)),
            ..Observations::default()
        });
        metrics.services.refused(&key);
        let mut view = announcer_core::fixtures::view("web", &["10.0.0.5"]);
        metrics.services.seen(&key, Some(&view), now);
        view.published.vip_host = Some("node-1".into());
        view.published.ingress = vec![Ingress { ip: None, ports: Vec::new() }];
        metrics.services.seen(&key, Some(&view), now);
        let lease = LeaseKey { namespace: "default".into(), name: "kubevip-web".into() };
        metrics.services.campaigns(&BTreeSet::from([lease]));
        whole.encode()
    }

    /// Names and types, those of the process apart: what every Prometheus client tells is not ours to promise.
    fn shown_types() -> BTreeMap<String, String> {
        let mut types = runtime::metrics::shown_types(&full());
        types.retain(|name, _| !name.starts_with("process_"));
        types
    }

    #[test]
    fn dashboards_and_alerts_find_these_names_and_types() {
        let expected = [
            ("hcp_announcer_address_conflicts_total", "counter"),
            ("hcp_announcer_announcements_total", "counter"),
            ("hcp_announcer_claiming", "gauge"),
            ("hcp_announcer_dhcp_lease_remaining_seconds", "gauge"),
            ("hcp_announcer_dhcp_state", "gauge"),
            ("hcp_announcer_failed_owner_changes_total", "counter"),
            ("hcp_announcer_fallen_addresses_total", "counter"),
            ("hcp_announcer_forged_claims_total", "counter"),
            ("hcp_announcer_last_gap_seconds", "gauge"),
            ("hcp_announcer_lease_confirmed", "gauge"),
            ("hcp_announcer_owner_changes_total", "counter"),
            ("hcp_announcer_probes_total", "counter"),
            ("hcp_announcer_unprotected", "gauge"),
            ("hcp_announcer_vips", "gauge"),
            ("hcp_announcer_worst_lateness_seconds", "gauge"),
            ("hcp_build_info", "gauge"),
            ("kube_vip_active_services", "gauge"),
            ("kube_vip_build_info", "gauge"),
            ("kube_vip_is_leader", "gauge"),
            ("kube_vip_leader_election_transitions_total", "counter"),
            ("kube_vip_manager_all_services_events", "gauge"),
            ("kube_vip_service_election_attempts_total", "counter"),
            ("kube_vip_service_election_loops", "gauge"),
            ("kube_vip_service_reconcile_duration_seconds", "histogram"),
            ("kube_vip_service_reconcile_errors_total", "counter"),
        ];
        let expected: BTreeMap<String, String> = expected.map(|(name, kind)| (name.to_owned(), kind.to_owned())).into();
        assert_eq!(shown_types(), expected);
    }

    /// First cells of the rows of the table under this heading; names stand there in back quotes, without the labels.
    fn documented(heading: &str) -> BTreeSet<String> {
        let manual = include_str!("../../../docs/announcer.md");
        let (_, table) = manual.split_once(heading).expect("the table is there");
        let rows = table.lines().skip(2).take_while(|line| line.starts_with('|'));
        let cells = rows.filter_map(|row| row.split('|').nth(1));
        let names = cells.flat_map(|cell| cell.split('`').skip(1).step_by(2));
        names.map(|name| name.split('{').next().unwrap_or_default().to_owned()).collect()
    }

    #[test]
    fn the_manual_names_every_metric_and_none_that_there_is_not() {
        let shown = |prefix: &str| -> BTreeSet<String> {
            shown_types().keys().filter_map(|name| name.strip_prefix(prefix)).map(str::to_owned).collect()
        };
        assert_eq!(documented("\n| metric (`hcp_announcer_…`)"), shown("hcp_announcer_"));
        assert_eq!(documented("\n| kept of kube-vip (`kube_vip_…`)"), shown("kube_vip_"));
        let left_out = documented("\n| left out of kube-vip (`kube_vip_…`)");
        assert!(!left_out.is_empty() && left_out.is_disjoint(&shown("kube_vip_")), "{left_out:?}");
    }

    fn leased(id: fn(Uid) -> VipId, state: &'static str, expires: Instant) -> VipStatus {
        VipStatus {
            id: id(Uid("web".into())),
            address: None,
            service: Some(ServiceKey::new("default", "web")),
            up: true,
            dhcp_state: Some(state),
            expires: Some(expires),
        }
    }

    fn shown(registry: &Registry) -> String {
        let mut text = String::new();
        encode(&mut text, registry).unwrap();
        text.lines().filter(|line| line.contains("_dhcp_") && !line.starts_with('#')).collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn a_service_with_leases_of_both_families_shows_both() {
        let mut registry = Registry::default();
        let metrics = Metrics::register(&mut registry, "node-1", "lock", "0");
        let now = Instant::now();
        let at = |seconds| now + Duration::from_secs(seconds);
        metrics.vips(&[leased(VipId::Dhcp, "rebinding", at(30)), leased(VipId::Dhcp6, "bound", at(600))], now);
        let text = shown(&registry);
        for line in [
            r#"hcp_announcer_dhcp_state{namespace="default",name="web",family="IPv4",state="rebinding"} 1"#,
            r#"hcp_announcer_dhcp_state{namespace="default",name="web",family="IPv6",state="bound"} 1"#,
            r#"hcp_announcer_dhcp_lease_remaining_seconds{namespace="default",name="web",family="IPv4"} 30.0"#,
            r#"hcp_announcer_dhcp_lease_remaining_seconds{namespace="default",name="web",family="IPv6"} 600.0"#,
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
        }
    }

    #[test]
    fn what_stays_is_never_missing_and_what_is_gone_goes() {
        let mut registry = Registry::default();
        let metrics = Metrics::register(&mut registry, "node-1", "lock", "0");
        let now = Instant::now();
        let at = |seconds| now + Duration::from_secs(seconds);
        let both = [leased(VipId::Dhcp, "bound", at(30)), leased(VipId::Dhcp6, "bound", at(600))];
        metrics.vips(&both, now);
        let labels = LeaseLabels { namespace: "default".into(), name: "web".into(), family: "IPv4" };
        // Taken away and made again, they would be others: a scrape in between would have seen none.
        let lease = metrics.dhcp_expiry.family.get_or_create_owned(&labels);
        let active = metrics.active.family.get_or_create_owned(&[("namespace", "default".to_owned())]);
        metrics.vips(&[leased(VipId::Dhcp, "renewing", at(20))], now);
        assert_eq!((lease.get(), active.get()), (20.0, 1));
        active.set(7);
        metrics.vips(&both[..1], now);
        assert_eq!((lease.get(), active.get()), (30.0, 1));
        let text = shown(&registry);
        assert!(!text.contains("IPv6") && !text.contains("renewing") && text.contains("bound"), "{text}");
        metrics.vips(&[], now);
        assert_eq!(shown(&registry), "");
    }
}
