//! The probes for one address: three before its first use, or in doubt after a pause. A probe that could not be sent
//! has asked no host, so it does not count and is sent again, for a limited time. Pure.

use std::time::Instant;

use crate::frames::{PROBE_GAP, PROBES};

/// How many probes are sent again before an address is used. With their pauses that takes 10.3 s. An interface that
/// sends nothing for longer must not keep an address from its clients for ever.
const BEFORE_USE: u32 = 10;
/// The same for an address that is up, 0.4 s: its lifetime is not extended meanwhile.
const IN_DOUBT: u32 = 5;
/// The same for a granted lease, 1.4 s: its client waits for 2 s until it complains.
const OF_LEASE: u32 = 7;

/// Progress of the probes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Probes {
    sent: u8,
    next: Instant,
    /// How many were sent again so far, and how many may be.
    again: u32,
    patience: u32,
}

impl Probes {
    /// Before an address is used. The first probe is due at `at`.
    pub fn before_use(at: Instant) -> Self {
        Self { sent: 0, next: at, again: 0, patience: BEFORE_USE }
    }

    /// For an address that is up and that another host may have taken.
    pub fn in_doubt(at: Instant) -> Self {
        Self { patience: IN_DOUBT, ..Self::before_use(at) }
    }

    /// For a lease that was granted and is not in use yet.
    pub fn of_lease(at: Instant) -> Self {
        Self { patience: OF_LEASE, ..Self::before_use(at) }
    }

    /// Whether no probe was sent yet.
    pub fn are_unsent(&self) -> bool {
        self.sent == 0 && self.again == 0
    }

    /// When [`Self::go_on`] has to be called.
    pub fn deadline(&self) -> Instant {
        self.next
    }

    /// Whether to send a probe now; counts it as sent. False: all are sent, and the last one had its time.
    pub fn go_on(&mut self, now: Instant) -> bool {
        let more = self.sent < PROBES;
        if more {
            self.sent += 1;
            // The gap starts when the probe is sent, not when it was due, so that an answer has its full time
            // (fail-over spec R1).
            self.next = now + PROBE_GAP;
        }
        more
    }

    /// The last probe is sent once more.
    pub fn repeat_last(&mut self) {
        self.sent = self.sent.min(PROBES - 1);
    }

    /// The last probe could not be sent. The pause before the next one grows.
    pub fn not_sent(&mut self) {
        if self.sent > 0 && self.again < self.patience {
            self.sent -= 1;
            self.next += PROBE_GAP * 2_u32.pow(self.again);
            self.again += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// After how long the address counts as free, and how many probes were sent, if the first `refused` are refused.
    fn run(mut probes: Probes, start: Instant, refused: usize) -> (Duration, usize) {
        let (mut now, mut tried) = (start, 0);
        while probes.go_on(now) {
            tried += 1;
            if tried <= refused {
                probes.not_sent();
            }
            now = probes.deadline();
        }
        (now - start, tried.saturating_sub(refused))
    }

    #[test]
    fn three_probes_are_sent_however_many_are_refused_before_until_patience_ends() {
        let (start, ms) = (Instant::now(), Duration::from_millis);
        for (name, probes, refused, expected) in [
            ("none is refused", Probes::before_use(start), 0, (ms(30), 3)),
            ("one", Probes::before_use(start), 1, (ms(50), 3)),
            ("four", Probes::before_use(start), 4, (ms(220), 3)),
            ("all", Probes::before_use(start), usize::MAX, (ms(10_360), 0)),
            ("all, of a lease", Probes::of_lease(start), usize::MAX, (ms(1370), 0)),
            ("all, in doubt", Probes::in_doubt(start), usize::MAX, (ms(390), 0)),
        ] {
            assert_eq!(run(probes, start, refused), expected, "{name}");
        }
    }

    #[test]
    fn a_probe_is_repeated_once_and_one_that_was_never_sent_changes_nothing() {
        let start = Instant::now();
        let mut probes = Probes::in_doubt(start);
        probes.not_sent();
        assert_eq!(probes, Probes::in_doubt(start));
        while probes.go_on(start) {}
        probes.repeat_last();
        assert!(probes.go_on(start) && !probes.go_on(start));
    }
}
