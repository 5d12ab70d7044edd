//! Classic BPF programs that the kernel runs on each frame before it wakes the process.
//!
//! A busy node receives millions of frames that do not concern the announcer. Without a filter, each ARP broadcast
//! storm and each IPv4 packet would wake it.

use l2_types::handshake::PORTS;
use l2_types::{OUR_ADDRESS_PROTOCOL, Traffic};
use socket2::SockFilter;

/// The whole program: the tests of all sockets, the wanted frames of this kind, and the exceptions among these.
/// `interface`: the one to which the socket is bound.
pub(crate) fn program(interface: u32, traffic: Traffic) -> Vec<SockFilter> {
    let common: &[Test] =
        &[Test::equal(Load::Word(INTERFACE), interface), Test::within(Load::Word(PACKET_TYPE), 0, MULTICAST)];
    let (wanted, unwanted): (&[Test], &[Test]) = match traffic {
        Traffic::Arp => (&[], QUESTION),
        Traffic::NeighborDiscovery => {
            (&[Test::equal(Load::Byte(20), 58), Test::within(Load::Byte(54), 135, 136)], QUESTION6)
        }
        Traffic::DhcpClient => (
            &[
                Test::equal(Load::Byte(23), 17),
                Test::no_bits(Load::Half(20), 0x1fff),
                Test::equal(Load::HalfAfterIpv4(16), 68),
            ],
            &[],
        ),
        Traffic::Dhcp6Client => (&[Test::equal(Load::Byte(20), 17), Test::equal(Load::Half(56), 546)], &[]),
        Traffic::Handshake => return either(&[common, &SEGMENT].concat(), &[common, &REJECTION].concat()),
        Traffic::Handshake6 => return either(&[common, &SEGMENT6].concat(), &[common, &REJECTION6].concat()),
    };
    assemble(&[common, wanted].concat(), unwanted)
}

/// Offset at which the program reads the packet type that the kernel has determined (`SKF_AD_OFF + SKF_AD_PKTTYPE` of
/// linux/filter.h).
///
/// Every socket accepts frames for this host (0), broadcast (1) and multicast (2). Frames for other hosts (3) are
/// excluded. A promiscuous interface receives them, and frames of a VLAN without an interface here have that type too:
/// they have lost their tag and belong to another LAN. Our own frames (4) are excluded because of fail-over spec R9.
const PACKET_TYPE: u32 = 0xffff_f004;
const MULTICAST: u32 = 2;

/// Offset at which the program reads the index of the interface at which the frame arrived in the end
/// (`SKF_AD_IFINDEX`).
///
/// The kernel shows a frame also to sockets of the interface below: one of a VLAN without its tag, and one for the MAC
/// of a macvlan. The first belongs to another LAN, the second is heard above. A bond or a bridge is the interface of
/// what its ports receive.
const INTERFACE: u32 = 0xffff_f008;

/// Searches the netlink attribute of the type in X behind the offset in A, and returns its offset (`SKF_AD_NLATTR`); 0:
/// none.
const NETLINK_ATTRIBUTE: u32 = 0xffff_f00c;

/// Exception: the unicast question of another node's failure detector, a request with sender 0.0.0.0. The kernel
/// answers it, and it claims nothing. Each owner receives twenty of them per second from every node that watches it.
const QUESTION: &[Test] = &[FOR_US_ALONE, Test::equal(Load::Half(20), 1), Test::equal(Load::Word(28), 0)];

/// The same for IPv6: a solicitation from a link-local address.
const QUESTION6: &[Test] =
    &[FOR_US_ALONE, Test::equal(Load::Byte(54), 135), Test::within(Load::Half(22), 0xfe80, 0xfebf)];

/// A TCP segment to one of the handshake ports: a SYN-ACK or a reset.
const SEGMENT: [Test; 3] = [
    Test::equal(Load::Byte(23), 6),
    Test::no_bits(Load::Half(20), 0x1fff),
    Test::within(Load::HalfAfterIpv4(16), FIRST_PORT, LAST_PORT),
];

/// An ICMP message of type 3 that repeats a packet from such a port. Our packets have an IPv4 header of 20 bytes.
const REJECTION: [Test; 4] = [
    Test::equal(Load::Byte(23), 1),
    Test::no_bits(Load::Half(20), 0x1fff),
    Test::within(Load::HalfAfterIpv4(14), 0x0300, 0x03ff),
    Test::within(Load::HalfAfterIpv4(42), FIRST_PORT, LAST_PORT),
];

/// The same over IPv6, where the ICMP type is 1.
const SEGMENT6: [Test; 2] = [Test::equal(Load::Byte(20), 6), Test::within(Load::Half(56), FIRST_PORT, LAST_PORT)];
const REJECTION6: [Test; 3] = [
    Test::equal(Load::Byte(20), 58),
    Test::equal(Load::Byte(54), 1),
    Test::within(Load::Half(102), FIRST_PORT, LAST_PORT),
];

