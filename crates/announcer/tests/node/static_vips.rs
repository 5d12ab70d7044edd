use std::io::{ErrorKind, Read};
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use announcer_core::engine::Input;
use announcer_core::ownership::LeaseState;
use l2::arp::{self, Arp};
use l2::{Mac, Traffic};
use socket2::{Domain, Protocol, Socket, Type};

use crate::bench::{PATIENCE, on_a_bench};
use crate::dhcp::RANGE;
use crate::far_end;
use crate::fresh_namespace::shell;

const IPS: &str = "kube-vip.io/loadbalancerIPs";

#[test]
fn an_address_is_set_published_with_two_writes_and_kept() {
    on_a_bench(async |bench| {
        bench.start();
        bench.create("web", &[(IPS, "10.77.0.50,fd00::50")]);
        bench.eventually("both families are published", |bench| bench.api.published("web").len() == 2).await;
        assert_eq!(bench.vips(), ["eth0 10.77.0.50/32", "eth0 fd00::50/128"]);
        assert_eq!(*bench.api.writes.lock(), ["web", "web/status"]);
        assert_eq!(bench.api.annotation("web", "kube-vip.io/vipHost"), "node-1");
        bench.eventually("others can reach it", |bench| bench.neighbour("10.77.0.50").contains("lladdr")).await;
        bench.always("it stays beyond its deadline", Duration::from_secs(3), |bench| bench.vips().len() == 2).await;
        assert_eq!(bench.api.writes.lock().len(), 2);
        bench.delete("web");
        bench.eventually("nothing is left", |bench| bench.vips().is_empty()).await;
    });
}

#[test]
fn the_kernel_holds_a_deadline() {
    on_a_bench(async |bench| {
        bench.create("web", &[(IPS, "10.77.0.50")]);
        bench.start();
        bench.eventually("it is set", |bench| bench.vips().len() == 1).await;
        bench
            .eventually("the kernel would take it off by itself", |_| {
                let text = shell("ip", "-o addr show dev eth0 to 10.77.0.50");
                let rest = text.split("valid_lft ").nth(1).and_then(|rest| rest.split("sec").next());
                let seconds = rest.and_then(|text| text.parse::<u32>().ok());
                seconds.is_some_and(|seconds| (1..=12).contains(&seconds))
            })
            .await;
    });
}

#[test]
fn an_address_in_use_is_not_taken_before_it_is_free() {
    on_a_bench(async |bench| {
        bench.at_server("ip", "addr add 10.77.0.50/24 dev s0");
        bench.create("web", &[(IPS, "10.77.0.50")]);
        bench.start();
        bench.eventually("the conflict is told", |bench| bench.told("AddressConflict").is_some()).await;
        assert!(bench.told("AddressConflict").unwrap().contains("10.77.0.50"));
        assert!(bench.vips().is_empty() && bench.api.published("web").is_empty());
        bench.at_server("ip", "addr del 10.77.0.50/24 dev s0");
        bench.eventually("it is taken", |bench| bench.api.published("web") == ["10.77.0.50"]).await;
    });
}

/// Sees all frames that pass the interfaces of the node, in both directions. A frame that the node sends is here before
/// its call returns.
fn tap() -> Socket {
    const ALL_PROTOCOLS: u16 = 3;
    let protocol = Protocol::from(i32::from(ALL_PROTOCOLS.to_be()));
    Socket::new(Domain::PACKET, Type::RAW.nonblocking(), Some(protocol)).expect("a packet socket")
}

/// The next ARP message, if one is there.
fn next_arp(mut tap: &Socket) -> Option<Arp> {
    let mut buffer = [0; 512];
    loop {
        let length = match tap.read(&mut buffer) {
            Ok(length) => length,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return None,
            Err(error) => panic!("receive: {error}"),
        };
        if let Some(found) = arp::parse_frame(&buffer[..length]) {
            return Some(found.arp);
        }
    }
}

/// The third probe for this address. Who only yields has the next turn after the node has sent it, before the node or
/// the task that reads its socket has another one, however late this thread is.
async fn third_probe(tap: &Socket, address: Ipv4Addr) -> Arp {
    let (deadline, mut seen) = (Instant::now() + PATIENCE, 0);
    loop {
        match next_arp(tap) {
            Some(arp) if arp.is_probe() && arp.target_ip == address => {
                seen += 1;
                if seen == 3 {
                    return arp;
                }
            }
            Some(_) => {}
            None => {
                assert!(Instant::now() < deadline, "{seen} probes for {address}");
                tokio::task::yield_now().await;
            }
        }
    }
}

