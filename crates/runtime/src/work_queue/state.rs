//! The queue without waiting: which key waits, which is worked on, which comes later. Times are arguments.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use tokio::time::Instant;

use crate::cache::Key;

/// One of so many turns goes to the lane that comes last, so that none starves.
const TO_THE_LAST: u64 = 5;

// The lanes.
const FIRST: usize = 0;
const NORMAL: usize = 1;
const LAST: usize = 2;

#[derive(Debug)]
pub(super) struct State<K> {
    /// The first lane goes first. A key may be in two: what is not `dirty` any more when its turn comes is skipped.
    lanes: [VecDeque<(K, Instant)>; 3],
    /// In the first lane.
    urgent: BTreeSet<K>,
    turns: u64,
    /// Keys that have to be worked on: those in `lanes`, and those added while being worked on.
    dirty: BTreeSet<K>,
    /// With the lane in which it comes again if it is added meanwhile.
    working: BTreeMap<K, usize>,
    later: BTreeMap<K, Instant>,
    /// `later` by time: looking for what is due must not cost more the more waits.
    schedule: BTreeSet<(Instant, K)>,
    /// How often a key failed, and until when the back-off of the last failure that counted runs.
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
    /// Whether this was news.
    pub(super) fn add(&mut self, now: Instant, key: K) -> bool {
        self.add_to(NORMAL, now, key)
    }

    /// The same after all others.
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

    /// The same before all others, also if it waits already.
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

    pub(super) fn take(&mut self) -> Option<(K, Instant)> {
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

    /// How many keys wait, those that are added while being worked on not counted.
    pub(super) fn waiting(&self) -> usize {
        self.dirty.len() - self.working.keys().filter(|key| self.dirty.contains(key)).count()
    }

    /// When to try again. A failure while a back-off still runs is the same trouble, seen earlier because somebody woke
    /// the key: it does not make the back-off grow, and the time stands.
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
