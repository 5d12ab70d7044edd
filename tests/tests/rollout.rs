//! What datagrams meet while all announcers are replaced one after the other, as a DaemonSet does it: none may be lost.
#![allow(clippy::unwrap_used)] // clippy knows test functions, but not their helpers

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, ensure};
use e2e::lan_faults::{ObservedOutage, upgrade};
use e2e::watch::one_of_three;
use e2e::{Bed, Beds, Exposed, service};
use harvester_api::keys::kube_vip;
use kube::ResourceExt;
use testbed::{Capture, DhcpOptions, Traffic};
use tokio::sync::MutexGuard;

static BEDS: Beds = Beds::new();

const PORT: u16 = 53;

async fn alone() -> (MutexGuard<'static, ()>, Arc<Bed>) {
    let builder = Bed::builder().nodes(3).without_ccm().without_pool().dhcp(DhcpOptions::default());
    let (guard, bed) = BEDS
        .alone(|| builder.announcer_env("election_mode", "node").announcer_env("vip_handover", "true").start())
        .await
        .unwrap();
    for n in 1..=3 {
        bed.wait_until_announcing(n).await.unwrap();
    }
    (guard, bed)
}

/// Each node's announcer ends and another one starts, and is ready before the next one's turn. How often the address
/// moved.
async fn roll_out(bed: &Bed, web: &Exposed<'_>, address: IpAddr) -> usize {
    let mut moves = 0;
    for n in 1..=3 {
        let owned = bed.wait_for_owner(address).await.unwrap() == n;
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

/// An upgrade replaces each process on its node. kube-proxy's translations are in that node's kernel, and so the
/// addresses stay there.
#[tokio::test]
async fn no_connection_is_reset_while_every_announcer_is_replaced_on_its_node() {
    if e2e::skip() {
        return;
    }
    let bed = upgrade::bed().start().await.unwrap();
    let case = bed.case("upgrade").await.unwrap();
    let served = upgrade::Served::new(&bed, &case).await.unwrap();
    one_of_three("an upgrade", async || {
        let cost = served.upgrade(&bed).await?;
        assert_eq!((cost.open, cost.broken), (3 * upgrade::OPEN, Vec::new()));
        cost.seen.iter().try_for_each(ObservedOutage::holds)
    })
    .await
    .unwrap();
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
    let fixed = bed.lan.ipv4(150).to_string();
    for (name, at) in [("leased", "0.0.0.0"), ("fixed", fixed.as_str())] {
        // An owner that ends withdraws after two seconds also if its successor has had no time to speak.
        one_of_three(name, async || replaced_without_a_loss(&bed, name, at).await).await.unwrap();
    }
}

async fn replaced_without_a_loss(bed: &Bed, name: &str, at: &str) -> Result<()> {
    let case = bed.case("rollout").await?;
    let web = case.expose(service(name).at(at).udp(PORT).tcp(80)).await?;
    let address = web.address().await?;
    web.udp_reply(address, PORT).await?;
    web.wait_until_every_node_serves(80).await?;
    let object = web.get().await?;
    let mac = object.annotations().get(kube_vip::HWADDR).cloned();
    let captures = mac.map(|mac| captures(bed, &mac)).unwrap_or_default();
    let target = (address, PORT).into();
    let ask = |traffic| e2e::watch::ask(bed, traffic);
    let (each, flow) = (ask(Traffic::Udp(target))?, ask(Traffic::UdpFlow(target))?);
    let mut moves = 0;
    for _ in 0..2 {
        moves += roll_out(bed, &web, address).await;
    }
    // The last announcement of the last move, and the former owner's withdrawal, are over.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let end = |how: &str, probe| {
        let what = format!("every announcer is replaced, {name} address, {how}");
        e2e::watch::end(&what, probe, Some(Duration::ZERO))
    };
    let (each, flow) = (end("a port for each datagram", each)?, end("one port", flow)?);
    eprintln!("{name}: {moves} moves");
    let sent = sent(&captures);
    web.delete().await?;
    web.wait_until_withdrawn(address).await?;
    ensure!(moves > 0, "{name}: it was never where an announcer ended");
    ensure!((each.lost, flow.lost) == (0, 0), "{name}: {each}; flow: {flow}; sent by its MAC:\n{sent}");
    Ok(())
}
