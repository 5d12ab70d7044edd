//! Changes everything that the cloud controller watches, on both sides, for tests of what it must not do meanwhile.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use contract::config_maps::record::{IDENTITY, SAFE_MODE};
use contract::config_maps::{NAMESPACE, RECORD};
use harvester_api::keys::cloudprovider;
use harvester_api::load_balancer::LoadBalancer;
use harvester_sim::guest::machines::Machines;
use k8s_openapi::api::core::v1::{ConfigMap, Node, Service};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use testbed::wait_for;

use crate::PATIENCE;
use crate::bed::{Bed, NETWORK, POOL, POOL_RANGE, VM_NAMESPACE};
use crate::cost::Costs;
use crate::machines::NodeSketch;

/// Services that the churn has made, at most.
const CROWD: usize = 20;
/// Between two changes.
const PAUSE: Duration = Duration::from_millis(30);
/// By then all reports about safe mode have been written.
const TOLD: Duration = Duration::from_secs(5);

/// Why the cloud controller of a cluster changes nothing, as its record says.
pub async fn safe_mode(cluster: &Client) -> Result<Option<String>> {
    let maps: Api<ConfigMap> = Api::namespaced(cluster.clone(), NAMESPACE);
    let record = maps.get_opt(RECORD).await.context("failed to read the record")?;
    Ok(record.and_then(|record| record.data?.remove(SAFE_MODE)))
}

/// Waits until the record gives this reason.
pub async fn wait_for_safe_mode(cluster: &Client, reason: &str) -> Result<()> {
    wait_for_late_safe_mode(cluster, reason, Duration::ZERO).await
}

