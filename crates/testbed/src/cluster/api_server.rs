//! A kube-apiserver in a namespace, with its authority and the ways to it.

use parking_lot::Mutex;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::ServiceAccount;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::PostParams;
use kube::{Api, Client};

use crate::addresses::API_PORT;
use crate::cluster::audit::{self, AuditLog};
use crate::cluster::credentials::{Credentials, client_from};
use crate::cluster::kubeconfig::{Identity, kubeconfig};
use crate::cluster::pki::Authority;
use crate::cluster::relay::Relay;
use crate::net::namespace::Namespace;
use crate::process::Process;
use crate::programs;
use crate::run_dir::RunDir;
use crate::wait::wait_for;

/// How long an API server may take on a machine where six builds run as well.
pub(crate) const START_DEADLINE: Duration = Duration::from_secs(90);

/// One API server.
#[derive(Debug)]
pub struct ApiServer {
    process: Mutex<Option<Process>>,
    relay: Relay,
    authority: Arc<Authority>,
    settings: Settings,
    namespace: Arc<Namespace>,
    dir: Arc<RunDir>,
}

/// What differs between the guest cluster's and the Harvester side's.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub name: &'static str,
    pub address: Ipv4Addr,
    /// Where etcd listens, one URL or several.
    pub etcd: String,
    pub etcd_prefix: &'static str,
    pub service_ranges: &'static str,
    pub first_service: Ipv4Addr,
}

impl ApiServer {
    /// Makes it and starts it, without waiting for it: see [`ApiServer::wait_until_ready`].
    pub(crate) fn launch(settings: Settings, namespace: Arc<Namespace>, dir: Arc<RunDir>) -> Result<Self> {
        let authority = Arc::new(Authority::new(&format!("{}-ca", settings.name))?);
        let server = Self::new(authority, settings, namespace, dir)?;
        let authority = &server.authority;
        // system:masters: it also speaks to kubelets, for logs and exec.
        let kubelet_client = authority.issue("kube-apiserver-kubelet-client", &["system:masters"], &[], &[])?;
        let front_proxy = authority.issue("front-proxy", &[], &[], &[])?;
        let service_accounts = authority.issue("service-accounts", &[], &[], &[])?;
        for (name, pair) in [
            ("kubelet-client", &kubelet_client),
            ("front-proxy", &front_proxy),
            ("service-accounts", &service_accounts),
        ] {
            server.write(&format!("{name}.crt"), &pair.certificate_pem)?;
            server.write(&format!("{name}.key"), &pair.key_pem)?;
        }
        server.run()?;
        Ok(server)
    }

    /// One more of the same cluster, on another machine: with the same authority and keys. See [`ApiServer::launch`].
    pub(crate) fn launch_another(&self, settings: Settings, namespace: Arc<Namespace>) -> Result<Self> {
        let another = Self::new(Arc::clone(&self.authority), settings, namespace, Arc::clone(&self.dir))?;
        for name in ["kubelet-client", "front-proxy", "service-accounts"] {
            for file in [format!("{name}.crt"), format!("{name}.key")] {
                let path = self.file(&file);
                let content = std::fs::read(&path).with_context(|| format!("failed to read {}", path.display()))?;
                another.write(&file, content)?;
            }
        }
        another.run()?;
        Ok(another)
    }

    /// With a certificate for its own address; not started.
    fn new(authority: Arc<Authority>, settings: Settings, namespace: Arc<Namespace>, dir: Arc<RunDir>) -> Result<Self> {
        let loopback = IpAddr::from(Ipv4Addr::LOCALHOST);
        let pair = authority.issue(
            "kube-apiserver",
            &[],
            &[settings.address.into(), loopback, settings.first_service.into()],
            &[
                "localhost",
                "kubernetes",
                "kubernetes.default",
                "kubernetes.default.svc",
                "kubernetes.default.svc.cluster.local",
                crate::addresses::HARVESTER_NAME,
            ],
        )?;
        let relay = Relay::start(&namespace, (settings.address, API_PORT).into())?;
        let server = Self { process: Mutex::new(None), relay, authority, settings, namespace, dir };
        server.write("ca.crt", server.authority.certificate_pem())?;
        server.write("server.crt", &pair.certificate_pem)?;
        server.write("server.key", &pair.key_pem)?;
        server.write("audit-policy.json", audit::POLICY)?;
        Ok(server)
    }

