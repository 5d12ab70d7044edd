//! What goes wrong at Harvester, on demand, and what the cloud controller manager says about itself.

use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use axum::Router;
use axum::http::{Method, StatusCode, Uri};
use harvester_api::cloud_config::{self, CloudConfig};
use harvester_sim::faults::Faults;
use harvester_sim::serve::tls::{Authority, serve};
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::jiff::Timestamp;
use kube::Api;
use serde_json::json;
use testbed::addresses::{API_PORT, HARVESTER};
use testbed::{Task, wait_for};

use crate::PATIENCE;
use crate::bed::{Bed, CLUSTER, VM_NAMESPACE};

/// Lease of the cloud controller manager, in `kube-system`.
pub const CCM_LEASE: &str = "cloud-controller-manager";

/// See [`Bed::impostor`]; it ends when this is dropped.
pub struct Impostor {
    asked: Arc<Mutex<Vec<String>>>,
    _task: Task,
}

impl Impostor {
    /// Waits until it was asked for something whose method and path contain all these parts.
    pub async fn wait_until_asked(&self, parts: &[&str]) -> Result<()> {
        wait_for(&format!("the impostor to be asked for {parts:?}"), PATIENCE, || async {
            let asked = self.asked.lock();
            let found = asked.iter().any(|request| parts.iter().all(|part| request.contains(part)));
            if found { Ok(()) } else { Err(format!("{asked:#?}")) }
        })
        .await
    }
}

/// Another Harvester, with a namespace of the same name and a machine of its own. It notes what is written to it.
pub struct OtherHarvester {
    authority: Authority,
    writes: Arc<Mutex<Vec<String>>>,
    _task: Task,
}

/// Where its API listens.
const OTHER_PORT: u16 = 6999;

impl OtherHarvester {
    /// Beside the bed's own, in the same namespace of the machine.
    pub fn start(bed: &Bed) -> Result<Self> {
        let authority = Authority::new()?;
        let acceptor = authority.acceptor(&[HARVESTER.to_string()])?;
        let writes: Arc<Mutex<Vec<String>>> = Arc::default();
        let written = Arc::clone(&writes);
        let listening = move || async move {
            let list = |items: serde_json::Value| json!({"metadata": {"resourceVersion": "1"}, "items": items});
            let answer = move |method: Method, uri: Uri| {
                let written = Arc::clone(&written);
                async move {
                    if method != Method::GET {
                        written.lock().push(format!("{method} {uri}"));
                    }
                    if uri.query().is_some_and(|query| query.contains("watch")) {
                        tokio::time::sleep(Duration::from_mins(2)).await;
                    }
                    let metadata =
                        json!({"name": "other", "namespace": VM_NAMESPACE, "uid": "other", "resourceVersion": "1"});
                    let machine = json!({"metadata": metadata, "spec": {}, "status": {"printableStatus": "Running"}});
                    let machines = uri.path().ends_with("/virtualmachines");
                    (StatusCode::OK, axum::Json(list(if machines { json!([machine]) } else { json!([]) })))
                }
            };
            let listener = tokio::net::TcpListener::bind((HARVESTER, OTHER_PORT)).await.expect("the port is free");
            let _ = serve(listener, acceptor, Router::new().fallback(answer)).await;
        };
        let task = bed.harvester.namespace().task("other harvester", listening)?;
        Ok(Self { authority, writes, _task: task })
    }

    /// The file that leads to it.
    pub fn cloud_config(&self, bed: &Bed) -> Result<String> {
        let right = CloudConfig::parse(bed.fresh_cloud_config()?.as_bytes())?;
        let server = format!("https://{HARVESTER}:{OTHER_PORT}");
        Ok(cloud_config::render(&server, &self.authority.certificate_pem, &right.namespace, "a-token"))
    }

    /// What it was asked to write so far.
    pub fn writes(&self) -> Vec<String> {
        self.writes.lock().clone()
    }
}

impl Bed {
    /// Sets the faults of the stand-in's controllers and webhooks; the default ends them.
    pub fn set_faults(&self, faults: &Faults) -> Result<()> {
        let body = serde_json::to_string(faults).context("faults are plain data")?;
        let url = format!("http://{}/faults/{VM_NAMESPACE}", self.harvester.control_address());
        let words = ["-sSf", "-m", "5", "-X", "PUT", "--data-binary", &body, &url];
        let output = std::process::Command::new("curl").args(words).output().context("curl is needed")?;
        if !output.status.success() {
            bail!("faults were refused: {}", String::from_utf8_lossy(&output.stderr));
        }
        Ok(())
    }

