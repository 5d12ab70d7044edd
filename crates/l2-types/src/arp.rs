//! ARP for IPv4 over Ethernet: the message, whole frames, and what a frame says about an address.
//!
//! Fail-over spec 5 tells why the frames look as they do: a gratuitous reply moves an entry within the
//! kernel's `locktime` only if its target MAC is the sender's; a probe with sender IP 0.0.0.0 is answered with
//! every `rp_filter`, `arp_filter` and `arp_ignore` (but 8), and leaves no neighbour entry behind.

use std::net::Ipv4Addr;

use crate::{
    Mac,
    ethernet::{ETHERTYPE_ARP, EthernetHeader, HEADER_LEN, MIN_FRAME_LEN, PAYLOAD_LEN, Payload},
};

const MESSAGE_LEN: usize = 28;
/// Hardware type Ethernet, protocol IPv4, their address lengths.
const PREAMBLE: [u8; 6] = [0, 1, 0x08, 0x00, 6, 4];

/// A whole ARP frame, padded to the shortest Ethernet frame.
pub type Frame = [u8; MIN_FRAME_LEN];

/// What an ARP message asks or says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Operation {
    /// 1: the sender asks which host has the target address.
    Request,
    /// 2: the sender has it.
    Reply,
}

/// An ARP message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Arp {
    /// Request or reply.
    pub operation: Operation,
    /// SHA.
    pub sender_mac: Mac,
    /// SPA; 0.0.0.0 in a probe.
    pub sender_ip: Ipv4Addr,
    /// THA.
    pub target_mac: Mac,
    /// TPA.
    pub target_ip: Ipv4Addr,
}

impl Arp {
    /// RFC 5227 probe: asks for `target` without a claim (sender 0.0.0.0). It is sent by broadcast before first use and
    /// to confirm silence, and by unicast to see whether the owner's kernel is alive.
    pub fn probe(sender_mac: Mac, target: Ipv4Addr) -> Self {
        Self::who_has(sender_mac, Ipv4Addr::UNSPECIFIED, target)
    }

    /// An ordinary request from `sender_ip`, which must be an own address, because the receiver makes a neighbour entry
    /// for it.
    pub fn who_has(sender_mac: Mac, sender_ip: Ipv4Addr, target: Ipv4Addr) -> Self {
        Self { operation: Operation::Request, sender_mac, sender_ip, target_mac: Mac::ZERO, target_ip: target }
    }

    /// "`ip` is at `mac`", as a gratuitous request (RFC 5227 announcement).
    pub fn announcement_request(mac: Mac, ip: Ipv4Addr) -> Self {
        Self { operation: Operation::Request, sender_mac: mac, sender_ip: ip, target_mac: Mac::ZERO, target_ip: ip }
    }

    /// "`ip` is at `mac`", as a gratuitous reply. Its target MAC is the sender MAC; otherwise receivers ignore it for 1
    /// s after a move.
    pub fn announcement_reply(mac: Mac, ip: Ipv4Addr) -> Self {
        Self { operation: Operation::Reply, sender_mac: mac, sender_ip: ip, target_mac: mac, target_ip: ip }
    }

    /// The reply to `request` if `mac` had the address. For tests and simulations only, because the kernel answers for
    /// its own addresses.
    pub fn answer(request: &Self, mac: Mac) -> Self {
        Self {
            operation: Operation::Reply,
            sender_mac: mac,
            sender_ip: request.target_ip,
            target_mac: request.sender_mac,
            target_ip: request.sender_ip,
        }
    }

    /// Whether this is a probe: a request for an address without a sender address.
    pub fn is_probe(&self) -> bool {
        self.operation == Operation::Request && self.sender_ip.is_unspecified()
    }

    /// The sender claims `ip` unasked: a gratuitous frame, or a request from that address.
    ///
    /// An *answer* to another host's question is no claim (fail-over spec R9): a former owner that still answers
    /// probes must not look like a claimant.
    pub fn is_claim_of(&self, ip: Ipv4Addr) -> bool {
        self.sender_ip == ip && (self.operation == Operation::Request || self.target_ip == ip)
    }

    /// Whether the sender answers a question for `ip`, so it is alive and has the address. A watcher asks the owner of
    /// a VIP this question.
    pub fn is_answer_for(&self, ip: Ipv4Addr) -> bool {
        self.operation == Operation::Reply && self.sender_ip == ip && self.target_ip != ip
    }

