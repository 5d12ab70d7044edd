//! One function per reader. A broken promise is a panic.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::{Duration, Instant};

use announcer_core::claim::{Judge, Judgement, Key, tag};
use announcer_core::frames::{self, Heard};
use announcer_core::ownership::node::Term;
use announcer_core::view::Uid;
use etherparse::PacketBuilder;
use l2_types::Mac;
use l2_types::arp::{self, Arp};
use l2_types::ndp::{self, Ndp};

const US: Mac = Mac::new([2, 0, 0, 0, 0, 1]);
const THEM: Mac = Mac::new([2, 0, 0, 0, 0, 2]);
const VIP: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 5);
const SERVER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const VIP6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 5);
const LINK_LOCAL: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);
const SERVER6: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 2);

/// A reader, and valid input to begin with.
#[derive(Debug, Clone, Copy)]
pub struct Target {
    /// Its name, on the command line and in the corpus.
    pub name: &'static str,
    /// Reads one input.
    pub run: fn(&[u8]),
    /// Valid inputs.
    pub seeds: fn() -> Vec<Vec<u8>>,
}

/// All of them.
pub const TARGETS: [Target; 5] = [
    Target { name: "arp", run: arp, seeds: arp_seeds },
    Target { name: "ndp", run: ndp, seeds: ndp_seeds },
    Target { name: "claim", run: claim, seeds: claim_seeds },
    Target { name: "dhcp", run: dhcp, seeds: dhcp_seeds },
    Target { name: "dhcp6", run: dhcp6, seeds: dhcp6_seeds },
];

fn key() -> Key {
    Key::from(&Uid("0b6f2a5e-1c1d-4f6e-9a51-2f9a3cf0a001".to_owned()))
}

/// Whole frames: what is read means what was said, and is built again to the same bytes.
fn arp(bytes: &[u8]) {
    let Some(found) = arp::parse_frame(bytes) else {
        return;
    };
    let again = found.arp.frame_with(found.ethernet.destination, found.payload().unwrap_or(&[0; 18]));
    assert_eq!(again[14..42], bytes[14..42], "the message survives");
    let frame = frames::read(1, bytes).expect("a frame that is read says something");
    assert_eq!(frame.mac, found.arp.sender_mac);
    if frame.what == Heard::Answer {
        assert!(found.arp.is_answer_for(found.arp.sender_ip), "an answer, and no claim (R9)");
    }
}

fn arp_seeds() -> Vec<Vec<u8>> {
    let question = Arp::who_has(THEM, SERVER, VIP);
    vec![
        Arp::probe(THEM, VIP).frame(Mac::BROADCAST).to_vec(),
        question.frame(US).to_vec(),
        Arp::answer(&question, US).frame(THEM).to_vec(),
        Arp::announcement_request(THEM, VIP).frame(Mac::BROADCAST).to_vec(),
        Arp::announcement_reply(THEM, VIP).frame(Mac::BROADCAST).to_vec(),
    ]
}

/// Whole frames; the checksum and the length are put right, or nearly nothing would be read.
fn ndp(bytes: &[u8]) {
    let _ = frames::read(1, bytes);
    let mut bytes = bytes.to_vec();
    if bytes.len() >= 78 {
        let length = u16::try_from(bytes.len() - 54).unwrap_or(u16::MAX);
        bytes[18..20].copy_from_slice(&length.to_be_bytes());
        bytes[56..58].fill(0);
        let mut pseudo = bytes[22..54].to_vec();
        pseudo.extend([0, 0]);
        pseudo.extend(length.to_be_bytes());
        pseudo.extend([0, 0, 0, 58]);
        pseudo.extend(&bytes[54..]);
        let sum = checksum(&pseudo);
        bytes[56..58].copy_from_slice(&sum.to_be_bytes());
    }
    let Some(found) = ndp::parse_frame(&bytes) else {
        return;
    };
    // RFC 4861 7.1.
    assert_eq!(bytes[21], 255, "it came through no router");
    assert!(!found.ndp.target.is_multicast());
    let frame = frames::read(1, &bytes).expect("a frame that is read says something");
    assert!(frame.address == IpAddr::V6(found.ndp.target) || frame.address == IpAddr::V6(found.ndp.source));
}

fn checksum(bytes: &[u8]) -> u16 {
    let mut sum: u32 =
        bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | pair.get(1).copied().map_or(0, u32::from)).sum();
    while sum > 0xffff {
        sum = (sum >> 16) + (sum & 0xffff);
    }
    !u16::try_from(sum).expect("it was folded")
}

