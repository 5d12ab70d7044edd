//! The engine: what happened goes in, what to do comes out. No I/O, no clock, no await; a test or a simulation can run
//! it as well as a node.
//!
//! It keeps one small machine per VIP (`vip.rs`) in step with the plan (`plan.rs`), extends what is up, sweeps what is
//! nobody's (`sweep.rs`), decides what stands on each Service (`records.rs`) and how to leave (`stop.rs`).

mod defence;
mod dhcp;
mod dhcp6;
mod dhcp_events;
mod dhcp_state;
mod due;
mod elections;
mod io;
mod kernel;
mod links;
mod lookout;
mod protect;
mod records;
mod screening;
mod stop;
mod sweep;
mod tell;
mod traffic;
mod vip;
mod vip_timers;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use defence::Yielded;
use due::Due;
pub use io::{
    Action, Dhcp6Start, DhcpEvent, DhcpStart, Input, Leased, LostLeases, Observations, Put, Record, Recorded, Resumed,
    Tell, VipStatus, WireDone, WireOp,
};
use ipnet::IpNet;
use l2_types::InetConf;
use lookout::Lookout;
use protect::Rules;
use records::ServiceRecord;
use screening::Refused;
use stop::Stopping;
use vip::{Phase, Vip};

use crate::config::Config;
use crate::endpoints::Endpoints;
use crate::frames::Heard;
use crate::group::{Groups, groups};
use crate::network::{Family, Network};
use crate::ownership::node::Change;
use crate::ownership::service::LeaseKey;
use crate::ownership::{LeaseState, Owner, Owners, Ownership};
use crate::plan::{self, Plan, VipId, World};
use crate::screen::{ClusterIps, Machine};
use crate::view::{ServiceKey, ServiceView, Uid};

/// How often the kernel's deadlines are put off.
pub const REFRESH: Duration = Duration::from_secs(1);
/// A refresh this late means that the process or the machine stood still: others may have acted meanwhile
/// (failover-protocol.md R6).
const PAUSE: Duration = Duration::from_secs(2);
const NODE_PAUSE: Duration = Duration::from_millis(250);
/// How long a restarted process keeps what it finds before it knows whose it is. Bounded, so that a process that never
/// learns it does not keep an address for ever; long enough for an API server to come back (decisions.md 26 uses the
/// same time).
const UNDECIDED_LIMIT: Duration = Duration::from_mins(5);
/// Each pod that comes or goes changes links and routes: the network is not read more often than this.
const OBSERVE_PAUSE: Duration = Duration::from_millis(50);
/// The network is read again this often even if nothing was reported.
const OBSERVE_INTERVAL: Duration = Duration::from_mins(1);
/// The same text about the same Service is not told again within this time.
const TELL_INTERVAL: Duration = Duration::from_mins(10);

/// One node's announcer, as a state machine.
#[allow(clippy::struct_excessive_bools)] // independent facts, not the states of one machine
pub struct Engine {
    config: Config,
    fence: Duration,
    ownership: Owners,
    lookout: Lookout,
    /// `node` mode: changes of owner that were not told yet.
    moved: BTreeMap<ServiceKey, Change>,
    observations: Observations,
    /// `service` mode: the elections that this node takes part in.
    campaigning: BTreeSet<LeaseKey>,
    /// It takes part in none any more, and the last Leases are still being handed back.
    handing_back: bool,
    services: BTreeMap<ServiceKey, ServiceView>,
    /// Which of them share an address, and whether one has changed since.
    groups: Groups,
    regroup: bool,
    /// Addresses that Services ask for and do not get, and of machines.
    refused: BTreeMap<ServiceKey, Refused>,
    machines: BTreeMap<IpAddr, Machine>,
    cluster_ips: ClusterIps,
    synced: bool,
    /// Nodes with endpoints of Services with policy Local.
    endpoints: Endpoints,
    network: Option<Network>,
    plan: Plan,
    vips: Due<VipId, Vip>,
    /// VIPs given up because somebody claimed them while our own record was in doubt.
    yielded: BTreeMap<VipId, Yielded>,
    /// Macvlans whose clients are sending their RELEASE.
    leaving: BTreeMap<Uid, dhcp::Leaving>,
    /// VIPs that the kernel is asked to set at the end of the step.
    to_add: BTreeSet<VipId>,
    /// Leases given back because another MAC or name asks from now on, until that one does.
    given_back: BTreeMap<Uid, Ipv4Addr>,
    /// Leases that a server has refused to this node or not renewed, as they may still stand on their Services.
    void: BTreeMap<Uid, LostLeases>,
    /// DHCP clients started so far: the generation of the last one.
    clients: u64,
    /// What was set on interfaces that carry VIPs, to be put back; absent while the answer is on its way.
    prepared: BTreeMap<u32, Option<InetConf>>,
    /// Interfaces that could not be set, and when to try again.
    unprepared: BTreeMap<u32, Instant>,
    listening: BTreeSet<(u32, Family)>,
    /// Service security, and VIPs that are to be added as soon as theirs stand.
    rules: Rules,
    awaiting_rules: BTreeSet<VipId>,
    records: Due<ServiceKey, ServiceRecord>,
    /// What was told of each Service, and until when that is not told again.
    told: BTreeMap<ServiceKey, BTreeMap<String, Instant>>,
    /// Addresses and interfaces (without one) that we had removed, with the observation that was asked for last: up to
    /// that one they may still be seen.
    removed: BTreeMap<(u32, Option<IpNet>), u64>,
    stopping: Option<Stopping>,
    started: Instant,
    next_refresh: Instant,
    refreshing: bool,
    next_observe: Instant,
    last_observe: Instant,
    /// Observations asked for so far, and whether one is on its way, and whether another is needed after it.
    observes: u64,
    observing: bool,
    /// The last one that was answered, and the first that shows what others did while this process stood still.
    observed: u64,
    fresh_from: u64,
    observe_again: bool,
    dirty: bool,
    urgent: bool,
    out: Vec<Action>,
}

