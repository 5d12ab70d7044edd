//! The controller of a second cluster beside this one, in the same namespace of the same Harvester. That cluster is a
//! copy, restored from a snapshot of this one's etcd, with an API server and a machine of its own. Or it is another
//! one, which has everything of its own.

use anyhow::{Context, Result};
use harvester_api::keys::kube_vip;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, Service};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use serde_json::json;
use testbed::{AuditMark, Host, SecondCluster, service_account_user, wait_for};

use crate::bed::grant;
use crate::case::seen;
use crate::host::CCM_LEASE;
use crate::machines::UNINITIALIZED;
use crate::product::{CCM_ACCOUNT, Manifest, Program};
use crate::{Bed, PATIENCE, ServiceSpec, VM_NAMESPACE};

/// The user name of the second cluster on Harvester, by which its requests are told from the original's. Its machine
/// has the same name, and so has the cluster, unless it is a copy that has kept the original's.
pub const COPIED: &str = "copied";

/// The controller of a second cluster, on a machine of its own.
pub struct SecondController {
    program: Program,
    host: Host,
    cluster: SecondCluster,
    since: AuditMark,
}

impl SecondController {
    /// Of a copy, restored from what the cluster is now; it has another name, or has kept the original's.
    pub async fn of_copy(bed: &Bed, renamed: bool) -> Result<Self> {
        let copy = Self::of(bed, bed.control_plane.restored_copy().await?).await?;
        copy.run(bed, renamed).await?;
        Ok(copy)
    }

    /// Of another cluster, with a name of its own.
    pub async fn of_another(bed: &Bed) -> Result<Self> {
        let cluster = bed.control_plane.another().await?;
        grant(&cluster.client().await?, &Manifest::of(CCM_ACCOUNT, &[])?).await?;
        let another = Self::of(bed, cluster).await?;
        another.run(bed, true).await?;
        Ok(another)
    }

    /// With all that its controller needs, which is not started.
    async fn of(bed: &Bed, cluster: SecondCluster) -> Result<Self> {
        let host = bed.lan.add_host(COPIED, 63)?;
        bed.control_plane.join(&host)?;
        let kubeconfig = cluster.service_account("kube-system", CCM_ACCOUNT).await?;
        let file = bed.dir().write("second/cloud-config", bed.harvester.cloud_config(VM_NAMESPACE, COPIED)?)?;
        let program = bed.ccm().program().twin();
        let handle = program.on(&host);
        handle.set_arg(&format!("--kubeconfig={}", kubeconfig.inside.display()));
        handle.set_arg(&format!("--cloud-config={}", file.display()));
        handle.set_env("NODE_NAME", COPIED);
        let since = bed.harvester.audit().mark();
        Ok(Self { program, host, cluster, since })
    }

    /// The copy is restored once more.
    pub async fn copy_again(&mut self, bed: &Bed, renamed: bool) -> Result<()> {
        bed.control_plane.copy_again(&self.cluster).await?;
        self.run(bed, renamed).await
    }

    async fn run(&self, bed: &Bed, renamed: bool) -> Result<()> {
        // Its controller runs on a machine of its own, which has joined. Nobody has labelled it where the copy has kept
        // the name.
        let mut machine = bed.machine(COPIED, &["192.168.100.99"]);
        machine.cluster = renamed.then(|| COPIED.to_owned());
        bed.machines().await?.save(&machine).await?;
        let nodes: Api<Node> = Api::all(self.cluster.client().await?);
        let taint = json!({"key": UNINITIALIZED, "value": "true", "effect": "NoSchedule"});
        let labels = json!({"kubernetes.io/hostname": COPIED, "kubernetes.io/os": "linux"});
        let node = json!({"metadata": {"name": COPIED, "labels": labels}, "spec": {"taints": [taint]}});
        nodes.create(&PostParams::default(), &serde_json::from_value(node)?).await?;
        let ready = json!({"status": {"conditions": [{"type": "Ready", "status": "True", "reason": "Test",
            "message": "joined"}]}});
        nodes.patch_status(COPIED, &PatchParams::default(), &Patch::Strategic(&ready)).await?;
        // A backup is older than the duration of a Lease, so nobody holds the copy's Lease.
        let leases: Api<Lease> = Api::namespaced(self.cluster.client().await?, "kube-system");
        let _ = leases.delete(CCM_LEASE, &DeleteParams::default()).await;
        let handle = self.program.on(&self.host);
        handle.set_arg(&format!("--cluster-name={}", if renamed { COPIED } else { crate::CLUSTER }));
        handle.start()
    }

    /// The API of its cluster.
    pub async fn client(&self) -> Result<Client> {
        self.cluster.client().await
    }

    /// Makes a Service in its namespace `default`.
    pub async fn create(&self, spec: ServiceSpec) -> Result<()> {
        let name = spec.name()?.to_owned();
        let failed = || format!("failed to create Service {name} in the cluster beside");
        let service: Service = serde_json::from_value(spec.0).with_context(failed)?;
        let services: Api<Service> = Api::namespaced(self.client().await?, "default");
        services.create(&PostParams::default(), &service).await.map(drop).with_context(failed)
    }

    /// Waits for the address that its controller publishes on a Service in namespace `default`.
    pub async fn published(&self, name: &str) -> Result<String> {
        let services: Api<Service> = Api::namespaced(self.client().await?, "default");
        wait_for(&format!("an address of Service {name} in the cluster beside"), PATIENCE, || async {
            let service = services.get(name).await.map_err(|error| error.to_string())?;
            let address = service.annotations().get(kube_vip::LOADBALANCER_IPS).filter(|address| !address.is_empty());
            address.cloned().ok_or_else(|| format!("{}\n{}", seen(&service), self.log()))
        })
        .await
    }

    /// Its controller ends in order, and starts again.
    pub fn restart(&self) -> Result<()> {
        self.program.on(&self.host).restart()
    }

    /// Runs a command of the program in the place of its controller's pod; what it printed.
    pub fn exec(&self, words: &[&str]) -> Result<String> {
        self.program.on(&self.host).exec(words)
    }

    /// Its machines are switched off. A controller that has ended by itself is as good.
    pub fn end(&self) {
        self.program.on(&self.host).kill();
        self.cluster.stop();
    }

    /// The end of what it says.
    pub fn log(&self) -> String {
        self.program.on(&self.host).log_tail(30)
    }

    /// What its controller has written to Harvester so far.
    pub fn writes(&self, bed: &Bed) -> Result<Vec<String>> {
        let user = service_account_user(VM_NAMESPACE, COPIED);
        let requests = bed.harvester.audit().since(self.since)?;
        let writes = requests.into_iter().filter(|request| request.user == user && request.is_write());
        Ok(writes.map(|request| format!("{} {}", request.verb, request.uri)).collect())
    }
}
