//! Assembles the cloud controller manager: every replica serves and keeps its caches warm, and the leader runs provider
//! and controllers.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use cloud_provider::controllers::Controller;
use cloud_provider::node_loss::NodeLoss;
use cloud_provider::start::{Caches, CloudProvider, ControllerMetrics, Settings};
use contract::keys::cloudprovider::{SAFE_MODE, SAFE_MODE_HOLDER};
use harvester_provider::{Connection, HarvesterProvider};
use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use runtime::client::{self, ApiMetrics, Servers, Source};
use runtime::events::Recorder;
use runtime::health::{Health, OnFailure};
use runtime::http::{Access, Server, Tls};
use runtime::leader::{
    AnnotationValue, Election, LeaderConfig, OnLoss, lease_reference, run_while_leading, unique_identity,
};
use runtime::metrics::Metrics;
use runtime::shutdown::{self, Token};
use runtime::tasks::Tasks;

use super::config::Configuration;
use super::flags::Flags;
use crate::PRODUCT;

/// Time for requests under way after SIGTERM. The Lease is released afterwards, and only then the successor starts, so
/// an API that does not answer must not delay it. The next leader detects what was not finished.
const PATIENCE: Duration = Duration::from_millis(500);

/// Time after that for the parts that everything depends on: the last Events.
const PATIENCE_BELOW: Duration = Duration::from_millis(300);

/// Component of the Events on the Lease, with the name that client-go's controller managers use.
const COMPONENT: &str = "cloud-controller-manager";

