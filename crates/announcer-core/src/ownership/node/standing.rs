//! One group of Services with all that is known of it, and what follows for it alone. `review.rs` goes through all of them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use l2_types::Link;

use super::decide::{Case, Holder, Step, decide};
use super::line::{Line, Merit};
use super::member::{CardLink, Fitness};
use super::reach::{Reach, addresses, can_ask, wants_ipv6};
use super::review::{FAIL_BACK_AFTER, Scene};
use super::{Cluster, Seat, Watched};
use crate::endpoints::{EligibleNodes, eligible_nodes};
use crate::group::GroupKey;
use crate::network::InterfaceError;
use crate::ownership::Owner;
use crate::view::{ServiceKey, ServiceView};

/// So long everybody waits for the one before him to take what nobody owns: his Lease may outlive him.
pub(super) const PASS_OVER: Duration = Duration::from_secs(2);

/// What holds for all groups of one review.
#[derive(Clone, Copy)]
pub(super) struct Round<'a> {
    pub now: Instant,
    pub scene: &'a Scene<'a>,
    pub fitness: &'a BTreeMap<String, Fitness>,
    /// A kube-vip has everything, and what it does not answer for yet is served here until then.
    pub yield_at: Option<Instant>,
    /// All announcers may just be starting, and some are not there yet.
    pub unsettled: bool,
}

/// One group with all that is known of it.
pub(super) struct Standing<'a> {
    pub key: String,
    pub members: Vec<&'a ServiceView>,
    /// Addresses on the wire, with the MAC of their macvlan.
    pub addresses: Vec<(IpAddr, Option<l2_types::Mac>)>,
    /// One of them is on this node.
    holding: bool,
    /// Whose wish says on which interface they are.
    placed_by: &'a ServiceView,
    /// Our interface for them.
    pub link: Option<u32>,
    pub seat: Option<Seat>,
    /// Who may have it.
    pub line: Line<'a>,
    keeps: bool,
    /// Where its endpoints are, if that counts.
    pub only: Option<BTreeSet<String>>,
}

impl Standing<'_> {
    /// By what its home is chosen. A lease moves nothing when it is granted, nor when another address is: clients would lose
    /// their connections for it.
    pub fn home_key(&self) -> &str {
        let primary = self.primary();
        if primary.wants_dhcp() || primary.wants_dhcp6() { &primary.uid.0 } else { &self.key }
    }

    /// The Service whose record counts.
    pub fn primary(&self) -> &ServiceView {
        self.members[0]
    }

    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> + '_ {
        self.addresses.iter().map(|(address, _)| *address)
    }

    /// Nobody has it, and no node may have it before an endpoint is ready.
    pub fn awaits_endpoint(&self) -> bool {
        self.seat.is_none() && self.only.as_ref().is_some_and(BTreeSet::is_empty)
    }

    pub fn is_of(&self, node: &str) -> bool {
        self.seat.as_ref().is_some_and(|seat| seat.host == node)
    }

    /// This node's interface for it, whether it can be used or not.
    pub fn chosen<'a>(&self, scene: &Scene<'a>) -> Result<&'a Link, InterfaceError> {
        chosen(scene, self.placed_by, self.addresses().next())
    }
}

