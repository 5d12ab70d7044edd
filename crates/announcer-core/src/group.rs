//! Groups of Services that must be on the same node: those that share an address, with all other addresses of each.
//!
//! Pure, and the same on every node: only what is written on the Services counts, not what a DHCP client on this node
//! has just received.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;

use crate::annotations::AddressRequest;
use crate::network::Family;
use crate::seniority::by_seniority;
use crate::view::{ServiceKey, ServiceView, Uid};

/// The key of a group (decisions.md 20): the effective address of its first Service, or that Service's UID while the
/// address is unknown.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum GroupKey {
    /// An address, static or leased.
    Address(IpAddr),
    /// A Service that waits for its lease.
    Service(Uid),
}

impl fmt::Display for GroupKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => write!(f, "{address}"),
            Self::Service(uid) => write!(f, "{uid}"),
        }
    }
}

/// All groups.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Groups {
    /// Members of each group, by seniority. Each Service that wants an address is in exactly one group.
    pub members: BTreeMap<GroupKey, Vec<ServiceKey>>,
    /// The group of each Service.
    pub of: BTreeMap<ServiceKey, GroupKey>,
}

/// Groups the Services (kube-vip spec 3.9 and 10.1 row 1). `0.0.0.0` is no address, so two Services that ask for it are
/// not grouped. A Service that asks for the leased address of another Service is in that Service's group.
pub fn groups(services: &BTreeMap<ServiceKey, ServiceView>) -> Groups {
    let views = by_seniority(services);
    // `place`: index in `sets` for each key. Joined sets become empty, and their keys are pointed to the set that
    // absorbed them.
    let mut sets: Vec<Vec<(usize, &ServiceView)>> = Vec::new();
    let mut place: BTreeMap<GroupKey, usize> = BTreeMap::new();
    for (rank, view) in views.into_iter().enumerate() {
        let keys = keys_of(view, services);
        let Some(known) = keys.iter().filter_map(|key| place.get(key).copied()).min() else {
            if !keys.is_empty() {
                place.extend(keys.into_iter().map(|key| (key, sets.len())));
                sets.push(vec![(rank, view)]);
            }
            continue;
        };
        let joined: BTreeSet<usize> =
            keys.iter().filter_map(|key| place.get(key).copied()).filter(|other| *other != known).collect();
        for other in &joined {
            let moved = std::mem::take(&mut sets[*other]);
            sets[known].extend(moved);
        }
        place.values_mut().filter(|at| joined.contains(at)).for_each(|at| *at = known);
        place.extend(keys.into_iter().map(|key| (key, known)));
        sets[known].push((rank, view));
    }
    let mut groups = Groups::default();
    for mut set in sets {
        set.sort_by_key(|(rank, _)| *rank);
        let Some(key) = set.first().and_then(|(_, first)| keys_of(first, services).into_iter().next()) else {
            continue;
        };
        groups.of.extend(set.iter().map(|(_, view)| (view.key.clone(), key.clone())));
        groups.members.insert(key, set.into_iter().map(|(_, view)| view.key.clone()).collect());
    }
    groups
}

/// The keys that connect `view` with others of its group. The first one becomes the key of the group if `view` comes
/// first.
fn keys_of(view: &ServiceView, services: &BTreeMap<ServiceKey, ServiceView>) -> Vec<GroupKey> {
    let lead = |family| leading_primary(view, services, family);
    let Some(primary) = lead(Family::V4).or_else(|| lead(Family::V6)) else { return own_keys(view) };
    // The primary's lease may have a new address, while the copy on this Service still has the old one.
    let of_its_own = |key: &GroupKey| matches!(key, GroupKey::Address(address) if lead(Family::of(*address)).is_none());
    own_keys(primary).into_iter().chain(own_keys(view).into_iter().filter(of_its_own)).collect()
}

fn own_keys(view: &ServiceView) -> Vec<GroupKey> {
    let service = || GroupKey::Service(view.uid.clone());
    if view.retired {
        let told: Vec<GroupKey> = view.told_leases().map(|(address, _)| GroupKey::Address(address)).collect();
        return if told.is_empty() { vec![service()] } else { told };
    }
    view.wanted
        .iter()
        .map(|wanted| match wanted {
            AddressRequest::Static(address) => GroupKey::Address(*address),
            AddressRequest::Dhcp4 => view.told_leased().map_or_else(service, |v4| GroupKey::Address(v4.into())),
            AddressRequest::Dhcp6 => view.told_leased6().map_or_else(service, |v6| GroupKey::Address(v6.into())),
        })
        .collect()
}

/// The primary of `view`: the Service named by its annotation, if that Service has a lease of this family which `view`
/// uses.
pub fn leading_primary<'a>(
    view: &ServiceView,
    services: &'a BTreeMap<ServiceKey, ServiceView>,
    family: Family,
) -> Option<&'a ServiceView> {
    let primary = services.get(view.primary.as_ref()?)?;
    // The cloud controller refuses chains, and a Service with a lease of its own follows no primary.
    (primary.primary.is_none() && !view.leases(family) && primary.leases(family)).then_some(primary)
}

#[cfg(test)]
mod tests;
