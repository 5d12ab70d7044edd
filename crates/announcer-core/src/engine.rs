//! The engine: inputs go in, actions come out. No I/O, no clock, no await, so that tests and the simulation run it as a
//! node does.
//!
//! It keeps one small machine per VIP (`vip.rs`) in step with the plan (`plan.rs`), extends the lifetime of its
//! addresses, and removes addresses that do not belong here (`sweep.rs`). It decides what is written on each Service
//! (`records.rs`) and how the process ends (`stop.rs`).

mod adding;
mod carrier;
mod defence;
mod dhcp;
mod dhcp6;
mod dhcp_events;
mod dhcp_history;
mod dhcp_state;
mod due;
mod duplicate_mac;
mod elections;
mod io;
mod kernel;
mod lease;
mod links;
mod node_mode;
mod observer;
mod outbox;
mod protect;
mod recording;
mod records;
mod refresh;
mod screening;
mod services;
mod stop;
mod sweep;
mod tell;
mod traffic;
mod vip;
mod vip_timers;

use std::time::{Duration, Instant};

use defence::ConcededVips;
use dhcp_history::DhcpHistory;
use due::Due;
pub use io::{
    Action, ClientEvent, ClientStart, Dhcp6Start, DhcpEvent, DhcpStart, Input, KernelDone, KernelOp, Leased,
    LostLeases, Observations, Put, Record, Recorded, Resumed, ServiceEvent, VipStatus,
};
use links::Interfaces;
use node_mode::NodeMode;
use observer::Observer;
use outbox::Outbox;
use protect::Rules;
use records::Records;
pub use refresh::REFRESH;
use refresh::Refresh;
use services::Services;
use stop::Shutdown;
use vip::{Phase, Vip};

use crate::config::Config;
use crate::frames::Heard;
use crate::ownership::{LeaseState, Owner, Owners, Ownership};
use crate::pace::Pace;
use crate::plan::{self, Plan, VipId, World};
use crate::view::ServiceKey;

/// A refresh this late means that the process or the machine was paused. Another node may have taken VIPs meanwhile
/// (fail-over spec R6).
const PAUSE: Duration = Duration::from_secs(2);
/// The same in `node` mode, where other nodes act within a quarter of a second.
const NODE_PAUSE: Duration = Duration::from_millis(250);

/// Settings on the node for its VIPs, beside the addresses.
#[derive(Default)]
struct HostSettings {
    interfaces: Interfaces,
    rules: Rules,
}

/// One node's announcer, as a state machine made of smaller ones. It defines the order in which they act.
pub struct Engine {
    config: Config,
    ownership: Owners,
    services: Services,
    plan: Plan,
    vips: Due<VipId, Vip>,
    /// VIPs given up because another host claimed them while our own record was in doubt.
    conceded: ConcededVips,
    dhcp: DhcpHistory,
    observer: Observer,
    refresh: Refresh,
    settings: HostSettings,
    node_mode: NodeMode,
    records: Records,
    shutdown: Shutdown,
    pace: Pace,
    out: Outbox,
}

impl Engine {
    /// Starts without any knowledge. The first poll asks for the network.
    pub fn new(now: Instant, config: Config) -> Self {
        let mut out = Outbox::default();
        out.replan();
        Self {
            ownership: Owners::new(&config),
            services: Services::new(config.controller),
            plan: Plan::default(),
            vips: Due::default(),
            conceded: ConcededVips::default(),
            dhcp: DhcpHistory::default(),
            observer: Observer::new(now),
            refresh: Refresh::new(now),
            settings: HostSettings::default(),
            node_mode: NodeMode::new(now, &config),
            records: Records::default(),
            shutdown: Shutdown::default(),
            pace: Pace::new(now),
            out,
            config,
        }
    }

    /// Takes in what happened at `now`; judges no timer. The caller handles all waiting inputs before [`Engine::poll`]:
    /// received frames count before any time-out (fail-over spec R1), and a thousand Services that change
    /// together are planned once.
    pub fn handle(&mut self, now: Instant, input: Input) -> Vec<Action> {
        self.take(now, input);
        self.out.take()
    }

    /// Returns the actions that are due at `now`. While more inputs wait (`more`) or an expensive plan was made a
    /// moment ago, only the detector and the claims run, because they cannot wait for a plan.
    pub fn poll(&mut self, now: Instant, more: bool) -> Vec<Action> {
        if self.out.is_urgent() || self.pace.is_due(now, more) {
            self.pace.begin(now);
            self.timers(now);
            self.settle(now);
        } else if self.node_mode.deadline().is_some_and(|at| at <= now) {
            self.node_mode_timers(now);
        }
        self.out.take()
    }

