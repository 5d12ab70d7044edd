//! The nodes with endpoints of Services whose traffic must stay on the node (`externalTrafficPolicy: Local`). Pure;
//! `endpoint_watch.rs` of `announcer` feeds it.
//!
//! All slices of a Service count. kube-vip looks only at the slice that arrived last (kube-vip spec 10.1 row 17).

use std::collections::{BTreeMap, BTreeSet};

use contract::keys::kubernetes::SERVICE_NAME;
use k8s_openapi::api::discovery::v1::{EndpointConditions, EndpointSlice};

use crate::network::Family;
use crate::view::{ServiceKey, ServiceView};

/// Nodes with an endpoint, by Service. If a Service with policy Local is missing here, its slices were not read yet or
/// cannot be read; then no node is excluded.
pub type Endpoints = BTreeMap<ServiceKey, BTreeSet<String>>;

/// Where the endpoints of a Service are, as text: five of these nodes at most.
pub(crate) fn ready_on(nodes: &BTreeSet<String>) -> String {
    let names: Vec<&str> = nodes.iter().map(String::as_str).take(5).collect();
    let more = if nodes.len() > names.len() { " and others" } else { "" };
    format!("ready ones are on {}{more}", names.join(", "))
}

/// The nodes of one EndpointSlice. It is extracted from the object here; a pod that starts or ends beside another one
/// on the same node changes nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SliceView {
    /// The Service of the slice.
    pub service: ServiceKey,
    /// Family of its addresses.
    pub family: Family,
    /// Nodes with an endpoint that takes new connections.
    pub ready: BTreeSet<String>,
    /// Nodes whose endpoints are terminating but still serve.
    pub draining: BTreeSet<String>,
}

impl SliceView {
    /// The view of `slice`, or `None` if kube-proxy does not use it either: it has no Service, or host names instead of
    /// addresses.
    pub fn of(slice: &EndpointSlice) -> Option<Self> {
        let service = slice.metadata.labels.as_ref()?.get(SERVICE_NAME)?;
        let family = match slice.address_type.as_str() {
            "IPv4" => Family::V4,
            "IPv6" => Family::V6,
            _ => return None,
        };
        let (mut ready, mut draining) = (BTreeSet::new(), BTreeSet::new());
        for endpoint in &slice.endpoints {
            let Some(node) = endpoint.node_name.as_ref().filter(|_| !endpoint.addresses.is_empty()) else { continue };
            match Use::of(endpoint.conditions.as_ref()) {
                Use::Ready => ready.insert(node.to_lowercase()),
                Use::Draining => draining.insert(node.to_lowercase()),
                Use::None => false,
            };
        }
        let namespace = slice.metadata.namespace.clone().unwrap_or_default();
        Some(Self { service: ServiceKey::new(namespace, service), family, ready, draining })
    }
}

/// How kube-proxy uses an endpoint.
enum Use {
    Ready,
    /// Used only while there is no ready endpoint.
    Draining,
    None,
}

impl Use {
    /// Missing conditions have the API's defaults: ready, serving as it is ready, not terminating.
    fn of(conditions: Option<&EndpointConditions>) -> Self {
        let ready = conditions.and_then(|all| all.ready).unwrap_or(true);
        let serving = conditions.and_then(|all| all.serving).unwrap_or(ready);
        let terminating = conditions.and_then(|all| all.terminating).unwrap_or(false);
        match (ready, serving && terminating) {
            (true, _) => Self::Ready,
            (false, true) => Self::Draining,
            (false, false) => Self::None,
        }
    }
}

/// The nodes that can serve a Service with policy Local, from all its slices. Nodes with ready endpoints count. If
/// there are none, nodes with terminating endpoints that still serve count, as in kube-proxy. A node has to serve every
/// family that any node serves, because both addresses of a Service are on one node. If no node serves both, one family
/// is enough.
pub fn nodes_with_endpoints(slices: &[&SliceView]) -> BTreeSet<String> {
    let of = |family: Family, pick: fn(&SliceView) -> &BTreeSet<String>| -> BTreeSet<String> {
        slices.iter().filter(|slice| slice.family == family).flat_map(|slice| pick(slice)).cloned().collect()
    };
    let nodes = |family| {
        let ready = of(family, |slice| &slice.ready);
        if ready.is_empty() { of(family, |slice| &slice.draining) } else { ready }
    };
    let (v4, v6) = (nodes(Family::V4), nodes(Family::V6));
    let both: BTreeSet<String> = v4.intersection(&v6).cloned().collect();
    if both.is_empty() { v4.union(&v6).cloned().collect() } else { both }
}

/// The nodes that may announce the Services of one group, as far as endpoints matter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EligibleNodes {
    /// The eligible nodes; `None`: every node. An empty set means that no node can serve the Services. Then no node
    /// starts to announce them, and an owner keeps them, because no other node would be better. Clients are told the
    /// address all the same (decisions.md 33).
    pub only: Option<BTreeSet<String>>,
    /// Services without an endpoint on some of these nodes, because no node has endpoints of all Services.
    pub left_out: Vec<ServiceKey>,
}

impl EligibleNodes {
    /// Whether `node` is eligible.
    pub fn includes(&self, node: &str) -> bool {
        self.only.as_ref().is_none_or(|nodes| nodes.contains(node))
    }
}

/// The nodes with endpoints of all members with policy Local (decisions.md 21). If there is no such node, the more
/// senior member decides. `members` are those of one VIP, the most senior first.
pub fn eligible_nodes<'a>(members: impl IntoIterator<Item = &'a ServiceView>, endpoints: &Endpoints) -> EligibleNodes {
    let (mut only, mut left_out, mut anywhere) = (None::<BTreeSet<String>>, Vec::new(), false);
    for member in members {
        if !member.local_traffic {
            anywhere = true;
            continue;
        }
        let Some(nodes) = endpoints.get(&member.key) else { continue };
        only = Some(match only {
            None => nodes.clone(),
            // The senior members have no endpoint, so the junior member decides.
            Some(chosen) if chosen.is_empty() => nodes.clone(),
            Some(chosen) => {
                let common: BTreeSet<String> = chosen.intersection(nodes).cloned().collect();
                if common.is_empty() {
                    left_out.push(member.key.clone());
                    chosen
                } else {
                    common
                }
            }
        });
    }
    // Members without any endpoint must not keep an address down that another member can serve on every node.
    let only = only.filter(|nodes| !(anywhere && nodes.is_empty()));
    EligibleNodes { only, left_out }
}

#[cfg(test)]
mod tests;
