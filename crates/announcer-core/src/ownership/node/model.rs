//! Every order in which the steps of the ownership protocol can happen, for two and three nodes and one address, up to
//! a number of faults: loss of power, crash and restart, split of the LAN, loss of the API, an exclusion by a user, and
//! between any two of them every order of looks, writes, answers, watches, claims, renewals and deadlines. A write may
//! take as long as it likes, and its answer may be lost.
//!
//! What decides is the production code: [`decide`], [`Candidates`], [`Before::side`] and [`Swap::may_replace`]. What
//! surrounds it is abstract: no clock, no frames. Five facts about time are assumed: a kernel drops the addresses of a
//! dead process before its Lease runs out; a verdict of the detector is true when it is given; a card that counts for
//! "hears fewer hosts" was written since the owner fell silent; an owner that can learn of its record answers before
//! anybody suspects it (R5); and who suspects an owner has renewed its own Lease since it started, or since the API
//! came back, which takes less than the five seconds of R5.
//!
//! Unit tests take one fault; `make model` takes up to three with two nodes and up to two with three. How long a node
//! pauses between two take-overs is not modelled.

mod explore;
mod promises;

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};

use l2_types::Mac;

use super::candidates::{Candidates, Penalties};
use super::decide::{Case, OwnerState, Step, decide};
use super::silence::OwnerSilence;
use super::{OwnerRecord, Swap, Term};
use crate::detect::landmarks::{Before, Side};
use crate::view::Uid;

const NAMES: [&str; 3] = ["node-1", "node-2", "node-3"];
const GATEWAY: Mac = Mac::new([2, 0, 0, 0, 0, 254]);
const GATEWAY_ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 254));
/// Clients, which are landmarks too.
const CLIENTS: [Mac; 2] = [Mac::new([2, 0, 0, 0, 2, 1]), Mac::new([2, 0, 0, 0, 2, 2])];
/// No run needs as many changes of owner: the record would go to and fro.
const HIGHEST_TERM: u8 = 20;
/// A schedule without faults that is longer than this does not come to rest.
const LONGEST: usize = 300;

