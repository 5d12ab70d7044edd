//! The common part of the clients for DHCPv4 and DHCPv6: their inputs, their outputs, their phases, and what happens to
//! a lease that is probed, used, lost or released. A [`DhcpVersion`] says which messages are exchanged with the
//! servers.
//!
//! Two facts are kept apart. `in_use` is the lease whose address is on an interface, because the client has reported it
//! as bound. Only `lose`, `release` and a new grant end it, and every step checks its end first, so that no path can
//! use an address too long. `phase` is the exchange with servers that goes on meanwhile. So after a take-over or a link
//! loss the client can ask again while the address stays in use.

use std::fmt::{Debug, Display};
use std::time::{Duration, Instant};

use rand::rngs::SmallRng;

use crate::{Mac, State, lease::Granted};

/// Minimum wait after a DECLINE (RFC 2131 3.1.5). RFC 8415 names no time, but a conflict lasts as long there.
pub(crate) const DECLINE_WAIT: Duration = Duration::from_secs(10);

/// Limit for the result of a probe. A probe takes 30 ms, so an adapter that has not answered by then has lost the
/// request.
pub(crate) const PROBE_PATIENCE: Duration = Duration::from_secs(2);

/// How long the granting server may take to answer before the refusal of another server counts. A server on the LAN
/// answers at once, or after a ping of one second to check the address.
pub(crate) const REFUSAL_PATIENCE: Duration = Duration::from_secs(2);

/// An input of a client whose addresses are of type `A`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Input<'a, A> {
    /// Start, or continue after `Release`; with DHCPv4 also after `LinkLost`. It has no effect while the client runs.
    Start,
    /// A whole Ethernet frame that was received on the interface. Frames that are no reply to this client are ignored.
    Frame(&'a [u8]),
    /// No other host uses the address of [`Output::Probe`].
    ProbeFree(A),
    /// Another host uses the address: the result of a probe, or a later conflict that cannot be defended (RFC 5227
    /// 2.4).
    ProbeConflict {
        /// The address in question.
        address: A,
        /// MAC of that host.
        mac: Mac,
    },
    /// Release the lease, because the Service is gone. A DHCPv4 RELEASE is sent from the leased address, so the
    /// resulting frame must be sent before the address is removed from the interface.
    Release,
    /// The interface is down or gone: the client sends nothing until `Restart`. The lease stays valid and ends at its
    /// time. The network may change meanwhile, so the lease is confirmed when the link is back (RFC 2131 3.7).
    LinkLost,
    /// The link is back (RFC 2131 3.7), or there is another reason for doubt: confirm the lease (INIT-REBOOT, CONFIRM),
    /// or look for one at once, regardless of the back-off.
    Restart,
    /// The deadline has come. The input is harmless at any other time.
    Timer,
}

/// An output, for addresses of type `A` and leases of type `L` that are lost for a `Reason`. `R` is the type of
/// reports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output<A, L, Reason, R> {
    /// Send this Ethernet frame through a packet socket on the interface.
    Send(Vec<u8>),
    /// Probe whether another host uses this address (RFC 5227, RFC 4862), then answer with `ProbeFree` or
    /// `ProbeConflict`. A repetition while a probe runs can be ignored.
    Probe(A),
    /// The address may be used from now on: set it on the interface, announce it, publish it.
    Bound(L),
    /// The same address with new times: record the facts, and extend the lifetime of the address.
    Renewed(L),
    /// The address of this lease must not be used any more: remove it at once. The client already looks for another
    /// one.
    Lost {
        /// The lost lease.
        lease: L,
        /// The reason.
        reason: Reason,
    },
    /// Report this to users.
    Report(R),
}

/// One attempt to get an answer, with all its transmissions.
#[derive(Debug, Clone, Copy)]
pub struct Exchange<T> {
    /// First transmission. The times of a lease count from here where the reply does not show which transmission it
    /// answers, so the client always stops before the server considers the lease ended.
    pub started: Instant,
    /// Number of transmissions.
    pub transmissions: u32,
    /// The next transmission.
    pub next_at: Instant,
    /// What the messages of this version carry.
    pub transaction: T,
}

/// The state of the exchange with the servers.
#[derive(Debug, Clone)]
pub(crate) enum Phase<V: DhcpVersion> {
    /// Not started.
    Idle,
    /// Nothing is sent before `until`.
    Pausing {
        until: Instant,
    },
    /// A request is repeated until it is answered.
    Asking {
        exchange: Exchange<V::Transaction>,
        goal: V::Goal,
    },
    /// `lease` is granted, but it is not in use before the probe has found it free.
    Probing {
        lease: V::Lease,
        asked_at: Instant,
    },
    Bound,
    /// An address was declined because another host uses it; nothing is sent before `until`.
    Declined {
        until: Instant,
    },
    Released,
    Stopped,
}

