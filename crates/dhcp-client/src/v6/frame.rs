//! Whole Ethernet frames around DHCPv6 messages: Ethernet II, IPv6 without extension headers, UDP.

use std::net::Ipv6Addr;

use crate::Mac;
use crate::frame::{folded, sum};

/// Port of servers and relays.
pub const SERVER_PORT: u16 = 547;
/// Port to which replies are sent. It need not be bound.
pub const CLIENT_PORT: u16 = 546;
/// Multicast group of all servers and relays on the link.
const SERVERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 1, 2);
const SERVERS_MAC: [u8; 6] = [0x33, 0x33, 0, 1, 0, 2];

const ETHERNET_BYTES: usize = 14;
const IPV6_BYTES: usize = 40;
const UDP_BYTES: usize = 8;
const ETHERTYPE_IPV6: [u8; 2] = [0x86, 0xdd];
const NEXT_HEADER_UDP: u8 = 17;

/// The frame of a message to all servers, from this link-local address.
pub fn build(source_mac: Mac, source: Ipv6Addr, message: &[u8]) -> Vec<u8> {
    let length = u16::try_from(UDP_BYTES + message.len()).expect("a message of ours has at most a few hundred bytes");
    let mut udp = Vec::with_capacity(usize::from(length));
    for field in [CLIENT_PORT, SERVER_PORT, length, 0] {
        udp.extend_from_slice(&field.to_be_bytes());
    }
    udp.extend_from_slice(message);
    let checksum = match !folded(pseudo_header_sum(source, SERVERS, length) + sum(&udp)) {
        0 => 0xffff,
        checksum => checksum,
    };
    udp[6..8].copy_from_slice(&checksum.to_be_bytes());
    let mut frame = Vec::with_capacity(ETHERNET_BYTES + IPV6_BYTES + udp.len());
    frame.extend_from_slice(&SERVERS_MAC);
    frame.extend_from_slice(&source_mac.octets());
    frame.extend_from_slice(&ETHERTYPE_IPV6);
    frame.extend_from_slice(&[0x60, 0, 0, 0]);
    frame.extend_from_slice(&length.to_be_bytes());
    // One hop is enough, because the group is link-local (RFC 8415 7.1).
    frame.extend_from_slice(&[NEXT_HEADER_UDP, 1]);
    frame.extend_from_slice(&source.octets());
    frame.extend_from_slice(&SERVERS.octets());
    frame.extend_from_slice(&udp);
    frame
}

/// The message to a client in a received frame; `None` for any other frame.
///
/// The checksum is not verified, because a server on the same machine leaves it to hardware that the frame does not
/// pass.
pub fn parse(frame: &[u8]) -> Option<&[u8]> {
    let (ethernet, packet) = frame.split_at_checked(ETHERNET_BYTES)?;
    let (header, rest) = packet.split_at_checked(IPV6_BYTES)?;
    if ethernet[12..14] != ETHERTYPE_IPV6 || header[0] >> 4 != 6 || header[6] != NEXT_HEADER_UDP {
        return None;
    }
    let udp = rest.get(..usize::from(u16::from_be_bytes([header[4], header[5]])))?;
    let (fields, message) = udp.split_at_checked(UDP_BYTES)?;
    (u16::from_be_bytes([fields[2], fields[3]]) == CLIENT_PORT).then_some(message)
}

fn pseudo_header_sum(source: Ipv6Addr, destination: Ipv6Addr, length: u16) -> u32 {
    sum(&source.octets()) + sum(&destination.octets()) + u32::from(length) + u32::from(NEXT_HEADER_UDP)
}

#[cfg(test)]
mod tests {
    use etherparse::PacketHeaders;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_bytes_are_answered(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse(&bytes);
        }

        #[test]
        fn what_a_server_sends_back_is_read(message: Vec<u8>, padding in 0..60_usize) {
            let mut frame = build(Mac::from([2, 0, 0, 0, 0, 1]), Ipv6Addr::LOCALHOST, &message);
            // To the client's port.
            frame[ETHERNET_BYTES + IPV6_BYTES + 3] = 0x22;
            frame.resize(frame.len() + padding, 0xaa);
            prop_assert_eq!(parse(&frame), Some(message.as_slice()));
        }
    }

    #[test]
    fn a_frame_is_what_another_parser_thinks_it_is() {
        let source = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);
        for message in [&b"odd"[..], b"even"] {
            let frame = build(Mac::from([2, 0, 0, 0, 0, 1]), source, message);
            let headers = PacketHeaders::from_ethernet_slice(&frame).unwrap();
            let Some(etherparse::NetHeaders::Ipv6(ip, _)) = &headers.net else { panic!("no IPv6") };
            let udp = headers.transport.clone().and_then(etherparse::TransportHeader::udp).unwrap();
            assert_eq!((ip.source, ip.destination), (source.octets(), SERVERS.octets()));
            assert_eq!((udp.source_port, udp.destination_port), (546, 547));
            assert_eq!(udp.checksum, udp.calc_checksum_ipv6(ip, message).unwrap());
        }
    }

    #[test]
    fn only_udp_to_port_546_is_a_message_and_nothing_panics() {
        let mut frame = build(Mac::from([2, 0, 0, 0, 0, 1]), Ipv6Addr::LOCALHOST, b"hello");
        assert_eq!(parse(&frame), None, "it goes to a server");
        frame[ETHERNET_BYTES + IPV6_BYTES + 3] = 0x22;
        assert_eq!(parse(&frame), Some(&b"hello"[..]));
        for length in 0..frame.len() {
            let _ = parse(&frame[..length]);
        }
        frame[ETHERNET_BYTES + 6] = 6;
        assert_eq!(parse(&frame), None);
    }
}
