//! Probes whether another host uses a granted address: by RFC 5227 probes, or by duplicate address detection (RFC
//! 4862).

use std::net::IpAddr;
use std::time::Instant;

use l2_types::Mac;

use crate::frames::{self, Heard};
use crate::probes::Probes;

/// The probes of one address.
pub(super) struct Probing<A> {
    address: A,
    probes: Probes,
}

impl<A: Copy + Into<IpAddr>> Probing<A> {
    /// Starts without a probe; the first one is due at once.
    pub fn new(address: A, now: Instant) -> Self {
        Self { address, probes: Probes::of_lease(now) }
    }

    /// The probed address.
    pub fn address(&self) -> A {
        self.address
    }

    /// When [`Self::go_on`] has to be called.
    pub fn deadline(&self) -> Instant {
        self.probes.deadline()
    }

    /// The next probe. `None`: all are sent and the last one had its time, so the address is free.
    pub fn go_on(&mut self, mac: Mac, now: Instant) -> Option<Vec<u8>> {
        self.probes.go_on(now).then(|| frames::probe(mac, self.address.into()))
    }

    /// The last probe could not be sent.
    pub fn not_sent(&mut self) {
        self.probes.not_sent();
    }

    /// The MAC of another host that has the address or wants it too (RFC 4862 5.4.3), as this frame shows. `own` is the
    /// MAC that probes.
    ///
    /// IPv4 probes of other hosts are ignored, against RFC 5227 2.1.1. Nodes of this cluster ask with the same frame
    /// whether an owner still has its address, and a DECLINE would change the address of the Service. A host that wants
    /// the address gets our answer before its own probes end.
    pub fn conflict(&self, own: Mac, frame: &[u8]) -> Option<Mac> {
        let (heard, address) = (frames::read(0, frame)?, self.address.into());
        let asks = heard.what == Heard::Probe && address.is_ipv4();
        (heard.address == address && heard.mac != own && !asks).then_some(heard.mac)
    }
}
