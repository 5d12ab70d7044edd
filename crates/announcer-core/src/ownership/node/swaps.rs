//! Changes of owner that this node has asked for: what became of them, and when to try again.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use super::{Cluster, OwnerRecord, Swap, Swapped, Term, place};
use crate::view::{ServiceKey, Uid};

/// A swap without an answer is asked for again: with hundreds of them and an API that does not answer, the last ones have
/// to wait for their turn.
const SWAP_LIMIT: Duration = Duration::from_secs(10);
/// Between two attempts while the API does not answer: someone is waiting for this address.
const SWAP_RETRY: Duration = Duration::from_millis(50);
/// What the API server refuses it refuses again, until somebody has changed something: this, doubled with each refusal up
/// to the longest, and up to a quarter more so that not all Services come at once.
const REFUSED_RETRY: Duration = Duration::from_millis(50);
const LONGEST_REFUSED_RETRY: Duration = Duration::from_secs(30);
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
    /// The last attempt has failed.
    pub failed: bool,
    /// That one of them has failed was told.
    pub told: bool,
    /// How many of them the API server has refused.
    pub refusals: u32,
    /// What was asked for so far, attempt by attempt: of one whose answer was lost the write may stand, under the term of
    /// that time.
    pub asked: BTreeSet<(String, Term)>,
}

impl Pending {
    /// Whether what stands there is our doing.
    pub fn asked_for(&self, uid: &Uid, owner_record: &OwnerRecord) -> bool {
        self.swap.uid == *uid && self.asked.contains(&(owner_record.host.clone(), owner_record.term))
    }

    /// The watch has said what the answer did not: one of the attempts stands.
    fn has_come(&self, record: Option<&(Uid, OwnerRecord)>) -> bool {
        record.is_some_and(|(uid, owner_record)| self.asked_for(uid, owner_record))
    }

    /// This attempt has come to nothing.
    fn retry_at(&mut self, at: Instant) {
        (self.until, self.failed) = (at, true);
    }
}

/// How long to wait after so many refusals. `key` and `me` make the difference between Services and between nodes.
fn refused_pause(refusals: u32, key: &ServiceKey, me: &str) -> Duration {
    let doublings = refusals.saturating_sub(1).min(16);
    let pause = (REFUSED_RETRY * (1 << doublings)).min(LONGEST_REFUSED_RETRY);
    let spread = u32::try_from(place::score(&key.to_string(), me) % 256).expect("it is less than 256");
    pause + pause / 4 * spread / 255
}

/// How often a group was taken lately.
#[derive(Debug, Clone, Copy)]
pub(super) struct Taken {
    pub at: Instant,
    pub times: u32,
}

impl Cluster {
    /// Answer to a [`Swap`].
    pub fn swapped(&mut self, now: Instant, key: &ServiceKey, asked: &Swap, swapped: Swapped) {
        let Some(pending) = self.pending.get_mut(key) else { return };
        if pending.swap != *asked {
            // It comes too late: another one is under way. What it says of the record counts all the same.
            let stands = match swapped {
                Swapped::Won => {
                    Some(asked.owner_record.clone()).filter(|owner_record| asked.expect.as_ref() != Some(owner_record))
                }
                Swapped::Other(other) => Some(other),
                Swapped::Gone | Swapped::Failed(_) | Swapped::Refused(_) => None,
            };
            if let Some(owner_record) = stands {
                self.learn(now, key, &asked.uid, owner_record);
            }
            return;
        }
        let (uid, owner_record) = (pending.swap.uid.clone(), pending.swap.owner_record.clone());
        let stands = match swapped {
            // Read again: it stands as we know it, or cannot be told; the next claim asks again.
            Swapped::Won | Swapped::Failed(_) | Swapped::Refused(_)
                if pending.swap.expect.as_ref() == Some(&owner_record) =>
            {
                None
            }
            Swapped::Won => Some(owner_record),
            Swapped::Other(other) => {
                if !pending.asked_for(&uid, &other) {
                    tracing::info!(service = %key, host = other.host, term = %other.term, "the record names another owner");
                }
                Some(other)
            }
            Swapped::Gone => {
                self.service_removed(now, key, &uid);
                None
            }
            Swapped::Failed(error) => {
                // It is tried again at once and until it is done: an API that is away for an hour is told once.
                if !std::mem::replace(&mut pending.told, true) {
                    let (to, why) = (&owner_record.host, pending.why);
                    tracing::warn!(service = %key, to, why, error, "failed to change the owner: trying again");
                }
                pending.retry_at(now + SWAP_RETRY);
                if !pending.has_come(self.records.get(key)) {
                    return;
                }
                None
            }
            // Whoever asks tells it.
            Swapped::Refused(_) => {
                pending.refusals += 1;
                pending.retry_at(now + refused_pause(pending.refusals, key, &self.me));
                if !pending.has_come(self.records.get(key)) {
                    return;
                }
                None
            }
        };
        if let Some(owner_record) = stands {
            self.learn(now, key, &uid, owner_record);
        }
        self.pending.remove(key);
    }

