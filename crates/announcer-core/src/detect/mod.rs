//! The failure detector: whether the owners that this node may have to succeed still answer for their VIPs. It asks as
//! a client would (fail-over spec 1 and 4). No I/O and no clock.
//!
//! * [`Detector`]: what it watches, what it heard, when it asks. One round per period over all owners, each owner asked
//!   about one of its VIPs by a unicast question to the MAC that has to answer.
//! * `watch.rs`: one owner on one interface: silent periods, whose turn it is, which VIPs are suspected; and what
//!   follows from a burst.
//! * `vip.rs`: one of its addresses, and what was answered for it.
//! * `confirm.rs`: the confirmation burst of an owner, by broadcast, beside it the landmarks.
//! * `landmarks.rs`: who else is on the LAN, asked now and then.
//!
//! The rules: R1, all received frames go through [`Detector::on_frame`] before [`Detector::tick`] judges a timer, and a
//! late tick delays the next one; R2, a question that was open at a late tick, or was not sent, counts neither way; R3,
//! no owner is called silent without a burst; R4, no verdict without the side of the LAN that this node is on; R5, no
//! owner is suspected before it has answered under its record or has had the time to do so.

mod ask;
mod confirm;
pub(crate) mod landmarks;
pub mod profile;
pub(crate) mod verdict;
mod vip;
mod watch;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

pub use ask::Ask;
use landmarks::Landmarks;
pub(crate) use landmarks::{GatewayState, Neighbourhood};
pub use profile::{ParseProfileError, Profile, Timers};
use verdict::{OwnerVerdict, Target};
use watch::{Reported, Watch};

use crate::frames::{Frame, Heard};
use crate::node_watch::NodeFinding;

/// What the detector wants to be done or reports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Output {
    /// Send this question.
    Ask(Ask),
    /// A finding about an owner.
    Verdict(OwnerVerdict),
    /// A finding about a node.
    Node(NodeFinding),
}

/// Counters for metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counters {
    /// Unicast questions sent to owners.
    pub asked: u64,
    /// Questions that were unanswered when the next round came.
    pub unanswered: u64,
    /// Confirmation bursts started.
    pub bursts: u64,
    /// Bursts in which an answer came for every suspected VIP, from the owner or from another host.
    pub refuted: u64,
    /// Bursts in which no host answered: this node is cut off.
    pub isolated: u64,
    /// Judgements that were postponed because a timer of this process was late.
    pub late: u64,
    /// Questions that could not be sent.
    pub unsent: u64,
    /// The worst lateness of a timer of this process.
    pub worst_lateness: Duration,
}

/// Why a node is watched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Subject {
    /// As the owner of VIPs, to succeed it.
    Owner,
    /// For its own sake, at an address of its own, to report it. It is asked by unicast only, and less often after it
    /// was found silent.
    Node,
}

/// Watches the owners that this node may have to succeed.
#[derive(Debug)]
pub(crate) struct Detector {
    timers: Timers,
    watches: BTreeMap<(String, u32, Subject), Watch>,
    landmarks: Landmarks,
    /// When all owners are asked next; without meaning while nothing is watched.
    next_round: Instant,
    counters: Counters,
    findings: Vec<Output>,
}

impl Detector {
    /// Starts without targets.
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

    /// Watches these owners and no others. A VIP that stays under the same record keeps its history; a new one must be
    /// heard first (R5). The caller leaves out owners on interfaces without carrier, because nothing can be found out
    /// there.
    pub fn watch(&mut self, now: Instant, targets: &[Target]) {
        self.set(now, targets, Subject::Owner);
    }

