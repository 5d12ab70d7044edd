//! A connection that is begun by hand: what a kernel at the other end answers, and what is left of it.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};

use etherparse::{Icmpv4Type, Icmpv6Type, PacketBuilder, icmpv4, icmpv6};
use l2::handshake::{Handshake, PORTS, Reply, SynAnswer, parse_frame};
use l2::{PacketSocket, Traffic};

use crate::lan::{FAR, Lan, NEAR, PATIENCE, SILENCE, Side, eventually, on_a_lan};

fn handshake(source: &str, vip: &str, port: u16, number: u16) -> Handshake {
    Handshake {
        source_mac: NEAR,
        destination_mac: FAR,
        source: SocketAddr::new(source.parse().expect("an address"), PORTS.start() + number),
        destination: SocketAddr::new(vip.parse().expect("an address"), port),
        sequence: 0xffff_ffff,
    }
}

/// IPv4 and IPv6: our address, the far side's, and the socket for it.
const BOTH: [(&str, &str, Traffic); 2] =
    [("192.0.2.1", "192.0.2.10", Traffic::Handshake), ("2001:db8::1", "2001:db8::a", Traffic::Handshake6)];

async fn addresses(near: &Side, far: &Side) {
    for net in ["192.0.2.1/24", "2001:db8::1/64"] {
        near.plain_address(net).await;
    }
    for net in ["192.0.2.10/24", "2001:db8::a/64"] {
        far.plain_address(net).await;
    }
}

/// The far side serves port 80 of `vip`, and this side hears what it answers.
fn served(near: &Side, far: &Side, vip: &str, traffic: Traffic) -> (TcpListener, PacketSocket) {
    let at = SocketAddr::new(vip.parse().expect("an address"), 80);
    let listener = far.open(near, || TcpListener::bind(at)).expect("listen");
    (listener, PacketSocket::open(near.index, traffic).expect("socket"))
}

async fn asked(socket: &PacketSocket, asks: &Handshake) -> Option<SynAnswer> {
    socket.send(&asks.syn()).await.expect("send");
    let frame = tokio::time::timeout(SILENCE * 5, socket.next::<512>()).await.ok()?.expect("receive");
    let reply = parse_frame(&frame).expect("an answer");
    let expected = Reply { asked: asks.destination, asker: asks.source, sequence: asks.sequence, answer: reply.answer };
    assert_eq!(reply, expected);
    Some(reply.answer)
}

/// Connections that the far side waits for, by the kernel's own table: state 3 is SYN_RECV.
fn half_open(near: &Side, far: &Side) -> usize {
    let read = || -> io::Result<String> {
        let table = |name| std::fs::read_to_string(format!("/proc/thread-self/net/{name}"));
        Ok(table("tcp")? + &table("tcp6")?)
    };
    let tables = far.open(near, read).expect("tables of sockets");
    tables.lines().filter(|line| line.split_whitespace().nth(3) == Some("03")).count()
}

#[test]
fn a_port_that_somebody_serves_accepts_one_that_nobody_does_refuses_and_a_stranger_is_silent() {
    on_a_lan(async |Lan { near, far }| {
        addresses(&near, &far).await;
        for (ours, vip, traffic) in BOTH {
            let (_listener, socket) = served(&near, &far, vip, traffic);
            let stranger = if traffic == Traffic::Handshake { "192.0.2.77" } else { "2001:db8::77" };
            for (number, vip, port, expected) in [
                (0, vip, 80, Some(SynAnswer::Accepted)),
                (1, vip, 81, Some(SynAnswer::Refused)),
                (2, stranger, 80, None),
                (255, vip, 80, Some(SynAnswer::Accepted)),
            ] {
                let asks = handshake(ours, vip, port, number);
                assert_eq!(asked(&socket, &asks).await, expected, "{vip} {port}");
                if expected == Some(SynAnswer::Accepted) {
                    socket.send(&asks.reset()).await.expect("send");
                }
            }
            eventually("nothing is left half open", async || half_open(&near, &far) == 0).await;
        }
    });
}

