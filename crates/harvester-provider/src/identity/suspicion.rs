//! Whether a restore of etcd is suspected, and until when. Services that a restore has lost may come back with another
//! restore of a later snapshot. Pure. The suspicion is kept in the record, so that neither a restart nor a new leader
//! ends it.

use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use tokio::time::Instant;

/// After a Service vanished that had the controller's finalizer, no garbage is collected for this long: the restore
/// that lost the Service may be followed by another one that brings it back.
pub const RESTORE_SUSPECTED: Duration = Duration::from_hours(24);

/// Services that vanish within this time count as one event.
const TOGETHER: Duration = Duration::from_mins(1);

/// What this process has read lasts at least so long. The clock of a machine that has just started may be ahead, and
/// whatever was taken for over would be taken out of the record. Within this time the machine learns the right time.
pub const AT_LEAST: Duration = Duration::from_hours(1);

/// A suspected restore, as this process knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Suspicion {
    /// Time stamp of the last Service that vanished, as in the record.
    pub stamp: Timestamp,
    /// When this process learned of it.
    heard: Instant,
    /// When the suspicion ends.
    until: Instant,
    /// The end is that of [`AT_LEAST`]: then the clock is read again.
    doubted: bool,
}

impl Suspicion {
    /// The writer of the stamp may have another clock. Whatever the stamp is, the suspicion lasts no longer than a day
    /// from now.
    fn new(stamp: Timestamp, wall: Timestamp, now: Instant) -> Self {
        let age = Duration::try_from(wall.duration_since(stamp)).unwrap_or_default();
        Self { stamp, heard: now, until: now + RESTORE_SUSPECTED.saturating_sub(age), doubted: false }
    }

    fn first_read(stamp: Timestamp, wall: Timestamp, now: Instant) -> Self {
        let (read, least) = (Self::new(stamp, wall, now), now + AT_LEAST);
        if read.until < least { Self { until: least, doubted: true, ..read } } else { read }
    }

    /// The suspicion after a Service has vanished just now. `confirmed`: when an operator has last confirmed the state.
    /// What vanishes after that is another restore.
    pub fn vanished(known: Option<Self>, confirmed: Option<Instant>, wall: Timestamp, now: Instant) -> Self {
        let unconfirmed = known.filter(|known| confirmed.is_none_or(|confirmed| confirmed < known.heard));
        let together = unconfirmed.filter(|known| now.saturating_duration_since(known.heard) < TOGETHER);
        let fresh = together.filter(|known| known.until.saturating_duration_since(now) + TOGETHER > RESTORE_SUSPECTED);
        fresh.unwrap_or_else(|| Self::new(wall, wall, now))
    }

    /// The suspicion after a read of the record. A stamp that this process already knows, and whose end it may have
    /// seen, changes nothing.
    pub fn recorded(known: Option<Self>, stamp: Timestamp, wall: Timestamp, now: Instant) -> Self {
        match known.filter(|known| known.stamp >= stamp) {
            None => Self::first_read(stamp, wall, now),
            Some(known) if known.doubted && known.until <= now => {
                Self { heard: known.heard, ..Self::new(known.stamp, wall, now) }
            }
            Some(known) => known,
        }
    }

    /// Whether the clock has to be read again before the suspicion can be over; see [`Self::recorded`].
    pub fn is_doubted(self) -> bool {
        self.doubted
    }

    /// When the suspicion ends; `None` if an operator has confirmed the state since.
    pub fn end(self, confirmed: Option<Instant>) -> Option<Instant> {
        confirmed.is_none_or(|confirmed| confirmed < self.heard).then_some(self.until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    #[test]
    fn it_lasts_a_day_from_the_stamp_for_whoever_reads_it_and_never_longer_than_a_day() {
        let (now, wall) = (Instant::now(), at("2026-01-02T00:00:00Z"));
        let hours = Duration::from_hours;
        for (stamp, rest) in [
            ("2026-01-02T00:00:00Z", hours(24)),
            ("2026-01-01T12:00:00Z", hours(12)),
            ("2026-01-01T00:00:00Z", hours(1)),
            ("2025-01-01T00:00:00Z", hours(1)),
            ("2027-01-01T00:00:00Z", hours(24)),
        ] {
            let read = Suspicion::recorded(None, at(stamp), wall, now);
            assert_eq!(read.end(None), Some(now + rest), "{stamp}");
            let again = Suspicion::recorded(Some(read), at(stamp), wall, now + Duration::from_mins(59));
            assert_eq!(again, read, "{stamp}: what is known is no news");
        }
    }

    #[test]
    fn a_clock_that_is_ahead_when_a_process_starts_ends_nothing() {
        let (now, ahead, stamp) = (Instant::now(), at("2026-02-01T00:00:00Z"), at("2026-01-01T12:00:00Z"));
        let read = Suspicion::recorded(None, stamp, ahead, now);
        let end = now + AT_LEAST;
        for (what, wall, rest) in [
            ("it was corrected", at("2026-01-02T01:00:00Z"), Duration::from_hours(11)),
            ("it was right", ahead, Duration::ZERO),
        ] {
            let again = Suspicion::recorded(Some(read), stamp, wall, end);
            assert_eq!(again.end(None), Some(end + rest), "{what}");
            assert_eq!((read.is_doubted(), again.is_doubted()), (true, false), "{what}");
            assert_eq!(again.end(Some(now)), None, "{what}: a confirmation covers it still");
        }
    }

    #[test]
    fn a_human_ends_what_was_heard_before_and_nothing_later() {
        let (now, wall) = (Instant::now(), at("2026-01-02T00:00:00Z"));
        let second = Duration::from_secs(1);
        let suspicion = Suspicion::vanished(None, None, wall, now + second);
        assert_eq!(suspicion.end(Some(now + second)), None);
        assert!(suspicion.end(Some(now)).is_some(), "the confirmation is older");
        let later = Suspicion::vanished(Some(suspicion), None, wall + TOGETHER, now + second + TOGETHER);
        assert!(later.end(Some(now + second)).is_some(), "another restore");
    }

    #[test]
    fn services_that_vanish_together_have_one_stamp() {
        let (now, wall) = (Instant::now(), at("2026-01-02T00:00:00Z"));
        let second = Duration::from_secs(1);
        let first = Suspicion::vanished(None, None, wall, now);
        assert_eq!(Suspicion::vanished(Some(first), None, wall + second, now + second), first);
        assert_ne!(Suspicion::vanished(Some(first), None, wall + TOGETHER, now + TOGETHER), first);
        let again = Suspicion::vanished(Some(first), Some(now + second), wall + 2 * second, now + 2 * second);
        assert_ne!(again, first, "an operator has confirmed what had vanished before");
        assert!(again.end(Some(now + second)).is_some());
        let read = Suspicion::recorded(None, at("2026-01-01T12:00:00Z"), wall, now);
        assert_eq!(Suspicion::vanished(Some(read), None, wall, now).stamp, wall, "what the record has is half over");
    }
}
