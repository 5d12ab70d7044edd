//! Which nodes are alive, as far as this node can tell. Clocks of other machines are never compared with our own: a
//! Lease counts as alive for its own duration after *this node* last saw it change.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use super::member::{Fitness, Known, fitness, link_towards, links_towards};
use super::readiness::Readiness;
use super::timing::{FORMER_AFTER, STALLED};
use super::{Card, CardLink, ForeignLock, Member, NodeFacts};
use crate::network::Network;

/// A membership Lease, and when this node saw it change.
#[derive(Debug)]
struct SeenMember {
    member: Member,
    changed: Instant,
    /// The interfaces on the current card, followed by those of earlier cards. A node whose cable fails just before its
    /// power still writes a card without that interface. Its VIPs on that interface must still be probed.
    links: Vec<CardLink>,
    /// Since when its cards say, one after the other, that its gateway answers, by interface.
    gateways_since: BTreeMap<String, Instant>,
}

/// Since when the cards of a member say that its gateway answers, now that this node reads the next one. After a gap,
/// as after an outage of the API or a pause of this process, older cards count for nothing: meanwhile a gateway may
/// have been away from all nodes.
fn gateways_since(now: Instant, before: Option<&SeenMember>, member: &Member) -> BTreeMap<String, Instant> {
    // A Lease is renewed each third of its duration. One renewal may be late by nearly as much; a lost one is a gap.
    let is_next =
        |seen: &&SeenMember| seen.member.renewal == member.renewal || now < seen.changed + seen.member.duration * 2 / 3;
    let known = before.filter(is_next);
    let since = |name: &str| known.and_then(|seen| seen.gateways_since.get(name).copied()).unwrap_or(now);
    let hearing = member.card.gateways.iter().filter(|(_, answers)| **answers);
    hearing.map(|(name, _)| (name.clone(), since(name))).collect()
}

/// Merges a member's known interfaces with those on its new card. Interfaces are told apart by name, because VLANs
/// share the MAC.
fn remember(known: Vec<CardLink>, card: &[CardLink]) -> Vec<CardLink> {
    let dropped = known.into_iter().filter(|old| card.iter().all(|link| link.name != old.name));
    card.iter().cloned().chain(dropped).collect()
}

/// What the API server has said about nodes.
#[derive(Debug)]
pub struct ApiFacts {
    me: String,
    /// Duration of our own Lease.
    duration: Duration,
    members: BTreeMap<String, SeenMember>,
    nodes: BTreeMap<String, NodeFacts>,
    readiness: Readiness,
    /// `Some(false)`: this node has no right to read Nodes.
    nodes_readable: Option<bool>,
    members_synced: Option<Instant>,
    /// `echoed`: when our own renewal last came back by the watch. `in_touch_since`: since when that happens without a
    /// gap. Without such an echo, what the watch shows may be outdated (R8).
    echoed: Option<Instant>,
    in_touch_since: Option<Instant>,
    foreign: Option<(ForeignLock, Instant)>,
    /// Addresses of the API servers.
    pub api_servers: BTreeSet<IpAddr>,
}

impl ApiFacts {
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

    /// A membership Lease was read; `None` means it was deleted. Returns false if only its time of expiry has changed.
    pub fn member(&mut self, now: Instant, node: String, member: Option<Member>) -> bool {
        let Some(member) = member else {
            return self.members.remove(&node).is_some();
        };
        // A Lease that was seen before this node was in touch is counted from now on, and an expired member is back.
        let was_fresh = self.in_touch(now) && !self.is_expired(now, &node);
        // Our own renewal may prove that Leases of other members have expired.
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
        let gateways_since = gateways_since(now, before.as_ref(), &member);
        let links = remember(before.map(|seen| seen.links).unwrap_or_default(), &member.card.links);
        let own = node == self.me;
        self.members.insert(node, SeenMember { member, changed: since, links, gateways_since });
        !(same && was_fresh) || (own && expired != self.expired(now))
    }

    /// The first list of all membership Leases is complete.
    pub fn members_synced(&mut self, now: Instant) {
        self.members_synced.get_or_insert(now);
    }

    /// A Node was read; `None` means it was deleted.
    pub fn node(&mut self, now: Instant, name: String, facts: Option<NodeFacts>) {
        self.readiness.note(now, &name, facts.as_ref().map(|facts| facts.ready));
        match facts {
            Some(facts) => self.nodes.insert(name, facts),
            None => self.nodes.remove(&name),
        };
    }

    /// The first list of all Nodes is complete, or Nodes cannot be read.
    pub fn nodes_synced(&mut self, readable: bool) {
        self.nodes_readable = Some(readable);
    }

    /// The Lease for all Services was read; `None` means it does not exist.
    pub fn foreign(&mut self, now: Instant, lock: Option<ForeignLock>) {
        let before = self.foreign.take();
        self.foreign = lock.map(|lock| match before {
            Some((old, changed)) if old.renewal == lock.renewal && old.holder == lock.holder => {
                (ForeignLock { leftover: old.leftover, ..lock }, changed)
            }
            // The Lease was seen to change, so its holder is alive, whatever the wall clocks say.
            Some(_) => (ForeignLock { leftover: false, ..lock }, now),
            None => (lock, now),
        });
    }