fn ndp_seeds() -> Vec<Vec<u8>> {
    let announcement = Ndp::announcement(THEM, VIP6);
    let detection = Ndp::duplicate_detection(VIP6);
    vec![
        announcement.frame(THEM, announcement.group_mac().expect("a group")),
        announcement.frame_with(THEM, US, &tag::seal(&key(), VIP6.into(), THEM, Term(9))),
        detection.frame(THEM, detection.group_mac().expect("a group")),
        Ndp::unicast_probe(LINK_LOCAL, THEM, VIP6).frame(THEM, US),
    ]
}

/// Whole frames that may be claims: nobody withdraws for what was not made with the key.
fn claim(bytes: &[u8]) {
    let Some(frame) = frames::read(1, bytes) else {
        return;
    };
    let mut judge = Judge::default();
    let judgement = judge.judge(Instant::now(), &frame, &[key()], Term(7));
    if let Judgement::Concede(term) | Judgement::Outdated(term) = judgement {
        let sealed = tag::seal(&key(), frame.address, frame.mac, term);
        assert_eq!(frame.payload, Some(sealed), "only a seal of ours is believed");
        // The seeds know the key, and have sealed these two for these two addresses.
        assert!([Term(6), Term(8)].contains(&term) && frame.mac == THEM, "forged: {frame:?}");
    }
}

fn claim_seeds() -> Vec<Vec<u8>> {
    let claim = |vip: IpAddr, term| frames::claim(THEM, vip, US, &tag::seal(&key(), vip, THEM, Term(term)));
    vec![claim(VIP.into(), 6), claim(VIP.into(), 8), claim(VIP6.into(), 6), claim(VIP6.into(), 8)]
}

const HOUR: Duration = Duration::from_hours(1);

/// What a DHCP server says, from the fixed part of the message on: as offer, ACK and NAK to a client that asks. Its
/// transaction and MAC are put right.
fn dhcp(bytes: &[u8]) {
    use dhcp_client::{Client, Config, Input, Output, frame};
    let _ = frame::parse(bytes);
    let mac = US;
    let mut now = Instant::now();
    let mut client = Client::new(Config::new(mac), now, 7).expect("a good configuration");
    let mut outputs = client.step(now, Input::Start);
    outputs.extend(client.step(now, Input::Frame(bytes)));
    for kind in [2, 5, 6, 5] {
        let mut probed = None;
        let mut xid = None;
        for _ in 0..3 {
            for output in outputs.drain(..) {
                match output {
                    Output::Send(frame) => {
                        let datagram = frame::parse(&frame).expect("what we send is well-formed");
                        assert!(datagram.payload.len() >= 240, "a whole message");
                        xid = datagram.payload.get(4..8).map(<[u8]>::to_vec);
                    }
                    Output::Probe(address) => probed = Some(address),
                    Output::Bound(lease) | Output::Renewed(lease) => {
                        let address = lease.address;
                        assert!(!address.is_unspecified() && !address.is_multicast() && !address.is_broadcast());
                    }
                    Output::Lost { .. } | Output::Report(_) => {}
                }
            }
            if xid.is_some() {
                break;
            }
            now = client.deadline().map_or(now, |at| at.max(now).min(now + HOUR));
            outputs = client.step(now, Input::Timer);
        }
        let mut reply = bytes.to_vec();
        if let (Some(xid), true) = (xid, reply.len() >= 240) {
            reply[4..8].copy_from_slice(&xid);
            reply[28..34].copy_from_slice(&US.octets());
            let option = reply.windows(2).skip(240).position(|pair| pair == [53, 1]);
            if let Some(byte) = option.and_then(|at| reply.get_mut(240 + at + 2)) {
                *byte = kind;
            }
        }
        let mut wrapped = Vec::new();
        let builder = PacketBuilder::ethernet2(THEM.octets(), US.octets())
            .ipv4(SERVER.octets(), [255; 4], 64)
            .udp(frame::SERVER_PORT, frame::CLIENT_PORT);
        builder.write(&mut wrapped, &reply).expect("inputs are short");
        outputs = client.step(now, Input::Frame(&wrapped));
        if let Some(address) = probed {
            outputs.extend(client.step(now, Input::ProbeFree(address)));
        }
        now += Duration::from_secs(1);
    }
}