impl Engine {
    /// An engine that knows nothing yet. The first step asks for the network.
    pub fn new(now: Instant, config: Config) -> Self {
        Self {
            fence: config.fence(),
            ownership: Owners::new(&config),
            lookout: Lookout::new(now, &config),
            moved: BTreeMap::new(),
            observations: Observations::default(),
            campaigning: BTreeSet::new(),
            handing_back: false,
            config,
            services: BTreeMap::new(),
            groups: Groups::default(),
            regroup: false,
            refused: BTreeMap::new(),
            machines: BTreeMap::new(),
            cluster_ips: ClusterIps::default(),
            synced: false,
            endpoints: Endpoints::new(),
            network: None,
            plan: Plan::default(),
            vips: Due::default(),
            yielded: BTreeMap::new(),
            leaving: BTreeMap::new(),
            to_add: BTreeSet::new(),
            given_back: BTreeMap::new(),
            void: BTreeMap::new(),
            clients: 0,
            prepared: BTreeMap::new(),
            unprepared: BTreeMap::new(),
            listening: BTreeSet::new(),
            rules: Rules::default(),
            awaiting_rules: BTreeSet::new(),
            records: Due::default(),
            told: BTreeMap::new(),
            removed: BTreeMap::new(),
            stopping: None,
            started: now,
            next_refresh: now,
            refreshing: false,
            next_observe: now,
            last_observe: now,
            observes: 0,
            observing: false,
            observed: 0,
            fresh_from: 0,
            observe_again: false,
            dirty: true,
            urgent: false,
            out: Vec::new(),
        }
    }

    /// Takes in what happened at `now`, then judges the timers, and says what to do, in this order.
    pub fn step(&mut self, now: Instant, input: Input) -> Vec<Action> {
        self.take(now, input);
        self.timers(now);
        self.settle(now)
    }

    /// Takes in what happened and no more: for all but the last of several inputs that wait, which has to come by
    /// [`Engine::step`]. What was heard counts before any time-out (failover-protocol.md R1), and a thousand Services
    /// that change together are planned once, not a thousand times.
    pub fn hear(&mut self, now: Instant, input: Input) -> Vec<Action> {
        self.take(now, input);
        std::mem::take(&mut self.out)
    }

    /// Judges the one timer that cannot wait for a plan, whether the owners that this node is to succeed still answer,
    /// and says what to ask. All that was heard has to be taken in before.
    pub fn look_out(&mut self, now: Instant) -> Vec<Action> {
        if self.next_look().is_some_and(|at| at <= now) {
            self.look_around(now);
        }
        std::mem::take(&mut self.out)
    }

    /// When to call [`Engine::look_out`], if no step comes before.
    pub fn next_look(&self) -> Option<Instant> {
        self.lookout.deadline()
    }

    /// Clients wait for the next plan: an owner was found silent.
    pub fn is_urgent(&self) -> bool {
        self.urgent
    }

    fn settle(&mut self, now: Instant) -> Vec<Action> {
        self.urgent = false;
        if std::mem::take(&mut self.dirty) {
            self.reconcile(now);
            self.finish_hand_over(now);
        }
        self.add_all(now);
        self.vips.settle();
        self.records.settle();
        std::mem::take(&mut self.out)
    }

