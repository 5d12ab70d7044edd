//! The life of one VIP: probe, add, announce, withdraw. `defence.rs` handles what other hosts say about it,
//! `vip_timers.rs` its timers.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use l2_types::{Address, Link, Mac};

use super::carrier::Carrier;
use super::dhcp_state::Source;
use super::due::Timed;
use super::{Engine, Put, VipStatus};
use crate::network::Network;
use crate::plan::VipId;
use crate::probes::Probes;
use crate::reason::Reason;
use crate::screen::somebodys;
use crate::view::{ServiceKey, is_on_record};

/// Times in ms of the announcements after the start of a burst (fail-over spec 1.5). The last one is for
/// receivers that were busy.
pub(super) const BURST_MS: [u64; 5] = [0, 20, 60, 150, 500];
/// How long an address that another host uses is left alone. It differs between nodes, so that two nodes which met once
/// do not meet again.
pub(super) const CONFLICT_RETRY: Duration = Duration::from_secs(10);
pub(super) const FAILED_RETRY: Duration = Duration::from_secs(5);
/// Limit of the wait of the first announcement for the status (decisions.md 21). kube-proxy has no rules for an address
/// that is not in the status yet, so the node would refuse clients. The wait is limited because the API may be down.
pub(super) const STATUS_WAIT: Duration = Duration::from_secs(1);

/// Progress of an address that is being added to an interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Adding {
    /// The request to the kernel is sent at the end of the step.
    Due,
    /// The request is sent when the rules of service security for the address are set.
    AwaitsRules,
    /// The request was sent.
    Asked,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// The VIP waits for an interface or a lease.
    Idle,
    /// The VIP is probed: does another host use the address?
    Probing(Probes),
    /// The address is being added to the interface.
    Adding(Adding),
    /// The address is on the interface. In doubt (after a pause of this process, or when the Lease of a contested
    /// address is in doubt) it is probed again, and not extended meanwhile.
    Up { doubt: Option<Probes> },
    /// Another host uses the address, or the kernel has refused it.
    Blocked { until: Instant },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Announcing {
    Silent,
    AwaitingStatus { until: Instant },
    Burst { begun: Instant, step: usize },
    Periodic { next: Instant },
}

/// What was heard from the MAC of a lease that is up on this node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DuplicateMac {
    /// A member of the cluster has sent a claim.
    Member(Instant),
    /// A host has announced an address.
    Heard(Instant),
}

/// One VIP of this node.
#[derive(Debug)]
pub(super) struct Vip {
    pub members: Vec<ServiceKey>,
    /// The interface that the plan chose; for DHCP the macvlan's parent.
    pub place: Option<u32>,
    pub carrier: Option<Carrier>,
    pub phase: Phase,
    /// Since when it is up; if it is not, when it was last set up.
    pub up_since: Option<Instant>,
    pub announcing: Announcing,
    pub source: Source,
    pub defended: Option<Instant>,
    /// The host that claimed the address while this process stood still.
    pub claimed: Option<Mac>,
    /// When another host last claimed the address against this node.
    pub contested: Option<Instant>,
    /// How often another host was found to use it since it was last up.
    pub conflicts: u32,
    /// How often in a row the kernel has refused its address or its macvlan.
    pub refusals: u32,
    /// Another sender with the MAC of its lease.
    pub duplicate_mac: Option<DuplicateMac>,
    /// Readings of the network up to this number do not show the address yet.
    pub seen_from: u64,
}

impl Vip {
    pub fn new(source: Source) -> Self {
        Self {
            members: Vec::new(),
            place: None,
            carrier: None,
            phase: Phase::Idle,
            up_since: None,
            announcing: Announcing::Silent,
            source,
            defended: None,
            claimed: None,
            contested: None,
            conflicts: 0,
            refusals: 0,
            duplicate_mac: None,
            seen_from: 0,
        }
    }

