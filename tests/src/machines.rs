//! Virtual machines, and Node objects that have no host behind them: for tests of the node controllers, which need
//! neither pods nor a data plane.

use anyhow::{Context, Result};
pub use harvester_api::keys::kubernetes::UNINITIALIZED;
use harvester_sim::guest::machines::Machines;
use k8s_openapi::api::core::v1::Node;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::json;
use testbed::wait_for;

use crate::PATIENCE;
use crate::bed::Bed;

/// Taint of a node whose machine is switched off.
pub const SHUTDOWN: &str = "node.cloudprovider.kubernetes.io/shutdown";

/// A Node as a kubelet would register it.
#[derive(Debug, Clone)]
pub struct NodeSketch {
    /// Its name.
    pub name: String,
    /// With the taint that waits for a cloud provider.
    pub uninitialized: bool,
    /// `alpha.kubernetes.io/provided-node-ip`, from the kubelet's `--node-ip`.
    pub provided_ip: Option<String>,
    /// Status of its Ready condition.
    pub ready: bool,
}

impl NodeSketch {
    /// An uninitialised, ready Node without a provided IP.
    pub fn new(name: &str) -> Self {
        Self { name: name.into(), uninitialized: true, provided_ip: None, ready: true }
    }
}

/// Whether a cloud provider has initialised this Node. A `PreferNoSchedule` taint of the same key asks for another look
/// only.
pub fn is_initialized(node: &Node) -> bool {
    let taints = node.spec.iter().flat_map(|spec| spec.taints.iter().flatten());
    !taints.into_iter().any(|taint| taint.key == UNINITIALIZED)
}

/// Addresses of a Node as `type=address`, in order.
pub fn addresses(node: &Node) -> Vec<String> {
    let addresses = node.status.iter().flat_map(|status| status.addresses.iter().flatten());
    addresses.map(|address| format!("{}={}", address.type_, address.address)).collect()
}

impl Bed {
    /// The verbs of virtual machines: save, power, agent, addresses, migration, delete.
    pub async fn machines(&self) -> Result<Machines> {
        Ok(Machines::new(self.harvester_client().await?))
    }

    /// Registers a Node without a host.
    pub async fn register_node(&self, sketch: &NodeSketch) -> Result<()> {
        let nodes: Api<Node> = Api::all(self.client().await?);
        let name = &sketch.name;
        let mut node = json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux"},
                "annotations": {}},
            "spec": {},
        });
        if let Some(ip) = &sketch.provided_ip {
            node["metadata"]["annotations"]["alpha.kubernetes.io/provided-node-ip"] = json!(ip);
        }
        if sketch.uninitialized {
            node["spec"]["taints"] = json!([{"key": UNINITIALIZED, "value": "true", "effect": "NoSchedule"}]);
        }
        let node: Node = serde_json::from_value(node).context("failed to make a Node object")?;
        let created = nodes.create(&PostParams::default(), &node).await;
        let created = created.with_context(|| format!("failed to create Node {name}"))?;
        self.give_a_first_address(&nodes, created).await?;
        self.set_ready(name, sketch.ready).await
    }

    /// Writes the address that each kubelet reports, unless a cloud controller was faster.
    async fn give_a_first_address(&self, nodes: &Api<Node>, mut node: Node) -> Result<()> {
        let name = node.name_any();
        while addresses(&node).is_empty() {
            let status = json!({"metadata": {"resourceVersion": node.metadata.resource_version},
                "status": {"addresses": [{"type": "Hostname", "address": name}]}});
            match nodes.patch_status(&name, &PatchParams::default(), &Patch::Merge(&status)).await {
                Err(kube::Error::Api(status)) if status.code == 409 => {}
                written => return written.map(drop).context("failed to write a Node's status"),
            }
            node = nodes.get(&name).await.with_context(|| format!("failed to read Node {name}"))?;
        }
        Ok(())
    }

    /// Sets a Node's Ready condition, as kubelet and node lifecycle controller do.
    pub async fn set_ready(&self, name: &str, ready: bool) -> Result<()> {
        let nodes: Api<Node> = Api::all(self.client().await?);
        let status = if ready { "True" } else { "Unknown" };
        let condition = json!({"status": {"conditions": [{"type": "Ready", "status": status, "reason": "Test",
            "message": "set by a test"}]}});
        let patched = nodes.patch_status(name, &PatchParams::default(), &Patch::Strategic(&condition)).await;
        patched.map(drop).with_context(|| format!("failed to set the Ready condition of Node {name}"))
    }

    /// The Node, if it exists.
    pub async fn node(&self, name: &str) -> Result<Option<Node>> {
        let nodes: Api<Node> = Api::all(self.client().await?);
        nodes.get_opt(name).await.with_context(|| format!("failed to read Node {name}"))
    }

    /// Deletes a Node object.
    pub async fn delete_node(&self, name: &str) -> Result<()> {
        let nodes: Api<Node> = Api::all(self.client().await?);
        nodes
            .delete(name, &DeleteParams::default())
            .await
            .map(drop)
            .with_context(|| format!("failed to delete Node {name}"))
    }

    /// Waits until `look` is content with a Node; it says what it misses.
    pub async fn wait_for_node<T>(
        &self,
        name: &str,
        what: &str,
        look: impl Fn(&Node) -> Result<T, String>,
    ) -> Result<T> {
        let nodes: Api<Node> = Api::all(self.client().await?);
        wait_for(&format!("Node {name}: {what}"), PATIENCE, || async {
            let node = nodes.get_opt(name).await.map_err(|error| error.to_string())?;
            look(&node.ok_or("it does not exist")?)
        })
        .await
    }

    /// Waits until a cloud provider has initialised a Node.
    pub async fn wait_until_node_is_initialized(&self, name: &str) -> Result<()> {
        self.wait_for_node(name, "to be initialised", |node| {
            if is_initialized(node) { Ok(()) } else { Err(format!("still tainted, addresses {:?}", addresses(node))) }
        })
        .await
    }

    /// A virtual machine with this address, and its Node, initialised.
    pub async fn machine_and_node(&self, vm: &str, node: &str, address: &str) -> Result<()> {
        self.machines().await?.save(&self.machine(vm, &[address]).called(node)).await?;
        self.register_node(&NodeSketch::new(node)).await?;
        self.wait_until_node_is_initialized(node).await
    }

    /// Waits until a Node is gone.
    pub async fn wait_until_node_is_gone(&self, name: &str) -> Result<()> {
        let nodes: Api<Node> = Api::all(self.client().await?);
        wait_for(&format!("Node {name} to be gone"), PATIENCE, || async {
            match nodes.get_opt(name).await {
                Ok(None) => Ok(()),
                Ok(Some(node)) => Err(format!("it is there, taints {:?}", node.spec.unwrap_or_default().taints)),
                Err(error) => Err(error.to_string()),
            }
        })
        .await
    }
}
