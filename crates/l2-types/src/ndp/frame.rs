//! Encodes and decodes the two messages: Ethernet, IPv6, ICMPv6, options. Pure.

use std::net::Ipv6Addr;

use etherparse::checksum::Sum16BitWords;

use super::{Message, Ndp, is_solicited_node};
use crate::{
    Mac,
    ethernet::{ETHERTYPE_IPV6, EthernetHeader, HEADER_LEN, PAYLOAD_LEN, Payload},
};

const IPV6_LEN: usize = 40;
const ICMPV6: u8 = 58;
/// Routers do not forward these messages, so hop limit 255 on arrival proves that the sender is on this link.
const HOP_LIMIT: u8 = 255;
/// Length of type, code, checksum, flags or reserved, and target.
const MESSAGE_LEN: usize = 24;
const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;
const OPTION_SOURCE_MAC: u8 = 1;
const OPTION_TARGET_MAC: u8 = 2;
/// Option type of the payload. RFC 4727 reserves 253 and 254 for experiments; receivers skip unknown options.
const OPTION_PAYLOAD: u8 = 253;
/// Options are counted in units of eight bytes: type, length, the payload, four zero bytes.
const PAYLOAD_OPTION_UNITS: u8 = 3;
const PAYLOAD_OPTION_LEN: usize = 8 * PAYLOAD_OPTION_UNITS as usize;
const _: () = assert!(PAYLOAD_OPTION_LEN >= 2 + PAYLOAD_LEN);

impl Ndp {
    /// The whole frame from `source` to `destination`. The destination is [`Self::group_mac`] or the MAC of one node,
    /// also for a message to a group, as for a claim that only the former owner should receive.
    pub fn frame(&self, source: Mac, destination: Mac) -> Vec<u8> {
        self.build(source, destination, None)
    }

    /// The whole frame with an opaque payload in an experimental option.
    pub fn frame_with(&self, source: Mac, destination: Mac, payload: &Payload) -> Vec<u8> {
        self.build(source, destination, Some(payload))
    }

    fn build(&self, source: Mac, destination: Mac, payload: Option<&Payload>) -> Vec<u8> {
        let mut icmp = vec![0; MESSAGE_LEN];
        icmp[8..].copy_from_slice(&self.target.octets());
        let mac_option = match self.message {
            Message::Solicitation { source_mac } => {
                icmp[0] = SOLICITATION;
                source_mac.map(|mac| (OPTION_SOURCE_MAC, mac))
            }
            Message::Advertisement { router, solicited, override_entry, target_mac } => {
                icmp[0] = ADVERTISEMENT;
                icmp[4] = u8::from(router) << 7 | u8::from(solicited) << 6 | u8::from(override_entry) << 5;
                target_mac.map(|mac| (OPTION_TARGET_MAC, mac))
            }
        };
        if let Some((kind, mac)) = mac_option {
            icmp.extend([kind, 1]);
            icmp.extend(mac.octets());
        }
        if let Some(payload) = payload {
            let end = icmp.len() + PAYLOAD_OPTION_LEN;
            icmp.extend([OPTION_PAYLOAD, PAYLOAD_OPTION_UNITS]);
            icmp.extend(payload);
            icmp.resize(end, 0);
        }
        let sum = checksum(self.source, self.destination, &icmp);
        icmp[2..4].copy_from_slice(&sum.to_be_bytes());

        let length = u16::try_from(icmp.len()).expect("a message and two options are under 100 bytes");
        let mut frame = Vec::with_capacity(HEADER_LEN + IPV6_LEN + icmp.len());
        frame.extend(EthernetHeader { destination, source, ethertype: ETHERTYPE_IPV6 }.bytes());
        frame.extend([0x60, 0, 0, 0]);
        frame.extend(length.to_be_bytes());
        frame.extend([ICMPV6, HOP_LIMIT]);
        frame.extend(self.source.octets());
        frame.extend(self.destination.octets());
        frame.extend(icmp);
        frame
    }
}

