//! Asks the whole LAN by broadcast for an address whose owner is not known.

use std::net::IpAddr;
use std::time::Instant;

use l2_types::Mac;

use super::decide::QuestionState;
use super::timing::{ANSWER_WAIT, ANSWERED_FOR, QUESTION_GAP, SILENT_FOR};
use crate::frames::Frame;

/// Number of broadcast questions (decisions.md 22).
const QUESTIONS: u8 = 3;
/// The longest pause after a question that could not be sent: the gap between two questions, so many times doubled.
const LONGEST_PAUSE: u32 = 7;

/// One round of broadcast questions about a group.
#[derive(Debug)]
pub struct Asking {
    pub addresses: Vec<(u32, IpAddr)>,
    sent: u8,
    /// The last question is known not to have left this node.
    unsent: bool,
    /// So many in a row have not.
    refusals: u32,
    next: Instant,
    answered: Option<(Instant, Mac)>,
}

impl Asking {
    /// The first question is due at once.
    pub fn begin(now: Instant, addresses: Vec<(u32, IpAddr)>) -> Self {
        Self { addresses, sent: 0, unsent: false, refusals: 0, next: now, answered: None }
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
        if !std::mem::take(&mut self.unsent) {
            self.refusals = 0;
        }
        // The gap starts when the question is sent, not when it was due, so that an answer has its full time (R1).
        self.next = now + if self.sent < QUESTIONS { QUESTION_GAP } else { ANSWER_WAIT };
        true
    }

    /// A question about one of the addresses could not be sent. It does not count, and all are asked once more: who was
    /// not asked is not silent. The pause before that grows, because an interface may send nothing for hours.
    pub fn not_sent(&mut self, link: u32, address: IpAddr) {
        if !self.unsent && self.sent > 0 && self.addresses.contains(&(link, address)) {
            self.unsent = true;
            self.sent -= 1;
            self.next += QUESTION_GAP * 2_u32.pow(self.refusals.min(LONGEST_PAUSE));
            self.refusals += 1;
        }
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn who_was_not_asked_three_times_is_not_silent() {
        let (mut now, address) = (Instant::now(), "10.0.0.5".parse().unwrap());
        let mut asking = Asking::begin(now, vec![(2, address), (3, address)]);
        // The queue refuses the first two questions, each time for both interfaces.
        let mut asked = 0;
        while asking.state(now) == QuestionState::Waiting {
            if asking.due(now) {
                asked += 1;
                for link in [2, 3, 4] {
                    if asked <= 2 {
                        asking.not_sent(link, address);
                    }
                }
            }
            now = asking.deadline();
        }
        assert_eq!((asked, asking.state(now)), (QUESTIONS + 2, QuestionState::Silence));
    }
    #[test]
    fn an_interface_that_sends_nothing_costs_hardly_a_question_a_second() {
        let (start, address) = (Instant::now(), "10.0.0.5".parse().unwrap());
        let (mut now, mut asked) = (start, 0);
        let mut asking = Asking::begin(now, vec![(2, address)]);
        while now < start + Duration::from_mins(1) {
            assert!(asking.due(now));
            asked += 1;
            asking.not_sent(2, address);
            assert!(asking.deadline() > now);
            now = asking.deadline();
        }
        assert_eq!(asking.state(now), QuestionState::Waiting);
        assert!((40..=60).contains(&asked), "{asked}");
    }
}
