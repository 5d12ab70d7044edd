//! Reads the annotations, the spec and the status of a Service, key by key.

use std::collections::BTreeSet;
use std::net::IpAddr;

use contract::{Term, Uid};
use k8s_openapi::api::core::v1::{Service, ServiceSpec};
use l2_types::check_interface_name;

use super::{DhcpWishes, Ingress, InterfaceWish, Port, Published, ServiceKey, grant};
use crate::annotations::{self as keys, AddressRequest, LeaseFacts, LeaseFacts6, Problem};
use crate::network::is_link_name_of_a_service;

/// The requested addresses (kube-vip spec 3.3). If the annotation exists, it alone counts. Otherwise the status counts,
/// unless `spec.loadBalancerIP` differs from a status address of the same family; this keeps `0.0.0.0` in force after
/// the first lease. Otherwise the spec counts.
pub(super) fn wanted(
    annotation: Option<&str>,
    spec: Option<&str>,
    published: &Published,
) -> (Vec<AddressRequest>, Vec<Problem>) {
    if let Some(list) = annotation {
        return keys::parse_addresses(keys::LOADBALANCER_IPS, list);
    }
    let spec = spec.map(str::trim).filter(|text| !text.is_empty());
    let status: Vec<IpAddr> = published.ingress.iter().filter_map(|ingress| ingress.ip).collect();
    if status.is_empty() {
        return spec.map_or_else(Default::default, |text| keys::parse_addresses(grant::SPEC, text));
    }
    let overriding = spec
        .and_then(|text| text.parse::<IpAddr>().ok())
        .map(|address| address.to_canonical())
        .filter(|address| status.iter().any(|ip| ip.is_ipv4() == address.is_ipv4()) && !status.contains(address));
    let chosen: Vec<String> = match overriding {
        Some(address) => std::iter::once(address)
            .chain(status.into_iter().filter(|ip| ip.is_ipv4() != address.is_ipv4()))
            .map(|ip| ip.to_string())
            .collect(),
        None => status.iter().map(ToString::to_string).collect(),
    };
    keys::parse_addresses(grant::SPEC, &chosen.join(","))
}

pub(super) fn published<'a>(service: &Service, annotation: &impl Fn(&str) -> Option<&'a str>) -> Published {
    let status = service.status.as_ref();
    let ingress = status.and_then(|status| status.load_balancer.as_ref()).and_then(|lb| lb.ingress.as_ref());
    let joined =
        status.and_then(|status| status.conditions.iter().flatten().find(|it| it.type_ == contract::joined::JOINED));
    Published {
        turn: joined.and_then(|joined| contract::joined::parse_turn(&joined.message)).unwrap_or_default(),
        vip_host: annotation(keys::VIP_HOST).map(str::to_owned),
        term: annotation(keys::TERM).and_then(Term::parse),
        hwaddr: annotation(keys::HWADDR).map(str::to_owned),
        requested_ip: annotation(keys::REQUESTED_IP).map(str::to_owned),
        lease: annotation(keys::DHCP_LEASE).and_then(LeaseFacts::parse),
        lease6: annotation(keys::DHCP6_LEASE).and_then(LeaseFacts6::parse),
        ingress: ingress
            .into_iter()
            .flatten()
            .map(|entry| Ingress {
                ip: entry.ip.as_deref().and_then(|ip| ip.parse::<IpAddr>().ok()).map(|ip| ip.to_canonical()),
                ports: entry
                    .ports
                    .iter()
                    .flatten()
                    .map(|port| Port { port: port.port, protocol: port.protocol.clone() })
                    .collect(),
            })
            .collect(),
    }
}

pub(super) fn dhcp_wishes<'a>(
    annotation: &impl Fn(&str) -> Option<&'a str>,
    uid: &Uid,
    published: &Published,
    problems: &mut BTreeSet<Problem>,
) -> DhcpWishes {
    let mut take = |problem: Problem| {
        problems.insert(problem);
    };
    let present = |key: &str| annotation(key).map(str::trim).filter(|text| !text.is_empty());
    DhcpWishes {
        mac: present(keys::HWADDR).and_then(|text| keys::parse_mac(text).map_err(&mut take).ok()),
        requested: present(keys::REQUESTED_IP)
            .and_then(|text| keys::parse_requested(text).map_err(&mut take).ok().flatten()),
        rp_filter: present(keys::RP_FILTER)
            .and_then(|text| keys::parse_rp_filter(text).map_err(&mut take).ok())
            .unwrap_or_default(),
        link_name: present(keys::MACVLAN_NAME).and_then(|text| {
            let of_another = is_link_name_of_a_service(text) && text != uid.link_name();
            if check_interface_name(text).is_ok() && !of_another {
                return Some(text.to_owned());
            }
            take(Problem::new(
                keys::MACVLAN_NAME,
                text,
                "accepted is the name of a network interface (1 to 15 characters; not vip- and 8 hexadecimal digits, \
                which belongs to another Service); the usual name is used",
            ));
            None
        }),
        hostname: present(keys::LOADBALANCER_HOSTNAME).and_then(|text| {
            // Options 12 and 61 hold at most 255 bytes; a DNS name is shorter.
            if text.len() <= 253 {
                return Some(text.to_owned());
            }
            take(Problem::new(
                keys::LOADBALANCER_HOSTNAME,
                text,
                "accepted is a host name of at most 253 bytes; none is sent",
            ));
            None
        }),
        broadcast: annotation(keys::DHCP_BROADCAST) == Some("true"),
        lease: published.lease.clone(),
        requested6: present(keys::REQUESTED_IP).and_then(keys::parse_requested6),
        lease6: published.lease6.clone(),
    }
}

