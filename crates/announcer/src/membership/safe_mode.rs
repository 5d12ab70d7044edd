//! What the Leases of cloud controllers say about safe mode. It ends a safe mode that its controller does not renew any
//! more, even without further events on its Lease.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::time::Duration;

use jiff::Timestamp;
use runtime::cache::Cache;

use super::views::{ControllerLease, LeaseView};
use crate::clock::{runtime_now as now, runtime_sleep_until as sleep_until};

/// How long a controller must have held its Lease until its silence about a safe mode is its word. Before, it may not
/// have judged yet: it does that within 15 s of its start, or as soon as Harvester answers. While Harvester does not
/// answer, it leaves the annotation as it found it, and its silence counts here although it has not judged: a cluster
/// must not lose its fail-over for as long as Harvester is away. A copy whose Lease shows no safe mode then works as
/// usual after this time.
const JUDGED_AFTER: Duration = Duration::from_secs(30);

/// What controllers have said so far.
#[derive(Debug, Default)]
pub(super) struct ControllerNews {
    /// The Leases whose controllers are in safe mode: one that ends must not end another one.
    in_safe_mode: BTreeSet<String>,
    /// Holder and renewal of the controller's Lease, as this process saw them last.
    seen: Option<(String, String)>,
    /// A controller that is not in safe mode was seen to work.
    works: bool,
}

impl ControllerNews {
    /// A Lease that is no member's has changed. Returns whether a controller is in safe mode, if that is news. Without
    /// a safe mode it is news once, when the holder renews the Lease while this process watches: in a copy of the
    /// cluster, the Lease is first shown as the original's controller left it.
    pub fn note(&mut self, lease: &str, view: Option<&LeaseView>) -> Option<bool> {
        let changed = match view {
            Some(LeaseView::SafeMode(_)) => self.in_safe_mode.insert(lease.to_owned()),
            _ => self.in_safe_mode.remove(lease),
        };
        let begins = match view {
            Some(LeaseView::Controller(lease)) => self.renewed(lease),
            _ => false,
        };
        (changed || begins).then_some(!self.in_safe_mode.is_empty())
    }

    fn renewed(&mut self, lease: &ControllerLease) -> bool {
        let before = self.seen.replace((lease.holder.clone(), lease.renewal.clone()));
        let renewed = before.is_some_and(|(holder, renewal)| holder == lease.holder && renewal != lease.renewal);
        let works = renewed && !lease.holder.is_empty() && lease.held >= JUDGED_AFTER;
        works && !std::mem::replace(&mut self.works, true)
    }
}

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

    fn controller(holder: &str, renewal: u64, held: u64) -> LeaseView {
        let held = Duration::from_secs(held);
        LeaseView::Controller(ControllerLease { holder: holder.into(), renewal: renewal.to_string(), held })
    }

    #[test]
    fn the_word_of_a_controller_is_a_renewal_that_this_process_sees_of_one_that_has_judged() {
        let safe = || LeaseView::SafeMode(Timestamp::UNIX_EPOCH);
        for (what, views, said) in [
            ("it works", vec![controller("a", 1, 500), controller("a", 2, 502), controller("a", 3, 504)], vec![false]),
            ("what a backup shows", vec![controller("a", 1, 500), controller("a", 1, 500)], vec![]),
            (
                "a copy's",
                vec![controller("a", 1, 500), controller("b", 2, 0), controller("b", 3, 2), safe()],
                vec![true],
            ),
            ("a new one", vec![controller("b", 1, 0), controller("b", 2, 29), controller("b", 3, 31)], vec![false]),
            ("another holder", vec![controller("a", 1, 500), controller("b", 2, 500)], vec![]),
            ("nobody", vec![controller("", 1, 500), controller("", 2, 500)], vec![]),
            ("it ends", vec![safe(), controller("a", 1, 500), controller("a", 2, 502)], vec![true, false, false]),
        ] {
            let mut news = ControllerNews::default();
            let told: Vec<bool> = views.iter().filter_map(|view| news.note("ccm", Some(view))).collect();
            assert_eq!(told, said, "{what}");
        }
    }

    #[test]
    fn the_end_of_one_safe_mode_does_not_end_another_one() {
        let (mut news, safe) = (ControllerNews::default(), LeaseView::SafeMode(Timestamp::UNIX_EPOCH));
        assert_eq!((news.note("a", Some(&safe)), news.note("b", Some(&safe))), (Some(true), Some(true)));
        assert_eq!((news.note("a", None), news.note("a", None)), (Some(true), None));
        assert_eq!(news.note("b", None), Some(false));
    }

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
