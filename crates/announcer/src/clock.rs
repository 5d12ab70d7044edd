//! The clock of the engine and the DHCP clients. It includes the time while the machine was suspended, as the clocks of
//! DHCP servers and other nodes do. So a lease that ended during a suspension counts as ended.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Longest sleep of the runtime. Its timers stop while the machine is suspended, so after a suspension a task wakes at
/// most this late.
const LONGEST_SLEEP: Duration = Duration::from_secs(10);

/// The same moment on both clocks.
#[derive(Debug, Clone, Copy)]
struct Origin {
    instant: Instant,
    since_boot: Duration,
}

impl Origin {
    fn at(self, since_boot: Duration) -> Instant {
        self.instant + since_boot.saturating_sub(self.since_boot)
    }
}

/// The current time, including suspensions. It must not be mixed with [`Instant::now`], which excludes them.
pub fn now() -> Instant {
    origin().at(l2::clock::since_boot())
}

fn origin() -> Origin {
    static ORIGIN: OnceLock<Origin> = OnceLock::new();
    *ORIGIN.get_or_init(|| Origin { instant: Instant::now(), since_boot: l2::clock::since_boot() })
}

/// The time of the boot on the clock of [`now`]. It is the same on every call, and for later processes too.
pub fn boot() -> Instant {
    let origin = origin();
    origin.instant.checked_sub(origin.since_boot).expect("an Instant of Linux can be before the boot")
}

/// Waits until [`now`] has come to `deadline`.
pub async fn sleep_until(deadline: Instant) {
    loop {
        let left = deadline.saturating_duration_since(now());
        tokio::time::sleep(left.min(LONGEST_SLEEP)).await;
        if left <= LONGEST_SLEEP {
            return;
        }
    }
}

/// Waits until [`now`] has come to `deadline`; for ever without one.
pub async fn sleep_until_some(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

/// The runtime's own time, for requests to the API. It stops while the machine is suspended, as the requests do.
pub fn runtime_now() -> Instant {
    tokio::time::Instant::now().into_std()
}

/// Waits until [`runtime_now`] has come to `deadline`; for ever without one.
pub async fn runtime_sleep_until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline.into()).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_suspension_counts() {
        let origin = Origin { instant: Instant::now(), since_boot: Duration::from_mins(2) };
        assert_eq!(origin.at(Duration::from_mins(62)), origin.instant + Duration::from_hours(1));
    }

    #[test]
    fn what_is_counted_from_the_boot_is_what_the_kernel_counts() {
        let (before, counted, after) = (l2::clock::since_boot(), now() - boot(), l2::clock::since_boot());
        assert!(before <= counted && counted <= after, "{before:?} {counted:?} {after:?}");
    }

    #[test]
    fn it_never_goes_back() {
        let before = now();
        assert!(now() >= before);
    }

    #[tokio::test]
    async fn a_deadline_that_has_come_is_not_waited_for() {
        let begun = Instant::now();
        sleep_until(now()).await;
        sleep_until(now() + Duration::from_millis(20)).await;
        let took = begun.elapsed();
        assert!(took >= Duration::from_millis(20) && took < Duration::from_secs(5), "{took:?}");
    }
}
