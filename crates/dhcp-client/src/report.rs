//! What the client reports to users. The texts go into Events and logs unchanged.

use std::{fmt, net::Ipv4Addr, time::Duration};

use crate::{Mac, State};

/// Why an address may not be used any more.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LostReason {
    /// The server refused the address.
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
    /// Another host uses the address.
    #[error("{mac} uses the same address")]
    Conflict {
        /// MAC of that host.
        mac: Mac,
    },
    /// The server has given another address; `Probe` or `Bound` for it follows.
    #[error("DHCP server {server} gave the address {to} instead")]
    AddressChanged {
        /// The server.
        server: Ipv4Addr,
        /// The new address.
        to: Ipv4Addr,
    },
}

/// Progress and trouble, for logs and Events. A report needs no reaction: the client continues on its own and never
/// gives up.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Report {
    /// No server answers. It is repeated at each retransmission after the first few seconds.
    #[error(
        "no DHCP server answered for {} s ({state}, {transmissions} requests sent, next in {} s)",
        .silent_for.as_secs(), ceil_seconds(*.next_in)
    )]
    NoAnswer {
        /// State of the client.
        state: State,
        /// Time since the first request of this attempt.
        silent_for: Duration,
        /// Requests sent without an answer.
        transmissions: u32,
        /// Time until the next request.
        next_in: Duration,
    },
    /// A server refused an address.
    #[error(
        "DHCP server {server} refused {address} (NAK){}; starting over{}",
        Quoted(.message),
        if .retry_in.is_zero() { String::new() } else { format!(" in {} s", ceil_seconds(*.retry_in)) }
    )]
    Nak {
        /// Option 54, or the sender where it is missing.
        server: Ipv4Addr,
        /// The address that was requested.
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
        /// The server that gave it.
        server: Ipv4Addr,
        /// The address in use.
        address: Ipv4Addr,
        /// MAC of the host that uses it.
        mac: Mac,
        /// Pause before the next DISCOVER.
        retry_in: Duration,
    },
    /// The server gives another address than requested.
    #[error("asked for {wanted}, DHCP server {server} gives {given}")]
    OtherAddress {
        /// The requested address.
        wanted: Ipv4Addr,
        /// The given address.
        given: Ipv4Addr,
        /// The server.
        server: Ipv4Addr,
    },
    /// While a valid lease is being confirmed, a server offers another address; the lease is kept.
    #[error(
        "keeping the leased address {kept}: an offer of {offered} by DHCP server {server} is ignored until the lease \
        ends"
    )]
    OfferIgnored {
        /// The lease that is still valid.
        kept: Ipv4Addr,
        /// The offered address.
        offered: Ipv4Addr,
        /// The server that offered it.
        server: Ipv4Addr,
    },
    /// The ACK has no lease time.
    #[error("DHCP server {server} sent no lease time (option 51): assuming {} s", .assumed.as_secs())]
    NoLeaseTime {
        /// The server.
        server: Ipv4Addr,
        /// The assumed duration.
        assumed: Duration,
    },
    /// A reply to this client that cannot be used.
    #[error("ignored a reply of DHCP server {server}: {why}")]
    UnusableReply {
        /// Option 54, or the sender where it is missing.
        server: Ipv4Addr,
        /// What is wrong with it.
        why: &'static str,
    },
    /// The adapter has not reported the result of a probe.
    #[error("no result of the address probe for {address} after {} s: asking again", .waited.as_secs())]
    ProbeUnanswered {
        /// The address being probed.
        address: Ipv4Addr,
        /// Time since the last request for the probe.
        waited: Duration,
    },
}

/// A server's text, quoted, if there is one.
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
