//! Which nodes a group can be reached at, and about which of its addresses they can be asked. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use l2_types::{Link, Mac};

use crate::annotations::Wanted;
use crate::config::Config;
use crate::network::{InterfaceError, Network};
use crate::plan::VipId;
use crate::view::ServiceView;

/// What clients and detectors ask for, as far as it is known.
pub fn addresses(members: &[&ServiceView]) -> Vec<(IpAddr, Option<Mac>)> {
    let mut all: BTreeMap<IpAddr, Option<Mac>> = BTreeMap::new();
    for view in members {
        for wanted in &view.wanted {
            if let Wanted::Static(address) = wanted {
                all.entry(*address).or_default();
            }
        }
        // What is only asked for nobody has yet: its owner must not be found silent for it.
        if let Some(leased) = view.told_leased().map(IpAddr::from) {
            // The Service that leased it knows the MAC.
            let mac = all.entry(leased).or_default();
            *mac = mac.or(view.dhcp.mac);
        }
        // One by DHCPv6 stands on the node's own interface.
        if let Some(leased) = view.told_leased6().map(IpAddr::from) {
            all.entry(leased).or_default();
        }
    }
    all.into_iter().collect()
}

/// What whoever had the group has, by the names that stay: a lease may get another address while nobody sees it.
pub fn vips(members: &[&ServiceView]) -> BTreeSet<VipId> {
    let leased: BTreeSet<IpAddr> = members
        .iter()
        .flat_map(|view| view.told_leased().map(IpAddr::from).into_iter().chain(view.told_leased6().map(IpAddr::from)))
        .collect();
    let mut vips = BTreeSet::new();
    for view in members {
        vips.extend(view.wanted.iter().filter_map(|wanted| match wanted {
            Wanted::Static(address) => (!leased.contains(address)).then_some(VipId::Static(*address)),
            Wanted::Dhcp4 => Some(VipId::Dhcp(view.uid.clone())),
            Wanted::Dhcp6 => Some(VipId::Dhcp6(view.uid.clone())),
        }));
        // On its way out it wants nothing, and who shares its lease goes on with it.
        if view.retired && view.told_leased().is_some() {
            vips.insert(VipId::Dhcp(view.uid.clone()));
        }
    }
    vips
}

/// Whether an IPv6 address is among what a group wants.
pub fn wants_ipv6(members: &[&ServiceView], addresses: &[(IpAddr, Option<Mac>)]) -> bool {
    addresses.iter().any(|(address, _)| address.is_ipv6()) || members.iter().any(|view| view.wants_dhcp6())
}

/// Whether a question about `address` can leave this node: one about IPv6 has a source address of ours. What cannot be
/// asked is not watched, or its owner would be blamed for our silence.
pub fn can_ask(network: &Network, link: u32, address: IpAddr) -> bool {
    address.is_ipv4() || network.ipv6_source(link).is_some()
}

/// How far a node's interface leads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reach {
    /// It has no IPv6 address from which it could be asked whether an owner lives.
    Ipv4Only,
    /// To everybody.
    Both,
}

/// This node's interface for a group.
pub fn link_of(network: &Network, config: &Config, view: &ServiceView, address: Option<IpAddr>) -> Option<u32> {
    let link = chosen(network, config, view, address).ok()?;
    link.is_usable().then_some(link.index)
}

/// The same, whether it can be used or not.
pub fn chosen<'a>(
    network: &'a Network,
    config: &Config,
    view: &ServiceView,
    address: Option<IpAddr>,
) -> Result<&'a Link, InterfaceError> {
    let address = address.filter(|_| !view.wants_dhcp() && !view.wants_dhcp6());
    network.choose(&view.interface, config, address)
}
