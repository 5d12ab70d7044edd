//! Runs an `Elector` on a real Lease: sends its requests, watches, keeps the time, and publishes the leader.

use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::BoxStream;
use futures::{FutureExt, StreamExt};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::api::{DynamicObject, PostParams};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::elector::{Action, Elector, Input, Observation};
use super::hand_back::{HandBack, Step};
use super::lease::{self, Record};
use super::outage::Outage;
use super::{LeaderConfig, Leadership, lease_reference};
use crate::error::chain;
use crate::events::Recorder;
use crate::health::Check;

/// First pause before a refused watch is tried again, doubled up to [`WATCH_AGAIN`]. An API server that has just
/// started may refuse until it has read its RBAC rules.
const WATCH_AGAIN_SOON: Duration = Duration::from_secs(1);
const WATCH_AGAIN: Duration = Duration::from_mins(10);
/// A refusal that lasts this long is not caused by a starting server, and is reported.
const WATCH_REFUSED: Duration = Duration::from_secs(8);

/// Returns the desired state of an annotation, see [`lease::annotate`].
pub type AnnotationValue = Arc<dyn Fn() -> lease::Annotation + Send + Sync>;

/// One replica's part in an election. [`Election::run`] does the work; [`Election::leadership`] publishes the result.
pub struct Election {
    api: Api<DynamicObject>,
    config: LeaderConfig,
    recorder: Option<Recorder>,
    leadership: watch::Sender<Leadership>,
    renewed: Arc<Mutex<Option<Instant>>>,
    outage: Outage,
    /// An annotation of the Lease, written while it has a value.
    annotation: Option<([&'static str; 2], AnnotationValue)>,
    /// The hosts that are reported as silent.
    silent: Option<watch::Receiver<BTreeSet<String>>>,
}

/// Why [`Election::run`] ended without a request to stop.
#[derive(Debug, thiserror::Error)]
pub enum LeaderError {
    /// The Lease could not be renewed in time, or another replica holds it. Only with [`super::OnLoss::End`].
    #[error("leaderelection lost: Lease {namespace}/{name} could not be renewed or is held by somebody else")]
    Lost {
        /// Namespace of the Lease.
        namespace: String,
        /// Name of the Lease.
        name: String,
    },
}

/// A request under way; it returns the input for the elector and the Lease after it.
type Request = BoxFuture<'static, (Input, Option<DynamicObject>)>;

impl std::fmt::Debug for Election {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Election").field("config", &self.config).finish_non_exhaustive()
    }
}

impl Election {
    /// Creates an election. `recorder` writes the Events `<id> became leader` and `<id> stopped leading` on the Lease.
    pub fn new(client: Client, config: LeaderConfig, recorder: Option<&Recorder>) -> Self {
        let api = Api::namespaced_with(client, &config.namespace, &lease::resource());
        let recorder = recorder.map(|recorder| recorder.for_component(&config.component));
        let leadership = watch::Sender::new(Leadership::Unknown);
        Self {
            api,
            config,
            recorder,
            leadership,
            renewed: Arc::default(),
            outage: Outage::default(),
            annotation: None,
            silent: None,
        }
    }

