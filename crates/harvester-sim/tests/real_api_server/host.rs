//! One etcd, one API server and one stand-in for all tests of this file, on random ports of the loopback interface,
//! gone with the test process. Tests keep apart by namespace.

use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use harvester_sim::host::world::Profile;
use harvester_sim::install::{Install, Network, install};
use harvester_sim::sim::{ApiListen, Listen, Sim, SimConfig};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use serde_json::json;

/// What tests need to know.
pub struct Host {
    /// `https://127.0.0.1:…`
    pub server: String,
    /// Authority of the API server.
    pub ca_pem: String,
    /// The same API through the proxy that has the faults of API servers.
    pub api: String,
    /// `http://127.0.0.1:…` of the control endpoint, without the scheme.
    pub control: String,
}

/// Namespaces that the tests use; each exists with a network `<name>/mgmt`.
pub const NAMESPACES: [&str; 13] = [
    "booking", "refusals", "rights", "agents", "faults", "repair", "byhand", "teardown", "pace", "busy", "stale",
    "hangs", "forgets",
];

/// Whether the programs are there. Without them it says so, and fails if `HCP_REQUIRE_ROOT=1` says that this machine
/// has everything.
pub fn available() -> bool {
    tools().is_some() || {
        let may_skip = std::env::var_os("HCP_REQUIRE_ROOT").is_none_or(|value| value != "1");
        assert!(may_skip, "HCP_REQUIRE_ROOT=1, but etcd and kube-apiserver are missing, run dev/tools.sh");
        eprintln!("SKIPPED: etcd and kube-apiserver are missing, run dev/tools.sh");
        false
    }
}

/// The host, started by whichever test comes first.
pub fn host() -> &'static Host {
    static HOST: OnceLock<Result<Host, String>> = OnceLock::new();
    get(&HOST, "fast", Profile::Fast)
}

/// Another one, with the pace of a real host.
pub fn real_host() -> &'static Host {
    static HOST: OnceLock<Result<Host, String>> = OnceLock::new();
    get(&HOST, "real", Profile::Real)
}

fn get(host: &'static OnceLock<Result<Host, String>>, name: &'static str, profile: Profile) -> &'static Host {
    let host = host.get_or_init(|| {
        let (tell, told) = std::sync::mpsc::channel();
        // The processes die with the thread that starts them, so that thread has to live as long as the process.
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Runtime::new().expect("a runtime");
            runtime.block_on(async {
                let directory = fresh_directory(name).expect("a directory");
                let (host, _sim) = match start(&directory, profile).await {
                    Ok((host, sim)) => (Ok(host), Some(sim)),
                    Err(why) => (Err(why), None),
                };
                tell.send(host).expect("somebody waits");
                std::future::pending::<()>().await;
            });
        });
        told.recv().unwrap_or_else(|_| Err("the starting thread panicked".to_owned()))
    });
    host.as_ref().unwrap_or_else(|why| panic!("no host: {why}"))
}

impl Host {
    /// A client of the administrator, for the runtime of the calling test.
    pub async fn client(&self) -> Client {
        client(&self.server, &self.ca_pem).await
    }

    /// A client with a cloud-config.
    pub async fn client_of(cloud_config: &str) -> Client {
        let config =
            harvester_api::cloud_config::CloudConfig::parse(cloud_config.as_bytes()).expect("a good cloud-config");
        connect(config.kubeconfig(&config.endpoints[0])).await
    }
}

fn tools() -> Option<PathBuf> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../dev/tools.sh");
    let output = Command::new(script).arg("--print").output().ok()?;
    let directory = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| PathBuf::from(directory.trim()))
}

