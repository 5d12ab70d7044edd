//! The source of a VIP's address, and the interface that carries it. Data; `dhcp.rs`, `dhcp6.rs` and `dhcp_events.rs`
//! act on it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::{Duration, Instant};

use ipnet::IpNet;
use jiff::Timestamp;
use l2_types::Mac;

use super::LostLeases;
use super::carrier::Carrier;
use super::due::Timed;
use super::lease::{ClientState, Lease, RecordedLease};
use crate::annotations::{LeaseFacts, LeaseFacts6};
use crate::network::LeaseEnd;
use crate::probes::Probes;
use crate::view::DhcpWishes;

/// A macvlan that cannot be made is tried again after 1, 2, 4 ... seconds, up to this many. The same holds for one that
/// vanishes, because the program that removes it may do so again.
const MACVLAN_RETRY_MAX_SECONDS: u64 = 60;
/// The source of a VIP's address.
#[derive(Debug)]
pub(super) enum Source {
    /// The address is static.
    Static,
    /// The address comes from DHCPv4, on a macvlan.
    Dhcp4(Box<Dhcp4>),
    /// The address comes from DHCPv6, on an interface of the node.
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

    /// Mutable access to the state of its client.
    pub fn client_mut(&mut self) -> Option<&mut ClientState> {
        match self {
            Self::Static => None,
            Self::Dhcp4(dhcp) => Some(&mut dhcp.lease.client),
            Self::Dhcp6(dhcp) => Some(&mut dhcp.lease.client),
        }
    }

    /// Its DHCPv4 state, if it has one.
    pub fn dhcp4(&self) -> Option<&Dhcp4> {
        if let Self::Dhcp4(dhcp) = self { Some(dhcp) } else { None }
    }

    /// Mutable access to its DHCPv4 state.
    pub fn dhcp4_mut(&mut self) -> Option<&mut Dhcp4> {
        if let Self::Dhcp4(dhcp) = self { Some(dhcp) } else { None }
    }

    /// Its DHCPv6 state, if it has one.
    pub fn dhcp6(&self) -> Option<&Dhcp6> {
        if let Self::Dhcp6(dhcp) = self { Some(dhcp) } else { None }
    }

    /// The probes for the address that its macvlan would get.
    pub fn probes(&mut self) -> Option<&mut Probes> {
        match &mut self.dhcp4_mut()?.macvlan {
            MacvlanState::Asking(probes) => Some(probes),
            _ => None,
        }
    }

    /// Whether an earlier client has had the lease.
    pub fn is_inherited(&self) -> bool {
        match self {
            Self::Static => false,
            Self::Dhcp4(dhcp) => dhcp.lease.inherited,
            Self::Dhcp6(dhcp) => dhcp.lease.inherited,
        }
    }

    /// The leased address.
    pub fn leased(&self) -> Option<IpAddr> {
        match self {
            Self::Static => None,
            Self::Dhcp4(dhcp) => dhcp.lease.address().map(IpAddr::V4),
            Self::Dhcp6(dhcp) => dhcp.lease.address().map(IpAddr::V6),
        }
    }

    /// End of the lease; `None`: there is no lease, or it does not end.
    pub fn expires(&self) -> Option<Instant> {
        match self {
            Self::Static => None,
            Self::Dhcp4(dhcp) => dhcp.lease.granted.as_ref()?.expires,
            Self::Dhcp6(dhcp) => dhcp.lease.granted.as_ref()?.expires,
        }
    }

    /// End of the lease by the clock of the API server, as in the recorded facts.
    pub fn facts_expire(&self) -> Option<Timestamp> {
        match self {
            Self::Static => None,
            Self::Dhcp4(dhcp) => dhcp.lease.granted.as_ref()?.facts.expires,
            Self::Dhcp6(dhcp) => dhcp.lease.granted.as_ref()?.facts.expires,
        }
    }

    /// Interface, MAC and prefix for a leased address; `None`: there is no interface for it yet.
    pub fn carrier(&self, address: IpAddr) -> Option<Carrier> {
        let net = IpNet::from(address);
        match self {
            Self::Static => None,
            Self::Dhcp4(dhcp) => Some(Carrier { link: dhcp.link()?, mac: dhcp.mac, net }),
            Self::Dhcp6(dhcp) => dhcp.origin.map(|origin| Carrier { link: origin.link, mac: origin.mac, net }),
        }
    }

