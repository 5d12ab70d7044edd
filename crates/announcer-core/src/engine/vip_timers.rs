//! Timers of a VIP: probes before first use and in doubt, announcements.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use l2_types::Mac;

use super::carrier::Carrier;
use super::due::Timed;
use super::vip::{Announcing, BURST_MS, Phase, Vip};
use super::{Action, Engine, KernelOp, Owners};
use crate::frames::{PROBE_GAP, PROBES};
use crate::plan::VipId;
use crate::probes::Probes;
use crate::turns::addresses_per_turn;
use crate::view::ServiceKey;

/// How often the probe is repeated on an interface without a carrier, if no reading shows that the carrier is back.
pub(super) const NO_CARRIER: Duration = Duration::from_secs(1);

impl Engine {
    /// Runs the timers of all VIPs that are due.
    pub(super) fn vip_timers(&mut self, now: Instant) {
        if !self.vips.is_due(now) {
            return;
        }
        let due = self.vips.iter().filter(|(_, vip)| vip.deadline().is_some_and(|at| at <= now));
        for id in due.map(|(id, _)| id.clone()).collect::<Vec<_>>() {
            self.vip_timer(now, &id);
        }
    }

    /// Runs the timers of one VIP.
    pub(super) fn vip_timer(&mut self, now: Instant, id: &VipId) {
        self.probe_timer(now, id);
        self.announce_timer(now, id);
        let Some(vip) = self.vips.get_mut(id) else { return };
        if matches!(vip.phase, Phase::Blocked { until } if until <= now) {
            vip.phase = Phase::Idle;
            self.out.replan();
        }
        if vip.source.wake(now) {
            self.out.replan();
        }
        self.asking_timer(now, id);
    }

    fn probe_timer(&mut self, now: Instant, id: &VipId) {
        let Some(vip) = self.vips.get_mut(id) else { return };
        let Some(Carrier { link, mac, net }) = vip.carrier else { return };
        let (Phase::Probing(probes) | Phase::Up { doubt: Some(probes) }) = &mut vip.phase else { return };
        if probes.deadline() > now {
            return;
        }
        if probes.go_on(now) {
            // The MAC of a macvlan is the same on every node. A frame from it would make switches send clients' traffic
            // to this node. So the probe is sent with the MAC of the parent.
            let parent = vip.source.dhcp4().and(vip.place).and_then(|index| self.observer.network()?.link(index));
            let (link, mac) = parent.map_or((link, mac), |parent| (parent.index, parent.mac.unwrap_or(Mac::ZERO)));
            self.out.push(Action::Probe { link, mac, address: net.addr() });
            return;
        }
        if let Phase::Probing(probes) = &mut vip.phase {
            let link = self.observer.network().and_then(|network| network.link(link));
            if link.is_some_and(|link| !link.is_usable()) {
                // No host has received the probes. They start again when the carrier is back (`kernel.rs`).
                *probes = Probes::before_use(now + NO_CARRIER);
                return;
            }
            self.add(now, id);
        } else {
            self.end_doubt(now, id);
        }
    }

    /// Nobody has answered for an address that this node has. If a host claimed it while this process stood still, and
    /// the Lease does not confirm this node, that host's answers may have been lost.
    fn end_doubt(&mut self, now: Instant, id: &VipId) {
        let Some(vip) = self.vips.get_mut(id) else { return };
        vip.phase = Phase::Up { doubt: None };
        let (claimant, put) = (vip.claimed.take(), vip.put(now, self.config.fence()));
        let doubtful = matches!(self.ownership, Owners::Elected(_)) && !self.is_confirmed(&self.vips[id].members);
        if let Some(claimant) = claimant.filter(|_| doubtful) {
            self.concede_to(now, id, claimant);
        } else if let Some(put) = put {
            self.out.push(Action::Kernel(KernelOp::Put(vec![put])));
        }
    }

    /// The last probe for an address of this node could not be sent.
    pub(super) fn not_probed(&mut self, link: u32, address: IpAddr) {
        self.lease_not_probed(link, address);
        let Some(vip) = self.vip_on(link, address).and_then(|id| self.vips.get_mut(&id)) else { return };
        if let Phase::Probing(probes) | Phase::Up { doubt: Some(probes) } = &mut vip.phase {
            probes.not_sent();
        }
    }

