//! Who is fresh, as far as this node can tell. Times of other machines are never compared with ours: a Lease counts as
//! alive for its own duration after *we* last saw it change.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use super::member::{Fitness, Known, fitness, link_towards, links_towards};
use super::readiness::Readiness;
use super::timing::STALLED;
use super::{Card, CardLink, ForeignLock, Member, NodeFacts};
use crate::network::Network;

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
    /// Where API servers are.
    pub api_servers: BTreeSet<IpAddr>,
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
            api_servers: BTreeSet::new(),
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

    /// Addresses that somebody else has on their interfaces, as members have said.
    pub fn occupied(&self) -> impl Iterator<Item = (&str, &str, IpAddr)> {
        self.members.iter().flat_map(|(node, seen)| {
            let by_link = seen.member.card.occupied.iter();
            by_link.flat_map(move |(link, all)| all.iter().map(move |address| (node.as_str(), link.as_str(), *address)))
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
mod tests;