fn dhcp_seeds() -> Vec<Vec<u8>> {
    let fixed = |options: &[u8]| {
        let mut message = vec![2, 1, 6, 0];
        message.resize(236, 0);
        message[16..20].copy_from_slice(&VIP.octets());
        message.extend([99, 130, 83, 99]);
        message.extend(options);
        message.push(255);
        message
    };
    let [a, b, c, d] = SERVER.octets();
    let full = [
        &[53, 1, 2, 54, 4, a, b, c, d, 51, 4, 0, 0, 14, 16, 58, 4, 0, 0, 7, 8, 59, 4, 0, 0, 12, 78][..],
        &[1, 4, 255, 255, 255, 0, 3, 4, a, b, c, d],
    ]
    .concat();
    vec![
        fixed(&full),
        fixed(&[53, 1, 5, 54, 4, a, b, c, d, 51, 4, 255, 255, 255, 255]),
        fixed(&[53, 1, 6, 54, 4, a, b, c, d, 56, 3, b'n', b'o', 27]),
        fixed(&[0, 0, 53, 1, 2, 52, 1, 3, 82, 2, 1, 0]),
    ]
}

/// What a DHCPv6 server says: its transaction is put right, and each type of message is tried.
fn dhcp6(bytes: &[u8]) {
    use dhcp_client::v6::{Client, Config, Input, Output, frame, service_duid};
    let _ = frame::parse(bytes);
    let now = Instant::now();
    let config = Config {
        duid: service_duid("0b6f2a5e-1c1d-4f6e-9a51-2f9a3cf0a001"),
        mac: US,
        source: LINK_LOCAL,
        requested: None,
        remembered: None,
    };
    let mut client = Client::new(config, 7).expect("a good configuration");
    let mut now = now;
    let mut outputs = client.step(now, Input::Start);
    outputs.extend(client.step(now, Input::Frame(bytes)));
    for kind in [2, 7, 7, 13] {
        let (mut probed, mut sent) = (None, None);
        for _ in 0..3 {
            for output in outputs.drain(..) {
                match output {
                    Output::Send(bytes) => sent = Some(bytes),
                    Output::Probe(address) => probed = Some(address),
                    Output::Bound(lease) | Output::Renewed(lease) => {
                        assert!(!lease.address.is_unspecified() && !lease.address.is_multicast());
                    }
                    Output::Lost { .. } | Output::Report(_) => {}
                }
            }
            if sent.is_some() {
                break;
            }
            now = client.deadline().map_or(now, |at| at.max(now).min(now + HOUR));
            outputs = client.step(now, Input::Timer);
        }
        let mut reply = bytes.to_vec();
        // Behind the headers of Ethernet, IPv6 and UDP: the type, then the transaction.
        if let (Some([_, transaction @ ..]), [first, rest @ ..]) =
            (sent.as_deref().and_then(|frame| frame.get(62..66)), &mut reply[..])
            && rest.len() >= 3
        {
            *first = kind;
            rest[..3].copy_from_slice(transaction);
        }
        let mut wrapped = Vec::new();
        let builder = PacketBuilder::ethernet2(THEM.octets(), US.octets())
            .ipv6(SERVER6.octets(), LINK_LOCAL.octets(), 64)
            .udp(547, 546);
        builder.write(&mut wrapped, &reply).expect("inputs are short");
        outputs = client.step(now, Input::Frame(&wrapped));
        if let Some(address) = probed {
            outputs.extend(client.step(now, Input::ProbeFree(address)));
        }
        now += Duration::from_secs(1);
    }
}

fn dhcp6_seeds() -> Vec<Vec<u8>> {
    let duid = dhcp_client::v6::service_duid("0b6f2a5e-1c1d-4f6e-9a51-2f9a3cf0a001");
    let option = |kind: u8, value: &[u8]| {
        let length = u8::try_from(value.len()).expect("a short option");
        [&[0, kind, 0, length][..], value].concat()
    };
    let address = option(5, &[&VIP6.octets()[..], &[0, 0, 7, 8, 0, 0, 14, 16]].concat());
    let identity = |inner: &[u8]| option(3, &[&[0, 0, 0, 1, 0, 0, 3, 132, 0, 0, 5, 160][..], inner].concat());
    let message = |inner: &[u8]| {
        [&[2, 0, 0, 0][..], &option(1, &duid), &option(2, &[0, 1, 0, 1, 9, 9, 9, 9]), &identity(inner)].concat()
    };
    vec![message(&address), message(&option(13, &[0, 2, b'n', b'o'])), message(&[])]
}
