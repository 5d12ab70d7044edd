//! Reads from the OpenAPI schema of a host which features it has.

use serde_json::Value;

/// Path of the schema of LoadBalancers, which any authenticated account may read.
pub const LOAD_BALANCER_SCHEMA: &str = "/openapi/v3/apis/loadbalancer.harvesterhci.io/v1beta1";

/// Whether the schema of LoadBalancers, in an OpenAPI v3 document, has `spec.ipv6Pool`.
pub fn has_ipv6_pool(document: &Value) -> Option<bool> {
    let schemas = document["components"]["schemas"].as_object()?;
    let specs = schemas.values().map(|schema| &schema["properties"]["spec"]["properties"]);
    // Schemas of lists and request options have no spec.
    let mut specs = specs.filter(|properties| properties["workloadType"].is_object()).peekable();
    specs.peek()?;
    Some(specs.any(|properties| properties["ipv6Pool"].is_object()))
}
