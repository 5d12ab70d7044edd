//! Putting off the kernel's deadlines: once a second, and what it means when a second lasts longer.

use std::time::{Duration, Instant};

use super::{Action, Put, WireOp};

/// How often the kernel's deadlines are put off.
pub const REFRESH: Duration = Duration::from_secs(1);
/// How long a restarted process keeps what it finds before it knows whose it is. Bounded, so that a process that never
/// learns it does not keep an address for ever; long enough for an API server to come back (decisions.md 26 uses the
/// same time).
const UNDECIDED_LIMIT: Duration = Duration::from_mins(5);

/// See the module.
#[derive(Debug)]
pub(super) struct Refresh {
    started: Instant,
    next: Instant,
    in_flight: bool,
    /// Addresses that were found gone, by the kernel's deadline or somebody's hand.
    fallen: u64,
}

impl Refresh {
    /// The first one is due at once.
    pub fn new(now: Instant) -> Self {
        Self { started: now, next: now, in_flight: false, fallen: 0 }
    }

    /// When this process began.
    pub fn started(&self) -> Instant {
        self.started
    }

    /// When the next one is due.
    pub fn deadline(&self) -> Instant {
        self.next
    }

    /// How late the one is that is due now; absent: none is.
    pub fn take_due(&mut self, now: Instant) -> Option<Duration> {
        let late = now.checked_duration_since(self.next)?;
        self.next = now + REFRESH;
        Some(late)
    }

    /// A kernel that is slower than a second per pass must not get a second pass on top.
    pub fn is_in_flight(&self) -> bool {
        self.in_flight
    }

    /// Puts off these deadlines, in one list.
    pub fn extend(&mut self, puts: Vec<Put>) -> Option<Action> {
        if puts.is_empty() || self.in_flight {
            return None;
        }
        self.in_flight = true;
        Some(Action::Wire(WireOp::Extend(puts)))
    }

    /// The kernel has answered.
    pub fn answered(&mut self) {
        self.in_flight = false;
    }

    /// So many addresses were found gone.
    pub fn note_fallen(&mut self, addresses: usize) {
        self.fallen = self.fallen.saturating_add(u64::try_from(addresses).unwrap_or(u64::MAX));
    }

    /// Addresses that were found gone so far.
    pub fn fallen(&self) -> u64 {
        self.fallen
    }

    /// Whether what was found at the start may still be kept although nobody knows whose it is.
    pub fn may_keep_undecided(&self, now: Instant) -> bool {
        now < self.started + UNDECIDED_LIMIT
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put() -> Put {
        Put { link: 2, net: "10.0.0.5/32".parse().unwrap(), valid: Duration::from_secs(5), until: None }
    }

    #[test]
    fn it_is_due_each_second_and_says_how_late_it_is() {
        let start = Instant::now();
        let mut refresh = Refresh::new(start);
        assert_eq!(refresh.take_due(start), Some(Duration::ZERO));
        assert_eq!(refresh.take_due(start + REFRESH / 2), None);
        assert_eq!(refresh.take_due(start + REFRESH * 3), Some(REFRESH * 2));
        assert_eq!(refresh.deadline(), start + REFRESH * 4);
    }

    #[test]
    fn a_slow_kernel_has_one_pass_to_do_at_a_time() {
        let mut refresh = Refresh::new(Instant::now());
        assert_eq!(refresh.extend(Vec::new()), None);
        assert!(!refresh.is_in_flight(), "nothing was asked for");
        assert!(refresh.extend(vec![put()]).is_some());
        assert_eq!(refresh.extend(vec![put()]), None);
        refresh.answered();
        assert!(refresh.extend(vec![put()]).is_some());
    }
}
