//! Whether what is announced is served: addresses of Services are asked from other nodes than their owners, as a client
//! would ask, by ARP or neighbour solicitation and then by the SYN of a TCP connection. Announced is not the same as
//! served: behind the address are kube-proxy, packet filters, network policies and endpoints.
//!
//! When whom to ask, what an answer means, and when enough of them were missed to say so. `asked.rs` keeps one address
//! and port. Frames go in and come out whole; no socket, no clock.

mod asked;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use l2_types::arp::{self, Arp};
use l2_types::handshake::{self, Handshake, PORTS};
use l2_types::ndp::{self, Message, Ndp};
use l2_types::{Mac, Traffic};

use crate::view::ServiceKey;
use asked::{Asked, Open};

/// Each is asked so often.
const PERIOD: Duration = Duration::from_secs(5);
/// No two are asked within this time: of more than 250 each is asked less often.
const GAP: Duration = Duration::from_millis(20);
/// So many misses in a row are told.
const FAILURES: u32 = 3;
/// After so many the second in line tells, if the first has not.
pub const PERSISTS: u32 = 6;

/// Someone to ask.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// Whose address it is.
    pub service: ServiceKey,
    /// The address, and its first TCP port.
    pub at: SocketAddr,
    /// The node that announces it.
    pub owner: String,
    /// Our interface in that LAN.
    pub link: u32,
    /// Its MAC.
    pub mac: Mac,
    /// Our own address on it, of the same family.
    pub source: IpAddr,
    /// This node is the first of those that ask: it tells.
    pub first: bool,
}

/// Everybody to ask.
pub type Targets = BTreeMap<SocketAddr, Target>;

/// How a question has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Outcome {
    /// The connection was accepted.
    Served,
    /// It was refused.
    Refused,
    /// Somebody has the address, and nothing came back.
    Silent,
    /// Nobody says to have the address.
    NoNeighbor,
}

impl Outcome {
    /// For metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Served => "served",
            Self::Refused => "refused",
            Self::Silent => "silent",
            Self::NoNeighbor => "no-neighbor",
        }
    }
}

/// What has changed about an address and port, as seen from here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// Which.
    pub target: Target,
    /// How it stands.
    pub outcome: Outcome,
    /// Misses in a row; none if it is served.
    pub failures: u32,
}

/// What is to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output {
    /// Send this.
    Send {
        /// On this interface.
        link: u32,
        /// Through the socket that hears the answer.
        traffic: Traffic,
        /// All of it.
        frame: Vec<u8>,
    },
    /// A question has ended.
    Ended {
        /// How.
        outcome: Outcome,
        /// How soon it was answered.
        after: Option<Duration>,
    },
    /// Something has changed.
    Found(Finding),
}

/// See the module.
#[derive(Debug)]
pub struct Prober {
    asked: BTreeMap<SocketAddr, Asked>,
    /// Where addresses were found, until they do not answer.
    neighbors: BTreeMap<(u32, IpAddr), Mac>,
    /// Who was asked last.
    last: Option<SocketAddr>,
    /// When the next one is asked.
    next: Instant,
    /// What makes sequence numbers that nobody foresees.
    seed: u64,
    questions: u64,
}

impl Prober {
    /// Nobody is asked yet. `seed`: what others do not know.
    pub fn new(now: Instant, seed: u64) -> Self {
        Self { asked: BTreeMap::new(), neighbors: BTreeMap::new(), last: None, next: now, seed, questions: 0 }
    }

    /// From now on these are asked. What was found out about one stays known where only its owner is another.
    pub fn watch(&mut self, now: Instant, targets: Targets) {
        if self.asked.is_empty() {
            self.next = now;
        }
        let mut before = std::mem::take(&mut self.asked);
        for (at, target) in targets {
            let asked = match before.remove(&at) {
                Some(known) if known.target.service == target.service => {
                    let moved = !known.is_at(&target);
                    if moved {
                        self.neighbors.remove(&(known.target.link, at.ip()));
                    }
                    known.with(target, moved)
                }
                _ => Asked::new(target),
            };
            self.asked.insert(at, asked);
        }
        let asked = &self.asked;
        self.neighbors.retain(|(link, address), _| {
            asked.values().any(|it| it.target.link == *link && it.target.at.ip() == *address)
        });
    }

