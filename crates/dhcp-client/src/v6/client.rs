//! The state machine. As for DHCPv4, two facts are kept apart: `in_use` is the lease whose address is on an interface
//! because we said so, `phase` the exchange with servers that goes on meanwhile.

mod replies;
mod requests;

use std::fmt;
use std::net::Ipv6Addr;
use std::time::{Duration, Instant};

use dhcproto::v6::MessageType;
use rand::{SeedableRng, rngs::SmallRng};
use requests::Exchange;

use super::message;
use super::{Lease, LostReason, RememberedLease, Report, frame};
use crate::Mac;

/// What one client needs to know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Who we are to servers ([`service_duid`](super::service_duid)); never changes while the lease lives.
    pub duid: Vec<u8>,
    /// MAC of the interface that speaks for us.
    pub mac: Mac,
    /// Its link-local address: servers answer there.
    pub source: Ipv6Addr,
    /// A wish.
    pub requested: Option<Ipv6Addr>,
    /// The lease that this Service had before, from whatever node.
    pub remembered: Option<RememberedLease>,
}

/// A field of [`Config`] that cannot work.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// No or a too long DUID.
    #[error("DHCPv6 client: a DUID of {0} bytes is not accepted: expected 3 to 130")]
    Duid(usize),
    /// Servers cannot answer there.
    #[error("DHCPv6 client: source {0} is not accepted: expected a link-local address")]
    Source(Ipv6Addr),
}

/// Something that happened. As in the client for DHCPv4.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Input<'a> {
    /// Begin. Does nothing while running.
    Start,
    /// A whole Ethernet frame that arrived on the interface.
    Frame(&'a [u8]),
    /// Nobody else uses the address that [`Output::Probe`] asked about.
    ProbeFree(Ipv6Addr),
    /// Somebody else does.
    ProbeConflict {
        /// The address in question.
        address: Ipv6Addr,
        /// Who uses it.
        mac: Mac,
    },
    /// The Service is gone: give the address back.
    Release,
    /// The interface is down: say nothing more until `Restart`.
    LinkLost,
    /// The link is back: confirm the lease, or look for one at once.
    Restart,
    /// The deadline has come.
    Timer,
}

/// Something to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output {
    /// Send this Ethernet frame.
    Send(Vec<u8>),
    /// Find out whether somebody else uses this address, then say `ProbeFree` or `ProbeConflict`.
    Probe(Ipv6Addr),
    /// The address may be used from now on.
    Bound(Lease),
    /// Same address, new times.
    Renewed(Lease),
    /// The address must not be used any more.
    Lost {
        /// What was lost.
        lease: Lease,
        /// Why.
        reason: LostReason,
    },
    /// Tell people.
    Report(Report),
}

/// Where the client is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Not started, or waiting before it asks again.
    Init,
    /// SOLICIT sent.
    Selecting,
    /// REQUEST sent.
    Requesting,
    /// CONFIRM sent.
    Confirming,
    /// Granted; waiting for the result of the address probe.
    Probing,
    /// The address is ours.
    Bound,
    /// The same, asking its server to extend it.
    Renewing,
    /// The same, asking any server to extend it.
    Rebinding,
    /// Given back.
    Released,
    /// The link is lost.
    Stopped,
}

