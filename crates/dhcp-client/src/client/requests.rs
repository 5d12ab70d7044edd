//! Sends requests: which message in which phase, to which server, and when to repeat it.

use std::{
    net::Ipv4Addr,
    time::{Duration, Instant},
};

use rand::RngExt;

use super::{Client, Exchange, Goal, Offer, Output};
use crate::{
    Lease, Mac, Report,
    frame::{self, CLIENT_PORT, Datagram, SERVER_PORT},
    machine::{DECLINE_WAIT, Phase},
    message::{self, Request},
    timing,
};

/// Transmissions of a REQUEST for an offer (0, 1, 3 and 7 s) before looking for another offer at 15 s.
const REQUEST_TRANSMISSIONS: u32 = 4;

/// Transmissions of INIT-REBOOT (0 and 1 s) or of REBIND before DISCOVER. They are few, because a server that has lost
/// its lease database and is not authoritative never answers these, while DISCOVER with option 50 leads to the same
/// address.
const CONFIRM_TRANSMISSIONS: u32 = 2;

/// After this many transmissions without an answer the silence is reported; a lost packet or two is not worth a report.
const QUIET_TRANSMISSIONS: u32 = 2;

/// A late answer counts if it belongs to one of this many last transmissions.
const QUESTIONS_KEPT: usize = 3;

/// The transaction of an attempt.
#[derive(Debug, Clone, Copy)]
pub struct Transaction {
    /// Its ID in DISCOVERs and in the REQUEST for an offer, which are the same (RFC 2131 4.4.1). The lease of an ACK to
    /// such a REQUEST counts from the first transmission; a later start would be wrong if the server answered that one.
    pub xid: u32,
    /// The `secs` field of the last DISCOVER, which the REQUEST for its offer repeats (RFC 2131 3.1 step 3).
    secs: u16,
    /// The latest transmissions that confirm or extend a lease, oldest first. Each is a transaction of its own, because
    /// such an attempt can last longer than a lease. If the lease counted from the first transmission, it could end
    /// before it arrives. If it counted from the last one, it would be used too long when the server has answered an
    /// earlier one.
    questions: [Option<Question>; QUESTIONS_KEPT],
}

#[derive(Debug, Clone, Copy)]
struct Question {
    xid: u32,
    sent_at: Instant,
}

impl Transaction {
    /// When the request was sent that a reply with this transaction ID answers.
    pub fn sent_at(&self, xid: u32) -> Option<Instant> {
        self.questions.iter().flatten().find(|question| question.xid == xid).map(|question| question.sent_at)
    }

    fn remember(&mut self, question: Question) {
        self.questions.rotate_left(1);
        self.questions[QUESTIONS_KEPT - 1] = Some(question);
    }
}

/// The route of a message: source address, server address and MAC.
#[derive(Clone, Copy)]
struct Route {
    source: Ipv4Addr,
    destination: Ipv4Addr,
    mac: Mac,
}

impl Route {
    const BROADCAST: Self =
        Self { source: Ipv4Addr::UNSPECIFIED, destination: Ipv4Addr::BROADCAST, mac: Mac::BROADCAST };

    /// The route to the server that granted the lease. The source is the leased address, because a datagram without a
    /// source never reaches a server's UDP socket (kube-vip spec 6.2).
    fn to_server(lease: &Lease) -> Self {
        Self { source: lease.address, destination: lease.server_id, mac: lease.server_mac.unwrap_or(Mac::BROADCAST) }
    }
}

impl Client {
    /// Sends DISCOVER at once. RFC 2131 4.4.1 requires a wait of 1 to 10 s for hosts that are switched on together.
    /// Here clients wait for a single address.
    pub(super) fn discover(&mut self, now: Instant, out: &mut Vec<Output>) {
        let exchange = self.exchange(now);
        self.phase = Phase::Asking { exchange, goal: Goal::Selecting };
        self.transmit(now, out);
    }

    pub(super) fn request(&mut self, now: Instant, exchange: Exchange, offer: Offer, out: &mut Vec<Output>) {
        // The REQUEST uses the transaction of the offer, but counts its own transmissions.
        let exchange = Exchange { started: now, transmissions: 0, ..exchange };
        self.phase = Phase::Asking { exchange, goal: Goal::Requesting { offer } };
        self.transmit(now, out);
    }

    pub(super) fn reboot(&mut self, now: Instant, address: Ipv4Addr, out: &mut Vec<Output>) {
        self.wish = Some(address);
        self.version.looking_since = now;
        let exchange = self.exchange(now);
        self.phase = Phase::Asking { exchange, goal: Goal::Rebooting { address, foreign_nak: None } };
        self.transmit(now, out);
    }