    /// Which sockets are needed.
    pub fn listens(&self) -> impl Iterator<Item = (u32, Traffic)> + '_ {
        self.asked.values().flat_map(|asked| {
            let (neighbor, handshake) = traffic(asked.target.at.ip());
            [(asked.target.link, neighbor), (asked.target.link, handshake)]
        })
    }

    /// How many do not answer, or refuse.
    pub fn unserved(&self) -> usize {
        self.asked.values().filter(|asked| asked.is_unserved()).count()
    }

    /// When to call [`Self::tick`] next.
    pub fn deadline(&self) -> Option<Instant> {
        let next = (!self.asked.is_empty()).then_some(self.next);
        self.asked.values().filter_map(Asked::deadline).chain(next).min()
    }

    /// A frame was heard. All that waits is taken in before a timer is judged (failover-protocol.md R1).
    pub fn heard(&mut self, now: Instant, link: u32, frame: &[u8]) -> Vec<Output> {
        if let Some(reply) = handshake::parse_frame(frame) {
            let asked = self.asked.get_mut(&reply.asked).filter(|asked| asked.target.link == link);
            return asked.map_or_else(Vec::new, |asked| asked.answered(now, &reply));
        }
        let Some((address, mac)) = neighbor(frame) else { return Vec::new() };
        let waiting: Vec<SocketAddr> = self
            .asked
            .values()
            .filter(|asked| asked.target.link == link && asked.target.at.ip() == address && asked.seeks_neighbor())
            .map(|asked| asked.target.at)
            .collect();
        if !waiting.is_empty() {
            self.neighbors.insert((link, address), mac);
        }
        waiting.into_iter().flat_map(|at| self.begin(now, at)).collect()
    }

    /// What is due.
    pub fn tick(&mut self, now: Instant) -> Vec<Output> {
        let mut outputs = Vec::new();
        for asked in self.asked.values_mut() {
            let ended = asked.tick(now, &mut outputs);
            if ended {
                // As a client's entry, that is asked for anew when nothing comes back.
                self.neighbors.remove(&(asked.target.link, asked.target.at.ip()));
            }
        }
        if self.next <= now {
            let count = u32::try_from(self.asked.len()).unwrap_or(u32::MAX).max(1);
            self.next = now + (PERIOD / count).max(GAP);
            if let Some(at) = self.next_in_turn() {
                self.last = Some(at);
                outputs.extend(self.begin(now, at));
            }
        }
        outputs
    }

    /// Round the end. One that is being asked still is passed over.
    fn next_in_turn(&self) -> Option<SocketAddr> {
        let after = self.asked.range((
            self.last.map_or(std::ops::Bound::Unbounded, std::ops::Bound::Excluded),
            std::ops::Bound::Unbounded,
        ));
        after.chain(&self.asked).find(|(_, asked)| asked.is_idle()).map(|(at, _)| *at)
    }

    fn begin(&mut self, now: Instant, at: SocketAddr) -> Vec<Output> {
        self.questions += 1;
        let (number, seed) = (self.questions, self.seed);
        let Some(asked) = self.asked.get_mut(&at) else { return Vec::new() };
        let Target { link, mac, source, .. } = asked.target;
        let Some(there) = self.neighbors.get(&(link, at.ip())) else {
            return asked.open(now, Open::neighbor(now)).into_iter().collect();
        };
        // Another port each time: a question that was lost stays for two minutes in the tables of those it has passed,
        // with the endpoint that it was sent to, and the next one from the same port would go the same way.
        let port = PORTS.start() + u16::from(asked.next_port());
        let handshake = Handshake {
            source_mac: mac,
            destination_mac: *there,
            source: SocketAddr::new(source, port),
            destination: at,
            sequence: mixed(seed, number),
        };
        asked.open(now, Open::handshake(now, handshake)).into_iter().collect()
    }
}

/// Which sockets hear answers about an address: that of neighbours and that of handshakes.
fn traffic(address: IpAddr) -> (Traffic, Traffic) {
    match address {
        IpAddr::V4(_) => (Traffic::Arp, Traffic::Handshake),
        IpAddr::V6(_) => (Traffic::NeighborDiscovery, Traffic::Handshake6),
    }
}

/// The question of a client that does not know yet where the address is.
fn who_has(target: &Target) -> Option<Vec<u8>> {
    match (target.source, target.at.ip()) {
        (IpAddr::V4(source), IpAddr::V4(address)) => {
            Some(Arp::who_has(target.mac, source, address).frame(Mac::BROADCAST).to_vec())
        }
        (IpAddr::V6(source), IpAddr::V6(address)) => {
            let ndp = Ndp::multicast_probe(source, target.mac, address);
            Some(ndp.frame(target.mac, ndp.group_mac()?))
        }
        _ => None,
    }
}

/// Who answers that it has which address.
fn neighbor(frame: &[u8]) -> Option<(IpAddr, Mac)> {
    if let Some(found) = arp::parse_frame(frame) {
        let Arp { sender_ip, sender_mac, .. } = found.arp;
        return found.arp.is_answer_for(sender_ip).then_some((sender_ip.into(), sender_mac));
    }
    let found = ndp::parse_frame(frame)?;
    match found.ndp.message {
        Message::Advertisement { target_mac, .. } => {
            Some((found.ndp.target.into(), target_mac.unwrap_or(found.ethernet.source)))
        }
        Message::Solicitation { .. } => None,
    }
}

/// A number that follows from both and shows neither.
fn mixed(seed: u64, number: u64) -> u32 {
    let mut hash = seed.wrapping_add(number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    u32::try_from(hash >> 32).expect("32 bits are left")
}
