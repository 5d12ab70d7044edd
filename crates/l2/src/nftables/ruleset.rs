//! What is protected, as requests to nftables. Pure.
//!
//! ```text
//! table inet harvester-announcer {
//!   set vips4   { type ipv4_addr; }                              set vips6   { type ipv6_addr; }
//!   set ports4  { type ipv4_addr . inet_proto . inet_service; }  set ports6  { type ipv6_addr . inet_proto . inet_service; }
//!   set quiet   { type ifname; }
//!   chain input { type filter hook input priority filter;
//!     iifname @quiet icmpv6 type nd-router-advert drop
//!     ip daddr @vips4 jump vip4
//!     ip6 daddr @vips6 jump vip6 }
//!   chain vip4 { ip daddr . meta l4proto . th dport @ports4 accept; icmp type 3, 8, 11, 12 accept; drop }
//!   chain vip6 { ip6 daddr . meta l4proto . th dport @ports6 accept; icmpv6 type 1-4, 128, 135, 136 accept; drop }
//! }
//! ```
//!
//! At `input`, not before: what kube-proxy sends on to pods has left by then, whatever it does about errors, fragments
//! and return paths is untouched. What arrives here was meant for the node itself: its ssh, its kubelet.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use super::message::{APPEND, Attributes, CREATE, Request};

pub(super) const TABLE: &str = "harvester-announcer";

const NEW_TABLE: u16 = 0;
const GET_TABLE: u16 = 1;
const DELETE_TABLE: u16 = 2;
const NEW_CHAIN: u16 = 3;
const NEW_RULE: u16 = 6;
const NEW_SET: u16 = 9;
const NEW_ELEMENT: u16 = 12;
const DELETE_ELEMENT: u16 = 14;

/// An attribute list is at most 64 KiB long.
const ELEMENTS_AT_ONCE: usize = 500;

const TCP: u8 = 6;
const UDP: u8 = 17;
const SCTP: u8 = 132;

/// A port of a Service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Port {
    /// Number in the IP header.
    protocol: u8,
    port: u16,
}

impl Port {
    /// By the names that Services use; `None` for another protocol, or a number that is no port.
    pub fn new(protocol: &str, port: i32) -> Option<Self> {
        let protocol = match protocol {
            "TCP" => TCP,
            "UDP" => UDP,
            "SCTP" => SCTP,
            _ => return None,
        };
        Some(Self { protocol, port: u16::try_from(port).ok().filter(|port| *port != 0)? })
    }
}

/// What is protected.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Protection {
    /// VIPs, with the ports on which traffic is let in.
    pub vips: BTreeMap<IpAddr, BTreeSet<Port>>,
    /// Names of interfaces on which router advertisements are not listened to. They need not exist yet.
    pub quiet: BTreeSet<String>,
}

impl Protection {
    /// Whether there is nothing to protect.
    pub fn is_empty(&self) -> bool {
        self.vips.is_empty() && self.quiet.is_empty()
    }
}

/// A named set: its name, the type of its key for people (`nft list`), its length, its elements.
struct Set {
    name: &'static str,
    kind: u32,
    length: u32,
    elements: fn(&Protection) -> BTreeSet<Vec<u8>>,
}

const IPV4: u32 = 7;
const IPV6: u32 = 8;
const PROTOCOL: u32 = 12;
const SERVICE: u32 = 13;
const INTERFACE_NAME: u32 = 41;
const INTERFACE_NAME_LENGTH: usize = 16;

/// Types of the parts of a key, six bits each.
const fn concatenated(address: u32) -> u32 {
    address << 12 | PROTOCOL << 6 | SERVICE
}

const VIPS4: &str = "vips4";
const VIPS6: &str = "vips6";
const PORTS4: &str = "ports4";
const PORTS6: &str = "ports6";
const QUIET: &str = "quiet";

