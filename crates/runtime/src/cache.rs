//! A cache in memory per kind, with only the fields that decisions use, and subscriptions to changed keys.
//!
//! The cache is independent of the source: [`crate::reflect`] fills it from a watch, tests fill it directly.

use parking_lot::{Mutex, RwLock};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker};

use futures::Stream;
use tokio::sync::watch;

/// A type that can be a key: `ServiceKey`, a node name.
pub trait Key: Clone + Ord + Debug + Send + Sync + 'static {}
impl<K: Clone + Ord + Debug + Send + Sync + 'static> Key for K {}

/// Whether a newer view of an object differs in a field that decisions use. If only the `resourceVersion` differs, the
/// view is stored without a notification.
pub type Differs<V> = fn(&V, &V) -> bool;

/// A shared cache of views by key. Cheap to clone; all clones are the same cache.
#[derive(Debug)]
pub struct Cache<K, V> {
    inner: Arc<Inner<K, V>>,
}

#[derive(Debug)]
struct Inner<K, V> {
    state: RwLock<State<K, V>>,
    differs: Differs<V>,
    synced: watch::Sender<bool>,
}

#[derive(Debug)]
struct State<K, V> {
    entries: BTreeMap<K, Arc<V>>,
    /// What the last list did not have any more, and what the one before it did not.
    missing: [BTreeSet<K>; 2],
    subscribers: Vec<Weak<Mutex<Pending<K>>>>,
}

#[derive(Debug)]
struct Pending<K> {
    keys: BTreeSet<K>,
    waker: Option<Waker>,
    closed: bool,
}

impl<K, V> Clone for Cache<K, V> {
    fn clone(&self) -> Self {
        Self { inner: Arc::clone(&self.inner) }
    }
}

impl<K: Key, V: Send + Sync + 'static> Cache<K, V> {
    /// An empty cache that is not synced yet.
    pub fn new(differs: Differs<V>) -> Self {
        let state = State { entries: BTreeMap::new(), missing: Default::default(), subscribers: Vec::new() };
        Self { inner: Arc::new(Inner { state: RwLock::new(state), differs, synced: watch::Sender::new(false) }) }
    }

    /// A synced cache with this content.
    #[cfg(any(test, feature = "scenario"))]
    pub fn in_memory(differs: Differs<V>, entries: impl IntoIterator<Item = (K, V)>) -> Self {
        let cache = Self::new(differs);
        cache.replace(entries.into_iter().collect());
        cache
    }

    /// The view of `key`, if it exists.
    pub fn get(&self, key: &K) -> Option<Arc<V>> {
        self.read(|state| state.entries.get(key).map(Arc::clone))
    }

    /// Whether the object of `key` was not in a complete list any more, and nobody has seen it go. It is for keys that
    /// were just told as gone: after two more lists they are forgotten.
    pub fn is_missing(&self, key: &K) -> bool {
        self.read(|state| state.missing.iter().any(|missing| missing.contains(key)))
    }

    /// All views, ordered by key.
    pub fn all(&self) -> Vec<Arc<V>> {
        self.read(|state| state.entries.values().map(Arc::clone).collect())
    }

    /// All keys, in order.
    pub fn keys(&self) -> Vec<K> {
        self.read(|state| state.entries.keys().cloned().collect())
    }

    /// Number of objects.
    pub fn len(&self) -> usize {
        self.read(|state| state.entries.len())
    }

    /// Whether there is no object.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A subscription to keys that appear, change or disappear. It begins with every existing key, so a late subscriber
    /// misses nothing.
    pub fn subscribe(&self) -> Touched<K> {
        let mut state = self.inner.state.write();
        let pending = Pending { keys: state.entries.keys().cloned().collect(), waker: None, closed: false };
        let pending = Arc::new(Mutex::new(pending));
        state.subscribers.retain(|subscriber| subscriber.strong_count() > 0);
        state.subscribers.push(Arc::downgrade(&pending));
        Touched { pending }
    }

    /// Whether the first complete list has arrived.
    pub fn is_synced(&self) -> bool {
        *self.inner.synced.borrow()
    }

    /// Waits until the first complete list has arrived.
    pub async fn wait_synced(&self) {
        let mut synced = self.inner.synced.subscribe();
        // The sender lives in `inner`, which `self` holds.
        let _ = synced.wait_for(|synced| *synced).await;
    }

    /// Reports everything to one listener: each object of the first complete list, once; the end of that list; then
    /// every change, with no view if the object is gone. Ends when the cache is dropped.
    pub async fn follow(&self, mut told: impl FnMut(CacheEvent<'_, K, V>)) {
        self.wait_synced().await;
        // The subscription itself delivers existing keys; a scan of the cache would report them twice.
        let mut touched = self.subscribe();
        for key in touched.take_all() {
            told(CacheEvent::Object(&key, self.get(&key).as_deref()));
        }
        told(CacheEvent::Listed);
        while let Some(key) = touched.next().await {
            told(CacheEvent::Object(&key, self.get(&key).as_deref()));
        }
    }

    /// Stores one view, and notifies the subscribers if it differs.
    pub fn apply(&self, key: K, view: V) {
        self.write(|state, differs| {
            let view = Arc::new(view);
            for missing in &mut state.missing {
                missing.remove(&key);
            }
            let old = state.entries.insert(key.clone(), Arc::clone(&view));
            if old.is_none_or(|old| differs(&old, &view)) { BTreeSet::from([key]) } else { BTreeSet::new() }
        });
    }

    /// Removes one object, and notifies the subscribers if it existed.
    pub fn remove(&self, key: &K) {
        self.write(|state, _| state.entries.remove(key).map(|_| key.clone()).into_iter().collect());
    }

    /// Replaces the content with a complete list: objects that are not in it are removed. Marks the cache as synced.
    pub fn replace(&self, entries: BTreeMap<K, V>) {
        self.write(|state, differs| {
            let mut new: BTreeMap<K, Arc<V>> = entries.into_iter().map(|(key, view)| (key, Arc::new(view))).collect();
            std::mem::swap(&mut state.entries, &mut new);
            let old = new;
            let gone: BTreeSet<K> = old.keys().filter(|key| !state.entries.contains_key(key)).cloned().collect();
            let mut touched = gone.clone();
            let [last, before] = &mut state.missing;
            *before = std::mem::replace(last, gone);
            before.retain(|key| !state.entries.contains_key(key));
            for (key, view) in &state.entries {
                if old.get(key).is_none_or(|old| differs(old, view)) {
                    touched.insert(key.clone());
                }
            }
            touched
        });
        self.inner.synced.send_replace(true);
    }

    fn read<R>(&self, look: impl FnOnce(&State<K, V>) -> R) -> R {
        look(&self.inner.state.read())
    }

    fn write(&self, change: impl FnOnce(&mut State<K, V>, Differs<V>) -> BTreeSet<K>) {
        let mut state = self.inner.state.write();
        let touched = change(&mut state, self.inner.differs);
        if touched.is_empty() {
            return;
        }
        state.subscribers.retain(|subscriber| match subscriber.upgrade() {
            Some(pending) => {
                tell(&pending, |pending| pending.keys.extend(touched.iter().cloned()));
                true
            }
            None => false,
        });
    }
}

