//! The way to Harvester: clients for the endpoints of the cloud-config, which is read again when the file changes (decision 15).
//!
//! `file.rs` tells when there is something new in the file, `story.rs` what a user hears of the way, and when; both decide and do
//! nothing else. Here they are put to work.

mod file;
mod metrics;
mod story;

use std::convert::Infallible;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use harvester_api::cloud_config::CloudConfig;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use kube::config::{KubeConfigOptions, KubeconfigError};
use runtime::client::{ClientError, Endpoint, Settings, Switch};
use runtime::error::chain;
use runtime::events::{EventKind, Recorder};
use runtime::health::{Health, Matters};
use runtime::metrics::Metrics;
use runtime::tasks::Tasks;
use tokio::sync::watch;
use tokio::time::Instant;

use file::{CloudConfigFile, Look};
use metrics::LinkMetrics;
use story::{Story, Teller};

/// How often to look at the file. The kubelet needs up to a minute to bring a changed Secret.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// A client of the Harvester API, and what keeps it working.
pub struct Connection {
    switch: Switch,
    file: CloudConfigFile,
    metrics: LinkMetrics,
}

/// Why there is no client.
#[derive(Debug, thiserror::Error)]
pub enum ConnectionError {
    /// Certificates or keys that cannot be read.
    #[error("cloud-config: cannot use the credentials of the current context")]
    Credentials(#[source] KubeconfigError),
    /// They are read, and no client can be made with them.
    #[error("cloud-config: cannot build a client for the Harvester API")]
    Client(#[source] ClientError),
}

impl Connection {
    /// Makes the clients for what was read from the file at `path`. Sends nothing.
    pub async fn open(
        cloud_config: &CloudConfig,
        path: PathBuf,
        settings: Settings,
        metrics: &Metrics,
    ) -> Result<Self, ConnectionError> {
        let endpoints = endpoints(cloud_config).await.map_err(ConnectionError::Credentials)?;
        let switch = Switch::new(endpoints, settings).map_err(ConnectionError::Client)?;
        let file = CloudConfigFile::new(path, cloud_config);
        Ok(Self { switch, file, metrics: metrics.register(LinkMetrics::register) })
    }

    /// The client. Nobody who holds it notices when endpoints or credentials are replaced.
    pub fn client(&self) -> Client {
        self.switch.client()
    }

    /// Starts the look at the file and at the other side; Events are about `object`. The answer changes when everything should be read
    /// anew.
    pub fn follow(
        self,
        object: &ObjectReference,
        recorder: &Recorder,
        health: &Health,
        tasks: &mut Tasks,
    ) -> watch::Receiver<u64> {
        let Self { switch, file, metrics } = self;
        let link = switch.link();
        health.register(
            "harvester-api",
            Matters::Told,
            Arc::new(move || {
                let link = link.borrow();
                match (&link.away, link.refused) {
                    (Some((since, error)), _) => Err(format!("away for {} s: {error}", since.elapsed().as_secs())),
                    (None, Some(_)) => Err("refuses the credentials in the cloud-config".to_owned()),
                    (None, None) => Ok(()),
                }
            }),
        );
        let returns = switch.returns();
        let told = Told { object: object.clone(), recorder: recorder.clone() };
        tasks.spawn_endless("look for Harvester", switch.clone().watch_over());
        tasks.spawn_endless(
            "story of Harvester",
            tell(switch.clone(), file.path().display().to_string(), metrics.clone(), told.clone()),
        );
        tasks.spawn_endless("look at the cloud-config", reload(switch, file, metrics, told));
        returns
    }
}

async fn endpoints(cloud_config: &CloudConfig) -> Result<Vec<Endpoint>, KubeconfigError> {
    let mut endpoints = Vec::new();
    for endpoint in &cloud_config.endpoints {
        let kubeconfig = cloud_config.kubeconfig(endpoint);
        let config = kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
        endpoints.push(Endpoint { server: endpoint.server.clone(), config });
    }
    Ok(endpoints)
}

/// Credentials stay out of logs.
impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").field("switch", &self.switch).finish_non_exhaustive()
    }
}

/// Where stories go.
#[derive(Clone)]
struct Told {
    object: ObjectReference,
    recorder: Recorder,
}

impl Told {
    fn tell(&self, story: &Story) {
        match story.kind {
            EventKind::Normal => tracing::info!("{}", story.message),
            EventKind::Warning => tracing::warn!("{}", story.message),
        }
        self.recorder.record(&self.object, story.kind, story.reason, &story.message);
    }
}

/// Turns what the switch sees into metrics, log lines and Events.
async fn tell(switch: Switch, file: String, metrics: LinkMetrics, told: Told) -> Infallible {
    let mut link = switch.link();
    let mut teller = Teller::default();
    loop {
        let now = link.borrow_and_update().clone();
        metrics.reachable.set(i64::from(now.away.is_none()));
        metrics.accepted.set(i64::from(now.refused.is_none()));
        teller.step(Instant::now(), &now, &file).iter().for_each(|story| told.tell(story));
        let due = teller.deadline(&now);
        tokio::select! {
            changed = link.changed() => changed.expect("this task holds a switch"),
            () = async { tokio::time::sleep_until(due.expect("polled only if there is one")).await }, if due.is_some() => {}
        }
    }
}

/// Uses the file's new content.
async fn reload(switch: Switch, mut file: CloudConfigFile, metrics: LinkMetrics, told: Told) -> Infallible {
    let mut look = tokio::time::interval(LOOK_EVERY);
    let failed = |text: &str| {
        metrics.reloads.get_or_create(&[("result", "failed")]).inc();
        let message = format!("The changed cloud-config cannot be used, going on with the one before: {text}");
        told.tell(&Story { kind: EventKind::Warning, reason: "CloudConfigInvalid", message });
    };
    loop {
        look.tick().await;
        match file.look() {
            Look::Nothing => {}
            Look::Bad(text) => failed(&text),
            Look::New(cloud_config) => {
                let replaced = match endpoints(&cloud_config).await {
                    Ok(endpoints) => switch.replace(endpoints).map_err(|error| chain(&error)),
                    Err(error) => Err(chain(&ConnectionError::Credentials(error))),
                };
                if let Err(text) = replaced {
                    failed(&text);
                    continue;
                }
                metrics.reloads.get_or_create(&[("result", "used")]).inc();
                let message =
                    format!("{} has changed: its credentials and endpoints are in use", file.path().display());
                told.tell(&Story { kind: EventKind::Normal, reason: "CloudConfigReloaded", message });
            }
        }
    }
}
