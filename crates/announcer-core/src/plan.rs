//! Which VIPs this node should have, from Services, ownership, leases and the network. Pure: the same world gives the
//! same plan.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use crate::annotations::Wanted;
use crate::config::Config;
use crate::group::leading_primary;
use crate::network::{InterfaceError, Network};
use crate::ownership::{Owner, Ownership};
use crate::seniority::by_seniority;
pub use crate::vip_id::VipId;

use crate::view::{DhcpWishes, ServiceKey, ServiceView, Uid};

/// One VIP that should be here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlannedVip {
    /// The Services that use it, by seniority. The first that asks for an interface which there is decides where it is.
    pub members: Vec<ServiceKey>,
    /// Whether it may be set up, or only kept. Never [`Owner::Theirs`].
    pub owner: Owner,
    /// Index of the interface that carries it, or its macvlan's parent.
    pub place: Result<u32, InterfaceError>,
    /// For DHCP: what its Service wants of it; absent if that Service is gone and only others still use the address.
    pub dhcp: Option<DhcpWishes>,
}

/// What should be here.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Plan {
    /// VIPs.
    pub vips: BTreeMap<VipId, PlannedVip>,
    /// Which VIPs each Service has here, in the order in which it asks for them.
    pub of_service: BTreeMap<ServiceKey, Vec<VipId>>,
    /// DHCP Services that live on, elsewhere: their lease must not be given back.
    pub elsewhere: BTreeSet<Uid>,
    /// What the authors of Services should know.
    pub told: BTreeSet<(ServiceKey, String)>,
    /// Services of which nothing could be decided yet.
    pub undecided: BTreeSet<ServiceKey>,
}

/// What the plan is made from.
pub struct World<'a> {
    /// All Services that are ours to announce.
    pub services: &'a BTreeMap<ServiceKey, ServiceView>,
    /// Who owns them.
    pub ownership: &'a dyn Ownership,
    /// The node.
    pub network: &'a Network,
    /// The configuration.
    pub config: &'a Config,
    /// VIPs of both versions of DHCP that run here, with the address that they have.
    pub leases: &'a BTreeMap<VipId, Option<IpAddr>>,
}

impl World<'_> {
    /// The address that a VIP has leased here.
    fn leased(&self, id: &VipId) -> Option<IpAddr> {
        self.leases.get(id).copied().flatten()
    }
}

/// The VIPs whose addresses a Service has leased for itself.
fn leased_vips(view: &ServiceView) -> impl Iterator<Item = VipId> {
    let v4 = view.wants_dhcp().then(|| VipId::Dhcp(view.uid.clone()));
    v4.into_iter().chain(view.wants_dhcp6().then(|| VipId::Dhcp6(view.uid.clone())))
}