impl Cluster {
    pub(super) fn standing<'a>(&self, round: &Round<'a>, key: &GroupKey, members: &[ServiceKey]) -> Standing<'a> {
        let Round { scene, fitness, .. } = *round;
        let members: Vec<&ServiceView> = members.iter().filter_map(|key| scene.services.get(key)).collect();
        let addresses = addresses(&members);
        let holding = addresses.iter().any(|(address, _)| scene.holding.contains(address));
        let placed_by = self.placed_by(scene, &members);
        let link = link_of(scene, placed_by, addresses.first().map(|(address, _)| *address));
        let seat = self.seat_of(&members);
        let EligibleNodes { only, .. } = eligible_nodes(members.iter().copied(), scene.endpoints);
        // A lease needs a node that holds it, and before there is no address that clients could be told of.
        let leases = members.iter().any(|view| view.wants_dhcp() || view.wants_dhcp6());
        let only = only.filter(|nodes| !(leases && nodes.is_empty()));
        let served = |node: &str| only.as_ref().is_none_or(|nodes| nodes.contains(node));
        let key = key.to_string();
        let ipv6 = wants_ipv6(&members, &addresses);
        let line = Line::new(fitness.iter().filter(|(node, _)| served(node)).filter_map(|(node, fitness)| {
            let Fitness::Fit(defects) = *fitness else { return None };
            let reach = self.reach(scene, placed_by, link, node)?;
            let unable = self.is_unable(round.now, node, &key);
            Some((node.as_str(), Merit { unable, no_ipv6: ipv6 && reach == Reach::Ipv4Only, defects }))
        }));
        // No node would do better: it stays.
        let served_nowhere = only.as_ref().is_some_and(BTreeSet::is_empty);
        let keeps =
            matches!(fitness[&self.me], Fitness::Fit(_)) && (served(&self.me) || served_nowhere) && link.is_some();
        Standing { key, members, addresses, holding, placed_by, link, seat: seat.cloned(), line, keeps, only }
    }

    /// Whether the kernel of `node` has refused the addresses of a group.
    fn is_unable(&self, now: Instant, node: &str, group: &str) -> bool {
        if node == self.me {
            return self.unable.has(now, group);
        }
        self.facts.card(node).is_some_and(|card| card.unable.contains(group))
    }

    /// The record of the first counts, which is what a swap replaces. The others have copies, and whoever may write a
    /// Service in some namespace must not take an address off its node by a copy of his own making: one of theirs counts
    /// only while the first has none, and only with a term that a swap goes beyond.
    fn seat_of(&self, members: &[&ServiceView]) -> Option<&Seat> {
        let mut records = members.iter().map(|view| self.record(&view.key, &view.uid));
        let first = records.next().flatten();
        first.or_else(|| {
            let copies = records.flatten().filter(|seat| seat.term.is_counted());
            // Of equal ones the senior's: `max_by_key` would give the last.
            copies.reduce(|best, seat| if best.term >= seat.term { best } else { seat })
        })
    }

    /// What is known of the node in the record.
    pub(super) fn holder(&self, round: &Round<'_>, standing: &Standing<'_>) -> Holder {
        match &standing.seat {
            Some(seat) if self.facts.card(&seat.host).is_none() => Holder::Absent,
            Some(seat) if !self.facts.is_expired(round.now, &seat.host) => Holder::Alive,
            Some(seat) if self.towards(round, standing, &seat.host).is_none() => Holder::Unseen,
            Some(_) => Holder::Expired,
            None => Holder::Alive,
        }
    }

    /// The interface of a member in the LAN of the group.
    fn towards(&self, round: &Round<'_>, standing: &Standing<'_>, node: &str) -> Option<&CardLink> {
        self.facts.towards(node, round.scene.network, standing.link?)
    }

    /// The other node that it would belong to, and since when.
    pub(super) fn belongs_elsewhere(&self, round: &Round<'_>, standing: &Standing<'_>) -> Option<(String, Instant)> {
        let node = standing.line.home(standing.home_key())?;
        let known = self.misplaced.get(&standing.primary().key).filter(|(known, _)| known == node);
        (node != self.me).then(|| (node.to_owned(), known.map_or(round.now, |(_, since)| *since)))
    }

    /// Since when nobody owns it; absent: somebody does, or it is too early to tell.
    pub(super) fn vacant_since(&self, round: &Round<'_>, standing: &Standing<'_>, holder: Holder) -> Option<Instant> {
        let unowned = standing.seat.is_none() || holder == Holder::Absent;
        (unowned && !standing.holding && !round.unsettled && round.yield_at.is_none())
            .then(|| self.vacant.get(&standing.primary().key).copied().unwrap_or(round.now))
    }

    /// How many candidates before this node have had their time and have not taken what nobody owns.
    pub(super) fn passed_over(&self, round: &Round<'_>, standing: &Standing<'_>) -> usize {
        usize::try_from(self.vacant_for(round, standing).as_secs() / PASS_OVER.as_secs()).unwrap_or(usize::MAX)
    }

    fn vacant_for(&self, round: &Round<'_>, standing: &Standing<'_>) -> Duration {
        let since = self.vacant.get(&standing.primary().key);
        since.map_or(Duration::ZERO, |since| round.now.duration_since(*since))
    }

    /// Whose it is, and what this node does about it. `elsewhere`: where it would belong.
    pub(super) fn judge(
        &self,
        round: &Round<'_>,
        standing: &Standing<'_>,
        holder: Holder,
        elsewhere: Option<&(String, Instant)>,
    ) -> (Owner, Step) {
        let Round { now, scene, .. } = *round;
        let (primary, holding) = (standing.primary(), standing.holding);
        if let Some(yield_at) = round.yield_at {
            // What the record says is somebody else's is not served for that time: he does so too.
            let ours = standing.seat.as_ref().is_none_or(|seat| seat.host == self.me || seat.host.is_empty());
            let owner = if holding && ours && now < yield_at { Owner::Undecided } else { Owner::Theirs };
            return (owner, Step::Rest);
        }
        let owner = match &standing.seat {
            Some(seat) if seat.host == self.me => Owner::Mine,
            // Without a carrier nobody is served for a last moment, and no claim is heard that would end it.
            Some(_) if self.lingering.contains_key(&primary.key) && standing.link.is_some() => Owner::Undecided,
            None if holding => Owner::Undecided,
            Some(_) | None => Owner::Theirs,
        };
        if standing.seat.is_none() && !holding && round.unsettled {
            return (owner, Step::Rest);
        }
        let addresses: Vec<IpAddr> = standing.addresses().collect();
        let step = decide(&Case {
            me: &self.me,
            group: standing.home_key(),
            seat: standing.seat.as_ref(),
            hint: primary.published.vip_host.as_deref(),
            holding,
            addressed: !addresses.is_empty(),
            published: addresses.iter().any(|address| primary.published.has(*address)),
            line: &standing.line,
            keeps: standing.keeps,
            holder,
            silent: standing.seat.as_ref().and_then(|seat| self.silence(&seat.host, &addresses)),
            asked: self.asked(now, &primary.key),
            stopping: scene.stopping,
            passed_over: self.passed_over(round, standing),
            vacant_long_enough: self.vacant_for(round, standing) >= PASS_OVER,
            fail_back: scene.config.fail_back && elsewhere.is_some_and(|(_, since)| now >= *since + FAIL_BACK_AFTER),
        });
        (owner, step)
    }

    /// Its owner, our interface towards it and our rank in the line of successors, if it is ours to watch; and for what
    /// it has to answer.
    pub(super) fn to_watch(
        &self,
        round: &Round<'_>,
        standing: &Standing<'_>,
    ) -> Option<((String, u32, u8), Vec<Watched>)> {
        let (seat, link) = (standing.seat.as_ref()?, standing.link?);
        if round.yield_at.is_some() || seat.host == self.me || standing.addresses.is_empty() {
            return None;
        }
        let rank = standing.line.rank(&seat.host, &self.me).filter(|rank| *rank < 2)?;
        let there = self.towards(round, standing, &seat.host)?;
        let askable = standing.addresses.iter().filter(|(address, _)| can_ask(round.scene.network, link, *address));
        let vips =
            askable.map(|(address, own)| Watched { address: *address, mac: own.unwrap_or(there.mac), term: seat.term });
        let rank = u8::try_from(rank).expect("it is less than two");
        Some(((seat.host.clone(), link, rank), vips.collect()))
    }
}

/// This node's interface for a group.
pub(super) fn link_of(scene: &Scene<'_>, view: &ServiceView, address: Option<IpAddr>) -> Option<u32> {
    let link = chosen(scene, view, address).ok()?;
    link.is_usable().then_some(link.index)
}

pub(super) fn chosen<'a>(
    scene: &Scene<'a>,
    view: &ServiceView,
    address: Option<IpAddr>,
) -> Result<&'a Link, InterfaceError> {
    let address = address.filter(|_| !view.wants_dhcp() && !view.wants_dhcp6());
    scene.network.choose(&view.interface, scene.config, address)
}
