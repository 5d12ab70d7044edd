//! Finds the interface of the default route.

use std::net::IpAddr;

use netlink_packet_route::{
    AddressFamily, RouteNetlinkMessage,
    route::{RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteType},
};

use super::{Netlink, NetlinkError};

impl Netlink {
    /// The default route: IPv4 before IPv6, the lowest metric first, and of a multipath route the first hop (kube-vip
    /// spec 5.7), with the router if all hops have the same one.
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
    let (mut metric, mut interface, mut hops) = (0, None, &[][..]);
    let mut table = u32::from(header.table);
    for attribute in &route.attributes {
        match attribute {
            RouteAttribute::Priority(priority) => metric = *priority,
            RouteAttribute::Oif(index) => interface = Some(*index),
            RouteAttribute::MultiPath(several) => hops = several,
            RouteAttribute::Table(id) => table = *id,
            _ => {}
        }
    }
    // The routing tables of policy routing (CNIs, VRFs) have their own default routes.
    if table != u32::from(RouteHeader::RT_TABLE_MAIN) {
        return None;
    }
    // A multipath route has neither interface nor router of its own: both are its hops'. One of several routers may
    // fail without harm, so none of them tells whether clients reach this node.
    let (interface, gateway) = match (interface, hops) {
        (Some(interface), _) => (interface, router(&route.attributes)),
        (None, [first, others @ ..]) => {
            let gateway = router(&first.attributes);
            let is_the_same = others.iter().all(|hop| router(&hop.attributes) == gateway);
            (first.interface_index, gateway.filter(|_| is_the_same))
        }
        (None, []) => return None,
    };
    Some(DefaultRoute { metric, interface, gateway })
}

/// The router in the attributes of a route or of one of its hops.
fn router(attributes: &[RouteAttribute]) -> Option<IpAddr> {
    attributes.iter().find_map(|attribute| match attribute {
        RouteAttribute::Gateway(RouteAddress::Inet(v4)) => Some(IpAddr::V4(*v4)),
        RouteAttribute::Gateway(RouteAddress::Inet6(v6)) => Some(IpAddr::V6(*v6)),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use netlink_packet_route::route::RouteNextHop;

    use super::*;

    #[test]
    fn the_lowest_metric_wins_and_among_equals_the_first() {
        let route = |metric, interface| DefaultRoute { metric, interface, gateway: None };
        let routes = [route(200, 2), route(100, 3), route(100, 4)];
        assert_eq!(best(routes.into_iter()), Some(route(100, 3)));
        assert_eq!(best([].into_iter()), None);
    }

    /// A default route of the main table.
    fn message(attributes: Vec<RouteAttribute>) -> RouteMessage {
        let mut route = RouteMessage::default();
        route.header.table = RouteHeader::RT_TABLE_MAIN;
        route.header.kind = RouteType::Unicast;
        route.attributes = attributes;
        route
    }

    #[test]
    fn of_a_route_with_several_hops_the_first_one_names_the_interface_and_all_of_them_the_router() {
        let gateway = |last: u8| RouteAttribute::Gateway(RouteAddress::Inet([10, 0, 0, last].into()));
        let hop = |interface: u32, attributes: Vec<RouteAttribute>| {
            let mut hop = RouteNextHop::default();
            (hop.interface_index, hop.attributes) = (interface, attributes);
            hop
        };
        let several = |first: Vec<RouteAttribute>| {
            vec![RouteAttribute::MultiPath(vec![hop(2, first), hop(3, vec![gateway(254)])])]
        };
        let its_own = Some(IpAddr::from([10, 0, 0, 254]));
        for (name, attributes, gateway) in [
            ("one hop", vec![RouteAttribute::Oif(2), gateway(254)], its_own),
            ("several", several(vec![gateway(254)]), its_own),
            ("two routers", several(vec![gateway(253)]), None),
            ("the first one has no router", several(Vec::new()), None),
        ] {
            let expected = Some(DefaultRoute { metric: 0, interface: 2, gateway });
            assert_eq!(default_route(&message(attributes)), expected, "{name}");
        }
        assert_eq!(default_route(&message(vec![RouteAttribute::MultiPath(Vec::new())])), None);
    }

    #[test]
    fn a_route_that_drops_leads_nowhere() {
        let mut route = message(vec![RouteAttribute::Oif(2), RouteAttribute::Priority(u32::MAX)]);
        assert_eq!(default_route(&route), Some(DefaultRoute { metric: u32::MAX, interface: 2, gateway: None }));
        route.header.kind = RouteType::Unreachable;
        assert_eq!(default_route(&route), None);
    }
}
