//! Computes which VIPs this node should have, from Services, ownership, leases and the network. Pure: the same input
//! gives the same plan.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use crate::annotations::AddressRequest;
use crate::config::Config;
use crate::group::leading_primary;
use crate::network::{Family, InterfaceError, Network};
use crate::ownership::{Owner, Ownership};
use crate::seniority::by_seniority;
pub use crate::vip_id::VipId;

use crate::view::{DhcpWishes, ServiceKey, ServiceView, Uid};

/// One VIP that this node should have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlannedVip {
    /// The Services that use it, by seniority. The first whose interface exists decides where the VIP is.
    pub members: Vec<ServiceKey>,
    /// Whether this node may set it up or only keep it. Never [`Owner::Theirs`].
    pub owner: Owner,
    /// Index of the interface that carries it, or of the parent of its macvlan.
    pub place: Result<u32, InterfaceError>,
    /// For DHCP: the settings of its Service. `None` if that Service is gone and only others still use the address.
    pub dhcp: Option<DhcpWishes>,
}

/// The result: what this node should have.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Plan {
    /// The VIPs.
    pub vips: BTreeMap<VipId, PlannedVip>,
    /// The VIPs that each Service has here, in the order in which it asks for them.
    pub of_service: BTreeMap<ServiceKey, Vec<VipId>>,
    /// DHCP Services whose lease goes on at another node, so this node must not release it.
    pub elsewhere: BTreeSet<Uid>,
    /// Messages for authors of Services.
    pub told: BTreeSet<(ServiceKey, String)>,
    /// Services whose owner is not known yet.
    pub undecided: BTreeSet<ServiceKey>,
}

/// The input of the plan.
pub struct World<'a> {
    /// All Services that this announcer's class rules accept.
    pub services: &'a BTreeMap<ServiceKey, ServiceView>,
    /// The owners of the Services.
    pub ownership: &'a dyn Ownership,
    /// Interfaces and addresses of this node.
    pub network: &'a Network,
    /// The configuration.
    pub config: &'a Config,
    /// The VIPs whose DHCPv4 or DHCPv6 client runs here, with the leased address.
    pub leases: &'a BTreeMap<VipId, Option<IpAddr>>,
}

impl World<'_> {
    /// The address that this node has leased for a VIP.
    fn leased(&self, id: &VipId) -> Option<IpAddr> {
        self.leases.get(id).copied().flatten()
    }
}

/// The VIPs that a Service leases for itself.
fn leased_vips(view: &ServiceView) -> impl Iterator<Item = VipId> {
    let v4 = view.wants_dhcp().then(|| VipId::Dhcp(view.uid.clone()));
    v4.into_iter().chain(view.wants_dhcp6().then(|| VipId::Dhcp6(view.uid.clone())))
}

/// Makes the plan (kube-vip spec 3.5 and 3.9).
pub fn plan(world: &World<'_>) -> Plan {
    let mut plan = Plan::default();
    let services: Vec<(&ServiceView, Owner)> =
        by_seniority(world.services).into_iter().map(|view| (view, world.ownership.of(view))).collect();
    let undecided = services.iter().filter(|(_, owner)| *owner == Owner::Undecided);
    plan.undecided = undecided.map(|(view, _)| view.key.clone()).collect();

    // DHCP comes first, because static VIPs may share a lease.
    for (view, owner) in &services {
        for id in leased_vips(view) {
            if *owner == Owner::Theirs {
                plan.elsewhere.insert(view.uid.clone());
                continue;
            }
            let place = world.network.choose(&view.interface, world.config, None).map(|link| link.index);
            let (members, dhcp) = (vec![view.key.clone()], Some(view.dhcp.clone()));
            plan.vips.insert(id, PlannedVip { members, owner: *owner, place, dhcp });
        }
    }
    let leased = leased_addresses(world, &services);
    let theirs = services.iter().filter(|(_, owner)| *owner == Owner::Theirs);
    let leased_elsewhere: BTreeSet<IpAddr> =
        theirs.flat_map(|(view, _)| view.told_leases()).map(|(address, _)| address).collect();
    plan.elsewhere.extend(retired_elsewhere(&services));

    for (view, owner) in &services {
        if *owner == Owner::Theirs {
            continue;
        }
        for problem in &view.problems {
            plan.told.insert((view.key.clone(), problem.to_string()));
        }
        let mut ids = Vec::new();
        for wanted in &view.wanted {
            let id = match wanted {
                AddressRequest::Dhcp4 => VipId::Dhcp(view.uid.clone()),
                AddressRequest::Dhcp6 => VipId::Dhcp6(view.uid.clone()),
                AddressRequest::Static(address) => {
                    // The Service's own reference to a primary comes first: the lease may have a new address, while the
                    // copy on this Service still has the old one. As a static VIP the old address would be used without
                    // a lease.
                    let family = Family::of(*address);
                    let primary = leading_primary(view, world.services, family);
                    let here = primary.filter(|primary| world.ownership.of(primary) != Owner::Theirs);
                    let its_lease = here.map(|primary| VipId::of_lease(family, primary.uid.clone()));
                    match its_lease.or_else(|| leased.get(address).cloned()) {
                        Some(id) => id,
                        // The node that holds the lease has the address, with DHCPv4 with the MAC of its macvlan, and
                        // only as long as the lease lasts.
                        None if primary.is_some() || leased_elsewhere.contains(address) => continue,
                        None => VipId::Static(*address),
                    }
                }
            };
            join(&mut plan, world, view, *owner, &id);
            if !ids.contains(&id) {
                ids.push(id);
            }
        }
        if !ids.is_empty() {
            plan.of_service.insert(view.key.clone(), ids);
        }
    }
    let faults = without_interface(&plan);
    plan.told.extend(faults);
    plan
}

