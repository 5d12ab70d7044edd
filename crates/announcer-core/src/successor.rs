//! `global` mode, while stopping: who takes the Lease after we have handed it back. It is read until it shows.

use std::time::{Duration, Instant};

/// How often the Lease is read.
const POLL: Duration = Duration::from_millis(200);
/// What is not answered within this is asked again.
pub const LIMIT: Duration = Duration::from_secs(2);

/// See the module.
#[derive(Debug)]
pub struct Successor {
    /// When to read next; a request is under way otherwise.
    next: Option<Instant>,
    found: bool,
}

impl Successor {
    /// The Lease was handed back just now.
    pub fn new(now: Instant) -> Self {
        Self { next: Some(now), found: false }
    }

    /// When the Lease is to be read.
    pub fn deadline(&self) -> Option<Instant> {
        self.next.filter(|_| !self.found)
    }

    /// Whether the Lease is to be read now; its answer is awaited then.
    pub fn reads(&mut self, now: Instant) -> bool {
        !self.found && self.next.take_if(|at| *at <= now).is_some()
    }

    /// The Lease shows this holder, or could not be read. Who has it now, once.
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
        let mut successor = Successor::new(now);
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
