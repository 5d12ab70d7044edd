//! The review turns facts into actions: it looks at every group (`standing.rs`), determines its owner, starts swaps and
//! questions, and names the owners to watch.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use super::candidates::line_of;
use super::decide::{Step, Why};
use super::member::{Defects, Fitness};
use super::owner_records::Recipient;
use super::reach::{addresses, can_ask, link_of, vips};
use super::round::{Review, ReviewContext, Round, Standing, Succession, Wake};
use super::timing::{DEFECT_IS_LATE, FAIL_BACK_AFTER, GIVE_BACK_PAUSE, MEMBERS_SETTLE, PASS_OVER, START_GRACE};
use super::{Cluster, LostVip, Target, Watched};
use crate::annotations::{Problem, TERM};
use crate::network::{Family, Network};
use crate::ownership::Owner;
use crate::reason::Reason;
use crate::view::{ServiceKey, ServiceView};

/// What was found about one group.
struct GroupReview<'a> {
    standing: Standing<'a>,
    owner: Owner,
    step: Step,
    /// The node where this own group belongs, and since when.
    misplaced: Option<(String, Instant)>,
}

impl Cluster {
    /// Reviews all groups. The engine calls it after each change and at [`Cluster::deadline`].
    pub fn review(&mut self, now: Instant, context: &ReviewContext<'_>) -> Review {
        self.take_in(now, context);
        // The term is set before the card can be written: members would take a card without it as a sign that this node
        // missed the record.
        self.card.term = self.records.watched_term;
        let mut review = Review { told: self.note_unable(now, context), ..Review::default() };
        let Some(known_since) = self.facts.known_since().filter(|_| context.kube_proxy_known) else {
            self.facts_next = self.facts.deadline(now);
            self.next = self.own_deadline(now);
            return review;
        };
        let yield_at = self.note_foreign(now);
        let settled = known_since + MEMBERS_SETTLE;
        let unsettled = now < settled && self.facts.awaits_members();
        let fitness = self.all_fitness(now);
        let silent = self.silent_nodes(now, context.at_own_addresses);
        let (without_gateway, cards_to_come) = (self.without_gateway(context.network), self.awaited(context));
        let round = Round {
            now,
            context,
            fitness: &fitness,
            silent: &silent,
            without_gateway: &without_gateway,
            awaited: &cards_to_come,
            yield_at,
            unsettled,
        };
        let mut wake = Wake { now, next: None };
        yield_at.into_iter().chain(Some(settled).filter(|_| unsettled)).for_each(|at| wake.at(at));

        let defects = self.note_defects(&round);
        let (mut looks, mut vacant) = (Vec::new(), BTreeMap::new());
        let mut watched: BTreeMap<Succession, Vec<Watched>> = BTreeMap::new();
        let mut awaited: BTreeSet<(String, Instant)> = BTreeSet::new();
        for (key, members) in &context.groups.members {
            let standing = self.standing(&round, key, members);
            let owner_state = self.owner_state(&round, &standing);
            if let Some(since) = self.vacant_since(&round, &standing, owner_state) {
                vacant.insert(standing.primary().key.clone(), since);
                review.told.extend(self.tell_vacant(&round, &standing, since, &mut wake));
                if standing.awaits_endpoint() && self.is_teller(&round, &standing) {
                    review.unannounced.extend(standing.members.iter().map(|view| view.key.clone()));
                }
            }
            review.told.extend(self.tell_unwell(&round, &standing, defects, &mut wake));
            review.told.extend(self.tell_uncounted(&standing));
            if let Some((owner, vips)) = self.to_watch(&round, &standing) {
                watched.entry(owner).or_default().extend(vips);
            }
            review.probes.extend(self.to_probe(&round, &standing).into_iter().map(|target| (target.at, target)));
            review.vips.extend(standing.addresses());
            if let Some(link) = standing.link {
                review.links.extend(standing.addresses().map(|address| (link, Family::of(address))));
            }
            let elsewhere = self.belongs_elsewhere(&round, &standing);
            let (owner, step) = self.judge(&round, &standing, owner_state, elsewhere.as_ref());
            self.judged_anew_at(&standing).for_each(|at| wake.at(at));
            if let Some((link, cards)) = self.awaits(&round, &standing) {
                review.sought_gateways.extend(cards.values().max().map(|at| (link, *at)));
                awaited.extend(cards.iter().map(|(node, at)| (node.clone(), *at)));
            }
            review.told.extend(self.tell_strangers(&round, &standing, owner_state, &step, &mut wake));
            review.told.extend(self.tell_unreached(&round, &standing, &step, &mut wake));
            let waits = context.config.fail_back || self.hand_overs.lent.contains_key(&standing.primary().key);
            let misplaced = elsewhere.filter(|_| waits && standing.is_of(&self.me));
            looks.push(GroupReview { standing, owner, step, misplaced });
        }
        self.vacant = vacant;
        self.hand_overs.awaited = awaited;
        review.told.extend(self.tell_stalled(&round));
        self.conclude(now, context, looks, &mut review, &mut wake);
        self.watch(context.network, watched, &mut review);
        self.assign_unaddressed(&round);
        review.questions = self.questions(now);
        self.facts_next = self.facts.deadline(now);
        self.next = self.own_deadline(now).into_iter().chain(wake.next).filter(|at| *at > now).min();
        review
    }

