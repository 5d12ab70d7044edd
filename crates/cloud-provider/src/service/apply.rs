//! Every request that the service controller sends.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{ObjectReference, Service};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use serde_json::Value;

use super::decide;
use crate::observe;
use crate::view::{Condition, ServiceView};

/// Writes to Services of the guest cluster.
pub(super) struct Writer {
    client: Client,
}

impl Writer {
    pub(super) fn new(client: Client) -> Self {
        Self { client }
    }

    /// Adds our finalizer, these annotations and the first condition; returns the Service after it.
    pub(super) async fn add_finalizer(
        &self,
        service: &ServiceView,
        annotations: &BTreeMap<String, Option<String>>,
        ready: Option<&Condition>,
    ) -> Result<ServiceView, kube::Error> {
        let patch = decide::add_finalizer_patch(service, annotations, ready);
        self.patch_status(service, &Patch::Strategic(patch)).await
    }

    /// Changes our conditions alone; returns the Service after it.
    pub(super) async fn patch_conditions(
        &self,
        service: &ServiceView,
        patch: Value,
    ) -> Result<ServiceView, kube::Error> {
        self.patch_status(service, &Patch::Strategic(patch)).await
    }

    /// Lets the Service go; returns it after that, or nothing if there was nothing to do or the Service is gone.
    pub(super) async fn release(
        &self,
        service: &ServiceView,
        remove_finalizer: bool,
    ) -> Result<Option<ServiceView>, kube::Error> {
        let Some(patch) = decide::release_patch(service, remove_finalizer) else { return Ok(None) };
        match self.patch_status(service, &Patch::Strategic(patch)).await {
            Ok(service) => Ok(Some(service)),
            Err(kube::Error::Api(status)) if status.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Who writes this Service beside us, by its managed fields.
    pub(super) async fn other_writer(&self, service: &ServiceView, us: &str) -> Result<Option<String>, kube::Error> {
        let api: Api<Service> = Api::namespaced(self.client.clone(), &service.key.namespace);
        let found = api.get_metadata(&service.key.name).await?;
        Ok(other_writer(&found.metadata.managed_fields.unwrap_or_default(), us))
    }

    /// Finalizers travel through the status subresource too: the API server takes them there, and the charts grant
    /// `patch services/status` (framework spec 1.10).
    async fn patch_status(&self, service: &ServiceView, patch: &Patch<Value>) -> Result<ServiceView, kube::Error> {
        let api: Api<Service> = Api::namespaced(self.client.clone(), &service.key.namespace);
        let patched = api.patch_status(&service.key.name, &PatchParams::default(), patch).await?;
        Ok(observe::service(&patched))
    }
}

/// The manager that wrote last and is not `us`, with what it did and when.
fn other_writer(fields: &[ManagedFieldsEntry], us: &str) -> Option<String> {
    let others = fields.iter().filter(|entry| entry.manager.as_deref().is_some_and(|manager| manager != us));
    let last = others.max_by_key(|entry| entry.time.as_ref().map(|time| time.0))?;
    let manager = last.manager.as_deref().unwrap_or_default();
    let operation = last.operation.as_deref().unwrap_or_default();
    let time = last.time.as_ref().map(|time| format!(" at {}", time.0)).unwrap_or_default();
    Some(format!("{manager:?} ({operation}{time})"))
}

/// What Events about a Service refer to.
pub(super) fn reference(service: &ServiceView) -> ObjectReference {
    ObjectReference {
        api_version: Some("v1".into()),
        kind: Some("Service".into()),
        namespace: Some(service.key.namespace.clone()),
        name: Some(service.key.name.clone()),
        uid: Some(service.uid.0.clone()),
        resource_version: Some(service.resource_version.clone()).filter(|version| !version.is_empty()),
        ..ObjectReference::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_other_writer_is_the_last_one_that_is_not_us() {
        let entry = |manager: &str, time: &str| ManagedFieldsEntry {
            manager: Some(manager.into()),
            operation: Some("Update".into()),
            time: Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(time.parse().unwrap())),
            ..ManagedFieldsEntry::default()
        };
        let fields = [
            entry("kubectl", "2026-01-01T00:00:00Z"),
            entry("argocd", "2026-01-01T00:05:00Z"),
            entry("us", "2026-01-01T00:06:00Z"),
        ];
        let found = other_writer(&fields, "us").unwrap();
        assert_eq!(found, "\"argocd\" (Update at 2026-01-01T00:05:00Z)");
        assert_eq!(other_writer(&fields[2..], "us"), None);
    }
}
