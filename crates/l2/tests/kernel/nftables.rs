//! The table of ours at work: what reaches a VIP, what a macvlan believes, and that there is no moment without it.

use std::io::{ErrorKind, Read};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use etherparse::PacketBuilder;
use l2::netlink::AddressLifetime;
use l2::nftables::{Port, Protection};
use l2::{Nftables, PacketSocket, Traffic};
use socket2::{Domain, Protocol, Socket, Type};

use crate::lan::{FAR, Lan, PATIENCE, SILENCE, Side, eventually, on_a_lan};

const VIP: &str = "192.0.2.10";
const VIP6: &str = "2001:db8::a";
const OWN: &str = "192.0.2.1";

fn protection(ports: &[(&str, i32)]) -> Protection {
    let ports = || ports.iter().map(|(protocol, port)| Port::new(protocol, *port).expect("a port")).collect();
    let vips = [VIP, VIP6].map(|vip| (vip.parse().expect("an address"), ports()));
    Protection { vips: vips.into(), quiet: ["vip-0a1b2c3d".to_owned()].into() }
}

async fn addresses(near: &Side, far: &Side) {
    near.plain_address("192.0.2.1/24").await;
    far.plain_address("192.0.2.2/24").await;
    near.plain_address("2001:db8::1/64").await;
    far.plain_address("2001:db8::2/64").await;
    for vip in ["192.0.2.10/32", "2001:db8::a/128"] {
        let net = vip.parse().expect("a network");
        near.netlink.set_address(near.index, net, AddressLifetime::Forever).await.expect("the VIP");
    }
}

/// Whether a connection from the far side to this port is accepted.
fn connects(near: &Side, far: &Side, address: &str, port: u16) -> bool {
    let to = SocketAddr::new(address.parse().expect("an address"), port);
    far.open(near, || TcpStream::connect_timeout(&to, SILENCE)).is_ok()
}

/// Whether an echo request of the far side is answered.
fn pings(near: &Side, far: &Side, address: &str) -> bool {
    let to: IpAddr = address.parse().expect("an address");
    // The kernel fills in the checksum of ICMPv6; that of ICMP is the complement of its only word that is not zero.
    let (domain, protocol, request) = match to {
        IpAddr::V4(_) => (Domain::IPV4, Protocol::ICMPV4, [8, 0, 0xf7, 0xff, 0, 0, 0, 0]),
        IpAddr::V6(_) => (Domain::IPV6, Protocol::ICMPV6, [128, 0, 0, 0, 0, 0, 0, 0]),
    };
    let mut socket = far.open(near, || Socket::new(domain, Type::RAW, Some(protocol))).expect("a raw socket");
    socket.connect(&SocketAddr::new(to, 0).into()).expect("connect");
    socket.set_read_timeout(Some(SILENCE)).expect("a timeout");
    socket.send(&request).expect("send");
    let mut buffer = [0; 200];
    // A raw socket of IPv4 shows the header of 20 bytes too.
    let (at, reply) = if to.is_ipv4() { (20, 0) } else { (0, 129) };
    while let Ok(length) = socket.read(&mut buffer) {
        if length > at && buffer[at] == reply {
            return true;
        }
    }
    false
}

