//! Services that share the address of another one (CCM spec 3.2, 3.6). Pure.
//!
//! Which Services share is read from the annotation, as users write it, not from the label that is derived from it
//! later (W-20, W-21).

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use cloud_provider::view::{Protocol, ServiceKey, ServiceView};
use harvester_api::keys::{cloudprovider, kube_vip};
use harvester_api::names;

use super::quoted::Quoted;
use super::view::LbView;

mod users;

pub use users::{
    goes_with, has_address, has_address_of, is_served_at, is_taken, other_user, sharer_of_gone, users, uses,
};

/// Why a Service may not share an address. The texts are the Go provider's, some of them with advice.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ShareError {
    /// The annotation's value is not `namespace/name` (W-23).
    #[error(
        "invalid service name {}: annotation {key} has the value {:?}{}, expected name or namespace/name of another \
         Service; remove the annotation for an address of its own",
        Quoted(value), Quoted(value), if value.matches('/').count() > 1 { ", with too many slashes" } else { "" },
        key = cloudprovider::PRIMARY_SERVICE
    )]
    InvalidName {
        /// The value of the annotation.
        value: String,
    },
    /// There is no such Service.
    #[error(
        "get service {} failed: services {:?} not found. Annotation {key} names it; accepted is name or namespace/name \
         of a Service of type LoadBalancer with an address of its own: make that Service, correct the annotation, or \
         remove it for an address of its own",
        Quoted(value), Quoted(name), key = cloudprovider::PRIMARY_SERVICE
    )]
    NoPrimary {
        /// The value of the annotation.
        value: String,
        /// The name in it.
        name: String,
    },
    /// The Service names itself.
    #[error(
        "service {} is not a primary service. Annotation {key} names the Service itself: accepted is name or \
         namespace/name of another Service, which has an address of its own; remove the annotation for an address of \
         its own",
        Quoted(value), key = cloudprovider::PRIMARY_SERVICE
    )]
    Itself {
        /// The value of the annotation.
        value: String,
    },
    /// The named Service shares another one's address itself.
    #[error(
        "service {} is not a primary service. Annotation {key} names it, and it has no address of its own to share: \
         name the Service whose address it is, or remove the annotation for an address of its own",
        Quoted(value), key = cloudprovider::PRIMARY_SERVICE
    )]
    NotPrimary {
        /// The value of the annotation.
        value: String,
    },
    /// The named Service is in another namespace, and has not consented.
    #[error(
        "service {primary} is in another namespace and does not share its address with namespace {namespace}: annotate \
         it with {key}: {namespace} (namespaces separated by commas, or *), name a Service of the same namespace in \
         annotation {named}, or remove that annotation for an address of its own; --share-across-namespaces needs no \
         consent",
        key = cloudprovider::SHARE_WITH, named = cloudprovider::PRIMARY_SERVICE
    )]
    NoConsent {
        /// Owner of the address.
        primary: ServiceKey,
        /// Namespace of the Service that wants to share.
        namespace: String,
    },
    /// The annotation's value is not a valid name of a group.
    #[error(
        "annotation {key} has the value {:?}, expected a name of lower-case letters, digits and '-', at most 63; \
         remove the annotation for an address of its own",
        Quoted(value), key = cloudprovider::SHARE_GROUP
    )]
    InvalidGroup {
        /// The value of the annotation.
        value: String,
    },
    /// The two annotations contradict each other.
    #[error(
        "annotations {} and {} both say whose address is shared: remove one of the two",
        cloudprovider::SHARE_GROUP,
        cloudprovider::PRIMARY_SERVICE
    )]
    GroupAndPrimary,
    /// A group needs an address of a pool, because only such an address can be handed over to another Service.
    #[error(
        "annotation {group} shares an address of a pool, and annotation {ipam} has the value {:?}, accepted is pool: \
         remove one of the two, or share with annotation {primary}",
        Quoted(value),
        group = cloudprovider::SHARE_GROUP, ipam = cloudprovider::IPAM, primary = cloudprovider::PRIMARY_SERVICE
    )]
    GroupNeedsPool {
        /// The value of the annotation.
        value: String,
    },
    /// Another Service uses the same port of the same protocol.
    #[error(transparent)]
    PortTaken(#[from] Box<PortClash>),
}

/// A port of a shared address that two Services want.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "check port overlap failed, primary service: {primary}, secondary service: {secondary}, error: port {} has been \
     used in service {by}. Both want {}/{}: use another port in one of them, or remove annotation {shares_by} from \
     {secondary} for an address of its own",
    port.1, port.0, port.1
)]
pub struct PortClash {
    /// Owner of the address.
    pub primary: ServiceKey,
    /// The Service that shares it.
    pub secondary: ServiceKey,
    /// The port.
    pub port: (Protocol, u16),
    /// The Service that has it.
    pub by: ServiceKey,
    /// The annotation with which the secondary shares the address.
    pub shares_by: &'static str,
}