/// What has arrived is read before a timer is judged (R1 in docs/announcer.md), also where something else has woken the
/// process. Everything here runs on one thread: while the test does not wait, the node stands still.
#[test]
fn an_answer_that_came_while_the_process_stood_still_counts_before_its_timer() {
    const ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 50);
    on_a_bench(async |bench| {
        let stranger = Mac::new([2, 0, 0, 0, 0, 0x99]);
        let (far_end, tap) = (far_end::socket(bench, Traffic::Arp), tap());
        bench.start();
        bench.create("web", &[(IPS, "10.77.0.50")]);
        let probe = third_probe(&tap, ADDRESS).await;
        far_end.try_send(&Arp::answer(&probe, stranger).frame(probe.sender_mac)).expect("send");
        let deadline = Instant::now() + PATIENCE;
        while next_arp(&tap).is_none_or(|arp| arp.sender_mac != stranger) {
            assert!(Instant::now() < deadline, "the answer does not arrive");
            std::thread::sleep(Duration::from_millis(1));
        }
        // The timer ends 10 ms after the third probe.
        std::thread::sleep(Duration::from_millis(30));
        // It changes nothing, and wakes the node before the socket does.
        bench.feed(Input::Lease(LeaseState::Held { confirmed: true }));
        let conflict = format!("{ADDRESS} is already used by {stranger}");
        bench
            .eventually("the conflict is told, and nothing was set before", |bench| {
                assert!(bench.vips().is_empty(), "it was taken: {:?}", bench.vips());
                bench.told("AddressConflict").is_some_and(|said| said.contains(&conflict))
            })
            .await;
        bench.always("nothing is set", Duration::from_millis(500), |bench| bench.vips().is_empty()).await;
        assert_eq!(*bench.api.writes.lock(), Vec::<String>::new());
    });
}

#[test]
fn an_ipv6_address_in_use_is_not_taken() {
    on_a_bench(async |bench| {
        bench.at_server("ip", "addr add fd00::50/64 dev s0 nodad");
        // Multicast works as soon as the link-local address of the cable's end does.
        bench
            .eventually("the cable's end has a link-local address that it may use", |bench| {
                let shown = bench.at_server("ip", "-6 -o addr show dev s0 scope link");
                shown.contains("fe80:") && !shown.contains("tentative")
            })
            .await;
        bench.create("web", &[(IPS, "fd00::50")]);
        bench.start();
        bench.eventually("the conflict is told", |bench| bench.told("AddressConflict").is_some()).await;
        assert!(bench.vips().is_empty());
    });
}

#[test]
fn a_killed_process_leaves_nothing_uncovered_and_the_next_one_adopts() {
    on_a_bench(async |bench| {
        bench.create("web", &[(IPS, "10.77.0.50")]);
        bench.start();
        bench.eventually("it is published", |bench| bench.api.published("web").len() == 1).await;
        let writes = bench.api.writes.lock().len();
        bench.kill().await;
        bench.always("the kernel answers on", Duration::from_secs(2), |bench| bench.vips().len() == 1).await;
        bench.start();
        bench.always("it is never taken off", Duration::from_secs(3), |bench| bench.vips().len() == 1).await;
        assert_eq!(bench.api.writes.lock().len(), writes, "a restart writes nothing");
    });
}

#[test]
fn what_another_node_owns_goes_at_once() {
    on_a_bench(async |bench| {
        bench.create("web", &[(IPS, "10.77.0.50")]);
        bench.start();
        bench.eventually("it is set", |bench| bench.vips().len() == 1).await;
        bench.feed(Input::Lease(LeaseState::Other("node-2".into())));
        bench.eventually("it is gone", |bench| bench.vips().is_empty()).await;
    });
}

#[test]
fn an_address_that_an_administrator_removes_is_back() {
    on_a_bench(async |bench| {
        bench.create("web", &[(IPS, "10.77.0.50")]);
        bench.start();
        bench.eventually("it is set", |bench| bench.api.published("web").len() == 1).await;
        shell("ip", "addr del 10.77.0.50/32 dev eth0");
        bench.eventually("it is back", |bench| bench.vips().len() == 1).await;
    });
}

