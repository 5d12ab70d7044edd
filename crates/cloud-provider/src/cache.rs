//! The Service and Node caches that all controllers and the provider share: one watch per kind, trimmed on ingest.

use runtime::cache::Cache;

use crate::view::{NodeView, ServiceKey, ServiceView};

/// All Services of the guest cluster. `get`, `all`, `subscribe` (touched keys), `wait_synced`.
pub type ServiceCache = Cache<ServiceKey, ServiceView>;

/// All Nodes of the guest cluster, by name.
pub type NodeCache = Cache<String, NodeView>;

/// An empty Service cache for a reflector to fill. A Service is touched when anything but its `resourceVersion` differs; the
/// ingress counts, because dependents wait for it (framework spec 7.3).
pub fn services() -> ServiceCache {
    Cache::new(service_differs)
}

/// A synced Service cache with this content.
#[cfg(any(test, feature = "scenario"))]
pub fn services_with(views: impl IntoIterator<Item = ServiceView>) -> ServiceCache {
    Cache::in_memory(service_differs, views.into_iter().map(|view| (view.key.clone(), view)))
}

/// An empty Node cache for a reflector to fill. Heartbeats touch nothing.
pub fn nodes() -> NodeCache {
    Cache::new(node_differs)
}

/// A synced Node cache with this content.
#[cfg(any(test, feature = "scenario"))]
pub fn nodes_with(views: impl IntoIterator<Item = NodeView>) -> NodeCache {
    Cache::in_memory(node_differs, views.into_iter().map(|view| (view.name.clone(), view)))
}

fn service_differs(old: &ServiceView, new: &ServiceView) -> bool {
    old != &ServiceView { resource_version: old.resource_version.clone(), ..new.clone() }
}

fn node_differs(old: &NodeView, new: &NodeView) -> bool {
    old != &NodeView { resource_version: old.resource_version.clone(), ..new.clone() }
}
