//! The identity of a VIP on a node.

use std::net::IpAddr;

use contract::Uid;

use crate::network::Family;

/// Tells one VIP from another on this node.
///
/// The requested string is never an identity (kube-vip spec 10.5 item 3). Two Services that ask for `0.0.0.0` have two
/// VIPs. A Service that asks for the leased address of another Service shares that Service's VIP.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum VipId {
    /// A static address, on an interface of the node.
    Static(IpAddr),
    /// An address from DHCPv4, on the macvlan of this Service.
    Dhcp(Uid),
    /// An address from DHCPv6, on an interface of the node. It needs no MAC of its own, because DHCPv6 servers tell
    /// clients apart by their DUID.
    Dhcp6(Uid),
}

impl VipId {
    /// The VIP of the Service that leases an address of this family.
    pub fn of_lease(family: Family, uid: Uid) -> Self {
        match family {
            Family::V4 => Self::Dhcp(uid),
            Family::V6 => Self::Dhcp6(uid),
        }
    }

    /// Whether its address is only known after it was leased.
    pub fn is_dhcp(&self) -> bool {
        matches!(self, Self::Dhcp(_) | Self::Dhcp6(_))
    }

    /// The Service whose lease it is.
    pub(crate) fn leased_by(&self) -> Option<&Uid> {
        match self {
            Self::Static(_) => None,
            Self::Dhcp(uid) | Self::Dhcp6(uid) => Some(uid),
        }
    }

    /// The address family, which decides between ARP and NDP.
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