    /// Watches these nodes and no others, each at an address of its own.
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
        let reported = self.reported(subject);
        self.watches.retain(|key, _| key.2 != subject || wanted.contains_key(key));
        for (key, (target, vips)) in wanted {
            let of_owner = reported.get(&key.0);
            self.watches.entry(key).or_insert_with(|| Watch::new(subject)).want(now, target, &vips, of_owner);
        }
    }

    /// What was reported as silent, by owner. It is taken back when it answers, also on another interface from which it
    /// is watched by then.
    fn reported(&self, subject: Subject) -> BTreeMap<String, Reported> {
        let mut all: BTreeMap<String, Reported> = BTreeMap::new();
        for ((owner, ..), watch) in self.watches.iter().filter(|((.., of), _)| *of == subject) {
            all.entry(owner.clone()).or_default().extend(watch.reported());
        }
        all
    }

    /// Sets what the cluster knows of the LAN. Its landmarks tell on which side of the LAN this node is.
    pub fn set_neighbourhood(&mut self, now: Instant, neighbourhood: &Neighbourhood) {
        self.landmarks.set_neighbourhood(now, neighbourhood);
    }

    /// How many hosts that are not members this node hears, by interface.
    pub fn hears(&self, now: Instant) -> BTreeMap<u32, u8> {
        self.landmarks.hears(now)
    }

    /// What is known of the default gateways, by interface.
    pub fn gateways(&self, now: Instant) -> BTreeMap<u32, GatewayState> {
        self.landmarks.gateways(now)
    }

    /// Asks anew for the gateways on these interfaces, each with the moment from which members' cards tell of it.
    pub fn seek_gateways(&mut self, now: Instant, links: &BTreeMap<u32, Instant>) {
        self.landmarks.seek_gateways(now, links);
    }

    /// Whether owners answer at addresses of their own, on each interface where this node watches them. Owners of which
    /// that is not known are left out.
    pub fn at_own_addresses(&self, now: Instant) -> BTreeMap<String, bool> {
        let mut found: BTreeMap<&str, Option<bool>> = BTreeMap::new();
        for ((owner, link, subject), watch) in &self.watches {
            if *subject == Subject::Owner {
                let node = self.watches.get(&(owner.clone(), *link, Subject::Node)).and_then(Watch::answers);
                let answers = node.or_else(|| watch.answers_as_landmark(now, *link, &self.landmarks));
                let all = found.entry(owner).or_insert(Some(true));
                *all = match (*all, answers) {
                    (Some(false), _) | (_, Some(false)) => Some(false),
                    (Some(true), Some(true)) => Some(true),
                    (None, _) | (_, None) => None,
                };
            }
        }
        found.into_iter().filter_map(|(owner, answers)| Some((owner.to_owned(), answers?))).collect()
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
                    Subject::Owner => {
                        Output::Verdict(OwnerVerdict::Answers { owner: owner.clone(), vip: frame.address })
                    }
                    Subject::Node => Output::Node(NodeFinding::Answers { node: owner.clone() }),
                });
            }
        }
    }

    /// Takes in that a question could not be sent, before [`Detector::tick`] judges a timer: who was not asked is not
    /// silent (R2). For landmarks this changes nothing. They are asked three times in a burst, and one that is missed
    /// only delays a take-over.
    pub fn not_sent(&mut self, ask: &Ask) {
        self.counters.unsent += 1;
        let there = self.watches.iter_mut().filter(|((_, link, _), _)| *link == ask.link);
        there.for_each(|(_, watch)| watch.not_sent(ask));
    }

    /// Judges what is due, and returns the questions to send and the findings.
    pub fn tick(&mut self, now: Instant) -> Vec<Output> {
        let mut out: Vec<Output> = self.findings.drain(..).collect();
        // Together with a round of questions, so that landmarks cost no wake-up of their own.
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
        // R1: the next round is one period from now; missed rounds are not caught up.
        self.next_round = now + self.timers.period;
        let trusted = late <= self.timers.tolerance();
        // All watches are counted before any is judged, because the second in line needs to know whether the first is
        // silent too.
        self.watches.values_mut().for_each(|watch| watch.count(now, trusted, &self.timers, &mut self.counters));
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

    /// When to tick again; `None` while there is nothing to watch and no landmark.
    pub fn deadline(&self) -> Option<Instant> {
        let bursts = self.watches.values().filter_map(Watch::deadline).min();
        let round = (!self.watches.is_empty()).then_some(self.next_round);
        let told = (!self.findings.is_empty()).then_some(self.next_round);
        let landmarks = self.landmarks.deadline().filter(|_| self.watches.is_empty());
        [bursts, round, told, landmarks].into_iter().flatten().min()
    }

    /// The counters so far.
    pub fn counters(&self) -> Counters {
        self.counters
    }
}

/// What a watch needs to know from the detector.
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
