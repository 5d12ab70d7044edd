//! Who is fresh, as far as this node can tell. Times of other machines are never compared with ours: a Lease counts as
//! alive for its own duration after *we* last saw it change.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use super::member::{Fitness, Known, fitness, link_towards, links_towards};
use super::readiness::Readiness;
use super::{Card, CardLink, ForeignLock, Member, NodeFacts};
use crate::network::Network;

/// Whoever holds the Lease for all Services and lives renews it far more often.
const STALLED: Duration = Duration::from_mins(1);

/// A membership Lease and when it changed.
#[derive(Debug)]
struct Seen {
    member: Member,
    changed: Instant,
    /// The interfaces on its card, and behind them those that were on earlier ones. A node that loses its cable a
    /// moment before its power still writes a card without that interface; what it owned there has to be asked for all
    /// the same.
    links: Vec<CardLink>,
}

/// What is known of a member's interfaces after a new card. Only names tell them apart: VLANs share the MAC.
fn remember(known: Vec<CardLink>, card: &[CardLink]) -> Vec<CardLink> {
    let dropped = known.into_iter().filter(|old| card.iter().all(|link| link.name != old.name));
    card.iter().cloned().chain(dropped).collect()
}

/// What the API has said about nodes.
#[derive(Debug)]
pub struct Facts {
    me: String,
    /// Of our own Lease.
    duration: Duration,
    members: BTreeMap<String, Seen>,
    nodes: BTreeMap<String, NodeFacts>,
    readiness: Readiness,
    /// `Some(false)`: Nodes may not be read.
    nodes_readable: Option<bool>,
    members_synced: Option<Instant>,
    /// When our own renewal last came back by the watch, and since when it did so without a gap: until it does, nothing
    /// that we see says anything about now (R8).
    echoed: Option<Instant>,
    in_touch_since: Option<Instant>,
    foreign: Option<(ForeignLock, Instant)>,
}

impl Facts {
    pub fn new(me: String, duration: Duration) -> Self {
        Self {
            me,
            duration,
            members: BTreeMap::new(),
            nodes: BTreeMap::new(),
            readiness: Readiness::default(),
            nodes_readable: None,
            members_synced: None,
            echoed: None,
            in_touch_since: None,
            foreign: None,
        }
    }

    /// A membership Lease was read; absent: it is gone. False if nothing changes but the time at which it will have
    /// expired.
    pub fn member(&mut self, now: Instant, node: String, member: Option<Member>) -> bool {
        let Some(member) = member else {
            return self.members.remove(&node).is_some();
        };
        // What we saw before we were in touch counts from now on, and who had expired is back.
        let was_fresh = self.in_touch(now) && !self.is_expired(now, &node);
        // Our own renewal may show that others do not come any more.
        let expired = if node == self.me { self.expired(now) } else { 0 };
        let before = self.members.remove(&node);
        let same = before
            .as_ref()
            .is_some_and(|seen| (&seen.member.card, seen.member.duration) == (&member.card, member.duration));
        let changed = before.as_ref().is_none_or(|seen| seen.member.renewal != member.renewal);
        if changed && node == self.me {
            if !self.in_touch(now) {
                self.in_touch_since = Some(now);
            }
            self.echoed = Some(now);
        }
        let since = before.as_ref().filter(|_| !changed).map_or(now, |seen| seen.changed);
        let links = remember(before.map(|seen| seen.links).unwrap_or_default(), &member.card.links);
        let own = node == self.me;
        self.members.insert(node, Seen { member, changed: since, links });
        !(same && was_fresh) || (own && expired != self.expired(now))
    }

    pub fn members_synced(&mut self, now: Instant) {
        self.members_synced.get_or_insert(now);
    }

    pub fn node(&mut self, now: Instant, name: String, facts: Option<NodeFacts>) {
        self.readiness.note(now, &name, facts.as_ref().map(|facts| facts.ready));
        match facts {
            Some(facts) => self.nodes.insert(name, facts),
            None => self.nodes.remove(&name),
        };
    }

    pub fn nodes_synced(&mut self, readable: bool) {
        self.nodes_readable = Some(readable);
    }

