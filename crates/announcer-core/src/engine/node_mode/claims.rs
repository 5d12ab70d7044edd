//! Claims in both directions: former owners of what is up here are told, and what others claim of ours is judged.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Instant;

use super::super::{Action, Engine, Heard};
use crate::claim::{self, ClaimSecret, Judgement, Won};
use crate::frames::Frame;
use crate::ownership::Owners;
use crate::ownership::node::{LostVip, Term};
use crate::plan::VipId;
use crate::view::{ServiceKey, Uid};

/// Losers of what is ours and not up here yet. A claim makes a former owner withdraw, and draws the traffic of a
/// macvlan's MAC: until we serve, that would be a gap.
#[derive(Default)]
pub(super) struct Unclaimed(BTreeMap<VipId, Vec<LostVip>>);

impl Unclaimed {
    /// One who has to be told. Of several that had the same VIP all that have lost it to the newest term.
    pub fn add(&mut self, former_owner: LostVip) {
        let waiting = self.0.entry(former_owner.vip.clone()).or_default();
        if waiting.iter().any(|waiting| waiting.term > former_owner.term) {
            return;
        }
        waiting.retain(|waiting| waiting.term == former_owner.term && waiting.owner != former_owner.owner);
        waiting.push(former_owner);
    }

    /// What is not ours any more is nobody's loss.
    fn retain(&mut self, mut is_ours: impl FnMut(&LostVip) -> bool) {
        self.0.retain(|_, waiting| {
            waiting.retain(&mut is_ours);
            !waiting.is_empty()
        });
    }
}

/// The record by which a VIP is ours.
struct Ours {
    /// Whose record it is.
    primary: ServiceKey,
    /// The key of its tags.
    uid: Uid,
    /// A newer one wins.
    term: Term,
    /// It was handed over, and is served for a last moment.
    lingering: bool,
}

impl Engine {
    /// Tells the former owners of all that is up here.
    pub(in crate::engine) fn claim_all(&mut self, now: Instant) {
        let Owners::Node(cluster) = &self.ownership else { return };
        let me = &self.config.node_name;
        self.node_mode.unclaimed.retain(|former_owner| {
            cluster.owner_record(&former_owner.service).is_some_and(|owner_record| owner_record.host == *me)
        });
        let waiting: Vec<VipId> = self.node_mode.unclaimed.0.keys().cloned().collect();
        for id in waiting {
            self.claim(now, &id);
        }
    }

    /// Tells the former owners of this VIP, if it is up.
    pub(in crate::engine) fn claim(&mut self, now: Instant, id: &VipId) {
        let Owners::Node(cluster) = &self.ownership else { return };
        let Some(carrier) = self.vips.get(id).filter(|vip| vip.is_up()).and_then(|vip| vip.carrier) else { return };
        for former_owner in self.node_mode.unclaimed.0.remove(id).unwrap_or_default() {
            let ours = cluster
                .owner_record(&former_owner.service)
                .is_some_and(|owner_record| owner_record.host == self.config.node_name);
            let Some(view) = self.services.get(&former_owner.service).filter(|_| ours) else { continue };
            let won = Won {
                address: carrier.net.addr(),
                mac: carrier.mac,
                loser_mac: former_owner.mac,
                on_macvlan: matches!(id, VipId::Dhcp(_)),
                term: former_owner.term,
                uid: view.uid.clone(),
                key: self.node_mode.keys.sending(now, &view.uid),
                suspected: former_owner.suspected,
            };
            self.node_mode.claims.begin(
                now,
                claim::FormerOwner { owner: former_owner.owner, link: former_owner.link },
                &won,
            );
        }
    }

    /// The keys of claims were read; in the order of their names.
    pub(in crate::engine) fn claim_keys(&mut self, now: Instant, secrets: Vec<ClaimSecret>) {
        self.node_mode.keys.set(now, secrets);
        self.seal_anew(now);
    }

    /// Claims that go on for long are sealed with the key that counts by now.
    pub(super) fn seal_anew(&mut self, now: Instant) {
        let keys = &self.node_mode.keys;
        self.node_mode.claims.seal_anew(|uid| keys.sending(now, uid));
    }

