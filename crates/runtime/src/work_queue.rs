//! A queue of keys with client-go's semantics: a key waits once however often it is added, is never worked on twice at the same
//! time, and comes once more if it was added while it was being worked on.
//!
//! Nobody sleeps: delays and back-off are deadlines inside [`WorkQueue::next`].

mod metrics;
mod state;

use parking_lot::{Mutex, MutexGuard};
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
    /// An empty queue. `metrics` come from [`WorkQueueMetrics::queue`]; [`QueueMetrics::default`] keeps them to itself.
    pub fn new(backoff: Backoff, metrics: QueueMetrics) -> Self {
        let state = Mutex::new(State::default());
        Self { inner: Arc::new(Inner { state, wake: Notify::new(), backoff, metrics }) }
    }

    /// Puts `key` at the end, unless it waits already. A delay that runs for it goes on running.
    pub fn add(&self, key: K) {
        self.put(|state, now| state.add(now, key));
    }

    /// The same after all that were not added like this: what was there before is not in a hurry.
    pub fn add_last(&self, key: K) {
        self.put(|state, now| state.add_last(now, key));
    }

    /// The same before all others: work that was begun is finished before more is begun. Of five turns one goes to those that come
    /// last, so that nobody starves.
    pub fn add_first(&self, key: K) {
        self.put(|state, now| state.add_first(now, key));
    }

    fn put(&self, add: impl FnOnce(&mut State<K>, Instant) -> bool) {
        {
            let mut state = self.lock();
            let added = add(&mut state, Instant::now());
            self.inner.metrics.added(u64::from(added));
            self.inner.metrics.depth(state.waiting());
        }
        self.inner.wake.notify_one();
    }

    /// Adds `key` when `delay` has passed. Of several delays for one key the shortest counts.
    pub fn add_after(&self, key: K, delay: Duration) {
        if delay.is_zero() {
            return self.add(key);
        }
        self.lock().add_at(Instant::now() + delay, key);
        self.inner.wake.notify_one();
    }

    /// Adds `key` after its back-off. That grows with each failure at its end; a failure before, because the key was woken, leaves it
    /// as it is. Returns the delay.
    pub fn add_rate_limited(&self, key: K) -> Duration {
        self.add_rate_limited_within(key, self.inner.backoff.max)
    }

    /// The same with a shorter longest delay.
    pub fn add_rate_limited_within(&self, key: K, longest: Duration) -> Duration {
        let now = Instant::now();
        let at = self.lock().fail(now, &key, |failures| self.inner.backoff.delay(failures).min(longest));
        let delay = at.saturating_duration_since(now);
        self.inner.metrics.retried();
        self.add_after(key, delay);
        delay
    }

    /// Forgets the failures of `key`: the next back-off starts anew.
    pub fn forget(&self, key: &K) {
        self.lock().forget(key);
    }

    /// How often `key` has failed since it was last forgotten.
    pub fn failures(&self, key: &K) -> u32 {
        self.lock().failures(key)
    }

    /// The next key to work on; waits for one. `None` after [`WorkQueue::shut_down`]. The key is worked on until the [`Job`] is
    /// dropped.
    pub async fn next(&self) -> Option<Job<K>> {
        loop {
            let woken = self.inner.wake.notified();
            tokio::pin!(woken);
            // Registered before looking, so that nothing added in between is missed.
            woken.as_mut().enable();
            let deadline = {
                let now = Instant::now();
                let mut state = self.lock();
                if state.is_shut_down() {
                    return None;
                }
                let adds = state.promote(now);
                self.inner.metrics.added(adds);
                if let Some((key, queued)) = state.take() {
                    let number = self.inner.metrics.started(state.waiting(), now - queued);
                    if state.waiting() > 0 {
                        // A permit stored by `notify_one` counts one wake-up only; pass it on.
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

    /// Lets every `next` return `None`, now and from now on. Jobs under way are not touched.
    pub fn shut_down(&self) {
        self.lock().shut_down();
        self.inner.wake.notify_waiters();
    }

    /// How many keys wait to be worked on, delayed ones not counted.
    pub fn len(&self) -> usize {
        self.lock().waiting()
    }

    /// Whether no key waits to be worked on.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn lock(&self) -> MutexGuard<'_, State<K>> {
        self.inner.state.lock()
    }
}

/// A key that is being worked on. Dropping it ends the work; if the key was added meanwhile, it waits again.
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
            let mut state = self.queue.lock();
            state.done(now, &self.key);
            self.queue.inner.metrics.finished(state.waiting(), self.number, now - self.started);
        }
        self.queue.inner.wake.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    const BACKOFF: Backoff = Backoff { min: Duration::from_secs(5), max: Duration::from_mins(5) };

    fn queue() -> WorkQueue<&'static str> {
        WorkQueue::new(BACKOFF, QueueMetrics::default())
    }

    fn try_next(queue: &WorkQueue<&'static str>) -> Option<Job<&'static str>> {
        queue.next().now_or_never().flatten()
    }

    fn keys(queue: &WorkQueue<&'static str>) -> Vec<&'static str> {
        std::iter::from_fn(|| try_next(queue).map(|job| *job.key())).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn a_key_that_waits_is_not_added_twice_and_order_is_kept() {
        let queue = queue();
        for key in ["b", "a", "b"] {
            queue.add(key);
        }
        assert_eq!(queue.len(), 2);
        assert_eq!(keys(&queue), ["b", "a"]);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_added_first_goes_before_the_others_and_does_not_starve_them() {
        let queue = queue();
        for key in ["a", "b", "c", "d"] {
            queue.add(key);
        }
        for key in ["d", "v", "w", "x", "y", "z", "d"] {
            queue.add_first(key);
        }
        assert_eq!(queue.len(), 9);
        assert_eq!(keys(&queue), ["d", "v", "w", "x", "a", "y", "z", "b", "c"]);
        assert!(queue.is_empty());
        for key in ["old1", "old2", "new"] {
            queue.add_last(key);
        }
        queue.add_first("new");
        queue.add("newer");
        assert_eq!(keys(&queue), ["old1", "new", "newer", "old2"], "the tenth turn is the last ones'");
        queue.add("a");
        let job = try_next(&queue).unwrap();
        queue.add_first("a");
        assert!(try_next(&queue).is_none(), "never two workers on one key");
        drop(job);
        assert_eq!(keys(&queue), ["a"]);
    }

    #[tokio::test(start_paused = true)]
    async fn changes_during_work_cause_exactly_one_more_pass_after_it() {
        let queue = queue();
        queue.add("a");
        let job = try_next(&queue).unwrap();
        queue.add("a");
        queue.add("a");
        assert!(try_next(&queue).is_none(), "never two workers on one key");
        drop(job);
        assert_eq!(keys(&queue), ["a"]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_key_keeps_its_lane_when_it_is_added_while_being_worked_on() {
        let queue = queue();
        for (add, order) in [
            (WorkQueue::add_first as fn(&_, _), ["a", "b", "c"]),
            (WorkQueue::add, ["b", "a", "c"]),
            (WorkQueue::add_last, ["b", "c", "a"]),
        ] {
            queue.add("a");
            let job = try_next(&queue).unwrap();
            queue.add("b");
            queue.add_last("c");
            add(&queue, "a");
            drop(job);
            assert_eq!(keys(&queue), order);
            // The next round begins at the same turn of five.
            queue.add("d");
            assert_eq!(keys(&queue), ["d"]);
        }
        queue.add("a");
        let job = try_next(&queue).unwrap();
        queue.add("b");
        queue.add("a");
        queue.add_first("a");
        drop(job);
        assert_eq!(keys(&queue), ["a", "b"], "it was woken, and then it was urgent");
    }

    #[tokio::test(start_paused = true)]
    async fn a_waiting_worker_takes_up_the_key_that_another_one_finished_with() {
        let queue = queue();
        queue.add("a");
        let job = try_next(&queue).unwrap();
        queue.add("a");
        let waiting = tokio::spawn({
            let queue = queue.clone();
            async move { queue.next().await.map(|job| *job.key()) }
        });
        tokio::task::yield_now().await;
        drop(job);
        assert_eq!(waiting.await.unwrap(), Some("a"));
    }

    #[tokio::test(start_paused = true)]
    async fn delayed_keys_come_at_their_time_and_the_shortest_delay_counts() {
        let queue = queue();
        let start = Instant::now();
        queue.add_after("late", Duration::from_secs(10));
        queue.add_after("late", Duration::from_secs(20));
        queue.add_after("soon", Duration::from_mins(1));
        queue.add_after("soon", Duration::from_secs(1));
        assert_eq!(*queue.next().await.unwrap().key(), "soon");
        assert_eq!(start.elapsed(), Duration::from_secs(1));
        assert_eq!(*queue.next().await.unwrap().key(), "late");
        assert_eq!(start.elapsed(), Duration::from_secs(10));
        assert!(tokio::time::timeout(Duration::from_mins(10), queue.next()).await.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn a_change_does_not_wait_for_the_back_off_of_its_key() {
        let queue = queue();
        queue.add_rate_limited("a");
        queue.add("a");
        assert_eq!(keys(&queue), ["a"]);
    }

    /// Framework spec 1.9: 5, 10, 20, 40, 80, 160, 300, 300.
    #[tokio::test(start_paused = true)]
    async fn failures_back_off_from_5_to_300_seconds_per_key() {
        let queue = queue();
        let mut delays = Vec::new();
        for _ in 0..8 {
            delays.push(queue.add_rate_limited("a").as_secs());
            assert_eq!(queue.next().await.map(|job| *job.key()), Some("a"));
        }
        assert_eq!(delays, [5, 10, 20, 40, 80, 160, 300, 300]);
        assert_eq!(queue.add_rate_limited("b").as_secs(), 5);
        assert_eq!(queue.failures(&"a"), 8);
        queue.forget(&"a");
        assert_eq!(queue.add_rate_limited("a").as_secs(), 5);
        assert_eq!(BACKOFF.delay(u32::MAX), Duration::from_mins(5));
    }

    #[tokio::test(start_paused = true)]
    async fn a_key_that_is_woken_and_fails_again_backs_off_no_further_than_without() {
        let queue = queue();
        let start = Instant::now();
        for _ in 0..5 {
            queue.add("a");
            drop(try_next(&queue).unwrap());
            queue.add_rate_limited("a");
            tokio::time::advance(Duration::from_millis(100)).await;
        }
        assert_eq!(queue.failures(&"a"), 1, "one trouble, looked at five times");
        drop(queue.next().await.unwrap());
        assert_eq!(start.elapsed(), Duration::from_secs(5));
        assert_eq!(queue.add_rate_limited("a"), Duration::from_secs(10));
        drop(queue.next().await.unwrap());
        assert_eq!(queue.add_rate_limited_within("a", Duration::from_secs(15)), Duration::from_secs(15));
    }

    #[tokio::test(start_paused = true)]
    async fn several_workers_share_the_work() {
        let queue = queue();
        let workers: Vec<_> = (0..3)
            .map(|_| {
                let queue = queue.clone();
                tokio::spawn(async move { queue.next().await.map(|job| *job.key()) })
            })
            .collect();
        tokio::task::yield_now().await;
        for key in ["a", "b", "c"] {
            queue.add(key);
        }
        let mut keys: Vec<_> =
            futures::future::join_all(workers).await.into_iter().map(|key| key.unwrap().unwrap()).collect();
        keys.sort_unstable();
        assert_eq!(keys, ["a", "b", "c"]);
    }

    #[tokio::test(start_paused = true)]
    async fn shutting_down_ends_every_worker() {
        let queue = queue();
        let waiting = tokio::spawn({
            let queue = queue.clone();
            async move { queue.next().await.is_none() }
        });
        tokio::task::yield_now().await;
        queue.shut_down();
        assert!(waiting.await.unwrap());
        queue.add("a");
        assert!(try_next(&queue).is_none());
    }
}
