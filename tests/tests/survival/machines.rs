//! Virtual machines that are moved and restarted.

use std::time::{Duration, Instant};

use e2e::machines::{SHUTDOWN, addresses, is_initialized};
use e2e::{VM_NAMESPACE, wait_for};
use harvester_sim::faults::Faults;
use harvester_sim::guest::machines::MigrationOutcome;
use k8s_openapi::api::core::v1::{ConfigMap, Node};
use kube::{Api, ResourceExt};

use super::{PROCESSES, alone, deletions, wait_for_internal_ip};

#[tokio::test]
async fn h5_h6_h7_h10_a_machine_that_is_moved_and_restarted_keeps_its_node_until_it_speaks_again() {
    if e2e::skip() {
        return;
    }
    let (_guard, bed) = alone(&PROCESSES).await;
    bed.machine_and_node("h7-vm", "h7-node", "192.168.100.82").await.unwrap();
    let machines = bed.machines().await.unwrap();
    let maps: Api<ConfigMap> = Api::namespaced(bed.client().await.unwrap(), "kube-system");
    let mapping =
        async || maps.get("harvester-nad-mapping").await.unwrap().data.unwrap()["interface-nad-mapping"].clone();
    let known = wait_for("the network mapping", e2e::PATIENCE, || async {
        let map = maps.get_opt("harvester-nad-mapping").await.map_err(|error| error.to_string())?;
        map.and_then(|map| map.data?.remove("interface-nad-mapping"))
            .filter(|text| !text.is_empty())
            .ok_or("none yet".to_owned())
    })
    .await
    .unwrap();
    wait_for_internal_ip(&bed, "h7-node", "192.168.100.82").await;
    let (mark, begun) = (bed.mark(), k8s_openapi::jiff::Timestamp::now());
    let stays = async |why: &str| {
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(3) {
            let node = bed.node("h7-node").await.unwrap().expect("the Node stays");
            assert!(
                addresses(&node).contains(&"InternalIP=192.168.100.82".to_owned()),
                "{why}: {:?}",
                addresses(&node)
            );
            assert!(is_initialized(&node), "{why}");
            assert_eq!(mapping().await, known, "{why}");
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    };
    machines.start_migration(VM_NAMESPACE, "h7-vm", "host-2").await.unwrap();
    machines.agent(VM_NAMESPACE, "h7-vm", false).await.unwrap();
    stays("while it is moved, its agent silent").await;
    let moved = MigrationOutcome::Moved { region: Some(e2e::bed::REGION), zone: Some("rack-2") };
    machines.finish_migration(VM_NAMESPACE, "h7-vm", moved).await.unwrap();
    stays("moved, not speaking yet").await;
    machines.power(VM_NAMESPACE, "h7-vm", false).await.unwrap();
    stays("its instance deleted").await;
    assert_eq!(deletions(&bed, mark), Vec::<String>::new(), "h5");

    machines.power(VM_NAMESPACE, "h7-vm", true).await.unwrap();
    machines.addresses(VM_NAMESPACE, "h7-vm", "nic-0", &["192.168.100.83".to_owned()]).await.unwrap();
    machines.agent(VM_NAMESPACE, "h7-vm", true).await.unwrap();
    // A second on an idle machine, and not the next of the looks every five minutes.
    wait_for_internal_ip(&bed, "h7-node", "192.168.100.83").await;
    bed.wait_for_node("h7-node", "the new zone", |node: &Node| {
        let zone = node.labels().get("topology.kubernetes.io/zone").cloned().unwrap_or_default();
        let host = node.labels().get("cloudprovider.harvesterhci.io/host").cloned().unwrap_or_default();
        if (zone.as_str(), host.as_str()) == ("rack-2", "host-2") { Ok(()) } else { Err(format!("{zone} {host}")) }
    })
    .await
    .unwrap();
    let of_node = |request: &testbed::Request| request.verb == "patch" && request.uri.contains("/nodes/h7-node");
    let guest = bed.control_plane.audit().since(mark.guest).unwrap();
    // A write that was refused, for a conflict, has changed nothing and is sent again. One that came before the mark
    // may stand behind it.
    let ours = |request: &testbed::Request| {
        let meanwhile = request.at.is_none_or(|at| at >= begun);
        meanwhile && request.user.ends_with(":harvester-cloud-provider") && request.code < 400
    };
    let writes: Vec<_> = guest.iter().filter(|request| of_node(request) && ours(request)).collect();
    assert!((1..=2).contains(&writes.len()), "h10: one write of addresses, one of labels, not {writes:#?}");
}

#[tokio::test]
async fn h8_h9_a_replica_that_comes_up_while_agents_are_silent_knows_its_nodes_and_lifts_their_taints() {
    if e2e::skip() {
        return;
    }
    let (_guard, bed) = alone(&PROCESSES).await;
    bed.machine_and_node("h8-vm", "h8-node", "192.168.100.84").await.unwrap();
    let machines = bed.machines().await.unwrap();
    machines.power(VM_NAMESPACE, "h8-vm", false).await.unwrap();
    bed.set_ready("h8-node", false).await.unwrap();
    let taints = |node: &Node| node.spec.clone().unwrap_or_default().taints.unwrap_or_default();
    let tainted =
        |node: &Node| taints(node).iter().any(|taint| taint.key == SHUTDOWN).then_some(()).ok_or("none".to_owned());
    bed.wait_for_node("h8-node", "the shutdown taint", tainted).await.unwrap();

    bed.set_faults(&Faults { agents_silent: true, ..Faults::default() }).unwrap();
    bed.ccm().stop().unwrap();
    machines.power(VM_NAMESPACE, "h8-vm", true).await.unwrap();
    bed.set_ready("h8-node", true).await.unwrap();
    bed.ccm().start().unwrap();
    let lifted = |node: &Node| match tainted(node) {
        Ok(()) => Err("still tainted".to_owned()),
        Err(_) => Ok(()),
    };
    bed.wait_for_node("h8-node", "no shutdown taint", lifted).await.unwrap();
    // Its name says nothing about its machine; its provider ID does.
    machines.addresses(VM_NAMESPACE, "h8-vm", "nic-0", &["192.168.100.85".to_owned()]).await.unwrap();
    wait_for_internal_ip(&bed, "h8-node", "192.168.100.85").await;
}
