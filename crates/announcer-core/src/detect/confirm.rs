//! The confirmation burst (R3) with its witnesses (R4): everybody is asked three times about what is suspected, and at
//! the same moments somebody else whether *we* are heard.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Instant;

use l2_types::Mac;

use super::profile::BURST;
use super::{Ask, Context};
use crate::frames::{Frame, Heard};

/// How often a late timer of ours may put off the end. A node without processor time must not take anything over, but
/// one that is merely busy has to some day.
const PATIENCE: u32 = 3;
/// More witnesses make the burst no better.
const WITNESSES: usize = 4;

#[derive(Debug)]
pub(super) struct Burst {
    suspects: BTreeMap<IpAddr, Mac>,
    answered: BTreeSet<IpAddr>,
    taken: BTreeSet<IpAddr>,
    /// Addresses beside the suspected ones for which somebody answered us.
    witnesses: BTreeSet<IpAddr>,
    rounds: u32,
    put_off: u32,
    next: Instant,
}

/// What a burst has shown.
#[derive(Debug)]
pub(super) struct Outcome {
    /// Nobody answered for these.
    pub silent: Vec<IpAddr>,
    /// Another MAC than the owner's speaks for these.
    pub taken: Vec<IpAddr>,
    /// Somebody answered us.
    pub witnessed: bool,
}

pub(super) enum Step {
    Ask { asks: Vec<Ask>, late: bool },
    Over(Outcome),
}

impl Burst {
    pub fn begin(now: Instant, suspects: BTreeMap<IpAddr, Mac>) -> Self {
        Self {
            suspects,
            answered: BTreeSet::new(),
            taken: BTreeSet::new(),
            witnesses: BTreeSet::new(),
            rounds: 0,
            put_off: 0,
            next: now,
        }
    }

    pub fn deadline(&self) -> Instant {
        self.next
    }

    /// Drops what is not watched any more.
    pub fn keep(&mut self, wanted: &BTreeSet<IpAddr>) {
        self.suspects.retain(|address, _| wanted.contains(address));
    }

    pub fn hear(&mut self, frame: &Frame) {
        match (self.suspects.get(&frame.address), frame.what) {
            (_, Heard::Probe) => {}
            (Some(mac), Heard::Answer) if *mac == frame.mac => {
                self.answered.insert(frame.address);
            }
            // The owner's own announcement: it sends, but whether it hears anybody is the question.
            (Some(mac), Heard::Claim) if *mac == frame.mac => {}
            (Some(_), _) => {
                self.taken.insert(frame.address);
            }
            // Any way there and back will do, also one to another address of the suspected node: then it is not we who
            // are cut off, and its VIP is gone all the same.
            (None, Heard::Answer) if frame.to_us => {
                self.witnesses.insert(frame.address);
            }
            (None, _) => {}
        }
    }

    pub fn step(&mut self, context: &Context<'_>) -> Step {
        // R2, also here: a late timer means that answers may have been lost; the last question is asked again.
        let late = self.rounds > 0 && self.put_off < PATIENCE && context.now - self.next > context.timers.tolerance();
        if late {
            self.put_off += 1;
            self.rounds -= 1;
        }
        if self.rounds == BURST {
            return Step::Over(self.outcome());
        }
        self.rounds += 1;
        self.next = context.now + context.timers.burst_gap();
        let open =
            self.suspects.keys().filter(|address| !self.answered.contains(address) && !self.taken.contains(address));
        let questions = open.map(|address| Ask { link: context.link, address: *address, to: Mac::BROADCAST });
        let witnesses = context
            .witnesses
            .iter()
            .filter(|witness| witness.link == context.link && !self.suspects.contains_key(&witness.address))
            .take(WITNESSES)
            .map(|witness| Ask {
                link: witness.link,
                address: witness.address,
                to: witness.mac.unwrap_or(Mac::BROADCAST),
            });
        Step::Ask { asks: questions.chain(witnesses).collect(), late }
    }

    fn outcome(&self) -> Outcome {
        let silent =
            self.suspects.keys().filter(|address| !self.answered.contains(address) && !self.taken.contains(address));
        Outcome {
            silent: silent.copied().collect(),
            taken: self.taken.difference(&self.answered).copied().collect(),
            witnessed: !self.witnesses.is_empty() || !self.answered.is_empty(),
        }
    }
}
