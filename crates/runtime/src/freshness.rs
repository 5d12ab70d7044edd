//! Whether a fact that a cache shows may be acted upon for good: pure. What is deleted, released or given up is so on a
//! fact that was
//! seen while the watches worked, and that no trouble with them has come after; the object itself is read once more all
//! the same.

use crate::reflect::Status;

/// How the watches that a fact comes from are doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Health {
    /// All of them bring what happens.
    pub well: bool,
    /// How often something went wrong with one of them.
    pub troubles: u64,
}

impl Health {
    /// All of these watches together.
    pub fn of(watches: &[Status]) -> Self {
        Self {
            well: watches.iter().all(|status| status.error.is_none()),
            troubles: watches.iter().map(|status| status.troubles).sum(),
        }
    }
}

/// When a fact was first seen, counted in troubles. `None`: not yet.
pub type FirstSeen = Option<u64>;

/// What may be done about a fact.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Freshness {
    /// It may be acted upon.
    Fresh,
    /// The watches have failed since it was first seen, and work again: it counts as seen now, and one more look
    /// decides.
    SeenAnew,
    /// The watches do not work.
    Interrupted,
}

/// Judges a fact that is seen now.
pub fn judge(first_seen: &mut FirstSeen, health: Health) -> Freshness {
    if !health.well {
        *first_seen = None;
        return Freshness::Interrupted;
    }
    match first_seen.replace(health.troubles) {
        Some(then) if then != health.troubles => Freshness::SeenAnew,
        _ => Freshness::Fresh,
    }
}

#[cfg(test)]
mod tests {
    use super::Freshness::{Fresh, Interrupted, SeenAnew};
    use super::*;

    #[test]
    fn a_fact_counts_from_when_the_watches_have_worked_without_trouble() {
        let at = |well, troubles| Health { well, troubles };
        for (sentence, looks, expected) in [
            ("seen while all is well", vec![at(true, 4)], vec![Fresh]),
            ("and again", vec![at(true, 4), at(true, 4)], vec![Fresh, Fresh]),
            ("seen in an outage", vec![at(false, 5), at(false, 9)], vec![Interrupted, Interrupted]),
            ("seen in an outage that is over", vec![at(false, 5), at(true, 9)], vec![Interrupted, Fresh]),
            ("an outage between two looks", vec![at(true, 4), at(true, 6), at(true, 6)], vec![Fresh, SeenAnew, Fresh]),
            (
                "one outage after the other",
                vec![at(true, 4), at(true, 6), at(true, 8)],
                vec![Fresh, SeenAnew, SeenAnew],
            ),
        ] {
            let mut first_seen = None;
            let judged: Vec<_> = looks.into_iter().map(|health| judge(&mut first_seen, health)).collect();
            assert_eq!(judged, expected, "{sentence}");
        }
    }

    #[test]
    fn one_watch_that_fails_is_enough() {
        let well = Status { troubles: 2, ..Status::default() };
        let error = Some((tokio::time::Instant::now(), "connection refused".to_owned()));
        let away = Status { error, troubles: 3, ..Status::default() };
        assert_eq!(Health::of(&[well.clone(), well.clone()]), Health { well: true, troubles: 4 });
        assert_eq!(Health::of(&[well, away]), Health { well: false, troubles: 5 });
    }
}