    /// What waits because another host uses the address is tried now.
    pub fn ask_again(&mut self, now: Instant) {
        if let Self::Dhcp4(dhcp) = self
            && let MacvlanState::Failed { until } = &mut dhcp.macvlan
        {
            *until = now.min(*until);
        }
    }

    /// Whether a retry is due now; clears it.
    pub fn wake(&mut self, now: Instant) -> bool {
        let client = self.client_mut().is_some_and(|client| client.wake(now));
        client | self.dhcp4_mut().is_some_and(|dhcp| dhcp.wake(now))
    }
}

impl Timed for Source {
    fn deadline(&self) -> Option<Instant> {
        let macvlan = self.dhcp4().and_then(|dhcp| match dhcp.macvlan {
            MacvlanState::Failed { until } => Some(until),
            MacvlanState::Asking(probes) => Some(probes.deadline()),
            _ => None,
        });
        macvlan.into_iter().chain(self.client().and_then(|client| client.retry)).min()
    }
}

/// State of the macvlan of a VIP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MacvlanState {
    Absent,
    /// Before it is made, hosts on the LAN are asked about the address that it would get.
    Asking(Probes),
    Making,
    /// Index, and the reading of the network up to which it may not be visible yet.
    Ready(u32, u64),
    /// The kernel has refused it, or it has vanished too often.
    Failed {
        until: Instant,
    },
}

/// The DHCPv4 state of a VIP.
#[derive(Debug)]
pub(super) struct Dhcp4 {
    pub lease: Lease<LeaseFacts>,
    pub wishes: DhcpWishes,
    pub name: String,
    pub mac: Mac,
    pub macvlan: MacvlanState,
    /// The address for which nobody has answered; until the macvlan is requested.
    pub free: Option<Ipv4Addr>,
    /// Interface and name of the last macvlan request.
    pub asked: Option<(u32, String)>,
    /// When it was last made, and how often since then it could not be made or vanished.
    pub made: Option<Instant>,
    pub troubles: u32,
    /// The link state that the client was last told.
    pub link_up: bool,
    /// The address that clients may know.
    pub last: Option<Ipv4Addr>,
    /// The end of the lease that is noted, and on which macvlan.
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

    /// Index of the macvlan, if it exists.
    pub fn link(&self) -> Option<u32> {
        match self.macvlan {
            MacvlanState::Ready(link, _) => Some(link),
            _ => None,
        }
    }

    /// Whether the last macvlan request still fits the wishes and the place.
    pub fn is_as_asked(&self, place: Option<u32>) -> bool {
        let Some((parent, name)) = &self.asked else { return true };
        *name == self.name && place.is_none_or(|place| place == *parent)
    }

    /// Counts a failure. Returns when the macvlan is tried again.
    pub fn macvlan_retry(&mut self, now: Instant) -> Instant {
        self.troubles = (self.troubles + 1).min(10);
        now + Duration::from_secs((1 << (self.troubles - 1)).min(MACVLAN_RETRY_MAX_SECONDS))
    }
}

/// Interface, MAC and source address of a DHCPv6 client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Origin {
    pub link: u32,
    pub mac: Mac,
    pub address: Ipv6Addr,
}

/// The DHCPv6 state of a VIP.
#[derive(Debug)]
pub(super) struct Dhcp6 {
    pub lease: Lease<LeaseFacts6>,
    pub origin: Option<Origin>,
    /// The link state that the client was last told.
    pub link_up: bool,
}

/// The recorded facts of one DHCP version, and where the engine keeps them.
pub(super) trait VersionFacts: RecordedLease {
    /// The lease, if it is of this version.
    fn lease(source: &mut Source) -> Option<&mut Lease<Self>>;
    /// The lost lease of this version.
    fn lost(lost: &mut LostLeases) -> &mut Option<Self>;
}

impl VersionFacts for LeaseFacts {
    fn lease(source: &mut Source) -> Option<&mut Lease<Self>> {
        if let Source::Dhcp4(dhcp) = source { Some(&mut dhcp.lease) } else { None }
    }

    fn lost(lost: &mut LostLeases) -> &mut Option<Self> {
        &mut lost.v4
    }
}

impl VersionFacts for LeaseFacts6 {
    fn lease(source: &mut Source) -> Option<&mut Lease<Self>> {
        if let Source::Dhcp6(dhcp) = source { Some(&mut dhcp.lease) } else { None }
    }

    fn lost(lost: &mut LostLeases) -> &mut Option<Self> {
        &mut lost.v6
    }
}
