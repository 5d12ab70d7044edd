//! A lease and the rules for its times.

use std::{
    fmt::{Debug, Display},
    net::{IpAddr, Ipv4Addr},
    time::{Duration, Instant},
};

use ipnet::Ipv4Net;

use crate::Mac;

/// The end of a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expiry {
    /// The address may be used up to this moment, by the clock whose readings the client gets.
    At(Instant),
    /// The lease does not end.
    Never,
}

impl Expiry {
    /// The moment of the end, if there is one.
    pub fn instant(self) -> Option<Instant> {
        match self {
            Self::At(at) => Some(at),
            Self::Never => None,
        }
    }

    /// Whether the address may not be used any more.
    pub fn is_past(self, now: Instant) -> bool {
        self.instant().is_some_and(|at| at <= now)
    }
}

/// A granted lease.
pub trait Granted: Clone + Debug + Send {
    /// An address of its family.
    type Address: Copy + Eq + Debug + Display + Into<IpAddr> + Send + Sync + 'static;

    /// The leased address.
    fn address(&self) -> Self::Address;
    /// End of use.
    fn expiry(&self) -> Expiry;
    /// Start of renewal.
    fn renew_at(&self) -> Option<Instant>;
    /// Start of rebinding.
    fn rebind_at(&self) -> Option<Instant>;
}

/// A lease that this Service had before, perhaps on another node with the same MAC, as the announcer recorded it on the
/// Service. The client continues it by INIT-REBOOT.
///
/// With `server_id` and an `expiry` in the future, the address is still ours by RFC 2131 3.2. [`Client`](crate::Client)
/// then reports `Bound` at once and confirms the lease meanwhile. Otherwise it waits for the server and probes first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RememberedLease {
    /// The leased address.
    pub address: Ipv4Addr,
    /// Option 54 of the server that granted it.
    pub server_id: Option<Ipv4Addr>,
    /// MAC from which that server (or its relay) answered.
    pub server_mac: Option<Mac>,
    /// End of use.
    pub expiry: Option<Expiry>,
    /// Address and netmask, if the server sent a netmask.
    pub network: Option<Ipv4Net>,
}

impl RememberedLease {
    /// Whether the lease is known to have ended.
    pub(crate) fn is_past(&self, now: Instant) -> bool {
        self.expiry.is_some_and(|expiry| expiry.is_past(now))
    }
}

/// A lease whose address may be used, with all facts that the next owner needs to continue it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    /// The leased address.
    pub address: Ipv4Addr,
    /// The address with the netmask of option 1, if the server sent one.
    pub network: Option<Ipv4Net>,
    /// Option 3. The announcer needs no route; it is kept for users who look for a mistake.
    pub routers: Vec<Ipv4Addr>,
    /// Option 54: the server that granted the lease.
    pub server_id: Ipv4Addr,
    /// MAC from which the ACK came: that of the server or its relay. Renewals go there. `None` if the remembered lease
    /// has none.
    pub server_mac: Option<Mac>,
    /// When the granted request was sent. All times count from here (RFC 2131 4.4.1), so the client always stops before
    /// the server considers the lease ended.
    pub since: Instant,
    /// Start of renewal (T1). `None`: never (infinite lease), or not known (a remembered lease that is being
    /// confirmed).
    pub renew_at: Option<Instant>,
    /// Start of rebinding (T2).
    pub rebind_at: Option<Instant>,
    /// End of use.
    pub expiry: Expiry,
}

impl Granted for Lease {
    type Address = Ipv4Addr;

    fn address(&self) -> Ipv4Addr {
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

impl Lease {
    /// How long the address may still be used; `None`: without end.
    pub fn remaining(&self, now: Instant) -> Option<Duration> {
        self.expiry.instant().map(|at| at.saturating_duration_since(now))
    }

    /// The facts to record for the next owner.
    pub fn remember(&self) -> RememberedLease {
        RememberedLease {
            address: self.address,
            server_id: Some(self.server_id),
            server_mac: self.server_mac,
            expiry: Some(self.expiry),
            network: self.network,
        }
    }

    /// The remembered lease, if it is still valid and enough is known about it. `server_id` is required, because the
    /// address could not be released without it.
    pub(crate) fn resume(remembered: &RememberedLease, now: Instant) -> Option<Self> {
        let expiry = remembered.expiry.filter(|_| !remembered.is_past(now))?;
        Some(Self {
            address: remembered.address,
            network: remembered.network,
            routers: Vec::new(),
            server_id: remembered.server_id?,
            server_mac: remembered.server_mac,
            since: now,
            renew_at: None,
            rebind_at: None,
            expiry,
        })
    }
}

/// The times of a lease, counted from the moment the request was sent. `None` is an infinite lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Times {
    pub renew: Duration,
    pub rebind: Duration,
    pub length: Duration,
}

/// Assumed duration if a server omits the mandatory option 51, as in kube-vip (kube-vip spec 6.4).
pub(crate) const ASSUMED_LEASE: Duration = Duration::from_hours(1);

/// Option 51 of a lease without end.
pub(crate) const INFINITE_SECONDS: u32 = u32::MAX;

/// The times of a lease (RFC 2131 4.4.5). T1 and T2 come from options 58 and 59 if they are valid (0 < T1 < T2 <
/// lease), otherwise they are 0.5 and 0.875 of the lease. Each is replaced on its own, so that an invalid pair does not
/// stop renewals.
pub(crate) fn times(lease_seconds: u32, renewal_seconds: Option<u32>, rebinding_seconds: Option<u32>) -> Option<Times> {
    if lease_seconds == INFINITE_SECONDS {
        return None;
    }
    let seconds = |value: u32| Duration::from_secs(u64::from(value));
    let lease = seconds(lease_seconds);
    let rebind = rebinding_seconds.map(seconds).filter(|t2| !t2.is_zero() && *t2 < lease).unwrap_or(lease * 7 / 8);
    let renew = renewal_seconds
        .map(seconds)
        .filter(|t1| !t1.is_zero() && *t1 < rebind)
        .unwrap_or((lease / 2).min(rebind * 4 / 7));
    Some(Times { renew, rebind, length: lease })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn t1_and_t2_come_from_the_server_where_they_make_sense() {
        let ms = |times: Times| (times.renew.as_millis(), times.rebind.as_millis(), times.length.as_millis());
        let cases = [
            ("defaults", 3600, None, None, (1_800_000, 3_150_000, 3_600_000)),
            ("both honoured", 3600, Some(600), Some(1200), (600_000, 1_200_000, 3_600_000)),
            ("T1 alone", 3600, Some(60), None, (60_000, 3_150_000, 3_600_000)),
            ("an early T2 alone pulls T1 before it", 3600, None, Some(700), (400_000, 700_000, 3_600_000)),
            ("zero counts as missing", 3600, Some(0), Some(0), (1_800_000, 3_150_000, 3_600_000)),
            ("T1 after T2", 3600, Some(2000), Some(1500), (857_142, 1_500_000, 3_600_000)),
            ("both after the end", 3600, Some(4000), Some(5000), (1_800_000, 3_150_000, 3_600_000)),
            ("a lease of one second", 1, None, None, (500, 875, 1_000)),
        ];
        for (name, lease, t1, t2, expected) in cases {
            assert_eq!(ms(times(lease, t1, t2).unwrap()), expected, "{name}");
        }
        assert_eq!(times(INFINITE_SECONDS, Some(10), Some(20)), None, "an infinite lease has no times");
    }
}
