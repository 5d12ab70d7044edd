//! A lease and what is said about it.

use std::net::Ipv6Addr;
use std::time::{Duration, Instant};

use crate::{Expiry, Mac};

/// An address that may be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    /// The leased address.
    pub address: Ipv6Addr,
    /// DUID of the server that granted it.
    pub server: Vec<u8>,
    /// Renew from here on (T1). None: never (infinite).
    pub renew_at: Option<Instant>,
    /// Rebind from here on (T2).
    pub rebind_at: Option<Instant>,
    /// End of use: of the valid lifetime. Counted from when the request was sent.
    pub expiry: Expiry,
}

/// A lease that was granted to the same DUID before, perhaps on another node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RememberedLease {
    /// The leased address.
    pub address: Ipv6Addr,
    /// DUID of the server that granted it.
    pub server: Vec<u8>,
    /// Until when it may be used.
    pub expiry: Expiry,
}

/// The times in an identity association and its address, in seconds.
#[derive(Debug, Clone, Copy)]
pub(super) struct Times {
    pub t1: u32,
    pub t2: u32,
    pub preferred: u32,
    pub valid: u32,
}

const INFINITE: u32 = u32::MAX;

impl Times {
    /// RFC 8415 14.2 and 21.4: zero leaves T1 and T2 to the client, which takes 0.5 and 0.8 of the preferred lifetime
    /// (here of the valid one, where the preferred one is no help); what makes no sense counts as zero.
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
    /// The server took it back, or says that it does not belong here.
    #[error(
        "the DHCPv6 server took the address back{}",
        if .message.is_empty() { String::new() } else { format!(": {:?}", .message) }
    )]
    Refused {
        /// The server's words.
        message: String,
    },
    /// The valid lifetime ended.
    #[error("the DHCPv6 lease expired: no server renewed it in time")]
    Expired,
    /// Somebody else uses the address.
    #[error("{mac} uses the same address")]
    Conflict {
        /// Who.
        mac: Mac,
    },
    /// Another address came instead.
    #[error("the DHCPv6 server gave the address {to} instead")]
    AddressChanged {
        /// Which.
        to: Ipv6Addr,
    },
}

/// Trouble, for logs and Events. The client goes on by itself.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Report {
    /// Silence.
    #[error("no DHCPv6 server answered for {} s ({state}, {attempts} requests sent)", .silent_for.as_secs())]
    NoAnswer {
        /// What was being tried.
        state: super::State,
        /// Since the first request of this attempt.
        silent_for: Duration,
        /// How many.
        attempts: u32,
    },
    /// The server has no address for us.
    #[error(
        "the DHCPv6 server refused{}",
        if .message.is_empty() { String::new() } else { format!(": {:?}", .message) }
    )]
    Refused {
        /// The server's words.
        message: String,
    },
    /// The probe found another user of the address.
    #[error("the DHCPv6 server gave {address}, but {mac} already uses it: declined")]
    Declined {
        /// Which.
        address: Ipv6Addr,
        /// By whom.
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
