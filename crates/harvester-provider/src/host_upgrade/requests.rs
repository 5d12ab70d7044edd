//! Sends all requests of the controllers of host upgrades besides the watches. They go to this cluster, never to the
//! host.

use std::collections::BTreeMap;

use cloud_provider::managed_fields::find_other_writer;
use k8s_openapi::api::core::v1::{ConfigMap, Node, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{EvictParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use serde_json::Value;

use super::status;

/// Sends the requests.
#[derive(Clone)]
pub struct Requests {
    client: Client,
}

impl Requests {
    /// Sends requests to this cluster.
    pub fn new(guest: &Client) -> Self {
        Self { client: guest.clone() }
    }

    /// The ConfigMap with the state of the upgrade, if it exists.
    pub async fn state(&self) -> Result<Option<ConfigMap>, kube::Error> {
        self.config_maps().get_opt(status::NAME).await
    }

    /// Creates this ConfigMap, or replaces its data. Returns its UID.
    pub async fn write_state(&self, data: BTreeMap<String, String>) -> Result<Option<String>, kube::Error> {
        let config_maps = self.config_maps();
        let written = if let Some(mut found) = config_maps.get_opt(status::NAME).await? {
            found.data = Some(data);
            config_maps.replace(status::NAME, &PostParams::default(), &found).await?
        } else {
            let metadata = ObjectMeta {
                name: Some(status::NAME.to_owned()),
                namespace: Some(status::NAMESPACE.to_owned()),
                ..ObjectMeta::default()
            };
            let new = ConfigMap { metadata, data: Some(data), ..ConfigMap::default() };
            config_maps.create(&PostParams::default(), &new).await?
        };
        Ok(written.metadata.uid)
    }

    /// Changes the condition of a Node by a strategic merge patch of its status.
    pub async fn patch_condition(&self, node: &str, patch: &Value) -> Result<(), kube::Error> {
        self.nodes().patch_status(node, &PatchParams::default(), &Patch::Strategic(patch)).await.map(drop)
    }

    /// Changes annotations, taints and `unschedulable` of a Node by a merge patch.
    pub async fn patch_node(&self, node: &str, patch: &Value) -> Result<(), kube::Error> {
        self.nodes().patch(node, &PatchParams::default(), &Patch::Merge(patch)).await.map(drop)
    }

    /// Another program that writes the Node, by its managed fields.
    pub async fn other_writer(&self, node: &str) -> Result<Option<String>, kube::Error> {
        find_other_writer(&self.nodes(), node, &["annotations", "taints"]).await
    }

    /// The pods on a Node.
    pub async fn pods_on(&self, node: &str) -> Result<Vec<Pod>, kube::Error> {
        let on_node = ListParams::default().fields(&format!("spec.nodeName={node}"));
        Ok(Api::<Pod>::all(self.client.clone()).list(&on_node).await?.items)
    }

    /// Evicts a pod, as far as PodDisruptionBudgets permit it.
    pub async fn evict(&self, pod: &Pod) -> Result<(), kube::Error> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &pod.namespace().unwrap_or_default());
        pods.evict(&pod.name_any(), &EvictParams::default()).await.map(drop)
    }

    fn nodes(&self) -> Api<Node> {
        Api::all(self.client.clone())
    }

    fn config_maps(&self) -> Api<ConfigMap> {
        Api::namespaced(self.client.clone(), status::NAMESPACE)
    }
}
