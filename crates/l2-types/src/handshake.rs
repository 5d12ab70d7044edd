//! The start of a TCP connection as whole Ethernet frames: a SYN, the answer, and the reset that ends it.
//!
//! They are used to ask an address of this cluster as another machine would. With an ordinary socket the request would
//! not leave this machine, because kube-proxy redirects it locally.

use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;

use etherparse::{Ipv4HeaderSlice, Ipv6HeaderSlice, PacketBuilder, TcpHeaderSlice, TcpOptionElement};

use crate::Mac;
use crate::ethernet::{ETHERTYPE_IPV4, ETHERTYPE_IPV6, EthernetHeader, MIN_FRAME_LEN};

/// The source ports. They are above the ports that kernels assign to sockets and above node ports, so that an answer
/// belongs to no other program.
pub const PORTS: RangeInclusive<u16> = 0xf000..=0xf0ff;

const TTL: u8 = 64;
const WINDOW: u16 = 64240;
/// Segment size for an Ethernet without jumbo frames.
const SEGMENT: u16 = 1440;
const TCP: u8 = 6;
const ICMP: u8 = 1;
const ICMPV6: u8 = 58;
const UNREACHABLE: u8 = 3;
const UNREACHABLE6: u8 = 1;
const ICMP_LEN: usize = 8;

/// The start of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Handshake {
    /// MAC of our interface.
    pub source_mac: Mac,
    /// MAC of the host that has the destination address.
    pub destination_mac: Mac,
    /// Own address, with a port of [`PORTS`].
    pub source: SocketAddr,
    /// Address and port that are asked; of the same family.
    pub destination: SocketAddr,
    /// Own sequence number. The answer repeats it, so that frames of other hosts are not taken for an answer.
    pub sequence: u32,
}

/// An answer to a SYN.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum SynAnswer {
    /// A SYN-ACK.
    Accepted,
    /// A reset, or an ICMP message of a router or packet filter that the port is unreachable.
    Refused,
}

/// An answer, and the SYN that it belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reply {
    /// The address and port that were asked.
    pub asked: SocketAddr,
    /// The source of the SYN.
    pub asker: SocketAddr,
    /// [`Handshake::sequence`] of the SYN.
    pub sequence: u32,
    /// The answer.
    pub answer: SynAnswer,
}

impl Handshake {
    /// The frame with the SYN. Empty if the two addresses are of different families.
    pub fn syn(&self) -> Vec<u8> {
        self.frame(true)
    }

    /// The frame that resets an accepted connection; otherwise the other side would repeat its SYN-ACK for a minute.
    /// The kernel would reset it too, because it has no socket for it, but a packet filter may block that.
    pub fn reset(&self) -> Vec<u8> {
        self.frame(false)
    }

    fn frame(&self, syn: bool) -> Vec<u8> {
        let ethernet = PacketBuilder::ethernet2(self.source_mac.octets(), self.destination_mac.octets());
        let ip = match (self.source.ip(), self.destination.ip()) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => ethernet.ipv4(source.octets(), destination.octets(), TTL),
            (IpAddr::V6(source), IpAddr::V6(destination)) => ethernet.ipv6(source.octets(), destination.octets(), TTL),
            _ => return Vec::new(),
        };
        let sequence = if syn { self.sequence } else { self.sequence.wrapping_add(1) };
        let tcp = ip.tcp(self.source.port(), self.destination.port(), sequence, WINDOW);
        let segment = [TcpOptionElement::MaximumSegmentSize(SEGMENT)];
        let tcp = if syn { tcp.syn().options(&segment).expect("one option fits") } else { tcp.rst() };
        let mut frame = Vec::with_capacity(tcp.size(0).max(MIN_FRAME_LEN));
        tcp.write(&mut frame, &[]).expect("a header without payload fits, and a Vec takes it");
        frame.resize(frame.len().max(MIN_FRAME_LEN), 0);
        frame
    }
}

