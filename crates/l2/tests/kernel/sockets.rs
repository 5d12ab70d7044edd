//! Packet sockets: what they hear and what not.

use std::{io, net::Ipv4Addr, thread};

use etherparse::PacketBuilder;
use l2::{Mac, PacketSocket, Traffic, arp::Arp, ndp::Ndp};
use rtnetlink::{LinkBridge, LinkUnspec, LinkVlan};

use crate::lan::{FAR, Lan, NEAR, PATIENCE, SILENCE, Side, VIP_MAC, eventually, macvlan, on_a_lan, skipped};

const VIP: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 10);
const OTHER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 11);

/// A UDP datagram to the near side, as a DHCP server sends it.
fn datagram(port: u16, payload: &[u8]) -> Vec<u8> {
    let builder =
        PacketBuilder::ethernet2(FAR.octets(), NEAR.octets()).ipv4([192, 0, 2, 2], [192, 0, 2, 10], 64).udp(67, port);
    let mut frame = Vec::new();
    builder.write(&mut frame, payload).expect("a short datagram");
    frame
}

async fn next(socket: &PacketSocket) -> Vec<u8> {
    let mut buffer = [0; 2048];
    let length = tokio::time::timeout(PATIENCE, socket.recv(&mut buffer)).await.expect("a frame").expect("receive");
    buffer[..length].to_vec()
}

/// Sends all frames from the far side, in this order; the near socket must hear the wanted ones and nothing else.
async fn hears(near: &PacketSocket, far: &PacketSocket, frames: &[(&str, Vec<u8>, bool)]) {
    for (_, frame, _) in frames {
        far.send(frame).await.expect("send");
    }
    for (name, frame, _) in frames.iter().filter(|(_, _, wanted)| *wanted) {
        assert_eq!(next(near).await, *frame, "{name}");
    }
    let mut buffer = [0; 2048];
    let silence = tokio::time::timeout(SILENCE, near.recv(&mut buffer)).await;
    assert!(silence.is_err(), "heard more than it should: {:?}", &buffer[..64]);
}

fn with_bytes(frame: &[u8], at: usize, bytes: &[u8]) -> Vec<u8> {
    let mut frame = frame.to_vec();
    frame[at..at + bytes.len()].copy_from_slice(bytes);
    frame
}

#[test]
fn an_arp_socket_hears_arp_of_its_own_lan_for_this_station() {
    on_a_lan(async |Lan { near, far }| {
        let socket = PacketSocket::open(near.index, Traffic::Arp).expect("socket");
        let sender = far.open(&near, || PacketSocket::open(far.index, Traffic::Arp)).expect("socket");
        let broadcast = Arp::probe(FAR, VIP).frame(Mac::BROADCAST).to_vec();
        let mut tagged = broadcast.clone();
        // VLAN 7, which has no interface here.
        tagged.splice(12..12, [0x81, 0x00, 0x00, 0x07]);
        hears(
            &socket,
            &sender,
            &[
                ("IPv4", datagram(68, b"hello"), false),
                ("another VLAN", tagged, false),
                ("for another station", Arp::probe(FAR, VIP).frame(Mac::new([0x02, 0, 0, 0, 0, 9])).to_vec(), false),
                ("a detector's question", Arp::probe(FAR, VIP).frame(NEAR).to_vec(), false),
                ("broadcast", broadcast, true),
                ("a claim for us", Arp::announcement_request(FAR, VIP).frame(NEAR).to_vec(), true),
                ("a claim for us, as a reply", Arp::announcement_reply(FAR, VIP).frame(NEAR).to_vec(), true),
                ("an answer", Arp::answer(&Arp::probe(NEAR, VIP), FAR).frame(NEAR).to_vec(), true),
                ("somebody's own request", Arp::who_has(FAR, VIP, OTHER).frame(NEAR).to_vec(), true),
            ],
        )
        .await;
    });
}

async fn index_of(side: &Side, name: &str) -> u32 {
    side.netlink.link_by_name(name).await.expect("look up").expect("it is there").index
}

#[test]
fn a_socket_hears_nothing_that_is_for_a_macvlan_above_its_interface() {
    on_a_lan(async |Lan { near, far }| {
        let macvlan = near.netlink.add_macvlan(&macvlan(&near)).await.expect("macvlan");
        let below = PacketSocket::open(near.index, Traffic::Arp).expect("socket");
        let above = PacketSocket::open(macvlan, Traffic::Arp).expect("socket");
        let sender = far.open(&near, || PacketSocket::open(far.index, Traffic::Arp)).expect("socket");
        let claim = |to| Arp::announcement_request(FAR, VIP).frame(to).to_vec();
        hears(
            &below,
            &sender,
            &[
                ("for the macvlan", claim(VIP_MAC), false),
                ("for us", claim(NEAR), true),
                ("for all", claim(Mac::BROADCAST), true),
            ],
        )
        .await;
        assert_eq!([next(&above).await, next(&above).await], [claim(VIP_MAC), claim(Mac::BROADCAST)]);
    });
}

