//! Extends the lifetimes of addresses in the kernel once a second, and detects pauses of the process.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use ipnet::IpNet;
use l2_types::Address;

use super::{Action, KernelOp, Put};

/// Interval of the extensions.
pub const REFRESH: Duration = Duration::from_secs(1);
/// How long a restarted process keeps the addresses that it finds while their owner is unknown. The time is bounded, so
/// that a process which never learns the owner does not keep an address for ever. It is long enough for an API server
/// to come back (decisions.md 26 uses the same time).
const UNDECIDED_LIMIT: Duration = Duration::from_mins(5);
/// How often in a row the kernel has to refuse the extension of an address before that counts as a refusal of the
/// address. A single one may be a full buffer, which fails for all addresses of a datagram. The third request is sent
/// before an address falls that was last extended a second before the first: it lives for 5 s in `node` mode.
const PATIENCE: u32 = 3;

/// The kernel's answers, by interface and address.
type Answers = Vec<(u32, IpNet, Result<(), String>)>;

/// The state of the extensions.
#[derive(Debug)]
pub(super) struct Refresh {
    started: Instant,
    next: Instant,
    in_flight: bool,
    /// Addresses of which the kernel has refused the last extension, and how often in a row.
    refused: BTreeMap<(u32, IpNet), u32>,
    /// Addresses that were found missing, because their lifetime ended or another program removed them.
    fallen: u64,
    /// Addresses that were found and may be another program's. Another host has announced them.
    let_go: BTreeSet<(u32, IpNet)>,
}

impl Refresh {
    /// The first extension is due at once.
    pub fn new(now: Instant) -> Self {
        Self { started: now, next: now, in_flight: false, refused: BTreeMap::new(), fallen: 0, let_go: BTreeSet::new() }
    }

    /// When this process started.
    pub fn started(&self) -> Instant {
        self.started
    }

    /// When the next extension is due.
    pub fn deadline(&self) -> Instant {
        self.next
    }

    /// Whether an extension is overdue by more than this: the process did not run, and has not judged its timers since.
    pub fn is_late(&self, now: Instant, by: Duration) -> bool {
        now > self.next + by
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
        Some(Action::Kernel(KernelOp::Extend(puts)))
    }

    /// The kernel has answered. Returns the refusals that count: those of addresses that it has refused [`PATIENCE`]
    /// times in a row. The other addresses are in the next request again.
    pub fn answered(&mut self, answers: Answers) -> Answers {
        self.in_flight = false;
        let before = std::mem::take(&mut self.refused);
        let mut lasting = Vec::new();
        for (link, net, result) in answers {
            let Err(error) = result else { continue };
            let times = before.get(&(link, net)).map_or(1, |times| times + 1);
            if times < PATIENCE {
                tracing::warn!(
                    address = %net,
                    error,
                    times,
                    "the kernel has not extended the lifetime of the address; the announcer tries again in a second"
                );
                self.refused.insert((link, net), times);
            } else {
                lasting.push((link, net, Err(error)));
            }
        }
        lasting
    }

    /// Counts addresses that were found missing.
    pub fn note_fallen(&mut self, addresses: usize) {
        self.fallen = self.fallen.saturating_add(u64::try_from(addresses).unwrap_or(u64::MAX));
    }

    /// Addresses that were found missing so far.
    pub fn fallen(&self) -> u64 {
        self.fallen
    }

    /// Another host announces an address that was found here and may be another program's: it is not extended any more.
    pub fn let_go(&mut self, address: &Address) {
        if self.let_go.insert((address.interface, address.net)) {
            tracing::warn!(
                address = %address.net,
                "another host announces an address that an earlier process of the announcer seems to have left on \
                this node; the announcer extends its lifetime no more"
            );
        }
    }

    /// Whether an address was let go.
    pub fn is_let_go(&self, address: &Address) -> bool {
        self.let_go.contains(&(address.interface, address.net))
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
        refresh.answered(Vec::new());
        assert!(refresh.extend(vec![put()]).is_some());
    }

    #[test]
    fn only_three_refusals_in_a_row_count_and_each_address_has_its_own() {
        let mut refresh = Refresh::new(Instant::now());
        let (one, other): (IpNet, IpNet) = ("10.0.0.5/32".parse().unwrap(), "10.0.0.6/32".parse().unwrap());
        let refused = |net| (2, net, Err("no buffer space".to_owned()));
        let both = || vec![refused(one), refused(other)];
        assert_eq!((refresh.answered(both()), refresh.answered(both())), (Vec::new(), Vec::new()));
        assert_eq!(refresh.answered(vec![refused(one), (2, other, Ok(()))]), [refused(one)]);
        // Both are counted anew, the one because its refusal has had its consequences.
        assert_eq!((refresh.answered(both()), refresh.answered(both())), (Vec::new(), Vec::new()));
        assert_eq!(refresh.answered(both()), both());
    }
}
