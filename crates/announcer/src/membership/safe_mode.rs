//! Ends a safe mode that its controller does not renew any more, even without further events on its Lease.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::time::Duration;

use jiff::Timestamp;
use runtime::cache::Cache;

use super::views::LeaseView;
use crate::clock::{runtime_now as now, runtime_sleep_until as sleep_until};

/// Whether the engine has to be told about a change. How long a safe mode lasts concerns only the task that waits for
/// its end.
pub(super) fn differs(old: &LeaseView, new: &LeaseView) -> bool {
    old != new && !matches!((old, new), (LeaseView::SafeMode(_), LeaseView::SafeMode(_)))
}

/// Removes Leases from the cache whose safe mode has ended. A renewal adds them again.
pub(super) async fn forget_when_over(cache: &Cache<String, LeaseView>, wall: impl Fn() -> Timestamp) -> Infallible {
    let mut touched = cache.subscribe();
    let mut leases: BTreeSet<String> = BTreeSet::new();
    loop {
        let mut next: Option<Duration> = None;
        leases.retain(|name| {
            let Some(LeaseView::SafeMode(until)) = cache.get(name).as_deref().cloned() else { return false };
            let rest = Duration::try_from(until.duration_since(wall())).unwrap_or_default();
            if rest.is_zero() {
                cache.remove(name);
                return false;
            }
            next = Some(next.map_or(rest, |next| next.min(rest)));
            true
        });
        tokio::select! {
            Some(name) = touched.next() => {
                if matches!(cache.get(&name).as_deref(), Some(LeaseView::SafeMode(_))) {
                    leases.insert(name);
                }
            }
            () = sleep_until(next.map(|rest| now() + rest)) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::{Instant, sleep};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_safe_mode_ends_a_day_after_its_lease_was_last_renewed_although_nothing_happens_on_it() {
        let (begin, epoch) = (Instant::now(), Timestamp::UNIX_EPOCH);
        let wall = move || epoch + begin.elapsed();
        let cache: Cache<String, LeaseView> = Cache::new(differs);
        cache.replace([].into());
        let forgets = cache.clone();
        let task = tokio::spawn(async move { forget_when_over(&forgets, wall).await });
        let mut told = cache.subscribe();
        let shown = || cache.get(&"ccm".to_owned()).is_some();
        let hours = Duration::from_hours;
        cache.apply("ccm".into(), LeaseView::SafeMode(epoch + hours(24)));
        assert_eq!(told.next().await.as_deref(), Some("ccm"));
        sleep(hours(20)).await;
        // It is renewed once more, of which nobody has to hear.
        cache.apply("ccm".into(), LeaseView::SafeMode(epoch + hours(44)));
        sleep(hours(23)).await;
        assert!(shown() && futures::FutureExt::now_or_never(told.next()).is_none());
        sleep(hours(2)).await;
        assert!(!shown());
        assert_eq!(told.next().await.as_deref(), Some("ccm"));
        // Somebody renews it after all.
        cache.apply("ccm".into(), LeaseView::SafeMode(epoch + hours(100)));
        assert_eq!(told.next().await.as_deref(), Some("ccm"));
        assert!(shown());
        task.abort();
    }
}
