//! Which Services have an address, so that it is neither released nor given to another one. Pure.
//!
//! The annotation with the address is the controller's output, but every account that may write a Service may write it,
//! and the label, too. A paused or refused Service keeps what its author wrote. Outside the namespace of the Service
//! that is asked about, both count only beside something that authors cannot write: the status of a Service, the
//! owner's consent, or an object on Harvester.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use cloud_provider::view::{ServiceKey, ServiceView};

use super::super::choice::static_address;
use super::super::view::LbView;
use super::{group_of, may_share, named_primary, shown_addresses, shows_address_of, shows_ip, wears_label_of};

/// Whether a Service shows the address of this object, which is its own or of its own namespace, or is served at it.
pub fn has_address_of(service: &ServiceView, lb: &LbView) -> bool {
    is_served_at(service, lb) || shows_address_of(service, lb)
}

/// Whether a Service has the address of this object of `owner`. Then the address must not be released, whatever the
/// Service requests now. A former secondary keeps its primary's address until it has one of its own. `open`: no consent
/// is needed.
pub fn has_address(service: &ServiceView, owner: &ServiceView, lb: &LbView, open: bool) -> bool {
    is_served_at(service, lb) || shows_address_of(service, lb) && may_share(service, owner, open)
}

/// Whether a Service is served at the address of this object.
pub fn is_served_at(service: &ServiceView, lb: &LbView) -> bool {
    let booked = lb.usable_address.as_deref().and_then(|ip| ip.parse().ok());
    booked.filter(|ip: &IpAddr| !ip.is_unspecified()).is_some_and(|ip| service.ingress.contains(&ip))
}

/// Other Services, not being deleted, that use one of these objects of `owner`.
pub fn users(
    owner: &ServiceView,
    lbs: &[&LbView],
    services: Vec<Arc<ServiceView>>,
    open: bool,
) -> Vec<Arc<ServiceView>> {
    let living = |other: &ServiceView| other.key != owner.key && other.is_load_balancer && !other.deleting;
    let any = |other: &ServiceView| lbs.iter().any(|lb| uses(other, owner, lb, open));
    services.into_iter().filter(|other| living(other) && any(other)).collect()
}

/// Whether another Service has the address of this object of `owner`. Two kinds do not count, because the owner did not
/// give them the address. One uses it as its static address, although the owner has never published it. The other is
/// served at it because an announcer took a request (`spec.loadBalancerIP`) for a grant: it does not show the address,
/// does not have the owner's label, and names neither the owner nor its group.
pub fn uses(other: &ServiceView, owner: &ServiceView, lb: &LbView, open: bool) -> bool {
    if lb.effective_ipam() == "dhcp" {
        return uses_lease(other, owner);
    }
    let found_by_itself = || {
        static_address(other)
            .is_some_and(|address| lb.usable_address.as_deref().is_some_and(|ip| ip.parse() == Ok(address)))
            && !has_address_of(owner, lb)
            && !wears_label_of(other, &owner.key)
    };
    let squats = || {
        let grouped = || group_of(other).is_some_and(|group| group_of(owner) == Some(group));
        !(shows_address_of(other, lb) || goes_with(other, &owner.key) || grouped())
    };
    has_address(other, owner, lb, open) && !found_by_itself() && !squats()
}

/// The same for an object of which Harvester does not know the address, because the announcer has it from a DHCP server
/// or from the owner's annotation: the owner's status shows it.
fn uses_lease(other: &ServiceView, owner: &ServiceView) -> bool {
    goes_with(other, &owner.key) && owner.ingress.iter().any(|address| other.ingress.contains(address))
}

/// Whether a Service names `owner` as the one whose address it shares, or did when it got the address. It goes on to
/// the address of the next Service of that name.
pub fn goes_with(sharer: &ServiceView, owner: &ServiceKey) -> bool {
    wears_label_of(sharer, owner) || matches!(named_primary(sharer), Some(Ok(primary)) if primary == *owner)
}

/// A Service that shares the address of this object with `owner`, which is gone, and its consent with it. `open`: no
/// consent is needed.
pub fn sharer_of_gone(
    owner: &ServiceKey,
    lb: &LbView,
    services: &[Arc<ServiceView>],
    open: bool,
) -> Option<ServiceKey> {
    let living = |other: &ServiceView| other.key != *owner && other.is_load_balancer && !other.deleting;
    let shows = |other: &ServiceView| shows_address_of(other, lb) && (open || other.key.namespace == owner.namespace);
    let shares =
        |other: &ServiceView| living(other) && (is_served_at(other, lb) || shows(other)) && goes_with(other, owner);
    services.iter().find(|other| shares(other)).map(|other| other.key.clone())
}

/// Whether an address that a Service shows or is served at meanwhile belongs to another one. A former secondary may
/// keep its primary's address. `objects`: see [`other_user`].
pub fn is_taken(
    service: &ServiceView,
    services: &[Arc<ServiceView>],
    objects: impl Fn(&ServiceView) -> Vec<Arc<LbView>>,
) -> bool {
    let addresses = service.ingress.iter().copied().chain(shown_addresses(service)).collect();
    other_user(service, &addresses, services, objects).is_some()
}

/// Another Service that has one of these addresses of `service`. The former primary of the Service does not count,
/// unless the Service requests that address as its own static one. `objects` finds the objects on Harvester that are a
/// Service's own.
pub fn other_user(
    service: &ServiceView,
    addresses: &BTreeSet<IpAddr>,
    services: &[Arc<ServiceView>],
    objects: impl Fn(&ServiceView) -> Vec<Arc<LbView>>,
) -> Option<ServiceKey> {
    // A Service that is served at the address yields to none that is not.
    let given = |other: &ServiceView, ip: IpAddr| {
        other.key.namespace == service.key.namespace
            || !service.ingress.contains(&ip) && is_given(other, ip, &objects(other))
    };
    let has = |other: &ServiceView, ip: IpAddr| other.ingress.contains(&ip) || shows_ip(other, ip) && given(other, ip);
    services
        .iter()
        .filter(|other| other.key != service.key && other.is_load_balancer && !other.deleting)
        .filter(|other| !matches!(named_primary(other), Some(Ok(primary)) if primary == service.key))
        .filter(|other| static_address(service).is_some() || !wears_label_of(service, &other.key))
        .filter(|other| group_of(service).is_none_or(|group| group_of(other) != Some(group)))
        .find(|other| addresses.iter().any(|ip| has(other, *ip)))
        .map(|other| other.key.clone())
}

/// Whether the controller has given a Service this address: it is booked for an object of its own, or the Service
/// requests it as its static one and has an object for that. Harvester does not know static addresses.
fn is_given(service: &ServiceView, address: IpAddr, objects: &[Arc<LbView>]) -> bool {
    let booked = |lb: &LbView| lb.usable_address.as_deref().is_some_and(|ip| ip.parse() == Ok(address));
    let is_static = |lb: &LbView| lb.effective_ipam() == "dhcp" && static_address(service) == Some(address);
    objects.iter().any(|lb| booked(lb) || is_static(lb))
}
