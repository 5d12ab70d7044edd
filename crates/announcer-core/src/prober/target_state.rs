//! The state of one probed address and port: the open probe and the last results.

use std::time::{Duration, Instant};

use l2_types::handshake::{self, Handshake, Reply};

use super::{FAILURES, Outcome, Output, PERSISTS, ProbeFinding, Target, traffic, who_has};

/// Limit for address resolution.
const NEIGHBOR: Duration = Duration::from_millis(600);
/// Limit for the answer to a SYN. A client that waits longer has a problem too.
const ANSWER: Duration = Duration::from_secs(1);
/// Each frame is repeated once after this time, because a single frame may be lost.
const AGAIN: Duration = Duration::from_millis(300);
/// If this process gets processor time this late, it may have missed the answer, so the probe proves nothing.
const LATE: Duration = Duration::from_millis(200);

/// What an open probe waits for.
#[derive(Debug, Clone, Copy)]
enum Waits {
    Neighbor,
    Answer(Handshake),
}

/// An open probe.
#[derive(Debug, Clone, Copy)]
pub(super) struct Open {
    waits: Waits,
    since: Instant,
    again: Option<Instant>,
    until: Instant,
}

impl Open {
    /// A probe that resolves the address.
    pub fn neighbor(now: Instant) -> Self {
        Self { waits: Waits::Neighbor, since: now, again: Some(now + AGAIN), until: now + NEIGHBOR }
    }

    /// A probe that waits for the answer to a SYN.
    pub fn handshake(now: Instant, handshake: Handshake) -> Self {
        Self { waits: Waits::Answer(handshake), since: now, again: Some(now + AGAIN), until: now + ANSWER }
    }
}

/// The state of one target.
#[derive(Debug)]
pub(super) struct TargetState {
    pub target: Target,
    open: Option<Open>,
    ports: u8,
    /// The reported result; `None`: nothing was reported yet.
    standing: Option<Outcome>,
    /// Consecutive failures.
    failures: u32,
    /// The last result, and how often it came in a row.
    last: Option<(Outcome, u32)>,
}

impl TargetState {
    /// Starts without results.
    pub fn new(target: Target) -> Self {
        Self { target, open: None, ports: 0, standing: None, failures: 0, last: None }
    }

    /// Whether owner, interface, MAC and source address are unchanged.
    pub fn is_at(&self, target: &Target) -> bool {
        let of = |target: &Target| (target.owner.clone(), target.link, target.mac, target.source);
        of(&self.target) == of(target)
    }

    /// The same state for a changed target. With a new owner (`moved`) the failures are counted anew.
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

    /// Starts a probe. Returns the frame to send.
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

    /// Takes in an answer to one of our ports.
    pub fn answered(&mut self, now: Instant, reply: &Reply) -> Vec<Output> {
        let Some(Open { waits: Waits::Answer(asks), since, .. }) = self.open else { return Vec::new() };
        if reply.asker != asks.source || reply.sequence != asks.sequence {
            return Vec::new();
        }
        self.open = None;
        let (outcome, reset) = match reply.answer {
            handshake::SynAnswer::Accepted => (Outcome::Served, Some(asks.reset())),
            handshake::SynAnswer::Refused => (Outcome::Refused, None),
        };
        let (_, traffic) = traffic(self.target.at.ip());
        let send = |frame| Output::Send { link: self.target.link, traffic, frame };
        let ended = Output::Ended { outcome, after: Some(now.saturating_duration_since(since)) };
        let mut outputs: Vec<Output> = reset.map(send).into_iter().chain([ended]).collect();
        outputs.extend(self.judge(outcome));
        outputs
    }

    /// Handles what is due. Returns true if a probe has ended without an answer.
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

    /// Decides whether a result changes what is reported. One success is enough. A failure needs several in a row, and
    /// so does a change of the kind of failure.
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
        Some(Output::Found(ProbeFinding { target: self.target.clone(), outcome, failures: self.failures }))
    }
}