#[test]
fn a_socket_hears_nothing_of_a_vlan_that_has_an_interface_here() {
    let test = thread::current();
    on_a_lan(async move |Lan { near, far }| {
        const NOT_SUPPORTED: i32 = -95;
        let vlan = LinkVlan::new("near.7", near.index, 7).up().build();
        match near.handle().link().add(vlan).execute().await {
            Err(rtnetlink::Error::NetlinkError(error)) if error.raw_code() == NOT_SUPPORTED => {
                skipped(&test, "this kernel has no VLAN interfaces (module 8021q)");
                return;
            }
            made => made.expect("a VLAN"),
        }
        let below = PacketSocket::open(near.index, Traffic::Arp).expect("socket");
        let above = PacketSocket::open(index_of(&near, "near.7").await, Traffic::Arp).expect("socket");
        let sender = far.open(&near, || PacketSocket::open(far.index, Traffic::Arp)).expect("socket");
        let untagged = Arp::probe(FAR, VIP).frame(Mac::BROADCAST).to_vec();
        let mut tagged = untagged.clone();
        tagged.splice(12..12, [0x81, 0x00, 0x00, 0x07]);
        hears(&below, &sender, &[("of the VLAN", tagged, false), ("of our LAN", untagged.clone(), true)]).await;
        assert_eq!(next(&above).await, untagged);
    });
}

#[test]
fn a_socket_on_a_bridge_hears_what_its_port_receives() {
    on_a_lan(async |Lan { near, far }| {
        let links = near.handle().link();
        links.add(LinkBridge::new("bridge").build()).execute().await.expect("a bridge");
        let bridge = index_of(&near, "bridge").await;
        let port = LinkUnspec::new_with_index(near.index).controller(bridge).build();
        links.change(port).execute().await.expect("a port");
        eventually("the bridge forwards", async || {
            near.netlink.link(bridge).await.expect("look up").is_some_and(|link| link.is_usable())
        })
        .await;
        let socket = PacketSocket::open(bridge, Traffic::Arp).expect("socket");
        let sender = far.open(&near, || PacketSocket::open(far.index, Traffic::Arp)).expect("socket");
        let claim = |to| Arp::announcement_request(FAR, VIP).frame(to).to_vec();
        hears(&socket, &sender, &[("for us", claim(NEAR), true), ("for all", claim(Mac::BROADCAST), true)]).await;
    });
}

#[test]
fn a_socket_does_not_hear_what_this_machine_sends() {
    on_a_lan(async |Lan { near, .. }| {
        let (one, other) = (PacketSocket::open(near.index, Traffic::Arp), PacketSocket::open(near.index, Traffic::Arp));
        let (one, other) = (one.expect("socket"), other.expect("socket"));
        one.send(&Arp::announcement_request(NEAR, VIP).frame(Mac::BROADCAST)).await.expect("send");
        for socket in [&one, &other] {
            assert!(tokio::time::timeout(SILENCE, socket.recv(&mut [0; 64])).await.is_err());
        }
    });
}

#[test]
fn a_dhcp_socket_hears_datagrams_to_port_68_only() {
    on_a_lan(async |Lan { near, far }| {
        let socket = PacketSocket::open(near.index, Traffic::DhcpClient).expect("socket");
        let sender = far.open(&near, || PacketSocket::open(far.index, Traffic::DhcpClient)).expect("socket");
        let good = datagram(68, b"offer");
        // 24 bytes of IPv4 header: the ports are four bytes further on.
        let mut with_option = with_bytes(&good, 14, &[0x46]);
        with_option.splice(34..34, [1; 4]);
        // Without the header length taken into account, this one's source port would be taken for the destination.
        let mut misleading = with_bytes(&datagram(9, b"offer"), 14, &[0x46]);
        misleading.splice(34..34, [0, 9, 0, 68]);
        hears(
            &socket,
            &sender,
            &[
                ("port 67", datagram(67, b"offer"), false),
                ("port 9 behind an option", misleading, false),
                ("TCP", with_bytes(&good, 23, &[6]), false),
                ("a later fragment", with_bytes(&good, 20, &[0x00, 0x10]), false),
                ("too short", good[..35].to_vec(), false),
                ("ARP", Arp::probe(FAR, VIP).frame(Mac::BROADCAST).to_vec(), false),
                ("to port 68", good.clone(), true),
                ("to port 68 by broadcast", with_bytes(&good, 0, &[0xff; 6]), true),
                ("to port 68, do not fragment", with_bytes(&good, 20, &[0x40, 0x00]), true),
                ("to port 68 behind an option", with_option, true),
            ],
        )
        .await;
    });
}

