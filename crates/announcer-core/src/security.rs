//! Service security (decisions.md 16 and 27): what nftables lets through, from Services and the network. Pure. The same
//! Services give the same rules on every node, whichever node owns them, so that a take-over does not wait for rules.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use l2_types::LinkKind;

use crate::annotations::AddressRequest;
use crate::network::Network;
use crate::view::{ServiceKey, ServiceView, Uid, is_on_record};

/// A port of a Service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Port {
    /// Protocol number of the IP header.
    protocol: u8,
    port: u16,
}

impl Port {
    /// Makes a port from the protocol name of a Service; `None` for another protocol or an invalid number.
    pub fn new(protocol: &str, port: i32) -> Option<Self> {
        let protocol = match protocol {
            "TCP" => 6,
            "UDP" => 17,
            "SCTP" => 132,
            _ => return None,
        };
        Some(Self { protocol, port: u16::try_from(port).ok().filter(|port| *port != 0)? })
    }

    /// Protocol number of the IP header.
    pub fn protocol(self) -> u8 {
        self.protocol
    }

    /// The port number.
    pub fn number(self) -> u16 {
        self.port
    }
}

/// The rules to set.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Protection {
    /// The VIPs, each with the ports that are open.
    pub vips: BTreeMap<IpAddr, BTreeSet<Port>>,
    /// Names of interfaces that ignore router advertisements. They need not exist yet.
    pub quiet: BTreeSet<String>,
}

impl Protection {
    /// Whether there is nothing to protect.
    pub fn is_empty(&self) -> bool {
        self.vips.is_empty() && self.quiet.is_empty()
    }
}

/// The input of the rules.
pub(crate) struct RuleInputs<'a> {
    /// All Services of this announcer.
    pub services: &'a BTreeMap<ServiceKey, ServiceView>,
    /// The node's network.
    pub network: &'a Network,
    /// The addresses that Services have leased on this node, with the Services that use them.
    pub leased: &'a BTreeMap<IpAddr, Vec<ServiceKey>>,
    /// Services with a macvlan on this node.
    pub dhcp: &'a BTreeSet<Uid>,
    /// Name of this node.
    pub node: &'a str,
    /// Longest lifetime of our addresses. On old kernels it tells them from the node's own.
    pub fence: Duration,
    /// Whether traffic to VIPs is filtered at all (`enable_service_security`).
    pub enabled: bool,
}

