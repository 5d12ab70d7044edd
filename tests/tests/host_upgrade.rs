//! Upgrades of Harvester's hosts, replayed in seconds on a stand-in: what Nodes show at each step, what stays, and what it costs. The
//! replays are files of `crates/harvester-sim/replays`; their every step in time is tried in `crates/harvester-provider`.
#![allow(clippy::unwrap_used)] // clippy knows test functions, but not their helpers

use std::time::Duration;

use e2e::{Bed, CLUSTER, NETWORK, PATIENCE, VM_NAMESPACE, service, wait_for};
use harvester_sim::replay::play::Player;
use harvester_sim::replay::{Replay, Scene};
use k8s_openapi::api::core::v1::{ConfigMap, Node};
use kube::{Api, ResourceExt};
use serde_json::Value;

const CONDITION: &str = "HarvesterHostMaintenance";
const ZONE: &str = "topology.kubernetes.io/zone";

async fn player(bed: &Bed) -> Player {
    Player::new(bed.harvester_client().await.unwrap(), VM_NAMESPACE, CLUSTER, NETWORK)
}

fn scenes(file: &str, player: &Player) -> Vec<Scene> {
    let path = format!("{}/../crates/harvester-sim/replays/{file}.yaml", env!("CARGO_MANIFEST_DIR"));
    Replay::parse(&std::fs::read_to_string(path).unwrap()).unwrap().scenes(player.stage()).unwrap()
}

fn reason(node: &Node) -> String {
    let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let found = conditions.filter(|condition| condition.type_ == CONDITION).find_map(|found| found.reason.clone());
    found.unwrap_or_else(|| "none".to_owned())
}

async fn suspended(bed: &Bed) -> Option<bool> {
    let maps: Api<ConfigMap> = Api::namespaced(bed.client().await.unwrap(), "kube-system");
    let map = maps.get_opt("harvester-host-upgrade").await.unwrap()?;
    let status: Value = serde_json::from_str(&map.data.unwrap_or_default()["status.json"]).unwrap();
    Some(status["window"]["suspended"] == true)
}

