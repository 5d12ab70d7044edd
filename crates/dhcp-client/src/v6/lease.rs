//! A lease, and the reports about it.

use std::net::Ipv6Addr;
use std::time::{Duration, Instant};

use crate::lease::Granted;
use crate::{Expiry, Mac, State};

/// An address that may be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    /// The leased address.
    pub address: Ipv6Addr,
    /// DUID of the server that granted it.
    pub server: Vec<u8>,
    /// Start of renewal (T1). `None`: never (infinite lease).
    pub renew_at: Option<Instant>,
    /// Start of rebinding (T2).
    pub rebind_at: Option<Instant>,
    /// End of the valid lifetime, counted from when the request was sent.
    pub expiry: Expiry,
}

impl Granted for Lease {
    type Address = Ipv6Addr;

    fn address(&self) -> Ipv6Addr {
        self.address
    }

    fn expiry(&self) -> Expiry {
        self.expiry
    }

    fn renew_at(&self) -> Option<Instant> {
        self.renew_at
    }

    fn rebind_at(&self) -> Option<Instant> {
        self.rebind_at
    }
}

/// A lease that was granted to the same DUID before, perhaps on another node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RememberedLease {
    /// The leased address.
    pub address: Ipv6Addr,
    /// DUID of the server that granted it.
    pub server: Vec<u8>,
    /// End of use.
    pub expiry: Expiry,
}

/// The times of an identity association and its address, in seconds.
#[derive(Debug, Clone, Copy)]
pub(super) struct Times {
    pub t1: u32,
    pub t2: u32,
    pub preferred: u32,
    pub valid: u32,
}

const INFINITE: u32 = u32::MAX;

impl Times {
    /// The lease with these times (RFC 8415 14.2 and 21.4). Zero leaves T1 and T2 to the client, which takes 0.5 and
    /// 0.8 of the preferred lifetime, or of the valid lifetime if the preferred one is unusable. Invalid values count
    /// as zero.
    pub fn lease(self, address: Ipv6Addr, server: Vec<u8>, asked_at: Instant) -> Lease {
        let seconds = |seconds: u32| Duration::from_secs(u64::from(seconds));
        if self.valid == INFINITE {
            return Lease { address, server, renew_at: None, rebind_at: None, expiry: Expiry::Never };
        }
        let valid = seconds(self.valid);
        let base = if self.preferred == 0 || self.preferred > self.valid { valid } else { seconds(self.preferred) };
        let t2 = Some(seconds(self.t2)).filter(|t2| !t2.is_zero() && *t2 < valid).unwrap_or(base * 4 / 5);
        let t1 = Some(seconds(self.t1)).filter(|t1| !t1.is_zero() && *t1 <= t2).unwrap_or((base / 2).min(t2 * 5 / 8));
        Lease {
            address,
            server,
            renew_at: Some(asked_at + t1),
            rebind_at: Some(asked_at + t2),
            expiry: Expiry::At(asked_at + valid),
        }
    }
}

/// Why an address may not be used any more.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LostReason {
    /// The server took the address back, or says that it is not valid on this link.
    #[error(
        "the DHCPv6 server took the address back{}",
        if .message.is_empty() { String::new() } else { format!(": {:?}", .message) }
    )]
    Refused {
        /// The server's text.
        message: String,
    },
    /// The valid lifetime has ended.
    #[error("the DHCPv6 lease expired: no server renewed it in time")]
    Expired,
    /// Another host uses the address.
    #[error("{mac} uses the same address")]
    Conflict {
        /// MAC of that host.
        mac: Mac,
    },
    /// The server has given another address.
    #[error("the DHCPv6 server gave the address {to} instead")]
    AddressChanged {
        /// The new address.
        to: Ipv6Addr,
    },
}

/// Trouble, for logs and Events. The client continues on its own.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Report {
    /// No server answers.
    #[error("no DHCPv6 server answered for {} s ({state}, {transmissions} requests sent)", .silent_for.as_secs())]
    NoAnswer {
        /// State of the client.
        state: State,
        /// Time since the first request of this attempt.
        silent_for: Duration,
        /// Number of requests.
        transmissions: u32,
    },
    /// The server has no address for this client.
    #[error(
        "the DHCPv6 server refused{}",
        if .message.is_empty() { String::new() } else { format!(": {:?}", .message) }
    )]
    Refused {
        /// The server's text.
        message: String,
    },
    /// A server that did not grant the lease gives another address; the lease is kept.
    #[error("keeping the leased address {kept}: {offered} of another DHCPv6 server is ignored until the lease ends")]
    AddressIgnored {
        /// The lease that is still valid.
        kept: Ipv6Addr,
        /// The ignored address.
        offered: Ipv6Addr,
    },
    /// The probe found another user of the address.
    #[error("the DHCPv6 server gave {address}, but {mac} already uses it: declined")]
    Declined {
        /// The address.
        address: Ipv6Addr,
        /// MAC of the host that uses it.
        mac: Mac,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn t1_and_t2_come_from_the_server_where_they_make_sense() {
        let now = Instant::now();
        for (times, expected) in [
            ((600, 900, 1200, 1800), (600, 900, 1800)),
            ((0, 0, 1200, 1800), (600, 960, 1800)),
            ((0, 0, 0, 1000), (500, 800, 1000)),
            ((900, 600, 1200, 1800), (375, 600, 1800)),
            ((5000, 6000, 1200, 1800), (600, 960, 1800)),
        ] {
            let (t1, t2, preferred, valid) = times;
            let lease = Times { t1, t2, preferred, valid }.lease(Ipv6Addr::LOCALHOST, vec![], now);
            let after = |at: Option<Instant>| at.map(|at| (at - now).as_secs());
            let (t1, t2, valid) = expected;
            assert_eq!(
                (after(lease.renew_at), after(lease.rebind_at), after(lease.expiry.instant())),
                (Some(t1), Some(t2), Some(valid)),
                "{times:?}"
            );
        }
        let endless = Times { t1: 1, t2: 2, preferred: INFINITE, valid: INFINITE };
        assert_eq!(endless.lease(Ipv6Addr::LOCALHOST, vec![], now).expiry, Expiry::Never);
    }
}