#[test]
fn a_neighbour_discovery_socket_hears_advertisements_and_what_claims_an_address_only() {
    on_a_lan(async |Lan { near, far }| {
        let vip = "2001:db8::a".parse().expect("an address");
        let socket = PacketSocket::open(near.index, Traffic::NeighborDiscovery).expect("socket");
        let sender = far.open(&near, || PacketSocket::open(far.index, Traffic::NeighborDiscovery)).expect("socket");
        // The kernels themselves look for their neighbours when an interface comes up: frames of ours tell by their
        // target.
        let ours = |ndp: Ndp| ndp.frame(FAR, NEAR);
        let (link_local, global) =
            ("fe80::77".parse().expect("an address"), "2001:db8::77".parse().expect("an address"));
        let advertisement = ours(Ndp::announcement(FAR, vip));
        let solicitation = ours(Ndp::unicast_probe(global, FAR, vip));
        let question = Ndp::multicast_probe(link_local, FAR, vip);
        let question = question.frame(FAR, question.group_mac().expect("it goes to a group"));
        for frame in [
            with_bytes(&advertisement, 54, &[134]),
            with_bytes(&advertisement, 54, &[137]),
            with_bytes(&advertisement, 20, &[17]),
            // A detector's question to us alone.
            ours(Ndp::unicast_probe(link_local, FAR, vip)),
            ours(Ndp::unicast_probe("febf::77".parse().expect("an address"), FAR, vip)),
            advertisement.clone(),
            solicitation.clone(),
            question.clone(),
        ] {
            sender.send(&frame).await.expect("send");
        }
        let mut heard = Vec::new();
        while heard.len() < 3 {
            let frame = next(&socket).await;
            if frame[62..78] == vip.octets() {
                heard.push(frame);
            }
        }
        assert_eq!(heard, [advertisement, solicitation, question]);
    });
}

#[test]
fn everything_that_is_there_can_be_read_without_waiting() {
    on_a_lan(async |Lan { near, far }| {
        let socket = PacketSocket::open(near.index, Traffic::Arp).expect("socket");
        let sender = far.open(&near, || PacketSocket::open(far.index, Traffic::Arp)).expect("socket");
        let mut buffer = [0; 2048];
        assert_eq!(socket.try_recv(&mut buffer).expect("receive"), None);
        for last in 1..=3 {
            let probe = Arp::probe(FAR, Ipv4Addr::new(192, 0, 2, last)).frame(Mac::BROADCAST);
            sender.try_send(&probe).expect("send");
        }
        next(&socket).await;
        for _ in 2..=3 {
            assert_eq!(socket.try_recv(&mut buffer).expect("receive"), Some(60));
        }
        assert_eq!(socket.try_recv(&mut buffer).expect("receive"), None);
    });
}

#[test]
fn an_interface_that_goes_down_is_reported_once_and_the_socket_goes_on() {
    on_a_lan(async |Lan { near, far }| {
        let socket = PacketSocket::open(near.index, Traffic::Arp).expect("socket");
        let sender = far.open(&near, || PacketSocket::open(far.index, Traffic::Arp)).expect("socket");
        let down = LinkUnspec::new_with_index(near.index).down().build();
        near.handle().link().change(down).execute().await.expect("down");
        let mut buffer = [0; 2048];
        let error =
            tokio::time::timeout(PATIENCE, socket.recv(&mut buffer)).await.expect("a report").expect_err("down");
        assert_eq!(error.kind(), io::ErrorKind::NetworkDown);
        assert_eq!(socket.try_recv(&mut buffer).expect("reported once"), None);
        let error = socket.send(&Arp::probe(NEAR, VIP).frame(Mac::BROADCAST)).await.expect_err("down");
        assert_eq!(error.kind(), io::ErrorKind::NetworkDown);

        near.netlink.set_up(near.index).await.expect("up");
        eventually("the cable is in", async || {
            far.netlink.link(far.index).await.expect("link").is_some_and(|link| link.is_usable())
        })
        .await;
        let probe = Arp::probe(FAR, VIP).frame(Mac::BROADCAST).to_vec();
        hears(&socket, &sender, &[("a probe", probe, true)]).await;
    });
}

#[test]
fn a_socket_on_no_interface_is_refused() {
    on_a_lan(async |Lan { .. }| {
        let error = PacketSocket::open(9999, Traffic::Arp).expect_err("no such interface");
        assert_eq!(error.to_string(), "failed to open a packet socket for Arp on interface 9999 (bind)");
        assert!(std::error::Error::source(&error).is_some());
    });
}
