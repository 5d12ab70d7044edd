//! When Rancher removes a whole guest cluster, its load balancers go with the first machine. Harvester spec 4.5

use std::sync::Arc;

use harvester_api::keys::{cloudprovider, harvester};
use harvester_api::load_balancer::LoadBalancer;
use harvester_api::virtual_machine::VirtualMachine;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use kube::runtime::reflector::ObjectRef;
use kube::{Api, ResourceExt};
use serde_json::json;

use super::queue::{Key, Outcome};
use super::world::{World, is_conflict, is_not_found};
use crate::admission::load_balancer::being_removed;

/// Finalizer that the host (1.8 and later) puts on every VM.
pub const FINALIZER: &str = "wrangler.cattle.io/harvester-lb-vm-controller";

/// Works off the queue of virtual machines for ever.
pub async fn work(world: Arc<World>) {
    loop {
        let key = world.machine_queue.next().await;
        let outcome = pass(&world, &key).await;
        world.machine_queue.done(&key, outcome);
    }
}

async fn pass(world: &World, key: &Key) -> Outcome {
    let Some(machine) = world.machines.get(&ObjectRef::new(&key.1).within(&key.0)) else {
        return Outcome::Clean;
    };
    match look_at(world, &machine).await {
        Ok(()) => Outcome::Clean,
        Err(error) => {
            tracing::debug!(%error, ?key, "machine not looked after");
            Outcome::Failed
        }
    }
}

async fn look_at(world: &World, machine: &VirtualMachine) -> kube::Result<()> {
    let mut finalizers = machine.finalizers().to_vec();
    let there = finalizers.iter().any(|finalizer| finalizer == FINALIZER);
    if machine.metadata.deletion_timestamp.is_none() {
        if there {
            return Ok(());
        }
        finalizers.push(FINALIZER.to_owned());
    } else {
        if !there {
            return Ok(());
        }
        clean_up(world, machine).await?;
        finalizers.retain(|finalizer| finalizer != FINALIZER);
    }
    let api: Api<VirtualMachine> = Api::namespaced(world.client.clone(), &machine.namespace().unwrap_or_default());
    let patch = json!({"metadata": {"finalizers": finalizers, "resourceVersion": machine.resource_version()}});
    let outcome = api.patch(&machine.name_any(), &PatchParams::default(), &Patch::Merge(&patch)).await;
    // Whoever wrote in between has caused an event that brings us here again.
    if is_not_found(&outcome) || is_conflict(&outcome) { Ok(()) } else { outcome.map(drop) }
}

async fn clean_up(world: &World, machine: &VirtualMachine) -> kube::Result<()> {
    let label = |key: &str| machine.labels().get(key).map(String::as_str);
    let Some(cluster) = label(harvester::GUEST_CLUSTER_NAME)
        .filter(|_| label(harvester::CREATOR) == Some(harvester::NODE_DRIVER) && being_removed(machine.annotations()))
    else {
        return Ok(());
    };
    let api: Api<LoadBalancer> = Api::namespaced(world.client.clone(), &machine.namespace().unwrap_or_default());
    let of_cluster = ListParams::default().labels(&format!("{}={cluster}", cloudprovider::CLUSTER));
    for lb in api.list(&of_cluster).await? {
        if lb.spec.workload_type.as_deref() == Some("cluster") {
            let outcome = api.delete(&lb.name_any(), &DeleteParams::default()).await;
            if !is_not_found(&outcome) {
                outcome?;
            }
        }
    }
    Ok(())
}
