//! Wiring: from a [`Config`] to a running announcer.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Service;
use kube::{Api, Client};
use l2::Netlink;
use l2::capabilities::{Capability, missing};
use l2::netlink::inet_conf_of_all;
use runtime::Product;
use runtime::cache::Cache;
use runtime::client::{ApiMetrics, ClientError, Settings, Source, connect};
use runtime::events::Recorder;
use runtime::health::{Health, Matters};
use runtime::leader::{Election, LeaderConfig, OnLoss, Timing};
use runtime::reflect::Reflector;
use runtime::shutdown::Token;
use runtime::tasks::{TaskError, Tasks};
use runtime::work_queue::WorkQueueMetrics;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::clock;
use crate::config::{ApiConfig, Config, ElectionMode};
use crate::elections;
use crate::endpoints;
use crate::engine::{Engine, Input};
use crate::handover::{Successor, elect, feed_leadership};
use crate::membership::{self, Membership};
use crate::metrics::Metrics;
use crate::node::{self, Parts, Pulse};
use crate::record::Writer;
use crate::serving::serve;
use crate::swap::Swapper;
use crate::view::{ServiceKey, ServiceView};
use crate::wire::{NetlinkWire, obstacles};

/// Name in Events, in `User-Agent` and in metrics.
const COMPONENT: &str = "harvester-announcer";
pub(crate) const NAMESPACE_FILE: &str = "/var/run/secrets/kubernetes.io/serviceaccount/namespace";
const ADMIN_KUBECONFIG: &str = "/etc/kubernetes/admin.conf";

