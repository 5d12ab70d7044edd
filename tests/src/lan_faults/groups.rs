//! Several nodes at once: cut off together, lost with their hypervisor, not ready.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use harvester_api::keys::cloudprovider::HOST;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::jiff::Timestamp;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::json;
use testbed::{Fault, Nic};

use super::{BEYOND_THE_LEASE, ObservedOutage, OutageLimits};
use crate::bed::Bed;
use crate::case::{Case, service};
use crate::vip::Vip;
use crate::watch::{FAILOVER, let_it_happen, nothing_was_written};

/// Longer than the time for which a Node that is not ready still counts as ready.
const UNREADY: u64 = 14;

/// What is done to the interfaces of nodes.
pub type Impairment<'a> = &'a dyn Fn(&[Arc<Nic>]) -> Result<Vec<Fault>>;

/// What is wrong with the nodes that do not own the VIP, one after the other, each for longer than a Lease lasts:
/// nothing moves.
pub async fn standbys_take_nothing_over(
    bed: &Bed,
    case: &Case<'_>,
    last: u8,
    (what, faults): (&str, &[Impairment<'_>]),
) -> Result<ObservedOutage> {
    let vip = Vip::new(bed, case, last).await?;
    // Pods are reached over the LAN too: the one on the owner's node, whatever happens to the others.
    vip.web.publish(&[bed.pod(vip.owner)]).await?;
    vip.web.wait_until_every_node_serves(80).await?;
    let_it_happen(3).await;
    let (term, mark, watch) = (vip.term().await?, bed.mark(), vip.watch()?);
    let standbys: Vec<_> = (1..=3).filter(|n| *n != vip.owner).map(|n| bed.lan.host(n).nic("eth0")).collect();
    for fault in faults {
        let broken = fault(&standbys)?;
        let_it_happen(BEYOND_THE_LEASE).await;
        drop(broken);
    }
    let_it_happen(5).await;
    let seen = ObservedOutage::end_both(what, OutageLimits::NOTHING_IS_LOST, watch)?;
    let (now, owner) = (vip.term().await?, bed.owner_of(vip.address)?);
    ensure!((now, owner) == (term, Some(vip.owner)), "{what}: node {owner:?} has it by term {now}, not {term}");
    nothing_was_written(bed, mark)?;
    vip.is_deleted().await?;
    Ok(seen)
}

/// Clients and gateway are on the owner's side, and both sides reach the API. The group that is cut off is the
/// minority, however many nodes it has.
pub async fn a_minority_is_cut_off(bed: &Bed, case: &Case<'_>, last: u8) -> Result<ObservedOutage> {
    let split: Impairment<'_> = &|standbys| Ok(vec![standbys[0].segment().split(standbys)?]);
    standbys_take_nothing_over(bed, case, last, ("standbys cut off from clients and gateway", &[split])).await
}

/// The owner and a host of its side are cut off from everybody else: clients of the majority have it again at once.
pub async fn the_owner_is_cut_off_with_a_few(bed: &Bed, case: &Case<'_>, last: u8) -> Result<ObservedOutage> {
    let vip = Vip::new(bed, case, last).await?;
    let neighbour = bed.lan.add_host("neighbour", 61)?;
    let asked = neighbour.ask_who_has(vip.v4, Duration::from_secs(1))?;
    let_it_happen(6).await;
    let (term, watch) = (vip.term().await?, vip.watch()?);
    let few = [bed.lan.host(vip.owner).nic("eth0"), neighbour.nic("eth0")];
    let split = few[0].segment().split(&few)?;
    let second = vip.moved_from(vip.owner).await?;
    let_it_happen(3).await;
    drop(split);
    vip.is_gone_from(vip.owner).await?;
    let_it_happen(3).await;
    vip.is_announced_by(second).await?;
    let seen = ObservedOutage::end_both("owner cut off with a few", OutageLimits::within(300, FAILOVER), watch)?;
    let now = vip.term().await?;
    ensure!(now == term + 1, "one move: term {now} after {term}");
    ensure!(!asked.report().by.is_empty(), "the neighbour heard nobody");
    vip.is_deleted().await?;
    Ok(seen)
}

/// Which hypervisor each node is on, until this is dropped: others on the bed know of none.
struct Placed<'a>(&'a Bed);

impl<'a> Placed<'a> {
    fn new(bed: &'a Bed, hosts: [&str; 3]) -> Result<Self> {
        for (node, host) in bed.lan.hosts().iter().zip(hosts) {
            let label = format!("{HOST}={host}");
            bed.control_plane.kubectl(&["label", "node", node.name(), "--overwrite", &label])?;
        }
        Ok(Self(bed))
    }
}

impl Drop for Placed<'_> {
    fn drop(&mut self) {
        let label = format!("{HOST}-");
        let _ = self.0.control_plane.kubectl(&["label", "node", "--all", &label]);
    }
}

