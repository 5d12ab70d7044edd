//! The bench: a cable with a server at one end and the node under test at the other.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use announcer::api_time::ApiTime;
use announcer::kernel::NetlinkKernel;
use announcer::metrics::Metrics;
use announcer::node::{self, Liveness, Parts};
use announcer::writer::Writer;
use announcer_core::Config;
use announcer_core::class::ClassRules;
use announcer_core::engine::{Engine, Input};
use announcer_core::ownership::LeaseState;
use announcer_core::view::{ServiceKey, ServiceView};
use http::{Method, Request, Response};
use k8s_openapi::api::core::v1::Service;
use kube::Client;
use kube::client::Body;
use runtime::events::{Entry, Recorder};
use runtime::work_queue::QueueMetrics;
use rustix::thread::LinkNameSpaceType;
use serde_json::{Value, json};
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::fresh_namespace::{leave_for_a_fresh_namespace, shell};

/// Long enough for a loaded machine; a passing test waits for events, not for this.
pub const PATIENCE: Duration = Duration::from_secs(40);

/// A process that ends with its owner.
pub struct Running(pub Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The Services of the cluster, as the writer sees them.
#[derive(Clone, Default)]
pub struct Api {
    services: Arc<Mutex<BTreeMap<String, Value>>>,
    pub writes: Arc<Mutex<Vec<String>>>,
    changed: Arc<Mutex<Option<mpsc::UnboundedSender<Input>>>>,
}

impl Api {
    fn client(&self) -> Client {
        let api = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let api = api.clone();
            async move { Ok::<_, std::convert::Infallible>(api.answer(request).await) }
        });
        Client::new(service, "default")
    }

    async fn answer(&self, request: Request<Body>) -> Response<Body> {
        let path = request.uri().path().trim_start_matches("/api/v1/namespaces/default/services/").to_owned();
        let (name, status) = path.strip_suffix("/status").map_or((path.as_str(), false), |name| (name, true));
        let method = request.method().clone();
        let body = request.into_body().collect_bytes().await.expect("a request body");
        let mut services = self.services.lock();
        let Some(old) = services.get(name).cloned() else {
            return respond(
                404,
                &json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "no such Service",
                    "reason": "NotFound", "code": 404}),
            );
        };
        if method == Method::GET {
            return respond(200, &old);
        }
        let mut new: Value = serde_json::from_slice(&body).expect("JSON");
        if new["metadata"]["resourceVersion"] != old["metadata"]["resourceVersion"] {
            return respond(
                409,
                &json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "conflict",
                    "reason": "Conflict", "code": 409}),
            );
        }
        // As the API server: each endpoint changes its own part only.
        let mut stored = old.clone();
        if status {
            stored["status"] = new["status"].take();
        } else {
            stored["metadata"] = new["metadata"].take();
            stored["spec"] = new["spec"].take();
        }
        self.writes.lock().push(format!("{name}{}", if status { "/status" } else { "" }));
        self.store(&mut services, name, stored.clone());
        respond(200, &services[name])
    }

    fn store(&self, services: &mut BTreeMap<String, Value>, name: &str, mut object: Value) {
        let version =
            object["metadata"]["resourceVersion"].as_str().and_then(|text| text.parse::<u64>().ok()).unwrap_or(0) + 1;
        object["metadata"]["resourceVersion"] = json!(version.to_string());
        services.insert(name.to_owned(), object.clone());
        if let Some(inputs) = &*self.changed.lock() {
            let _ = inputs.send(input(name, Some(object)));
        }
    }

    pub fn get(&self, name: &str) -> Value {
        self.services.lock().get(name).cloned().unwrap_or_default()
    }

    /// How many Services have an address that clients are told.
    pub fn count_published(&self) -> usize {
        let services = self.services.lock();
        services.values().filter(|object| object["status"]["loadBalancer"]["ingress"][0]["ip"].is_string()).count()
    }

    pub fn annotation(&self, name: &str, key: &str) -> String {
        self.get(name)["metadata"]["annotations"][key].as_str().unwrap_or_default().to_owned()
    }

    /// The addresses that clients are told.
    pub fn published(&self, name: &str) -> Vec<String> {
        let ingress = self.get(name)["status"]["loadBalancer"]["ingress"].as_array().cloned().unwrap_or_default();
        ingress.iter().filter_map(|entry| entry["ip"].as_str().map(str::to_owned)).collect()
    }
}

