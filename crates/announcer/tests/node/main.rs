//! A whole node (engine, netlink, packet sockets, DHCP clients, writer) on a real kernel in fresh network namespaces,
//! with a real dnsmasq at the other end of the cable and the API in memory. Needs root, iproute2 and dnsmasq; without
//! them it says so and passes, unless `HCP_REQUIRE_ROOT=1` demands that it runs.

#![allow(clippy::unwrap_used, reason = "helpers of tests, outside of #[test]")]

mod bench;
mod dhcp;
mod dhcp6;
mod dhcp_life;
mod far_end;
#[path = "../../../l2/tests/kernel/fresh_namespace.rs"]
mod fresh_namespace;
mod security;
mod short_leases;
mod static_vips;
