//! Decides how many creates and deletes may be under way on the host concurrently (decision 6). Pure.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

/// Size for a real host, which gets slower with any other size (host pace spec 1.1).
const NARROW: usize = 1;

/// Size for a host that allocates without a rate limit.
const WIDE: usize = 16;

/// If this many objects are finished within this time, the host has no rate limit: the limiter of a real host allows
/// about seven in one second, and fifteen in four.
const QUICK: [(usize, Duration); 2] = [(10, Duration::from_secs(1)), (20, Duration::from_secs(4))];

/// If the host needs more than this per object, its rate limit is reached.
const SLOW: Duration = Duration::from_millis(200);

/// The size of the window, and the observations behind it.
#[derive(Debug, Default)]
pub(super) struct Window {
    wide: bool,
    quick: VecDeque<Instant>,
}

impl Window {
    pub(super) fn size(&self) -> usize {
        if self.wide { WIDE } else { NARROW }
    }

    /// Records that the host has finished an object, `took` after the request, with `load` objects in hand. The host
    /// processes them one after the other, so the time per object is the quotient.
    pub(super) fn finished(&mut self, now: Instant, took: Duration, load: usize) {
        if took / u32::try_from(load.max(1)).unwrap_or(u32::MAX) > SLOW {
            return self.narrow();
        }
        if self.wide {
            return;
        }
        self.quick.push_front(now);
        self.quick.truncate(QUICK[1].0);
        let within = |time: Duration| move |at: &Instant| now.saturating_duration_since(*at) < time;
        if QUICK.iter().any(|(count, time)| self.quick.get(count - 1).is_some_and(within(*time))) {
            self.quick.clear();
            self.wide = true;
        }
    }

    /// Narrows the window: the host's workers collided, or are too slow.
    pub(super) fn narrow(&mut self) {
        self.wide = false;
        self.quick.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(window: &mut Window, start: Instant, each: Duration, count: u32) -> usize {
        for n in 1..=count {
            window.finished(start + each * n, each, 1);
        }
        window.size()
    }

    #[test]
    fn ten_within_a_second_open_the_window_and_a_real_host_does_not() {
        let (now, ms) = (Instant::now(), Duration::from_millis);
        assert_eq!(after(&mut Window::default(), now, ms(30), 9), 1);
        assert_eq!(after(&mut Window::default(), now, ms(30), 10), 16);
        assert_eq!(after(&mut Window::default(), now, ms(180), 19), 1);
        assert_eq!(after(&mut Window::default(), now, ms(180), 20), 16, "or twenty within four");
        assert_eq!(after(&mut Window::default(), now, ms(399), 1000), 1, "a real host, for ever");
    }

    #[test]
    fn one_collision_or_one_slow_answer_closes_it() {
        let (now, ms) = (Instant::now(), Duration::from_millis);
        let mut window = Window::default();
        assert_eq!(after(&mut window, now, ms(30), 10), 16);
        window.finished(now, ms(900), 16);
        assert_eq!(window.size(), 16, "sixteen at a time take longer, each of them does not");
        window.finished(now, ms(900), 4);
        assert_eq!(window.size(), 1);
        assert_eq!(after(&mut window, now, ms(30), 9), 1, "what was quick before does not count");
        window.finished(now + ms(300), ms(30), 1);
        assert_eq!(window.size(), 16);
        window.narrow();
        assert_eq!(window.size(), 1);
    }
}
