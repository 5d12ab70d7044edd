//! The default route while it is being replaced: which interface counts. Pure.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use l2_types::{Address, AddressLifetime, Link};

use super::Network;

/// How long the interface of the last default route counts while the kernel has no default route, or another one.
/// Network daemons that apply their configuration are done within a second. A DHCP client that has to ask twice needs
/// about 5 s (RFC 2131 4.1). A node whose route is gone for good has lost its way to clients beyond its LAN, so it must
/// not wait for ever.
const PATIENCE: Duration = Duration::from_secs(10);

/// The default route that counts.
#[derive(Debug, Default)]
pub(crate) struct DefaultRoute {
    /// Its interface and router.
    known: Option<(u32, Option<IpAddr>)>,
    /// Since when readings show no default route, or one through another interface.
    missed: Option<Instant>,
}

impl DefaultRoute {
    /// Takes in a reading. If the last route still counts, it replaces the one in the reading, and the result is the
    /// time from which on it does not.
    pub fn settle(&mut self, now: Instant, network: &mut Network) -> Option<Instant> {
        let other = self.known.filter(|(link, _)| network.default_route != Some(*link));
        if let Some((link, gateway)) = other.filter(|(link, _)| network.leads_to_a_lan(*link)) {
            if self.missed.is_none() {
                tracing::info!(
                    interface = network.link(link).map(|link| link.name.as_str()),
                    "the default route of this node is gone or leads through another interface; the announcer uses the \
                    interface that it had for {} s more, because the route may be about to come back",
                    PATIENCE.as_secs()
                );
            }
            let until = *self.missed.get_or_insert(now) + PATIENCE;
            if now < until {
                (network.default_route, network.gateway) = (Some(link), gateway);
                return Some(until);
            }
        }
        self.missed = None;
        self.known = network.default_route.map(|link| (link, network.gateway));
        None
    }
}

impl Network {
    /// Whether the interface carries frames and has an address of the node, so that hosts can be reached through it.
    fn leads_to_a_lan(&self, link: u32) -> bool {
        let own = |own: &Address| {
            own.interface == link
                && !own.is_ours()
                && own.preferred != AddressLifetime::For(Duration::ZERO)
                && !matches!(own.net.addr(), IpAddr::V6(v6) if v6.is_unicast_link_local())
        };
        self.link(link).is_some_and(Link::is_usable) && self.addresses.iter().any(own)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::fixtures::{address, network, own_address};

    /// A reading with this default route.
    fn reading(default_route: Option<u32>) -> Network {
        let gateway = network().gateway.filter(|_| default_route == Some(2));
        Network { default_route, gateway, ..network() }
    }

    #[test]
    fn the_last_interface_counts_for_ten_seconds_and_with_it_its_router() {
        let start = Instant::now();
        for other in [None, Some(3)] {
            let mut route = DefaultRoute::default();
            let mut read = |seconds, default_route| {
                let mut network = reading(default_route);
                let until = route.settle(start + Duration::from_secs(seconds), &mut network);
                let until = until.map(|until| until.duration_since(start).as_secs());
                (network.default_route, network.gateway.is_some(), until)
            };
            let usual = (Some(2), true, None);
            assert_eq!(read(0, Some(2)), usual);
            assert_eq!(read(1, other), (Some(2), true, Some(11)));
            assert_eq!(read(10, other), (Some(2), true, Some(11)), "it counts from the first such reading");
            assert_eq!(read(11, Some(2)), usual, "it is back");
            assert_eq!(read(20, other), (Some(2), true, Some(30)));
            assert_eq!(read(30, other), (other, false, None));
            assert_eq!(read(31, Some(2)).0, if other.is_none() { Some(2) } else { Some(3) }, "now that one counts");
        }
    }

    #[test]
    fn a_start_without_a_default_route_has_none() {
        let mut network = reading(None);
        assert_eq!(DefaultRoute::default().settle(Instant::now(), &mut network), None);
        assert_eq!(network.default_route, None);
    }

    #[test]
    fn an_interface_through_which_no_host_is_reached_is_given_up_at_once() {
        type Change = fn(&mut Network);
        let changes: [(&str, Change); 6] = [
            ("without a carrier", |network| network.links[1].carrier = false),
            ("set down", |network| network.links[1].up = false),
            ("gone", |network| network.links.retain(|link| link.index != 2)),
            ("without an address", |network| network.addresses.retain(|own| own.interface != 2)),
            ("with addresses of Services alone", |network| {
                network.addresses.retain(|own| own.interface != 2);
                network.addresses.push(own_address(2, "10.0.0.5/32"));
            }),
            ("with a link-local address alone", |network| {
                network.addresses.retain(|own| own.interface != 2);
                network.addresses.push(address(2, "fe80::2/64"));
            }),
        ];
        for (name, change) in changes {
            let (mut route, now) = (DefaultRoute::default(), Instant::now());
            route.settle(now, &mut reading(Some(2)));
            let mut network = reading(None);
            change(&mut network);
            assert_eq!((route.settle(now, &mut network), network.default_route), (None, None), "{name}");
        }
    }
}
