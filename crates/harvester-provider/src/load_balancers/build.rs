//! Views for tests.

use std::collections::BTreeSet;

use cloud_provider::view::{
    Family, NodeAddress, NodeAddressKind, NodeView, Protocol, ServiceKey, ServiceView, Tags, Uid,
};
use harvester_api::keys::{cloudprovider, kube_vip, loadbalancer};
use harvester_api::names::ClusterName;

use super::view::{LbView, Ready};
use crate::config::LoadBalancerConfig;

pub fn key(text: &str) -> ServiceKey {
    let (namespace, name) = text.split_once('/').expect("namespace/name");
    ServiceKey { namespace: namespace.into(), name: name.into() }
}

pub fn config() -> LoadBalancerConfig {
    LoadBalancerConfig {
        cluster_name: ClusterName::from_record("demo"),
        management_network: None,
        max_load_balancers: None,
        share_across_namespaces: false,
        cluster_uid: Some("uid-of-cluster".into()),
        cluster_uids: vec!["uid-of-cluster".into()],
        cluster_names: BTreeSet::new(),
        namespace: "guests".into(),
        server: "https://h:6443".into(),
    }
}

/// A Node with these addresses.
pub fn node(name: &str, addresses: &[&str]) -> NodeView {
    let entry = |address: &&str| NodeAddress { kind: NodeAddressKind::InternalIp, address: (*address).to_owned() };
    NodeView {
        name: name.to_owned(),
        uid: Uid(format!("uid-of-{name}")),
        resource_version: "100".into(),
        created: None,
        provider_id: None,
        annotations: Tags::default(),
        labels: Tags::default(),
        taints: Vec::new(),
        unschedulable: false,
        ready: None,
        addresses: addresses.iter().map(entry).collect(),
        system_uuid: None,
        deleting: false,
    }
}

pub struct ServiceBuilder(ServiceView);

/// A Service of type LoadBalancer with the finalizer and port TCP/80.
pub fn service(name: &str) -> ServiceBuilder {
    ServiceBuilder(ServiceView {
        key: key(name),
        uid: Uid(format!("uid-of-{}", name.replace('/', "-"))),
        resource_version: "100".into(),
        is_load_balancer: true,
        has_class: false,
        deleting: false,
        finalizers: vec!["service.kubernetes.io/load-balancer-cleanup".into()],
        annotations: Tags::default(),
        labels: Tags::default(),
        created: None,
        ports: BTreeSet::from([(Protocol::Tcp, 80)]),
        families: Vec::new(),
        requires_both_families: false,
        load_balancer_ip: None,
        cluster_ips: Vec::new(),
        ingress: Vec::new(),
        conditions: cloud_provider::view::Conditions::default(),
    })
}

impl ServiceBuilder {
    /// Annotations by the short names of CCM spec 8.
    pub fn short(mut self, annotations: &[(&str, &str)]) -> Self {
        for (key, value) in annotations {
            let key = match *key {
                "ip" => kube_vip::LOADBALANCER_IPS,
                "if" => kube_vip::SERVICE_INTERFACE,
                "ipam" => cloudprovider::IPAM,
                "net" => cloudprovider::NETWORK,
                "primary" => cloudprovider::PRIMARY_SERVICE,
                "group" => cloudprovider::SHARE_GROUP,
                "project" => cloudprovider::PROJECT,
                "namespace" => cloudprovider::NAMESPACE,
                "ippool" => cloudprovider::IP_POOL,
                "want" => cloudprovider::IP,
                other => panic!("no short name {other}"),
            };
            self.0.annotations.insert(key, value);
        }
        self
    }

    /// Label `primary-service`.
    pub fn label(mut self, value: &str) -> Self {
        self.0.labels.insert(cloudprovider::PRIMARY_SERVICE, value);
        self
    }

    pub fn ports(mut self, ports: &[&str]) -> Self {
        self.0.ports = ports
            .iter()
            .map(|text| {
                let (protocol, port) = text.split_once('/').expect("TCP/80");
                let protocol = match protocol {
                    "TCP" => Protocol::Tcp,
                    "UDP" => Protocol::Udp,
                    "SCTP" => Protocol::Sctp,
                    other => panic!("no protocol {other}"),
                };
                (protocol, port.parse().expect("a port"))
            })
            .collect();
        self
    }

    /// `spec.ipFamilies`.
    pub fn families(mut self, families: &[Family]) -> Self {
        self.0.families = families.to_vec();
        self
    }

    /// `metadata.creationTimestamp`.
    pub fn created(mut self, seconds: i64) -> Self {
        self.0.created = Some(seconds);
        self
    }

    pub fn ingress(mut self, ip: &str) -> Self {
        self.0.ingress = vec![ip.parse().expect("an address")];
        self
    }

    pub fn done(self) -> ServiceView {
        self.0
    }
}

pub struct LbBuilder(LbView);

/// An object of Service `default/web` as we create it, not looked at by the host.
pub fn lb(name: &str) -> LbBuilder {
    let mut view = LbView::from(&super::desired::new_object(
        &config(),
        name,
        &service("default/web").done(),
        &super::choice::Source::Pool(None),
    ));
    view.uid = format!("uid-{name}");
    view.resource_version = "200".into();
    LbBuilder(view)
}

impl LbBuilder {
    /// The network that the host's webhook found.
    pub fn network_of_host(mut self, network: &str) -> Self {
        self.0.annotations.insert(loadbalancer::NETWORK, network);
        self
    }

    pub fn ready(mut self, address: &str) -> Self {
        self.0.ready = Some(Ready { status: true, message: String::new() });
        self.0.usable_address = Some(address.into());
        self.0.has_host_finalizer = true;
        self
    }

    pub fn not_ready(mut self, message: &str) -> Self {
        self.0.ready = Some(Ready { status: false, message: message.into() });
        self
    }

    pub fn done(self) -> LbView {
        self.0
    }
}
