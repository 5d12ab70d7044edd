//! A node without kubelet: a host with a Node object and a real kube-proxy. Its pods are echo servers of ours in
//! namespaces.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::Client;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use crate::addresses::{POD_RANGES, pod4, pod6};
use crate::cluster::control_plane::ControlPlane;
use crate::cluster::credentials::client_from;
use crate::echo::{self, Who};
use crate::net::host::Host;
use crate::net::namespace::{Namespace, Task};
use crate::node::config as node_config;
use crate::process::Process;
use crate::programs;
use crate::wait::wait_until;

/// How kube-proxy does its work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ProxyMode {
    /// nftables.
    #[default]
    Nftables,
    /// iptables.
    Iptables,
    /// No kube-proxy on this node.
    None,
}

/// What a simulated node shall look like.
#[derive(Debug, Clone, Default)]
pub struct NodeSpec {
    /// Begins with the taint that an external cloud provider has to remove, and without addresses, as a kubelet
    /// registers it.
    pub uninitialized: bool,
    /// `spec.providerID`.
    pub provider_id: Option<String>,
    /// Further labels.
    pub labels: BTreeMap<String, String>,
    /// kube-proxy.
    pub proxy: ProxyMode,
}

/// A simulated node. Its Node object stays in the API until [`SimNode::remove`].
#[derive(Debug)]
pub struct SimNode {
    name: String,
    pod_subnet: u8,
    pods: AtomicU8,
    proxy: Mutex<Option<Process>>,
    heartbeat: Mutex<Option<Task>>,
    kubeconfig: std::path::PathBuf,
}

/// An echo server with a pod's addresses.
#[derive(Debug)]
pub struct SimPod {
    /// Its name, as it says in its answers.
    pub name: String,
    /// The node it is on.
    pub node: String,
    /// Its IPv4 address.
    pub ipv4: Ipv4Addr,
    /// Its IPv6 address.
    pub ipv6: Ipv6Addr,
    _server: Task,
    _namespace: Namespace,
}

impl ControlPlane {
    /// Makes `host` a node: joins it to the management network, registers a Node of the host's name and starts
    /// kube-proxy.
    /// `pod_subnet` tells the pods of different nodes apart (`10.244.<pod_subnet>.0/24`).
    pub async fn add_node(&self, host: &Host, pod_subnet: u8, spec: NodeSpec) -> Result<SimNode> {
        self.join(host)?;
        host.enable_forwarding()?;
        let node = SimNode {
            name: host.name().to_owned(),
            pod_subnet,
            pods: AtomicU8::new(2),
            proxy: Mutex::new(None),
            heartbeat: Mutex::new(None),
            kubeconfig: self.user("system:kube-proxy", &[])?.inside,
        };
        register(&self.client().await?, host, pod_subnet, &spec).await?;
        node.start_heartbeat(self)?;
        node.start_proxy(host, spec.proxy)?;
        Ok(node)
    }

    /// Makes the nodes of `pairs` reach each other's pods. Call it once for all nodes of a LAN.
    pub fn route_pods(&self, pairs: &[(&Host, &SimNode)]) -> Result<()> {
        for (host, node) in pairs {
            let lines =
                pairs.iter().filter(|(_, other)| other.pod_subnet != node.pod_subnet).flat_map(|(there, other)| {
                    [
                        format!("route replace {}/24 via {}", pod4(other.pod_subnet, 0), there.ipv4()),
                        format!("route replace {}/64 via {}", pod6(other.pod_subnet, 0), there.ipv6()),
                    ]
                });
            host.ip(lines)?;
        }
        Ok(())
    }

    /// Points a Service at these pods, as the endpoint slice controller does for a selector: replaces what was there
    /// before. Every port of the Service leads to its target port (a number) on every pod.
    pub async fn publish_endpoints(&self, namespace: &str, service: &str, pods: &[&SimPod]) -> Result<()> {
        let client = self.client().await?;
        let failed = || format!("failed to publish endpoints of Service {namespace}/{service}");
        let services: Api<Service> = Api::namespaced(client.clone(), namespace);
        let spec = services.get(service).await.with_context(failed)?.spec.unwrap_or_default();
        let ports: Vec<Value> = spec
            .ports
            .iter()
            .flatten()
            .map(|port| {
                let target = match &port.target_port {
                    Some(k8s_openapi::apimachinery::pkg::util::intstr::IntOrString::Int(number)) => *number,
                    _ => port.port,
                };
                json!({ "name": port.name.clone().unwrap_or_default(), "port": target,
                    "protocol": port.protocol.as_deref().unwrap_or("TCP") })
            })
            .collect();
        let slices: Api<EndpointSlice> = Api::namespaced(client, namespace);
        for family in spec.ip_families.unwrap_or_default() {
            let endpoints: Vec<Value> = pods
                .iter()
                .map(|pod| {
                    let address = if family == "IPv6" { pod.ipv6.to_string() } else { pod.ipv4.to_string() };
                    json!({ "addresses": [address], "nodeName": pod.node,
                        "conditions": { "ready": true, "serving": true, "terminating": false } })
                })
                .collect();
            let name = format!("{service}-testbed-{}", family.to_ascii_lowercase());
            let slice = json!({
                "apiVersion": "discovery.k8s.io/v1",
                "kind": "EndpointSlice",
                "metadata": { "name": name, "labels": {
                    "kubernetes.io/service-name": service,
                    "endpointslice.kubernetes.io/managed-by": "testbed",
                } },
                "addressType": family,
                "ports": ports,
                "endpoints": endpoints,
            });
            slices
                .patch(&name, &PatchParams::apply("testbed").force(), &Patch::Apply(&slice))
                .await
                .with_context(failed)?;
        }
        Ok(())
    }
}