fn input(name: &str, object: Option<Value>) -> Input {
    let view = object
        .and_then(|object| {
            ServiceView::of(&serde_json::from_value::<Service>(object).expect("a Service"), &ClassRules::default())
        })
        .map(Box::new);
    Input::Service(ServiceKey::new("default", name), view)
}

fn respond(code: u16, body: &Value) -> Response<Body> {
    Response::builder().status(code).body(Body::from(body.to_string().into_bytes())).expect("a response")
}

/// The process under test: as many lives as a test wants.
struct NodeProcess {
    inputs: mpsc::UnboundedSender<Input>,
    node: JoinHandle<()>,
    others: Vec<JoinHandle<()>>,
}

/// Server, cable, node.
pub struct Bench {
    files: tempfile::TempDir,
    keeper: Running,
    dnsmasq: Option<Running>,
    pub api: Api,
    life: Option<NodeProcess>,
    events: Arc<Mutex<Vec<Entry>>>,
    lease: LeaseState,
}

/// Whether a test may be left out for what this machine lacks. `HCP_REQUIRE_ROOT=1` says that it has everything.
pub fn may_skip() -> bool {
    std::env::var_os("HCP_REQUIRE_ROOT").is_none_or(|value| value != "1")
}

/// Runs a test on a thread of its own, in a fresh network namespace whose sockets all belong to it.
pub fn on_a_bench<T: AsyncFnOnce(&mut Bench) + Send + 'static>(test: T) {
    let has = |program: &str| {
        Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok()
    };
    if !rustix::process::geteuid().is_root() || !has("dnsmasq") || !has("ip") {
        assert!(may_skip(), "HCP_REQUIRE_ROOT=1, but this is not root or there is no dnsmasq or iproute2");
        eprintln!("SKIPPED: needs root, dnsmasq and iproute2");
        return;
    }
    let outcome = std::thread::spawn(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let mut bench = Bench::new();
            test(&mut bench).await;
            bench.kill().await;
        });
    })
    .join();
    if let Err(panic) = outcome {
        std::panic::resume_unwind(panic);
    }
}

impl Bench {
    fn new() -> Self {
        let keeper = std::thread::spawn(|| {
            leave_for_a_fresh_namespace();
            Running(Command::new("sleep").arg("600").spawn().expect("sleep"))
        })
        .join()
        .expect("a namespace for the server");
        leave_for_a_fresh_namespace();
        shell("ip", "link set lo up");
        shell("ip", &format!("link add eth0 type veth peer name s0 netns {}", keeper.0.id()));
        shell("ip", "link set eth0 up");
        shell("ip", "addr add 10.77.0.2/24 dev eth0");
        let bench = Self {
            files: tempfile::tempdir().expect("a directory"),
            keeper,
            dnsmasq: None,
            api: Api::default(),
            life: None,
            events: Arc::default(),
            lease: LeaseState::Held { confirmed: true },
        };
        bench.at_server("ip", "link set lo up");
        bench.at_server("ip", "link set s0 up");
        bench.at_server("ip", "addr add 10.77.0.1/24 dev s0");
        shell("ip", "route add default via 10.77.0.1");
        bench
    }

    /// Runs a program at the other end of the cable.
    pub fn at_server(&self, program: &str, arguments: &str) -> String {
        shell("nsenter", &format!("--net=/proc/{}/ns/net {program} {arguments}", self.keeper.0.id()))
    }

    /// What the other end knows of `address` after it has sent something there.
    pub fn neighbour(&self, address: &str) -> String {
        let _ = Command::new("nsenter")
            .arg(format!("--net=/proc/{}/ns/net", self.keeper.0.id()))
            .args(["bash", "-c", &format!("echo x > /dev/udp/{address}/9")])
            .stderr(Stdio::null())
            .status();
        self.at_server("ip", &format!("neigh show {address}"))
    }

