//! Read your own writes: between a PATCH and the watch event that shows it, the cache is older than the answer to the
//! PATCH.

use std::sync::Arc;

use crate::view::{NodeView, ServiceView};

/// A view with the resourceVersion of its object.
pub(crate) trait Versioned {
    fn version(&self) -> &str;
}

impl Versioned for ServiceView {
    fn version(&self) -> &str {
        &self.resource_version
    }
}

impl Versioned for NodeView {
    fn version(&self) -> &str {
        &self.resource_version
    }
}

/// The object after the controller's last write, with the resourceVersion that the write replaced.
#[derive(Debug)]
pub(crate) struct OwnWrite<V> {
    written: Option<(String, Arc<V>)>,
}

impl<V> Default for OwnWrite<V> {
    fn default() -> Self {
        Self { written: None }
    }
}

impl<V: Versioned> OwnWrite<V> {
    /// Stores the result of a write that had `replaced` as its precondition.
    pub(crate) fn note(&mut self, replaced: String, written: Arc<V>) {
        // After two writes in a row, the cache may still show the version that the first one replaced.
        let replaced = match self.written.take() {
            Some((before, ours)) if ours.version() == replaced => before,
            _ => replaced,
        };
        self.written = Some((replaced, written));
    }

    /// The newest known state: the controller's own write, if the cache still shows the version that it replaced;
    /// otherwise the cache. This is exact, because the precondition excludes other writes in between.
    pub(crate) fn newest(&mut self, cached: Option<Arc<V>>) -> Option<Arc<V>> {
        match (self.written.take(), cached?) {
            (Some((replaced, view)), cached) if replaced == cached.version() => {
                self.written = Some((replaced, Arc::clone(&view)));
                Some(view)
            }
            (_, cached) => Some(cached),
        }
    }

    /// Whether the cache has caught up with the last write, as far as is known.
    pub(crate) fn is_settled(&self) -> bool {
        self.written.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_support::node;

    fn at(version: &str) -> Arc<NodeView> {
        Arc::new(NodeView { resource_version: version.into(), ..node("n") })
    }

    fn newest(write: &mut OwnWrite<NodeView>, cached: &str) -> String {
        write.newest(Some(at(cached))).unwrap().resource_version.clone()
    }

    #[test]
    fn our_write_counts_until_the_cache_shows_anything_newer() {
        let mut write = OwnWrite::default();
        write.note("1".into(), at("2"));
        assert_eq!(newest(&mut write, "1"), "2");
        assert_eq!(newest(&mut write, "1"), "2");
        assert_eq!(newest(&mut write, "3"), "3");
        assert!(write.is_settled());
        assert_eq!(newest(&mut write, "1"), "1", "it is not remembered for ever");
    }

    #[test]
    fn two_writes_in_a_row_count_as_one() {
        let mut write = OwnWrite::default();
        write.note("1".into(), at("2"));
        write.note("2".into(), at("3"));
        assert_eq!(newest(&mut write, "1"), "3");
    }

    #[test]
    fn an_object_that_is_gone_is_gone() {
        let mut write = OwnWrite::default();
        write.note("1".into(), at("2"));
        assert_eq!(write.newest(None), None);
        assert!(write.is_settled());
    }
}
