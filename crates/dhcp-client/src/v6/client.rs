//! The DHCPv6 client: what each input does. [`machine`] has its phases and what is common with DHCPv4.

mod replies;
mod requests;

use std::net::Ipv6Addr;
use std::time::{Duration, Instant};

use dhcproto::v6::MessageType;
use rand::{SeedableRng, rngs::SmallRng};

use self::requests::Transaction;
use super::message;
use super::{Lease, LostReason, RememberedLease, Report, frame};
use crate::machine::{self, DhcpVersion, Outputs, Phase};
use crate::{Mac, State};

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
/// A DHCPv6 client for one address.
pub type Client = machine::Client<V6>;

type Exchange = machine::Exchange<Transaction>;

/// Longest pause after repeated refusals.
const LONGEST_PAUSE: Duration = Duration::from_secs(64);
/// SOL_MAX_RT until a server sends another. RFC 8415 uses an hour, for hosts without any DHCPv6 server. Here a Service
/// has asked for an address and waits for it.
const LONGEST_WAIT: Duration = Duration::from_secs(64);
/// The only association of a DUID, because each Service has its own DUID.
const IAID: u32 = 1;

/// What a request is sent for.
#[derive(Debug, Clone)]
pub enum Goal {
    Selecting,
    Requesting {
        server: Vec<u8>,
        address: Ipv6Addr,
    },
    Confirming {
        /// Of a server that did not grant the lease. It is applied unless the lease is confirmed before.
        foreign_refusal: Option<Refusal>,
    },
    Renewing,
    Rebinding {
        /// As in `Confirming`; an extension of the lease ends it, too.
        foreign_refusal: Option<Refusal>,
    },
}

/// A server says that the address is not valid, or takes it back.
#[derive(Debug, Clone)]
pub struct Refusal {
    message: String,
    /// Since when it counts.
    at: Instant,
}

impl From<Goal> for State {
    fn from(goal: Goal) -> Self {
        match goal {
            Goal::Selecting => Self::Selecting,
            Goal::Requesting { .. } => Self::Requesting,
            Goal::Confirming { .. } => Self::Confirming,
            Goal::Renewing => Self::Renewing,
            Goal::Rebinding { .. } => Self::Rebinding,
        }
    }
}

/// What only a DHCPv6 client keeps.
#[derive(Debug, Clone)]
pub struct V6 {
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
            version: V6 { longest_wait: LONGEST_WAIT },
            rng: SmallRng::seed_from_u64(seed),
            phase: Phase::Idle,
            in_use: None,
            remembered: config.remembered.clone(),
            wish: config.requested,
            refusals: 0,
            config,
        })
    }
}

impl DhcpVersion for V6 {
    type Lease = Lease;
    type Remembered = RememberedLease;
    type Config = Config;
    type Transaction = Transaction;
    type Goal = Goal;
    type LostReason = LostReason;
    type Report = Report;

    const EXPIRED: LostReason = LostReason::Expired;

    fn conflict(mac: Mac) -> LostReason {
        LostReason::Conflict { mac }
    }

    fn idle(_: &Client) -> State {
        State::Init
    }

    fn is_own(_: &Client, _: Mac) -> bool {
        false
    }

    fn start(client: &mut Client, now: Instant, out: &mut Outputs<Self>) {
        if !matches!(client.phase, Phase::Idle | Phase::Released) {
            return;
        }
        match client.remembered.take() {
            // The address is ours until the lease ends, on any node. It is confirmed at once all the same, because T1
            // is unknown.
            Some(old) if !old.expiry.is_past(now) => {
                let RememberedLease { address, server, expiry } = old;
                let lease = Lease { address, server, renew_at: None, rebind_at: None, expiry };
                client.in_use = Some(lease.clone());
                out.push(Output::Bound(lease));
                client.begin(now, Goal::Rebinding { foreign_refusal: None }, out);
            }
            old => {
                client.wish = old.map(|old| old.address).or(client.wish);
                client.begin(now, Goal::Selecting, out);
            }
        }
    }

    fn frame(client: &mut Client, now: Instant, frame: &[u8], out: &mut Outputs<Self>) {
        let reply = frame::parse(frame).and_then(|bytes| message::parse(bytes, &client.config.duid, IAID));
        if let Some(reply) = reply {
            client.reply(now, reply, out);
        }
    }

    fn unprobed(client: &mut Client, lease: Lease) {
        client.wish = Some(lease.address);
    }

    fn restart(client: &mut Client, now: Instant, out: &mut Outputs<Self>) {
        match &client.phase {
            Phase::Idle => Self::start(client, now, out),
            // The wait of ten seconds after a DECLINE, and the end, stay in force.
            Phase::Released | Phase::Declined { .. } => {}
            Phase::Probing { lease, .. } => client.probe(now, lease.clone(), out),
            _ if client.in_use.is_some() => client.begin(now, Goal::Confirming { foreign_refusal: None }, out),
            _ => client.begin(now, Goal::Selecting, out),
        }
    }

    fn go_on(client: &mut Client, now: Instant, out: &mut Outputs<Self>) {
        client.go_on(now, out);
    }

    fn look_again(client: &mut Client, now: Instant, out: &mut Outputs<Self>) {
        client.begin(now, Goal::Selecting, out);
    }

    fn decline(client: &mut Client, _: Instant, lease: &Lease, mac: Mac, out: &mut Outputs<Self>) {
        client.say(MessageType::Decline, &lease.server, lease.address, out);
        out.push(Output::Report(Report::Declined { address: lease.address, mac }));
    }

    fn give_back(client: &mut Client, now: Instant, out: &mut Outputs<Self>) {
        let held = match (&client.phase, &client.in_use, client.remembered.take()) {
            (Phase::Probing { lease, .. }, ..) | (_, Some(lease), _) => Some((lease.server.clone(), lease.address)),
            (Phase::Asking { goal: Goal::Requesting { server, address }, .. }, None, _) => {
                Some((server.clone(), *address))
            }
            (_, None, old) => old.filter(|old| !old.expiry.is_past(now)).map(|old| (old.server, old.address)),
        };
        if let Some((server, address)) = held {
            client.say(MessageType::Release, &server, address, out);
        }
    }
}

#[cfg(test)]
mod tests;