    /// A former owner whose Lease says that it knows the new term has withdrawn, and so has one whose Node is gone.
    pub(super) fn note_losers(&mut self) {
        let Owners::Node(cluster) = &self.ownership else { return };
        if self.node_mode.claims.is_empty() {
            return;
        }
        for owner in self.node_mode.claims.former_owners() {
            match cluster.card_of(&owner) {
                Some(card) => self.node_mode.claims.known(&owner, card.term),
                None => self.node_mode.claims.gone(&owner),
            }
        }
    }

    /// The VIP is not up under this address any more: whoever has lost it is told once it is up again, perhaps with
    /// another one that its DHCP server gives. If it is not ours any more by then, nobody is.
    pub(in crate::engine) fn unclaim(&mut self, id: &VipId, address: IpAddr) {
        let Owners::Node(cluster) = &self.ownership else { return };
        let Some(first) = self.vips.get(id).and_then(|vip| vip.members.first()) else { return };
        let service = cluster.primary(first);
        for (claim::FormerOwner { owner, link }, mac, term, suspected) in self.node_mode.claims.take(address) {
            let (vip, service) = (id.clone(), service.clone());
            self.node_mode.unclaimed.add(LostVip { owner, link, mac, vip, term, service, suspected });
        }
    }

    /// The DHCP VIP of which another node speaks as its own, under an address that it does not have here: not yet, or
    /// not any more, since the server may have given it another one. All nodes have it with the same MAC, and the tag
    /// proves whose it is.
    fn lease_of(&self, frame: &Frame) -> Option<VipId> {
        frame.payload?;
        let leased = self.vips.range(VipId::Dhcp(Uid::default())..);
        let mut spoken_of = leased.filter(|(_, vip)| vip.place == Some(frame.link));
        spoken_of
            .find(|(_, vip)| vip.source.dhcp4().is_some_and(|dhcp| dhcp.mac == frame.mac))
            .map(|(id, _)| id.clone())
    }

    pub(super) fn vip_with(&self, address: IpAddr) -> Option<VipId> {
        self.vips.iter().find(|(_, vip)| vip.address() == Some(address)).map(|(id, _)| id.clone())
    }

    /// decisions.md 23: a claim of a VIP that we have or had. True if nothing else is to be made of it.
    pub(in crate::engine) fn judge_claim(&mut self, now: Instant, id: &VipId, frame: &Frame) -> bool {
        if frame.what != Heard::Claim {
            return false;
        }
        let Some(Ours { primary, uid, term, lingering }) = self.ours(id) else { return false };
        // The tag proves that its sender may read the Service, not that it is one of us. Recipient we do not know is
        // believed at once only while our own record is in doubt; else the record is read.
        let known = self.is_peer(frame.mac) || self.vips[id].carrier.is_some_and(|carrier| carrier.mac == frame.mac);
        let confirmed = self.is_confirmed(&self.vips[id].members);
        let keys = self.node_mode.keys.accepted(&uid);
        match self.node_mode.judge.judge(now, frame, &keys, term) {
            Judgement::Yield(_) if !known && confirmed && !lingering => {
                if self.node_mode.judge.may_doubt(now, frame.address)
                    && let Some(swap) = self.cluster().and_then(|cluster| cluster.read_again(now, &primary, &uid))
                {
                    self.out.push(Action::Swap(primary, swap));
                }
                false
            }
            Judgement::Yield(term) => {
                self.yield_to_term(now, id, frame, &primary, term);
                true
            }
            Judgement::Outdated(_) | Judgement::Ignore => !lingering,
            Judgement::Doubt => {
                let echo = self.vips[id].carrier.is_some_and(|carrier| carrier.mac == frame.mac);
                if !lingering
                    && !echo
                    && let Some(cluster) = self.cluster()
                    && let Some(swap) = cluster.read_again(now, &primary, &uid)
                {
                    self.out.push(Action::Swap(primary, swap));
                }
                false
            }
        }
    }

    /// In `node` mode nobody but a proven claim or the record makes an owner withdraw: somebody answers for its address
    /// while it is in doubt, so the record is read. False: it is not known to be the owner.
    pub(in crate::engine) fn read_record_for(&mut self, now: Instant, id: &VipId, address: IpAddr) -> bool {
        if !self.is_recorded(id) {
            return false;
        }
        let Some(Ours { primary, uid, .. }) = self.ours(id) else { return false };
        let Owners::Node(cluster) = &mut self.ownership else { return false };
        if self.node_mode.judge.may_doubt(now, address)
            && let Some(swap) = cluster.read_again(now, &primary, &uid)
        {
            self.out.push(Action::Swap(primary, swap));
        }
        true
    }