    /// When to poll next if no input comes before. `now` is the time after the actions of the last poll were performed:
    /// the rest before the next plan is proportional to the cost of the last one.
    pub fn wake_at(&mut self, now: Instant) -> Instant {
        let passed = self.pace.end(now);
        if self.out.is_urgent() {
            return now;
        }
        let next = if passed { self.deadline().max(self.pace.next()) } else { self.pace.next() };
        self.node_mode.deadline().map_or(next, |question| next.min(question))
    }

    /// Test helper: handles an input, if there is one, and polls without waiting.
    #[cfg(test)]
    fn step(&mut self, now: Instant, input: impl Into<Option<Input>>) -> Vec<Action> {
        let mut actions: Vec<Action> = input.into().into_iter().flat_map(|input| self.handle(now, input)).collect();
        actions.extend(self.poll(now, false));
        actions
    }

    fn settle(&mut self, now: Instant) {
        if self.out.take_replan() {
            self.reconcile(now);
            self.finish_hand_over(now);
        }
        self.probe_all(now);
        self.add_all(now);
        self.vips.settle();
        self.records.settle();
    }

    fn take(&mut self, now: Instant, input: Input) {
        match input {
            Input::Seen { key, cluster_ips, macvlan } => {
                self.services.set_macvlan_of_others(&key, macvlan);
                let concerned = self.services.set_cluster_ips(&key, cluster_ips);
                self.out.replan_if(concerned);
            }
            // Most Services of a cluster are not this announcer's, and change nothing here.
            Input::Service(key, None) | Input::Missing(key) if !self.services.contains_key(&key) => {}
            Input::Missing(key) => self.service_missing(now, &key),
            Input::Service(key, view) => self.service_changed(now, &key, view.map(|view| *view)),
            Input::Endpoints(key, nodes) => {
                let changed = self.services.set_endpoints(key, nodes);
                self.out.replan_if(changed);
            }
            Input::Synced => {
                self.services.set_listed();
                self.out.replan();
            }
            Input::Lease(state) => self.lease_changed(now, None, &state),
            Input::ServiceLease(key, state) => self.lease_changed(now, Some(key), &state),
            Input::Member(node, member) => {
                if self.cluster().is_some_and(|cluster| cluster.member(now, node, member)) {
                    self.out.replan();
                    self.note_forbidden();
                }
            }
            Input::ApiServers(servers) => {
                self.tell_cluster(|cluster| cluster.facts.api_servers = servers);
                self.note_forbidden();
            }
            Input::MembersSynced => self.members_synced(now),
            Input::Node(name, facts) => self.tell_cluster(|cluster| cluster.facts.node(now, name, facts)),
            Input::NodesSynced { readable } => self.tell_cluster(|cluster| cluster.facts.nodes_synced(readable)),
            Input::Foreign(lock) => self.tell_cluster(|cluster| cluster.facts.foreign(now, lock)),
            Input::SafeMode(yes) => self.safe_mode(now, yes),
            Input::ClaimKeys(secrets) => self.claim_keys(now, secrets),
            Input::KubeProxy(healthy) => self.kube_proxy(healthy),
            Input::Kubelet { node, answers } => self.kubelet(now, &node, answers),
            Input::Probed(finding) => self.probed(&finding),
            Input::Swapped(key, asked, swapped) => self.swapped(now, &key, &asked, swapped),
            Input::NetworkChanged => self.observe(now),
            Input::Kernel(done) => self.kernel_done(now, done),
            Input::Heard(frame) => {
                self.note_frame(now, &frame);
                self.judge_frame(now, &frame);
            }
            Input::NotSent(ask) => self.not_sent(&ask),
            Input::Dhcp(uid, generation, event) => self.dhcp_event(now, &uid, generation, event),
            Input::Recorded(key, recorded) => self.recorded(now, &key, &recorded),
            Input::Stop => self.stop(now),
            Input::Released(released) => self.released(now, released),
            Input::Successor(node) => self.successor(now, &node),
        }
    }

    fn deadline(&self) -> Instant {
        let machines = [
            self.dhcp.deadline(),
            self.vips.first(),
            self.records.deadline(),
            self.conceded.deadline(),
            self.shutdown.deadline(),
            self.observer.deadline(),
            self.node_mode_deadline(),
        ];
        machines.into_iter().flatten().fold(self.refresh.deadline(), Instant::min)
    }