    /// The Service that we own is gone, which the watch has not shown: one of its name may have been made anew, and its
    /// owner, whose claims we cannot prove, may have the address.
    fn service_removed(&mut self, now: Instant, key: &ServiceKey, uid: &Uid) {
        let ours =
            self.records.get_mut(key).filter(|(known, owner_record)| known == uid && owner_record.host == self.me);
        if let Some((_, owner_record)) = ours {
            *owner_record = OwnerRecord { host: String::new(), term: owner_record.term.next() };
            self.taken.insert(key.clone(), Taken { at: now, times: 0 });
        }
    }

    /// The record is as we have asked for.
    pub(super) fn achieved(&mut self, now: Instant, key: &ServiceKey, owner_record: &OwnerRecord) {
        let Some(Pending { swap, why, failed, .. }) = self.pending.get(key) else { return };
        if owner_record.host == self.me {
            let from =
                swap.expect.as_ref().map(|owner_record| owner_record.host.clone()).filter(|host| !host.is_empty());
            let silent = from.as_ref().and_then(|from| self.silences.since(from));
            self.changes.push(Change { key: key.clone(), from, why, silent });
            let before = self.taken.get(key).filter(|taken| now < taken.at + SETTLED);
            let times = before.map_or(0, |taken| (taken.times + 1).min(RETAKE_DOUBLINGS));
            self.taken.insert(key.clone(), Taken { at: now, times });
        } else {
            tracing::info!(service = %key, to = owner_record.host, term = %owner_record.term, why, "handed over");
            self.lingering.insert(key.clone(), now + super::review::HAND_OVER_LINGER);
        }
        // While it is under way its answer is still to come.
        if *failed {
            self.pending.remove(key);
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
        // One that does not count for others still has to be followed by a newer one.
        let newest =
            expect.as_ref().map_or(self.newest_term(), |owner_record| self.newest_term().max(owner_record.term));
        let swap = Swap { uid: uid.clone(), expect, owner_record: OwnerRecord { host, term: newest.next() } };
        let before = self.pending.remove(key);
        if before.is_none() {
            tracing::info!(service = %key, to = swap.owner_record.host, term = %swap.owner_record.term, why, "changing the owner");
        }
        let (told, refusals) = before.as_ref().map_or((false, 0), |before| (before.told, before.refusals));
        let mut asked =
            before.filter(|before| before.swap.uid == *uid).map_or_else(BTreeSet::new, |before| before.asked);
        asked.insert((swap.owner_record.host.clone(), swap.owner_record.term));
        let pending =
            Pending { swap: swap.clone(), why, until: now + SWAP_LIMIT, failed: false, told, refusals, asked };
        self.pending.insert(key.clone(), pending);
        Some(swap)
    }

    /// Somebody has changed the Service: what was refused may be taken now.
    pub fn changed(&mut self, now: Instant, key: &ServiceKey) {
        if let Some(pending) = self.pending.get_mut(key).filter(|pending| pending.failed && pending.refusals > 0) {
            pending.until = pending.until.min(now + SWAP_RETRY);
        }
    }

    /// decisions.md 23: somebody claims what is ours and cannot prove it. The record is read again, as a swap that changes
    /// nothing: if another owner stands there, that is what comes of it.
    pub fn read_again(&mut self, now: Instant, key: &ServiceKey, uid: &Uid) -> Option<Swap> {
        if self.pending.contains_key(key) {
            return None;
        }
        let owner_record = self.record(key, uid).filter(|owner_record| owner_record.host == self.me)?.clone();
        let swap = Swap { uid: uid.clone(), expect: Some(owner_record.clone()), owner_record };
        let why = "somebody else claims its address";
        let (until, asked) = (now + SWAP_LIMIT, BTreeSet::new());
        let pending = Pending { swap: swap.clone(), why, until, failed: false, told: false, refusals: 0, asked };
        self.pending.insert(key.clone(), pending);
        Some(swap)
    }

    pub(super) fn retake_at(&self, key: &ServiceKey) -> Option<Instant> {
        self.taken.get(key).map(|taken| taken.at + RETAKE * (1 << taken.times))
    }
}
