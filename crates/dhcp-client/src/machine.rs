//! The common part of the machines for DHCPv4 and DHCPv6: their inputs, their outputs, and the order of a step.

use std::time::{Duration, Instant};

use crate::Mac;

/// Minimum wait after a DECLINE (RFC 2131 3.1.5). RFC 8415 names no time, but a conflict lasts as long there.
pub(crate) const DECLINE_WAIT: Duration = Duration::from_secs(10);

/// Limit for the result of a probe. A probe takes 30 ms, so an adapter that has not answered by then has lost the
/// request.
pub(crate) const PROBE_PATIENCE: Duration = Duration::from_secs(2);

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

/// An output, for addresses of type `A` and leases of type `L` that are lost for a reason of type `W`; `R` is the type
/// of reports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output<A, L, W, R> {
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
        reason: W,
    },
    /// Report this to users.
    Report(R),
}

/// The reactions of a machine to each input, and its deadlines. [`step`] and [`deadline`] combine them.
pub(crate) trait Phases {
    type Address;
    type Output;

    /// Ends the lease if its time is over, in any phase.
    fn expire(&mut self, now: Instant, out: &mut Vec<Self::Output>);
    fn start(&mut self, now: Instant, out: &mut Vec<Self::Output>);
    fn frame(&mut self, now: Instant, frame: &[u8], out: &mut Vec<Self::Output>);
    fn probe_free(&mut self, now: Instant, address: Self::Address, out: &mut Vec<Self::Output>);
    fn conflict(&mut self, now: Instant, address: Self::Address, mac: Mac, out: &mut Vec<Self::Output>);
    fn release(&mut self, now: Instant, out: &mut Vec<Self::Output>);
    fn link_lost(&mut self);
    fn restart(&mut self, now: Instant, out: &mut Vec<Self::Output>);
    /// Handles the deadline of the phase.
    fn timer(&mut self, now: Instant, out: &mut Vec<Self::Output>);

    /// When the exchange with the servers continues.
    fn phase_deadline(&self) -> Option<Instant>;
    /// End of the lease that is in use or being probed; `None` without a lease, or if it does not end.
    fn lease_end(&self) -> Option<Instant>;
}

/// Takes in an input, and returns the outputs in their order.
pub(crate) fn step<P: Phases>(machine: &mut P, now: Instant, input: Input<'_, P::Address>) -> Vec<P::Output> {
    let mut out = Vec::new();
    // This comes first, so that a reply that arrives together with the end cannot extend an ended lease.
    machine.expire(now, &mut out);
    match input {
        Input::Start => machine.start(now, &mut out),
        Input::Frame(frame) => machine.frame(now, frame, &mut out),
        Input::ProbeFree(address) => machine.probe_free(now, address, &mut out),
        Input::ProbeConflict { address, mac } => machine.conflict(now, address, mac, &mut out),
        Input::Release => machine.release(now, &mut out),
        Input::LinkLost => machine.link_lost(),
        Input::Restart => machine.restart(now, &mut out),
        Input::Timer => {}
    }
    // What is due is done after any input, so that a flood of frames cannot delay a renewal.
    if machine.phase_deadline().is_some_and(|at| at <= now) {
        machine.timer(now, &mut out);
    }
    out
}

/// When to call [`step`] if nothing happens before.
pub(crate) fn deadline(machine: &impl Phases) -> Option<Instant> {
    [machine.phase_deadline(), machine.lease_end()].into_iter().flatten().min()
}
