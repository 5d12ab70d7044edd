//! What the webhooks look up, from memory: the host's own ask the caches of their informers, too.
//!
//! A cache may be behind by the time that a watch takes. Where it knows nothing, because an object was made just now or
//! the watch does not stand yet, the API is asked.

use std::fmt::Debug;
use std::hash::Hash;

use futures::StreamExt;
use harvester_api::ip_pool::IpPool;
use harvester_api::keys::harvester::GUEST_CLUSTER_NAME;
use harvester_api::virtual_machine::VirtualMachine;
use harvester_api::virtual_machine_instance::VirtualMachineInstance;
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{DynamicObject, ListParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::runtime::reflector::{self, ObjectRef, Store, store::Writer};
use kube::runtime::watcher;
use kube::{Api, Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use tokio::task::JoinSet;

use super::world::{WATCH_AGAIN, World};
use crate::admission::ip_pool::NetworkFacts;
use crate::admission::load_balancer::{self, MachineFacts, being_removed};
use crate::admission::network::InstanceFacts;

/// The caches, and the API behind them. Cheap to clone.
#[derive(Clone)]
pub struct Lookups {
    client: Client,
    pools: Store<IpPool>,
    machines: Store<VirtualMachine>,
    namespaces: Store<Namespace>,
    instances: Store<VirtualMachineInstance>,
    networks: Store<DynamicObject>,
}

impl Lookups {
    /// Shares the caches of the controllers and fills its own in `tasks`.
    pub fn start(world: &World, watches: &Client, tasks: &mut JoinSet<()>) -> Self {
        let (namespaces, namespace_writer) = reflector::store();
        let (instances, instance_writer) = reflector::store();
        let network_writer = Writer::new(network_kind());
        let networks = network_writer.as_reader();
        tasks.spawn(follow(Api::all(watches.clone()), namespace_writer));
        tasks.spawn(follow(Api::all(watches.clone()), instance_writer));
        tasks.spawn(follow(Api::all_with(watches.clone(), &network_kind()), network_writer));
        let (pools, machines) = (world.pools.clone(), world.machines.clone());
        Self { client: world.client.clone(), pools, machines, namespaces, instances, networks }
    }

    /// Rancher project of a namespace.
    pub async fn project(&self, namespace: &str) -> Result<String, String> {
        if let Some(found) = self.namespaces.get(&ObjectRef::new(namespace)) {
            return Ok(load_balancer::project_of(found.annotations()));
        }
        let found = Api::<Namespace>::all(self.client.clone()).get(namespace).await;
        let found = found.map_err(|error| format!("get namespace {namespace} failed: {error}"))?;
        Ok(load_balancer::project_of(found.annotations()))
    }

    /// Machines of a guest cluster that is being removed; of one that stays there may be thousands, which say nothing.
    pub async fn leaving_machines(&self, namespace: &str, cluster: &str) -> Result<Vec<MachineFacts>, String> {
        let of_cluster = |vm: &VirtualMachine| {
            vm.namespace().as_deref() == Some(namespace)
                && vm.labels().get(GUEST_CLUSTER_NAME).is_some_and(|label| label == cluster)
        };
        let facts =
            |vm: &VirtualMachine| MachineFacts { labels: vm.labels().clone(), annotations: vm.annotations().clone() };
        // In a block of its own: what borrows from the cache must not live across the await below.
        {
            let cached = self.machines.state();
            let mut leaving = Vec::new();
            let mut is_known = false;
            for vm in cached.iter().filter(|vm| of_cluster(vm)) {
                is_known = true;
                if being_removed(vm.annotations()) {
                    leaving.push(facts(vm));
                }
            }
            if is_known {
                return Ok(leaving);
            }
        }
        let api: Api<VirtualMachine> = Api::namespaced(self.client.clone(), namespace);
        let labelled = as_cached().labels(&format!("{GUEST_CLUSTER_NAME}={cluster}"));
        let machines = api.list(&labelled).await.map_err(|error| format!("list vms failed: {error}"))?;
        Ok(machines.iter().map(facts).collect())
    }

    /// Running machines of a namespace; `cluster` is for the message.
    pub async fn instances(&self, namespace: &str, cluster: Option<&String>) -> Result<Vec<InstanceFacts>, String> {
        let cached = self.instances.state();
        let here = cached.iter().filter(|vmi| vmi.namespace().as_deref() == Some(namespace));
        let known: Vec<_> = here.map(|vmi| instance_facts(vmi)).collect();
        if !known.is_empty() {
            return Ok(known);
        }
        let api: Api<VirtualMachineInstance> = Api::namespaced(self.client.clone(), namespace);
        let found = api.list(&as_cached()).await;
        let found = found.map_err(|error| format!("list vmis of cluster {cluster:?} failed: {error}"))?;
        Ok(found.iter().map(instance_facts).collect())
    }

    /// A network's definition.
    pub async fn network(&self, namespace: &str, name: &str) -> Result<NetworkFacts, String> {
        let facts = |nad: &DynamicObject| NetworkFacts {
            labels: nad.labels().clone(),
            config: nad.data["spec"]["config"].as_str().unwrap_or_default().to_owned(),
        };
        let kind = network_kind();
        if let Some(nad) = self.networks.get(&ObjectRef::new_with(name, kind.clone()).within(namespace)) {
            return Ok(facts(&nad));
        }
        let api: Api<DynamicObject> = Api::namespaced_with(self.client.clone(), namespace, &kind);
        let nad = api.get(name).await.map_err(|error| format!("get network {namespace}/{name}: {error}"))?;
        Ok(facts(&nad))
    }

    /// All pools but this one.
    pub async fn other_pools(&self, pool: &IpPool, newest: bool) -> Result<Vec<IpPool>, String> {
        let cached = self.pools.state();
        let mut others: Vec<IpPool> = if newest || cached.is_empty() {
            let list = Api::<IpPool>::all(self.client.clone()).list(&ListParams::default()).await;
            list.map_err(|error| format!("list ippools: {error}"))?.items
        } else {
            cached.iter().map(|pool| (**pool).clone()).collect()
        };
        others.retain(|other| other.metadata.name != pool.metadata.name);
        Ok(others)
    }
}

fn instance_facts(vmi: &VirtualMachineInstance) -> InstanceFacts {
    let networks = vmi.spec.networks.iter();
    InstanceFacts {
        namespace: vmi.namespace().unwrap_or_default(),
        name: vmi.name_any(),
        labels: vmi.labels().clone(),
        multus_networks: networks
            .filter_map(|network| network.multus.as_ref().map(|multus| multus.network_name.clone()))
            .collect(),
    }
}

fn network_kind() -> ApiResource {
    let kind = GroupVersionKind::gvk("k8s.cni.cncf.io", "v1", "NetworkAttachmentDefinition");
    ApiResource::from_gvk_with_plural(&kind, "network-attachment-definitions")
}

/// What the API server has in its cache. The newest state of a list costs up to a tenth of a second wherever something
/// else is written at the same time: the API server waits until its cache has caught up.
fn as_cached() -> ListParams {
    ListParams::default().match_any()
}

/// Keeps a cache filled. Never ends by itself.
async fn follow<K>(api: Api<K>, writer: Writer<K>)
where
    K: Resource + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
    K::DynamicType: Eq + Hash + Clone,
{
    let events = reflector::reflector(writer, watcher(api, watcher::Config::default()));
    let mut events = std::pin::pin!(events);
    while let Some(event) = events.next().await {
        if let Err(error) = event {
            tracing::debug!(%error, "watch failed, trying again");
            tokio::time::sleep(WATCH_AGAIN).await;
        }
    }
}