/// Reads a whole frame; `None` if it is no answer to a SYN from [`PORTS`]. Checksums are not verified, because a peer
/// on the same machine leaves them to hardware that the frame does not pass.
pub fn parse_frame(frame: &[u8]) -> Option<Reply> {
    let (ethernet, packet) = EthernetHeader::parse(frame)?;
    match ethernet.ethertype {
        ETHERTYPE_IPV4 => {
            let ip = Ipv4HeaderSlice::from_slice(packet).ok().filter(|ip| ip.fragments_offset().value() == 0)?;
            let rest = packet.get(ip.slice().len()..)?;
            match ip.protocol().0 {
                TCP => segment(ip.source_addr().into(), ip.destination_addr().into(), rest),
                ICMP if rest.first() == Some(&UNREACHABLE) => {
                    let inner = rest.get(ICMP_LEN..)?;
                    let ip = Ipv4HeaderSlice::from_slice(inner).ok().filter(|ip| ip.protocol().0 == TCP)?;
                    let ports = inner.get(ip.slice().len()..)?;
                    quoted(ip.source_addr().into(), ip.destination_addr().into(), ports)
                }
                _ => None,
            }
        }
        ETHERTYPE_IPV6 => {
            let ip = Ipv6HeaderSlice::from_slice(packet).ok()?;
            let rest = packet.get(ip.slice().len()..)?;
            match ip.next_header().0 {
                TCP => segment(ip.source_addr().into(), ip.destination_addr().into(), rest),
                ICMPV6 if rest.first() == Some(&UNREACHABLE6) => {
                    let inner = rest.get(ICMP_LEN..)?;
                    let ip = Ipv6HeaderSlice::from_slice(inner).ok().filter(|ip| ip.next_header().0 == TCP)?;
                    quoted(ip.source_addr().into(), ip.destination_addr().into(), inner.get(ip.slice().len()..)?)
                }
                _ => None,
            }
        }
        _ => None,
    }
}

/// Reads an answer of the asked host itself.
fn segment(from: IpAddr, to: IpAddr, bytes: &[u8]) -> Option<Reply> {
    let tcp = TcpHeaderSlice::from_slice(bytes).ok()?;
    let answer = match (tcp.syn(), tcp.rst()) {
        (_, true) => SynAnswer::Refused,
        (true, false) => SynAnswer::Accepted,
        (false, false) => return None,
    };
    (tcp.ack() && PORTS.contains(&tcp.destination_port())).then(|| Reply {
        asked: SocketAddr::new(from, tcp.source_port()),
        asker: SocketAddr::new(to, tcp.destination_port()),
        sequence: tcp.acknowledgment_number().wrapping_sub(1),
        answer,
    })
}

/// Reads an ICMP message, which repeats the first eight bytes of our SYN.
fn quoted(source: IpAddr, destination: IpAddr, bytes: &[u8]) -> Option<Reply> {
    let [s0, s1, d0, d1, sequence @ ..] = *bytes.first_chunk::<8>()?;
    let (source_port, port) = (u16::from_be_bytes([s0, s1]), u16::from_be_bytes([d0, d1]));
    PORTS.contains(&source_port).then(|| Reply {
        asked: SocketAddr::new(destination, port),
        asker: SocketAddr::new(source, source_port),
        sequence: u32::from_be_bytes(sequence),
        answer: SynAnswer::Refused,
    })
}

#[cfg(test)]
mod tests {
    use etherparse::{Icmpv4Type, Icmpv6Type, SlicedPacket, TransportSlice, icmpv4, icmpv6};
    use proptest::prelude::*;

    use super::*;

    const US: Mac = Mac::new([2, 0, 0, 0, 0, 1]);
    const THEM: Mac = Mac::new([2, 0, 0, 0, 0, 2]);

    fn asked(source: &str, destination: &str) -> Handshake {
        let source = SocketAddr::new(source.parse().unwrap(), *PORTS.start());
        let destination = SocketAddr::new(destination.parse().unwrap(), 80);
        Handshake { source_mac: US, destination_mac: THEM, source, destination, sequence: 7_000_000 }
    }

    fn both() -> [Handshake; 2] {
        [asked("10.0.0.1", "10.0.0.5"), asked("fd00::1", "fd00::5")]
    }

    /// What the other side sends back.
    fn back(
        ask: &Handshake,
        write: impl Fn(etherparse::PacketBuilderStep<etherparse::IpHeaders>) -> Vec<u8>,
    ) -> Vec<u8> {
        let ethernet = PacketBuilder::ethernet2(THEM.octets(), US.octets());
        write(match (ask.destination.ip(), ask.source.ip()) {
            (IpAddr::V4(from), IpAddr::V4(to)) => ethernet.ipv4(from.octets(), to.octets(), 64),
            (IpAddr::V6(from), IpAddr::V6(to)) => ethernet.ipv6(from.octets(), to.octets(), 64),
            _ => unreachable!(),
        })
    }

