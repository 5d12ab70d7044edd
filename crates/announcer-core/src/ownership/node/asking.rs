//! Asks the whole LAN by broadcast for an address whose owner is not known.

use std::net::IpAddr;
use std::time::Instant;

use l2_types::Mac;

use super::decide::QuestionState;
use super::timing::{ANSWER_WAIT, ANSWERED_FOR, QUESTION_GAP, SILENT_FOR};
use crate::frames::Frame;

/// Number of broadcast questions (decisions.md 22).
const QUESTIONS: u8 = 3;

/// One round of broadcast questions about a group.
#[derive(Debug)]
pub struct Asking {
    pub addresses: Vec<(u32, IpAddr)>,
    sent: u8,
    next: Instant,
    answered: Option<(Instant, Mac)>,
}

impl Asking {
    /// The first question is due at once.
    pub fn begin(now: Instant, addresses: Vec<(u32, IpAddr)>) -> Self {
        Self { addresses, sent: 0, next: now, answered: None }
    }

    /// A host has sent a frame about an address. Returns true for the first such frame.
    pub fn heard(&mut self, now: Instant, frame: &Frame) -> bool {
        let news = self.answered.is_none() && self.addresses.contains(&(frame.link, frame.address));
        if news {
            self.answered = Some((now, frame.mac));
        }
        news
    }

    /// The MAC that answered first.
    pub fn answered_by(&self) -> Option<Mac> {
        self.answered.map(|(_, mac)| mac)
    }

    /// Whether to send a question now; counts it as sent.
    pub fn due(&mut self, now: Instant) -> bool {
        if self.answered.is_some() || self.sent >= QUESTIONS || now < self.next {
            return false;
        }
        self.sent += 1;
        // The gap starts when the question is sent, not when it was due, so that an answer has its full time (R1).
        self.next = now + if self.sent < QUESTIONS { QUESTION_GAP } else { ANSWER_WAIT };
        true
    }

    pub fn state(&self, now: Instant) -> QuestionState {
        match self.answered {
            Some((at, _)) if now < at + ANSWERED_FOR => QuestionState::Answered,
            None if self.sent < QUESTIONS || now < self.next => QuestionState::Waiting,
            None if now < self.next + SILENT_FOR => QuestionState::Silence,
            Some(_) | None => QuestionState::NotYet,
        }
    }

    pub fn deadline(&self) -> Instant {
        match self.answered {
            Some((at, _)) => at + ANSWERED_FOR,
            None => self.next,
        }
    }
}
