//! Decides what an Event becomes: a new object, a higher count on an existing one, or nothing, because there are too
//! many about its object.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use tokio::time::Instant;

use super::Entry;

/// client-go's spam limit: a burst per source and object, then one Event per five minutes.
const BURST: f64 = 25.0;
const REFILL: Duration = Duration::from_mins(5);

/// How long an Event is remembered. The API server deletes it after an hour, so a later patch would fail.
const REMEMBER: Duration = Duration::from_hours(1);

/// Limit of the remembered objects, per table.
const CAPACITY: usize = 4096;

/// A request to send for an Event.
#[derive(Debug, Clone, PartialEq)]
pub enum Write {
    /// Create an Event with this name.
    Create {
        /// `metadata.name`.
        name: String,
        /// First and last time.
        time: Timestamp,
    },
    /// An equal Event exists: raise its count.
    Count {
        /// `metadata.name` of the Event.
        name: String,
        /// Last time.
        last: Timestamp,
        /// New count.
        count: i32,
    },
}

#[derive(Debug)]
struct Said {
    first: Timestamp,
    count: i32,
    at: Instant,
}

#[derive(Debug)]
struct Bucket {
    tokens: f64,
    at: Instant,
}

/// Remembers the Events that were written. No clock, no client.
///
/// Objects and messages are stored as hashes, because their texts would take ten times the memory and are not read
/// again. A collision among a few thousand is less likely than the loss of an Event.
#[derive(Debug, Default)]
pub struct Correlator {
    numbers: RandomState,
    said: HashMap<u64, Said>,
    buckets: HashMap<u64, Bucket>,
}

impl Correlator {
    /// Decides about one Event. `None`: it is dropped, because the object has used up its share.
    pub fn observe(&mut self, now: Instant, wall: Timestamp, entry: &Entry) -> Option<Write> {
        if !self.spend(now, self.subject(entry)) {
            return None;
        }
        self.said.retain(|_, said| now - said.at < REMEMBER);
        let same = self.same(entry);
        if let Some(said) = self.said.get_mut(&same) {
            said.count = said.count.saturating_add(1);
            said.at = now;
            return Some(Write::Count { name: name(entry, said.first), last: wall, count: said.count });
        }
        if self.said.len() >= CAPACITY
            && let Some(oldest) = self.said.iter().min_by_key(|(_, said)| said.at).map(|(same, _)| *same)
        {
            self.said.remove(&oldest);
        }
        self.said.insert(same, Said { first: wall, count: 1, at: now });
        Some(Write::Create { name: name(entry, wall), time: wall })
    }

    /// Forgets an Event that could not be created, so that it is not counted up.
    pub fn forget(&mut self, entry: &Entry) {
        self.said.remove(&self.same(entry));
    }

    /// Hash of the source and the object.
    fn subject(&self, entry: &Entry) -> u64 {
        let ObjectReference { api_version, kind, namespace, name, uid, .. } = &entry.object;
        self.numbers.hash_one((&entry.component, api_version, kind, namespace, name, uid))
    }

    /// Hash of the source, the object and the text.
    fn same(&self, entry: &Entry) -> u64 {
        self.numbers.hash_one((self.subject(entry), entry.kind, &entry.reason, &entry.message))
    }

    fn spend(&mut self, now: Instant, subject: u64) -> bool {
        if self.buckets.len() >= CAPACITY && !self.buckets.contains_key(&subject) {
            self.make_room(now);
        }
        let bucket = self.buckets.entry(subject).or_insert(Bucket { tokens: BURST, at: now });
        bucket.tokens = refilled(bucket, now);
        bucket.at = now;
        if bucket.tokens < 1.0 {
            return false;
        }
        bucket.tokens -= 1.0;
        true
    }

    /// Removes buckets when the table is full: a full bucket contains no information, and the fullest one the least.
    fn make_room(&mut self, now: Instant) {
        self.buckets.retain(|_, bucket| refilled(bucket, now) < BURST);
        let fullest = self.buckets.iter().max_by(|(_, a), (_, b)| refilled(a, now).total_cmp(&refilled(b, now)));
        if self.buckets.len() >= CAPACITY
            && let Some(fullest) = fullest.map(|(subject, _)| *subject)
        {
            self.buckets.remove(&fullest);
        }
    }
}

