//! Reading our own writes: between our PATCH and the watch event that shows it, the cache is older than what we know.

use std::sync::Arc;

use crate::view::{NodeView, ServiceView};

/// A view that knows which version of the object it shows.
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

/// The object after our last write, with the version that the write replaced.
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
    /// Notes the result of a write that had `replaced` as its precondition.
    pub(crate) fn note(&mut self, replaced: String, written: Arc<V>) {
        // Two writes in a row: the cache may still show what the first one replaced.
        let replaced = match self.written.take() {
            Some((before, ours)) if ours.version() == replaced => before,
            _ => replaced,
        };
        self.written = Some((replaced, written));
    }

    /// The newest state that we know: our own write, if the cache still shows what it replaced; otherwise the cache.
    /// Exact, because the precondition rules out that anybody wrote in between.
    pub(crate) fn newest(&mut self, cached: Option<Arc<V>>) -> Option<Arc<V>> {
        match (self.written.take(), cached?) {
            (Some((replaced, view)), cached) if replaced == cached.version() => {
                self.written = Some((replaced, Arc::clone(&view)));
                Some(view)
            }
            (_, cached) => Some(cached),
        }
    }

    /// Whether the cache has shown our write, as far as we know.
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
