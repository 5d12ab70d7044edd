//! One test's place on a bed: a Kubernetes namespace, Services in it, and waiting for what their user sees.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use harvester_api::keys::{cloudprovider, kube_vip};
use harvester_api::load_balancer::LoadBalancer;
use k8s_openapi::api::core::v1::{Event, LoadBalancerIngress, Service};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use testbed::{SimPod, wait_for};

use crate::PATIENCE;
use crate::bed::{Bed, VM_NAMESPACE};

/// A namespace for one test. If the test panics, the end of the product's logs is printed.
pub struct Case<'a> {
    bed: &'a Bed,
    client: Client,
    harvester: Client,
    namespace: String,
}

/// A Service to be made: type LoadBalancer, without selector.
#[derive(Debug, Clone)]
pub struct ServiceSpec(pub(crate) Value);

/// A Service called `name`; add ports.
pub fn service(name: &str) -> ServiceSpec {
    ServiceSpec(json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"name": name, "annotations": {}},
        "spec": {"type": "LoadBalancer", "ports": []},
    }))
}

impl ServiceSpec {
    /// A TCP port that leads to port 8080 of the echo pods.
    #[must_use]
    pub fn tcp(self, port: u16) -> Self {
        self.port("TCP", port)
    }

    /// A UDP port that leads to port 8080 of the echo pods.
    #[must_use]
    pub fn udp(self, port: u16) -> Self {
        self.port("UDP", port)
    }

    fn port(mut self, protocol: &str, port: u16) -> Self {
        let ports = self.0["spec"]["ports"].as_array_mut().expect("made as a list");
        let name = format!("{}-{port}", protocol.to_lowercase());
        ports.push(json!({"name": name, "protocol": protocol, "port": port, "targetPort": 8080}));
        self
    }

    /// An annotation.
    #[must_use]
    pub fn annotation(mut self, key: &str, value: &str) -> Self {
        self.0["metadata"]["annotations"][key] = json!(value);
        self
    }

    /// `cloudprovider.harvesterhci.io/ipam`.
    #[must_use]
    pub fn ipam(self, value: &str) -> Self {
        self.annotation(cloudprovider::IPAM, value)
    }

    /// `kube-vip.io/loadbalancerIPs`: asks the announcer itself, without a cloud controller manager. `0.0.0.0` is DHCP.
    #[must_use]
    pub fn at(self, addresses: &str) -> Self {
        self.annotation(kube_vip::LOADBALANCER_IPS, addresses)
    }

    /// Shares the address of a Service of the same namespace.
    #[must_use]
    pub fn sharing_with(self, primary: &Exposed<'_>) -> Self {
        self.annotation(cloudprovider::PRIMARY_SERVICE, &format!("{}/{}", primary.case.namespace, primary.name))
    }

    /// A field of `spec`.
    #[must_use]
    pub fn set(mut self, field: &str, value: impl Into<Value>) -> Self {
        self.0["spec"][field] = value.into();
        self
    }

    /// Any YAML that describes a Service.
    pub fn from_yaml(text: &str) -> Result<Self> {
        Ok(Self(serde_saphyr::from_str(text).context("the Service is not valid YAML")?))
    }

    pub(crate) fn name(&self) -> Result<&str> {
        self.0["metadata"]["name"].as_str().context("the Service has no name")
    }
}

/// An Event, without what differs from run to run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventFact {
    /// `Normal` or `Warning`.
    pub kind: String,
    /// Reason.
    pub reason: String,
    /// Message.
    pub message: String,
    /// Who says so.
    pub component: String,
    /// How often.
    pub count: i32,
}

impl From<Event> for EventFact {
    fn from(event: Event) -> Self {
        Self {
            kind: event.type_.unwrap_or_default(),
            reason: event.reason.unwrap_or_default(),
            message: event.message.unwrap_or_default(),
            component: event
                .source
                .and_then(|source| source.component)
                .or(event.reporting_component)
                .unwrap_or_default(),
            count: event.count.unwrap_or(1),
        }
    }
}

impl Bed {
    /// A place for one test; `prefix` begins the name of its namespace.
    pub async fn case(&self, prefix: &str) -> Result<Case<'_>> {
        let namespace = self.control_plane.test_namespace(prefix).await?;
        self.case_in(&namespace).await
    }

    /// A place in a namespace that exists.
    pub async fn case_in(&self, namespace: &str) -> Result<Case<'_>> {
        let (client, harvester) = (self.client().await?, self.harvester_client().await?);
        Ok(Case { bed: self, client, harvester, namespace: namespace.into() })
    }

    /// Events about an object, oldest first. Nodes have theirs in namespace `default`.
    pub async fn events(&self, namespace: &str, kind: &str, name: &str) -> Result<Vec<EventFact>> {
        events(&self.client().await?, namespace, kind, name).await
    }

    /// Waits for an Event with this reason whose message contains `part`.
    pub async fn wait_for_event(
        &self,
        namespace: &str,
        kind: &str,
        name: &str,
        reason: &str,
        part: &str,
    ) -> Result<EventFact> {
        wait_for_event(&self.client().await?, namespace, kind, name, reason, part).await
    }
}

