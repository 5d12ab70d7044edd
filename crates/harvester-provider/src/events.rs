//! The objects that Events of this crate are about.

use contract::config_maps::NAMESPACE;
use k8s_openapi::api::core::v1::ObjectReference;
use runtime::events::reference;

/// One of the ConfigMaps in the guest cluster, by name. With its UID the Event is found from the object.
pub fn config_map(name: &str, uid: Option<String>) -> ObjectReference {
    reference("ConfigMap", Some(NAMESPACE), name, uid)
}