    fn take(&mut self, now: Instant, input: Input) {
        match input {
            Input::ClusterIps(key, addresses) => self.note_cluster_ips(&key, addresses),
            // Most Services of a cluster are none of ours, and change nothing here.
            Input::Service(key, None) if !self.services.contains_key(&key) => {}
            Input::Service(key, view) => {
                self.dirty = true;
                self.regroup = true;
                let refused = self.refused.remove(&key);
                if let Some(cluster) = self.cluster() {
                    cluster.changed(now, &key);
                }
                let before = self.services.remove(&key).map(|before| match refused {
                    Some(refused) => ServiceView { wanted: refused.asked, ..before },
                    None => before,
                });
                match (view, before) {
                    (Some(view), Some(before)) => {
                        if view.uid != before.uid {
                            self.void.remove(&before.uid);
                            self.moved.remove(&key);
                        }
                        self.services.insert(key, view.following(&before));
                    }
                    (Some(view), None) => {
                        self.services.insert(key, *view);
                    }
                    (None, Some(gone)) => {
                        self.void.remove(&gone.uid);
                        self.moved.remove(&key);
                    }
                    (None, None) => {}
                }
            }
            Input::Endpoints(key, nodes) => self.endpoints_changed(key, nodes),
            Input::Synced => {
                self.synced = true;
                self.dirty = true;
            }
            Input::Lease(state) => self.lease_changed(now, state),
            Input::ServiceLease(key, state) => self.service_lease(now, key, state),
            Input::Member(node, member) => {
                if self.cluster().is_some_and(|cluster| cluster.member(now, node, member)) {
                    self.dirty = true;
                    self.note_machines();
                }
            }
            Input::ApiServers(servers) => {
                self.tell_cluster(|cluster| cluster.api_servers(servers));
                self.note_machines();
            }
            Input::MembersSynced => self.tell_cluster(|cluster| cluster.members_synced(now)),
            Input::Node(name, facts) => self.tell_cluster(|cluster| cluster.node(name, facts)),
            Input::NodesSynced { readable } => self.tell_cluster(|cluster| cluster.nodes_synced(readable)),
            Input::Foreign(lock) => self.tell_cluster(|cluster| cluster.foreign(now, lock)),
            Input::KubeProxy(healthy) => self.kube_proxy(healthy),
            Input::Swapped(key, asked, swapped) => self.swapped(now, &key, &asked, swapped),
            Input::NetworkChanged => self.observe(now),
            Input::Wire(done) => self.wire_done(now, done),
            Input::Heard(frame) => {
                self.look(now, &frame);
                self.heard(now, &frame);
            }
            Input::Dhcp(uid, generation, event) => self.dhcp_event(now, &uid, generation, event),
            Input::Dhcp6(uid, generation, event) => self.dhcp6_event(now, &uid, generation, event),
            Input::Recorded(key, recorded) => self.recorded(now, &key, &recorded),
            Input::Stop => self.stop(now),
            Input::Released(released) => self.released(now, released),
            Input::Successor(node) => self.successor(now, &node),
            Input::Tick => {}
        }
    }

    /// When to step with [`Input::Tick`] if nothing happens before.
    pub fn deadline(&self) -> Instant {
        let leaving = self.leaving.values().map(|leaving| leaving.until);
        let yielded = self.yielded.values().filter_map(|yielded| yielded.deadline());
        let stopping = self.stopping.as_ref().and_then(Stopping::deadline);
        // One observation at a time: the next is judged when the kernel has answered.
        let observe = Some(self.next_observe).filter(|_| !self.observing);
        leaving
            .chain(self.vips.first())
            .chain(self.records.first())
            .chain(yielded)
            .chain(stopping)
            .chain(observe)
            .chain(self.lookout_deadline())
            .fold(self.next_refresh, Instant::min)
    }

    /// All VIPs of this node as they stand.
    pub fn status(&self) -> Vec<VipStatus> {
        self.vips.iter().map(|(id, vip)| vip.status(id)).collect()
    }

    /// What has happened since the start, for metrics.
    pub fn observations(&self) -> Observations {
        let (probes, claims, forged) = self.lookout.counted();
        Observations { probes, claims, forged, unprotected: self.rules.refused, ..self.observations.clone() }
    }

