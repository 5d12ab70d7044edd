//! A first-in-first-out queue of keys for a few workers, as the host's controllers have it: each key at most once,
//! never two workers on one key, a key that is touched while in work goes to the tail afterwards. Host pace spec
//! 5.2, 5.6

use parking_lot::Mutex;
use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use tokio::sync::Notify;

/// Namespace and name.
pub type Key = (String, String);

#[derive(Debug, Default)]
struct State {
    waiting: VecDeque<Key>,
    /// The same keys, to find one among ten thousand.
    queued: HashSet<Key>,
    in_work: BTreeSet<Key>,
    touched: BTreeSet<Key>,
    failures: HashMap<Key, u32>,
}

impl State {
    /// Puts a key at the tail; false: it waits already.
    fn push(&mut self, key: Key) -> bool {
        let new = self.queued.insert(key.clone());
        if new {
            self.waiting.push_back(key);
        }
        new
    }
}

/// The queue. Cheap to clone; all clones are the same queue.
#[derive(Debug, Clone, Default)]
pub struct Queue {
    state: Arc<Mutex<State>>,
    filled: Arc<Notify>,
}

impl Queue {
    /// Puts a key at the tail, unless it waits already.
    pub fn add(&self, key: Key) {
        let mut state = self.state.lock();
        if state.in_work.contains(&key) {
            state.touched.insert(key);
        } else if state.push(key) {
            self.filled.notify_one();
        }
    }

    /// Puts a key at the tail after a while.
    pub fn add_after(&self, key: Key, delay: Duration) {
        let queue = self.clone();
        tokio::spawn(async move {
            tokio::time::sleep(delay).await;
            queue.add(key);
        });
    }

    /// Takes the key at the head; the caller must give it to [`Self::done`].
    pub async fn next(&self) -> Key {
        loop {
            let filled = self.filled.notified();
            {
                let mut state = self.state.lock();
                if let Some(key) = state.waiting.pop_front() {
                    state.queued.remove(&key);
                    state.in_work.insert(key.clone());
                    if !state.waiting.is_empty() {
                        self.filled.notify_one();
                    }
                    return key;
                }
            }
            filled.await;
        }
    }

    /// As it stands.
    pub fn backlog(&self) -> Backlog {
        let state = self.state.lock();
        Backlog {
            waiting: state.waiting.iter().cloned().collect(),
            in_work: state.in_work.clone(),
            failures: state.failures.iter().map(|(key, times)| (key.clone(), *times)).collect(),
        }
    }

    /// Ends the work on a key. A failed one comes again after a back-off that grows with each failure in a row.
    pub fn done(&self, key: &Key, outcome: Outcome) {
        let delay = {
            let mut state = self.state.lock();
            state.in_work.remove(key);
            if state.touched.remove(key) && state.push(key.clone()) {
                self.filled.notify_one();
            }
            match outcome {
                Outcome::Clean => {
                    state.failures.remove(key);
                    None
                }
                Outcome::RequeueAfter(delay) => {
                    state.failures.remove(key);
                    Some(delay)
                }
                Outcome::Failed => {
                    let failures = state.failures.entry(key.clone()).or_default();
                    let delay = back_off(*failures);
                    *failures = failures.saturating_add(1);
                    Some(delay)
                }
            }
        };
        if let Some(delay) = delay {
            self.add_after(key.clone(), delay);
        }
    }
}

/// A queue at a moment, for whoever asks why nothing happens.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Backlog {
    /// Keys that wait for a worker.
    pub waiting: Vec<Key>,
    /// Keys that a worker has.
    pub in_work: BTreeSet<Key>,
    /// Keys that failed the last time, and how often in a row.
    pub failures: Vec<(Key, u32)>,
}

/// How the work on a key ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing more to do until something changes.
    Clean,
    /// Not a failure, but look again after this time.
    RequeueAfter(Duration),
    /// Failed.
    Failed,
}

/// 5 ms·2ⁿ up to 30 s; from the 31st failure in a row 2 min. Harvester spec 6
pub fn back_off(failures_before: u32) -> Duration {
    if failures_before >= 30 {
        return Duration::from_mins(2);
    }
    let millis = 5u64.saturating_mul(1 << failures_before.min(20));
    Duration::from_millis(millis.min(30_000))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> Key {
        (String::new(), name.to_owned())
    }

    #[tokio::test]
    async fn each_key_waits_once_and_a_touched_one_goes_to_the_tail() {
        let queue = Queue::default();
        for name in ["a", "b", "a"] {
            queue.add(key(name));
        }
        let first = queue.next().await;
        assert_eq!(first, key("a"));
        queue.add(key("a"));
        queue.add(key("c"));
        queue.done(&first, Outcome::Clean);
        assert_eq!([queue.next().await, queue.next().await, queue.next().await], [key("b"), key("c"), key("a")]);
    }

    #[tokio::test]
    async fn two_workers_wake_for_two_keys() {
        let queue = Queue::default();
        let other = queue.clone();
        let worker = tokio::spawn(async move { other.next().await });
        tokio::task::yield_now().await;
        queue.add(key("a"));
        queue.add(key("b"));
        let mine = tokio::time::timeout(Duration::from_secs(5), queue.next()).await.unwrap();
        let theirs = tokio::time::timeout(Duration::from_secs(5), worker).await.unwrap().unwrap();
        assert_ne!(mine, theirs);
    }

    #[test]
    fn failures_in_a_row_back_off_to_half_a_minute_and_then_two() {
        let millis: Vec<_> = [0, 1, 2, 12, 13, 29, 30, 1000].iter().map(|n| back_off(*n).as_millis()).collect();
        assert_eq!(millis, [5, 10, 20, 20_480, 30_000, 30_000, 120_000, 120_000]);
    }
}
