//! Keeps a [`Cache`] equal to the state of the API server: a watch with back-off whose objects are trimmed, or polling
//! if the watch is refused.
//!
//! While the API server is away, the cache may be outdated but stays complete: it keeps its content until a complete
//! list replaces it.

mod ingest;
mod pace;

use std::convert::Infallible;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use futures::{Stream, StreamExt};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::runtime::watcher;
use kube::{Api, Resource};
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::cache::{Cache, Key};
use crate::error::{api_code, chain};
use crate::health::Check;
use ingest::{Ingest, Trim};
use pace::{Pace, is_expired};

/// First pause after a failure; doubled up to [`LONGEST_PAUSE`] or the configured limit, with jitter.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
/// Longest pause after a failure. The pause delays everything after the start of an API server: with ten seconds here,
/// outages of five seconds lasted fifteen and more.
const LONGEST_PAUSE: Duration = Duration::from_secs(3);

/// Number of objects per answer. All objects of an answer are in memory at once and untrimmed, many times the size of
/// their views, and the allocator never returns that memory to the system.
const PAGE: u32 = 50;

/// Longest duration of a watch, so that a dead connection is noticed soon.
const WATCH_SECONDS: u32 = 120;

/// First pause before a polling reflector tries to watch again, doubled up to [`TRY_WATCH_AGAIN`]. An API server that
/// has just started may refuse until it has read its RBAC rules.
const TRY_WATCH_SOON: Duration = Duration::from_secs(1);
/// Time after a failed watch without any event until the list is read. Short enough that an idle cache is not reported
/// as outdated ([`TOLERATED`]), and longer than any attempt, so that an API server that is away is not asked for lists.
const CONFIRM: Duration = Duration::from_secs(30);
/// A watch that lasts longer than this works, or the server was away meanwhile.
const LASTED: Duration = Duration::from_secs(10);
/// A refusal that lasts longer than this is not caused by a starting server.
const REFUSED_FOR_GOOD: Duration = Duration::from_secs(8);
/// Longest pause before the next attempt to watch: an administrator may have granted the right.
const TRY_WATCH_AGAIN: Duration = Duration::from_mins(10);
/// Pause after a refused list. Shorter, because without the list nothing works, and the administrator who grants the
/// right waits for it.
const TRY_LIST_AGAIN: Duration = Duration::from_mins(1);

/// Interval of the lists while the watch is refused, with jitter.
const POLL_EVERY: Duration = Duration::from_secs(5);

/// Errors that last longer than this make [`Reflector::freshness`] fail.
const TOLERATED: Duration = Duration::from_mins(1);

/// The state of a reflector.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Status {
    /// A complete list has arrived.
    pub synced: bool,
    /// The watch is refused; the list is polled.
    pub polling: bool,
    /// The right to read is missing: the API server has refused, and has returned no list since.
    pub forbidden: bool,
    /// The error, and since when. Cleared by the next success.
    pub error: Option<(Instant, String)>,
    /// Number of failures so far. An occasional reader also detects failures that are over.
    pub troubles: u64,
}

/// Fills one cache with the objects of one kind.
pub struct Reflector<O, K, V> {
    name: &'static str,
    api: Api<O>,
    config: watcher::Config,
    cache: Cache<K, V>,
    key: fn(&ObjectMeta) -> K,
    view: Trim<O, V>,
    returns: Option<watch::Receiver<u64>>,
    longest_pause: Duration,
    status: watch::Sender<Status>,
}

/// Why a watch has ended.
enum Ended {
    /// The list may be read, but not watched.
    Refused,
    /// The server is back, or the credentials are new: start again at once.
    Returned,
}

impl<O, K, V> Debug for Reflector<O, K, V> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reflector").field("name", &self.name).finish_non_exhaustive()
    }
}

