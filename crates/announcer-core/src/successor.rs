//! `global` mode, while stopping: finds the holder of the Lease after this node has released it, by reading the Lease
//! until it names one.

use std::time::{Duration, Instant};

/// Interval between two reads of the Lease.
const POLL: Duration = Duration::from_millis(200);
/// A read without an answer is repeated after this time.
pub const LIMIT: Duration = Duration::from_secs(2);

/// The search for the next holder.
#[derive(Debug)]
pub struct Search {
    /// When to read next; `None` while a request is under way.
    next: Option<Instant>,
    found: bool,
}

impl Search {
    /// The Lease was released just now.
    pub fn new(now: Instant) -> Self {
        Self { next: Some(now), found: false }
    }

    /// When the Lease is to be read.
    pub fn deadline(&self) -> Option<Instant> {
        self.next.filter(|_| !self.found)
    }

    /// Whether to read the Lease now; then its answer is awaited.
    pub fn reads(&mut self, now: Instant) -> bool {
        !self.found && self.next.take_if(|at| *at <= now).is_some()
    }

    /// Takes in the holder that the Lease shows, or `None` if it could not be read. Returns the new holder once.
    pub fn answered(&mut self, now: Instant, holder: Option<String>) -> Option<String> {
        let holder = holder.filter(|holder| !holder.is_empty() && !self.found);
        self.found |= holder.is_some();
        self.next = (!self.found).then_some(now + POLL);
        holder
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lease_is_read_until_it_shows_a_holder() {
        let now = Instant::now();
        let mut successor = Search::new(now);
        assert!(successor.reads(now));
        assert!(!successor.reads(now), "it is being read");
        for nobody in [None, Some(String::new())] {
            assert_eq!(successor.answered(now, nobody), None);
            assert_eq!(successor.deadline(), Some(now + POLL));
        }
        assert!(!successor.reads(now));
        assert!(successor.reads(now + POLL));
        assert_eq!(successor.answered(now, Some("node-2".into())).as_deref(), Some("node-2"));
        assert_eq!((successor.deadline(), successor.reads(now + 2 * POLL)), (None, false));
    }
}