pub(super) fn ports(spec: &ServiceSpec) -> Vec<Port> {
    let ports = spec.ports.iter().flatten();
    ports
        .map(|port| Port { port: port.port, protocol: port.protocol.clone().unwrap_or_else(|| "TCP".into()) })
        .collect()
}

/// The interface that it asks for.
pub(super) fn interface<'a>(
    annotation: &impl Fn(&str) -> Option<&'a str>,
    problems: &mut BTreeSet<Problem>,
) -> InterfaceWish {
    match annotation(keys::SERVICE_INTERFACE).map(str::trim) {
        None | Some("") => InterfaceWish::Default,
        Some("auto") => InterfaceWish::Auto,
        Some(name) => {
            if check_interface_name(name).is_err() || is_link_name_of_a_service(name) {
                problems.insert(Problem::new(
                    keys::SERVICE_INTERFACE,
                    name,
                    "accepted is the name of a network interface (1 to 15 characters; not vip- and 8 hexadecimal \
                    digits, which belongs to a Service) or the word auto; the address is not announced meanwhile",
                ));
            }
            InterfaceWish::Named(name.to_owned())
        }
    }
}

/// Whether it should be probed as a client would.
pub(super) fn probe<'a>(
    annotation: &impl Fn(&str) -> Option<&'a str>,
    problems: &mut BTreeSet<Problem>,
) -> Option<bool> {
    match annotation(keys::PROBE)?.trim() {
        "true" => Some(true),
        "false" => Some(false),
        other => {
            let accepted = "accepted are true and false; what the announcers are told for all Services counts";
            problems.insert(Problem::new(keys::PROBE, other, accepted));
            None
        }
    }
}

/// Problems with annotations that users must not set.
pub(super) fn misplaced<'a>(annotation: &impl Fn(&str) -> Option<&'a str>, read: Option<Term>) -> Vec<Problem> {
    let mut problems = Vec::new();
    if let Some(vlan) = annotation(keys::SERVICE_VLAN) {
        problems.push(Problem::new(
            keys::SERVICE_VLAN,
            vlan,
            "VLAN interfaces are not made here: name an existing one with kube-vip.io/serviceInterface",
        ));
    }
    if let Some(term) = annotation(keys::TERM).filter(|_| read.is_none()) {
        problems.push(Problem::new(
            keys::TERM,
            term,
            "accepted is what the announcer itself has counted; it is taken for missing and written anew",
        ));
    }
    problems
}

/// Handles an invalid `hwaddr`. With another MAC the server would give another address, so a Service without a known
/// address gets none. But a typing error must not take an address from clients that know it; the existing macvlan still
/// has the right MAC.
pub(super) fn without_mac(
    problems: BTreeSet<Problem>,
    dhcp: &DhcpWishes,
    published: &Published,
    wanted: &mut Vec<AddressRequest>,
) -> BTreeSet<Problem> {
    let leased = [dhcp.lease.as_ref().map(|lease| lease.address), dhcp.requested];
    let told = leased.into_iter().flatten().any(|address| published.has(address.into()));
    let wishes = wanted.len();
    wanted.retain(|wanted| *wanted != AddressRequest::Dhcp4 || told);
    if told && wanted.contains(&AddressRequest::Dhcp4) {
        problems.into_iter().map(Problem::with_usual_mac).collect()
    } else if wanted.len() == wishes {
        problems.into_iter().map(|problem| problem.without_effect(keys::HWADDR)).collect()
    } else {
        problems
    }
}

/// The Service whose address it shares; without a namespace it is in the Service's own.
pub(super) fn primary<'a>(annotation: &impl Fn(&str) -> Option<&'a str>, own: Option<&str>) -> Option<ServiceKey> {
    let text = annotation(keys::PRIMARY_SERVICE).map(str::trim).filter(|text| !text.is_empty())?;
    let (namespace, name) = text.split_once('/').unwrap_or((own.unwrap_or_default(), text));
    Some(ServiceKey::new(namespace, name))
}
