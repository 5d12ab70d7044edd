//! Our frames as a kernel at the other end of the cable understands them (fail-over spec 5).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use l2::{
    Mac, PacketSocket, Traffic,
    arp::{self, Arp},
    ethernet::PAYLOAD_LEN,
    ndp::{self, Message, Ndp},
    netlink::{AddressLifetime, InetConfChange},
};

use crate::lan::{FAR, Lan, NEAR, PATIENCE, SILENCE, Side, VIP_MAC, eventually, macvlan, on_a_lan};

const VIP: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 10);
const VIP6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0xa);

async fn hold(side: &Side, interface: u32, ip: impl Into<IpAddr>) {
    side.netlink.set_address(interface, IpNet::from(ip.into()), AddressLifetime::Forever).await.expect("hold");
}

/// All ARP answers for the VIP until it is quiet.
async fn answers(socket: &PacketSocket) -> Vec<Mac> {
    let (mut buffer, mut all) = ([0; 2048], Vec::new());
    while let Ok(length) = tokio::time::timeout(SILENCE, socket.recv(&mut buffer)).await {
        let frame = arp::parse_frame(&buffer[..length.expect("receive")]).expect("an ARP frame");
        if frame.arp.is_answer_for(VIP) {
            all.push(frame.arp.sender_mac);
        }
    }
    all
}

#[test]
fn a_probe_is_answered_to_us_alone() {
    on_a_lan(async |Lan { near, far }| {
        hold(&far, far.index, VIP).await;
        let socket = PacketSocket::open(near.index, Traffic::Arp).expect("socket");
        for destination in [Mac::BROADCAST, FAR] {
            socket.send(&Arp::probe(NEAR, VIP).frame(destination)).await.expect("send");
            let mut buffer = [0; 2048];
            let length =
                tokio::time::timeout(PATIENCE, socket.recv(&mut buffer)).await.expect("an answer").expect("receive");
            let frame = arp::parse_frame(&buffer[..length]).expect("an ARP frame");
            assert_eq!(frame.arp, Arp::answer(&Arp::probe(NEAR, VIP), FAR));
            assert_eq!((frame.ethernet.source, frame.ethernet.destination), (FAR, NEAR));
        }
        // The kernel notes nobody who asks with sender 0.0.0.0.
        assert_eq!(far.neighbour(Ipv4Addr::UNSPECIFIED.into()).await, None);
    });
}

#[test]
fn nobody_answers_for_an_address_that_nobody_has() {
    on_a_lan(async |Lan { near, .. }| {
        let socket = PacketSocket::open(near.index, Traffic::Arp).expect("socket");
        socket.send(&Arp::probe(NEAR, VIP).frame(Mac::BROADCAST)).await.expect("send");
        assert_eq!(answers(&socket).await, []);
    });
}

#[test]
fn with_arp_ignore_only_the_macvlan_answers_for_its_address() {
    on_a_lan(async |Lan { near, far }| {
        let macvlan = near.netlink.add_macvlan(&macvlan(&near)).await.expect("macvlan");
        hold(&near, macvlan, VIP).await;
        let socket = far.open(&near, || PacketSocket::open(far.index, Traffic::Arp)).expect("socket");
        let probe = Arp::probe(FAR, VIP).frame(Mac::BROADCAST);

        let arp_ignore = |value| InetConfChange { arp_ignore: Some(value), ..Default::default() };
        near.netlink.set_inet_conf(near.index, arp_ignore(0)).await.expect("set");
        socket.send(&probe).await.expect("send");
        let mut both = answers(&socket).await;
        both.sort();
        assert_eq!(both, [VIP_MAC, NEAR], "without it both answer");

        near.netlink.set_inet_conf(near.index, arp_ignore(1)).await.expect("set");
        socket.send(&probe).await.expect("send");
        assert_eq!(answers(&socket).await, [VIP_MAC], "the setting takes effect");
    });
}

#[test]
fn an_announcement_moves_a_neighbour_entry_at_once_even_twice_within_a_second() {
    on_a_lan(async |Lan { near, far }| {
        far.plain_address("192.0.2.2/24").await;
        hold(&near, near.index, VIP).await;
        // The far kernel learns the VIP by asking for it.
        let socket = far.open(&near, || std::net::UdpSocket::bind("192.0.2.2:0")).expect("socket");
        socket.send_to(b"?", (VIP, 9)).expect("send");
        eventually("far knows the VIP", async || far.neighbour(VIP.into()).await == Some(NEAR)).await;

        let wire = PacketSocket::open(near.index, Traffic::Arp).expect("socket");
        let payload = [0x5a; PAYLOAD_LEN];
        for (last, reply) in [(1, true), (2, false), (3, true)] {
            let mac = Mac::new([0x02, 0, 0, 0, 1, last]);
            let arp = if reply { Arp::announcement_reply(mac, VIP) } else { Arp::announcement_request(mac, VIP) };
            // A payload is in nobody's way.
            wire.send(&arp.frame_with(Mac::BROADCAST, &payload)).await.expect("send");
            eventually("the entry moves", async || far.neighbour(VIP.into()).await == Some(mac)).await;
        }
    });
}

