//! The state of the queue, without waiting: which keys wait, are processed, or are delayed. Times are arguments.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use tokio::time::Instant;

use crate::cache::Key;

/// Every n-th turn goes to the last lane, so that no key starves.
const TO_THE_LAST: u64 = 5;

// Indices of the lanes.
const FIRST: usize = 0;
const NORMAL: usize = 1;
const LAST: usize = 2;

#[derive(Debug)]
pub(super) struct State<K> {
    /// The first lane has priority. A key may be in two lanes; an entry whose key is no longer `dirty` is skipped.
    lanes: [VecDeque<(K, Instant)>; 3],
    /// Keys in the first lane.
    urgent: BTreeSet<K>,
    turns: u64,
    /// Keys to process: those in `lanes`, and those that were added while they are processed.
    dirty: BTreeSet<K>,
    /// Keys in processing, with the lane for the case that they are added meanwhile.
    working: BTreeMap<K, usize>,
    later: BTreeMap<K, Instant>,
    /// `later` ordered by time, so that the search for due keys stays cheap with many delayed keys.
    schedule: BTreeSet<(Instant, K)>,
    /// Number of failures of each key, and the end of the current back-off.
    failures: BTreeMap<K, (u32, Instant)>,
    shut_down: bool,
}

impl<K> Default for State<K> {
    fn default() -> Self {
        Self {
            lanes: [VecDeque::new(), VecDeque::new(), VecDeque::new()],
            urgent: BTreeSet::new(),
            turns: 0,
            dirty: BTreeSet::new(),
            working: BTreeMap::new(),
            later: BTreeMap::new(),
            schedule: BTreeSet::new(),
            failures: BTreeMap::new(),
            shut_down: false,
        }
    }
}

impl<K: Key> State<K> {
    /// Adds a key; returns whether it was not waiting.
    pub(super) fn add(&mut self, now: Instant, key: K) -> bool {
        self.add_to(NORMAL, now, key)
    }

    /// Like [`Self::add`], in the last lane.
    pub(super) fn add_last(&mut self, now: Instant, key: K) -> bool {
        self.add_to(LAST, now, key)
    }

    fn add_to(&mut self, lane: usize, now: Instant, key: K) -> bool {
        if self.shut_down || !self.dirty.insert(key.clone()) {
            return false;
        }
        match self.working.get_mut(&key) {
            Some(again) => *again = lane,
            None => self.lanes[lane].push_back((key, now)),
        }
        true
    }

    /// Like [`Self::add`], in the first lane, even if the key already waits.
    pub(super) fn add_first(&mut self, now: Instant, key: K) -> bool {
        if self.shut_down {
            return false;
        }
        let news = self.dirty.insert(key.clone());
        match self.working.get_mut(&key) {
            Some(again) => *again = FIRST,
            None => self.push_first(now, key),
        }
        news
    }

    fn push_first(&mut self, now: Instant, key: K) {
        if self.urgent.insert(key.clone()) {
            self.lanes[FIRST].push_back((key, now));
        }
    }

    pub(super) fn add_at(&mut self, at: Instant, key: K) {
        match self.later.get(&key).copied() {
            Some(before) if before <= at => return,
            Some(before) => {
                self.schedule.remove(&(before, key.clone()));
            }
            None => {}
        }
        self.schedule.insert((at, key.clone()));
        self.later.insert(key, at);
    }

    /// Moves due keys to the queue; returns how many were not waiting.
    pub(super) fn promote(&mut self, now: Instant) -> u64 {
        let mut added = 0;
        while self.schedule.first().is_some_and(|(at, _)| *at <= now) {
            let (_, key) = self.schedule.pop_first().expect("there is a first one");
            self.later.remove(&key);
            added += u64::from(self.add(now, key));
        }
        added
    }

    pub(super) fn take(&mut self) -> Option<(K, Instant)> {
        let last_first = self.turns % TO_THE_LAST == TO_THE_LAST - 1;
        loop {
            let mut lanes = self.lanes.iter_mut();
            let next = |lane: &mut VecDeque<(K, Instant)>| lane.pop_front();
            let (key, queued) = if last_first { lanes.rev().find_map(next) } else { lanes.find_map(next) }?;
            self.urgent.remove(&key);
            // The second entry of a key that was in two lanes, or a key in processing that will be added again
            // afterwards.
            if self.working.contains_key(&key) || !self.dirty.remove(&key) {
                continue;
            }
            self.turns += 1;
            self.working.insert(key.clone(), NORMAL);
            return Some((key, queued));
        }
    }

    pub(super) fn done(&mut self, now: Instant, key: &K) {
        let Some(lane) = self.working.remove(key) else { return };
        if !self.dirty.contains(key) {
            return;
        }
        if lane == FIRST {
            self.push_first(now, key.clone());
        } else {
            self.lanes[lane].push_back((key.clone(), now));
        }
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        self.schedule.first().map(|(at, _)| *at)
    }

    /// Number of waiting keys, without those that were added while they are processed.
    pub(super) fn waiting(&self) -> usize {
        self.dirty.len() - self.working.keys().filter(|key| self.dirty.contains(key)).count()
    }

    /// Records a failure; returns when to try again. A failure before the end of the back-off is the same problem, seen
    /// earlier because the key was woken: the back-off neither grows nor starts again.
    pub(super) fn fail(&mut self, now: Instant, key: &K, delay: impl Fn(u32) -> Duration) -> Instant {
        let (failures, until) = self.failures.entry(key.clone()).or_insert((0, now));
        if *failures == 0 || *until <= now {
            *failures = failures.saturating_add(1);
            *until = now + delay(*failures);
        }
        *until
    }

    pub(super) fn forget(&mut self, key: &K) {
        self.failures.remove(key);
    }

    pub(super) fn failures(&self, key: &K) -> u32 {
        self.failures.get(key).map_or(0, |(failures, _)| *failures)
    }

    pub(super) fn shut_down(&mut self) {
        self.shut_down = true;
    }

    pub(super) fn is_shut_down(&self) -> bool {
        self.shut_down
    }
}
