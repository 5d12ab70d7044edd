//! The number of a change of owner.

use serde::{Deserialize, Serialize};

/// Counts the changes of owner of a Service. A record or a claim with a newer term wins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Term(pub u64);

impl Term {
    /// Up to here every term counts for other Services. No cluster has so many changes of owner.
    const COUNTED: u64 = 1 << 32;
    /// How far beyond the newest term that counts another one may be. Each change of owner counts one further, and a
    /// node that has missed many changes finds the newest term on the cards of the others.
    const STEP: u64 = 1 << 10;
    /// The largest valid term; a larger one counts as missing. An author of one Service must not exhaust the terms of
    /// all others: from [`Self::COUNTED`] to here takes two thousand million writes, of one [`Self::STEP`] each.
    const MAX: u64 = 1 << 41;

    /// Parses the annotation; `None` if the term is malformed or too large.
    pub fn parse(text: &str) -> Option<Self> {
        text.trim().parse().ok().map(Self).filter(|term| term.is_plausible())
    }

    /// Whether the term is small enough to result from counting.
    pub fn is_plausible(self) -> bool {
        self.0 <= Self::MAX
    }

    /// Whether other Services may continue counting from it. `newest`: the newest term from which they do. A fixed
    /// bound would not do: nobody could count on beyond it, once an author has written it.
    pub fn is_counted(self, newest: Self) -> bool {
        self.0 <= Self::COUNTED || self.is_within_a_step_of(newest)
    }

    /// Whether the changes of owner that a node can have missed lead from `newest` to this term.
    pub fn is_within_a_step_of(self, newest: Self) -> bool {
        self.0 <= newest.0.saturating_add(Self::STEP)
    }

    /// The next term. A term at the maximum stays there: under equal terms the host in the record decides, while a
    /// larger term could not be read by any announcer.
    pub fn next(self) -> Self {
        Self(self.0.saturating_add(1).min(Self::MAX))
    }
}

impl std::fmt::Display for Term {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_term_that_nobody_can_have_counted_is_none() {
        for (text, term) in [
            ("7", Some(7)),
            (" 0 ", Some(0)),
            ("2199023255552", Some(1 << 41)),
            ("2199023255553", None),
            ("4611686018427387904", None),
            ("18446744073709551615", None),
            ("18446744073709551616", None),
            ("-1", None),
            ("seven", None),
            ("", None),
        ] {
            assert_eq!(Term::parse(text), term.map(Term), "{text:?}");
        }
    }

    #[test]
    fn a_term_counts_for_others_where_counting_can_have_led_to_it() {
        let (limit, step) = (Term::COUNTED, Term::STEP);
        for (term, newest, counts) in [
            (0, 0, true),
            (limit, 0, true),
            (limit + 1, 0, false),
            (limit + 1, limit - step, false),
            (limit + step, limit, true),
            (limit + step + 1, limit, false),
            (1 << 40, limit, false),
            (1 << 40, (1 << 40) - 1, true),
            (Term::MAX, limit, false),
            (7, Term::MAX, true),
        ] {
            assert_eq!(Term(term).is_counted(Term(newest)), counts, "{term} beside {newest}");
        }
        for newest in [0, limit, limit + 1, 1 << 40, Term::MAX] {
            assert!(Term(newest).next().is_counted(Term(newest)), "after {newest}");
        }
    }

    #[test]
    fn a_claim_may_be_ahead_by_what_a_node_can_have_missed() {
        let step = Term::STEP;
        for (term, newest, within) in [
            (3, 7, true),
            (8, 7, true),
            (7 + step, 7, true),
            (8 + step, 7, false),
            (Term::COUNTED, 7, false),
            (Term::MAX, 7, false),
            (Term::MAX, Term::MAX, true),
        ] {
            assert_eq!(Term(term).is_within_a_step_of(Term(newest)), within, "{term} beside {newest}");
        }
    }

    #[test]
    fn what_is_written_next_can_always_be_read() {
        for term in [0, Term::COUNTED, Term::MAX - 1, Term::MAX] {
            let next = Term(term).next();
            assert_eq!(Term::parse(&next.to_string()), Some(next));
        }
        assert_eq!((Term(7).next(), Term(Term::MAX).next()), (Term(8), Term(Term::MAX)));
    }
}
