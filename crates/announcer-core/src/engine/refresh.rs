//! Extends the lifetimes of addresses in the kernel once a second, and detects pauses of the process.

use std::time::{Duration, Instant};

use super::{Action, Put, WireOp};

/// Interval of the extensions.
pub const REFRESH: Duration = Duration::from_secs(1);
/// How long a restarted process keeps the addresses that it finds while their owner is unknown. The time is bounded, so
/// that a process which never learns the owner does not keep an address for ever. It is long enough for an API server
/// to come back (decisions.md 26 uses the same time).
const UNDECIDED_LIMIT: Duration = Duration::from_mins(5);

/// The state of the extensions.
#[derive(Debug)]
pub(super) struct Refresh {
    started: Instant,
    next: Instant,
    in_flight: bool,
    /// Addresses that were found missing, because their lifetime ended or another program removed them.
    fallen: u64,
}

impl Refresh {
    /// The first extension is due at once.
    pub fn new(now: Instant) -> Self {
        Self { started: now, next: now, in_flight: false, fallen: 0 }
    }

    /// When this process started.
    pub fn started(&self) -> Instant {
        self.started
    }

    /// When the next extension is due.
    pub fn deadline(&self) -> Instant {
        self.next
    }

    /// How late the due extension is; `None`: none is due.
    pub fn take_due(&mut self, now: Instant) -> Option<Duration> {
        let late = now.checked_duration_since(self.next)?;
        self.next = now + REFRESH;
        Some(late)
    }

    /// Whether a request is under way. If the kernel needs longer than a second, no second request is sent.
    pub fn is_in_flight(&self) -> bool {
        self.in_flight
    }

    /// Extends these lifetimes in one request.
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

    /// Counts addresses that were found missing.
    pub fn note_fallen(&mut self, addresses: usize) {
        self.fallen = self.fallen.saturating_add(u64::try_from(addresses).unwrap_or(u64::MAX));
    }

    /// Addresses that were found missing so far.
    pub fn fallen(&self) -> u64 {
        self.fallen
    }

    /// Whether addresses that were found at the start may still be kept while their owner is unknown.
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
