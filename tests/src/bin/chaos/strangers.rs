//! Other actors: another Harvester, a copy of the cluster, and somebody who undoes what the cloud controller writes.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::Result;
use e2e::host::OtherHarvester;
pub use e2e::second_controller::SecondController;
use futures::StreamExt;
use harvester_api::keys::kube_vip;
use k8s_openapi::api::core::v1::Service;
use kube::api::{Patch, PatchParams};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, watcher};
use kube::{Api, ResourceExt};
use serde_json::json;
use tokio::task::JoinHandle;

use crate::Chaos;

/// Another Harvester, with a namespace of the same name.
pub type Other = OtherHarvester;

/// Somebody whose own idea of a Service has no address: GitOps, or a script.
pub struct Operator {
    task: JoinHandle<()>,
    undone: Arc<Mutex<BTreeMap<String, usize>>>,
}

impl Operator {
    /// Undoes from now on.
    pub fn begin(services: Api<Service>) -> Self {
        let undone: Arc<Mutex<BTreeMap<String, usize>>> = Arc::default();
        let counted = Arc::clone(&undone);
        let task = tokio::spawn(async move {
            let mut seen = std::pin::pin!(
                watcher(services.clone(), watcher::Config::default()).default_backoff().applied_objects()
            );
            while let Some(service) = seen.next().await {
                let Ok(service) = service else { continue };
                let name = service.name_any();
                // Not all of them: others live on beside it.
                let chosen = name.bytes().last().is_some_and(|digit| digit % 3 == 0);
                if !chosen || !service.annotations().contains_key(kube_vip::LOADBALANCER_IPS) {
                    continue;
                }
                let without = json!({"metadata": {"annotations": {kube_vip::LOADBALANCER_IPS: null}}});
                if services.patch(&name, &PatchParams::apply("gitops"), &Patch::Merge(&without)).await.is_ok() {
                    *counted.lock().entry(name).or_default() += 1;
                }
            }
        });
        Self { task, undone }
    }

    /// How many writes it has undone, by Service. The cloud controller has written as often.
    pub fn end(&self) -> BTreeMap<String, usize> {
        self.task.abort();
        self.undone.lock().clone()
    }
}

impl Drop for Operator {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Chaos {
    /// What the other Harvester and the copy have seen and done so far.
    pub fn look_at_strangers(&mut self) -> Result<()> {
        if let Some(other) = &self.other {
            let writes = other.writes();
            if !writes.is_empty() {
                self.truth.violations.insert(format!("written to the other Harvester: {writes:?}"));
            }
        }
        if let Some(copy) = &self.copy {
            let writes = copy.writes(&self.bed)?;
            if !writes.is_empty() {
                self.truth.violations.insert(format!("written by the copy: {writes:?}\n{}", copy.log()));
            }
        }
        Ok(())
    }
}
