//! The guest cluster's control plane: etcd and kube-apiserver, and if wanted the controller manager and the scheduler.

use parking_lot::Mutex;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU32, Ordering};

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::{Namespace as KubeNamespace, ServiceAccount};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Api, PostParams};
use kube::{Client, ResourceExt};

use crate::addresses::{CONTROL_PLANE, KUBERNETES_SERVICE, MANAGEMENT_PREFIX, SERVICE_RANGES, management_host};
use crate::cluster::api_server::{ApiServer, START_DEADLINE, Settings};
use crate::cluster::audit::AuditLog;
use crate::cluster::controllers::{start_controller_manager, start_scheduler};
use crate::cluster::credentials::Credentials;
use crate::cluster::etcd::{Etcd, renamed};
use crate::cluster::second_cluster::{SECOND_PREFIX, SecondCluster};
use crate::net::host::Host;
use crate::net::namespace::Namespace;
use crate::net::segment::{Nic, Segment};
use crate::process::{Process, mortal};
use crate::programs;
use crate::run_dir::RunDir;
use crate::wait::wait_for;

/// A control plane in a namespace. It stands on a management network of its own, which hosts of any LAN may join.
#[derive(Debug)]
pub struct ControlPlane {
    // Order of drop: clients before servers, all before the wires.
    scheduler: Option<Process>,
    controller_manager: Mutex<Option<Process>>,
    controllers: Option<String>,
    api_server: ApiServer,
    /// On the machines of etcd's members from the second one on.
    further: Vec<ApiServer>,
    etcd: Etcd,
    namespace: Arc<Namespace>,
    nic: Arc<Nic>,
    management: Arc<Segment>,
    joined: AtomicU16,
    namespaces: AtomicU32,
    dir: Arc<RunDir>,
}

/// What a control plane shall have.
#[derive(Debug, Default)]
pub struct ControlPlaneBuilder {
    controllers: Option<String>,
    scheduler: bool,
    etcd_members: Option<u8>,
    api_servers: bool,
}

/// Where the API server has its keys.
const ETCD_PREFIX: &str = "/guest";
/// The API servers beside the first one: their machines and names.
const FURTHER: [(usize, &str); 2] = [(2, "kube-apiserver2"), (3, "kube-apiserver3")];

/// See [`ControlPlane::backup`].
#[derive(Debug)]
pub struct Backup(Vec<serde_json::Value>);

impl ControlPlane {
    /// etcd and API server only, unless told otherwise.
    pub fn builder() -> ControlPlaneBuilder {
        ControlPlaneBuilder::default()
    }

    /// A client of the test with all rights. Make one per test: its worker belongs to the runtime that made it.
    pub async fn client(&self) -> Result<Client> {
        self.api_server.client().await
    }

    /// The administrator's kubeconfigs.
    pub fn admin(&self) -> Result<Credentials> {
        self.api_server.admin()
    }

    /// Kubeconfigs with a client certificate for `user` in `groups`.
    pub fn user(&self, user: &str, groups: &[&str]) -> Result<Credentials> {
        self.api_server.user(&user.replace([':', '/'], "_"), user, groups)
    }

    /// Kubeconfigs with a token of a ServiceAccount, which is made if it does not exist. What it may do is for the
    /// caller to bind.
    pub async fn service_account(&self, namespace: &str, name: &str) -> Result<Credentials> {
        self.api_server.service_account(namespace, name).await
    }

    /// Connects `host` to the management network by `mgmt0`, so that programs on it reach the API.
    pub fn join(&self, host: &Host) -> Result<Arc<Nic>> {
        let address = self.next_management_address();
        host.attach(&self.management, "mgmt0", &[format!("{address}/{MANAGEMENT_PREFIX}")])
    }

    /// A namespace in the cluster for one test; `prefix` begins its name.
    pub async fn test_namespace(&self, prefix: &str) -> Result<String> {
        let name = format!("{prefix}-{}", self.namespaces.fetch_add(1, Ordering::Relaxed));
        let namespaces: Api<KubeNamespace> = Api::all(self.client().await?);
        let namespace = KubeNamespace {
            metadata: ObjectMeta { name: Some(name), ..ObjectMeta::default() },
            ..KubeNamespace::default()
        };
        let created =
            namespaces.create(&PostParams::default(), &namespace).await.context("failed to create a namespace")?;
        Ok(created.name_any())
    }

    /// Runs kubectl with the administrator's rights; the output.
    pub fn kubectl(&self, words: &[&str]) -> Result<String> {
        let mut command = Command::new(programs::tool("kubectl")?);
        command.arg("--kubeconfig").arg(self.admin()?.outside).args(words);
        crate::process::run(&mut mortal(&command))
    }

    /// What was asked of the API servers.
    pub fn audit(&self) -> AuditLog {
        let servers = std::iter::once(&self.api_server).chain(&self.further);
        AuditLog::new(servers.map(ApiServer::audit_file).collect())
    }

