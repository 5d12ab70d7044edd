//! Changes of owner that this node has asked for: what became of them, and when to try again.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use super::timing::{LONGEST_REFUSED_RETRY, REFUSED_RETRY, RETAKE, SETTLED};
use super::{OwnerRecord, Swap, Term, place};
use crate::view::{ServiceKey, Uid};

/// A group that goes to and fro is taken ever later, up to so many doublings.
const RETAKE_DOUBLINGS: u32 = 5;

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
    /// What was asked for so far, attempt by attempt: of one whose answer was lost the write may stand, under the term
    /// of that time.
    pub asked: BTreeSet<(String, Term)>,
}

impl Pending {
    /// Whether what stands there is our doing.
    pub fn asked_for(&self, uid: &Uid, owner_record: &OwnerRecord) -> bool {
        self.swap.uid == *uid && self.asked.contains(&(owner_record.host.clone(), owner_record.term))
    }

    /// The watch has said what the answer did not: one of the attempts stands.
    pub fn has_come(&self, record: Option<&(Uid, OwnerRecord)>) -> bool {
        record.is_some_and(|(uid, owner_record)| self.asked_for(uid, owner_record))
    }

    /// This attempt has come to nothing.
    pub fn retry_at(&mut self, at: Instant) {
        (self.until, self.failed) = (at, true);
    }
}

/// How long to wait after so many refusals. `key` and `me` make the difference between Services and between nodes.
pub(super) fn refused_pause(refusals: u32, key: &ServiceKey, me: &str) -> Duration {
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

/// All of them.
#[derive(Debug, Default)]
pub(super) struct PendingSwaps {
    pub pending: BTreeMap<ServiceKey, Pending>,
    pub taken: BTreeMap<ServiceKey, Taken>,
    /// What people have not been told yet.
    pub changes: Vec<Change>,
}

impl PendingSwaps {
    /// It has become ours once more.
    pub fn note_taken(&mut self, now: Instant, key: &ServiceKey) {
        let before = self.taken.get(key).filter(|taken| now < taken.at + SETTLED);
        let times = before.map_or(0, |taken| (taken.times + 1).min(RETAKE_DOUBLINGS));
        self.taken.insert(key.clone(), Taken { at: now, times });
    }

    /// It has gone again, whoever has it.
    pub fn note_lost(&mut self, now: Instant, key: &ServiceKey) {
        self.taken.insert(key.clone(), Taken { at: now, times: 0 });
    }

    /// When it may be taken again.
    pub fn retake_at(&self, key: &ServiceKey) -> Option<Instant> {
        self.taken.get(key).map(|taken| taken.at + RETAKE * (1 << taken.times))
    }

    /// Nothing is known of Services that are gone.
    pub fn retain(&mut self, now: Instant, is_there: impl Fn(&ServiceKey) -> bool) {
        self.pending.retain(|key, _| is_there(key));
        self.taken.retain(|key, taken| is_there(key) && now < taken.at + SETTLED * 2);
    }

    /// When one of them is due.
    pub fn deadlines(&self) -> impl Iterator<Item = Instant> + '_ {
        let pending = self.pending.values().map(|pending| pending.until);
        pending.chain(self.taken.keys().filter_map(|key| self.retake_at(key)))
    }
}
