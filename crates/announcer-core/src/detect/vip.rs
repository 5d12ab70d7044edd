//! One address that an owner has to answer for, and what it has answered.

use std::time::{Duration, Instant};

use contract::Term;
use l2_types::Mac;

use super::Context;

/// This many bursts in a row are answered, and no question to the owner itself. Then it is not the owner that answers:
/// clients reach it as little as this node does, and a fabric (EVPN with ARP suppression) answers in its name.
pub(super) const ONLY_CALLS: u32 = 4;

#[derive(Debug)]
pub(super) struct Vip {
    /// Who has to answer: as we are told, and as it was found. An owner with two NICs in this LAN may have it on the
    /// other one.
    pub named: Mac,
    pub mac: Mac,
    pub term: Term,
    pub rank: u8,
    /// Who stands before us.
    pub ahead: Option<String>,
    since: Instant,
    /// It has answered once under this record.
    pub heard: bool,
    /// A question about it is open.
    pub asked: bool,
    /// Questions in a row that were not answered.
    pub misses: u32,
    /// Verdicts against it since it answered last, and when it may be put to the test again.
    pub verdicts: u32,
    pub rest_until: Option<Instant>,
    /// It was reported as silent from another interface, and has not answered since.
    pub reported_elsewhere: bool,
    /// Bursts in a row that were answered for it. It has not answered a question to itself since the first of them.
    pub calls: u32,
    /// Bursts in a row in which the questions about it could not be sent.
    pub unasked: u32,
}

impl Vip {
    pub fn new(now: Instant, mac: Mac, term: Term) -> Self {
        Self {
            named: mac,
            mac,
            term,
            rank: 0,
            ahead: None,
            since: now,
            heard: false,
            asked: false,
            misses: 0,
            verdicts: 0,
            rest_until: None,
            reported_elsewhere: false,
            calls: 0,
            unasked: 0,
        }
    }

    /// R5. A verdict arms, too: the VIP that proved it may have a new owner by now, and this one is tested again.
    pub fn is_armed(&self, now: Instant, grace: Duration) -> bool {
        self.heard || self.verdicts > 0 || now >= self.since + grace
    }

    /// Whether it was reported as silent and has not answered since.
    pub fn is_reported(&self) -> bool {
        self.verdicts > 0 || self.reported_elsewhere
    }

    /// How many silent periods make it suspect. Nobody waits for one who is silent himself.
    pub fn patience(&self, context: &Context<'_>) -> u32 {
        let waits = self.ahead.as_ref().is_none_or(|ahead| !context.silent.contains(ahead));
        context.timers.patience(if waits { self.rank } else { 0 })
    }

    pub fn rests(&self, now: Instant) -> bool {
        self.rest_until.is_some_and(|until| now < until)
    }

    /// It answers; `called`: perhaps to a broadcast, which others may answer in its name.
    pub fn answered(&mut self, mac: Mac, called: bool) {
        self.mac = mac;
        self.heard |= !called;
        self.asked = false;
        self.misses = 0;
        self.verdicts = 0;
        self.rest_until = None;
        self.reported_elsewhere = false;
        self.unasked = 0;
        if !called {
            self.calls = 0;
        }
    }
}