    /// Starts it again after [`ApiServer::kill`] and waits until it is ready.
    pub async fn start(&self) -> Result<()> {
        self.run()?;
        self.wait_until_ready().await
    }

    fn run(&self) -> Result<()> {
        let file = |name: &str| self.file(name).display().to_string();
        let settings = &self.settings;
        let mut command = Command::new(programs::tool("kube-apiserver")?);
        let (variable, value) = programs::LESS_COLLECTING;
        command
            .env(variable, value)
            .arg(format!("--etcd-servers={}", settings.etcd))
            .arg(format!("--etcd-prefix={}", settings.etcd_prefix))
            .arg(format!("--advertise-address={}", settings.address))
            .arg(format!("--secure-port={API_PORT}"))
            .arg(format!("--service-cluster-ip-range={}", settings.service_ranges))
            .arg(format!("--client-ca-file={}", file("ca.crt")))
            .arg(format!("--tls-cert-file={}", file("server.crt")))
            .arg(format!("--tls-private-key-file={}", file("server.key")))
            .arg("--service-account-issuer=https://kubernetes.default.svc.cluster.local")
            .arg(format!("--service-account-key-file={}", file("service-accounts.crt")))
            .arg(format!("--service-account-signing-key-file={}", file("service-accounts.key")))
            .args([
                "--authorization-mode=Node,RBAC",
                "--enable-admission-plugins=NodeRestriction",
                "--allow-privileged=true",
            ])
            .arg(format!("--kubelet-certificate-authority={}", file("ca.crt")))
            .arg(format!("--kubelet-client-certificate={}", file("kubelet-client.crt")))
            .arg(format!("--kubelet-client-key={}", file("kubelet-client.key")))
            .arg("--kubelet-preferred-address-types=InternalIP")
            .arg(format!("--requestheader-client-ca-file={}", file("ca.crt")))
            .args(["--requestheader-allowed-names=front-proxy", "--requestheader-username-headers=X-Remote-User"])
            .args([
                "--requestheader-group-headers=X-Remote-Group",
                "--requestheader-extra-headers-prefix=X-Remote-Extra-",
            ])
            .arg(format!("--proxy-client-cert-file={}", file("front-proxy.crt")))
            .arg(format!("--proxy-client-key-file={}", file("front-proxy.key")))
            .arg("--enable-aggregator-routing=true")
            .arg(format!("--audit-policy-file={}", file("audit-policy.json")))
            .arg(format!("--audit-log-path={}", file("audit.log")))
            // Never rotated: tests remember places in the file.
            .args(["--audit-log-mode=blocking", "--audit-log-maxsize=100000", "--profiling=false", "--v=1"]);
        *self.slot() = Some(self.namespace.spawn(settings.name, command)?);
        Ok(())
    }

    /// True from its start until it is killed.
    pub(crate) fn is_on(&self) -> bool {
        self.slot().is_some()
    }

    /// Ends it without a word.
    pub fn kill(&self) {
        drop(self.slot().take());
    }

    /// Freezes it: connections stay open, requests queue up, nobody answers.
    pub fn pause(&self) -> Result<()> {
        self.with(Process::pause)
    }

    /// Lets it go on, with all that queued up.
    pub fn resume(&self) -> Result<()> {
        self.with(Process::resume)
    }

    fn check(&self) -> Result<()> {
        self.with(Process::check)
    }

    fn with(&self, act: impl FnOnce(&Process) -> Result<()>) -> Result<()> {
        act(self.slot().as_ref().with_context(|| format!("{} is not running", self.settings.name))?)
    }

    /// Waits until it answers `/readyz`, which includes the built-in roles.
    pub(crate) async fn wait_until_ready(&self) -> Result<()> {
        let client = self.client().await?;
        wait_for(&format!("{} to be ready", self.settings.name), START_DEADLINE, || async {
            self.check().map_err(|error| error.to_string())?;
            let request =
                http::Request::get("/readyz").body(Vec::new()).expect("a constant path makes a valid request");
            match client.request_text(request).await {
                Ok(text) if text == "ok" => Ok(()),
                Ok(text) => Err(not_ready(&text)),
                Err(kube::Error::Api(status)) => Err(not_ready(&status.message)),
                Err(error) => Err(error.to_string()),
            }
        })
        .await
    }