impl<O, K, V> Reflector<O, K, V>
where
    O: Resource + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
    K: Key,
    V: Send + Sync + 'static,
{
    /// A reflector of `api` into `cache`. `name` is for logs, for example `services`. Objects for which `view` returns
    /// `None` are not kept.
    pub fn new(
        name: &'static str,
        api: Api<O>,
        cache: Cache<K, V>,
        key: fn(&ObjectMeta) -> K,
        view: impl Fn(&O) -> Option<V> + Send + Sync + 'static,
    ) -> Self {
        Self {
            name,
            api,
            config: watcher::Config::default().timeout(WATCH_SECONDS).page_size(PAGE),
            cache,
            key,
            view: Arc::new(view),
            returns: None,
            longest_pause: LONGEST_PAUSE,
            status: watch::Sender::default(),
        }
    }

    /// Restricts the reflector to objects with these labels.
    pub fn labels(mut self, selector: &str) -> Self {
        self.config = self.config.labels(selector);
        self
    }

    /// Restricts the reflector to objects with these fields.
    pub fn fields(mut self, selector: &str) -> Self {
        self.config = self.config.fields(selector);
        self
    }

    /// Makes the reflector start again at once when this changes, see [`crate::client::Switch::returns`].
    pub fn returns(mut self, returns: watch::Receiver<u64>) -> Self {
        self.returns = Some(returns);
        self
    }

    /// Sets the longest pause between attempts while the API server is away (default 3 s, with jitter), for caches that
    /// have to be up to date soon after its return.
    pub fn longest_pause(mut self, pause: Duration) -> Self {
        self.longest_pause = pause;
        self
    }

    /// The state; the receiver sees every change.
    pub fn status(&self) -> watch::Receiver<Status> {
        self.status.subscribe()
    }

    /// A check that fails until the first list has arrived. Afterwards the cache keeps its content while the server is
    /// away; [`Reflector::freshness`] covers that.
    pub fn check(&self) -> Check {
        let status = self.status.subscribe();
        let name = self.name;
        Arc::new(move || match &*status.borrow() {
            Status { synced: true, .. } => Ok(()),
            Status { error: Some((_, error)), .. } => Err(format!("{name} not listed yet: {error}")),
            Status { error: None, .. } => Err(format!("{name} not listed yet")),
        })
    }

    /// A check that fails when errors last longer than a minute.
    pub fn freshness(&self) -> Check {
        let status = self.status.subscribe();
        let name = self.name;
        Arc::new(move || match &status.borrow().error {
            Some((since, error)) if since.elapsed() > TOLERATED => {
                Err(format!("{name} not up to date for {} s: {error}", since.elapsed().as_secs()))
            }
            _ => Ok(()),
        })
    }

    /// Watches forever.
    pub async fn run(self) -> Infallible {
        let mut returns = self.returns.clone();
        let mut patience = TRY_WATCH_SOON;
        let mut told = false;
        loop {
            let begin = Instant::now();
            if let Ended::Returned = self.watch(&mut returns).await {
                self.begin_anew();
                patience = TRY_WATCH_SOON;
                continue;
            }
            if begin.elapsed() > LASTED {
                patience = TRY_WATCH_SOON;
            }
            let worked = self.status.send_if_modified(|status| !std::mem::replace(&mut status.polling, true));
            told &= !worked;
            if patience >= REFUSED_FOR_GOOD && !std::mem::replace(&mut told, true) {
                tracing::info!(
                    kind = self.name,
                    "the API server refuses the watch; the process reads the list every {:?} instead",
                    POLL_EVERY
                );
            }
            let until = Instant::now() + patience;
            patience = (patience * 2).min(TRY_WATCH_AGAIN);
            self.poll(until, &mut returns).await;
        }
    }

    /// Polls the list until it is time to try to watch again.
    async fn poll(&self, until: Instant, returns: &mut Option<watch::Receiver<u64>>) {
        loop {
            let pause = POLL_EVERY.mul_f64(0.8 + 0.4 * rand::random::<f64>());
            let left = until.saturating_duration_since(Instant::now());
            if returned_within(pause.min(left), returns).await {
                return self.begin_anew();
            }
            if pause >= left {
                return;
            }
            self.list().await;
        }
    }

    async fn watch(&self, returns: &mut Option<watch::Receiver<u64>>) -> Ended {
        let mut ingest = Ingest::new(self.cache.clone(), self.key, Arc::clone(&self.view));
        let mut pace = Pace::new(self.longest_pause);
        // When a watch that was refused before, and has been silent since, counts as working.
        let mut lasted = None;
        // When to read the list after a failure without an event since. A watch that continues where it stopped is
        // silent while nothing changes, so without the list its failure could go unnoticed for hours.
        let mut confirm = None;
        let mut events = std::pin::pin!(self.stream());
        loop {
            let event = tokio::select! {
                event = events.next() => event.expect("a watcher never ends"),
                () = returned(returns) => return Ended::Returned,
                () = async { tokio::time::sleep_until(lasted.expect("polled only if set")).await },
                if lasted.is_some() => {
                    lasted = None;
                    self.well(false);
                    continue;
                }
                () = async { tokio::time::sleep_until(confirm.expect("polled only if set")).await },
                if confirm.is_some() => {
                    confirm = None;
                    ingest = Ingest::new(self.cache.clone(), self.key, Arc::clone(&self.view));
                    events.set(self.stream());
                    continue;
                }
            };
            lasted = None;
            match event {
                Ok(event) => {
                    confirm = None;
                    let done = !matches!(event, watcher::Event::Init | watcher::Event::InitApply(_));
                    // A list does not prove that a watch which was refused is granted now.
                    let polling = matches!(event, watcher::Event::InitDone) && self.is_polling();
                    pace.arrived(&event);
                    ingest.take(event);
                    if done {
                        lasted = polling.then(|| Instant::now() + LASTED);
                        self.well(polling);
                    }
                }
                Err(watcher::Error::WatchStartFailed(error)) if api_code(&error) == Some(403) => {
                    return Ended::Refused;
                }
                Err(error) => {
                    // After 410 the list that follows is routine, as long as the watch works then.
                    if !is_expired(&error) {
                        self.unwell(&error);
                    }
                    let pause = pace.failed(&error);
                    if pace.expires_often(&error) {
                        tracing::warn!(
                            kind = self.name,
                            "the API server ends each watch with 410 as soon as it begins; the process reads the list \
                             again each time, after pauses of up to {:?}",
                            self.longest_pause
                        );
                    }
                    if returned_within(pause, returns).await {
                        return Ended::Returned;
                    }
                    // Further failures do not delay it, or a server that soon resets every watch would put it off
                    // forever.
                    confirm = confirm.or(Some(Instant::now() + CONFIRM));
                }
            }
        }
    }

    async fn list(&self) {
        let mut ingest = Ingest::new(self.cache.clone(), self.key, Arc::clone(&self.view));
        let mut events = std::pin::pin!(self.stream());
        while let Some(event) = events.next().await {
            match event {
                Ok(event) => {
                    let done = matches!(event, watcher::Event::InitDone);
                    ingest.take(event);
                    if done {
                        return self.well(true);
                    }
                }
                Err(error) => return self.unwell(&error),
            }
        }
    }

    fn stream(&self) -> impl Stream<Item = watcher::Result<watcher::Event<O>>> + use<O, K, V> {
        watcher(self.api.clone(), self.config.clone())
    }

    fn is_polling(&self) -> bool {
        self.status.borrow().polling
    }

    fn well(&self, polling: bool) {
        self.status.send_if_modified(|status| {
            let synced = self.cache.is_synced();
            let news = Status { synced, polling, forbidden: false, error: None, troubles: status.troubles };
            if let Some((since, _)) = &status.error {
                tracing::info!(kind = self.name, "the watch is up to date again after {} s", since.elapsed().as_secs());
            }
            let changed = *status != news;
            *status = news;
            changed
        });
    }

    /// Records that events may be missing until the next list. A watch on a broken connection reports nothing, so this
    /// may be the only sign of an outage, and [`Self::well`] that of its end.
    fn begin_anew(&self) {
        self.status.send_modify(|status| {
            status.error.get_or_insert_with(|| (Instant::now(), "the connection is established again".to_owned()));
            status.troubles += 1;
        });
    }

    fn unwell(&self, error: &watcher::Error) {
        let text = chain(error);
        self.status.send_modify(|status| {
            let since = status.error.as_ref().map(|(since, _)| *since);
            if since.is_none() {
                tracing::warn!(kind = self.name, error = text, "the watch failed; the process starts it again");
            } else {
                tracing::debug!(kind = self.name, error = text, "the watch failed; the process starts it again");
            }
            status.error = Some((since.unwrap_or_else(Instant::now), text));
            status.troubles += 1;
            status.forbidden |= api_code(error) == Some(403);
        });
    }
}

/// Completes when the server is back, see [`crate::client::Switch::returns`]; never completes without a source.
pub async fn returned(returns: &mut Option<watch::Receiver<u64>>) {
    let gone = match returns {
        Some(returns) => returns.changed().await.is_err(),
        None => true,
    };
    if gone {
        std::future::pending::<()>().await;
    }
}

/// Waits for the pause; returns true if the server came back before its end.
async fn returned_within(pause: Duration, returns: &mut Option<watch::Receiver<u64>>) -> bool {
    tokio::time::timeout(pause, returned(returns)).await.is_ok()
}

#[cfg(test)]
#[path = "reflect_tests.rs"]
mod tests;
