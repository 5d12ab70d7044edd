//! Landmarks: hosts on the LAN that this node asks now and then. Those that it heard before and does not hear any more
//! tell it on which side of a broken LAN it is (decisions.md 24). Pure.
//!
//! Named landmarks (the gateway, members, API servers) come from the ownership; up to eight others are found by what
//! they ask, clients of VIPs first of all. The first that come stay for as long as they answer, so the steadiest are
//! kept.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use l2_types::Mac;

use super::ask::Ask;
use crate::frames::{Frame, Heard};

/// How soon a new landmark is asked.
const FIRST: Duration = Duration::from_millis(10);
/// How often a landmark is asked.
const EVERY: Duration = Duration::from_secs(5);
/// The same for one that has never answered, after as many questions as [`MISSES`].
const SELDOM: Duration = Duration::from_mins(1);
/// Questions in a row without an answer after which a host that nobody has named is forgotten.
const MISSES: u32 = 3;
/// Of so many questions that a gateway does not answer one goes to everybody.
const REMOVED: u32 = 12;
/// A named landmark that has not answered for so long does not count any more.
const FORGOTTEN: Duration = Duration::from_mins(10);
/// What a node says that it hears has answered since then.
const LATELY: Duration = Duration::from_secs(12);
/// Hosts that nobody has named, per interface.
const HOSTS: usize = 8;

/// Who a landmark is.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum LandmarkKind {
    /// The way to everything else.
    Gateway,
    /// This node.
    Member(String),
    /// An API server, if it is in this LAN.
    ApiServer,
    /// Somebody else.
    Host,
}

/// A host that can tell on which side of the LAN this node is.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Landmark {
    /// Our interface towards it.
    pub link: u32,
    /// Its address.
    pub address: IpAddr,
    /// Its MAC, if it is known; else everybody is asked.
    pub mac: Option<Mac>,
    /// Who it is.
    pub who: LandmarkKind,
}

/// On which side of the LAN this node is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Side {
    /// Nobody at all answers.
    Alone,
    /// The gateway does not answer that did before, or too few of the others.
    Lesser,
    /// Where the gateway is, and most of the others.
    Greater,
}

/// Recipient this node heard on one interface before it missed an owner; the owner itself is left out.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Before {
    gateway: Option<(IpAddr, Mac)>,
    all: BTreeSet<Mac>,
    /// Those of them that were there a moment before.
    lately: BTreeSet<Mac>,
}

impl Before {
    /// All of these were there a moment before.
    #[cfg(test)]
    pub(crate) fn of(gateway: Option<(IpAddr, Mac)>, all: BTreeSet<Mac>) -> Self {
        Self { gateway, lately: all.clone(), all }
    }

    /// The MAC by which the sender of this answer is known here: the gateway's address may have gone to another router.
    pub(super) fn whose(&self, frame: &Frame) -> Mac {
        self.gateway.filter(|(address, _)| *address == frame.address).map_or(frame.mac, |(_, mac)| mac)
    }

    pub(super) fn is_gateway(&self, mac: Mac) -> bool {
        self.gateway.is_some_and(|(_, gateway)| gateway == mac)
    }

    /// Whether nobody has to be asked for a gateway that is missing.
    pub(super) fn has_gateway(&self, found: &BTreeSet<Mac>) -> bool {
        self.gateway.is_none_or(|(_, gateway)| found.contains(&gateway))
    }

    pub(super) fn among(&self, macs: &BTreeSet<Mac>) -> BTreeSet<Mac> {
        self.all.intersection(macs).copied().collect()
    }

    /// Whether the gateway has answered, and everybody else who was there a moment before the owner was missed: then it
    /// is not we who have lost somebody.
    pub(crate) fn is_certain(&self, found: &BTreeSet<Mac>) -> bool {
        self.gateway.is_some() && self.has_gateway(found) && self.lately.is_subset(found)
    }

    /// Where this node is if these have answered.
    pub(crate) fn side(&self, found: &BTreeSet<Mac>) -> Side {
        if found.is_empty() {
            return Side::Alone;
        }
        let lost = self.all.difference(found).count();
        // Of two equal halves the one with the gateway is where clients are.
        let most = found.len() > lost || (found.len() == lost && self.gateway.is_some());
        if self.has_gateway(found) && most { Side::Greater } else { Side::Lesser }
    }

