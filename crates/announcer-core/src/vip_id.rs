//! The identity of a VIP on a node.

use std::net::IpAddr;

use contract::Uid;

use crate::network::Family;

/// What tells one VIP from another on this node.
///
/// kube-vip spec 10.5 item 3: the requested string is never an identity. Two Services that ask for `0.0.0.0` have two
/// VIPs; a Service that asks for the address which another one's DHCP lease has shares that one's VIP.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum VipId {
    /// A given address, on an interface of the node.
    Static(IpAddr),
    /// An address that DHCP gives, on the macvlan of this Service.
    Dhcp(Uid),
    /// An address that DHCPv6 gives, on an interface of the node: servers tell clients apart by their DUID, so it needs
    /// no
    /// MAC of its own.
    Dhcp6(Uid),
}

impl VipId {
    /// Whether its address is known only once it was leased.
    pub fn is_dhcp(&self) -> bool {
        matches!(self, Self::Dhcp(_) | Self::Dhcp6(_))
    }

    /// How its address is asked about.
    pub fn family(&self) -> Family {
        match self {
            Self::Static(address) => Family::of(*address),
            Self::Dhcp(_) => Family::V4,
            Self::Dhcp6(_) => Family::V6,
        }
    }
}

impl std::fmt::Display for VipId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Static(address) => write!(f, "{address}"),
            Self::Dhcp(uid) => write!(f, "dhcp {uid}"),
            Self::Dhcp6(uid) => write!(f, "dhcp6 {uid}"),
        }
    }
}
