//! The failure detector: whether the owners of VIPs that this node is to succeed still answer for them, asked with the
//! eyes of a client (failover-protocol.md 1 and 4). No I/O and no clock.
//!
//! * [`Detector`]: what it watches, what it heard, when it asks. One round per period over all owners, each owner asked
//!   about one of its VIPs by a unicast question to the MAC that has to answer.
//! * `watch.rs`: one owner on one interface: silent periods, whose turn it is, which VIPs are suspected.
//! * `vip.rs`: one of its addresses, and what was answered for it.
//! * `confirm.rs`: the confirmation burst of an owner, by broadcast, beside it the landmarks.
//! * `landmarks.rs`: who else is on the LAN, asked now and then.
//!
//! The rules: R1, all that was heard is fed in by [`Detector::on_frame`] before [`Detector::tick`] judges a timer, and
//! a late tick puts off the next one; R2, what was asked before a late tick counts neither way; R3, nobody is called
//! silent without a burst; R4, nor without saying on which side of the LAN we are; R5, nobody is suspected before it
//! answered once for this record, or had the time for it.

mod ask;
mod confirm;
pub(crate) mod landmarks;
pub mod profile;
pub(crate) mod verdict;
mod vip;
mod watch;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::{Duration, Instant};

pub use ask::Ask;
pub(crate) use landmarks::Landmark;
use landmarks::Landmarks;
pub use profile::{ParseProfileError, Profile, Timers};
use verdict::{Target, Verdict};
use watch::Watch;

use crate::frames::{Frame, Heard};
use crate::node_watch::Finding;

/// What to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Output {
    /// Send this question.
    Ask(Ask),
    /// This was found out about an owner.
    Verdict(Verdict),
    /// This was found out about a node.
    Node(Finding),
}

/// What has been counted, for metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counters {
    /// Unicast questions sent to owners.
    pub asked: u64,
    /// Questions of which no answer had come when the next one was due.
    pub unanswered: u64,
    /// Confirmation bursts begun.
    pub bursts: u64,
    /// Bursts in which the suspected owner, or somebody else, answered for all.
    pub refuted: u64,
    /// Bursts in which nobody answered us at all: we are cut off.
    pub isolated: u64,
    /// Judgements put off because our own timer was late.
    pub late: u64,
    /// The worst lateness of a timer of ours.
    pub worst_lateness: Duration,
}

/// As what a node is watched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Subject {
    /// As an owner of addresses: it is succeeded.
    Owner,
    /// For its own sake, at its own address: others are told. It is asked by unicast only, and once it was found silent
    /// seldom.
    Node,
}

/// Watches the owners that this node may have to succeed.
#[derive(Debug)]
pub(crate) struct Detector {
    timers: Timers,
    watches: BTreeMap<(String, u32, Subject), Watch>,
    landmarks: Landmarks,
    /// When all owners are asked next; meaningless while nobody is watched.
    next_round: Instant,
    counters: Counters,
    findings: Vec<Output>,
}

impl Detector {
    /// Watches nobody.
    pub fn new(now: Instant, timers: Timers) -> Self {
        Self {
            timers,
            watches: BTreeMap::new(),
            landmarks: Landmarks::default(),
            next_round: now,
            counters: Counters::default(),
            findings: Vec::new(),
        }
    }

    /// Watches these and nobody else. What stays under the same record keeps its history; what is new has to be heard
    /// first (R5). Owners on an interface without carrier are to be left out: nothing can be found out there.
    pub fn watch(&mut self, now: Instant, targets: &[Target]) {
        self.set(now, targets, Subject::Owner);
    }

    /// Watches these nodes, and no others, each at an address of its own.
    pub fn watch_nodes(&mut self, now: Instant, targets: &[Target]) {
        self.set(now, targets, Subject::Node);
    }

    fn set(&mut self, now: Instant, targets: &[Target], subject: Subject) {
        let mut wanted: BTreeMap<(String, u32, Subject), (&Target, Vec<watch::Wanted>)> = BTreeMap::new();
        for target in targets {
            let key = (target.owner.clone(), target.link, subject);
            let (_, vips) = wanted.entry(key).or_insert_with(|| (target, Vec::new()));
            let wanted =
                |vip: &verdict::Watched| watch::Wanted { vip: *vip, rank: target.rank, ahead: target.ahead.clone() };
            vips.extend(target.vips.iter().map(wanted));
        }
        if self.watches.is_empty() {
            self.next_round = now + self.timers.period;
        }
        self.watches.retain(|key, _| key.2 != subject || wanted.contains_key(key));
        for (key, (target, vips)) in wanted {
            self.watches.entry(key).or_insert_with(|| Watch::new(subject)).want(now, target, &vips);
        }
    }

