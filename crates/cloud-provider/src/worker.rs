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
            drop(job);
            // All controllers share one task. Passes that wait for nothing, such as those of thousands of Nodes that
            // are as they should be, would keep it until their queue is empty.
            tokio::task::yield_now().await;
        }
    };
    futures::future::join_all((0..count.max(1)).map(|_| worker())).await;
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use futures::FutureExt;
    use runtime::work_queue::{Backoff, QueueMetrics};

    use super::*;

    /// The Services stood still for a minute while five thousand Nodes were refreshed.
    #[tokio::test]
    async fn passes_that_wait_for_nothing_leave_turns_to_whatever_shares_their_task() {
        let backoff = Backoff { min: Duration::from_secs(5), max: Duration::from_mins(5) };
        for next in [Next::OnChange, Next::After(Duration::from_mins(1)), Next::BackOff] {
            let queue = WorkQueue::new(backoff, QueueMetrics::default());
            (0..100).for_each(|key: u32| queue.add(key));
            let passes = Cell::new(0);
            let process = |_: u32| {
                passes.set(passes.get() + 1);
                std::future::ready(next)
            };
            let mut working = std::pin::pin!(work(&queue, 2, process));
            for polls in 1..=3 {
                assert!(working.as_mut().now_or_never().is_none());
                assert_eq!(passes.get(), 2 * polls, "one pass of each worker: {next:?}");
            }
        }
    }
}
