//! Who is not this cluster: another Harvester, a copy of the cluster, somebody who undoes what is written.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::Result;
use e2e::host::{CCM_LEASE, OtherHarvester};
use e2e::machines::UNINITIALIZED;
use e2e::product::Program;
use e2e::{Bed, VM_NAMESPACE};
use futures::StreamExt;
use harvester_api::keys::kube_vip;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, Service};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, watcher};
use kube::{Api, ResourceExt};
use serde_json::json;
use testbed::{Audit, Copy, Host};
use tokio::task::JoinHandle;

use crate::{Chaos, say};

/// Whose name the copy has on Harvester, for the judge to tell its requests from the original's.
const COPIED: &str = "copied";

/// Another Harvester, with a namespace of the same name.
pub type Other = OtherHarvester;

/// A copy of the cluster with a controller of its own, on a machine of its own.
pub struct Copycat {
    program: Program,
    host: Host,
    copy: Copy,
    since: Audit,
}

impl Copycat {
    /// Restored from what the cluster is now, and running; it has another name, or has kept the original's.
    pub async fn begin(bed: &Bed, renamed: bool) -> Result<Self> {
        let copy = bed.control_plane.copy().await?;
        let host = bed.lan.add_host(COPIED, 63)?;
        bed.control_plane.join(&host)?;
        let kubeconfig = copy.service_account("kube-system", e2e::product::CCM_ACCOUNT).await?;
        let file = bed.dir().write("copy/cloud-config", bed.harvester.cloud_config(VM_NAMESPACE, COPIED)?)?;
        let program = bed.ccm().program().twin();
        let handle = program.on(&host);
        handle.set_arg(&format!("--kubeconfig={}", kubeconfig.inside.display()));
        handle.set_arg(&format!("--cloud-config={}", file.display()));
        handle.set_env("NODE_NAME", COPIED);
        let since = bed.harvester.audit().mark();
        let copycat = Self { program, host, copy, since };
        copycat.run(bed, renamed).await?;
        Ok(copycat)
    }

    /// Restored once more.
    pub async fn begin_again(&mut self, bed: &Bed, renamed: bool) -> Result<()> {
        bed.control_plane.copy_again(&self.copy).await?;
        self.run(bed, renamed).await
    }

    async fn run(&self, bed: &Bed, renamed: bool) -> Result<()> {
        // Its controller runs on a machine of its own, which has joined. Nobody has labelled it where the copy has kept
        // the name.
        let mut machine = bed.machine(COPIED, &["192.168.100.99"]);
        machine.cluster = renamed.then(|| COPIED.to_owned());
        bed.machines().await?.save(&machine).await?;
        let nodes: Api<Node> = Api::all(self.copy.client().await?);
        let taint = json!({"key": UNINITIALIZED, "value": "true", "effect": "NoSchedule"});
        let labels = json!({"kubernetes.io/hostname": COPIED, "kubernetes.io/os": "linux"});
        let node = json!({"metadata": {"name": COPIED, "labels": labels}, "spec": {"taints": [taint]}});
        nodes.create(&PostParams::default(), &serde_json::from_value(node)?).await?;
        let ready = json!({"status": {"conditions": [{"type": "Ready", "status": "True", "reason": "Test", "message": "joined"}]}});
        nodes.patch_status(COPIED, &PatchParams::default(), &Patch::Strategic(&ready)).await?;
        // A backup is older than a Lease lasts: nobody holds the copy's.
        let leases: Api<Lease> = Api::namespaced(self.copy.client().await?, "kube-system");
        let _ = leases.delete(CCM_LEASE, &DeleteParams::default()).await;
        let handle = self.program.on(&self.host);
        handle.set_arg(&format!("--cluster-name={}", if renamed { COPIED } else { e2e::CLUSTER }));
        handle.start()
    }

    /// Its machines are switched off. A controller that has ended by itself is as good.
    pub fn end(&self) {
        self.program.on(&self.host).kill();
        self.copy.stop();
    }

    /// The end of what it says.
    pub fn log(&self) -> String {
        self.program.on(&self.host).log_tail(30)
    }

    /// What it has written to Harvester so far.
    fn writes(&self, bed: &Bed) -> Result<Vec<String>> {
        let user = format!("system:serviceaccount:{VM_NAMESPACE}:{COPIED}");
        let requests = bed.harvester.audit().since(self.since)?;
        let all = requests.into_iter().filter(|request| request.user == user).collect::<Vec<_>>();
        say(&format!("the copy has asked Harvester {} times", all.len()));
        let writes = all.into_iter().filter(|request| request.is_write() && !request.resource.ends_with("reviews"));
        Ok(writes.map(|request| format!("{} {}", request.verb, request.uri)).collect())
    }
}

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

    /// How often it has undone what was written, by Service: so often it was written, too.
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
        if let Some(copycat) = &self.copycat {
            let writes = copycat.writes(&self.bed)?;
            if !writes.is_empty() {
                self.truth.violations.insert(format!("written by the copy: {writes:?}\n{}", copycat.log()));
            }
        }
        Ok(())
    }
}