/// The annotation by which a Service shares an address that is not its own.
pub fn shares_by(secondary: &ServiceView) -> &'static str {
    if group_of(secondary).is_some() { cloudprovider::SHARE_GROUP } else { cloudprovider::PRIMARY_SERVICE }
}

/// The primary that a Service names; `None` for a Service with an address of its own.
pub fn named_primary(service: &ServiceView) -> Option<Result<ServiceKey, ShareError>> {
    let value = service.annotations.get(cloudprovider::PRIMARY_SERVICE)?;
    Some(match value.split_once('/') {
        Some((namespace, name)) if !namespace.is_empty() && !name.is_empty() && !name.contains('/') => {
            Ok(ServiceKey { namespace: namespace.to_owned(), name: name.to_owned() })
        }
        // A name without a namespace means the Service's own namespace; the Go provider rejects it.
        None if names::is_dns_1123_label(value) => {
            Ok(ServiceKey { namespace: service.key.namespace.clone(), name: value.to_owned() })
        }
        _ => Err(ShareError::InvalidName { value: value.to_owned() }),
    })
}

/// A group: Services of one namespace that name the same group share one address. The member that holds the address is
/// the primary of the others.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Group {
    namespace: String,
    name: String,
}

/// The group that a Service names, whether or not it may join.
pub fn group_of(service: &ServiceView) -> Option<Group> {
    let name = service.annotations.get(cloudprovider::SHARE_GROUP).filter(|name| names::is_dns_1123_label(name))?;
    Some(Group { namespace: service.key.namespace.clone(), name: name.to_owned() })
}

/// The group that a Service requests.
fn asked_group(service: &ServiceView) -> Result<Option<Group>, ShareError> {
    let text = |key| service.annotations.get(key).filter(|value| !value.is_empty()).map(str::to_owned);
    let Some(value) = text(cloudprovider::SHARE_GROUP) else { return Ok(None) };
    let group = group_of(service).ok_or(ShareError::InvalidGroup { value })?;
    if text(cloudprovider::PRIMARY_SERVICE).is_some() {
        return Err(ShareError::GroupAndPrimary);
    }
    match text(cloudprovider::IPAM) {
        Some(value) if value != "pool" => Err(ShareError::GroupNeedsPool { value }),
        _ => Ok(Some(group)),
    }
}

/// Whether a Service is a valid member: not being deleted, and allowed to share or hold the group's address.
pub fn is_member(service: &ServiceView) -> bool {
    service.is_load_balancer && !service.has_class && !service.deleting && matches!(asked_group(service), Ok(Some(_)))
}

/// The Service whose address this one shares: the one that it names, or the `leader` of its group.
pub fn shared_with(
    service: &ServiceView,
    find: impl Fn(&ServiceKey) -> Option<Arc<ServiceView>>,
    leader: impl Fn(&Group) -> Option<Arc<ServiceView>>,
) -> Result<Option<Arc<ServiceView>>, ShareError> {
    if let Some(group) = asked_group(service)? {
        return Ok(leader(&group).filter(|leader| leader.key != service.key));
    }
    let primary = primary_of(service, find)?;
    // A member of a group that shares its leader's address has none of its own to share.
    let leads = |primary: &ServiceView| {
        group_of(primary).and_then(|group| leader(&group)).is_none_or(|leader| leader.key == primary.key)
    };
    match primary {
        Some(primary) if !leads(&primary) => Err(ShareError::NotPrimary { value: primary.key.to_string() }),
        primary => Ok(primary),
    }
}

/// The member that takes over the address which its holder gives up: the oldest one that has it.
pub fn heir<'a>(holder: &ServiceView, users: &[&'a Arc<ServiceView>]) -> Option<&'a Arc<ServiceView>> {
    let group = group_of(holder)?;
    // A Service that names the holder itself shares with no other Service, so it prevents the hand-over.
    let all = users.iter().all(|user| is_member(user) && group_of(user).as_ref() == Some(&group));
    users.iter().copied().filter(|_| all).min_by_key(|user| (user.created, &user.key))
}

