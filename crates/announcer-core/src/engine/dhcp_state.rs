//! Where the address of a VIP comes from, and on what interface it is. Data; what becomes of it is decided in
//! `dhcp.rs`,
//! `dhcp6.rs` and `dhcp_events.rs`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::{Duration, Instant};

use ipnet::IpNet;
use jiff::Timestamp;
use l2_types::Mac;

use super::carrier::Carrier;
use super::due::Timed;
use super::lease::{ClientState, Facts, Lease};
use crate::annotations::{LeaseFacts, LeaseFacts6};
use crate::network::LeaseEnd;
use crate::view::DhcpWishes;

/// A macvlan that cannot be made is tried again after 1, 2, 4 ... seconds, at most this many; so is one that vanishes:
/// whoever removes it may go on doing so.
const MACVLAN_RETRY_MAX_SECONDS: u64 = 60;
/// Where the address of a VIP comes from.
#[derive(Debug)]
pub(super) enum Source {
    /// It is given.
    Static,
    /// DHCP gives it, on a macvlan.
    Dhcp4(Box<Dhcp4>),
    /// DHCPv6 gives it, on an interface of the node.
    Dhcp6(Box<Dhcp6>),
}

impl Source {
    /// The state of its client, if it has one.
    pub fn client(&self) -> Option<&ClientState> {
        match self {
            Self::Static => None,
            Self::Dhcp4(dhcp) => Some(&dhcp.lease.client),
            Self::Dhcp6(dhcp) => Some(&dhcp.lease.client),
        }
    }

    /// The same, to change it.
    pub fn client_mut(&mut self) -> Option<&mut ClientState> {
        match self {
            Self::Static => None,
            Self::Dhcp4(dhcp) => Some(&mut dhcp.lease.client),
            Self::Dhcp6(dhcp) => Some(&mut dhcp.lease.client),
        }
    }

    /// What it has of DHCP.
    pub fn dhcp4(&self) -> Option<&Dhcp4> {
        if let Self::Dhcp4(dhcp) = self { Some(dhcp) } else { None }
    }

    /// The same, to change it.
    pub fn dhcp4_mut(&mut self) -> Option<&mut Dhcp4> {
        if let Self::Dhcp4(dhcp) = self { Some(dhcp) } else { None }
    }

    /// What it has of DHCPv6.
    pub fn dhcp6(&self) -> Option<&Dhcp6> {
        if let Self::Dhcp6(dhcp) = self { Some(dhcp) } else { None }
    }

    /// The address that is leased.
    pub fn leased(&self) -> Option<IpAddr> {
        match self {
            Self::Static => None,
            Self::Dhcp4(dhcp) => dhcp.lease.address().map(IpAddr::V4),
            Self::Dhcp6(dhcp) => dhcp.lease.address().map(IpAddr::V6),
        }
    }

    /// When the lease ends, if there is one that does.
    pub fn expires(&self) -> Option<Instant> {
        match self {
            Self::Static => None,
            Self::Dhcp4(dhcp) => dhcp.lease.granted.as_ref()?.expires,
            Self::Dhcp6(dhcp) => dhcp.lease.granted.as_ref()?.expires,
        }
    }

    /// The same by the clock of the API server, as it stands in its facts.
    pub fn facts_expire(&self) -> Option<Timestamp> {
        match self {
            Self::Static => None,
            Self::Dhcp4(dhcp) => dhcp.lease.granted.as_ref()?.facts.expires,
            Self::Dhcp6(dhcp) => dhcp.lease.granted.as_ref()?.facts.expires,
        }
    }

    /// Where a leased address goes; absent: it has no interface.
    pub fn carrier(&self, address: IpAddr) -> Option<Carrier> {
        let net = IpNet::from(address);
        match self {
            Self::Static => None,
            Self::Dhcp4(dhcp) => Some(Carrier { link: dhcp.link()?, mac: dhcp.mac, net }),
            Self::Dhcp6(dhcp) => dhcp.origin.map(|origin| Carrier { link: origin.link, mac: origin.mac, net }),
        }
    }