const FIRST_PORT: u32 = *PORTS.start() as u32;
const LAST_PORT: u32 = *PORTS.end() as u32;

const FOR_US_ALONE: Test = Test::equal(Load::Word(PACKET_TYPE), 0);

#[derive(Clone, Copy)]
enum Load {
    Byte(u32),
    Half(u32),
    Word(u32),
    /// Two bytes at this offset plus the length of the IPv4 header, from the start of the frame.
    HalfAfterIpv4(u32),
}

#[derive(Clone, Copy)]
enum Condition {
    Within(u32, u32),
    NoBits(u32),
}

/// A condition on a frame.
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
const LOAD_BYTE_INDEXED: u16 = 0x50;
const LOAD_VALUE: u16 = 0x00;
const INDEX_VALUE: u16 = 0x01;
/// X = the loaded value.
const INDEX_LOADED: u16 = 0x07;
const JUMP: u16 = 0x05;
const JUMP_EQUAL: u16 = 0x15;
const JUMP_GREATER: u16 = 0x25;
const JUMP_GREATER_EQUAL: u16 = 0x35;
const JUMP_BITS: u16 = 0x45;
const RETURN: u16 = 0x06;

/// The program of [`crate::netlink::Changes`]: it drops reports of new or extended addresses with our mark, and accepts
/// all others. Before Linux 5.18 there are no marks, and it accepts everything.
pub(crate) fn others() -> Vec<SockFilter> {
    // The program loads in network byte order, while netlink uses that of the machine.
    const NEW_ADDRESS: u16 = 20_u16.to_be();
    vec![
        SockFilter::new(LOAD_HALF, 0, 0, 4),
        SockFilter::new(JUMP_EQUAL, 0, 6, u32::from(NEW_ADDRESS)),
        // The attributes begin behind struct nlmsghdr and struct ifaddrmsg; this searches IFA_PROTO.
        SockFilter::new(LOAD_VALUE, 0, 0, 24),
        SockFilter::new(INDEX_VALUE, 0, 0, 11),
        SockFilter::new(LOAD_WORD, 0, 0, NETLINK_ATTRIBUTE),
        SockFilter::new(INDEX_LOADED, 0, 0, 0),
        // The value is behind the attribute's header. Without the attribute the offset is 0, and the byte read is one
        // of the message's type.
        SockFilter::new(LOAD_BYTE_INDEXED, 0, 0, 4),
        SockFilter::new(JUMP_EQUAL, 1, 0, u32::from(OUR_ADDRESS_PROTOCOL)),
        end(ALL_OF_IT),
        end(NOTHING),
    ]
}

/// How many bytes of a frame are accepted: none or all.
const NOTHING: u32 = 0;
const ALL_OF_IT: u32 = u32::MAX;

/// Accepts a frame that fulfils all `wanted`, unless it fulfils all `unwanted` too. An empty `unwanted` excludes
/// nothing.
fn assemble(wanted: &[Test], unwanted: &[Test]) -> Vec<SockFilter> {
    let mut program = check(wanted, |_| end(NOTHING));
    program.extend(check(unwanted, |_| end(ALL_OF_IT)));
    program.push(end(if unwanted.is_empty() { ALL_OF_IT } else { NOTHING }));
    program
}

/// Accepts a frame that fulfils all of `one` or all of `other`.
fn either(one: &[Test], other: &[Test]) -> Vec<SockFilter> {
    let length = check(one, |_| end(NOTHING)).len();
    // A frame that fails a test of `one` continues with `other`; one that passes them all is accepted.
    let past = |at: usize| u32::try_from(length - at).expect("a program has a few instructions");
    let mut program = check(one, |at| SockFilter::new(JUMP, 0, 0, past(at)));
    program.push(end(ALL_OF_IT));
    program.extend(assemble(other, &[]));
    program
}

fn end(taken: u32) -> SockFilter {
    SockFilter::new(RETURN, 0, 0, taken)
}

/// All tests in order. After each comes the instruction for a frame that fails it, which depends on its position.
fn check(tests: &[Test], otherwise: impl Fn(usize) -> SockFilter) -> Vec<SockFilter> {
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
        // A jump skips 0 instructions (the test passes) or lands on the instruction after the test.
        match test.condition {
            Condition::Within(lowest, highest) => {
                program.push(SockFilter::new(JUMP_GREATER_EQUAL, 0, 1, lowest));
                program.push(SockFilter::new(JUMP_GREATER, 0, 1, highest));
            }
            Condition::NoBits(mask) => program.push(SockFilter::new(JUMP_BITS, 0, 1, mask)),
        }
        program.push(otherwise(program.len()));
    }
    program
}
