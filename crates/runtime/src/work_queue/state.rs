//! The queue without waiting: which key waits, which is worked on, which comes later. Times are arguments.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use tokio::time::Instant;

use crate::cache::Key;

/// One of so many turns goes to the lane that comes last, so that none starves.
const TO_THE_LAST: u64 = 5;

#[derive(Debug)]
pub(super) struct State<K> {
    /// The first lane goes first. A key may be in two: what is not `dirty` any more when its turn comes is skipped.
    lanes: [VecDeque<(K, Instant)>; 3],
    /// In the first lane.
    urgent: BTreeSet<K>,
    turns: u64,
    /// Keys that have to be worked on: those in `lanes`, and those added while being worked on.
    dirty: BTreeSet<K>,
    working: BTreeMap<K, Instant>,
    later: BTreeMap<K, Instant>,
    /// `later` by time: looking for what is due must not cost more the more waits.
    schedule: BTreeSet<(Instant, K)>,
    failures: BTreeMap<K, u32>,
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
    /// Whether this was news.
    pub(super) fn add(&mut self, now: Instant, key: K) -> bool {
        self.add_to(1, now, key)
    }

    /// The same after all others.
    pub(super) fn add_last(&mut self, now: Instant, key: K) -> bool {
        self.add_to(2, now, key)
    }

    fn add_to(&mut self, lane: usize, now: Instant, key: K) -> bool {
        if self.shut_down || !self.dirty.insert(key.clone()) {
            return false;
        }
        if !self.working.contains_key(&key) {
            self.lanes[lane].push_back((key, now));
        }
        true
    }

    /// The same before all others, also if it waits already.
    pub(super) fn add_first(&mut self, now: Instant, key: K) -> bool {
        if self.shut_down {
            return false;
        }
        let news = self.dirty.insert(key.clone());
        if !self.working.contains_key(&key) && self.urgent.insert(key.clone()) {
            self.lanes[0].push_back((key, now));
        }
        news
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

    /// Moves what is due to the queue; returns how many keys were news.
    pub(super) fn promote(&mut self, now: Instant) -> u64 {
        let mut added = 0;
        while self.schedule.first().is_some_and(|(at, _)| *at <= now) {
            let (_, key) = self.schedule.pop_first().expect("there is a first one");
            self.later.remove(&key);
            added += u64::from(self.add(now, key));
        }
        added
    }

    pub(super) fn take(&mut self, now: Instant) -> Option<(K, Instant)> {
        let last_first = self.turns % TO_THE_LAST == TO_THE_LAST - 1;
        loop {
            let mut lanes = self.lanes.iter_mut();
            let next = |lane: &mut VecDeque<(K, Instant)>| lane.pop_front();
            let (key, queued) = if last_first { lanes.rev().find_map(next) } else { lanes.find_map(next) }?;
            self.urgent.remove(&key);
            // The other entry of a key that was in both, or one that is being worked on and comes again by itself.
            if self.working.contains_key(&key) || !self.dirty.remove(&key) {
                continue;
            }
            self.turns += 1;
            self.working.insert(key.clone(), now);
            return Some((key, queued));
        }
    }

    pub(super) fn done(&mut self, now: Instant, key: &K) {
        self.working.remove(key);
        if self.dirty.contains(key) {
            self.lanes[1].push_back((key.clone(), now));
        }
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        self.schedule.first().map(|(at, _)| *at)
    }

    /// How many keys wait, those that are added while being worked on not counted.
    pub(super) fn waiting(&self) -> usize {
        self.dirty.len() - self.working.keys().filter(|key| self.dirty.contains(key)).count()
    }

    pub(super) fn fail(&mut self, key: &K) -> u32 {
        let failures = self.failures.entry(key.clone()).or_insert(0);
        *failures = failures.saturating_add(1);
        *failures
    }

    pub(super) fn forget(&mut self, key: &K) {
        self.failures.remove(key);
    }

    pub(super) fn failures(&self, key: &K) -> u32 {
        self.failures.get(key).copied().unwrap_or(0)
    }

    pub(super) fn shut_down(&mut self) {
        self.shut_down = true;
    }

    pub(super) fn is_shut_down(&self) -> bool {
        self.shut_down
    }
}
