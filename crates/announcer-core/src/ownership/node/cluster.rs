//! What this node knows of the cluster, and what it has begun: records, swaps under way, questions, hand-overs.
//! `review.rs` draws the conclusions.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use l2_types::Mac;

use super::asking::Asking;
use super::decide::Asked;
use super::facts::Facts;
use super::hand_overs::HandOvers;
use super::member::Fitness;
use super::owner_records::{Learnt, OwnerRecords, Recipient};
use super::silence::Silences;
use super::swaps::{Change, PendingSwaps};
use super::timing::TOLD_AFTER;
use super::unable::Unable;
use super::{Card, ForeignLock, Member, NodeFacts, OwnerRecord, Term, Verdict};
use crate::frames::{Frame, Heard};
use crate::ownership::{Owner, Ownership};
use crate::screen::Machine;
use crate::view::{ServiceKey, ServiceView, Uid};

/// While somebody else holds the Lease for all Services, everything is his.
#[derive(Debug, Default)]
pub(super) struct Foreign {
    /// Since when that is so.
    pub since: Option<Instant>,
    /// Services whose authors know that a Lease which nobody renews keeps them from being announced.
    pub told: BTreeSet<ServiceKey>,
}

/// Whose each Service is, as the last review has found.
#[derive(Debug, Default)]
pub(super) struct Assignment {
    pub owners: BTreeMap<ServiceKey, Owner>,
    /// The Service whose record counts for each.
    pub primaries: BTreeMap<ServiceKey, ServiceKey>,
    /// The record of each Service's group.
    pub owner_records: BTreeMap<ServiceKey, OwnerRecord>,
    /// What was seen of the API was of that time.
    pub in_touch: bool,
}

/// `node` mode, as one node sees it.
#[derive(Debug)]
pub struct Cluster {
    pub(super) me: String,
    pub(super) facts: Facts,
    /// This node's own card as it is now.
    pub(super) card: Card,
    /// Since when something is wrong with this node.
    pub(super) unwell_since: Option<Instant>,
    pub(super) records: OwnerRecords,
    pub(super) swaps: PendingSwaps,
    asking: BTreeMap<ServiceKey, Asking>,
    /// Owners found silent.
    pub(super) silences: Silences,
    pub(super) hand_overs: HandOvers,
    /// Groups whose addresses the kernel refuses here.
    pub(super) unable: Unable,
    /// Groups that nobody owns, and since when.
    pub(super) vacant: BTreeMap<ServiceKey, Instant>,
    pub(super) foreign: Foreign,
    pub(super) assignment: Assignment,
    /// When the last review wanted the next one, but for what changes in `facts` by itself.
    pub(super) next: Option<Instant>,
    /// When that is.
    pub(super) facts_next: Option<Instant>,
}

impl Cluster {
    /// Knows nothing. `lease` is the duration of our own membership Lease.
    pub fn new(me: String, lease: Duration) -> Self {
        Self {
            facts: Facts::new(me.clone(), lease),
            me,
            card: Card::default(),
            unwell_since: None,
            records: OwnerRecords::default(),
            swaps: PendingSwaps::default(),
            asking: BTreeMap::new(),
            silences: Silences::default(),
            hand_overs: HandOvers::default(),
            unable: Unable::default(),
            vacant: BTreeMap::new(),
            foreign: Foreign::default(),
            assignment: Assignment::default(),
            next: None,
            facts_next: None,
        }
    }

    /// A membership Lease was read; absent: it is gone. True if there is something to review: a renewal in time, as
    /// each node writes one every few seconds, moves nothing but its own deadline.
    pub fn member(&mut self, now: Instant, node: String, member: Option<Member>) -> bool {
        // What is due already is not forgotten for a renewal of somebody else.
        let due = self.facts_next.is_some_and(|at| at <= now);
        // What a silent owner says of itself by now may be what we wait for.
        let told = self.silences.since(&node).is_some_and(|since| now >= since + TOLD_AFTER);
        let news = self.facts.member(now, node, member) || due || told;
        if !news {
            self.facts_next = self.facts.deadline(now);
        }
        news
    }

