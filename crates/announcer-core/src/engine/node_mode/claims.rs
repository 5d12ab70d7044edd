//! Claims in both directions: tells former owners about VIPs that are up here, and judges claims of our VIPs.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Instant;

use l2_types::Mac;

use super::super::{Action, Engine, Heard};
use crate::claim::{self, ClaimKeys, ClaimSecret, Claims, Judge, Judgement, TakenOverVip};
use crate::frames::Frame;
use crate::ownership::Owners;
use crate::ownership::node::{LostVip, Term};
use crate::plan::VipId;
use crate::view::{ServiceKey, Uid};

/// Former owners of VIPs that are ours and not up here yet. A claim makes the former owner withdraw and draws the
/// traffic of a macvlan's MAC here. If it came before this node serves the VIP, clients would have a gap.
#[derive(Default)]
pub(super) struct Unclaimed(BTreeMap<VipId, Vec<LostVip>>);

impl Unclaimed {
    /// Adds a former owner. For each VIP only those former owners are kept that have lost it to the newest term.
    pub fn add(&mut self, former_owner: LostVip) {
        let waiting = self.0.entry(former_owner.vip.clone()).or_default();
        if waiting.iter().any(|waiting| waiting.term > former_owner.term) {
            return;
        }
        waiting.retain(|waiting| waiting.term == former_owner.term && waiting.owner != former_owner.owner);
        waiting.push(former_owner);
    }

    /// Drops the former owners of VIPs that are not ours any more.
    fn retain(&mut self, mut is_ours: impl FnMut(&LostVip) -> bool) {
        self.0.retain(|_, waiting| {
            waiting.retain(&mut is_ours);
            !waiting.is_empty()
        });
    }
}

/// What claims in both directions need.
#[derive(Default)]
pub(super) struct ClaimState {
    /// Claims that this node sends.
    pub sent: Claims,
    pub unclaimed: Unclaimed,
    /// Judges claims that come in.
    pub judge: Judge,
    pub keys: ClaimKeys,
}

/// The record that makes this node the owner of a VIP.
struct Ours {
    /// The Service that holds the record.
    primary: ServiceKey,
    /// UID for the key of its tags.
    uid: Uid,
    /// The term to compare with; a newer one wins.
    term: Term,
    /// The VIP was handed over and is still served.
    lingering: bool,
}

impl Engine {
    /// Starts the claims for all VIPs that are up.
    pub(in crate::engine) fn claim_all(&mut self, now: Instant) {
        let Owners::Node(cluster) = &self.ownership else { return };
        let me = &self.config.node_name;
        self.node_mode.claims.unclaimed.retain(|former_owner| {
            cluster.owner_record(&former_owner.service).is_some_and(|owner_record| owner_record.host == *me)
        });
        let waiting: Vec<VipId> = self.node_mode.claims.unclaimed.0.keys().cloned().collect();
        for id in waiting {
            self.claim(now, &id);
        }
    }

    /// Starts the claims for this VIP, if it is up.
    pub(in crate::engine) fn claim(&mut self, now: Instant, id: &VipId) {
        let Owners::Node(cluster) = &self.ownership else { return };
        let Some(carrier) = self.vips.get(id).filter(|vip| vip.is_up()).and_then(|vip| vip.carrier) else { return };
        for former_owner in self.node_mode.claims.unclaimed.0.remove(id).unwrap_or_default() {
            let ours = cluster
                .owner_record(&former_owner.service)
                .is_some_and(|owner_record| owner_record.host == self.config.node_name);
            let Some(view) = self.services.get(&former_owner.service).filter(|_| ours) else { continue };
            let taken_over = TakenOverVip {
                address: carrier.net.addr(),
                mac: carrier.mac,
                loser_mac: former_owner.mac,
                on_macvlan: matches!(id, VipId::Dhcp(_)),
                term: former_owner.term,
                uid: view.uid.clone(),
                key: self.node_mode.claims.keys.sending(now, &view.uid),
                suspected: former_owner.suspected,
            };
            self.node_mode.claims.sent.begin(
                now,
                claim::FormerOwner { owner: former_owner.owner, link: former_owner.link },
                &taken_over,
            );
        }
    }

    /// The keys of claims were read, in the order of their names.
    pub(in crate::engine) fn claim_keys(&mut self, now: Instant, secrets: Vec<ClaimSecret>) {
        self.node_mode.claims.keys.set(now, secrets);
        self.seal_anew(now);
    }

    /// Seals current claims with the key that is used for sending now.
    pub(super) fn seal_anew(&mut self, now: Instant) {
        let keys = &self.node_mode.claims.keys;
        self.node_mode.claims.sent.seal_anew(|uid| keys.sending(now, uid));
    }

    /// Ends claims: a former owner whose card shows the new term has withdrawn, and so has one without a membership
    /// Lease.
    pub(super) fn note_losers(&mut self) {
        let Owners::Node(cluster) = &self.ownership else { return };
        if self.node_mode.claims.sent.is_empty() {
            return;
        }
        for owner in self.node_mode.claims.sent.former_owners() {
            match cluster.facts.card(&owner) {
                Some(card) => self.node_mode.claims.sent.known(&owner, card.term),
                None => self.node_mode.claims.sent.gone(&owner),
            }
        }
    }

    /// The VIP is not up under this address any more. Its former owners are told when it is up again, perhaps with
    /// another address from its DHCP server. If it is not ours by then, they are dropped.
    pub(in crate::engine) fn unclaim(&mut self, id: &VipId, address: IpAddr) {
        let Owners::Node(cluster) = &self.ownership else { return };
        let Some(first) = self.vips.get(id).and_then(|vip| vip.members.first()) else { return };
        let service = cluster.primary(first);
        for (claim::FormerOwner { owner, link }, mac, term, suspected) in self.node_mode.claims.sent.take(address) {
            let (vip, service) = (id.clone(), service.clone());
            self.node_mode.claims.unclaimed.add(LostVip { owner, link, mac, vip, term, service, suspected });
        }
    }

