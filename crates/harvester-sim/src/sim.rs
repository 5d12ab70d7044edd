//! The running stand-in: servers, registrations, controllers; started in a program's own process or by `harvester-sim
//! run`.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use harvester_api::ip_pool::IpPool;
use harvester_api::load_balancer::LoadBalancer;
use harvester_api::virtual_machine::VirtualMachine;
use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use kube::api::PostParams;
use kube::{Api, Client, ResourceExt};
use tokio::net::TcpListener;
use tokio::task::{JoinError, JoinSet};

use crate::faults::{FaultSwitch, Faults};
use crate::guest::machines::Machines;
use crate::guest::subresources::{self, Subresources};
use crate::host::load_balancers::LoadBalancers;
use crate::host::lookups::Lookups;
use crate::host::world::{Counts, Profile, World, feed};
use crate::host::{machines, pools};
use crate::install::{self, InstallError, SUBRESOURCES_DNS_NAME};
use crate::serve::api::{self, Front};
use crate::serve::control;
use crate::serve::tls::{self, Authority, TlsError, serve};
use crate::serve::webhooks::{self, Webhooks};
use crate::version::HostVersion;

/// How to run. The kinds must be installed, see [`install::install`].
#[derive(Debug, Clone, Default)]
pub struct SimConfig {
    /// Which host is played.
    pub version: HostVersion,
    /// How fast it is.
    pub profile: Profile,
    /// Webhooks; without them the host is as in its first 15 s, when nothing is refused or filled in.
    pub webhooks: Option<Listen>,
    /// The aggregated API for the guest agent.
    pub subresources: Option<Listen>,
    /// The host's API with its faults.
    pub api: Option<ApiListen>,
    /// HTTP endpoint for faults and counters. Port 0 for any.
    pub control: Option<SocketAddr>,
    /// What goes wrong from the start, in all namespaces.
    pub faults: Faults,
}

/// Where guests find the host's API with its faults: a server with a certificate of the host's authority.
#[derive(Clone)]
pub struct ApiListen {
    /// To bind.
    pub bind: SocketAddr,
    /// Certificate, PEM.
    pub certificate_pem: String,
    /// Its key, PEM.
    pub key_pem: String,
    /// The API server behind, without credentials.
    pub upstream: Client,
}

impl std::fmt::Debug for ApiListen {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ApiListen").field("bind", &self.bind).finish_non_exhaustive()
    }
}

/// Where a server listens, and where the API server finds it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listen {
    /// To bind; port 0 for any.
    pub bind: SocketAddr,
    /// Address (webhooks: or DNS name) that the API server uses; default: the one bound.
    pub host: Option<String>,
}

impl Listen {
    /// On any port of this address, which the API server can reach as it is.
    pub fn on(address: IpAddr) -> Self {
        Self { bind: SocketAddr::new(address, 0), host: None }
    }
}

