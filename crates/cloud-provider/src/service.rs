//! The service controller: a load balancer for every Service that wants one, and none for those that do not.
//!
//! `decide` computes what a Service needs, `reports` what its user is told, `apply` sends the requests; this file
//! contains the loop around them. Nothing here waits for the cloud: a pass that cannot continue ends, and a wake-up
//! starts the next one.

mod apply;
mod condition;
mod decide;
mod first_sight;
mod hold;
mod memory;
mod metrics;
mod pause;
mod preview;
mod reports;
mod shown;

use parking_lot::Mutex;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use kube::Client;
use runtime::error::{chain, is_conflict};
use runtime::events::Recorder;
use runtime::shutdown::Token;
use runtime::work_queue::{Backoff, QueueMetrics, WorkQueue};
use tokio::time::Instant;
use tracing::Instrument;

use apply::{Writer, reference};
pub use condition::NO_LOAD_BALANCER_YET;
use decide::{Release, Step, may_have_load_balancer};
pub use decide::{has_finalizer, is_set_back, wants_load_balancer};
use memory::ServiceState;
pub(crate) use metrics::ServiceMetrics;
use pause::{not_after, wait, within};
pub(crate) use preview::preview;
use reports::{Failing, ServiceEvent, is_refusal};

use crate::cache::ServiceCache;
use crate::provider::{Deleted, Ensured, LoadBalancers};
use crate::view::{ServiceKey, ServiceView};
use crate::worker::{self, Next};

/// Source component of the Events.
pub(crate) const COMPONENT: &str = "service-controller";

/// Back-off for failed passes (framework spec 1.1).
const BACKOFF: Backoff = Backoff { min: Duration::from_secs(5), max: Duration::from_mins(5) };

/// Pause after a conflict with another writer, in case the watch does not deliver the new state first.
const AFTER_CONFLICT: Duration = Duration::from_millis(250);

/// After this many conflicts in a row, another program keeps writing the Service: back off.
const CONFLICTS: u32 = 8;

/// Every Service is reconciled again after this time: a lost wake-up costs time only. Nothing is sent if all is well.
const RESYNC: Duration = Duration::from_mins(10);

/// So many passes may run concurrently at least; the flag can only raise the number. A pass waits only for the answers
/// to its own requests, and an API that does not answer must not block unrelated Services. The guarantees of
/// `--concurrent-service-syncs` hold: there are never two passes over one Service, and they begin in the order of the
/// queue.
///
/// Each pass may open a connection to either API, which stays open for minutes and takes 35 kB. More passes than the
/// host may work on concurrently bring no gain.
const PASSES: usize = 16;

/// Configuration of the controller.
#[derive(Debug, Clone)]
pub(crate) struct ServiceSettings {
    /// `--concurrent-service-syncs`.
    pub workers: usize,
    /// Metrics of the queue `service`.
    pub queue_metrics: QueueMetrics,
    /// Metrics of the controller.
    pub metrics: ServiceMetrics,
}

impl Default for ServiceSettings {
    fn default() -> Self {
        Self { workers: 1, queue_metrics: QueueMetrics::default(), metrics: ServiceMetrics::default() }
    }
}

/// The controller. Only the leader runs it; [`ServiceController::run`] is called once.
pub(crate) struct ServiceController {
    provider: Arc<dyn LoadBalancers>,
    cache: ServiceCache,
    writer: Writer,
    recorder: Recorder,
    queue: WorkQueue<ServiceKey>,
    settings: ServiceSettings,
    memory: Mutex<HashMap<ServiceKey, Box<ServiceState>>>,
}

impl ServiceController {
    /// Creates the controller.
    pub fn new(
        client: Client,
        provider: Arc<dyn LoadBalancers>,
        cache: ServiceCache,
        recorder: &Recorder,
        settings: ServiceSettings,
    ) -> Self {
        Self {
            provider,
            cache,
            writer: Writer::new(client),
            recorder: recorder.for_component(COMPONENT),
            queue: WorkQueue::new(BACKOFF, settings.queue_metrics.clone()),
            settings,
            memory: Mutex::default(),
        }
    }

    /// Runs until `stop`; passes that are under way are finished.
    pub async fn run(self, stop: Token) {
        let controller = &self;
        let process = |key: ServiceKey| {
            let span = tracing::info_span!("service", %key);
            async move { controller.process(&key).await }.instrument(span)
        };
        let workers = self.settings.workers.max(PASSES);
        worker::run(&self.cache, self.feed(), &self.queue, workers, process, &stop).await;
    }