/// The same where the cloud controller has to wait for so long before it can give this reason.
pub async fn wait_for_late_safe_mode(cluster: &Client, reason: &str, after: Duration) -> Result<()> {
    wait_for(&format!("safe mode for {reason}"), after + PATIENCE, || async {
        match safe_mode(cluster).await.map_err(|error| format!("{error:#}"))? {
            Some(text) if text.starts_with(&format!("{reason}: ")) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await
}

/// Waits until the record gives none.
pub async fn wait_for_the_end_of_safe_mode(cluster: &Client) -> Result<()> {
    wait_for("the end of safe mode", PATIENCE, || async {
        safe_mode(cluster).await.map_err(|error| format!("{error:#}"))?.map_or(Ok(()), Err)
    })
    .await
}

/// What came of it.
#[derive(Debug)]
pub struct SafeModeOutcome {
    /// What was changed meanwhile.
    pub changes: usize,
    /// What the product wrote meanwhile, Leases apart.
    pub costs: Costs,
}

/// Waits until the record of this cluster has an identity card that names a machine.
pub async fn wait_for_identity_card(cluster: &Client) -> Result<()> {
    let maps: Api<ConfigMap> = Api::namespaced(cluster.clone(), NAMESPACE);
    wait_for("an identity card with the machine", PATIENCE, || async {
        let record = maps.get_opt(RECORD).await.map_err(|error| error.to_string())?;
        let text = record.and_then(|record| record.data?.remove(IDENTITY)).unwrap_or_default();
        let card: Value = serde_json::from_str(&text).unwrap_or_default();
        let named = card["machines"].as_array().is_some_and(|machines| !machines.is_empty());
        if named { Ok(()) } else { Err(text) }
    })
    .await
}

impl Bed {
    /// Waits until the record has an identity card that names a machine of this cluster.
    pub async fn wait_for_identity_card(&self) -> Result<()> {
        wait_for_identity_card(&self.client().await?).await
    }

    /// The machines are made anew under their old names, as by a restore of the host: none has the UID that its Node
    /// knows. Safe mode follows.
    pub async fn replace_machines(&self) -> Result<()> {
        let machines = self.machines().await?;
        for host in self.lan.hosts() {
            machines.delete(VM_NAMESPACE, host.name(), false).await?;
        }
        for host in self.lan.hosts() {
            machines.save(&self.machine(host.name(), &[&host.ipv4().to_string()])).await?;
        }
        Ok(())
    }

    /// Safe mode for so long while everything changes. Some Services of the namespace are served before.
    pub async fn endure_safe_mode(&self, namespace: &str, time: Duration) -> Result<SafeModeOutcome> {
        let mut churn = Churn::of(self, namespace).await?;
        self.replace_machines().await?;
        wait_for_safe_mode(&self.client().await?, "MachinesNotSeen").await?;
        tokio::time::sleep(TOLD).await;
        let mark = self.mark();
        churn.go_on(time).await?;
        Ok(SafeModeOutcome { changes: churn.number, costs: self.costs(mark)? })
    }
}

/// See the module's description.
struct Churn<'a> {
    bed: &'a Bed,
    services: Api<Service>,
    nodes: Api<Node>,
    lbs: Api<LoadBalancer>,
    machines: Machines,
    served: Vec<String>,
    objects: Vec<String>,
    made: VecDeque<String>,
    number: usize,
}

impl<'a> Churn<'a> {
    async fn of(bed: &'a Bed, namespace: &str) -> Result<Self> {
        let (guest, harvester) = (bed.client().await?, bed.harvester_client().await?);
        let services: Api<Service> = Api::namespaced(guest.clone(), namespace);
        let lbs: Api<LoadBalancer> = Api::namespaced(harvester, VM_NAMESPACE);
        let served = services.list(&ListParams::default()).await.context("failed to list Services")?;
        let objects = lbs.list(&ListParams::default()).await.context("failed to list LoadBalancers")?;
        Ok(Self {
            bed,
            nodes: Api::all(guest),
            machines: bed.machines().await?,
            served: served.iter().map(ResourceExt::name_any).collect(),
            objects: objects.iter().map(ResourceExt::name_any).collect(),
            services,
            lbs,
            made: VecDeque::new(),
            number: 0,
        })
    }

    async fn go_on(&mut self, time: Duration) -> Result<()> {
        let end = Instant::now() + time;
        while Instant::now() < end {
            self.number += 1;
            self.change(self.number).await.with_context(|| format!("failed at change {}", self.number))?;
            tokio::time::sleep(PAUSE).await;
        }
        Ok(())
    }

    /// The next one; each kind of change has its turn.
    async fn change(&mut self, n: usize) -> Result<()> {
        let round = n / 10;
        let pick = |names: &[String]| names.get(round % names.len().max(1)).cloned();
        let made: Vec<String> = self.made.iter().cloned().collect();
        match (n % 10, pick(&self.served), pick(&made), pick(&self.objects)) {
            (0, ..) => self.make(round).await,
            (1, _, _, _) if self.made.len() > CROWD => {
                let oldest = self.made.pop_front().unwrap_or_default();
                self.services.delete(&oldest, &DeleteParams::default()).await.map(drop).context("failed to delete")
            }
            (2, Some(served), ..) => {
                self.patch(&served, json!({"metadata": {"annotations": {"churn/n": n.to_string()}}})).await
            }
            (3, Some(served), ..) => self.patch(&served, json!({"spec": {"ports": [port(round)]}})).await,
            (4, _, Some(made), _) => {
                let kind = if round.is_multiple_of(2) { "ClusterIP" } else { "LoadBalancer" };
                self.patch(&made, json!({"spec": {"type": kind}})).await
            }
            (5, Some(served), ..) => {
                let ip = format!("192.168.100.{}", 150 + round % 40);
                let status = json!({"status": {"loadBalancer": {"ingress": [{"ip": ip}]}}});
                let patched = self.services.patch_status(&served, &PatchParams::default(), &Patch::Merge(status)).await;
                patched.map(drop).context("failed to patch the status of a Service")
            }
            (6, ..) => self.node(round).await,
            (7, ..) => {
                let machine = self.bed.lan.host(1).name();
                let address = format!("192.168.100.{}", 60 + round % 30);
                let addresses = std::slice::from_ref(&address);
                self.machines.addresses(VM_NAMESPACE, machine, "nic-0", addresses).await.context("failed to readdress")
            }
            (8, _, _, Some(object)) => {
                let touch = json!({"metadata": {"annotations": {"churn/n": n.to_string()}}});
                let patched = self.lbs.patch(&object, &PatchParams::default(), &Patch::Merge(touch)).await;
                patched.map(drop).context("failed to patch a LoadBalancer")
            }
            (9, ..) => {
                let last = POOL_RANGE.end() - u8::try_from(round % 5).unwrap_or_default();
                self.bed.set_pool(POOL, NETWORK, *POOL_RANGE.start()..=last).await
            }
            _ => Ok(()),
        }
    }

    async fn make(&mut self, round: usize) -> Result<()> {
        let name = format!("churn-{round}");
        let ipam = if round.is_multiple_of(3) { "dhcp" } else { "pool" };
        let service = serde_json::from_value(json!({
            "metadata": {"name": name, "annotations": {cloudprovider::IPAM: ipam}},
            "spec": {"type": "LoadBalancer", "ports": [port(round)]},
        }))?;
        self.services.create(&PostParams::default(), &service).await.context("failed to create a Service")?;
        self.made.push_back(name);
        Ok(())
    }

    /// A Node that is not ready for a while, gets a label, comes and goes.
    async fn node(&self, round: usize) -> Result<()> {
        let name = self.bed.lan.host(1).name();
        match round % 4 {
            0 | 1 => self.bed.set_ready(name, round % 4 == 1).await,
            2 => {
                let label = json!({"metadata": {"labels": {"churn": round.to_string()}}});
                let patched = self.nodes.patch(name, &PatchParams::default(), &Patch::Merge(label)).await;
                patched.map(drop).context("failed to label a Node")
            }
            _ if self.bed.node("bystander").await?.is_some() => self.bed.delete_node("bystander").await,
            _ => {
                let bystander = NodeSketch { uninitialized: false, ..NodeSketch::new("bystander") };
                self.bed.register_node(&bystander).await
            }
        }
    }

    async fn patch(&self, name: &str, patch: Value) -> Result<()> {
        let patched = self.services.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await;
        patched.map(drop).with_context(|| format!("failed to patch Service {name}"))
    }
}

fn port(round: usize) -> Value {
    json!({"name": "http", "port": 80 + round % 100, "targetPort": 8080})
}
