//! The connection to Harvester: clients for the endpoints of the cloud-config. The file is read again when it changes
//! (decision 15).
//!
//! `file.rs` detects new content of the file. `proof.rs` checks whether it leads to the Harvester that has this
//! cluster's machines. `report.rs` decides what the user is told about the connection, and when. This module puts them
//! together.

mod file;
mod metrics;
mod proof;
mod report;

use std::collections::BTreeSet;
use std::convert::Infallible;
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
use runtime::health::{Health, OnFailure};
use runtime::metrics::Metrics;
use runtime::tasks::Tasks;
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior};

use file::{CloudConfigFile, FileCheck};
use metrics::LinkMetrics;
use proof::CandidateCheck;
use report::{Report, Reporter};

/// How often the file is checked. The kubelet itself needs up to a minute to update a changed Secret in a volume.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// The longest pause between two proofs of an endpoint that has not yet shown this cluster's machines. The pause begins
/// at [`LOOK_EVERY`] and doubles each time.
const ASK_EVERY: Duration = Duration::from_mins(1);

/// A client of the Harvester API, with the tasks that follow changes of endpoints and credentials.
pub struct Connection {
    switch: Switch,
    used: CloudConfig,
    settings: Settings,
    all_contexts: bool,
    file: CloudConfigFile,
    metrics: LinkMetrics,
}

/// Returns the UIDs of the machines that this cluster's Nodes run on, as far as they are known now.
pub type Machines = Arc<dyn Fn() -> BTreeSet<String> + Send + Sync>;

