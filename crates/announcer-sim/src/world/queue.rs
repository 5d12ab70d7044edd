//! The queue of future events, in the order of time. Events of the same moment keep the order in which they were
//! scheduled. Only the keys of events are sorted; the events themselves are not moved.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

/// See the module.
#[derive(Debug)]
pub(super) struct Queue<E> {
    order: BinaryHeap<Reverse<(Duration, u64, usize)>>,
    events: Vec<Option<E>>,
    free: Vec<usize>,
}

impl<E> Default for Queue<E> {
    fn default() -> Self {
        Self { order: BinaryHeap::new(), events: Vec::new(), free: Vec::new() }
    }
}

impl<E> Queue<E> {
    /// `number` is the order among events of the same moment.
    pub fn push(&mut self, at: Duration, number: u64, event: E) {
        let place = self.free.pop().unwrap_or_else(|| {
            self.events.push(None);
            self.events.len() - 1
        });
        self.events[place] = Some(event);
        self.order.push(Reverse((at, number, place)));
    }

    /// The next one.
    pub fn pop(&mut self) -> Option<(Duration, E)> {
        let Reverse((at, _, place)) = self.order.pop()?;
        self.free.push(place);
        self.events[place].take().map(|event| (at, event))
    }
}
