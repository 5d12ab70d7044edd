//! Ethernet, IPv4 and UDP around the messages; etherparse is the independent witness.

use std::net::Ipv4Addr;

use dhcp_client::{
    Mac,
    frame::{self, Datagram, FrameError},
};
use etherparse::{NetSlice, SlicedPacket, TransportSlice};
use proptest::prelude::*;

fn datagram(payload: &[u8]) -> Datagram<'_> {
    Datagram {
        source_mac: Mac::from([2, 0, 0, 0, 0, 1]),
        destination_mac: Mac::BROADCAST,
        source: Ipv4Addr::UNSPECIFIED,
        destination: Ipv4Addr::BROADCAST,
        source_port: 68,
        destination_port: 67,
        payload,
    }
}

fn assert_checksums(bytes: &[u8]) {
    let packet = SlicedPacket::from_ethernet(bytes).expect("a packet");
    let (Some(NetSlice::Ipv4(ip)), Some(TransportSlice::Udp(udp))) = (packet.net, packet.transport) else {
        panic!("not UDP over IPv4");
    };
    let header = ip.header().to_header();
    assert_eq!(header.header_checksum, header.calc_header_checksum());
    let expected = udp.to_header().calc_checksum_ipv4(&header, udp.payload()).expect("not too long");
    assert_eq!(udp.checksum(), expected);
    assert_ne!(udp.checksum(), 0, "zero would say: no checksum");
}

/// Set the UDP checksum of a frame without IPv4 options.
fn with_udp_checksum(mut bytes: Vec<u8>, checksum: u16) -> Vec<u8> {
    bytes[40..42].copy_from_slice(&checksum.to_be_bytes());
    bytes
}

proptest! {
    #[test]
    fn frames_round_trip_and_their_checksums_are_right(
        macs in any::<[[u8; 6]; 2]>(), addresses in any::<[u32; 2]>(), ports in any::<[u16; 2]>(),
        payload in prop::collection::vec(any::<u8>(), 0..1500), padding in 0_usize..40,
    ) {
        let datagram = Datagram {
            source_mac: macs[0].into(), destination_mac: macs[1].into(),
            source: addresses[0].into(), destination: addresses[1].into(),
            source_port: ports[0], destination_port: ports[1], payload: &payload,
        };
        let mut bytes = frame::build(&datagram).unwrap();
        assert_checksums(&bytes);
        bytes.resize(bytes.len() + padding, 0xaa);
        prop_assert_eq!(frame::parse(&bytes), Ok(datagram));
    }

    #[test]
    fn a_truncated_frame_is_refused(
        payload in prop::collection::vec(any::<u8>(), 0..600), cut in any::<prop::sample::Index>(),
    ) {
        let bytes = frame::build(&datagram(&payload)).unwrap();
        let cut = cut.index(bytes.len());
        prop_assert_eq!(frame::parse(&bytes[..cut]), Err(FrameError::Truncated));
    }

    #[test]
    fn one_flipped_bit_behind_the_ethernet_header_is_noticed(
        payload in prop::collection::vec(any::<u8>(), 1..600), byte in any::<prop::sample::Index>(), bit in 0_u32..8,
    ) {
        let good = frame::build(&datagram(&payload)).unwrap();
        let mut bad = good.clone();
        let at = 14 + byte.index(bad.len() - 14);
        bad[at] ^= 1_u8 << bit;
        // All bits of the checksum field at once could say "none"; a single one cannot, unless only one was set.
        prop_assume!(bad[40..42] != [0, 0]);
        prop_assert!(frame::parse(&bad).is_err(), "byte {at} bit {bit}");
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = frame::parse(&bytes);
    }
}

#[test]
fn a_udp_checksum_may_be_absent_or_unfinished_but_not_wrong() {
    // A server in another network namespace of the same host: the kernel leaves the checksum to a network card that
    // never comes.
    let bytes = frame::build(&datagram(b"offer")).unwrap();
    let words = [0xffff_u32, 0xffff, 17, 8 + 5];
    let sum: u32 = words.iter().sum();
    let pseudo = u16::try_from((sum & 0xffff) + (sum >> 16)).unwrap();
    assert!(frame::parse(&with_udp_checksum(bytes.clone(), 0)).is_ok());
    assert!(frame::parse(&with_udp_checksum(bytes.clone(), pseudo)).is_ok());
    assert_eq!(frame::parse(&with_udp_checksum(bytes, pseudo ^ 0x55)), Err(FrameError::UdpChecksum));
}

#[test]
fn what_is_not_a_whole_udp_datagram_is_refused_for_what_it_is() {
    type Damage = fn(&mut Vec<u8>);
    /// Put the header checksum right again, so that only the damage itself is judged.
    fn repair(bytes: &mut [u8]) {
        bytes[24..26].fill(0);
        let sum: u32 = bytes[14..34].chunks(2).map(|word| u32::from(word[0]) << 8 | u32::from(word[1])).sum();
        let folded = (sum & 0xffff) + (sum >> 16);
        let folded = u16::try_from((folded & 0xffff) + (folded >> 16)).unwrap();
        bytes[24..26].copy_from_slice(&(!folded).to_be_bytes());
    }
    let cases: [(&str, FrameError, Damage); 8] = [
        ("ARP", FrameError::OtherProtocol, |b| b[13] = 6),
        ("a VLAN tag", FrameError::OtherProtocol, |b| b[12..14].copy_from_slice(&[0x81, 0])),
        ("IP version 6", FrameError::OtherProtocol, |b| b[14] = 0x65),
        ("TCP", FrameError::OtherProtocol, |b| b[23] = 6),
        ("a short IP header", FrameError::Length, |b| b[14] = 0x44),
        ("a first fragment", FrameError::Fragment, |b| b[20] = 0x20),
        ("a later fragment", FrameError::Fragment, |b| b[21] = 1),
        ("a short UDP length", FrameError::Length, |b| b[38..40].copy_from_slice(&[0, 7])),
    ];
    for (name, expected, damage) in cases {
        let mut bytes = frame::build(&datagram(b"payload")).unwrap();
        damage(&mut bytes);
        repair(&mut bytes);
        assert_eq!(frame::parse(&bytes), Err(expected), "{name}");
    }
}

#[test]
fn ip_options_are_skipped() {
    let mut bytes = frame::build(&datagram(b"payload")).unwrap();
    bytes.splice(34..34, [1, 1, 1, 1]); // four no-operation options
    bytes[14] = 0x46;
    bytes[17] += 4;
    bytes[24..26].fill(0);
    let sum: u32 = bytes[14..38].chunks(2).map(|word| u32::from(word[0]) << 8 | u32::from(word[1])).sum();
    let folded = u16::try_from((sum & 0xffff) + (sum >> 16)).unwrap();
    bytes[24..26].copy_from_slice(&(!folded).to_be_bytes());
    assert_eq!(frame::parse(&bytes).map(|datagram| datagram.payload), Ok(&b"payload"[..]));
}

#[test]
fn a_payload_that_fits_in_no_datagram_is_an_error() {
    let payload = vec![0; 65_508];
    assert!(frame::build(&datagram(&payload[1..])).is_ok());
    assert_eq!(frame::build(&datagram(&payload)), Err(FrameError::TooLong(65_508)));
}
