//! From what is known to what is to be done: every group looked at, its owner told, swaps and questions begun, owners to
//! watch named.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use l2::netlink::Link;

use super::decide::{Case, Holder, Step, decide};
use super::member::Fitness;
use super::reach::{addresses, can_ask, farthest, wants_ipv6};
use super::{Cluster, Loser, Seat, Swap, Target, Targets, Term, Watched, place};
use crate::config::Config;
use crate::endpoints::{EligibleNodes, Endpoints, eligible_nodes};
use crate::group::{GroupKey, Groups};
use crate::network::{InterfaceError, Network};
use crate::ownership::Owner;
use crate::view::{ServiceKey, ServiceView};

/// Between a hand-over and withdrawing, if the new owner is not heard before.
pub const LINGER: Duration = Duration::from_secs(2);
/// decisions.md 19: so long is served what a kube-vip has taken and does not answer for yet.
const FOREIGN_GRACE: Duration = Duration::from_secs(2);
/// When all announcers start together the first one must not get everything.
const SETTLE: Duration = Duration::from_secs(3);
/// So long everybody waits for the one before him to take what nobody owns: his Lease may outlive him.
const PASS_OVER: Duration = Duration::from_secs(2);
/// A group has to belong elsewhere for this long before it is handed back there.
const FAIL_BACK_AFTER: Duration = Duration::from_mins(1);

/// What a review looks at, beside what the cluster has told.
#[derive(Debug)]
pub struct Scene<'a> {
    /// Services that are ours to announce.
    pub services: &'a BTreeMap<ServiceKey, ServiceView>,
    /// Which of them share an address.
    pub groups: &'a Groups,
    /// Where those with policy Local have endpoints.
    pub endpoints: &'a Endpoints,
    /// This node.
    pub network: &'a Network,
    /// The configuration.
    pub config: &'a Config,
    /// Service addresses that are on this node, or were when we began.
    pub holding: &'a BTreeSet<IpAddr>,
    /// The process is about to end.
    pub stopping: bool,
}

/// What comes of it.
#[derive(Debug, Default)]
pub struct Review {
    /// Records to swap.
    pub swaps: Vec<(ServiceKey, Swap)>,
    /// Addresses to ask everybody about, with the interface.
    pub questions: Vec<(u32, IpAddr)>,
    /// Owners to watch.
    pub targets: Targets,
    /// Who has to learn that an address is ours now.
    pub losers: Vec<Loser>,
    /// Interfaces on which answers and claims have to be heard.
    pub links: BTreeSet<(u32, bool)>,
    /// What authors have to know of Services that no node takes: reason and text.
    pub told: Vec<(ServiceKey, &'static str, String)>,
}

/// One group with all that is known of it.
pub(super) struct Standing<'a> {
    pub key: String,
    pub members: Vec<&'a ServiceView>,
    /// Addresses on the wire, with the MAC of their macvlan.
    addresses: Vec<(IpAddr, Option<l2::Mac>)>,
    /// Our interface for them.
    link: Option<u32>,
    seat: Option<Seat>,
    candidates: Vec<&'a str>,
    keeps: bool,
    /// Where its endpoints are, if that counts.
    pub only: Option<BTreeSet<String>>,
}

