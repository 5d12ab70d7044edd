//! Cooperation with an upgrade of Harvester's hosts, as the chart's value switches it on: a node whose machine is about
//! to be shut down or to move gives away what it has before, and gets it back.
#![allow(clippy::unwrap_used)] // clippy knows test functions, but not their helpers

mod upgrade;

use std::time::Duration;

use e2e::watch;
use e2e::{Bed, PATIENCE, service, wait_for};
use harvester_sim::replay::Replay;
use k8s_openapi::api::core::v1::{Node, Pod, ServiceAccount};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use testbed::Traffic;
use upgrade::{PORT, player, shows};

const CORDONED: &str = "cloudprovider.harvesterhci.io/cordoned";
const HAND_OVER: &str = "cloudprovider.harvesterhci.io/hand-over";

fn is_cordoned(node: &Node) -> bool {
    node.spec.as_ref().and_then(|spec| spec.unschedulable).unwrap_or(false)
}

fn is_marked(node: &Node, key: &str) -> bool {
    node.annotations().contains_key(key)
}

/// A pod on a node without a kubelet: what is deleted is gone at once.
async fn pod(client: &Client, namespace: &str, node: &str, name: &str, change: Value) {
    let owner = json!([{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "u", "controller": true}]);
    let mut pod = json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": name}, "ownerReferences": owner},
        "spec": {"nodeName": node, "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "c", "image": "none"}]}});
    for (path, value) in change.as_object().unwrap() {
        *pod.pointer_mut(path).unwrap() = value.clone();
    }
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    pods.create(&PostParams::default(), &serde_json::from_value(pod).unwrap()).await.unwrap();
    // Budgets protect what runs.
    let runs = Patch::Merge(json!({"status": {"phase": "Running"}}));
    pods.patch_status(name, &PatchParams::default(), &runs).await.unwrap();
}

async fn furnish(client: &Client, namespace: &str, node: &str) {
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), namespace);
    let account: ServiceAccount = serde_json::from_value(json!({"metadata": {"name": "default"}})).unwrap();
    let _ = accounts.create(&PostParams::default(), &account).await;
    pod(client, namespace, node, "web", json!({})).await;
    pod(client, namespace, node, "protected", json!({})).await;
    pod(client, namespace, node, "agent", json!({"/metadata/ownerReferences/0/kind": "DaemonSet"})).await;
    let local = json!({"nodeName": node, "terminationGracePeriodSeconds": 0,
        "containers": [{"name": "c", "image": "none"}],
        "volumes": [{"name": "data", "emptyDir": {}}]});
    pod(client, namespace, node, "local", json!({"/spec": local})).await;
    let budget = json!({"metadata": {"name": "protected"},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "protected"}}}});
    let budgets: Api<PodDisruptionBudget> = Api::namespaced(client.clone(), namespace);
    budgets.create(&PostParams::default(), &serde_json::from_value(budget).unwrap()).await.unwrap();
}

async fn wait_for_pods(client: &Client, namespace: &str, wanted: &[&str]) {
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    wait_for(&format!("pods {wanted:?}"), PATIENCE, || async {
        let list = pods.list(&ListParams::default()).await.map_err(|error| error.to_string())?;
        let found: Vec<String> = list.iter().map(ResourceExt::name_any).collect();
        if found == wanted { Ok(()) } else { Err(format!("{found:?}")) }
    })
    .await
    .unwrap();
}

/// The machine of `owner` is on a host of its own.
fn replay(owner: &str, steps: &str) -> Replay {
    let host = |name: &str| if name == owner { "host-1, movable: false" } else { "host-2" };
    let machines = ["node1", "node2", "node3"]
        .map(|name| format!("  {name}: {{host: {}, zone: rack-1, address: 10.20.0.11}}\n", host(name)))
        .concat();
    Replay::parse(&format!("name: one\nmachines:\n{machines}steps:\n{steps}")).unwrap()
}

