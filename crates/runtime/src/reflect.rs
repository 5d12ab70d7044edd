//! Keeps a [`Cache`] equal to what the API server has: watch with back-off, trimmed on ingest; polling where the watch is refused.
//!
//! An API server that is away costs freshness, never content: the cache keeps what it has until a complete list replaces it.

use std::collections::BTreeMap;
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

/// First pause after a failure; doubled up to [`LONGEST_PAUSE`] or what was asked for, with jitter.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// How long an endless watch may last: a connection that died silently is noticed soon after.
const WATCH_SECONDS: u32 = 120;

/// A reflector that polls tries to watch again after this time; somebody may have granted the right.
const TRY_WATCH_AGAIN: Duration = Duration::from_mins(10);

/// Errors that last longer than this make [`Reflector::freshness`] fail.
const TOLERATED: Duration = Duration::from_mins(1);

/// How a reflector is doing.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Status {
    /// A complete list has arrived.
    pub synced: bool,
    /// The watch is refused; the list is read again and again.
    pub polling: bool,
    /// What is wrong, since when. Cleared by the next success.
    pub error: Option<(Instant, String)>,
}

/// Makes the view of an object, or nothing if it is not to be kept.
type Trim<O, V> = Arc<dyn Fn(&O) -> Option<V> + Send + Sync>;

/// Fills one cache from one kind.
pub struct Reflector<O, K, V> {
    name: &'static str,
    api: Api<O>,
    config: watcher::Config,
    cache: Cache<K, V>,
    key: fn(&ObjectMeta) -> K,
    view: Trim<O, V>,
    poll_every: Duration,
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
    /// A reflector of `api` into `cache`. `name` is for logs, for example `services`. An object of which `view` makes nothing is
    /// not kept.
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
            config: watcher::Config::default().timeout(WATCH_SECONDS),
            cache,
            key,
            view: Arc::new(view),
            poll_every: Duration::from_secs(5),
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

    /// How often to read the list where the watch is refused (default 5 s, with jitter).
    pub fn poll_every(mut self, period: Duration) -> Self {
        self.poll_every = period;
        self
    }

    /// Look again at once when this changes, see [`crate::client::Switch::returns`].
    pub fn returns(mut self, returns: watch::Receiver<u64>) -> Self {
        self.returns = Some(returns);
        self
    }

    /// The longest pause between attempts while the API server is away (default 10 s, with jitter): for those who must know
    /// soon after it is back.
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
        loop {
            if let Ended::Returned = self.watch(&mut returns).await {
                self.begin_anew();
                continue;
            }
            let until = Instant::now() + TRY_WATCH_AGAIN;
            while Instant::now() < until {
                sleep(self.poll_every.mul_f64(0.8 + 0.4 * rand::random::<f64>()), &mut returns).await;
                self.list().await;
            }
        }
    }

    async fn watch(&self, returns: &mut Option<watch::Receiver<u64>>) -> Ended {
        let mut ingest = Ingest::new(self);
        let mut pause = FIRST_PAUSE;
        let mut events = std::pin::pin!(self.stream());
        loop {
            let event = tokio::select! {
                event = events.next() => event.expect("a watcher never ends"),
                () = changed(returns) => return Ended::Returned,
            };
            match event {
                Ok(event) => {
                    let done = !matches!(event, watcher::Event::Init | watcher::Event::InitApply(_));
                    // A list does not show yet that a watch which was refused is granted now.
                    let polling = matches!(event, watcher::Event::InitDone) && self.is_polling();
                    ingest.take(event);
                    if done {
                        pause = FIRST_PAUSE;
                        self.well(polling);
                    }
                }
                Err(watcher::Error::WatchStartFailed(error)) if api_code(&error) == Some(403) => {
                    let news = self.status.send_if_modified(|status| !std::mem::replace(&mut status.polling, true));
                    if news {
                        tracing::info!(
                            kind = self.name,
                            "watch refused: reading the list every {:?} instead",
                            self.poll_every
                        );
                    }
                    return Ended::Refused;
                }
                Err(error) => {
                    // 410: the version that we knew is compacted; the list that follows is routine.
                    let routine = matches!(&error, watcher::Error::WatchError(status) if status.code == 410);
                    if !routine {
                        self.unwell(&error);
                    }
                    if let Ended::Returned = sleep(pause.mul_f64(0.5 + rand::random::<f64>()), returns).await {
                        return Ended::Returned;
                    }
                    pause = (pause * 2).min(self.longest_pause);
                }
            }
        }
    }

    async fn list(&self) {
        let mut ingest = Ingest::new(self);
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
        let news = Status { synced: self.cache.is_synced(), polling, error: None };
        self.status.send_if_modified(|status| {
            if let Some((since, _)) = &status.error {
                tracing::info!(kind = self.name, "up to date again after {} s", since.elapsed().as_secs());
            }
            let changed = *status != news;
            *status = news;
            changed
        });
    }

    /// What was missed is not known before the next list. A watch over a wire that is cut says nothing, so this may be all that tells
    /// of the outage, and [`Self::well`] of its end.
    fn begin_anew(&self) {
        self.status.send_modify(|status| {
            status.error.get_or_insert_with(|| (Instant::now(), "the connection is made anew".to_owned()));
        });
    }

    fn unwell(&self, error: &watcher::Error) {
        let text = chain(error);
        self.status.send_modify(|status| {
            let since = status.error.as_ref().map(|(since, _)| *since);
            if since.is_none() {
                tracing::warn!(kind = self.name, error = text, "watch failed, retrying");
            } else {
                tracing::debug!(kind = self.name, error = text, "watch failed, retrying");
            }
            status.error = Some((since.unwrap_or_else(Instant::now), text));
        });
    }
}