    /// Sets an annotation that the Lease has while this replica holds it and there is a value, with the replica's
    /// identity under the second key. It is updated with each renewal, so it costs no extra request.
    pub fn with_annotation(mut self, keys: [&'static str; 2], value: AnnotationValue) -> Self {
        self.annotation = Some((keys, value));
        self
    }

    /// Sets the source of silent hosts: the Lease of a holder on such a host is taken after two missed renewals. The
    /// host of a holder is in its identity, `<host>_<anything>`.
    pub fn with_silent_hosts(mut self, silent: watch::Receiver<BTreeSet<String>>) -> Self {
        self.silent = Some(silent);
        self
    }

    /// The leader; the receiver sees every change.
    pub fn leadership(&self) -> watch::Receiver<Leadership> {
        self.leadership.subscribe()
    }

    /// A check that fails if this replica considers itself the leader but has not renewed for the lease duration plus
    /// 20 s (CCM spec 7). It passes for waiting replicas.
    pub fn health(&self) -> Check {
        let renewed = Arc::clone(&self.renewed);
        let patience = self.config.timing.lease_duration + Duration::from_secs(20);
        Arc::new(move || match *renewed.lock() {
            Some(renewed) if renewed.elapsed() > patience => {
                Err(format!("the Lease was last renewed {} s ago", renewed.elapsed().as_secs()))
            }
            _ => Ok(()),
        })
    }

    /// Takes part until `stop`, then releases the Lease if this replica holds it. If the future is dropped, the Lease
    /// stays unchanged.
    pub async fn run(mut self, stop: CancellationToken) -> Result<HandBack, LeaderError> {
        let mut silent = self.silent.take();
        let mut elector = Elector::new(Instant::now(), self.config.clone());
        // The object for the next PUT; always in the version that the elector knows.
        let mut latest: Option<DynamicObject> = None;
        let mut request: Option<Request> = None;
        let mut events = self.watch(Duration::ZERO);
        let mut pause = WATCH_AGAIN_SOON;
        let mut tick = true;
        loop {
            let deadline = elector.deadline();
            let (input, object) = if std::mem::take(&mut tick) {
                (Input::Tick, None)
            } else {
                tokio::select! {
                    biased;
                    () = stop.cancelled() => break,
                    answer = async { request.as_mut().expect("polled only while there is one").await },
                    if request.is_some() => {
                        request = None;
                        answer
                    }
                    Some(event) = events.next() => match self.watched(event, &mut events, &mut pause) {
                        Some(seen) => seen,
                        None => continue,
                    },
                    hosts = told(&mut silent) => (Input::Silent(hosts), None),
                    () = async { tokio::time::sleep_until(deadline.expect("polled only if set")).await },
                    if deadline.is_some() => (Input::Tick, None),
                }
            };
            let action = elector.step(Instant::now(), Timestamp::now(), input);
            if let Some(object) =
                object.filter(|object| object.metadata.resource_version.as_deref() == elector.version())
            {
                latest = Some(object);
            }
            self.publish(&elector, latest.as_ref());
            if elector.has_ended() {
                let LeaderConfig { namespace, name, .. } = self.config;
                return Err(LeaderError::Lost { namespace, name });
            }
            if let Some(action) = action {
                request = Some(self.perform(action, latest.as_ref()));
            }
        }
        drop(request);
        Ok(self.release(&elector, latest).await)
    }

    fn watch(&self, after: Duration) -> BoxStream<'static, Result<watcher::Event<DynamicObject>, watcher::Error>> {
        if !self.config.watch {
            return futures::stream::pending().boxed();
        }
        // The server-side time-out limits how long a dead watch goes unnoticed; the Lease is polled besides anyway.
        let config = watcher::Config::default().fields(&format!("metadata.name={}", self.config.name));
        let events = watcher(self.api.clone(), config).default_backoff();
        async move {
            tokio::time::sleep(after).await;
            events
        }
        .flatten_stream()
        .boxed()
    }

    fn watched(
        &self,
        event: Result<watcher::Event<DynamicObject>, watcher::Error>,
        events: &mut BoxStream<'static, Result<watcher::Event<DynamicObject>, watcher::Error>>,
        pause: &mut Duration,
    ) -> Option<(Input, Option<DynamicObject>)> {
        match event {
            Ok(watcher::Event::InitApply(object)) => Some((Input::Watched(Some(observe(&object))), Some(object))),
            // These events prove that the watch is granted; a list does not.
            Ok(watcher::Event::Apply(object)) => {
                *pause = WATCH_AGAIN_SOON;
                Some((Input::Watched(Some(observe(&object))), Some(object)))
            }
            Ok(watcher::Event::Delete(_)) => {
                *pause = WATCH_AGAIN_SOON;
                Some((Input::Watched(None), None))
            }
            Ok(watcher::Event::Init | watcher::Event::InitDone) => None,
            Err(error) => {
                if crate::error::api_code(&error) == Some(403) {
                    if *pause == WATCH_REFUSED {
                        tracing::info!(
                            lease = %self.config.name, namespace = %self.config.namespace,
                            "the process has no right to list and watch Leases here; it reads the Lease every {:?}",
                            self.config.timing.retry_period
                        );
                    }
                    *events = self.watch(*pause);
                    *pause = (*pause * 2).min(WATCH_AGAIN);
                } else {
                    tracing::debug!(lease = %self.config.name, error = %chain(&error),
                        "the watch of the Lease failed; the process starts it again");
                }
                None
            }
        }
    }

    fn publish(&self, elector: &Elector, lease: Option<&DynamicObject>) {
        *self.renewed.lock() = elector.renewed();
        let now = elector.leadership();
        let before = self.leadership.borrow().clone();
        if before == now {
            return;
        }
        let lease_name = format!("{}/{}", self.config.namespace, self.config.name);
        match (&before, &now) {
            (before, Leadership::Leading { .. }) if !before.is_leading() => {
                tracing::info!(lease = lease_name, identity = self.config.identity, "the process became leader");
                self.tell(lease, "became leader");
            }
            (Leadership::Leading { .. }, Leadership::Leading { confirmed: false, .. }) => {
                tracing::warn!(
                    lease = lease_name,
                    "the process cannot renew the Lease; it stays leader until another process holds the Lease"
                );
            }
            (Leadership::Leading { .. }, Leadership::Leading { .. }) => {
                tracing::info!(lease = lease_name, "the process renews the Lease again");
            }
            (Leadership::Leading { .. }, _) => {
                tracing::warn!(lease = lease_name, identity = self.config.identity, "the process stopped leading");
                self.tell(lease, "stopped leading");
            }
            (_, Leadership::Following { holder }) if !holder.is_empty() => {
                tracing::info!(lease = lease_name, holder, "another process is the leader");
            }
            _ => {}
        }
        self.leadership.send_replace(now);
    }

