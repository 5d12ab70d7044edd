//! A map of items with timers that knows the earliest deadline. The engine asks for it many times a second, while
//! hundreds of items are at rest. So the items are searched again only after one was accessed mutably.

use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};
use std::time::Instant;

/// An item with a timer.
pub(super) trait Timed {
    /// When it is due; `None`: never.
    fn deadline(&self) -> Option<Instant>;
}

/// Items by key, with the earliest deadline.
#[derive(Debug)]
pub(super) struct Due<K, V> {
    things: BTreeMap<K, V>,
    first: Option<Instant>,
    /// An item may have changed since `first` was computed.
    touched: bool,
}

impl<K, V> Default for Due<K, V> {
    fn default() -> Self {
        Self { things: BTreeMap::new(), first: None, touched: false }
    }
}

impl<K: Ord, V: Timed> Due<K, V> {
    /// The earliest deadline.
    pub fn first(&self) -> Option<Instant> {
        if self.touched { self.look() } else { self.first }
    }

    /// Computes the earliest deadline now, if an item may have changed.
    pub fn settle(&mut self) {
        if std::mem::take(&mut self.touched) {
            self.first = self.look();
        }
    }

    /// Whether an item may have changed since the last [`Self::settle`].
    pub fn is_touched(&self) -> bool {
        self.touched
    }

    /// Whether an item is due.
    pub fn is_due(&self, now: Instant) -> bool {
        self.first().is_some_and(|at| at <= now)
    }

    fn look(&self) -> Option<Instant> {
        self.things.values().filter_map(Timed::deadline).min()
    }
}

impl<K, V> Deref for Due<K, V> {
    type Target = BTreeMap<K, V>;

    fn deref(&self) -> &Self::Target {
        &self.things
    }
}

impl<K, V> DerefMut for Due<K, V> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        self.touched = true;
        &mut self.things
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;
    use std::time::Duration;

    use super::*;

    struct Thing {
        at: Option<Instant>,
        asked: Rc<Cell<u32>>,
    }

    impl Timed for Thing {
        fn deadline(&self) -> Option<Instant> {
            self.asked.set(self.asked.get() + 1);
            self.at
        }
    }

    #[test]
    fn things_at_rest_are_not_asked_again_and_what_was_touched_is_not_missed() {
        let (start, asked) = (Instant::now(), Rc::new(Cell::new(0)));
        let at = |seconds| Some(start + Duration::from_secs(seconds));
        let mut due = Due::default();
        assert_eq!(due.first(), None);
        for number in 0..200 {
            due.insert(number, Thing { at: at(number), asked: Rc::clone(&asked) });
        }
        assert_eq!(due.first(), at(0), "also before it has settled");
        due.settle();
        asked.set(0);
        for _ in 0..1000 {
            due.settle();
            assert_eq!(due.first(), at(0));
            assert!(due.is_due(start) && due.values().count() == 200);
        }
        assert_eq!(asked.get(), 0);
        due.get_mut(&0).unwrap().at = None;
        due.settle();
        assert_eq!((due.first(), asked.get()), (at(1), 200));
        assert!(!due.is_due(start));
        due.remove(&1);
        assert_eq!(due.first(), at(2));
    }
}
