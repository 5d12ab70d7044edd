//! Events that wait to be written: warnings at once, news at a pace.
//!
//! A thousand Services made in one go are two thousand Events of what goes well. Written as fast as they come they cost
//! the API server a tenth of the time in which the Services get their addresses, and push out the Warning that somebody
//! waits for.

use std::collections::VecDeque;
use std::time::Duration;

use jiff::Timestamp;
use tokio::time::Instant;

use super::{Entry, EventKind};

/// Each kind of Event waits up to this number; more are dropped.
const ROOM: usize = 4096;
/// News that are written as they come, and then one per `INTERVAL`. The kubelet's `--event-qps` had this order of
/// magnitude for years.
const BURST: u32 = 50;
const INTERVAL: Duration = Duration::from_millis(50);
/// News that are still told when everything ends, the latest of them.
const AT_THE_END: usize = 16;

/// An Event and the time of what it tells.
#[derive(Debug, PartialEq)]
pub struct Noted {
    pub entry: Entry,
    pub at: Timestamp,
}

/// No client, no clock.
#[derive(Debug)]
pub struct Waiting {
    warnings: VecDeque<Noted>,
    news: VecDeque<Noted>,
    /// When the burst is whole again: each of the news puts that off by one interval.
    whole: Instant,
}

impl Waiting {
    pub fn new(now: Instant) -> Self {
        Self { warnings: VecDeque::new(), news: VecDeque::new(), whole: now }
    }

    /// Takes an Event. `false`: there is no room for it.
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

    /// When [`Waiting::pop`] has something to give. `None`: nothing waits.
    pub fn due(&self, now: Instant) -> Option<Instant> {
        if !self.warnings.is_empty() {
            return Some(now);
        }
        (!self.news.is_empty())
            .then(|| (self.whole + INTERVAL).checked_sub(INTERVAL * BURST).map_or(now, |due| due.max(now)))
    }

    /// What is to be written next, if it is due.
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

    /// What is to be written before the end: all warnings, the latest news.
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
