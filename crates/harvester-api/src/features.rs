//! What a host's own description of its kinds tells of what it can do.

use serde_json::Value;

/// Where the API server describes LoadBalancers, for everybody who may ask it anything.
pub const LOAD_BALANCER_SCHEMA: &str = "/openapi/v3/apis/loadbalancer.harvesterhci.io/v1beta1";

/// Whether the schema of LoadBalancers, in an OpenAPI v3 document, has `spec.ipv6Pool`.
pub fn has_ipv6_pool(document: &Value) -> Option<bool> {
    let schemas = document["components"]["schemas"].as_object()?;
    let specs = schemas.values().map(|schema| &schema["properties"]["spec"]["properties"]);
    // The list and the options of requests have no spec.
    let mut specs = specs.filter(|properties| properties["workloadType"].is_object()).peekable();
    specs.peek()?;
    Some(specs.any(|properties| properties["ipv6Pool"].is_object()))
}
