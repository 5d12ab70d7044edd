//! The loop of a worker: take a key, look at it once, and say when to look again. No worker ever waits for anything else.

use std::time::Duration;

use runtime::cache::Key;
use runtime::work_queue::WorkQueue;

/// When to look at a key again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    /// When something changes.
    OnChange,
    /// When something changes, or after this time. Neither grows nor resets the back-off.
    After(Duration),
    /// After its back-off.
    BackOff,
}

/// Runs `count` workers until the queue is shut down; passes under way are finished.
pub(crate) async fn work<K, P>(queue: &WorkQueue<K>, count: usize, process: impl Fn(K) -> P)
where
    K: Key,
    P: Future<Output = Next>,
{
    let worker = async || {
        while let Some(job) = queue.next().await {
            let key = job.key().clone();
            match process(key.clone()).await {
                Next::OnChange => queue.forget(&key),
                Next::After(delay) => queue.add_after(key, delay),
                Next::BackOff => {
                    queue.add_rate_limited(key);
                }
            }
        }
    };
    futures::future::join_all((0..count.max(1)).map(|_| worker())).await;
}