const SETS: [Set; 5] = [
    Set { name: VIPS4, kind: IPV4, length: 4, elements: |all| addresses(all, false) },
    Set { name: VIPS6, kind: IPV6, length: 16, elements: |all| addresses(all, true) },
    Set { name: PORTS4, kind: concatenated(IPV4), length: 12, elements: |all| ports(all, false) },
    Set { name: PORTS6, kind: concatenated(IPV6), length: 24, elements: |all| ports(all, true) },
    Set { name: QUIET, kind: INTERFACE_NAME, length: 16, elements: quiet },
];

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    }
}

fn addresses(all: &Protection, ipv6: bool) -> BTreeSet<Vec<u8>> {
    all.vips.keys().filter(|address| address.is_ipv6() == ipv6).map(|address| octets(*address)).collect()
}

/// Each part of a key takes whole words of four bytes.
fn ports(all: &Protection, ipv6: bool) -> BTreeSet<Vec<u8>> {
    let vips = all.vips.iter().filter(|(address, _)| address.is_ipv6() == ipv6);
    vips.flat_map(|(address, ports)| {
        ports.iter().map(|port| {
            let [high, low] = port.port.to_be_bytes();
            [octets(*address), vec![port.protocol, 0, 0, 0, high, low, 0, 0]].concat()
        })
    })
    .collect()
}

fn quiet(all: &Protection) -> BTreeSet<Vec<u8>> {
    let names = all.quiet.iter().filter(|name| name.len() < INTERFACE_NAME_LENGTH);
    names
        .map(|name| {
            let mut bytes = name.as_bytes().to_vec();
            bytes.resize(INTERFACE_NAME_LENGTH, 0);
            bytes
        })
        .collect()
}

/// Requests that replace whatever our table holds by this, or remove it. In one batch: there is no moment without it.
pub(super) fn replace(wanted: &Protection) -> Vec<Request> {
    let table = Attributes::new().text(1, TABLE);
    // Made first, because what is not there cannot be deleted.
    let mut requests =
        vec![Request::new(NEW_TABLE, CREATE, table.clone()), Request::new(DELETE_TABLE, 0, table.clone())];
    if wanted.is_empty() {
        return requests;
    }
    requests.push(Request::new(NEW_TABLE, CREATE, table));
    for (id, set) in (1..).zip(&SETS) {
        let mut attributes =
            Attributes::new().text(1, TABLE).text(2, set.name).number(4, set.kind).number(5, set.length).number(10, id);
        if set.kind == INTERFACE_NAME {
            // For people again: a note of `nft` to itself (type 0, length 4) that names are not numbers in network order.
            let [a, b, c, d] = 1_u32.to_ne_bytes();
            attributes = attributes.bytes(13, &[0, 4, a, b, c, d]);
        }
        requests.push(Request::new(NEW_SET, CREATE, attributes));
    }
    requests.extend(change(&Protection::default(), wanted));
    requests.extend(chains());
    requests
}

/// Requests that make `wanted` of `current`; none if they are the same.
pub(super) fn change(current: &Protection, wanted: &Protection) -> Vec<Request> {
    let mut requests = Vec::new();
    // A VIP's ports come before it and go after it: with all of a batch at once that is the same, and reads better.
    for set in &SETS {
        let (old, new) = ((set.elements)(current), (set.elements)(wanted));
        let gone: Vec<&Vec<u8>> = old.difference(&new).collect();
        let added: Vec<&Vec<u8>> = new.difference(&old).collect();
        requests.extend(gone.chunks(ELEMENTS_AT_ONCE).map(|part| elements(DELETE_ELEMENT, 0, set.name, part)));
        requests.extend(added.chunks(ELEMENTS_AT_ONCE).map(|part| elements(NEW_ELEMENT, CREATE, set.name, part)));
    }
    requests
}

/// Asks for our table.
pub(super) fn look_up() -> Request {
    Request::new(GET_TABLE, 0, Attributes::new().text(1, TABLE))
}

