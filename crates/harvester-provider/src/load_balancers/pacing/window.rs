//! How many creates and deletes may be under way on the host at one time: pure. Decision 6.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

/// On a real host any other size makes it slower (host-throughput.md 1.1).
const NARROW: usize = 1;

/// On a host that books without a rate limit.
const WIDE: usize = 16;

/// So many in such a time are more than the rate limit of a real host allows: its bucket is good for about seven in one
/// second, and for fifteen in four.
const QUICK: [(usize, Duration); 2] = [(10, Duration::from_secs(1)), (20, Duration::from_secs(4))];

/// A host that takes longer than this for one object writes at its limit.
const SLOW: Duration = Duration::from_millis(200);

/// The size of the window, and what it was learnt from.
#[derive(Debug, Default)]
pub(super) struct Window {
    wide: bool,
    quick: VecDeque<Instant>,
}

impl Window {
    pub(super) fn size(&self) -> usize {
        if self.wide { WIDE } else { NARROW }
    }

    /// The host has finished with an object, `took` after it was asked to, while it had `load` of them in hand. It
    /// works on them one after the other, so its time for one is the share.
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

    /// The host's workers got into each other's way, or do not get on.
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
