//! Which nodes have an endpoint of a Service whose traffic must not be sent on to another node
//! (`externalTrafficPolicy: Local`). Pure; `endpoint_watch.rs` of `announcer` feeds it.
//!
//! kube-vip spec 10.1 row 17: kube-vip looks at the last slice that arrived. A Service has as many slices as it needs,
//! and all of them count.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::discovery::v1::{EndpointConditions, EndpointSlice};

use crate::network::Family;
use crate::view::{ServiceKey, ServiceView};

/// The label that says whose slice it is.
const SERVICE_NAME: &str = "kubernetes.io/service-name";

/// Nodes with an endpoint, by Service. A Service with policy Local that is missing here has slices that were not read
/// yet, or may not be read: nothing is known against any node.
pub type Endpoints = BTreeMap<ServiceKey, BTreeSet<String>>;

/// One EndpointSlice: the nodes in it. Made here from the object; a pod that comes or goes beside another one on the
/// same node changes nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SliceView {
    /// Whose it is.
    pub service: ServiceKey,
    /// Of its addresses.
    pub family: Family,
    /// Nodes with an endpoint that takes new connections.
    pub ready: BTreeSet<String>,
    /// Nodes whose endpoints are ending but still serve.
    pub draining: BTreeSet<String>,
}

impl SliceView {
    /// The view of `slice`, or `None` where kube-proxy does not use it for a node either: no Service, or host names for
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

/// What kube-proxy does with an endpoint.
enum Use {
    Ready,
    /// Used as long as there is no ready one.
    Draining,
    None,
}

impl Use {
    /// A condition that is missing counts as the API says: ready, serving as it is ready, not terminating.
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

/// The nodes that can serve a Service with policy Local, from all its slices. Ready endpoints first; where there are
/// none anywhere, those that are ending but still serve, as kube-proxy does. A node has to serve every family that any
/// node serves, because both addresses of a Service are on one node; where no node does, one family is better than
/// none.
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

/// Where the Services of one group may be announced, as far as their endpoints are concerned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EligibleNodes {
    /// These nodes; absent: every node. An empty set means that no node can serve the Services: nothing new is begun,
    /// and an owner keeps what it has, because no other node would do better; clients are told of the address all the
    /// same (decisions.md 33).
    pub only: Option<BTreeSet<String>>,
    /// Services that have no endpoint on some of these nodes, since no node has endpoints of all of them.
    pub left_out: Vec<ServiceKey>,
}

impl EligibleNodes {
    /// Whether `node` is among them.
    pub fn includes(&self, node: &str) -> bool {
        self.only.as_ref().is_none_or(|nodes| nodes.contains(node))
    }
}

/// decisions.md 21: nodes with endpoints of all members with policy Local; where there is no such node, the older
/// member decides. `members` are those of one VIP, oldest first.
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
            // An older one without any endpoint has nothing to lose.
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
    // Nor may it keep others from the address that every node can serve.
    let only = only.filter(|nodes| !(anywhere && nodes.is_empty()));
    EligibleNodes { only, left_out }
}

#[cfg(test)]
mod tests;
