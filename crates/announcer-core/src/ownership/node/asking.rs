//! Asking everybody on the LAN whether somebody has an address whose owner is not known.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use super::decide::Asked;

/// decisions.md 22: the broadcast question, three times.
const QUESTIONS: u8 = 3;
const QUESTION_GAP: Duration = Duration::from_millis(10);
/// For an answer to the last of them.
const ANSWER_WAIT: Duration = Duration::from_millis(50);
/// How long it counts that somebody has answered, and that nobody has.
const ANSWERED_FOR: Duration = Duration::from_secs(5);
const SILENT_FOR: Duration = Duration::from_secs(1);

/// A question to everybody.
#[derive(Debug)]
pub struct Asking {
    pub addresses: Vec<(u32, IpAddr)>,
    sent: u8,
    next: Instant,
    answered: Option<Instant>,
}

impl Asking {
    /// The first question is due at once.
    pub fn begin(now: Instant, addresses: Vec<(u32, IpAddr)>) -> Self {
        Self { addresses, sent: 0, next: now, answered: None }
    }

    /// Somebody spoke about an address; true if that is news.
    pub fn heard(&mut self, now: Instant, link: u32, address: IpAddr) -> bool {
        let news = self.answered.is_none() && self.addresses.contains(&(link, address));
        if news {
            self.answered = Some(now);
        }
        news
    }

    /// Whether to ask now.
    pub fn due(&mut self, now: Instant) -> bool {
        if self.answered.is_some() || self.sent >= QUESTIONS || now < self.next {
            return false;
        }
        self.sent += 1;
        // From now, not from when it was due: the answer needs its time (R1).
        self.next = now + if self.sent < QUESTIONS { QUESTION_GAP } else { ANSWER_WAIT };
        true
    }

    pub fn state(&self, now: Instant) -> Asked {
        match self.answered {
            Some(at) if now < at + ANSWERED_FOR => Asked::Answered,
            None if self.sent < QUESTIONS || now < self.next => Asked::Waiting,
            None if now < self.next + SILENT_FOR => Asked::Silence,
            Some(_) | None => Asked::NotYet,
        }
    }

    pub fn deadline(&self) -> Instant {
        match self.answered {
            Some(at) => at + ANSWERED_FOR,
            None => self.next,
        }
    }
}
