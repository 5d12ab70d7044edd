//! Reactions to what other hosts say about a VIP of this node: conflicts, defence, and conceding.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use l2_types::Mac;

use super::vip::{Announcing, CONFLICT_RETRY, Phase, Vip};
use super::{Action, Engine, Heard};
use crate::frames::Frame;
use crate::ownership::Owners;
use crate::plan::VipId;
use crate::reason::Reason;
use crate::view::Uid;

/// How often an address that was given up is asked about again soon, before it is left alone like one of a stranger.
const SOON: u32 = 3;

/// Minimum time between two defences (RFC 5227 2.4).
const DEFEND_INTERVAL: Duration = Duration::from_secs(10);

/// A follower reads a Lease after at most this many retry periods (client-go's jitter).
const RETRY_PERIODS: f64 = 2.2;

/// How long a VIP that was given up is left alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Conceded {
    /// Until then the API may show the record of the claimant.
    Until(Instant),
    /// Until our own record is confirmed.
    Unconfirmed,
    /// It may be set up again; the first step is a probe until it was up.
    Over,
}

/// VIPs that were given up because another host claimed them while our own record was in doubt.
#[derive(Debug, Default)]
pub(super) struct ConcededVips(BTreeMap<VipId, Conceded>);

impl ConcededVips {
    /// Notes that a VIP was given up.
    pub fn add(&mut self, id: VipId, until: Instant) {
        self.0.insert(id, Conceded::Until(until));
    }

    /// Whether a VIP was given up and has not been up since.
    pub fn contains(&self, id: &VipId) -> bool {
        self.0.contains_key(id)
    }

    /// Whether a VIP must be left alone.
    pub fn blocks(&self, id: &VipId) -> bool {
        self.0.get(id).is_some_and(|conceded| *conceded != Conceded::Over)
    }

    /// Keeps those for which `keep` holds.
    pub fn retain(&mut self, mut keep: impl FnMut(&VipId) -> bool) {
        self.0.retain(|id, _| keep(id));
    }

    /// The VIP is up again.
    pub fn remove(&mut self, id: &VipId) {
        self.0.remove(id);
    }

    /// Ends the waits, because our record is confirmed.
    pub fn cut_short(&mut self, now: Instant) {
        for conceded in self.0.values_mut() {
            if let Conceded::Until(until) = conceded {
                *until = now.min(*until);
            }
        }
    }

    /// When the next wait ends.
    pub fn deadline(&self) -> Option<Instant> {
        let until = |conceded: &Conceded| match conceded {
            Conceded::Until(until) => Some(*until),
            Conceded::Unconfirmed | Conceded::Over => None,
        };
        self.0.values().filter_map(until).min()
    }

    /// Ends the waits that are over, also for VIPs that are not planned any more. Returns true if one has ended.
    pub fn take_due(&mut self, now: Instant) -> bool {
        let mut due = false;
        for conceded in self.0.values_mut() {
            if matches!(conceded, Conceded::Until(until) if *until <= now) {
                *conceded = Conceded::Unconfirmed;
                due = true;
            }
        }
        due
    }

    /// Allows the VIPs again whose ownership is confirmed (decisions.md 18). Time alone is not enough: a node that
    /// cannot reach the API does not know the owner, and would take the address from its new owner again and again.
    pub fn end_confirmed(&mut self, confirmed: impl Fn(&VipId) -> bool) {
        for (id, conceded) in &mut self.0 {
            if *conceded == Conceded::Unconfirmed && confirmed(id) {
                *conceded = Conceded::Over;
            }
        }
    }
}

impl Engine {
    /// The longest time that an announcer needs to read a changed Lease.
    pub(super) fn longest_retry(&self) -> Duration {
        self.config.lease.retry_period.mul_f64(RETRY_PERIODS)
    }