/// Why the stand-in could not start.
#[derive(Debug, thiserror::Error)]
pub enum SimError {
    /// An address is taken or not ours.
    #[error("failed to listen on {0}")]
    Bind(SocketAddr, #[source] io::Error),
    /// Certificates.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// Registration at the API server.
    #[error(transparent)]
    Install(#[from] InstallError),
    /// The API server did not say who we are.
    #[error("failed to ask the API server for our own user name")]
    WhoAmI(#[source] Box<kube::Error>),
    /// The aggregated API has to be reached by address.
    #[error("the aggregated API cannot be reached at {0:?}: expected an IP address")]
    SubresourcesHost(String),
    /// A cache lost its writer before it was filled.
    #[error("a watch ended before its first listing was complete")]
    WatchEnded,
}

/// A running stand-in. Dropping it stops everything; registrations at the API server stay, as those of a crashed host
/// would.
pub struct Sim {
    world: Arc<World>,
    tasks: JoinSet<()>,
    control: Option<SocketAddr>,
}

impl Sim {
    /// Starts and returns once load balancers are being served. `watches` is for watches: best a client that does not
    /// try again by itself.
    pub async fn start(client: Client, watches: Client, config: SimConfig) -> Result<Self, SimError> {
        let faults = Arc::new(FaultSwitch::new(config.faults));
        let (world, writers) = World::new(client.clone(), config.version, config.profile, faults.clone());
        let world = Arc::new(world);
        let mut tasks = JoinSet::new();
        let authority = Authority::new()?;

        if let Some(listen) = &config.webhooks {
            let listener = bind(listen.bind).await?;
            let at = local(&listener, listen.bind)?;
            let host = listen.host.clone().unwrap_or_else(|| at.ip().to_string());
            let acceptor = authority.acceptor(std::slice::from_ref(&host))?;
            let own_user = who_am_i(&client).await?;
            let router = webhooks::router(Webhooks {
                client: client.clone(),
                lookups: Lookups::start(&world, &watches, &mut tasks),
                version: config.version,
                faults: faults.clone(),
                own_user,
            });
            tasks.spawn(run_server("webhooks", serve(listener, acceptor, router)));
            install::register_webhooks(&client, &host, at.port(), &authority.certificate_pem).await?;
        }
        if let Some(listen) = &config.subresources {
            let listener = bind(listen.bind).await?;
            let at = local(&listener, listen.bind)?;
            let host = listen.host.clone().unwrap_or_else(|| at.ip().to_string());
            let address: IpAddr = host.parse().map_err(|_| SimError::SubresourcesHost(host))?;
            let acceptor = authority.acceptor(&[SUBRESOURCES_DNS_NAME.to_owned(), address.to_string()])?;
            let router = subresources::router(Subresources { client: client.clone(), faults: faults.clone() });
            tasks.spawn(run_server("aggregated API", serve(listener, acceptor, router)));
            install::register_subresources(&client, SocketAddr::new(address, at.port()), &authority.certificate_pem)
                .await?;
        }
        if let Some(listen) = &config.api {
            let listener = bind(listen.bind).await?;
            let acceptor = tls::acceptor(&listen.certificate_pem, &listen.key_pem)?;
            let front = Arc::new(Front::new(listen.upstream.clone(), faults.clone()));
            tasks.spawn(front.clone().note_versions(client.clone()));
            tasks.spawn(run_server("the host's API", serve(listener, acceptor, api::router(front))));
        }
        let mut control = None;
        if let Some(address) = config.control {
            let listener = bind(address).await?;
            control = Some(local(&listener, address)?);
            let router = control::router(world.clone());
            tasks.spawn(run_server("control endpoint", async { axum::serve(listener, router).await }));
        }

        tasks.spawn(feed(Api::<IpPool>::all(watches.clone()), writers.pools, world.pool_queue.clone()));
        tasks.spawn(feed(Api::<VirtualMachine>::all(watches.clone()), writers.machines, world.machine_queue.clone()));
        tasks.spawn(feed(Api::<LoadBalancer>::all(watches), writers.load_balancers, world.queue.clone()));
        tasks.spawn(pools::work(world.clone()));
        tasks.spawn(machines::work(world.clone()));
        let controller = Arc::new(LoadBalancers::new(world.clone()));
        for _ in 0..config.profile.workers() {
            let controller = controller.clone();
            tasks.spawn(async move { controller.work().await });
        }
        tasks.spawn(requeue_on_fault_changes(world.clone()));
        world.load_balancers.wait_until_ready().await.map_err(|_| SimError::WatchEnded)?;
        world.pools.wait_until_ready().await.map_err(|_| SimError::WatchEnded)?;
        Ok(Self { world, tasks, control })
    }

    /// What goes wrong, to be changed while it runs.
    pub fn faults(&self) -> &FaultSwitch {
        &self.world.faults
    }

    /// Virtual machines.
    pub fn machines(&self) -> Machines {
        Machines::new(self.world.client.clone())
    }

    /// PUTs that the controllers have sent.
    pub fn counts(&self) -> Counts {
        self.world.counters.read()
    }

    /// Where the control endpoint listens.
    pub fn control_address(&self) -> Option<SocketAddr> {
        self.control
    }

    /// A load balancer forgets its address, as after a lost status write; the pool's books keep it.
    pub async fn lose_booking(&self, namespace: &str, name: &str) -> kube::Result<()> {
        control::lose_booking(&self.world, namespace, name).await
    }

    /// Waits for the first task that ends, which none does by itself.
    pub async fn failed(&mut self) -> Option<Result<(), JoinError>> {
        self.tasks.join_next().await
    }

    /// Stops everything and waits until it has stopped.
    pub async fn stop(mut self) {
        self.tasks.shutdown().await;
    }
}

async fn bind(address: SocketAddr) -> Result<TcpListener, SimError> {
    TcpListener::bind(address).await.map_err(|error| SimError::Bind(address, error))
}

fn local(listener: &TcpListener, asked: SocketAddr) -> Result<SocketAddr, SimError> {
    listener.local_addr().map_err(|error| SimError::Bind(asked, error))
}

async fn run_server(what: &'static str, server: impl Future<Output = io::Result<()>>) {
    if let Err(error) = server.await {
        tracing::error!(%error, "{what} ended");
    }
}

async fn who_am_i(client: &Client) -> Result<String, SimError> {
    let api: Api<SelfSubjectReview> = Api::all(client.clone());
    let review = api.create(&PostParams::default(), &SelfSubjectReview::default()).await;
    let review = review.map_err(|error| SimError::WhoAmI(Box::new(error)))?;
    Ok(review.status.and_then(|status| status.user_info).and_then(|user| user.username).unwrap_or_default())
}

/// A fault that has been switched off must not need a touch of every object to heal.
async fn requeue_on_fault_changes(world: Arc<World>) {
    let mut changed = world.faults.subscribe();
    while changed.changed().await.is_ok() {
        for lb in world.load_balancers.state() {
            world.queue.add((lb.namespace().unwrap_or_default(), lb.name_any()));
        }
    }
}
