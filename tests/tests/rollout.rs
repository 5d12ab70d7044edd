//! What datagrams meet while all announcers are replaced one after the other, as a DaemonSet does it: none may be lost.
#![allow(clippy::unwrap_used)] // clippy knows test functions, but not their helpers

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use e2e::{Bed, Beds, ENOUGH, Exposed, PATIENCE, service};
use harvester_api::keys::kube_vip;
use kube::ResourceExt;
use testbed::{Capture, DhcpOptions, Traffic};
use tokio::sync::MutexGuard;

static BEDS: Beds = Beds::new();

const PORT: u16 = 53;

async fn alone() -> (MutexGuard<'static, ()>, Arc<Bed>) {
    let builder = Bed::builder().nodes(3).without_ccm().without_pool().dhcp(DhcpOptions::default());
    let (guard, bed) = BEDS.alone(|| builder.announcer_env("election_mode", "node").start()).await.unwrap();
    for n in 1..=3 {
        bed.wait_until_announcing(n).await.unwrap();
    }
    (guard, bed)
}

/// Each node's announcer ends and another one starts, and is ready before the next one's turn. How often the address moved.
async fn roll_out(bed: &Bed, web: &Exposed<'_>, address: IpAddr) -> usize {
    let mut moves = 0;
    for n in 1..=3 {
        let owned = bed.owner_of(address).unwrap() == Some(n);
        bed.announcer(n).stop().unwrap();
        if owned {
            web.wait_for_other_vip_host(n).await.unwrap();
            moves += 1;
        }
        bed.announcer(n).start().unwrap();
        bed.wait_until_announcing(n).await.unwrap();
    }
    moves
}

/// For messages: what each node sent under this MAC.
fn captures(bed: &Bed, mac: &str) -> Vec<Capture> {
    (1..=3).map(|n| bed.lan.host(n).capture("eth0", &format!("ether src {mac}")).unwrap()).collect()
}

fn sent(captures: &[Capture]) -> String {
    let all = captures.iter().enumerate();
    let mut lines: Vec<String> = all
        .flat_map(|(n, capture)| {
            let text = capture.text("").unwrap();
            text.lines()
                .filter_map(|line| line.split_once(' '))
                .map(|(at, line)| format!("{at} node{} {line}", n + 1))
                .collect::<Vec<_>>()
        })
        .collect();
    lines.sort();
    lines.join("\n")
}

#[tokio::test]
async fn no_datagram_is_lost_while_every_announcer_is_replaced() {
    if e2e::skip() {
        return;
    }
    let (_alone, bed) = alone().await;
    let case = bed.case("rollout").await.unwrap();
    let fixed = bed.lan.ipv4(150).to_string();
    for (name, at) in [("leased", "0.0.0.0"), ("fixed", fixed.as_str())] {
        let web = case.expose(service(name).at(at).udp(PORT).tcp(80)).await.unwrap();
        let address = web.address().await.unwrap();
        web.udp_reply(address, PORT).await.unwrap();
        web.wait_until_every_node_serves(80).await.unwrap();
        let object = web.get().await.unwrap();
        let mac = object.annotations().get(kube_vip::HWADDR).cloned();
        let captures = mac.map(|mac| captures(&bed, &mac)).unwrap_or_default();
        let target = (address, PORT).into();
        let ask = |traffic| e2e::watch::ask(&bed, traffic).unwrap();
        let (each, flow) = (ask(Traffic::Udp(target)), ask(Traffic::UdpFlow(target)));
        let mut moves = 0;
        for _ in 0..2 {
            moves += roll_out(&bed, &web, address).await;
        }
        // The last announcement of the last move, and the former owner's withdrawal, are over.
        tokio::time::sleep(Duration::from_secs(1)).await;
        let (each, flow) = (each.stop_after(ENOUGH, PATIENCE).unwrap(), flow.stop_after(ENOUGH, PATIENCE).unwrap());
        eprintln!("{name}: {moves} moves; {each}; flow: {flow}");
        assert!(moves > 0, "{name}: it was never where an announcer ended");
        assert_eq!(
            (each.lost, flow.lost),
            (0, 0),
            "{name}: {each}; flow: {flow}; sent by its MAC:\n{}",
            sent(&captures)
        );
        web.delete().await.unwrap();
        web.wait_until_withdrawn(address).await.unwrap();
    }
}
