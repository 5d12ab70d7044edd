//! Probes whether announced Services are also served. Nodes other than the owner ask as a client would: by ARP or
//! neighbour solicitation, then by the SYN of a TCP connection. An announced address may not be served, because of
//! kube-proxy, packet filters, network policies or endpoints.
//!
//! This module decides when to probe which address, what an answer means, and when enough probes have failed to report
//! it. `target_state.rs` holds the state of one address and port. Frames go in and come out complete; no socket, no
//! clock.

mod target_state;
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
use target_state::{Open, TargetState};

/// Period in which each target is probed once.
const PERIOD: Duration = Duration::from_secs(5);
/// Minimum time between two probes. With more than 250 targets each is probed less often.
const GAP: Duration = Duration::from_millis(20);
/// Consecutive failures after which a target is reported.
const FAILURES: u32 = 3;
/// Consecutive failures after which the second prober reports too, in case the first has not.
pub const PERSISTS: u32 = 6;

/// An address and port to probe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// The Service that has the address.
    pub service: ServiceKey,
    /// The address and the first TCP port of the Service.
    pub at: SocketAddr,
    /// The node that announces it.
    pub owner: String,
    /// Our interface in the LAN of the address.
    pub link: u32,
    /// MAC of that interface.
    pub mac: Mac,
    /// An own address on that interface, of the same family.
    pub source: IpAddr,
    /// Whether this node is the first prober, which reports first.
    pub first: bool,
}

/// All targets, by address and port.
pub type Targets = BTreeMap<SocketAddr, Target>;

/// The result of a probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Outcome {
    /// The connection was accepted.
    Served,
    /// The connection was refused.
    Refused,
    /// The address was resolved, but no answer to the SYN came back.
    Silent,
    /// The address was not resolved: no host answered the ARP or neighbour request.
    NoNeighbor,
}

impl Outcome {
    /// The name in metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Served => "served",
            Self::Refused => "refused",
            Self::Silent => "silent",
            Self::NoNeighbor => "no-neighbor",
        }
    }
}

/// A change in how a target is served, as seen from this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProbeFinding {
    /// The target.
    pub target: Target,
    /// The current result.
    pub outcome: Outcome,
    /// Consecutive failures; 0 if it is served.
    pub failures: u32,
}

/// What the caller has to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output {
    /// Send a frame.
    Send {
        /// Index of the interface.
        link: u32,
        /// The kind of socket that receives the answer.
        traffic: Traffic,
        /// The complete frame.
        frame: Vec<u8>,
    },
    /// A probe has ended.
    Ended {
        /// Its result.
        outcome: Outcome,
        /// Time until the answer; `None` without one.
        after: Option<Duration>,
    },
    /// The result of a target has changed.
    Found(ProbeFinding),
}

/// All targets with their state.
#[derive(Debug)]
pub struct Prober {
    asked: BTreeMap<SocketAddr, TargetState>,
    /// Resolved MACs; an entry is removed when its address does not answer.
    neighbors: BTreeMap<(u32, IpAddr), Mac>,
    /// The target that was probed last.
    last: Option<SocketAddr>,
    /// When the next target is probed.
    next: Instant,
    /// Secret input of the sequence numbers, so that other hosts cannot predict them.
    seed: u64,
    questions: u64,
}

impl Prober {
    /// Starts without targets. `seed`: a random value.
    pub fn new(now: Instant, seed: u64) -> Self {
        Self { asked: BTreeMap::new(), neighbors: BTreeMap::new(), last: None, next: now, seed, questions: 0 }
    }

    /// Replaces the targets. A target keeps its state if it belongs to the same Service as before.
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
                _ => TargetState::new(target),
            };
            self.asked.insert(at, asked);
        }
        let asked = &self.asked;
        self.neighbors.retain(|(link, address), _| {
            asked.values().any(|it| it.target.link == *link && it.target.at.ip() == *address)
        });
    }

    /// The sockets that are needed: interface and kind.
    pub fn listens(&self) -> impl Iterator<Item = (u32, Traffic)> + '_ {
        self.asked.values().flat_map(|asked| {
            let (neighbor, handshake) = traffic(asked.target.at.ip());
            [(asked.target.link, neighbor), (asked.target.link, handshake)]
        })
    }

    /// How many targets do not answer or refuse.
    pub fn unserved(&self) -> usize {
        self.asked.values().filter(|asked| asked.is_unserved()).count()
    }

    /// When to call [`Self::tick`] next.
    pub fn deadline(&self) -> Option<Instant> {
        let next = (!self.asked.is_empty()).then_some(self.next);
        self.asked.values().filter_map(TargetState::deadline).chain(next).min()
    }

    /// Takes in a received frame. The caller feeds all waiting frames before it calls [`Self::tick`]
    /// (fail-over spec R1).
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

    /// Handles what is due.
    pub fn tick(&mut self, now: Instant) -> Vec<Output> {
        let mut outputs = Vec::new();
        for asked in self.asked.values_mut() {
            let ended = asked.tick(now, &mut outputs);
            if ended {
                // The entry is removed, as a client does when no answer comes back, so that the address is resolved
                // anew.
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

    /// The next target in turn, with a wrap at the end. A target with an open probe is skipped.
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
        // Each probe uses another port. A lost probe stays for two minutes in the conntrack tables on its way, with the
        // endpoint that it was sent to. The next one from the same port would take the same way.
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

/// The sockets for answers about an address: for address resolution and for handshakes.
fn traffic(address: IpAddr) -> (Traffic, Traffic) {
    match address {
        IpAddr::V4(_) => (Traffic::Arp, Traffic::Handshake),
        IpAddr::V6(_) => (Traffic::NeighborDiscovery, Traffic::Handshake6),
    }
}

/// The request of a client that does not know the MAC of the address yet.
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

/// The address and MAC of an answer to address resolution.
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

/// A hash of both values that reveals neither.
fn mixed(seed: u64, number: u64) -> u32 {
    let mut hash = seed.wrapping_add(number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    u32::try_from(hash >> 32).expect("32 bits are left")
}