/// The primary of a Service (CCM spec 3.2).
pub fn primary_of(
    service: &ServiceView,
    find: impl Fn(&ServiceKey) -> Option<Arc<ServiceView>>,
) -> Result<Option<Arc<ServiceView>>, ShareError> {
    let Some(key) = named_primary(service).transpose()? else { return Ok(None) };
    let value = key.to_string();
    if key == service.key {
        return Err(ShareError::Itself { value });
    }
    let Some(primary) = find(&key) else { return Err(ShareError::NoPrimary { value, name: key.name }) };
    let chained = primary.annotations.get(cloudprovider::PRIMARY_SERVICE).is_some_and(|named| !named.is_empty());
    if chained { Err(ShareError::NotPrimary { value }) } else { Ok(Some(primary)) }
}

/// Services that share with `primary`: they name it, want a load balancer of this controller and are not being deleted
/// (W-21).
pub fn sharers(primary: &ServiceKey, services: impl IntoIterator<Item = Arc<ServiceView>>) -> Vec<Arc<ServiceView>> {
    let names_it = |service: &ServiceView| matches!(named_primary(service), Some(Ok(key)) if key == *primary);
    services
        .into_iter()
        .filter(|service| service.is_load_balancer && !service.has_class && !service.deleting)
        .filter(|service| service.key != *primary && names_it(service))
        .collect()
}

/// Whether `sharer` may have the address of `primary`: within a namespace, with the primary's consent, or if it is
/// already in the status of both, which authors of Services may not write. `open`: no consent is needed, as in the Go
/// provider.
pub fn may_share(sharer: &ServiceView, primary: &ServiceView, open: bool) -> bool {
    let namespace = sharer.key.namespace.as_str();
    let agreed = primary.annotations.get(cloudprovider::SHARE_WITH).unwrap_or_default();
    open || namespace == primary.key.namespace
        || agreed.split(',').map(str::trim).any(|one| one == "*" || one == namespace)
        || primary.ingress.iter().any(|address| sharer.ingress.contains(address))
}

/// Value of the label on a secondary. `None` if the value would be invalid (W-22): then there is no label.
pub fn label_value(primary: &ServiceKey) -> Option<String> {
    let value = format!("{}.{}", primary.namespace, primary.name);
    names::is_label_value(&value).then_some(value)
}

/// Whether a sharer already has its place: it has the label, or shows the primary's address. Other sharers have to
/// check for free ports.
pub fn has_joined(sharer: &ServiceView, primary: &ServiceView) -> bool {
    if wears_label_of(sharer, &primary.key) {
        return true;
    }
    primary.ingress.first().is_some_and(|address| shown_addresses(sharer).contains(address))
}

/// The addresses in a Service's annotation, parsed. A DHCP placeholder is left out, because its address is not known
/// yet.
pub fn shown_addresses(service: &ServiceView) -> Vec<IpAddr> {
    let text = service.annotations.get(kube_vip::LOADBALANCER_IPS).unwrap_or_default();
    text.split(',').filter_map(|ip| ip.trim().parse().ok()).filter(|ip: &IpAddr| !ip.is_unspecified()).collect()
}

/// Whether a Service shows this address. Never true for a DHCP placeholder.
pub fn shows(service: &ServiceView, address: &str) -> bool {
    address.parse().is_ok_and(|address| shown_addresses(service).contains(&address))
}

/// Whether a Service shows the address of this object.
pub fn shows_address_of(service: &ServiceView, lb: &LbView) -> bool {
    lb.usable_address.as_deref().is_some_and(|ip| shows(service, ip))
}

/// Whether a Service shows this address.
pub fn shows_ip(service: &ServiceView, address: IpAddr) -> bool {
    shown_addresses(service).contains(&address)
}

/// Whether the Service's label shows that it shares, or shared, the address of `primary`.
pub fn wears_label_of(service: &ServiceView, primary: &ServiceKey) -> bool {
    let label = service.labels.get(cloudprovider::PRIMARY_SERVICE);
    label.is_some_and(|label| !label.is_empty()) && label == label_value(primary).as_deref()
}

/// One Service at a shared address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Occupant {
    /// The Service.
    pub key: ServiceKey,
    /// Its ports.
    pub ports: BTreeSet<(Protocol, u16)>,
}

impl From<&ServiceView> for Occupant {
    fn from(service: &ServiceView) -> Self {
        Self { key: service.key.clone(), ports: service.ports.clone() }
    }
}

/// The first port of `service` that another Service at the address uses. TCP and UDP do not conflict (W-20).
pub fn first_clash(service: &ServiceView, occupants: &[Occupant]) -> Option<((Protocol, u16), ServiceKey)> {
    let others = || occupants.iter().filter(|occupant| occupant.key != service.key);
    service
        .ports
        .iter()
        .find_map(|port| Some((*port, others().find(|occupant| occupant.ports.contains(port))?.key.clone())))
}

#[cfg(test)]
mod tests;
