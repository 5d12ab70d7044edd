//! The number of a change of owner.

use serde::{Deserialize, Serialize};

/// Counts the changes of owner of a Service. A record or a claim with a newer term wins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Term(pub u64);

impl Term {
    /// The largest term that counts for other Services. No cluster has so many changes of owner, and an author of one
    /// Service must not exhaust the terms of all others.
    const COUNTED: u64 = 1 << 40;
    /// The largest valid term; a larger one counts as missing. The distance to [`Self::COUNTED`] is large enough that
    /// counting on from there never reaches it.
    const MAX: u64 = 1 << 41;

    /// Parses the annotation; `None` if the term is malformed or too large.
    pub fn parse(text: &str) -> Option<Self> {
        text.trim().parse().ok().map(Self).filter(|term| term.is_plausible())
    }

    /// Whether the term is small enough to result from counting.
    pub fn is_plausible(self) -> bool {
        self.0 <= Self::MAX
    }

    /// Whether other Services may continue counting from it.
    pub fn is_counted(self) -> bool {
        self.0 <= Self::COUNTED
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
    fn what_is_written_next_can_always_be_read() {
        for term in [0, Term::COUNTED, Term::MAX - 1, Term::MAX] {
            let next = Term(term).next();
            assert_eq!(Term::parse(&next.to_string()), Some(next));
        }
        assert_eq!((Term(7).next(), Term(Term::MAX).next()), (Term(8), Term(Term::MAX)));
    }
}