/// kube-vip spec 3.5 and 3.9.
pub fn plan(world: &World<'_>) -> Plan {
    let mut plan = Plan::default();
    let services: Vec<(&ServiceView, Owner)> =
        by_seniority(world.services).into_iter().map(|view| (view, world.ownership.of(view))).collect();
    let undecided = services.iter().filter(|(_, owner)| *owner == Owner::Undecided);
    plan.undecided = undecided.map(|(view, _)| view.key.clone()).collect();

    // DHCP first: whose leases the static ones may share.
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
    let leased_elsewhere: BTreeSet<IpAddr> = theirs.filter_map(|(view, _)| Some(view.told_leased()?.into())).collect();
    let leased6: BTreeMap<IpAddr, &Uid> = services
        .iter()
        .filter(|(_, owner)| *owner != Owner::Theirs)
        .filter(|(view, _)| view.wants_dhcp6())
        .filter_map(|(view, _)| {
            let running = world.leased(&VipId::Dhcp6(view.uid.clone()));
            Some((running.or(view.told_leased6().map(IpAddr::V6))?, &view.uid))
        })
        .collect();
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
                Wanted::Dhcp4 => VipId::Dhcp(view.uid.clone()),
                Wanted::Dhcp6 => VipId::Dhcp6(view.uid.clone()),
                Wanted::Static(address) if leased6.contains_key(address) => VipId::Dhcp6(leased6[address].clone()),
                Wanted::Static(address) => {
                    // Its own word comes first: the lease may have got another address, and the copy on this Service
                    // not yet. On the node's interface the old one would be used without a lease.
                    let primary = leading_primary(view, world.services).filter(|_| address.is_ipv4());
                    let here = primary.filter(|primary| world.ownership.of(primary) != Owner::Theirs);
                    match here.map(|primary| &primary.uid).or(leased.get(address)) {
                        Some(uid) => VipId::Dhcp(uid.clone()),
                        // The node that has the lease has the address, with its own MAC and only until the lease ends.
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

/// Services on their way out whose lease another node has: their secondaries go on with it there.
fn retired_elsewhere(services: &[(&ServiceView, Owner)]) -> Vec<Uid> {
    let retired = services.iter().filter(|(view, owner)| view.retired && *owner == Owner::Theirs);
    let is_shared = |(view, _): &&(&ServiceView, Owner)| {
        let address = view.told_leased().map(|v4| Wanted::Static(v4.into()));
        address.is_some_and(|address| services.iter().any(|(other, _)| other.wanted.contains(&address)))
    };
    retired.filter(is_shared).map(|(view, _)| view.uid.clone()).collect()
}

/// What authors of Services hear whose interface cannot be used.
fn without_interface(plan: &Plan) -> Vec<(ServiceKey, String)> {
    plan.vips
        .iter()
        .filter_map(|(id, vip)| Some((id, vip, vip.place.as_ref().err()?)))
        // Whoever shares a given address has been told what he names himself.
        .filter(|(id, _, error)| id.is_dhcp() || !error.names_nothing())
        .flat_map(|(_, vip, error)| vip.members.iter().map(|member| (member.clone(), error.to_string())))
        .collect()
}

/// Makes `view` a member of the VIP, which it may be the first to want.
fn join(plan: &mut Plan, world: &World<'_>, view: &ServiceView, owner: Owner, id: &VipId) {
    let address = match id {
        VipId::Static(address) => Some(*address),
        VipId::Dhcp(_) | VipId::Dhcp6(_) => None,
    };
    // A lease whose Service is on its way out stays where and what it was for those that share it.
    let source = match id {
        VipId::Dhcp(uid) if *uid != view.uid => {
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
        // Who names what there is not decides for nobody else (`placed_by` in node mode), and is told what he names
        // himself.
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

/// kube-vip spec 3.9: a secondary of a DHCP primary names the primary's real address; on the node's interface it would
/// be announced with a second MAC. The address counts from the running client, and before that (after a restart, at a
/// take-over) from what clients were told of the Service.
fn leased_addresses(world: &World<'_>, services: &[(&ServiceView, Owner)]) -> BTreeMap<IpAddr, Uid> {
    let remembered = services
        .iter()
        .filter(|(_, owner)| *owner != Owner::Theirs)
        .filter_map(|(view, _)| Some((view.uid.clone(), view.told_leased()?)))
        .filter(|(uid, _)| world.leased(&VipId::Dhcp(uid.clone())).is_none());
    // A client that runs here goes on for its secondaries after its own Service is gone; not after that Service has
    // asked for something else.
    let changed: BTreeSet<&Uid> =
        services.iter().filter(|(view, _)| !view.wants_dhcp() && !view.retired).map(|(view, _)| &view.uid).collect();
    let running = world
        .leases
        .iter()
        .filter_map(|(id, address)| match id {
            VipId::Dhcp(uid) => Some(((*address)?, uid.clone())),
            VipId::Static(_) | VipId::Dhcp6(_) => None,
        })
        .filter(|(_, uid)| !changed.contains(uid));
    let mut leased: BTreeMap<IpAddr, Uid> = remembered.map(|(uid, address)| (address.into(), uid)).collect();
    leased.extend(running);
    leased
}

#[cfg(any(test, feature = "fixtures"))]
pub mod fixtures;
#[cfg(test)]
pub(crate) mod tests;
