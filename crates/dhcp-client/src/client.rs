//! The state machine: what each input does. [`machine`] defines its inputs and outputs. `client/requests.rs` sends and
//! repeats requests, `client/replies.rs` handles the servers' replies.
//!
//! Two facts are kept apart. `in_use` is the lease whose address is on an interface, because the client has reported it
//! as bound. Only `lose`, `release` and a new grant end it, and every step checks its end first, so that no path can
//! use an address too long. `phase` is the exchange with servers that goes on meanwhile. So after a take-over or a link
//! loss the client can ask again while the address stays in use.

mod replies;
mod requests;

use std::{net::Ipv4Addr, time::Instant};

use rand::{SeedableRng, rngs::SmallRng};

use self::requests::Exchange;
use crate::{
    Config, ConfigError, Lease, LostReason, Mac, RememberedLease, Report, State,
    machine::{self, DECLINE_WAIT, PROBE_PATIENCE, Phases},
    message,
};

/// An input of the client.
pub type Input<'a> = machine::Input<'a, Ipv4Addr>;
/// An output of the client.
pub type Output = machine::Output<Ipv4Addr, Lease, LostReason, Report>;

/// The state of the exchange with the servers.
#[derive(Debug, Clone)]
enum Phase {
    /// Not started.
    Idle,
    /// Nothing is sent before `until`.
    Pausing {
        until: Instant,
    },
    Selecting {
        exchange: Exchange,
    },
    Requesting {
        exchange: Exchange,
        offer: Offer,
    },
    Rebooting {
        exchange: Exchange,
        address: Ipv4Addr,
        /// A NAK of a server that did not grant the lease. It is applied unless the granting server answers before the
        /// next transmission.
        foreign_nak: Option<Nak>,
    },
    /// `lease` is granted, but it is not in use before the probe has found it free.
    Probing {
        lease: Lease,
        asked_at: Instant,
    },
    Bound,
    Renewing {
        exchange: Exchange,
    },
    Rebinding {
        exchange: Exchange,
        /// As in `Rebooting`.
        foreign_nak: Option<Nak>,
    },
    Declined {
        until: Instant,
    },
    Released,
    Stopped,
}

#[derive(Debug, Clone, Copy)]
struct Offer {
    address: Ipv4Addr,
    server_id: Ipv4Addr,
    server_mac: Mac,
}

#[derive(Debug, Clone)]
struct Nak {
    server: Ipv4Addr,
    message: Option<String>,
}

/// A DHCPv4 client for one address on one interface.
///
/// The readings of the clock must come from a clock that never goes back. On a machine that can be suspended they must
/// come from the boot-time clock, because the server's clock runs on during a suspension.
#[derive(Debug)]
pub struct Client {
    config: Config,
    rng: SmallRng,
    phase: Phase,
    in_use: Option<Lease>,
    /// The lease to confirm by INIT-REBOOT at the next start; kept until something newer is known.
    remembered: Option<RememberedLease>,
    /// Option 50 of the next DISCOVER.
    wish: Option<Ipv4Addr>,
    /// NAKs since the client was last bound.
    naks: u32,
    /// Since when the client has been looking for an address, for the `secs` field.
    looking_since: Instant,
}

impl Client {
    /// Makes a client that waits for [`Input::Start`]. `seed` determines transaction IDs and jitter: random in
    /// production, fixed in tests.
    pub fn new(config: Config, now: Instant, seed: u64) -> Result<Self, ConfigError> {
        config.validate()?;
        Ok(Self {
            rng: SmallRng::seed_from_u64(seed),
            phase: Phase::Idle,
            in_use: None,
            remembered: config.remembered.clone(),
            wish: config.requested_ip,
            naks: 0,
            looking_since: now,
            config,
        })
    }

    /// Takes in an input, and returns the outputs in their order. It never blocks and never reads a clock.
    pub fn step(&mut self, now: Instant, input: Input<'_>) -> Vec<Output> {
        machine::step(self, now, input)
    }