    /// Handles the deadline of the phase.
    pub(super) fn go_on(&mut self, now: Instant, out: &mut Vec<Output>) {
        match &mut self.phase {
            Phase::Idle | Phase::Released | Phase::Stopped => {}
            Phase::Pausing { .. } | Phase::Declined { .. } => self.discover(now, out),
            Phase::Probing { lease, asked_at } => {
                let (lease, waited) = (lease.clone(), now.saturating_duration_since(*asked_at));
                out.push(Output::Report(Report::ProbeUnanswered { address: lease.address, waited }));
                self.probe(now, lease, out);
            }
            Phase::Bound => {
                self.version.looking_since = now;
                let exchange = self.exchange(now);
                let rebind = Goal::Rebinding { foreign_nak: None };
                let goal = if self.is_rebind_due(now) { rebind } else { Goal::Renewing };
                self.phase = Phase::Asking { exchange, goal };
                self.transmit(now, out);
            }
            Phase::Asking { exchange, goal } => match goal {
                Goal::Requesting { offer } if exchange.transmissions >= REQUEST_TRANSMISSIONS => {
                    if self.in_use.is_some() {
                        let address = offer.address;
                        self.reboot(now, address, out);
                    } else {
                        self.discover(now, out);
                    }
                }
                Goal::Rebooting { foreign_nak, address } => {
                    let (address, exhausted) = (*address, exchange.transmissions >= CONFIRM_TRANSMISSIONS);
                    match foreign_nak.take() {
                        Some(nak) => self.refused(now, address, nak, out),
                        None if exhausted && self.in_use.is_none() => self.discover(now, out),
                        None => self.transmit(now, out),
                    }
                }
                Goal::Rebinding { foreign_nak } => match (foreign_nak.take(), &self.in_use) {
                    (Some(nak), Some(lease)) => self.refused(now, lease.address, nak, out),
                    _ => self.transmit(now, out),
                },
                Goal::Renewing => {
                    let asked = *exchange;
                    if self.is_rebind_due(now) {
                        self.report_silence(now, &asked, Duration::ZERO, out);
                        let exchange = self.exchange(now);
                        self.phase = Phase::Asking { exchange, goal: Goal::Rebinding { foreign_nak: None } };
                    }
                    self.transmit(now, out);
                }
                Goal::Selecting | Goal::Requesting { .. } => self.transmit(now, out),
            },
        }
    }

    /// Sends the message of the phase and sets the next deadline.
    fn transmit(&mut self, now: Instant, out: &mut Vec<Output>) {
        let Phase::Asking { exchange, goal } = &self.phase else { return };
        let mut exchange = *exchange;
        let mut back_off = || timing::back_off(exchange.transmissions + 1, &mut self.rng);
        let broadcast = Route::BROADCAST;
        // The wait for the next transmission is limited by the rest of the phase.
        let (request, route, wait) = match (goal, &self.in_use) {
            (Goal::Selecting, _) => (Request::Discover { wish: self.wish }, broadcast, back_off()),
            (Goal::Requesting { offer }, _) => {
                let request = Request::Select { offered: offer.address, server_id: offer.server_id };
                (request, broadcast, back_off())
            }
            (Goal::Rebooting { address, .. }, held) => {
                let wait = back_off();
                let wait = match held.as_ref().and_then(|lease| lease.remaining(now)) {
                    // The address is in use and its lease ends soon, so the wait is short.
                    Some(remaining) => wait.min((remaining / 2).max(Duration::from_secs(1))),
                    None => wait,
                };
                (Request::Confirm { address: *address }, broadcast, wait)
            }
            (Goal::Renewing, Some(lease)) => {
                let mut route = Route::to_server(lease);
                if exchange.transmissions % 2 == 1 {
                    // The server's MAC may have changed if it is silent; a broadcast costs one frame.
                    route.mac = Mac::BROADCAST;
                }
                (Request::Extend { address: lease.address }, route, extend_wait(now, lease, lease.rebind_at))
            }
            (Goal::Rebinding { .. }, Some(lease)) => {
                let route = Route { source: lease.address, ..broadcast };
                let wait = extend_wait(now, lease, lease.expiry.instant());
                (Request::Extend { address: lease.address }, route, wait)
            }
            (Goal::Renewing | Goal::Rebinding { .. }, None) => return,
        };
        let confirms = matches!(goal, Goal::Rebooting { .. } | Goal::Rebinding { .. });
        let transaction = &mut exchange.transaction;
        if !matches!(request, Request::Select { .. }) {
            transaction.secs = self.secs(now);
        }
        let xid = if matches!(request, Request::Confirm { .. } | Request::Extend { .. }) {
            let xid = self.rng.random();
            transaction.remember(Question { xid, sent_at: now });
            xid
        } else {
            transaction.xid
        };
        let Transaction { xid: first, secs, .. } = *transaction;
        self.push_message(&request, &route, xid, secs, out);
        if confirms && exchange.transmissions >= CONFIRM_TRANSMISSIONS {
            // The lease is still valid, so the client goes on asking for its extension (a NAK would end it). It also
            // asks for the address as if it were new.
            let request = Request::Discover { wish: self.in_use.as_ref().map(|lease| lease.address) };
            self.push_message(&request, &broadcast, first, secs, out);
        }
        if exchange.transmissions >= QUIET_TRANSMISSIONS {
            self.report_silence(now, &exchange, wait, out);
        }
        self.sent(now, wait, exchange);
    }

