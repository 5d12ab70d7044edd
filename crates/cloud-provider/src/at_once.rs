//! How many objects of one kind may be changed or deleted at once without having been asked for it: pure. One after the
//! other is what happens in a healthy cluster; many at once are more likely a wrong view than a wish.

use std::time::Duration;

use tokio::time::Instant;

/// Changes within this time count together.
pub const WINDOW: Duration = Duration::from_mins(1);

/// This many changes are always allowed, however small the cluster is.
const FEW: usize = 3;

/// The result of the check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Allowed {
    /// The changes are allowed.
    Yes,
    /// The changes are allowed if the decision is the same after everything was read again.
    Confirmed,
    /// The changes need an operator's confirmation.
    No,
}

/// Decides whether changes are allowed. `recent`: changes made in the last minute; `wanted`: changes to make now;
/// `all`: existing objects, including those deleted in the last minute.
pub fn allowed(recent: usize, wanted: usize, all: usize) -> Allowed {
    let count = recent + wanted;
    if count <= FEW.max(all / 10) {
        Allowed::Yes
    } else if count * 3 > all {
        Allowed::No
    } else {
        Allowed::Confirmed
    }
}

/// The changes of the last minute.
#[derive(Debug, Default)]
pub struct Recent(Vec<Instant>);

impl Recent {
    /// Records a change.
    pub fn note(&mut self, now: Instant) {
        self.0.push(now);
    }

    /// The number of changes in the last minute.
    pub fn count(&mut self, now: Instant) -> usize {
        self.0.retain(|at| now.duration_since(*at) < WINDOW);
        self.0.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_go_at_once_many_after_one_more_look_and_more_than_a_third_never() {
        use Allowed::{Confirmed, No, Yes};
        for (recent, wanted, all, expected) in [
            (0, 1, 1, Yes),
            (0, 3, 3, Yes),
            (1, 2, 5, Yes),
            (1, 3, 5, No),
            (0, 4, 12, Confirmed),
            (0, 5, 12, No),
            (0, 10, 100, Yes),
            (0, 11, 100, Confirmed),
            (10, 1, 100, Confirmed),
            (0, 33, 100, Confirmed),
            (0, 34, 100, No),
            (30, 4, 100, No),
            (0, 500, 5000, Yes),
        ] {
            assert_eq!(allowed(recent, wanted, all), expected, "{recent} + {wanted} of {all}");
        }
    }

    #[test]
    fn what_was_deleted_a_minute_ago_does_not_count_any_more() {
        let (now, mut recent) = (Instant::now(), Recent::default());
        recent.note(now);
        assert_eq!((recent.count(now + WINDOW / 2), recent.count(now + WINDOW)), (1, 0));
    }
}