#[test]
fn an_interface_that_goes_down_or_is_renamed_has_its_address_again_when_it_is_up() {
    on_a_bench(async |bench| {
        bench.create("web", &[(IPS, "10.77.0.50")]);
        bench.create("named", &[(IPS, "10.77.0.51"), ("kube-vip.io/serviceInterface", "eth0")]);
        bench.start();
        bench.eventually("they are set", |bench| bench.api.count_published() == 2).await;
        shell("ip", "link set eth0 down");
        bench.eventually("it is told", |bench| bench.told("CannotAnnounce").is_some()).await;
        shell("ip", "link set eth0 name lan0");
        shell("ip", "link set lan0 up");
        shell("ip", "route replace default via 10.77.0.1");
        // Where it was asked for by name it is nowhere until the name is back.
        bench.eventually("it is where the default route is", |bench| bench.vips() == ["lan0 10.77.0.50/32"]).await;
        bench.eventually("others reach it", |bench| bench.neighbour("10.77.0.50").contains("lladdr")).await;
        shell("ip", "link set lan0 down");
        shell("ip", "link set lan0 name eth0");
        shell("ip", "link set eth0 up");
        shell("ip", "route replace default via 10.77.0.1");
        let both = ["eth0 10.77.0.50/32", "eth0 10.77.0.51/32"];
        bench.eventually("both are back", |bench| bench.vips() == both).await;
    });
}

#[test]
fn an_interface_whose_mac_or_mtu_changes_keeps_its_addresses_and_others_hear_of_the_mac() {
    on_a_bench(async |bench| {
        bench.create("web", &[(IPS, "10.77.0.50")]);
        bench.serve(RANGE);
        bench.create("leased", &[(IPS, "0.0.0.0")]);
        bench.start();
        bench.eventually("they are published", |bench| bench.api.count_published() == 2).await;
        bench.eventually("others reach it", |bench| bench.neighbour("10.77.0.50").contains("lladdr")).await;
        let vips = bench.vips();
        shell("ip", "link set eth0 mtu 1400");
        bench.always("they stay", Duration::from_secs(3), |bench| bench.vips() == vips).await;
        shell("ip", "link set eth0 address 02:00:00:00:77:77");
        bench
            .eventually("others know the new MAC", |bench| bench.neighbour("10.77.0.50").contains("02:00:00:00:77:77"))
            .await;
        bench.always("they stay", Duration::from_secs(3), |bench| bench.vips() == vips).await;
        assert!(bench.told("AddressConflict").is_none());
    });
}

#[test]
fn without_a_successor_the_address_stays_for_minutes() {
    on_a_bench(async |bench| {
        bench.create("web", &[(IPS, "10.77.0.50")]);
        bench.start();
        bench.eventually("it is set", |bench| bench.api.published("web").len() == 1).await;
        bench.feed(Input::Stop);
        bench.feed(Input::Released(true));
        bench.wait_for_exit().await;
        let text = shell("ip", "-o addr show dev eth0 to 10.77.0.50");
        assert!(text.contains("valid_lft 29") || text.contains("valid_lft 300"), "{text}");
    });
}

#[test]
fn the_nodes_own_address_is_refused_and_keeps_its_life() {
    on_a_bench(async |bench| {
        let own = shell("ip", "-4 -o addr show dev eth0");
        let address = own.split_whitespace().nth(3).and_then(|net| net.split('/').next()).unwrap().to_owned();
        bench.create("web", &[("kube-vip.io/loadbalancerIPs", address.as_str())]);
        bench.start();
        bench.eventually("it is told", |bench| bench.told("CannotAnnounce").is_some()).await;
        let text = bench.told("CannotAnnounce").unwrap();
        assert!(text.contains(&format!("{address} is this node's own address on eth0")), "{text}");
        bench.delete("web");
        bench
            .always("the node's own address stays as it is", Duration::from_secs(1), |bench| {
                assert_eq!(shell("ip", "-4 -o addr show dev eth0"), own);
                bench.api.published("web").is_empty()
            })
            .await;
    });
}

/// As kube-vip's control plane mode has it on a node.
#[test]
fn an_address_that_another_program_has_here_is_refused_left_open_and_never_removed() {
    on_a_bench(async |bench| {
        shell("ip", "addr add 10.77.0.50/32 dev eth0 preferred_lft 0");
        let theirs = || shell("ip", "-4 -o addr show dev eth0 to 10.77.0.50");
        let before = theirs();
        bench.create("web", &[(IPS, "10.77.0.50")]);
        bench.start();
        bench.eventually("it is told", |bench| bench.told("CannotAnnounce").is_some()).await;
        let text = bench.told("CannotAnnounce").unwrap();
        for part in ["10.77.0.50", "interface eth0", "ip address del 10.77.0.50/32 dev eth0"] {
            assert!(text.contains(part), "{part:?} is missing in {text}");
        }
        bench.delete("web");
        bench
            .always("the address stays theirs", Duration::from_secs(1), |bench| {
                assert_eq!(theirs(), before, "neither extended nor removed");
                bench.api.published("web").is_empty()
            })
            .await;
        bench.create("next", &[(IPS, "10.77.0.50")]);
        shell("ip", "addr del 10.77.0.50/32 dev eth0");
        bench.eventually("it is free", |bench| bench.api.published("next").len() == 1).await;
    });
}
