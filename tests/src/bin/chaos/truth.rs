//! What must be true, seen from outside: of every moment, and of the end.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result};
use e2e::bed::POOL;
use e2e::cost::Mark;
use e2e::machines::{UNINITIALIZED, addresses};
use e2e::{Bed, CLUSTER, VM_NAMESPACE};
use harvester_api::ip_pool::IpPool;
use harvester_api::keys::{cloudprovider, kube_vip};
use harvester_api::load_balancer::LoadBalancer;
use harvester_api::names::ClusterName;
use k8s_openapi::api::core::v1::{Node, Service};
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt};

/// A Service's load balancer as it was first seen with an address.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Given {
    lb: String,
    address: String,
}

/// What was seen so far.
pub struct Truth {
    services: Api<Service>,
    lbs: Api<LoadBalancer>,
    pools: Api<IpPool>,
    nodes: Api<Node>,
    /// By UID of the Service.
    given: BTreeMap<String, Given>,
    /// Load balancers that may be deleted: their Service was, or wants none any more.
    released: BTreeSet<String>,
    begin: Mark,
    /// Machines' nodes and the address that each should show.
    pub machines: BTreeMap<String, String>,
    /// Broken rules.
    pub violations: BTreeSet<String>,
}

fn is_load_balancer(service: &Service) -> bool {
    service.spec.as_ref().and_then(|spec| spec.type_.as_deref()) == Some("LoadBalancer")
        && service.metadata.deletion_timestamp.is_none()
}

fn published(service: &Service) -> Option<String> {
    service.annotations().get(kube_vip::LOADBALANCER_IPS).filter(|ip| !ip.is_empty()).cloned()
}

/// The Service that an object is for.
fn owner(lb: &LoadBalancer) -> Option<(String, String)> {
    let label = |key: &str| lb.labels().get(key).cloned();
    Some((label(cloudprovider::SERVICE_NAMESPACE)?, label(cloudprovider::SERVICE_NAME)?))
}

impl Truth {
    pub async fn new(bed: &Bed, namespace: &str) -> Result<Self> {
        let (guest, harvester): (Client, Client) = (bed.client().await?, bed.harvester_client().await?);
        Ok(Self {
            services: Api::namespaced(guest.clone(), namespace),
            nodes: Api::all(guest),
            lbs: Api::namespaced(harvester.clone(), VM_NAMESPACE),
            pools: Api::all(harvester),
            given: BTreeMap::new(),
            released: BTreeSet::new(),
            begin: bed.mark(),
            machines: BTreeMap::new(),
            violations: BTreeSet::new(),
        })
    }

    /// A Service that stopped being a load balancer begins a new life when it is one again.
    pub fn forget(&mut self, service: &Service) {
        self.given.remove(&service.uid().unwrap_or_default());
    }

    /// From now on its load balancer may be deleted.
    pub fn released(&mut self, service: &Service) {
        let (namespace, name, uid) =
            (service.namespace().unwrap_or_default(), service.name_any(), service.uid().unwrap_or_default());
        let cluster = ClusterName::from_record(CLUSTER);
        self.released.insert(cluster.load_balancer_name(&namespace, &name, &uid));
    }

    /// Looks at what was asked of Harvester so far: no load balancer may have been deleted while its Service wanted it,
    /// not even one that no look saw.
    pub fn look_back(&mut self, bed: &Bed) -> Result<()> {
        for request in bed.costs(self.begin)?.ccm_harvester {
            let name = request.name.unwrap_or_default();
            let deleted = request.verb == "delete" && request.resource == "loadbalancers" && request.code < 300;
            if deleted && !self.released.contains(&name) {
                self.violations.insert(format!("load balancer {name} was deleted although its Service wanted it"));
            }
        }
        Ok(())
    }

