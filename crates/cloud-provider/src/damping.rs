//! Prevents a fight between the controller and another writer. A state of an object that was repaired several times is
//! left alone for a growing time. Any other state, such as a new request of the user, is handled at once. Pure.

use std::time::Duration;

use tokio::time::Instant;

/// Number of repairs of one state within [`WINDOW`] that are not damped.
const FREE: u32 = 5;
/// Repairs within this time count together. After [`FREE`] repairs the state is left alone for a second, and for twice
/// as long after each further repair.
const WINDOW: Duration = Duration::from_mins(1);
/// The longest time that a state is left alone.
const LONGEST: Duration = Duration::from_mins(5);

/// Repairs of one state of one object.
#[derive(Debug)]
struct Repairs<S> {
    state: S,
    times: u32,
    first: Instant,
    last: Instant,
}

/// The state that was repaired last, and how often. Boxed, because most objects never need it.
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

    /// Whether the fight is over: the state was left alone for long enough, or the repairs were rare.
    fn is_over(&self, now: Instant) -> bool {
        now.duration_since(self.last) >= WINDOW + 2 * self.pause()
            || self.times < FREE && now.duration_since(self.first) >= WINDOW
    }
}

impl<S> Damper<S> {
    /// Whether the history no longer matters.
    pub fn is_over(&self, now: Instant) -> bool {
        self.0.as_ref().is_none_or(|repairs| repairs.is_over(now))
    }
}

/// The text for the user when another writer undoes what the controller writes on `object`; `whole` names the fields
/// that the other writer should leave alone.
pub fn undone(object: &str, by: Option<&str>, whole: &str) -> String {
    let by = by.unwrap_or("a client that the object does not name");
    format!(
        "the same write on {object} was undone more than five times within a minute. It was written last by {by}. It \
         is repeated more seldom each time: see that the other writer leaves {whole} alone"
    )
}

impl<S: PartialEq> Damper<S> {
    /// How long this state has to be left alone; `None` if it may be repaired.
    pub fn rest(&self, state: &S, now: Instant) -> Option<Duration> {
        let repairs = self.0.as_ref().filter(|repairs| repairs.state == *state)?;
        let rest = repairs.pause().saturating_sub(now.duration_since(repairs.last));
        (!rest.is_zero()).then_some(rest)
    }

    /// Records a repair of this state. Returns true if another writer undoes it and that has to be reported now.
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