impl State {
    /// A stable lower-case name.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Init => "init",
            Self::Selecting => "selecting",
            Self::Requesting => "requesting",
            Self::Confirming => "confirming",
            Self::Probing => "probing",
            Self::Bound => "bound",
            Self::Renewing => "renewing",
            Self::Rebinding => "rebinding",
            Self::Released => "released",
            Self::Stopped => "stopped",
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// An address in use is not asked for again before this time.
const DECLINE_WAIT: Duration = Duration::from_secs(10);
/// A probe takes 30 ms; an adapter that has not answered after this long has lost the question.
const PROBE_PATIENCE: Duration = Duration::from_secs(2);
/// A server that refuses again and again is asked at most this often.
const LONGEST_PAUSE: Duration = Duration::from_secs(64);
/// One association per DUID, since each Service has a DUID of its own.
const IAID: u32 = 1;

#[derive(Debug, Clone)]
enum Phase {
    Idle,
    Pausing { until: Instant },
    Selecting(Exchange),
    Requesting { exchange: Exchange, server: Vec<u8>, address: Ipv6Addr },
    Confirming(Exchange),
    Probing { lease: Lease, asked_at: Instant },
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
    /// Refusals since we were bound last.
    refusals: u32,
}

impl Client {
    /// A client that waits for [`Input::Start`]. `seed` decides transaction ids and jitter.
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
            config,
        })
    }

    /// Feed one thing that happened; get what to do about it, in this order.
    pub fn step(&mut self, now: Instant, input: Input<'_>) -> Vec<Output> {
        let mut out = Vec::new();
        // First of all: no reply can extend a lease that is over.
        self.expire(now, &mut out);
        match input {
            Input::Start => self.start(now, &mut out),
            Input::Frame(bytes) => {
                let reply = frame::parse(bytes).and_then(|bytes| message::parse(bytes, &self.config.duid, IAID));
                if let Some(reply) = reply {
                    self.reply(now, reply, &mut out);
                }
            }
            Input::ProbeFree(address) => self.probe_free(address, &mut out),
            Input::ProbeConflict { address, mac } => self.conflict(now, address, mac, &mut out),
            Input::Release => self.release(now, &mut out),
            Input::LinkLost => self.link_lost(),
            Input::Restart => self.restart(now, &mut out),
            Input::Timer => {}
        }
        if self.phase_deadline().is_some_and(|at| at <= now) {
            self.timer(now, &mut out);
        }
        out
    }

    /// When to call `step` with [`Input::Timer`] if nothing happens before.
    pub fn deadline(&self) -> Option<Instant> {
        let granted = match &self.phase {
            Phase::Probing { lease, .. } => Some(lease),
            _ => self.in_use.as_ref(),
        };
        let expiry = granted.and_then(|lease| lease.expiry.instant());
        [self.phase_deadline(), expiry].into_iter().flatten().min()
    }

    /// Where the client is.
    pub fn state(&self) -> State {
        match &self.phase {
            Phase::Idle | Phase::Pausing { .. } => State::Init,
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

    fn phase_deadline(&self) -> Option<Instant> {
        match &self.phase {
            Phase::Idle | Phase::Released | Phase::Stopped => None,
            Phase::Pausing { until } => Some(*until),
            Phase::Selecting(exchange)
            | Phase::Requesting { exchange, .. }
            | Phase::Confirming(exchange)
            | Phase::Renewing(exchange)
            | Phase::Rebinding(exchange) => Some(exchange.next_at),
            Phase::Probing { asked_at, .. } => Some(*asked_at + PROBE_PATIENCE),
            Phase::Bound => self.in_use.as_ref().and_then(|lease| lease.renew_at),
        }
    }

    fn start(&mut self, now: Instant, out: &mut Vec<Output>) {
        if !matches!(self.phase, Phase::Idle | Phase::Released) {
            return;
        }
        match self.remembered.take() {
            // The address is ours until its time is over, on whatever node; to be asked for at once all the same, because
            // nothing is known of T1.
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
            Phase::Released => {}
            Phase::Probing { lease, .. } => self.probe(now, lease.clone(), out),
            _ if self.in_use.is_some() => self.begin(now, Phase::Confirming, out),
            _ => self.begin(now, Phase::Selecting, out),
        }
    }

    fn link_lost(&mut self) {
        match &self.phase {
            Phase::Idle | Phase::Released => return,
            Phase::Probing { lease, .. } => self.wish = Some(lease.address),
            _ => {}
        }
        self.phase = Phase::Stopped;
    }

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

    fn probe_free(&mut self, address: Ipv6Addr, out: &mut Vec<Output>) {
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
        self.phase = Phase::Pausing { until: now + DECLINE_WAIT };
    }
}

#[cfg(test)]
mod tests;
