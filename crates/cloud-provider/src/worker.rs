//! The common part of controllers with a queue. A feed adds keys; workers take a key, process it once, and return when
//! to process it again. A worker never waits for anything else.

use std::time::Duration;

use runtime::cache::{Cache, Key};
use runtime::shutdown::Token;
use runtime::work_queue::WorkQueue;

/// When to process a key again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    /// When something changes.
    OnChange,
    /// When something changes, or after this time. Neither grows nor resets the back-off.
    After(Duration),
    /// After its back-off.
    BackOff,
    /// After its back-off, and this time at the latest.
    BackOffWithin(Duration),
}

/// Once `cache` is filled, runs `feed` and `count` workers until `stop`; passes that are under way are finished.
pub(crate) async fn run<K, V, P>(
    cache: &Cache<K, V>,
    feed: impl Future<Output = ()>,
    queue: &WorkQueue<K>,
    count: usize,
    process: impl Fn(K) -> P,
    stop: &Token,
) where
    K: Key,
    V: Send + Sync + 'static,
    P: Future<Output = Next>,
{
    tokio::select! {
        () = stop.cancelled() => return,
        () = cache.wait_synced() => {}
    }
    let feed = async {
        tokio::select! {
            () = stop.cancelled() => {}
            () = feed => {}
        }
        queue.shut_down();
    };
    futures::future::join(work(queue, count, process), feed).await;
}

/// Runs `count` workers until the queue is shut down.
async fn work<K, P>(queue: &WorkQueue<K>, count: usize, process: impl Fn(K) -> P)
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
                Next::BackOffWithin(longest) => {
                    queue.add_rate_limited_within(key, longest);
                }
            }
        }
    };
    futures::future::join_all((0..count.max(1)).map(|_| worker())).await;
}
