//! What the machines for DHCPv4 and DHCPv6 have in common: what they are told, what they answer, and in which order a
//! step goes.

use std::time::{Duration, Instant};

use crate::Mac;

/// RFC 2131 3.1.5: after a DECLINE, wait at least this long. RFC 8415 names no time, but an address in use stays in use
/// as long there.
pub(crate) const DECLINE_WAIT: Duration = Duration::from_secs(10);

/// A probe takes 30 ms; an adapter that has not answered after this long has lost the question.
pub(crate) const PROBE_PATIENCE: Duration = Duration::from_secs(2);

/// Something that happened to a client whose addresses are of type `A`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Input<'a, A> {
    /// Begin, or go on after `Release`; with DHCPv4 also after `LinkLost`. Does nothing while running.
    Start,
    /// A whole Ethernet frame that arrived on the interface. Anything may be passed in; what is not a reply to us is
    /// ignored.
    Frame(&'a [u8]),
    /// Nobody else uses the address that [`Output::Probe`] asked about.
    ProbeFree(A),
    /// Somebody else uses the address: result of a probe, or a conflict seen later that cannot be defended (RFC 5227
    /// 2.4).
    ProbeConflict {
        /// The address in question.
        address: A,
        /// Who uses it.
        mac: Mac,
    },
    /// The Service is gone: give the address back. DHCPv4 sends it from the leased address: send the resulting frame
    /// before removing the address from the interface.
    Release,
    /// The interface is down or gone: say nothing more until `Restart`. A lease stays valid and still ends at its time.
    /// RFC 2131 3.7: what happened on the network meanwhile is not known, so the lease is confirmed when the link is
    /// back.
    LinkLost,
    /// The link is back (RFC 2131 3.7), or there is another reason to doubt: confirm the lease (INIT-REBOOT, CONFIRM),
    /// or look for one at once whatever the back-off says.
    Restart,
    /// The deadline has come. Harmless at any other time.
    Timer,
}

/// Something to do, for addresses of type `A` and leases of type `L` that are lost for a reason of type `W`; `R` is
/// what is reported.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output<A, L, W, R> {
    /// Send this Ethernet frame through a packet socket on the interface.
    Send(Vec<u8>),
    /// Find out by probes (RFC 5227, RFC 4862) whether somebody else uses this address, then say `ProbeFree` or
    /// `ProbeConflict`. A repetition while a probe is running can be ignored.
    Probe(A),
    /// The address may be used from now on: put it on the interface, announce it, publish it.
    Bound(L),
    /// Same address, new times: store the facts, extend the address's lifetime.
    Renewed(L),
    /// The address of this lease must not be used any more: remove it at once. The client is already looking for
    /// another.
    Lost {
        /// What was lost.
        lease: L,
        /// Why.
        reason: W,
    },
    /// Tell people.
    Report(R),
}

/// What a machine does about each input, and when it wants to go on. [`step`] and [`deadline`] make one machine of it.
pub(crate) trait Phases {
    type Address;
    type Output;

    /// Ends the lease whose time is over, whatever else is going on.
    fn expire(&mut self, now: Instant, out: &mut Vec<Self::Output>);
    fn start(&mut self, now: Instant, out: &mut Vec<Self::Output>);
    fn frame(&mut self, now: Instant, frame: &[u8], out: &mut Vec<Self::Output>);
    fn probe_free(&mut self, now: Instant, address: Self::Address, out: &mut Vec<Self::Output>);
    fn conflict(&mut self, now: Instant, address: Self::Address, mac: Mac, out: &mut Vec<Self::Output>);
    fn release(&mut self, now: Instant, out: &mut Vec<Self::Output>);
    fn link_lost(&mut self);
    fn restart(&mut self, now: Instant, out: &mut Vec<Self::Output>);
    /// The phase's time has come.
    fn timer(&mut self, now: Instant, out: &mut Vec<Self::Output>);

    /// When the exchange with the servers goes on.
    fn phase_deadline(&self) -> Option<Instant>;
    /// The end of the lease that is in use or being probed; none without a lease, or if it never ends.
    fn lease_end(&self) -> Option<Instant>;
}

/// Feeds one thing that happened, and returns what to do about it, in this order.
pub(crate) fn step<P: Phases>(machine: &mut P, now: Instant, input: Input<'_, P::Address>) -> Vec<P::Output> {
    let mut out = Vec::new();
    // Before anything else, so that not even a reply that arrives together with the end can extend a lease that is
    // over.
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
    // Whatever woke us: what is due is done, so a flood of frames cannot starve a renewal.
    if machine.phase_deadline().is_some_and(|at| at <= now) {
        machine.timer(now, &mut out);
    }
    out
}

/// When to call [`step`] if nothing happens before.
pub(crate) fn deadline(machine: &impl Phases) -> Option<Instant> {
    [machine.phase_deadline(), machine.lease_end()].into_iter().flatten().min()
}
