//! Claims in both directions: former owners of what is up here are told, and what others claim of ours is judged.

use std::net::IpAddr;
use std::time::Instant;

use super::super::{Action, Engine, Heard, Vip};
use crate::claim::{self, Judgement, Key, Won};
use crate::frames::Frame;
use crate::ownership::Owners;
use crate::ownership::node::{Loser, Term};
use crate::plan::VipId;
use crate::view::{ServiceKey, Uid};

/// Losers of what is ours and not up here yet. A claim makes a former owner withdraw, and draws the traffic of a
/// macvlan's MAC: until we serve, that would be a gap.
#[derive(Default)]
pub(super) struct Unclaimed(Vec<Loser>);

impl Unclaimed {
    /// One who has to be told. Of several that had the same VIP all that have lost it to the same term.
    pub fn add(&mut self, loser: Loser) {
        let same = |waiting: &Loser| waiting.term == loser.term && waiting.owner != loser.owner;
        self.0.retain(|waiting| waiting.vip != loser.vip || same(waiting));
        self.0.push(loser);
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Those of what is up by now. What is not ours any more is nobody's loss.
    fn take(&mut self, is_up: impl Fn(&VipId) -> bool, is_ours: impl FnMut(&Loser) -> bool) -> Vec<Loser> {
        self.0.retain(is_ours);
        self.0.extract_if(.., |loser| is_up(&loser.vip)).collect()
    }
}

impl Engine {
    /// Tells the losers of what is up here.
    pub(in crate::engine) fn claim(&mut self, now: Instant) {
        let Owners::Node(cluster) = &self.ownership else { return };
        if self.lookout.unclaimed.is_empty() {
            return;
        }
        let me = &self.config.node_name;
        let is_ours = |loser: &Loser| cluster.seat(&loser.service).is_some_and(|seat| seat.host == *me);
        let is_up = |id: &VipId| self.vips.get(id).is_some_and(Vip::is_up);
        for loser in self.lookout.unclaimed.take(is_up, is_ours) {
            self.claim_from(now, loser);
        }
    }

    fn claim_from(&mut self, now: Instant, loser: Loser) {
        let Some(view) = self.services.get(&loser.service) else { return };
        let Some(carrier) = self.vips.get(&loser.vip).and_then(|vip| vip.carrier) else { return };
        let won = Won {
            address: carrier.net.addr(),
            mac: carrier.mac,
            loser_mac: loser.mac,
            on_macvlan: matches!(loser.vip, VipId::Dhcp(_)),
            term: loser.term,
            key: Key::from(&view.uid),
        };
        self.lookout.claims.begin(now, claim::Loser { owner: loser.owner, link: loser.link }, &won);
    }

    /// The VIP is not up under this address any more: whoever has lost it is told once it is up again, perhaps with another
    /// one that its DHCP server gives.
    pub(in crate::engine) fn unclaim(&mut self, id: &VipId, address: IpAddr) {
        let Owners::Node(cluster) = &self.ownership else { return };
        let Some(first) = self.vips.get(id).and_then(|vip| vip.members.first()) else { return };
        let service = cluster.primary(first);
        for (claim::Loser { owner, link }, mac, term) in self.lookout.claims.take(address) {
            let (vip, service) = (id.clone(), service.clone());
            self.lookout.unclaimed.add(Loser { owner, link, mac, vip, term, service });
        }
    }

    /// The DHCP VIP of which another node speaks as its own, under an address that it does not have here: not yet, or not
    /// any more, since the server may have given it another one. All nodes have it with the same MAC, and the tag proves
    /// whose it is.
    pub(in crate::engine) fn lease_of(&self, frame: &Frame) -> Option<VipId> {
        frame.payload?;
        let leased = self.vips.range(VipId::Dhcp(Uid::default())..);
        let mut spoken_of = leased.filter(|(_, vip)| vip.place == Some(frame.link));
        spoken_of.find(|(_, vip)| vip.dhcp.as_ref().is_some_and(|dhcp| dhcp.mac == frame.mac)).map(|(id, _)| id.clone())
    }

    pub(super) fn plan_id(&self, address: IpAddr) -> Option<VipId> {
        self.vips.iter().find(|(_, vip)| vip.address() == Some(address)).map(|(id, _)| id.clone())
    }