    fn tcp(ask: &Handshake, flags: &str, acknowledges: u32) -> Vec<u8> {
        back(ask, |ip| {
            let mut tcp = ip.tcp(ask.destination.port(), ask.source.port(), 99, 1000);
            for flag in flags.chars() {
                tcp = match flag {
                    's' => tcp.syn(),
                    'r' => tcp.rst(),
                    _ => tcp.ack(acknowledges),
                };
            }
            let mut frame = Vec::new();
            tcp.write(&mut frame, &[]).unwrap();
            frame
        })
    }

    /// As a packet filter rejects.
    fn unreachable(ask: &Handshake) -> Vec<u8> {
        let quoted = &ask.syn()[14..];
        back(ask, |ip| {
            let mut frame = Vec::new();
            if ask.source.is_ipv4() {
                let kind = Icmpv4Type::DestinationUnreachable(icmpv4::DestUnreachableHeader::Port);
                ip.icmpv4(kind).write(&mut frame, &quoted[..28]).unwrap();
            } else {
                let kind = Icmpv6Type::DestinationUnreachable(icmpv6::DestUnreachableCode::Port);
                ip.icmpv6(kind).write(&mut frame, quoted).unwrap();
            }
            frame
        })
    }

    #[test]
    fn a_question_is_one_whole_segment_with_checksums_that_are_right() {
        for ask in both() {
            for (frame, syn, sequence) in [(ask.syn(), true, 7_000_000), (ask.reset(), false, 7_000_001)] {
                let packet = SlicedPacket::from_ethernet(&frame).unwrap();
                let Some(TransportSlice::Tcp(tcp)) = &packet.transport else { panic!("{packet:?}") };
                assert_eq!((tcp.syn(), tcp.rst(), tcp.sequence_number()), (syn, !syn, sequence));
                let sum = match packet.net.unwrap() {
                    etherparse::NetSlice::Ipv4(ip) => {
                        tcp.to_header().calc_checksum_ipv4_raw(ip.header().source(), ip.header().destination(), &[])
                    }
                    etherparse::NetSlice::Ipv6(ip) => {
                        tcp.to_header().calc_checksum_ipv6_raw(ip.header().source(), ip.header().destination(), &[])
                    }
                    other @ etherparse::NetSlice::Arp(_) => panic!("{other:?}"),
                };
                assert_eq!(tcp.checksum(), sum.unwrap());
                assert!(frame.len() >= MIN_FRAME_LEN);
            }
        }
        assert!(asked("10.0.0.1", "fd00::5").syn().is_empty());
    }

    #[test]
    fn what_comes_back_is_an_acceptance_or_a_refusal_of_what_was_asked() {
        for ask in both() {
            let (right, wrong) = (ask.sequence + 1, 0);
            for (name, frame, answer) in [
                ("accepted", tcp(&ask, "sa", right), Some((SynAnswer::Accepted, ask.sequence))),
                ("reset", tcp(&ask, "ra", right), Some((SynAnswer::Refused, ask.sequence))),
                ("rejected", unreachable(&ask), Some((SynAnswer::Refused, ask.sequence))),
                ("of another question", tcp(&ask, "sa", wrong), Some((SynAnswer::Accepted, u32::MAX))),
                ("of a connection under way", tcp(&ask, "a", right), None),
                ("a SYN of somebody else", tcp(&ask, "s", right), None),
                ("our own", ask.syn(), None),
            ] {
                let reply = parse_frame(&frame);
                assert_eq!(reply.map(|reply| (reply.answer, reply.sequence)), answer, "{name}");
                assert!(reply.is_none_or(|it| (it.asked, it.asker) == (ask.destination, ask.source)), "{name}");
            }
            let elsewhere = Handshake { source: SocketAddr::new(ask.source.ip(), 40_000), ..ask };
            for frame in [tcp(&elsewhere, "sa", right), unreachable(&elsewhere)] {
                assert_eq!(parse_frame(&frame), None, "to another port");
            }
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_answered(frame: Vec<u8>) {
            let _ = parse_frame(&frame);
        }

        #[test]
        fn damaged_frames_are_answered(which in 0..4_usize, at in 0..54_usize, value: u8, length in 0..=120_usize) {
            let ask = both()[which % 2];
            let mut frame = if which < 2 { tcp(&ask, "sa", 1) } else { unreachable(&ask) };
            frame[at] = value;
            let _ = parse_frame(&frame[..length.min(frame.len())]);
        }
    }
}