    /// What has to be read before anything can be decided: the Services, and by what owners are told.
    pub fn unknown(&self) -> Option<&'static str> {
        if self.synced { self.ownership.unknown() } else { Some("the Services") }
    }

    /// What the election said last, in `global` mode.
    pub fn lease(&self) -> &LeaseState {
        match &self.ownership {
            Owners::Global(lease) => &lease.state,
            Owners::Service(_) | Owners::Node(_) => &LeaseState::Unknown,
        }
    }

    fn timers(&mut self, now: Instant) {
        if now >= self.next_refresh {
            let late = now - self.next_refresh;
            self.next_refresh = now + REFRESH;
            if late > self.pause() && self.network.is_some() {
                tracing::warn!(
                    late_ms = late.as_millis(),
                    "stood still: asking on the wire whether the addresses are still ours"
                );
                self.doubt_all(now);
                self.fresh_from = self.observes + 1;
            }
            self.refresh(now);
            self.listen_again();
            self.tell_stuck(now);
            self.forget_told(now);
            if self.observed < self.fresh_from {
                self.observe(now);
            }
        }
        if !self.observing && now >= self.next_observe {
            self.check_protection();
            self.observe(now);
        }
        self.vip_timers(now);
        self.leaving_timers(now);
        if self.records.is_due(now) {
            for record in self.records.values_mut() {
                self.dirty |= record.wake(now);
            }
        }
        self.yielded_timers(now);
        self.look_around(now);
        self.write_card(now);
        self.stop_timer(now);
    }

    /// In `node` mode others act within a quarter of a second (failover-protocol.md R6).
    fn pause(&self) -> Duration {
        match self.ownership {
            Owners::Global(_) | Owners::Service(_) => PAUSE,
            Owners::Node(_) => NODE_PAUSE,
        }
    }

    /// Brings everything in line with the plan.
    fn reconcile(&mut self, now: Instant) {
        if matches!(self.stopping, Some(Stopping::Done)) {
            return;
        }
        if std::mem::take(&mut self.regroup) {
            self.screen();
            self.groups = groups(&self.services);
        }
        if self.synced {
            self.review(now);
            self.write_card(now);
            self.campaign();
        }
        if let (true, Some(network)) = (self.synced, &self.network) {
            let (leases, leases6) = (self.leases(), self.leases6());
            self.plan = plan::plan(&World {
                services: &self.services,
                ownership: &self.ownership,
                network,
                config: &self.config,
                leases: &leases,
                leases6: &leases6,
            });
            let plan = &self.plan;
            self.yielded.retain(|id, _| plan.vips.contains_key(id));
            self.given_back.retain(|uid, _| plan.vips.contains_key(&VipId::Dhcp(uid.clone())));
            self.end_yielding();
            self.withdraw_unplanned(now);
            self.protect();
            self.begin_planned(now);
            self.tell_problems(now);
            self.tell_refused(now);
            self.tell_traffic(now);
            self.sweep(now);
            self.update_records(now);
        }
        self.prepare_links(now);
        self.listen();
    }

    fn withdraw_unplanned(&mut self, now: Instant) {
        let gone: Vec<VipId> = self.vips.keys().filter(|id| !self.plan.vips.contains_key(*id)).cloned().collect();
        for id in gone {
            let keep_lease = matches!(&id, VipId::Dhcp(uid) | VipId::Dhcp6(uid) if self.plan.elsewhere.contains(uid));
            let members = &self.vips[&id].members;
            let theirs = |key| self.services.get(key).is_some_and(|view| self.ownership.of(view) == Owner::Theirs);
            let why = if keep_lease || members.iter().any(theirs) {
                "another node owns it"
            } else {
                "no Service wants it any more"
            };
            self.withdraw(now, &id, !keep_lease, why);
        }
    }

    fn begin_planned(&mut self, now: Instant) {
        let planned: Vec<VipId> = self.plan.vips.keys().cloned().collect();
        for id in planned {
            let vip = &self.plan.vips[&id];
            if !self.vips.contains_key(&id) {
                // While undecided nothing is begun: what a former life left is kept as it is (`keep_orphans`).
                if vip.owner != Owner::Mine
                    || self.yielded.get(&id).is_some_and(|yielded| *yielded != Yielded::Over)
                    || self.stopping.is_some()
                    || self.is_leaving(&id)
                {
                    continue;
                }
                self.vips.insert(id.clone(), Vip::new());
            }
            self.follow_plan(now, &id);
        }
    }

    /// The published facts of a VIP's Services: whether clients have been told of `address` before.
    fn was_in_use(&self, members: &[ServiceKey], address: IpAddr) -> bool {
        members
            .iter()
            .filter_map(|key| self.services.get(key))
            .any(|view| view.published.has(address) && view.published.vip_host.is_some())
    }

    fn is_confirmed(&self, members: &[ServiceKey]) -> bool {
        members.iter().filter_map(|key| self.services.get(key)).any(|view| self.ownership.confirmed(view))
    }
}

#[cfg(test)]
mod tests;