    /// Takes in what the watch shows, and forgets Services that do not exist any more.
    fn take_in(&mut self, now: Instant, context: &ReviewContext<'_>) {
        self.assignment.in_touch = self.facts.in_touch(now);
        self.assignment.owners.clear();
        self.assignment.owner_records.clear();
        self.assignment.primaries.clear();
        self.retain(now, context.services);
        for view in context.services.values() {
            if let Some(owner_record) = view.published.owner_record() {
                self.learn_from_watch(now, view, &owner_record);
            }
        }
        self.swaps.given_up.retain(now, &self.records);
        self.note_lent(now);
    }

    /// Notes which groups came here because the node that handed them over has a defect.
    fn note_lent(&mut self, now: Instant) {
        for (key, (from, at)) in std::mem::take(&mut self.hand_overs.received) {
            // The next review may come much later. A defect that began meanwhile is no reason for this hand-over.
            if now >= at + DEFECT_IS_LATE {
                continue;
            }
            if self.is_unwell(now, &from) {
                self.hand_overs.lent.insert(key, from);
            } else {
                self.hand_overs.received.insert(key, (from, at));
            }
        }
    }

    /// Whether `node` has a defect while its announcer is not ending.
    fn is_unwell(&self, now: Instant, node: &str) -> bool {
        let card = self.facts.card(node);
        card.is_some_and(|card| {
            let fitness = self.facts.fitness(now, node, card);
            matches!(fitness, Fitness::Fit(defects) if !defects.to_keep().is_none())
        })
    }

    /// Notes the groups whose addresses this node cannot set. Returns the messages for their authors.
    fn note_unable(&mut self, now: Instant, context: &ReviewContext<'_>) -> Vec<(ServiceKey, Reason, String)> {
        let mut told = Vec::new();
        let mut well = BTreeSet::new();
        for (key, members) in &context.groups.members {
            let group = key.to_string();
            let refused = members.iter().any(|member| context.refused.contains(member));
            if !refused && !self.unable.knows(&group) {
                continue;
            }
            let views: Vec<&ServiceView> = members.iter().filter_map(|key| context.services.get(key)).collect();
            // One of two address families may work all the same, and a hand-over would cost its connections.
            if addresses(&views).iter().any(|(address, _)| context.holding.contains(address)) {
                well.insert(group);
            } else if refused && self.unable.note(now, &group) {
                let text =
                    format!("node {} cannot set the address: another node gets it, if there is one that can", self.me);
                told.extend(members.iter().map(|key| (key.clone(), Reason::CannotAnnounce, text.clone())));
            }
        }
        self.unable.retain(now, |group| well.contains(group));
        told
    }

    /// Messages for the authors of a group that has had no owner since `since`.
    fn tell_vacant(
        &self,
        round: &Round<'_>,
        standing: &Standing<'_>,
        since: Instant,
        wake: &mut Wake,
    ) -> Vec<(ServiceKey, Reason, String)> {
        let now = round.now;
        if self.passed_over(round, standing) < standing.candidates.len() {
            wake.at(now + PASS_OVER);
        }
        let Some(obstacle) = self.obstacle(round, standing) else { return Vec::new() };
        let due = since + obstacle.grace();
        if now < due {
            wake.at(due);
            return Vec::new();
        }
        let text = format!("no node announces the address; node {} cannot: {obstacle}", self.me);
        standing.members.iter().map(|view| (view.key.clone(), obstacle.reason(), text.clone())).collect()
    }

