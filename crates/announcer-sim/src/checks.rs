//! What must hold after each step.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

/// Two nodes that hear each other may both answer for one address for this long: a retry period of the election, a
/// request and a watch event.
const SPLIT: Duration = Duration::from_secs(5);
/// From when all is well until an address is answered: lease duration, retry period and what was begun before that.
const UNANSWERED: Duration = Duration::from_secs(22);
/// What nobody wants any more is gone after this.
const LEFT_BEHIND: Duration = Duration::from_secs(4);
/// Two holders of one Lease: the time of a request.
const TWO_LEADERS: Duration = Duration::from_secs(6);

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
        write!(f, "{:.3} s: {}: {}", self.at.as_secs_f64(), self.promise, self.seen)
    }
}

/// Something that may last for a while, and no longer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Trouble {
    /// These nodes both answer for this Service's address.
    Split(usize, usize, usize),
    /// Nobody answers for it.
    Unanswered(usize),
    /// This node keeps something that it has no right to.
    LeftBehind(usize),
    /// These nodes both believe to hold the Lease.
    TwoLeaders(usize, usize),
}

impl Trouble {
    fn limit(self) -> (Duration, &'static str) {
        match self {
            Self::Split(..) => (SPLIT, "two nodes that hear each other do not answer for one address"),
            Self::Unanswered(_) => (UNANSWERED, "an address with a healthy node is answered"),
            Self::LeftBehind(_) => (LEFT_BEHIND, "nothing is left behind"),
            Self::TwoLeaders(..) => (TWO_LEADERS, "one node at a time holds the Lease"),
        }
    }
}

/// Since when each trouble has lasted.
#[derive(Debug, Default)]
pub struct Checks {
    lasting: BTreeMap<Trouble, Duration>,
}

impl Checks {
    /// Follows what is the case at `now`; `troubles` must be complete.
    pub fn follow(&mut self, now: Duration, troubles: impl IntoIterator<Item = Trouble>) {
        let mut next = BTreeMap::new();
        for trouble in troubles {
            next.insert(trouble, self.lasting.get(&trouble).copied().unwrap_or(now));
        }
        self.lasting = next;
    }

    /// The first trouble that has lasted too long at `now`.
    pub fn broken(&self, now: Duration) -> Option<Violation> {
        self.lasting.iter().find_map(|(trouble, since)| {
            let (limit, promise) = trouble.limit();
            let lasted = now.saturating_sub(*since);
            (lasted > limit).then(|| Violation {
                at: now,
                promise,
                seen: format!("{trouble:?} since {:.3} s", since.as_secs_f64()),
            })
        })
    }
}