/// What a client does differently in each version of DHCP.
pub trait DhcpVersion: Debug + Clone + Send + 'static {
    /// A granted lease.
    type Lease: Granted;
    /// A lease of a former client, perhaps on another node.
    type Remembered: Debug + Send;
    /// The configuration.
    type Config: Debug + Send;
    /// What its messages carry in one attempt.
    type Transaction: Debug + Copy + Send;
    /// What a request is sent for.
    type Goal: Debug + Clone + Into<State> + Send;
    /// Why an address may not be used any more.
    type LostReason: Display;
    /// Progress and trouble, for users.
    type Report: Display;

    /// The reason of a lease that has ended.
    const EXPIRED: Self::LostReason;

    /// The reason of a lease whose address this host uses, too.
    fn conflict(mac: Mac) -> Self::LostReason;

    /// The state of a client before its start.
    fn idle(client: &Client<Self>) -> State;
    /// Whether a host with this MAC is the same client to the server.
    fn is_own(client: &Client<Self>, mac: Mac) -> bool;
    /// Starts the client.
    fn start(client: &mut Client<Self>, now: Instant, out: &mut Outputs<Self>);
    /// Handles a received frame.
    fn frame(client: &mut Client<Self>, now: Instant, frame: &[u8], out: &mut Outputs<Self>);
    /// The link was lost before this granted lease was probed.
    fn unprobed(client: &mut Client<Self>, lease: Self::Lease);
    /// Confirms the lease, or looks for one at once.
    fn restart(client: &mut Client<Self>, now: Instant, out: &mut Outputs<Self>);
    /// Handles the deadline of the phase.
    fn go_on(client: &mut Client<Self>, now: Instant, out: &mut Outputs<Self>);
    /// Starts a new search after an address was lost or refused.
    fn look_again(client: &mut Client<Self>, now: Instant, out: &mut Outputs<Self>);
    /// Tells the server that another host uses the address.
    fn decline(client: &mut Client<Self>, now: Instant, lease: &Self::Lease, mac: Mac, out: &mut Outputs<Self>);
    /// Tells a server to release what it holds for this client, also what it may have reserved a moment ago: the client
    /// will not ask for it again.
    fn give_back(client: &mut Client<Self>, now: Instant, out: &mut Outputs<Self>);
}

/// An address of a version.
pub type Address<V> = <<V as DhcpVersion>::Lease as Granted>::Address;

/// The outputs of a step, in their order.
pub type Outputs<V> =
    Vec<Output<Address<V>, <V as DhcpVersion>::Lease, <V as DhcpVersion>::LostReason, <V as DhcpVersion>::Report>>;

/// A client for one address on one interface.
///
/// The readings of the clock must come from a clock that never goes back. On a machine that can be suspended they must
/// come from the boot-time clock, because the server's clock runs on during a suspension.
#[derive(Debug)]
pub struct Client<V: DhcpVersion> {
    pub(crate) version: V,
    pub(crate) config: V::Config,
    pub(crate) rng: SmallRng,
    pub(crate) phase: Phase<V>,
    pub(crate) in_use: Option<V::Lease>,
    /// The lease to continue at the next start; kept until something newer is known.
    pub(crate) remembered: Option<V::Remembered>,
    /// The address that the next search asks for.
    pub(crate) wish: Option<Address<V>>,
    /// Refusals since the client was last bound.
    pub(crate) refusals: u32,
}

impl<V: DhcpVersion> Client<V> {
    /// Takes in an input, and returns the outputs in their order. It never blocks and never reads a clock.
    pub fn step(&mut self, now: Instant, input: Input<'_, Address<V>>) -> Outputs<V> {
        let mut out = Vec::new();
        // This comes first, so that a reply that arrives together with the end cannot extend an ended lease.
        self.expire(now, &mut out);
        match input {
            Input::Start => V::start(self, now, &mut out),
            Input::Frame(frame) => V::frame(self, now, frame, &mut out),
            Input::ProbeFree(address) => self.probe_free(now, address, &mut out),
            Input::ProbeConflict { address, mac } => self.conflict(now, address, mac, &mut out),
            Input::Release => self.release(now, &mut out),
            Input::LinkLost => self.link_lost(),
            Input::Restart => V::restart(self, now, &mut out),
            Input::Timer => {}
        }
        // What is due is done after any input, so that a flood of frames cannot delay a renewal.
        if self.phase_deadline().is_some_and(|at| at <= now) {
            V::go_on(self, now, &mut out);
        }
        out
    }

    /// When to call `step` with [`Input::Timer`] if no input comes before. `None` only before the start, after the end
    /// (`Released`), while the link is lost without a lease, and with an infinite lease.
    pub fn deadline(&self) -> Option<Instant> {
        let granted = match &self.phase {
            Phase::Probing { lease, .. } => Some(lease),
            _ => self.in_use.as_ref(),
        };
        let lease_end = granted.and_then(|lease| lease.expiry().instant());
        [self.phase_deadline(), lease_end].into_iter().flatten().min()
    }

