//! The state of the node's network in the kernel, and the choice of the interface for an address. Pure.

mod default_route;
mod macvlans;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv6Addr};
use std::time::{Duration, Instant};

pub(crate) use default_route::DefaultRoute;
use ipnet::IpNet;
use l2_types::{Address, AddressLifetime, Link, LinkKind, Mac};
pub use macvlans::{
    LeaseEnd, alias, has_no_macvlan, hostname_is_taken, is_macvlan_of, lease_end, mac_is_taken, misfit, moment,
    name_is_taken, noted, owner_in, was_left_for,
};
pub(crate) use macvlans::{is_link_name_of_a_service, is_own_macvlan, mac_of};

use crate::annotations::{SERVICE_INTERFACE, cut};
use crate::config::{Config, PrefixRule};
use crate::fence::LEFT_BEHIND;
use crate::interface_wish::InterfaceWish;

/// Interfaces, addresses and the default route at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Network {
    /// All interfaces.
    pub links: Vec<Link>,
    /// All addresses.
    pub addresses: Vec<Address>,
    /// Interface of the default route. While that is being replaced, the last one counts for some seconds more.
    pub default_route: Option<u32>,
    /// Router of the default route.
    pub gateway: Option<IpAddr>,
    /// The ends of DHCP leases, by index of the macvlan, as this node's announcer has noted them there.
    pub lease_ends: BTreeMap<u32, LeaseEnd>,
    /// The ends of DHCPv6 leases, by interface and address, as noted on the addresses.
    pub address_ends: BTreeMap<(u32, IpAddr), Instant>,
}

/// The address family, which decides between ARP and neighbour discovery.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Family {
    /// IPv4, ARP.
    V4,
    /// IPv6, neighbour discovery.
    V6,
}

impl Family {
    /// The family of an address.
    pub fn of(address: IpAddr) -> Self {
        if address.is_ipv4() { Self::V4 } else { Self::V6 }
    }
}

/// Why there is no interface for an address. The text is shown in the Event.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
pub enum InterfaceError {
    /// No such interface.
    #[error(
        "{source_name} names interface {name:?}, which does not exist on this node; there are: {existing}. It is used \
         as soon as it appears"
    )]
    Missing {
        /// Annotation or variable.
        source_name: &'static str,
        /// The interface that it names.
        name: String,
        /// The existing interfaces.
        existing: String,
    },
    /// The interface is set down.
    #[error("{source_name} names interface {name:?}, which is set down; it is used as soon as it is up")]
    Down {
        /// Annotation or variable.
        source_name: &'static str,
        /// The interface that it names.
        name: String,
    },
    /// No other host can reach an address on this interface.
    #[error(
        "{source_name} names interface {name:?}, which no other host can reach: name one that leads to the network"
    )]
    Loopback {
        /// Annotation or variable.
        source_name: &'static str,
        /// The interface that it names.
        name: String,
    },
    /// No interface is named, and there is no default route.
    #[error(
        "no interface is named (annotation kube-vip.io/serviceInterface, vip_servicesinterface, vip_interface) and \
         there is no default route; there are: {existing}"
    )]
    NoDefaultRoute {
        /// The existing interfaces.
        existing: String,
    },
}

impl InterfaceError {
    /// Whether the named interface does not exist on this node or can never carry a VIP.
    pub fn names_nothing(&self) -> bool {
        matches!(self, Self::Missing { .. } | Self::Loopback { .. })
    }
}

/// The name of the requested interface, and the annotation or variable that names it; `None`: none is named.
pub fn named<'a>(wish: &'a InterfaceWish, config: &'a Config) -> Option<(&'static str, &'a str)> {
    let usual = || config.interface.as_deref().map(|name| ("vip_interface", name));
    match (wish, config.services_interface.as_deref()) {
        (InterfaceWish::Named(name), _) => Some((SERVICE_INTERFACE, name)),
        (InterfaceWish::Auto, _) | (InterfaceWish::Default, Some("auto") | None) => usual(),
        (InterfaceWish::Default, Some(name)) => Some(("vip_servicesinterface", name)),
    }
}

impl Network {
    /// The interface with this index.
    pub fn link(&self, index: u32) -> Option<&Link> {
        self.links.iter().find(|link| link.index == index)
    }

