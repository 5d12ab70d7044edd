//! The kinds of frames that somebody listens to.

use crate::ethernet::{ETHERTYPE_ARP, ETHERTYPE_IPV4, ETHERTYPE_IPV6};

/// What a packet socket hears and speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Traffic {
    /// ARP.
    Arp,
    /// Neighbour solicitations and advertisements.
    NeighborDiscovery,
    /// What DHCP servers send to clients: IPv4 UDP datagrams to port 68, first fragments only.
    DhcpClient,
    /// What DHCPv6 servers send to clients: IPv6 UDP datagrams to port 546, without extension headers.
    Dhcp6Client,
    /// What answers a [`Handshake`](crate::handshake::Handshake) over IPv4.
    Handshake,
    /// The same over IPv6, without extension headers.
    Handshake6,
}

impl Traffic {
    /// The ethertype that the socket is bound to.
    pub fn ethertype(self) -> u16 {
        match self {
            Self::Arp => ETHERTYPE_ARP,
            Self::NeighborDiscovery | Self::Dhcp6Client | Self::Handshake6 => ETHERTYPE_IPV6,
            Self::DhcpClient | Self::Handshake => ETHERTYPE_IPV4,
        }
    }
}