    /// All membership Leases have been read once.
    pub fn members_synced(&mut self, now: Instant) {
        self.facts.members_synced(now);
    }

    /// Where API servers are.
    pub fn api_servers(&mut self, servers: BTreeSet<IpAddr>) {
        self.facts.api_servers = servers;
    }

    /// Addresses that no Service may have, and who speaks about them.
    pub fn machines(&self) -> BTreeMap<IpAddr, Machine> {
        let mut machines = BTreeMap::new();
        if let Some(reporter) = self.facts.members().next() {
            for server in &self.facts.api_servers {
                let what = "the address of an API server of this cluster".to_owned();
                machines.insert(*server, Machine { what, interface: None, reporter: reporter.to_owned() });
            }
        }
        for (node, net) in self.facts.own_addresses() {
            let mut note = |address: IpAddr, what: String| {
                machines.entry(address).or_insert(Machine { what, interface: None, reporter: node.to_owned() });
            };
            note(net.addr(), format!("the own address of node {node}"));
            // Links between two and single addresses have neither (RFC 3021); in IPv6 nobody has (RFC 4291).
            if net.addr().is_ipv4() && net.prefix_len() < 31 {
                note(net.network(), format!("the network address of {}", net.trunc()));
                note(net.broadcast(), format!("the broadcast address of {}", net.trunc()));
            }
        }
        for (node, interface, address) in self.facts.occupied() {
            let what = format!("on interface {interface} of node {node}");
            let machine = Machine { what, interface: Some(interface.to_owned()), reporter: node.to_owned() };
            machines.entry(address).or_insert(machine);
        }
        machines
    }

    /// A Node was read; absent: it is gone.
    pub fn node(&mut self, now: Instant, name: String, facts: Option<NodeFacts>) {
        self.facts.node(now, name, facts);
    }

    /// All Nodes have been read once, or may not be read.
    pub fn nodes_synced(&mut self, readable: bool) {
        self.facts.nodes_synced(readable);
    }

    /// The Lease for all Services was read; absent: there is none.
    pub fn foreign(&mut self, now: Instant, lock: Option<ForeignLock>) {
        self.facts.foreign(now, lock);
    }

    /// What this node says about itself; the term is filled in. What it has won itself, heard, or read of others is no
    /// sign that it knows what it has lost: its watch may stand still.
    pub fn set_card(&mut self, now: Instant, mut card: Card) {
        card.term = self.records.watched_term;
        card.unable = self.unable.on_card(now);
        card.yields = self.foreign.since.is_some();
        self.card = card;
    }

    /// Whom this node hears by now.
    pub fn note_heard(&mut self, hears: BTreeMap<String, u8>) {
        self.card.hears = hears;
    }

    /// Whether the review has found out more than the card says.
    pub fn is_card_outdated(&self, now: Instant) -> bool {
        self.card.unable != self.unable.on_card(now) || self.card.yields != self.foreign.since.is_some()
    }

    /// What to write into our Lease.
    pub fn card(&self) -> &Card {
        &self.card
    }

    /// decisions.md 26: whether this process, which is about to end, is followed by another one on this node.
    pub fn stays(&self) -> bool {
        self.facts.goes_on() && self.card.serving && self.foreign.since.is_none()
    }