/// Waits until everything is as the scene says.
async fn expect(bed: &Bed, scene: &Scene) {
    let Some(expected) = &scene.expect else { return };
    for (name, wanted) in &expected.nodes {
        bed.wait_for_node(name, &format!("{wanted} at minute {}", scene.minute), |node| {
            let found = reason(node);
            if found == *wanted { Ok(()) } else { Err(found) }
        })
        .await
        .unwrap();
    }
    let Some(wanted) = expected.suspended else { return };
    // Settling takes half a minute, whatever the pace of the replay.
    wait_for(&format!("suspended {wanted} at minute {}", scene.minute), PATIENCE * 2, || async {
        let found = suspended(bed).await.unwrap_or(false);
        if found == wanted { Ok(()) } else { Err(format!("{found}")) }
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn an_upgrade_of_three_hosts_deletes_nothing_moves_no_address_and_is_shown_at_each_step() {
    if e2e::skip() {
        return;
    }
    let bed = Bed::builder().nodes(3).ccm_arg("--node-monitor-period=1s").start().await.unwrap();
    let case = bed.case("upgrade").await.unwrap();
    let web = case.expose(service("web").tcp(8080)).await.unwrap();
    let address = web.settled().await.unwrap();
    let player = player(&bed).await;
    let scenes = scenes("toolkit-three-hosts", &player);
    // The hosts' zones come before the plan does, and are followed as ever.
    let first = Scene { plan: None, ..scenes[0].clone() };
    player.install(true).await.unwrap();
    player.play(&first).await.unwrap();
    for n in 1..=3 {
        let wanted = format!("rack-{n}");
        bed.wait_for_node(&format!("node{n}"), "its zone", |node| {
            let found = node.labels().get(ZONE).cloned().unwrap_or_default();
            if found == wanted { Ok(()) } else { Err(found) }
        })
        .await
        .unwrap();
    }
    // The provider has found the kinds missing at its start and looks for them again every ten minutes, or when Harvester is back.
    bed.ccm().restart().unwrap();
    let mark = bed.mark();
    let over = scenes.len() - 1;
    for scene in &scenes[..over] {
        player.play(scene).await.unwrap();
        expect(&bed, scene).await;
        tokio::time::sleep(Duration::from_millis(400)).await;
        assert_eq!(web.address().await.unwrap(), address, "at minute {}", scene.minute);
        for n in 1..=3 {
            let node = bed.node(&format!("node{n}")).await.unwrap().expect("no Node is deleted");
            assert_eq!(node.labels()[ZONE], format!("rack-{n}"), "zones are frozen, minute {}", scene.minute);
        }
    }
    player.play(&scenes[over]).await.unwrap();
    expect(&bed, &scenes[over]).await;
    web.reply(address, 8080).await.unwrap();

    let costs = bed.costs(mark).unwrap();
    let deletions = |list: &[testbed::Request]| list.iter().filter(|request| request.verb == "delete").count();
    assert_eq!((deletions(&costs.ccm_guest), deletions(&costs.ccm_harvester)), (0, 0), "{costs}");
    assert!(costs.ccm_harvester.is_empty(), "nothing is written on the host: {costs}");
    // Three Nodes of at most 16 states with a condition and annotations each, and the ConfigMap.
    assert!(costs.ccm_guest.len() <= 140, "{costs}");
    let report = bed
        .wait_for_event("kube-system", "ConfigMap", "harvester-host-upgrade", "HostUpgradeReport", "node node1 moved")
        .await
        .unwrap();
    assert_eq!(report.kind, "Normal");
    let told = web.events().await.unwrap();
    assert_eq!(told.iter().filter(|event| event.reason == "HostUpgradeStarted").count(), 1, "{told:?}");
    println!("writes on the guest: {}, Events: {}", costs.ccm_guest.len(), costs.ccm_events.len());
}

#[tokio::test]
async fn machines_that_are_off_for_an_upgrade_keep_their_nodes_although_the_plan_may_not_be_read() {
    if e2e::skip() {
        return;
    }
    let bed = Bed::builder().nodes(2).ccm_arg("--node-monitor-period=1s").start().await.unwrap();
    let case = bed.case("unreadable").await.unwrap();
    let web = case.expose(service("web").tcp(8080)).await.unwrap();
    let address = web.settled().await.unwrap();
    let machines = bed.machines().await.unwrap();
    let player = player(&bed).await;
    player.install(false).await.unwrap();
    let mark = bed.mark();
    for name in ["node1", "node2"] {
        let leave = |machine: &mut harvester_sim::guest::machine::Machine| machine.upgrade.evacuating = true;
        machines.change(VM_NAMESPACE, name, leave).await.unwrap();
    }
    let shows = |wanted: &'static str| {
        move |node: &Node| {
            let found = reason(node);
            if found == wanted { Ok(()) } else { Err(found) }
        }
    };
    bed.wait_for_node("node2", "its host is emptied", shows("HostPreDraining")).await.unwrap();
    machines
        .change(VM_NAMESPACE, "node2", |machine| {
            machine.powered = false;
            machine.upgrade = harvester_sim::guest::machine::Upgraded { shut_down: true, ..Default::default() };
        })
        .await
        .unwrap();
    bed.wait_for_node("node2", "it is off", shows("VMShutDownForUpgrade")).await.unwrap();
    // While it lasts a Node whose machine even vanishes is left alone.
    machines.delete(VM_NAMESPACE, "node2", false).await.unwrap();
    bed.set_ready("node2", false).await.unwrap();
    tokio::time::sleep(Duration::from_secs(8)).await;
    assert!(bed.node("node2").await.unwrap().is_some(), "no Node is deleted");
    assert_eq!(web.address().await.unwrap(), address);
    let costs = bed.costs(mark).unwrap();
    assert!(costs.ccm_guest.iter().all(|request| request.verb != "delete"), "{costs}");
    assert!(costs.ccm_harvester.is_empty(), "{costs}");
}
