//! Checks whether anything answers behind an address that is announced.

use contract::keys::kubernetes::SERVICE_NAME;
use k8s_openapi::api::core::v1::Service;
use kube::ResourceExt;

use super::checks::Check;
use super::events::object;
use super::finding::Finding;
use crate::facts;
use crate::snapshot::Snapshot;

/// Number of endpoints of the Service, and of those that are ready. An endpoint of which nothing is known counts as
/// ready, as for kube-proxy.
fn endpoints(snapshot: &Snapshot, service: &Service) -> (usize, usize) {
    let (namespace, name) = (service.namespace(), service.name_any());
    let ours = snapshot
        .endpoint_slices
        .iter()
        .filter(|slice| slice.metadata.namespace == namespace && facts::label(&slice.metadata, SERVICE_NAME) == name);
    let readiness: Vec<bool> = ours
        .flat_map(|slice| &slice.endpoints)
        .map(|endpoint| endpoint.conditions.as_ref().and_then(|conditions| conditions.ready) != Some(false))
        .collect();
    (readiness.len(), readiness.iter().filter(|ready| **ready).count())
}

/// The finding about a Service of which nothing else is wrong.
pub fn finding(snapshot: &Snapshot, service: &Service) -> Option<Finding> {
    let ours = facts::class(service).is_empty() && service.metadata.deletion_timestamp.is_none();
    if !ours || facts::told(service).is_empty() || !snapshot.has_read("EndpointSlices") {
        return None;
    }
    let (all, ready) = endpoints(snapshot, service);
    if ready > 0 {
        return None;
    }
    let (namespace, name) = (service.namespace().unwrap_or_default(), service.name_any());
    let selector = service.spec.as_ref().and_then(|spec| spec.selector.clone()).unwrap_or_default();
    let labels = selector.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(",");
    let what = match (all, labels.as_str()) {
        (0, "") => "it has no endpoint, and no selector from which one could come".to_owned(),
        (0, labels) => format!("it has no endpoint: no pod with an address has the labels {labels}"),
        (all, _) => format!("it has no ready endpoint: none of {all} is ready"),
    };
    let pods = match labels.as_str() {
        "" => String::new(),
        labels => format!("     # then its pods: kubectl -n {namespace} get pods -l {labels}"),
    };
    Some(
        Finding::warning(Check::NoReadyEndpoint, object(service))
            .what(what)
            .why("its address is announced, and connections to it are refused")
            .remedy(format!("kubectl -n {namespace} get endpointslices -l {SERVICE_NAME}={name}{pods}")),
    )
}
