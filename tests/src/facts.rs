//! What is left of an object when identities, times and random parts are taken away: small enough to be written down in
//! a file.

use std::collections::BTreeMap;

use harvester_api::keys::cloudprovider;
use harvester_api::load_balancer::LoadBalancer;
use k8s_openapi::api::core::v1::{Node, Service};
use kube::ResourceExt;
use serde_json::{Value, json};

use crate::case::EventFact;
use crate::machines::addresses;

/// Replaces texts of one run by names, longest first: addresses, node names, UIDs.
#[derive(Debug, Default)]
pub struct Names(BTreeMap<String, String>);

impl Names {
    /// From now on `text` reads as `<name>`.
    pub fn call(&mut self, text: impl std::fmt::Display, name: &str) -> &mut Self {
        self.0.insert(text.to_string(), format!("<{name}>"));
        self
    }

    /// The value with all texts replaced, in keys too.
    pub fn apply(&self, value: Value) -> Value {
        match value {
            Value::String(text) => Value::String(self.text(&text)),
            Value::Array(items) => items.into_iter().map(|item| self.apply(item)).collect(),
            Value::Object(members) => {
                members.into_iter().map(|(key, value)| (self.text(&key), self.apply(value))).collect()
            }
            other => other,
        }
    }

    fn text(&self, text: &str) -> String {
        let mut names: Vec<_> = self.0.iter().collect();
        names.sort_by_key(|(text, _)| std::cmp::Reverse(text.len()));
        names.iter().fold(text.to_owned(), |text, (found, name)| text.replace(found.as_str(), name))
    }
}

/// A Service: metadata that controllers write, and the status.
pub fn service(service: &Service) -> Value {
    let status = service.status.as_ref().and_then(|status| status.load_balancer.as_ref());
    json!({
        "labels": service.labels(),
        "annotations": service.annotations(),
        "finalizers": service.finalizers(),
        "ingress": status.and_then(|balancer| balancer.ingress.clone()).unwrap_or_default(),
    })
}

/// A LoadBalancer; the last eight characters of its name depend on the Service's UID.
pub fn load_balancer(lb: &LoadBalancer) -> Value {
    let name = lb.name_any();
    let mut status = serde_json::to_value(&lb.status).unwrap_or_default();
    for condition in status["conditions"].as_array_mut().into_iter().flatten() {
        condition.as_object_mut().map(|condition| condition.remove("lastUpdateTime"));
    }
    // Ours alone: what proves whose object it is, when it was made, and who put the finalizer there.
    let mut annotations = lb.annotations().clone();
    let proof = [cloudprovider::CLUSTER_UID, cloudprovider::SERVICE_UID, cloudprovider::GUEST_REVISION];
    let is_ours = |key: &str| proof.contains(&key) || key == cloudprovider::PRESET_FINALIZER;
    annotations.retain(|key, _| !is_ours(key));
    json!({
        "name": format!("{}<crc32>", &name[..name.len().saturating_sub(8)]),
        "labels": lb.labels(),
        "annotations": annotations,
        "finalizers": lb.finalizers(),
        "spec": lb.spec,
        "status": status,
    })
}

/// A Node: what the cloud provider writes.
pub fn node(node: &Node) -> Value {
    let taints: Vec<&str> =
        node.spec.iter().flat_map(|spec| spec.taints.iter().flatten()).map(|taint| taint.key.as_str()).collect();
    // Ours alone: the Go provider does not tell the host.
    let mut labels = node.labels().clone();
    labels.remove(cloudprovider::HOST);
    json!({
        "labels": labels,
        "providerID": node.spec.as_ref().and_then(|spec| spec.provider_id.clone()),
        "taints": taints,
        "addresses": addresses(node),
    })
}

/// Events as `type reason: message (component)`.
pub fn events(events: &[EventFact]) -> Value {
    events
        .iter()
        .map(|event| format!("{} {}: {} ({})", event.kind, event.reason, event.message, event.component))
        .collect()
}

/// Panics with both sides as YAML unless they are equal.
pub fn assert_same(what: &str, found: &Value, expected: &Value) {
    if found != expected {
        let yaml = |value: &Value| serde_saphyr::to_string(value).unwrap_or_else(|_| value.to_string());
        panic!("{what} differs.\n--- expected\n{}\n--- found\n{}", yaml(expected), yaml(found));
    }
}