/// Host and term; of nobody: the address was given up for a claim, or the process has read nothing yet.
type Record = (Option<u8>, u8);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(clippy::struct_excessive_bools)] // independent facts, not the states of one machine
struct Node {
    power: bool,
    process: bool,
    /// Its kernel answers for the address.
    has: bool,
    /// It does not reach the API.
    away: bool,
    /// It is cut off from the clients, with all others that are.
    cut: bool,
    /// A user has excluded it.
    excluded: bool,
    /// It has handed the address over, and serves it for a last moment.
    lingers: bool,
    /// Its Lease: fresh, run out, run out for some seconds.
    lease: u8,
    /// What its card says of its side of the LAN: clients' hosts are there.
    hears: bool,
    /// The newest record that it knows.
    view: Record,
    /// A write on its way: what is expected, and what is to stand there.
    write: Option<(Record, Record)>,
    /// The answer on its way: what stands there.
    answer: Option<Record>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct World {
    nodes: Vec<Node>,
    record: Record,
    faults: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Event {
    PowerLoss(usize),
    PowerBack(usize),
    Crash(usize),
    Restart(usize),
    /// These nodes, as bits, are cut off together from the rest; none: the LAN is whole again.
    Split(u8),
    ApiAway(usize),
    ApiBack(usize),
    Excluded(usize),
    /// It decides what to do, and begins to write it.
    Look(usize),
    Performed(usize),
    WriteLost(usize),
    Answered(usize),
    AnswerLost(usize),
    Watched(usize),
    Up(usize),
    /// The claim of the first reaches the second.
    Claim(usize, usize),
    LingerEnds(usize),
    Expires(usize),
    LeaseRunsOut(usize),
    Renewed(usize),
}

/// What is explored.
#[derive(Debug, Clone, Copy)]
struct Bound {
    nodes: usize,
    faults: u8,
    gateway: bool,
    /// Nodes that ask no landmark, to see that it is noticed.
    blind: bool,
}

fn record((host, term): Record) -> OwnerRecord {
    OwnerRecord { host: host.map_or("", |host| NAMES[usize::from(host)]).to_owned(), term: Term(u64::from(term)) }
}

fn number(name: &str) -> u8 {
    let found = NAMES.iter().position(|other| *other == name).expect("one of the nodes");
    u8::try_from(found).expect("there are three")
}

fn mac(node: usize) -> Mac {
    Mac::new([2, 0, 0, 0, 1, u8::try_from(node).expect("there are three")])
}

impl World {
    fn new(bound: Bound) -> Self {
        let node = Node {
            power: true,
            process: true,
            has: false,
            away: false,
            cut: false,
            excluded: false,
            lingers: false,
            lease: 0,
            hears: true,
            view: (Some(0), 1),
            write: None,
            answer: None,
        };
        let mut nodes = vec![node; bound.nodes];
        nodes[0].has = true;
        Self { nodes, record: (Some(0), 1), faults: bound.faults }
    }

    fn hear_each_other(&self, a: usize, b: usize) -> bool {
        self.nodes[a].power && self.nodes[b].power && self.nodes[a].cut == self.nodes[b].cut
    }

    /// Clients are answered by it.
    fn serves(&self, n: usize) -> bool {
        self.nodes[n].power && self.nodes[n].has && !self.nodes[n].cut
    }

    fn owns(&self, n: usize) -> bool {
        self.nodes[n].view.0.is_some_and(|host| usize::from(host) == n)
    }

    /// R5: it is about to have the address, and will be heard before anybody suspects it.
    fn is_coming(&self, owner: usize) -> bool {
        let node = &self.nodes[owner];
        let learns = (!node.away || node.answer.is_some()) && self.record.0.map(usize::from) == Some(owner);
        node.process && (self.owns(owner) || learns)
    }

    fn is_silent(&self, n: usize, owner: usize) -> bool {
        !(self.hear_each_other(n, owner) && (self.nodes[owner].has || self.is_coming(owner)))
    }

    /// Hosts that are no nodes and answer on this side of the LAN.
    fn hosts(bound: Bound, cut: bool) -> BTreeSet<Mac> {
        let gateway = bound.gateway.then_some(GATEWAY);
        CLIENTS.into_iter().chain(gateway).filter(|_| !cut).collect()
    }

    /// What the detector of `n` says of an owner that does not answer.
    fn silence(&self, bound: Bound, n: usize, owner: usize) -> OwnerSilence {
        let others: BTreeSet<usize> = (0..bound.nodes).filter(|other| *other != n && *other != owner).collect();
        let all = others.iter().map(|other| mac(*other)).chain(Self::hosts(bound, false)).collect();
        let hosts = Self::hosts(bound, self.nodes[n].cut);
        let outside = u8::try_from(hosts.len()).expect("there are few");
        let heard = others.iter().filter(|other| self.hear_each_other(n, **other)).map(|other| mac(*other));
        let found: BTreeSet<Mac> = heard.chain(hosts).collect();
        if bound.blind {
            return OwnerSilence { taken: None, side: Side::Greater, certain: true, heard: true, last: None, outside };
        }
        let before = Before::of(bound.gateway.then_some((GATEWAY_ADDRESS, GATEWAY)), all, CLIENTS.into());
        OwnerSilence {
            taken: None,
            side: before.side(&found),
            certain: before.is_certain(&found),
            heard: true,
            last: None,
            outside,
        }
    }

    fn step(&self, bound: Bound, n: usize) -> Step {
        let node = &self.nodes[n];
        let Some(owner) = node.view.0.map(usize::from) else { return Step::Rest };
        let owner_record = record(node.view);
        let may = |other: &usize| !self.nodes[*other].excluded && (*other == n || self.nodes[*other].lease == 0);
        let candidates =
            Candidates::new((0..bound.nodes).filter(may).map(|other| (NAMES[other], Penalties::default())));
        let silent = (owner != n && self.is_silent(n, owner)).then(|| self.silence(bound, n, owner));
        let theirs = u8::try_from(Self::hosts(bound, !self.nodes[owner].hears).len()).expect("there are few");
        let fresh = self.nodes[owner].hears != self.nodes[owner].cut;
        decide(&Case {
            holding: node.has,
            eligible: !node.excluded,
            owner_state: if self.nodes[owner].lease == 0 { OwnerState::Alive } else { OwnerState::Expired },
            silent,
            in_its_name: false,
            owner_hears_more: silent.is_some_and(|silent| silent.owner_hears_more(theirs)),
            owner_hears_fewer: silent.is_some_and(|silent| fresh && theirs < silent.outside),
            others_had_their_time: self.nodes[owner].lease == 2,
            ..Case::quiet(NAMES[n], Some(&owner_record), &candidates)
        })
    }

    /// What its decision makes it write.
    fn wants(&self, bound: Bound, n: usize) -> Option<Record> {
        let node = &self.nodes[n];
        if !node.process || node.away || node.lease > 0 || node.write.is_some() || node.answer.is_some() {
            return None;
        }
        let to = match self.step(bound, n) {
            Step::Rest | Step::LeaveUnreached | Step::Ask => return None,
            Step::Take(_) => NAMES[n].to_owned(),
            Step::Give(to, _) => to,
        };
        Some((Some(number(&to)), node.view.1 + 1))
    }

    fn can(&self, bound: Bound, event: Event) -> bool {
        let node = |n: usize| &self.nodes[n];
        let fault = self.faults > 0;
        match event {
            Event::PowerLoss(n) => fault && node(n).power,
            Event::PowerBack(n) => !node(n).power,
            Event::Crash(n) => fault && node(n).process,
            Event::Restart(n) => node(n).power && !node(n).process,
            Event::Split(0) => self.nodes.iter().any(|node| node.cut),
            Event::Split(_) => fault && self.nodes.iter().all(|node| !node.cut),
            Event::ApiAway(n) => fault && !node(n).away,
            Event::ApiBack(n) => node(n).away,
            Event::Excluded(n) => fault && self.nodes.iter().all(|node| !node.excluded) && node(n).power,
            Event::Look(n) => self.wants(bound, n).is_some(),
            Event::Performed(n) => node(n).write.is_some(),
            Event::WriteLost(n) => node(n).write.is_some() && (node(n).away || !node(n).process),
            Event::Answered(n) => node(n).answer.is_some() && node(n).process,
            Event::AnswerLost(n) => node(n).answer.is_some() && (node(n).away || !node(n).process),
            Event::Watched(n) => node(n).process && !node(n).away && node(n).view != self.record,
            Event::Up(n) => node(n).process && self.owns(n) && !node(n).has,
            Event::Claim(n, to) => {
                let knows = |n: usize| node(n).process && node(n).view.1 > 0;
                let stale = node(to).view.1 < node(n).view.1 || node(to).lingers;
                knows(n)
                    && knows(to)
                    && self.owns(n)
                    && node(n).has
                    && node(to).has
                    && stale
                    && self.hear_each_other(n, to)
            }
            Event::LingerEnds(n) => node(n).process && node(n).lingers,
            Event::Expires(n) => !node(n).process && node(n).has,
            Event::LeaseRunsOut(n) => {
                let renews = node(n).process && !node(n).away;
                !renews && node(n).lease < 2 && (node(n).process || !node(n).has)
            }
            Event::Renewed(n) => {
                node(n).process && !node(n).away && (node(n).lease > 0 || node(n).hears == node(n).cut)
            }
        }
    }

    fn learn(&mut self, n: usize, record: Record) {
        let handed_over = self.owns(n) && self.nodes[n].has;
        let node = &mut self.nodes[n];
        if record.1 < node.view.1 || record == node.view {
            return;
        }
        let own_doing = handed_over && record.1 == node.view.1 + 1 && node.answer == Some(record);
        node.view = record;
        if self.owns(n) {
            self.nodes[n].lingers = false;
        } else if own_doing {
            self.nodes[n].lingers = true;
        } else {
            (self.nodes[n].has, self.nodes[n].lingers) = (false, false);
        }
    }

    fn start(&mut self, n: usize) {
        let node = &mut self.nodes[n];
        (node.process, node.lingers, node.view, node.answer) = (true, false, (None, 0), None);
    }

    fn end(&mut self, n: usize) {
        let node = &mut self.nodes[n];
        (node.process, node.lingers, node.answer) = (false, false, None);
    }

    fn after(&self, bound: Bound, event: Event) -> Self {
        let mut next = self.clone();
        if let Event::PowerLoss(_) | Event::Crash(_) | Event::ApiAway(_) | Event::Excluded(_) = event {
            next.faults -= 1;
        }
        match event {
            Event::PowerLoss(n) => {
                next.end(n);
                (next.nodes[n].power, next.nodes[n].has) = (false, false);
            }
            Event::PowerBack(n) => {
                next.nodes[n].power = true;
                next.start(n);
            }
            Event::Crash(n) => next.end(n),
            Event::Restart(n) => next.start(n),
            Event::Split(cut) => {
                next.faults -= u8::from(cut != 0);
                for (n, node) in next.nodes.iter_mut().enumerate() {
                    node.cut = cut & (1 << n) != 0;
                }
            }
            Event::ApiAway(n) => next.nodes[n].away = true,
            Event::ApiBack(n) => next.nodes[n].away = false,
            Event::Excluded(n) => next.nodes[n].excluded = true,
            Event::Look(n) => next.nodes[n].write = self.wants(bound, n).map(|to| (self.nodes[n].view, to)),
            Event::Performed(n) => {
                let (expect, to) = next.nodes[n].write.take().expect("it can");
                let swap = Swap { uid: Uid("u".into()), expect: Some(record(expect)), owner_record: record(to) };
                if swap.may_replace(Some(&record(next.record))) {
                    next.record = to;
                }
                if next.nodes[n].process {
                    next.nodes[n].answer = Some(next.record);
                }
            }
            Event::WriteLost(n) => next.nodes[n].write = None,
            Event::Answered(n) => {
                let stands = next.nodes[n].answer.expect("it can");
                next.learn(n, stands);
                next.nodes[n].answer = None;
            }
            Event::AnswerLost(n) => next.nodes[n].answer = None,
            Event::Watched(n) => next.learn(n, self.record),
            Event::Up(n) => next.nodes[n].has = true,
            Event::Claim(n, to) => {
                let (term, newer) = (self.nodes[n].view.1, self.nodes[to].view.1 < self.nodes[n].view.1);
                let loser = &mut next.nodes[to];
                (loser.has, loser.lingers) = (false, false);
                if newer {
                    loser.view = (None, term);
                }
            }
            Event::LingerEnds(n) => (next.nodes[n].has, next.nodes[n].lingers) = (false, false),
            Event::Expires(n) => next.nodes[n].has = false,
            Event::LeaseRunsOut(n) => next.nodes[n].lease += 1,
            Event::Renewed(n) => {
                let node = &mut next.nodes[n];
                (node.lease, node.hears) = (0, !node.cut);
            }
        }
        next
    }
}
