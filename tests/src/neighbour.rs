//! Another cluster on the same LAN: its own control plane, and a node with kube-proxy and announcer. It knows nothing
//! of the bed's.

use std::net::IpAddr;

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::Service;
use kube::Api;
use kube::api::PostParams;
use testbed::{ControlPlane, Host, NodeSpec, SimNode, SimPod, wait_for};

use crate::PATIENCE;
use crate::bed::{Bed, ECHO_PORTS, announcers, wait_until_ready};
use crate::case::{EventFact, ServiceSpec, ingress, seen, wait_for_event};
use crate::product::{Handle, Program};

/// See the module's description. Services are in namespace `default`.
pub struct Neighbour {
    // Order of drop: programs before what they use.
    announcer: Program,
    pod: SimPod,
    _node: SimNode,
    control_plane: ControlPlane,
    host: Host,
}

impl Neighbour {
    /// On the bed's LAN as host `name` with address `last`; its announcer has these variables.
    pub async fn of(bed: &Bed, name: &str, last: u8, env: &[(&str, &str)]) -> Result<Self> {
        let host = bed.lan.add_host(name, last)?;
        let control_plane = ControlPlane::builder().start().await?;
        let node = control_plane.add_node(&host, 100, NodeSpec::default()).await?;
        let pod = node.pod(&host, &format!("echo-{name}"), &ECHO_PORTS)?;
        let alone = [("svc_controller", "false")];
        let env = env.iter().chain(&alone).map(|(key, value)| ((*key).into(), (*value).into()));
        let env: Vec<(String, String)> = env.collect();
        let mut programs = announcers(&control_plane, std::slice::from_ref(&host), &[], &env).await?;
        let announcer = programs.pop().context("one announcer per host")?;
        let neighbour = Self { announcer, pod, _node: node, control_plane, host };
        neighbour.announcer().start()?;
        wait_until_ready(neighbour.announcer()).await?;
        Ok(neighbour)
    }

    /// Its announcer.
    pub fn announcer(&self) -> Handle<'_> {
        self.announcer.on(&self.host)
    }

    /// Its node.
    pub fn host(&self) -> &Host {
        &self.host
    }

    async fn services(&self) -> Result<Api<Service>> {
        Ok(Api::default_namespaced(self.control_plane.client().await?))
    }

    /// Makes a Service and points it at this cluster's pod.
    pub async fn expose(&self, spec: ServiceSpec) -> Result<()> {
        let name = spec.name()?.to_owned();
        let failed = || format!("failed to create Service {name} in the other cluster");
        let service: Service = serde_json::from_value(spec.0).with_context(failed)?;
        self.services().await?.create(&PostParams::default(), &service).await.with_context(failed)?;
        self.control_plane.publish_endpoints("default", &name, &[&self.pod]).await
    }

    /// Addresses in the status of a Service.
    pub async fn addresses(&self, name: &str) -> Result<Vec<IpAddr>> {
        let service =
            self.services().await?.get(name).await.context("failed to read a Service of the other cluster")?;
        Ok(ingress(&service).into_iter().filter_map(|entry| entry.ip?.parse().ok()).collect())
    }

    /// Waits until a Service has this address in its status.
    pub async fn wait_for_address(&self, name: &str, address: IpAddr) -> Result<()> {
        let services = self.services().await?;
        wait_for(&format!("Service {name} of the other cluster to have {address}"), PATIENCE, || async {
            let service = services.get(name).await.map_err(|error| error.to_string())?;
            let has = ingress(&service).iter().any(|entry| entry.ip.as_deref() == Some(&address.to_string()));
            if has { Ok(()) } else { Err(seen(&service)) }
        })
        .await
    }

    /// Waits for an Event about a Service with this reason whose message contains `part`.
    pub async fn wait_for_event(&self, name: &str, reason: &str, part: &str) -> Result<EventFact> {
        wait_for_event(&self.control_plane.client().await?, "default", "Service", name, reason, part).await
    }
}