/// The command had started and worked, and ended without a request to stop. So the cause is not a wrong start.
#[derive(Debug, thiserror::Error)]
#[error("cloudprovider.harvesterhci.io ends")]
pub struct Ended(#[source] Box<dyn std::error::Error + Send + Sync>);

impl Ended {
    fn because(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> anyhow::Error {
        Self(error.into()).into()
    }
}

/// Runs until SIGTERM (`Ok`), or until a required part of the process ends (`Err`).
pub async fn run(flags: &Flags, configuration: Configuration) -> anyhow::Result<()> {
    let stop = shutdown::on_signals().context("cannot listen for signals")?;
    let metrics = Metrics::new(&PRODUCT);
    let requests = metrics.register(|registry| ApiMetrics::register(registry, &PRODUCT));
    let settings = client::Settings::new("guest", &PRODUCT).metrics(&requests);
    let (guest, servers) = guest_client(flags, settings).await?;
    let path = flags.cloud.cloud_config.clone().unwrap_or_default();
    let settings = client::Settings::new("harvester", &PRODUCT).metrics(&requests);
    let connection = Connection::open(
        &configuration.cloud_config,
        path,
        settings,
        flags.harvester.cloud_config_all_contexts,
        &metrics,
    )
    .await?;
    let clients = Clients { guest, servers, harvester: connection.client(), connection: Some(connection) };
    Box::pin(manage(flags, &configuration, clients, &metrics, stop)).await
}

/// Clients of the two clusters.
struct Clients {
    guest: Client,
    /// The API servers that `guest` uses directly.
    servers: Option<Servers>,
    harvester: Client,
    /// The tasks that keep `harvester` working. Tests do without.
    connection: Option<Connection>,
}

/// Runs the command.
async fn manage(
    flags: &Flags,
    configuration: &Configuration,
    clients: Clients,
    metrics: &Metrics,
    stop: Token,
) -> anyhow::Result<()> {
    let Clients { guest, servers, harvester, connection } = clients;
    tracing::info!(
        cluster = configuration.provider.cluster_name.as_str(),
        server = configuration.cloud_config.endpoints[0].server,
        "New CloudProvider Harvester on namespace {}",
        configuration.provider.namespace
    );

    // The shutdown has two stages: first the leader's work ends, then the parts that it depends on, because the Lease
    // must outlive the last write.
    let below = Token::new();
    let health = Health::new();
    let mut tasks = Tasks::new(below.clone());
    let (recorder, writer) = Recorder::new(guest.clone(), COMPONENT);
    // Ends when the last recorder is dropped, so that Events of the shutdown itself are written too.
    tasks.spawn("event writer", async move {
        writer.await;
        Ok::<(), Infallible>(())
    });
    if let Some(servers) = servers {
        let (follow, stop) = (servers.follow(guest.clone(), None), tasks.stop());
        tasks.spawn("list of API servers", async move {
            stop.run_until_cancelled(follow).await;
            Ok::<(), Infallible>(())
        });
    }
    serve(flags, configuration, &guest, &health, metrics, &mut tasks).await?;
    let caches = Caches::watch(&guest, &health, &mut tasks);
    let lease = lease(flags);
    let mut leading = Leading {
        provider: provider(flags, configuration, (&guest, &harvester), &caches, metrics),
        settings: settings(flags, configuration),
        metrics: ControllerMetrics::register(metrics),
        guest,
        recorder,
        caches,
        health,
    };
    let loss = leading.node_loss().filter(|_| !configuration.provider.paused);
    let silent = loss.as_ref().map(NodeLoss::silent);
    let election = election(flags, configuration, &leading.guest, &leading.recorder, &leading.health);
    let doubts: AnnotationValue = Arc::new(leading.provider.doubts());
    let election = election.map(|election| election.with_annotation([SAFE_MODE, SAFE_MODE_HOLDER], doubts));
    let election = election.map(|election| match silent {
        Some(silent) => election.with_silent_hosts(silent),
        None => election,
    });
    if let Some(loss) = loss {
        watch_for_loss(loss, &mut tasks);
    }
    let machines = leading.provider.machines(&leading.caches.nodes);
    let returns = connection
        .map(|connection| connection.follow(&lease, &leading.recorder, &leading.health, machines, &mut tasks));
    if let Some(returns) = returns {
        leading.provider = leading.provider.resync_on(&returns);
    }
    let above = async {
        let result = leading.run_elected(election, stop.clone()).await;
        below.cancel();
        result
    };
    // If a required part ends, the leader's work has to end too, in order and while the Lease is held.
    let fall = async {
        below.cancelled().await;
        stop.cancel();
    };
    let (above, foundation, ()) = tokio::join!(above, tasks.run(PATIENCE_BELOW), fall);
    foundation.map_err(Ended::because)?;
    above.map_err(Ended::because)
}

fn provider(
    flags: &Flags,
    configuration: &Configuration,
    (guest, harvester): (&Client, &Client),
    caches: &Caches,
    metrics: &Metrics,
) -> HarvesterProvider {
    let drain_timeout = flags.harvester.host_upgrade_drain_timeout;
    let shared = (&caches.services, &caches.nodes);
    metrics
        .register(|registry| HarvesterProvider::new(&configuration.provider, guest, harvester, shared, registry))
        .taint_nodes_in_maintenance(flags.harvester.host_upgrade_taint)
        .cooperate_with_upgrades(flags.harvester.host_upgrade_cooperation.then_some(drain_timeout))
}

fn watch_for_loss(loss: NodeLoss, tasks: &mut Tasks) {
    let stop = tasks.stop();
    tasks.spawn(Controller::NodeLoss.name(), async move {
        loss.run(stop).await;
        Ok::<(), Infallible>(())
    });
}

/// The client of the guest cluster, whose credentials have one source for everything (W-36), and the API servers that
/// it uses directly, if somebody tells it which ones there are.
pub(super) async fn guest_client(
    flags: &Flags,
    settings: client::Settings,
) -> anyhow::Result<(Client, Option<Servers>)> {
    let flag = flags.cloud.kubeconfig.as_ref().map(|path| path.to_string_lossy().into_owned());
    let source = Source::choose(flag.as_deref(), std::env::var("KUBECONFIG").ok().as_deref());
    let master = flags.cloud.master.as_deref();
    let config = source.load(master).await.context("no access to the guest cluster")?;
    let limit = client::Limit::new(flags.cloud.kube_api_qps, flags.cloud.kube_api_burst);
    let servers = source.servers(master);
    Ok((client::connect(config, &settings.limit(limit).servers(servers.clone()))?, servers))
}

async fn serve(
    flags: &Flags,
    configuration: &Configuration,
    guest: &Client,
    health: &Health,
    metrics: &Metrics,
    tasks: &mut Tasks,
) -> anyhow::Result<()> {
    if flags.serving.secure_port == 0 {
        return Ok(());
    }
    let tls = match &configuration.serving_files {
        Some((certificate, key)) => Tls::Files { certificate: certificate.clone(), key: key.clone() },
        None => Tls::SelfSigned,
    };
    let always_allow = flags.serving.authorization_always_allow_paths.clone();
    let server = Server {
        address: SocketAddr::new(flags.serving.bind_address, flags.serving.secure_port),
        tls,
        client_ca: flags.serving.client_ca_file.clone(),
        handshake: configuration.handshake.clone(),
        access: Access::delegated(guest.clone(), always_allow),
        health: health.clone(),
        metrics: metrics.clone(),
    };
    let bound = server.bind().await.context("cannot serve health and metrics (--bind-address, --secure-port)")?;
    let stop = tasks.stop();
    tasks.spawn("serving", async move {
        bound.run(stop).await;
        Ok::<(), Infallible>(())
    });
    Ok(())
}

/// The election. Without one this replica leads from the start.
fn election(
    flags: &Flags,
    configuration: &Configuration,
    guest: &Client,
    recorder: &Recorder,
    health: &Health,
) -> Option<Election> {
    let config = LeaderConfig {
        namespace: flags.election.leader_elect_resource_namespace.clone(),
        name: flags.election.leader_elect_resource_name.clone(),
        identity: unique_identity(),
        component: COMPONENT.to_owned(),
        timing: configuration.election?,
        on_loss: OnLoss::End,
        watch: true,
    };
    let election = Election::new(guest.clone(), config, Some(recorder));
    health.register("leaderElection", OnFailure::Restart, election.health());
    Some(election)
}

/// The Lease as the object of Events about the whole program.
fn lease(flags: &Flags) -> ObjectReference {
    lease_reference(&flags.election.leader_elect_resource_namespace, &flags.election.leader_elect_resource_name)
}

pub(super) fn settings(flags: &Flags, configuration: &Configuration) -> Settings {
    Settings {
        controllers: configuration.controllers.clone(),
        service_workers: flags.cloud.concurrent_service_syncs,
        node_workers: flags.cloud.concurrent_node_syncs,
        node_refresh_every: flags.cloud.node_status_update_frequency,
        node_monitor_period: flags.cloud.node_monitor_period,
        follow_topology: !flags.harvester.disable_vmi_controller,
        obey_node_ip: !flags.harvester.disable_annotation_alpha_provided_ip_addr,
        out_of_service_after: Some(flags.harvester.node_out_of_service_after).filter(|after| !after.is_zero()),
    }
}

/// The parts that only the leader runs.
struct Leading {
    guest: Client,
    recorder: Recorder,
    caches: Caches,
    provider: HarvesterProvider,
    settings: Settings,
    metrics: ControllerMetrics,
    health: Health,
}

impl Leading {
    /// The controller that runs in every replica, because the leader may be on the lost node.
    fn node_loss(&self) -> Option<NodeLoss> {
        self.settings.controllers.has(Controller::NodeLoss).then(|| {
            let metrics = self.metrics.node_loss();
            let instances = self.provider.instances();
            NodeLoss::new(&self.guest, instances, self.caches.nodes.clone(), &self.recorder, metrics)
        })
    }

    /// Runs while this replica is elected; without an election at once.
    async fn run_elected(self, election: Option<Election>, stop: Token) -> anyhow::Result<()> {
        let Some(election) = election else { return self.run(stop).await };
        // If the Lease is lost, all work of the leader is dropped at once.
        match Box::pin(run_while_leading(election, stop, |stop| self.run(stop))).await {
            Ok(worked) => worked.unwrap_or(Ok(())),
            Err(lost) => Err(lost.into()),
        }
    }

    /// Runs until `stop`; passes that are under way are finished. If `stop` comes before the caches are filled, nothing
    /// is started.
    async fn run(self, stop: Token) -> anyhow::Result<()> {
        tokio::select! {
            () = stop.cancelled() => return Ok(()),
            () = self.caches.wait_synced() => {}
        }
        for (name, check) in self.provider.checks() {
            self.health.register(name, OnFailure::NotReady, check);
        }
        for (name, check) in self.provider.freshness() {
            self.health.register(name, OnFailure::Shown, check);
        }
        let mut tasks = Tasks::new(stop.clone());
        let controllers = CloudProvider {
            client: self.guest,
            recorder: self.recorder.clone(),
            caches: self.caches,
            load_balancers: self.provider.load_balancers(),
            instances: self.provider.instances(),
            settings: self.settings,
            metrics: self.metrics,
        };
        self.provider.start(&mut tasks, &self.recorder);
        let until = stop.clone();
        tasks.spawn("controllers", async move {
            controllers.run(&self.health, until).await;
            Ok::<(), Infallible>(())
        });
        Ok(tasks.run(PATIENCE).await?)
    }
}

#[cfg(test)]
mod tests;
