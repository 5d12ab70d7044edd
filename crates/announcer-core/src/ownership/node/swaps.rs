//! Changes of owner that this node has requested: their results, and when to retry.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use super::given_up::GivenUpRecords;
use super::timing::{LONGEST_REFUSED_RETRY, REFUSED_RETRY, RETAKE, SETTLED, SWAP_LIMIT};
use super::{OwnerRecord, Swap, Term, place};
use crate::view::{ServiceKey, Uid};

/// A group that moves to and fro is retaken after a pause that doubles up to this many times.
const RETAKE_DOUBLINGS: u32 = 5;
/// The same for one that is given: it is on a node that cannot serve it meanwhile, and the others may be well again.
const GIVE_DOUBLINGS: u32 = 2;

/// A Service that this node has become the owner of, for logs and Events.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// The Service whose record was swapped.
    pub key: ServiceKey,
    /// The former owner; `None`: there was none.
    pub from: Option<String>,
    /// The reason as text.
    pub why: &'static str,
    /// When the former owner was found silent.
    pub silent: Option<Instant>,
}

/// A requested swap.
#[derive(Debug)]
pub(super) struct Pending {
    pub swap: Swap,
    pub why: &'static str,
    /// When the owner from which this node takes the group was first missed.
    pub silent: Option<Instant>,
    /// Until then the request is under way; after a failure, the next attempt is not made before.
    pub until: Instant,
    /// The last attempt has failed.
    pub failed: bool,
    /// A failure was already logged.
    pub told: bool,
    /// An attempt has ended without an answer, as after a time-out. A server that is slow may write it in the end.
    pub open: bool,
    /// How many attempts the API server has refused.
    pub refusals: u32,
    /// The host and term of every attempt so far. An attempt whose answer was lost may have been written, under its own
    /// term.
    pub asked: BTreeSet<(String, Term)>,
}

impl Pending {
    /// Whether `owner_record` is the result of one of our attempts.
    pub fn asked_for(&self, uid: &Uid, owner_record: &OwnerRecord) -> bool {
        self.swap.uid == *uid && self.asked.contains(&(owner_record.host.clone(), owner_record.term))
    }

    /// Whether an attempt may be written that the API has not answered, not even with an error.
    pub fn is_unanswered(&self) -> bool {
        self.open || (!self.failed && !self.told && self.refusals == 0)
    }

    /// Whether an attempt has neither failed nor lasted too long.
    pub fn is_under_way(&self, now: Instant) -> bool {
        !self.failed && now < self.until
    }

    /// Whether the watch has shown that one of the attempts was written.
    pub fn has_come(&self, record: Option<&(Uid, OwnerRecord)>) -> bool {
        record.is_some_and(|(uid, owner_record)| self.asked_for(uid, owner_record))
    }

    /// The attempt failed; the next one is due at `at`.
    pub fn retry_at(&mut self, at: Instant) {
        (self.until, self.failed) = (at, true);
    }
}

/// The pause after this many refusals. `key` and `me` spread the retries of different Services and nodes.
pub(super) fn refused_pause(refusals: u32, key: &ServiceKey, me: &str) -> Duration {
    let doublings = refusals.saturating_sub(1).min(16);
    let pause = (REFUSED_RETRY * (1 << doublings)).min(LONGEST_REFUSED_RETRY);
    let spread = u32::try_from(place::score(&key.to_string(), me) % 256).expect("it is less than 256");
    pause + pause / 4 * spread / 255
}

/// When a group was last taken or lost, and how many times it was taken shortly before. The same for one that was
/// given.
#[derive(Debug, Clone, Copy)]
pub(super) struct Taken {
    pub at: Instant,
    pub times: u32,
}

/// The group moves once more.
fn count(moved: &mut BTreeMap<ServiceKey, Taken>, now: Instant, key: &ServiceKey) {
    let before = moved.get(key).filter(|before| now < before.at + SETTLED);
    let times = before.map_or(0, |before| (before.times + 1).min(RETAKE_DOUBLINGS));
    moved.insert(key.clone(), Taken { at: now, times });
}

/// All requested swaps.
#[derive(Debug, Default)]
pub(super) struct PendingSwaps {
    pub pending: BTreeMap<ServiceKey, Pending>,
    pub taken: BTreeMap<ServiceKey, Taken>,
    given: BTreeMap<ServiceKey, Taken>,
    /// What was given up for a claim and is read.
    pub given_up: GivenUpRecords,
    /// Changes that were not reported yet.
    pub changes: Vec<Change>,
}

impl PendingSwaps {
    /// Reads the record again, by a swap that changes nothing.
    pub fn read(&mut self, now: Instant, key: &ServiceKey, uid: &Uid, owner_record: &OwnerRecord) -> Swap {
        let (uid, owner_record) = (uid.clone(), owner_record.clone());
        let swap = Swap { uid, expect: Some(owner_record.clone()), owner_record };
        let pending = Pending {
            swap: swap.clone(),
            why: "somebody else claims its address",
            silent: None,
            until: now + SWAP_LIMIT,
            failed: false,
            told: false,
            open: false,
            refusals: 0,
            asked: BTreeSet::new(),
        };
        self.pending.insert(key.clone(), pending);
        swap
    }

    /// This node has taken the group.
    pub fn note_taken(&mut self, now: Instant, key: &ServiceKey) {
        count(&mut self.taken, now, key);
    }

    /// This node has given the group to another one.
    pub fn note_given(&mut self, now: Instant, key: &ServiceKey) {
        count(&mut self.given, now, key);
    }

    /// When this node may give the group again, if it has come back. Once it may at once: the recipient may have fallen
    /// ill meanwhile.
    pub fn give_at(&self, key: &ServiceKey) -> Option<Instant> {
        let given = self.given.get(key).filter(|given| given.times > 0)?;
        Some(given.at + RETAKE * (1 << given.times.min(GIVE_DOUBLINGS)))
    }

    /// This node has lost the group.
    pub fn note_lost(&mut self, now: Instant, key: &ServiceKey) {
        self.taken.insert(key.clone(), Taken { at: now, times: 0 });
    }

    /// When this node may take the group again.
    pub fn retake_at(&self, key: &ServiceKey) -> Option<Instant> {
        self.taken.get(key).map(|taken| taken.at + RETAKE * (1 << taken.times))
    }

    /// Forgets Services that do not exist any more.
    pub fn retain(&mut self, now: Instant, is_there: impl Fn(&ServiceKey) -> bool) {
        self.pending.retain(|key, _| is_there(key));
        for moved in [&mut self.taken, &mut self.given] {
            moved.retain(|key, moved| is_there(key) && now < moved.at + SETTLED * 2);
        }
    }

    /// When the next request, retake or give is due.
    pub fn deadlines(&self) -> impl Iterator<Item = Instant> + '_ {
        let pending = self.pending.values().map(|pending| pending.until);
        let gives = self.given.keys().filter_map(|key| self.give_at(key));
        let reads = self.given_up.deadlines();
        pending.chain(self.taken.keys().filter_map(|key| self.retake_at(key))).chain(gives).chain(reads)
    }
}
