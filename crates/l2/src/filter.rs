//! Classic BPF programs that the kernel runs on each frame before it wakes us.
//!
//! On a busy node the wire carries millions of frames that are none of our business; without a filter each ARP
//! broadcast storm or each IPv4 packet would wake the announcer.

use socket2::SockFilter;

use crate::ethernet::{ETHERTYPE_ARP, ETHERTYPE_IPV4, ETHERTYPE_IPV6};

/// What a packet socket hears and speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Traffic {
    /// ARP.
    Arp,
    /// Neighbour solicitations and advertisements.
    NeighborDiscovery,
    /// What DHCP servers send to clients: IPv4 UDP datagrams to port 68, first fragments only.
    DhcpClient,
    /// What DHCPv6 servers send to clients: IPv6 UDP datagrams to port 546, without extension headers.
    Dhcp6Client,
}

impl Traffic {
    /// The ethertype that the socket is bound to.
    pub fn ethertype(self) -> u16 {
        match self {
            Self::Arp => ETHERTYPE_ARP,
            Self::NeighborDiscovery | Self::Dhcp6Client => ETHERTYPE_IPV6,
            Self::DhcpClient => ETHERTYPE_IPV4,
        }
    }

    /// The whole program: what is common to all sockets, then what this one wants.
    pub(crate) fn filter(self) -> Vec<SockFilter> {
        let wanted: &[Test] = match self {
            Self::Arp => &[],
            Self::NeighborDiscovery => &[Test::equal(Load::Byte(20), 58), Test::within(Load::Byte(54), 135, 136)],
            Self::DhcpClient => &[
                Test::equal(Load::Byte(23), 17),
                Test::no_bits(Load::Half(20), 0x1fff),
                Test::equal(Load::HalfAfterIpv4(16), 68),
            ],
            Self::Dhcp6Client => &[Test::equal(Load::Byte(20), 17), Test::equal(Load::Half(56), 546)],
        };
        assemble(&[COMMON, wanted].concat())
    }
}

/// Where the program finds the kernel's own opinion of a frame (`SKF_AD_OFF + SKF_AD_PKTTYPE` of linux/filter.h).
const PACKET_TYPE: u32 = 0xffff_f004;

/// What every socket of ours wants: frames for this host (0), broadcast (1) and multicast (2).
///
/// Not those for other stations (3): they come by on a promiscuous interface, and frames of a VLAN that has no
/// interface here come with that mark, their tag hidden, though they are from another LAN. Not our own (4):
/// failover-protocol.md R9.
const COMMON: &[Test] = &[Test::within(Load::Word(PACKET_TYPE), 0, 2)];

#[derive(Clone, Copy)]
enum Load {
    Byte(u32),
    Half(u32),
    Word(u32),
    /// Two bytes at this offset from the start of the frame plus the length of the IPv4 header.
    HalfAfterIpv4(u32),
}

#[derive(Clone, Copy)]
enum Condition {
    Within(u32, u32),
    NoBits(u32),
}

/// One condition that a frame must fulfil.
#[derive(Clone, Copy)]
struct Test {
    load: Load,
    condition: Condition,
}

impl Test {
    const fn equal(load: Load, value: u32) -> Self {
        Self::within(load, value, value)
    }

    const fn within(load: Load, lowest: u32, highest: u32) -> Self {
        Self { load, condition: Condition::Within(lowest, highest) }
    }

    const fn no_bits(load: Load, mask: u32) -> Self {
        Self { load, condition: Condition::NoBits(mask) }
    }
}

// Instruction codes of linux/bpf_common.h, put together.
const LOAD_WORD: u16 = 0x20;
const LOAD_HALF: u16 = 0x28;
const LOAD_BYTE: u16 = 0x30;
const LOAD_HALF_INDEXED: u16 = 0x48;
/// X = 4 * (low nibble of the byte at k): the length of an IPv4 header.
const INDEX_IPV4_HEADER: u16 = 0xb1;
const JUMP_GREATER: u16 = 0x25;
const JUMP_GREATER_EQUAL: u16 = 0x35;
const JUMP_BITS: u16 = 0x45;
const RETURN: u16 = 0x06;

/// All tests, one after the other; a failed one ends with "drop", the last with "take all of it".
fn assemble(tests: &[Test]) -> Vec<SockFilter> {
    let mut program = Vec::new();
    for test in tests {
        match test.load {
            Load::Byte(at) => program.push(SockFilter::new(LOAD_BYTE, 0, 0, at)),
            Load::Half(at) => program.push(SockFilter::new(LOAD_HALF, 0, 0, at)),
            Load::Word(at) => program.push(SockFilter::new(LOAD_WORD, 0, 0, at)),
            Load::HalfAfterIpv4(at) => {
                program.push(SockFilter::new(INDEX_IPV4_HEADER, 0, 0, 14));
                program.push(SockFilter::new(LOAD_HALF_INDEXED, 0, 0, at));
            }
        }
        // A jump skips 0 instructions (go on) or lands on the drop behind the test.
        match test.condition {
            Condition::Within(lowest, highest) => {
                program.push(SockFilter::new(JUMP_GREATER_EQUAL, 0, 1, lowest));
                program.push(SockFilter::new(JUMP_GREATER, 0, 1, highest));
            }
            Condition::NoBits(mask) => program.push(SockFilter::new(JUMP_BITS, 0, 1, mask)),
        }
        program.push(SockFilter::new(RETURN, 0, 0, 0));
    }
    program.push(SockFilter::new(RETURN, 0, 0, u32::MAX));
    program
}
