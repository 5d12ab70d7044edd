//! The order of requests to the kernel. Requests that keep addresses go before those that add addresses. Packet filter
//! rules run beside the others: while another program changes the kernel's tables, they can take longer than an address
//! lives.

use std::collections::VecDeque;

use crate::engine::KernelOp;

/// Maximum of addresses that are removed in one request: lifetimes must not run out while it lasts.
const REMOVED_AT_ONCE: usize = 64;

/// The requests that the kernel has not performed yet.
#[derive(Debug, Default)]
pub struct KernelQueue {
    urgent: VecDeque<KernelOp>,
    waiting: VecDeque<KernelOp>,
    rules: VecDeque<KernelOp>,
}

impl KernelQueue {
    /// Adds a request of the engine.
    pub fn push(&mut self, op: KernelOp) {
        match op {
            KernelOp::Extend(_) => self.urgent.push_back(op),
            KernelOp::Remove(unwanted) => match self.waiting.back_mut() {
                Some(KernelOp::Remove(before)) if before.len() < REMOVED_AT_ONCE => before.extend(unwanted),
                _ => self.waiting.push_back(KernelOp::Remove(unwanted)),
            },
            _ => self.waiting.push_back(op),
        }
    }

    /// The next request; to be called when the previous one is done. A rules request waits for the requests before it,
    /// and then moves to [`Self::next_rules`].
    pub fn next_in_order(&mut self) -> Option<KernelOp> {
        if let Some(op) = self.urgent.pop_front() {
            return Some(op);
        }
        while let Some(op) = self.waiting.pop_front() {
            if let KernelOp::Protect(_) = op {
                self.rules.push_back(op);
            } else {
                return Some(op);
            }
        }
        None
    }

    /// The next rules request; to be called when the previous one is done. It runs beside the others.
    pub fn next_rules(&mut self) -> Option<KernelOp> {
        self.rules.pop_front()
    }

    /// Whether no request waits.
    pub fn is_empty(&self) -> bool {
        self.urgent.is_empty() && self.waiting.is_empty() && self.rules.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::security::Protection;

    fn delete(link: u32) -> KernelOp {
        KernelOp::Delete { link }
    }

    #[test]
    fn deadlines_are_put_off_before_everything_else_that_waits() {
        let mut queue = KernelQueue::default();
        for op in [delete(1), delete(2), KernelOp::Extend(Vec::new()), delete(3)] {
            queue.push(op);
        }
        let order: Vec<KernelOp> = std::iter::from_fn(|| queue.next_in_order()).collect();
        assert_eq!(order, [KernelOp::Extend(Vec::new()), delete(1), delete(2), delete(3)]);
        assert!(queue.is_empty());
    }

    #[test]
    fn addresses_that_go_together_are_removed_in_one_request() {
        let removal = |last: u8| (2, ipnet::IpNet::from(std::net::IpAddr::from([10, 0, 0, last])));
        let mut queue = KernelQueue::default();
        for last in 1..=3 {
            queue.push(KernelOp::Remove(vec![removal(last)]));
        }
        queue.push(delete(1));
        queue.push(KernelOp::Remove(vec![removal(4)]));
        let order: Vec<KernelOp> = std::iter::from_fn(|| queue.next_in_order()).collect();
        let first = KernelOp::Remove((1..=3).map(removal).collect());
        assert_eq!(order, [first, delete(1), KernelOp::Remove(vec![removal(4)])], "the order stays");
        for _ in 0..100 {
            queue.push(KernelOp::Remove(vec![removal(1)]));
        }
        let count = |op| if let KernelOp::Remove(removals) = op { removals.len() } else { 0 };
        assert_eq!((queue.next_in_order().map(count), queue.next_in_order().map(count)), (Some(64), Some(36)));
    }

    #[test]
    fn rules_change_when_what_was_asked_for_before_is_done_and_nothing_waits_for_them() {
        let rules = || KernelOp::Protect(Protection::default());
        let mut queue = KernelQueue::default();
        for op in [delete(1), rules(), delete(2), rules()] {
            queue.push(op);
        }
        assert_eq!((queue.next_in_order(), queue.next_rules()), (Some(delete(1)), None));
        assert_eq!(
            (queue.next_in_order(), queue.next_rules(), queue.next_rules()),
            (Some(delete(2)), Some(rules()), None)
        );
        assert_eq!((queue.next_in_order(), queue.next_rules(), queue.is_empty()), (None, Some(rules()), true));
    }
}
