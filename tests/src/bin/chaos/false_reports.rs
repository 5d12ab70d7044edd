//! Two announcers' Leases report a live node as silent. The node's kubelet and the endpoint controller are simulated,
//! with one pod behind one Service. They revert what the cloud controller writes, and must not have to do so
//! repeatedly.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use contract::leases::MEMBER_PREFIX;
use harvester_api::keys::cloudprovider::{CARD, SILENCE};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, Pod, ServiceAccount};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

const NAME: &str = "slandered";
/// As long as a kubelet took in our measurements.
const KUBELET: Duration = Duration::from_millis(300);
/// Each of two replicas marks once, and so does each new process.
const MARKS: usize = 10;

/// The pod, and those who say that its node is silent.
pub struct FalseReports {
    client: Client,
    namespace: String,
    watchers: [String; 2],
    accused: String,
    righted: Arc<AtomicUsize>,
    kubelet: JoinHandle<()>,
}

impl Drop for FalseReports {
    fn drop(&mut self) {
        self.kubelet.abort();
    }
}

impl FalseReports {
    /// A pod on the node that will be accused.
    pub async fn prepare(client: Client, namespace: &str, accused: &str, watchers: [&str; 2]) -> Result<Self> {
        let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), namespace);
        // There may be one already.
        let account = serde_json::from_value(json!({"metadata": {"name": "default"}}))?;
        let _ = accounts.create(&PostParams::default(), &account).await;
        let (pods, slices) = (Api::<Pod>::namespaced(client.clone(), namespace), slices(&client, namespace));
        let pod = serde_json::from_value(json!({"metadata": {"name": NAME}, "spec": {"nodeName": accused,
            "automountServiceAccountToken": false, "tolerations": [{"operator": "Exists"}],
            "containers": [{"name": "web", "image": "web"}]}}))?;
        let pod = pods.create(&PostParams::default(), &pod).await.context("failed to create a pod")?;
        let slice = json!({"metadata": {"name": NAME, "labels": {"kubernetes.io/service-name": NAME}},
            "addressType": "IPv4", "ports": [{"port": 80}],
            "endpoints": [{"addresses": ["10.244.250.2"], "nodeName": accused,
                "conditions": {"ready": true, "serving": true, "terminating": false},
                "targetRef": {"kind": "Pod", "namespace": namespace, "name": NAME, "uid": pod.uid()}}]});
        let slice = serde_json::from_value(slice)?;
        slices.create(&PostParams::default(), &slice).await.context("failed to create an EndpointSlice")?;
        ready(&pods).await.context("failed to make the pod ready")?;
        let righted = Arc::new(AtomicUsize::new(0));
        let kubelet = tokio::spawn(put_right(pods, slices, righted.clone()));
        let (namespace, accused) = (namespace.to_owned(), accused.to_owned());
        Ok(Self { client, namespace, watchers: watchers.map(str::to_owned), accused, righted, kubelet })
    }

    /// Both say it.
    pub async fn begin(&self) -> Result<()> {
        self.righted.store(0, Ordering::Relaxed);
        let nodes: Api<Node> = Api::all(self.client.clone());
        let uid = nodes.get(&self.accused).await.context("failed to read a Node")?.uid();
        let silence = json!({"uid": uid, "ms": 200, "unanswered": ["arp", "tcp"], "gateway": true, "witnesses": 2});
        self.say(&json!({"silent": {(self.accused.as_str()): silence}}), json!("true")).await
    }

    /// Ends the reports. Returns how often the kubelet had to correct its pod, if that was too often.
    pub async fn end(&self) -> Result<Option<String>> {
        self.say(&json!({}), Value::Null).await?;
        let righted = self.righted.load(Ordering::Relaxed);
        crate::say(&format!("the kubelet of {} has put its pod right {righted} times", self.accused));
        Ok((righted > MARKS)
            .then(|| format!("a pod whose kubelet lives was marked {righted} times, more than {MARKS}")))
    }

    async fn say(&self, card: &Value, label: Value) -> Result<()> {
        let leases: Api<Lease> = Api::namespaced(self.client.clone(), "kube-system");
        for watcher in &self.watchers {
            let name = format!("{MEMBER_PREFIX}{watcher}");
            let empty = serde_json::from_value(json!({"metadata": {"name": name}}))?;
            // It is there from the second time on.
            let _ = leases.create(&PostParams::default(), &empty).await;
            let renewal = format!("{:.6}", k8s_openapi::jiff::Timestamp::now());
            let patch = json!({"metadata": {"annotations": {CARD: card.to_string()}, "labels": {SILENCE: label}},
                "spec": {"holderIdentity": watcher, "leaseDurationSeconds": 15, "renewTime": renewal}});
            let patched = leases.patch(&name, &PatchParams::default(), &Patch::Merge(patch)).await;
            patched.with_context(|| format!("failed to write Lease {name}"))?;
        }
        Ok(())
    }

    /// What is not yet as it has to be in the end.
    pub async fn missing(&self) -> Result<Option<String>> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &self.namespace);
        let pod = pods.get(NAME).await.context("failed to read the pod")?;
        let slice =
            slices(&self.client, &self.namespace).get(NAME).await.context("failed to read its EndpointSlice")?;
        let (pod, endpoint) = (is_ready(&pod), serves(&slice));
        Ok((!(pod && endpoint)).then(|| format!("the slandered pod: ready {pod}, its endpoint {endpoint}")))
    }
}

fn slices(client: &Client, namespace: &str) -> Api<EndpointSlice> {
    Api::namespaced(client.clone(), namespace)
}

fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

fn serves(slice: &EndpointSlice) -> bool {
    let conditions = slice.endpoints.first().and_then(|endpoint| endpoint.conditions.as_ref());
    conditions.and_then(|conditions| conditions.ready).unwrap_or(true)
}

async fn ready(pods: &Api<Pod>) -> Result<(), kube::Error> {
    let conditions = ["Ready", "ContainersReady"].map(|kind| json!({"type": kind, "status": "True"}));
    let patch = Patch::Merge(json!({"status": {"phase": "Running", "conditions": conditions}}));
    pods.patch_status(NAME, &PatchParams::default(), &patch).await.map(drop)
}

/// A kubelet and an endpoint controller; a server that is away is asked again.
async fn put_right(pods: Api<Pod>, slices: Api<EndpointSlice>, righted: Arc<AtomicUsize>) {
    loop {
        tokio::time::sleep(KUBELET / 3).await;
        let (Ok(pod), Ok(slice)) = (pods.get(NAME).await, slices.get(NAME).await) else { continue };
        if !is_ready(&pod) {
            tokio::time::sleep(KUBELET).await;
            if ready(&pods).await.is_ok() {
                righted.fetch_add(1, Ordering::Relaxed);
            }
        } else if !serves(&slice) {
            let conditions = json!({"ready": true, "serving": true, "terminating": false});
            let patch = json!([{"op": "replace", "path": "/endpoints/0/conditions", "value": conditions}]);
            let patch = serde_json::from_value(patch).expect("it is a list of operations");
            let _ = slices.patch(NAME, &PatchParams::default(), &Patch::Json::<()>(patch)).await;
        }
    }
}