    /// The same of a lease, under an address that it does not have here. Only what is proven counts: anybody may speak
    /// of any address.
    pub(in crate::engine) fn judge_claim_of_lease(&mut self, now: Instant, frame: &Frame) {
        let Some(id) = self.lease_of(frame) else { return };
        let Some(Ours { primary, uid, term: ours, .. }) = self.ours(&id) else { return };
        let claimed = claim::tag::open_with(&self.node_mode.keys.accepted(&uid), frame);
        if let Ok(term) = claimed
            && term > ours
        {
            self.yield_to_term(now, &id, frame, &primary, term);
        }
    }

    /// What a claim of this VIP is measured by; absent: no record says that it is ours.
    fn ours(&self, id: &VipId) -> Option<Ours> {
        let Owners::Node(cluster) = &self.ownership else { return None };
        let first = self.vips.get(id)?.members.first()?;
        let owner_record = cluster.owner_record(first)?;
        let primary = cluster.primary(first).clone();
        let uid = self.services.get(&primary)?.uid.clone();
        // What we have handed over is claimed with the term that stands in the record by now.
        let lingering = cluster.is_lingering(&primary);
        let term = if lingering { Term(owner_record.term.0.saturating_sub(1)) } else { owner_record.term };
        Some(Ours { primary, uid, term, lingering })
    }

    /// `node` mode: the record that was read last says that it is ours, whether the API is in reach or not.
    pub(in crate::engine) fn is_recorded(&self, id: &VipId) -> bool {
        let Owners::Node(cluster) = &self.ownership else { return false };
        let Some(Ours { primary, lingering: false, .. }) = self.ours(id) else { return false };
        cluster.owner_record(&primary).is_some_and(|owner_record| owner_record.host == self.config.node_name)
    }

    fn yield_to_term(&mut self, now: Instant, id: &VipId, frame: &Frame, primary: &ServiceKey, term: Term) {
        if let Some(cluster) = self.cluster().filter(|cluster| !cluster.is_lingering(primary)) {
            cluster.claimed(now, primary, term);
        }
        self.yield_to(now, id, frame.mac);
        self.successor_heard(primary);
    }

    /// The new owner of a group that we serve for a last moment has claimed one of its addresses. The group is its own
    /// once it has claimed all: it sets them one by one.
    fn successor_heard(&mut self, primary: &ServiceKey) {
        let Owners::Node(cluster) = &mut self.ownership else { return };
        let mut left = self.vips.values().flat_map(|vip| &vip.members);
        if cluster.is_lingering(primary) && !left.any(|member| cluster.primary(member) == primary) {
            cluster.successor_heard(primary);
        }
    }
}

#[cfg(test)]
mod tests {
    use l2_types::Mac;

    use super::*;

    fn former_owner(owner: &str, last: u8, term: u64) -> LostVip {
        LostVip {
            owner: owner.into(),
            link: 2,
            mac: Mac::new([2, 0, 0, 0, 0, last]),
            vip: VipId::Static(IpAddr::from([10, 0, 0, last])),
            term: Term(term),
            service: ServiceKey::new("default", format!("web{last}")),
            suspected: false,
        }
    }

    fn waiting(unclaimed: &Unclaimed) -> Vec<LostVip> {
        unclaimed.0.values().flatten().cloned().collect()
    }

    #[test]
    fn what_is_lost_again_before_it_is_up_is_claimed_from_nobody() {
        let mut unclaimed = Unclaimed::default();
        unclaimed.add(former_owner("node-2", 5, 5));
        unclaimed.add(former_owner("node-2", 6, 5));
        unclaimed.retain(|former_owner| former_owner.vip != VipId::Static(IpAddr::from([10, 0, 0, 5])));
        assert_eq!(waiting(&unclaimed), [former_owner("node-2", 6, 5)]);
    }

    #[test]
    fn all_former_owners_of_an_address_are_told_the_newest_term() {
        let mut unclaimed = Unclaimed::default();
        for (owner, term) in [("node-2", 5), ("node-2", 6), ("node-3", 6), ("node-3", 6), ("node-4", 5)] {
            unclaimed.add(former_owner(owner, 5, term));
        }
        assert_eq!(waiting(&unclaimed), [former_owner("node-2", 5, 6), former_owner("node-3", 5, 6)]);
    }
}
