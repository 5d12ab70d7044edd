//! What this node knows of the cluster, and what it has started: records, pending swaps, questions, hand-overs.
//! `review.rs` draws the conclusions.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use l2_types::Mac;

use super::asking::Asking;
use super::decide::QuestionState;
use super::facts::ApiFacts;
use super::hand_overs::HandOvers;
use super::owner_records::{Learnt, OwnerRecords, Recipient};
use super::silence::Silences;
use super::swaps::{Change, Pending, PendingSwaps};
use super::unable::Unable;
use super::{Card, Member, OwnerRecord, OwnerVerdict, Term};
use crate::frames::{Frame, Heard};
use crate::ownership::{Owner, Ownership};
use crate::screen::ForbiddenAddress;
use crate::view::{ServiceKey, ServiceView, Uid};

/// State of yielding: while another program holds the Lease for all Services, this node leaves all VIPs to it.
#[derive(Debug, Default)]
pub(super) struct Foreign {
    /// Since when another program holds it.
    pub since: Option<Instant>,
    /// Services whose authors were told that a Lease which is not renewed keeps them from being announced.
    pub told: BTreeSet<ServiceKey>,
}

/// The owner of each Service, as the last review determined it.
#[derive(Debug, Default)]
pub(super) struct Assignment {
    pub owners: BTreeMap<ServiceKey, Owner>,
    /// For each Service, the Service of its group whose record counts.
    pub primaries: BTreeMap<ServiceKey, ServiceKey>,
    /// The record of each Service's group.
    pub owner_records: BTreeMap<ServiceKey, OwnerRecord>,
    /// Whether this node's view of the API was current at the last review.
    pub in_touch: bool,
}

/// The state of `node` mode on one node.
#[derive(Debug)]
pub struct Cluster {
    pub(super) me: String,
    pub(crate) facts: ApiFacts,
    /// This node's own card as it is now.
    pub(super) card: Card,
    /// Since when this node has a defect.
    pub(super) unwell_since: Option<Instant>,
    pub(super) records: OwnerRecords,
    pub(super) swaps: PendingSwaps,
    asking: BTreeMap<ServiceKey, Asking>,
    /// Owners that the detector found silent.
    pub(super) silences: Silences,
    pub(super) hand_overs: HandOvers,
    /// Groups whose addresses the kernel of this node refuses.
    pub(super) unable: Unable,
    /// Groups without an owner, and since when.
    pub(super) vacant: BTreeMap<ServiceKey, Instant>,
    pub(super) foreign: Foreign,
    pub(super) assignment: Assignment,
    /// When the last review wants the next one, apart from changes of `facts` over time.
    pub(super) next: Option<Instant>,
    /// When `facts` change over time without an event.
    pub(super) facts_next: Option<Instant>,
}

