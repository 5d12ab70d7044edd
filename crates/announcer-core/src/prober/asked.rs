//! One address and port that is asked: the question that is open, and what the last ones have shown.

use std::time::{Duration, Instant};

use l2_types::handshake::{self, Handshake, Reply};

use super::{FAILURES, Finding, Outcome, Output, PERSISTS, Target, traffic, who_has};

/// Within this time somebody says that he has the address.
const NEIGHBOR: Duration = Duration::from_millis(600);
/// Within this one a connection is accepted: whoever waits longer has had a bad time.
const ANSWER: Duration = Duration::from_secs(1);
/// A frame that was lost on the way is nobody's fault: each is sent twice before its time is over.
const AGAIN: Duration = Duration::from_millis(300);
/// Who gets processor time so much later has not listened: that proves nothing.
const LATE: Duration = Duration::from_millis(200);

/// What is waited for.
#[derive(Debug, Clone, Copy)]
enum Waits {
    Neighbor,
    Answer(Handshake),
}

/// A question under way.
#[derive(Debug, Clone, Copy)]
pub(super) struct Open {
    waits: Waits,
    since: Instant,
    again: Option<Instant>,
    until: Instant,
}

impl Open {
    /// Who has the address?
    pub fn neighbor(now: Instant) -> Self {
        Self { waits: Waits::Neighbor, since: now, again: Some(now + AGAIN), until: now + NEIGHBOR }
    }

    /// Is a connection accepted?
    pub fn handshake(now: Instant, handshake: Handshake) -> Self {
        Self { waits: Waits::Answer(handshake), since: now, again: Some(now + AGAIN), until: now + ANSWER }
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct Asked {
    pub target: Target,
    open: Option<Open>,
    ports: u8,
    /// What is said about it; absent: it is too early.
    standing: Option<Outcome>,
    /// Misses in a row.
    failures: u32,
    /// The last outcome, and how often it came in a row.
    last: Option<(Outcome, u32)>,
}

impl Asked {
    /// Nothing is known yet.
    pub fn new(target: Target) -> Self {
        Self { target, open: None, ports: 0, standing: None, failures: 0, last: None }
    }

    /// Whether it is announced and asked from where it was.
    pub fn is_at(&self, target: &Target) -> bool {
        let of = |target: &Target| (target.owner.clone(), target.link, target.mac, target.source);
        of(&self.target) == of(target)
    }

    /// The same with new circumstances; with another owner (`moved`) its misses are counted anew.
    pub fn with(self, target: Target, moved: bool) -> Self {
        if moved { Self { target, open: None, failures: 0, last: None, ..self } } else { Self { target, ..self } }
    }

    pub fn is_unserved(&self) -> bool {
        self.standing.is_some_and(|outcome| outcome != Outcome::Served)
    }

    pub fn is_idle(&self) -> bool {
        self.open.is_none()
    }

    pub fn seeks_neighbor(&self) -> bool {
        self.open.is_some_and(|open| matches!(open.waits, Waits::Neighbor))
    }

    pub fn next_port(&mut self) -> u8 {
        self.ports = self.ports.wrapping_add(1);
        self.ports
    }

    pub fn deadline(&self) -> Option<Instant> {
        self.open.map(|open| open.again.map_or(open.until, |again| again.min(open.until)))
    }

    /// Begins a question. What to send.
    pub fn open(&mut self, now: Instant, open: Open) -> Option<Output> {
        debug_assert!(open.until > now, "a question has time");
        self.open = Some(open);
        self.question()
    }

    fn question(&self) -> Option<Output> {
        let (neighbor, handshake) = traffic(self.target.at.ip());
        let (traffic, frame) = match self.open?.waits {
            Waits::Neighbor => (neighbor, who_has(&self.target)?),
            Waits::Answer(asks) => (handshake, asks.syn()),
        };
        Some(Output::Send { link: self.target.link, traffic, frame })
    }

    /// Something has come back to one of our ports.
    pub fn answered(&mut self, now: Instant, reply: &Reply) -> Vec<Output> {
        let Some(Open { waits: Waits::Answer(asks), since, .. }) = self.open else { return Vec::new() };
        if reply.asker != asks.source || reply.sequence != asks.sequence {
            return Vec::new();
        }
        self.open = None;
        let (outcome, reset) = match reply.answer {
            handshake::Answer::Accepted => (Outcome::Served, Some(asks.reset())),
            handshake::Answer::Refused => (Outcome::Refused, None),
        };
        let (_, traffic) = traffic(self.target.at.ip());
        let send = |frame| Output::Send { link: self.target.link, traffic, frame };
        let ended = Output::Ended { outcome, after: Some(now.saturating_duration_since(since)) };
        let mut outputs: Vec<Output> = reset.map(send).into_iter().chain([ended]).collect();
        outputs.extend(self.judge(outcome));
        outputs
    }

    /// What is due. True if nothing came back.
    pub fn tick(&mut self, now: Instant, outputs: &mut Vec<Output>) -> bool {
        let Some(open) = &mut self.open else { return false };
        if now < open.until {
            if open.again.take_if(|at| *at <= now).is_some() {
                outputs.extend(self.question());
            }
            return false;
        }
        let (in_time, waits) = (now <= open.until + LATE, open.waits);
        self.open = None;
        if !in_time {
            return false;
        }
        let outcome = match waits {
            Waits::Neighbor => Outcome::NoNeighbor,
            Waits::Answer(_) => Outcome::Silent,
        };
        outputs.push(Output::Ended { outcome, after: None });
        outputs.extend(self.judge(outcome));
        true
    }

    /// What follows for what is said about it: one answer is enough for good news, bad news takes some misses, and how
    /// exactly it is missed must be as steady to be told.
    fn judge(&mut self, outcome: Outcome) -> Option<Output> {
        let in_a_row = self.last.filter(|(last, _)| *last == outcome).map_or(1, |(_, count)| count.saturating_add(1));
        self.last = Some((outcome, in_a_row));
        self.failures = if outcome == Outcome::Served { 0 } else { self.failures.saturating_add(1) };
        let is_news = match self.standing {
            Some(standing) if standing == outcome => false,
            _ if outcome == Outcome::Served => true,
            Some(Outcome::Served) | None => self.failures >= FAILURES,
            Some(_) => in_a_row >= FAILURES,
        };
        if is_news {
            self.standing = Some(outcome);
        }
        let outcome = self.standing.filter(|_| is_news || self.failures == PERSISTS)?;
        Some(Output::Found(Finding { target: self.target.clone(), outcome, failures: self.failures }))
    }
}