    /// The URL of the API server for hosts that joined.
    pub fn url_inside(&self) -> String {
        self.api_server.url_inside()
    }

    /// Starts the controller manager with these controllers (`*` for all), again if need be.
    pub fn start_controller_manager(&self, controllers: &str) -> Result<()> {
        drop(self.controller_slot().take()); // ends the old one before the new one starts
        let process = start_controller_manager(&self.api_server, controllers)?;
        *self.controller_slot() = Some(process);
        Ok(())
    }

    /// The namespace in which it runs.
    pub fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    /// Its cable to the management network: cut it, and nobody reaches the API.
    pub fn nic(&self) -> &Nic {
        &self.nic
    }

    /// The management network.
    pub fn management(&self) -> &Arc<Segment> {
        &self.management
    }

    /// Logs, keys and data.
    pub fn dir(&self) -> &Arc<RunDir> {
        &self.dir
    }

    /// The file with the certificate of its authority.
    pub fn ca_file(&self) -> PathBuf {
        self.api_server.file("ca.crt")
    }

    /// An address on the management network that nobody else gets.
    pub(crate) fn next_management_address(&self) -> std::net::Ipv4Addr {
        management_host(self.joined.fetch_add(1, Ordering::Relaxed))
    }

    /// Its API server, to kill it and to start it again. etcd stays.
    pub fn api_server(&self) -> &ApiServer {
        &self.api_server
    }

    /// The API server that programs on node `n` use, counted from 1: the one of its own number, if there is one.
    pub(crate) fn api_server_of(&self, n: usize) -> &ApiServer {
        let further = n.checked_sub(2).and_then(|index| self.further.get(index));
        further.unwrap_or(&self.api_server)
    }

    /// Power loss of control plane machine `n`, with its API server and its member of etcd: see
    /// [`ControlPlaneBuilder::api_servers`]. The first one is where tests ask, and cannot be lost.
    pub fn cut_server(&self, n: usize) -> Result<()> {
        let server = n.checked_sub(2).and_then(|index| self.further.get(index));
        let server = server.with_context(|| format!("there is no API server {n} that can be lost"))?;
        self.etcd.cut(n)?;
        server.kill();
        Ok(())
    }

    /// All machines of the control plane have power again: after [`ControlPlane::cut_server`].
    pub async fn mend_servers(&self) -> Result<()> {
        for (index, server) in self.further.iter().enumerate().filter(|(_, server)| !server.is_on()) {
            self.etcd.mend(index + 2)?;
            server.start().await?;
        }
        Ok(())
    }

    /// The member of etcd that leads, counted from 1.
    pub fn etcd_leader(&self) -> Result<usize> {
        self.etcd.leader()
    }

    /// Power loss of a member of etcd that has a machine of its own.
    pub fn cut_etcd(&self, n: usize) -> Result<()> {
        self.etcd.cut(n)
    }

    /// After [`ControlPlane::cut_etcd`].
    pub fn mend_etcd(&self, n: usize) -> Result<()> {
        self.etcd.mend(n)
    }

    /// A backup of this cluster's etcd. Harvester, which has the same one, is no part of it.
    pub fn backup(&self) -> Result<Backup> {
        Ok(Backup(self.etcd.read(ETCD_PREFIX)?))
    }

    /// The cluster as it was: what was made since is unknown, what was deleted since is back. The API server is away
    /// meanwhile.
    pub async fn restore(&self, backup: &Backup) -> Result<()> {
        self.api_server.kill();
        self.etcd.write(ETCD_PREFIX, &backup.0)?;
        self.api_server.start().await
    }

    /// A cluster that was restored from a backup of this one, beside it: the same objects, another API server and other
    /// programs. It is on the same management network, so that it reaches the same Harvester.
    pub async fn restored_copy(&self) -> Result<SecondCluster> {
        self.copy_state()?;
        SecondCluster::start(self.etcd.urls(), &self.management).await
    }

    /// Another cluster in the place of a copy: no object is this cluster's.
    pub async fn another(&self) -> Result<SecondCluster> {
        self.etcd.write(SECOND_PREFIX, &[])?;
        SecondCluster::start(self.etcd.urls(), &self.management).await
    }

    /// Restores the copy once more, from what this cluster is now.
    pub async fn copy_again(&self, copy: &SecondCluster) -> Result<()> {
        copy.api_server.kill();
        self.copy_state()?;
        copy.api_server.start().await
    }

    fn copy_state(&self) -> Result<()> {
        self.etcd.write(SECOND_PREFIX, &renamed(&self.backup()?.0, ETCD_PREFIX, SECOND_PREFIX)?)
    }