    pub fn serve(&mut self, options: &str) {
        let log = fs::File::create(self.files.path().join("log")).expect("a log");
        let dnsmasq = Command::new("nsenter")
            .arg(format!("--net=/proc/{}/ns/net", self.keeper.0.id()))
            .args(["dnsmasq", "--keep-in-foreground", "--log-facility=-", "--log-dhcp", "--conf-file=/dev/null"])
            .args(["--port=0", "--interface=s0", "--bind-interfaces", "--no-ping", "--user=root", "--pid-file"])
            .arg(format!("--dhcp-leasefile={}", self.lease_file().display()))
            .args(options.split_whitespace())
            .stderr(log)
            .spawn()
            .expect("dnsmasq");
        self.dnsmasq = Some(Running(dnsmasq));
    }

    /// Does something in the namespace at the other end of the cable.
    pub fn on_the_other_end<T: Send>(&self, act: impl FnOnce() -> T + Send) -> T {
        let namespace = fs::File::open(format!("/proc/{}/ns/net", self.keeper.0.id())).expect("its namespace");
        std::thread::scope(|scope| {
            let there = scope.spawn(|| {
                rustix::thread::move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))
                    .expect("root may go there");
                act()
            });
            there.join().expect("it does not panic")
        })
    }

    /// The server ends and forgets everything.
    pub fn forget(&mut self) {
        self.dnsmasq = None;
        let _ = fs::remove_file(self.lease_file());
    }

    fn lease_file(&self) -> PathBuf {
        self.files.path().join("leases")
    }

    /// What the server has leased.
    pub fn leases(&self) -> String {
        fs::read_to_string(self.lease_file()).unwrap_or_default()
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.files.path().join("log")).unwrap_or_default()
    }

    /// A Service as a user makes it. Its UID starts with its name.
    pub fn create(&self, name: &str, annotations: &[(&str, &str)]) {
        let annotations: BTreeMap<&str, &str> = annotations.iter().copied().collect();
        let object = json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": {"namespace": "default", "name": name, "uid": uid(name), "annotations": annotations},
            "spec": {"type": "LoadBalancer", "ports": [{"port": 80, "protocol": "TCP"}]},
        });
        let mut services = self.api.services.lock();
        self.api.store(&mut services, name, object);
    }

    /// A user changes an annotation.
    pub fn annotate(&self, name: &str, key: &str, value: &str) {
        let mut object = self.api.get(name);
        object["metadata"]["annotations"][key] = json!(value);
        let mut services = self.api.services.lock();
        self.api.store(&mut services, name, object);
    }

    pub fn delete(&self, name: &str) {
        self.api.services.lock().remove(name);
        if let Some(life) = &self.life {
            let _ = life.inputs.send(input(name, None));
        }
    }

    /// Starts the process, with all that the API has.
    pub fn start(&mut self) {
        self.start_without_api();
        self.sync(self.lease.clone());
    }

    /// The API is there, and says this of the Lease.
    pub fn sync(&mut self, lease: LeaseState) {
        let sender = self.life.as_ref().expect("started").inputs.clone();
        for (name, object) in self.api.services.lock().iter() {
            let _ = sender.send(input(name, Some(object.clone())));
        }
        let _ = sender.send(Input::Synced);
        let _ = sender.send(Input::Lease(lease));
        *self.api.changed.lock() = Some(sender);
    }

    /// Starts the process while the API is away.
    pub fn start_without_api(&mut self) {
        let config = Config::from_env_and_args([("election_mode".into(), "global".into())], [], "node-1")
            .expect("the default configuration");
        let (netlink, connection) = l2::Netlink::open().expect("netlink");
        let (recorder, mut entries) = Recorder::to_channel("test");
        let events = Arc::clone(&self.events);
        let (sender, receiver) = mpsc::unbounded_channel();
        let changed = Arc::new(Notify::new());
        let mut registry = prometheus_client::registry::Registry::default();
        let writer = Writer::new(self.api.client(), QueueMetrics::default(), sender.clone());
        let parts = Parts {
            engine: Engine::new(Instant::now(), config),
            kernel: NetlinkKernel::new(netlink, ApiTime::default()),
            writer: writer.clone(),
            recorder,
            metrics: Arc::new(Metrics::register(&mut registry, "node-1", "lock", "0")),
            liveness: Arc::new(Liveness::default()),
            release: CancellationToken::new(),
            campaigns: mpsc::unbounded_channel().0,
            swaps: mpsc::unbounded_channel().0,
            cards: mpsc::unbounded_channel().0,
            network: Arc::clone(&changed),
            api_time: ApiTime::default(),
            inputs: (sender.clone(), receiver),
        };
        let others = vec![
            tokio::spawn(connection),
            tokio::spawn(async move {
                while let Some(entry) = entries.recv().await {
                    events.lock().push(entry);
                }
            }),
            tokio::spawn(async move {
                let _ = node::watch_network(changed).await;
            }),
            tokio::spawn(writer.run(CancellationToken::new())),
        ];
        self.life = Some(NodeProcess { inputs: sender, node: tokio::spawn(node::run(parts)), others });
    }

    pub fn feed(&self, input: Input) {
        let _ = self.life.as_ref().expect("started").inputs.send(input);
    }

    /// Ends the process as SIGKILL does: nothing is cleaned up.
    pub async fn kill(&mut self) {
        *self.api.changed.lock() = None;
        if let Some(life) = self.life.take() {
            life.node.abort();
            let _ = life.node.await;
            for other in life.others {
                other.abort();
                let _ = other.await;
            }
        }
    }

    /// Waits for the process to end by itself.
    pub async fn wait_for_exit(&mut self) {
        let life = self.life.take().expect("started");
        tokio::time::timeout(PATIENCE, life.node).await.expect("it ends in time").expect("it does not panic");
        life.others.iter().for_each(JoinHandle::abort);
    }

    /// `interface address/prefix` of everything that is set with a deadline.
    #[allow(clippy::unused_self, reason = "the namespace is that of the bench")]
    pub fn vips(&self) -> Vec<String> {
        let text = shell("ip", "-o addr show");
        text.lines()
            .filter(|line| line.contains("deprecated"))
            .filter_map(|line| {
                let words: Vec<&str> = line.split_whitespace().collect();
                Some(format!("{} {}", words.get(1)?, words.get(3)?))
            })
            .collect()
    }

    pub fn reasons(&self) -> Vec<String> {
        self.events.lock().iter().map(|entry| entry.reason.clone()).collect()
    }

    pub fn told(&self, reason: &str) -> Option<String> {
        self.events.lock().iter().rev().find(|entry| entry.reason == reason).map(|entry| entry.message.clone())
    }

    /// Waits until `condition` holds.
    pub async fn eventually(&self, what: &str, condition: impl Fn(&Self) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !condition(self) {
            assert!(
                Instant::now() < deadline,
                "not so within {PATIENCE:?}: {what}\nVIPs: {:?}\nEvents: {:?}\nwrites: {:?}\nleases:\n{}\nlog of the \
                server:\n{}",
                self.vips(),
                self.events
                    .lock()
                    .iter()
                    .map(|entry| format!("{}: {}", entry.reason, entry.message))
                    .collect::<Vec<_>>(),
                self.api.writes.lock(),
                self.leases(),
                self.log()
            );
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Lets time pass, watching that `condition` holds all the time.
    pub async fn always(&self, what: &str, time: Duration, condition: impl Fn(&Self) -> bool) {
        let end = Instant::now() + time;
        while Instant::now() < end {
            assert!(condition(self), "not so: {what}; VIPs: {:?}", self.vips());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

/// A UID that shows whose it is: its first eight digits name the macvlan.
pub fn uid(name: &str) -> String {
    let mut digits = String::new();
    for byte in name.bytes().take(4) {
        let _ = write!(digits, "{byte:02x}");
    }
    format!("{digits:0<8}-0000-0000-0000-000000000000")
}

pub fn macvlan(name: &str) -> String {
    format!("vip-{}", &uid(name)[..8])
}
