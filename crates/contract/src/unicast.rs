//! Which addresses a Service can have.

use std::net::IpAddr;

/// Whether the address can belong to a single host that others can reach. False for loopback, multicast, broadcast,
/// reserved and IPv6 link-local addresses.
pub fn is_unicast(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => {
            !(v4.is_loopback()
                || v4.is_multicast()
                || v4.is_broadcast()
                || v4.octets()[0] == 0
                || v4.octets()[0] >= 240)
        }
        IpAddr::V6(v6) => !(v6.is_loopback() || v6.is_multicast() || v6.is_unicast_link_local()),
    }
}