    /// Replaces the cloud-config under the running cloud controller manager.
    pub fn write_cloud_config(&self, text: &str) -> Result<()> {
        self.dir().write("cloud-config/cloud-config", text).map(drop)
    }

    /// A cloud-config with fresh credentials, as Harvester makes them. After an outage its controller manager may need
    /// a minute until it fills a new token.
    pub fn fresh_cloud_config(&self) -> Result<String> {
        let make = || self.harvester.cloud_config(VM_NAMESPACE, CLUSTER);
        make().or_else(|_| make()).or_else(|_| make())
    }

    /// Serves the address of the Harvester API by something that is no API server, such as an ingress without its
    /// backend: 404 without a Status for everything. The caller has to kill the API server first, and the cloud-config
    /// has to trust `authority`.
    pub fn impostor(&self, authority: &Authority) -> Result<Impostor> {
        let acceptor = authority.acceptor(&[HARVESTER.to_string()])?;
        let asked: Arc<Mutex<Vec<String>>> = Arc::default();
        let written = Arc::clone(&asked);
        let task = self.harvester.namespace().task("impostor", move || async move {
            let router = Router::new().fallback(move |method: Method, uri: Uri| async move {
                written.lock().push(format!("{method} {uri}"));
                (StatusCode::NOT_FOUND, "404 page not found\n")
            });
            let listener = loop {
                match tokio::net::TcpListener::bind((HARVESTER, API_PORT)).await {
                    Ok(listener) => break listener,
                    // The killed server's socket may linger.
                    Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
                }
            };
            let _ = serve(listener, acceptor, router).await;
        })?;
        Ok(Impostor { asked, _task: task })
    }

    /// The cloud-config, trusting also this authority.
    pub fn cloud_config_trusting(&self, authority: &Authority) -> Result<String> {
        let text = self.fresh_cloud_config()?;
        let parsed = CloudConfig::parse(text.as_bytes())?;
        let kubeconfig = parsed.kubeconfig(&parsed.endpoints[0]);
        let token =
            serde_json::to_value(&kubeconfig)?["users"][0]["user"]["token"].as_str().unwrap_or_default().to_owned();
        let real = std::fs::read_to_string(self.harvester.ca_file()).context("failed to read Harvester's authority")?;
        let both = format!("{real}\n{}", authority.certificate_pem);
        Ok(cloud_config::render(&parsed.endpoints[0].server, &both, VM_NAMESPACE, &token))
    }

    /// What `/readyz?verbose` of the cloud controller manager says, and whether it is 200.
    pub fn ccm_readyz(&self) -> Result<(bool, String)> {
        let url = "https://127.0.0.1:10258/readyz?verbose";
        let text = self.ccm().host().exec(["curl", "-ks", "-m", "10", "-w", "%{http_code}", url])?;
        Ok((text.ends_with("200"), text))
    }

    async fn spec_of_ccm_lease(&self) -> Result<LeaseSpec> {
        let leases: Api<Lease> = Api::namespaced(self.client().await?, "kube-system");
        Ok(leases.get(CCM_LEASE).await.context("failed to read the Lease")?.spec.unwrap_or_default())
    }

    /// When the leading cloud controller manager last renewed its Lease.
    pub async fn ccm_lease_renewed(&self) -> Result<Option<Timestamp>> {
        Ok(self.spec_of_ccm_lease().await?.renew_time.map(|time| time.0))
    }

    /// The cloud controller manager's metrics cannot be read without a token; its Lease can: holder and number of
    /// changes of hands.
    pub async fn ccm_lease(&self) -> Result<(String, i32)> {
        let spec = self.spec_of_ccm_lease().await?;
        Ok((spec.holder_identity.unwrap_or_default(), spec.lease_transitions.unwrap_or_default()))
    }

    /// Waits until the cloud controller manager is ready.
    pub async fn wait_until_ccm_is_ready(&self) -> Result<()> {
        wait_for("the cloud controller manager to be ready", PATIENCE, || async {
            match self.ccm_readyz() {
                Ok((true, _)) => Ok(()),
                Ok((false, text)) => Err(text),
                Err(error) => Err(format!("{error:#}")),
            }
        })
        .await
    }
}
