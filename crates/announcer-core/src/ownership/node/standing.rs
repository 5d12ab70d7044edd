//! One group of Services: collects all that is known of it and judges it. `review.rs` goes through all groups.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use super::candidates::{Candidates, Penalties};
use super::decide::{Case, OwnerState, Step, decide};
use super::member::{CardLink, Fitness, link_towards};
use super::reach::{Reach, addresses, can_ask, chosen, chosen_there, link_of, wants_ipv6};
use super::round::{ReviewContext, Round, Standing, Succession};
use super::timing::{FAIL_BACK_AFTER, PASS_OVER};
use super::{Cluster, OwnerRecord, Watched};
use crate::endpoints::{EligibleNodes, eligible_nodes};
use crate::group::GroupKey;
use crate::network::named;
use crate::ownership::Owner;
use crate::view::{InterfaceWish, ServiceKey, ServiceView};

/// Number of nodes that watch an owner.
const OWNER_WATCHERS: usize = 2;

impl Cluster {
    pub(super) fn standing<'a>(&self, round: &Round<'a>, key: &GroupKey, members: &[ServiceKey]) -> Standing<'a> {
        let Round { context, fitness, .. } = *round;
        let members: Vec<&ServiceView> = members.iter().filter_map(|key| context.services.get(key)).collect();
        let addresses = addresses(&members);
        let holding = addresses.iter().any(|(address, _)| context.holding.contains(address));
        let placed_by = self.placed_by(context, &members);
        let address = addresses.first().map(|(address, _)| *address);
        let link = link_of(context.network, context.config, placed_by, address);
        let owner_record = self.deciding_record(&members);
        let EligibleNodes { only, .. } = eligible_nodes(members.iter().copied(), context.endpoints);
        // A DHCP lease needs a node that requests it; before that there is no address to publish to clients.
        let leases = members.iter().any(|view| view.wants_dhcp() || view.wants_dhcp6());
        let only = only.filter(|nodes| !(leases && nodes.is_empty()));
        let served = |node: &str| only.as_ref().is_none_or(|nodes| nodes.contains(node));
        let key = key.to_string();
        let ipv6 = wants_ipv6(&members, &addresses);
        let candidates =
            Candidates::new(fitness.iter().filter(|(node, _)| served(node)).filter_map(|(node, fitness)| {
                let Fitness::Fit(defects) = *fitness else { return None };
                let reach = self.reach(context, placed_by, link, address, node)?;
                let unable = self.is_unable(round.now, node, &key);
                Some((node.as_str(), Penalties { unable, no_ipv6: ipv6 && reach == Reach::Ipv4Only, defects }))
            }))
            .with_silent(|node| round.is_silent(link, node));
        // No other node has endpoints either, so the group stays here.
        let served_nowhere = only.as_ref().is_some_and(BTreeSet::is_empty);
        let eligible =
            matches!(fitness[&self.me], Fitness::Fit(_)) && (served(&self.me) || served_nowhere) && link.is_some();
        Standing {
            key,
            members,
            addresses,
            holding,
            placed_by,
            link,
            owner_record: owner_record.cloned(),
            candidates,
            eligible,
            only,
        }
    }

    /// Whether the kernel of `node` has refused the addresses of a group.
    fn is_unable(&self, now: Instant, node: &str, group: &str) -> bool {
        if node == self.me {
            return self.unable.has(now, group);
        }
        self.facts.card(node).is_some_and(|card| card.unable.contains(group))
    }

    /// The record that counts is that of the first Service, which a swap replaces. The other members carry copies; the
    /// term of a copy may be newer (`engine/recording.rs`). A user who may write only one Service must not be able to
    /// move the address with a forged copy. So a copy counts only while the first Service has no record, and only with
    /// a term that a swap can exceed.
    fn deciding_record(&self, members: &[&ServiceView]) -> Option<&OwnerRecord> {
        let mut records = members.iter().map(|view| self.records.of(&view.key, &view.uid));
        let first = records.next().flatten();
        first.or_else(|| {
            let copies = records.flatten().filter(|owner_record| self.records.is_counted(owner_record.term));
            // Among equal terms the copy of the most senior Service counts; `max_by_key` would return the last.
            copies.reduce(|best, owner_record| if best.term >= owner_record.term { best } else { owner_record })
        })
    }

    /// State of the node that the record names.
    pub(super) fn owner_state(&self, round: &Round<'_>, standing: &Standing<'_>) -> OwnerState {
        match &standing.owner_record {
            Some(owner_record) if self.facts.card(&owner_record.host).is_none() => OwnerState::Absent,
            Some(owner_record) if !self.facts.is_expired(round.now, &owner_record.host) => OwnerState::Alive,
            Some(owner_record) if self.towards(round, standing, &owner_record.host).is_none() => OwnerState::Unseen,
            Some(_) => OwnerState::Expired,
            None => OwnerState::Alive,
        }
    }

    /// The interface of `node` in the LAN of the group.
    fn towards(&self, round: &Round<'_>, standing: &Standing<'_>, node: &str) -> Option<&CardLink> {
        self.facts.towards(node, round.context.network, standing.link?)
    }

    /// The other node where the group belongs, and since when. `None` also while that node is not ready or is silent.
    /// Its Lease stays valid for many seconds after it has lost its power, and a move that may wait would leave the
    /// group without an answer. A group that was lent waits for its lender to be well again. At a third node it would
    /// be no loan any more, and it would never go home.
    pub(super) fn belongs_elsewhere(&self, round: &Round<'_>, standing: &Standing<'_>) -> Option<(String, Instant)> {
        let node = match self.hand_overs.lent.get(&standing.primary().key) {
            Some(lender) if standing.candidates.is_first_class(lender) => lender.as_str(),
            Some(_) if !round.context.config.fail_back => return None,
            Some(_) | None => standing.candidates.home(standing.home_key())?,
        };
        if self.facts.is_restless(round.now, node) || standing.candidates.is_silent(node) {
            return None;
        }
        if self.lacks_gateway(round, standing, node) {
            return None;
        }
        let known = self.hand_overs.misplaced.get(&standing.primary().key).filter(|(known, _)| known == node);
        (node != self.me).then(|| (node.to_owned(), known.map_or(round.now, |(_, since)| *since)))
    }

    /// Whether the group may return to where it belongs. All groups do if fail-back is configured. Otherwise only a
    /// group that came here because its home had a defect. One group at a time.
    pub(super) fn returns(&self, round: &Round<'_>, standing: &Standing<'_>) -> bool {
        let wanted = round.context.config.fail_back || self.hand_overs.lent.contains_key(&standing.primary().key);
        wanted && !self.hand_overs.rests(round.now)
    }

    /// Since when the group has no owner. `None`: it has one, or it is too early to tell.
    pub(super) fn vacant_since(
        &self,
        round: &Round<'_>,
        standing: &Standing<'_>,
        owner_state: OwnerState,
    ) -> Option<Instant> {
        let unowned = standing.owner_record.is_none() || owner_state == OwnerState::Absent;
        (unowned && !standing.holding && !round.unsettled && round.yield_at.is_none())
            .then(|| self.vacant.get(&standing.primary().key).copied().unwrap_or(round.now))
    }

    /// How many candidates before this node have had their time to take the group and have not done so.
    pub(super) fn passed_over(&self, round: &Round<'_>, standing: &Standing<'_>) -> usize {
        usize::try_from(self.vacant_for(round, standing).as_secs() / PASS_OVER.as_secs()).unwrap_or(usize::MAX)
    }

    /// This node's place among the successors of `owner`.
    pub(super) fn rank(&self, standing: &Standing<'_>, owner: &str) -> Option<usize> {
        standing.candidates.rank(owner, &self.me, |node| self.facts.host(node))
    }

    fn vacant_for(&self, round: &Round<'_>, standing: &Standing<'_>) -> Duration {
        let since = self.vacant.get(&standing.primary().key);
        since.map_or(Duration::ZERO, |since| round.now.duration_since(*since))
    }

    /// The owner of the group and this node's next step. `elsewhere`: the other node where it belongs.
    pub(super) fn judge(
        &self,
        round: &Round<'_>,
        standing: &Standing<'_>,
        owner_state: OwnerState,
        elsewhere: Option<&(String, Instant)>,
    ) -> (Owner, Step) {
        let Round { now, context, .. } = *round;
        let (primary, holding) = (standing.primary(), standing.holding);
        if let Some(yield_at) = round.yield_at {
            // While this node yields, it does not serve what the record gives to another node, because that node goes
            // on serving it for the same time.
            let ours = standing
                .owner_record
                .as_ref()
                .is_none_or(|owner_record| owner_record.host == self.me || owner_record.host.is_empty());
            let owner = if holding && ours && now < yield_at { Owner::Undecided } else { Owner::Theirs };
            return (owner, Step::Rest);
        }
        let owner = match &standing.owner_record {
            Some(owner_record) if owner_record.host == self.me => Owner::Mine,
            // Without a carrier this node can serve no client, and cannot hear the claim that would end the lingering.
            Some(_) if self.hand_overs.lingering.contains_key(&primary.key) && standing.link.is_some() => {
                Owner::Undecided
            }
            None if holding => Owner::Undecided,
            Some(_) | None => Owner::Theirs,
        };
        // What was given up for a claim is read first. The API that has to take a change answers that, too.
        let unread = self.swaps.given_up.is_unread(&primary.key);
        if unread || (standing.owner_record.is_none() && !holding && round.unsettled) {
            return (owner, Step::Rest);
        }
        let addresses: Vec<IpAddr> = standing.addresses().collect();
        let silent = self.silence(standing);
        let step = decide(&Case {
            me: &self.me,
            group: standing.home_key(),
            owner_record: standing.owner_record.as_ref(),
            hint: primary.published.vip_host.as_deref(),
            holding,
            addressed: !addresses.is_empty(),
            published: addresses.iter().any(|address| primary.published.has(*address)),
            rank: standing.owner_record.as_ref().and_then(|owner_record| self.rank(standing, &owner_record.host)),
            with_gateway: self.with_gateway(round, standing),
            candidates: &standing.candidates,
            eligible: standing.eligible,
            owner_state,
            silent,
            owner_hears_more: silent.is_some_and(|silent| self.owner_hears_more(round, standing, silent)),
            unreached: silent.is_some_and(|silent| self.is_unreached(round, standing, silent)),
            in_its_name: silent.and_then(|silent| silent.taken).is_some_and(|mac| self.in_its_name(standing, mac)),
            owner_hears_fewer: silent.is_some_and(|silent| self.owner_hears_fewer(round, standing, silent)),
            others_had_their_time: self.strangers_until(round, standing, owner_state).is_some_and(|until| until <= now),
            asked: self.asked(now, &primary.key),
            answered_by_member: self.answered_by(&primary.key).is_some_and(|mac| self.facts.member_of(mac).is_some()),
            stopping: context.stopping,
            safe_mode: context.safe_mode,
            node_stays: context.stays,
            endpoint_bound: standing.only.is_some(),
            passed_over: self.passed_over(round, standing),
            vacant_long_enough: self.vacant_for(round, standing) >= PASS_OVER,
            home: elsewhere.map(|(node, _)| node.as_str()),
            fail_back: self.returns(round, standing)
                && elsewhere.is_some_and(|(_, since)| now >= *since + FAIL_BACK_AFTER),
        });
        (owner, step)
    }

    /// The owner that this node has to watch for this group, with our interface towards it and our rank among its
    /// successors; and the addresses for which it has to answer. `None`: this node does not watch it.
    pub(super) fn to_watch(&self, round: &Round<'_>, standing: &Standing<'_>) -> Option<(Succession, Vec<Watched>)> {
        let (owner_record, link) = (standing.owner_record.as_ref()?, standing.link?);
        // All members are retired. Their owner withdraws them, so silence is intended. If the owner has died, the DHCP
        // lease expires on its own.
        let leaves = standing.members.iter().all(|view| view.retired);
        if round.yield_at.is_some() || owner_record.host == self.me || standing.addresses.is_empty() || leaves {
            return None;
        }
        let watches = |rank: &usize| *rank < OWNER_WATCHERS;
        let (place, ahead) = self.place_in_line(standing, &owner_record.host);
        let rank = place.filter(watches).or_else(|| {
            // A node of an older version orders successors by name alone and may leave this owner to us; then no other
            // node watches it.
            let mixed = self.facts.has_older_versions();
            let ring = || standing.candidates.rank(&owner_record.host, &self.me, |_| None).filter(watches);
            mixed.then(ring).flatten().map(|rank| rank + OWNER_WATCHERS)
        })?;
        let there = self.towards(round, standing, &owner_record.host)?;
        let askable = standing.owed().filter(|(address, _)| can_ask(round.context.network, link, *address));
        let vips =
            askable.map(|(address, own)| Watched { address, mac: own.unwrap_or(there.mac), term: owner_record.term });
        let rank = u8::try_from(rank).expect("it is less than four");
        let ahead = ahead.filter(|_| rank == 1).map(str::to_owned);
        Some((Succession { owner: owner_record.host.clone(), link, rank, ahead }, vips.collect()))
    }

    /// This node's place among those successors of `owner` that it does not itself call silent, and the successor
    /// before it.
    fn place_in_line<'a>(&self, standing: &Standing<'a>, owner: &str) -> (Option<usize>, Option<&'a str>) {
        let mut line = standing.candidates.line(owner, |node| self.facts.host(node));
        line.retain(|node| !self.card.silent.contains_key(*node));
        let place = line.iter().position(|node| *node == self.me);
        (place, place.and_then(|place| line.get(place.checked_sub(1)?).copied()))
    }

    /// The Service whose annotations choose the interface: the first one, unless it names an interface that exists on
    /// no node; then the next one. All nodes know the same of one another, so they choose alike. A Service that names
    /// an interface which exists nowhere must not block the others.
    pub(super) fn placed_by<'a>(&self, context: &ReviewContext<'_>, members: &[&'a ServiceView]) -> &'a ServiceView {
        let address = addresses(members).first().map(|(address, _)| *address);
        let exists = |view: &&&ServiceView| {
            let here = chosen(context.network, context.config, view, address);
            let elsewhere =
                || named(&view.interface, context.config).is_some_and(|(_, name)| self.facts.is_link_of_member(name));
            here.err().is_none_or(|error| !error.names_nothing()) || elsewhere()
        };
        members.iter().find(exists).copied().unwrap_or(members[0])
    }

    /// How far `node` can reach clients of `view` at `address`, or `None` without an interface for it; `link` is our
    /// own interface.
    pub(super) fn reach(
        &self,
        context: &ReviewContext<'_>,
        view: &ServiceView,
        link: Option<u32>,
        address: Option<IpAddr>,
        node: &str,
    ) -> Option<Reach> {
        let reach = |no_ipv6| if no_ipv6 { Reach::Ipv4Only } else { Reach::Both };
        if node == self.me {
            return link.map(|link| reach(context.network.ipv6_source(link).is_none()));
        }
        let card = self.facts.card(node)?;
        let theirs = match (&view.interface, link) {
            // The author means this name on every node; another interface of the same LAN would not be used there.
            (InterfaceWish::Named(name), _) => card.links.iter().find(|link| link.name == *name),
            (_, Some(link)) => link_towards(&card.links, context.network, link),
            (_, None) => chosen_there(&card.links, context.network, context.config, view, address),
        };
        theirs.map(|theirs| reach(theirs.no_ipv6))
    }
}
