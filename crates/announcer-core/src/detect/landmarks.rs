//! Landmarks: hosts on the LAN that this node asks at times. Landmarks that answered before and do not answer now tell
//! this node on which side of a partitioned LAN it is (decisions.md 24). Pure.
//!
//! The cluster provides the named landmarks: the gateway, members, API servers. Up to eight other hosts are found by
//! the questions that they ask, above all clients of VIPs. A host stays for as long as it answers, so the most stable
//! hosts are kept.

mod gateways;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::{Duration, Instant};

pub(crate) use gateways::GatewayState;
use l2_types::Mac;

use super::ask::Ask;
use crate::frames::{Frame, Heard};

/// Delay before a new landmark is first asked.
const FIRST: Duration = Duration::from_millis(10);
/// Interval between two questions to a landmark.
const EVERY: Duration = Duration::from_secs(5);
/// Interval for a landmark that has never answered [`MISSES`] questions.
const SELDOM: Duration = Duration::from_mins(1);
/// Consecutive questions without an answer after which a found host is dropped and a former member does not count.
const MISSES: u32 = 3;
/// One of this many unanswered questions to a gateway is a broadcast.
const REMOVED: u32 = 12;
/// Interval between two questions to a gateway that has missed two, and how many it misses before it is asked as ever.
/// Frames are lost at times, and an owner that has lost its gateway hands over.
const SOON: Duration = Duration::from_secs(1);
const SOON_MISSES: u32 = 9;
/// A landmark that has not answered for this long does not count any more.
const FORGOTTEN: Duration = Duration::from_mins(10);
/// A host counts as heard now if it has answered within this time.
const LATELY: Duration = Duration::from_secs(12);
/// Maximum of found hosts per interface.
const HOSTS: usize = 8;

/// Kind of a landmark.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum LandmarkKind {
    /// The default gateway.
    Gateway,
    /// Another node of the cluster, by name.
    Member(String),
    /// A node by name whose membership Lease expired long ago. Its announcer may have been removed from a machine that
    /// goes on. No Lease tells when that machine fails, so it counts only while it answers.
    FormerMember(String),
    /// An API server in this LAN.
    ApiServer,
    /// Any other host, found by its questions.
    Host,
}

impl LandmarkKind {
    /// The name of a node that is or was a member.
    fn node(&self) -> Option<&str> {
        match self {
            Self::Member(node) | Self::FormerMember(node) => Some(node),
            Self::Gateway | Self::ApiServer | Self::Host => None,
        }
    }
}

/// A host that helps to tell on which side of the LAN this node is.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Landmark {
    /// Our interface towards it.
    pub link: u32,
    /// Its address.
    pub address: IpAddr,
    /// Its MAC; if it is unknown, the question is a broadcast.
    pub mac: Option<Mac>,
    /// Its kind.
    pub who: LandmarkKind,
}

/// What the cluster knows of the hosts on the LAN.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Neighbourhood {
    /// The gateway, some of the members and former members, the API servers.
    pub named: Vec<Landmark>,
    /// The interfaces on which further hosts are found.
    pub links: BTreeSet<u32>,
    /// MACs of all members, of which `named` has only some. A member is never counted as another host.
    pub members: BTreeSet<Mac>,
    /// Addresses that make no host: VIPs, which move from node to node, and addresses of members.
    pub excluded: BTreeSet<IpAddr>,
}

/// On which side of the LAN this node is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Side {
    /// No landmark answers.
    Alone,
    /// The gateway answered before and does not any more, or too few other landmarks answer.
    Lesser,
    /// The gateway answers, if it did before, and so do most landmarks.
    Greater,
}

/// The landmarks that this node heard on one interface before it missed an owner, without the owner itself.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Before {
    gateway: Option<(IpAddr, Mac)>,
    all: BTreeSet<Mac>,
    /// Those of `all` that are neither the gateway nor a member nor an API server.
    hosts: BTreeSet<Mac>,
    /// Those that had answered shortly before.
    lately: BTreeSet<Mac>,
}

impl Before {
    /// All of these answered shortly before.
    #[cfg(test)]
    pub(crate) fn of(gateway: Option<(IpAddr, Mac)>, all: BTreeSet<Mac>, hosts: BTreeSet<Mac>) -> Self {
        Self { gateway, lately: all.clone(), all, hosts }
    }

    /// The MAC by which this node knows the sender of an answer. The gateway's address may have moved to another
    /// router.
    pub(super) fn whose(&self, frame: &Frame) -> Mac {
        self.gateway.filter(|(address, _)| *address == frame.address).map_or(frame.mac, |(_, mac)| mac)
    }

    pub(super) fn is_gateway(&self, mac: Mac) -> bool {
        self.gateway.is_some_and(|(_, gateway)| gateway == mac)
    }

    /// Whether the gateway has answered, or there is none to ask for.
    pub(super) fn has_gateway(&self, found: &BTreeSet<Mac>) -> bool {
        self.gateway.is_none_or(|(_, gateway)| found.contains(&gateway))
    }

    pub(super) fn among(&self, macs: &BTreeSet<Mac>) -> BTreeSet<Mac> {
        self.all.intersection(macs).copied().collect()
    }

