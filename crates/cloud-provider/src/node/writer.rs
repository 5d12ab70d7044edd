//! Sends all requests about Nodes.

use k8s_openapi::api::core::v1::Node;
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use kube::{Api, Client};
use serde_json::Value;

use crate::managed_fields::find_other_writer;
use crate::observe;
use crate::view::NodeView;

/// Writes to Nodes of the guest cluster.
pub(crate) struct Writer {
    api: Api<Node>,
}

impl Writer {
    pub(crate) fn new(client: Client) -> Self {
        Self { api: Api::all(client) }
    }

    /// Patches the Node with a merge patch; returns the new state.
    pub(crate) async fn patch(&self, name: &str, patch: Value) -> Result<NodeView, kube::Error> {
        let node = self.api.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await?;
        Ok(observe::node(&node))
    }

    /// Patches the status with a merge patch; returns the new state.
    pub(crate) async fn patch_status(&self, name: &str, patch: Value) -> Result<NodeView, kube::Error> {
        let node = self.api.patch_status(name, &PatchParams::default(), &Patch::Merge(patch)).await?;
        Ok(observe::node(&node))
    }

    /// Another program that writes these fields of the Node, by its managed fields.
    pub(crate) async fn other_writer(&self, name: &str, members: &[&str]) -> Result<Option<String>, kube::Error> {
        find_other_writer(&self.api, name, members).await
    }

    /// Deletes exactly the Node that was judged, by UID and resourceVersion. A Node that was registered again under the
    /// same name stays. So does one that was written since, because it may be Ready again.
    pub(crate) async fn delete(&self, node: &NodeView) -> Result<(), kube::Error> {
        let preconditions =
            Preconditions { uid: Some(node.uid.0.clone()), resource_version: Some(node.resource_version.clone()) };
        let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
        self.api.delete(&node.name, &params).await.map(|_| ())
    }
}