fn tell<K>(pending: &Mutex<Pending<K>>, change: impl FnOnce(&mut Pending<K>)) {
    let waker = {
        let mut pending = pending.lock();
        change(&mut pending);
        pending.waker.take()
    };
    if let Some(waker) = waker {
        waker.wake();
    }
}

impl<K, V> Drop for Inner<K, V> {
    fn drop(&mut self) {
        let state = self.state.get_mut();
        for subscriber in state.subscribers.iter().filter_map(Weak::upgrade) {
            tell(&subscriber, |pending| pending.closed = true);
        }
    }
}

/// An event of [`Cache::follow`].
#[derive(Debug)]
pub enum CacheEvent<'a, K, V> {
    /// The current view of an object; `None`: the object is gone.
    Object(&'a K, Option<&'a V>),
    /// All objects of the first list have been reported.
    Listed,
}

/// A stream of touched keys. A key that is touched again before it was taken is delivered once: the memory of a slow
/// subscriber is bounded by the number of keys. Ends when the cache is dropped.
#[derive(Debug)]
pub struct Touched<K> {
    pending: Arc<Mutex<Pending<K>>>,
}

impl<K: Key> Touched<K> {
    /// The next touched key; `None` when the cache is gone.
    pub async fn next(&mut self) -> Option<K> {
        std::future::poll_fn(|context| self.poll(context)).await
    }