impl SimNode {
    /// Its name, the host's.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A new echo server with a pod's addresses on `host`, which must be this node's, listening on `ports`.
    pub fn pod(&self, host: &Host, name: &str, ports: &[u16]) -> Result<SimPod> {
        let n = self.pods.fetch_add(1, Ordering::Relaxed);
        let (ipv4, ipv6) = (pod4(self.pod_subnet, n), pod6(self.pod_subnet, n));
        let namespace = Namespace::new(name, host.namespace().dir())?;
        let cable = format!("pod{n}");
        host.ip([
            format!("link add {cable} type veth peer name eth0 netns {}", namespace.path().display()),
            format!("link set {cable} up"),
            format!("addr add 169.254.1.1/32 dev {cable}"),
            format!("addr add fe80::1/64 dev {cable} nodad"),
            format!("route add {ipv4}/32 dev {cable}"),
            format!("route add {ipv6}/128 dev {cable}"),
        ])?;
        namespace.ip([
            "link set eth0 up".to_owned(),
            format!("addr add {ipv4}/32 dev eth0"),
            format!("addr add {ipv6}/128 dev eth0 nodad"),
            "route add 169.254.1.1 dev eth0".to_owned(),
            "route add default via 169.254.1.1 dev eth0".to_owned(),
            "route add default via fe80::1 dev eth0".to_owned(),
        ])?;
        let who = Who { pod: name.into(), node: self.name.clone() };
        let ports = ports.to_vec();
        let wanted = ports.clone();
        let server = namespace.task("echo", move || async move {
            echo::serve(who, &ports).await.expect("nothing else listens in a new namespace");
        })?;
        for port in wanted {
            wait_until(&format!("pod {name} to listen on port {port}"), Duration::from_secs(10), || {
                namespace
                    .run(move || std::net::TcpStream::connect((Ipv4Addr::LOCALHOST, port)).map(drop))
                    .map_err(|error| error.to_string())
            })?;
        }
        Ok(SimPod { name: name.into(), node: self.name.clone(), ipv4, ipv6, _server: server, _namespace: namespace })
    }

    /// Starts kube-proxy, again if need be.
    pub fn start_proxy(&self, host: &Host, mode: ProxyMode) -> Result<()> {
        drop(self.slot().take());
        let mode = match mode {
            ProxyMode::Nftables => "nftables",
            ProxyMode::Iptables => "iptables",
            ProxyMode::None => return Ok(()),
        };
        let mut command = Command::new(programs::tool("kube-proxy")?);
        let (variable, value) = programs::LESS_COLLECTING;
        command
            .env(variable, value)
            .arg(format!("--kubeconfig={}", self.kubeconfig.display()))
            .arg(format!("--hostname-override={}", self.name))
            .arg(format!("--proxy-mode={mode}"))
            .arg(format!("--cluster-cidr={POD_RANGES}"))
            // These kernel settings cannot be written in a namespace.
            .args([
                "--conntrack-max-per-core=0",
                "--conntrack-tcp-timeout-established=0s",
                "--conntrack-tcp-timeout-close-wait=0s",
                "--v=2",
            ]);
        *self.slot() = Some(host.spawn("kube-proxy", command)?);
        Ok(())
    }

    /// [`SimNode::start_proxy`] with another pace than once a second at most, which is kube-proxy's default.
    pub fn start_proxy_paced(&self, host: &Host, mode: ProxyMode, min_sync: Duration) -> Result<()> {
        drop(self.slot().take());
        let mode = match mode {
            ProxyMode::Nftables => "nftables",
            ProxyMode::Iptables => "iptables",
            ProxyMode::None => return Ok(()),
        };
        // The pace of nftables has no flag.
        let config = node_config::kube_proxy(&self.kubeconfig, &self.name, mode, POD_RANGES, min_sync);
        let config = host.namespace().dir().write(&format!("kube-proxy-{}.json", self.name), config.to_string())?;
        let mut command = Command::new(programs::tool("kube-proxy")?);
        command.arg(format!("--config={}", config.display())).arg("--v=2");
        *self.slot() = Some(host.spawn("kube-proxy", command)?);
        Ok(())
    }

