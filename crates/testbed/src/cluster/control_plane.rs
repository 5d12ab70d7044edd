//! The guest cluster's control plane: etcd and kube-apiserver, and if wanted the controller manager and the scheduler.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU16, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use anyhow::{Context, Result};
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{Namespace as KubeNamespace, ServiceAccount};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Api, PostParams};
use kube::{Client, ResourceExt};

use crate::addresses::{CONTROL_PLANE, KUBERNETES_SERVICE, MANAGEMENT_PREFIX, SERVICE_RANGES, management_host};
use crate::cluster::api_server::{self, ApiServer, Settings};
use crate::cluster::audit::AuditLog;
use crate::cluster::harvester::{HarvesterBuilder, HarvesterSide};
use crate::cluster::kubeconfig::Identity;
use crate::net::host::Host;
use crate::net::namespace::Namespace;
use crate::net::segment::{Nic, Segment};
use crate::process::{Process, mortal};
use crate::programs;
use crate::run_dir::RunDir;
use crate::wait::wait_for;

/// Two kubeconfig files of one identity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Credentials {
    /// For programs on hosts that joined the control plane.
    pub inside: PathBuf,
    /// For the test itself and for `kubectl` in the outer namespace.
    pub outside: PathBuf,
}

impl Credentials {
    /// A client for the test.
    pub async fn client(&self) -> Result<Client> {
        api_server::client_from(&self.outside).await
    }
}