#[tokio::test]
async fn a_node_is_emptied_before_its_machine_goes_off_and_used_again_when_it_is_back() {
    if e2e::skip() {
        return;
    }
    let builder = Bed::builder().nodes(3).chart_value("hostUpgrade.cooperation=true");
    let bed = builder.ccm_arg("--node-monitor-period=1s").start().await.unwrap();
    let case = bed.case("cooperation").await.unwrap();
    let web = case.expose(service("web").tcp(PORT)).await.unwrap();
    let address = web.settled().await.unwrap();
    let n = bed.wait_for_owner(address).await.unwrap();
    let owner = bed.lan.host(n).name().to_owned();
    let others: Vec<_> = bed.pods().into_iter().filter(|pod| pod.node != owner).collect();
    web.publish(&others).await.unwrap();
    web.wait_until_every_node_serves(PORT).await.unwrap();
    let client = bed.client().await.unwrap();
    furnish(&client, case.namespace(), &owner).await;
    let player = player(&bed).await;
    player.install(true).await.unwrap();
    bed.ccm().restart().unwrap();
    bed.wait_until_ccm_is_ready().await.unwrap();

    let mark = bed.mark();
    // Its host is emptied: the address leaves first, without a lost answer, then the pods.
    let steps = format!(
        "  - {{at: 0, plan: {{phase: NodeUpgrading, hosts: {{host-1: PreDraining, host-2: ImageCleaned}}}}}}
  - {{at: 1, machines: {{{owner}: {{power: 'off'}}}}}}
  - {{at: 2, plan: {{hosts: {{host-1: PostDrained}}}}, machines: {{{owner}: {{power: 'on'}}}}}}
"
    );
    let snapshots = replay(&owner, &steps).snapshots(player.placement()).unwrap();
    let probe = watch::ask(&bed, Traffic::Http((address, PORT).into())).unwrap();
    player.play(&snapshots[0]).await.unwrap();
    bed.wait_for_node(&owner, "to be cordoned", |node| {
        let done = is_cordoned(node) && is_marked(node, CORDONED) && is_marked(node, HAND_OVER);
        if done { Ok(()) } else { Err(format!("{:?}", node.annotations())) }
    })
    .await
    .unwrap();
    let second = web.wait_for_other_vip_host(n).await.unwrap();
    wait_for_pods(&client, case.namespace(), &["agent", "local", "protected"]).await;
    bed.wait_for_event("default", "Node", &owner, "NodeDrainStarted", "is about to be shut down").await.unwrap();
    // The budget is respected; whoever changes it lets the drain go on.
    let budgets: Api<PodDisruptionBudget> = Api::namespaced(client.clone(), case.namespace());
    budgets.delete("protected", &DeleteParams::default()).await.unwrap();
    wait_for_pods(&client, case.namespace(), &["agent", "local"]).await;
    let event = bed.wait_for_event("default", "Node", &owner, "NodeDrained", "2 pods were evicted").await.unwrap();
    assert!(event.message.contains("/local") && !event.message.contains("/agent"), "{event:?}");

    // It goes off, and nobody notices.
    player.play(&snapshots[1]).await.unwrap();
    bed.power_off(n).unwrap();
    bed.wait_for_node(&owner, "its machine is off", shows("VMShutDownForUpgrade")).await.unwrap();
    watch::only_what_was_under_way_was_lost("handed over, drained and off", 1, probe).unwrap();

    // It is back: what was done is taken back, and no more than that.
    let by_hand = bed.lan.host(second).name().to_owned();
    let nodes: Api<Node> = Api::all(client.clone());
    let cordon = Patch::Merge(json!({"spec": {"unschedulable": true}}));
    nodes.patch(&by_hand, &PatchParams::default(), &cordon).await.unwrap();
    bed.power_on(n).unwrap();
    bed.wait_until_announcing(n).await.unwrap();
    player.play(&snapshots[2]).await.unwrap();
    bed.wait_for_node(&owner, "to be uncordoned", |node| {
        let clean = !is_cordoned(node) && !is_marked(node, CORDONED) && !is_marked(node, HAND_OVER);
        if clean { Ok(()) } else { Err(format!("{:?}", node.annotations())) }
    })
    .await
    .unwrap();
    bed.wait_for_event("default", "Node", &owner, "NodeUncordoned", "").await.unwrap();
    assert!(is_cordoned(&bed.node(&by_hand).await.unwrap().unwrap()), "another's cordon stays");
    let uncordon = Patch::Merge(json!({"spec": {"unschedulable": null}}));
    nodes.patch(&by_hand, &PatchParams::default(), &uncordon).await.unwrap();

    // Another one moves while it runs: its address has left before it stands still, for longer than announcers wait.
    let steps = format!(
        "  - {{at: 0, plan: {{phase: NodeUpgrading, hosts: {{host-2: PreDraining, host-1: ImageCleaned}}}}, machines: \
        {{{by_hand}: {{evacuating: true}}}}}}
  - {{at: 1, machines: {{{by_hand}: {{moves_to: host-1}}}}}}
  - {{at: 2, machines: {{{by_hand}: {{arrived: true}}}}}}
  - {{at: 3, plan: {{phase: Succeeded}}}}
"
    );
    let snapshots = replay(&owner, &steps).snapshots(player.placement()).unwrap();
    // A kube-proxy that still sends clients to the pod of what stands still would lose them, whoever announces.
    web.move_to(bed.pod(n), PORT).await.unwrap();
    let probe = watch::ask(&bed, Traffic::Http((address, PORT).into())).unwrap();
    player.play(&snapshots[0]).await.unwrap();
    web.wait_for_other_vip_host(second).await.unwrap();
    bed.wait_until_without(second, address).await.unwrap();
    player.play(&snapshots[1]).await.unwrap();
    bed.announcer(second).pause().unwrap();
    bed.lan.host(second).cut_off().unwrap();
    tokio::time::sleep(Duration::from_millis(800)).await;
    bed.lan.host(second).plug_in().unwrap();
    bed.announcer(second).resume().unwrap();
    player.play(&snapshots[2]).await.unwrap();
    bed.wait_for_node(&by_hand, "its mark to go", |node| {
        if is_marked(node, HAND_OVER) { Err(format!("{:?}", node.annotations())) } else { Ok(()) }
    })
    .await
    .unwrap();
    let what = "handed over before a live migration that stands still for 0.8 s";
    watch::only_what_was_under_way_was_lost(what, 1, probe).unwrap();
    assert!(!is_cordoned(&bed.node(&by_hand).await.unwrap().unwrap()), "what moves keeps its pods");
    assert_eq!(web.address().await.unwrap(), address);

    // Two of three members of etcd on one host.
    for name in ["node1", "node2", "node3"] {
        let label = Patch::Merge(json!({"metadata": {"labels": {"node-role.kubernetes.io/etcd": "true"}}}));
        nodes.patch(name, &PatchParams::default(), &label).await.unwrap();
    }
    let told = bed.wait_for_event("default", "Node", &owner, "QuorumAtRisk", "2 of the 3 etcd members").await.unwrap();
    assert!(told.message.contains("host-1"), "{told:?}");
    let costs = bed.costs(mark).unwrap();
    assert!(costs.ccm_harvester.is_empty(), "nothing is written on the host: {costs}");
}