    /// The parent of a macvlan.
    pub fn parent_of(&self, index: u32) -> Option<u32> {
        match self.link(index)?.kind {
            LinkKind::Macvlan { parent, .. } => Some(parent),
            _ => None,
        }
    }

    /// The noted end of the lease of one of our addresses.
    pub fn lease_end_of(&self, address: &Address) -> Option<LeaseEnd> {
        let own = self.address_ends.get(&(address.interface, address.net.addr())).copied();
        own.map(LeaseEnd::At).or_else(|| self.lease_ends.get(&address.interface).copied())
    }

    /// The source address for neighbour solicitations on an interface: preferably the link-local one, which the kernel
    /// creates when IPv6 is enabled there.
    pub fn ipv6_source(&self, link: u32) -> Option<Ipv6Addr> {
        let own = self.addresses.iter().filter(|own| own.interface == link && !own.is_ours() && !own.tentative);
        let sources = own.filter(|own| !own.duplicate).filter_map(|own| match own.net.addr() {
            IpAddr::V6(v6) => Some(v6),
            IpAddr::V4(_) => None,
        });
        sources.min_by_key(|v6| !v6.is_unicast_link_local())
    }

    /// The default router, if it is reached through this interface.
    pub fn gateway_on(&self, link: u32) -> Option<IpAddr> {
        self.gateway.filter(|_| self.default_route == Some(link))
    }