    fn tell(&self, lease: Option<&DynamicObject>, what: &str) {
        let Some(recorder) = &self.recorder else { return };
        let reference = ObjectReference {
            uid: lease.and_then(|lease| lease.metadata.uid.clone()),
            resource_version: lease.and_then(|lease| lease.metadata.resource_version.clone()),
            ..lease_reference(&self.config.namespace, &self.config.name)
        };
        recorder.normal(&reference, "LeaderElection", &format!("{} {what}", self.config.identity));
    }

    fn perform(&self, action: Action, latest: Option<&DynamicObject>) -> Request {
        let api = self.api.clone();
        let name = self.config.name.clone();
        let patience = self.config.timing.renew_deadline / 2;
        let object = self.object(&action, latest);
        let outage = self.outage.clone();
        async move {
            let request = async {
                match (&action, object) {
                    (Action::Create(_), Some(object)) => {
                        Some(api.create(&PostParams::default(), &object).await).transpose()
                    }
                    (Action::Update { .. }, Some(object)) => {
                        Some(api.replace(&name, &PostParams::default(), &object).await).transpose()
                    }
                    _ => api.get_opt(&name).await,
                }
            };
            let read = action == Action::Read;
            match tokio::time::timeout(patience, request).await {
                Ok(Ok(object)) => {
                    outage.over(&name);
                    let observation = object.as_ref().map(observe);
                    let input = match observation {
                        observation if read => Input::Read(observation),
                        Some(observation) => Input::Wrote(observation),
                        None => Input::Failed,
                    };
                    (input, object)
                }
                Ok(Err(kube::Error::Api(status)))
                    if !read && (status.code == 409 || status.code == 404 && is_update(&action)) =>
                {
                    outage.over(&name);
                    (Input::Conflict, None)
                }
                Ok(Err(error)) => {
                    outage.failed(&name, verb(&action), &chain(&error));
                    (Input::Failed, None)
                }
                Err(_) => {
                    outage.failed(&name, verb(&action), &format!("no answer within {patience:?}"));
                    (Input::Failed, None)
                }
            }
        }
        .boxed()
    }

    fn object(&self, action: &Action, latest: Option<&DynamicObject>) -> Option<DynamicObject> {
        let new = || DynamicObject::new(&self.config.name, &lease::resource()).within(&self.config.namespace);
        let (mut object, record, version): (DynamicObject, &Record, Option<String>) = match action {
            Action::Read => return None,
            Action::Create(record) => (new(), record, None),
            Action::Update { record, version } => (latest.cloned().unwrap_or_else(new), record, Some(version.clone())),
        };
        lease::write(&mut object, record);
        if let Some((keys, value)) = &self.annotation {
            lease::annotate(&mut object, *keys, &self.config.identity, value());
        }
        object.metadata.resource_version = version;
        object.metadata.managed_fields = None;
        Some(object)
    }

    async fn release(&self, elector: &Elector, mut latest: Option<DynamicObject>) -> HandBack {
        let (mut handing_back, mut action) = match elector.hand_back(Timestamp::now()) {
            Ok(begun) => begun,
            Err(left) => return left,
        };
        let left = loop {
            let (answer, object) = self.perform(action.clone(), latest.as_ref()).await;
            if action == Action::Read {
                latest = object.or(latest);
            }
            match handing_back.step(answer) {
                Step::Send(next) => action = next,
                Step::End(left) => break left,
            }
        };
        if left == HandBack::Done {
            tracing::info!(lease = self.config.name, "the process released the Lease");
        }
        *self.renewed.lock() = None;
        self.tell(latest.as_ref(), "stopped leading");
        let holder = if let HandBack::Taken(holder) = &left { holder.clone() } else { String::new() };
        self.leadership.send_replace(Leadership::Following { holder });
        left
    }
}

/// Waits for the next change of the silent hosts.
async fn told(silent: &mut Option<watch::Receiver<BTreeSet<String>>>) -> BTreeSet<String> {
    if let Some(hosts) = silent {
        if hosts.changed().await.is_ok() {
            return hosts.borrow_and_update().clone();
        }
        // The source has ended, so its last report is void.
        *silent = None;
        return BTreeSet::new();
    }
    std::future::pending().await
}

fn observe(lease: &DynamicObject) -> Observation {
    Observation { record: lease::read(lease), version: lease.metadata.resource_version.clone().unwrap_or_default() }
}

fn is_update(action: &Action) -> bool {
    matches!(action, Action::Update { .. })
}

fn verb(action: &Action) -> &'static str {
    match action {
        Action::Read => "read",
        Action::Create(_) => "create",
        Action::Update { .. } => "update",
    }
}

#[cfg(test)]
#[path = "task_tests.rs"]
mod tests;
