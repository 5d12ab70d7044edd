//! What the client tells people. The texts go into Events and logs as they are.

use std::{fmt, net::Ipv4Addr, time::Duration};

use crate::{Mac, State};

/// Why an address may not be used any more.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LostReason {
    /// The server took it back.
    #[error("DHCP server {server} refused the address (NAK){}", Quoted(.message))]
    Nak {
        /// Option 54, or the sender where it is missing.
        server: Ipv4Addr,
        /// Option 56.
        message: Option<String>,
    },
    /// The lease ended without an answer from any server.
    #[error("the DHCP lease expired: no server renewed it in time")]
    Expired,
    /// Somebody else uses the address.
    #[error("{mac} uses the same address")]
    Conflict {
        /// Who.
        mac: Mac,
    },
    /// The server moved us to another address; `Probe` or `Bound` for that one follows.
    #[error("DHCP server {server} gave the address {to} instead")]
    AddressChanged {
        /// Who said so.
        server: Ipv4Addr,
        /// The new address.
        to: Ipv4Addr,
    },
}

/// Progress and trouble, for logs and Events. Nothing needs to be done about a report; the client goes on by itself and
/// never gives up.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Report {
    /// Silence, said again at each retransmission after the first few seconds.
    #[error(
        "no DHCP server answered for {} s ({state}, {attempts} requests sent, next in {} s)",
        .silent_for.as_secs(), ceil_seconds(*.next_in)
    )]
    NoAnswer {
        /// What was being tried.
        state: State,
        /// Since the first request of this attempt.
        silent_for: Duration,
        /// Requests sent without an answer.
        attempts: u32,
        /// When the next one is sent.
        next_in: Duration,
    },
    /// A server refused an address.
    #[error(
        "DHCP server {server} refused {address} (NAK){}; starting over in {} s",
        Quoted(.message), ceil_seconds(*.retry_in)
    )]
    Nak {
        /// Option 54, or the sender where it is missing.
        server: Ipv4Addr,
        /// The address we had asked for.
        address: Ipv4Addr,
        /// Option 56.
        message: Option<String>,
        /// Pause before the next DISCOVER.
        retry_in: Duration,
    },
    /// The probe found another user of the address.
    #[error(
        "DHCP server {server} gave {address}, but {mac} already uses it: declined, trying again in {} s",
        ceil_seconds(*.retry_in)
    )]
    Declined {
        /// Who gave it.
        server: Ipv4Addr,
        /// The address in use.
        address: Ipv4Addr,
        /// Who uses it.
        mac: Mac,
        /// Pause before the next DISCOVER.
        retry_in: Duration,
    },
    /// The server does not grant the wish.
    #[error("asked for {wanted}, DHCP server {server} gives {given}")]
    OtherAddress {
        /// What we asked for.
        wanted: Ipv4Addr,
        /// What we get.
        given: Ipv4Addr,
        /// From whom.
        server: Ipv4Addr,
    },
    /// While a valid lease is being confirmed, a server offers another address; the lease is kept.
    #[error(
        "keeping the leased address {kept}: an offer of {offered} by DHCP server {server} is ignored until the lease \
        ends"
    )]
    OfferIgnored {
        /// The lease still valid.
        kept: Ipv4Addr,
        /// What was offered.
        offered: Ipv4Addr,
        /// By whom.
        server: Ipv4Addr,
    },
    /// The ACK has no lease time.
    #[error("DHCP server {server} sent no lease time (option 51): assuming {} s", .assumed.as_secs())]
    NoLeaseTime {
        /// Who forgot it.
        server: Ipv4Addr,
        /// What is assumed.
        assumed: Duration,
    },
    /// A reply to us that cannot be used.
    #[error("ignored a reply of DHCP server {server}: {why}")]
    UnusableReply {
        /// Option 54, or the sender where it is missing.
        server: Ipv4Addr,
        /// What is wrong with it.
        why: &'static str,
    },
    /// The adapter never said how the probe went.
    #[error("no result of the address probe for {address} after {} s: asking again", .waited.as_secs())]
    ProbeUnanswered {
        /// The address being probed.
        address: Ipv4Addr,
        /// Since it was asked for last.
        waited: Duration,
    },
}

/// A server's own words, if it had any.
struct Quoted<'a>(&'a Option<String>);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(message) => write!(f, ": {message:?}"),
            None => Ok(()),
        }
    }
}

fn ceil_seconds(duration: Duration) -> u64 {
    duration.as_secs() + u64::from(duration.subsec_nanos() > 0)
}