/// A received neighbour solicitation or advertisement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NdpFrame<'a> {
    /// Recipient and sender of the frame.
    pub ethernet: EthernetHeader,
    /// The message and its addresses.
    pub ndp: Ndp,
    /// The opaque payload, if the frame carries one.
    pub payload: Option<&'a Payload>,
}

/// Reads a whole frame. `None` if it is no *valid* neighbour solicitation or advertisement: RFC 4861 7.1 requires hop
/// limit 255, a right checksum, and consistent addresses.
pub fn parse_frame(frame: &[u8]) -> Option<NdpFrame<'_>> {
    let (ethernet, rest) = EthernetHeader::parse(frame)?;
    let (ipv6, rest) = rest.split_first_chunk::<IPV6_LEN>()?;
    // RFC 6980: neighbour discovery is never fragmented, so ICMPv6 follows at once.
    if ethernet.ethertype != ETHERTYPE_IPV6 || ipv6[0] >> 4 != 6 || ipv6[6] != ICMPV6 || ipv6[7] != HOP_LIMIT {
        return None;
    }
    let length = usize::from(u16::from_be_bytes([ipv6[4], ipv6[5]]));
    let icmp = rest.get(..length)?;
    let source = read_ip(&ipv6[8..])?;
    let destination = read_ip(&ipv6[24..])?;
    if checksum(source, destination, icmp) != 0 {
        return None;
    }
    let (head, options) = icmp.split_first_chunk::<MESSAGE_LEN>()?;
    let target = read_ip(&head[8..])?;
    if head[1] != 0 || target.is_multicast() {
        return None;
    }
    let options = Options::parse(options)?;
    let message = match head[0] {
        SOLICITATION => {
            let from_nobody = source.is_unspecified();
            if from_nobody && (options.source_mac.is_some() || !is_solicited_node(destination)) {
                return None;
            }
            Message::Solicitation { source_mac: options.source_mac }
        }
        ADVERTISEMENT => {
            let solicited = head[4] & 0x40 != 0;
            if solicited && destination.is_multicast() {
                return None;
            }
            Message::Advertisement {
                router: head[4] & 0x80 != 0,
                solicited,
                override_entry: head[4] & 0x20 != 0,
                target_mac: options.target_mac,
            }
        }
        _ => return None,
    };
    Some(NdpFrame { ethernet, ndp: Ndp { source, destination, target, message }, payload: options.payload })
}

/// The ICMPv6 checksum over pseudo header and message; zero for an intact received message.
fn checksum(source: Ipv6Addr, destination: Ipv6Addr, icmp: &[u8]) -> u16 {
    let length = u32::try_from(icmp.len()).expect("an IPv6 payload length has 16 bits");
    Sum16BitWords::new()
        .add_16bytes(source.octets())
        .add_16bytes(destination.octets())
        .add_4bytes(length.to_be_bytes())
        .add_2bytes([0, ICMPV6])
        .add_slice(icmp)
        .ones_complement()
        .to_be()
}

fn read_ip(bytes: &[u8]) -> Option<Ipv6Addr> {
    bytes.first_chunk::<16>().map(|octets| Ipv6Addr::from(*octets))
}

#[derive(Default)]
struct Options<'a> {
    source_mac: Option<Mac>,
    target_mac: Option<Mac>,
    payload: Option<&'a Payload>,
}

