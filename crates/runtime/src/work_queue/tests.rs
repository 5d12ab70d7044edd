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

/// H15.
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
async fn a_limit_of_the_delay_counts_also_while_a_longer_back_off_lasts() {
    let queue = queue();
    for _ in 0..4 {
        queue.add_rate_limited("a");
        drop(queue.next().await.unwrap());
    }
    assert_eq!(queue.add_rate_limited("a"), Duration::from_secs(80));
    queue.add("a");
    drop(try_next(&queue).unwrap());
    let start = Instant::now();
    assert_eq!(queue.add_rate_limited_within("a", Duration::from_secs(30)), Duration::from_secs(30));
    drop(queue.next().await.unwrap());
    assert_eq!((start.elapsed(), queue.failures(&"a")), (Duration::from_secs(30), 5), "one trouble");
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
