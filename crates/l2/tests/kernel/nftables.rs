//! A table at work: it is changed as a whole, there is no moment without it, and what others flush is made anew.

use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use l2::Nftables;
use l2::nftables::{Chain, Expression, Header, Meta, Part, Set, Table, Value, Verdict};

use crate::lan::{Lan, PATIENCE, SILENCE, Side, may_skip, on_a_lan};

const TABLE: &str = "l2-test";
const VIP: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 10);
const TCP: u8 = 6;
const UDP: u8 = 17;

/// Lets in what is meant for these ports of the VIP, and nothing else for it.
fn table(protocol: u8, ports: &[u16]) -> Table {
    let mut open = Set::new("open", &[Part::Ipv4, Part::Protocol, Part::Service]);
    for port in ports {
        open.insert(&[Value::Address(VIP.into()), Value::Protocol(protocol), Value::Service(*port)]);
    }
    let destination = || Expression::payload(Header::Network, 16, 4, 0);
    let is_ipv4 = || [Expression::meta(Meta::Family, 0), Expression::equals(&[2])];
    let [family, two] = is_ipv4();
    let let_in = vec![
        family,
        two,
        destination(),
        Expression::meta(Meta::Protocol, 1),
        Expression::payload(Header::Transport, 2, 2, 2),
        Expression::is_in("open"),
        Expression::verdict(Verdict::Accept),
    ];
    let [family, two] = is_ipv4();
    let other = vec![family, two, destination(), Expression::equals(&VIP.octets()), Expression::verdict(Verdict::Drop)];
    Table { sets: vec![open], chains: vec![Chain { name: "input", at_input: true, rules: vec![let_in, other] }] }
}

async fn addresses(near: &Side, far: &Side) {
    near.plain_address("192.0.2.1/24").await;
    far.plain_address("192.0.2.2/24").await;
    near.plain_address("192.0.2.10/32").await;
}

/// Whether a connection from the far side to this port of the VIP is accepted.
fn connects(near: &Side, far: &Side, port: u16) -> bool {
    let to = SocketAddr::new(VIP.into(), port);
    far.open(near, || TcpStream::connect_timeout(&to, SILENCE)).is_ok()
}

#[test]
fn it_is_changed_replaced_and_removed() {
    on_a_lan(async |Lan { near, far }| {
        addresses(&near, &far).await;
        let _listeners = ["0.0.0.0:22", "0.0.0.0:80"].map(|at| TcpListener::bind(at).expect("listen"));
        let nftables = Nftables::open(TABLE).expect("nftables");
        assert!(connects(&near, &far, 22) && connects(&near, &far, 80), "without a table all is open");
        let other_rules = {
            let mut table = table(TCP, &[22]);
            table.chains[0].rules.truncate(1);
            table
        };
        for (what, wanted, open) in [
            ("the first", Some(table(TCP, &[80])), [false, true]),
            ("other elements", Some(table(TCP, &[22])), [true, false]),
            ("other rules", Some(other_rules), [true, true]),
            ("all again", Some(table(TCP, &[])), [false, false]),
            ("no table", None, [true, true]),
            ("no table again", None, [true, true]),
        ] {
            nftables.keep(wanted).await.expect(what);
            assert_eq!([22, 80].map(|port| connects(&near, &far, port)), open, "{what}");
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
        Nftables::open(TABLE).expect("nftables").keep(Some(table(UDP, &[53]))).await.expect("write");

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
                        let nftables = near.open(near, || Nftables::open(TABLE).expect("nftables"));
                        runtime.block_on(nftables.keep(Some(table(UDP, &[53])))).expect("adopt");
                        runtime.block_on(nftables.keep(Some(table(UDP, &[53, 1000 + round])))).expect("change");
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

/// What `nft` says, or `None` where there is none.
fn nft(arguments: &str) -> Option<String> {
    let output = Command::new("nft").args(arguments.split(' ')).output().ok()?;
    assert!(output.status.success(), "nft {arguments}: {}", String::from_utf8_lossy(&output.stderr));
    Some(String::from_utf8(output.stdout).expect("text"))
}

#[test]
fn what_somebody_flushed_is_made_anew() {
    on_a_lan(async |Lan { near, far }| {
        addresses(&near, &far).await;
        let _listeners = ["0.0.0.0:22", "0.0.0.0:80"].map(|at| TcpListener::bind(at).expect("listen"));
        let open = || [22, 80].map(|port| connects(&near, &far, port));
        let nftables = Nftables::open(TABLE).expect("nftables");
        let keep = async || nftables.keep(Some(table(TCP, &[80]))).await.expect("keep");
        keep().await;
        let Some(written) = nft("-a list ruleset") else {
            assert!(may_skip(), "HCP_REQUIRE_ROOT=1, but there is no nft");
            eprintln!("SKIPPED: no nft here");
            return;
        };
        keep().await;
        assert_eq!(nft("-a list ruleset").as_ref(), Some(&written), "what is whole is not made anew");
        for (command, meanwhile) in [
            ("flush ruleset", [true, true]),
            ("flush table inet l2-test", [true, true]),
            ("flush set inet l2-test open", [false, false]),
            ("delete rule inet l2-test input handle", [true, true]),
        ] {
            let handle = || {
                let rules = nft("-a list chain inet l2-test input").expect("nft is here");
                let drop = rules.lines().find(|line| line.contains(" drop")).expect("a rule that drops").to_owned();
                drop.rsplit(' ').next().expect("its handle").to_owned()
            };
            nft(&if command.ends_with("handle") { format!("{command} {}", handle()) } else { command.to_owned() });
            assert_eq!(open(), meanwhile, "{command}");
            keep().await;
            assert_eq!(open(), [false, true], "{command}: it is there again");
        }
        nft("flush ruleset");
        nftables.keep(Some(table(TCP, &[81]))).await.expect("keep");
        assert_eq!(open(), [false, false], "a change finds it gone, too");
    });
}
