//! Decides whether an irreversible action may be based on a fact in a cache. Pure. The fact has to have been seen while
//! the watches worked, and they must not have failed since. Independently of that, the object itself is read once more
//! before the action.

use crate::reflect::Status;

/// The state of the watches that a fact comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Health {
    /// All of them work.
    pub well: bool,
    /// Number of failures of all of them so far.
    pub troubles: u64,
}

impl Health {
    /// The joint state of these watches.
    pub fn of(watches: &[Status]) -> Self {
        Self {
            well: watches.iter().all(|status| status.error.is_none()),
            troubles: watches.iter().map(|status| status.troubles).sum(),
        }
    }
}

/// The number of failures when a fact was first seen; `None` if it was not seen yet.
pub type FirstSeen = Option<u64>;

/// The result of the check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Freshness {
    /// The fact may be acted upon.
    Fresh,
    /// The watches have failed since the fact was first seen, but work again. It counts as first seen now, so the next
    /// check decides.
    SeenAnew,
    /// The watches do not work.
    Interrupted,
}

/// Judges a fact that holds now.
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
