//! Sends requests: which message in which phase, and when to repeat it (RFC 8415 15 and 18.2).

use std::net::Ipv6Addr;
use std::time::{Duration, Instant};

use dhcproto::v6::MessageType;
use rand::RngExt;

use super::super::message::{self, Request};
use super::super::{Lease, Report, frame};
use super::{Client, IAID, Output, Phase};

/// REQUESTs (REQ_MAX_RC) before the client looks for another server.
const REQUEST_ATTEMPTS: u32 = 10;
/// Limit for CONFIRM (CNF_MAX_RD). Without an answer the address may be used further.
const CONFIRM_PATIENCE: Duration = Duration::from_secs(10);
/// After this many transmissions without an answer the silence is reported; a lost packet or two is not worth a report.
const QUIET_ATTEMPTS: u32 = 2;

/// One attempt to get an answer; all its transmissions share a transaction.
#[derive(Debug, Clone, Copy)]
pub(super) struct Exchange {
    pub xid: [u8; 3],
    /// First transmission. The times of a lease count from here, so the client always stops before the server considers
    /// the lease ended.
    pub started: Instant,
    pub next_at: Instant,
    attempts: u32,
    wait: Duration,
}

impl Client {
    pub(super) fn exchange(&mut self, now: Instant) -> Exchange {
        Exchange { xid: self.rng.random(), started: now, next_at: now, attempts: 0, wait: Duration::ZERO }
    }

    /// Starts a new request. RFC 8415 18.2.1 requires a wait of up to a second before the first SOLICIT for hosts that
    /// are switched on together. Here clients wait for a single address.
    pub(super) fn begin(&mut self, now: Instant, phase: fn(Exchange) -> Phase, out: &mut Vec<Output>) {
        let exchange = self.exchange(now);
        self.phase = phase(exchange);
        self.transmit(now, out);
    }

    /// Handles the deadline of the phase.
    pub(super) fn go_on(&mut self, now: Instant, out: &mut Vec<Output>) {
        match &self.phase {
            Phase::Idle | Phase::Released | Phase::Stopped => {}
            Phase::Pausing { .. } | Phase::Declined { .. } => self.begin(now, Phase::Selecting, out),
            Phase::Probing { lease, .. } => self.probe(now, lease.clone(), out),
            Phase::Bound | Phase::Renewing(_) if self.is_rebind_due(now) => self.begin(now, Phase::Rebinding, out),
            Phase::Bound => self.begin(now, Phase::Renewing, out),
            Phase::Requesting { exchange, .. } if exchange.attempts >= REQUEST_ATTEMPTS => {
                let next = if self.in_use.is_some() { Phase::Rebinding } else { Phase::Selecting };
                self.begin(now, next, out);
            }
            Phase::Confirming(exchange) if now >= exchange.started + CONFIRM_PATIENCE => {
                let known = self.in_use.as_ref().is_some_and(|lease| lease.renew_at.is_some_and(|at| at > now));
                if known { self.phase = Phase::Bound } else { self.begin(now, Phase::Rebinding, out) }
            }
            Phase::Selecting(_)
            | Phase::Requesting { .. }
            | Phase::Confirming(_)
            | Phase::Renewing(_)
            | Phase::Rebinding(_) => self.transmit(now, out),
        }
    }

    fn is_rebind_due(&self, now: Instant) -> bool {
        self.in_use.as_ref().and_then(|lease| lease.rebind_at).is_some_and(|at| at <= now)
    }

    /// Sends the message of the phase and sets the next deadline.
    pub(super) fn transmit(&mut self, now: Instant, out: &mut Vec<Output>) {
        let seconds = Duration::from_secs;
        let held = self.in_use.as_ref();
        let address = held.map(|lease| lease.address);
        let until = |at: Option<Instant>| at.map_or(Duration::MAX, |at| at.saturating_duration_since(now));
        // First wait, longest wait, and rest of the phase.
        let (exchange, kind, server, address, first, longest, left) = match &self.phase {
            Phase::Selecting(exchange) => {
                (*exchange, MessageType::Solicit, None, self.wish, seconds(1), self.longest_wait, Duration::MAX)
            }
            Phase::Requesting { exchange, server, address } => {
                let (kind, address) = (MessageType::Request, Some(*address));
                (*exchange, kind, Some(server.clone()), address, seconds(1), seconds(30), Duration::MAX)
            }
            Phase::Confirming(exchange) => {
                let left = until(Some(exchange.started + CONFIRM_PATIENCE));
                (*exchange, MessageType::Confirm, None, address, seconds(1), seconds(4), left)
            }
            Phase::Renewing(exchange) => {
                let left = until(held.and_then(|lease| lease.rebind_at));
                let server = held.map(|lease| lease.server.clone());
                (*exchange, MessageType::Renew, server, address, short(left), seconds(600), left)
            }
            Phase::Rebinding(exchange) => {
                let left = until(held.and_then(|lease| lease.expiry.instant()));
                // Only the end of a lease from another node is known, so it is requested sooner.
                let known = held.is_some_and(|lease| lease.rebind_at.is_some());
                let first = if known { short(left) } else { seconds(1) };
                (*exchange, MessageType::Rebind, None, address, first, seconds(600), left)
            }
            _ => return,
        };
        let elapsed = u16::try_from(now.saturating_duration_since(exchange.started).as_millis() / 10);
        let request = Request { kind, server: server.as_deref(), address };
        self.push(&request, exchange.xid, elapsed.unwrap_or(u16::MAX), out);
        if exchange.attempts >= QUIET_ATTEMPTS {
            let silent_for = now.saturating_duration_since(exchange.started);
            out.push(Output::Report(Report::NoAnswer { state: self.state(), silent_for, attempts: exchange.attempts }));
        }
        let doubled = if exchange.wait.is_zero() { first } else { (exchange.wait * 2).min(longest) };
        let wait = doubled.mul_f64(self.rng.random_range(0.9..=1.1)).min(left).max(Duration::from_millis(250));
        let sent = Exchange { attempts: exchange.attempts.saturating_add(1), next_at: now + wait, wait, ..exchange };
        match &mut self.phase {
            Phase::Selecting(exchange)
            | Phase::Requesting { exchange, .. }
            | Phase::Confirming(exchange)
            | Phase::Renewing(exchange)
            | Phase::Rebinding(exchange) => *exchange = sent,
            _ => {}
        }
    }

    /// Sends a message about a lease that needs no answer.
    pub(super) fn say(&mut self, now: Instant, kind: MessageType, lease: &Lease, out: &mut Vec<Output>) {
        let xid = self.exchange(now).xid;
        let request = Request { kind, server: Some(&lease.server), address: Some(lease.address) };
        self.push(&request, xid, 0, out);
    }

    /// Releases what a server holds for this client.
    pub(super) fn give_back(&mut self, now: Instant, out: &mut Vec<Output>) {
        let held = match (&self.phase, &self.in_use, self.remembered.take()) {
            (Phase::Released, ..) => return,
            (Phase::Probing { lease, .. }, ..) | (_, Some(lease), _) => Some((lease.server.clone(), lease.address)),
            (Phase::Requesting { server, address, .. }, None, _) => Some((server.clone(), *address)),
            (_, None, old) => old.filter(|old| !old.expiry.is_past(now)).map(|old| (old.server, old.address)),
        };
        if let Some((server, address)) = held {
            let xid = self.exchange(now).xid;
            let request = Request { kind: MessageType::Release, server: Some(&server), address: Some(address) };
            self.push(&request, xid, 0, out);
        }
        self.in_use = None;
        self.phase = Phase::Released;
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