/// Why no client could be made.
#[derive(Debug, thiserror::Error)]
pub enum ConnectionError {
    /// The certificates or keys cannot be read.
    #[error("cloud-config: cannot use the credentials of the current context")]
    Credentials(#[source] KubeconfigError),
    /// The credentials were read, but no client can be built from them.
    #[error("cloud-config: cannot build a client for the Harvester API")]
    Client(#[source] ClientError),
}

impl Connection {
    /// Builds the client for the current context of the file at `path`. Other contexts are used only with
    /// `all_contexts`, and only after they have shown one of this cluster's machines. Sends no request.
    pub async fn open(
        cloud_config: &CloudConfig,
        path: PathBuf,
        settings: Settings,
        all_contexts: bool,
        metrics: &Metrics,
    ) -> Result<Self, ConnectionError> {
        let used = cloud_config.clone().with_authorities();
        let mut endpoints = endpoints(&used).await.map_err(ConnectionError::Credentials)?;
        endpoints.truncate(1);
        let switch = Switch::new(endpoints, settings.clone()).map_err(ConnectionError::Client)?;
        let file = CloudConfigFile::new(path, cloud_config);
        let metrics = metrics.register(LinkMetrics::register);
        Ok(Self { switch, used, settings, all_contexts, file, metrics })
    }

    /// The client. It stays valid when endpoints or credentials are replaced.
    pub fn client(&self) -> Client {
        self.switch.client()
    }

    /// Starts the tasks that watch the file and the endpoints; Events are written on `object`. The returned value
    /// changes when everything should be listed again.
    pub fn follow(
        self,
        object: &ObjectReference,
        recorder: &Recorder,
        health: &Health,
        machines: Machines,
        tasks: &mut Tasks,
    ) -> watch::Receiver<u64> {
        let Self { switch, used, settings, all_contexts, file, metrics } = self;
        let link = switch.link();
        health.register(
            "harvester-api",
            OnFailure::Shown,
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
        let told = EventTarget { object: object.clone(), recorder: recorder.clone() };
        let reporter = Reporter::new(addon_arguments(&used));
        tasks.spawn_endless("look for Harvester", switch.clone().watch_over());
        tasks.spawn_endless(
            "reports about Harvester",
            tell(switch.clone(), file.path().display().to_string(), reporter, metrics.clone(), told.clone()),
        );
        let proven = vec![used.endpoints[0].server.clone()];
        let follower = Follower { switch, used, settings, all_contexts, machines, metrics, told, proven };
        tasks.spawn_endless("look at the cloud-config", follower.run(file));
        returns
    }
}

/// What `generate-addon` is given to make credentials as these; a file that passes for the same place has the same.
fn addon_arguments(used: &CloudConfig) -> String {
    let account = used.account().filter(|account| account.namespace == used.namespace);
    let name =
        account.map_or_else(|| "<account, by custom the name of the cluster>".to_owned(), |account| account.name);
    format!("{name} {}", used.namespace)
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

/// Keeps credentials out of logs.
/// The recorder of Events, and the object they are about.
#[derive(Clone)]
struct EventTarget {
    object: ObjectReference,
    recorder: Recorder,
}

impl EventTarget {
    fn tell(&self, report: &Report) {
        match report.kind {
            EventKind::Normal => tracing::info!("{}", report.message),
            EventKind::Warning => tracing::warn!("{}", report.message),
        }
        self.recorder.record(&self.object, report.kind, report.reason, &report.message);
    }
}

/// Turns the state of the switch into metrics, log lines and Events.
async fn tell(
    switch: Switch,
    file: String,
    mut reporter: Reporter,
    metrics: LinkMetrics,
    told: EventTarget,
) -> Infallible {
    let mut link = switch.link();
    loop {
        let now = link.borrow_and_update().clone();
        metrics.reachable.set(i64::from(now.away.is_none()));
        metrics.accepted.set(i64::from(now.refused.is_none()));
        reporter.step(Instant::now(), &now, &file).iter().for_each(|report| told.tell(report));
        let due = reporter.deadline(&now);
        tokio::select! {
            changed = link.changed() => changed.expect("this task holds a switch"),
            () = async { tokio::time::sleep_until(due.expect("polled only if there is one")).await },
                if due.is_some() => {}
        }
    }
}

/// Starts to use new content of the file, and further contexts, once they have proven to lead to this cluster's
/// machines.
struct Follower {
    switch: Switch,
    used: CloudConfig,
    settings: Settings,
    all_contexts: bool,
    machines: Machines,
    metrics: LinkMetrics,
    told: EventTarget,
    /// Servers in use: that of the first context, and others that have proven themselves.
    proven: Vec<String>,
}

/// New content of the file that is not in use yet.
struct Candidate {
    config: CloudConfig,
    /// The reason why it is not in use, as it was last reported.
    told: Option<String>,
    pace: Pace,
}

/// When an endpoint is asked again, and how long the pause after that is.
#[derive(Debug, Clone, Copy)]
struct Pace {
    next: Instant,
    pause: Duration,
}

impl Pace {
    /// Due at once.
    fn new() -> Self {
        Self { next: Instant::now(), pause: LOOK_EVERY }
    }

    fn is_due(&self) -> bool {
        Instant::now() >= self.next
    }

    /// The pace after a request that was made now.
    fn asked(self) -> Self {
        Self { next: Instant::now() + self.pause, pause: (self.pause * 2).min(ASK_EVERY) }
    }
}

impl Follower {
    async fn run(mut self, mut file: CloudConfigFile) -> Infallible {
        let mut look = tokio::time::interval(LOOK_EVERY);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut candidate: Option<Candidate> = None;
        let mut others = Pace::new();
        loop {
            look.tick().await;
            match file.look() {
                FileCheck::Nothing => {}
                FileCheck::Bad(text) => {
                    candidate = None;
                    self.failed(&text);
                }
                FileCheck::New(config) => {
                    candidate = Some(Candidate { config: *config, told: None, pace: Pace::new() });
                    others = Pace::new();
                }
            }
            if let Some(waiting) = candidate.take_if(|waiting| waiting.pace.is_due()) {
                candidate = self.consider(waiting, &file).await;
            }
            if self.all_contexts && self.used.endpoints.len() > self.proven.len() && others.is_due() {
                self.look_for_others().await;
                others = others.asked();
            }
        }
    }

    fn failed(&self, text: &str) {
        self.metrics.reloads.get_or_create(&[("result", "failed")]).inc();
        let message = format!("The changed cloud-config cannot be used, going on with the one before: {text}");
        self.told.tell(&Report { kind: EventKind::Warning, reason: "CloudConfigInvalid", message });
    }

    /// Uses the candidate if it leads to this cluster's machines. Returns the candidate while that is not yet known.
    async fn consider(&mut self, candidate: Candidate, file: &CloudConfigFile) -> Option<Candidate> {
        let all = match endpoints(&candidate.config).await {
            Ok(all) => all,
            Err(error) => {
                self.failed(&chain(&ConnectionError::Credentials(error)));
                return None;
            }
        };
        let same = proof::is_same_place(&self.used, &candidate.config);
        let (found, proven) =
            if same { (CandidateCheck::Ours, self.proven.clone()) } else { self.prove(&candidate, &all).await };
        let server = &all[0].server;
        let text = match found {
            CandidateCheck::Ours => {
                self.use_it(candidate.config, all, proven, file);
                return None;
            }
            CandidateCheck::Strange(count) => format!(
                "none of this cluster's Nodes runs on one of the {count} virtual machines in namespace {} of Harvester \
                 at {server}. If it is the file of another Harvester, put the right one in its place. If the machines \
                 were moved there, restart the controller and run `harvester-cloud-provider identity confirm`",
                candidate.config.namespace
            ),
            CandidateCheck::NoAnswer(error) => format!(
                "it names another place than before, and Harvester at {server} could not be asked for this cluster's \
                 virtual machines: {error}. It is tried again, at least every {} s",
                ASK_EVERY.as_secs()
            ),
        };
        if candidate.told.as_ref() != Some(&text) {
            self.failed(&text);
        }
        Some(Candidate { told: Some(text), pace: candidate.pace.asked(), ..candidate })
    }

    /// Asks which endpoints lead to this cluster's machines. One proven endpoint is enough, unless the first endpoint
    /// answers with other machines only. Endpoints that prove nothing are left out.
    async fn prove(&self, candidate: &Candidate, all: &[Endpoint]) -> (CandidateCheck, Vec<String>) {
        let (expected, namespace) = ((self.machines)(), &candidate.config.namespace);
        let first = proof::prove(&all[0], &self.settings, namespace, &expected).await;
        let mut proven: Vec<String> =
            (first == CandidateCheck::Ours).then(|| all[0].server.clone()).into_iter().collect();
        for endpoint in all.iter().skip(1).filter(|_| self.all_contexts && !expected.is_empty()) {
            if proof::prove(endpoint, &self.settings, namespace, &expected).await == CandidateCheck::Ours {
                proven.push(endpoint.server.clone());
            }
        }
        let any = !proven.is_empty() && !matches!(first, CandidateCheck::Strange(_));
        (if any { CandidateCheck::Ours } else { first }, proven)
    }

    fn use_it(&mut self, config: CloudConfig, mut all: Vec<Endpoint>, proven: Vec<String>, file: &CloudConfigFile) {
        all.retain(|endpoint| proven.contains(&endpoint.server));
        if let Err(error) = self.switch.replace(all) {
            self.failed(&chain(&error));
            return;
        }
        self.proven = proven;
        self.used = config;
        self.metrics.reloads.get_or_create(&[("result", "used")]).inc();
        let message = format!("{} has changed: its credentials and endpoints are in use", file.path().display());
        self.told.tell(&Report { kind: EventKind::Normal, reason: "CloudConfigReloaded", message });
    }

    /// Takes further contexts into use when they show one of this cluster's machines. A cluster without machines cannot
    /// prove anything, so it uses no further contexts.
    async fn look_for_others(&mut self) {
        let expected = (self.machines)();
        let Some(all) = endpoints(&self.used).await.ok().filter(|_| !expected.is_empty()) else { return };
        let mut proven = self.proven.clone();
        for endpoint in all.iter().filter(|endpoint| !self.proven.contains(&endpoint.server)) {
            if proof::prove(endpoint, &self.settings, &self.used.namespace, &expected).await == CandidateCheck::Ours {
                proven.push(endpoint.server.clone());
            }
        }
        if proven.len() == self.proven.len() {
            return;
        }
        let used = all.into_iter().filter(|endpoint| proven.contains(&endpoint.server));
        if self.switch.replace(used.collect()).is_ok() {
            tracing::info!(servers = ?proven, "the controller uses further endpoints of the Harvester API");
            self.proven = proven;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Seen: all machines listed every two seconds, for ever.
    #[tokio::test(start_paused = true)]
    async fn a_place_without_a_proof_is_asked_more_seldom_each_time_and_once_a_minute_at_least() {
        let (start, mut pace, mut asked) = (Instant::now(), Pace::new(), Vec::new());
        while start.elapsed() < Duration::from_mins(10) {
            if pace.is_due() {
                asked.push(start.elapsed().as_secs());
                pace = pace.asked();
            }
            tokio::time::advance(LOOK_EVERY).await;
        }
        assert_eq!(asked[..7], [0, 2, 6, 14, 30, 62, 122]);
        assert!(asked.windows(2).all(|pair| pair[1] - pair[0] <= ASK_EVERY.as_secs()), "{asked:?}");
        assert!(asked.len() < 16, "{asked:?}");
    }
}
