//! What `membership.rs` does in the real process: each write of the card is a renewal.

use std::time::Duration;

use announcer::Config;
use announcer::ownership::node::{Card, Member};
use jiff::Timestamp;

use super::{Purpose, Requests};
use crate::api::{Answer, Request};

/// Conflicts in a row after which the engine is left to ask again.
const TRIES: u32 = 3;

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
        }
    }

    /// The engine wants it renewed.
    pub fn enrol(&mut self, wall: Timestamp, card: Card, out: &mut Requests) {
        self.card = Some(card);
        if !self.busy {
            self.begin(wall, out);
        }
    }

    fn begin(&mut self, wall: Timestamp, out: &mut Requests) {
        self.tries = 0;
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
    pub fn answered(&mut self, wall: Timestamp, answer: &Answer, out: &mut Requests) {
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
            // The engine asks again.
            _ => {
                (self.known, self.version) = (false, None);
                self.begin(wall, out);
            }
        }
    }
}