    /// Puts keys into the queue.
    async fn feed(&self) {
        // Services from before the start have already waited, so new Services go first.
        self.cache.keys().into_iter().for_each(|key| self.add_if_ours(key, WorkQueue::add_last));
        let mut touched = self.cache.subscribe();
        let mut wakes = self.provider.wakes();
        let mut resync = tokio::time::interval_at(Instant::now() + RESYNC, RESYNC);
        loop {
            tokio::select! {
                Some(key) = touched.next() => self.add_if_ours(key, WorkQueue::add),
                // Work that has begun is finished before new work begins.
                Some(key) = wakes.next() => self.queue.add_first(key),
                _ = resync.tick() => {
                    // Services that are gone, too: the load balancer of one may wait for others that share its address.
                    let remembered: Vec<ServiceKey> = self.memory.lock().keys().cloned().collect();
                    let all: BTreeSet<ServiceKey> = self.cache.keys().into_iter().chain(remembered).collect();
                    for key in all {
                        self.add_if_ours(key, WorkQueue::add_last);
                    }
                }
                else => return,
            }
        }
    }

    /// Adds the key, unless the Service is none of this controller's, as most Services of a cluster.
    fn add_if_ours(&self, key: ServiceKey, add: impl Fn(&WorkQueue<ServiceKey>, ServiceKey)) {
        let ours = self.cache.get(&key).is_some_and(|view| wants_load_balancer(&view) || has_finalizer(&view));
        if ours || self.remembers(&key) {
            add(&self.queue, key);
        }
    }

    fn remembers(&self, key: &ServiceKey) -> bool {
        self.memory.lock().contains_key(key)
    }

    async fn process(&self, key: &ServiceKey) -> Next {
        // The entry stays during the pass, so that a change meanwhile is recognised as relevant.
        let mut memory = {
            let mut memories = self.memory.lock();
            std::mem::take(memories.entry(key.clone()).or_default())
        };
        let next = self.pass(key, &mut memory).await;
        let mut memories = self.memory.lock();
        if memory.is_empty() {
            memories.remove(key);
        } else {
            memories.insert(key.clone(), memory);
        }
        next
    }

    async fn pass(&self, key: &ServiceKey, memory: &mut ServiceState) -> Next {
        // At most twice: first the load balancer of a former Service of this name, then the Service itself.
        loop {
            let current = memory.written.newest(self.cache.get(key));
            let remembered = memory.served.clone();
            let step = decide::decide(current.as_deref(), remembered.as_deref());
            if let Some(held) = self.held(&step, current.as_ref(), memory) {
                return held;
            }
            match step {
                Step::Nothing => {
                    memory.nothing_is_left();
                    return Next::OnChange;
                }
                Step::Ensure { add_finalizer } => {
                    let service = current.expect("only a Service that exists is ensured");
                    return self.ensure(service, add_finalizer, memory).await;
                }
                Step::Cleanup(release) => {
                    let service = current.expect("only a Service that exists is released");
                    return self.clean_up(&service, release, memory).await;
                }
                Step::DeleteRemembered(old) => {
                    let failing = if may_have_load_balancer(old) { Failing::Delete } else { Failing::Unseen };
                    let next = current.as_deref().filter(|next| next.uid != old.uid && wants_load_balancer(next));
                    if let Some(next) = next {
                        memory.is_about(&next.uid);
                    }
                    match self.delete(old, failing, next, memory).await {
                        Ok(_) => memory.served = None,
                        Err(next) => return next,
                    }
                }
            }
        }
    }

    async fn ensure(&self, service: Arc<ServiceView>, add_finalizer: bool, memory: &mut ServiceState) -> Next {
        let found = ServiceView { resource_version: String::new(), ..ServiceView::clone(&service) };
        if let Some(rest) = memory.damper.rest(&found, Instant::now()) {
            return Next::After(rest);
        }
        let settled = memory.reports.is_settled();
        let mut service = service;
        // Stored before anything is sent: whatever fails from here on, the load balancer will be cleaned up.
        memory.served = Some(Arc::clone(&service));
        if add_finalizer {
            service = match self.take_over(&service, memory).await {
                Ok(written) => written,
                Err(next) => return next,
            };
        }
        let start = Instant::now();
        let answer = self.provider.ensure(&service).await;
        let result = match &answer {
            Ok(Ensured::Ready { changed: false, .. }) => "unchanged",
            Ok(Ensured::Ready { changed: true, .. }) => "changed",
            Ok(Ensured::Waiting(_)) => "waiting",
            Err(_) => "failed",
        };
        self.settings.metrics.called("ensure", result, start.elapsed());
        let later = self.show(&service, answer.as_ref(), memory).await;
        let corrected = add_finalizer || matches!(answer, Ok(Ensured::Ready { changed: true, .. }));
        if settled && corrected && memory.damper.repaired(found, Instant::now()) {
            let by = self.writer.other_writer(&service).await.ok().flatten();
            let tell = ServiceEvent::undone(by.as_deref());
            tracing::warn!("{}", tell.message);
            self.tell(&service, [tell]);
        }
        let next = match answer {
            Ok(answer) => {
                memory.conflicts = 0;
                let served = !service.ingress.is_empty();
                self.tell(&service, memory.reports.ensured(Instant::now(), &answer, served));
                match answer {
                    Ensured::Ready { changed, remark } => {
                        let told = memory.reports.remark(remark.as_ref(), service.conditions.warning.as_ref());
                        if let Some(tell) = &told {
                            tracing::info!("{}", tell.message);
                        }
                        self.tell(&service, told);
                        if changed {
                            tracing::info!("the load balancer is ready");
                        }
                        Next::OnChange
                    }
                    Ensured::Waiting(waiting) => wait(&waiting),
                }
            }
            Err(error) => {
                let permanent = error.permanent;
                let next = self.failed(&service, "failed to ensure load balancer", &error, permanent, memory);
                within(next, error.longest_pause)
            }
        };
        later.map_or(next, |later| not_after(next, later))
    }