#[test]
fn an_announcement_moves_an_ipv6_neighbour_entry_payload_or_not() {
    on_a_lan(async |Lan { near, far }| {
        far.plain_address("2001:db8::2/64").await;
        hold(&near, near.index, VIP6).await;
        let socket = far.open(&near, || std::net::UdpSocket::bind("[2001:db8::2]:0")).expect("socket");
        socket.send_to(b"?", (VIP6, 9)).expect("send");
        eventually("far knows the VIP", async || far.neighbour(VIP6.into()).await == Some(NEAR)).await;

        let wire = PacketSocket::open(near.index, Traffic::NeighborDiscovery).expect("socket");
        for last in [1, 2] {
            let mac = Mac::new([0x02, 0, 0, 0, 1, last]);
            let announcement = Ndp::announcement(mac, VIP6);
            let group = announcement.group_mac().expect("to all nodes");
            let frame = match last {
                1 => announcement.frame(mac, group),
                _ => announcement.frame_with(mac, group, &[0x5a; PAYLOAD_LEN]),
            };
            wire.send(&frame).await.expect("send");
            eventually("the entry moves", async || far.neighbour(VIP6.into()).await == Some(mac)).await;
        }
    });
}

#[test]
fn solicitations_are_answered_as_the_protocol_expects() {
    on_a_lan(async |Lan { near, far }| {
        hold(&far, far.index, VIP6).await;
        let link_local = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0x77);
        hold(&near, near.index, link_local).await;
        let socket = PacketSocket::open(near.index, Traffic::NeighborDiscovery).expect("socket");
        for (name, probe, answered_to) in [
            ("unicast", Ndp::unicast_probe(link_local, NEAR, VIP6), link_local),
            ("to the group", Ndp::multicast_probe(link_local, NEAR, VIP6), link_local),
            ("from nobody", Ndp::duplicate_detection(VIP6), "ff02::1".parse().expect("an address")),
        ] {
            let destination = probe.group_mac().unwrap_or(FAR);
            let answer = async {
                let mut buffer = [0; 2048];
                loop {
                    // Again and again: the far kernel sets up an IPv6 address behind the back of who asked for it.
                    socket.send(&probe.frame(NEAR, destination)).await.expect("send");
                    let Ok(length) = tokio::time::timeout(SILENCE, socket.recv(&mut buffer)).await else { continue };
                    let frame = ndp::parse_frame(&buffer[..length.expect("receive")]).expect("a valid frame");
                    // It also looks for neighbours of its own, and answers of the probe before may be left.
                    if frame.ndp.target == VIP6
                        && frame.ndp.destination == answered_to
                        && matches!(frame.ndp.message, Message::Advertisement { .. })
                    {
                        return (frame.ndp, frame.ethernet.source);
                    }
                }
            };
            let (ndp, source) =
                tokio::time::timeout(PATIENCE, answer).await.unwrap_or_else(|_| panic!("no answer: {name}"));
            assert_eq!(source, FAR, "{name}");
            assert_eq!(ndp.is_answer_for(VIP6), answered_to == link_local, "{name}: {ndp:?}");
        }
    });
}

/// What a claim of a new owner does at the old one: its process hears it whole, its kernel does nothing. Only the
/// process can withdraw (fail-over spec 5).
#[test]
fn a_claim_reaches_the_holder_whole_and_its_kernel_neither_answers_nor_withdraws() {
    on_a_lan(async |Lan { near, far }| {
        let payload = std::array::from_fn(|at| u8::try_from(at).expect("18 bytes") + 1);
        hold(&far, far.index, VIP).await;
        hold(&far, far.index, VIP6).await;
        for (traffic, claim) in [
            (Traffic::Arp, Arp::announcement_request(NEAR, VIP).frame_with(FAR, &payload).to_vec()),
            (Traffic::NeighborDiscovery, Ndp::announcement(NEAR, VIP6).frame_with(NEAR, FAR, &payload)),
        ] {
            let socket = PacketSocket::open(near.index, traffic).expect("socket");
            let loser = far.open(&near, || PacketSocket::open(far.index, traffic)).expect("socket");
            socket.send(&claim).await.expect("send");
            let mut buffer = [0; 2048];
            let heard = async {
                loop {
                    let length = loser.recv(&mut buffer).await.expect("receive");
                    if buffer[..length] == claim[..] {
                        return;
                    }
                }
            };
            tokio::time::timeout(PATIENCE, heard).await.expect("the claim as it was sent");
        }
        let held = far.netlink.addresses(Some(far.index)).await.expect("addresses");
        for vip in [IpAddr::from(VIP), IpAddr::from(VIP6)] {
            assert!(held.iter().any(|address| address.net.addr() == vip), "{vip} is still there");
        }
        let socket = PacketSocket::open(near.index, Traffic::Arp).expect("socket");
        socket.send(&Arp::probe(NEAR, VIP).frame(FAR)).await.expect("send");
        assert_eq!(answers(&socket).await, [FAR], "and still answered for, to the probe alone");
    });
}
