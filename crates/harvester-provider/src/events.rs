//! The objects that Events of this crate are about.

use contract::config_maps::NAMESPACE;
use k8s_openapi::api::core::v1::ObjectReference;

/// One of the ConfigMaps in the guest cluster, by name. With its UID the Event is found from the object.
pub fn config_map(name: &str, uid: Option<String>) -> ObjectReference {
    ObjectReference {
        api_version: Some("v1".into()),
        kind: Some("ConfigMap".into()),
        namespace: Some(NAMESPACE.into()),
        name: Some(name.into()),
        uid,
        ..ObjectReference::default()
    }
}
