//! Reads and makes the frames about addresses. Received frames become one small struct. Pure; the sockets are in
//! `listen.rs`.

use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use l2_types::Mac;
use l2_types::arp::{self, Arp};
use l2_types::ethernet::Payload;
use l2_types::ndp::{self, Message, Ndp};

/// Number and gap of the probes for an address before its first use, static or leased: frames of RFC 5227 with short
/// timers (decisions.md 22).
pub(crate) const PROBES: u8 = 3;
pub(crate) const PROBE_GAP: Duration = Duration::from_millis(10);

/// What a frame says about an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Heard {
    /// The sender says unasked that it has the address.
    Claim,
    /// The sender answers that it has the address.
    Answer,
    /// The sender asks whether the address is free, because it wants to use it.
    Probe,
}

/// One received frame about one address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame {
    /// Index of the interface that received it.
    pub link: u32,
    /// The address that the frame is about.
    pub address: IpAddr,
    /// The MAC at which the frame says the address is; for a probe, the MAC of the sender.
    pub mac: Mac,
    /// What the frame says.
    pub what: Heard,
    /// It was sent to this interface alone. An answer of that kind proves that frames arrive in both directions.
    pub to_us: bool,
    /// The bytes after the ARP or NDP message. In a claim they are term and tag (`claim`); in other frames they are
    /// zeros or missing. They count as missing if the frame was sent from another MAC than `mac`: an announcer claims
    /// from the MAC where the VIP is, and a host must not claim in another's name.
    pub payload: Option<Payload>,
}

/// Reads a frame; `None` if it is not about an address.
pub fn read(link: u32, bytes: &[u8]) -> Option<Frame> {
    if let Some(found) = arp::parse_frame(bytes) {
        let Arp { sender_ip, target_ip, sender_mac, .. } = found.arp;
        let (address, what) = if found.arp.is_probe() {
            (target_ip, Heard::Probe)
        } else if found.arp.is_claim_of(sender_ip) {
            (sender_ip, Heard::Claim)
        } else {
            (sender_ip, Heard::Answer)
        };
        let to_us = !found.ethernet.destination.is_multicast();
        let payload = found.payload().filter(|_| found.ethernet.source == sender_mac).copied();
        return Some(Frame { link, address: address.into(), mac: sender_mac, what, to_us, payload });
    }
    let found = ndp::parse_frame(bytes)?;
    let source_mac = found.ethernet.source;
    let Ndp { source, target, message, .. } = found.ndp;
    let (address, mac, what) = match message {
        Message::Solicitation { .. } if source.is_unspecified() => (target, source_mac, Heard::Probe),
        // The sender uses the address as its own source address.
        Message::Solicitation { .. } => (source, source_mac, Heard::Claim),
        Message::Advertisement { solicited, target_mac, .. } => {
            let what = if solicited { Heard::Answer } else { Heard::Claim };
            (target, target_mac.unwrap_or(source_mac), what)
        }
    };
    let to_us = !found.ethernet.destination.is_multicast();
    let payload = found.payload.filter(|_| source_mac == mac).copied();
    Some(Frame { link, address: address.into(), mac, what, to_us, payload })
}

/// The broadcast frames that announce where `address` is: for IPv4 a gratuitous ARP of both opcodes, because some
/// receivers heed only one of them (fail-over spec 5).
pub fn announcement(mac: Mac, address: IpAddr) -> Vec<Vec<u8>> {
    match address {
        IpAddr::V4(v4) => vec![
            Arp::announcement_reply(mac, v4).frame(Mac::BROADCAST).to_vec(),
            Arp::announcement_request(mac, v4).frame(Mac::BROADCAST).to_vec(),
        ],
        IpAddr::V6(v6) => {
            let ndp = Ndp::announcement(mac, v6);
            vec![ndp.frame(mac, ndp.group_mac().expect("it goes to a group"))]
        }
    }
}

/// The broadcast frame that asks whether any host has `address`, before this node uses it.
pub fn probe(mac: Mac, address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(v4) => Arp::probe(mac, v4).frame(Mac::BROADCAST).to_vec(),
        IpAddr::V6(v6) => {
            let ndp = Ndp::duplicate_detection(v6);
            ndp.frame(mac, ndp.group_mac().expect("it goes to a group"))
        }
    }
}

