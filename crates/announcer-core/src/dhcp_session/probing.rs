//! Finding out whether somebody else uses an address that a server granted: RFC 5227 probes, or duplicate address
//! detection (RFC 4862).

use std::net::IpAddr;
use std::time::Instant;

use l2_types::Mac;

use crate::frames::{self, Heard, PROBE_GAP, PROBES};

/// One address that is being asked for.
pub(super) struct Probing<A> {
    address: A,
    sent: u8,
    next: Instant,
}

impl<A: Copy + Into<IpAddr>> Probing<A> {
    /// Asks nothing yet; the first probe is due at once.
    pub fn new(address: A, now: Instant) -> Self {
        Self { address, sent: 0, next: now }
    }

    /// The address in question.
    pub fn address(&self) -> A {
        self.address
    }

    /// When [`Self::go_on`] has something to do.
    pub fn deadline(&self) -> Instant {
        self.next
    }

    /// The next probe. None: all are sent and the last one has had its time, the address is free.
    pub fn go_on(&mut self, mac: Mac, now: Instant) -> Option<Vec<u8>> {
        if self.sent >= PROBES {
            return None;
        }
        self.sent += 1;
        // From now, not from when it was due: an answer needs its time.
        self.next = now + PROBE_GAP;
        Some(frames::probe(mac, self.address.into()))
    }

    /// Who else has the address, or wants it too (RFC 4862 5.4.3), by this frame. `own` is the MAC that asks.
    ///
    /// Of IPv4 not who wants it, against RFC 5227 2.1.1: our own nodes ask whether an owner that they watch still has
    /// its address, with the same frame, and a DECLINE would change the address of the Service. A host that wants it
    /// hears our answer before its own probes are over.
    pub fn conflict(&self, own: Mac, frame: &[u8]) -> Option<Mac> {
        let (heard, address) = (frames::read(0, frame)?, self.address.into());
        let asks = heard.what == Heard::Probe && address.is_ipv4();
        (heard.address == address && heard.mac != own && !asks).then_some(heard.mac)
    }
}