fn elements(kind: u16, flags: u16, set: &str, keys: &[&Vec<u8>]) -> Request {
    let list = keys.iter().fold(Attributes::new(), |list, key| {
        list.nested(1, Attributes::new().nested(1, Attributes::new().bytes(1, key)))
    });
    Request::new(kind, flags, Attributes::new().text(1, TABLE).text(2, set).nested(3, list))
}

const NETWORK: u32 = 1;
const TRANSPORT: u32 = 2;
const REGISTER: u32 = 8; // NFT_REG32_00, of four bytes as those after it

const META_INTERFACE_NAME: u32 = 6;
const META_FAMILY: u32 = 15;
const META_PROTOCOL: u32 = 16;

const FAMILY_IPV4: u8 = 2;
const FAMILY_IPV6: u8 = 10;
const ICMP: u8 = 1;
const ICMPV6: u8 = 58;
const ROUTER_ADVERTISEMENT: u8 = 134;

const DROP: i32 = 0;
const ACCEPT: i32 = 1;
const JUMP: i32 = -3;

/// Errors tell senders of packets that are too long, among other things: without them connections hang. Neighbours ask
/// whether a VIP is still here. Echo is let through so that people can see that an address is up.
const ICMP_TYPES: [u8; 4] = [3, 8, 11, 12];
const ICMPV6_TYPES: [u8; 7] = [1, 2, 3, 4, 128, 135, 136];

const INPUT: &str = "input";
const VIP4: &str = "vip4";
const VIP6: &str = "vip6";

fn chains() -> Vec<Request> {
    const LOCAL_IN: u32 = 1;
    let hook = Attributes::new().number(1, LOCAL_IN).number(2, 0);
    let chain = |name: &str| Attributes::new().text(1, TABLE).text(3, name);
    let mut requests: Vec<Request> =
        [chain(INPUT).nested(4, hook).number(5, ACCEPT.unsigned_abs()).text(7, "filter"), chain(VIP4), chain(VIP6)]
            .map(|attributes| Request::new(NEW_CHAIN, CREATE, attributes))
            .into();

    let mut rule = |chain: &str, expressions: Vec<Attributes>| {
        let list = expressions.into_iter().fold(Attributes::new(), |list, expression| list.nested(1, expression));
        let attributes = Attributes::new().text(1, TABLE).text(2, chain).nested(4, list);
        requests.push(Request::new(NEW_RULE, CREATE | APPEND, attributes));
    };
    let mut advertisement = vec![meta(META_INTERFACE_NAME, REGISTER), lookup(QUIET)];
    advertisement.extend(icmp_type(ICMPV6, ROUTER_ADVERTISEMENT));
    advertisement.push(verdict(DROP, None));
    rule(INPUT, advertisement);
    for (family, at, length, vips, ports, chain, icmp, types) in [
        (FAMILY_IPV4, 16, 4, VIPS4, PORTS4, VIP4, ICMP, &ICMP_TYPES[..]),
        (FAMILY_IPV6, 24, 16, VIPS6, PORTS6, VIP6, ICMPV6, &ICMPV6_TYPES[..]),
    ] {
        let destination = || payload(NETWORK, at, length, REGISTER);
        rule(
            INPUT,
            vec![
                meta(META_FAMILY, REGISTER),
                equals(&[family]),
                destination(),
                lookup(vips),
                verdict(JUMP, Some(chain)),
            ],
        );
        let behind = REGISTER + length / 4;
        // The family once more, for those who read the rules: without it `nft` shows an offset for the address.
        rule(
            chain,
            vec![
                meta(META_FAMILY, REGISTER),
                equals(&[family]),
                destination(),
                meta(META_PROTOCOL, behind),
                payload(TRANSPORT, 2, 2, behind + 1),
                lookup(ports),
                verdict(ACCEPT, None),
            ],
        );
        for kind in types {
            let mut expressions = icmp_type(icmp, *kind);
            expressions.push(verdict(ACCEPT, None));
            rule(chain, expressions);
        }
        rule(chain, vec![expression("counter", Attributes::new()), verdict(DROP, None)]);
    }
    requests
}

