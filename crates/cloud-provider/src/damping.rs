//! Against writing as fast as somebody else undoes it. A state of an object that is repaired again and again is left
//! alone for longer each time; another state, a wish of the user for instance, is answered at once. Pure.

use std::time::Duration;

use tokio::time::Instant;

/// So many repairs of one state
const FREE: u32 = 5;
/// within this time are nothing unusual. After that it is left alone for a second, and for twice as long each time that
/// follows,
const WINDOW: Duration = Duration::from_mins(1);
/// up to this.
const LONGEST: Duration = Duration::from_mins(5);

/// Repairs of one state of one object.
#[derive(Debug)]
struct Repairs<S> {
    state: S,
    times: u32,
    first: Instant,
    last: Instant,
}

/// What was repaired last, and how often. Most objects never need it: it has little room in theirs.
#[derive(Debug)]
pub struct Damper<S>(Option<Box<Repairs<S>>>);

impl<S> Default for Damper<S> {
    fn default() -> Self {
        Self(None)
    }
}

impl<S> Repairs<S> {
    fn pause(&self) -> Duration {
        let doublings = self.times.saturating_sub(FREE);
        match doublings {
            0 => Duration::ZERO,
            _ => Duration::from_secs(1).saturating_mul(1 << (doublings - 1).min(16)).min(LONGEST),
        }
    }

    /// Nobody fights any more: it was left alone for long enough, or repaired now and then.
    fn is_over(&self, now: Instant) -> bool {
        now.duration_since(self.last) >= WINDOW + 2 * self.pause()
            || self.times < FREE && now.duration_since(self.first) >= WINDOW
    }
}

impl<S> Damper<S> {
    /// Nothing of it matters any more.
    pub fn is_over(&self, now: Instant) -> bool {
        self.0.as_ref().is_none_or(|repairs| repairs.is_over(now))
    }
}

/// What is told when somebody undoes what is written on `object`; `whole` is what he is to leave alone.
pub fn undone(object: &str, by: Option<&str>, whole: &str) -> String {
    let by = by.unwrap_or("a client that the object does not name");
    format!(
        "the same write on {object} was undone more than five times within a minute. It was written last by {by}. It \
         is repeated more seldom each time: see that the other writer leaves {whole} alone"
    )
}

impl<S: PartialEq> Damper<S> {
    /// For how long this state has to stay as it is; `None`: it may be repaired.
    pub fn rest(&self, state: &S, now: Instant) -> Option<Duration> {
        let repairs = self.0.as_ref().filter(|repairs| repairs.state == *state)?;
        let rest = repairs.pause().saturating_sub(now.duration_since(repairs.last));
        (!rest.is_zero()).then_some(rest)
    }

    /// This state was repaired. True: somebody undoes it, and that has to be said now.
    pub fn repaired(&mut self, state: S, now: Instant) -> bool {
        if let Some(repairs) = self.0.as_mut().filter(|repairs| repairs.state == state && !repairs.is_over(now)) {
            repairs.times = repairs.times.saturating_add(1);
            repairs.last = now;
            return repairs.times == FREE + 1;
        }
        self.0 = Some(Box::new(Repairs { state, times: 1, first: now, last: now }));
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Seen: 149 writes per second.
    #[test]
    fn who_undoes_a_write_at_once_is_answered_five_times_and_then_more_seldom_each_time() {
        let start = Instant::now();
        let mut damper = Damper::default();
        let (mut now, mut writes, mut told) = (start, Vec::new(), 0);
        while now < start + Duration::from_hours(1) {
            if let Some(rest) = damper.rest(&"undone", now) {
                now += rest;
            } else {
                told += u32::from(damper.repaired("undone", now));
                writes.push((now - start).as_secs());
                now += Duration::from_millis(7);
            }
        }
        assert_eq!(writes[..11], [0, 0, 0, 0, 0, 0, 1, 3, 7, 15, 31]);
        assert_eq!(told, 1, "one Event");
        assert!(writes.len() < 30, "{}", writes.len());
    }

    #[test]
    fn what_a_user_changes_meanwhile_is_answered_at_once() {
        let now = Instant::now();
        let mut damper = Damper::default();
        for _ in 0..20 {
            damper.repaired("undone", now);
        }
        assert!(damper.rest(&"undone", now).is_some());
        assert_eq!(damper.rest(&"another port", now), None);
    }

    #[test]
    fn a_correction_now_and_then_is_no_fight_and_a_fight_ends() {
        let start = Instant::now();
        let mut damper = Damper::default();
        for minutes in 0..30 {
            let now = start + Duration::from_mins(minutes);
            assert_eq!(damper.rest(&"undone", now), None);
            assert!(!damper.repaired("undone", now));
        }
        let fight = start + Duration::from_hours(1);
        for _ in 0..8 {
            damper.repaired("undone", fight);
        }
        let later = fight + Duration::from_mins(10);
        assert!(!damper.repaired("undone", later));
        assert_eq!(damper.rest(&"undone", later), None, "it begins anew");
    }
}
