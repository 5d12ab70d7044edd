//! Views with defaults, for tests.

use crate::view::{NodeView, ServiceKey, ServiceView, Tags, Uid};

/// A LoadBalancer Service `namespace/name` with nothing else, version 1.
pub(crate) fn service(key: &str) -> ServiceView {
    let (namespace, name) = key.split_once('/').expect("a test names namespace/name");
    ServiceView {
        key: ServiceKey { namespace: namespace.into(), name: name.into() },
        uid: Uid("u1".into()),
        resource_version: "1".into(),
        is_load_balancer: true,
        has_class: false,
        deleting: false,
        finalizers: Vec::new(),
        annotations: Tags::default(),
        labels: Tags::default(),
        created: None,
        ports: std::collections::BTreeSet::new(),
        families: Vec::new(),
        requires_both_families: false,
        load_balancer_ip: None,
        cluster_ips: Vec::new(),
        ingress: Vec::new(),
        conditions: crate::view::Conditions::default(),
    }
}

/// A Node with nothing but a name, version 1.
pub(crate) fn node(name: &str) -> NodeView {
    NodeView {
        name: name.into(),
        uid: Uid(format!("uid-{name}")),
        resource_version: "1".into(),
        created: Some(1_700_000_000),
        provider_id: None,
        annotations: Tags::default(),
        labels: Tags::default(),
        taints: Vec::new(),
        unschedulable: false,
        ready: Some(crate::view::Ready::True),
        addresses: Vec::new(),
        system_uuid: None,
        deleting: false,
    }
}
