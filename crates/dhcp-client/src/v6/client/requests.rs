//! Sends requests: which message in which phase, and when to repeat it (RFC 8415 15 and 18.2).

use std::net::Ipv6Addr;
use std::time::{Duration, Instant};

use dhcproto::v6::MessageType;
use rand::RngExt;

use super::super::message::{self, Request};
use super::super::{Lease, Report, frame};
use super::{Client, Exchange, Goal, IAID, LONGEST_PAUSE, Output};
use crate::machine::Phase;

/// REQUESTs (REQ_MAX_RC) before the client looks for another server.
const REQUEST_TRANSMISSIONS: u32 = 10;
/// Limit for CONFIRM (CNF_MAX_RD). Without an answer the address may be used further.
const CONFIRM_PATIENCE: Duration = Duration::from_secs(10);
/// After this many transmissions without an answer the silence is reported; a lost packet or two is not worth a report.
const QUIET_TRANSMISSIONS: u32 = 2;

/// The transaction of an attempt; all its transmissions share it.
#[derive(Debug, Clone, Copy)]
pub struct Transaction {
    pub xid: [u8; 3],
    wait: Duration,
}

impl Client {
    /// Starts a new request. RFC 8415 18.2.1 requires a wait of up to a second before the first SOLICIT for hosts that
    /// are switched on together. Here clients wait for a single address.
    pub(super) fn begin(&mut self, now: Instant, goal: Goal, out: &mut Vec<Output>) {
        let transaction = Transaction { xid: self.rng.random(), wait: Duration::ZERO };
        let exchange = Exchange { started: now, transmissions: 0, next_at: now, transaction };
        self.phase = Phase::Asking { exchange, goal };
        self.transmit(now, out);
    }

    /// Asks all servers again after half of what is left of `lease`, because the server that was asked instead of the
    /// granting one does not extend it.
    pub(super) fn rebind_later(&mut self, now: Instant, lease: &Lease) {
        let left = lease.expiry.instant().map_or(LONGEST_PAUSE, |at| at.saturating_duration_since(now));
        let transaction = Transaction { xid: self.rng.random(), wait: Duration::ZERO };
        let next_at = now + (left / 2).max(Duration::from_secs(1));
        let exchange = Exchange { started: now, transmissions: 0, next_at, transaction };
        self.phase = Phase::Asking { exchange, goal: Goal::Rebinding { foreign_refusal: None } };
    }

    /// Handles the deadline of the phase.
    pub(super) fn go_on(&mut self, now: Instant, out: &mut Vec<Output>) {
        match &self.phase {
            Phase::Idle | Phase::Released | Phase::Stopped => {}
            Phase::Pausing { .. } | Phase::Declined { .. } => self.begin(now, Goal::Selecting, out),
            Phase::Probing { lease, .. } => self.probe(now, lease.clone(), out),
            Phase::Bound | Phase::Asking { goal: Goal::Renewing, .. } if self.is_rebind_due(now) => {
                self.begin(now, Goal::Rebinding { foreign_refusal: None }, out);
            }
            Phase::Bound => self.begin(now, Goal::Renewing, out),
            Phase::Asking { exchange, goal } => match goal {
                Goal::Requesting { .. } if exchange.transmissions >= REQUEST_TRANSMISSIONS => {
                    let rebind = Goal::Rebinding { foreign_refusal: None };
                    self.begin(now, if self.in_use.is_some() { rebind } else { Goal::Selecting }, out);
                }
                Goal::Confirming { foreign_refusal: Some(refusal) }
                | Goal::Rebinding { foreign_refusal: Some(refusal) }
                    if refusal.at <= now =>
                {
                    let message = refusal.message.clone();
                    self.refused(now, message, out);
                }
                Goal::Confirming { .. } if now >= exchange.started + CONFIRM_PATIENCE => {
                    let known = self.in_use.as_ref().is_some_and(|lease| lease.renew_at.is_some_and(|at| at > now));
                    let rebind = Goal::Rebinding { foreign_refusal: None };
                    if known { self.phase = Phase::Bound } else { self.begin(now, rebind, out) }
                }
                _ => self.transmit(now, out),
            },
        }
    }

    /// Sends the message of the phase and sets the next deadline.
    fn transmit(&mut self, now: Instant, out: &mut Vec<Output>) {
        let seconds = Duration::from_secs;
        let held = self.in_use.as_ref();
        let address = held.map(|lease| lease.address);
        let until = |at: Option<Instant>| at.map_or(Duration::MAX, |at| at.saturating_duration_since(now));
        let Phase::Asking { exchange, goal } = &self.phase else { return };
        let mut exchange = *exchange;
        // First wait, longest wait, and rest of the phase.
        let (kind, server, address, first, longest, left) = match goal {
            Goal::Selecting => {
                (MessageType::Solicit, None, self.wish, seconds(1), self.version.longest_wait, Duration::MAX)
            }
            Goal::Requesting { server, address } => {
                (MessageType::Request, Some(server), Some(*address), seconds(1), seconds(30), Duration::MAX)
            }
            Goal::Confirming { .. } => {
                let left = until(Some(exchange.started + CONFIRM_PATIENCE));
                (MessageType::Confirm, None, address, seconds(1), seconds(4), left)
            }
            Goal::Renewing => {
                let left = until(held.and_then(|lease| lease.rebind_at));
                (MessageType::Renew, held.map(|lease| &lease.server), address, short(left), seconds(600), left)
            }
            Goal::Rebinding { .. } => {
                let left = until(held.and_then(|lease| lease.expiry.instant()));
                // Only the end of a lease from another node is known, so it is requested sooner.
                let known = held.is_some_and(|lease| lease.rebind_at.is_some());
                let first = if known { short(left) } else { seconds(1) };
                (MessageType::Rebind, None, address, first, seconds(600), left)
            }
        };
        let elapsed = u16::try_from(now.saturating_duration_since(exchange.started).as_millis() / 10);
        let request = Request { kind, server: server.map(Vec::as_slice), address };
        self.push(&request, exchange.transaction.xid, elapsed.unwrap_or(u16::MAX), out);
        if exchange.transmissions >= QUIET_TRANSMISSIONS {
            let silent_for = now.saturating_duration_since(exchange.started);
            out.push(Output::Report(Report::NoAnswer {
                state: self.state(),
                silent_for,
                transmissions: exchange.transmissions,
            }));
        }
        let waited = exchange.transaction.wait;
        let doubled = if waited.is_zero() { first } else { (waited * 2).min(longest) };
        let wait = doubled.mul_f64(self.rng.random_range(0.9..=1.1)).min(left).max(Duration::from_millis(250));
        exchange.transaction.wait = wait;
        self.sent(now, wait, exchange);
    }

    /// Sends a message about an address of a server that needs no answer.
    pub(super) fn say(&mut self, kind: MessageType, server: &[u8], address: Ipv6Addr, out: &mut Vec<Output>) {
        let xid = self.rng.random();
        self.push(&Request { kind, server: Some(server), address: Some(address) }, xid, 0, out);
    }

    fn push(&self, request: &Request<'_>, xid: [u8; 3], elapsed: u16, out: &mut Vec<Output>) {
        let bytes = message::encode(&self.config.duid, IAID, xid, elapsed, request);
        let source: Ipv6Addr = self.config.source;
        out.push(Output::Send(frame::build(self.config.mac, source, &bytes)));
    }
}

/// First wait for RENEW and REBIND. RFC 8415 uses 10 s, which is too long for a short lease.
fn short(left: Duration) -> Duration {
    (left / 4).clamp(Duration::from_millis(250), Duration::from_secs(10))
}