    /// The defects of this node that count for groups which it owns.
    fn note_defects(&mut self, round: &Round<'_>) -> Option<Defects> {
        let defects = match round.fitness[&self.me] {
            Fitness::Fit(defects) => Some(defects.to_keep()).filter(|defects| !defects.is_none()),
            Fitness::Excluded(_) => None,
        };
        self.unwell_since = defects.and(self.unwell_since.or(Some(round.now)));
        defects
    }

    /// Messages for the authors of a group whose owner is this node although it has a defect, because no other node is
    /// better.
    fn tell_unwell(
        &self,
        round: &Round<'_>,
        standing: &Standing<'_>,
        defects: Option<Defects>,
        wake: &mut Wake,
    ) -> Vec<(ServiceKey, Reason, String)> {
        let (Some(defects), Some(since)) = (defects, self.unwell_since) else { return Vec::new() };
        if !standing.is_of(&self.me) || round.yield_at.is_some() || standing.candidates.has_better_than(&self.me) {
            return Vec::new();
        }
        if round.now < since + START_GRACE {
            wake.at(since + START_GRACE);
            return Vec::new();
        }
        let text = format!(
            "node {} announces it because no node that may have it is better off, and it is not well itself: \
             {defects}. Clients may get no answer until one node is well",
            self.me
        );
        standing.members.iter().map(|view| (view.key.clone(), Reason::NoHealthyNode, text.clone())).collect()
    }

    /// Messages for the authors of Services whose terms no announcer has counted, from the owner of the group.
    fn tell_uncounted(&self, standing: &Standing<'_>) -> Vec<(ServiceKey, Reason, String)> {
        if !standing.is_of(&self.me) {
            return Vec::new();
        }
        let told = standing.members.iter().filter_map(|view| {
            let term = view.published.term.filter(|term| !self.records.is_counted(*term))?;
            let accepted = "accepted is what the announcer itself has counted; it counts for this Service alone, and \
                            until the Service is made anew";
            let problem = Problem::new(TERM, &term.to_string(), accepted);
            Some((view.key.clone(), Reason::CannotAnnounce, problem.to_string()))
        });
        told.collect()
    }

    /// Services without an address: one node is assigned to report what is wrong with them.
    fn assign_unaddressed(&mut self, round: &Round<'_>) {
        let Round { context, fitness, .. } = *round;
        let candidates = line_of(fitness);
        for view in context.services.values().filter(|view| !context.groups.of.contains_key(&view.key)) {
            let mine = candidates.home(&view.uid.0) == Some(self.me.as_str());
            let owner = if mine && round.yield_at.is_none() { Owner::Mine } else { Owner::Theirs };
            self.assignment.owners.insert(view.key.clone(), owner);
        }
    }

    /// Stores the owner of each group, and starts the steps.
    fn conclude(
        &mut self,
        now: Instant,
        context: &ReviewContext<'_>,
        looks: Vec<GroupReview<'_>>,
        review: &mut Review,
        wake: &mut Wake,
    ) {
        for GroupReview { standing, owner, step, misplaced } in looks {
            let primary = standing.primary();
            for member in &standing.members {
                self.assignment.owners.insert(member.key.clone(), owner);
                self.assignment.primaries.insert(member.key.clone(), primary.key.clone());
                if let Some(owner_record) = &standing.owner_record {
                    self.assignment.owner_records.insert(member.key.clone(), owner_record.clone());
                }
            }
            match misplaced {
                Some((node, since)) => {
                    wake.at(since + FAIL_BACK_AFTER);
                    if let Some(at) = self.hand_overs.gave_back {
                        wake.at(at + GIVE_BACK_PAUSE);
                    }
                    self.hand_overs.misplaced.insert(primary.key.clone(), (node, since));
                }
                None => {
                    self.hand_overs.misplaced.remove(&primary.key);
                }
            }
            let swap = match step {
                Step::Rest | Step::LeaveUnreached => None,
                Step::Ask => {
                    if let Some(link) = standing.link {
                        // For an address of a family in which this node cannot ask nobody would ever be asked.
                        let askable = standing.owed().filter(|(address, _)| can_ask(context.network, link, *address));
                        self.ask(now, &primary.key, askable.map(|(address, _)| (link, address)).collect());
                    }
                    None
                }
                Step::Take(why) => {
                    let silent = self.missed_since(&standing);
                    self.begin_swap(now, &primary.key, &primary.uid, self.me.clone(), why.words(), silent)
                }
                Step::Give(_, Why::BelongsThere) if self.hand_overs.rests(now) => None,
                // At its end this node gives what it has once more, and no more.
                Step::Give(..) if !context.stopping && self.swaps.give_at(&primary.key).is_some_and(|at| now < at) => {
                    None
                }
                Step::Give(to, why) => {
                    if why == Why::BelongsThere {
                        self.hand_overs.gave_back = Some(now);
                    }
                    self.begin_swap(now, &primary.key, &primary.uid, to, why.words(), None)
                }
            };
            review.swaps.extend(swap.map(|swap| (primary.key.clone(), swap)));
        }
        if !context.stopping {
            review.swaps.extend(self.read_given_up(now));
        }
        let gained = std::mem::take(&mut self.records.gained);
        self.records.gained =
            gained.into_iter().filter(|gained| !self.tell(context, gained, &mut review.former_owners)).collect();
    }

