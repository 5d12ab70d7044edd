//! What a user counts after an event: requests that got no answer within a second.

use std::time::{Duration, Instant};

use super::{Journal, RETRANSMISSION};
use crate::stall::Stalls;

/// A user who waits longer presses the button again.
pub const IN_TIME: Duration = Duration::from_secs(1);

/// Requests since an event, and those under way when it came.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize)]
pub struct Missed {
    /// Requests whose fate is known.
    pub sent: u64,
    /// Lost, or answered later than [`IN_TIME`], the machine's stalls subtracted.
    pub missed: u64,
    /// Answered in time, but only after TCP had sent something again.
    pub late: u64,
    /// The last of the missed was sent so long after the event.
    pub last: Option<Duration>,
    /// What became of that one; absent: it was answered too late.
    pub how: Option<String>,
    /// So much of that time the machine kept processes waiting.
    pub stalled: Duration,
}

impl Missed {
    /// For how long requests were missed, without what the machine's stalls explain.
    pub fn lasted(&self) -> Duration {
        self.last.unwrap_or_default().saturating_sub(self.stalled)
    }

    /// How many an idle machine would have missed, at most: stalls have kept some of them waiting for their turn to
    /// be missed.
    pub fn unexplained(&self, interval: Duration) -> u64 {
        let stalled = u64::try_from(self.stalled.as_millis() / interval.as_millis().max(1)).unwrap_or(u64::MAX);
        self.missed.saturating_sub(stalled)
    }
}

/// Pure: the same journal always gives the same figures.
pub(super) fn missed_since(journal: &Journal, machine: &Stalls, event: Instant) -> Missed {
    let mut found = Missed::default();
    for (sent, at, fate) in journal.fates.iter().filter(|(sent, ..)| *sent + IN_TIME > event) {
        let mut took = *at - *sent;
        if took >= RETRANSMISSION {
            took = took.saturating_sub(machine.within(*sent, *at, &journal.stalls));
        }
        found.sent += 1;
        if fate.is_err() || took > IN_TIME {
            found.missed += 1;
            let after = Some(sent.saturating_duration_since(event));
            if after >= found.last {
                (found.last, found.how) = (after, fate.as_ref().err().cloned());
            }
        } else {
            found.late += u64::from(took >= RETRANSMISSION);
        }
    }
    if let Some(last) = found.last {
        found.stalled = machine.within(event, event + last, &journal.stalls);
    }
    found
}
