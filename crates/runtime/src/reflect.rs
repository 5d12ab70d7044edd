//! Keeps a [`Cache`] equal to what the API server has: watch with back-off, trimmed on ingest; polling where the watch
//! is refused.
//!
//! An API server that is away costs freshness, never content: the cache keeps what it has until a complete list
//! replaces it.

mod ingest;

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

/// First pause after a failure; doubled up to [`LONGEST_PAUSE`] or what was asked for, with jitter.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
/// Whoever waits for an API server that starts waits for us too: outages of five seconds became fifteen and more with
/// ten seconds here.
const LONGEST_PAUSE: Duration = Duration::from_secs(3);

/// Objects of one answer. All of them are in memory at one time, whole, many times the size of the views that are made
/// of them: what one answer takes is never given back to the system.
const PAGE: u32 = 50;

/// How long an endless watch may last: a connection that died silently is noticed soon after.
const WATCH_SECONDS: u32 = 120;

/// A reflector that polls tries to watch again after this time, doubled up to [`TRY_WATCH_AGAIN`]: an API server that
/// has just started refuses what it allows as soon as it has read its rules.
const TRY_WATCH_SOON: Duration = Duration::from_secs(1);
/// After a failed watch of which nothing is heard: soon enough that nobody takes what rests for outdated
/// ([`TOLERATED`]), and longer than any attempt may take, so that an API server that is away is not asked for lists.
const CONFIRM: Duration = Duration::from_secs(30);
/// A watch that lasted for longer works, or the server was away meanwhile.
const LASTED: Duration = Duration::from_secs(10);
/// What is refused for so long is refused for longer than a server needs to start.
const REFUSED_FOR_GOOD: Duration = Duration::from_secs(8);
/// In the long run somebody may have granted the right.
const TRY_WATCH_AGAIN: Duration = Duration::from_mins(10);
/// Without the list nothing works: whoever grants the right waits for us.
const TRY_LIST_AGAIN: Duration = Duration::from_mins(1);

/// How often the list is read where the watch is refused, with jitter.
const POLL_EVERY: Duration = Duration::from_secs(5);

/// Errors that last longer than this make [`Reflector::freshness`] fail.
const TOLERATED: Duration = Duration::from_mins(1);

/// How a reflector is doing.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Status {
    /// A complete list has arrived.
    pub synced: bool,
    /// The watch is refused; the list is read again and again.
    pub polling: bool,
    /// The right to read is missing: the API server has said so, and given no list since.
    pub forbidden: bool,
    /// What is wrong, since when. Cleared by the next success.
    pub error: Option<(Instant, String)>,
    /// How often something went wrong. Who looks now and then sees by it what has come and gone.
    pub troubles: u64,
}

/// Fills one cache from one kind.
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

/// Why a watch is given up.
enum Ended {
    /// The list may be read, but not watched.
    Refused,
    /// The server is back, or the credentials are new: begin afresh, at once.
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
    /// A reflector of `api` into `cache`. `name` is for logs, for example `services`. An object of which `view` makes
    /// nothing is not kept.
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

    /// Only objects with these labels.
    pub fn labels(mut self, selector: &str) -> Self {
        self.config = self.config.labels(selector);
        self
    }

    /// Only objects with these fields.
    pub fn fields(mut self, selector: &str) -> Self {
        self.config = self.config.fields(selector);
        self
    }

    /// Look again at once when this changes, see [`crate::client::Switch::returns`].
    pub fn returns(mut self, returns: watch::Receiver<u64>) -> Self {
        self.returns = Some(returns);
        self
    }

    /// The longest pause between attempts while the API server is away (default 3 s, with jitter): for those who must
    /// know soon after it is back.
    pub fn longest_pause(mut self, pause: Duration) -> Self {
        self.longest_pause = pause;
        self
    }

    /// How it is doing, now and from now on.
    pub fn status(&self) -> watch::Receiver<Status> {
        self.status.subscribe()
    }

    /// Fails until the first list has arrived. What was known then stays known while the server is away: that is
    /// [`Reflector::freshness`].
    pub fn check(&self) -> Check {
        let status = self.status.subscribe();
        let name = self.name;
        Arc::new(move || match &*status.borrow() {
            Status { synced: true, .. } => Ok(()),
            Status { error: Some((_, error)), .. } => Err(format!("{name} not listed yet: {error}")),
            Status { error: None, .. } => Err(format!("{name} not listed yet")),
        })
    }

    /// Fails when errors last for more than a minute.
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

    /// Watches for ever.
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

    /// Reads the list now and then, until it is time to try to watch again.
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
        let mut pause = FIRST_PAUSE;
        let mut forbidden_since = None;
        // When a watch that was refused before, and of which nothing has been heard since, has lasted.
        let mut lasted = None;
        // When to read the list again after a failure of which nothing has been heard since: a watch that goes on where
        // it stopped says nothing as long as nothing changes, and whether it does would not be known for hours.
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
                    // A list does not show yet that a watch which was refused is granted now.
                    let polling = matches!(event, watcher::Event::InitDone) && self.is_polling();
                    ingest.take(event);
                    if done {
                        (pause, forbidden_since) = (FIRST_PAUSE, None);
                        lasted = polling.then(|| Instant::now() + LASTED);
                        self.well(polling);
                    }
                }
                Err(watcher::Error::WatchStartFailed(error)) if api_code(&error) == Some(403) => {
                    return Ended::Refused;
                }
                Err(error) => {
                    // 410: the version that we knew is compacted; the list that follows is routine.
                    let routine = matches!(&error, watcher::Error::WatchError(status) if status.code == 410);
                    if !routine {
                        self.unwell(&error);
                    }
                    if returned_within(pause.mul_f64(0.5 + rand::random::<f64>()), returns).await {
                        return Ended::Returned;
                    }
                    forbidden_since =
                        (api_code(&error) == Some(403)).then(|| forbidden_since.unwrap_or_else(Instant::now));
                    pause = (pause * 2).min(self.longest_after(forbidden_since));
                    // Not later with each failure: who resets every watch soon would put it off for ever.
                    confirm = confirm.or(Some(Instant::now() + CONFIRM));
                }
            }
        }
    }

    /// The longest pause after a failure. A list that is forbidden for longer than a server needs to start is so until
    /// somebody grants the right.
    fn longest_after(&self, forbidden_since: Option<Instant>) -> Duration {
        let for_good = forbidden_since.is_some_and(|since| since.elapsed() >= REFUSED_FOR_GOOD);
        if for_good { TRY_LIST_AGAIN } else { self.longest_pause }
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

    /// What was missed is not known before the next list. A watch over a wire that is cut says nothing, so this may be
    /// all that tells of the outage, and [`Self::well`] of its end.
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

/// Ends when the server is back, see [`crate::client::Switch::returns`]; never where nobody tells.
pub async fn returned(returns: &mut Option<watch::Receiver<u64>>) {
    let gone = match returns {
        Some(returns) => returns.changed().await.is_err(),
        None => true,
    };
    if gone {
        std::future::pending::<()>().await;
    }
}

/// A pause, shorter when the server is back: true.
async fn returned_within(pause: Duration, returns: &mut Option<watch::Receiver<u64>>) -> bool {
    tokio::time::timeout(pause, returned(returns)).await.is_ok()
}

#[cfg(test)]
#[path = "reflect_tests.rs"]
mod tests;
