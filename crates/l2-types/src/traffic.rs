//! The kinds of frames that a socket receives.

use crate::ethernet::{ETHERTYPE_ARP, ETHERTYPE_IPV4, ETHERTYPE_IPV6};

/// The frames that a packet socket receives and sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Traffic {
    /// ARP.
    Arp,
    /// Neighbour solicitations and advertisements.
    NeighborDiscovery,
    /// Messages of DHCP servers to clients: IPv4 UDP datagrams to port 68, first fragments only.
    DhcpClient,
    /// Messages of DHCPv6 servers to clients: IPv6 UDP datagrams to port 546, without extension headers.
    Dhcp6Client,
    /// Answers to a [`Handshake`](crate::handshake::Handshake) over IPv4.
    Handshake,
    /// The same over IPv6, without extension headers.
    Handshake6,
}

impl Traffic {
    /// The ethertype to which the socket is bound.
    pub fn ethertype(self) -> u16 {
        match self {
            Self::Arp => ETHERTYPE_ARP,
            Self::NeighborDiscovery | Self::Dhcp6Client | Self::Handshake6 => ETHERTYPE_IPV6,
            Self::DhcpClient | Self::Handshake => ETHERTYPE_IPV4,
        }
    }
}