/// Ends when the server is back.
async fn changed(returns: &mut Option<watch::Receiver<u64>>) {
    let gone = match returns {
        Some(returns) => returns.changed().await.is_err(),
        None => true,
    };
    if gone {
        std::future::pending::<()>().await;
    }
}

/// A pause, shorter when the server is back.
async fn sleep(pause: Duration, returns: &mut Option<watch::Receiver<u64>>) -> Ended {
    tokio::select! {
        () = tokio::time::sleep(pause) => Ended::Refused,
        () = changed(returns) => Ended::Returned,
    }
}

/// Turns watch events into cache content; holds a list back until it is complete.
struct Ingest<'a, O, K, V> {
    reflector: &'a Reflector<O, K, V>,
    list: BTreeMap<K, V>,
}

impl<'a, O: Resource, K: Key, V: Send + Sync + 'static> Ingest<'a, O, K, V> {
    fn new(reflector: &'a Reflector<O, K, V>) -> Self {
        Self { reflector, list: BTreeMap::new() }
    }

    fn take(&mut self, event: watcher::Event<O>) {
        let Reflector { cache, key, view, .. } = self.reflector;
        match event {
            watcher::Event::Init => self.list.clear(),
            watcher::Event::InitApply(object) => {
                if let Some(view) = view(&object) {
                    self.list.insert(key(object.meta()), view);
                }
            }
            watcher::Event::InitDone => cache.replace(std::mem::take(&mut self.list)),
            watcher::Event::Apply(object) => match view(&object) {
                Some(view) => cache.apply(key(object.meta()), view),
                None => cache.remove(&key(object.meta())),
            },
            watcher::Event::Delete(object) => cache.remove(&key(object.meta())),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicBool, Ordering};

    use k8s_openapi::api::core::v1::ConfigMap;
    use serde_json::{Value, json};

    use super::*;
    use crate::scenario::Scenario;

    fn reflector(scenario: &Scenario) -> (Reflector<ConfigMap, String, String>, Cache<String, String>) {
        let cache = Cache::new(|old, new| old != new);
        let reflector = Reflector::new(
            "configmaps",
            Api::namespaced(scenario.client(), "kube-system"),
            cache.clone(),
            |meta| meta.name.clone().unwrap_or_default(),
            |map: &ConfigMap| map.data.as_ref()?.get("value").cloned(),
        );
        (reflector, cache)
    }

    fn list(items: &[(&str, &str)]) -> Value {
        let items: Vec<Value> = items
            .iter()
            .map(|(name, value)| json!({"metadata": {"name": name, "namespace": "kube-system"}, "data": {"value": value}}))
            .collect();
        json!({"kind": "ConfigMapList", "apiVersion": "v1", "metadata": {"resourceVersion": "5"}, "items": items})
    }

    fn is_watch(query: &str) -> bool {
        query.contains("watch=true")
    }

    #[tokio::test(start_paused = true)]
    async fn where_the_watch_is_forbidden_the_list_is_polled() {
        let content = Arc::new(Mutex::new(list(&[("a", "1")])));
        let shown = Arc::clone(&content);
        let scenario = Scenario::answering(move |request| {
            if is_watch(&request.query) {
                return (403, Scenario::status(403, "Forbidden", "cannot watch"));
            }
            (200, shown.lock().unwrap().clone())
        });
        let (reflector, cache) = reflector(&scenario);
        let mut status = reflector.status();
        let check = reflector.check();
        assert!(check().unwrap_err().contains("not listed yet"));
        let task = tokio::spawn(reflector.run());
        cache.wait_synced().await;
        status.wait_for(|status| status.polling && status.synced).await.unwrap();
        assert_eq!(*cache.get(&"a".to_owned()).unwrap(), "1");

        let mut touched = cache.subscribe();
        assert_eq!(touched.next().await.unwrap(), "a");
        *content.lock().unwrap() = list(&[("a", "2")]);
        assert_eq!(touched.next().await.unwrap(), "a");
        assert_eq!(*cache.get(&"a".to_owned()).unwrap(), "2");
        assert_eq!(check(), Ok(()));
        task.abort();
    }

    /// Collects log lines.
    #[derive(Clone, Default)]
    struct Log(Arc<Mutex<Vec<u8>>>);

    impl std::io::Write for Log {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_refusal_is_told_once_and_again_only_after_the_watch_has_worked() {
        let log = Log::default();
        let lines = log.clone();
        let _guard = tracing::subscriber::set_default(
            tracing_subscriber::fmt().with_writer(move || lines.clone()).with_max_level(tracing::Level::INFO).finish(),
        );
        let told = || String::from_utf8(log.0.lock().unwrap().clone()).unwrap().matches("watch refused").count();
        let granted = Arc::new(AtomicBool::new(false));
        let allowed = Arc::clone(&granted);
        let scenario = Scenario::answering(move |request| {
            if !is_watch(&request.query) {
                return (200, list(&[("a", "1")]));
            }
            if allowed.swap(false, Ordering::Relaxed) {
                let object = json!({"kind": "ConfigMap", "apiVersion": "v1", "data": {"value": "2"},
                    "metadata": {"name": "a", "namespace": "kube-system", "resourceVersion": "6"}});
                return (200, json!({"type": "MODIFIED", "object": object}));
            }
            (403, Scenario::status(403, "Forbidden", "cannot watch"))
        });
        let (reflector, _) = reflector(&scenario);
        let mut status = reflector.status();
        let task = tokio::spawn(reflector.run());
        status.wait_for(|status| status.polling).await.unwrap();
        let watches = || scenario.requests().iter().filter(|seen| is_watch(&seen.query)).count();
        tokio::time::sleep(TRY_WATCH_AGAIN * 3).await;
        assert!(watches() >= 3, "it was tried again: {}", watches());
        assert_eq!(told(), 1);
        granted.store(true, Ordering::Relaxed);
        tokio::time::sleep(TRY_WATCH_AGAIN * 3).await;
        assert_eq!(told(), 2, "granted and withdrawn");
        task.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn an_api_server_that_is_away_takes_nothing_from_the_cache() {
        let away = Arc::new(AtomicBool::new(false));
        let gone = Arc::clone(&away);
        let scenario = Scenario::answering(move |request| {
            if gone.load(Ordering::Relaxed) {
                return (500, Scenario::status(500, "InternalError", "etcd is away"));
            }
            if is_watch(&request.query) {
                (403, Scenario::status(403, "Forbidden", "no"))
            } else {
                (200, list(&[("a", "1")]))
            }
        });
        let (reflector, cache) = reflector(&scenario);
        let mut status = reflector.status();
        let (check, freshness) = (reflector.check(), reflector.freshness());
        let task = tokio::spawn(reflector.run());
        cache.wait_synced().await;
        away.store(true, Ordering::Relaxed);
        status.wait_for(|status| status.error.is_some()).await.unwrap();
        assert_eq!(freshness(), Ok(()), "a short failure is not told");
        tokio::time::sleep(TOLERATED + Duration::from_secs(10)).await;
        assert!(freshness().unwrap_err().contains("etcd is away"));
        assert_eq!((check(), cache.len()), (Ok(()), 1), "what is known is still known");
        away.store(false, Ordering::Relaxed);
        status.wait_for(|status| status.error.is_none()).await.unwrap();
        assert_eq!(freshness(), Ok(()));
        task.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_is_back_is_listed_at_once() {
        let away = Arc::new(AtomicBool::new(true));
        let gone = Arc::clone(&away);
        let scenario = Scenario::answering(move |_| {
            if gone.load(Ordering::Relaxed) {
                return (500, Scenario::status(500, "InternalError", "etcd is away"));
            }
            (200, list(&[("a", "1")]))
        });
        let (reflector, cache) = reflector(&scenario);
        let returns = watch::Sender::new(0);
        let task = tokio::spawn(reflector.returns(returns.subscribe()).run());
        tokio::time::sleep(Duration::from_mins(5)).await;
        away.store(false, Ordering::Relaxed);
        let start = Instant::now();
        returns.send_modify(|returns| *returns += 1);
        cache.wait_synced().await;
        assert!(start.elapsed() < Duration::from_millis(100), "{:?}", start.elapsed());
        task.abort();
    }

    /// A cable that is cut: the watch neither fails nor ends, and yet Services wait for the end of the outage.
    #[tokio::test(start_paused = true)]
    async fn an_outage_that_the_watch_did_not_notice_is_told_by_the_list_after_it() {
        let scenario =
            Scenario::answering(
                |request| {
                    if is_watch(&request.query) { (0, Value::Null) } else { (200, list(&[("a", "1")])) }
                },
            );
        let (reflector, cache) = reflector(&scenario);
        let mut status = reflector.status();
        let returns = watch::Sender::new(0);
        let task = tokio::spawn(reflector.returns(returns.subscribe()).run());
        cache.wait_synced().await;
        status.wait_for(|status| status.synced).await.unwrap();
        assert!(!status.has_changed().unwrap());
        returns.send_modify(|returns| *returns += 1);
        tokio::time::timeout(Duration::from_secs(1), status.changed()).await.expect("it is told").unwrap();
        status.wait_for(|status| status.error.is_none()).await.unwrap();
        assert_eq!(scenario.requests().iter().filter(|seen| !is_watch(&seen.query)).count(), 2);
        task.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn who_must_know_soon_asks_often_while_the_api_server_is_away() {
        let attempts = |longest: Option<Duration>| async move {
            let scenario = Scenario::answering(|_| (500, Scenario::status(500, "InternalError", "etcd is away")));
            let (reflector, _) = reflector(&scenario);
            let reflector = match longest {
                Some(longest) => reflector.longest_pause(longest),
                None => reflector,
            };
            let task = tokio::spawn(reflector.run());
            tokio::time::sleep(Duration::from_mins(2)).await;
            task.abort();
            scenario.requests().len()
        };
        let (usual, often) = (attempts(None).await, attempts(Some(Duration::from_secs(1))).await);
        assert!(usual < 40 && often > 60, "{usual} and {often}");
    }

    #[tokio::test(start_paused = true)]
    async fn an_object_without_a_view_is_not_kept() {
        let scenario = Scenario::answering(|request| {
            if is_watch(&request.query) {
                return (403, Scenario::status(403, "Forbidden", "no"));
            }
            let mut list = list(&[("a", "1"), ("b", "2")]);
            list["items"][1]["data"] = json!({});
            (200, list)
        });
        let (reflector, cache) = reflector(&scenario);
        let task = tokio::spawn(reflector.run());
        cache.wait_synced().await;
        assert_eq!(cache.keys(), ["a"]);
        task.abort();
    }
}
