//! The packet filter rules as an nftables table. Pure.
//!
//! ```text
//! table inet harvester-announcer {
//!   set vips4   { type ipv4_addr; }                              set vips6   { type ipv6_addr; }
//!   set ports4  { type ipv4_addr . inet_proto . inet_service; }
//!   set ports6  { type ipv6_addr . inet_proto . inet_service; }
//!   set own4    { type ipv4_addr . ipv4_addr; }                  set own6    { type ipv6_addr . ipv6_addr; }
//!   set quiet   { type ifname; }
//!   chain input { type filter hook input priority 150;
//!     iifname @quiet icmpv6 type nd-router-advert drop
//!     ip daddr @vips4 jump vip4
//!     ip6 daddr @vips6 jump vip6 }
//!   chain vip4 {
//!     ip saddr . ip daddr @own4 accept
//!     ip daddr . meta l4proto . th dport @ports4 accept
//!     icmp type 3, 8, 11, 12 accept; drop }
//!   chain vip6 {
//!     meta l4proto tcp ip6 saddr . ip6 daddr @own6 accept
//!     ip6 daddr . meta l4proto . th dport @ports6 accept
//!     icmpv6 type 1-4, 128, 135, 136 accept; drop }
//! }
//! ```
//!
//! The chain is at `input`: packets that kube-proxy forwards to pods do not pass it, so errors, fragments and return
//! paths are not affected. What arrives here is meant for the node itself, such as its ssh or its kubelet.
//!
//! A program on the node's own network that asks a VIP of this node sends from that VIP, because the kernel takes the
//! destination as source. The answer comes from a pod, and kube-proxy's translation gives it the VIP as source again
//! at `input` with priority 100. So this chain comes later, and lets in what a VIP sends to itself. Others cannot send
//! that: the kernel drops IPv4 packets with a source of its own. It does not with IPv6, so only TCP passes there, whose
//! replies never leave this node. `ct direction reply` would say the same, but not every kernel has nftables' `ct`.

use std::net::IpAddr;

use announcer_core::security::Protection;
use l2::nftables::{Chain, Expression, Header, Meta, Part, Set, Table, Value, Verdict};

/// Name of the table.
pub const TABLE: &str = "harvester-announcer";

const VIPS4: &str = "vips4";
const VIPS6: &str = "vips6";
const PORTS4: &str = "ports4";
const PORTS6: &str = "ports6";
const OWN4: &str = "own4";
const OWN6: &str = "own6";
const QUIET: &str = "quiet";

const INPUT: &str = "input";
const VIP4: &str = "vip4";
const VIP6: &str = "vip6";

const FAMILY_IPV4: u8 = 2;
const FAMILY_IPV6: u8 = 10;
const ICMP: u8 = 1;
const TCP: u8 = 6;
const ICMPV6: u8 = 58;
const ROUTER_ADVERTISEMENT: u8 = 134;

/// Accepted ICMP types. Errors are needed, for example for path MTU; without them connections hang. Neighbours ask
/// whether a VIP is still here. Echo is accepted, so that users can see that an address is up.
const ICMP_TYPES: [u8; 4] = [3, 8, 11, 12];
const ICMPV6_TYPES: [u8; 7] = [1, 2, 3, 4, 128, 135, 136];

/// The table for a [`Protection`]; `None` if there is nothing to protect.
pub fn table(protection: &Protection) -> Option<Table> {
    (!protection.is_empty()).then(|| Table { sets: sets(protection), chains: chains() })
}

fn sets(protection: &Protection) -> Vec<Set> {
    let mut vips4 = Set::new(VIPS4, &[Part::Ipv4]);
    let mut vips6 = Set::new(VIPS6, &[Part::Ipv6]);
    let mut ports4 = Set::new(PORTS4, &[Part::Ipv4, Part::Protocol, Part::Service]);
    let mut ports6 = Set::new(PORTS6, &[Part::Ipv6, Part::Protocol, Part::Service]);
    let mut own4 = Set::new(OWN4, &[Part::Ipv4, Part::Ipv4]);
    let mut own6 = Set::new(OWN6, &[Part::Ipv6, Part::Ipv6]);
    let mut quiet = Set::new(QUIET, &[Part::InterfaceName]);
    for (vip, open) in &protection.vips {
        let (vips, own, ports) = match vip {
            IpAddr::V4(_) => (&mut vips4, &mut own4, &mut ports4),
            IpAddr::V6(_) => (&mut vips6, &mut own6, &mut ports6),
        };
        vips.insert(&[Value::Address(*vip)]);
        own.insert(&[Value::Address(*vip), Value::Address(*vip)]);
        for port in open {
            ports.insert(&[Value::Address(*vip), Value::Protocol(port.protocol()), Value::Service(port.number())]);
        }
    }
    for name in &protection.quiet {
        quiet.insert(&[Value::InterfaceName(name)]);
    }
    vec![vips4, vips6, own4, own6, ports4, ports6, quiet]
}