    /// When the exchange with the servers continues.
    fn phase_deadline(&self) -> Option<Instant> {
        match &self.phase {
            Phase::Idle | Phase::Released | Phase::Stopped => None,
            Phase::Pausing { until } | Phase::Declined { until } => Some(*until),
            Phase::Asking { exchange, .. } => Some(exchange.next_at),
            Phase::Probing { asked_at, .. } => Some(*asked_at + PROBE_PATIENCE),
            Phase::Bound => self.in_use.as_ref().and_then(Granted::renew_at),
        }
    }

    /// The current state of the client.
    pub fn state(&self) -> State {
        match &self.phase {
            Phase::Idle => V::idle(self),
            Phase::Pausing { .. } => State::Init,
            Phase::Asking { goal, .. } => goal.clone().into(),
            Phase::Probing { .. } => State::Probing,
            Phase::Bound => State::Bound,
            Phase::Declined { .. } => State::Declined,
            Phase::Released => State::Released,
            Phase::Stopped => State::Stopped,
        }
    }

    /// The lease whose address may be used now. It may exist in any state but `Released`, also while it is being
    /// confirmed.
    pub fn lease(&self) -> Option<&V::Lease> {
        self.in_use.as_ref()
    }

    /// Ends the lease if its time is over, in any phase.
    fn expire(&mut self, now: Instant, out: &mut Outputs<V>) {
        if self.in_use.as_ref().is_some_and(|lease| lease.expiry().is_past(now)) {
            self.lose(V::EXPIRED, out);
            // In these states the client already looks for an address or must not send; the others existed only for the
            // lease.
            if !matches!(self.state(), State::Selecting | State::Requesting | State::Stopped) {
                V::look_again(self, now, out);
            }
        }
        if let Phase::Probing { lease, .. } = &self.phase
            && lease.expiry().is_past(now)
        {
            self.wish = Some(lease.address());
            V::look_again(self, now, out);
        }
    }

    fn link_lost(&mut self) {
        match &self.phase {
            Phase::Idle | Phase::Released | Phase::Declined { .. } => return,
            Phase::Probing { lease, .. } => {
                let lease = lease.clone();
                V::unprobed(self, lease);
            }
            _ => {}
        }
        self.phase = Phase::Stopped;
    }

    fn probe_free(&mut self, now: Instant, address: Address<V>, out: &mut Outputs<V>) {
        if let Phase::Probing { lease, .. } = &self.phase
            && lease.address() == address
        {
            let lease = lease.clone();
            debug_assert!(!lease.expiry().is_past(now), "`expire` runs first in every step");
            self.use_lease(lease.clone());
            out.push(Output::Bound(lease));
        }
    }

    fn conflict(&mut self, now: Instant, address: Address<V>, mac: Mac, out: &mut Outputs<V>) {
        if V::is_own(self, mac) {
            // The previous owner of the lease uses the same MAC, so it is the same lease. Which node serves it is not
            // decided here.
            return self.probe_free(now, address, out);
        }
        let lease = match (&self.phase, &self.in_use) {
            (Phase::Probing { lease, .. }, _) | (_, Some(lease)) if lease.address() == address => lease.clone(),
            _ => return,
        };
        self.lose(V::conflict(mac), out);
        // A new request for this address would only meet the same conflict.
        self.wish = None;
        self.remembered = None;
        if matches!(self.phase, Phase::Stopped) {
            return;
        }
        V::decline(self, now, &lease, mac, out);
        self.phase = Phase::Declined { until: now + DECLINE_WAIT };
    }

    fn release(&mut self, now: Instant, out: &mut Outputs<V>) {
        if !matches!(self.phase, Phase::Released) {
            V::give_back(self, now, out);
        }
        self.remembered = None;
        self.in_use = None;
        self.phase = Phase::Released;
    }

    /// Stops the use of the address. The caller decides what comes next.
    pub(crate) fn lose(&mut self, reason: V::LostReason, out: &mut Outputs<V>) {
        if let Some(lease) = self.in_use.take() {
            // Clients know this address, so it is requested first, whatever the reason.
            self.wish = Some(lease.address());
            out.push(Output::Lost { lease, reason });
        }
    }

    pub(crate) fn use_lease(&mut self, lease: V::Lease) {
        self.refusals = 0;
        self.remembered = None;
        self.in_use = Some(lease);
        self.phase = Phase::Bound;
    }

    pub(crate) fn probe(&mut self, now: Instant, lease: V::Lease, out: &mut Outputs<V>) {
        out.push(Output::Probe(lease.address()));
        self.phase = Phase::Probing { lease, asked_at: now };
    }

    pub(crate) fn is_rebind_due(&self, now: Instant) -> bool {
        self.in_use.as_ref().and_then(Granted::rebind_at).is_some_and(|at| at <= now)
    }

    /// Sets when the open request is repeated. `exchange`: as it was sent.
    pub(crate) fn sent(&mut self, now: Instant, wait: Duration, exchange: Exchange<V::Transaction>) {
        if let Phase::Asking { exchange: open, .. } = &mut self.phase {
            let transmissions = exchange.transmissions.saturating_add(1);
            *open = Exchange { transmissions, next_at: now + wait, ..exchange };
        }
    }
}
