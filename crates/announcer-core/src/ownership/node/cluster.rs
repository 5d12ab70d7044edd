//! What this node knows of the cluster, and what it has begun: records, swaps under way, questions, hand-overs.
//! `review.rs` draws the conclusions.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use l2_types::Mac;

use super::asking::Asking;
use super::decide::Asked;
use super::facts::Facts;
use super::member::Fitness;
use super::silence::Silences;
use super::stranger::TOLD_AFTER;
use super::swaps::{Change, Pending, SETTLED, Taken};
use super::unable::Unable;
use super::{Card, ForeignLock, Member, NodeFacts, OwnerRecord, Term, Verdict};
use crate::frames::{Frame, Heard};
use crate::ownership::{Owner, Ownership};
use crate::screen::Machine;
use crate::view::{ServiceKey, ServiceView, Uid};

/// Who has to learn that a record is ours.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Recipient {
    /// A host that the record has named before.
    Host(String),
    /// Every member whose watch has not come as far.
    OutdatedMembers,
}

/// `node` mode, as one node sees it.
#[derive(Debug)]
pub struct Cluster {
    pub(super) me: String,
    pub(super) facts: Facts,
    pub(super) api_servers: BTreeSet<IpAddr>,
    /// This node's own card as it is now.
    pub(super) card: Card,
    /// The newest record of each Service that was seen, by watch or by swap. It outlives the annotation: somebody may
    /// have replaced all annotations.
    pub(super) records: BTreeMap<ServiceKey, (Uid, OwnerRecord)>,
    /// The newest term heard on the wire.
    heard: Term,
    /// The newest term that the watch has shown.
    pub(super) watched_term: Term,
    pub(super) pending: BTreeMap<ServiceKey, Pending>,
    asking: BTreeMap<ServiceKey, Asking>,
    pub(super) taken: BTreeMap<ServiceKey, Taken>,
    /// Owners found silent.
    pub(super) silences: Silences,
    /// Handed over, and still served until then or until the new owner is heard.
    pub(super) lingering: BTreeMap<ServiceKey, Instant>,
    /// Groups that belong to another node, and since when.
    pub(super) misplaced: BTreeMap<ServiceKey, (String, Instant)>,
    /// Groups that came here because that node was not well: they go back.
    pub(super) lent: BTreeMap<ServiceKey, String>,
    /// When one has gone back last.
    pub(super) gave_back: Option<Instant>,
    /// Since when something is wrong with this node.
    pub(super) unwell_since: Option<Instant>,
    /// Groups whose addresses the kernel refuses here.
    pub(super) unable: Unable,
    /// Groups that nobody owns, and since when.
    pub(super) vacant: BTreeMap<ServiceKey, Instant>,
    /// Hosts that each record has named, and the term under which they have lost it, until they are known to know. Not
    /// all of their successors may have come to tell them.
    former: BTreeMap<ServiceKey, BTreeMap<String, Term>>,
    /// Records that became ours, and who has to learn it.
    pub(super) gained: Vec<(ServiceKey, Recipient)>,
    pub(super) foreign_since: Option<Instant>,
    /// Services whose authors know that a Lease which nobody renews keeps them from being announced.
    pub(super) foreign_told: BTreeSet<ServiceKey>,
    pub(super) owners: BTreeMap<ServiceKey, Owner>,
    /// The Service whose record counts for each.
    pub(super) primaries: BTreeMap<ServiceKey, ServiceKey>,
    /// The record of each Service's group.
    pub(super) owner_records: BTreeMap<ServiceKey, OwnerRecord>,
    pub(super) changes: Vec<Change>,
    pub(super) in_touch: bool,
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
            api_servers: BTreeSet::new(),
            me,
            card: Card::default(),
            records: BTreeMap::new(),
            heard: Term::default(),
            watched_term: Term::default(),
            pending: BTreeMap::new(),
            asking: BTreeMap::new(),
            taken: BTreeMap::new(),
            silences: Silences::default(),
            primaries: BTreeMap::new(),
            lingering: BTreeMap::new(),
            misplaced: BTreeMap::new(),
            lent: BTreeMap::new(),
            gave_back: None,
            unwell_since: None,
            unable: Unable::default(),
            vacant: BTreeMap::new(),
            former: BTreeMap::new(),
            gained: Vec::new(),
            foreign_since: None,
            foreign_told: BTreeSet::new(),
            owners: BTreeMap::new(),
            owner_records: BTreeMap::new(),
            changes: Vec::new(),
            in_touch: false,
            next: None,
            facts_next: None,
        }
    }

    /// A membership Lease was read; absent: it is gone. True if there is something to review: a renewal in time, as each
    /// node writes one every few seconds, moves nothing but its own deadline.
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
        self.api_servers = servers;
    }

    /// Addresses that no Service may have, and who speaks about them.
    pub fn machines(&self) -> BTreeMap<IpAddr, Machine> {
        let mut machines = BTreeMap::new();
        if let Some(reporter) = self.facts.members().next() {
            for server in &self.api_servers {
                let what = "the address of an API server of this cluster".to_owned();
                machines.insert(*server, Machine { what, reporter: reporter.to_owned() });
            }
        }
        for (node, net) in self.facts.own_addresses() {
            let mut note = |address: IpAddr, what: String| {
                machines.entry(address).or_insert(Machine { what, reporter: node.to_owned() });
            };
            note(net.addr(), format!("the own address of node {node}"));
            // Links between two and single addresses have neither (RFC 3021); in IPv6 nobody has (RFC 4291).
            if net.addr().is_ipv4() && net.prefix_len() < 31 {
                note(net.network(), format!("the network address of {}", net.trunc()));
                note(net.broadcast(), format!("the broadcast address of {}", net.trunc()));
            }
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
        card.term = self.watched_term;
        card.unable = self.unable.on_card(now);
        card.yields = self.foreign_since.is_some();
        self.card = card;
    }

    /// Whom this node hears by now.
    pub fn note_heard(&mut self, hears: BTreeMap<String, u8>) {
        self.card.hears = hears;
    }

    /// Whether the review has found out more than the card says.
    pub fn is_card_outdated(&self, now: Instant) -> bool {
        self.card.unable != self.unable.on_card(now) || self.card.yields != self.foreign_since.is_some()
    }

    /// What to write into our Lease.
    pub fn card(&self) -> &Card {
        &self.card
    }

    /// decisions.md 26: whether this process, which is about to end, is followed by another one on this node.
    pub fn stays(&self) -> bool {
        self.facts.goes_on() && self.card.serving && self.foreign_since.is_none()
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
        self.primaries.get(key).unwrap_or(key)
    }

    /// A claim with a good tag (decisions.md 23): withdraw first, ask later. True if it is newer than what we go by.
    pub fn claimed(&mut self, now: Instant, key: &ServiceKey, term: Term) -> bool {
        if term.is_counted() {
            self.heard = self.heard.max(term);
        }
        let newer = self
            .owner_records
            .get(key)
            .is_some_and(|owner_record| owner_record.host == self.me && owner_record.term < term);
        if newer || self.lingering.contains_key(key) {
            // Whose it is now will be read; until then it is nobody's that we know.
            self.lingering.remove(key);
            if let Some((_, owner_record)) =
                self.records.get_mut(key).filter(|(_, owner_record)| owner_record.term < term)
            {
                *owner_record = OwnerRecord { host: String::new(), term };
            }
            self.taken.insert(key.clone(), Taken { at: now, times: 0 });
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
        std::mem::take(&mut self.changes)
    }

    /// The record that the group of `key` has.
    pub fn owner_record(&self, key: &ServiceKey) -> Option<&OwnerRecord> {
        self.owner_records.get(key)
    }

    /// Whether it was handed over, and is served until the new owner is heard.
    pub fn is_lingering(&self, key: &ServiceKey) -> bool {
        self.lingering.contains_key(key)
    }

    /// The new owner of all that we served for a last moment was heard.
    pub fn successor_heard(&mut self, key: &ServiceKey) {
        self.lingering.remove(key);
    }

    /// A record was seen, by watch or by swap. The newest one counts; a younger Service of the same name begins anew.
    pub(super) fn learn(&mut self, now: Instant, key: &ServiceKey, uid: &Uid, owner_record: OwnerRecord) {
        let known = self.records.get(key).filter(|(known, _)| known == uid).map(|(_, owner_record)| owner_record);
        // Another host under the same term was not swapped: kube-vip, or another mode, has written its name beside our
        // term. What stands there counts, or two nodes would each go by what they know.
        let news = known.is_none_or(|known| {
            known.term < owner_record.term || (known.term == owner_record.term && known.host != owner_record.host)
        });
        if !news {
            return;
        }
        let before = known.map(|known| known.host.clone()).filter(|host| !host.is_empty() && *host != self.me);
        // Also from nobody: it was given up for a claim that is older than this.
        let regained = known.is_some_and(|known| known.host != self.me);
        let mine = owner_record.host == self.me;
        let former = self.former.entry(key.clone()).or_default();
        former.extend(before.iter().map(|from| (from.clone(), owner_record.term)));
        former.remove(&owner_record.host);
        // The watch may be faster than the answer, and the answer may never come.
        if self.pending.get(key).is_some_and(|pending| pending.asked_for(uid, &owner_record)) {
            self.achieved(now, key, &owner_record);
        } else {
            // Gone on from the one to whom it was handed, who most probably was found silent: then nobody has heard us
            // either, when everybody was asked, and the claims go to that one. Clients are not served from here any more.
            self.lingering.remove(key);
            if mine && regained {
                if let Some(from) = before.as_ref().filter(|from| self.is_unwell(now, from)) {
                    self.lent.insert(key.clone(), from.clone());
                }
                let change = Change { key: key.clone(), from: before, why: "it was handed over", silent: None };
                self.changes.push(change);
            }
        }
        if mine {
            let former = self.former.remove(key).unwrap_or_default();
            self.gained.extend(former.into_keys().map(|from| (key.clone(), Recipient::Host(from))));
        }
        self.asking.remove(key);
        self.records.insert(key.clone(), (uid.clone(), owner_record));
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
    pub(super) fn learn_from_watch(&mut self, now: Instant, view: &ServiceView, owner_record: OwnerRecord) {
        if owner_record.term.is_counted() {
            self.watched_term = self.watched_term.max(owner_record.term);
        }
        let known = self.records.get(&view.key).is_some_and(|(uid, _)| *uid == view.uid);
        // Recipient the process before this one has told nobody knows.
        if !known && owner_record.host == self.me && !self.pending.contains_key(&view.key) {
            self.gained.push((view.key.clone(), Recipient::OutdatedMembers));
        }
        self.learn(now, &view.key, &view.uid, owner_record);
    }

    pub(super) fn record(&self, key: &ServiceKey, uid: &Uid) -> Option<&OwnerRecord> {
        self.records.get(key).filter(|(known, _)| known == uid).map(|(_, owner_record)| owner_record)
    }

    /// decisions.md 20. Anybody who may write a Service may write its record; the cards are the announcers' own.
    pub(super) fn newest_term(&self) -> Term {
        let recorded = self
            .records
            .values()
            .map(|(_, owner_record)| owner_record.term)
            .filter(|term| term.is_counted())
            .max()
            .unwrap_or_default();
        recorded.max(self.heard).max(self.facts.newest_term())
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
        self.records.retain(|key, (uid, _)| services.get(key).is_some_and(|view| view.uid == *uid));
        self.pending.retain(|key, _| services.contains_key(key));
        let facts = &self.facts;
        self.former.retain(|key, hosts| {
            hosts.retain(|host, lost| facts.card(host).is_some_and(|card| card.term < *lost));
            services.contains_key(key) && !hosts.is_empty()
        });
        self.asking.retain(|key, _| services.contains_key(key));
        self.taken.retain(|key, taken| services.contains_key(key) && now < taken.at + SETTLED * 2);
        self.lingering.retain(|key, until| services.contains_key(key) && now < *until);
        self.misplaced.retain(|key, _| services.contains_key(key));
        let (records, me) = (&self.records, &self.me);
        self.lent.retain(|key, _| records.get(key).is_some_and(|(_, owner_record)| owner_record.host == *me));
    }

    /// When it has to be looked at again by itself.
    pub fn deadline(&self) -> Option<Instant> {
        self.next.into_iter().chain(self.facts_next).min()
    }

    pub(super) fn own_deadline(&self, now: Instant) -> Option<Instant> {
        let asking = self.asking.values().map(Asking::deadline);
        let pending = self.pending.values().map(|pending| pending.until);
        let retakes = self.taken.keys().filter_map(|key| self.retake_at(key));
        let lingering = self.lingering.values().copied();
        let unable = self.unable.deadline(now);
        asking.chain(pending).chain(retakes).chain(unable).chain(lingering).filter(|at| *at > now).min()
    }

    /// Whether this node waits for the API to take another owner; also where it is to be asked again.
    pub fn has_swaps(&self) -> bool {
        self.pending.values().any(|pending| pending.swap.owner_record.host != self.me)
    }

    /// Whether the record of its group names somebody else.
    pub fn is_handed_over(&self, key: &ServiceKey) -> bool {
        self.owner_records.get(key).is_some_and(|owner_record| owner_record.host != self.me)
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
        self.owners.get(&service.key).copied().unwrap_or(Owner::Undecided)
    }

    fn confirmed(&self, service: &ServiceView) -> bool {
        self.in_touch && self.of(service) == Owner::Mine
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_absurd_term_spoils_no_other_service_and_what_announcers_say_counts() {
        let now = Instant::now();
        let mut cluster = Cluster::new("node-1".into(), Duration::from_secs(15));
        let uid = Uid("u".into());
        let (bad, good) = (ServiceKey::new("default", "bad"), ServiceKey::new("default", "good"));
        cluster.learn(now, &bad, &uid, OwnerRecord { host: "node-2".into(), term: Term(1 << 41) });
        cluster.learn(now, &good, &uid, OwnerRecord { host: "node-2".into(), term: Term(7) });
        cluster.claimed(now, &bad, Term(1 << 41));
        cluster.set_card(now, Card::default());
        assert_eq!(cluster.card().term, Term(0), "the watch has shown nothing");
        for (key, term) in [(&bad, 1 << 41), (&good, 7)] {
            let view = ServiceView { key: key.clone(), uid: uid.clone(), ..crate::plan::tests::view("any", &[]) };
            cluster.learn_from_watch(now, &view, OwnerRecord { host: "node-2".into(), term: Term(term) });
        }
        cluster.set_card(now, Card::default());
        assert_eq!(cluster.card().term, Term(7));
        let term = cluster.begin_swap(now, &good, &uid, "node-1".into(), "test").map(|swap| swap.owner_record.term);
        assert_eq!(term, Some(Term(8)));
        // The largest that counts: what follows it is still read from Services and cards.
        cluster.learn(now, &good, &uid, OwnerRecord { host: "node-2".into(), term: Term(1 << 40) });
        let card = Card { term: cluster.newest_term().next(), ..Card::default() };
        assert_eq!(Card::parse(&card.to_annotation()), card);
        let member = Member { renewal: "1".into(), duration: Duration::from_secs(15), card };
        cluster.member(now, "node-2".into(), Some(member));
        assert_eq!(cluster.newest_term(), Term((1 << 40) + 1));
        assert_eq!(Term::parse(&cluster.newest_term().next().to_string()), Some(Term((1 << 40) + 2)));
        // At the very end the host that stands there counts.
        cluster.learn(now, &bad, &uid, OwnerRecord { host: "node-1".into(), term: Term(1 << 41) });
        assert_eq!(cluster.record(&bad, &uid).map(|owner_record| owner_record.host.as_str()), Some("node-1"));
        // From before there was this bound.
        assert_eq!(Card::parse(r#"{"term":4611686018427387905}"#).term, Term(0));
    }
}