/// Why the announcer cannot run.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The container lacks rights.
    #[error(
        "missing capabilities: {0}. The pod needs securityContext.capabilities.add [NET_ADMIN, NET_RAW] and has to run as user 0: a process that is not root gets none of them"
    )]
    Capabilities(String),
    /// The kernel does not say what we may do.
    #[error("failed to read the capabilities of this process")]
    ReadCapabilities(#[source] std::io::Error),
    /// No netlink socket.
    #[error("failed to prepare the network of this node")]
    Netlink(#[from] l2::netlink::NetlinkError),
    /// No credentials.
    #[error("failed to connect to the cluster")]
    Client(#[from] ClientError),
    /// A task failed.
    #[error(transparent)]
    Task(#[from] TaskError),
}

/// Runs until `shutdown`, and ends in the order of `engine/stop.rs`. Losing the Lease never ends it.
pub async fn run(mut config: Config, product: &Product, shutdown: Token) -> Result<(), Error> {
    greet(&config);
    check_capabilities()?;
    let (netlink, connection) = Netlink::open()?;
    match inet_conf_of_all() {
        Ok(all) => obstacles(all).iter().for_each(|obstacle| tracing::warn!("{obstacle}")),
        Err(error) => tracing::warn!(%error, "cannot check the settings of all interfaces"),
    }

    let registry = runtime::metrics::Metrics::new(product);
    let (metrics, api_metrics, queue_metrics) = registry.register(|registry| {
        let metrics = Metrics::register(registry, &config.node_name, &config.lease.name, product.version);
        (metrics, ApiMetrics::register(registry, product), WorkQueueMetrics::register(registry))
    });
    let metrics = Arc::new(metrics);
    let source = source(&config.api);
    let settings = Settings::new("guest", product).metrics(&api_metrics);
    let api = source.load(config.api.server.as_deref()).await?;
    let client = connect(api.clone(), &settings)?;
    let namespace = config
        .lease
        .namespace
        .clone()
        .unwrap_or_else(|| pod_namespace(Path::new(NAMESPACE_FILE), &config.lease.fallback_namespace));

    let membership = Membership::new(&client, &namespace, &config.node_name, config.lease.duration);
    if config.election_mode == ElectionMode::Node && !membership.is_allowed().await {
        tracing::warn!(
            namespace,
            "no right to list and write Leases, which election_mode node needs (get, list, watch, create, update on leases): falling back to global"
        );
        config.election_mode = ElectionMode::Global;
    }

    // The engine outlives `shutdown` until it has handed over; everything it needs ends when it does.
    let everything = Token::new();
    let mut tasks = Tasks::new(everything.clone());
    let (recorder, events) = Recorder::new(client.clone(), COMPONENT);
    let events = tokio::spawn(events);
    let (sender, receiver) = mpsc::unbounded_channel();
    let release = CancellationToken::new();
    let pulse = Arc::new(Pulse::default());

    let election = Election::new(client.clone(), leader_config(&config, &namespace), Some(&recorder));
    let leadership = election.leadership();
    let cache: Cache<ServiceKey, ServiceView> = Cache::new(|old, new| old != new);
    let services = reflector(&client, &config, &cache);

    let health = Health::new();
    let beat = Arc::clone(&pulse);
    health.register("engine", Matters::Alive, Arc::new(move || beat.alive()));
    let known = Arc::clone(&pulse);
    health.register("ownership", Matters::Ready, Arc::new(move || known.ready()));
    health.register("services", Matters::Ready, services.check());
    for listen in config.metrics.into_iter().chain(config.health) {
        tasks.spawn("health and metrics server", serve(listen, health.clone(), registry.clone(), everything.clone()));
    }

    let writer = Writer::new(client.clone(), queue_metrics.queue("records"), sender.clone());
    tasks.spawn("writer of Services", plain(writer.clone().run(everything.clone())));
    tasks.spawn_endless("watch of Services", services.run());
    let slices = endpoints::run(client.clone(), config.watch_namespace.clone(), cache.clone(), sender.clone());
    let stop = everything.clone();
    tasks.spawn(
        "watch of EndpointSlices",
        plain(async move {
            tokio::select! {
                () = stop.cancelled() => {}
                () = slices => stop.cancelled().await,
            }
        }),
    );
    tasks.spawn("feed of Services", plain(feed_services(cache, sender.clone(), everything.clone())));
    let stop = everything.clone();
    let changes = sender.clone();
    tasks.spawn("watch of the network", async move {
        tokio::select! {
            () = stop.cancelled() => Ok(()),
            result = node::watch_network(changes) => result,
        }
    });
    let stop = everything.clone();
    // The connection ends with its last handle: one is kept here, so that the end of the engine is no failure.
    let handle = netlink.clone();
    tasks.spawn("netlink connection", async move {
        let _handle = handle;
        tokio::select! {
            () = stop.cancelled() => Ok::<(), std::io::Error>(()),
            () = connection => Err(std::io::Error::other("the netlink socket broke")),
        }
    });
    let (campaigns, asked_campaigns) = mpsc::unbounded_channel();
    let (cards, written) = mpsc::unbounded_channel();
    let (swaps, asked_swaps) = mpsc::unbounded_channel();
    let swapper = Swapper::new(client.clone(), api, settings.retries(false), sender.clone());
    if config.election_mode == ElectionMode::Node {
        let node = config.node_name.clone();
        let nodes = Cache::new(|old, new| old != new);
        let lock = config.lease.name.clone();
        let until = |task: std::pin::Pin<Box<dyn Future<Output = ()> + Send>>| {
            let stop = everything.clone();
            plain(async move {
                tokio::select! {
                    () = stop.cancelled() => {}
                    () = task => {}
                }
            })
        };
        let leases = membership::watch_leases(client.clone(), namespace.clone(), lock, sender.clone());
        tasks.spawn("watch of Leases", until(Box::pin(leases)));
        let watch = membership::watch_nodes(client.clone(), nodes.clone(), sender.clone());
        tasks.spawn("watch of Nodes", until(Box::pin(watch)));
        let proxy = membership::watch_kube_proxy(node, nodes, sender.clone());
        tasks.spawn("watch of kube-proxy", until(Box::pin(proxy)));
        tasks.spawn("membership", until(Box::pin(membership.run(written))));
        let follow = swapper.clone().follow_servers();
        let forever = async move {
            follow.await;
            std::future::pending::<()>().await;
        };
        tasks.spawn("list of API servers", until(Box::pin(forever)));
        tasks.spawn("swaps of owners", until(Box::pin(swapper.run(asked_swaps))));
    } else if config.election_mode == ElectionMode::Service {
        let pattern = leader_config(&config, &namespace);
        let elections = elections::run(client.clone(), pattern, asked_campaigns, sender.clone());
        let stop = everything.clone();
        tasks.spawn(
            "elections",
            plain(async move {
                tokio::select! {
                    () = stop.cancelled() => {}
                    () = elections => {}
                }
            }),
        );
    } else {
        let lease: Api<Lease> = Api::namespaced(client.clone(), &namespace);
        let after = Successor {
            lease,
            name: config.lease.name.clone(),
            node: config.node_name.clone(),
            inputs: sender.clone(),
        };
        tasks.spawn("election", plain(elect(election, after, release.clone(), everything.clone())));
        tasks.spawn("feed of the Lease", plain(feed_leadership(leadership, sender.clone(), everything.clone())));
    }
    let asked = sender.clone();
    tasks.spawn("shutdown", plain(relay_shutdown(shutdown, asked, everything.clone())));

    let engine = Engine::new(clock::now(), config);
    let parts = Parts {
        engine,
        wire: NetlinkWire::new(netlink),
        writer,
        recorder,
        metrics,
        pulse,
        release,
        campaigns,
        swaps,
        cards,
        inputs: (sender, receiver),
    };
    let stop = everything.clone();
    tasks.spawn("engine", async move {
        node::run(parts).await;
        stop.cancel();
        Ok::<(), std::convert::Infallible>(())
    });
    let result = tasks.run(Duration::from_secs(5)).await;
    // Events of the last moments: all recorders are gone by now, so the writer ends when its buffer is empty.
    let _ = tokio::time::timeout(Duration::from_secs(1), events).await;
    Ok(result?)
}

fn greet(config: &Config) {
    tracing::info!(node = config.node_name, mode = config.election_mode.as_str(), "announcer starting");
    if !config.without_effect.is_empty() {
        tracing::info!("without effect here: {}", config.without_effect.join(", "));
    }
}

/// decisions.md 2.
fn check_capabilities() -> Result<(), Error> {
    let missing = missing(&[Capability::NetAdmin, Capability::NetRaw]).map_err(Error::ReadCapabilities)?;
    if missing.is_empty() {
        return Ok(());
    }
    Err(Error::Capabilities(missing.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")))
}

/// kube-vip spec 1.2: the explicit file, else kubeadm's, else the user's, else the service account.
pub(crate) fn source(api: &ApiConfig) -> Source {
    let home = api.home.as_ref().map(|home| home.join(".kube/config"));
    let default = [Some(PathBuf::from(ADMIN_KUBECONFIG)), home].into_iter().flatten().find(|path| path.is_file());
    api.kubeconfig.clone().or(default).map_or(Source::InCluster, Source::File)
}

pub(crate) fn pod_namespace(file: &Path, fallback: &str) -> String {
    let namespace = std::fs::read_to_string(file).unwrap_or_default().trim().to_owned();
    if namespace.is_empty() { fallback.to_owned() } else { namespace }
}

/// Who takes part in an election for a Lease in `namespace`, and with how much patience.
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

fn reflector(
    client: &Client,
    config: &Config,
    cache: &Cache<ServiceKey, ServiceView>,
) -> Reflector<Service, ServiceKey, ServiceView> {
    let api = match &config.watch_namespace {
        Some(namespace) => Api::namespaced(client.clone(), namespace),
        None => Api::all(client.clone()),
    };
    let rules = config.class.clone();
    let key = |meta: &k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta| {
        ServiceKey::new(meta.namespace.clone().unwrap_or_default(), meta.name.clone().unwrap_or_default())
    };
    // An owner that does not know what it owns withdraws too late, and its successor begins too late.
    Reflector::new("services", api, cache.clone(), key, move |service: &Service| ServiceView::of(service, &rules))
        .longest_pause(Duration::from_secs(1))
}

/// A task without an error of its own.
async fn plain(task: impl Future<Output = ()>) -> Result<(), std::convert::Infallible> {
    task.await;
    Ok(())
}

async fn feed_services(cache: Cache<ServiceKey, ServiceView>, inputs: mpsc::UnboundedSender<Input>, stop: Token) {
    let mut synced = false;
    let feed = async {
        cache.wait_synced().await;
        let mut touched = cache.subscribe();
        for view in cache.all() {
            let _ = inputs.send(Input::Service(view.key.clone(), Some(Box::new((*view).clone()))));
        }
        while let Some(key) = {
            if !std::mem::replace(&mut synced, true) {
                let _ = inputs.send(Input::Synced);
            }
            touched.next().await
        } {
            let view = cache.get(&key).map(|view| Box::new((*view).clone()));
            let _ = inputs.send(Input::Service(key, view));
        }
    };
    tokio::select! {
        () = stop.cancelled() => {}
        () = feed => {}
    }
}

async fn relay_shutdown(shutdown: Token, inputs: mpsc::UnboundedSender<Input>, stop: Token) {
    tokio::select! {
        () = stop.cancelled() => return,
        () = shutdown.cancelled() => {}
    }
    let _ = inputs.send(Input::Stop);
    stop.cancelled().await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_explicit_kubeconfig_wins() {
        let api = ApiConfig { kubeconfig: Some("/explicit".into()), ..ApiConfig::default() };
        assert_eq!(source(&api), Source::File("/explicit".into()));
    }

    #[test]
    fn the_lease_is_in_the_namespace_of_the_pod() {
        assert_eq!(pod_namespace(Path::new("/does/not/exist"), "kube-system"), "kube-system");
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