    /// Looks at a moment; a server that cannot be asked shows nothing.
    pub async fn look(&mut self) {
        let all = ListParams::default();
        let (Ok(lbs), Ok(services)) = (self.lbs.list(&all).await, self.services.list(&all).await) else { return };
        for service in services.iter().filter(|service| is_load_balancer(service)) {
            let Some(address) = published(service) else { continue };
            let key = (service.namespace().unwrap_or_default(), service.name_any());
            let uid = service.uid().unwrap_or_default();
            let now = lbs.iter().find(|lb| owner(lb).as_ref() == Some(&key));
            let now = now.map(|lb| Given { lb: lb.uid().unwrap_or_default(), address: address.clone() });
            let Some(before) = self.given.get(&uid).cloned() else {
                // Whether an object made before the list of Services is its own shows at the next look.
                self.given.extend(now.map(|now| (uid, now)));
                continue;
            };
            match now {
                None => _ = self.violations.insert(format!("{}: its load balancer was deleted", key.1)),
                Some(now) if now != before => {
                    self.violations.insert(format!("{}: {before:?} became {now:?}", key.1));
                }
                Some(_) => {}
            }
        }
        if let Ok(nodes) = self.nodes.list(&all).await {
            for machine in self.machines.keys() {
                if nodes.iter().all(|node| node.name_any() != *machine) {
                    self.violations.insert(format!("Node {machine} was deleted although its machine exists"));
                }
            }
        }
    }

    /// What is not yet as it has to be in the end; nothing if all is well.
    pub async fn missing(&self) -> Result<Vec<String>> {
        let all = ListParams::default();
        let services = self.services.list(&all).await.context("failed to list Services")?;
        let lbs = self.lbs.list(&all).await.context("failed to list LoadBalancers")?;
        let pool = self.pools.get(POOL).await.context("failed to read the pool")?;
        let nodes = self.nodes.list(&all).await.context("failed to list Nodes")?;
        let mut missing = Vec::new();
        let mut wanted = BTreeSet::new();
        for service in &services {
            let name = service.name_any();
            if service.metadata.deletion_timestamp.is_some() {
                missing.push(format!("{name} is still being deleted"));
                continue;
            }
            if !is_load_balancer(service) {
                continue;
            }
            let key = (service.namespace().unwrap_or_default(), name.clone());
            let lb = lbs.iter().find(|lb| owner(lb).as_ref() == Some(&key));
            let allocated = lb.and_then(|lb| lb.status.as_ref()?.allocated_address.ip.clone());
            match (published(service), allocated) {
                (Some(shown), Some(allocated)) if shown == allocated => {}
                (shown, allocated) => {
                    let ready = lb.and_then(LoadBalancer::not_ready_message);
                    let version = lb.and_then(ResourceExt::resource_version);
                    missing.push(format!(
                        "{name} shows {shown:?}, its load balancer (version {version:?}) has {allocated:?}: {ready:?}"
                    ));
                }
            }
            wanted.insert(key);
        }
        for lb in &lbs {
            if owner(lb).is_none_or(|owner| !wanted.contains(&owner)) {
                let state = if lb.terminating() { "is being deleted" } else { "has no Service" };
                let (version, ready) = (lb.resource_version().unwrap_or_default(), lb.not_ready_message());
                missing.push(format!("load balancer {} {state}; version {version}, {ready:?}", lb.name_any()));
            }
        }
        let names: BTreeSet<String> = lbs.iter().map(|lb| format!("{VM_NAMESPACE}/{}", lb.name_any())).collect();
        for (address, owner) in pool.status.unwrap_or_default().allocated {
            if !names.contains(&owner) {
                missing.push(format!("{address} is booked for {owner}, which does not exist"));
            }
        }
        for (machine, address) in &self.machines {
            let wanted = format!("InternalIP={address}");
            match nodes.iter().find(|node| node.name_any() == *machine) {
                None => missing.push(format!("Node {machine} does not exist")),
                Some(node) if !addresses(node).contains(&wanted) => {
                    missing.push(format!("Node {machine} shows {:?}, not {wanted}", addresses(node)));
                }
                Some(node) => {
                    let taints = node.spec.iter().flat_map(|spec| spec.taints.iter().flatten());
                    missing.extend(
                        taints.filter(|taint| taint.key == UNINITIALIZED).map(|_| format!("Node {machine} is tainted")),
                    );
                }
            }
        }
        Ok(missing)
    }
}