    /// The DHCP VIP that a claim is about although its address is unknown here: the server may have given another one.
    /// The VIP has the same MAC on all nodes, and the tag proves the Service.
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

    /// Judges a claim of a VIP that this node has or had (decisions.md 23). Returns true if the frame is settled.
    pub(in crate::engine) fn judge_claim(&mut self, now: Instant, id: &VipId, frame: &Frame) -> bool {
        if frame.what != Heard::Claim {
            return false;
        }
        let Some(Ours { primary, uid, term, lingering }) = self.ours(id) else { return false };
        let of_lease = self.vips[id].source.dhcp4().is_some_and(|dhcp| dhcp.mac == frame.mac);
        // The tag proves that its sender may read the Service, not that the sender is a member. An unknown sender is
        // believed at once only while our own record is in doubt; otherwise the record is read.
        let known = self.is_peer(frame.mac) || of_lease;
        let confirmed = self.is_confirmed(&self.vips[id].members);
        let keys = self.node_mode.claims.keys.accepted(&uid);
        match self.node_mode.claims.judge.judge(now, frame, &keys, term) {
            // No other member sends from there, so somebody forges it.
            Judgement::Concede(_) if !of_lease && self.is_own(frame.mac) => !lingering,
            Judgement::Concede(term)
                if confirmed && !lingering && !(known && self.may_believe(now, &primary, term)) =>
            {
                if self.node_mode.claims.judge.may_doubt(now, frame.address)
                    && let Some(swap) = self.cluster().and_then(|cluster| cluster.read_again(now, &primary, &uid))
                {
                    self.out.push(Action::Swap(primary, swap));
                }
                false
            }
            Judgement::Concede(term) => {
                self.concede_to_term(now, id, frame, &primary, term);
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

    /// Reads the record because another host answers for an address in doubt. In `node` mode only a proven claim or the
    /// record makes an owner withdraw. Returns false if this node is not known to be the owner.
    pub(in crate::engine) fn read_record_for(&mut self, now: Instant, id: &VipId, address: IpAddr) -> bool {
        if !self.is_recorded(id) {
            return false;
        }
        let Some(Ours { primary, uid, .. }) = self.ours(id) else { return false };
        let Owners::Node(cluster) = &mut self.ownership else { return false };
        if self.node_mode.claims.judge.may_doubt(now, address)
            && let Some(swap) = cluster.read_again(now, &primary, &uid)
        {
            self.out.push(Action::Swap(primary, swap));
        }
        true
    }

    /// Judges a claim of a lease under an address that it does not have here. Only a proven claim counts, because any
    /// host may send frames about any address.
    pub(in crate::engine) fn judge_claim_of_lease(&mut self, now: Instant, frame: &Frame) {
        let Some(id) = self.lease_of(frame) else { return };
        let Some(Ours { primary, uid, term: ours, .. }) = self.ours(&id) else { return };
        let claimed = claim::tag::open_with(&self.node_mode.claims.keys.accepted(&uid), frame);
        if let Ok(term) = claimed
            && term > ours
        {
            if self.is_confirmed(&self.vips[&id].members) && !self.may_believe(now, &primary, term) {
                self.read_record_for(now, &id, frame.address);
            } else {
                self.concede_to_term(now, &id, frame, &primary, term);
            }
        }
    }

    /// Whether a proven claim of a member may be believed before the record is read.
    fn may_believe(&self, now: Instant, primary: &ServiceKey, term: Term) -> bool {
        matches!(&self.ownership, Owners::Node(cluster) if cluster.may_believe(now, primary, term))
    }

    /// Whether `mac` is that of an interface of this node.
    fn is_own(&self, mac: Mac) -> bool {
        self.observer.network().is_some_and(|network| network.links.iter().any(|link| link.mac == Some(mac)))
    }

    /// The record by which a claim of this VIP is judged; `None`: no record is known for it.
    fn ours(&self, id: &VipId) -> Option<Ours> {
        let Owners::Node(cluster) = &self.ownership else { return None };
        let first = self.vips.get(id)?.members.first()?;
        let owner_record = cluster.owner_record(first)?;
        let primary = cluster.primary(first).clone();
        let uid = self.services.get(&primary)?.uid.clone();
        // The new owner claims a handed-over VIP with the term that is in the record by now, so the term before counts.
        let lingering = cluster.is_lingering(&primary);
        let term = if lingering { Term(owner_record.term.0.saturating_sub(1)) } else { owner_record.term };
        Some(Ours { primary, uid, term, lingering })
    }

    /// `node` mode: whether the last read record names this node, even if the API is unreachable.
    pub(in crate::engine) fn is_recorded(&self, id: &VipId) -> bool {
        let Owners::Node(cluster) = &self.ownership else { return false };
        let Some(Ours { primary, lingering: false, .. }) = self.ours(id) else { return false };
        cluster.owner_record(&primary).is_some_and(|owner_record| owner_record.host == self.config.node_name)
    }

    fn concede_to_term(&mut self, now: Instant, id: &VipId, frame: &Frame, primary: &ServiceKey, term: Term) {
        if let Some(cluster) = self.cluster().filter(|cluster| !cluster.is_lingering(primary)) {
            cluster.claimed(now, primary, term);
        }
        self.concede_to(now, id, frame.mac);
        self.successor_heard(primary);
    }

    /// The new owner has claimed one address of a group that this node still serves. The group is settled when it has
    /// claimed all of them, because it sets them one by one.
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