impl Cluster {
    /// Starts without any knowledge. `lease` is the duration of our own membership Lease.
    pub fn new(me: String, lease: Duration) -> Self {
        Self {
            facts: ApiFacts::new(me.clone(), lease),
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

    /// A membership Lease was read; `None` means it was deleted. Returns true if a review is needed. Each node renews
    /// its Lease every few seconds, and a renewal in time only moves that node's expiry.
    pub fn member(&mut self, now: Instant, node: String, member: Option<Member>) -> bool {
        if let Some(member) = &member {
            self.records.note_on_card(member.card.term);
        }
        // A review that is already due must not be lost when another node's renewal moves the deadline.
        let due = self.facts_next.is_some_and(|at| at <= now);
        // This node may be waiting for what a silent owner writes about itself after it fell silent.
        let renewed = self.facts.renewed_at(&node);
        let told = self.silences.is_told(now, &node, renewed) || self.hand_overs.is_awaited(now, &node, renewed);
        let news = self.facts.member(now, node, member) || due || told;
        if !news {
            self.facts_next = self.facts.deadline(now);
        }
        news
    }

    /// Addresses that no Service may have, each with the node that reports the conflict. `gateway`: the default one of
    /// this node.
    pub fn forbidden(&self, gateway: Option<IpAddr>) -> BTreeMap<IpAddr, ForbiddenAddress> {
        let mut forbidden: BTreeMap<IpAddr, ForbiddenAddress> = BTreeMap::new();
        let reporter = self.facts.members().next();
        let told_by_first = |what: &str| {
            reporter.map(|reporter| ForbiddenAddress {
                what: what.to_owned(),
                interface: None,
                reporter: reporter.to_owned(),
            })
        };
        for server in &self.facts.api_servers {
            let entry = told_by_first("the address of an API server of this cluster");
            forbidden.extend(entry.map(|entry| (*server, entry)));
        }
        for (node, net) in self.facts.own_addresses() {
            let mut note = |address: IpAddr, what: String| {
                forbidden.entry(address).or_insert(ForbiddenAddress {
                    what,
                    interface: None,
                    reporter: node.to_owned(),
                });
            };
            note(net.addr(), format!("the own address of node {node}"));
            // Point-to-point links (RFC 3021) and single addresses have no network or broadcast address, and neither
            // has IPv6 (RFC 4291).
            if net.addr().is_ipv4() && net.prefix_len() < 31 {
                note(net.network(), format!("the network address of {}", net.trunc()));
                note(net.broadcast(), format!("the broadcast address of {}", net.trunc()));
            }
        }
        for (node, interface, address) in self.facts.occupied() {
            let what = format!("on interface {interface} of node {node}");
            let entry = ForbiddenAddress { what, interface: Some(interface.to_owned()), reporter: node.to_owned() };
            forbidden.entry(address).or_insert(entry);
        }
        // Last, because a member may be the gateway of the others: it reports that itself, as its own address.
        if let Some((gateway, entry)) = gateway.zip(told_by_first("the default gateway")) {
            forbidden.entry(gateway).or_insert(entry);
        }
        forbidden
    }

    /// Sets what this node says about itself; term, `unable` and `yields` are filled in here. The term is the newest
    /// that the watch has shown. Terms that this node wrote itself, heard on the wire or read on cards do not prove
    /// that it knows what it has lost, because its watch may be stalled.
    pub fn set_card(&mut self, now: Instant, mut card: Card) {
        card.term = self.records.watched_term;
        card.unable = self.unable.on_card(now);
        card.yields = self.foreign.since.is_some();
        self.card = card;
    }

    /// Sets how many hosts this node hears now, and whether its gateways answer it, by interface. Returns true if a
    /// review is needed.
    pub fn note_heard(&mut self, hears: BTreeMap<String, u8>, gateways: BTreeMap<String, bool>) -> bool {
        let changed = self.card.gateways != gateways;
        (self.card.hears, self.card.gateways) = (hears, gateways);
        changed
    }

    /// Whether the last review found something that this node's card does not say yet.
    pub fn is_card_outdated(&self, now: Instant) -> bool {
        self.card.unable != self.unable.on_card(now) || self.card.yields != self.foreign.since.is_some()
    }

    /// The card to write into our own Lease.
    pub fn card(&self) -> &Card {
        &self.card
    }

    /// Whether another process will follow this one, which is about to end, on the same node (decisions.md 26).
    pub fn stays(&self) -> bool {
        self.facts.goes_on() && self.card.serving && self.foreign.since.is_none()
    }

    /// Whether the foreign holder of the Lease for all Services runs on this node.
    pub fn is_beside_kube_vip(&self, now: Instant) -> bool {
        self.facts.foreign_holder(now).is_some_and(|(holder, _)| holder.eq_ignore_ascii_case(&self.me))
    }

    /// Takes in a verdict of the detector.
    pub fn verdict(&mut self, now: Instant, verdict: OwnerVerdict) {
        self.silences.note(now, verdict);
    }

    /// The Service whose record counts for the group of `key`.
    pub fn primary<'a>(&'a self, key: &'a ServiceKey) -> &'a ServiceKey {
        self.assignment.primaries.get(key).unwrap_or(key)
    }

    /// A claim with a valid tag was received (decisions.md 23): withdraw first, ask later. Returns true if this node
    /// has to withdraw.
    pub fn claimed(&mut self, now: Instant, key: &ServiceKey, term: Term) -> bool {
        self.records.note_heard(term);
        let newer =
            self.owner_record(key).is_some_and(|owner_record| owner_record.host == self.me && owner_record.term < term);
        if newer || self.hand_overs.lingering.contains_key(key) {
            // The API will show the new owner; until then no owner is known.
            self.hand_overs.lingering.remove(key);
            if let Some((uid, own)) = self.records.give_up(key, term).filter(|(_, own)| own.host == self.me) {
                self.swaps.given_up.note(now, key, &uid, own, term);
            }
            self.swaps.note_lost(now, key);
            return true;
        }
        false
    }

    /// A frame about an address that is being asked for by broadcast. Returns true if it is news.
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

    /// Changes of owner since the last call, for Events and logs.
    pub fn take_changes(&mut self) -> Vec<Change> {
        std::mem::take(&mut self.swaps.changes)
    }

    /// The record that counts for the group of `key`.
    pub fn owner_record(&self, key: &ServiceKey) -> Option<&OwnerRecord> {
        self.assignment.owner_records.get(key)
    }

    /// Whether this node has handed the group over and serves it until the new owner is heard.
    pub fn is_lingering(&self, key: &ServiceKey) -> bool {
        self.hand_overs.lingering.contains_key(key)
    }

    /// The new owner was heard for all VIPs of the group, so this node stops serving it.
    pub fn successor_heard(&mut self, key: &ServiceKey) {
        self.hand_overs.lingering.remove(key);
    }

    /// Takes in a record that the watch or a swap has shown.
    pub(super) fn learn(&mut self, now: Instant, key: &ServiceKey, uid: &Uid, owner_record: &OwnerRecord) {
        let Some(Learnt { before, regained }) = self.records.learn(&self.me, key, uid, owner_record.clone()) else {
            return;
        };
        // The watch may be faster than the answer to the swap, and the answer may never arrive.
        if self.swaps.pending.get(key).is_some_and(|pending| pending.asked_for(uid, owner_record)) {
            self.achieved(now, key, owner_record);
        } else {
            // The record moved on from the node that got the group from us; that node was most probably found silent.
            // So our answer to the broadcast question was not heard either, and the claims go to that node. This node
            // stops serving.
            self.hand_overs.lingering.remove(key);
            if owner_record.host == self.me && regained {
                if let Some(from) = &before {
                    self.hand_overs.note_received(now, key, from);
                }
                let change = Change { key: key.clone(), from: before, why: "it was handed over", silent: None };
                self.swaps.changes.push(change);
            }
        }
        self.asking.remove(key);
    }

    /// Takes in a record that the watch has shown.
    pub(super) fn learn_from_watch(&mut self, now: Instant, view: &ServiceView, owner_record: &OwnerRecord) {
        self.records.note_watched(owner_record.term);
        let known = self.records.get(&view.key).is_some_and(|(uid, _)| *uid == view.uid);
        // This node does not know which former owners its previous process has told, so it tells all outdated members.
        if !known && owner_record.host == self.me && !self.swaps.pending.contains_key(&view.key) {
            self.records.gained.push((view.key.clone(), Recipient::OutdatedMembers));
        }
        self.learn(now, &view.key, &view.uid, owner_record);
    }

    pub(super) fn asked(&self, now: Instant, key: &ServiceKey) -> QuestionState {
        self.asking.get(key).map_or(QuestionState::NotYet, |asking| asking.state(now))
    }

    /// The MAC that answered the broadcast question.
    pub(super) fn answered_by(&self, key: &ServiceKey) -> Option<Mac> {
        self.asking.get(key).and_then(Asking::answered_by)
    }

    pub(super) fn ask(&mut self, now: Instant, key: &ServiceKey, addresses: Vec<(u32, IpAddr)>) {
        self.asking.insert(key.clone(), Asking::begin(now, addresses));
    }

    /// A broadcast question could not be sent.
    pub fn not_sent(&mut self, link: u32, address: IpAddr) {
        self.asking.values_mut().for_each(|asking| asking.not_sent(link, address));
    }

    pub(super) fn questions(&mut self, now: Instant) -> Vec<(u32, IpAddr)> {
        let mut due = Vec::new();
        for asking in self.asking.values_mut() {
            if asking.due(now) {
                due.extend(asking.addresses.iter().copied());
            }
        }
        due
    }

    /// Forgets Services that do not exist any more.
    pub(super) fn retain(&mut self, now: Instant, services: &BTreeMap<ServiceKey, ServiceView>) {
        let facts = &self.facts;
        let knows = |host: &str, lost| facts.card(host).is_none_or(|card| card.term >= lost);
        self.records.retain(|key| services.get(key).map(|view| view.uid.clone()), knows);
        let is_there = |key: &ServiceKey| services.contains_key(key);
        self.swaps.retain(now, is_there);
        self.asking.retain(|key, _| is_there(key));
        let records = &self.records;
        let owner = |key: &ServiceKey| records.get(key).map(|(_, owner_record)| owner_record.host.as_str());
        self.hand_overs.retain(now, &self.me, is_there, owner);
    }

    /// When the next review is due without an event.
    pub fn deadline(&self) -> Option<Instant> {
        self.next.into_iter().chain(self.facts_next).min()
    }

    pub(super) fn own_deadline(&self, now: Instant) -> Option<Instant> {
        let asking = self.asking.values().map(Asking::deadline);
        let lingering = self.hand_overs.lingering.values().copied();
        let unable = self.unable.deadline(now);
        asking.chain(self.swaps.deadlines()).chain(unable).chain(lingering).filter(|at| *at > now).min()
    }

    /// Whether this node waits for the API to accept another owner; true also between two attempts.
    pub fn has_swaps(&self) -> bool {
        self.swaps.pending.values().any(|pending| pending.swap.owner_record.host != self.me)
    }

    /// Whether a record of this node's is being read again, or taken: until the API has answered, it can be given to
    /// nobody.
    pub fn reads_records(&self, now: Instant) -> bool {
        let is_asked = |pending: &Pending| pending.swap.owner_record.host == self.me && pending.is_under_way(now);
        self.swaps.pending.values().any(is_asked)
    }

    /// Whether the record of the group names another node.
    pub fn is_handed_over(&self, key: &ServiceKey) -> bool {
        self.assignment.owner_records.get(key).is_some_and(|owner_record| owner_record.host != self.me)
    }

    /// The other nodes with a membership Lease, and their cards.
    pub fn members(&self) -> impl Iterator<Item = (&str, &Card)> {
        self.facts.members().filter(|node| *node != self.me).filter_map(|node| Some((node, self.facts.card(node)?)))
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