/// A hypervisor with the owner and the node that follows it by name is lost. The one behind that is first in line.
pub async fn a_hypervisor_is_lost(bed: &Bed, case: &Case<'_>, last: u8) -> Result<ObservedOutage> {
    let vip = Vip::new(bed, case, last).await?;
    let next = vip.owner % 3 + 1;
    let third = next % 3 + 1;
    let mut hosts = ["host-a"; 3];
    hosts[third - 1] = "host-b";
    let placed = Placed::new(bed, hosts)?;
    vip.web.publish(&[bed.pod(third)]).await?;
    vip.web.wait_until_every_node_serves(80).await?;
    // The new line of successors has heard the owner.
    let_it_happen(4).await;
    let watch = vip.watch()?;
    std::thread::scope(|threads| {
        let other = threads.spawn(|| bed.power_off(next));
        bed.power_off(vip.owner)?;
        other.join().map_err(|_| anyhow!("the other node's end has panicked"))?
    })?;
    let now = vip.moved_from(vip.owner).await?;
    ensure!(now == third, "node{now} has it, of the lost hypervisor");
    let_it_happen(2).await;
    let limits = OutageLimits::within(500, Duration::from_secs(2));
    let seen = ObservedOutage::end_both("hypervisor lost with owner and next node", limits, watch)?;
    vip.is_gone_from(vip.owner).await?;
    for n in [vip.owner, next] {
        bed.power_on(n)?;
        bed.wait_until_announcing(n).await?;
    }
    vip.is_announced_by(third).await?;
    drop(placed);
    vip.is_deleted().await?;
    Ok(seen)
}

/// What the node lifecycle controller writes on a Node whose kubelet is silent, and what its kubelet writes.
async fn set_ready(nodes: &Api<Node>, name: &str, ready: bool) -> Result<()> {
    let (status, reason) = if ready { ("True", "KubeletReady") } else { ("Unknown", "NodeStatusUnknown") };
    let now = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let condition = json!({"type": "Ready", "status": status, "reason": reason, "lastTransitionTime": now});
    let patch = Patch::Strategic(json!({"status": {"conditions": [condition]}}));
    let written = nodes.patch_status(name, &PatchParams::default(), &patch).await;
    written.map(drop).with_context(|| format!("failed to write the condition of {name}"))
}

/// The controller manager has lost the kubelets, but every node still answers on the LAN. Six addresses, from `last`
/// on.
pub async fn all_nodes_are_unready_and_back(bed: &Bed, case: &Case<'_>, last: u8) -> Result<ObservedOutage> {
    let vip = Vip::new(bed, case, last).await?;
    let others = last + 1..=last + 5;
    for last in others.clone() {
        let spec = service(&format!("web{last}")).at(&bed.lan.ipv4(last).to_string()).tcp(80);
        case.create(spec).await?;
    }
    let all: Vec<IpAddr> = (last..=last + 5).map(|last| bed.lan.ipv4(last).into()).collect();
    let mut owners = BTreeMap::new();
    for address in &all {
        owners.insert(*address, bed.wait_for_owner(*address).await?);
    }
    let_it_happen(5).await;
    let stay = |when: &str| {
        let now: BTreeMap<_, _> = all.iter().filter_map(|one| Some((*one, bed.owner_of(*one).ok()??))).collect();
        ensure!(owners == now, "{when}: {now:?}, before {owners:?}");
        Ok(())
    };
    stay("they have come to rest")?;
    let (term, watch) = (vip.term().await?, vip.watch()?);
    let nodes: Api<Node> = Api::all(bed.client().await?);
    for host in bed.lan.hosts() {
        set_ready(&nodes, host.name(), false).await?;
    }
    let_it_happen(UNREADY).await;
    stay("all nodes are unready")?;
    for host in bed.lan.hosts() {
        set_ready(&nodes, host.name(), true).await?;
        let_it_happen(4).await;
    }
    let_it_happen(8).await;
    let seen = ObservedOutage::end_both("all nodes unready and back", OutageLimits::NOTHING_IS_LOST, watch)?;
    stay("the nodes are ready again")?;
    let now = vip.term().await?;
    ensure!(now == term, "term {now} after {term}");
    for last in others {
        case.named(&format!("web{last}")).delete_with(bed.lan.ipv4(last).into()).await?;
    }
    vip.is_deleted().await?;
    Ok(seen)
}