    /// When the first lists of Leases and Nodes were complete; `None` if one is missing.
    pub fn known_since(&self) -> Option<Instant> {
        self.members_synced.filter(|_| self.nodes_readable.is_some())
    }

    /// The first list that is still missing.
    pub fn unknown(&self) -> Option<&'static str> {
        match (self.members_synced, self.nodes_readable) {
            (None, _) => Some("the membership Leases of the announcers"),
            (Some(_), None) => Some("the Nodes"),
            (Some(_), Some(_)) => None,
        }
    }

    /// Whether this node's view of the API is current: our own renewal came back within the duration of the Lease.
    pub fn in_touch(&self, now: Instant) -> bool {
        self.echoed.is_some_and(|echoed| now < echoed + self.duration)
    }

    /// When the Lease of `node` expires if it is not renewed. `None`: it has no Lease.
    fn expiry(&self, node: &str) -> Option<Instant> {
        let seen = self.members.get(node)?;
        let from = self.in_touch_since.map_or(seen.changed, |since| since.max(seen.changed));
        Some(from + seen.member.duration)
    }

    /// Whether the Lease of `node` was unchanged for its whole duration while the API was well (R8). A renewal of our
    /// own has come back since then, so a renewal of `node` would have come too. Our own Lease never counts as expired:
    /// a node that cannot write its Lease cannot take over anything either.
    pub fn is_expired(&self, now: Instant, node: &str) -> bool {
        let shown = |expiry: Instant| expiry <= now && self.echoed.is_some_and(|echoed| echoed >= expiry);
        node != self.me && self.in_touch(now) && self.expiry(node).is_some_and(shown)
    }

    fn expired(&self, now: Instant) -> usize {
        self.members.keys().filter(|node| self.is_expired(now, node)).count()
    }

    /// Since when the Lease of `node` counts as expired.
    pub fn expired_since(&self, now: Instant, node: &str) -> Option<Instant> {
        self.expiry(node).filter(|_| self.is_expired(now, node))
    }

    /// When the Lease of `node` was last seen to change.
    pub fn renewed_at(&self, node: &str) -> Option<Instant> {
        self.members.get(node).map(|seen| seen.changed)
    }

    /// Duration of our own Lease.
    pub fn lease(&self) -> Duration {
        self.duration
    }

    /// The card of `node`, also if its Lease has expired; `None` if it has no membership Lease.
    pub fn card(&self, node: &str) -> Option<&Card> {
        self.members.get(node).map(|seen| &seen.member.card)
    }

    /// The interface of `node` in the LAN of our interface `ours`, where it has to answer for its VIPs. Interfaces that
    /// are no longer on its card count too.
    pub fn towards(&self, node: &str, network: &Network, ours: u32) -> Option<&CardLink> {
        link_towards(&self.members.get(node)?.links, network, ours)
    }

    /// Since when the cards of `node` say, without a gap, that the gateway in that LAN answers it. `None`: the last one
    /// does not say so.
    pub fn hears_gateway_since(&self, node: &str, network: &Network, ours: u32) -> Option<Instant> {
        let name = &self.towards(node, network, ours)?.name;
        self.members.get(node)?.gateways_since.get(name).copied()
    }

    /// All MACs from which `node` may answer in that LAN.
    pub fn nic_macs_towards(&self, node: &str, network: &Network, ours: u32) -> BTreeSet<l2_types::Mac> {
        let seen = self.members.get(node).into_iter();
        seen.flat_map(|seen| links_towards(&seen.links, network, ours)).map(|link| link.mac).collect()
    }

    /// Whether `mac` is or was an interface of another member. A node whose cable was just plugged in sends frames
    /// before its new card is read.
    pub fn is_of_member(&self, mac: l2_types::Mac) -> bool {
        let others = self.members.iter().filter(|(node, _)| **node != self.me);
        others.flat_map(|(_, seen)| &seen.links).any(|link| link.mac == mac)
    }

    /// The MACs of all interfaces that other members have or had.
    pub fn macs_of_members(&self) -> BTreeSet<l2_types::Mac> {
        let others = self.members.iter().filter(|(node, _)| **node != self.me);
        others.flat_map(|(_, seen)| &seen.links).map(|link| link.mac).collect()
    }

    /// Whether a member has or had an interface of this name. Earlier cards count, because an interface may be down
    /// only for a moment.
    pub fn is_link_of_member(&self, name: &str) -> bool {
        self.members.values().flat_map(|seen| &seen.links).any(|link| link.name == name)
    }

    /// The member that has or had this MAC.
    pub fn member_of(&self, mac: l2_types::Mac) -> Option<&str> {
        let mut others = self.members.iter().filter(|(node, _)| **node != self.me);
        others.find(|(_, seen)| seen.links.iter().any(|link| link.mac == mac)).map(|(node, _)| node.as_str())
    }

    /// Whether another node runs an older version, which does not write on its card how many hosts it hears.
    pub fn has_older_versions(&self) -> bool {
        let others = self.members.iter().filter(|(node, _)| **node != self.me).map(|(_, seen)| &seen.member.card);
        others.into_iter().any(|card| card.hears.is_empty() && !card.links.is_empty())
    }

    /// The hypervisor that runs `node`.
    pub fn host(&self, node: &str) -> Option<&str> {
        self.nodes.get(node)?.host.as_deref()
    }

    /// UID of the Node object.
    pub fn uid(&self, node: &str) -> Option<&str> {
        self.nodes.get(node).map(|facts| facts.uid.as_str()).filter(|uid| !uid.is_empty())
    }

    /// All nodes on the hypervisor of `node`, including `node`. They fail together.
    pub fn lost_with(&self, node: &str) -> BTreeSet<String> {
        let host = self.host(node);
        let mates = self.nodes.iter().filter(|(_, facts)| host.is_some() && facts.host.as_deref() == host);
        mates.map(|(name, _)| name.clone()).chain([node.to_owned()]).collect()
    }

    /// The own addresses of members, as their cards say.
    pub fn own_addresses(&self) -> impl Iterator<Item = (&str, ipnet::IpNet)> {
        self.members.iter().flat_map(|(node, seen)| {
            seen.member.card.links.iter().flat_map(move |link| link.addresses.iter().map(|net| (node.as_str(), *net)))
        })
    }

    /// Addresses that other interfaces of members have, as their cards say: node, interface, address.
    pub fn occupied(&self) -> impl Iterator<Item = (&str, &str, IpAddr)> {
        self.members.iter().flat_map(|(node, seen)| {
            let by_link = seen.member.card.occupied.iter();
            by_link.flat_map(move |(link, all)| all.iter().map(move |address| (node.as_str(), link.as_str(), *address)))
        })
    }

    pub fn members(&self) -> impl Iterator<Item = &str> {
        self.members.keys().map(String::as_str)
    }

    /// Whether Nodes can be read and this Node is not about to be drained, shut down or removed. A graceful shutdown
    /// first makes the Node not ready.
    pub fn goes_on(&self) -> bool {
        let well = |facts: &NodeFacts| facts.ready && !facts.shut_out && !facts.cordoned && !facts.departs;
        self.nodes_readable == Some(true) && self.nodes.get(&self.me).is_some_and(well)
    }

    /// The fitness of `node` (decisions.md 21). `card` is the card of `node`.
    pub fn fitness(&self, now: Instant, node: &str, card: &Card) -> Fitness {
        let known = match self.nodes.get(node) {
            _ if self.nodes_readable != Some(true) => Known::Nothing,
            Some(facts) => Known::Facts(facts),
            None => Known::Gone,
        };
        fitness(card, !self.is_expired(now, node), known, !self.readiness.counts(now, node))
    }

    /// Whether `node` is not ready, or many nodes are not ready. Then nothing moves to it only because it belongs
    /// there.
    pub fn is_restless(&self, now: Instant, node: &str) -> bool {
        self.readiness.is_storm(now) || !self.readiness.is_ready(node)
    }

    /// Whether a ready Node has no membership Lease yet: its announcer may just be starting.
    pub fn awaits_members(&self) -> bool {
        self.nodes
            .iter()
            .any(|(name, facts)| facts.ready && !facts.shut_out && *name != self.me && !self.members.contains_key(name))
    }

    /// The other program that holds the Lease for all Services, and when that Lease expires if it is not renewed
    /// (decisions.md 19).
    pub fn foreign_holder(&self, now: Instant) -> Option<(&str, Instant)> {
        let (lock, changed) = self.foreign.as_ref()?;
        let expiry = *changed + lock.duration;
        (!lock.holder.is_empty() && !lock.leftover && now < expiry).then_some((lock.holder.as_str(), expiry))
    }

    /// The same, if the holder has not renewed the Lease for [`STALLED`], so that only its duration keeps it valid: the
    /// holder, its last renewal, the expiry.
    pub fn stalled_holder(&self, now: Instant) -> Option<(&str, Instant, Instant)> {
        let (holder, expiry) = self.foreign_holder(now)?;
        let (_, changed) = self.foreign.as_ref()?;
        (now >= *changed + STALLED && self.in_touch(now)).then_some((holder, *changed, expiry))
    }

    /// When something here changes without an event.
    pub fn deadline(&self, now: Instant) -> Option<Instant> {
        let foreign = self.foreign_holder(now).map(|(_, expiry)| expiry);
        let stalled = self.foreign.iter().map(|(_, changed)| *changed + STALLED).filter(|_| foreign.is_some());
        let echo = self.echoed.map(|echoed| echoed + self.duration);
        let readiness = self.readiness.deadline(now);
        // Leases of other members expire when a renewal of our own proves it, so they need no timer before.
        let expired = self.members.keys().filter_map(|node| self.expired_since(now, node));
        let former = expired.map(|since| since + FORMER_AFTER);
        readiness.into_iter().chain(foreign).chain(stalled).chain(echo).chain(former).filter(|at| *at > now).min()
    }
}

#[cfg(test)]
mod tests;
