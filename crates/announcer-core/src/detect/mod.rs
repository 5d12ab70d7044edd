//! The failure detector: whether the owners of VIPs that this node is to succeed still answer for them, asked with the
//! eyes of a client (failover-protocol.md 1 and 4). No I/O and no clock.
//!
//! * [`Detector`]: what it watches, what it heard, when it asks. One round per period over all owners, each owner asked
//!   about one of its VIPs by a unicast question to the MAC that has to answer.
//! * `watch.rs`: one owner on one interface: silent periods, whose turn it is, which VIPs are suspected.
//! * `confirm.rs`: the confirmation burst of an owner, by broadcast, beside it the witnesses.
//!
//! The rules: R1, all that was heard is fed in by [`Detector::hear`] before [`Detector::tick`] judges a timer, and a late
//! tick puts off the next one; R2, what was asked before a late tick counts neither way; R3, nobody is called silent
//! without a burst; R4, nor without saying whether somebody else answered us; R5, nobody is suspected before it answered
//! once for this record, or had the time for it.

mod confirm;
mod profile;
mod watch;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use l2_types::Mac;
pub use profile::{ParseProfileError, Profile, Timers};
use watch::Watch;

use crate::frames::{Frame, Heard};
use crate::ownership::node::{Target, Verdict};

/// Somebody who can tell that it is not we who are cut off: the gateway, or another node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Witness {
    /// Our interface towards it.
    pub link: u32,
    /// Its address.
    pub address: IpAddr,
    /// Its MAC, if it is known; else it is asked for by broadcast, inside the burst only.
    pub mac: Option<Mac>,
}

/// A question to send: [`crate::frames::question`] makes the frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ask {
    /// On which interface.
    pub link: u32,
    /// About what.
    pub address: IpAddr,
    /// Whom; [`Mac::BROADCAST`]: everybody.
    pub to: Mac,
}

/// What to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Output {
    /// Send this question.
    Ask(Ask),
    /// This was found out.
    Verdict(Verdict),
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

/// Watches the owners that this node may have to succeed.
#[derive(Debug)]
pub(crate) struct Detector {
    timers: Timers,
    watches: BTreeMap<(String, u32), Watch>,
    witnesses: Vec<Witness>,
    /// When all owners are asked next; meaningless while nobody is watched.
    next_round: Instant,
    counters: Counters,
    verdicts: Vec<Verdict>,
}

impl Detector {
    /// Watches nobody.
    pub fn new(now: Instant, timers: Timers) -> Self {
        Self {
            timers,
            watches: BTreeMap::new(),
            witnesses: Vec::new(),
            next_round: now,
            counters: Counters::default(),
            verdicts: Vec::new(),
        }
    }

    /// Watches these and nobody else. What stays under the same record keeps its history; what is new has to be heard
    /// first (R5). Owners on an interface without carrier are to be left out: nothing can be found out there.
    pub fn watch(&mut self, now: Instant, targets: &[Target]) {
        let mut wanted: BTreeMap<(String, u32), Vec<watch::Wanted>> = BTreeMap::new();
        for target in targets {
            let vips = wanted.entry((target.owner.clone(), target.link)).or_default();
            vips.extend(target.vips.iter().map(|vip| watch::Wanted { vip: *vip, rank: target.rank }));
        }
        if self.watches.is_empty() {
            self.next_round = now + self.timers.period;
        }
        self.watches.retain(|key, _| wanted.contains_key(key));
        for (key, vips) in wanted {
            self.watches.entry(key).or_insert_with(Watch::new).want(now, &vips);
        }
    }

    /// Who may testify. Those that have an address on the suspected list themselves do not count.
    pub fn witnesses(&mut self, witnesses: Vec<Witness>) {
        self.witnesses = witnesses;
    }

    /// Takes in one frame; judges nothing (R1).
    pub fn hear(&mut self, frame: &Frame) {
        for ((owner, link), watch) in &mut self.watches {
            if *link != frame.link {
                continue;
            }
            watch.testify(frame);
            if frame.what == Heard::Answer && frame.to_us && watch.answered(frame.address, frame.mac) {
                self.verdicts.push(Verdict::Answers { owner: owner.clone() });
            }
        }
    }

    /// Judges what is due and says what to ask.
    pub fn tick(&mut self, now: Instant) -> Vec<Output> {
        let mut out: Vec<Output> = self.verdicts.drain(..).map(Output::Verdict).collect();
        for ((owner, link), watch) in &mut self.watches {
            let context = Context { now, link: *link, timers: &self.timers, witnesses: &self.witnesses };
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
        for ((owner, link), watch) in &mut self.watches {
            let context = Context { now, link: *link, timers: &self.timers, witnesses: &self.witnesses };
            watch.round(&context, trusted, &mut self.counters, &mut out);
            watch.burst(&context, owner, &mut self.counters, &mut out);
        }
        out
    }

    /// When to tick again; absent: nobody is watched.
    pub fn deadline(&self) -> Option<Instant> {
        let bursts = self.watches.values().filter_map(Watch::deadline).min();
        let round = (!self.watches.is_empty()).then_some(self.next_round);
        let told = (!self.verdicts.is_empty()).then_some(self.next_round);
        [bursts, round, told].into_iter().flatten().min()
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
    witnesses: &'a [Witness],
}

#[cfg(test)]
mod tests;