async fn events(client: &Client, namespace: &str, kind: &str, name: &str) -> Result<Vec<EventFact>> {
    let api: Api<Event> = Api::namespaced(client.clone(), namespace);
    let about = ListParams::default().fields(&format!("involvedObject.kind={kind},involvedObject.name={name}"));
    let mut events =
        api.list(&about).await.with_context(|| format!("failed to list Events of {kind} {namespace}/{name}"))?.items;
    // Seconds are too coarse an order; the version of an Event that was never updated is its place in time.
    events.sort_by_key(|event| event.resource_version().and_then(|version| version.parse::<u64>().ok()));
    Ok(events.into_iter().map(EventFact::from).collect())
}

pub(crate) async fn wait_for_event(
    client: &Client,
    namespace: &str,
    kind: &str,
    name: &str,
    reason: &str,
    part: &str,
) -> Result<EventFact> {
    wait_for(&format!("Event {reason} about {kind} {namespace}/{name} that says {part:?}"), PATIENCE, || async {
        let events = events(client, namespace, kind, name).await.map_err(|error| format!("{error:#}"))?;
        let found = events.iter().find(|event| event.reason == reason && event.message.contains(part));
        found.cloned().ok_or_else(|| format!("{events:#?}"))
    })
    .await
}

impl<'a> Case<'a> {
    /// The bed.
    pub fn bed(&self) -> &'a Bed {
        self.bed
    }

    /// The namespace.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// A client of the guest API with all rights.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Makes a Service and points it at the echo pods of all nodes.
    pub async fn expose(&self, spec: ServiceSpec) -> Result<Exposed<'_>> {
        let exposed = self.create(spec).await?;
        exposed.publish(&self.bed.pods()).await?;
        Ok(exposed)
    }

    /// Makes a Service without endpoints.
    pub async fn create(&self, spec: ServiceSpec) -> Result<Exposed<'_>> {
        let name = spec.name()?.to_owned();
        let failed = || format!("failed to create Service {}/{name}", self.namespace);
        let service: Service = serde_json::from_value(spec.0).with_context(failed)?;
        let services: Api<Service> = Api::namespaced(self.client.clone(), &self.namespace);
        services.create(&PostParams::default(), &service).await.with_context(failed)?;
        Ok(self.named(&name))
    }

    /// A Service that exists.
    pub fn named(&self, name: &str) -> Exposed<'_> {
        Exposed { case: self, name: name.into() }
    }
}

impl Drop for Case<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.bed.story(&self.namespace));
        }
    }
}

/// A Service of a [`Case`].
pub struct Exposed<'a> {
    case: &'a Case<'a>,
    name: String,
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

    /// Waits until it is served by every node: a kube-proxy that comes back from an outage of the API is late by up to 30 s.
    pub async fn wait_until_every_node_serves(&self, port: u16) -> Result<()> {
        let cluster_ip = self.get().await?.spec.and_then(|spec| spec.cluster_ip).unwrap_or_default();
        let cluster_ip: IpAddr = cluster_ip.parse().with_context(|| format!("Service {self} has no cluster IP"))?;
        for host in self.case.bed.lan.hosts() {
            wait_for(&format!("kube-proxy of {} to know Service {self}", host.name()), PATIENCE, || async {
                let reply = host.http_get((cluster_ip, port).into(), Duration::from_secs(1));
                reply.map(drop).map_err(|error| format!("{error:#}"))
            })
            .await?;
        }
        Ok(())
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
        let api: Api<LoadBalancer> = Api::namespaced(self.case.harvester.clone(), VM_NAMESPACE);
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

/// Its `status.loadBalancer.ingress`.
pub fn ingress(service: &Service) -> Vec<LoadBalancerIngress> {
    let status = service.status.as_ref().and_then(|status| status.load_balancer.as_ref());
    status.and_then(|status| status.ingress.clone()).unwrap_or_default()
}

/// What matters of a Service, for messages.
pub fn seen(service: &Service) -> String {
    let ingress: Vec<String> = ingress(service).into_iter().filter_map(|ingress| ingress.ip).collect();
    format!("ingress {ingress:?}, finalizers {:?}, annotations {:?}", service.finalizers(), service.annotations())
}
