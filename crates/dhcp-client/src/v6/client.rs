//! The state machine. As in DHCPv4, two facts are kept apart: `in_use` is the lease whose address is on an interface,
//! because the client has reported it as bound; `phase` is the exchange with servers that goes on meanwhile.

mod replies;
mod requests;

use std::net::Ipv6Addr;
use std::time::{Duration, Instant};

use dhcproto::v6::MessageType;
use rand::{SeedableRng, rngs::SmallRng};
use requests::Exchange;

use super::message;
use super::state::State;
use super::{Lease, LostReason, RememberedLease, Report, frame};
use crate::Mac;
use crate::machine::{self, DECLINE_WAIT, PROBE_PATIENCE, Phases};

/// Configuration of a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// The client's DUID ([`service_duid`](super::service_duid)); it never changes while the lease lives.
    pub duid: Vec<u8>,
    /// MAC of the interface that the client uses.
    pub mac: Mac,
    /// Link-local address of that interface, to which servers answer.
    pub source: Ipv6Addr,
    /// The requested address.
    pub requested: Option<Ipv6Addr>,
    /// The lease that this Service had before, on any node.
    pub remembered: Option<RememberedLease>,
}

/// A field of [`Config`] that cannot work.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// The DUID is missing, too short or too long.
    #[error("DHCPv6 client: a DUID of {0} bytes is not accepted: expected 3 to 130")]
    Duid(usize),
    /// Servers cannot answer to this source.
    #[error("DHCPv6 client: source {0} is not accepted: expected a link-local address")]
    Source(Ipv6Addr),
}

/// An input of the client.
pub type Input<'a> = machine::Input<'a, Ipv6Addr>;
/// An output of the client.
pub type Output = machine::Output<Ipv6Addr, Lease, LostReason, Report>;

/// Longest pause after repeated refusals.
const LONGEST_PAUSE: Duration = Duration::from_secs(64);
/// SOL_MAX_RT until a server sends another. RFC 8415 uses an hour, for hosts without any DHCPv6 server. Here a Service
/// has asked for an address and waits for it.
const LONGEST_WAIT: Duration = Duration::from_secs(64);
/// The only association of a DUID, because each Service has its own DUID.
const IAID: u32 = 1;

#[derive(Debug, Clone)]
enum Phase {
    Idle,
    Pausing {
        until: Instant,
    },
    /// An address was declined because another host uses it; nothing is sent before `until`.
    Declined {
        until: Instant,
    },
    Selecting(Exchange),
    Requesting {
        exchange: Exchange,
        server: Vec<u8>,
        address: Ipv6Addr,
    },
    Confirming(Exchange),
    Probing {
        lease: Lease,
        asked_at: Instant,
    },
    Bound,
    Renewing(Exchange),
    Rebinding(Exchange),
    Released,
    Stopped,
}

/// A DHCPv6 client for one address.
#[derive(Debug)]
pub struct Client {
    config: Config,
    rng: SmallRng,
    phase: Phase,
    in_use: Option<Lease>,
    remembered: Option<RememberedLease>,
    /// Hint in the next SOLICIT.
    wish: Option<Ipv6Addr>,
    /// Refusals since the client was last bound.
    refusals: u32,
    /// SOL_MAX_RT: longest wait between two SOLICITs.
    longest_wait: Duration,
}

impl Client {
    /// Makes a client that waits for [`Input::Start`]. `seed` determines transaction IDs and jitter.
    pub fn new(config: Config, seed: u64) -> Result<Self, ConfigError> {
        if !(3..=130).contains(&config.duid.len()) {
            return Err(ConfigError::Duid(config.duid.len()));
        }
        if !config.source.is_unicast_link_local() {
            return Err(ConfigError::Source(config.source));
        }
        Ok(Self {
            rng: SmallRng::seed_from_u64(seed),
            phase: Phase::Idle,
            in_use: None,
            remembered: config.remembered.clone(),
            wish: config.requested,
            refusals: 0,
            longest_wait: LONGEST_WAIT,
            config,
        })
    }

    /// Takes in an input, and returns the outputs in their order.
    pub fn step(&mut self, now: Instant, input: Input<'_>) -> Vec<Output> {
        machine::step(self, now, input)
    }

    /// When to call `step` with [`Input::Timer`] if no input comes before.
    pub fn deadline(&self) -> Option<Instant> {
        machine::deadline(self)
    }

    /// The current state of the client.
    pub fn state(&self) -> State {
        match &self.phase {
            Phase::Idle | Phase::Pausing { .. } | Phase::Declined { .. } => State::Init,
            Phase::Selecting(_) => State::Selecting,
            Phase::Requesting { .. } => State::Requesting,
            Phase::Confirming(_) => State::Confirming,
            Phase::Probing { .. } => State::Probing,
            Phase::Bound => State::Bound,
            Phase::Renewing(_) => State::Renewing,
            Phase::Rebinding(_) => State::Rebinding,
            Phase::Released => State::Released,
            Phase::Stopped => State::Stopped,
        }
    }