    /// Declines an address that another host uses. The message is a broadcast without source address, because the
    /// client has none (RFC 2131 table 5).
    pub(super) fn decline(&mut self, now: Instant, lease: &Lease, used_by: Mac, out: &mut Vec<Output>) {
        let request = Request::Decline { address: lease.address, server_id: lease.server_id, used_by };
        let xid = self.exchange(now).transaction.xid;
        self.push_message(&request, &Route::BROADCAST, xid, 0, out);
        out.push(Output::Report(Report::Declined {
            server: lease.server_id,
            address: lease.address,
            mac: used_by,
            retry_in: DECLINE_WAIT,
        }));
    }

    /// Releases what a server holds for this client, also what it may have reserved a moment ago.
    pub(super) fn give_back(&mut self, now: Instant, out: &mut Vec<Output>) {
        let route = match (&self.phase, &self.in_use) {
            (Phase::Probing { lease, .. }, _) | (_, Some(lease)) => Some(Route::to_server(lease)),
            (Phase::Asking { goal: Goal::Requesting { offer }, .. }, None) => {
                Some(Route { source: offer.address, destination: offer.server_id, mac: offer.server_mac })
            }
            // The Service was deleted while no client ran for it.
            (_, None) => self.remembered.as_ref().filter(|old| !old.is_past(now)).and_then(|old| {
                let mac = old.server_mac.unwrap_or(Mac::BROADCAST);
                Some(Route { source: old.address, destination: old.server_id?, mac })
            }),
        };
        if let Some(route) = route {
            let request = Request::Release { address: route.source, server_id: route.destination };
            let xid = self.exchange(now).transaction.xid;
            self.push_message(&request, &route, xid, 0, out);
        }
    }

    fn report_silence(&self, now: Instant, asked: &Exchange, next_in: Duration, out: &mut Vec<Output>) {
        out.push(Output::Report(Report::NoAnswer {
            state: self.state(),
            silent_for: now.saturating_duration_since(asked.started),
            transmissions: asked.transmissions,
            next_in,
        }));
    }

    fn push_message(&self, request: &Request, route: &Route, xid: u32, secs: u16, out: &mut Vec<Output>) {
        let payload = message::encode(&self.config, request, xid, secs);
        let frame = frame::build(&Datagram {
            source_mac: self.config.mac,
            destination_mac: route.mac,
            source: route.source,
            destination: route.destination,
            source_port: CLIENT_PORT,
            destination_port: SERVER_PORT,
            payload: &payload,
        });
        out.push(Output::Send(frame.expect("a message of ours has at most a few hundred bytes")));
    }

    /// Makes a new transaction. Its ID is new too, so that a late answer to an earlier request does not count for this
    /// one.
    fn exchange(&mut self, now: Instant) -> Exchange {
        let transaction = Transaction { xid: self.rng.random(), secs: 0, questions: [None; QUESTIONS_KEPT] };
        Exchange { started: now, transmissions: 0, next_at: now, transaction }
    }

    fn secs(&self, now: Instant) -> u16 {
        u16::try_from(now.saturating_duration_since(self.version.looking_since).as_secs()).unwrap_or(u16::MAX)
    }
}

/// `until` is `None` only for leases that are never renewed.
fn extend_wait(now: Instant, lease: &Lease, until: Option<Instant>) -> Duration {
    let length = lease.expiry.instant().map_or(Duration::MAX, |at| at.saturating_duration_since(lease.since));
    let remaining = until.map_or(Duration::MAX, |at| at.saturating_duration_since(now));
    timing::extend_wait(remaining, length)
}
