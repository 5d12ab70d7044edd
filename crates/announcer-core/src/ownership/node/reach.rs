//! Which nodes a group can be reached at, and about which of its addresses they can be asked. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use l2_types::{Link, Mac};

use super::member::{CardLink, link_towards};
use crate::annotations::AddressRequest;
use crate::config::Config;
use crate::network::{InterfaceError, Network, named};
use crate::plan::VipId;
use crate::view::ServiceView;

/// The addresses of a group that clients and the detector ask for, as far as they are known.
pub fn addresses(members: &[&ServiceView]) -> Vec<(IpAddr, Option<Mac>)> {
    let mut all: BTreeMap<IpAddr, Option<Mac>> = BTreeMap::new();
    for view in members {
        for wanted in &view.wanted {
            if let AddressRequest::Static(address) = wanted {
                all.entry(*address).or_default();
            }
        }
        // An address that was only requested is on no node yet, so its owner must not be found silent for it.
        if let Some(leased) = view.told_leased().map(IpAddr::from) {
            // Only the Service that leased the address knows the MAC of the lease.
            let mac = all.entry(leased).or_default();
            *mac = mac.or(view.dhcp.mac);
        }
        // A DHCPv6 address is on the node's own interface and has no MAC of its own.
        if let Some(leased) = view.told_leased6().map(IpAddr::from) {
            all.entry(leased).or_default();
        }
    }
    all.into_iter().collect()
}

/// The VIPs of a group, by names that do not change: a lease may get another address while this node does not see it.
pub fn vips(members: &[&ServiceView]) -> BTreeSet<VipId> {
    let leased: BTreeSet<IpAddr> =
        members.iter().flat_map(|view| view.told_leases()).map(|(address, _)| address).collect();
    let mut vips = BTreeSet::new();
    for view in members {
        vips.extend(view.wanted.iter().filter_map(|wanted| match wanted {
            AddressRequest::Static(address) => (!leased.contains(address)).then_some(VipId::Static(*address)),
            AddressRequest::Dhcp4 => Some(VipId::Dhcp(view.uid.clone())),
            AddressRequest::Dhcp6 => Some(VipId::Dhcp6(view.uid.clone())),
        }));
        // A retired Service wants nothing. The Services that share its lease go on with that lease.
        if view.retired {
            vips.extend(view.told_leases().map(|(_, id)| id));
        }
    }
    vips
}

/// Whether a group wants an IPv6 address.
pub fn wants_ipv6(members: &[&ServiceView], addresses: &[(IpAddr, Option<Mac>)]) -> bool {
    addresses.iter().any(|(address, _)| address.is_ipv6()) || members.iter().any(|view| view.wants_dhcp6())
}

/// Whether this node can send a question about `address`. A question about an IPv6 address needs an IPv6 source address
/// of this node. An address that cannot be asked for is not watched; otherwise its owner would be blamed for our
/// silence.
pub fn can_ask(network: &Network, link: u32, address: IpAddr) -> bool {
    address.is_ipv4() || network.ipv6_source(link).is_some()
}

/// The address families that a node's interface can ask in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reach {
    /// The interface has no IPv6 address from which it could ask whether an owner lives.
    Ipv4Only,
    /// The interface can ask in both families.
    Both,
}

/// The interface of another node for a group, of those on its card, where this node's own is of no use. If this node
/// has one all the same, as without a carrier, theirs is in the same LAN. Otherwise theirs has the name that is wanted.
/// The default route does not stand on a card: a node that lists any interface counts as having one.
pub fn chosen_there<'a>(
    links: &'a [CardLink],
    network: &Network,
    config: &Config,
    view: &ServiceView,
    address: Option<IpAddr>,
) -> Option<&'a CardLink> {
    match (chosen(network, config, view, address), named(&view.interface, config)) {
        (Ok(ours), _) => link_towards(links, network, ours.index),
        (Err(_), Some((_, name))) => links.iter().find(|link| link.name == name),
        (Err(_), None) => links.first(),
    }
}

/// This node's usable interface for a group.
pub fn link_of(network: &Network, config: &Config, view: &ServiceView, address: Option<IpAddr>) -> Option<u32> {
    let link = chosen(network, config, view, address).ok()?;
    link.is_usable().then_some(link.index)
}

/// This node's interface for a group, usable or not.
pub fn chosen<'a>(
    network: &'a Network,
    config: &Config,
    view: &ServiceView,
    address: Option<IpAddr>,
) -> Result<&'a Link, InterfaceError> {
    let address = address.filter(|_| !view.wants_dhcp() && !view.wants_dhcp6());
    network.choose(&view.interface, config, address)
}