    /// What has to be read before owners can be told.
    pub fn unknown(&self) -> Option<&'static str> {
        self.facts.unknown()
    }

    /// Whether the kube-vip that has everything is on this node.
    pub fn is_guest(&self, now: Instant) -> bool {
        self.facts.foreign_holder(now).is_some_and(|(holder, _)| holder.eq_ignore_ascii_case(&self.me))
    }

    /// The detector has found something out.
    pub fn verdict(&mut self, now: Instant, verdict: Verdict) {
        self.silences.note(now, verdict);
    }

    /// The Service whose record counts for this one.
    pub fn primary<'a>(&'a self, key: &'a ServiceKey) -> &'a ServiceKey {
        self.assignment.primaries.get(key).unwrap_or(key)
    }

    /// A claim with a good tag (decisions.md 23): withdraw first, ask later. True if it is newer than what we go by.
    pub fn claimed(&mut self, now: Instant, key: &ServiceKey, term: Term) -> bool {
        self.records.note_heard(term);
        let newer =
            self.owner_record(key).is_some_and(|owner_record| owner_record.host == self.me && owner_record.term < term);
        if newer || self.hand_overs.lingering.contains_key(key) {
            // Whose it is now will be read; until then it is nobody's that we know.
            self.hand_overs.lingering.remove(key);
            self.records.give_up(key, term);
            self.swaps.note_lost(now, key);
            return true;
        }
        false
    }

    /// A frame about an address that everybody was asked about.
    pub fn frame(&mut self, now: Instant, frame: &Frame, own: impl Fn(Mac) -> bool) -> bool {
        if frame.what == Heard::Probe || own(frame.mac) {
            return false;
        }
        let mut news = false;
        for asking in self.asking.values_mut() {
            news |= asking.heard(now, frame);
        }
        news
    }

    /// Changes of owner since the last call.
    pub fn take_changes(&mut self) -> Vec<Change> {
        std::mem::take(&mut self.swaps.changes)
    }

    /// The record that the group of `key` has.
    pub fn owner_record(&self, key: &ServiceKey) -> Option<&OwnerRecord> {
        self.assignment.owner_records.get(key)
    }

    /// Whether it was handed over, and is served until the new owner is heard.
    pub fn is_lingering(&self, key: &ServiceKey) -> bool {
        self.hand_overs.lingering.contains_key(key)
    }

    /// The new owner of all that we served for a last moment was heard.
    pub fn successor_heard(&mut self, key: &ServiceKey) {
        self.hand_overs.lingering.remove(key);
    }

    /// A record was seen, by watch or by swap.
    pub(super) fn learn(&mut self, now: Instant, key: &ServiceKey, uid: &Uid, owner_record: &OwnerRecord) {
        let Some(Learnt { before, regained }) = self.records.learn(&self.me, key, uid, owner_record.clone()) else {
            return;
        };
        // The watch may be faster than the answer, and the answer may never come.
        if self.swaps.pending.get(key).is_some_and(|pending| pending.asked_for(uid, owner_record)) {
            self.achieved(now, key, owner_record);
        } else {
            // Gone on from the one to whom it was handed, who most probably was found silent: then nobody has heard us
            // either, when everybody was asked, and the claims go to that one. Clients are not served from here any
            // more.
            self.hand_overs.lingering.remove(key);
            if owner_record.host == self.me && regained {
                if let Some(from) = before.as_ref().filter(|from| self.is_unwell(now, from)) {
                    self.hand_overs.lent.insert(key.clone(), from.clone());
                }
                let change = Change { key: key.clone(), from: before, why: "it was handed over", silent: None };
                self.swaps.changes.push(change);
            }
        }
        self.asking.remove(key);
    }

    /// Something is wrong with that node, and its announcer is not ending.
    fn is_unwell(&self, now: Instant, node: &str) -> bool {
        let card = self.facts.card(node);
        card.is_some_and(|card| {
            let fitness = self.facts.fitness(now, node, card);
            matches!(fitness, Fitness::Fit(defects) if !defects.to_keep().is_none())
        })
    }

    /// The watch has shown a record.
    pub(super) fn learn_from_watch(&mut self, now: Instant, view: &ServiceView, owner_record: &OwnerRecord) {
        self.records.note_watched(owner_record.term);
        let known = self.records.get(&view.key).is_some_and(|(uid, _)| *uid == view.uid);
        // Nobody knows whom the process before this one has told.
        if !known && owner_record.host == self.me && !self.swaps.pending.contains_key(&view.key) {
            self.records.gained.push((view.key.clone(), Recipient::OutdatedMembers));
        }
        self.learn(now, &view.key, &view.uid, owner_record);
    }

    pub(super) fn record(&self, key: &ServiceKey, uid: &Uid) -> Option<&OwnerRecord> {
        self.records.of(key, uid)
    }

    /// decisions.md 20. The cards are the announcers' own.
    pub(super) fn newest_term(&self) -> Term {
        self.records.newest_term().max(self.facts.newest_term())
    }

    pub(super) fn asked(&self, now: Instant, key: &ServiceKey) -> Asked {
        self.asking.get(key).map_or(Asked::NotYet, |asking| asking.state(now))
    }

    /// Who has answered the question to everybody.
    pub(super) fn answered_by(&self, key: &ServiceKey) -> Option<Mac> {
        self.asking.get(key).and_then(Asking::answered_by)
    }

    pub(super) fn ask(&mut self, now: Instant, key: &ServiceKey, addresses: Vec<(u32, IpAddr)>) {
        self.asking.insert(key.clone(), Asking::begin(now, addresses));
    }

    /// The questions that are due.
    pub(super) fn questions(&mut self, now: Instant) -> Vec<(u32, IpAddr)> {
        let mut due = Vec::new();
        for asking in self.asking.values_mut() {
            if asking.due(now) {
                due.extend(asking.addresses.iter().copied());
            }
        }
        due
    }

    /// Nothing is known of Services that are gone.
    pub(super) fn retain(&mut self, now: Instant, services: &BTreeMap<ServiceKey, ServiceView>) {
        let facts = &self.facts;
        let knows = |host: &str, lost| facts.card(host).is_none_or(|card| card.term >= lost);
        self.records.retain(|key| services.get(key).map(|view| view.uid.clone()), knows);
        let is_there = |key: &ServiceKey| services.contains_key(key);
        self.swaps.retain(now, is_there);
        self.asking.retain(|key, _| is_there(key));
        let (records, me) = (&self.records, &self.me);
        let is_mine = |key: &ServiceKey| records.get(key).is_some_and(|(_, owner_record)| owner_record.host == *me);
        self.hand_overs.retain(now, is_there, is_mine);
    }

    /// When it has to be looked at again by itself.
    pub fn deadline(&self) -> Option<Instant> {
        self.next.into_iter().chain(self.facts_next).min()
    }

    pub(super) fn own_deadline(&self, now: Instant) -> Option<Instant> {
        let asking = self.asking.values().map(Asking::deadline);
        let lingering = self.hand_overs.lingering.values().copied();
        let unable = self.unable.deadline(now);
        asking.chain(self.swaps.deadlines()).chain(unable).chain(lingering).filter(|at| *at > now).min()
    }

    /// Whether this node waits for the API to take another owner; also where it is to be asked again.
    pub fn has_swaps(&self) -> bool {
        self.swaps.pending.values().any(|pending| pending.swap.owner_record.host != self.me)
    }

    /// Whether the record of its group names somebody else.
    pub fn is_handed_over(&self, key: &ServiceKey) -> bool {
        self.assignment.owner_records.get(key).is_some_and(|owner_record| owner_record.host != self.me)
    }

    /// The other nodes that take part, and what they say.
    pub fn members(&self) -> impl Iterator<Item = (&str, &Card)> {
        self.facts.members().filter(|node| *node != self.me).filter_map(|node| Some((node, self.facts.card(node)?)))
    }

    /// What that node says of itself, also if it has not renewed that for long; absent: it takes no part.
    pub fn card_of(&self, node: &str) -> Option<&Card> {
        self.facts.card(node)
    }

    /// Whether this is, or was, an interface of another node that takes part.
    pub fn is_of_member(&self, mac: Mac) -> bool {
        self.facts.is_of_member(mac)
    }
}

impl Ownership for Cluster {
    fn of(&self, service: &ServiceView) -> Owner {
        self.assignment.owners.get(&service.key).copied().unwrap_or(Owner::Undecided)
    }

    fn confirmed(&self, service: &ServiceView) -> bool {
        self.assignment.in_touch && self.of(service) == Owner::Mine
    }
}

#[cfg(test)]
mod tests;