impl Cluster {
    /// Looks at everything. Called after each change and at [`Cluster::deadline`].
    pub fn review(&mut self, now: Instant, scene: &Scene<'_>) -> Review {
        let mut review = Review::default();
        self.in_touch = self.facts.in_touch(now);
        self.owners.clear();
        self.seats.clear();
        self.primaries.clear();
        self.retain(now, scene.services);
        for view in scene.services.values() {
            if let (Some(host), Some(term)) = (&view.published.vip_host, view.published.term) {
                self.learn(now, &view.key, &view.uid, Seat { host: host.clone(), term });
            }
        }
        let mut wake: Option<Instant> = None;
        let mut at = |time: Instant| wake = Some(wake.map_or(time, |wake: Instant| wake.min(time)));
        let Some(known_since) = self.facts.known_since() else { return review };
        let foreign = self.facts.foreign_holder(now).map(|(holder, _)| holder.to_owned());
        match (&foreign, self.foreign_since) {
            (Some(holder), None) => {
                tracing::warn!(holder, "somebody else holds the Lease for all Services: leaving everything to it");
                self.foreign_since = Some(now);
            }
            (None, Some(_)) => {
                tracing::info!("nobody else holds the Lease for all Services any more");
                self.foreign_since = None;
            }
            _ => {}
        }
        let yield_at = self.foreign_since.map(|since| since + FOREIGN_GRACE);
        let settled = known_since + SETTLE;
        let unsettled = now < settled && self.facts.awaits_members();

        let all_groups = scene.groups;
        let me = self.me.clone();
        let fitness = self.all_fitness(now);
        let mut watched: BTreeMap<(String, u32, u8), Vec<Watched>> = BTreeMap::new();
        let (mut steps, mut vacant) = (Vec::new(), BTreeMap::new());
        let cluster = &*self;
        for (key, members) in &all_groups.members {
            let standing = cluster.standing(scene, &fitness, key, members);
            let primary = standing.members[0];
            let addresses: Vec<IpAddr> = standing.addresses.iter().map(|(address, _)| *address).collect();
            let holding = addresses.iter().any(|address| scene.holding.contains(address));
            let preferred = place::preferred(&standing.key, standing.candidates.iter().copied());
            let misplaced = preferred.filter(|node| *node != me);
            let since = cluster.misplaced.get(&primary.key).filter(|(node, _)| Some(node.as_str()) == misplaced);
            let since = since.map_or(now, |(_, since)| *since);
            let fail_back = scene.config.fail_back && misplaced.is_some() && now >= since + FAIL_BACK_AFTER;
            let towards = |owner: &str| cluster.facts.towards(owner, scene.network, standing.link?);
            let holder = match &standing.seat {
                Some(seat) if cluster.facts.card(&seat.host).is_none() => Holder::Absent,
                Some(seat) if !cluster.facts.is_expired(now, &seat.host) => Holder::Alive,
                Some(seat) if towards(&seat.host).is_none() => Holder::Unseen,
                Some(_) => Holder::Expired,
                None => Holder::Alive,
            };
            let waited = cluster.vacant.get(&primary.key).map_or(Duration::ZERO, |since| now.duration_since(*since));
            let passed_over = usize::try_from(waited.as_secs() / PASS_OVER.as_secs()).unwrap_or(usize::MAX);
            let case = Case {
                me: &me,
                group: &standing.key,
                seat: standing.seat.as_ref(),
                hint: primary.published.vip_host.as_deref(),
                holding,
                addressed: !addresses.is_empty(),
                published: addresses.iter().any(|address| primary.published.has(*address)),
                candidates: &standing.candidates,
                keeps: standing.keeps,
                holder,
                silent: standing.seat.as_ref().and_then(|seat| cluster.silence(&seat.host, &addresses)),
                asked: cluster.asked(now, &primary.key),
                stopping: scene.stopping,
                passed_over,
                fail_back,
            };
            let unowned = standing.seat.is_none() || holder == Holder::Absent;
            if unowned && !holding && !unsettled && foreign.is_none() {
                let since = cluster.vacant.get(&primary.key).copied().unwrap_or(now);
                vacant.insert(primary.key.clone(), since);
                if passed_over < standing.candidates.len() {
                    at(now + PASS_OVER);
                }
                if let Some(obstacle) = cluster.obstacle(now, scene, &fitness, &standing) {
                    let due = since + obstacle.grace();
                    if now < due {
                        at(due);
                    } else {
                        let text = format!("no node has taken it; what keeps node {me} from it: {obstacle}");
                        let members = standing.members.iter();
                        let told = members.map(|view| (view.key.clone(), obstacle.reason(), text.clone()));
                        review.told.extend(told);
                    }
                }
            }
            let mine = standing.seat.as_ref().is_some_and(|seat| seat.host == me);
            let lingering = cluster.lingering.contains_key(&primary.key);
            let (owner, step) = if foreign.is_some() {
                let grace = holding && yield_at.is_some_and(|at| now < at);
                (if grace { Owner::Undecided } else { Owner::Theirs }, Step::Rest)
            } else {
                let owner = match &standing.seat {
                    _ if mine => Owner::Mine,
                    Some(_) if lingering => Owner::Undecided,
                    None if holding => Owner::Undecided,
                    Some(_) | None => Owner::Theirs,
                };
                let new = standing.seat.is_none() && !holding;
                (owner, if new && unsettled { Step::Rest } else { decide(&case) })
            };
            if let (Some(seat), Some(link), None) = (&standing.seat, standing.link, &foreign)
                && !mine
                && !addresses.is_empty()
                && let Some(rank) = place::rank(&seat.host, &standing.candidates, &me).filter(|rank| *rank < 2)
                && let Some(there) = towards(&seat.host)
            {
                let askable = standing.addresses.iter().filter(|(address, _)| can_ask(scene.network, link, *address));
                let vips = askable.map(|(address, own)| Watched {
                    address: *address,
                    mac: own.unwrap_or(there.mac),
                    term: seat.term,
                });
                let rank = u8::try_from(rank).expect("it is less than two");
                watched.entry((seat.host.clone(), link, rank)).or_default().extend(vips);
            }
            if let Some(link) = standing.link {
                review.links.extend(addresses.iter().map(|address| (link, address.is_ipv4())));
            }
            steps.push((standing, owner, step, mine.then_some(misplaced).flatten().map(str::to_owned), since));
        }
        if foreign.is_some() {
            yield_at.into_iter().filter(|at| now < *at).for_each(&mut at);
        }
        if unsettled {
            at(settled);
        }
        self.vacant = vacant;
        self.conclude(now, scene, steps, &mut review, &mut at);
        self.watch(watched, &mut review);
        // Services without an address: somebody has to tell their authors what is wrong with them.
        for view in scene.services.values().filter(|view| !all_groups.of.contains_key(&view.key)) {
            let candidates =
                fitness.iter().filter(|(_, fitness)| **fitness == Fitness::Fit).map(|(node, _)| node.as_str());
            let mine = place::preferred(&view.uid.0, candidates) == Some(me.as_str());
            self.owners.insert(view.key.clone(), if mine && foreign.is_none() { Owner::Mine } else { Owner::Theirs });
        }
        review.questions = self.questions(now);
        self.next = self.own_deadline(now).into_iter().chain(wake).filter(|at| *at > now).min();
        review
    }