/// What people see.
fn listing() -> Option<String> {
    let output = Command::new("nft").args(["list", "ruleset"]).output().ok()?;
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[test]
fn a_vip_is_reached_on_the_ports_of_its_services_and_by_ping_and_the_nodes_own_addresses_on_all() {
    on_a_lan(async |Lan { near, far }| {
        addresses(&near, &far).await;
        let _listeners: Vec<TcpListener> = ["0.0.0.0:80", "0.0.0.0:22", "[::]:8080", "[::]:2222"]
            .map(|at| TcpListener::bind(at).expect("listen"))
            .into();
        let nftables = Nftables::open().expect("nftables");
        assert!(connects(&near, &far, VIP, 22), "without protection a VIP shows the node's own ports");

        nftables.protect(protection(&[("TCP", 80), ("TCP", 8080), ("UDP", 53)])).await.expect("protect");
        for (address, port, open) in [
            (VIP, 80, true),
            (VIP, 22, false),
            (VIP6, 8080, true),
            (VIP6, 2222, false),
            (OWN, 22, true),
            ("2001:db8::1", 2222, true),
        ] {
            assert_eq!(connects(&near, &far, address, port), open, "{address} port {port}");
        }
        for address in [VIP, VIP6, OWN] {
            assert!(pings(&near, &far, address), "{address}");
        }

        nftables.protect(protection(&[("TCP", 22)])).await.expect("change");
        assert!(connects(&near, &far, VIP, 22) && !connects(&near, &far, VIP, 80), "ports of a live VIP change");
        nftables.protect(Protection::default()).await.expect("remove");
        assert!(connects(&near, &far, VIP, 80));
        if let Some(listing) = listing() {
            assert!(!listing.contains("harvester-announcer"), "{listing}");
        }
    });
}

#[test]
fn the_table_reads_well() {
    on_a_lan(async |Lan { .. }| {
        let nftables = Nftables::open().expect("nftables");
        nftables.protect(protection(&[("TCP", 80), ("UDP", 53)])).await.expect("protect");
        let Some(listing) = listing() else {
            eprintln!("SKIPPED: no nft here");
            return;
        };
        for line in [
            "table inet harvester-announcer {",
            "type ipv4_addr . inet_proto . inet_service",
            "192.0.2.10 . tcp . 80",
            "192.0.2.10 . udp . 53",
            "2001:db8::a . tcp . 80",
            "\"vip-0a1b2c3d\"",
            "type filter hook input priority filter; policy accept;",
            "iifname @quiet icmpv6 type nd-router-advert drop",
            "ip daddr @vips4 jump vip4",
            "ip6 daddr @vips6 jump vip6",
            "ip daddr . meta l4proto . th dport @ports4 accept",
            "ip6 daddr . meta l4proto . th dport @ports6 accept",
            "icmp type echo-request accept",
            "icmpv6 type packet-too-big accept",
            "counter packets 0 bytes 0 drop",
        ] {
            assert!(listing.contains(line), "{line}\n{listing}");
        }
    });
}

/// A restart, and every later change: what is allowed always passes, what is not never does.
#[test]
fn there_is_no_moment_without_it() {
    on_a_lan(async |Lan { near, far }| {
        addresses(&near, &far).await;
        let (open, closed) = (UdpSocket::bind((VIP, 53)), UdpSocket::bind((VIP, 2222)));
        let (open, closed) = (open.expect("bind"), closed.expect("bind"));
        closed.set_nonblocking(true).expect("not waiting");
        open.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        Nftables::open().expect("nftables").protect(protection(&[("UDP", 53)])).await.expect("protect");

        let client = far.open(&near, || UdpSocket::bind("192.0.2.2:0")).expect("bind");
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let done = &done;
            let sender = scope.spawn(move || {
                let mut sent = 0_u32;
                while !done.load(Ordering::Relaxed) {
                    client.send_to(b"no", (VIP, 2222)).expect("send");
                    client.send_to(b"yes", (VIP, 53)).expect("send");
                    // One at a time: nothing is lost because a buffer is full.
                    let mut buffer = [0; 8];
                    open.recv(&mut buffer).expect("each one that is allowed arrives");
                    sent += 1;
                }
                sent
            });
            // The far end's own runtime: the scope holds this thread.
            let runtime = tokio::runtime::Handle::current();
            std::thread::scope(|inner| {
                let near = &near;
                inner.spawn(move || {
                    for round in 1..=30 {
                        // A new process each time, and a change after it.
                        let nftables = near.open(near, || Nftables::open().expect("nftables"));
                        let again = nftables.protect(protection(&[("UDP", 53)]));
                        runtime.block_on(again).expect("adopt");
                        let other = nftables.protect(protection(&[("UDP", 53), ("TCP", 1000 + round)]));
                        runtime.block_on(other).expect("change");
                    }
                });
            });
            done.store(true, Ordering::Relaxed);
            assert!(sender.join().expect("no panic") > 0);
        });
        let error = closed.recv(&mut [0; 8]).expect_err("nothing has come through");
        assert_eq!(error.kind(), ErrorKind::WouldBlock);
    });
}

#[test]
fn what_somebody_flushed_is_made_anew() {
    on_a_lan(async |Lan { near, far }| {
        addresses(&near, &far).await;
        let _listener = TcpListener::bind("0.0.0.0:22").expect("listen");
        let nftables = Nftables::open().expect("nftables");
        for ports in [&[("TCP", 80)][..], &[("TCP", 80)], &[("TCP", 81)]] {
            nftables.protect(protection(ports)).await.expect("protect");
            assert!(!connects(&near, &far, VIP, 22));
            if Command::new("nft").args(["flush", "ruleset"]).status().is_err() {
                eprintln!("SKIPPED: no nft here");
                return;
            }
            assert!(connects(&near, &far, VIP, 22), "it is gone");
        }
    });
}

#[test]
fn a_quiet_interface_takes_no_address_from_a_router() {
    on_a_lan(async |Lan { near, far }| {
        let nftables = Nftables::open().expect("nftables");
        let quiet = Protection { quiet: ["near".to_owned()].into(), ..Protection::default() };
        nftables.protect(quiet).await.expect("protect");
        // Prefix 2001:db8:1::/64, for hosts to make addresses of.
        let mut advertisement = vec![0; 8];
        advertisement.extend([3, 4, 64, 0xc0, 0, 0, 0x70, 0x80, 0, 0, 0x70, 0x80, 0, 0, 0, 0]);
        advertisement.extend("2001:db8:1::".parse::<std::net::Ipv6Addr>().expect("a prefix").octets());
        let router: std::net::Ipv6Addr = "fe80::2".parse().expect("an address");
        let all: std::net::Ipv6Addr = "ff02::1".parse().expect("an address");
        let builder = PacketBuilder::ethernet2(FAR.octets(), [0x33, 0x33, 0, 0, 0, 1])
            .ipv6(router.octets(), all.octets(), 255)
            .icmpv6_raw(134, 0, [64, 0, 0, 0]);
        let mut frame = Vec::new();
        builder.write(&mut frame, &advertisement).expect("a short frame");
        let sender = far.open(&near, || PacketSocket::open(far.index, Traffic::NeighborDiscovery)).expect("socket");
        let believes = async || {
            sender.send(&frame).await.expect("send");
            tokio::time::sleep(Duration::from_millis(50)).await;
            let addresses = near.netlink.addresses(Some(near.index)).await.expect("addresses");
            addresses.iter().any(|address| address.net.addr().to_string().starts_with("2001:db8:1:"))
        };
        for _ in 0..5 {
            assert!(!believes().await);
        }
        nftables.protect(Protection::default()).await.expect("remove");
        eventually("without the rule it takes one: this test can fail", believes).await;
    });
}