    /// A client with all rights. Made anew each time: a client's worker belongs to the runtime of the test that made
    /// it.
    pub(crate) async fn client(&self) -> Result<Client> {
        let admin = self.admin()?;
        client_from(&admin.outside).await
    }

    /// The administrator's kubeconfigs.
    pub(crate) fn admin(&self) -> Result<Credentials> {
        let existing = self.credentials_named("admin");
        if existing.inside.exists() && existing.outside.exists() {
            Ok(existing)
        } else {
            self.user("admin", "admin", &["system:masters"])
        }
    }

    /// Kubeconfigs with a client certificate; `file` names them.
    pub(crate) fn user(&self, file: &str, user: &str, groups: &[&str]) -> Result<Credentials> {
        let pair = self.authority.issue(user, groups, &[], &[])?;
        self.credentials(file, &Identity::Certificate(pair), None)
    }

    /// Kubeconfigs for any identity.
    pub(crate) fn credentials(&self, file: &str, identity: &Identity, namespace: Option<&str>) -> Result<Credentials> {
        let credentials = self.credentials_named(file);
        for (path, server) in [(&credentials.inside, self.url_inside()), (&credentials.outside, self.url_outside())] {
            let name = path.file_name().expect("made of a file name").to_string_lossy().into_owned();
            self.write(&name, kubeconfig(&server, self.authority.certificate_pem(), identity, namespace))?;
        }
        Ok(credentials)
    }

    /// Kubeconfigs with a token of a ServiceAccount, which is made if it does not exist. What it may do is for the
    /// caller to bind.
    pub(crate) async fn service_account(&self, namespace: &str, name: &str) -> Result<Credentials> {
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
        self.credentials(&format!("{namespace}_{name}"), &Identity::Token(token), None)
    }

    pub(crate) fn url_inside(&self) -> String {
        format!("https://{}:{API_PORT}", self.settings.address)
    }

    pub(crate) fn url_outside(&self) -> String {
        format!("https://{}", self.relay.address())
    }

    pub(crate) fn authority(&self) -> &Authority {
        &self.authority
    }

    pub(crate) fn namespace(&self) -> &Arc<Namespace> {
        &self.namespace
    }

    pub(crate) fn audit(&self) -> AuditLog {
        AuditLog::new(vec![self.audit_file()])
    }

    pub(crate) fn audit_file(&self) -> PathBuf {
        self.file("audit.log")
    }

    /// Path of a file of this server.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(self.settings.name).join(name)
    }

    pub(crate) fn write(&self, name: &str, content: impl AsRef<[u8]>) -> Result<PathBuf> {
        self.dir.write(&format!("{}/{name}", self.settings.name), content)
    }

    fn credentials_named(&self, file: &str) -> Credentials {
        Credentials {
            inside: self.file(&format!("{file}.inside.kubeconfig")),
            outside: self.file(&format!("{file}.kubeconfig")),
        }
    }

    fn slot(&self) -> parking_lot::MutexGuard<'_, Option<Process>> {
        self.process.lock()
    }
}

/// What an API server that is not ready yet waits for. Its answer lists what is ready, too, and that looks like an
/// error in a line of its own.
fn not_ready(answer: &str) -> String {
    let failing: Vec<&str> = answer
        .lines()
        .filter_map(|line| line.strip_prefix("[-]"))
        .map(|line| line.split_once(" failed").map_or(line, |(check, _)| check))
        .collect();
    let ready = || answer.lines().any(|line| line.starts_with("[+]"));
    match failing.as_slice() {
        [] if answer.is_empty() || ready() => "the API server is not ready yet".to_owned(),
        [] => answer.to_owned(),
        failing => format!("the API server is not ready yet: {}", failing.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_is_not_ready_says_what_it_waits_for_and_not_what_is_ready() {
        let answer = "[+]ping ok\n[-]informer-sync failed: reason withheld\n[+]etcd ok\n\
                      [-]poststarthook/rbac/bootstrap-roles failed: reason withheld\nreadyz check failed";
        let told = "the API server is not ready yet: informer-sync, poststarthook/rbac/bootstrap-roles";
        assert_eq!(not_ready(answer), told);
        assert_eq!(not_ready("[+]ping ok"), "the API server is not ready yet");
        assert_eq!(not_ready("forbidden"), "forbidden");
    }
}