    /// Takes the VIP off its interface, in this state only.
    pub fn put_down(&mut self) {
        self.carrier = None;
        self.phase = Phase::Idle;
        self.announcing = Announcing::Silent;
    }

    pub fn is_up(&self) -> bool {
        matches!(self.phase, Phase::Up { .. })
    }

    /// The address that clients use, once it is known.
    pub fn address(&self) -> Option<IpAddr> {
        self.carrier.map(|carrier| carrier.net.addr())
    }

    /// The request that keeps the address in the kernel; `None` if it should not be there.
    pub fn put(&self, now: Instant, fence: Duration) -> Option<Put> {
        let carrier = self.carrier?;
        if !matches!(self.phase, Phase::Adding(_) | Phase::Up { doubt: None }) {
            return None;
        }
        let valid = match self.source.expires().map(|expires| expires.saturating_duration_since(now)) {
            // The kernel counts whole seconds, at least one, so a lease that ends before counts as ended.
            Some(left) if left < Duration::from_secs(1) => return None,
            Some(left) => left.min(fence),
            None => fence,
        };
        Some(Put { link: carrier.link, net: carrier.net, valid, until: self.noted_end() })
    }

    /// End of a DHCPv6 lease, noted on the address for a next process that cannot reach the API.
    fn noted_end(&self) -> Option<Instant> {
        self.source.dhcp6()?.lease.granted.as_ref()?.expires
    }

    /// Starts a burst of announcements.
    pub fn announce_now(&mut self, now: Instant) {
        if self.is_up() {
            self.announcing = Announcing::Burst { begun: now, step: 0 };
        }
    }

    /// Asks the network from `begin` on whether another host uses the address. If it is being asked already, the last
    /// question is repeated, because its answer may be older than this doubt.
    pub fn doubt(&mut self, begin: Instant) {
        match &mut self.phase {
            Phase::Up { doubt: Some(probes) } => probes.repeat_last(),
            Phase::Up { doubt } => *doubt = Some(Probes::in_doubt(begin)),
            _ => {}
        }
    }

    /// The status is written, so an announcement that waited for it may start.
    pub fn status_written(&mut self, now: Instant) {
        if matches!(self.announcing, Announcing::AwaitingStatus { .. }) {
            self.announce_now(now);
        }
    }

    /// The probes before its first use of an address, none of which was sent yet.
    pub fn unsent_probes(&mut self) -> Option<&mut Probes> {
        let probes = match &mut self.phase {
            Phase::Probing(probes) => Some(probes),
            _ => self.source.probes(),
        };
        probes.filter(|probes| probes.are_unsent())
    }

    pub fn status(&self, id: &VipId) -> VipStatus {
        VipStatus {
            id: id.clone(),
            address: self.address(),
            service: self.members.first().cloned(),
            up: self.is_up(),
            dhcp_state: self.source.client().map(|client| client.state),
            expires: self.source.expires(),
        }
    }
}

impl Timed for Vip {
    fn deadline(&self) -> Option<Instant> {
        let phase = match self.phase {
            Phase::Probing(probes) | Phase::Up { doubt: Some(probes) } => Some(probes.deadline()),
            Phase::Blocked { until } => Some(until),
            Phase::Idle | Phase::Adding(_) | Phase::Up { doubt: None } => None,
        };
        let announcing = match self.announcing {
            Announcing::Silent => None,
            Announcing::AwaitingStatus { until } => Some(until),
            Announcing::Burst { begun, step } => Some(begun + Duration::from_millis(BURST_MS[step])),
            Announcing::Periodic { next } => Some(next),
        };
        [phase, announcing, self.source.deadline()].into_iter().flatten().min()
    }
}

