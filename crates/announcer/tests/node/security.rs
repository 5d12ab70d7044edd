//! Service security on a real kernel: what reaches a VIP, what a macvlan believes, and how the table reads.

use std::collections::BTreeSet;
use std::io::Read;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::Command;
use std::time::{Duration, Instant};

use announcer::kernel::ruleset;
use announcer_core::security::{Port, Protection};
use etherparse::PacketBuilder;
use l2::{Mac, Nftables, Traffic};
use socket2::{Domain, Protocol, Socket, Type};

use crate::bench::{Bench, PATIENCE, may_skip, on_a_bench};
use crate::far_end;
use crate::fresh_namespace::shell;

const IPS: &str = "kube-vip.io/loadbalancerIPs";
const VIPS: [&str; 2] = ["10.77.0.50", "fd00::50"];
/// How long nothing must come to be believed that nothing comes.
const SILENCE: Duration = Duration::from_millis(200);

/// Whether a connection from the other end to this port is accepted.
fn connects(bench: &Bench, address: &str, port: u16) -> bool {
    let to = SocketAddr::new(address.parse().expect("an address"), port);
    bench.on_the_other_end(|| TcpStream::connect_timeout(&to, SILENCE)).is_ok()
}

/// Whether an echo request of the other end is answered.
fn pings(bench: &Bench, address: &str) -> bool {
    let to: IpAddr = address.parse().expect("an address");
    // The kernel fills in the checksum of ICMPv6; that of ICMP is the complement of its only word that is not zero.
    let (domain, protocol, request) = match to {
        IpAddr::V4(_) => (Domain::IPV4, Protocol::ICMPV4, [8, 0, 0xf7, 0xff, 0, 0, 0, 0]),
        IpAddr::V6(_) => (Domain::IPV6, Protocol::ICMPV6, [128, 0, 0, 0, 0, 0, 0, 0]),
    };
    let mut socket = bench.on_the_other_end(|| Socket::new(domain, Type::RAW, Some(protocol))).expect("a raw socket");
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

/// What people see; none without the program.
fn listing() -> Option<String> {
    let output = Command::new("nft").args(["list", "ruleset"]).output().ok()?;
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn with_ipv6(bench: &Bench) {
    shell("ip", "addr add fd00::2/64 dev eth0 nodad");
    bench.at_server("ip", "addr add fd00::1/64 dev s0 nodad");
}

#[test]
fn a_vip_is_reached_on_the_ports_of_its_service_and_by_ping_and_the_nodes_own_addresses_on_all() {
    on_a_bench(async |bench| {
        with_ipv6(bench);
        let _listeners =
            ["0.0.0.0:80", "0.0.0.0:22", "[::]:8080", "[::]:2222"].map(|at| TcpListener::bind(at).expect("listen"));
        bench.start();
        // Its port is 80.
        bench.create("web", &[(IPS, &VIPS.join(","))]);
        bench.eventually("both families are published", |bench| bench.api.published("web").len() == 2).await;
        for (address, port, open) in [
            ("10.77.0.50", 80, true),
            ("10.77.0.50", 22, false),
            ("fd00::50", 8080, false),
            ("fd00::50", 2222, false),
            ("10.77.0.2", 22, true),
            ("fd00::2", 2222, true),
        ] {
            assert_eq!(connects(bench, address, port), open, "{address} port {port}");
        }
        for address in ["10.77.0.50", "fd00::50", "10.77.0.2"] {
            assert!(pings(bench, address), "{address}");
        }
        bench.delete("web");
        bench.eventually("nothing is left", |bench| bench.vips().is_empty()).await;
        bench
            .eventually("the table goes too", |_| listing().is_none_or(|listing| !listing.contains(ruleset::TABLE)))
            .await;
    });
}

#[test]
fn a_port_of_a_vip_of_ipv6_is_let_in() {
    on_a_bench(async |bench| {
        with_ipv6(bench);
        let _listeners = ["[::]:80", "[::]:22"].map(|at| TcpListener::bind(at).expect("listen"));
        bench.start();
        bench.create("web", &[(IPS, "fd00::50")]);
        bench.eventually("it is published", |bench| bench.api.published("web").len() == 1).await;
        assert!(connects(bench, "fd00::50", 80) && !connects(bench, "fd00::50", 22));
    });
}

#[test]
fn whoever_sends_from_another_vip_finds_no_more_open_than_others() {
    on_a_bench(async |bench| {
        let _listener = TcpListener::bind("0.0.0.0:22").expect("listen");
        let vips = [[10, 77, 0, 50], [10, 77, 0, 51]].map(IpAddr::from);
        shell("ip", "addr add 10.77.0.50/32 dev eth0");
        bench.at_server("ip", "addr add 10.77.0.51/32 dev s0");
        shell("ip", "route add 10.77.0.51/32 dev eth0");
        let connects = || {
            let socket = bench.on_the_other_end(|| Socket::new(Domain::IPV4, Type::STREAM, None)).expect("a socket");
            socket.bind(&SocketAddr::new(vips[1], 0).into()).expect("bind");
            socket.connect_timeout(&SocketAddr::new(vips[0], 22).into(), SILENCE).is_ok()
        };
        let port = Port::new("TCP", 80).expect("a port");
        let protection = Protection { vips: vips.map(|vip| (vip, [port].into())).into(), ..Protection::default() };
        let nftables = Nftables::open(ruleset::TABLE).expect("nftables");
        nftables.keep(ruleset::table(&protection)).await.expect("protect");
        assert!(!connects());
        nftables.keep(None).await.expect("remove");
        assert!(connects(), "without the rules it is open: this test can fail");
    });
}

/// The kernel drops IPv4 packets that come from outside with a source of its own, and lets such IPv6 packets in.
#[test]
fn who_forges_the_vip_as_source_reaches_no_udp_port_of_the_node_by_ipv6() {
    on_a_bench(async |bench| {
        with_ipv6(bench);
        shell("ip", "addr add fd00::50/128 dev eth0 nodad");
        let program = UdpSocket::bind("[::]:5353").expect("a port that only others on the node should use");
        program.set_read_timeout(Some(SILENCE)).expect("a timeout");
        let link = shell("ip", "-o link show dev eth0");
        let mac = link.split("link/ether ").nth(1).and_then(|rest| rest.split_whitespace().next()).expect("its MAC");
        let node: Mac = mac.parse().expect("a MAC");
        let sender = far_end::socket(bench, Traffic::NeighborDiscovery);
        let [vip, other] = ["fd00::50", "fd00::51"].map(|text| text.parse::<Ipv6Addr>().expect("an address"));
        let arrives = |source: Ipv6Addr| {
            let builder = PacketBuilder::ethernet2([2, 0, 0, 0, 0, 2], node.octets())
                .ipv6(source.octets(), vip.octets(), 64)
                .udp(4000, 5353);
            let mut frame = Vec::new();
            builder.write(&mut frame, b"forged").expect("a short frame");
            sender.try_send(&frame).expect("send");
            program.recv(&mut [0; 16]).is_ok()
        };
        let open = BTreeSet::from([Port::new("TCP", 80).expect("a port")]);
        let nftables = Nftables::open(ruleset::TABLE).expect("nftables");
        for (source, protected) in [(vip, vec![vip]), (other, vec![vip, other])] {
            let vips = protected.into_iter().map(|vip| (IpAddr::from(vip), open.clone())).collect();
            let protection = Protection { vips, ..Protection::default() };
            nftables.keep(ruleset::table(&protection)).await.expect("protect");
            for _ in 0..5 {
                assert!(!arrives(source), "from {source}");
            }
        }
        nftables.keep(None).await.expect("remove");
        for source in [vip, other] {
            let deadline = Instant::now() + PATIENCE;
            while !arrives(source) {
                assert!(Instant::now() < deadline, "from {source}, without the rules it arrives: this test can fail");
            }
        }
    });
}

#[test]
fn the_table_reads_well() {
    on_a_bench(async |_| {
        let ports = [("TCP", 80), ("UDP", 53)].map(|(protocol, port)| Port::new(protocol, port).expect("a port"));
        let vips = VIPS.map(|vip| (vip.parse().expect("an address"), ports.into()));
        let protection = Protection { vips: vips.into(), quiet: ["vip-0a1b2c3d".to_owned()].into() };
        let nftables = Nftables::open(ruleset::TABLE).expect("nftables");
        nftables.keep(ruleset::table(&protection)).await.expect("protect");
        let Some(listing) = listing() else {
            assert!(may_skip(), "HCP_REQUIRE_ROOT=1, but there is no nft");
            eprintln!("SKIPPED: no nft here");
            return;
        };
        for line in [
            "table inet harvester-announcer {",
            "type ipv4_addr . inet_proto . inet_service",
            "10.77.0.50 . tcp . 80",
            "10.77.0.50 . udp . 53",
            "fd00::50 . tcp . 80",
            "\"vip-0a1b2c3d\"",
            "type filter hook input priority 150; policy accept;",
            "iifname @quiet icmpv6 type nd-router-advert drop",
            "ip daddr @vips4 jump vip4",
            "ip6 daddr @vips6 jump vip6",
            "ip saddr . ip daddr @own4 accept",
            "meta l4proto tcp ip6 saddr . ip6 daddr @own6 accept",
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

#[test]
fn a_quiet_interface_takes_no_address_from_a_router() {
    on_a_bench(async |bench| {
        let nftables = Nftables::open(ruleset::TABLE).expect("nftables");
        let quiet = Protection { quiet: ["eth0".to_owned()].into(), ..Protection::default() };
        nftables.keep(ruleset::table(&quiet)).await.expect("protect");
        // Prefix 2001:db8:1::/64, for hosts to make addresses of.
        let mut advertisement = vec![0; 8];
        advertisement.extend([3, 4, 64, 0xc0, 0, 0, 0x70, 0x80, 0, 0, 0x70, 0x80, 0, 0, 0, 0]);
        advertisement.extend("2001:db8:1::".parse::<Ipv6Addr>().expect("a prefix").octets());
        let router: Ipv6Addr = "fe80::2".parse().expect("an address");
        let all: Ipv6Addr = "ff02::1".parse().expect("an address");
        let builder = PacketBuilder::ethernet2([2, 0, 0, 0, 0, 2], [0x33, 0x33, 0, 0, 0, 1])
            .ipv6(router.octets(), all.octets(), 255)
            .icmpv6_raw(134, 0, [64, 0, 0, 0]);
        let mut frame = Vec::new();
        builder.write(&mut frame, &advertisement).expect("a short frame");
        let sender = far_end::socket(bench, Traffic::NeighborDiscovery);
        let believes = async || {
            sender.send(&frame).await.expect("send");
            tokio::time::sleep(Duration::from_millis(50)).await;
            shell("ip", "-6 -o addr show dev eth0").contains("2001:db8:1:")
        };
        for _ in 0..5 {
            assert!(!believes().await);
        }
        nftables.keep(None).await.expect("remove");
        let deadline = Instant::now() + PATIENCE;
        while !believes().await {
            assert!(Instant::now() < deadline, "without the rule it takes one: this test can fail");
        }
    });
}
