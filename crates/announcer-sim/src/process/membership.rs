//! What `membership.rs` does in the real process: each write of the card is a renewal.

use std::time::{Duration, Instant};

use announcer_core::Config;
use announcer_core::ownership::node::{Card, Member};
use jiff::Timestamp;

use super::{Purpose, Requests};
use crate::api::{Answer, Request};

/// Conflicts in a row after which it is left alone for a moment.
const TRIES: u32 = 3;

/// Between two attempts.
const AGAIN: Duration = Duration::from_secs(1);

/// The membership Lease.
#[derive(Debug)]
pub struct Membership {
    node: String,
    duration: Duration,
    /// Waits to be written.
    card: Option<Card>,
    /// Is being written.
    writing: Option<Card>,
    /// It was read, or written; then its version, absent if it does not exist.
    known: bool,
    version: Option<u64>,
    busy: bool,
    tries: u32,
    /// The last attempt has failed: when the next one is due.
    again: Option<Instant>,
}

impl Membership {
    /// Nothing is written yet.
    pub fn new(config: &Config) -> Self {
        Self {
            node: config.node_name.clone(),
            duration: config.lease.duration,
            card: None,
            writing: None,
            known: false,
            version: None,
            busy: false,
            tries: 0,
            again: None,
        }
    }

    /// The engine wants it renewed.
    pub fn enrol(&mut self, wall: Timestamp, card: Card, out: &mut Requests) {
        self.card = Some(card);
        if !self.busy {
            self.begin(wall, out);
        }
    }

    /// When it is tried again.
    pub fn deadline(&self) -> Option<Instant> {
        self.again
    }

    /// What is due.
    pub fn tick(&mut self, now: Instant, wall: Timestamp, out: &mut Requests) {
        if self.again.is_some_and(|at| at <= now) {
            self.begin(wall, out);
        }
    }

    fn begin(&mut self, wall: Timestamp, out: &mut Requests) {
        (self.tries, self.again) = (0, None);
        self.writing = self.card.take();
        self.send(wall, out);
    }

    fn send(&mut self, wall: Timestamp, out: &mut Requests) {
        let Some(card) = &self.writing else { return };
        self.busy = true;
        let request = if self.known {
            let member = Member { renewal: wall.to_string(), duration: self.duration, card: card.clone() };
            Request::WriteMember(self.node.clone(), self.version, member)
        } else {
            Request::ReadMember(self.node.clone())
        };
        out.push((Purpose::Membership, request));
    }

    /// A request was answered.
    pub fn answered(&mut self, now: Instant, wall: Timestamp, answer: &Answer, out: &mut Requests) {
        self.busy = false;
        match answer {
            Answer::Member(found) if !self.known => {
                (self.known, self.version) = (true, *found);
                self.send(wall, out);
            }
            Answer::Member(found) => {
                self.version = *found;
                self.begin(wall, out);
            }
            Answer::Conflict if self.tries < TRIES => {
                self.known = false;
                self.tries += 1;
                self.send(wall, out);
            }
            _ => {
                (self.known, self.version) = (false, None);
                if self.card.is_some() {
                    self.begin(wall, out);
                } else {
                    self.card = self.writing.take();
                    self.again = Some(now + AGAIN);
                }
            }
        }
    }
}
