//! A second cluster beside the guest cluster: a copy of it, as a restored backup is, with an API server of its own over
//! the same objects; or another one, with nothing in it yet.

use std::sync::Arc;

use anyhow::Result;
use kube::Client;

use crate::addresses::{KUBERNETES_SERVICE, MANAGEMENT_PREFIX, SECOND_CLUSTER, SERVICE_RANGES};
use crate::cluster::api_server::{ApiServer, Settings};
use crate::cluster::credentials::Credentials;
use crate::net::namespace::Namespace;
use crate::net::segment::{Nic, Segment};
use crate::run_dir::RunDir;

/// Where its API server has its keys.
pub(crate) const SECOND_PREFIX: &str = "/second";

/// See [`crate::ControlPlane::restored_copy`] and [`crate::ControlPlane::another`].
#[derive(Debug)]
pub struct SecondCluster {
    pub(crate) api_server: ApiServer,
    _nic: Arc<Nic>,
    _dir: Arc<RunDir>,
}

impl SecondCluster {
    pub(crate) async fn start(etcd: String, management: &Arc<Segment>) -> Result<Self> {
        let dir = RunDir::new("second")?;
        let namespace = Arc::new(Namespace::new("second", &dir)?);
        let nic = management.attach(&namespace, "mgmt0", &[format!("{SECOND_CLUSTER}/{MANAGEMENT_PREFIX}")])?;
        let settings = Settings {
            name: "second-apiserver",
            address: SECOND_CLUSTER,
            etcd,
            etcd_prefix: SECOND_PREFIX,
            service_ranges: SERVICE_RANGES,
            first_service: KUBERNETES_SERVICE,
        };
        let api_server = ApiServer::launch(settings, namespace, dir.clone())?;
        api_server.wait_until_ready().await?;
        Ok(Self { api_server, _nic: nic, _dir: dir })
    }

    /// A client of the test with all rights. Make one per test.
    pub async fn client(&self) -> Result<Client> {
        self.api_server.client().await
    }

    /// Kubeconfigs with a token of a ServiceAccount, which a copy has if the original has it.
    pub async fn service_account(&self, namespace: &str, name: &str) -> Result<Credentials> {
        self.api_server.service_account(namespace, name).await
    }

    /// Nobody answers for it any more.
    pub fn stop(&self) {
        self.api_server.kill();
    }
}
