//! Server-side apply of plain JSON documents.

use kube::api::{DynamicObject, Patch, PatchParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, Client};
use serde_json::Value;

use crate::guest::machines::FIELD_MANAGER;

/// A document that could not be applied.
#[derive(Debug, thiserror::Error)]
#[error("failed to apply {kind} {name}")]
pub struct ApplyError {
    /// Kind.
    pub kind: String,
    /// Name, with namespace.
    pub name: String,
    /// Why.
    #[source]
    pub source: Box<kube::Error>,
}

/// Applies one document; fields of others stay.
pub async fn apply(client: &Client, document: &Value) -> Result<DynamicObject, ApplyError> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (api_version, kind) = (text(&document["apiVersion"]), text(&document["kind"]));
    let (namespace, name) = (text(&document["metadata"]["namespace"]), text(&document["metadata"]["name"]));
    let (group, version) = api_version.rsplit_once('/').unwrap_or(("", &api_version));
    let resource = ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, &kind), &plural(&kind));
    let api: Api<DynamicObject> = if namespace.is_empty() {
        Api::all_with(client.clone(), &resource)
    } else {
        Api::namespaced_with(client.clone(), &namespace, &resource)
    };
    let params = PatchParams::apply(FIELD_MANAGER).force();
    api.patch(&name, &params, &Patch::Apply(document)).await.map_err(|source| ApplyError {
        kind,
        name: if namespace.is_empty() { name } else { format!("{namespace}/{name}") },
        source: Box::new(source),
    })
}

/// Applies them in order.
pub async fn apply_all(client: &Client, documents: &[Value]) -> Result<(), ApplyError> {
    for document in documents {
        apply(client, document).await?;
    }
    Ok(())
}

/// Plural of the kinds that we apply.
fn plural(kind: &str) -> String {
    match kind {
        "NetworkAttachmentDefinition" => "network-attachment-definitions".to_owned(),
        _ => format!("{}s", kind.to_lowercase()),
    }
}