    /// Judges a frame about an address.
    pub(super) fn judge_frame(&mut self, now: Instant, frame: &Frame) {
        let Frame { link, address, mac, what, .. } = *frame;
        self.notice_duplicate_mac(now, frame);
        let Some(id) = self.vip_on(link, address) else {
            self.judge_answer_about_lease(now, frame);
            if what == Heard::Claim {
                self.orphan_claimed(frame);
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
        // A sender with the MAC of a lease holds or held that lease.
        let peer = self.is_peer(mac) || (mac == carrier.mac && matches!(self.ownership, Owners::Node(_)));
        // A DHCP address has the same MAC on every node. Our own frames are filtered, but some switches send them back.
        // Such an echo must not disturb an owner whose record is confirmed.
        if mac == carrier.mac && (carrier.link == link || confirmed) {
            return;
        }
        match vip.phase {
            // The frame is a question of a watcher (`detect`), which does not want the address.
            Phase::Probing(_) if what == Heard::Probe && (frame.to_us || peer) => {}
            // The sender is a former owner that does not know the record yet; it will hear our claims. As with an
            // address that clients know already, which is not probed at all, an unreachable API changes nothing.
            Phase::Probing(_) if peer && !self.conceded.contains(&id) => {}
            Phase::Probing(_) => self.conflict(now, &id, mac),
            Phase::Up { doubt: Some(_) } if what != Heard::Probe => self.answered_in_doubt(now, &id, frame),
            // The kernel has refused to extend it, and keeps it until its deadline.
            Phase::Blocked { .. } if what == Heard::Claim && self.leaves_behind(carrier) => {
                self.concede_to(now, &id, mac);
            }
            Phase::Up { .. } | Phase::Adding(_) if what == Heard::Claim => {
                let leaves = self.shutdown.has_begun() && (peer || !self.is_recorded(&id));
                if leaves || !(confirmed || self.is_recorded(&id)) {
                    self.concede_to(now, &id, mac);
                } else if !peer {
                    // A member either follows a newer record, which this node is reading, or withdraws on its own. Our
                    // announcement would only lead clients back to the wrong node.
                    self.defend(now, &id, mac);
                }
            }
            _ => {}
        }
    }

    /// Another host answers for an address of this node that is in doubt. A stranger, or a member whose kube-proxy
    /// answers for every address, is no owner. So the record is read; a new owner proves itself with a claim.
    fn answered_in_doubt(&mut self, now: Instant, id: &VipId, frame: &Frame) {
        if self.shutdown.has_begun() || !self.read_record_for(now, id, frame.address) {
            self.concede_to(now, id, frame.mac);
        }
    }

    /// The VIP with this address, as seen from this interface. A static VIP is looked up by its address, because there
    /// may be hundreds; leased VIPs are searched by their carriers.
    pub(super) fn vip_on(&self, link: u32, address: IpAddr) -> Option<VipId> {
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
        let (given_up, longest_retry) = (self.conceded.contains(id), self.longest_retry());
        let peer = self.is_peer(mac);
        let may_insist = given_up && self.may_insist(id);
        let vip = self.vips.get_mut(id).expect("it is there");
        let carrier = vip.carrier.expect("only a carried address is probed");
        vip.conflicts += 1;
        if may_insist && vip.conflicts > SOON {
            return self.insist(now, id, mac);
        }
        if peer || (given_up && vip.conflicts <= SOON) {
            // The other host is most probably a node that believed to hold the Lease, and reads within this time that
            // it does not, or one that ends and serves until it hears the next owner. For a member the record tells the
            // owner as soon as this node sees it. Neither is a user's mistake.
            vip.phase = Phase::Blocked { until: now + longest_retry };
            tracing::warn!(
                address = %carrier.net.addr(),
                %mac,
                "another host, probably the former owner, still answers for the address; the announcer waits and asks \
                again"
            );
            self.out.replan();
            return;
        }
        let retry = CONFLICT_RETRY + Duration::from_millis(10) * u32::from(carrier.mac.octets()[5]);
        vip.phase = Phase::Blocked { until: now + retry };
        let link = self
            .observer
            .network()
            .and_then(|network| network.link(carrier.link))
            .map_or("?", |link| link.name.as_str());
        let text = format!(
            "address {} is already used by {mac} on the network of interface {link}: it is not announced. Free it \
             there, or give this Service another one; tried again every {} s",
            carrier.net.addr(),
            retry.as_secs()
        );
        tracing::warn!(
            address = %carrier.net.addr(),
            %mac,
            "another host uses the address; the announcer does not announce it and asks again later"
        );
        self.tell_members(now, id, Reason::AddressConflict, &text);
        self.tell_over(id, carrier.net.addr());
        self.out.replan();
    }

    /// In the modes with Leases, whether an address that was given up and that clients know is taken back although
    /// another host still answers for it. Any other node that believed in an old Lease has read by now that this node
    /// holds it, or cannot renew its own and gives the address up for the announcement.
    fn may_insist(&self, id: &VipId) -> bool {
        let Some(vip) = self.vips.get(id).filter(|_| matches!(self.ownership, Owners::Elected(_))) else {
            return false;
        };
        let in_use = |address| self.services.was_in_use(&vip.members, address) && !self.dhcp.may_be_given_away(address);
        vip.address().is_some_and(in_use) && self.is_confirmed(&vip.members)
    }

    /// Takes an address back from a stranger that answers for it, as a router with proxy ARP does.
    fn insist(&mut self, now: Instant, id: &VipId, mac: Mac) {
        self.conceded.remove(id);
        let Some(address) = self.vips.get(id).and_then(Vip::address) else { return };
        let text = format!(
            "{mac} answers for address {address} too: two hosts answer for it. This node holds its Lease and announces \
             it; some clients may reach the other host"
        );
        tracing::warn!(%address, %mac, "another host answers for the address; the holder of its Lease takes it back");
        self.tell_members(now, id, Reason::AddressConflict, &text);
        self.add(now, id);
        self.out.replan();
    }

    fn defend(&mut self, now: Instant, id: &VipId, mac: Mac) {
        let late = self.refresh.is_late(now, self.pause());
        let vip = self.vips.get_mut(id).expect("it is there");
        // A frame that came during a pause may be of the node that owns the address by now, and an announcement would
        // lead its clients here. The timers, which are judged next, ask for the address.
        if late {
            vip.claimed = Some(mac);
            return;
        }
        vip.contested = Some(now);
        let carrier = vip.carrier.expect("only a carried address is defended");
        // After a pause the lease may be over and another host may have the address. Our VIP goes as soon as the timers
        // are judged.
        let is_over = vip.source.expires().is_some_and(|end| end <= now);
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
        tracing::warn!(
            address = %carrier.net.addr(),
            %mac,
            "another host claims an address of this node; the announcer announces the address again"
        );
        self.out.push(Action::Announce { link: carrier.link, mac: carrier.mac, address: carrier.net.addr() });
        self.tell_members(now, id, Reason::AddressConflict, &text);
    }

    /// Gives a VIP up for a claim (decisions.md 18): withdraw first, ask later. It is set up again when ownership is
    /// confirmed.
    pub(super) fn concede_to(&mut self, now: Instant, id: &VipId, mac: Mac) {
        if self.shutdown.has_begun() {
            tracing::info!(vip = %id, %mac, "the next owner announces the address; this node removes it");
            self.shutdown.claimed(now);
        } else {
            tracing::warn!(
                vip = %id,
                %mac,
                "another host announces the address, and this node may not be its owner any more; the announcer \
                removes the address from this node"
            );
        }
        self.withdraw(now, id, false, "another node announces it");
        self.conceded.add(id.clone(), now + self.config.lease.duration);
        self.out.replan();
    }

    /// Allows VIPs again that were given up, once the record confirms this node.
    pub(super) fn end_conceding(&mut self) {
        let plan = &self.plan;
        self.conceded.retain(|id| plan.vips.contains_key(id));
        let (services, ownership) = (&self.services, &self.ownership);
        self.conceded.end_confirmed(|id| {
            let members = plan.vips.get(id).into_iter().flat_map(|planned| &planned.members);
            members.filter_map(|key| services.get(key)).any(|view| ownership.ends_conceding(view))
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(last: u8) -> VipId {
        VipId::Static(IpAddr::from([10, 0, 0, last]))
    }

    #[test]
    fn time_alone_gives_nothing_back() {
        let (now, mut conceded) = (Instant::now(), ConcededVips::default());
        let until = now + Duration::from_secs(15);
        conceded.add(id(5), until);
        conceded.add(id(6), until);
        assert!(!conceded.take_due(now) && conceded.deadline() == Some(until));
        conceded.end_confirmed(|_| true);
        assert!(conceded.blocks(&id(5)), "the record may be older than the claim");
        assert!(conceded.take_due(until) && conceded.deadline().is_none());
        conceded.end_confirmed(|confirmed| *confirmed == id(6));
        assert!(conceded.blocks(&id(5)) && !conceded.blocks(&id(6)));
        assert!(conceded.contains(&id(6)), "its first step is a probe");
        conceded.remove(&id(6));
        assert!(!conceded.contains(&id(6)));
    }

    #[test]
    fn a_record_that_is_known_to_stand_ends_the_wait() {
        let (now, mut conceded) = (Instant::now(), ConcededVips::default());
        conceded.add(id(5), now + Duration::from_secs(15));
        conceded.cut_short(now);
        assert!(conceded.take_due(now));
        conceded.end_confirmed(|_| true);
        assert!(!conceded.blocks(&id(5)));
        conceded.retain(|_| false);
        assert!(!conceded.contains(&id(5)));
    }
}
