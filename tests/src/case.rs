//! One test's place on a bed: a Kubernetes namespace, Services in it, and waiting for what their user sees.

mod exposed;

use std::time::Instant;

use anyhow::{Context, Result};
use harvester_api::keys::{cloudprovider, kube_vip};
use k8s_openapi::api::core::v1::{Event, LoadBalancerIngress, Service};
use kube::api::{ListParams, PostParams};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use testbed::{stall, wait_for};

pub use self::exposed::Exposed;
use crate::bed::Bed;
use crate::watch::worst_second_since;
use crate::{PATIENCE, journal};

/// A namespace for one test. If the test panics, it is written down for how long the machine kept others waiting
/// meanwhile, and the end of the product's logs is printed.
pub struct Case<'a> {
    bed: &'a Bed,
    client: Client,
    /// Absent on a bed without Harvester.
    harvester: Option<Client>,
    namespace: String,
    began: Instant,
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
        let client = self.client().await?;
        let harvester = match &self.harvester.0 {
            Some(side) => Some(side.client().await?),
            None => None,
        };
        stall::begin();
        Ok(Case { bed: self, client, harvester, namespace: namespace.into(), began: Instant::now() })
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
    // Time stamps have a resolution of a second. An Event that was never updated is ordered by its resource version.
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

    /// A Service on port 80 that is published, and served as an announcer would say; its address.
    pub async fn created(&self, name: &str) -> Result<String> {
        let web = self.create(service(name).tcp(80)).await?;
        let address = web.published().await?;
        web.patch_status(json!({"status": {"loadBalancer": {"ingress": [{"ip": address}]}}})).await?;
        Ok(address)
    }

    /// A Service that exists.
    pub fn named(&self, name: &str) -> Exposed<'_> {
        Exposed { case: self, name: name.into() }
    }
}

impl Drop for Case<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            journal::failed(worst_second_since(self.began));
            eprintln!("{}", self.bed.log_lines_about(&self.namespace));
        }
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