    /// The whole frame to `destination`, padding zero. The Ethernet source is the sender MAC.
    pub fn frame(&self, destination: Mac) -> Frame {
        self.frame_with(destination, &[0; PAYLOAD_LEN])
    }

    /// The whole frame to `destination` with `payload` in the padding; receivers that do not know the payload ignore
    /// it.
    pub fn frame_with(&self, destination: Mac, payload: &Payload) -> Frame {
        let header = EthernetHeader { destination, source: self.sender_mac, ethertype: ETHERTYPE_ARP };
        let operation: u16 = match self.operation {
            Operation::Request => 1,
            Operation::Reply => 2,
        };
        let mut frame = [0; MIN_FRAME_LEN];
        frame[..14].copy_from_slice(&header.bytes());
        frame[14..20].copy_from_slice(&PREAMBLE);
        frame[20..22].copy_from_slice(&operation.to_be_bytes());
        frame[22..28].copy_from_slice(&self.sender_mac.octets());
        frame[28..32].copy_from_slice(&self.sender_ip.octets());
        frame[32..38].copy_from_slice(&self.target_mac.octets());
        frame[38..42].copy_from_slice(&self.target_ip.octets());
        frame[HEADER_LEN + MESSAGE_LEN..].copy_from_slice(payload);
        frame
    }
}

/// A received ARP frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ArpFrame<'a> {
    /// Recipient and sender of the frame. The sender may differ from the message's sender MAC.
    pub ethernet: EthernetHeader,
    /// The message.
    pub arp: Arp,
    /// The bytes after the message: none from virtual interfaces, 18 zero bytes from most senders, a payload from the
    /// announcer.
    pub padding: &'a [u8],
}

impl<'a> ArpFrame<'a> {
    /// The payload, if the padding is long enough. It may be zero, or contain old memory of the sender.
    pub fn payload(&self) -> Option<&'a Payload> {
        self.padding.first_chunk()
    }
}

