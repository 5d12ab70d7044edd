//! Several nodes at once: cut off together, lost with their hypervisor, not ready.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use e2e::watch::{FAILOVER, let_it_happen};
use e2e::{Bed, service};
use harvester_api::keys::cloudprovider::HOST;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::jiff::Timestamp;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::json;

use super::vip::{Vip, at_most};
use super::{alone, nobody_noticed, standbys_take_nothing_over};

/// The loss of a hypervisor with the owner and the node that would be next: four times the bound of half a second.
const HYPERVISOR_LOST: Duration = Duration::from_secs(2);
/// For longer than a Node may be unready and still counts as ready.
const UNREADY: u64 = 14;

/// Clients and gateway are on the owner's side, the API answers on both: the group is in the minority, however many
/// nodes it has.
#[tokio::test]
async fn a_group_that_is_cut_off_from_clients_and_gateway_takes_nothing_over() {
    if e2e::skip() {
        return;
    }
    standbys_take_nothing_over(186, &[&|standbys| vec![standbys[0].segment().split(standbys).unwrap()]]).await;
}

/// The owner and a host of its side are cut off from everybody else: clients of the majority have it again at once.
#[tokio::test]
async fn an_owner_that_is_cut_off_with_a_few_is_replaced_for_the_many() {
    if e2e::skip() {
        return;
    }
    let (_alone, bed) = alone().await;
    let case = bed.case("majority").await.unwrap();
    let vip = Vip::new(&bed, &case, 187).await;
    let neighbour = bed.lan.add_host("neighbour", 61).unwrap();
    let asked = neighbour.ask_who_has(vip.v4, Duration::from_secs(1)).unwrap();
    let_it_happen(6).await;
    let (term, watch) = (vip.term().await, vip.watch());
    let few = [bed.lan.host(vip.owner).nic("eth0"), neighbour.nic("eth0")];
    let split = few[0].segment().split(&few).unwrap();
    let second = vip.moved_from(vip.owner).await;
    let_it_happen(3).await;
    drop(split);
    vip.is_gone_from(vip.owner).await;
    let_it_happen(3).await;
    vip.is_announced_by(second).await;
    at_most(FAILOVER, "owner cut off with a few", watch).unwrap();
    assert_eq!(vip.term().await, term + 1, "one move");
    assert!(!asked.report().by.is_empty(), "the neighbour heard nobody");
    vip.is_deleted().await;
}

/// Which hypervisor each node is on, until this is dropped: other tests on the bed know of none.
struct Placed<'a>(&'a Bed);

impl<'a> Placed<'a> {
    fn new(bed: &'a Bed, hosts: [&str; 3]) -> Self {
        for (node, host) in bed.lan.hosts().iter().zip(hosts) {
            let label = format!("{HOST}={host}");
            bed.control_plane.kubectl(&["label", "node", node.name(), "--overwrite", &label]).unwrap();
        }
        Self(bed)
    }
}

impl Drop for Placed<'_> {
    fn drop(&mut self) {
        let label = format!("{HOST}-");
        let _ = self.0.control_plane.kubectl(&["label", "node", "--all", &label]);
    }
}

/// The node that follows the owner by name is on the owner's hypervisor, so the one behind it is first in line.
#[tokio::test]
async fn a_lost_hypervisor_with_the_owner_and_the_next_node_costs_what_one_node_costs() {
    if e2e::skip() {
        return;
    }
    let (_alone, bed) = alone().await;
    let case = bed.case("hypervisor").await.unwrap();
    let vip = Vip::new(&bed, &case, 188).await;
    let next = vip.owner % 3 + 1;
    let last = next % 3 + 1;
    let mut hosts = ["host-a"; 3];
    hosts[last - 1] = "host-b";
    let placed = Placed::new(&bed, hosts);
    vip.web.publish(&[bed.pod(last)]).await.unwrap();
    vip.web.wait_until_every_node_serves(80).await.unwrap();
    // The new line of successors has heard the owner.
    let_it_happen(4).await;
    let watch = vip.watch();
    std::thread::scope(|threads| {
        let other = threads.spawn(|| bed.power_off(next));
        bed.power_off(vip.owner).unwrap();
        other.join().unwrap().unwrap();
    });
    assert_eq!(vip.moved_from(vip.owner).await, last);
    let_it_happen(2).await;
    at_most(HYPERVISOR_LOST, "hypervisor lost with owner and next node", watch).unwrap();
    vip.is_gone_from(vip.owner).await;
    for n in [vip.owner, next] {
        bed.power_on(n).unwrap();
        bed.wait_until_announcing(n).await.unwrap();
    }
    vip.is_announced_by(last).await;
    drop(placed);
    vip.is_deleted().await;
}

/// What the node lifecycle controller writes on a Node whose kubelet is silent, and what its kubelet writes.
async fn set_ready(nodes: &Api<Node>, name: &str, ready: bool) {
    let (status, reason) = if ready { ("True", "KubeletReady") } else { ("Unknown", "NodeStatusUnknown") };
    let now = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let condition = json!({"type": "Ready", "status": status, "reason": reason, "lastTransitionTime": now});
    let patch = Patch::Strategic(json!({"status": {"conditions": [condition]}}));
    nodes.patch_status(name, &PatchParams::default(), &patch).await.unwrap();
}

/// The controller manager lost the kubelets, not the LAN: each node goes on answering.
#[tokio::test]
async fn nodes_that_are_unready_all_together_and_back_one_by_one_keep_their_addresses() {
    if e2e::skip() {
        return;
    }
    let (_alone, bed) = alone().await;
    let case = bed.case("unready").await.unwrap();
    let vip = Vip::new(&bed, &case, 189).await;
    for last in 190..=194 {
        let spec = service(&format!("web{last}")).at(&bed.lan.ipv4(last).to_string()).tcp(80);
        case.create(spec).await.unwrap();
    }
    let all: Vec<IpAddr> = (189..=194).map(|last| bed.lan.ipv4(last).into()).collect();
    let mut owners = BTreeMap::new();
    for address in &all {
        owners.insert(*address, bed.wait_for_owner(*address).await.unwrap());
    }
    let_it_happen(5).await;
    let now = || -> BTreeMap<IpAddr, usize> {
        all.iter().filter_map(|address| Some((*address, bed.owner_of(*address).ok()??))).collect()
    };
    assert_eq!(owners, now(), "they have come to rest");
    let (term, watch) = (vip.term().await, vip.watch());
    let nodes: Api<Node> = Api::all(bed.client().await.unwrap());
    for host in bed.lan.hosts() {
        set_ready(&nodes, host.name(), false).await;
    }
    let_it_happen(UNREADY).await;
    assert_eq!(owners, now(), "all nodes are unready");
    for host in bed.lan.hosts() {
        set_ready(&nodes, host.name(), true).await;
        let_it_happen(4).await;
    }
    let_it_happen(8).await;
    nobody_noticed("all nodes unready and back", watch);
    assert_eq!(owners, now(), "the nodes are ready again");
    assert_eq!(vip.term().await, term);
    for last in 190..=194 {
        case.named(&format!("web{last}")).delete_with(bed.lan.ipv4(last).into()).await.unwrap();
    }
    vip.is_deleted().await;
}