impl Engine {
    /// Applies the plan to one VIP.
    pub(super) fn follow_plan(&mut self, now: Instant, id: &VipId) {
        let (Some(planned), Some(vip)) = (self.plan.vips.get(id), self.vips.get_mut(id)) else { return };
        vip.members.clone_from(&planned.members);
        let (place, wishes) = (planned.place.as_ref().ok().copied(), planned.dhcp.clone());
        match id {
            VipId::Static(address) => self.place_static(now, id, *address, place),
            VipId::Dhcp(uid) => self.place_dhcp(now, uid, place, wishes),
            VipId::Dhcp6(uid) => self.place_dhcp6(now, uid, place, wishes),
        }
        // A leased address that the kernel has refused is tried again after its pause, not with the next renewal of the
        // lease, which may be hours later.
        if let Some(vip) = self.vips.get(id).filter(|_| id.is_dhcp()) {
            self.carry(now, id, vip.carrier);
        }
    }

    fn place_static(&mut self, now: Instant, id: &VipId, address: IpAddr, place: Option<u32>) {
        let Some(network) = self.observer.network() else { return };
        let link = place.and_then(|index| network.link(index));
        let carrier = link.map(|link| Carrier {
            link: link.index,
            // An interface without an Ethernet address cannot ask or announce; the address still works through routes.
            mac: link.mac.unwrap_or(Mac::ZERO),
            net: network.prefix(&self.config, link, address),
        });
        if let Some(vip) = self.vips.get_mut(id) {
            vip.place = place;
        }
        self.carry(now, id, carrier);
    }

    /// Moves the address to `carrier` and removes it from where it was.
    pub(super) fn carry(&mut self, now: Instant, id: &VipId, carrier: Option<Carrier>) {
        let Some(vip) = self.vips.get_mut(id) else { return };
        let old = vip.carrier;
        if old == carrier {
            if vip.phase == Phase::Idle && carrier.is_some() {
                self.begin(now, id);
            }
            return;
        }
        let was_ours = matches!(vip.phase, Phase::Adding(_) | Phase::Up { .. });
        vip.carrier = carrier;
        vip.announcing = Announcing::Silent;
        vip.phase = Phase::Idle;
        if let Some(old) = old.filter(|old| carrier.is_none_or(|new| (new.link, new.net) != (old.link, old.net)))
            && was_ours
        {
            self.remove_address(old.link, old.net);
        }
        if let Some(old) = old {
            self.unclaim(id, old.net.addr());
        }
        let moved = was_ours && old.zip(carrier).is_some_and(|(old, new)| old.net.addr() == new.net.addr());
        match carrier {
            // The address only changes its interface, so no other host has had the time to take it.
            Some(_) if moved => self.add(now, id),
            Some(_) => self.begin(now, id),
            None => {}
        }
    }

    /// Starts a VIP. An address that is used for the first time is probed. An address that clients know is taken over
    /// without a probe: the former owner may still answer, and concedes to our claim. An address that is already on the
    /// interface was set by an earlier process or by kube-vip, and is adopted. If this cluster may be a copy, clients
    /// know the address from the original, so it is probed.
    fn begin(&mut self, now: Instant, id: &VipId) {
        if self.refuse_own_address(now, id) {
            return;
        }
        let Some(vip) = self.vips.get(id) else { return };
        let Some(carrier) = vip.carrier else { return };
        let adopted = self.is_found(carrier);
        let address = carrier.net.addr();
        // The lease may have come late. Each plan tries again.
        if id.is_dhcp() && !adopted && !self.may_go_up(id, address) {
            return;
        }
        // The lease of another Service, which had it, is lost.
        let given_away = self.dhcp.may_be_given_away(address);
        let known = self.services.was_in_use(&vip.members, address) && !given_away;
        // The VIP was given up for a claim. As long as the claimant answers, this node must not take it.
        let conceded = self.conceded.contains(id);
        let goes_up = match id {
            VipId::Static(_) => (adopted || (known && !self.asks_first(now, &vip.members))) && !conceded,
            // Asked about before its macvlan was made, or by the DHCP client (`dhcp/asking.rs`).
            VipId::Dhcp(_) => true,
            // The DHCP client has probed what it was given, and not what it goes on with.
            VipId::Dhcp6(_) => adopted || !known || !self.asks_first(now, &vip.members),
        };
        if goes_up || carrier.mac == Mac::ZERO {
            self.add(now, id);
        } else {
            self.set_phase(id, Phase::Probing(Probes::before_use(now)));
        }
    }

