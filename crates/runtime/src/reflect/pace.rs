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
    /// Watches that ended with 410 since one has worked.
    expired: u32,
}

impl Pace {
    /// `longest`: the longest pause while the server is away.
    pub(super) fn new(longest: Duration) -> Self {
        Self { longest, pause: FIRST_PAUSE, forbidden_since: None, watching_since: None, expired: 0 }
    }

    /// Takes in an event. A list alone does not prove that the watch works: a server may answer each list, and end each
    /// watch with 410, upon which the next list is read.
    pub(super) fn arrived<O>(&mut self, event: &watcher::Event<O>) {
        match event {
            watcher::Event::Init => self.watching_since = None,
            watcher::Event::InitApply(_) => {}
            watcher::Event::InitDone => (self.watching_since, self.forbidden_since) = (Some(Instant::now()), None),
            watcher::Event::Apply(_) | watcher::Event::Delete(_) => {
                self.works();
                self.forbidden_since = None;
            }
        }
    }

    fn works(&mut self) {
        (self.pause, self.expired) = (FIRST_PAUSE, 0);
    }

    /// Takes in a failure. Returns the pause, with jitter.
    pub(super) fn failed(&mut self, error: &watcher::Error) -> Duration {
        if self.watching_since.is_some_and(|since| since.elapsed() > LASTED) {
            self.works();
        }
        self.expired += u32::from(is_expired(error));
        self.forbidden_since =
            (api_code(error) == Some(403)).then(|| self.forbidden_since.unwrap_or_else(Instant::now));
        let pause = self.pause.mul_f64(0.5 + rand::random::<f64>());
        self.pause = (self.pause * 2).min(self.longest());
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
