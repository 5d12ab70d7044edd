//! On which interface the address of a VIP is, or is going to be.

use ipnet::IpNet;
use l2_types::Mac;

/// Where an address is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Carrier {
    pub link: u32,
    pub mac: Mac,
    pub net: IpNet,
}