fn expression(name: &str, data: Attributes) -> Attributes {
    Attributes::new().text(1, name).nested(2, data)
}

fn meta(key: u32, register: u32) -> Attributes {
    expression("meta", Attributes::new().number(1, register).number(2, key))
}

fn payload(base: u32, offset: u32, length: u32, register: u32) -> Attributes {
    expression("payload", Attributes::new().number(1, register).number(2, base).number(3, offset).number(4, length))
}

fn equals(value: &[u8]) -> Attributes {
    const EQUAL: u32 = 0;
    let value = Attributes::new().bytes(1, value);
    expression("cmp", Attributes::new().number(1, REGISTER).number(2, EQUAL).nested(3, value))
}

fn lookup(set: &str) -> Attributes {
    expression("lookup", Attributes::new().text(1, set).number(2, REGISTER))
}

fn icmp_type(protocol: u8, kind: u8) -> Vec<Attributes> {
    vec![meta(META_PROTOCOL, REGISTER), equals(&[protocol]), payload(TRANSPORT, 0, 1, REGISTER), equals(&[kind])]
}

fn verdict(code: i32, chain: Option<&str>) -> Attributes {
    let mut verdict = Attributes::new().bytes(1, &code.to_be_bytes());
    if let Some(chain) = chain {
        verdict = verdict.text(2, chain);
    }
    let data = Attributes::new().nested(2, verdict);
    expression("immediate", Attributes::new().number(1, 0).nested(2, data))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn protection(vips: &[(&str, &[(&str, i32)])]) -> Protection {
        let vips = vips.iter().map(|(address, ports)| {
            let ports = ports.iter().map(|(protocol, port)| Port::new(protocol, *port).unwrap()).collect();
            (address.parse().unwrap(), ports)
        });
        Protection { vips: vips.collect(), quiet: BTreeSet::new() }
    }

    #[test]
    fn nothing_changes_nothing_is_sent() {
        let one = protection(&[("10.0.0.5", &[("TCP", 80)]), ("fd00::5", &[("UDP", 53)])]);
        assert_eq!(change(&one, &one), []);
    }

    #[test]
    fn a_changed_port_touches_one_set() {
        let one = protection(&[("10.0.0.5", &[("TCP", 80), ("TCP", 81)])]);
        let other = protection(&[("10.0.0.5", &[("TCP", 80), ("UDP", 53)])]);
        let kinds: Vec<u16> = change(&one, &other).iter().map(|request| request.kind).collect();
        assert_eq!(kinds, [DELETE_ELEMENT, NEW_ELEMENT]);
    }

    #[test]
    fn keys_are_address_protocol_and_port_in_words() {
        let one = protection(&[("10.0.0.5", &[("TCP", 443)])]);
        assert_eq!(ports(&one, false), [vec![10, 0, 0, 5, 6, 0, 0, 0, 1, 187, 0, 0]].into());
        assert_eq!(ports(&one, true), [].into());
    }

    #[test]
    fn nothing_to_protect_leaves_no_table() {
        let kinds: Vec<u16> = replace(&Protection::default()).iter().map(|request| request.kind).collect();
        assert_eq!(kinds, [NEW_TABLE, DELETE_TABLE]);
    }

    #[test]
    fn thousands_of_ports_are_sent_in_parts() {
        let many: Vec<(&str, i32)> = (1..=2000).map(|port| ("TCP", port)).collect();
        let all = protection(&[("fd00::5", &many)]);
        assert_eq!(change(&Protection::default(), &all).len(), 1 + 4);
    }

    #[test]
    fn what_is_no_port_is_none() {
        for (protocol, port) in [("TCP", 0), ("TCP", 65536), ("TCP", -1), ("ICMP", 8), ("tcp", 80)] {
            assert_eq!(Port::new(protocol, port), None, "{protocol}/{port}");
        }
        assert!(Port::new("SCTP", 65535).is_some());
    }
}