    pub fn foreign(&mut self, now: Instant, lock: Option<ForeignLock>) {
        let before = self.foreign.take();
        self.foreign = lock.map(|lock| match before {
            Some((old, changed)) if old.renewal == lock.renewal && old.holder == lock.holder => {
                (ForeignLock { leftover: old.leftover, ..lock }, changed)
            }
            // Seen to change: whoever writes it lives, whatever the clocks say.
            Some(_) => (ForeignLock { leftover: false, ..lock }, now),
            None => (lock, now),
        });
    }

    /// Since when all first lists are there.
    pub fn known_since(&self) -> Option<Instant> {
        self.members_synced.filter(|_| self.nodes_readable.is_some())
    }

    /// Which first list is not there.
    pub fn unknown(&self) -> Option<&'static str> {
        match (self.members_synced, self.nodes_readable) {
            (None, _) => Some("the membership Leases of the announcers"),
            (Some(_), None) => Some("the Nodes"),
            (Some(_), Some(_)) => None,
        }
    }

    /// Whether what we see of the API is of now.
    pub fn in_touch(&self, now: Instant) -> bool {
        self.echoed.is_some_and(|echoed| now < echoed + self.duration)
    }

    /// When the Lease of `node` will have expired, if nothing changes. `None`: it has none.
    fn expiry(&self, node: &str) -> Option<Instant> {
        let seen = self.members.get(node)?;
        let from = self.in_touch_since.map_or(seen.changed, |since| since.max(seen.changed));
        Some(from + seen.member.duration)
    }

    /// Its Lease has stood for its whole duration over an API that was well all that time (R8): a renewal of our own
    /// has come back since, so that theirs would have come too. Our own never does: who cannot write its Lease cannot
    /// take anything either.
    pub fn is_expired(&self, now: Instant, node: &str) -> bool {
        let shown = |expiry: Instant| expiry <= now && self.echoed.is_some_and(|echoed| echoed >= expiry);
        node != self.me && self.in_touch(now) && self.expiry(node).is_some_and(shown)
    }

    fn expired(&self, now: Instant) -> usize {
        self.members.keys().filter(|node| self.is_expired(now, node)).count()
    }

    /// Since when that is so.
    pub fn expired_since(&self, now: Instant, node: &str) -> Option<Instant> {
        self.expiry(node).filter(|_| self.is_expired(now, node))
    }

    /// When its Lease was last seen to change.
    pub fn renewed_at(&self, node: &str) -> Option<Instant> {
        self.members.get(node).map(|seen| seen.changed)
    }

    /// Of our own Lease.
    pub fn lease(&self) -> Duration {
        self.duration
    }

    pub fn card(&self, node: &str) -> Option<&Card> {
        self.members.get(node).map(|seen| &seen.member.card)
    }

    /// Where `node` has to answer for what it owns in the LAN that `ours` of `network` is in, also if its card does not
    /// name that interface any more.
    pub fn towards(&self, node: &str, network: &Network, ours: u32) -> Option<&CardLink> {
        link_towards(&self.members.get(node)?.links, network, ours)
    }

    /// The MACs from which it may answer there.
    pub fn cards_towards(&self, node: &str, network: &Network, ours: u32) -> BTreeSet<l2_types::Mac> {
        let seen = self.members.get(node).into_iter();
        seen.flat_map(|seen| links_towards(&seen.links, network, ours)).map(|link| link.mac).collect()
    }

    /// Whether this is an interface of another member, or was one: a node that has just got its cable back speaks
    /// before its new card is read.
    pub fn is_of_member(&self, mac: l2_types::Mac) -> bool {
        let others = self.members.iter().filter(|(node, _)| **node != self.me);
        others.flat_map(|(_, seen)| &seen.links).any(|link| link.mac == mac)
    }

    /// Whether a member has, or had, an interface of this name: one that is only down for a moment is still meant.
    pub fn is_link_of_member(&self, name: &str) -> bool {
        self.members.values().flat_map(|seen| &seen.links).any(|link| link.name == name)
    }

    /// The member with this MAC.
    pub fn member_of(&self, mac: l2_types::Mac) -> Option<&str> {
        let mut others = self.members.iter().filter(|(node, _)| **node != self.me);
        others.find(|(_, seen)| seen.links.iter().any(|link| link.mac == mac)).map(|(node, _)| node.as_str())
    }

    /// Whether another node is of a version that does not say on its card whom it hears.
    pub fn has_older_versions(&self) -> bool {
        let others = self.members.iter().filter(|(node, _)| **node != self.me).map(|(_, seen)| &seen.member.card);
        others.into_iter().any(|card| card.hears.is_empty() && !card.links.is_empty())
    }

    /// The hypervisor that a node is on.
    pub fn host(&self, node: &str) -> Option<&str> {
        self.nodes.get(node)?.host.as_deref()
    }

    /// UID of the Node object.
    pub fn uid(&self, node: &str) -> Option<&str> {
        self.nodes.get(node).map(|facts| facts.uid.as_str()).filter(|uid| !uid.is_empty())
    }

    /// Nodes that are lost when this one's hypervisor is, itself among them.
    pub fn lost_with(&self, node: &str) -> BTreeSet<String> {
        let host = self.host(node);
        let mates = self.nodes.iter().filter(|(_, facts)| host.is_some() && facts.host.as_deref() == host);
        mates.map(|(name, _)| name.clone()).chain([node.to_owned()]).collect()
    }

    /// The addresses that members have said to be their own.
    pub fn own_addresses(&self) -> impl Iterator<Item = (&str, ipnet::IpNet)> {
        self.members.iter().flat_map(|(node, seen)| {
            seen.member.card.links.iter().flat_map(move |link| link.addresses.iter().map(|net| (node.as_str(), *net)))
        })
    }

    pub fn members(&self) -> impl Iterator<Item = &str> {
        self.members.keys().map(String::as_str)
    }

    /// Whether Nodes can be read and nothing says that this one is being emptied, shut down or removed. A graceful
    /// shutdown makes it not ready first.
    pub fn goes_on(&self) -> bool {
        let well = |facts: &NodeFacts| facts.ready && !facts.shut_out && !facts.cordoned && !facts.departs;
        self.nodes_readable == Some(true) && self.nodes.get(&self.me).is_some_and(well)
    }

    /// decisions.md 21; `card` is ours or the other's.
    pub fn fitness(&self, now: Instant, node: &str, card: &Card) -> Fitness {
        let known = match self.nodes.get(node) {
            _ if self.nodes_readable != Some(true) => Known::Nothing,
            Some(facts) => Known::Facts(facts),
            None => Known::Gone,
        };
        fitness(card, !self.is_expired(now, node), known, !self.readiness.counts(now, node))
    }

    /// Whether nothing should move to or from it just because it would be better off there.
    pub fn is_restless(&self, now: Instant, node: &str) -> bool {
        self.readiness.is_storm(now) || !self.readiness.is_ready(node)
    }

    /// Nodes that could take part and have not said so yet: their announcers are just starting.
    pub fn awaits_members(&self) -> bool {
        self.nodes
            .iter()
            .any(|(name, facts)| facts.ready && !facts.shut_out && *name != self.me && !self.members.contains_key(name))
    }

    /// Somebody else holds the Lease for all Services; since when, and until when if it is not renewed (decisions.md
    /// 19).
    pub fn foreign_holder(&self, now: Instant) -> Option<(&str, Instant)> {
        let (lock, changed) = self.foreign.as_ref()?;
        let expiry = *changed + lock.duration;
        (!lock.holder.is_empty() && !lock.leftover && now < expiry).then_some((lock.holder.as_str(), expiry))
    }

    /// The same, if that holder has not renewed it for a while and it counts by its duration alone; since when, and
    /// until when.
    pub fn stalled_holder(&self, now: Instant) -> Option<(&str, Instant, Instant)> {
        let (holder, expiry) = self.foreign_holder(now)?;
        let (_, changed) = self.foreign.as_ref()?;
        (now >= *changed + STALLED && self.in_touch(now)).then_some((holder, *changed, expiry))
    }

    /// When something here changes by itself.
    pub fn deadline(&self, now: Instant) -> Option<Instant> {
        let foreign = self.foreign_holder(now).map(|(_, expiry)| expiry);
        let stalled = self.foreign.iter().map(|(_, changed)| *changed + STALLED).filter(|_| foreign.is_some());
        let echo = self.echoed.map(|echoed| echoed + self.duration);
        let readiness = self.readiness.deadline(now);
        // Leases of others run out when a renewal of our own shows it.
        readiness.into_iter().chain(foreign).chain(stalled).chain(echo).filter(|at| *at > now).min()
    }

    /// The newest term that anybody has written in its Lease.
    pub fn newest_term(&self) -> super::Term {
        self.members.values().map(|seen| seen.member.card.term).max().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_secs(15);

    #[allow(clippy::unnecessary_wraps)] // as the watch has it
    fn member(renewal: u32) -> Option<Member> {
        Some(Member { renewal: renewal.to_string(), duration: LEASE, card: Card { serving: true, ..Card::default() } })
    }

    struct Clock(Instant);

    impl Clock {
        fn at(&self, seconds: u64) -> Instant {
            self.0 + Duration::from_secs(seconds)
        }
    }

    fn facts() -> (Facts, Clock) {
        let clock = Clock(Instant::now());
        let mut facts = Facts::new("node-1".into(), LEASE);
        for node in ["node-1", "node-2"] {
            facts.member(clock.at(0), node.into(), member(0));
        }
        facts.members_synced(clock.at(0));
        (facts, clock)
    }

    #[test]
    fn a_lease_that_stands_for_its_duration_has_expired() {
        let (mut facts, clock) = facts();
        for second in (5..=15).step_by(5) {
            assert!(!facts.is_expired(clock.at(second - 1), "node-2"));
            facts.member(clock.at(second), "node-1".into(), member(u32::try_from(second).unwrap()));
        }
        assert!(facts.is_expired(clock.at(15), "node-2"));
        assert_eq!(facts.deadline(clock.at(14)), Some(clock.at(30)), "of our own");
    }

    #[test]
    fn time_without_the_api_counts_against_nobody() {
        let (mut facts, clock) = facts();
        // The API is away for a minute: even our own renewals do not come back.
        assert!(!facts.in_touch(clock.at(60)));
        assert!(!facts.is_expired(clock.at(60), "node-2"));
        facts.member(clock.at(61), "node-1".into(), member(1));
        assert!(!facts.is_expired(clock.at(62), "node-2"), "the clock starts anew at the first good read (R8)");
        for second in (65..=75).step_by(5) {
            facts.member(clock.at(second), "node-1".into(), member(u32::try_from(second).unwrap()));
        }
        assert!(!facts.is_expired(clock.at(79), "node-2"), "the watch may have stood still since");
        facts.member(clock.at(80), "node-1".into(), member(80));
        assert!(facts.is_expired(clock.at(80), "node-2"));
    }

    #[test]
    fn reading_the_same_renewal_again_is_no_sign_of_life() {
        let (mut facts, clock) = facts();
        for second in (5..=20).step_by(5) {
            facts.member(clock.at(second), "node-1".into(), member(u32::try_from(second).unwrap()));
            facts.member(clock.at(second), "node-2".into(), member(0));
        }
        assert!(facts.is_expired(clock.at(20), "node-2"));
    }

    #[test]
    fn a_renewal_in_time_is_no_news_and_everything_else_is() {
        let (mut facts, clock) = facts();
        let mut tell = |second, node: &str, member| facts.member(clock.at(second), node.into(), member);
        assert!(!tell(5, "node-1", member(1)) && !tell(5, "node-2", member(1)));
        assert!(!tell(5, "node-2", member(1)), "the same once more");
        assert!(tell(6, "node-3", member(1)), "a new one");
        let card = Card { serving: false, ..Card::default() };
        assert!(tell(7, "node-3", Some(Member { card, ..member(2).unwrap() })), "another card");
        let longer = Member { duration: LEASE * 2, ..member(3).unwrap() };
        assert!(tell(8, "node-2", Some(longer.clone())) && !tell(9, "node-2", Some(longer)));
        assert!(tell(9, "node-3", None) && !tell(9, "node-3", None), "gone, once");
        for second in [10, 20, 30, 37] {
            assert!(!tell(second, "node-1", member(u32::try_from(second).unwrap())));
        }
        assert!(tell(39, "node-1", member(39)), "it shows that node-2 renews no more");
        assert!(tell(40, "node-2", member(4)), "it had expired");
        assert!(tell(60, "node-1", member(60)), "we were out of touch");
        assert!(!tell(65, "node-1", member(65)));
    }

    #[test]
    fn the_interfaces_of_a_member_are_remembered_when_its_card_drops_them() {
        let link = |name: &str, last: u8, net: &str| {
            let addresses = if net.is_empty() { Vec::new() } else { vec![net.parse().unwrap()] };
            CardLink { name: name.into(), mac: l2_types::Mac::new([2, 0, 0, 0, 0, last]), addresses, no_ipv6: false }
        };
        let lan = || link("ens3", 9, "10.0.0.9/24");
        for (name, cards, expected) in [
            ("on the card", vec![vec![lan()]], Some(9)),
            ("dropped", vec![vec![lan()], vec![]], Some(9)),
            ("dropped, and another one is left", vec![vec![lan()], vec![link("ens4", 8, "10.9.0.9/16")]], Some(9)),
            ("dropped, and one of the same MAC is left", vec![vec![lan()], vec![link("bond0", 9, "")]], Some(9)),
            ("dropped for longer", vec![vec![lan()], vec![], vec![]], Some(9)),
            (
                "it has come back with another MAC",
                vec![vec![lan()], vec![], vec![link("ens3", 7, "10.0.0.9/24")]],
                Some(7),
            ),
            ("another one leads here now", vec![vec![lan()], vec![link("ens4", 8, "10.0.0.9/24")]], Some(8)),
            ("it never led here", vec![vec![link("ens3", 9, "10.9.0.9/16")], vec![]], None),
            ("nothing was ever on it", vec![vec![]], None),
        ] {
            let (mut facts, clock) = facts();
            for links in cards {
                let card = Card { links, serving: true, ..Card::default() };
                let member = Member { renewal: "1".into(), duration: LEASE, card };
                facts.member(clock.at(1), "node-2".into(), Some(member));
            }
            let network = crate::network::fixtures::network();
            let found = facts.towards("node-2", &network, 2).map(|link| link.mac);
            assert_eq!(found, expected.map(|last| l2_types::Mac::new([2, 0, 0, 0, 0, last])), "{name}");
            facts.member(clock.at(2), "node-2".into(), None);
            assert_eq!(facts.towards("node-2", &network, 2), None, "{name}: forgotten with its Lease");
        }
    }

    #[test]
    fn a_foreign_holder_counts_while_it_renews_and_a_leftover_does_not() {
        let (mut facts, clock) = facts();
        let lock = |renewal: u32, holder: &str, leftover| ForeignLock {
            holder: holder.into(),
            renewal: renewal.to_string(),
            duration: LEASE,
            leftover,
        };
        facts.foreign(clock.at(0), Some(lock(1, "node-1", false)));
        assert!(facts.foreign_holder(clock.at(14)).is_some(), "foreign whatever its name");
        assert!(facts.foreign_holder(clock.at(15)).is_none());
        facts.foreign(clock.at(16), Some(lock(2, "node-1", false)));
        assert!(facts.foreign_holder(clock.at(30)).is_some());
        facts.foreign(clock.at(20), Some(lock(3, "", false)));
        assert!(facts.foreign_holder(clock.at(20)).is_none(), "released");
        facts.foreign(clock.at(22), None);
        assert!(facts.foreign_holder(clock.at(22)).is_none());
        facts.foreign(clock.at(23), Some(lock(4, "node-9", true)));
        assert!(facts.foreign_holder(clock.at(23)).is_none(), "an old kube-vip's, never released");
        facts.foreign(clock.at(24), Some(lock(4, "node-9", false)));
        assert!(facts.foreign_holder(clock.at(24)).is_none(), "read again");
    }

    #[test]
    fn a_holder_that_is_seen_to_renew_lives_however_wrong_our_clock_is() {
        let (mut facts, clock) = facts();
        // By a clock that is two minutes ahead every renewal is old.
        let lock = |renewal: u32| ForeignLock {
            holder: "node-9".into(),
            renewal: renewal.to_string(),
            duration: LEASE,
            leftover: true,
        };
        facts.foreign(clock.at(0), Some(lock(1)));
        assert!(facts.foreign_holder(clock.at(0)).is_none());
        for renewal in 2..5 {
            let at = u64::from(renewal) * 2;
            facts.foreign(clock.at(at), Some(lock(renewal)));
            facts.foreign(clock.at(at + 1), Some(lock(renewal)));
            assert_eq!(facts.foreign_holder(clock.at(at + 1)), Some(("node-9", clock.at(at) + LEASE)));
        }
    }
}
