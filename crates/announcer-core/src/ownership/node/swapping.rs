//! Changes of owner that this node asks for: when one is begun, and what its answer means.

use std::collections::BTreeSet;
use std::time::Instant;

use super::swaps::{Change, Pending, refused_pause};
use super::timing::{HAND_OVER_LINGER, SWAP_LIMIT, SWAP_RETRY};
use super::{Cluster, OwnerRecord, Swap, Swapped};
use crate::view::{ServiceKey, Uid};

impl Cluster {
    /// Answer to a [`Swap`].
    pub fn swapped(&mut self, now: Instant, key: &ServiceKey, asked: &Swap, swapped: Swapped) {
        let Some(pending) = self.swaps.pending.get_mut(key) else { return };
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
                self.learn(now, key, &asked.uid, &owner_record);
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
                    tracing::info!(
                        service = %key,
                        host = other.host,
                        term = %other.term,
                        "the record of the Service names another owner"
                    );
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
                    tracing::warn!(
                        service = %key,
                        to,
                        why,
                        error,
                        "the announcer failed to change the owner in the record of the Service; it tries again"
                    );
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
            self.learn(now, key, &uid, &owner_record);
        }
        self.swaps.pending.remove(key);
    }

    /// The Service that we own is gone, which the watch has not shown: one of its name may have been made anew, and its
    /// owner, whose claims we cannot prove, may have the address.
    fn service_removed(&mut self, now: Instant, key: &ServiceKey, uid: &Uid) {
        if let Some(owner_record) = self.record(key, uid).filter(|owner_record| owner_record.host == self.me) {
            let term = owner_record.term.next();
            self.records.give_up(key, term);
            self.swaps.note_lost(now, key);
        }
    }

    /// The record is as we have asked for.
    pub(super) fn achieved(&mut self, now: Instant, key: &ServiceKey, owner_record: &OwnerRecord) {
        let Some(Pending { swap, why, failed, .. }) = self.swaps.pending.get(key) else { return };
        let (why, failed) = (*why, *failed);
        if owner_record.host == self.me {
            let from =
                swap.expect.as_ref().map(|owner_record| owner_record.host.clone()).filter(|host| !host.is_empty());
            let silent = from.as_ref().and_then(|from| self.silences.since(from));
            self.swaps.changes.push(Change { key: key.clone(), from, why, silent });
            self.swaps.note_taken(now, key);
        } else {
            tracing::info!(
                service = %key,
                to = owner_record.host,
                term = %owner_record.term,
                why,
                "this node handed the Service over to another node"
            );
            self.hand_overs.lingering.insert(key.clone(), now + HAND_OVER_LINGER);
        }
        // While it is under way its answer is still to come.
        if failed {
            self.swaps.pending.remove(key);
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
        if self.swaps.pending.get(key).is_some_and(|pending| now < pending.until) {
            return None;
        }
        if host == self.me && self.swaps.retake_at(key).is_some_and(|at| now < at) {
            return None;
        }
        let expect = self.record(key, uid).cloned();
        // One that does not count for others still has to be followed by a newer one.
        let newest =
            expect.as_ref().map_or(self.newest_term(), |owner_record| self.newest_term().max(owner_record.term));
        let swap = Swap { uid: uid.clone(), expect, owner_record: OwnerRecord { host, term: newest.next() } };
        let before = self.swaps.pending.remove(key);
        if before.is_none() {
            tracing::info!(
                service = %key,
                to = swap.owner_record.host,
                term = %swap.owner_record.term,
                why,
                "the announcer changes the owner of the Service"
            );
        }
        let (told, refusals) = before.as_ref().map_or((false, 0), |before| (before.told, before.refusals));
        let mut asked =
            before.filter(|before| before.swap.uid == *uid).map_or_else(BTreeSet::new, |before| before.asked);
        asked.insert((swap.owner_record.host.clone(), swap.owner_record.term));
        let pending =
            Pending { swap: swap.clone(), why, until: now + SWAP_LIMIT, failed: false, told, refusals, asked };
        self.swaps.pending.insert(key.clone(), pending);
        Some(swap)
    }

    /// Somebody has changed the Service: what was refused may be taken now.
    pub fn changed(&mut self, now: Instant, key: &ServiceKey) {
        if let Some(pending) = self.swaps.pending.get_mut(key).filter(|pending| pending.failed && pending.refusals > 0)
        {
            pending.until = pending.until.min(now + SWAP_RETRY);
        }
    }

    /// decisions.md 23: somebody claims what is ours and cannot prove it. The record is read again, as a swap that
    /// changes
    /// nothing: if another owner stands there, that is what comes of it.
    pub fn read_again(&mut self, now: Instant, key: &ServiceKey, uid: &Uid) -> Option<Swap> {
        if self.swaps.pending.contains_key(key) {
            return None;
        }
        let owner_record = self.record(key, uid).filter(|owner_record| owner_record.host == self.me)?.clone();
        let swap = Swap { uid: uid.clone(), expect: Some(owner_record.clone()), owner_record };
        let why = "somebody else claims its address";
        let (until, asked) = (now + SWAP_LIMIT, BTreeSet::new());
        let pending = Pending { swap: swap.clone(), why, until, failed: false, told: false, refusals: 0, asked };
        self.swaps.pending.insert(key.clone(), pending);
        Some(swap)
    }
}
