//! The queue of Events to write: Warnings at once, Normal Events at a limited rate.
//!
//! A thousand Services that are created together cause two thousand Normal Events. Without a limit they would take a
//! tenth of the API server's time while the Services get their addresses, and delay the Warnings that users need.

use std::collections::VecDeque;
use std::time::Duration;

use jiff::Timestamp;
use tokio::time::Instant;

use super::{Entry, EventKind};

/// Capacity for each type of Event; further ones are dropped.
const ROOM: usize = 4096;
/// Number of Normal Events that are written at once; then one follows per `INTERVAL`. The kubelet's `--event-qps` had
/// this order of magnitude for years.
const BURST: u32 = 50;
const INTERVAL: Duration = Duration::from_millis(50);
/// Number of Normal Events, the latest, that are still written when the process ends.
const AT_THE_END: usize = 16;

/// An Event with the time of its occurrence.
#[derive(Debug, PartialEq)]
pub struct Noted {
    pub entry: Entry,
    pub at: Timestamp,
}

/// The queue. No client, no clock.
#[derive(Debug)]
pub struct Waiting {
    warnings: VecDeque<Noted>,
    news: VecDeque<Noted>,
    /// When the burst is available in full again. Each Normal Event delays that by one interval.
    whole: Instant,
}

impl Waiting {
    pub fn new(now: Instant) -> Self {
        Self { warnings: VecDeque::new(), news: VecDeque::new(), whole: now }
    }

    /// Adds an Event; returns false if there is no room for it.
    pub fn push(&mut self, noted: Noted) -> bool {
        let queue = match noted.entry.kind {
            EventKind::Warning => &mut self.warnings,
            EventKind::Normal => &mut self.news,
        };
        let room = queue.len() < ROOM;
        if room {
            queue.push_back(noted);
        }
        room
    }

    /// When [`Waiting::pop`] will return an Event; `None` if the queue is empty.
    pub fn due(&self, now: Instant) -> Option<Instant> {
        if !self.warnings.is_empty() {
            return Some(now);
        }
        (!self.news.is_empty())
            .then(|| (self.whole + INTERVAL).checked_sub(INTERVAL * BURST).map_or(now, |due| due.max(now)))
    }

    /// The next Event to write, if one is due.
    pub fn pop(&mut self, now: Instant) -> Option<Noted> {
        if let Some(warning) = self.warnings.pop_front() {
            return Some(warning);
        }
        if self.due(now)? > now {
            return None;
        }
        self.whole = self.whole.max(now) + INTERVAL;
        self.news.pop_front()
    }

    /// The Events to write before the end: all Warnings, and the latest Normal Events.
    pub fn last_words(mut self) -> impl Iterator<Item = Noted> {
        let old = self.news.len().saturating_sub(AT_THE_END);
        self.news.drain(..old);
        self.warnings.into_iter().chain(self.news)
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ObjectReference;

    use super::*;

    fn noted(kind: EventKind, message: usize) -> Noted {
        let entry = Entry {
            component: "service-controller".into(),
            object: ObjectReference::default(),
            kind,
            reason: "Reason".into(),
            message: message.to_string(),
        };
        Noted { entry, at: Timestamp::UNIX_EPOCH }
    }

    fn with_news(now: Instant, count: usize) -> Waiting {
        let mut waiting = Waiting::new(now);
        for message in 0..count {
            assert!(waiting.push(noted(EventKind::Normal, message)));
        }
        waiting
    }

    fn popped(waiting: &mut Waiting, now: Instant) -> usize {
        std::iter::from_fn(|| waiting.pop(now)).count()
    }

    #[test]
    fn news_are_written_in_a_burst_and_then_at_a_pace() {
        let start = Instant::now();
        let mut waiting = with_news(start, 200);
        assert_eq!(popped(&mut waiting, start), 50);
        assert_eq!(waiting.due(start), Some(start + INTERVAL));
        assert_eq!(popped(&mut waiting, start + Duration::from_secs(1)), 20);
        assert_eq!(popped(&mut waiting, start + Duration::from_mins(1)), 50, "a burst is never more than a burst");
    }

    #[test]
    fn a_warning_waits_for_no_news() {
        let start = Instant::now();
        let mut waiting = with_news(start, ROOM);
        assert!(!waiting.push(noted(EventKind::Normal, 0)), "there is no room for more");
        popped(&mut waiting, start);
        assert!(waiting.push(noted(EventKind::Warning, 7)));
        assert_eq!(waiting.due(start), Some(start));
        assert_eq!(waiting.pop(start), Some(noted(EventKind::Warning, 7)));
    }

    #[test]
    fn nothing_is_due_where_nothing_waits() {
        let start = Instant::now();
        let mut waiting = Waiting::new(start);
        assert_eq!((waiting.due(start), waiting.pop(start)), (None, None));
    }

    #[test]
    fn before_the_end_come_all_warnings_and_the_latest_news() {
        let mut waiting = with_news(Instant::now(), 100);
        waiting.push(noted(EventKind::Warning, 7));
        let words: Vec<String> = waiting.last_words().map(|noted| noted.entry.message).collect();
        assert_eq!((words.len(), words[0].as_str(), words[1].as_str(), words[16].as_str()), (17, "7", "84", "99"));
    }
}