    /// The gateway is one of these.
    pub fn hears_gateway(&self, found: &BTreeSet<Mac>) -> bool {
        self.gateway.is_some_and(|(_, gateway)| found.contains(&gateway))
    }

    /// Who does not answer.
    pub(super) fn missing(&self, found: &BTreeSet<Mac>) -> BTreeSet<Mac> {
        self.all.difference(found).copied().collect()
    }
}

#[derive(Debug)]
struct Entry {
    who: LandmarkKind,
    mac: Option<Mac>,
    next: Instant,
    unanswered: u32,
    answered: Option<Instant>,
}

impl Entry {
    fn is_heard(&self, now: Instant, within: Duration) -> bool {
        self.answered.is_some_and(|at| now < at + within)
    }
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Landmarks {
    known: BTreeMap<(u32, IpAddr), Entry>,
    links: BTreeSet<u32>,
    /// Addresses that move from node to node.
    vips: BTreeSet<IpAddr>,
    /// Of members: what they ask makes no host of them.
    members: BTreeSet<Mac>,
}

impl Landmarks {
    /// These are named; hosts are looked for on these interfaces.
    pub fn name(&mut self, now: Instant, named: &[Landmark], links: BTreeSet<u32>, vips: BTreeSet<IpAddr>) {
        (self.links, self.vips) = (links, vips);
        let is_member = |landmark: &&Landmark| matches!(landmark.who, LandmarkKind::Member(_));
        self.members = named.iter().filter(is_member).filter_map(|landmark| landmark.mac).collect();
        let named: BTreeMap<(u32, IpAddr), &Landmark> =
            named.iter().map(|landmark| ((landmark.link, landmark.address), landmark)).collect();
        let (links, vips, members) = (&self.links, &self.vips, &self.members);
        self.known.retain(|(link, address), entry| {
            let host = entry.who == LandmarkKind::Host && links.contains(link) && !vips.contains(address);
            let stays = host && entry.mac.is_none_or(|mac| !members.contains(&mac));
            stays || named.contains_key(&(*link, *address))
        });
        for (key, landmark) in named {
            let entry = self.known.entry(key).or_insert_with(|| Entry {
                who: landmark.who.clone(),
                mac: None,
                next: now + FIRST,
                unanswered: 0,
                answered: None,
            });
            entry.who.clone_from(&landmark.who);
            entry.mac = landmark.mac.or(entry.mac);
        }
    }

    /// An answer to us, or somebody who asks about somebody else and so tells who it is.
    ///
    /// An ordinary question reads as a claim of the asker's own address ([`crate::frames::read`]); whether that is so
    /// its answer to us will tell.
    pub fn on_frame(&mut self, now: Instant, frame: &Frame) {
        if frame.what == Heard::Probe {
            return;
        }
        if let Some(entry) = self.known.get_mut(&(frame.link, frame.address)) {
            if frame.to_us && frame.what == Heard::Answer {
                (entry.answered, entry.unanswered) = (Some(now), 0);
                entry.next = now + EVERY;
                // A member's is on its card.
                if !matches!(entry.who, LandmarkKind::Member(_)) {
                    entry.mac = Some(frame.mac);
                }
            }
            return;
        }
        let is_host = !frame.to_us
            && self.links.contains(&frame.link)
            && !self.vips.contains(&frame.address)
            && !self.members.contains(&frame.mac)
            && !frame.address.is_unspecified();
        let hosts =
            self.known.iter().filter(|((link, _), entry)| *link == frame.link && entry.who == LandmarkKind::Host);
        if is_host && hosts.count() < HOSTS {
            let entry = Entry {
                who: LandmarkKind::Host,
                mac: Some(frame.mac),
                next: now + FIRST,
                unanswered: 0,
                answered: None,
            };
            self.known.insert((frame.link, frame.address), entry);
        }
    }

    /// Recipient to ask now.
    pub fn due(&mut self, now: Instant) -> Vec<Ask> {
        let mut asks = Vec::new();
        self.known.retain(|(link, address), entry| {
            if now < entry.next {
                return true;
            }
            if entry.who == LandmarkKind::Host && entry.unanswered >= MISSES {
                return false;
            }
            let unheard = entry.answered.is_none() && entry.unanswered >= MISSES;
            entry.next = now + if unheard { SELDOM } else { EVERY };
            entry.unanswered += 1;
            // The gateway's address may have gone to another router: everybody is asked once it does not answer, and
            // each minute.
            let moved = entry.who == LandmarkKind::Gateway && entry.unanswered % REMOVED == 2;
            let to = entry.mac.filter(|_| !moved).unwrap_or(Mac::BROADCAST);
            asks.push(Ask { link: *link, address: *address, to });
            true
        });
        asks
    }