    /// When to call `step` with [`Input::Timer`] if no input comes before. `None` only before the start, after the end
    /// (`Released`), while the link is lost without a lease, and with an infinite lease.
    pub fn deadline(&self) -> Option<Instant> {
        machine::deadline(self)
    }

    /// The current state of the client.
    pub fn state(&self) -> State {
        match &self.phase {
            Phase::Idle if self.remembered.is_some() => State::InitReboot,
            Phase::Idle | Phase::Pausing { .. } => State::Init,
            Phase::Selecting { .. } => State::Selecting,
            Phase::Requesting { .. } => State::Requesting,
            Phase::Rebooting { .. } => State::Rebooting,
            Phase::Probing { .. } => State::Probing,
            Phase::Bound => State::Bound,
            Phase::Renewing { .. } => State::Renewing,
            Phase::Rebinding { .. } => State::Rebinding,
            Phase::Declined { .. } => State::Declined,
            Phase::Released => State::Released,
            Phase::Stopped => State::Stopped,
        }
    }

    /// The lease whose address may be used now. It may exist in any state but `Released`, also while it is being
    /// confirmed.
    pub fn lease(&self) -> Option<&Lease> {
        self.in_use.as_ref()
    }
}

impl Phases for Client {
    type Address = Ipv4Addr;
    type Output = Output;

    fn expire(&mut self, now: Instant, out: &mut Vec<Output>) {
        if self.in_use.as_ref().is_some_and(|lease| lease.expiry.is_past(now)) {
            self.lose(LostReason::Expired, out);
            match self.phase {
                // In these phases the client already looks for an address or must not send; the other phases existed
                // only for the lease.
                Phase::Selecting { .. } | Phase::Requesting { .. } | Phase::Stopped => {}
                _ => self.look_again(now, out),
            }
        }
        if let Phase::Probing { lease, .. } = &self.phase
            && lease.expiry.is_past(now)
        {
            self.wish = Some(lease.address);
            self.look_again(now, out);
        }
    }

    fn start(&mut self, now: Instant, out: &mut Vec<Output>) {
        if !matches!(self.phase, Phase::Idle | Phase::Released | Phase::Stopped) {
            return;
        }
        if self.in_use.is_none()
            && let Some(lease) = self.remembered.as_ref().and_then(|lease| Lease::resume(lease, now))
        {
            // A lease that has not ended may be used while it is being confirmed (RFC 2131 3.2). So a take-over does
            // not wait for a DHCP server.
            self.remembered = None;
            self.in_use = Some(lease.clone());
            out.push(Output::Bound(lease));
        }
        match (&self.in_use, &self.remembered) {
            (Some(lease), _) => self.reboot(now, lease.address, out),
            // A server that has forgotten an ended lease does not answer INIT-REBOOT, but it may offer the same address
            // again.
            (None, Some(old)) if old.is_past(now) => {
                self.wish = Some(old.address);
                self.look_again(now, out);
            }
            (None, Some(old)) => self.reboot(now, old.address, out),
            (None, None) => self.look_again(now, out),
        }
    }

    fn restart(&mut self, now: Instant, out: &mut Vec<Output>) {
        match &self.phase {
            Phase::Idle | Phase::Stopped => self.start(now, out),
            // The wait of ten seconds after a DECLINE, and the end, stay in force.
            Phase::Released | Phase::Declined { .. } => {}
            Phase::Probing { lease, .. } => self.probe(now, lease.clone(), out),
            Phase::Rebooting { address, .. } => self.reboot(now, *address, out),
            Phase::Pausing { .. }
            | Phase::Selecting { .. }
            | Phase::Requesting { .. }
            | Phase::Bound
            | Phase::Renewing { .. }
            | Phase::Rebinding { .. } => match &self.in_use {
                Some(lease) => self.reboot(now, lease.address, out),
                None => self.discover(now, out),
            },
        }
    }

