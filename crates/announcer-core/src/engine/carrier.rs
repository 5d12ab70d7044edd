//! The interface that carries the address of a VIP or will carry it.

use ipnet::IpNet;
use l2_types::Mac;

/// Where an address is: interface, MAC and prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Carrier {
    pub link: u32,
    pub mac: Mac,
    pub net: IpNet,
}
