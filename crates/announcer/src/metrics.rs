//! The metrics at `/metrics`: kube-vip's names (kube-vip spec 7.1), and own ones for what kube-vip does not show.

mod probed;
mod services;
#[cfg(test)]
mod tests;

use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::Hash;
use std::sync::atomic::AtomicU64;
use std::time::Instant;

use announcer_core::engine::{Observations, VipStatus};
use announcer_core::network;
use announcer_core::ownership::LeaseState;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use runtime::metrics::Register;

use probed::Probed;
use services::Services;

type Number = Gauge<f64, AtomicU64>;

/// Labels of a lease; a Service can have one of each family.
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

/// Metrics of items that come and go. A label set is removed with its item. The others are never missing in between,
/// whenever they are scraped.
#[derive(Debug)]
struct Present<S, M> {
    family: Family<S, M>,
    shown: Mutex<BTreeSet<S>>,
}

impl<S: Clone + Eq + Ord + Hash, M: Default> Present<S, M> {
    fn of(family: Family<S, M>) -> Self {
        Self { family, shown: Mutex::default() }
    }

    /// Shows exactly these items, with these values.
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
    /// kube-vip's metrics of each Service.
    pub services: Services,
    /// Metrics of the probes of Services.
    pub probed: Probed,
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
    /// Registers all metrics.
    pub fn register(registry: &mut Registry, node: &str, lease_name: &str, version: &str) -> Self {
        let build: Family<[(&'static str, String); 3], Gauge> =
            registry.make("kube_vip_build_info", "Version of the announcer");
        build
            .get_or_create(&[("version", version.to_owned()), ("build", String::new()), ("node", node.to_owned())])
            .set(1);
        let services = Services::register(registry, node);
        // A counter that kube-vip named without the usual suffix; registered as a gauge, it keeps that name.
        let events = registry.make("kube_vip_manager_all_services_events", "Changes of Services by type");
        let active = registry.make("kube_vip_active_services", "Services with an address on this node");
        let leader = registry.make("kube_vip_is_leader", "Whether this node holds the Lease");
        let transitions = registry
            .make("kube_vip_leader_election_transitions", "How often this node has become or ceased to be the holder");
        // The metrics that kube-vip does not have. The node label is needed if the scraper identifies targets by
        // address; kube-vip's own metrics have it too.
        let registry = registry.sub_registry_with_label(("node".into(), node.to_owned().into()));
        Self {
            services,
            probed: Probed::register(registry),
            leader_labels: LeaderLabels { node: node.to_owned(), lease_name: lease_name.to_owned() },
            events,
            active: Present::of(active),
            leader,
            transitions,
            vips: registry.make("hcp_announcer_vips", "VIPs of this node by state"),
            announcements: registry
                .make("hcp_announcer_announcements", "Gratuitous ARP and unsolicited neighbour advertisements sent"),
            conflicts: registry
                .make("hcp_announcer_address_conflicts", "Times another host was found to use an address of ours"),
            dhcp_state: Present::of(registry.make(
                "hcp_announcer_dhcp_state",
                "State of the DHCP client of a Service, for each family: 1 for the state it is in",
            )),
            dhcp_expiry: Present::of(registry.make(
                "hcp_announcer_dhcp_lease_remaining_seconds",
                "Time until the DHCP lease of a Service ends unless renewed",
            )),
            confirmed: registry
                .make("hcp_announcer_lease_confirmed", "Whether the Lease is held and was renewed in time"),
            changes: registry.make(
                "hcp_announcer_owner_changes",
                "VIPs that came to this node, by the reason that the Event gives too",
            ),
            failed_swaps: registry.make(
                "hcp_announcer_failed_owner_changes",
                "Times the API did not take a change of owner, all attempts together; each is tried again",
            ),
            gap: registry.make(
                "hcp_announcer_last_gap_seconds",
                "How long clients had no answer at the last take-over from a node that had gone silent",
            ),
            probes: registry.make(
                "hcp_announcer_probes",
                "Questions to owners of VIPs that this node stands by for: asked, unanswered, late (put off, our \
                own timer was late), unsent (refused by the network stack, asked again); confirmation bursts: \
                burst, refuted, isolated (nobody answered us)",
            ),
            lateness: registry.make(
                "hcp_announcer_worst_lateness_seconds",
                "The worst lateness of the failure detector's own timers: it adds to the gap of a take-over",
            ),
            claiming: registry
                .make("hcp_announcer_claiming", "VIPs taken over whose former owners have not been seen to know it"),
            forged: registry.make("hcp_announcer_forged_claims", "Claims heard with a wrong tag"),
            fallen: registry.make(
                "hcp_announcer_fallen_addresses",
                "Addresses found gone from their interface, by the kernel's deadline (the fence) or by somebody's \
                hand",
            ),
            unprotected: registry
                .make("hcp_announcer_unprotected", "1 while the kernel refuses the rules of service security"),
        }
    }

    /// Takes over the engine's counters.
    pub fn observed(&self, seen: &Observations) {
        // The engine counts since its start, as these counters do, so they are raised by the difference.
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
            ("unsent", probes.unsent),
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

    /// Counts a change of a Service.
    pub fn service_event(&self, kind: &'static str) {
        self.events.get_or_create(&[("type", kind)]).inc();
    }

    /// Counts sent announcement frames.
    pub fn announced(&self, frames: u64) {
        self.announcements.inc_by(frames);
    }

    /// Counts a conflict: another host uses an address.
    pub fn conflict(&self) {
        self.conflicts.inc();
    }

    /// Takes over the state of the election.
    pub fn lease(&self, before: &LeaseState, now: &LeaseState) {
        let held = |state: &LeaseState| matches!(state, LeaseState::Held { .. });
        self.leader.get_or_create(&self.leader_labels).set(i64::from(held(now)));
        self.confirmed.set(i64::from(*now == LeaseState::Held { confirmed: true }));
        if held(before) != held(now) {
            self.transitions.get_or_create(&[("lease_name", self.leader_labels.lease_name.clone())]).inc();
        }
    }

    /// Shows the state of the VIPs; those that are gone are removed.
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
            states.insert(ClientLabels { namespace, name, family, state: state.as_str() }, 1);
        }
        self.dhcp_state.show(states, |gauge, one| {
            gauge.set(one);
        });
        self.dhcp_expiry.show(leases, |gauge, seconds| {
            gauge.set(seconds);
        });
    }
}