/// A control plane in a namespace. It stands on a management network of its own, which hosts of any LAN may join.
#[derive(Debug)]
pub struct ControlPlane {
    // Order of drop: clients before servers, all before the wires.
    scheduler: Option<Process>,
    controller_manager: Mutex<Option<Process>>,
    controllers: Option<String>,
    controller_flags: Vec<String>,
    api_server: ApiServer,
    etcd: Process,
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
    controller_flags: Vec<String>,
    scheduler: bool,
    api_flags: Vec<String>,
}

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

    /// Kubeconfigs with a token of a ServiceAccount, which is made if it does not exist. What it may do is for the caller to bind.
    pub async fn service_account(&self, namespace: &str, name: &str) -> Result<Credentials> {
        let accounts: Api<ServiceAccount> = Api::namespaced(self.client().await?, namespace);
        let failed = || format!("failed to make a token for ServiceAccount {namespace}/{name}");
        if accounts.get_opt(name).await.with_context(failed)?.is_none() {
            let account = ServiceAccount {
                metadata: ObjectMeta { name: Some(name.into()), ..ObjectMeta::default() },
                ..ServiceAccount::default()
            };
            accounts.create(&PostParams::default(), &account).await.with_context(failed)?;
        }
        let spec = TokenRequestSpec { expiration_seconds: Some(86_400), ..TokenRequestSpec::default() };
        let request = TokenRequest { spec, ..TokenRequest::default() };
        let answer =
            accounts.create_token_request(name, &PostParams::default(), &request).await.with_context(failed)?;
        let token = answer.status.context("the API server gave no token")?.token;
        self.api_server.credentials(&format!("{namespace}_{name}"), &Identity::Token(token), None)
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

    /// What was asked of the API server.
    pub fn audit(&self) -> AuditLog {
        self.api_server.audit()
    }

    /// The URL of the API server for hosts that joined.
    pub fn url_inside(&self) -> String {
        self.api_server.url_inside()
    }

    /// Ends the API server without a word. etcd stays.
    pub fn kill_api_server(&self) {
        self.api_server.kill();
    }

    /// Starts it again and waits until it is ready.
    pub async fn start_api_server(&self) -> Result<()> {
        self.api_server.run()?;
        self.api_server.wait_until_ready().await
    }

    /// Freezes the API server: connections stay open, nothing is answered.
    pub fn pause_api_server(&self) -> Result<()> {
        self.api_server.with_process(Process::pause)
    }

    /// Lets a frozen API server go on.
    pub fn resume_api_server(&self) -> Result<()> {
        self.api_server.with_process(Process::resume)
    }

    /// Ends the controller manager.
    pub fn kill_controller_manager(&self) {
        drop(self.controller_slot().take());
    }

    /// Starts the controller manager with these controllers (`*` for all), again if need be.
    pub fn start_controller_manager(&self, controllers: &str) -> Result<()> {
        self.kill_controller_manager();
        let process = start_controller_manager(&self.api_server, controllers, &self.controller_flags)?;
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

    pub(crate) fn api_server(&self) -> &ApiServer {
        &self.api_server
    }

    fn controller_slot(&self) -> std::sync::MutexGuard<'_, Option<Process>> {
        self.controller_manager.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

impl ControlPlaneBuilder {
    /// With a controller manager that runs `controllers`, `*` for all.
    #[must_use]
    pub fn controllers(mut self, controllers: &str) -> Self {
        self.controllers = Some(controllers.into());
        self
    }

    /// A further flag of the controller manager.
    #[must_use]
    pub fn controller_flag(mut self, flag: &str) -> Self {
        self.controller_flags.push(flag.into());
        self
    }

    /// With a scheduler.
    #[must_use]
    pub fn scheduler(mut self) -> Self {
        self.scheduler = true;
        self
    }

    /// A further flag of the API server.
    #[must_use]
    pub fn api_flag(mut self, flag: &str) -> Self {
        self.api_flags.push(flag.into());
        self
    }

    /// Starts it and waits until it is ready.
    pub async fn start(self) -> Result<ControlPlane> {
        let control_plane = self.launch()?;
        control_plane.wait_until_ready().await?;
        Ok(control_plane)
    }

    /// Starts it together with a Harvester side and waits until both are ready: two seconds less than one after the other.
    pub async fn start_with(self, harvester: HarvesterBuilder) -> Result<(ControlPlane, HarvesterSide)> {
        let control_plane = self.launch()?;
        let harvester = harvester.launch(&control_plane)?;
        tokio::try_join!(control_plane.wait_until_ready(), harvester.wait_until_ready())?;
        Ok((control_plane, harvester))
    }

    /// Starts it without waiting; see [`ControlPlane::wait_until_ready`].
    pub fn launch(self) -> Result<ControlPlane> {
        let dir = RunDir::new("control-plane")?;
        let management = Segment::new("management", &dir)?;
        let namespace = Arc::new(Namespace::new("control-plane", &dir)?);
        let nic = management.attach(&namespace, "mgmt0", &[format!("{CONTROL_PLANE}/{MANAGEMENT_PREFIX}")])?;
        let etcd = start_etcd(&namespace, dir.path())?;
        let settings = Settings {
            name: "kube-apiserver",
            address: CONTROL_PLANE,
            etcd_prefix: "/guest",
            service_ranges: SERVICE_RANGES,
            first_service: KUBERNETES_SERVICE,
            extra: self.api_flags,
        };
        let api_server = ApiServer::start(settings, namespace.clone(), dir.clone())?;
        // Started beside the API server: both try again until it answers.
        let controllers = self.controllers.as_deref();
        let controller_manager = controllers
            .map(|controllers| start_controller_manager(&api_server, controllers, &self.controller_flags))
            .transpose()?;
        let scheduler = self.scheduler.then(|| start_scheduler(&api_server)).transpose()?;
        Ok(ControlPlane {
            scheduler,
            controller_manager: Mutex::new(controller_manager),
            controllers: self.controllers,
            controller_flags: self.controller_flags,
            api_server,
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

fn start_etcd(namespace: &Namespace, dir: &Path) -> Result<Process> {
    let mut command = Command::new(programs::tool("etcd")?);
    command
        .arg(format!("--data-dir={}", dir.join("etcd").display()))
        .arg(format!("--listen-client-urls=http://{CONTROL_PLANE}:2379"))
        .arg(format!("--advertise-client-urls=http://{CONTROL_PLANE}:2379"))
        .args(["--listen-peer-urls=http://127.0.0.1:2380", "--initial-advertise-peer-urls=http://127.0.0.1:2380"])
        .args(["--initial-cluster=bed=http://127.0.0.1:2380", "--name=bed", "--unsafe-no-fsync", "--log-level=warn"]);
    namespace.spawn("etcd", command)
}

fn start_controller_manager(api_server: &ApiServer, controllers: &str, flags: &[String]) -> Result<Process> {
    let credentials = api_server.user("kube-controller-manager", "system:kube-controller-manager", &[])?;
    let file = |name: &str| api_server.file(name).display().to_string();
    let mut command = Command::new(programs::tool("kube-controller-manager")?);
    command
        .arg(format!("--kubeconfig={}", credentials.inside.display()))
        .arg(format!("--controllers={controllers}"))
        .arg(format!("--service-account-private-key-file={}", file("service-accounts.key")))
        .arg(format!("--root-ca-file={}", file("ca.crt")))
        .args(["--cloud-provider=external", "--use-service-account-credentials=true", "--leader-elect=false"])
        // It makes some forty tokens at its start; at the default of 20 requests per second that takes four seconds longer.
        .args(["--kube-api-qps=300", "--kube-api-burst=600", "--bind-address=127.0.0.1", "--profiling=false", "--v=1"])
        .args(flags);
    api_server.namespace().spawn("kube-controller-manager", keep_trying(&command))
}

fn start_scheduler(api_server: &ApiServer) -> Result<Process> {
    let credentials = api_server.user("kube-scheduler", "system:kube-scheduler", &[])?;
    let mut command = Command::new(programs::tool("kube-scheduler")?);
    command.arg(format!("--kubeconfig={}", credentials.inside.display())).args([
        "--leader-elect=false",
        "--bind-address=127.0.0.1",
        "--v=1",
    ]);
    api_server.namespace().spawn("kube-scheduler", keep_trying(&command))
}

/// Controller manager and scheduler end when they find no API server: started before it is up, or when it is killed for a test.
fn keep_trying(command: &Command) -> Command {
    let mut wrapped = Command::new("sh");
    // A killed shell would leave its child behind: pdeathsig once more.
    wrapped
        .args(["-c", "while :; do setpriv --pdeathsig KILL -- \"$@\"; sleep 0.3; done", "keep-trying"])
        .arg(command.get_program())
        .args(command.get_args());
    wrapped
}

impl ControlPlane {
    /// Waits until the API server is ready and, with a controller manager, until pods can be made.
    pub async fn wait_until_ready(&self) -> Result<()> {
        self.api_server.wait_until_ready().await.map_err(|error| match self.etcd.check() {
            Ok(()) => error,
            Err(etcd) => etcd.context(error),
        })?;
        if let Some(scheduler) = &self.scheduler {
            scheduler.check()?;
        }
        if self.controllers.as_deref() != Some("*") {
            return Ok(());
        }
        // Pods need the ServiceAccount `default`, which the controller manager makes.
        let accounts: Api<ServiceAccount> = Api::namespaced(self.client().await?, "default");
        wait_for("ServiceAccount default/default", api_server::START_DEADLINE, || async {
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

    /// Starts the controllers of another API server of this bed, for the Harvester side.
    pub(crate) fn start_controllers_for(api_server: &ApiServer, controllers: &str) -> Result<Process> {
        start_controller_manager(api_server, controllers, &[])
    }
}