/// Of this process. Nobody can tidy up after the processes have been killed, so the next run does.
fn fresh_directory(name: &str) -> io::Result<PathBuf> {
    let parent = Path::new(env!("CARGO_TARGET_TMPDIR")).join("harvester-sim");
    fs::create_dir_all(&parent)?;
    for entry in fs::read_dir(&parent)? {
        let entry = entry?;
        if !Path::new("/proc").join(entry.file_name()).exists() {
            // The other host of this process may be as quick.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
    let own = parent.join(std::process::id().to_string()).join(name);
    fs::create_dir_all(&own)?;
    Ok(own)
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).expect("a free port").port()
}

fn spawn(directory: &Path, program: &Path, arguments: &[String]) -> Child {
    let name = program.file_name().expect("a program").to_string_lossy().into_owned();
    let log = fs::File::create(directory.join(format!("{name}.log"))).expect("a log file");
    Command::new("setpriv")
        .args(["--pdeathsig", "KILL", "--"])
        .arg(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(log.try_clone().expect("a second handle"))
        .stderr(log)
        .spawn()
        .unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// etcd and an API server, on ports that were free a moment ago: whoever else has got one of them by now makes this
/// begin again.
async fn servers(directory: &Path) -> (String, String, Client) {
    let ca_pem = certificates(directory).expect("certificates");
    for _ in 0..5 {
        let (mut processes, server) = spawn_servers(directory);
        let admin = client(&server, &ca_pem).await;
        let deadline = Instant::now() + Duration::from_mins(1);
        loop {
            let readyz = http::Request::get("/readyz").body(Vec::new()).expect("a request");
            let Err(error) = admin.request_text(readyz).await else { return (server, ca_pem, admin) };
            if processes.iter_mut().any(|process| process.try_wait().expect("our child").is_some()) {
                break;
            }
            assert!(Instant::now() < deadline, "API server not ready after 60 s: {error}\n{}", end_of_log(directory));
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        for process in &mut processes {
            let _ = process.kill();
            process.wait().expect("our child");
        }
    }
    panic!("etcd or the API server ended five times:\n{}", end_of_log(directory));
}

fn end_of_log(directory: &Path) -> String {
    let log = fs::read_to_string(directory.join("kube-apiserver.log")).unwrap_or_default();
    let tail: Vec<_> = log.lines().rev().take(20).collect();
    tail.into_iter().rev().collect::<Vec<_>>().join("\n")
}

fn spawn_servers(directory: &Path) -> ([Child; 2], String) {
    let tools = tools().expect("checked before");
    let [etcd, peer, api] = [free_port(), free_port(), free_port()];
    let file = |name: &str| directory.join(name).display().to_string();
    fs::write(file("tokens.csv"), "admin-token,admin,admin,system:masters\n").expect("a token file");
    // Of a former attempt, which has written there under another address.
    let _ = fs::remove_dir_all(file("etcd"));

    let url = format!("http://127.0.0.1:{etcd}");
    let peer = format!("http://127.0.0.1:{peer}");
    let arguments = [
        "--name=t".to_owned(),
        format!("--data-dir={}", file("etcd")),
        format!("--listen-client-urls={url}"),
        format!("--advertise-client-urls={url}"),
        format!("--listen-peer-urls={peer}"),
        format!("--initial-advertise-peer-urls={peer}"),
        format!("--initial-cluster=t={peer}"),
        "--unsafe-no-fsync".to_owned(),
        "--log-level=warn".to_owned(),
    ];
    let etcd = spawn(directory, &tools.join("etcd"), &arguments);
    let arguments = [
        format!("--etcd-servers={url}"),
        "--bind-address=127.0.0.1".to_owned(),
        "--advertise-address=10.255.255.1".to_owned(),
        format!("--secure-port={api}"),
        "--service-cluster-ip-range=10.96.0.0/16".to_owned(),
        format!("--tls-cert-file={}", file("server.crt")),
        format!("--tls-private-key-file={}", file("server.key")),
        format!("--token-auth-file={}", file("tokens.csv")),
        "--authorization-mode=RBAC".to_owned(),
        "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
        format!("--service-account-key-file={}", file("accounts.pub")),
        format!("--service-account-signing-key-file={}", file("accounts.key")),
        // There is no controller manager to make the default accounts.
        "--disable-admission-plugins=ServiceAccount".to_owned(),
        "--profiling=false".to_owned(),
    ];
    let api_server = spawn(directory, &tools.join("kube-apiserver"), &arguments);
    ([etcd, api_server], format!("https://127.0.0.1:{api}"))
}

async fn start(directory: &Path, profile: Profile) -> Result<(Host, Sim), String> {
    let (server, ca_pem, admin) = servers(directory).await;
    let own = |name: &&str| (*name).to_owned();
    let wanted = Install {
        namespaces: NAMESPACES.iter().map(own).collect(),
        project: Some("local:p-demo1".to_owned()),
        networks: NAMESPACES
            .iter()
            .map(|name| Network { namespace: own(name), name: "mgmt".to_owned(), vlan: 100 })
            .collect(),
    };
    install(&admin, &wanted).await.expect("installation");
    install(&admin, &wanted).await.expect("a second installation");
    let loopback = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let api = (loopback, free_port()).into();
    let own = |name: &str| fs::read_to_string(directory.join(name)).expect("made before");
    let config = SimConfig {
        api: Some(ApiListen {
            bind: api,
            certificate_pem: own("server.crt"),
            key_pem: own("server.key"),
            upstream: impatient(&server, &ca_pem, None).await,
        }),
        webhooks: Some(Listen::on(loopback)),
        subresources: Some(Listen::on(loopback)),
        control: Some((loopback, 0).into()),
        profile,
        ..SimConfig::default()
    };
    let sim = Sim::start(admin.clone(), admin, config).await.expect("the stand-in starts");
    let control = sim.control_address().expect("asked for").to_string();
    Ok((Host { server, ca_pem, api: format!("https://{api}"), control }, sim))
}

pub async fn client(server: &str, ca_pem: &str) -> Client {
    connect(kubeconfig(server, ca_pem, Some("admin-token"))).await
}

/// A client that shows each answer and tries nothing twice.
pub async fn impatient(server: &str, ca_pem: &str, token: Option<&str>) -> Client {
    let options = KubeConfigOptions::default();
    let config = Config::from_custom_kubeconfig(kubeconfig(server, ca_pem, token), &options).await;
    let mut config = config.expect("a usable kubeconfig");
    config.default_retry = false;
    Client::try_from(config).expect("a client")
}

fn kubeconfig(server: &str, ca_pem: &str, token: Option<&str>) -> Kubeconfig {
    use base64::Engine;
    let ca = base64::engine::general_purpose::STANDARD.encode(ca_pem);
    let kubeconfig = json!({
        "current-context": "c", "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": server, "certificate-authority-data": ca}}],
        "users": [{"name": "u", "user": {"token": token}}],
    });
    serde_json::from_value(kubeconfig).expect("a kubeconfig")
}

async fn connect(kubeconfig: Kubeconfig) -> Client {
    let config =
        Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.expect("a usable kubeconfig");
    Client::try_from(config).expect("a client")
}

/// Authority, server certificate and the key for service accounts; returns the authority.
fn certificates(directory: &Path) -> io::Result<String> {
    let mut ca = CertificateParams::new(Vec::new()).expect("no names");
    ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let ca_key = KeyPair::generate().expect("a key");
    let ca_pem = ca.self_signed(&ca_key).expect("a certificate").pem();
    let issuer = Issuer::new(ca, ca_key);
    let server_key = KeyPair::generate().expect("a key");
    let server = CertificateParams::new(vec!["127.0.0.1".to_owned()]).expect("an address");
    let server = server.signed_by(&server_key, &issuer).expect("a certificate");
    fs::write(directory.join("server.crt"), server.pem())?;
    fs::write(directory.join("server.key"), server_key.serialize_pem())?;
    let accounts_key = KeyPair::generate().expect("a key");
    fs::write(directory.join("accounts.key"), accounts_key.serialize_pem())?;
    fs::write(directory.join("accounts.pub"), accounts_key.public_key_pem())?;
    Ok(ca_pem)
}