    /// A loser whose Lease says that it knows the new term has withdrawn.
    pub(super) fn note_losers(&mut self) {
        let Owners::Node(cluster) = &self.ownership else { return };
        if self.lookout.claims.is_empty() {
            return;
        }
        for owner in self.lookout.claims.losers() {
            if cluster.members().all(|(node, _)| node != owner) {
                self.lookout.claims.gone(&owner);
            }
        }
        for (owner, card) in cluster.members() {
            for view in self.services.values() {
                let Some(seat) = cluster.seat(&view.key) else { continue };
                if card.term >= seat.term {
                    for address in self.plan.of_service.get(&view.key).into_iter().flatten() {
                        if let Some(address) = self.vips.get(address).and_then(Vip::address) {
                            self.lookout.claims.known(owner, address, seat.term);
                        }
                    }
                }
            }
        }
    }

    /// decisions.md 23: a claim of a VIP that we have or had. True if nothing else is to be made of it.
    pub(in crate::engine) fn judge_claim(&mut self, now: Instant, id: &VipId, frame: &Frame) -> bool {
        if frame.what != Heard::Claim {
            return false;
        }
        let members = self.vips[id].members.clone();
        let Owners::Node(cluster) = &mut self.ownership else { return false };
        let Some(seat) = members.first().and_then(|key| cluster.seat(key)).cloned() else { return false };
        let primary = members.first().map(|key| cluster.primary(key).clone());
        let Some((primary, view)) = primary.and_then(|key| Some((key.clone(), self.services.get(&key)?))) else {
            return false;
        };
        // What we have handed over is claimed with the term that stands in the record by now.
        let lingering = cluster.is_lingering(&primary);
        let ours = if lingering { Term(seat.term.0.saturating_sub(1)) } else { seat.term };
        match self.lookout.judge.judge(now, frame, &Key::from(&view.uid), ours) {
            Judgement::Yield(term) => {
                if !lingering {
                    cluster.claimed(now, &primary, term);
                }
                self.yield_to(now, id, frame.mac);
                self.successor_heard(&primary);
                true
            }
            Judgement::Outdated(_) | Judgement::Ignore => !lingering,
            Judgement::Doubt => {
                let uid = view.uid.clone();
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
    use l2::Mac;

    use super::*;

    fn loser(owner: &str, last: u8) -> Loser {
        Loser {
            owner: owner.into(),
            link: 2,
            mac: Mac::new([2, 0, 0, 0, 0, last]),
            vip: VipId::Static(IpAddr::from([10, 0, 0, last])),
            term: Term(5),
            service: ServiceKey::new("default", format!("web{last}")),
        }
    }

    fn up(last: &[u8]) -> impl Fn(&VipId) -> bool {
        |vip| last.iter().any(|last| *vip == VipId::Static(IpAddr::from([10, 0, 0, *last])))
    }

    #[test]
    fn a_loser_is_told_once_and_not_before_the_address_is_up_here() {
        let mut unclaimed = Unclaimed::default();
        unclaimed.add(loser("node-2", 5));
        unclaimed.add(loser("node-2", 6));
        assert_eq!(unclaimed.take(up(&[]), |_| true), []);
        assert_eq!(unclaimed.take(up(&[6, 7]), |_| true), [loser("node-2", 6)]);
        assert_eq!(unclaimed.take(up(&[6, 7]), |_| true), []);
        assert_eq!(unclaimed.take(up(&[5, 6]), |_| true), [loser("node-2", 5)]);
        assert!(unclaimed.is_empty());
    }

    #[test]
    fn what_is_lost_again_before_it_is_up_is_claimed_from_nobody() {
        let mut unclaimed = Unclaimed::default();
        unclaimed.add(loser("node-2", 5));
        assert_eq!(unclaimed.take(up(&[5]), |_| false), []);
        assert!(unclaimed.is_empty(), "nor when it is ours once more: then it was somebody else's before");
    }

    #[test]
    fn all_former_owners_of_an_address_are_told_the_newest_term() {
        let newer = |owner: &str| Loser { term: Term(6), ..loser(owner, 5) };
        let mut unclaimed = Unclaimed::default();
        for loser in [loser("node-2", 5), newer("node-2"), newer("node-3"), newer("node-3")] {
            unclaimed.add(loser);
        }
        assert_eq!(unclaimed.take(up(&[5]), |_| true), [newer("node-2"), newer("node-3")]);
    }
}
