//! A Service of a test: what is done to it, and what is waited for.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use harvester_api::keys::{cloudprovider, kube_vip};
use harvester_api::load_balancer::LoadBalancer;
use k8s_openapi::api::core::v1::Service;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};
use testbed::echo::field;
use testbed::{SimPod, wait_for};

use super::{Case, EventFact, events, ingress, seen, wait_for_event};
use crate::PATIENCE;
use crate::bed::VM_NAMESPACE;

/// A Service of a [`Case`].
pub struct Exposed<'a> {
    pub(super) case: &'a Case<'a>,
    pub(super) name: String,
}

impl Exposed<'_> {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    fn api(&self) -> Api<Service> {
        Api::namespaced(self.case.client.clone(), &self.case.namespace)
    }

    /// The object.
    pub async fn get(&self) -> Result<Service> {
        self.api().get(&self.name).await.with_context(|| format!("failed to read Service {self}"))
    }

    /// Changes it by a merge patch.
    pub async fn patch(&self, patch: Value) -> Result<Service> {
        let patched = self.api().patch(&self.name, &PatchParams::default(), &Patch::Merge(&patch)).await;
        patched.with_context(|| format!("failed to patch Service {self} with {patch}"))
    }

    /// Changes its status by a merge patch.
    pub async fn patch_status(&self, patch: Value) -> Result<Service> {
        let patched = self.api().patch_status(&self.name, &PatchParams::default(), &Patch::Merge(&patch)).await;
        patched.with_context(|| format!("failed to patch the status of Service {self} with {patch}"))
    }

    /// An annotation of it, empty if it is not there.
    pub async fn annotation(&self, key: &str) -> Result<String> {
        Ok(self.get().await?.annotations().get(key).cloned().unwrap_or_default())
    }

    /// Sets an annotation, or takes it away.
    pub async fn annotate(&self, key: &str, value: Option<&str>) -> Result<()> {
        self.patch(json!({"metadata": {"annotations": {key: value}}})).await.map(drop)
    }

    /// Waits until its status has exactly these addresses.
    pub async fn wait_for_addresses(&self, addresses: &[IpAddr]) -> Result<()> {
        self.wait_for(&format!("{addresses:?} in its status"), |service| {
            let found: Vec<IpAddr> =
                ingress(service).iter().filter_map(|ingress| ingress.ip.as_ref()?.parse().ok()).collect();
            if found == addresses { Ok(()) } else { Err(seen(service)) }
        })
        .await
    }

    /// Waits until it names this node as the one that announces it.
    pub async fn wait_for_vip_host(&self, node: &str) -> Result<()> {
        self.wait_for(&format!("to be announced by {node}"), |service| {
            let host = service.annotations().get(kube_vip::VIP_HOST);
            if host.is_some_and(|host| host == node) { Ok(()) } else { Err(seen(service)) }
        })
        .await
    }

    /// Waits until another node than `former` announces it; which, both counted from 1.
    pub async fn wait_for_other_vip_host(&self, former: usize) -> Result<usize> {
        let hosts = self.case.bed.lan.hosts();
        self.wait_for(&format!("to be announced by another node than node{former}"), |service| {
            let named = service.annotations().get(kube_vip::VIP_HOST);
            let index = hosts.iter().position(|host| named.is_some_and(|named| named == host.name()));
            index.map(|index| index + 1).filter(|n| *n != former).ok_or_else(|| seen(service))
        })
        .await
    }

    /// Waits until it is served by every node: a kube-proxy that comes back from an outage of the API is late by up to
    /// 30 s.
    pub async fn wait_until_every_node_serves(&self, port: u16) -> Result<()> {
        self.wait_for_proxies(port, "to serve it", |ask| ask().map(drop)).await
    }

    /// Points it at this pod alone, and waits until no kube-proxy sends a client to another one. They write their rules
    /// at most once a second, and later where they come back from an outage.
    pub async fn move_to(&self, pod: &SimPod, port: u16) -> Result<()> {
        self.publish(&[pod]).await?;
        self.wait_for_proxies(port, &format!("to know {} alone", pod.name), |ask| {
            for _ in 0..10 {
                let reply = ask()?;
                if field(&reply, "pod") != Some(&pod.name) {
                    return Err(reply);
                }
            }
            Ok(())
        })
        .await
    }

    /// Waits for the kube-proxy of each node. `look` asks its node at the ClusterIP.
    async fn wait_for_proxies(
        &self,
        port: u16,
        what: &str,
        look: impl Fn(&dyn Fn() -> Result<String, String>) -> Result<(), String>,
    ) -> Result<()> {
        let cluster_ip = self.cluster_ip().await?;
        for host in self.case.bed.lan.hosts() {
            let ask = || {
                let reply = host.http_get((cluster_ip, port).into(), Duration::from_secs(1));
                reply.map_err(|error| format!("{error:#}"))
            };
            wait_for(&format!("kube-proxy of {} for Service {self} {what}", host.name()), PATIENCE, || async {
                look(&ask)
            })
            .await?;
        }
        Ok(())
    }

    async fn cluster_ip(&self) -> Result<IpAddr> {
        let cluster_ip = self.get().await?.spec.and_then(|spec| spec.cluster_ip).unwrap_or_default();
        cluster_ip.parse().with_context(|| format!("Service {self} has no cluster IP"))
    }

    /// Points it at these pods; none at all: no endpoints.
    pub async fn publish(&self, pods: &[&SimPod]) -> Result<()> {
        self.case.bed.control_plane.publish_endpoints(&self.case.namespace, &self.name, pods).await
    }

    /// Deletes it, without waiting for the end.
    pub async fn delete(&self) -> Result<()> {
        let deleted = self.api().delete(&self.name, &DeleteParams::default()).await;
        deleted.map(drop).with_context(|| format!("failed to delete Service {self}"))
    }

    /// Deletes it, and waits until its address is withdrawn.
    pub async fn delete_with(&self, address: IpAddr) -> Result<()> {
        self.delete().await?;
        self.wait_until_withdrawn(address).await
    }

    /// Waits until it is gone.
    pub async fn wait_until_gone(&self) -> Result<()> {
        let services = self.api();
        wait_for(&format!("Service {self} to be gone"), PATIENCE, || async {
            match services.get_opt(&self.name).await {
                Ok(None) => Ok(()),
                Ok(Some(service)) => Err(format!("it is there, finalizers {:?}", service.finalizers())),
                Err(error) => Err(error.to_string()),
            }
        })
        .await
    }

    /// Waits until `look` is content with the object; it says what it misses.
    pub async fn wait_for<T>(&self, what: &str, look: impl Fn(&Service) -> Result<T, String>) -> Result<T> {
        let services = self.api();
        let waited = wait_for(&format!("Service {self}: {what}"), PATIENCE, || async {
            look(&services.get(&self.name).await.map_err(|error| error.to_string())?)
        })
        .await;
        match waited {
            Ok(value) => Ok(value),
            Err(error) => bail!("{error:#}; its Events: {:#?}", self.events().await.unwrap_or_default()),
        }
    }

    /// Waits for the address that the cloud provider asks the announcer for.
    pub async fn published(&self) -> Result<String> {
        self.wait_for("a published address", |service| {
            let found = service.annotations().get(kube_vip::LOADBALANCER_IPS).cloned();
            found.filter(|ip| !ip.is_empty()).ok_or_else(|| seen(service))
        })
        .await
    }

    /// Waits for the address in its status.
    pub async fn address(&self) -> Result<IpAddr> {
        self.wait_for("an address in its status", |service| {
            let ip = ingress(service).first().and_then(|ingress| ingress.ip.clone());
            ip.and_then(|ip| ip.parse().ok()).ok_or_else(|| seen(service))
        })
        .await
    }

    /// Waits for a reply over HTTP at this address, asked by the client host; the echo server's line.
    pub async fn reply(&self, address: IpAddr, port: u16) -> Result<String> {
        let target = SocketAddr::from((address, port));
        wait_for(&format!("a reply of Service {self} at {target}"), PATIENCE, || async {
            self.ask(address, port).map_err(|error| format!("{error:#}"))
        })
        .await
    }

    /// Asks once over HTTP.
    pub fn ask(&self, address: IpAddr, port: u16) -> Result<String> {
        self.case.bed.lan.client().http_get((address, port).into(), Duration::from_secs(2))
    }

    /// Waits for a reply over UDP at this address, asked by the client host; the echo server's line.
    pub async fn udp_reply(&self, address: IpAddr, port: u16) -> Result<String> {
        let target = SocketAddr::from((address, port));
        wait_for(&format!("a UDP reply of Service {self} at {target}"), PATIENCE, || async {
            self.ask_udp(address, port).map_err(|error| format!("{error:#}"))
        })
        .await
    }

    /// Asks once over UDP, from a new port.
    pub fn ask_udp(&self, address: IpAddr, port: u16) -> Result<String> {
        self.case.bed.lan.client().run(move || {
            let socket = UdpSocket::bind("0.0.0.0:0").context("failed to open a UDP socket")?;
            socket.set_read_timeout(Some(Duration::from_secs(1))).context("failed to set a time-out")?;
            socket.connect((address, port)).context("no route")?;
            socket.send(b"hello").context("failed to send")?;
            let mut buffer = [0; 512];
            let n = socket.recv(&mut buffer).context("no answer")?;
            Ok(String::from_utf8_lossy(&buffer[..n]).into_owned())
        })
    }

    /// Waits until nobody on the LAN answers for this address and no node has it.
    pub async fn wait_until_withdrawn(&self, address: IpAddr) -> Result<()> {
        let bed = self.case.bed;
        wait_for(&format!("{address} of Service {self} to be withdrawn"), PATIENCE, || async {
            let (owner, macs) = (bed.owner_of(address), bed.macs(address));
            match (owner.map_err(|error| error.to_string())?, macs.map_err(|error| error.to_string())?) {
                (None, macs) if macs.is_empty() => Ok(()),
                (owner, macs) => Err(format!("on node {owner:?}, answered by {macs:?}")),
            }
        })
        .await
    }

    /// Events about it, oldest first.
    pub async fn events(&self) -> Result<Vec<EventFact>> {
        events(&self.case.client, &self.case.namespace, "Service", &self.name).await
    }

    /// Waits for an Event with this reason whose message contains `part`.
    pub async fn wait_for_event(&self, reason: &str, part: &str) -> Result<EventFact> {
        wait_for_event(&self.case.client, &self.case.namespace, "Service", &self.name, reason, part).await
    }

    /// Its LoadBalancer on Harvester, found by labels.
    pub async fn load_balancer(&self) -> Result<Option<LoadBalancer>> {
        let harvester = self.case.harvester.clone().context("this bed was built without Harvester")?;
        let api: Api<LoadBalancer> = Api::namespaced(harvester, VM_NAMESPACE);
        let labels =
            [(cloudprovider::SERVICE_NAMESPACE, &self.case.namespace), (cloudprovider::SERVICE_NAME, &self.name)];
        let ours = labels.map(|(key, value)| format!("{key}={value}")).join(",");
        let mut found =
            api.list(&ListParams::default().labels(&ours)).await.context("failed to list LoadBalancers")?.items;
        if found.len() > 1 {
            bail!("Service {self} has {} LoadBalancers", found.len());
        }
        Ok(found.pop())
    }

    /// Waits until `look` is content with its LoadBalancer; it says what it misses.
    pub async fn wait_for_load_balancer<T>(
        &self,
        what: &str,
        look: impl Fn(&LoadBalancer) -> Result<T, String>,
    ) -> Result<T> {
        wait_for(&format!("LoadBalancer of Service {self}: {what}"), PATIENCE, || async {
            let lb = self.load_balancer().await.map_err(|error| format!("{error:#}"))?;
            look(&lb.ok_or("it does not exist")?)
        })
        .await
    }

    /// Waits until nothing more is to be done: address published by both sides, and told.
    pub async fn settled(&self) -> Result<IpAddr> {
        let address = self.address().await?;
        let secondary = self.get().await?.annotations().contains_key(cloudprovider::PRIMARY_SERVICE);
        if !secondary {
            self.wait_for_load_balancer("the address in its mailbox", |lb| {
                let mailbox = lb.status.as_ref().and_then(|status| status.address.clone()).unwrap_or_default();
                if mailbox == address.to_string() { Ok(()) } else { Err(format!("status.address is {mailbox:?}")) }
            })
            .await?;
        }
        self.wait_for_event("EnsuredLoadBalancer", "").await?;
        self.wait_for("the announcing node", |service| {
            service.annotations().get(kube_vip::VIP_HOST).map(drop).ok_or_else(|| seen(service))
        })
        .await?;
        Ok(address)
    }
}

impl std::fmt::Display for Exposed<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.case.namespace, self.name)
    }
}