    /// Who can tell on which side of the LAN we are. On `links` others are found; `vips` move from node to node and
    /// prove nothing.
    pub fn landmarks(&mut self, now: Instant, named: &[Landmark], links: BTreeSet<u32>, vips: BTreeSet<IpAddr>) {
        self.landmarks.name(now, named, links, vips);
    }

    /// How many hosts that are no members are heard on each interface.
    pub fn hears(&self, now: Instant) -> BTreeMap<u32, u8> {
        self.landmarks.outside(now)
    }

    /// Takes in one frame; judges nothing (R1).
    pub fn on_frame(&mut self, now: Instant, frame: &Frame) {
        self.landmarks.on_frame(now, frame);
        for ((owner, link, subject), watch) in &mut self.watches {
            if *link != frame.link {
                continue;
            }
            watch.testify(now, frame);
            if frame.what == Heard::Answer && frame.to_us && watch.answered(now, frame.address, frame.mac) {
                self.findings.push(match subject {
                    Subject::Owner => Output::Verdict(Verdict::Answers { owner: owner.clone(), vip: frame.address }),
                    Subject::Node => Output::Node(Finding::Answers { node: owner.clone() }),
                });
            }
        }
    }

    /// Judges what is due and says what to ask.
    pub fn tick(&mut self, now: Instant) -> Vec<Output> {
        let mut out: Vec<Output> = self.findings.drain(..).collect();
        // With a round of questions, so that they cost no wake-up of their own.
        if self.watches.is_empty() || now >= self.next_round {
            out.extend(self.landmarks.due(now).into_iter().map(Output::Ask));
        }
        for ((owner, link, _), watch) in &mut self.watches {
            let context = Context { now, link: *link, timers: &self.timers, landmarks: &self.landmarks, silent: &[] };
            watch.burst(&context, owner, &mut self.counters, &mut out);
        }
        if self.watches.is_empty() || now < self.next_round {
            return out;
        }
        let late = now - self.next_round;
        self.counters.worst_lateness = self.counters.worst_lateness.max(late);
        // R1: from now on, never what was missed at once.
        self.next_round = now + self.timers.period;
        let trusted = late <= self.timers.tolerance();
        // All are counted first: who is second in line wants to know whether the first is silent, too.
        self.watches.values_mut().for_each(|watch| watch.count(trusted, &mut self.counters));
        let silent = self.silent_nodes();
        for ((owner, link, _), watch) in &mut self.watches {
            let context =
                Context { now, link: *link, timers: &self.timers, landmarks: &self.landmarks, silent: &silent };
            watch.round(&context, &mut self.counters, &mut out);
            watch.burst(&context, owner, &mut self.counters, &mut out);
        }
        out
    }

    /// Nodes that have answered before and have been silent for as long as the first in line waits.
    fn silent_nodes(&self) -> Vec<String> {
        let nodes = self.watches.iter().filter(|((.., subject), _)| *subject == Subject::Node);
        let silent = nodes.filter(|(_, watch)| watch.is_silent(self.timers.patience(0)));
        silent.map(|((node, ..), _)| node.clone()).collect()
    }

    /// When to tick again; absent: nobody is watched, and there are no landmarks.
    pub fn deadline(&self) -> Option<Instant> {
        let bursts = self.watches.values().filter_map(Watch::deadline).min();
        let round = (!self.watches.is_empty()).then_some(self.next_round);
        let told = (!self.findings.is_empty()).then_some(self.next_round);
        let landmarks = self.landmarks.deadline().filter(|_| self.watches.is_empty());
        [bursts, round, told, landmarks].into_iter().flatten().min()
    }

    /// What was counted so far.
    pub fn counters(&self) -> Counters {
        self.counters
    }
}

/// What a watch needs to know of the rest.
struct Context<'a> {
    now: Instant,
    link: u32,
    timers: &'a Timers,
    landmarks: &'a Landmarks,
    /// Nodes that are watched for their own sake and do not answer.
    silent: &'a [String],
}

#[cfg(test)]
mod tests;