/// Retired Services whose lease another node holds. The Services that share it use it there.
fn retired_elsewhere(services: &[(&ServiceView, Owner)]) -> Vec<Uid> {
    let retired = services.iter().filter(|(view, owner)| view.retired && *owner == Owner::Theirs);
    let is_shared = |(view, _): &&(&ServiceView, Owner)| {
        let mut told = view.told_leases().map(|(address, _)| AddressRequest::Static(address));
        told.any(|address| services.iter().any(|(other, _)| other.wanted.contains(&address)))
    };
    retired.filter(is_shared).map(|(view, _)| view.uid.clone()).collect()
}

/// Messages for authors whose interface cannot be used.
fn without_interface(plan: &Plan) -> Vec<(ServiceKey, String)> {
    plan.vips
        .iter()
        .filter_map(|(id, vip)| Some((id, vip, vip.place.as_ref().err()?)))
        // Members of a static VIP were already told about the interface that each of them names.
        .filter(|(id, _, error)| id.is_dhcp() || !error.names_nothing())
        .flat_map(|(_, vip, error)| vip.members.iter().map(|member| (member.clone(), error.to_string())))
        .collect()
}

/// Adds `view` to the members of a VIP, and creates the VIP if needed.
fn join(plan: &mut Plan, world: &World<'_>, view: &ServiceView, owner: Owner, id: &VipId) {
    let address = match id {
        VipId::Static(address) => Some(*address),
        VipId::Dhcp(_) | VipId::Dhcp6(_) => None,
    };
    // The lease of a retired Service keeps its place and settings for the Services that share it.
    let source = match id {
        VipId::Dhcp(uid) | VipId::Dhcp6(uid) if *uid != view.uid => {
            world.services.values().find(|view| view.uid == *uid && view.retired).unwrap_or(view)
        }
        VipId::Static(_) | VipId::Dhcp(_) | VipId::Dhcp6(_) => view,
    };
    let vip = plan.vips.entry(id.clone()).or_insert_with(|| PlannedVip {
        members: Vec::new(),
        owner,
        place: world.network.choose(&source.interface, world.config, address).map(|link| link.index),
        dhcp: source.retired.then(|| source.dhcp.clone()),
    });
    if vip.members.contains(&view.key) {
        return;
    }
    if let VipId::Static(address) = id {
        let wish = world.network.choose(&view.interface, world.config, Some(*address)).map(|link| link.index);
        // A Service that names an interface which does not exist here does not decide for the others (`placed_by` in
        // `node` mode). It is told about its own interface.
        match (&vip.place, &wish) {
            (Err(error), Err(own)) if error.names_nothing() && own.names_nothing() => {
                plan.told.insert((view.key.clone(), own.to_string()));
            }
            (Err(error), wish) if error.names_nothing() => vip.place.clone_from(wish),
            _ => {}
        }
        if let (Ok(place), Some(first), true) = (&vip.place, vip.members.first(), wish != vip.place) {
            let name = world.network.link(*place).map_or("another interface", |link| link.name.as_str());
            plan.told.insert((
                view.key.clone(),
                format!(
                    "address {address} is shared with {first}, which has it on {name}: the interface that this \
                    Service asks for is not used"
                ),
            ));
        }
    }
    vip.members.push(view.key.clone());
}

/// Addresses of leases, by the VIPs that have them (kube-vip spec 3.9). A secondary of a DHCP primary names the
/// primary's real address. As a static VIP it would be used without a lease, with DHCPv4 with a second MAC. The address
/// of a running client counts first. Without one (after a restart, at a take-over) the address counts that clients were
/// told.
fn leased_addresses(world: &World<'_>, services: &[(&ServiceView, Owner)]) -> BTreeMap<IpAddr, VipId> {
    let remembered = services
        .iter()
        .filter(|(_, owner)| *owner != Owner::Theirs)
        .flat_map(|(view, _)| view.told_leases())
        .filter(|(_, id)| world.leased(id).is_none());
    // A running client goes on for the secondaries after its own Service is gone, but not after that Service has asked
    // for something else.
    let present: BTreeMap<&Uid, &ServiceView> = services.iter().map(|(view, _)| (&view.uid, *view)).collect();
    let goes_on = |id: &VipId| match id {
        VipId::Dhcp(uid) => present.get(uid).is_none_or(|view| view.wants_dhcp() || view.retired),
        VipId::Dhcp6(uid) => present.get(uid).is_none_or(|view| view.wants_dhcp6() || view.retired),
        VipId::Static(_) => false,
    };
    let running = world.leases.iter().filter_map(|(id, address)| Some(((*address)?, id.clone())));
    let mut leased: BTreeMap<IpAddr, VipId> = remembered.collect();
    leased.extend(running.filter(|(_, id)| goes_on(id)));
    leased
}

#[cfg(any(test, feature = "fixtures"))]
pub mod fixtures;
#[cfg(test)]
pub(crate) mod tests;