/// The frame that asks `to` whether it has `address`; [`Mac::BROADCAST`] asks the whole LAN. The answer comes to this
/// node alone.
///
/// For IPv4 the sender address is 0.0.0.0: hosts answer it with every ARP setting, and it leaves no entry in their ARP
/// cache. For IPv6 it is `source`, best the link-local address, because hosts do not answer `::` (fail-over spec
/// 5). `None` for IPv6 without a source.
pub fn question(mac: Mac, source: Option<Ipv6Addr>, address: IpAddr, to: Mac) -> Option<Vec<u8>> {
    match address {
        IpAddr::V4(v4) => Some(Arp::probe(mac, v4).frame(to).to_vec()),
        IpAddr::V6(v6) if to == Mac::BROADCAST => {
            let ndp = Ndp::multicast_probe(source?, mac, v6);
            Some(ndp.frame(mac, ndp.group_mac().expect("it goes to a group")))
        }
        IpAddr::V6(v6) => Some(Ndp::unicast_probe(source?, mac, v6).frame(mac, to)),
    }
}

/// The claim that tells the former owner `to` that `address` is at `mac` now. `payload` holds the tagged term.
pub fn claim(mac: Mac, address: IpAddr, to: Mac, payload: &Payload) -> Vec<u8> {
    match address {
        IpAddr::V4(v4) => Arp::announcement_request(mac, v4).frame_with(to, payload).to_vec(),
        IpAddr::V6(v6) => Ndp::announcement(mac, v6).frame_with(mac, to, payload),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAC: Mac = Mac::new([2, 0, 0, 0, 0, 1]);
    const OTHER: Mac = Mac::new([2, 0, 0, 0, 0, 9]);

    fn heard(bytes: &[u8]) -> Frame {
        let frame = read(7, bytes).expect("it is about an address");
        assert_eq!((frame.link, frame.mac), (7, MAC));
        frame
    }

    fn both() -> [IpAddr; 2] {
        ["10.0.0.5".parse().unwrap(), "fd00::5".parse().unwrap()]
    }

    #[test]
    fn our_own_frames_mean_what_they_should() {
        for address in both() {
            for bytes in announcement(MAC, address) {
                let frame = heard(&bytes);
                assert_eq!((frame.address, frame.what, frame.to_us), (address, Heard::Claim, false));
            }
            let frame = heard(&probe(MAC, address));
            assert_eq!((frame.address, frame.what, frame.to_us), (address, Heard::Probe, false));
        }
        assert_eq!(announcement(MAC, both()[0]).len(), 2, "both opcodes");
    }

    #[test]
    fn a_claim_reaches_the_loser_alone_and_carries_its_payload() {
        let payload = std::array::from_fn(|at| u8::try_from(at).unwrap() + 1);
        for address in both() {
            let frame = heard(&claim(MAC, address, OTHER, &payload));
            assert_eq!((frame.address, frame.what, frame.to_us), (address, Heard::Claim, true));
            assert_eq!(frame.payload, Some(payload));
        }
    }

    #[test]
    fn what_is_sent_in_the_name_of_another_mac_proves_nothing() {
        let payload = std::array::from_fn(|at| u8::try_from(at).unwrap() + 1);
        for address in both() {
            let mut forged = claim(MAC, address, OTHER, &payload);
            forged[6..12].copy_from_slice(&OTHER.octets());
            assert_eq!((heard(&forged).what, heard(&forged).payload), (Heard::Claim, None));
        }
    }

    #[test]
    fn an_answer_is_told_from_a_claim() {
        let question = Arp::probe(OTHER, "10.0.0.5".parse().unwrap());
        let frame = heard(&Arp::answer(&question, MAC).frame(OTHER));
        assert_eq!((frame.address.to_string().as_str(), frame.what, frame.to_us), ("10.0.0.5", Heard::Answer, true));
        let request = Arp::who_has(MAC, "10.0.0.5".parse().unwrap(), "10.0.0.1".parse().unwrap()).frame(Mac::BROADCAST);
        assert_eq!(heard(&request).what, Heard::Claim);
    }

    #[test]
    fn a_question_does_not_look_like_a_claim_of_what_it_asks_for() {
        let link_local = "fe80::1".parse().unwrap();
        for address in both() {
            for to in [Mac::BROADCAST, OTHER] {
                let bytes = question(MAC, Some(link_local), address, to).unwrap();
                let frame = read(7, &bytes).expect("it is about an address");
                assert!(frame.what != Heard::Claim || frame.address != address, "{frame:?}");
                assert_eq!(frame.to_us, to == OTHER);
            }
        }
        assert_eq!(question(MAC, None, both()[1], OTHER), None, "nobody answers ::");
    }

    proptest::proptest! {
        #[test]
        fn no_frame_makes_it_panic(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..200)) {
            let _ = read(1, &bytes);
        }
    }
}
