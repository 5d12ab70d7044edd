//! Applies watch events to a cache.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use kube::runtime::watcher;

use crate::cache::{Cache, Key};

/// Makes the view of an object; `None` if the object is not kept.
pub(super) type Trim<O, V> = Arc<dyn Fn(&O) -> Option<V> + Send + Sync>;

/// Applies watch events to a cache; an incomplete list is held back.
pub(super) struct Ingest<O, K, V> {
    cache: Cache<K, V>,
    key: fn(&ObjectMeta) -> K,
    view: Trim<O, V>,
    list: BTreeMap<K, V>,
}

impl<O: Resource, K: Key, V: Send + Sync + 'static> Ingest<O, K, V> {
    pub(super) fn new(cache: Cache<K, V>, key: fn(&ObjectMeta) -> K, view: Trim<O, V>) -> Self {
        Self { cache, key, view, list: BTreeMap::new() }
    }

    pub(super) fn take(&mut self, event: watcher::Event<O>) {
        let Self { cache, key, view, .. } = &*self;
        match event {
            watcher::Event::Init => self.list.clear(),
            watcher::Event::InitApply(object) => {
                if let Some(view) = view(&object) {
                    self.list.insert(key(object.meta()), view);
                }
            }
            watcher::Event::InitDone => self.cache.replace(std::mem::take(&mut self.list)),
            watcher::Event::Apply(object) => match view(&object) {
                Some(view) => cache.apply(key(object.meta()), view),
                None => cache.remove(&key(object.meta())),
            },
            watcher::Event::Delete(object) => cache.remove(&key(object.meta())),
        }
    }
}