    async fn clean_up(&self, service: &Arc<ServiceView>, release: Release, memory: &mut ServiceState) -> Next {
        // As above: if the Service vanishes before the cleanup is complete, this view is needed. A remembered Service
        // counts as this controller's, so one that may be another's is not remembered, however often it is tried.
        memory.served = (release == Release::Ours).then(|| Arc::clone(service));
        let existed = match self.delete(service, Failing::Sync, None, memory).await {
            Ok(existed) => existed,
            Err(next) => return next,
        };
        let remove_finalizer = release == Release::Ours || existed;
        let conditions = memory.shown.clone().unwrap_or_else(|| service.conditions.clone());
        let seen = ServiceView { conditions, ..ServiceView::clone(service) };
        match self.writer.release(&seen, remove_finalizer).await {
            Ok(written) => {
                memory.shown = None;
                if let Some(written) = written {
                    memory.written.note(service.resource_version.clone(), Arc::new(written));
                }
                memory.served = None;
                memory.conflicts = 0;
                Next::OnChange
            }
            Err(error) => {
                memory.served = remove_finalizer.then(|| Arc::clone(service));
                self.failed(service, "failed to remove load balancer cleanup finalizer", &error, false, memory)
            }
        }
    }

    /// Deletes the load balancer. `Ok` when it is gone, with whether there was one; `Err` with the time of the next
    /// attempt. `next`: the Service that has the name by now, and is told what it waits for.
    async fn delete(
        &self,
        service: &ServiceView,
        failing: Failing,
        next: Option<&ServiceView>,
        memory: &mut ServiceState,
    ) -> Result<bool, Next> {
        let start = Instant::now();
        let answer = self.provider.delete(service).await;
        let result = match &answer {
            Ok(Deleted::Gone { .. }) => "gone",
            Ok(Deleted::Waiting(_)) => "waiting",
            Ok(Deleted::Left(_)) => "left",
            Err(_) => "failed",
        };
        self.settings.metrics.called("delete", result, start.elapsed());
        match answer {
            Ok(answer) => {
                self.tell(service, memory.reports.deleted(Instant::now(), &answer, failing));
                match answer {
                    Deleted::Gone { existed } => {
                        if existed {
                            tracing::info!("the load balancer is deleted");
                        }
                        Ok(existed)
                    }
                    Deleted::Left(left) => {
                        tracing::info!("{}", left.message);
                        Ok(true)
                    }
                    Deleted::Waiting(waiting) => Err(match next {
                        Some(next) => self.waits_for_former(next, waiting, failing, memory).await,
                        None => wait(&waiting),
                    }),
                }
            }
            Err(error) => Err(match failing {
                Failing::Sync => {
                    let next = self.failed(service, "failed to delete load balancer", &error, false, memory);
                    within(next, error.longest_pause)
                }
                Failing::Delete | Failing::Unseen => {
                    let text = chain(&error);
                    tracing::warn!(
                        error = text,
                        "the controller failed to delete the load balancer of a deleted Service; it tries again"
                    );
                    self.tell(service, memory.reports.failed(Instant::now(), &text, failing, is_refusal(&error)));
                    if let Some(next) = next {
                        self.former_fails(next, &error, failing, memory).await;
                    }
                    within(Next::BackOff, error.longest_pause)
                }
            }),
        }
    }

    /// Turns a failure into a log line, an Event and a retry. No other place does.
    fn failed(
        &self,
        service: &ServiceView,
        step: &str,
        error: &(dyn std::error::Error + 'static),
        permanent: bool,
        memory: &mut ServiceState,
    ) -> Next {
        if is_conflict(error) && memory.conflicts < CONFLICTS {
            memory.conflicts += 1;
            tracing::debug!(error = chain(error), "another client changed the object; the controller reads it again");
            return Next::After(AFTER_CONFLICT);
        }
        let text = format!("{step}: {}", chain(error));
        let told = memory.reports.failed(Instant::now(), &text, Failing::Sync, is_refusal(error));
        if told.is_empty() {
            tracing::debug!("{text}");
        } else {
            tracing::warn!("{text}");
        }
        self.tell(service, told);
        if permanent { Next::OnChange } else { Next::BackOff }
    }

    fn tell(&self, service: &ServiceView, told: impl IntoIterator<Item = ServiceEvent>) {
        for ServiceEvent { kind, reason, message } in told {
            self.recorder.record(&reference(service), kind, reason, &message);
        }
    }
}

#[cfg(test)]
mod tests;
