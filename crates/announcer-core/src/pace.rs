//! Limits how often the engine plans: at once while that is cheap, in batches otherwise. Pure.
//!
//! A plan looks at all Services. With a thousand Services it takes milliseconds, and each new Service changes several
//! times. Planning after every change would cost the square of their number.

use std::time::{Duration, Instant};

/// A shorter pass is not limited.
const CHEAP: Duration = Duration::from_micros(500);
/// The rest after a pass, as a multiple of its duration: planning takes at most a ninth of one processor.
const REST: u32 = 8;
/// The longest rest between two passes.
const LONGEST: Duration = Duration::from_millis(50);

/// When the engine may plan again.
#[derive(Debug, Clone, Copy)]
pub struct Pace {
    /// When the last pass ended.
    planned: Instant,
    rest: Duration,
    /// When the pass that is under way began.
    begun: Option<Instant>,
}

impl Pace {
    /// The first pass may begin at once.
    pub fn new(now: Instant) -> Self {
        Self { planned: now, rest: Duration::ZERO, begun: None }
    }

    /// A pass begins now.
    pub fn begin(&mut self, now: Instant) {
        self.begun = Some(now);
    }

    /// The pass has ended, including the actions that it requested. Returns false if none was under way.
    pub fn end(&mut self, now: Instant) -> bool {
        let Some(began) = self.begun.take() else { return false };
        let took = now.saturating_duration_since(began);
        self.planned = now;
        self.rest = if took < CHEAP { Duration::ZERO } else { (took * REST).min(LONGEST) };
        true
    }

    /// The earliest time of the next pass.
    pub fn next(&self) -> Instant {
        self.planned + self.rest
    }

    /// Whether to plan before the next input is read. `others_wait`: more input is waiting.
    pub fn is_due(&self, now: Instant, others_wait: bool) -> bool {
        now >= if others_wait { self.planned + LONGEST } else { self.next() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn a_cheap_plan_is_made_at_once_after_every_change() {
        let now = Instant::now();
        let mut pace = Pace::new(now);
        assert!(pace.is_due(now, false));
        pace.begin(now);
        assert!(pace.end(now + Duration::from_micros(400)));
        assert!(pace.is_due(now + Duration::from_micros(400), false));
    }

    #[test]
    fn an_expensive_plan_rests_so_that_it_takes_a_ninth_of_the_time() {
        let now = Instant::now();
        let mut pace = Pace::new(now);
        pace.begin(now);
        assert!(pace.end(now + ms(4)));
        assert!(!pace.is_due(now + ms(35), false));
        assert!(pace.is_due(now + ms(36), false));
        pace.begin(now);
        assert!(pace.end(now + ms(100)));
        assert_eq!(pace.next(), now + ms(150), "bounded");
    }

    #[test]
    fn what_waits_is_taken_in_first_but_not_for_ever() {
        let now = Instant::now();
        let pace = Pace::new(now);
        assert!(!pace.is_due(now + ms(49), true));
        assert!(pace.is_due(now + ms(50), true));
    }
}
