//! Sends all requests of the service controller.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{ObjectReference, Service};
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use runtime::error::is_absent;
use runtime::events;
use serde_json::Value;

use super::decide;
use crate::managed_fields::find_other_writer;
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

    /// Adds the finalizer, these annotations and the first condition; returns the new state of the Service.
    pub(super) async fn add_finalizer(
        &self,
        service: &ServiceView,
        annotations: &BTreeMap<String, Option<String>>,
        ready: Option<&Condition>,
    ) -> Result<ServiceView, kube::Error> {
        let patch = decide::add_finalizer_patch(service, annotations, ready);
        self.patch_status(service, &Patch::Strategic(patch)).await
    }

    /// Changes only the controller's own conditions; returns the new state of the Service.
    pub(super) async fn patch_conditions(
        &self,
        service: &ServiceView,
        patch: Value,
    ) -> Result<ServiceView, kube::Error> {
        self.patch_status(service, &Patch::Strategic(patch)).await
    }

    /// Releases the Service. Returns its new state; `None` if nothing had to change, or the Service is gone.
    pub(super) async fn release(
        &self,
        service: &ServiceView,
        remove_finalizer: bool,
    ) -> Result<Option<ServiceView>, kube::Error> {
        let Some(patch) = decide::release_patch(service, remove_finalizer) else { return Ok(None) };
        match self.patch_status(service, &Patch::Strategic(patch)).await {
            Ok(service) => Ok(Some(service)),
            Err(error) if is_absent(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Another program that writes this Service, by its managed fields.
    pub(super) async fn other_writer(&self, service: &ServiceView) -> Result<Option<String>, kube::Error> {
        let api: Api<Service> = Api::namespaced(self.client.clone(), &service.key.namespace);
        find_other_writer(&api, &service.key.name, &[]).await
    }

    /// Patches through the status subresource, finalizers too: the API server accepts them there, and the charts grant
    /// `patch services/status` (framework spec 1.10).
    async fn patch_status(&self, service: &ServiceView, patch: &Patch<Value>) -> Result<ServiceView, kube::Error> {
        let api: Api<Service> = Api::namespaced(self.client.clone(), &service.key.namespace);
        let patched = api.patch_status(&service.key.name, &PatchParams::default(), patch).await?;
        Ok(observe::service(&patched))
    }
}

/// The object that Events about a Service refer to.
pub(super) fn reference(service: &ServiceView) -> ObjectReference {
    let ServiceView { key, uid, resource_version, .. } = service;
    ObjectReference {
        resource_version: Some(resource_version.clone()).filter(|version| !version.is_empty()),
        ..events::reference("Service", Some(&key.namespace), &key.name, Some(uid.0.clone()))
    }
}
