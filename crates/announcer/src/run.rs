//! The wiring: from a [`Config`] to a running announcer.

mod feeds;
#[cfg(test)]
mod freshness_tests;
mod modes;

use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use announcer_core::config::{ApiConfig, Config, ElectionMode};
use announcer_core::engine::{Engine, Input};
use kube::Client;
use l2::Netlink;
use l2::capabilities::{Capability, missing};
use l2::netlink::inet_conf_of_all;
use runtime::Product;
use runtime::client::{ApiMetrics, ClientError, Settings, Source, connect};
use runtime::events::Recorder;
use runtime::health::{Health, OnFailure};
use runtime::leader::{LeaderConfig, OnLoss, Timing};
use runtime::shutdown::Token;
use runtime::tasks::{TaskError, Tasks};
use runtime::work_queue::WorkQueueMetrics;
use tokio::sync::{Notify, mpsc};

use crate::api_time::ApiTime;
use crate::claim_keys::{self, KeysError};
use crate::clock;
use crate::keep::keep;
use crate::kernel::{NetlinkKernel, obstacles, strict_filter};
use crate::macvlan_probe;
use crate::membership::Membership;
use crate::metrics::Metrics;
use crate::node::{self, Liveness, Parts};
use crate::serving::serve;
use crate::swap::Swapper;
use crate::writer::Writer;

/// Name in Events, in `User-Agent` and in metrics.
const COMPONENT: &str = "harvester-announcer";
const NAMESPACE_FILE: &str = "/var/run/secrets/kubernetes.io/serviceaccount/namespace";
const ADMIN_KUBECONFIG: &str = "/etc/kubernetes/admin.conf";

