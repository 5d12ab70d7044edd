//! What must hold after each step.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use announcer::ElectionMode;

/// How long each kind of trouble may last.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Two nodes that hear each other both answer, and their processes run.
    split: Duration,
    /// The same where a process is dead, hangs, or hears badly: until the kernel's deadline.
    slow_split: Duration,
    /// Nobody answers.
    unanswered: Duration,
}

impl Limits {
    /// What each mode promises.
    pub fn of(mode: ElectionMode) -> Self {
        let seconds = Duration::from_secs;
        match mode {
            // A claim is heard at once and repeated until it has been. An owner is missed at once; after a restart it has
            // to be heard first, and where its first successors are ill too their Leases have to expire.
            ElectionMode::Node => Self { split: seconds(1), slow_split: seconds(6), unanswered: seconds(14) },
            // A retry period of the election, a request and a watch event; its expiry.
            ElectionMode::Global | ElectionMode::Service => {
                Self { split: seconds(5), slow_split: seconds(5), unanswered: seconds(22) }
            }
        }
    }
}

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
    /// The same, where a process is dead, hangs, or hears badly.
    SlowSplit(usize, usize, usize),
    /// Nobody answers for it.
    Unanswered(usize),
    /// This node keeps something that it has no right to.
    LeftBehind(usize),
    /// These nodes both believe to hold the Lease.
    TwoLeaders(usize, usize),
}

impl Trouble {
    fn limit(self, limits: Limits) -> (Duration, &'static str) {
        const SPLIT: &str = "two nodes that hear each other do not answer for one address";
        match self {
            Self::Split(..) => (limits.split, SPLIT),
            Self::SlowSplit(..) => (limits.slow_split, SPLIT),
            Self::Unanswered(_) => (limits.unanswered, "an address with a healthy node is answered"),
            Self::LeftBehind(_) => (LEFT_BEHIND, "nothing is left behind"),
            Self::TwoLeaders(..) => (TWO_LEADERS, "one node at a time holds the Lease"),
        }
    }
}

/// Since when each trouble has lasted.
#[derive(Debug)]
pub struct Checks {
    limits: Limits,
    lasting: BTreeMap<Trouble, Duration>,
}

impl Checks {
    /// Nothing is wrong yet.
    pub fn new(mode: ElectionMode) -> Self {
        Self { limits: Limits::of(mode), lasting: BTreeMap::new() }
    }

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
            let (limit, promise) = trouble.limit(self.limits);
            let lasted = now.saturating_sub(*since);
            (lasted > limit).then(|| Violation {
                at: now,
                promise,
                seen: format!("{trouble:?} since {:.3} s", since.as_secs_f64()),
            })
        })
    }
}