    /// Whether an earlier process or kube-vip has left the address on that interface.
    pub(super) fn is_found(&self, carrier: Carrier) -> bool {
        let Some(network) = self.observer.network() else { return false };
        let mut there =
            network.addresses.iter().filter(|found| (found.interface, found.net) == (carrier.link, carrier.net));
        there.any(|found| self.is_left_over(network, found) && !self.observer.is_removed(found))
    }

    /// Whether `found` is certainly a VIP that an earlier process or kube-vip has left.
    pub(super) fn is_left_over(&self, network: &Network, found: &Address) -> bool {
        let on_record = |address| is_on_record(&self.services, &self.config.node_name, address);
        network.is_left_over(found, on_record)
            || self.node_mode.left.has(found)
            || network.is_ours_without_mark(found, self.config.fence())
    }

    /// The interface of this node that has `address` for another purpose: the node's own, a control plane's VIP,
    /// another daemon's.
    pub(super) fn own_interface_of(&self, address: IpAddr) -> Option<(&Address, &Link)> {
        let network = self.observer.network()?;
        network.own_interface(address, |found| self.observer.is_removed(found) || self.is_left_over(network, found))
    }

    /// Refuses an address that is on this node and is not certainly ours, because another program uses it. As a VIP it
    /// would get a lifetime, and would be removed with the Service.
    fn refuse_own_address(&mut self, now: Instant, id: &VipId) -> bool {
        let Some(carrier) = self.vips[id].carrier else { return false };
        let address = carrier.net.addr();
        let Some((net, interface)) = self.own_interface_of(address).map(|(own, link)| (own.net, link.name.clone()))
        else {
            return false;
        };
        if let Some(vip) = self.vips.get_mut(id) {
            vip.phase = Phase::Blocked { until: now + CONFLICT_RETRY };
            vip.announcing = Announcing::Silent;
        }
        let text = somebodys(net, &interface, &self.config.node_name);
        tracing::debug!(%address, interface, "the announcer refuses to announce an address that the node itself has");
        self.tell_members(now, id, Reason::CannotAnnounce, &text);
        true
    }

    pub(super) fn add(&mut self, now: Instant, id: &VipId) {
        if self.refuse_own_address(now, id) {
            return;
        }
        self.set_phase(id, Phase::Adding(Adding::Due));
    }

    fn set_phase(&mut self, id: &VipId, phase: Phase) {
        if let Some(vip) = self.vips.get_mut(id) {
            vip.phase = phase;
        }
    }

    /// Takes a VIP off the node.
    pub(super) fn withdraw(&mut self, now: Instant, id: &VipId, release: bool, why: &str) {
        if let Some(address) = self.vips.get(id).and_then(Vip::address) {
            tracing::info!(%address, why, "the announcer removed the VIP from this node");
            self.unclaim(id, address);
        }
        let Some(vip) = self.vips.remove(id) else { return };
        let goes_with_macvlan = self.leave_dhcp(now, id, &vip.source, release);
        let Some(carrier) = vip.carrier.filter(|_| !goes_with_macvlan) else { return };
        let stands = match vip.phase {
            Phase::Adding(_) | Phase::Up { .. } => true,
            // The kernel has refused to extend it, and keeps it until its deadline.
            Phase::Blocked { .. } => self.is_found(carrier),
            Phase::Idle | Phase::Probing(_) => false,
        };
        if stands {
            self.remove_address(carrier.link, carrier.net);
        }
    }
}