    pub fn deadline(&self) -> Option<Instant> {
        self.known.values().map(|entry| entry.next).min()
    }

    /// Recipient this node has heard before on this interface, without these nodes and these MACs.
    pub fn before(&self, now: Instant, link: u32, apart: &BTreeSet<String>, macs: &BTreeSet<Mac>) -> Before {
        let is_apart = |entry: &Entry| matches!(&entry.who, LandmarkKind::Member(node) if apart.contains(node));
        let there = || self.known.iter().filter(|((on, _), _)| *on == link).map(|(_, entry)| entry);
        let mut left_out = macs.clone();
        left_out.extend(there().filter(|entry| is_apart(entry)).filter_map(|entry| entry.mac));
        let counts = |entry: &&Entry| {
            entry.is_heard(now, FORGOTTEN) && entry.mac.is_some_and(|mac| !left_out.contains(&mac)) && !is_apart(entry)
        };
        let gateway = self
            .known
            .iter()
            .filter(|((on, _), entry)| *on == link && entry.who == LandmarkKind::Gateway && counts(entry))
            .find_map(|((_, address), entry)| Some((*address, entry.mac?)));
        let within =
            |time| there().filter(counts).filter(move |entry| entry.is_heard(now, time)).filter_map(|entry| entry.mac);
        Before { gateway, all: within(FORGOTTEN).collect(), lately: within(LATELY).collect() }
    }

    /// The questions of a burst on this interface. Everybody is asked for a gateway that is not there.
    pub fn asks(&self, link: u32, gateway_is_there: bool) -> Vec<Ask> {
        let there = self.known.iter().filter(|((on, _), _)| *on == link);
        let to = |entry: &Entry| {
            let lost = entry.who == LandmarkKind::Gateway && !gateway_is_there;
            entry.mac.filter(|_| !lost).unwrap_or(Mac::BROADCAST)
        };
        there.map(|((_, address), entry)| Ask { link, address: *address, to: to(entry) }).collect()
    }

    /// The same to those that are missing, and to nobody else.
    pub fn asks_again(&self, link: u32, before: &Before, missing: &BTreeSet<Mac>) -> Vec<Ask> {
        let is_gateway = |ask: &Ask| before.gateway.is_some_and(|(address, _)| address == ask.address);
        let lost_gateway = before.gateway.is_some_and(|(_, mac)| missing.contains(&mac));
        let mut asks = self.asks(link, !lost_gateway);
        asks.retain(|ask| missing.contains(&ask.to) || (lost_gateway && is_gateway(ask)));
        asks
    }

    /// Those of these that are landmarks there.
    pub fn among(&self, link: u32, macs: &BTreeSet<Mac>) -> BTreeSet<Mac> {
        let there = self.known.iter().filter(|((on, _), _)| *on == link).filter_map(|(_, entry)| entry.mac);
        there.filter(|mac| macs.contains(mac)).collect()
    }

    /// Whether somebody of this MAC is a landmark there that is no member.
    pub fn is_outside(&self, link: u32, mac: Mac) -> bool {
        self.known.iter().any(|((on, _), entry)| {
            *on == link && entry.mac == Some(mac) && !matches!(entry.who, LandmarkKind::Member(_))
        }) && !self.members.contains(&mac)
    }

    /// How many that are no members this node hears on each interface.
    pub fn outside(&self, now: Instant) -> BTreeMap<u32, u8> {
        let mut heard: BTreeMap<u32, BTreeSet<Mac>> = BTreeMap::new();
        for ((link, _), entry) in &self.known {
            if let Some(mac) = entry.mac.filter(|mac| entry.is_heard(now, LATELY) && !self.members.contains(mac)) {
                heard.entry(*link).or_default().insert(mac);
            }
        }
        heard.into_iter().map(|(link, macs)| (link, u8::try_from(macs.len()).unwrap_or(u8::MAX))).collect()
    }
}

#[cfg(test)]
mod tests;