impl<'a> Options<'a> {
    /// RFC 4861 4.6: an option of length zero makes the whole message invalid; unknown options are skipped.
    fn parse(mut bytes: &'a [u8]) -> Option<Self> {
        let mut options = Self::default();
        while let Some(([kind, units], _)) = bytes.split_first_chunk::<2>() {
            let length = usize::from(*units) * 8;
            if length == 0 {
                return None;
            }
            let (option, rest) = bytes.split_at_checked(length)?;
            let value = &option[2..];
            match *kind {
                OPTION_SOURCE_MAC => options.source_mac = Mac::read(value),
                OPTION_TARGET_MAC => options.target_mac = Mac::read(value),
                OPTION_PAYLOAD if length == PAYLOAD_OPTION_LEN => options.payload = value.first_chunk(),
                _ => {}
            }
            bytes = rest;
        }
        bytes.is_empty().then_some(options)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::solicited_node;
    use super::*;

    const US: Mac = Mac::new([0x02, 0, 0, 0, 0, 0x01]);
    const THEM: Mac = Mac::new([0x02, 0, 0, 0, 0, 0x02]);

    fn vip() -> Ipv6Addr {
        "2001:db8::1:a".parse().expect("an address")
    }

    fn link_local() -> Ipv6Addr {
        "fe80::1".parse().expect("an address")
    }

    /// The bytes of a text of hexadecimal digits.
    fn bytes(text: &str) -> Vec<u8> {
        let digits: String = text.split_whitespace().collect();
        (0..digits.len()).step_by(2).map(|at| u8::from_str_radix(&digits[at..at + 2], 16).expect("digits")).collect()
    }

    #[test]
    fn frames_are_these_bytes() {
        // Checksums computed by another program.
        for (name, ndp, expected) in [
            (
                "announcement: override, not solicited, hop limit 255, to all nodes, with our MAC",
                Ndp::announcement(US, vip()),
                "333300000001 020000000001 86dd 60000000 0020 3a ff
                 20010db800000000000000000001000a ff020000000000000000000000000001
                 88 00 f916 20000000 20010db800000000000000000001000a 02 01 020000000001",
            ),
            (
                "duplicate address detection: from nobody, no option",
                Ndp::duplicate_detection(vip()),
                "3333ff01000a 020000000001 86dd 60000000 0018 3a ff
                 00000000000000000000000000000000 ff0200000000000000000001ff01000a
                 87 00 4cd9 00000000 20010db800000000000000000001000a",
            ),
            (
                "probe to the group",
                Ndp::multicast_probe(link_local(), US, vip()),
                "3333ff01000a 020000000001 86dd 60000000 0020 3a ff
                 fe800000000000000000000000000001 ff0200000000000000000001ff01000a
                 87 00 4b4d 00000000 20010db800000000000000000001000a 01 01 020000000001",
            ),
            (
                "probe to the owner",
                Ndp::unicast_probe(link_local(), US, vip()),
                "020000000002 020000000001 86dd 60000000 0020 3a ff
                 fe800000000000000000000000000001 20010db800000000000000000001000a
                 87 00 1b99 00000000 20010db800000000000000000001000a 01 01 020000000001",
            ),
        ] {
            assert_eq!(ndp.frame(US, ndp.group_mac().unwrap_or(THEM)), bytes(expected), "{name}");
        }
    }

    #[test]
    fn the_payload_travels_in_an_experimental_option() {
        let payload: Payload = std::array::from_fn(|at| u8::try_from(at).expect("18 bytes") + 1);
        let announcement = Ndp::announcement(US, vip());
        let frame = announcement.frame_with(US, THEM, &payload);
        assert_eq!(frame.len(), announcement.frame(US, THEM).len() + 24);
        assert_eq!(frame[86..88], [253, 3]);
        assert_eq!(frame[88..106], payload);
        assert_eq!(frame[106..], [0; 4]);
        let parsed = parse_frame(&frame).expect("our own frame");
        assert_eq!((parsed.ndp, parsed.payload), (announcement, Some(&payload)));
    }

    /// Changes bytes of a frame and mends its checksum.
    fn changed(frame: &[u8], changes: &[(usize, &[u8])]) -> Vec<u8> {
        let mut frame = frame.to_vec();
        for (at, value) in changes {
            frame[*at..at + value.len()].copy_from_slice(value);
        }
        frame[56..58].fill(0);
        let (source, destination) = (read_ip(&frame[22..]), read_ip(&frame[38..]));
        let sum = checksum(source.expect("16 bytes"), destination.expect("16 bytes"), &frame[54..]);
        frame[56..58].copy_from_slice(&sum.to_be_bytes());
        frame
    }

    #[test]
    fn what_the_rfc_calls_invalid_is_refused() {
        let announcement = Ndp::announcement(US, vip()).frame(US, THEM);
        let detection = Ndp::duplicate_detection(vip()).frame(US, THEM);
        let probe = Ndp::unicast_probe(link_local(), US, vip()).frame(US, THEM);
        assert!(parse_frame(&changed(&announcement, &[])).is_some(), "the helper alone breaks nothing");
        for (name, frame) in [
            ("hop limit 254: it came through a router", changed(&announcement, &[(21, &[254])])),
            ("not ICMPv6", changed(&announcement, &[(20, &[0])])),
            ("not version 6", changed(&announcement, &[(14, &[0x40])])),
            ("not IPv6", changed(&announcement, &[(13, &[0])])),
            ("code 1", changed(&announcement, &[(55, &[1])])),
            ("another type", changed(&announcement, &[(54, &[134])])),
            ("target is a group", changed(&announcement, &[(62, &[0xff])])),
            ("solicited, but sent to a group", changed(&announcement, &[(58, &[0x60])])),
            ("option of length 0", changed(&announcement, &[(79, &[0])])),
            ("option longer than the message", changed(&announcement, &[(79, &[2])])),
            ("from nobody to one node", changed(&detection, &[(38, &vip().octets())])),
            ("from nobody with a MAC", changed(&probe, &[(22, &[0; 16]), (38, &solicited_node(vip()).octets())])),
            ("cut off", announcement[..85].to_vec()),
        ] {
            assert_eq!(parse_frame(&frame), None, "{name}");
        }
    }

    #[test]
    fn one_wrong_bit_breaks_the_checksum() {
        let frame = Ndp::announcement(US, vip()).frame(US, THEM);
        for at in 22..frame.len() {
            let mut damaged = frame.clone();
            damaged[at] ^= 0x10;
            assert_eq!(parse_frame(&damaged), None, "byte {at}");
        }
    }

    #[test]
    fn trailing_bytes_of_the_frame_do_not_count() {
        let mut frame = Ndp::duplicate_detection(vip()).frame(US, THEM);
        frame.extend([0xaa; 4]);
        assert!(parse_frame(&frame).is_some());
    }

    prop_compose! {
        fn any_unicast()(tail: [u8; 15]) -> Ipv6Addr {
            let mut octets = [0x20; 16];
            octets[1..].copy_from_slice(&tail);
            Ipv6Addr::from(octets)
        }
    }

    prop_compose! {
        fn any_valid()(
            source in any_unicast(), target in any_unicast(), mac: Option<[u8; 6]>,
            advertisement: bool, router: bool, solicited: bool, override_entry: bool,
        ) -> Ndp {
            let mac = mac.map(Mac::new);
            let message = if advertisement {
                Message::Advertisement { router, solicited, override_entry, target_mac: mac }
            } else {
                Message::Solicitation { source_mac: mac }
            };
            Ndp { source, destination: target, target, message }
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_answered(frame: Vec<u8>) {
            let _ = parse_frame(&frame);
        }

        #[test]
        fn any_options_are_answered(options: Vec<u8>) {
            let _ = Options::parse(&options);
        }

        #[test]
        fn damaged_frames_are_answered(ndp in any_valid(), at in 0..78_usize, value: u8, length in 0..=86_usize) {
            let mut frame = ndp.frame(US, THEM);
            frame[at] = value;
            let _ = parse_frame(&frame[..length.min(frame.len())]);
        }

        #[test]
        fn what_is_built_is_read_back(ndp in any_valid(), payload: Option<Payload>) {
            let frame = match payload {
                Some(payload) => ndp.frame_with(US, THEM, &payload),
                None => ndp.frame(US, THEM),
            };
            let parsed = parse_frame(&frame).expect("our own frame");
            prop_assert_eq!(parsed.ndp, ndp);
            prop_assert_eq!(parsed.payload.copied(), payload);
        }

        #[test]
        fn the_checksum_of_what_is_sent_adds_up_to_zero(ndp in any_valid(), payload: Payload) {
            let frame = ndp.frame_with(US, THEM, &payload);
            prop_assert_eq!(checksum(ndp.source, ndp.destination, &frame[54..]), 0);
        }
    }
}
