//! The Service and Node caches that all controllers and the provider share: one watch per kind, trimmed on ingest.

use runtime::cache::Cache;

use crate::view::{NodeView, ServiceKey, ServiceView};

/// All Services of the guest cluster. `get`, `all`, `subscribe` (touched keys), `wait_synced`.
pub type ServiceCache = Cache<ServiceKey, ServiceView>;

/// All Nodes of the guest cluster, by name.
pub type NodeCache = Cache<String, NodeView>;

/// An empty Service cache for a reflector to fill. Any difference except in `resourceVersion` counts as a change. That
/// includes the ingress, because dependent Services wait for it (framework spec 7.3).
pub fn services() -> ServiceCache {
    Cache::new(service_differs)
}

/// A synced Service cache with this content.
#[cfg(any(test, feature = "scenario"))]
pub fn services_with(views: impl IntoIterator<Item = ServiceView>) -> ServiceCache {
    Cache::in_memory(service_differs, views.into_iter().map(|view| (view.key.clone(), view)))
}

/// An empty Node cache for a reflector to fill. Heartbeats of the kubelet do not count as changes.
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

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::observe;

    fn view(spec: &Value, change: &Value) -> ServiceView {
        let mut object = json!({"metadata": {"name": "web", "namespace": "default", "uid": "u1"}, "spec": spec});
        for (path, value) in change.as_object().into_iter().flatten() {
            *object.pointer_mut(path).unwrap_or_else(|| panic!("{path}")) = value.clone();
        }
        observe::service(&serde_json::from_value(object).expect("a Service"))
    }

    /// TestNeedsUpdate. The Go framework ensures anew after each of these changes; here a Service is looked at again
    /// when something changes that its load balancer depends on, and a load balancer of Harvester knows no backends and
    /// no policies.
    #[test]
    fn framework_5_1_needs_update() {
        let spec = json!({
            "type": "LoadBalancer", "externalIPs": ["1.1.1.1"], "externalTrafficPolicy": "Cluster",
            "healthCheckNodePort": 0,
            "ipFamilies": ["IPv4"], "sessionAffinity": "None", "loadBalancerSourceRanges": [], "loadBalancerIP": "",
            "loadBalancerClass": null,
            "ports": [{"port": 8000, "targetPort": 20, "appProtocol": null, "protocol": "TCP"}]
        });
        for (change, expected) in [
            (json!({}), false),
            (json!({"/spec/type": "ClusterIP"}), true),
            (json!({"/spec/ports/0/port": 8001}), true),
            (json!({"/spec/ports/0/protocol": "UDP"}), true),
            (json!({"/metadata/uid": "u2"}), true),
            (json!({"/spec/loadBalancerIP": "10.0.0.7"}), true),
            (json!({"/spec/loadBalancerClass": "x"}), true),
            (json!({"/spec/externalIPs": ["1.1.1.1", "2.2.2.2"]}), false),
            (json!({"/spec/externalIPs": ["2.2.2.2"]}), false),
            (json!({"/spec/externalTrafficPolicy": "Local"}), false),
            (json!({"/spec/healthCheckNodePort": 30_123}), false),
            (json!({"/spec/ports/0/targetPort": 21}), false),
            (json!({"/spec/ports/0/targetPort": "dns"}), false),
            (json!({"/spec/ports/0/appProtocol": "http"}), false),
            (json!({"/spec/ipFamilies": ["IPv4", "IPv6"]}), true),
            (json!({"/spec/sessionAffinity": "ClientIP"}), false),
            (json!({"/spec/loadBalancerSourceRanges": ["10.0.0.0/8"]}), false),
        ] {
            assert_eq!(service_differs(&view(&spec, &json!({})), &view(&spec, &change)), expected, "{change}");
        }
    }

    #[test]
    fn annotations_labels_finalizers_and_ingress_count_and_a_new_version_alone_does_not() {
        let old = crate::test_support::service("default/web");
        let change = |change: fn(&mut ServiceView)| {
            let mut new = old.clone();
            change(&mut new);
            service_differs(&old, &new)
        };
        assert!(change(|service| service.annotations.insert("a", "1")));
        assert!(change(|service| service.labels.insert("a", "1")));
        assert!(change(|service| service.finalizers.push("f".into())));
        assert!(change(|service| service.ingress.push(std::net::Ipv4Addr::LOCALHOST.into())));
        assert!(!change(|service| service.resource_version = "2".into()));
    }
}