fn chains() -> Vec<Chain> {
    let mut advertisement = vec![Expression::meta(Meta::InterfaceName, 0), Expression::is_in(QUIET)];
    advertisement.extend(icmp_type(ICMPV6, ROUTER_ADVERTISEMENT));
    advertisement.push(Expression::verdict(Verdict::Drop));
    let mut input = vec![advertisement];
    let mut of_vips = Vec::new();
    for (family, at, length, vips, own, ports, name, icmp, types) in [
        (FAMILY_IPV4, 16, 4, VIPS4, OWN4, PORTS4, VIP4, ICMP, &ICMP_TYPES[..]),
        (FAMILY_IPV6, 24, 16, VIPS6, OWN6, PORTS6, VIP6, ICMPV6, &ICMPV6_TYPES[..]),
    ] {
        let destination = || Expression::payload(Header::Network, at, length, 0);
        let source = || Expression::payload(Header::Network, at - length, length, 0);
        let is_family = || [Expression::meta(Meta::Family, 0), Expression::equals(&[family])];
        let mut jump = Vec::from(is_family());
        jump.extend([destination(), Expression::is_in(vips), Expression::verdict(Verdict::Jump(name))]);
        input.push(jump);

        let behind = length / 4;
        // The family is matched once more for readers of the rules: without it `nft` shows an offset instead of the
        // address.
        let mut open = Vec::from(is_family());
        open.extend([
            destination(),
            Expression::meta(Meta::Protocol, behind),
            Expression::payload(Header::Transport, 2, 2, behind + 1),
            Expression::is_in(ports),
            Expression::verdict(Verdict::Accept),
        ]);
        let mut answer = Vec::from(is_family());
        if family == FAMILY_IPV6 {
            answer.extend([Expression::meta(Meta::Protocol, 0), Expression::equals(&[TCP])]);
        }
        answer.extend([
            source(),
            Expression::payload(Header::Network, at, length, behind),
            Expression::is_in(own),
            Expression::verdict(Verdict::Accept),
        ]);
        let mut rules = vec![answer, open];
        rules.extend(types.iter().map(|kind| {
            let mut rule = Vec::from(icmp_type(icmp, *kind));
            rule.push(Expression::verdict(Verdict::Accept));
            rule
        }));
        rules.push(vec![Expression::counter(), Expression::verdict(Verdict::Drop)]);
        of_vips.push(Chain { name, at_input: false, rules });
    }
    let mut chains = vec![Chain { name: INPUT, at_input: true, rules: input }];
    chains.append(&mut of_vips);
    chains
}

fn icmp_type(protocol: u8, kind: u8) -> [Expression; 4] {
    [
        Expression::meta(Meta::Protocol, 0),
        Expression::equals(&[protocol]),
        Expression::payload(Header::Transport, 0, 1, 0),
        Expression::equals(&[kind]),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whoever forges the source would reach each UDP port of the node otherwise: IPv6 has no check of its own.
    #[test]
    fn what_a_vip_sends_to_itself_is_let_in_by_ipv6_only_if_it_is_tcp() {
        let chains = chains();
        for (name, own, limited) in [(VIP4, OWN4, false), (VIP6, OWN6, true)] {
            let chain = chains.iter().find(|chain| chain.name == name).expect("each family has one");
            let first = &chain.rules[0];
            assert!(first.contains(&Expression::is_in(own)), "{name}: {first:?}");
            assert_eq!(first.last(), Some(&Expression::verdict(Verdict::Accept)), "{name}");
            let is_tcp = [Expression::meta(Meta::Protocol, 0), Expression::equals(&[TCP])];
            let before = first.iter().position(|step| *step == Expression::is_in(own)).unwrap_or_default();
            assert_eq!(first[..before].windows(2).any(|steps| steps == is_tcp), limited, "{name}: {first:?}");
            assert_eq!(first.contains(&is_tcp[0]), limited, "{name}: {first:?}");
        }
    }
}