    /// Ends kube-proxy; its rules stay in the kernel.
    pub fn kill_proxy(&self) {
        drop(self.slot().take());
    }

    /// No more renewals of the node's Lease: the controller manager turns it NotReady after its grace period.
    pub fn stop_heartbeat(&self) {
        drop(self.heartbeat.lock().take());
    }

    /// Renews the node's Lease every 10 s, as a kubelet does.
    pub fn start_heartbeat(&self, control_plane: &ControlPlane) -> Result<()> {
        let name = self.name.clone();
        let kubeconfig = control_plane.admin()?.inside;
        let task = control_plane.namespace().task("heartbeat", move || async move {
            let Ok(client) = client_from(&kubeconfig).await else { return };
            let leases: Api<Lease> = Api::namespaced(client, "kube-node-lease");
            let mut ticks = tokio::time::interval(Duration::from_secs(10));
            loop {
                ticks.tick().await;
                let lease = json!({
                    "apiVersion": "coordination.k8s.io/v1",
                    "kind": "Lease",
                    "metadata": { "name": name },
                    "spec": { "holderIdentity": name, "leaseDurationSeconds": 40,
                        "renewTime": format!("{:.6}", jiff::Timestamp::now()) },
                });
                // The namespace is made by the API server a moment after its start; the next beat will do.
                let _ =
                    leases.patch(&name, &PatchParams::apply("testbed-kubelet").force(), &Patch::Apply(&lease)).await;
            }
        })?;
        *self.heartbeat.lock() = Some(task);
        Ok(())
    }

    /// Deletes the Node object.
    pub async fn remove(self, client: Client) -> Result<()> {
        self.stop_heartbeat();
        Api::<Node>::all(client)
            .delete(&self.name, &DeleteParams::default())
            .await
            .with_context(|| format!("failed to delete Node {}", self.name))?;
        Ok(())
    }

    fn slot(&self) -> parking_lot::MutexGuard<'_, Option<Process>> {
        self.proxy.lock()
    }
}

/// The Node object as a kubelet would make it, with an external cloud provider or without.
async fn register(client: &Client, host: &Host, pod_subnet: u8, spec: &NodeSpec) -> Result<()> {
    let name = host.name();
    let mut labels = spec.labels.clone();
    labels.insert("kubernetes.io/hostname".into(), name.into());
    labels.insert("kubernetes.io/os".into(), "linux".into());
    let mut taints = Vec::new();
    let mut annotations = BTreeMap::new();
    let mut addresses = vec![json!({ "type": "Hostname", "address": name })];
    if spec.uninitialized {
        taints.push(
            json!({ "key": "node.cloudprovider.kubernetes.io/uninitialized", "value": "true", "effect": "NoSchedule" }),
        );
        annotations.insert("alpha.kubernetes.io/provided-node-ip", host.ipv4().to_string());
    } else {
        addresses.insert(0, json!({ "type": "InternalIP", "address": host.ipv4().to_string() }));
    }
    let now = jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let condition = |kind: &str, status: &str, reason: &str| {
        json!({ "type": kind, "status": status, "reason": reason,
            "message": "simulated", "lastHeartbeatTime": now, "lastTransitionTime": now })
    };
    let node: Node = serde_json::from_value(json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": { "name": name, "labels": labels, "annotations": annotations },
        "spec": {
            "podCIDR": format!("{}/24", pod4(pod_subnet, 0)),
            "podCIDRs": [format!("{}/24", pod4(pod_subnet, 0)), format!("{}/64", pod6(pod_subnet, 0))],
            "providerID": spec.provider_id,
            "taints": taints,
        },
    }))
    .context("failed to make a Node object")?;
    let nodes: Api<Node> = Api::all(client.clone());
    nodes.create(&PostParams::default(), &node).await.with_context(|| format!("failed to create Node {name}"))?;
    let status = json!({ "status": {
        "addresses": addresses,
        "conditions": [
            condition("MemoryPressure", "False", "KubeletHasSufficientMemory"),
            condition("DiskPressure", "False", "KubeletHasNoDiskPressure"),
            condition("PIDPressure", "False", "KubeletHasSufficientPID"),
            condition("Ready", "True", "KubeletReady"),
        ],
        "nodeInfo": {
            "machineID": "", "systemUUID": "", "bootID": "", "kernelVersion": "", "osImage": "",
            "containerRuntimeVersion": "",
            "kubeletVersion": "v1.36.3", "kubeProxyVersion": "", "operatingSystem": "linux", "architecture": "amd64",
        },
        "daemonEndpoints": { "kubeletEndpoint": { "Port": 10250 } },
    } });
    nodes
        .patch_status(name, &PatchParams::default(), &Patch::Merge(&status))
        .await
        .with_context(|| format!("failed to write the status of Node {name}"))?;
    Ok(())
}

/// So that `Arc<SimNode>` may be shared between tasks of a test.
const _: fn() = || {
    fn shareable<T: Send + Sync>() {}
    shareable::<Arc<SimNode>>();
};