    /// Interfaces with an address in a subnet of this interface, including itself. They are very likely in the same
    /// LAN.
    pub fn same_lan(&self, link: u32) -> impl Iterator<Item = u32> + '_ {
        let of_it: Vec<IpNet> = self.subnets(link).collect();
        let real = self.links.iter().filter(|other| !is_own_macvlan(other) && other.name != "lo");
        real.map(|other| other.index).filter(move |other| self.subnets(*other).any(|subnet| of_it.contains(&subnet)))
    }

    /// The subnets of the interface's own addresses.
    fn subnets(&self, link: u32) -> impl Iterator<Item = IpNet> + '_ {
        let own = self.addresses.iter().filter(move |own| own.interface == link && !own.is_ours());
        own.filter(|own| own.net.prefix_len() < own.net.max_prefix_len())
            .filter(|own| !matches!(own.net.addr(), IpAddr::V6(v6) if v6.is_unicast_link_local()))
            .map(|own| own.net.trunc())
    }

    /// The subnet of the interface, if `address` is in none of its subnets. Hosts on that LAN do not ask for the
    /// address by ARP or NDP. `None`: the address is in a subnet, or the interface has none of its family.
    pub fn missed_subnet(&self, link: u32, address: IpAddr) -> Option<IpNet> {
        let mut subnets = self.subnets(link).filter(|subnet| subnet.addr().is_ipv4() == address.is_ipv4());
        let first = subnets.next()?;
        (!first.contains(&address) && !subnets.any(|subnet| subnet.contains(&address))).then_some(first)
    }

    /// The interface with this name.
    pub fn link_by_name(&self, name: &str) -> Option<&Link> {
        self.links.iter().find(|link| link.name == name)
    }

    /// Whether `mac` belongs to an interface of the node itself. Macvlans do not count.
    pub fn has_interface_with(&self, mac: Mac) -> bool {
        self.links.iter().any(|link| link.mac == Some(mac) && !matches!(link.kind, LinkKind::Macvlan { .. }))
    }

    /// The interface whose own subnet contains `address`. The host prefix of a VIP is no subnet.
    fn containing(&self, address: IpAddr) -> Option<(&Link, u8)> {
        self.addresses
            .iter()
            .filter(|own| {
                own.net.prefix_len() < own.net.max_prefix_len()
                    && own.net.prefix_len() > 0
                    && own.net.contains(&address)
            })
            .filter(|own| own.preferred != AddressLifetime::For(Duration::ZERO))
            .filter_map(|own| Some((self.link(own.interface)?, own.net.prefix_len())))
            .filter(|(link, _)| !is_own_macvlan(link))
            .min_by_key(|(link, prefix)| (link.index, u8::MAX - prefix))
    }

    /// Chooses the interface (kube-vip spec 5.7): the annotation, then `vip_servicesinterface`, then `vip_interface`,
    /// then the default route. `auto` means the interface whose subnet contains the address, otherwise `vip_interface`.
    /// `address` is `None` for DHCP, so `auto` cannot match there.
    pub fn choose(
        &self,
        wish: &InterfaceWish,
        config: &Config,
        address: Option<IpAddr>,
    ) -> Result<&Link, InterfaceError> {
        let auto = matches!(
            (wish, config.services_interface.as_deref()),
            (InterfaceWish::Auto, _) | (InterfaceWish::Default, Some("auto"))
        );
        if auto && let Some((link, _)) = address.and_then(|address| self.containing(address)) {
            return Ok(link);
        }
        let Some((source_name, name)) = named(wish, config) else {
            return self
                .default_route
                .and_then(|index| self.link(index))
                .ok_or_else(|| InterfaceError::NoDefaultRoute { existing: self.existing() });
        };
        // The macvlan of a DHCP Service is deleted with that Service and has its MAC.
        let found = self.link_by_name(name).filter(|link| !is_own_macvlan(link));
        let link =
            found.ok_or_else(|| InterfaceError::Missing { source_name, name: cut(name), existing: self.existing() })?;
        if link.name == "lo" {
            return Err(InterfaceError::Loopback { source_name, name: cut(name) });
        }
        if link.up { Ok(link) } else { Err(InterfaceError::Down { source_name, name: cut(name) }) }
    }

    /// `address` with its prefix length on `link` (`vip_subnet`).
    pub fn prefix(&self, config: &Config, link: &Link, address: IpAddr) -> IpNet {
        let rule = if address.is_ipv4() { config.prefix4 } else { config.prefix6 };
        let host = if address.is_ipv4() { 32 } else { 128 };
        let length = match rule {
            PrefixRule::Length(length) => length,
            PrefixRule::Auto => self
                .addresses
                .iter()
                .filter(|own| own.interface == link.index && own.net.prefix_len() < host && own.net.contains(&address))
                .map(|own| own.net.prefix_len())
                .max()
                .unwrap_or(host),
        };
        IpNet::new(address, length.min(host)).expect("the length is at most that of the family")
    }

    /// The interface that has `address` without proof that it is our VIP. Then the address belongs to the node or
    /// another program, and must not be announced or replaced. `except`: addresses that are certainly ours.
    pub fn own_interface(&self, address: IpAddr, except: impl Fn(&Address) -> bool) -> Option<(&Address, &Link)> {
        self.somebodys(except).find(|(own, _)| own.net.addr() == address)
    }

    /// All such addresses.
    fn somebodys(&self, except: impl Fn(&Address) -> bool) -> impl Iterator<Item = (&Address, &Link)> {
        let unmarked = self.addresses.iter().filter(|own| !own.is_ours());
        unmarked
            .filter_map(|own| Some((own, self.link(own.interface)?)))
            // The interface of kube-proxy's IPVS mode carries every published address. On a Service's macvlan other
            // programs have no addresses.
            .filter(|(_, link)| link.name != "kube-ipvs0" && !is_own_macvlan(link))
            .filter(move |(own, _)| !except(own))
    }

    /// Interfaces with an address for which `is_vip` holds. An address on a macvlan counts for the interface beneath.
    pub fn carrying(&self, is_vip: impl Fn(&Address) -> bool) -> BTreeSet<u32> {
        let vips = self.addresses.iter().filter(|address| is_vip(address));
        let on: BTreeSet<u32> = vips.map(|address| address.interface).collect();
        on.into_iter().map(|index| self.parent_of(index).unwrap_or(index)).collect()
    }

    /// Whether an earlier announcer or kube-vip has left `address` here for a Service. It needs the form of a VIP, and
    /// `is_on_record` must say that a record has put it on this node. The form alone is not enough: the VIP of a
    /// control plane and addresses of other daemons have it too. Without marks the prefix does not matter, because
    /// `vip_subnet` may have given it any.
    pub fn is_left_over(&self, address: &Address, is_on_record: impl Fn(IpAddr) -> bool) -> bool {
        let is_formed = self.link(address.interface).is_some_and(|link| looks_like_a_vip(address, link))
            || self.has_lifetimes_of_a_vip(address, LEFT_BEHIND);
        is_formed && (address.is_ours() || is_on_record(address.net.addr()))
    }

    /// Addresses of other programs on this node, by interface, beyond those that `links` name and those that are
    /// certainly ours. Addresses that every node has are left out, and so are the ends of pods' links, which come and
    /// go. Addresses with the form of a VIP come first, because Services ask for such addresses.
    pub fn occupied(
        &self,
        links: &[contract::CardLink<Mac>],
        except: impl Fn(&Address) -> bool,
    ) -> BTreeMap<String, BTreeSet<IpAddr>> {
        let named: BTreeSet<IpAddr> = links.iter().flat_map(|link| link.addresses.iter().map(IpNet::addr)).collect();
        let mut occupied: BTreeMap<String, BTreeSet<IpAddr>> = BTreeMap::new();
        let everywhere = |address: IpAddr| {
            let link_local = match address {
                IpAddr::V4(v4) => v4.is_link_local(),
                IpAddr::V6(v6) => v6.is_unicast_link_local(),
            };
            address.is_loopback() || address.is_unspecified() || link_local
        };
        let is_of_a_pod = |link: &Link| matches!(&link.kind, LinkKind::Virtual(kind) if kind == "veth");
        let others = self.somebodys(except).filter(|(_, link)| !is_of_a_pod(link));
        let others = others.filter(|(own, _)| !named.contains(&own.net.addr()) && !everywhere(own.net.addr()));
        let mut others: Vec<_> =
            others.map(|(own, link)| (!looks_like_a_vip(own, link), own.net.addr(), link.name.as_str())).collect();
        others.sort_unstable();
        for (_, address, link) in others.into_iter().take(MOST_OCCUPIED) {
            occupied.entry(link.to_owned()).or_default().insert(address);
        }
        occupied
    }

    /// Whether the announcer has set `address` on a kernel without address marks (before 5.18). With the prefix of a
    /// subnet, only its short lifetime tells it from an address of the node. A host prefix that is no source address
    /// has the form of a VIP, and may have the longer lifetime that an orderly end leaves.
    pub fn is_ours_without_mark(&self, address: &Address, fence: Duration) -> bool {
        let is_host = address.net.prefix_len() == address.net.max_prefix_len();
        self.has_lifetimes_of_a_vip(address, if is_host { fence.max(LEFT_BEHIND) } else { fence })
    }

    /// Whether the kernel keeps no address marks and `address` has the lifetimes that an announcer gives: it is never
    /// chosen as source, and ends within `longest`. kube-vip and other daemons set addresses without an end.
    pub(crate) fn has_lifetimes_of_a_vip(&self, address: &Address, longest: Duration) -> bool {
        address.preferred == AddressLifetime::For(Duration::ZERO)
            && matches!(address.valid, AddressLifetime::For(left) if left <= longest)
            && self.link(address.interface).is_some_and(may_carry_vips)
            && self.keeps_no_marks()
    }

    /// Whether the kernel is older than 5.18. A newer one marks at least the addresses of `lo`.
    pub(crate) fn keeps_no_marks(&self) -> bool {
        self.addresses.iter().all(|address| address.protocol.is_none())
    }

    /// The names of the interfaces that a user may choose from.
    fn existing(&self) -> String {
        let names: Vec<&str> = self
            .links
            .iter()
            .filter(|link| !is_own_macvlan(link) && link.name != "lo")
            // A node has one interface per pod; users do not choose these.
            .filter(|link| {
                !matches!(&link.kind, LinkKind::Virtual(kind) if kind == "veth")
                    || self
                        .addresses
                        .iter()
                        .any(|address| address.interface == link.index && address.net.addr().is_ipv4())
            })
            .map(|link| link.name.as_str())
            .take(20)
            .collect();
        if names.is_empty() { "none".into() } else { names.join(", ") }
    }
}

/// A card is small.
const MOST_OCCUPIED: usize = 200;

/// Whether an address has the form of a VIP: a host prefix that is never chosen as source address.
pub(crate) fn looks_like_a_vip(address: &Address, link: &Link) -> bool {
    address.is_ours()
        || (address.net.prefix_len() == address.net.max_prefix_len()
            && address.preferred == AddressLifetime::For(Duration::ZERO)
            && may_carry_vips(link))
}

/// The interface of kube-proxy's IPVS mode is left out, because it carries every Service address.
fn may_carry_vips(link: &Link) -> bool {
    link.name != "kube-ipvs0" && link.name != "lo"
}

#[cfg(any(test, feature = "fixtures"))]
pub mod fixtures;
#[cfg(test)]
mod tests;
