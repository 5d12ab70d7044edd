//! Handles the servers' replies.

use std::time::{Duration, Instant};

use dhcproto::v6::Status;
use rand::RngExt;

use super::super::message::Reply;
use super::super::{Lease, LostReason, Report};
use super::{Client, LONGEST_PAUSE, Output, Phase};
use crate::Expiry;

impl Client {
    /// Handles a reply. It counts only if it answers the open request.
    pub(super) fn reply(&mut self, now: Instant, reply: Reply, out: &mut Vec<Output>) {
        let exchange = match &self.phase {
            Phase::Selecting(exchange)
            | Phase::Confirming(exchange)
            | Phase::Rebinding(exchange)
            | Phase::Renewing(exchange)
            | Phase::Requesting { exchange, .. } => *exchange,
            _ => return,
        };
        if reply.xid != exchange.xid || reply.advertise != matches!(self.phase, Phase::Selecting(_)) {
            return;
        }
        // SOL_MAX_RT counts even in an answer that grants nothing (RFC 8415 18.2.9 and 18.2.10).
        self.longest_wait = reply.longest_wait.unwrap_or(self.longest_wait);
        let asked = match (&self.phase, &self.in_use) {
            (Phase::Requesting { server, .. }, _) => Some(server),
            (Phase::Renewing(_), Some(lease)) => Some(&lease.server),
            _ => None,
        };
        if asked.is_some_and(|server| *server != reply.server) {
            return;
        }
        let usable = reply.granted.filter(|(_, times)| times.valid > 0 && reply.status.is_none());
        match (&self.phase, usable) {
            (Phase::Selecting(_), Some((address, _))) => {
                let exchange = self.exchange(now);
                self.phase = Phase::Requesting { exchange, server: reply.server, address };
                self.transmit(now, out);
            }
            (Phase::Selecting(_), None) => tell_refusal(reply.status, out),
            (Phase::Confirming(_), _) => match reply.status {
                Some((Status::NotOnLink, message)) => self.refused(now, message, out),
                Some(_) => {}
                // The address is valid on this link. If its times are unknown, they are requested.
                None if self.in_use.as_ref().is_some_and(|lease| lease.renew_at.is_none_or(|at| at <= now)) => {
                    let endless = self.in_use.as_ref().is_some_and(|lease| lease.expiry == Expiry::Never);
                    if endless { self.phase = Phase::Bound } else { self.begin(now, Phase::Rebinding, out) }
                }
                None => self.phase = Phase::Bound,
            },
            (_, Some((address, times))) => {
                let lease = times.lease(address, reply.server, exchange.started);
                if !lease.expiry.is_past(now) {
                    self.take_lease(now, lease, out);
                } else if matches!(self.phase, Phase::Renewing(_) | Phase::Rebinding(_)) {
                    // The reply may answer an early transmission, so its time counts from there. A new request has a
                    // new transaction ID.
                    self.begin(now, Phase::Rebinding, out);
                }
            }
            (Phase::Requesting { .. }, None) => {
                let message = reply.status.map_or_else(String::new, |(_, message)| message);
                self.refused(now, message, out);
            }
            (_, None) => match (reply.status, reply.granted, &self.in_use) {
                // The server has lost its lease database, so the same address is requested as if it were new (RFC 8415
                // 18.2.10.1).
                (Some((Status::NoBinding, _)), _, Some(lease)) => {
                    let (server, address) = (reply.server, lease.address);
                    let exchange = self.exchange(now);
                    self.phase = Phase::Requesting { exchange, server, address };
                    self.transmit(now, out);
                }
                (Some((Status::NotOnLink, message)), ..) => self.refused(now, message, out),
                // A lifetime of zero means that the server takes the address back.
                (None, Some((address, _)), Some(lease)) if lease.address == address => {
                    self.refused(now, String::new(), out);
                }
                // Other answers change nothing; the request is repeated in time.
                (status, ..) => tell_refusal(status.filter(|(status, _)| *status != Status::NoBinding), out),
            },
        }
    }

    pub(super) fn take_lease(&mut self, now: Instant, lease: Lease, out: &mut Vec<Output>) {
        match &self.in_use {
            Some(old) if old.address == lease.address => {
                self.refusals = 0;
                self.in_use = Some(lease.clone());
                self.phase = Phase::Bound;
                out.push(Output::Renewed(lease));
            }
            Some(_) => {
                self.lose(LostReason::AddressChanged { to: lease.address }, out);
                self.probe(now, lease, out);
            }
            None => self.probe(now, lease, out),
        }
    }

    /// The server refuses the address: a new search starts, without a pause the first time.
    pub(super) fn refused(&mut self, now: Instant, message: String, out: &mut Vec<Output>) {
        let requested = matches!(self.phase, Phase::Requesting { .. }) && self.in_use.is_none();
        self.lose(LostReason::Refused { message: message.clone() }, out);
        if requested {
            self.wish = None;
        }
        out.push(Output::Report(Report::Refused { message }));
        self.refusals = self.refusals.saturating_add(1);
        if self.refusals <= 1 {
            self.begin(now, Phase::Selecting, out);
        } else {
            let pause = Duration::from_secs(1 << self.refusals.min(6)).min(LONGEST_PAUSE);
            self.phase = Phase::Pausing { until: now + pause.mul_f64(self.rng.random_range(0.9..=1.1)) };
        }
    }
}

fn tell_refusal(status: Option<(Status, String)>, out: &mut Vec<Output>) {
    if let Some((_, message)) = status {
        out.push(Output::Report(Report::Refused { message }));
    }
}