    /// Whether something that waited is due now.
    pub fn wake(&mut self, now: Instant) -> bool {
        let client = self.client_mut().is_some_and(|client| client.wake(now));
        client | self.dhcp4_mut().is_some_and(|dhcp| dhcp.wake(now))
    }
}

impl Timed for Source {
    fn deadline(&self) -> Option<Instant> {
        let macvlan = self.dhcp4().and_then(|dhcp| match dhcp.macvlan {
            MacvlanState::Failed { until } => Some(until),
            _ => None,
        });
        macvlan.into_iter().chain(self.client().and_then(|client| client.retry)).min()
    }
}

/// How far the macvlan of a VIP has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MacvlanState {
    Absent,
    Making,
    /// Index, and up to which reading of the network it may not be visible yet.
    Ready(u32, u64),
    /// Refused, or gone too often.
    Failed {
        until: Instant,
    },
}

/// What a VIP has of DHCP.
#[derive(Debug)]
pub(super) struct Dhcp4 {
    pub lease: Lease<LeaseFacts>,
    pub wishes: DhcpWishes,
    pub name: String,
    pub mac: Mac,
    pub macvlan: MacvlanState,
    /// On which interface and under which name the macvlan was asked for last.
    pub asked: Option<(u32, String)>,
    /// When it was there last, and how often since then it could not be made or did not stay.
    pub made: Option<Instant>,
    pub troubles: u32,
    /// What the client was told last of its link.
    pub link_up: bool,
    /// The address that clients may know.
    pub last: Option<Ipv4Addr>,
    /// What is noted, and on which macvlan.
    pub noted: Option<(u32, LeaseEnd)>,
}

impl Dhcp4 {
    fn wake(&mut self, now: Instant) -> bool {
        let due = matches!(self.macvlan, MacvlanState::Failed { until } if until <= now);
        if due {
            self.macvlan = MacvlanState::Absent;
        }
        due
    }

    /// The macvlan, if it is there.
    pub fn link(&self) -> Option<u32> {
        match self.macvlan {
            MacvlanState::Ready(link, _) => Some(link),
            _ => None,
        }
    }

    /// Whether what was asked for last is still wanted where it was.
    pub fn is_as_asked(&self, place: Option<u32>) -> bool {
        let Some((parent, name)) = &self.asked else { return true };
        *name == self.name && place.is_none_or(|place| place == *parent)
    }

    /// When the macvlan is tried again.
    pub fn macvlan_retry(&mut self, now: Instant) -> Instant {
        self.troubles = (self.troubles + 1).min(10);
        now + Duration::from_secs((1 << (self.troubles - 1)).min(MACVLAN_RETRY_MAX_SECONDS))
    }
}

/// What a DHCPv6 client speaks from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Origin {
    pub link: u32,
    pub mac: Mac,
    pub address: Ipv6Addr,
}

/// What a VIP has of DHCPv6.
#[derive(Debug)]
pub(super) struct Dhcp6 {
    pub lease: Lease<LeaseFacts6>,
    pub origin: Option<Origin>,
}

/// Of which version of DHCP the lease of a VIP is.
pub(super) trait Version: Facts {
    /// The lease, if it is of this version.
    fn lease(source: &mut Source) -> Option<&mut Lease<Self>>;
}

impl Version for LeaseFacts {
    fn lease(source: &mut Source) -> Option<&mut Lease<Self>> {
        if let Source::Dhcp4(dhcp) = source { Some(&mut dhcp.lease) } else { None }
    }
}

impl Version for LeaseFacts6 {
    fn lease(source: &mut Source) -> Option<&mut Lease<Self>> {
        if let Source::Dhcp6(dhcp) = source { Some(&mut dhcp.lease) } else { None }
    }
}
