//! The queue without waiting: which key waits, which is worked on, which comes later. Times are arguments.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use tokio::time::Instant;

use crate::cache::Key;

#[derive(Debug)]
pub(super) struct State<K> {
    order: VecDeque<(K, Instant)>,
    /// Keys that have to be worked on: those in `order`, and those added while being worked on.
    dirty: BTreeSet<K>,
    working: BTreeMap<K, Instant>,
    later: BTreeMap<K, Instant>,
    failures: BTreeMap<K, u32>,
    shut_down: bool,
}

impl<K> Default for State<K> {
    fn default() -> Self {
        Self {
            order: VecDeque::new(),
            dirty: BTreeSet::new(),
            working: BTreeMap::new(),
            later: BTreeMap::new(),
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

    pub(super) fn add_at(&mut self, at: Instant, key: K) {
        let entry = self.later.entry(key).or_insert(at);
        *entry = at.min(*entry);
    }

    /// Moves what is due to the queue; returns how many keys were news.
    pub(super) fn promote(&mut self, now: Instant) -> u64 {
        let mut due: Vec<(Instant, K)> =
            self.later.iter().filter(|(_, at)| **at <= now).map(|(key, at)| (*at, key.clone())).collect();
        due.sort();
        let mut added = 0;
        for (_, key) in due {
            self.later.remove(&key);
            added += u64::from(self.add(now, key));
        }
        added
    }

    pub(super) fn take(&mut self, now: Instant) -> Option<(K, Instant)> {
        let (key, queued) = self.order.pop_front()?;
        self.dirty.remove(&key);
        self.working.insert(key.clone(), now);
        Some((key, queued))
    }

    pub(super) fn done(&mut self, now: Instant, key: &K) {
        self.working.remove(key);
        if self.dirty.contains(key) {
            self.order.push_back((key.clone(), now));
        }
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        self.later.values().min().copied()
    }

    pub(super) fn waiting(&self) -> usize {
        self.order.len()
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