    /// Whether the gateway has answered, and every other landmark that was heard shortly before the owner was missed.
    /// Then this node has lost no host but the owner.
    pub(crate) fn is_certain(&self, found: &BTreeSet<Mac>) -> bool {
        self.gateway.is_some() && self.has_gateway(found) && self.lately.is_subset(found)
    }

    /// The side that this node is on if `found` have answered.
    pub(crate) fn side(&self, found: &BTreeSet<Mac>) -> Side {
        if found.is_empty() {
            return Side::Alone;
        }
        let lost = self.all.difference(found).count();
        // Of two equal halves, clients are in the one with the gateway.
        let most = found.len() > lost || (found.len() == lost && self.gateway.is_some());
        if self.has_gateway(found) && (most || self.hears_most_of_the_known(found)) {
            Side::Greater
        } else {
            Side::Lesser
        }
    }

    /// Whether the gateway and most members answer, whatever other hosts do. Any machine of the LAN may speak for eight
    /// hosts and fall silent with the owner, and VMs on the owner's hypervisor are lost with it. The gateway alone is
    /// not enough: it may be a VM on the hypervisor of this node, which has lost everybody else.
    fn hears_most_of_the_known(&self, found: &BTreeSet<Mac>) -> bool {
        let known = || self.all.difference(&self.hosts);
        let heard = known().filter(|mac| found.contains(mac)).count();
        self.hears_gateway(found) && heard > 1 && heard > known().count() - heard
    }

    /// Whether the gateway is one of `found`.
    pub fn hears_gateway(&self, found: &BTreeSet<Mac>) -> bool {
        self.gateway.is_some_and(|(_, gateway)| found.contains(&gateway))
    }

    /// The landmarks that do not answer.
    pub(super) fn missing(&self, found: &BTreeSet<Mac>) -> BTreeSet<Mac> {
        self.all.difference(found).copied().collect()
    }
}

#[derive(Debug)]
struct Entry {
    who: LandmarkKind,
    mac: Option<Mac>,
    known: Instant,
    next: Instant,
    unanswered: u32,
    answered: Option<Instant>,
}

impl Entry {
    fn is_heard(&self, now: Instant, within: Duration) -> bool {
        self.answered.is_some_and(|at| now < at + within)
    }
}

/// All landmarks of this node.
#[derive(Debug, Default)]
pub(super) struct Landmarks {
    known: BTreeMap<(u32, IpAddr), Entry>,
    links: BTreeSet<u32>,
    /// The interfaces on which the gateway was asked for anew, each with the reason's moment.
    sought: BTreeMap<u32, Instant>,
    /// See [`Neighbourhood`]. A question from one of these MACs or addresses does not show a host.
    members: BTreeSet<Mac>,
    excluded: BTreeSet<IpAddr>,
}

impl Landmarks {
    /// Sets what the cluster knows of the LAN.
    pub fn set_neighbourhood(&mut self, now: Instant, neighbourhood: &Neighbourhood) {
        let Neighbourhood { named, links, members, excluded } = neighbourhood;
        self.links.clone_from(links);
        self.excluded.clone_from(excluded);
        let is_member = |landmark: &&Landmark| landmark.who.node().is_some();
        let named_members = named.iter().filter(is_member).filter_map(|landmark| landmark.mac);
        self.members = members.iter().copied().chain(named_members).collect();
        let (members, excluded) = (&self.members, &self.excluded);
        let named: BTreeMap<(u32, IpAddr), &Landmark> =
            named.iter().map(|landmark| ((landmark.link, landmark.address), landmark)).collect();
        self.known.retain(|(link, address), entry| {
            let host = entry.who == LandmarkKind::Host && links.contains(link) && !excluded.contains(address);
            let stays = host && entry.mac.is_none_or(|mac| !members.contains(&mac));
            stays || named.contains_key(&(*link, *address))
        });
        for (key, landmark) in named {
            let entry = self.known.entry(key).or_insert_with(|| Entry {
                who: landmark.who.clone(),
                mac: None,
                known: now,
                next: now + FIRST,
                unanswered: 0,
                answered: None,
            });
            entry.who.clone_from(&landmark.who);
            entry.mac = landmark.mac.or(entry.mac);
        }
    }

    /// When the landmark with one of these MACs has last answered.
    pub fn last_answer(&self, link: u32, macs: &BTreeSet<Mac>) -> Option<Instant> {
        let there = self
            .known
            .iter()
            .filter(|((on, _), entry)| *on == link && entry.mac.is_some_and(|mac| macs.contains(&mac)));
        there.filter_map(|(_, entry)| entry.answered).max()
    }

