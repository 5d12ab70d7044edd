//! The API server's time, which all nodes receive in the header of each answer. Ends of leases are recorded by this
//! clock, so that a node with a wrong clock uses a lease neither too long nor too short.
//!
//! An answer gives whole seconds, and the moment at which the server read its clock lies between request and answer. So
//! the time is known as a range. Recorded ends are computed from its lower bound, and read ends are compared with its
//! upper bound. So a lease is never extended by mistake.

use std::time::{Duration, Instant};

use jiff::{Timestamp, fmt::rfc2822};

/// What is known about the API server's time.
#[derive(Debug, Clone, Copy, Default)]
pub struct ApiClock(Option<Known>);

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
        let before = self.0.map_or(heard, |known| known.later(now));
        let both =
            Known { earliest: before.earliest.max(heard.earliest), latest: before.latest.min(heard.latest), ..heard };
        // The ranges need not overlap: clocks drift and are set, and another API server has another clock.
        self.0 = Some(if both.earliest <= both.latest { both } else { heard });
    }

    /// Lower bound of the time; the node's own time `wall`, if no API server has answered yet.
    pub fn earliest(&self, now: Instant, wall: Timestamp) -> Timestamp {
        self.0.map_or(wall, |known| known.later(now).earliest)
    }

    /// Upper bound of the time; `wall`, if no API server has answered yet.
    pub fn latest(&self, now: Instant, wall: Timestamp) -> Timestamp {
        self.0.map_or(wall, |known| known.later(now).latest)
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
            ("one that contradicts counts: the clock was set", 5000, 5000, "13:00:00", ("13:00:00", "13:00:01")),
        ] {
            clock.answered(start + ms(asked), start + ms(answered), &format!("Thu, 01 Jan 2026 {date} GMT"));
            assert_eq!(range(&clock, answered), (time(expected.0), time(expected.1)), "{what}");
        }
        assert_eq!(range(&clock, 65_000), (time("13:01:00"), time("13:01:01")), "it counts on");
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
