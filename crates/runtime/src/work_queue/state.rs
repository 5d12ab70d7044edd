//! The queue without waiting: which key waits, which is worked on, which comes later. Times are arguments.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use tokio::time::Instant;

use crate::cache::Key;

/// While both wait, one of so many turns goes to the keys that are not urgent.
const TO_THE_REST: u64 = 5;

#[derive(Debug)]
pub(super) struct State<K> {
    order: VecDeque<(K, Instant)>,
    /// Goes first. A key may be in both: what is not `dirty` any more when its turn comes is skipped.
    urgent: VecDeque<(K, Instant)>,
    urgent_keys: BTreeSet<K>,
    turns: u64,
    /// Keys that have to be worked on: those in `order` and `urgent`, and those added while being worked on.
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
            order: VecDeque::new(),
            urgent: VecDeque::new(),
            urgent_keys: BTreeSet::new(),
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
        if self.shut_down || !self.dirty.insert(key.clone()) {
            return false;
        }
        if !self.working.contains_key(&key) {
            self.order.push_back((key, now));
        }
        true
    }

    /// The same before all that is not urgent, also if it waits already.
    pub(super) fn add_first(&mut self, now: Instant, key: K) -> bool {
        if self.shut_down {
            return false;
        }
        let news = self.dirty.insert(key.clone());
        if !self.working.contains_key(&key) && self.urgent_keys.insert(key.clone()) {
            self.urgent.push_back((key, now));
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
        let rest_first = self.turns % TO_THE_REST == TO_THE_REST - 1;
        loop {
            let lanes =
                if rest_first { [&mut self.order, &mut self.urgent] } else { [&mut self.urgent, &mut self.order] };
            let (key, queued) = lanes.into_iter().find_map(VecDeque::pop_front)?;
            self.urgent_keys.remove(&key);
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
            self.order.push_back((key.clone(), now));
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