    /// Takes in a frame: an answer to this node, or a question that shows a new host.
    ///
    /// An ordinary question reads as a claim of the asker's own address ([`crate::frames::read`]). Whether the asker
    /// really has that address is shown by its answer to this node.
    pub fn on_frame(&mut self, now: Instant, frame: &Frame) {
        if frame.what == Heard::Probe {
            return;
        }
        if let Some(entry) = self.known.get_mut(&(frame.link, frame.address)) {
            // The MAC of a member comes from its card. Our kernel asks for members by broadcast, too, and a router with
            // proxy ARP or a duplicate answers it in the place of a member that is gone, or out of reach.
            let is_member = entry.who.node().is_some();
            let another = is_member && entry.mac.is_some() && !self.members.contains(&frame.mac);
            if frame.to_us && frame.what == Heard::Answer && !another {
                (entry.answered, entry.unanswered) = (Some(now), 0);
                entry.next = now + EVERY;
                if !is_member {
                    entry.mac = Some(frame.mac);
                }
            }
            return;
        }
        let is_host = !frame.to_us
            && self.links.contains(&frame.link)
            && !self.excluded.contains(&frame.address)
            && !self.members.contains(&frame.mac)
            && !frame.address.is_unspecified();
        let hosts =
            self.known.iter().filter(|((link, _), entry)| *link == frame.link && entry.who == LandmarkKind::Host);
        if is_host && hosts.count() < HOSTS {
            let entry = Entry {
                who: LandmarkKind::Host,
                mac: Some(frame.mac),
                known: now,
                next: now + FIRST,
                unanswered: 0,
                answered: None,
            };
            self.known.insert((frame.link, frame.address), entry);
        }
    }

    /// The questions that are due now.
    pub fn due(&mut self, now: Instant) -> Vec<Ask> {
        let mut asks = Vec::new();
        self.known.retain(|(link, address), entry| {
            if now < entry.next {
                return true;
            }
            if entry.unanswered >= MISSES {
                match entry.who {
                    LandmarkKind::Host => return false,
                    LandmarkKind::FormerMember(_) => entry.answered = None,
                    LandmarkKind::Gateway | LandmarkKind::Member(_) | LandmarkKind::ApiServer => {}
                }
            }
            let unheard = entry.answered.is_none() && entry.unanswered >= MISSES;
            entry.unanswered += 1;
            let lost = entry.who == LandmarkKind::Gateway && entry.answered.is_some();
            let pause = match entry.unanswered {
                2..SOON_MISSES if lost => SOON,
                _ if unheard => SELDOM,
                _ => EVERY,
            };
            entry.next = now + pause;
            // The gateway's address may have moved to another router. So the question is a broadcast once the gateway
            // does not answer, and then once per minute.
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

    /// The landmarks that this node heard before on this interface, without the nodes `apart` and the MACs `macs`.
    pub fn before(&self, now: Instant, link: u32, apart: &BTreeSet<String>, macs: &BTreeSet<Mac>) -> Before {
        let is_apart = |entry: &Entry| entry.who.node().is_some_and(|node| apart.contains(node));
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
        let named =
            there().filter(counts).filter(|entry| entry.who != LandmarkKind::Host).filter_map(|entry| entry.mac);
        let named: BTreeSet<Mac> = named.collect();
        let all: BTreeSet<Mac> = within(FORGOTTEN).collect();
        let hosts = all.difference(&named).copied().collect();
        Before { gateway, all, hosts, lately: within(LATELY).collect() }
    }

    /// The questions to the landmarks of an interface in a burst. A missing gateway is asked for by broadcast.
    pub fn asks(&self, link: u32, gateway_is_there: bool) -> Vec<Ask> {
        let there = self.known.iter().filter(|((on, _), _)| *on == link);
        let to = |entry: &Entry| {
            let lost = entry.who == LandmarkKind::Gateway && !gateway_is_there;
            entry.mac.filter(|_| !lost).unwrap_or(Mac::BROADCAST)
        };
        there.map(|((_, address), entry)| Ask { link, address: *address, to: to(entry) }).collect()
    }

    /// The same questions, to the missing landmarks only.
    pub fn asks_again(&self, link: u32, before: &Before, missing: &BTreeSet<Mac>) -> Vec<Ask> {
        let is_gateway = |ask: &Ask| before.gateway.is_some_and(|(address, _)| address == ask.address);
        let lost_gateway = before.gateway.is_some_and(|(_, mac)| missing.contains(&mac));
        let mut asks = self.asks(link, !lost_gateway);
        asks.retain(|ask| missing.contains(&ask.to) || (lost_gateway && is_gateway(ask)));
        asks
    }

    /// Those of `macs` that are landmarks on this interface.
    pub fn among(&self, link: u32, macs: &BTreeSet<Mac>) -> BTreeSet<Mac> {
        let there = self.known.iter().filter(|((on, _), _)| *on == link).filter_map(|(_, entry)| entry.mac);
        there.filter(|mac| macs.contains(mac)).collect()
    }

    /// Whether `mac` belongs to a landmark on this interface that is not a member.
    pub fn is_outside(&self, link: u32, mac: Mac) -> bool {
        let is_it = |entry: &Entry| entry.mac == Some(mac) && entry.who.node().is_none();
        self.known.iter().any(|((on, _), entry)| *on == link && is_it(entry)) && !self.members.contains(&mac)
    }

    /// How many hosts that are not members this node hears, by interface.
    pub fn hears(&self, now: Instant) -> BTreeMap<u32, u8> {
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
