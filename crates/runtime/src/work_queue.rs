//! A queue of keys with client-go's semantics. A key waits once, however often it is added. It is never processed twice
//! at the same time. If it is added while it is processed, it is processed once more.
//!
//! Delays and back-off are deadlines inside [`WorkQueue::next`]; there are no timer tasks.

mod metrics;
mod state;

use parking_lot::Mutex;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

pub use metrics::{QueueMetrics, WorkQueueMetrics};
use state::State;

use crate::cache::Key;

/// Exponential back-off of one key: `min`, doubled with each failure, up to `max`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    /// Delay after the first failure.
    pub min: Duration,
    /// Longest delay.
    pub max: Duration,
}

impl Backoff {
    /// Delay after this many failures (the first is 1).
    pub fn delay(&self, failures: u32) -> Duration {
        let factor = 1_u32.checked_shl(failures.saturating_sub(1)).unwrap_or(u32::MAX);
        self.min.checked_mul(factor).map_or(self.max, |delay| delay.min(self.max))
    }
}

/// A shared queue. Cheap to clone; all clones are the same queue.
pub struct WorkQueue<K> {
    inner: Arc<Inner<K>>,
}

struct Inner<K> {
    state: Mutex<State<K>>,
    wake: Notify,
    backoff: Backoff,
    metrics: QueueMetrics,
}

impl<K> Clone for WorkQueue<K> {
    fn clone(&self) -> Self {
        Self { inner: Arc::clone(&self.inner) }
    }
}

impl<K> fmt::Debug for WorkQueue<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkQueue").field("backoff", &self.inner.backoff).finish_non_exhaustive()
    }
}

impl<K: Key> WorkQueue<K> {
    /// An empty queue. `metrics` come from [`WorkQueueMetrics::queue`]; those of [`QueueMetrics::default`] are not
    /// registered.
    pub fn new(backoff: Backoff, metrics: QueueMetrics) -> Self {
        let state = Mutex::new(State::default());
        Self { inner: Arc::new(Inner { state, wake: Notify::new(), backoff, metrics }) }
    }

    /// Puts `key` at the end, unless it already waits. A delay of the key continues.
    pub fn add(&self, key: K) {
        self.put(|state, now| state.add(now, key));
    }

    /// Like [`Self::add`], but after all keys that were not added like this: for keys from before the start, which are
    /// not urgent.
    pub fn add_last(&self, key: K) {
        self.put(|state, now| state.add_last(now, key));
    }

    /// Like [`Self::add`], but before all others, so that work in progress is finished before new work begins. One of
    /// five turns goes to the last lane, so that no key starves.
    pub fn add_first(&self, key: K) {
        self.put(|state, now| state.add_first(now, key));
    }

    fn put(&self, add: impl FnOnce(&mut State<K>, Instant) -> bool) {
        {
            let mut state = self.inner.state.lock();
            let added = add(&mut state, Instant::now());
            self.inner.metrics.added(u64::from(added));
            self.inner.metrics.depth(state.waiting());
        }
        self.inner.wake.notify_one();
    }

    /// Adds `key` after `delay`. Of several delays of one key the shortest counts.
    pub fn add_after(&self, key: K, delay: Duration) {
        if delay.is_zero() {
            return self.add(key);
        }
        self.inner.state.lock().add_at(Instant::now() + delay, key);
        self.inner.wake.notify_one();
    }

    /// Adds `key` after its back-off, which grows with each failure after its end. A failure before that, because the
    /// key was woken, does not change it. Returns the delay.
    pub fn add_rate_limited(&self, key: K) -> Duration {
        self.add_rate_limited_within(key, self.inner.backoff.max)
    }

    /// Like [`Self::add_rate_limited`], with a shorter limit of the delay. It counts also while a longer delay lasts.
    pub fn add_rate_limited_within(&self, key: K, longest: Duration) -> Duration {
        let now = Instant::now();
        let at = self.inner.state.lock().fail(now, &key, |failures| self.inner.backoff.delay(failures).min(longest));
        let delay = at.saturating_duration_since(now).min(longest);
        self.inner.metrics.retried();
        self.add_after(key, delay);
        delay
    }

    /// Resets the failures of `key`, so that its back-off starts from the beginning.
    pub fn forget(&self, key: &K) {
        self.inner.state.lock().forget(key);
    }

    /// Number of failures of `key` since the last reset.
    pub fn failures(&self, key: &K) -> u32 {
        self.inner.state.lock().failures(key)
    }

    /// Waits for the next key to process. `None` after [`WorkQueue::shut_down`]. The key counts as processed when the
    /// [`Job`] is dropped.
    pub async fn next(&self) -> Option<Job<K>> {
        loop {
            let woken = self.inner.wake.notified();
            tokio::pin!(woken);
            // Registered before the check, so that a key that is added in between is not missed.
            woken.as_mut().enable();
            let deadline = {
                let now = Instant::now();
                let mut state = self.inner.state.lock();
                if state.is_shut_down() {
                    return None;
                }
                let adds = state.promote(now);
                self.inner.metrics.added(adds);
                if let Some((key, queued)) = state.take() {
                    let number = self.inner.metrics.started(state.waiting(), now - queued);
                    if state.waiting() > 0 {
                        // A permit stored by `notify_one` stands for one wake-up only; pass it on.
                        self.inner.wake.notify_one();
                    }
                    return Some(Job { queue: self.clone(), key, number, started: now });
                }
                state.deadline()
            };
            match deadline {
                Some(deadline) => {
                    tokio::select! {
                        () = woken => {}
                        () = tokio::time::sleep_until(deadline) => {}
                    }
                }
                None => woken.await,
            }
        }
    }

    /// Makes every `next` return `None` from now on. Jobs under way continue.
    pub fn shut_down(&self) {
        self.inner.state.lock().shut_down();
        self.inner.wake.notify_waiters();
    }

    /// Number of keys that wait to be processed, without delayed ones.
    pub fn len(&self) -> usize {
        self.inner.state.lock().waiting()
    }

    /// Whether no key waits to be processed.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A key that is being processed. Dropping it ends the processing; if the key was added meanwhile, it waits again.
#[derive(Debug)]
pub struct Job<K: Key> {
    queue: WorkQueue<K>,
    key: K,
    number: u64,
    started: Instant,
}

impl<K: Key> Job<K> {
    /// The key.
    pub fn key(&self) -> &K {
        &self.key
    }
}

impl<K: Key> Drop for Job<K> {
    fn drop(&mut self) {
        let now = Instant::now();
        {
            let mut state = self.queue.inner.state.lock();
            state.done(now, &self.key);
            self.queue.inner.metrics.finished(state.waiting(), self.number, now - self.started);
        }
        self.queue.inner.wake.notify_one();
    }
}

#[cfg(test)]
mod tests;