    /// Takes all keys that are pending.
    fn take_all(&mut self) -> BTreeSet<K> {
        std::mem::take(&mut self.pending.lock().keys)
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<K>> {
        let mut pending = self.pending.lock();
        if let Some(key) = pending.keys.pop_first() {
            return Poll::Ready(Some(key));
        }
        if pending.closed {
            return Poll::Ready(None);
        }
        pending.waker = Some(context.waker().clone());
        Poll::Pending
    }
}

impl<K: Key> Stream for Touched<K> {
    type Item = K;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<K>> {
        self.get_mut().poll(context)
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    /// (resource version, what counts)
    type View = (u32, &'static str);

    fn cache(entries: &[(&'static str, View)]) -> Cache<&'static str, View> {
        Cache::in_memory(|old, new| old.1 != new.1, entries.iter().copied())
    }

    fn drain(touched: &mut Touched<&'static str>) -> Vec<&'static str> {
        std::iter::from_fn(|| touched.next().now_or_never().flatten()).collect()
    }

    #[test]
    fn a_late_subscriber_gets_every_key_that_is_there() {
        assert_eq!(drain(&mut cache(&[("a", (1, "x")), ("b", (1, "y"))]).clone().subscribe()), ["a", "b"]);
    }

    #[test]
    fn a_newer_resource_version_alone_is_stored_and_not_told() {
        let cache = cache(&[("a", (1, "x"))]);
        let mut touched = cache.subscribe();
        drain(&mut touched);
        cache.apply("a", (2, "x"));
        assert_eq!(drain(&mut touched), Vec::<&str>::new());
        assert_eq!(*cache.get(&"a").unwrap(), (2, "x"));
        cache.apply("a", (3, "y"));
        assert_eq!(drain(&mut touched), ["a"]);
    }

    #[test]
    fn a_new_list_tells_what_changed_and_what_is_gone() {
        let cache = cache(&[("changed", (1, "x")), ("gone", (1, "x")), ("same", (1, "x"))]);
        let mut touched = cache.subscribe();
        drain(&mut touched);
        cache.replace(BTreeMap::from([("changed", (2, "y")), ("new", (2, "x")), ("same", (2, "x"))]));
        assert_eq!(drain(&mut touched), ["changed", "gone", "new"]);
        assert_eq!(cache.keys(), ["changed", "new", "same"]);
    }

    #[test]
    fn what_a_list_does_not_have_any_more_is_missing_and_what_was_seen_to_go_is_not() {
        let cache = cache(&[("deleted", (1, "x")), ("missing", (1, "x")), ("back", (1, "x")), ("there", (1, "x"))]);
        let list = |names: &[&'static str]| names.iter().map(|name| (*name, (1, "x"))).collect();
        let missing = || ["deleted", "missing", "back", "there"].map(|name| cache.is_missing(&name));
        cache.remove(&"deleted");
        assert_eq!(missing(), [false; 4]);
        cache.replace(list(&["there"]));
        assert_eq!(missing(), [false, true, true, false]);
        cache.apply("back", (1, "x"));
        cache.remove(&"back");
        cache.replace(list(&["there"]));
        assert_eq!(missing(), [false, true, false, false], "a slow subscriber has time");
        cache.replace(list(&["there"]));
        assert_eq!(missing(), [false; 4], "and it is not kept for ever");
    }

    #[test]
    fn a_key_touched_twice_is_delivered_once() {
        let cache = cache(&[]);
        let mut touched = cache.subscribe();
        cache.apply("a", (1, "x"));
        cache.remove(&"a");
        cache.remove(&"a");
        assert_eq!(drain(&mut touched), ["a"]);
    }

    #[test]
    fn a_follower_is_told_the_first_list_once_then_that_it_is_complete_then_what_changes() {
        let cache = cache(&[("a", (1, "x")), ("b", (1, "y"))]);
        let told = Mutex::new(Vec::new());
        let mut following = Box::pin(cache.follow(|news| {
            told.lock().push(match news {
                CacheEvent::Object(key, view) => format!("{key} {:?}", view.map(|view| view.1)),
                CacheEvent::Listed => "listed".to_owned(),
            });
        }));
        let mut news = || {
            assert!(following.as_mut().now_or_never().is_none(), "the cache is still there");
            std::mem::take(&mut *told.lock())
        };
        assert_eq!(news(), [r#"a Some("x")"#, r#"b Some("y")"#, "listed"]);
        cache.remove(&"a");
        cache.apply("b", (2, "z"));
        assert_eq!(news(), ["a None", r#"b Some("z")"#]);
        assert_eq!(news(), Vec::<String>::new());
    }

    #[test]
    fn a_follower_hears_nothing_before_the_first_list_is_complete() {
        let cache: Cache<&str, View> = Cache::new(|_, _| true);
        cache.apply("a", (1, "x"));
        let told = Mutex::new(0);
        let mut following = Box::pin(cache.follow(|_| *told.lock() += 1));
        assert!(following.as_mut().now_or_never().is_none());
        assert_eq!(*told.lock(), 0);
        cache.replace(BTreeMap::from([("a", (1, "x"))]));
        assert!(following.as_mut().now_or_never().is_none());
        assert_eq!(*told.lock(), 2, "the object, and that it was the only one");
    }

    #[tokio::test]
    async fn a_subscription_ends_with_the_cache() {
        let cache = cache(&[]);
        let mut touched = cache.subscribe();
        let waiting = tokio::spawn(async move { touched.next().await });
        tokio::task::yield_now().await;
        drop(cache);
        assert_eq!(waiting.await.unwrap(), None);
    }

    #[tokio::test]
    async fn waiting_for_the_first_list_ends_with_it() {
        let cache: Cache<&str, View> = Cache::new(|_, _| true);
        assert!(cache.wait_synced().now_or_never().is_none());
        cache.replace(BTreeMap::new());
        cache.wait_synced().await;
        assert!(cache.is_synced());
    }
}