    /// The lease whose address may be used now.
    pub fn lease(&self) -> Option<&Lease> {
        self.in_use.as_ref()
    }
}

impl Phases for Client {
    type Address = Ipv6Addr;
    type Output = Output;

    fn expire(&mut self, now: Instant, out: &mut Vec<Output>) {
        if self.in_use.as_ref().is_some_and(|lease| lease.expiry.is_past(now)) {
            self.lose(LostReason::Expired, out);
            if !matches!(self.phase, Phase::Selecting(_) | Phase::Requesting { .. } | Phase::Stopped) {
                self.begin(now, Phase::Selecting, out);
            }
        }
        if let Phase::Probing { lease, .. } = &self.phase
            && lease.expiry.is_past(now)
        {
            self.wish = Some(lease.address);
            self.begin(now, Phase::Selecting, out);
        }
    }

    fn start(&mut self, now: Instant, out: &mut Vec<Output>) {
        if !matches!(self.phase, Phase::Idle | Phase::Released) {
            return;
        }
        match self.remembered.take() {
            // The address is ours until the lease ends, on any node. It is confirmed at once all the same, because T1
            // is unknown.
            Some(old) if !old.expiry.is_past(now) => {
                let RememberedLease { address, server, expiry } = old;
                let lease = Lease { address, server, renew_at: None, rebind_at: None, expiry };
                self.in_use = Some(lease.clone());
                out.push(Output::Bound(lease));
                self.begin(now, Phase::Rebinding, out);
            }
            old => {
                self.wish = old.map(|old| old.address).or(self.wish);
                self.begin(now, Phase::Selecting, out);
            }
        }
    }

    fn restart(&mut self, now: Instant, out: &mut Vec<Output>) {
        match &self.phase {
            Phase::Idle => self.start(now, out),
            // The wait of ten seconds after a DECLINE, and the end, stay in force.
            Phase::Released | Phase::Declined { .. } => {}
            Phase::Probing { lease, .. } => self.probe(now, lease.clone(), out),
            _ if self.in_use.is_some() => self.begin(now, Phase::Confirming, out),
            _ => self.begin(now, Phase::Selecting, out),
        }
    }

    fn link_lost(&mut self) {
        match &self.phase {
            Phase::Idle | Phase::Released | Phase::Declined { .. } => return,
            Phase::Probing { lease, .. } => self.wish = Some(lease.address),
            _ => {}
        }
        self.phase = Phase::Stopped;
    }

    fn frame(&mut self, now: Instant, frame: &[u8], out: &mut Vec<Output>) {
        let reply = frame::parse(frame).and_then(|bytes| message::parse(bytes, &self.config.duid, IAID));
        if let Some(reply) = reply {
            self.reply(now, reply, out);
        }
    }

    fn probe_free(&mut self, _: Instant, address: Ipv6Addr, out: &mut Vec<Output>) {
        if let Phase::Probing { lease, .. } = &self.phase
            && lease.address == address
        {
            let lease = lease.clone();
            self.refusals = 0;
            self.in_use = Some(lease.clone());
            self.phase = Phase::Bound;
            out.push(Output::Bound(lease));
        }
    }

    fn conflict(&mut self, now: Instant, address: Ipv6Addr, mac: Mac, out: &mut Vec<Output>) {
        let lease = match (&self.phase, &self.in_use) {
            (Phase::Probing { lease, .. }, _) | (_, Some(lease)) if lease.address == address => lease.clone(),
            _ => return,
        };
        self.lose(LostReason::Conflict { mac }, out);
        self.wish = None;
        if matches!(self.phase, Phase::Stopped) {
            return;
        }
        self.say(now, MessageType::Decline, &lease, out);
        out.push(Output::Report(Report::Declined { address, mac }));
        self.phase = Phase::Declined { until: now + DECLINE_WAIT };
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
            Phase::Selecting(exchange)
            | Phase::Requesting { exchange, .. }
            | Phase::Confirming(exchange)
            | Phase::Renewing(exchange)
            | Phase::Rebinding(exchange) => Some(exchange.next_at),
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
    fn lose(&mut self, reason: LostReason, out: &mut Vec<Output>) {
        if let Some(lease) = self.in_use.take() {
            self.wish = Some(lease.address);
            out.push(Output::Lost { lease, reason });
        }
    }

    fn probe(&mut self, now: Instant, lease: Lease, out: &mut Vec<Output>) {
        out.push(Output::Probe(lease.address));
        self.phase = Phase::Probing { lease, asked_at: now };
    }
}

#[cfg(test)]
mod tests;
