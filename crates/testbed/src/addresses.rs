//! The addresses of every bed. They exist inside namespaces only, so all beds use the same ones.
//!
//! | network | who |
//! | --- | --- |
//! | LAN `192.168.<subnet>.0/24`, `fd00:<subnet>::/64` | subnet 100 unless told; `.1` router and DHCP, `.11`.. hosts |
//! | | `.50` client, `.100`-`.199` free for VIPs, `.200`-`.250` DHCP |
//! | management `10.99.0.0/16` | `.0.2` control plane, `.0.3` Harvester side, `.0.4` a second cluster |
//! | | `.0.5` another Harvester, `.0.11`.. members of etcd, `.1.1`.. hosts that joined |
//! | pods | `10.244.<node>.0/24`, `fd00:244:<node>::/64` |
//! | Services | `10.96.0.0/16`, `fd00:96::/112` (Harvester side `10.53.0.0/16`) |

use std::net::{Ipv4Addr, Ipv6Addr};

/// Management network: prefix length.
pub const MANAGEMENT_PREFIX: u8 = 16;
/// API server and etcd of the guest cluster.
pub const CONTROL_PLANE: Ipv4Addr = Ipv4Addr::new(10, 99, 0, 2);
/// API server of the Harvester side.
pub const HARVESTER: Ipv4Addr = Ipv4Addr::new(10, 99, 0, 3);
/// API server of a second cluster beside the guest cluster.
pub const SECOND_CLUSTER: Ipv4Addr = Ipv4Addr::new(10, 99, 0, 4);
/// API server of another Harvester, to which a cluster may move.
pub const OTHER_HARVESTER: Ipv4Addr = Ipv4Addr::new(10, 99, 0, 5);
/// A name that its certificate has, for whoever resolves it.
pub const HARVESTER_NAME: &str = "harvester.lan";
/// Port of both API servers.
pub const API_PORT: u16 = 6443;
/// ClusterIP of the Service `kubernetes` in the guest cluster.
pub const KUBERNETES_SERVICE: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 1);
/// Service ranges of the guest cluster.
pub const SERVICE_RANGES: &str = "10.96.0.0/16,fd00:96::/112";
/// Service range of the Harvester side.
pub const HARVESTER_SERVICE_RANGE: &str = "10.53.0.0/16";
/// All pods of the guest cluster.
pub const POD_RANGES: &str = "10.244.0.0/16,fd00:244::/32";

/// IPv4 address `last` on the LAN `subnet`.
pub fn lan4(subnet: u8, last: u8) -> Ipv4Addr {
    Ipv4Addr::new(192, 168, subnet, last)
}

/// IPv6 address on the LAN `subnet`; `last` is written in decimal digits, so that `.50` and `::50` belong together.
pub fn lan6(subnet: u8, last: u8) -> Ipv6Addr {
    Ipv6Addr::new(0xfd00, decimal(subnet), 0, 0, 0, 0, 0, decimal(last))
}

/// Management address of the `n`th host that joined (from 0).
pub fn management_host(n: u16) -> Ipv4Addr {
    let [high, low] = (n + 0x0101).to_be_bytes();
    Ipv4Addr::new(10, 99, high, low)
}

/// Member `n` of etcd (from 1), where they have machines of their own.
pub fn etcd_member(n: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 99, 0, 10 + n)
}

/// IPv4 address of pod `n` on node `node`.
pub fn pod4(node: u8, n: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 244, node, n)
}

/// IPv6 address of pod `n` on node `node`.
pub fn pod6(node: u8, n: u8) -> Ipv6Addr {
    Ipv6Addr::new(0xfd00, 0x244, decimal(node), 0, 0, 0, 0, decimal(n))
}

/// 50 becomes 0x50: the digits that a person reads stay the same.
fn decimal(value: u8) -> u16 {
    u16::from(value / 100) << 8 | u16::from(value / 10 % 10) << 4 | u16::from(value % 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ipv6_addresses_repeat_the_digits_of_their_ipv4_sisters() {
        assert_eq!(lan6(100, 50).to_string(), "fd00:100::50");
        assert_eq!(lan6(7, 111).to_string(), "fd00:7::111");
        assert_eq!(pod6(2, 13).to_string(), "fd00:244:2::13");
    }

    #[test]
    fn management_addresses_do_not_collide_with_the_api_servers() {
        assert_eq!(management_host(0), Ipv4Addr::new(10, 99, 1, 1));
        assert_eq!(management_host(255), Ipv4Addr::new(10, 99, 2, 0));
    }
}