/// Reads a whole frame. `None` if it is no ARP request or reply for IPv4 over Ethernet.
pub fn parse_frame(frame: &[u8]) -> Option<ArpFrame<'_>> {
    let (ethernet, rest) = EthernetHeader::parse(frame)?;
    let (message, padding) = rest.split_first_chunk::<MESSAGE_LEN>()?;
    if ethernet.ethertype != ETHERTYPE_ARP || message[..6] != PREAMBLE {
        return None;
    }
    let operation = match u16::from_be_bytes([message[6], message[7]]) {
        1 => Operation::Request,
        2 => Operation::Reply,
        _ => return None,
    };
    let ip = |at: usize| Ipv4Addr::new(message[at], message[at + 1], message[at + 2], message[at + 3]);
    let arp = Arp {
        operation,
        sender_mac: Mac::read(&message[8..])?,
        sender_ip: ip(14),
        target_mac: Mac::read(&message[18..])?,
        target_ip: ip(24),
    };
    Some(ArpFrame { ethernet, arp, padding })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const US: Mac = Mac::new([0x02, 0, 0, 0, 0, 0x01]);
    const THEM: Mac = Mac::new([0x02, 0, 0, 0, 0, 0x02]);
    const VIP: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 10);
    const NODE: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);

    /// The bytes of a text of hexadecimal digits.
    fn bytes(text: &str) -> Vec<u8> {
        let digits: String = text.split_whitespace().collect();
        (0..digits.len()).step_by(2).map(|at| u8::from_str_radix(&digits[at..at + 2], 16).expect("digits")).collect()
    }

    #[test]
    fn frames_are_these_bytes() {
        let zeros = "000000000000000000000000000000000000";
        for (name, frame, expected) in [
            (
                "broadcast probe",
                Arp::probe(US, VIP).frame(Mac::BROADCAST),
                "ffffffffffff 020000000001 0806 0001 0800 06 04 0001 020000000001 00000000 000000000000 c000020a",
            ),
            (
                "unicast probe",
                Arp::probe(US, VIP).frame(THEM),
                "020000000002 020000000001 0806 0001 0800 06 04 0001 020000000001 00000000 000000000000 c000020a",
            ),
            (
                "who-has",
                Arp::who_has(US, NODE, VIP).frame(THEM),
                "020000000002 020000000001 0806 0001 0800 06 04 0001 020000000001 c0000201 000000000000 c000020a",
            ),
            (
                "gratuitous request",
                Arp::announcement_request(US, VIP).frame(Mac::BROADCAST),
                "ffffffffffff 020000000001 0806 0001 0800 06 04 0001 020000000001 c000020a 000000000000 c000020a",
            ),
            (
                "gratuitous reply: target MAC is the sender's",
                Arp::announcement_reply(US, VIP).frame(Mac::BROADCAST),
                "ffffffffffff 020000000001 0806 0001 0800 06 04 0002 020000000001 c000020a 020000000001 c000020a",
            ),
        ] {
            assert_eq!(frame.to_vec(), bytes(&format!("{expected}{zeros}")), "{name}");
        }
    }

    #[test]
    fn the_payload_fills_the_padding() {
        let payload: Payload = std::array::from_fn(|at| u8::try_from(at).expect("18 bytes") + 1);
        let plain = Arp::announcement_request(US, VIP).frame(THEM);
        let frame = Arp::announcement_request(US, VIP).frame_with(THEM, &payload);
        assert_eq!(frame[..42], plain[..42]);
        assert_eq!(frame[42..60], payload);
        assert_eq!(parse_frame(&frame).expect("our own frame").payload(), Some(&payload));
    }

    #[test]
    fn a_frame_without_padding_is_read_and_has_no_payload() {
        let frame = Arp::probe(US, VIP).frame(THEM);
        let parsed = parse_frame(&frame[..42]).expect("veth and virtio do not pad");
        assert_eq!(parsed.padding, []);
        assert_eq!(parsed.payload(), None);
        assert_eq!(parse_frame(&frame[..59]).expect("cut padding").payload(), None);
        assert_eq!(parse_frame(&frame[..41]), None);
    }

    #[test]
    fn other_protocols_and_operations_are_refused() {
        let good = Arp::probe(US, VIP).frame(THEM);
        // Ethertype, hardware type, protocol, both lengths, operation.
        for (at, value) in [(13, 0x00), (15, 6), (16, 0x86), (18, 20), (19, 16), (21, 3), (21, 0), (20, 1)] {
            let mut frame = good;
            frame[at] = value;
            assert_eq!(parse_frame(&frame), None, "byte {at} = {value}");
        }
        assert!(parse_frame(&good).is_some());
    }

    #[test]
    fn an_answer_to_a_question_is_no_claim_and_everything_else_from_the_address_is_one() {
        let probe = Arp::probe(US, VIP);
        let answer = Arp::answer(&probe, THEM);
        for (name, arp, claim, is_answer) in [
            ("probe", probe, false, false),
            ("answer to a probe", answer, false, true),
            ("answer to a request", Arp::answer(&Arp::who_has(US, NODE, VIP), THEM), false, true),
            ("gratuitous request", Arp::announcement_request(THEM, VIP), true, false),
            ("gratuitous reply", Arp::announcement_reply(THEM, VIP), true, false),
            ("request from the VIP", Arp::who_has(THEM, VIP, NODE), true, false),
            ("gratuitous request of another address", Arp::announcement_request(THEM, NODE), false, false),
            ("request for the VIP", Arp::who_has(THEM, NODE, VIP), false, false),
        ] {
            assert_eq!(arp.is_claim_of(VIP), claim, "{name}: claim");
            assert_eq!(arp.is_answer_for(VIP), is_answer, "{name}: answer");
        }
        assert!(probe.is_probe() && !answer.is_probe());
    }

    prop_compose! {
        fn any_arp()(
            reply: bool, sender_mac: [u8; 6], sender_ip: Ipv4Addr, target_mac: [u8; 6], target_ip: Ipv4Addr,
        ) -> Arp {
            Arp {
                operation: if reply { Operation::Reply } else { Operation::Request },
                sender_mac: sender_mac.into(),
                sender_ip,
                target_mac: target_mac.into(),
                target_ip,
            }
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_answered(frame: Vec<u8>) {
            let _ = parse_frame(&frame);
        }

        #[test]
        fn damaged_frames_are_answered(arp in any_arp(), at in 0..60_usize, value: u8, length in 0..=60_usize) {
            let mut frame = arp.frame(THEM);
            frame[at] = value;
            let _ = parse_frame(&frame[..length]);
        }

        #[test]
        fn what_is_built_is_read_back(arp in any_arp(), destination: [u8; 6], payload: Payload) {
            let frame = arp.frame_with(destination.into(), &payload);
            let parsed = parse_frame(&frame).expect("our own frame");
            prop_assert_eq!(parsed.arp, arp);
            prop_assert_eq!(parsed.payload(), Some(&payload));
            prop_assert_eq!(parsed.ethernet.destination, Mac::new(destination));
            prop_assert_eq!(parsed.ethernet.source, arp.sender_mac);
        }
    }
}
