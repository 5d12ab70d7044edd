//! A copy of the cluster that runs beside it. It is restored from a snapshot of its etcd, and has an API server, a
//! machine and a controller of its own, in the same namespace of the same Harvester.

use anyhow::Result;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::json;
use testbed::{Audit, Copy, Host};

use crate::host::CCM_LEASE;
use crate::machines::UNINITIALIZED;
use crate::product::Program;
use crate::{Bed, VM_NAMESPACE};

/// The user name of the copy on Harvester, by which its requests are told from the original's.
pub const COPIED: &str = "copied";

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
        let kubeconfig = copy.service_account("kube-system", crate::product::CCM_ACCOUNT).await?;
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
        let ready = json!({"status": {"conditions": [{"type": "Ready", "status": "True", "reason": "Test",
            "message": "joined"}]}});
        nodes.patch_status(COPIED, &PatchParams::default(), &Patch::Strategic(&ready)).await?;
        // A backup is older than the duration of a Lease, so nobody holds the copy's Lease.
        let leases: Api<Lease> = Api::namespaced(self.copy.client().await?, "kube-system");
        let _ = leases.delete(CCM_LEASE, &DeleteParams::default()).await;
        let handle = self.program.on(&self.host);
        handle.set_arg(&format!("--cluster-name={}", if renamed { COPIED } else { crate::CLUSTER }));
        handle.start()
    }

    /// The API of the copy.
    pub async fn client(&self) -> Result<Client> {
        self.copy.client().await
    }

    /// Runs a command of the program in the place of its controller's pod; what it printed.
    pub fn exec(&self, words: &[&str]) -> Result<String> {
        self.program.on(&self.host).exec(words)
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

    /// What its controller has written to Harvester so far.
    pub fn writes(&self, bed: &Bed) -> Result<Vec<String>> {
        let user = format!("system:serviceaccount:{VM_NAMESPACE}:{COPIED}");
        let requests = bed.harvester.audit().since(self.since)?;
        let all = requests.into_iter().filter(|request| request.user == user);
        let writes = all.into_iter().filter(|request| request.is_write() && !request.resource.ends_with("reviews"));
        Ok(writes.map(|request| format!("{} {}", request.verb, request.uri)).collect())
    }
}
