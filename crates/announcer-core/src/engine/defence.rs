//! What others say about an address of ours: conflicts, defence, and giving way.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use l2_types::Mac;

use super::vip::{Announcing, CONFLICT_RETRY, Phase};
use super::{Action, Engine, Heard};
use crate::frames::Frame;
use crate::plan::VipId;
use crate::reason::Reason;
use crate::view::Uid;

/// RFC 5227 2.4: defend, but not more often than this.
const DEFEND_INTERVAL: Duration = Duration::from_secs(10);

/// A Lease is read after this many retry periods at the latest (client-go's jitter).
const RETRY_PERIODS: f64 = 2.2;

/// How long a VIP that was given up is left alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Yielded {
    /// Whoever claimed it has this long to be read of.
    Until(Instant),
    /// Until our own record is known to stand.
    Unconfirmed,
    /// It may be taken up again; until it is up its first step is a probe.
    Over,
}

impl Yielded {
    pub fn deadline(self) -> Option<Instant> {
        match self {
            Self::Until(until) => Some(until),
            Self::Unconfirmed | Self::Over => None,
        }
    }

    /// The record is known to stand.
    pub fn cut_short(&mut self, now: Instant) {
        if let Self::Until(until) = self {
            *until = now.min(*until);
        }
    }
}

impl Engine {
    /// How long any announcer takes to read a Lease that has changed, at most.
    pub(super) fn longest_retry(&self) -> Duration {
        self.config.lease.retry_period.mul_f64(RETRY_PERIODS)
    }

    /// Somebody spoke about an address.
    pub(super) fn heard(&mut self, now: Instant, frame: &Frame) {
        let Frame { link, address, mac, what, .. } = *frame;
        let Some(id) = self.vip_on(link, address) else {
            if what == Heard::Claim {
                self.orphan_claimed(link, address, mac);
                self.judge_claim_of_lease(now, frame);
            }
            return;
        };
        if self.judge_claim(now, &id, frame) {
            return;
        }
        let vip = &self.vips[&id];
        let carrier = vip.carrier.expect("it was found by it");
        let confirmed = self.is_confirmed(&vip.members);
        // A DHCP address has the same MAC on every node. Our own frames are not heard, but some switches send them
        // back: such an echo must not disturb an owner whose record stands.
        if mac == carrier.mac && (carrier.link == link || confirmed) {
            return;
        }
        match vip.phase {
            // A node of ours asks whether the owner that it watches is there (`detect`): it does not want the address.
            Phase::Probing(_) if what == Heard::Probe && (frame.to_us || self.is_peer(mac)) => {}
            // A former owner who does not know yet that the record says us: he hears our claims once it is up. As where
            // clients know the address already, and nobody is asked before, an API out of sight changes nothing.
            Phase::Probing(_) if self.is_peer(mac) && !self.yielded.contains_key(&id) => {}
            Phase::Probing(_) => self.conflict(now, &id, mac),
            Phase::Up { doubt: Some(_) } if what != Heard::Probe => {
                self.yield_to(now, &id, mac);
            }
            Phase::Up { .. } | Phase::Adding if what == Heard::Claim => {
                if self.stopping.is_some() || !confirmed {
                    self.yield_to(now, &id, mac);
                } else if !self.is_peer(mac) {
                    // A node of ours goes by a newer record, which is being read, or withdraws by itself: an announcement
                    // of ours would only lead clients back to the wrong one.
                    self.defend(now, &id, mac);
                }
            }
            _ => {}
        }
    }

    /// The VIP that has this address, seen from this interface. Of the leased ones only their carriers tell; a given one,
    /// and there may be hundreds, is looked up.
    fn vip_on(&self, link: u32, address: IpAddr) -> Option<VipId> {
        let given = self.vips.get_key_value(&VipId::Static(address));
        let leased = self.vips.range(VipId::Dhcp(Uid::default())..);
        let mut there = given.into_iter().chain(leased).filter(|(_, vip)| {
            vip.carrier.is_some_and(|carrier| {
                carrier.net.addr() == address && (carrier.link == link || vip.place == Some(link))
            })
        });
        there.next().map(|(id, _)| id.clone())
    }