    /// The state of all VIPs of this node.
    pub fn status(&self) -> Vec<VipStatus> {
        self.vips.iter().map(|(id, vip)| vip.status(id)).collect()
    }

    /// Counters since the start, for metrics.
    pub fn observations(&self) -> Observations {
        let (unprotected, fallen) = (self.settings.rules.are_refused(), self.refresh.fallen());
        let mut counted = Observations { unprotected, fallen, ..Observations::default() };
        self.node_mode.count(&mut counted);
        counted
    }

    /// What has to be read before anything can be decided: the Services, the source of ownership, and in `node` mode
    /// the health of kube-proxy. `None` if nothing is missing.
    pub fn unknown(&self) -> Option<&'static str> {
        if self.services.are_listed() { self.ownership.unknown().or(self.unknown_here()) } else { Some("the Services") }
    }

    /// The last state of the election, in `global` mode.
    pub fn lease(&self) -> &LeaseState {
        match &self.ownership {
            Owners::Elected(leases) => leases.for_all().map_or(&LeaseState::Unknown, |key| leases.state(key)),
            Owners::Node(_) => &LeaseState::Unknown,
        }
    }

    fn timers(&mut self, now: Instant) {
        if let Some(late) = self.refresh.take_due(now) {
            self.each_second(now, late);
        }
        if self.observer.is_due(now) {
            // Another program may have flushed our rules.
            self.out.extend(self.settings.rules.ask());
            self.observe(now);
        }
        self.vip_timers(now);
        self.leaving_timers(now);
        let due = self.records.take_due(now) | self.conceded.take_due(now);
        self.out.replan_if(due);
        self.node_mode_timers(now);
        self.renew_card(now);
        self.stop_timer(now);
    }

    fn each_second(&mut self, now: Instant, late: Duration) {
        if late > self.pause() && self.observer.network().is_some() {
            tracing::warn!(
                late_ms = late.as_millis(),
                "the announcer did not run for a while; it asks the network whether another host uses its addresses now"
            );
            self.doubt_all(now);
            self.observer.stood_still();
        }
        self.refresh(now);
        self.out.extend(self.settings.interfaces.listen_again());
        self.tell_stuck(now);
        self.give_back_kept(now);
        self.tell_ungranted(now);
        self.out.forget_told(now);
        if self.observer.is_stale() {
            self.observe(now);
        }
    }

    /// In `node` mode other nodes act within a quarter of a second (fail-over spec R6).
    fn pause(&self) -> Duration {
        match self.ownership {
            Owners::Elected(_) => PAUSE,
            Owners::Node(_) => NODE_PAUSE,
        }
    }

    /// Brings the VIPs, records, rules and sockets in line with the plan.
    fn reconcile(&mut self, now: Instant) {
        if self.shutdown.is_done() {
            return;
        }
        self.services.settle();
        if self.services.are_listed() {
            self.review(now);
            self.write_card(now);
        }
        self.campaign(now);
        if self.services.are_listed() && self.observer.network().is_some() {
            self.plan();
            self.end_conceding();
            self.dhcp.follow(&self.plan, &self.services);
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

    fn plan(&mut self) {
        let Some(network) = self.observer.network() else { return };
        let leases = self.leases();
        self.plan = plan::plan(&World {
            services: &self.services,
            ownership: &self.ownership,
            network,
            config: &self.config,
            leases: &leases,
        });
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
            self.withdraw(now, &id, !keep_lease && !self.dhcp.is_missing(&id), why);
        }
        self.dhcp.keep_missing(self.vips.keys());
    }

    fn begin_planned(&mut self, now: Instant) {
        let planned: Vec<(VipId, Owner)> = self.plan.vips.iter().map(|(id, vip)| (id.clone(), vip.owner)).collect();
        for (id, owner) in planned {
            if !self.vips.contains_key(&id) {
                // Nothing is started while the owner is undecided; what an earlier process left is kept as it is
                // (`keep_orphans`).
                let waits = owner != Owner::Mine
                    || self.conceded.blocks(&id)
                    || self.dhcp.is_leaving(&id)
                    || !self.may_start(&id);
                if waits || self.shutdown.has_begun() {
                    continue;
                }
                let source = self.source_of(&id);
                self.vips.insert(id.clone(), Vip::new(source));
            }
            self.follow_plan(now, &id);
        }
    }

    fn is_confirmed(&self, members: &[ServiceKey]) -> bool {
        members.iter().filter_map(|key| self.services.get(key)).any(|view| self.ownership.confirmed(view))
    }
}

#[cfg(test)]
mod tests;