    /// Writes down who owns what, and begins what has to be done.
    fn conclude(
        &mut self,
        now: Instant,
        scene: &Scene<'_>,
        steps: Vec<(Standing<'_>, Owner, Step, Option<String>, Instant)>,
        review: &mut Review,
        at: &mut impl FnMut(Instant),
    ) {
        for (standing, owner, step, misplaced, since) in steps {
            let primary = standing.members[0];
            for member in &standing.members {
                self.owners.insert(member.key.clone(), owner);
                self.primaries.insert(member.key.clone(), primary.key.clone());
                if let Some(seat) = &standing.seat {
                    self.seats.insert(member.key.clone(), seat.clone());
                }
            }
            match misplaced.filter(|_| scene.config.fail_back) {
                Some(node) => {
                    if now < since + FAIL_BACK_AFTER {
                        at(since + FAIL_BACK_AFTER);
                    }
                    self.misplaced.insert(primary.key.clone(), (node, since));
                }
                None => {
                    self.misplaced.remove(&primary.key);
                }
            }
            let swap = match step {
                Step::Rest => None,
                Step::Ask => {
                    if let Some(link) = standing.link {
                        let addresses = standing.addresses.iter().map(|(address, _)| (link, *address)).collect();
                        self.ask(now, &primary.key, addresses);
                    }
                    None
                }
                Step::Take(why) => self.begin_swap(now, &primary.key, &primary.uid, self.me.clone(), why),
                Step::Give(to, why) => self.begin_swap(now, &primary.key, &primary.uid, to, why),
            };
            review.swaps.extend(swap.map(|swap| (primary.key.clone(), swap)));
        }
        for (key, from) in std::mem::take(&mut self.gained) {
            let Some(seat) = self.seats.get(&key).filter(|seat| seat.host == self.me) else { continue };
            // Its tag is made with the UID of the first.
            if *self.primary(&key) != key {
                continue;
            }
            review.losers.extend(self.losers(scene, &key, &from, seat.term));
        }
    }

    /// Where the claims go that tell `from` what it has lost.
    fn losers(&self, scene: &Scene<'_>, key: &ServiceKey, from: &str, term: Term) -> Vec<Loser> {
        let all = scene.groups;
        let members = all.of.get(key).and_then(|group| all.members.get(group)).cloned().unwrap_or_default();
        let views: Vec<&ServiceView> = members.iter().filter_map(|key| scene.services.get(key)).collect();
        let addresses = addresses(&views);
        let link = views.first().and_then(|view| link_of(scene, view, addresses.first().map(|(address, _)| *address)));
        let Some((link, there)) = link.and_then(|link| Some((link, self.facts.towards(from, scene.network, link)?)))
        else {
            return Vec::new();
        };
        let loser =
            |address| Loser { owner: from.to_owned(), link, mac: there.mac, address, term, service: key.clone() };
        addresses.into_iter().map(|(address, _)| loser(address)).collect()
    }

    fn watch(&mut self, watched: BTreeMap<(String, u32, u8), Vec<Watched>>, review: &mut Review) {
        let all = watched.iter().flat_map(|((owner, ..), vips)| vips.iter().map(|vip| (owner.clone(), vip.address)));
        self.retain_silent(&all.collect());
        review.targets = watched
            .into_iter()
            .filter(|(_, vips)| !vips.is_empty())
            .map(|((owner, link, rank), mut vips)| {
                vips.sort_unstable();
                Target { owner, link, rank, vips }
            })
            .collect();
    }

    /// Of every node that takes part; of ours by what we know ourselves.
    fn all_fitness(&self, now: Instant) -> BTreeMap<String, Fitness> {
        let others = self.facts.members().filter(|node| *node != self.me);
        let mut fitness: BTreeMap<String, Fitness> = others
            .filter_map(|node| Some((node.to_owned(), self.facts.fitness(now, node, self.facts.card(node)?))))
            .collect();
        fitness.insert(self.me.clone(), self.facts.fitness(now, &self.me, &self.card));
        fitness
    }

    fn standing<'a>(
        &self,
        scene: &Scene<'a>,
        fitness: &'a BTreeMap<String, Fitness>,
        key: &GroupKey,
        members: &[ServiceKey],
    ) -> Standing<'a> {
        let members: Vec<&ServiceView> = members.iter().filter_map(|key| scene.services.get(key)).collect();
        let addresses = addresses(&members);
        let link = link_of(scene, members[0], addresses.first().map(|(address, _)| *address));
        let records = members.iter().filter_map(|view| self.record(&view.key, &view.uid));
        // Of equal ones the older Service's: `max_by_key` would give the last.
        let seat = records.fold(None::<&Seat>, |best, seat| match best {
            Some(best) if best.term >= seat.term => Some(best),
            _ => Some(seat),
        });
        let EligibleNodes { only, .. } = eligible_nodes(members.iter().copied(), scene.endpoints);
        let served = |node: &str| only.as_ref().is_none_or(|nodes| nodes.contains(node));
        let reachable = |node: &str| self.reach(scene, members[0], link, node);
        let candidates = fitness.iter().filter(|(node, fitness)| **fitness == Fitness::Fit && served(node));
        let candidates = candidates.filter_map(|(node, _)| Some((node.as_str(), reachable(node)?))).collect();
        let (candidates, wanted) = farthest(candidates, wants_ipv6(&members, &addresses));
        let speechless = reachable(&self.me) < wanted;
        // No node would do better: it stays.
        let served_nowhere = only.as_ref().is_some_and(BTreeSet::is_empty);
        let keeps = !matches!(fitness[&self.me], Fitness::Unfit(_))
            && (served(&self.me) || served_nowhere)
            && link.is_some()
            && !speechless;
        Standing { key: key.to_string(), members, addresses, link, seat: seat.cloned(), candidates, keeps, only }
    }
}

impl Standing<'_> {
    /// This node's interface for it, whether it can be used or not.
    pub fn chosen<'a>(&self, scene: &Scene<'a>) -> Result<&'a Link, InterfaceError> {
        chosen(scene, self.members[0], self.addresses.first().map(|(address, _)| *address))
    }
}

/// This node's interface for a group.
fn link_of(scene: &Scene<'_>, view: &ServiceView, address: Option<IpAddr>) -> Option<u32> {
    let link = chosen(scene, view, address).ok()?;
    link.is_usable().then_some(link.index)
}

fn chosen<'a>(scene: &Scene<'a>, view: &ServiceView, address: Option<IpAddr>) -> Result<&'a Link, InterfaceError> {
    let address = address.filter(|_| !view.wants_dhcp() && !view.wants_dhcp6());
    scene.network.choose(&view.interface, scene.config, address)
}
