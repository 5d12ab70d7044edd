//! Upgrades of Harvester's hosts, replayed in seconds on a stand-in: what Nodes show at each step, what stays, what
//! clients notice, and what it costs. The replays are files of `crates/harvester-sim/replays`; their every step in time
//! is tried in `crates/harvester-provider`.
#![allow(clippy::unwrap_used)] // clippy knows test functions, but not their helpers

mod upgrade;

use std::time::Duration;

use e2e::{Bed, VM_NAMESPACE, service};
use harvester_sim::guest::machine::{Machine, Upgraded};
use upgrade::{PORT, ReplayBed, player, read, shows};

async fn bed() -> Bed {
    Bed::builder().nodes(3).ccm_arg("--node-monitor-period=1s").start().await.unwrap()
}

#[tokio::test]
async fn machines_that_move_keep_their_nodes_and_addresses_whoever_tells_of_the_upgrade() {
    if e2e::skip() {
        return;
    }
    let bed = bed().await;
    let case = bed.case("moves").await.unwrap();
    let web = case.expose(service("web").tcp(PORT)).await.unwrap();
    let replay_bed = ReplayBed::new(&bed, &web).await;

    // Nobody tells why they move: zones follow, and nothing is shown.
    replay_bed.play("migrations", true).await;
    let snapshots = read("migrations").snapshots(replay_bed.player.placement()).unwrap();
    replay_bed.zones_follow(snapshots.last().unwrap()).await;
    assert!(
        bed.events("default", "Node", "node1").await.unwrap().iter().all(|event| !event.reason.starts_with("Host"))
    );

    // One window: the next upgrade begins before the one before it has settled.
    replay_bed.install(true).await;
    let writes = replay_bed.play("toolkit-three-hosts", false).await;
    assert!(
        writes <= 140,
        "three Nodes of at most 16 states with a condition and annotations each, and the ConfigMap: {writes}"
    );
    replay_bed.play("failed", false).await;
    replay_bed.play("v1-three-hosts", true).await;
    let report = replay_bed.report().await;
    assert!(report.contains("node node1 moved") && report.contains("node node2"), "{report}");
    replay_bed.told_once().await;
    let last = read("v1-three-hosts").snapshots(replay_bed.player.placement()).unwrap();
    replay_bed.zones_follow(last.last().unwrap()).await;
}

#[tokio::test]
async fn machines_that_are_off_keep_their_nodes_and_addresses_and_the_window_has_an_end() {
    if e2e::skip() {
        return;
    }
    let bed = bed().await;
    let case = bed.case("off").await.unwrap();
    let web = case.expose(service("web").tcp(PORT)).await.unwrap();
    let mut replay_bed = ReplayBed::new(&bed, &web).await;

    // The plan may not be read: the machines tell.
    replay_bed.install(false).await;
    replay_bed.play("without-rights", false).await;
    replay_bed.install(true).await;
    replay_bed.play("two-machines-off", false).await;
    replay_bed.lets_time_pass = true;
    replay_bed.play("paused", false).await;
    let stale = ("kube-system", "ConfigMap", "harvester-host-upgrade");
    bed.wait_for_event(stale.0, stale.1, stale.2, "HostUpgradeStale", "nothing has changed for").await.unwrap();
    replay_bed.lets_time_pass = false;
    replay_bed.play("single-host", true).await;
    let report = replay_bed.report().await;
    let moved = format!("{}, before {}", bed.lan.ipv4(99), bed.lan.ipv4(12));
    assert!(report.contains("was off for") && report.contains(&moved), "{report}");
    // Its kubelet still names the old one as its own.
    let new = bed.lan.ipv4(99).to_string();
    bed.wait_for_node("node2", "its new address", |node| {
        let found = e2e::machines::addresses(node);
        if found.iter().any(|entry| entry.ends_with(&format!("={new}"))) { Ok(()) } else { Err(format!("{found:?}")) }
    })
    .await
    .unwrap();
}

/// Nobody knows why it does not answer: nothing is concluded, and nothing is shown on Nodes.
#[tokio::test]
async fn a_host_that_does_not_answer_suspends_deletions_and_nothing_else_until_it_is_back() {
    if e2e::skip() {
        return;
    }
    let bed = Bed::builder().nodes(2).ccm_arg("--node-monitor-period=1s").start().await.unwrap();
    let case = bed.case("away").await.unwrap();
    let web = case.expose(service("web").tcp(PORT)).await.unwrap();
    let replay_bed = ReplayBed::new(&bed, &web).await;
    let mark = bed.mark();
    replay_bed.play("host-away", true).await;
    let costs = bed.costs(mark).unwrap();
    let about_map = |request: &&testbed::Request| request.name.as_deref() == Some("harvester-host-upgrade");
    let told = costs.ccm_guest.iter().filter(about_map).count();
    assert_eq!(told, 3, "when the silence is long, when the host answers, and when it is over: {costs}");
    assert!(
        bed.events("default", "Node", "node1").await.unwrap().iter().all(|event| !event.reason.starts_with("Host"))
    );
    assert!(web.events().await.unwrap().iter().all(|event| event.reason != "HostUpgradeStarted"));
}

#[tokio::test]
async fn a_machine_that_even_vanishes_during_an_upgrade_keeps_its_node() {
    if e2e::skip() {
        return;
    }
    let bed = Bed::builder().nodes(2).ccm_arg("--node-monitor-period=1s").start().await.unwrap();
    let case = bed.case("unreadable").await.unwrap();
    let web = case.expose(service("web").tcp(8080)).await.unwrap();
    let address = web.settled().await.unwrap();
    let machines = bed.machines().await.unwrap();
    player(&bed).await.install(false).await.unwrap();
    let mark = bed.mark();
    for name in ["node1", "node2"] {
        let leave = |machine: &mut Machine| machine.upgrade.evacuating = true;
        machines.change(VM_NAMESPACE, name, leave).await.unwrap();
    }
    bed.wait_for_node("node2", "its host is emptied", shows("HostPreDraining")).await.unwrap();
    machines
        .change(VM_NAMESPACE, "node2", |machine| {
            machine.powered = false;
            machine.upgrade = Upgraded { shut_down: true, ..Default::default() };
        })
        .await
        .unwrap();
    bed.wait_for_node("node2", "it is off", shows("VMShutDownForUpgrade")).await.unwrap();
    machines.delete(VM_NAMESPACE, "node2", false).await.unwrap();
    bed.set_ready("node2", false).await.unwrap();
    tokio::time::sleep(Duration::from_secs(8)).await;
    assert!(bed.node("node2").await.unwrap().is_some(), "no Node is deleted");
    assert_eq!(web.address().await.unwrap(), address);
    let costs = bed.costs(mark).unwrap();
    assert!(costs.ccm_guest.iter().all(|request| request.verb != "delete"), "{costs}");
    assert!(costs.ccm_harvester.is_empty(), "{costs}");
}