#[test]
fn the_asking_kernel_ends_what_it_knows_nothing_of_even_without_our_reset() {
    on_a_lan(async |Lan { near, far }| {
        addresses(&near, &far).await;
        for (ours, vip, traffic) in BOTH {
            let (_listener, socket) = served(&near, &far, vip, traffic);
            assert_eq!(asked(&socket, &handshake(ours, vip, 80, 7)).await, Some(SynAnswer::Accepted));
            eventually("nothing is left half open", async || half_open(&near, &far) == 0).await;
        }
    });
}

/// What a packet filter sends that rejects `asks`, with so much of it repeated.
fn rejection(asks: &Handshake) -> Vec<u8> {
    let quoted = &asks.syn()[14..];
    let mut frame = Vec::new();
    let ethernet = PacketBuilder::ethernet2(FAR.octets(), NEAR.octets());
    match (asks.destination.ip(), asks.source.ip()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let kind = Icmpv4Type::DestinationUnreachable(icmpv4::DestUnreachableHeader::Port);
            let ip = ethernet.ipv4(from.octets(), to.octets(), 64);
            ip.icmpv4(kind).write(&mut frame, &quoted[..44]).expect("a short packet");
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            let kind = Icmpv6Type::DestinationUnreachable(icmpv6::DestUnreachableCode::Port);
            let ip = ethernet.ipv6(from.octets(), to.octets(), 64);
            ip.icmpv6(kind).write(&mut frame, quoted).expect("a short packet");
        }
        _ => unreachable!("of one family"),
    }
    frame
}

/// A segment to one of our ports.
fn segment(vip: &str, ours: &str, port: u16) -> Vec<u8> {
    let mut frame = Vec::new();
    let ethernet = PacketBuilder::ethernet2(FAR.octets(), NEAR.octets());
    let (from, to): (IpAddr, IpAddr) = (vip.parse().expect("an address"), ours.parse().expect("an address"));
    let ip = match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => ethernet.ipv4(from.octets(), to.octets(), 64),
        (IpAddr::V6(from), IpAddr::V6(to)) => ethernet.ipv6(from.octets(), to.octets(), 64),
        _ => unreachable!("of one family"),
    };
    ip.tcp(80, port, 1, 1000).syn().ack(8).write(&mut frame, &[]).expect("a short packet");
    frame
}

#[test]
fn a_socket_hears_answers_to_its_ports_and_rejections_only() {
    on_a_lan(async |Lan { near, far }| {
        for (ours, vip, traffic) in BOTH {
            let socket = PacketSocket::open(near.index, traffic).expect("socket");
            let sender = far.open(&near, || PacketSocket::open(far.index, traffic)).expect("socket");
            let asks = handshake(ours, vip, 80, 0);
            let elsewhere = Handshake { source: SocketAddr::new(asks.source.ip(), PORTS.start() - 1), ..asks };
            let mut echo = rejection(&asks);
            // An echo reply, which repeats nothing.
            echo[if vip.contains(':') { 54 } else { 34 }] = if vip.contains(':') { 129 } else { 0 };
            let frames = [
                ("below our ports", segment(vip, ours, PORTS.start() - 1), false),
                ("above our ports", segment(vip, ours, PORTS.end() + 1), false),
                ("of another question", rejection(&elsewhere), false),
                ("another message", echo, false),
                ("too short", segment(vip, ours, *PORTS.start())[..34].to_vec(), false),
                ("the first port", segment(vip, ours, *PORTS.start()), true),
                ("the last port", segment(vip, ours, *PORTS.end()), true),
                ("a rejection", rejection(&asks), true),
            ];
            for (_, frame, _) in &frames {
                sender.send(frame).await.expect("send");
            }
            for (name, frame, _) in frames.iter().filter(|(_, _, wanted)| *wanted) {
                let heard = tokio::time::timeout(PATIENCE, socket.next::<512>()).await.expect(name).expect("receive");
                assert_eq!(heard, *frame, "{name}");
                assert!(parse_frame(&heard).is_some(), "{name}");
            }
            let more = tokio::time::timeout(SILENCE, socket.next::<512>()).await;
            assert!(more.is_err(), "heard more than it should: {more:?}");
        }
    });
}