/// The name of an Event as in client-go: the object's name, and the time as hexadecimal nanoseconds.
pub(super) fn name(entry: &Entry, time: Timestamp) -> String {
    format!("{}.{:x}", entry.object.name.as_deref().unwrap_or_default(), time.as_nanosecond())
}

fn refilled(bucket: &Bucket, now: Instant) -> f64 {
    (bucket.tokens + (now - bucket.at).as_secs_f64() / REFILL.as_secs_f64()).min(BURST)
}

#[cfg(test)]
mod tests {
    use super::super::EventKind;
    use super::*;

    fn entry(name: &str, message: &str) -> Entry {
        Entry {
            component: "service-controller".into(),
            object: ObjectReference { name: Some(name.into()), uid: Some("u1".into()), ..ObjectReference::default() },
            kind: EventKind::Normal,
            reason: "EnsuringLoadBalancer".into(),
            message: message.into(),
        }
    }

    struct Run {
        correlator: Correlator,
        start: Instant,
    }

    impl Run {
        fn new() -> Self {
            Self { correlator: Correlator::default(), start: Instant::now() }
        }

        fn at(&mut self, second: u64, entry: &Entry) -> Option<Write> {
            let wall = Timestamp::from_second(1_700_000_000 + i64::try_from(second).unwrap()).unwrap();
            self.correlator.observe(self.start + Duration::from_secs(second), wall, entry)
        }
    }

    #[test]
    fn a_new_event_is_named_after_its_object_and_time() {
        let write = Run::new().at(0, &entry("web", "a"));
        assert!(matches!(write, Some(Write::Create { name, .. }) if name == "web.17979cfe362a0000"));
    }

    #[test]
    fn the_same_again_is_counted_and_keeps_its_first_time() {
        let mut run = Run::new();
        let Some(Write::Create { name, time }) = run.at(0, &entry("web", "a")) else { panic!() };
        let Some(Write::Count { name: again, last, count }) = run.at(7, &entry("web", "a")) else { panic!() };
        assert_eq!((again, count), (name, 2));
        assert_eq!(last.as_second() - time.as_second(), 7);
    }

    #[test]
    fn another_message_or_object_is_another_event() {
        let mut run = Run::new();
        for entry in [entry("web", "a"), entry("web", "b"), entry("db", "a")] {
            assert!(matches!(run.at(0, &entry), Some(Write::Create { .. })));
        }
        let mut recreated = entry("web", "a");
        recreated.object.uid = Some("u2".into());
        assert!(matches!(run.at(0, &recreated), Some(Write::Create { .. })));
    }

    #[test]
    fn an_event_that_the_server_has_forgotten_is_created_again() {
        let mut run = Run::new();
        run.at(0, &entry("web", "a"));
        assert!(matches!(run.at(3601, &entry("web", "a")), Some(Write::Create { .. })));
        run.correlator.forget(&entry("web", "a"));
        assert!(matches!(run.at(3602, &entry("web", "a")), Some(Write::Create { .. })));
    }

    #[test]
    fn an_object_may_say_25_things_at_once_and_then_one_in_five_minutes() {
        let mut run = Run::new();
        let said = (0..40).filter(|_| run.at(0, &entry("web", "a")).is_some()).count();
        assert_eq!(said, 25);
        assert!(run.at(0, &entry("db", "a")).is_some(), "others are not affected");
        assert!(run.at(299, &entry("web", "b")).is_none());
        assert!(run.at(300, &entry("web", "b")).is_some());
        assert!(run.at(301, &entry("web", "b")).is_none());
    }

    #[test]
    fn memory_is_bounded() {
        let mut run = Run::new();
        while run.at(0, &entry("talkative", "a")).is_some() {}
        for number in 0..10_000 {
            run.at(number / 100, &entry(&format!("web{number}"), "a"));
        }
        assert_eq!((run.correlator.said.len(), run.correlator.buckets.len()), (CAPACITY, CAPACITY));
        assert!(run.at(100, &entry("talkative", "b")).is_none(), "room is not made at the cost of the limit");
    }
}
