//! The DHCPv4 client: what each input does. [`machine`] has its phases and what is common with DHCPv6.
//! `client/requests.rs` sends and repeats requests, `client/replies.rs` handles the servers' replies.

mod replies;
mod requests;

use std::{net::Ipv4Addr, time::Instant};

use rand::{SeedableRng, rngs::SmallRng};

use self::requests::Transaction;
use crate::{
    Config, ConfigError, Lease, LostReason, Mac, RememberedLease, Report, State,
    machine::{self, DhcpVersion, Outputs, Phase},
    message,
};

/// An input of the client.
pub type Input<'a> = machine::Input<'a, Ipv4Addr>;
/// An output of the client.
pub type Output = machine::Output<Ipv4Addr, Lease, LostReason, Report>;
/// A DHCPv4 client for one address on one interface.
pub type Client = machine::Client<V4>;

type Exchange = machine::Exchange<Transaction>;

/// What a request is sent for.
#[derive(Debug, Clone)]
pub enum Goal {
    Selecting,
    Requesting {
        offer: Offer,
    },
    Rebooting {
        address: Ipv4Addr,
        /// A NAK of a server that did not grant the lease. It is applied unless the granting server answers before the
        /// next transmission.
        foreign_nak: Option<Nak>,
    },
    Renewing,
    Rebinding {
        /// As in `Rebooting`.
        foreign_nak: Option<Nak>,
    },
}

impl From<Goal> for State {
    fn from(goal: Goal) -> Self {
        match goal {
            Goal::Selecting => Self::Selecting,
            Goal::Requesting { .. } => Self::Requesting,
            Goal::Rebooting { .. } => Self::Rebooting,
            Goal::Renewing => Self::Renewing,
            Goal::Rebinding { .. } => Self::Rebinding,
        }
    }
}

#[derive(Debug, Clone, Copy)]
pub struct Offer {
    address: Ipv4Addr,
    server_id: Ipv4Addr,
    server_mac: Mac,
}

#[derive(Debug, Clone)]
pub struct Nak {
    server: Ipv4Addr,
    message: Option<String>,
}

/// What only a DHCPv4 client keeps.
#[derive(Debug, Clone)]
pub struct V4 {
    /// Since when the client has been looking for an address, for the `secs` field.
    looking_since: Instant,
}

impl Client {
    /// Makes a client that waits for [`Input::Start`]. `seed` determines transaction IDs and jitter: random in
    /// production, fixed in tests.
    pub fn new(config: Config, now: Instant, seed: u64) -> Result<Self, ConfigError> {
        config.validate()?;
        Ok(Self {
            version: V4 { looking_since: now },
            rng: SmallRng::seed_from_u64(seed),
            phase: Phase::Idle,
            in_use: None,
            remembered: config.remembered.clone(),
            wish: config.requested_ip,
            refusals: 0,
            config,
        })
    }
}

impl DhcpVersion for V4 {
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

    fn idle(client: &Client) -> State {
        if client.remembered.is_some() { State::InitReboot } else { State::Init }
    }

    fn is_own(client: &Client, mac: Mac) -> bool {
        mac == client.config.mac
    }

    fn start(client: &mut Client, now: Instant, out: &mut Outputs<Self>) {
        if !matches!(client.phase, Phase::Idle | Phase::Released | Phase::Stopped) {
            return;
        }
        if client.in_use.is_none()
            && let Some(lease) = client.remembered.as_ref().and_then(|lease| Lease::resume(lease, now))
        {
            // A lease that has not ended may be used while it is being confirmed (RFC 2131 3.2). So a take-over does
            // not wait for a DHCP server.
            client.remembered = None;
            client.in_use = Some(lease.clone());
            out.push(Output::Bound(lease));
        }
        match (&client.in_use, &client.remembered) {
            (Some(lease), _) => client.reboot(now, lease.address, out),
            // A server that has forgotten an ended lease does not answer INIT-REBOOT, but it may offer the same address
            // again.
            (None, Some(old)) if old.is_past(now) => {
                client.wish = Some(old.address);
                Self::look_again(client, now, out);
            }
            (None, Some(old)) => client.reboot(now, old.address, out),
            (None, None) => Self::look_again(client, now, out),
        }
    }

    fn frame(client: &mut Client, now: Instant, frame: &[u8], out: &mut Outputs<Self>) {
        if let Some(reply) = message::parse(frame, client.config.mac) {
            client.reply(now, reply, out);
        }
    }

    fn unprobed(client: &mut Client, lease: Lease) {
        // The address is granted but not in use yet. It is requested again later, and probed then.
        client.remembered = Some(RememberedLease { expiry: None, ..lease.remember() });
    }

    fn restart(client: &mut Client, now: Instant, out: &mut Outputs<Self>) {
        match &client.phase {
            Phase::Idle | Phase::Stopped => Self::start(client, now, out),
            // The wait of ten seconds after a DECLINE, and the end, stay in force.
            Phase::Released | Phase::Declined { .. } => {}
            Phase::Probing { lease, .. } => client.probe(now, lease.clone(), out),
            Phase::Asking { goal: Goal::Rebooting { address, .. }, .. } => client.reboot(now, *address, out),
            Phase::Pausing { .. } | Phase::Asking { .. } | Phase::Bound => match &client.in_use {
                Some(lease) => client.reboot(now, lease.address, out),
                None => client.discover(now, out),
            },
        }
    }

    fn go_on(client: &mut Client, now: Instant, out: &mut Outputs<Self>) {
        client.go_on(now, out);
    }

    fn look_again(client: &mut Client, now: Instant, out: &mut Outputs<Self>) {
        client.version.looking_since = now;
        client.discover(now, out);
    }

    fn decline(client: &mut Client, now: Instant, lease: &Lease, mac: Mac, out: &mut Outputs<Self>) {
        client.decline(now, lease, mac, out);
    }

    fn give_back(client: &mut Client, now: Instant, out: &mut Outputs<Self>) {
        client.give_back(now, out);
    }
}
