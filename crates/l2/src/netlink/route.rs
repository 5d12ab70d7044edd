//! Finds the interface of the default route.

use std::net::IpAddr;

use netlink_packet_route::{
    AddressFamily, RouteNetlinkMessage,
    route::{RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteType},
};

use super::{Netlink, NetlinkError};

impl Netlink {
    /// The default route: IPv4 before IPv6, the lowest metric first, and of a multipath route the first hop (kube-vip
    /// spec 5.7).
    pub async fn default_route(&self) -> Result<Option<DefaultRoute>, NetlinkError> {
        for family in [AddressFamily::Inet, AddressFamily::Inet6] {
            let mut request = RouteMessage::default();
            request.header.address_family = family;
            let answers = self
                .dump(RouteNetlinkMessage::GetRoute(request))
                .await
                .map_err(|failure| failure.while_trying_to("list the routes"))?;
            let best = best(answers.iter().filter_map(|answer| match answer {
                RouteNetlinkMessage::NewRoute(route) if route.header.address_family == family => default_route(route),
                _ => None,
            }));
            if let Some(route) = best {
                return Ok(Some(route));
            }
        }
        Ok(None)
    }
}

/// The route of packets that no other route matches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DefaultRoute {
    metric: u32,
    /// Index of its interface.
    pub interface: u32,
    /// The router, if there is one.
    pub gateway: Option<IpAddr>,
}

/// The first route with the lowest metric.
fn best(routes: impl Iterator<Item = DefaultRoute>) -> Option<DefaultRoute> {
    routes.min_by_key(|route| route.metric)
}

/// `None` unless the route is a usable default route of the main table.
fn default_route(route: &RouteMessage) -> Option<DefaultRoute> {
    let header = &route.header;
    if header.destination_prefix_length != 0 || header.kind != RouteType::Unicast {
        return None;
    }
    let (mut metric, mut interface, mut first_hop, mut gateway) = (0, None, None, None);
    let router = |address: &RouteAddress| match address {
        RouteAddress::Inet(v4) => Some(IpAddr::V4(*v4)),
        RouteAddress::Inet6(v6) => Some(IpAddr::V6(*v6)),
        _ => None,
    };
    let mut table = u32::from(header.table);
    for attribute in &route.attributes {
        match attribute {
            RouteAttribute::Priority(priority) => metric = *priority,
            RouteAttribute::Oif(index) => interface = Some(*index),
            RouteAttribute::Gateway(address) => gateway = router(address),
            RouteAttribute::MultiPath(hops) => first_hop = hops.first().map(|hop| hop.interface_index),
            RouteAttribute::Table(id) => table = *id,
            _ => {}
        }
    }
    // The routing tables of policy routing (CNIs, VRFs) have their own default routes.
    if table != u32::from(RouteHeader::RT_TABLE_MAIN) {
        return None;
    }
    Some(DefaultRoute { metric, interface: interface.or(first_hop)?, gateway })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_metric_wins_and_among_equals_the_first() {
        let route = |metric, interface| DefaultRoute { metric, interface, gateway: None };
        let routes = [route(200, 2), route(100, 3), route(100, 4)];
        assert_eq!(best(routes.into_iter()), Some(route(100, 3)));
        assert_eq!(best([].into_iter()), None);
    }

    #[test]
    fn a_route_that_drops_leads_nowhere() {
        let mut route = RouteMessage::default();
        route.header.table = RouteHeader::RT_TABLE_MAIN;
        route.header.kind = RouteType::Unicast;
        route.attributes = vec![RouteAttribute::Oif(2), RouteAttribute::Priority(u32::MAX)];
        assert_eq!(default_route(&route), Some(DefaultRoute { metric: u32::MAX, interface: 2, gateway: None }));
        route.header.kind = RouteType::Unreachable;
        assert_eq!(default_route(&route), None);
    }
}