    /// For another cluster's API server. Where members are lost it asks the one that stays: a client of etcd takes up
    /// to 40 s to notice that a member is gone.
    pub(crate) fn etcd_urls(&self) -> String {
        if self.further.is_empty() { self.etcd.urls() } else { self.etcd.url_of(1) }
    }

    fn controller_slot(&self) -> parking_lot::MutexGuard<'_, Option<Process>> {
        self.controller_manager.lock()
    }
}

impl ControlPlaneBuilder {
    /// With a controller manager that runs `controllers`, `*` for all.
    #[must_use]
    pub fn controllers(mut self, controllers: &str) -> Self {
        self.controllers = Some(controllers.into());
        self
    }

    /// With a scheduler.
    #[must_use]
    pub fn scheduler(mut self) -> Self {
        self.scheduler = true;
        self
    }

    /// With so many members of etcd on machines of their own, which can be lost; else one beside the API server.
    #[must_use]
    pub fn etcd_members(mut self, count: u8) -> Self {
        self.etcd_members = Some(count);
        self
    }

    /// Three control plane machines, each with a member of etcd and an API server that asks this member alone, as
    /// kubeadm, RKE2 and K3s have it. Node `n`'s kubelet and kube-proxy use API server `n`, pods the Service
    /// `kubernetes` and so any of them. Controller manager and scheduler are on the first machine.
    #[must_use]
    pub fn api_servers(mut self) -> Self {
        self.api_servers = true;
        self.etcd_members(3)
    }

    /// Starts it and waits until it is ready.
    pub async fn start(self) -> Result<ControlPlane> {
        let control_plane = self.launch()?;
        control_plane.wait_until_ready().await?;
        Ok(control_plane)
    }

    /// Starts it without waiting; see [`ControlPlane::wait_until_ready`].
    pub fn launch(self) -> Result<ControlPlane> {
        let dir = RunDir::new("control-plane")?;
        let management = Segment::new("management", &dir)?;
        let namespace = Arc::new(Namespace::new("control-plane", &dir)?);
        let nic = management.attach(&namespace, "mgmt0", &[format!("{CONTROL_PLANE}/{MANAGEMENT_PREFIX}")])?;
        let etcd = match self.etcd_members {
            Some(count) => Etcd::apart(count, &management, &dir)?,
            None => Etcd::beside(&namespace, &dir)?,
        };
        let settings = Settings {
            name: "kube-apiserver",
            address: CONTROL_PLANE,
            etcd: if self.api_servers { etcd.url_of(1) } else { etcd.urls() },
            etcd_prefix: ETCD_PREFIX,
            service_ranges: SERVICE_RANGES,
            first_service: KUBERNETES_SERVICE,
        };
        let api_server = ApiServer::launch(settings.clone(), namespace.clone(), dir.clone())?;
        let mut further = Vec::new();
        for (n, name) in FURTHER.into_iter().take(if self.api_servers { FURTHER.len() } else { 0 }) {
            let (address, machine) = etcd.machine_of(n);
            let settings = Settings { name, address, etcd: etcd.url_of(n), ..settings.clone() };
            further.push(api_server.launch_another(settings, machine)?);
        }
        // Started beside the API server: both try again until it answers.
        let controllers = self.controllers.as_deref();
        let controller_manager =
            controllers.map(|controllers| start_controller_manager(&api_server, controllers)).transpose()?;
        let scheduler = self.scheduler.then(|| start_scheduler(&api_server)).transpose()?;
        Ok(ControlPlane {
            scheduler,
            controller_manager: Mutex::new(controller_manager),
            controllers: self.controllers,
            api_server,
            further,
            etcd,
            namespace,
            nic,
            management,
            joined: AtomicU16::new(0),
            namespaces: AtomicU32::new(1),
            dir,
        })
    }
}

impl ControlPlane {
    /// Waits until the API server is ready and, with a controller manager, until pods can be made.
    pub async fn wait_until_ready(&self) -> Result<()> {
        self.api_server.wait_until_ready().await.map_err(|error| match self.etcd.check() {
            Ok(()) => error,
            Err(etcd) => etcd.context(error),
        })?;
        for server in &self.further {
            server.wait_until_ready().await?;
        }
        if let Some(scheduler) = &self.scheduler {
            scheduler.check()?;
        }
        if self.controllers.as_deref() != Some("*") {
            return Ok(());
        }
        // Pods need the ServiceAccount `default`, which the controller manager makes.
        let accounts: Api<ServiceAccount> = Api::namespaced(self.client().await?, "default");
        wait_for("ServiceAccount default/default", START_DEADLINE, || async {
            if let Some(process) = &*self.controller_slot() {
                process.check().map_err(|error| error.to_string())?;
            }
            match accounts.get_opt("default").await {
                Ok(Some(_)) => Ok(()),
                Ok(None) => Err("it does not exist".into()),
                Err(error) => Err(error.to_string()),
            }
        })
        .await
    }
}
