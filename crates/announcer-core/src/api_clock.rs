//! The API server's time, which all nodes receive in the header of each answer. Ends of leases are recorded by this
//! clock, so that a node with a wrong clock uses a lease neither too long nor too short.
//!
//! An answer gives whole seconds, and the moment at which the server read its clock lies between request and answer. So
//! the time is known as a range. Recorded ends are computed from its lower bound, and read ends are compared with its
//! upper bound. So a lease is never extended by mistake.

use std::time::{Duration, Instant};

use jiff::{Timestamp, fmt::rfc2822};

/// A server's clock counts for this long after its last answer.
const LATELY: Duration = Duration::from_mins(10);
/// Maximum of clocks that are told apart; a further one replaces the one that was silent for longest.
const CLOCKS: usize = 3;

/// What is known about the API server's time. Several API servers may have different clocks, and may answer in turn.
/// Then all of them count: a recorded end and the judgement of it may come from different ones.
#[derive(Debug, Clone, Copy, Default)]
pub struct ApiClock([Option<Known>; CLOCKS]);

/// The range at one moment of the monotonic clock.
#[derive(Debug, Clone, Copy)]
struct Known {
    at: Instant,
    earliest: Timestamp,
    latest: Timestamp,
}

impl Known {
    fn later(self, now: Instant) -> Self {
        let passed = now.saturating_duration_since(self.at);
        Self { at: now, earliest: after(self.earliest, passed), latest: after(self.latest, passed) }
    }
}

impl ApiClock {
    /// Takes in the header `Date` (RFC 9110 6.6.1) of the answer to a request sent at `asked`. An invalid date is
    /// ignored.
    pub fn answered(&mut self, asked: Instant, now: Instant, date: &str) {
        let Ok(date) = rfc2822::parse(date).map(|date| date.timestamp()) else { return };
        let under_way = now.saturating_duration_since(asked) + Duration::from_secs(1);
        let heard = Known { at: now, earliest: date, latest: after(date, under_way) };
        let narrowed = |known: Known| {
            let (earliest, latest) = (known.earliest.max(heard.earliest), known.latest.min(heard.latest));
            (earliest <= latest).then_some(Known { earliest, latest, ..heard })
        };
        for clock in &mut self.0 {
            if let Some(both) = clock.and_then(|known| narrowed(known.later(now))) {
                *clock = Some(both);
                return;
            }
        }
        // The ranges need not overlap: clocks drift and are set, and another API server has another clock.
        if let Some(oldest) = self.0.iter_mut().min_by_key(|clock| clock.map(|known| known.at)) {
            *oldest = Some(heard);
        }
    }

    /// The clocks that count now: those that were heard lately, or else the last one.
    fn counting(&self, now: Instant) -> impl Iterator<Item = Known> {
        let last = self.0.iter().flatten().map(|known| known.at).max();
        let counts = move |known: &Known| Some(known.at) == last || now < known.at + LATELY;
        self.0.into_iter().flatten().filter(counts).map(move |known| known.later(now))
    }

    /// Lower bound of the time by any of the clocks; the node's own time `wall`, if no API server has answered yet.
    pub fn earliest(&self, now: Instant, wall: Timestamp) -> Timestamp {
        self.counting(now).map(|known| known.earliest).min().unwrap_or(wall)
    }

    /// Upper bound of the time by any of the clocks; `wall`, if no API server has answered yet.
    pub fn latest(&self, now: Instant, wall: Timestamp) -> Timestamp {
        self.counting(now).map(|known| known.latest).max().unwrap_or(wall)
    }
}

fn after(time: Timestamp, passed: Duration) -> Timestamp {
    time.checked_add(passed).unwrap_or(Timestamp::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn time(text: &str) -> Timestamp {
        format!("2026-01-01T{text}Z").parse().unwrap()
    }

    fn ms(milliseconds: u64) -> Duration {
        Duration::from_millis(milliseconds)
    }

    #[test]
    fn the_time_is_within_what_each_answer_leaves_open() {
        let (start, wall) = (Instant::now(), Timestamp::UNIX_EPOCH);
        let mut clock = ApiClock::default();
        let range =
            |clock: &ApiClock, at: u64| (clock.earliest(start + ms(at), wall), clock.latest(start + ms(at), wall));
        assert_eq!(range(&clock, 0), (wall, wall), "nobody has answered: the node's own");
        clock.answered(start, start, "no date");
        assert_eq!(range(&clock, 0), (wall, wall));
        for (what, asked, answered, date, expected) in [
            ("whole seconds, and the way", 0, 200, "12:00:00", ("12:00:00", "12:00:01.2")),
            ("a second one narrows it", 700, 900, "12:00:01", ("12:00:01", "12:00:01.9")),
            ("one that says less changes nothing", 900, 4900, "12:00:03", ("12:00:05", "12:00:05.9")),
            ("one that contradicts: another server", 5000, 5000, "13:00:00", ("12:00:05.1", "13:00:01")),
            ("both are asked in turn", 6000, 6000, "12:00:06", ("12:00:06.1", "13:00:02")),
            ("the second one's range is narrowed", 6500, 6600, "13:00:02", ("12:00:06.7", "13:00:02.6")),
            ("a third one", 7000, 7000, "12:30:00", ("12:00:07.1", "13:00:03")),
        ] {
            clock.answered(start + ms(asked), start + ms(answered), &format!("Thu, 01 Jan 2026 {date} GMT"));
            assert_eq!(range(&clock, answered), (time(expected.0), time(expected.1)), "{what}");
        }
        let much_later = 7000 + 10 * 60_000;
        assert_eq!(range(&clock, much_later), (time("12:40:00"), time("12:40:01")), "the last one counts on alone");
    }

    #[test]
    fn no_clock_of_a_node_stretches_a_lease_that_goes_through_the_api() {
        let start = Instant::now();
        for (owners, successors) in [(0, 0), (7200, 0), (0, -7200), (-300, 86_400)] {
            let own = |ahead: i64| time("12:00:00") + jiff::SignedDuration::from_secs(ahead);
            let mut clocks = [ApiClock::default(); 2];
            for (clock, way) in clocks.iter_mut().zip([30, 800]) {
                clock.answered(start, start + ms(way), "Thu, 01 Jan 2026 12:00:00 GMT");
            }
            let left = Duration::from_mins(10);
            let written = after(clocks[0].earliest(start + ms(1000), own(owners)), left);
            let read = written.duration_since(clocks[1].latest(start + ms(1000), own(successors)));
            let lost = left.as_secs_f64() - read.as_secs_f64();
            assert!((0.0..2.0).contains(&lost), "{lost}");
        }
    }
}