    fn announce_timer(&mut self, now: Instant, id: &VipId) {
        let Some(vip) = self.vips.get_mut(id) else { return };
        let Some(Carrier { link, mac, net }) = vip.carrier else { return };
        if let Announcing::AwaitingStatus { until } = vip.announcing
            && until <= now
        {
            vip.announce_now(now);
        }
        let due = match vip.announcing {
            Announcing::Burst { begun, step } if begun + Duration::from_millis(BURST_MS[step]) <= now => {
                // Announcements that were missed during a pause of the process are skipped.
                let later =
                    (step + 1..BURST_MS.len()).find(|step| begun + Duration::from_millis(BURST_MS[*step]) > now);
                vip.announcing = match (later, self.config.announce_interval) {
                    (Some(step), _) => Announcing::Burst { begun, step },
                    (None, Some(interval)) => Announcing::Periodic { next: now + interval },
                    (None, None) => Announcing::Silent,
                };
                true
            }
            Announcing::Periodic { next } if next <= now => {
                let interval = self.config.announce_interval.unwrap_or(Duration::from_secs(3));
                vip.announcing = Announcing::Periodic { next: now + interval };
                true
            }
            _ => false,
        };
        if due && mac != Mac::ZERO {
            self.out.push(Action::Announce { link, mac, address: net.addr() });
        }
    }

    /// Announces the VIPs that came here since `silent`. A node that was silent since then is heard again, and so may
    /// be clients behind its switch, which have missed the announcements.
    pub(super) fn announce_since(&mut self, now: Instant, silent: Instant) {
        let owned = |key: &ServiceKey| self.ownership.announces(self.services.get(key));
        // A VIP that was handed over meanwhile is announced by its new owner, and one in doubt may have one.
        let settled = |vip: &Vip| matches!(vip.phase, Phase::Up { doubt: None }) && vip.members.iter().any(&owned);
        let came = self.vips.iter().filter(|(_, vip)| vip.up_since.is_some_and(|up| up >= silent) && settled(vip));
        for id in came.map(|(id, _)| id.clone()).collect::<Vec<_>>() {
            self.vips.get_mut(&id).into_iter().for_each(|vip| vip.announce_now(now));
            self.vip_timer(now, &id);
        }
    }

    /// Begins the probes before first use that are due. After a boot these may be of a thousand addresses, which are
    /// probed in turns, as after a pause.
    pub(super) fn probe_all(&mut self, now: Instant) {
        if !self.vips.is_touched() {
            return;
        }
        let begins = |vip: &mut Vip| vip.unsent_probes().is_some_and(|probes| probes.deadline() <= now);
        let due: Vec<VipId> = self.vips.iter_mut().filter_map(|(id, vip)| begins(vip).then(|| id.clone())).collect();
        let turn = addresses_per_turn(due.len());
        for (index, id) in due.iter().enumerate() {
            let wait = u32::try_from(index / turn).unwrap_or(u32::MAX) * PROBE_GAP * u32::from(PROBES);
            if let Some(probes) = self.vips.get_mut(id).and_then(Vip::unsent_probes).filter(|_| !wait.is_zero()) {
                *probes = Probes::before_use(now + wait);
            }
            self.vip_timer(now, id);
        }
    }

    /// After a pause, probes all VIPs: a new owner answers (decisions.md 25). Probes are broadcasts, so many addresses
    /// are probed in turns of 30 ms. The lifetime of an address is not extended before its turn is over.
    ///
    /// A VIP that is in doubt already does not start again. Its last probe is repeated, because another node may have
    /// taken it in this pause. A process that seldom gets the processor would otherwise never end a doubt, and the
    /// kernel would remove addresses for which nobody else answers.
    pub(super) fn doubt_all(&mut self, now: Instant) {
        let up = self.vips.values().filter(|vip| vip.is_up()).count();
        let at_once = addresses_per_turn(up);
        let mut begin = now;
        for (index, vip) in self.vips.values_mut().filter(|vip| vip.is_up()).enumerate() {
            if index > 0 && index % at_once == 0 {
                begin += PROBE_GAP * u32::from(PROBES);
            }
            vip.doubt(begin);
        }
        // A host that answers for an address which was given up may hold its Lease by now. In `node` mode the count
        // tells what waits for the word of the controller.
        if matches!(self.ownership, Owners::Elected(_)) {
            self.vips.values_mut().filter(|vip| !vip.is_up()).for_each(|vip| vip.conflicts = 0);
        }
    }
}