    /// Adds the former owners that a record of ours concerns. Returns false if this node has no usable interface to
    /// tell them yet.
    fn tell(
        &self,
        context: &ReviewContext<'_>,
        (key, recipient): &(ServiceKey, Recipient),
        former_owners: &mut Vec<LostVip>,
    ) -> bool {
        // The tag is made with the UID of the first Service of the group, so only its record is told.
        let Some(owner_record) =
            self.owner_record(key).filter(|owner_record| owner_record.host == self.me && *self.primary(key) == *key)
        else {
            return true;
        };
        let all = context.groups;
        let members = all.of.get(key).and_then(|group| all.members.get(group)).into_iter().flatten();
        let views: Vec<&ServiceView> = members.filter_map(|key| context.services.get(key)).collect();
        if views.is_empty() {
            return true;
        }
        let address = addresses(&views).first().map(|(address, _)| *address);
        let Some(link) = link_of(context.network, context.config, self.placed_by(context, &views), address) else {
            return false;
        };
        let (hosts, suspected): (Vec<&str>, bool) = match recipient {
            // A term that counts for this Service alone is on no card, so no former owner can be known to have learnt
            // it.
            Recipient::Host(host) => (vec![host], !self.records.is_counted(owner_record.term)),
            Recipient::OutdatedMembers if !self.records.is_counted(owner_record.term) => return true,
            Recipient::OutdatedMembers => {
                (self.members().filter(|(_, card)| card.term < owner_record.term).map(|(host, _)| host).collect(), true)
            }
        };
        for host in hosts {
            let Some(there) = self.facts.towards(host, context.network, link) else { continue };
            former_owners.extend(vips(&views).into_iter().map(|vip| LostVip {
                owner: host.to_owned(),
                link,
                mac: there.mac,
                vip,
                term: owner_record.term,
                service: key.clone(),
                suspected,
            }));
        }
        true
    }

    fn watch(&mut self, network: &Network, watched: BTreeMap<Succession, Vec<Watched>>, review: &mut Review) {
        let all =
            watched.iter().flat_map(|(of, vips)| vips.iter().map(|vip| ((of.owner.clone(), vip.address), vip.term)));
        self.silences.retain(&all.collect());
        review.targets = watched
            .into_iter()
            .filter(|(_, vips)| !vips.is_empty())
            .map(|(Succession { owner, link, rank, ahead }, mut vips)| {
                vips.sort_unstable();
                let apart = self.facts.lost_with(&owner);
                let nic_macs = self.facts.nic_macs_towards(&owner, network, link);
                Target { owner, link, rank, ahead, apart, nic_macs, vips }
            })
            .collect();
    }

    /// The fitness of every member; that of this node follows from its current card, not from its Lease.
    fn all_fitness(&self, now: Instant) -> BTreeMap<String, Fitness> {
        let others = self.facts.members().filter(|node| *node != self.me);
        let mut fitness: BTreeMap<String, Fitness> = others
            .filter_map(|node| Some((node.to_owned(), self.facts.fitness(now, node, self.facts.card(node)?))))
            .collect();
        fitness.insert(self.me.clone(), self.facts.fitness(now, &self.me, &self.card));
        fitness
    }
}