    fn conflict(&mut self, now: Instant, id: &VipId, mac: Mac) {
        let (given_up, longest_retry) = (self.yielded.contains_key(id), self.longest_retry());
        let peer = self.is_peer(mac);
        let vip = self.vips.get_mut(id).expect("it is there");
        let carrier = vip.carrier.expect("only a carried address is probed");
        vip.conflicts += 1;
        if peer || (given_up && vip.conflicts == 1) {
            // Most probably a node that believed to hold the Lease: it reads within this that it does not. Of a node of
            // ours the record tells whose it is, once we see it again: that is no mistake of any user.
            vip.phase = Phase::Blocked { until: now + longest_retry };
            tracing::warn!(address = %carrier.net.addr(), %mac, "somebody still answers for an address that is not ours for certain");
            self.dirty = true;
            return;
        }
        let retry = CONFLICT_RETRY + Duration::from_millis(10) * u32::from(carrier.mac.octets()[5]);
        vip.phase = Phase::Blocked { until: now + retry };
        let link =
            self.network.as_ref().and_then(|network| network.link(carrier.link)).map_or("?", |link| link.name.as_str());
        let text = format!(
            "address {} is already used by {mac} on the network of interface {link}: it is not announced. Free it there, or give this Service another one; tried again every {} s",
            carrier.net.addr(),
            retry.as_secs()
        );
        tracing::warn!(address = %carrier.net.addr(), %mac, "address conflict");
        self.tell_members(now, id, Reason::AddressConflict, &text);
        self.dirty = true;
    }

    fn defend(&mut self, now: Instant, id: &VipId, mac: Mac) {
        let vip = self.vips.get_mut(id).expect("it is there");
        let carrier = vip.carrier.expect("only a carried address is defended");
        // After a pause: somebody else has the address by now, and ours goes as soon as the timers are judged.
        let is_over = vip.lease_expires().is_some_and(|end| end <= now);
        if is_over
            || matches!(vip.announcing, Announcing::Burst { .. })
            || vip.defended.is_some_and(|at| now < at + DEFEND_INTERVAL)
        {
            return;
        }
        vip.defended = Some(now);
        let text = format!(
            "{mac} claims address {} too: two hosts answer for it. This node owns it and defends it",
            carrier.net.addr()
        );
        tracing::warn!(address = %carrier.net.addr(), %mac, "somebody else claims the address, defending it");
        self.out.push(Action::Announce { link: carrier.link, mac: carrier.mac, address: carrier.net.addr() });
        self.tell_members(now, id, Reason::AddressConflict, &text);
    }

    /// decisions.md 18: withdraw first, ask later. It is taken up again when the Lease is known to be ours.
    pub(super) fn yield_to(&mut self, now: Instant, id: &VipId, mac: Mac) {
        if self.stopping.is_some() {
            tracing::info!(vip = %id, %mac, "the successor announces the address: withdrawing it");
            self.claimed_by_successor(now);
        } else {
            tracing::warn!(vip = %id, %mac, "somebody else announces the address and our record is in doubt: withdrawing it");
        }
        self.withdraw(now, id, false, "another node announces it");
        self.yielded.insert(id.clone(), Yielded::Until(now + self.config.lease.duration));
        self.dirty = true;
    }

    /// What is due is seen to also where nothing is reconciled any more: it would stay due.
    pub(super) fn yielded_timers(&mut self, now: Instant) {
        for yielded in self.yielded.values_mut() {
            if yielded.deadline().is_some_and(|until| until <= now) {
                *yielded = Yielded::Unconfirmed;
                self.dirty = true;
            }
        }
    }

    /// decisions.md 18: a node that cannot reach the API does not know who owns what it gave up. Time alone gives
    /// nothing back: it would take the address from its new owner again and again.
    pub(super) fn end_yielding(&mut self) {
        let confirmed = |id: &VipId| self.plan.vips.get(id).is_some_and(|planned| self.is_confirmed(&planned.members));
        let waiting = self.yielded.iter().filter(|(_, yielded)| **yielded == Yielded::Unconfirmed);
        let over: Vec<VipId> = waiting.map(|(id, _)| id).filter(|id| confirmed(id)).cloned().collect();
        self.yielded.extend(over.into_iter().map(|id| (id, Yielded::Over)));
    }
}
