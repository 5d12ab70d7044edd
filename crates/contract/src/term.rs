//! The number of a change of owner.

use serde::{Deserialize, Serialize};

/// Counts the changes of owner of a Service. A record or a claim with a newer term wins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Term(pub u64);

impl Term {
    /// What is learnt from Services and from the wire counts for others up to here: no cluster makes so many changes,
    /// and whoever may write one Service must not bring all others to the end of the numbers.
    const COUNTED: u64 = 1 << 40;
    /// A larger one counts as missing. Far enough beyond [`Self::COUNTED`] that counting on from there never comes
    /// near.
    const MAX: u64 = 1 << 41;

    /// As it stands in an annotation.
    pub fn parse(text: &str) -> Option<Self> {
        text.trim().parse().ok().map(Self).filter(|term| term.is_plausible())
    }

    /// Whether it can have been counted.
    pub fn is_plausible(self) -> bool {
        self.0 <= Self::MAX
    }

    /// Whether other Services may be counted on from it.
    pub fn is_counted(self) -> bool {
        self.0 <= Self::COUNTED
    }

    /// The one after it. What somebody has written to the very end stays there: under the same term the host that
    /// stands in the record counts, and one that nobody can read would never be known to anybody.
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
    fn what_is_written_next_can_always_be_read() {
        for term in [0, Term::COUNTED, Term::MAX - 1, Term::MAX] {
            let next = Term(term).next();
            assert_eq!(Term::parse(&next.to_string()), Some(next));
        }
        assert_eq!((Term(7).next(), Term(Term::MAX).next()), (Term(8), Term(Term::MAX)));
    }
}
