//! Follows how long each trouble lasts, and reports the first one that has broken its promise.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use crate::promises::{Limits, Trouble, number};
use crate::scenario::Scenario;

/// A promise that was broken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// When, from the start.
    pub at: Duration,
    /// Which promise: the same for the same kind of trouble.
    pub promise: &'static str,
    /// What was seen.
    pub seen: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { at, promise, seen } = self;
        write!(f, "{:.3} s: P{}, {promise}: {seen}", at.as_secs_f64(), number(promise))
    }
}

/// Since when each trouble has lasted.
#[derive(Debug)]
pub struct Checks {
    limits: Limits,
    lasting: BTreeMap<Trouble, Duration>,
    longest: BTreeMap<&'static str, Duration>,
    /// When the first of them has lasted too long.
    next: Option<Duration>,
}

impl Checks {
    /// Nothing is wrong yet.
    pub fn new(scenario: &Scenario) -> Self {
        Self { limits: Limits::of(scenario), lasting: BTreeMap::new(), longest: BTreeMap::new(), next: None }
    }

    /// Follows what is the case at `now`; `troubles` must be complete.
    pub fn follow(&mut self, now: Duration, troubles: impl IntoIterator<Item = Trouble>) {
        let before = std::mem::take(&mut self.lasting);
        for trouble in troubles {
            self.lasting.insert(trouble, before.get(&trouble).copied().unwrap_or(now));
        }
        for (trouble, since) in before {
            let longest = self.longest.entry(trouble.promise()).or_default();
            *longest = (*longest).max(now.saturating_sub(since));
        }
        self.next = self.lasting.iter().map(|(trouble, since)| *since + self.limits.limit(*trouble)).min();
    }

    /// Whether a limit has passed at `now`. The trouble may have ended since the last check, so the caller looks again.
    pub fn is_due(&self, now: Duration) -> bool {
        self.next.is_some_and(|next| now > next)
    }

    /// The first trouble that has lasted too long at `now`.
    pub fn broken(&self, now: Duration) -> Option<Violation> {
        self.lasting.iter().find_map(|(trouble, since)| {
            let (limit, promise) = (self.limits.limit(*trouble), trouble.promise());
            (now.saturating_sub(*since) > limit).then(|| Violation {
                at: now,
                promise,
                seen: format!(
                    "{trouble:?} since {:.3} s, allowed are {:.3} s",
                    since.as_secs_f64(),
                    limit.as_secs_f64()
                ),
            })
        })
    }

    /// The longest that a trouble of each kind has lasted.
    pub fn longest(&self) -> BTreeMap<&'static str, Duration> {
        self.longest.clone()
    }
}