/// Makes the rules (kube-vip spec 5.9). Traffic to a VIP passes only to the ports of its Services, also after the ports
/// change. If several Services share the VIP, the ports of all are open.
pub(crate) fn protection(context: &RuleInputs<'_>) -> Protection {
    let mut vips: BTreeMap<IpAddr, BTreeSet<Port>> = BTreeMap::new();
    let mut leased: BTreeMap<&ServiceKey, Vec<IpAddr>> = BTreeMap::new();
    for (address, members) in context.leased {
        for member in members {
            leased.entry(member).or_default().push(*address);
        }
    }
    let mut guarded = BTreeSet::new();
    for view in context.services.values().filter(|_| context.enabled) {
        let ports = || view.ports.iter().filter_map(|port| Port::new(&port.protocol, port.port));
        let asked = view.wanted.iter().filter_map(|wanted| match wanted {
            AddressRequest::Static(address) => Some(*address),
            AddressRequest::Dhcp4 | AddressRequest::Dhcp6 => None,
        });
        // The addresses that another node has leased are known from the status. They are protected here before this
        // node takes over.
        let published = view
            .published
            .ingress
            .iter()
            .filter(|_| view.wants_dhcp() || view.wants_dhcp6())
            .filter_map(|entry| entry.ip);
        let here = leased.get(&view.key).into_iter().flatten().copied();
        for address in asked.chain(published).chain(here) {
            vips.entry(address).or_default().extend(ports());
            if !view.unguarded {
                guarded.insert(address);
            }
        }
    }
    // An address is left unfiltered only if all its Services opt out of the protection.
    vips.retain(|address, _| guarded.contains(address));
    // A user who may write Services must not be able to block the node's own addresses.
    let own: BTreeSet<IpAddr> = context.network.addresses.iter().map(|address| address.net.addr()).collect();
    vips.retain(|address, _| {
        !address.is_unspecified()
            && !address.is_loopback()
            && (!own.contains(address)
                || context
                    .network
                    .own_interface(*address, |found| {
                        let on_record = |address| is_on_record(context.services, context.node, address);
                        context.network.is_left_over(found, on_record)
                            || context.network.is_ours_without_mark(found, context.fence)
                    })
                    .is_none())
    });
    // An existing interface that only has a name from an annotation must not be cut off from its router.
    let others = context.network.links.iter().filter(|link| !matches!(link.kind, LinkKind::Macvlan { .. }));
    let others: BTreeSet<&str> = others.map(|link| link.name.as_str()).collect();
    let macvlan = |name: &String| !others.contains(name.as_str());
    let quiet = context.services.values().filter(|view| context.dhcp.contains(&view.uid));
    let quiet = quiet.map(|view| view.dhcp.link_name.clone().unwrap_or_else(|| view.uid.link_name())).filter(macvlan);
    Protection { vips, quiet: quiet.collect() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::fixtures::network;
    use crate::plan::tests::view as service;

    fn ports(ports: &[(&str, i32)]) -> BTreeSet<Port> {
        ports.iter().map(|(protocol, port)| Port::new(protocol, *port).unwrap()).collect()
    }

    fn view(mut view: ServiceView, ports: &[(&str, i32)]) -> (ServiceKey, ServiceView) {
        view.ports = ports
            .iter()
            .map(|(protocol, port)| crate::view::Port { port: *port, protocol: (*protocol).to_owned() })
            .collect();
        (view.key.clone(), view)
    }

    fn rules(
        services: &[(ServiceKey, ServiceView)],
        leased: &[(IpAddr, ServiceKey)],
        dhcp: &[Uid],
        enabled: bool,
    ) -> Protection {
        protection(&RuleInputs {
            services: &services.iter().cloned().collect(),
            network: &network(),
            leased: &leased.iter().map(|(vip, key)| (*vip, vec![key.clone()])).collect(),
            dhcp: &dhcp.iter().cloned().collect(),
            node: "node-1",
            fence: Duration::from_secs(5),
            enabled,
        })
    }

    fn of(services: &[(ServiceKey, ServiceView)]) -> Protection {
        rules(services, &[], &[], true)
    }

    #[test]
    fn what_is_no_port_is_none() {
        for (protocol, port) in [("TCP", 0), ("TCP", 65536), ("TCP", -1), ("ICMP", 8), ("tcp", 80)] {
            assert_eq!(Port::new(protocol, port), None, "{protocol}/{port}");
        }
        assert!(Port::new("SCTP", 65535).is_some());
    }

    #[test]
    fn services_that_share_a_vip_share_its_ports_and_others_do_not() {
        let services = [
            view(service("web", &["10.0.0.50"]), &[("TCP", 80), ("TCP", 443)]),
            view(service("dns", &["10.0.0.50", "fd00::50"]), &[("UDP", 53)]),
            view(service("other", &["10.0.0.51"]), &[("SCTP", 9)]),
        ];
        let expected = BTreeMap::from([
            ("10.0.0.50".parse().unwrap(), ports(&[("TCP", 80), ("TCP", 443), ("UDP", 53)])),
            ("fd00::50".parse().unwrap(), ports(&[("UDP", 53)])),
            ("10.0.0.51".parse().unwrap(), ports(&[("SCTP", 9)])),
        ]);
        assert_eq!(of(&services).vips, expected);
        assert!(rules(&services, &[], &[], false).is_empty());
    }

    #[test]
    fn an_address_is_left_open_where_all_its_services_ask_for_that() {
        let (key, mut web) = view(service("web", &["10.0.0.50"]), &[("TCP", 80)]);
        web.unguarded = true;
        let dns = view(service("dns", &["10.0.0.50"]), &[("UDP", 53)]);
        assert!(of(&[(key.clone(), web.clone())]).is_empty());
        let both = BTreeMap::from([("10.0.0.50".parse().unwrap(), ports(&[("TCP", 80), ("UDP", 53)]))]);
        assert_eq!(of(&[(key, web), dns]).vips, both);
    }

    #[test]
    fn an_address_of_the_node_itself_is_never_locked() {
        let own = network().addresses[0].net.addr().to_string();
        assert!(of(&[view(service("evil", &[&own, "127.0.0.1"]), &[("TCP", 80)])]).is_empty());
    }

    #[test]
    fn a_leased_address_is_protected_on_the_node_that_has_it_and_by_its_status_on_the_others() {
        let (key, mut one) = view(service("web", &["dhcp"]), &[("TCP", 80)]);
        let vip: IpAddr = "10.0.0.77".parse().unwrap();
        let expected = BTreeMap::from([(vip, ports(&[("TCP", 80)]))]);
        let services = [(key.clone(), one.clone())];
        assert_eq!(rules(&services, &[(vip, key.clone())], &[], true).vips, expected);
        assert!(of(&services).is_empty());
        one.published.ingress = vec![crate::view::Ingress { ip: Some(vip), ports: Vec::new() }];
        assert_eq!(of(&[(key, one)]).vips, expected);
    }

    #[test]
    fn only_macvlans_of_ours_are_cut_off_from_routers_whatever_they_are_called() {
        let (key, mut one) = view(service("web", &["dhcp"]), &[("TCP", 80)]);
        let of =
            |one: &ServiceView| rules(&[(key.clone(), one.clone())], &[], std::slice::from_ref(&one.uid), false).quiet;
        assert_eq!(of(&one), [one.uid.link_name()].into());
        one.dhcp.link_name = Some("mine".into());
        assert_eq!(of(&one), ["mine".to_owned()].into());
        one.dhcp.link_name = Some(network().links[0].name.clone());
        assert_eq!(of(&one), [].into());
    }
}
