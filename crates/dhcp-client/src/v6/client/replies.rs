//! Handles the servers' replies.

use std::time::{Duration, Instant};

use dhcproto::v6::Status;
use rand::RngExt;

use super::super::message::Reply;
use super::super::{Lease, LostReason, Report};
use super::{Client, Goal, LONGEST_PAUSE, Output, Refusal};
use crate::Expiry;
use crate::machine::{Phase, REFUSAL_PATIENCE};

impl Client {
    /// Handles a reply. It counts only if it answers the open request.
    pub(super) fn reply(&mut self, now: Instant, reply: Reply, out: &mut Vec<Output>) {
        let Phase::Asking { exchange, goal } = &self.phase else { return };
        let (exchange, goal) = (*exchange, goal.clone());
        if reply.xid != exchange.transaction.xid || reply.advertise != matches!(goal, Goal::Selecting) {
            return;
        }
        // SOL_MAX_RT counts even in an answer that grants nothing (RFC 8415 18.2.9 and 18.2.10).
        self.version.longest_wait = reply.longest_wait.unwrap_or(self.version.longest_wait);
        let asked = match (&goal, &self.in_use) {
            (Goal::Requesting { server, .. }, _) => Some(server),
            (Goal::Renewing, Some(lease)) => Some(&lease.server),
            _ => None,
        };
        if asked.is_some_and(|server| *server != reply.server) {
            return;
        }
        if self.foreign_reply(now, &reply, out) {
            return;
        }
        let usable = reply.usable();
        match (&goal, usable) {
            (Goal::Selecting, Some((address, _))) => {
                self.begin(now, Goal::Requesting { server: reply.server, address }, out);
            }
            (Goal::Selecting, None) => tell_refusal(reply.status, out),
            (Goal::Confirming { .. }, _) => match reply.status {
                Some((Status::NotOnLink, message)) => self.refused(now, message, out),
                Some(_) => {}
                // The address is valid on this link. If its times are unknown, they are requested.
                None if self.in_use.as_ref().is_some_and(|lease| lease.renew_at.is_none_or(|at| at <= now)) => {
                    let endless = self.in_use.as_ref().is_some_and(|lease| lease.expiry == Expiry::Never);
                    let rebind = Goal::Rebinding { foreign_refusal: None };
                    if endless { self.phase = Phase::Bound } else { self.begin(now, rebind, out) }
                }
                None => self.phase = Phase::Bound,
            },
            (_, Some((address, times))) => {
                let lease = times.lease(address, reply.server, exchange.started);
                if !lease.expiry.is_past(now) {
                    self.take_lease(now, lease, out);
                } else if matches!(goal, Goal::Renewing | Goal::Rebinding { .. }) {
                    // The reply may answer an early transmission, so its time counts from there. A new request has a
                    // new transaction ID.
                    self.begin(now, Goal::Rebinding { foreign_refusal: None }, out);
                }
            }
            (Goal::Requesting { .. }, None) => {
                let message = reply.status.map_or_else(String::new, |(_, message)| message);
                self.refused(now, message, out);
            }
            (_, None) => match (reply.status, reply.granted, &self.in_use) {
                // The server has lost its lease database, so the same address is requested as if it were new (RFC 8415
                // 18.2.10.1).
                (Some((Status::NoBinding, _)), _, Some(lease)) => {
                    let (server, address) = (reply.server, lease.address);
                    self.begin(now, Goal::Requesting { server, address }, out);
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

    /// Handles the reply of a server that did not grant the lease in use. It may know its own range only, so it ends
    /// nothing that the granting server still honours. Returns false if the reply counts like that of any server,
    /// because it confirms the address or extends the lease.
    fn foreign_reply(&mut self, now: Instant, reply: &Reply, out: &mut Vec<Output>) -> bool {
        let Some(lease) = self.in_use.clone().filter(|lease| lease.server != reply.server) else { return false };
        let is_rebind_due = self.is_rebind_due(now);
        let extends = reply.usable().is_some_and(|(address, _)| address == lease.address);
        let Phase::Asking { exchange, goal } = &mut self.phase else { return false };
        let (foreign_refusal, counts) = match goal {
            Goal::Confirming { foreign_refusal } => (foreign_refusal, reply.status.is_none()),
            Goal::Rebinding { foreign_refusal } => (foreign_refusal, extends),
            Goal::Requesting { .. } if !extends => {
                self.rebind_later(now, &lease);
                return true;
            }
            Goal::Selecting | Goal::Requesting { .. } | Goal::Renewing => return false,
        };
        if counts {
            return false;
        }
        let refusal = match (&reply.status, reply.granted) {
            // The granting server has been silent since T1, so this one is asked instead (RFC 8415 18.2.10.1).
            (Some((Status::NoBinding, _)), _) if is_rebind_due => {
                let (server, address) = (reply.server.clone(), lease.address);
                self.begin(now, Goal::Requesting { server, address }, out);
                return true;
            }
            (Some((Status::NotOnLink, message)), _) => message.clone(),
            // A lifetime of zero takes the address back.
            (None, Some((address, _))) if address == lease.address => String::new(),
            (None, Some((offered, times))) if times.valid > 0 => {
                out.push(Output::Report(Report::AddressIgnored { kept: lease.address, offered }));
                return true;
            }
            _ => return true,
        };
        // Where the LAN was renumbered, or the granting server is gone, nobody else answers.
        let at = now + REFUSAL_PATIENCE;
        exchange.next_at = exchange.next_at.min(at);
        foreign_refusal.get_or_insert(Refusal { message: refusal, at });
        true
    }

    pub(super) fn take_lease(&mut self, now: Instant, lease: Lease, out: &mut Vec<Output>) {
        match &self.in_use {
            Some(old) if old.address == lease.address => {
                self.use_lease(lease.clone());
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
        let requested =
            matches!(self.phase, Phase::Asking { goal: Goal::Requesting { .. }, .. }) && self.in_use.is_none();
        self.lose(LostReason::Refused { message: message.clone() }, out);
        if requested {
            self.wish = None;
        }
        out.push(Output::Report(Report::Refused { message }));
        self.refusals = self.refusals.saturating_add(1);
        if self.refusals <= 1 {
            self.begin(now, Goal::Selecting, out);
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