/// Why the announcer cannot run.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The container lacks capabilities.
    #[error(
        "missing capabilities: {0}. The pod needs securityContext.capabilities.add [NET_ADMIN, NET_RAW] and has to run \
        as user 0: a process that is not root gets none of them"
    )]
    Capabilities(String),
    /// The capabilities cannot be read from the kernel.
    #[error("failed to read the capabilities of this process")]
    ReadCapabilities(#[source] std::io::Error),
    /// The configured directory has no usable keys of claims.
    #[error(transparent)]
    ClaimKeys(#[from] KeysError),
    /// A netlink socket cannot be opened.
    #[error("failed to prepare the network of this node")]
    Netlink(#[from] l2::netlink::NetlinkError),
    /// No client for the cluster can be made.
    #[error("failed to connect to the cluster")]
    Client(#[from] ClientError),
    /// A task failed.
    #[error(transparent)]
    Task(#[from] TaskError),
}

/// What most tasks need.
struct Shared<'a> {
    config: &'a Config,
    client: Client,
    /// Namespace of the Leases that do not belong to a Service.
    namespace: String,
    inputs: mpsc::UnboundedSender<Input>,
    /// The health checks, where each cache registers its own.
    health: Health,
}

/// Runs until `shutdown`, and ends in the order of `engine/stop.rs`. The loss of the Lease does not end it.
pub async fn run(mut config: Config, product: &Product, shutdown: Token) -> Result<(), Error> {
    greet(&config);
    check_capabilities()?;
    let claim_keys = config.claim_keys.as_deref().map(claim_keys::read_first).transpose()?;
    let (netlink, connection) = Netlink::open()?;
    warn_of_obstacles();

    let (registry, (metrics, api_metrics, queue_metrics)) = register_metrics(&config, product);
    let api_time = ApiTime::default();
    let settings = Settings::new("guest", product).metrics(&api_metrics).time(Arc::new(api_time.clone()));
    let (credentials, server) = (source(&config.api), config.api.server.as_deref());
    let (api, direct) = (credentials.load(server).await?, credentials.servers(server));
    let client = connect(api.clone(), &settings.clone().servers(direct.clone()))?;
    let namespace = lease_namespace(&config);
    let membership = Membership::new(&client, &namespace, &config.node_name, config.lease.duration);

    // The engine runs beyond `shutdown` until it has handed over. The tasks that it needs end with it.
    let everything = Token::new();
    let mut tasks = Tasks::new(everything.clone());
    let network = Arc::new(Notify::new());
    feeds::network(&mut tasks, Arc::clone(&network), netlink.clone(), connection);
    let kernel = NetlinkKernel::new(netlink.clone(), api_time.clone());
    let keeping = keep(config.clone(), &kernel, &network);
    let membership = tokio::select! {
        membership = settled(membership, &mut config, &netlink, &namespace) => membership,
        never = keeping => match never {},
    };

    let (recorder, events) = Recorder::new(client.clone(), COMPONENT);
    let events = tokio::spawn(events);
    let (inputs, received) = mpsc::unbounded_channel();
    let liveness = Arc::new(Liveness::default());

    let health = Health::new();
    let shared =
        Shared { config: &config, client: client.clone(), namespace, inputs: inputs.clone(), health: health.clone() };
    let writer = Writer::new(client.clone(), queue_metrics.queue("records"), inputs.clone());
    tasks.spawn("writer of Services", plain(writer.clone().run(everything.clone())));
    feeds::services(&mut tasks, &shared);
    feeds::claim_keys(&mut tasks, &shared, claim_keys);
    feeds::shutdown(&mut tasks, &inputs, shutdown);
    serve_health(&mut tasks, &config, &registry, &liveness, &health);

    let servers = feeds::api_servers(&mut tasks, &shared, direct);
    let swapper = Swapper::new(client, api, settings.retries(false), servers, inputs.clone());
    let modes::Requests { release, campaigns, swaps, cards } =
        modes::start(&mut tasks, &shared, &recorder, membership, swapper);

    let engine = Engine::new(clock::now(), config);
    let parts = Parts {
        engine,
        kernel,
        writer,
        recorder,
        metrics: Arc::new(metrics),
        liveness,
        release,
        campaigns,
        swaps,
        cards,
        network,
        api_time,
        inputs: (inputs, received),
    };
    tasks.spawn("engine", async move {
        node::run(parts).await;
        everything.cancel();
        Ok::<(), Infallible>(())
    });
    let result = tasks.run(Duration::from_secs(5)).await;
    // For the last Events: all recorders are gone by now, so the writer ends when its buffer is empty.
    let _ = tokio::time::timeout(Duration::from_secs(1), events).await;
    Ok(result?)
}

type Registered = (Metrics, ApiMetrics, WorkQueueMetrics);

fn register_metrics(config: &Config, product: &Product) -> (runtime::metrics::Metrics, Registered) {
    let registry = runtime::metrics::Metrics::new(product);
    let registered = registry.register(|registry| {
        let metrics = Metrics::register(registry, &config.node_name, &config.lease.name, product.version);
        (metrics, ApiMetrics::register(registry, product), WorkQueueMetrics::register(registry))
    });
    (registry, registered)
}

fn greet(config: &Config) {
    tracing::info!(node = config.node_name, mode = config.election_mode.as_str(), "the announcer starts");
    if !config.without_effect.is_empty() {
        tracing::info!("these settings have no effect in this announcer: {}", config.without_effect.join(", "));
    }
}

/// Checks the capabilities of the process (decisions.md 2).
fn check_capabilities() -> Result<(), Error> {
    let missing = missing(&[Capability::NetAdmin, Capability::NetRaw]).map_err(Error::ReadCapabilities)?;
    if missing.is_empty() {
        return Ok(());
    }
    Err(Error::Capabilities(missing.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")))
}

/// Determines what this process may do, and what the kernel can do.
async fn settled(membership: Membership, config: &mut Config, netlink: &Netlink, namespace: &str) -> Membership {
    fall_back_without_rights(config, &membership, namespace).await;
    membership.without_macvlans(no_macvlans(netlink, config).await)
}

async fn no_macvlans(netlink: &Netlink, config: &Config) -> Option<String> {
    let why = macvlan_probe::missing(netlink, config).await;
    if let Some(error) = &why {
        tracing::warn!(
            error,
            "this node cannot have macvlans, so no Service gets an address by DHCP here; load the kernel module macvlan"
        );
    }
    why
}

fn warn_of_obstacles() {
    match inet_conf_of_all() {
        Ok(all) => {
            for obstacle in obstacles(all) {
                tracing::warn!("{obstacle}");
            }
            if let Some(remark) = strict_filter(all) {
                tracing::info!("{remark}");
            }
        }
        Err(error) => tracing::warn!(%error, "the announcer cannot check the kernel settings net.ipv4.conf.all"),
    }
}

async fn fall_back_without_rights(config: &mut Config, membership: &Membership, namespace: &str) {
    if config.election_mode == ElectionMode::Node && !membership.is_allowed().await {
        tracing::warn!(
            namespace,
            "the announcer has no right to list and write Leases, which election_mode node needs (get, list, watch, \
            create, update on leases); it falls back to election_mode global"
        );
        config.election_mode = ElectionMode::Global;
    }
}

fn serve_health(
    tasks: &mut Tasks,
    config: &Config,
    registry: &runtime::metrics::Metrics,
    liveness: &Arc<Liveness>,
    health: &Health,
) {
    let (beat, known) = (Arc::clone(liveness), Arc::clone(liveness));
    health.register("engine", OnFailure::Restart, Arc::new(move || beat.alive()));
    health.register("ownership", OnFailure::NotReady, Arc::new(move || known.ready()));
    for listen in config.metrics.into_iter().chain(config.health) {
        let server = serve(listen, health.clone(), registry.clone(), tasks.stop());
        tasks.spawn("health and metrics server", server);
    }
}

/// The credentials (kube-vip spec 1.2): the configured file, otherwise kubeadm's, the user's, or the service account.
pub(crate) fn source(api: &ApiConfig) -> Source {
    let home = api.home.as_ref().map(|home| home.join(".kube/config"));
    let default = [Some(PathBuf::from(ADMIN_KUBECONFIG)), home].into_iter().flatten().find(|path| path.is_file());
    api.kubeconfig.clone().or(default).map_or(Source::InCluster, Source::File)
}

/// The namespace of the Leases: the configured one, otherwise that of the pod.
pub(crate) fn lease_namespace(config: &Config) -> String {
    let lease = &config.lease;
    lease.namespace.clone().unwrap_or_else(|| pod_namespace(Path::new(NAMESPACE_FILE), &lease.fallback_namespace))
}

fn pod_namespace(file: &Path, fallback: &str) -> String {
    let namespace = std::fs::read_to_string(file).unwrap_or_default().trim().to_owned();
    if namespace.is_empty() { fallback.to_owned() } else { namespace }
}

/// The settings of an election for a Lease in `namespace`: identity and timing.
pub fn leader_config(config: &Config, namespace: &str) -> LeaderConfig {
    LeaderConfig {
        namespace: namespace.to_owned(),
        name: config.lease.name.clone(),
        identity: config.node_name.clone(),
        component: COMPONENT.to_owned(),
        timing: Timing {
            lease_duration: config.lease.duration,
            renew_deadline: config.lease.renew_deadline,
            retry_period: config.lease.retry_period,
        },
        on_loss: OnLoss::KeepTrying,
        watch: true,
    }
}

/// Wraps a task that cannot fail.
async fn plain(task: impl Future<Output = ()>) -> Result<(), Infallible> {
    task.await;
    Ok(())
}

/// Wraps a task that is dropped at `stop`.
async fn until(stop: Token, task: impl Future<Output = ()>) -> Result<(), Infallible> {
    tokio::select! {
        () = stop.cancelled() => {}
        () = task => {}
    }
    Ok(())
}

/// The same for a task that may end before `stop` without a failure.
async fn at_most_until(stop: Token, task: impl Future<Output = ()>) -> Result<(), Infallible> {
    tokio::select! {
        () = stop.cancelled() => {}
        () = task => stop.cancelled().await,
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_explicit_kubeconfig_wins() {
        let home = tempfile::tempdir().unwrap();
        std::fs::create_dir(home.path().join(".kube")).unwrap();
        std::fs::write(home.path().join(".kube/config"), "").unwrap();
        let api = ApiConfig {
            kubeconfig: Some("/explicit".into()),
            home: Some(home.path().to_owned()),
            ..ApiConfig::default()
        };
        assert_eq!(source(&api), Source::File("/explicit".into()));
        // Otherwise a file that is there is taken; that of the machine comes first.
        let found = source(&ApiConfig { kubeconfig: None, ..api });
        let files = [PathBuf::from(ADMIN_KUBECONFIG), home.path().join(".kube/config")].map(Source::File);
        assert!(files.contains(&found), "{found:?}");
    }

    #[test]
    fn the_lease_is_in_the_namespace_of_the_pod() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("namespace");
        assert_eq!(pod_namespace(&file, "kube-system"), "kube-system");
        for (content, namespace) in [("guests\n", "guests"), ("", "kube-system"), ("\n", "kube-system")] {
            std::fs::write(&file, content).unwrap();
            assert_eq!(pod_namespace(&file, "kube-system"), namespace, "{content:?}");
        }
    }

    #[test]
    fn the_default_timings_are_valid_for_the_election() {
        let config = Config::from_env_and_args([], [], "Node-1").unwrap();
        let leader = leader_config(&config, "kube-system");
        assert_eq!(leader.timing.validate(), Ok(()));
        assert_eq!(leader.identity, "node-1");
        assert_eq!(leader.on_loss, OnLoss::KeepTrying);
    }
}
