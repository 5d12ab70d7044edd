//! Decides how long a watch that has failed pauses before the next attempt. Pure, apart from the clock and the jitter.

use std::time::Duration;

use kube::runtime::watcher;
use tokio::time::Instant;

use super::{FIRST_PAUSE, LASTED, REFUSED_FOR_GOOD, TRY_LIST_AGAIN};
use crate::error::api_code;

/// So many watches that end with 410 in succession, none of which has worked, are no routine.
const EXPIRED_OFTEN: u32 = 5;

/// The pauses of one watch.
pub(super) struct Pace {
    longest: Duration,
    pause: Duration,
    forbidden_since: Option<Instant>,
    /// Since when the watch has not failed; `None` while the list is read.
    watching_since: Option<Instant>,
    /// A watch has failed since one has worked, so a complete list does not end the back-off.
    watch_failed: bool,
    /// Watches that ended with 410 since one has worked.
    expired: u32,
}

impl Pace {
    /// `longest`: the longest pause while the server is away.
    pub(super) fn new(longest: Duration) -> Self {
        Self {
            longest,
            pause: FIRST_PAUSE,
            forbidden_since: None,
            watching_since: None,
            watch_failed: false,
            expired: 0,
        }
    }

    /// Takes in an event. A list ends the back-off of lists that failed. It does not prove that the watch works: a
    /// server may answer each list, and end each watch with 410, upon which the next list is read.
    pub(super) fn arrived<O>(&mut self, event: &watcher::Event<O>) {
        match event {
            watcher::Event::Init => self.watching_since = None,
            watcher::Event::InitApply(_) => {}
            watcher::Event::InitDone => {
                (self.watching_since, self.forbidden_since) = (Some(Instant::now()), None);
                self.pause = if self.watch_failed { self.pause.min(self.longest()) } else { FIRST_PAUSE };
            }
            watcher::Event::Apply(_) | watcher::Event::Delete(_) => {
                self.works();
                self.forbidden_since = None;
            }
        }
    }

    fn works(&mut self) {
        (self.pause, self.watch_failed, self.expired) = (FIRST_PAUSE, false, 0);
    }

    /// Takes in a failure. Returns the pause, with jitter.
    pub(super) fn failed(&mut self, error: &watcher::Error) -> Duration {
        if self.watching_since.is_some_and(|since| since.elapsed() > LASTED) {
            self.works();
        }
        self.watch_failed |= self.watching_since.is_some();
        self.expired += u32::from(is_expired(error));
        self.forbidden_since =
            (api_code(error) == Some(403)).then(|| self.forbidden_since.unwrap_or_else(Instant::now));
        // A pause from the time when the list was forbidden may be longer than what is the longest now.
        let base = self.pause.min(self.longest());
        let pause = base.mul_f64(0.5 + rand::random::<f64>());
        self.pause = (base * 2).min(self.longest());
        self.watching_since = self.watching_since.map(|_| Instant::now() + pause);
        pause
    }

    /// Whether the last failure has made it clear that watches end with 410 again and again. True once, until a watch
    /// has worked.
    pub(super) fn expires_often(&self, error: &watcher::Error) -> bool {
        is_expired(error) && self.expired == EXPIRED_OFTEN
    }

    /// The longest pause after a failure. If the list is forbidden for longer than a server needs to start, an
    /// administrator has to grant the right.
    fn longest(&self) -> Duration {
        let for_good = self.forbidden_since.is_some_and(|since| since.elapsed() >= REFUSED_FOR_GOOD);
        if for_good { TRY_LIST_AGAIN } else { self.longest }
    }
}

/// Whether the watch ended with 410: the known resourceVersion is compacted.
pub(super) fn is_expired(error: &watcher::Error) -> bool {
    matches!(error, watcher::Error::WatchError(status) if status.code == 410)
}

#[cfg(test)]
mod tests {
    use super::super::LONGEST_PAUSE;
    use super::*;
    use crate::scenario::Scenario;

    #[derive(Clone, Copy)]
    enum Step {
        /// A list fails with this code.
        List(u16),
        /// A watch ends with this code.
        Watch(u16),
        /// A list is complete.
        Done,
        /// An object changes.
        Change,
        /// So long the list fails with this code.
        Lists(u16, Duration),
    }

    fn status(code: u16) -> Box<kube::core::Status> {
        serde_json::from_value(Scenario::status(code, "Refused", "no")).unwrap()
    }

    impl Pace {
        /// Returns the pause after a failure, and waits for it.
        async fn step(&mut self, step: Step) -> Option<Duration> {
            let error = match step {
                Step::List(code) => {
                    self.arrived(&watcher::Event::<()>::Init);
                    watcher::Error::InitialListFailed(kube::Error::Api(status(code)))
                }
                Step::Watch(code) => watcher::Error::WatchError(status(code)),
                Step::Done => {
                    self.arrived(&watcher::Event::<()>::Init);
                    self.arrived(&watcher::Event::<()>::InitDone);
                    return None;
                }
                Step::Change => {
                    self.arrived(&watcher::Event::Apply(()));
                    return None;
                }
                Step::Lists(code, lasts) => {
                    let begin = Instant::now();
                    let mut last = None;
                    while begin.elapsed() < lasts {
                        last = Box::pin(self.step(Step::List(code))).await;
                    }
                    return last;
                }
            };
            let pause = self.failed(&error);
            tokio::time::advance(pause).await;
            Some(pause)
        }
    }

    /// A reset of the first watch, after the right to list had been granted late, was followed by a pause of up to
    /// 90 s.
    #[tokio::test(start_paused = true)]
    async fn the_pause_after_a_complete_list_is_not_that_of_the_lists_that_failed_before() {
        use Step::{Change, Done, List, Lists, Watch};
        let forbidden = Lists(403, TRY_LIST_AGAIN * 10);
        let away = Lists(500, TRY_LIST_AGAIN);
        let expired = [Watch(410), Done].repeat(10);
        let cases: [(&str, Vec<Step>, Duration); 9] = [
            ("it is still forbidden", vec![forbidden, List(403)], TRY_LIST_AGAIN),
            ("granted, and the watch is reset", vec![forbidden, Done, Watch(500)], FIRST_PAUSE),
            ("reset twice", vec![forbidden, Done, Watch(500), Watch(500)], FIRST_PAUSE * 2),
            ("away, and back", vec![away, Done, Watch(500)], FIRST_PAUSE),
            ("granted, and it expires", vec![forbidden, Done, Watch(410)], FIRST_PAUSE),
            ("the server is away and no longer refuses", vec![forbidden, List(500)], LONGEST_PAUSE),
            ("watches expire", [expired.as_slice(), &[Watch(410)]].concat(), LONGEST_PAUSE),
            (
                "watches expired, and then the list was forbidden",
                [expired.as_slice(), &[forbidden, Done, Watch(500)]].concat(),
                LONGEST_PAUSE,
            ),
            (
                "a watch has worked since they expired",
                [expired.as_slice(), &[Change, forbidden, Done, Watch(500)]].concat(),
                FIRST_PAUSE,
            ),
        ];
        for (name, steps, expected) in cases {
            let mut pace = Pace::new(LONGEST_PAUSE);
            let mut last = None;
            for step in steps {
                last = pace.step(step).await;
            }
            let last = last.expect("the last step fails");
            // With jitter.
            assert!(last >= expected / 2 && last <= expected * 3 / 2, "{name}: {last:?}, not about {expected:?}");
        }
    }
}
