//! Changes of owner that this node requests: when a swap starts, and what its answer means.

use std::collections::BTreeSet;
use std::time::Instant;

use super::decide::GIVEN_UP;
use super::given_up::GivenUp;
use super::swaps::{Change, Pending, PendingSwaps, refused_pause};
use super::timing::{HAND_OVER_LINGER, SWAP_ANSWER, SWAP_LIMIT, SWAP_RETRY};
use super::{Cluster, OwnerRecord, Swap, Swapped, Term};
use crate::view::{ServiceKey, Uid};

impl Cluster {
    /// Takes in the answer to a [`Swap`].
    pub fn swapped(&mut self, now: Instant, key: &ServiceKey, asked: &Swap, swapped: Swapped) {
        let Some(pending) = self.swaps.pending.get_mut(key) else { return };
        if pending.swap != *asked {
            // The answer is late: another swap is under way. What it says about the record counts all the same.
            let stands = match swapped {
                Swapped::Won => {
                    Some(asked.owner_record.clone()).filter(|owner_record| asked.expect.as_ref() != Some(owner_record))
                }
                Swapped::Other(other) => Some(other),
                Swapped::Unrecorded | Swapped::Gone | Swapped::Failed(_) | Swapped::Refused(_) => None,
            };
            if let Some(owner_record) = stands {
                self.learn(now, key, &asked.uid, &owner_record);
            }
            return;
        }
        if pending.swap.is_read() && self.swaps.given_up.is_asked(key) {
            return self.given_up_was_read(now, key, swapped);
        }
        let (uid, owner_record) = (pending.swap.uid.clone(), pending.swap.owner_record.clone());
        let stands = match swapped {
            // This swap only read the record again. It is unchanged, or its state is unknown; then the next claim asks
            // again. A record that is missing is written anew as part of what this node records on the Service.
            Swapped::Unrecorded => None,
            Swapped::Won | Swapped::Failed(_) | Swapped::Refused(_) if pending.swap.is_read() => None,
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
                // The swap is retried at once until it succeeds. An API outage of an hour is logged once.
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
                // An API that is away says so at once. What took longer may have been a time-out.
                pending.open |= now + SWAP_LIMIT >= pending.until + SWAP_ANSWER;
                pending.retry_at(now + SWAP_RETRY);
                if !pending.has_come(self.records.get(key)) {
                    return;
                }
                None
            }
            // The engine reports the refusal.
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

    /// The API server says that the Service is gone, before the watch does. A Service of the same name may exist by
    /// now. Its owner may have the address, and this node could not verify that owner's claims. So this node gives the
    /// record up.
    fn service_removed(&mut self, now: Instant, key: &ServiceKey, uid: &Uid) {
        if let Some(owner_record) = self.records.of(key, uid).filter(|owner_record| owner_record.host == self.me) {
            let term = owner_record.term.next();
            self.records.give_up(key, term);
            self.swaps.note_lost(now, key);
        }
    }

    /// The record is as this node requested.
    pub(super) fn achieved(&mut self, now: Instant, key: &ServiceKey, owner_record: &OwnerRecord) {
        let Some(Pending { swap, why, silent, failed, .. }) = self.swaps.pending.get(key) else { return };
        let (why, silent, failed) = (*why, *silent, *failed);
        if owner_record.host == self.me {
            let from =
                swap.expect.as_ref().map(|owner_record| owner_record.host.clone()).filter(|host| !host.is_empty());
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
            self.swaps.note_given(now, key);
            // The new owner counts the group as lent on the same ground (`note_lent`).
            if self.unwell_since.is_some() {
                self.hand_overs.note_given(key, &owner_record.host);
            }
        }
        // While the request is under way, its answer removes the entry.
        if failed {
            self.swaps.pending.remove(key);
        }
    }

    /// Starts a swap for the group, unless one is under way or the last one was too recent. `silent`: when its owner
    /// was first missed.
    pub(super) fn begin_swap(
        &mut self,
        now: Instant,
        key: &ServiceKey,
        uid: &Uid,
        host: String,
        why: &'static str,
        silent: Option<Instant>,
    ) -> Option<Swap> {
        if self.swaps.pending.get(key).is_some_and(|pending| now < pending.until) {
            return None;
        }
        if host == self.me && self.swaps.retake_at(key).is_some_and(|at| now < at) {
            return None;
        }
        let expect = self.records.of(key, uid).cloned();
        // A term that does not count for other Services must still be exceeded here.
        let newest = self.records.newest_term();
        let newest = expect.as_ref().map_or(newest, |owner_record| newest.max(owner_record.term));
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
        let (told, open, refusals) =
            before.as_ref().map_or((false, false, 0), |before| (before.told, before.open, before.refusals));
        let mut asked =
            before.filter(|before| before.swap.uid == *uid).map_or_else(BTreeSet::new, |before| before.asked);
        asked.insert((swap.owner_record.host.clone(), swap.owner_record.term));
        let until = now + SWAP_LIMIT;
        let pending = Pending { swap: swap.clone(), why, silent, until, failed: false, told, open, refusals, asked };
        self.swaps.pending.insert(key.clone(), pending);
        Some(swap)
    }

    /// Whether the record of the group of `key` may name another node by now, because this node has asked for that and
    /// the API has not answered.
    pub fn may_have_given(&self, key: &ServiceKey) -> bool {
        let pending = self.swaps.pending.get(self.primary(key));
        pending.is_some_and(|pending| pending.swap.owner_record.host != self.me && pending.is_unanswered())
    }

    /// The Service was changed, so a swap that was refused may succeed now.
    pub fn changed(&mut self, now: Instant, key: &ServiceKey) {
        if let Some(pending) = self.swaps.pending.get_mut(key).filter(|pending| pending.failed && pending.refusals > 0)
        {
            pending.until = pending.until.min(now + SWAP_RETRY);
        }
    }

    /// Another host claims an address of ours with a claim that this node cannot verify (decisions.md 23). The record
    /// is read again by a swap that changes nothing. If another owner is recorded, the answer says so.
    pub fn read_again(&mut self, now: Instant, key: &ServiceKey, uid: &Uid) -> Option<Swap> {
        if self.swaps.pending.contains_key(key) {
            return None;
        }
        let owner_record = self.records.of(key, uid).filter(|owner_record| owner_record.host == self.me)?.clone();
        Some(self.swaps.read(now, key, uid, &owner_record))
    }

    /// Whether a claim with a good tag may be believed before the record is read. It may not after a lie, and not with
    /// a term to which nobody can have counted since this node last heard of the others.
    pub fn may_believe(&self, now: Instant, key: &ServiceKey, claimed: Term) -> bool {
        let newest = self.records.newest_term();
        let newest = self.owner_record(key).map_or(newest, |owner_record| newest.max(owner_record.term));
        claimed.is_within_a_step_of(newest) && !self.swaps.given_up.is_wary(now, key)
    }

    /// The reads that are due of records which were given up for a claim.
    pub(super) fn read_given_up(&mut self, now: Instant) -> Vec<(ServiceKey, Swap)> {
        let PendingSwaps { given_up, pending, .. } = &mut self.swaps;
        let due = given_up.due(now, |key| pending.get(key).is_some_and(|pending| pending.is_under_way(now)));
        due.into_iter().map(|(key, uid, own)| (key.clone(), self.swaps.read(now, &key, &uid, &own))).collect()
    }

    /// The API has answered the read of a record that was given up. What stands there counts: it is newer than the
    /// claim, also if its term is not. A record that is missing or older than this node's own was removed or restored
    /// by another writer. It says nothing of the claimant, so the LAN is asked before anybody takes the group.
    fn given_up_was_read(&mut self, now: Instant, key: &ServiceKey, swapped: Swapped) {
        self.swaps.pending.remove(key);
        if let Swapped::Failed(_) | Swapped::Refused(_) = swapped {
            return self.swaps.given_up.read_again(now, key);
        }
        let Some(GivenUp { uid, own, claimed, .. }) = self.swaps.given_up.take(key) else { return };
        let stands = match swapped {
            Swapped::Won => own,
            Swapped::Other(other) if other.term >= own.term => other,
            Swapped::Other(_) | Swapped::Unrecorded => {
                // Nobody can have written such a term, and the next one is counted from it. The watch may be late and
                // show this node's own record yet, which must not be news.
                if !claimed.is_within_a_step_of(self.records.newest_term().max(own.term)) {
                    self.swaps.given_up.note_lie(now, key);
                    self.records.lower(key, &uid, own.term.next());
                }
                return;
            }
            Swapped::Gone | Swapped::Failed(_) | Swapped::Refused(_) => return,
        };
        if stands.term < claimed {
            tracing::warn!(
                service = %key,
                %claimed,
                term = %stands.term,
                host = stands.host,
                "somebody who knows the UID of the Service has claimed its address under a term that nobody has \
                written; the record counts. kube-vip.claimKeysSecret keeps such claims from being believed"
            );
            self.swaps.given_up.note_lie(now, key);
            self.records.lower(key, &uid, stands.term);
        }
        if stands.host != self.me {
            self.learn(now, key, &uid, &stands);
        } else if self.records.learn(&self.me, key, &uid, stands).is_some() {
            self.swaps.changes.push(Change { key: key.clone(), from: None, why: GIVEN_UP, silent: None });
        }
    }
}