    fn link_lost(&mut self) {
        match &self.phase {
            Phase::Idle | Phase::Released | Phase::Declined { .. } => return,
            // The address is granted but not in use yet. It is requested again later, and probed then.
            Phase::Probing { lease, .. } => {
                self.remembered = Some(RememberedLease { expiry: None, ..lease.remember() });
            }
            _ => {}
        }
        self.phase = Phase::Stopped;
    }

    fn frame(&mut self, now: Instant, frame: &[u8], out: &mut Vec<Output>) {
        if let Some(reply) = message::parse(frame, self.config.mac) {
            self.reply(now, reply, out);
        }
    }

    fn probe_free(&mut self, now: Instant, address: Ipv4Addr, out: &mut Vec<Output>) {
        match &self.phase {
            Phase::Probing { lease, .. } if lease.address == address => {
                let lease = lease.clone();
                debug_assert!(!lease.expiry.is_past(now), "`expire` runs first in every step");
                self.use_lease(lease.clone());
                out.push(Output::Bound(lease));
            }
            _ => {}
        }
    }

    fn conflict(&mut self, now: Instant, address: Ipv4Addr, mac: Mac, out: &mut Vec<Output>) {
        if mac == self.config.mac {
            // The previous owner of the lease uses the same MAC, so it is the same lease. Which node serves it is not
            // decided here.
            return self.probe_free(now, address, out);
        }
        let lease = match (&self.phase, &self.in_use) {
            (Phase::Probing { lease, .. }, _) | (_, Some(lease)) if lease.address == address => lease.clone(),
            _ => return,
        };
        self.lose(LostReason::Conflict { mac }, out);
        // A new request for this address would only meet the same conflict.
        self.wish = None;
        self.remembered = None;
        if matches!(self.phase, Phase::Stopped) {
            return;
        }
        self.decline(now, &lease, mac, out);
        self.phase = Phase::Declined { until: now + DECLINE_WAIT };
        out.push(Output::Report(Report::Declined { server: lease.server_id, address, mac, retry_in: DECLINE_WAIT }));
    }

    fn release(&mut self, now: Instant, out: &mut Vec<Output>) {
        self.give_back(now, out);
    }

    fn timer(&mut self, now: Instant, out: &mut Vec<Output>) {
        self.go_on(now, out);
    }

    fn phase_deadline(&self) -> Option<Instant> {
        match &self.phase {
            Phase::Idle | Phase::Released | Phase::Stopped => None,
            Phase::Pausing { until } | Phase::Declined { until } => Some(*until),
            Phase::Selecting { exchange }
            | Phase::Requesting { exchange, .. }
            | Phase::Rebooting { exchange, .. }
            | Phase::Renewing { exchange }
            | Phase::Rebinding { exchange, .. } => Some(exchange.next_at),
            Phase::Probing { asked_at, .. } => Some(*asked_at + PROBE_PATIENCE),
            Phase::Bound => self.in_use.as_ref().and_then(|lease| lease.renew_at),
        }
    }

    fn lease_end(&self) -> Option<Instant> {
        let granted = match &self.phase {
            Phase::Probing { lease, .. } => Some(lease),
            _ => self.in_use.as_ref(),
        };
        granted.and_then(|lease| lease.expiry.instant())
    }
}

impl Client {
    /// Stops the use of the address. The caller decides what comes next.
    fn lose(&mut self, reason: LostReason, out: &mut Vec<Output>) {
        if let Some(lease) = self.in_use.take() {
            // Clients know this address, so it is requested first, whatever the reason.
            self.wish = Some(lease.address);
            out.push(Output::Lost { lease, reason });
        }
    }

    fn use_lease(&mut self, lease: Lease) {
        self.naks = 0;
        self.remembered = None;
        self.in_use = Some(lease);
        self.phase = Phase::Bound;
    }

    fn probe(&mut self, now: Instant, lease: Lease, out: &mut Vec<Output>) {
        out.push(Output::Probe(lease.address));
        self.phase = Phase::Probing { lease, asked_at: now };
    }
}
