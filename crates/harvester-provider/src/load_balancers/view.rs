//! The view of a LoadBalancer object on Harvester: the fields that the decisions need. No other part reads the object.

use std::net::IpAddr;

use cloud_provider::view::{ServiceKey, Tags};
use harvester_api::keys::{cloudprovider, loadbalancer};
use harvester_api::load_balancer::{LoadBalancer, NotReady};

/// A LoadBalancer object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LbView {
    /// `metadata.name`.
    pub name: String,
    /// `metadata.uid`.
    pub uid: String,
    /// `metadata.resourceVersion`.
    pub resource_version: String,
    /// `metadata.creationTimestamp`, Unix seconds.
    pub created: Option<i64>,
    /// `metadata.deletionTimestamp` is set: the host is releasing the address.
    pub terminating: bool,
    /// The host's controller has added its finalizer: its own writes are complete, and a deletion will release the
    /// address.
    pub has_host_finalizer: bool,
    /// `metadata.labels`.
    pub labels: Tags,
    /// `metadata.annotations`.
    pub annotations: Tags,
    /// `spec.ipam`.
    pub ipam: Option<String>,
    /// `spec.workloadType`.
    pub workload_type: Option<String>,
    /// `spec.ipPool`, if not empty.
    pub wanted_pool: Option<String>,
    /// `status.allocatedAddress.ipPool`, if not empty.
    pub booked_pool: Option<String>,
    /// `status.allocatedAddress.ip`, if it may be used: the object is Ready, not terminating, and the address is from
    /// the wanted pool.
    pub usable_address: Option<String>,
    /// Condition `Ready`; `None` until the host has processed the object.
    pub ready: Option<Ready>,
    /// `status.address`, if not empty.
    pub address: Option<String>,
    /// `status.allocatedAddress.gateway`, where the range has one.
    pub gateway: Option<IpAddr>,
}

/// Condition `Ready`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ready {
    /// It is `True`.
    pub status: bool,
    /// The host's only explanation.
    pub message: String,
}

impl From<&LoadBalancer> for LbView {
    fn from(lb: &LoadBalancer) -> Self {
        let metadata = &lb.metadata;
        Self {
            name: metadata.name.clone().unwrap_or_default(),
            uid: metadata.uid.clone().unwrap_or_default(),
            resource_version: metadata.resource_version.clone().unwrap_or_default(),
            created: metadata.creation_timestamp.as_ref().map(|time| time.0.as_second()),
            terminating: lb.terminating(),
            has_host_finalizer: lb.has_host_finalizer(),
            labels: metadata.labels.iter().flatten().collect(),
            annotations: metadata.annotations.iter().flatten().collect(),
            ipam: lb.spec.ipam.clone().filter(|ipam| !ipam.is_empty()),
            workload_type: lb.spec.workload_type.clone(),
            wanted_pool: lb.spec.ip_pool.clone().filter(|pool| !pool.is_empty()),
            booked_pool: lb.allocated_pool().map(str::to_owned),
            usable_address: lb.usable_address().map(str::to_owned),
            ready: lb.ready_condition().map(|condition| Ready {
                status: condition.status == "True",
                message: condition.message.clone().unwrap_or_default(),
            }),
            address: lb.address().map(str::to_owned),
            gateway: lb.gateway(),
        }
    }
}

impl LbView {
    /// An annotation, empty where it is missing.
    pub fn annotation(&self, key: &str) -> &str {
        self.annotations.get(key).unwrap_or_default()
    }

    /// `spec.ipam` as the host understands it: absent behaves as `pool`.
    pub fn effective_ipam(&self) -> &str {
        self.ipam.as_deref().unwrap_or("pool")
    }

    /// Whether the host would keep the address booked if the object was deleted as it is: it releases an address only
    /// if `spec.ipam` names the pool.
    pub fn keeps_booking(&self) -> bool {
        self.ipam.is_none() && self.booked_pool.is_some()
    }

    /// Whether the host kept the network that this object was created for; `None` if it was created for none. The
    /// host's webhook changes it during the create request, so the value in the object is final.
    pub fn keeps_network(&self) -> Option<bool> {
        let wanted = self.annotations.get(cloudprovider::LB_NETWORK).filter(|network| !network.is_empty())?;
        Some(self.annotation(loadbalancer::NETWORK) == wanted)
    }

    /// The pool of its address: the named one, else the one that the host chose.
    pub fn pool(&self) -> Option<&str> {
        self.wanted_pool.as_deref().or(self.booked_pool.as_deref())
    }

    /// The Service that the labels name, if they name one.
    pub fn service(&self) -> Option<(&str, &str)> {
        let label = |key| self.labels.get(key).filter(|value| !value.is_empty());
        Some((label(cloudprovider::SERVICE_NAMESPACE)?, label(cloudprovider::SERVICE_NAME)?))
    }

    /// The Service that the labels name, as a key.
    pub fn service_key(&self) -> Option<ServiceKey> {
        let (namespace, name) = self.service()?;
        Some(ServiceKey { namespace: namespace.to_owned(), name: name.to_owned() })
    }

    /// Whether the host has finished with the object for now, so that a write causes no conflict (host pace spec
    /// 1.5). An object that is not Ready for a permanent reason is settled without a finalizer.
    pub fn is_settled(&self) -> bool {
        match &self.ready {
            Some(ready) if ready.status => self.has_host_finalizer,
            Some(ready) => NotReady::classify(&ready.message) != NotReady::Transient,
            None => false,
        }
    }
}
