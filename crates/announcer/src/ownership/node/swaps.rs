//! Changes of owner that this node has asked for: what became of them, and when to try again.

use std::time::{Duration, Instant};

use super::{Cluster, Seat, Swap, Swapped};
use crate::view::{ServiceKey, Uid};

/// A swap without an answer is forgotten; whoever performs them answers sooner.
const SWAP_LIMIT: Duration = Duration::from_secs(10);
/// Between two attempts while the API does not answer: someone is waiting for this address.
const SWAP_RETRY: Duration = Duration::from_millis(50);
/// A group that was taken and went again is taken again after 1, 2, 4 ... of these: two nodes that cannot serve it must
/// not throw it at one another.
const RETAKE: Duration = Duration::from_secs(2);
const RETAKE_DOUBLINGS: u32 = 5;
/// A take-over that lasted this long was a good one.
pub(super) const SETTLED: Duration = Duration::from_mins(2);

/// A Service that has become ours, for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// The Service whose record was swapped.
    pub key: ServiceKey,
    /// Before; absent: nobody.
    pub from: Option<String>,
    /// Why, in words.
    pub why: &'static str,
    /// When its owner was found silent.
    pub silent: Option<Instant>,
}

/// A swap that was asked for.
#[derive(Debug)]
pub(super) struct Pending {
    pub swap: Swap,
    pub why: &'static str,
    /// Under way until then; or, after a failure, not to be tried before.
    pub until: Instant,
    /// It has failed before, and that was told.
    pub failed: bool,
}

/// How often a group was taken lately.
#[derive(Debug, Clone, Copy)]
pub(super) struct Taken {
    pub at: Instant,
    pub times: u32,
}

impl Cluster {
    /// Answer to a [`Swap`].
    pub fn swapped(&mut self, now: Instant, key: &ServiceKey, swapped: Swapped) {
        let Some(pending) = self.pending.remove(key) else { return };
        let Pending { swap, why, failed, .. } = pending;
        match swapped {
            // Read again: it stands as we know it, or cannot be told; the next claim asks again.
            Swapped::Won | Swapped::Failed(_) if swap.expect.as_ref() == Some(&swap.seat) => {}
            Swapped::Won => {
                let from = swap.expect.as_ref().map(|seat| seat.host.clone()).filter(|host| !host.is_empty());
                if swap.seat.host == self.me {
                    let before = self.taken.get(key).filter(|taken| now < taken.at + SETTLED);
                    let times = before.map_or(0, |taken| (taken.times + 1).min(RETAKE_DOUBLINGS));
                    self.taken.insert(key.clone(), Taken { at: now, times });
                    let silent = from.as_ref().and_then(|from| self.silent_since.get(from).copied());
                    self.changes.push(Change { key: key.clone(), from, why, silent });
                } else {
                    tracing::info!(service = %key, to = swap.seat.host, term = %swap.seat.term, why, "handed over");
                    self.lingering.insert(key.clone(), now + super::review::LINGER);
                }
                self.learn(key, &swap.uid, swap.seat);
            }
            Swapped::Other(Some(seat)) => {
                tracing::info!(service = %key, host = seat.host, term = %seat.term, "the record names another owner");
                self.learn(key, &swap.uid, seat);
            }
            Swapped::Other(None) | Swapped::Gone => {}
            Swapped::Failed(error) => {
                // It is tried again at once and until it is done: an API that is away for an hour is told once.
                if !failed {
                    tracing::warn!(service = %key, to = swap.seat.host, why, error, "failed to change the owner: trying again");
                }
                self.pending.insert(key.clone(), Pending { swap, why, until: now + SWAP_RETRY, failed: true });
            }
        }
    }

    /// A swap for this group, unless one is under way or the last one is too fresh.
    pub(super) fn begin_swap(
        &mut self,
        now: Instant,
        key: &ServiceKey,
        uid: &Uid,
        host: String,
        why: &'static str,
    ) -> Option<Swap> {
        if self.pending.get(key).is_some_and(|pending| now < pending.until) {
            return None;
        }
        if host == self.me && self.retake_at(key).is_some_and(|at| now < at) {
            return None;
        }
        let expect = self.record(key, uid).cloned();
        let swap = Swap { uid: uid.clone(), expect, seat: Seat { host, term: self.newest_term().next() } };
        let before = self.pending.get(key);
        if before.is_none() {
            tracing::info!(service = %key, to = swap.seat.host, term = %swap.seat.term, why, "changing the owner");
        }
        let failed = before.is_some_and(|before| before.failed);
        self.pending.insert(key.clone(), Pending { swap: swap.clone(), why, until: now + SWAP_LIMIT, failed });
        Some(swap)
    }

    /// decisions.md 23: somebody claims what is ours and cannot prove it. The record is read again, as a swap that changes
    /// nothing: if another owner stands there, that is what comes of it.
    pub fn read_again(&mut self, now: Instant, key: &ServiceKey, uid: &Uid) -> Option<Swap> {
        if self.pending.contains_key(key) {
            return None;
        }
        let seat = self.record(key, uid).filter(|seat| seat.host == self.me)?.clone();
        let swap = Swap { uid: uid.clone(), expect: Some(seat.clone()), seat };
        let why = "somebody else claims its address";
        self.pending.insert(key.clone(), Pending { swap: swap.clone(), why, until: now + SWAP_LIMIT, failed: false });
        Some(swap)
    }

    pub(super) fn retake_at(&self, key: &ServiceKey) -> Option<Instant> {
        self.taken.get(key).map(|taken| taken.at + RETAKE * (1 << taken.times))
    }
}
