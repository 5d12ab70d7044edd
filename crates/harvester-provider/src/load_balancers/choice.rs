//! Reads from a Service's annotations what it requests (decisions 9 and 10). Pure.
//!
//! `kube-vip.io/loadbalancerIPs` is written by the controller and requests nothing, except on a Service that the
//! controller sees for the first time.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use cloud_provider::view::{Family, NodeView, ServiceKey, ServiceView};
use contract::spelling::nearest;
use harvester_api::keys::{cloudprovider, kube_vip};
use harvester_api::load_balancer::Ipam;
use harvester_api::names::is_object_name;

use super::quoted::Quoted;

/// Values of annotation `ipam`.
const MODES: [&str; 3] = ["pool", "dhcp", "static"];

/// Where the address comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// Harvester allocates it, from this IPPool if one is named.
    Pool(Option<String>),
    /// The announcer asks a DHCP server.
    Dhcp,
    /// The user names it.
    Static(IpAddr),
}

impl Source {
    /// `spec.ipam` on Harvester. The schema knows no third value, and for a static address Harvester has to allocate
    /// nothing.
    pub fn ipam(&self) -> Ipam {
        match self {
            Self::Pool(_) => Ipam::Pool,
            Self::Dhcp | Self::Static(_) => Ipam::Dhcp,
        }
    }

    /// The value of the annotation.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Pool(_) => "pool",
            Self::Dhcp => "dhcp",
            Self::Static(_) => "static",
        }
    }

    /// The IPPool that the Service requests by name.
    pub fn pool(&self) -> Option<&str> {
        if let Self::Pool(pool) = self { pool.as_deref() } else { None }
    }
}

/// An annotation with an unusable value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ChoiceError {
    /// The value is none of `pool`, `dhcp` and `static`.
    #[error(
        "annotation {key} has the value {value:?}, accepted are {modes}{meant}",
        key = cloudprovider::IPAM, value = Quoted(.0),
        modes = MODES.join(", "),
        meant = nearest(.0, MODES).map(|mode| format!("; did you mean {mode}?")).unwrap_or_default()
    )]
    UnknownIpam(String),
    /// No address, or one that no Service can have.
    #[error(
        "annotation {key} has the value {value:?}, expected one IPv4 or IPv6 address of the network",
        key = cloudprovider::IP, value = Quoted(.0)
    )]
    NoAddress(String),
    /// An address that kube-proxy would not serve, because the Service does not have its family.
    #[error(
        "annotation {key} has the value {address}, an {found} address, and spec.ipFamilies of the Service is \
         [{families}]: accepted is an address of these families; name one, or change spec.ipFamilies",
        key = cloudprovider::IP, found = Family::from(*address),
        families = families.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
    )]
    WrongFamily {
        /// The address in the annotation.
        address: IpAddr,
        /// The families of the Service.
        families: Vec<Family>,
    },
    /// `static` without an address.
    #[error(
        "annotation {} is static, so annotation {} has to name the address",
        cloudprovider::IPAM,
        cloudprovider::IP
    )]
    AddressMissing,
    /// No name of an object.
    #[error(
        "annotation {key} has the value {value:?}, expected the name of an IPPool on Harvester",
        key = cloudprovider::IP_POOL, value = Quoted(.0)
    )]
    NoPoolName(String),
    /// A pool where no pool is used.
    #[error(
        "annotation {pool} names an IPPool, but annotation {ipam} is {word}: remove one of the two",
        pool = cloudprovider::IP_POOL, ipam = cloudprovider::IPAM
    )]
    PoolNotUsed {
        /// `dhcp` or `static`.
        word: &'static str,
    },
}

/// The source that the Service requests. A missing or empty annotation requests nothing (W-33).
pub fn source(service: &ServiceView) -> Result<Source, ChoiceError> {
    let pool = match text(service, cloudprovider::IP_POOL) {
        Some(name) if !is_object_name(name) => return Err(ChoiceError::NoPoolName(name.to_owned())),
        pool => pool.map(str::to_owned),
    };
    let address = address(service)?;
    let source = match text(service, cloudprovider::IPAM) {
        None | Some("pool") => Source::Pool(pool.clone()),
        Some("dhcp") => Source::Dhcp,
        Some("static") => Source::Static(address.ok_or(ChoiceError::AddressMissing)?),
        Some(other) => return Err(ChoiceError::UnknownIpam(other.to_owned())),
    };
    match (pool, &source) {
        (Some(_), Source::Dhcp | Source::Static(_)) => Err(ChoiceError::PoolNotUsed { word: source.word() }),
        _ => Ok(source),
    }
}

/// The source of the address, and the requested address. A wrong family is no error on a Service that already has an
/// address from a pool or a DHCP lease: that request was never fulfilled, and must not interrupt the Service.
pub fn read(service: &ServiceView) -> Result<(Source, Option<IpAddr>), ChoiceError> {
    let (source, asked) = (source(service)?, address(service)?);
    let families = &service.families;
    let wrong = |address: &IpAddr| !families.is_empty() && !families.contains(&Family::from(*address));
    let binding = matches!(source, Source::Static(_)) || service.ingress.is_empty();
    match asked.filter(wrong) {
        Some(address) if binding => Err(ChoiceError::WrongFamily { address, families: families.clone() }),
        _ => Ok((source, asked)),
    }
}

/// The owner of an address that no Service may request. (An address that belongs to another Service leads to
/// `AddressTaken`.)
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AddressHolder {
    /// The Harvester API: a node that announced this address would cut itself and its pods off from Harvester.
    #[error("that of the Harvester API")]
    Harvester,
    /// A machine.
    #[error("that of node {0}")]
    Node(String),
    /// A router: a node that announced this address would cut off the whole network. With the network on Harvester,
    /// empty if it is not known. Whose load balancer shows that is no matter: the text stays when that one goes.
    #[error("the gateway of {}", if .0.is_empty() { "a network on Harvester".to_owned() } else {
        format!("network {} on Harvester", Quoted(.0))
    })]
    Gateway(String),
    /// The ClusterIP of a Service.
    #[error("the ClusterIP of service {0}")]
    ClusterIp(ServiceKey),
}

/// The owner of this address among the Harvester API at that URL, the Nodes, and the ClusterIPs of Services.
pub fn holder(
    address: IpAddr,
    harvester: &str,
    nodes: &[Arc<NodeView>],
    services: &[Arc<ServiceView>],
) -> Option<AddressHolder> {
    let url = runtime::client::server_url(harvester);
    let host = url.as_ref().and_then(|url| url.host()).map(|host| host.trim_matches(['[', ']']));
    if host.and_then(|host| host.parse::<IpAddr>().ok()).is_some_and(|host| host.to_canonical() == address) {
        return Some(AddressHolder::Harvester);
    }
    let node = nodes.iter().find(|node| node_addresses(node).contains(&address));
    let service = || services.iter().find(|service| service.cluster_ips.contains(&address));
    node.map(|node| AddressHolder::Node(node.name.clone()))
        .or_else(|| service().map(|service| AddressHolder::ClusterIp(service.key.clone())))
}

/// The addresses of a machine, without names.
pub fn node_addresses(node: &NodeView) -> BTreeSet<IpAddr> {
    node.addresses.iter().filter_map(|entry| entry.address.parse::<IpAddr>().ok()).map(|ip| ip.to_canonical()).collect()
}

/// The static address of a Service; `None` for a secondary, which has the address of its primary.
pub fn static_address(service: &ServiceView) -> Option<IpAddr> {
    match source(service) {
        Ok(Source::Static(address)) if service.annotations.get(cloudprovider::PRIMARY_SERVICE).is_none() => {
            Some(address)
        }
        _ => None,
    }
}

/// The requested address.
pub fn address(service: &ServiceView) -> Result<Option<IpAddr>, ChoiceError> {
    let Some(value) = text(service, cloudprovider::IP) else { return Ok(None) };
    one_address(value).map(Some).ok_or_else(|| ChoiceError::NoAddress(value.to_owned()))
}

fn text<'a>(service: &'a ServiceView, key: &str) -> Option<&'a str> {
    service.annotations.get(key).filter(|value| !value.is_empty())
}

/// The address, if a Service can have it. An IPv4-mapped IPv6 address becomes the IPv4 address, as in the announcer.
fn one_address(text: &str) -> Option<IpAddr> {
    text.parse::<IpAddr>().ok().map(|address| address.to_canonical()).filter(|address| can_be_served(*address))
}

/// Whether a Service may have the address. "This network" (RFC 791) and link-local addresses (RFC 3927, RFC 4291) are
/// excluded: clients beyond the link cannot reach them.
fn can_be_served(address: IpAddr) -> bool {
    let special = match address {
        IpAddr::V4(address) => address.is_broadcast() || address.octets()[0] == 0 || address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    };
    !(special || address.is_unspecified() || address.is_loopback() || address.is_multicast())
}

/// The annotations to write when the controller sees a Service for the first time (decision 9). On a Service without an
/// address, `spec.loadBalancerIP`, or an address that another program wrote into the annotation of the granted address,
/// counts as a request. It is copied to the request annotation, because later it could not be told from a value that
/// the controller wrote. The same patch removes it from the annotation of the granted address: on a Service with the
/// finalizer, announcers take that annotation for granted.
pub fn at_first_sight(service: &ServiceView) -> BTreeMap<String, Option<String>> {
    let shown = text(service, kube_vip::LOADBALANCER_IPS);
    let asked = service.load_balancer_ip.as_deref().or(shown).and_then(one_address);
    let asked = asked.filter(|_| text(service, cloudprovider::IP).is_none());
    let request = asked.map(|address| (cloudprovider::IP.to_owned(), Some(address.to_string())));
    let output = shown.filter(|_| service.ingress.is_empty()).map(|_| (kube_vip::LOADBALANCER_IPS.to_owned(), None));
    request.into_iter().chain(output).collect()
}

#[cfg(test)]
mod tests {
    use super::super::build::{node, service};
    use super::*;

    fn asked(annotations: &[(&str, &str)]) -> Result<Source, String> {
        source(&service("default/web").short(annotations).done()).map_err(|error| error.to_string())
    }

    #[test]
    fn an_address_has_one_spelling_and_can_be_reached() {
        let ip = |text: &str| address(&service("default/web").short(&[("want", text)]).done());
        assert_eq!(ip("::ffff:192.0.2.7"), Ok(Some("192.0.2.7".parse().unwrap())));
        for wrong in
            ["0.1.2.3", "169.254.1.1", "fe80::1", "127.0.0.1", "224.0.0.1", "255.255.255.255", "::", "::ffff:127.0.0.1"]
        {
            assert_eq!(ip(wrong), Err(ChoiceError::NoAddress(wrong.to_owned())), "{wrong}");
        }
    }

    #[test]
    fn the_addresses_of_nodes_and_cluster_ips_have_a_holder() {
        let node = node("worker-1", &["192.168.0.11", "fd00::11", "worker-1"]);
        let inside =
            ServiceView { cluster_ips: vec!["10.43.0.1".parse().unwrap()], ..service("default/kubernetes").done() };
        let (nodes, services) = ([Arc::new(node)], [Arc::new(inside)]);
        let found = |ip: &str| {
            let at = |url| holder(ip.parse().unwrap(), url, &nodes, &services).map(|holder| holder.to_string());
            assert_eq!(at("https://harvester.example.com"), at("https://10.99.0.3:6443").filter(|_| ip != "10.99.0.3"));
            at("https://10.99.0.3:6443").or_else(|| at("https://[fd00::3]:6443"))
        };
        assert_eq!(found("10.99.0.3").as_deref(), Some("that of the Harvester API"));
        assert_eq!(found("fd00::3").as_deref(), Some("that of the Harvester API"));
        assert_eq!(found("192.168.0.11").as_deref(), Some("that of node worker-1"));
        assert_eq!(found("fd00::11").as_deref(), Some("that of node worker-1"));
        assert_eq!(found("10.43.0.1").as_deref(), Some("the ClusterIP of service default/kubernetes"));
        assert_eq!(found("192.168.0.12"), None);
    }

    /// W-33.
    #[test]
    fn pool_dhcp_static_and_a_pool_by_name_can_be_asked_for() {
        let ip: IpAddr = "10.0.0.7".parse().unwrap();
        assert_eq!(asked(&[]), Ok(Source::Pool(None)));
        assert_eq!(asked(&[("ipam", ""), ("ippool", ""), ("want", "")]), Ok(Source::Pool(None)));
        assert_eq!(asked(&[("ippool", "edge")]), Ok(Source::Pool(Some("edge".into()))));
        assert_eq!(asked(&[("ipam", "pool"), ("want", "10.0.0.7")]), Ok(Source::Pool(None)));
        assert_eq!(asked(&[("ipam", "dhcp"), ("want", "10.0.0.7")]), Ok(Source::Dhcp));
        assert_eq!(asked(&[("ipam", "static"), ("want", "10.0.0.7")]), Ok(Source::Static(ip)));
        assert_eq!(asked(&[("ipam", "static"), ("want", "fd00::7")]), Ok(Source::Static("fd00::7".parse().unwrap())));
    }

    #[test]
    fn what_cannot_be_followed_names_annotation_value_and_what_is_accepted() {
        for (annotations, parts) in [
            (&[("ipam", "Static")][..], &["/ipam", "\"Static\"", "pool, dhcp, static"][..]),
            (&[("ipam", "static")], &["/ipam is static", "/ip "]),
            (&[("ipam", "static"), ("want", "0.0.0.0")], &["/ip ", "\"0.0.0.0\"", "one IPv4 or IPv6"]),
            (&[("want", "10.0.0.1/24")], &["/ip ", "\"10.0.0.1/24\""]),
            (&[("want", "10.0.0.1,10.0.0.2")], &["/ip ", "one IPv4 or IPv6"]),
            (&[("ippool", "Edge Pool")], &["/ippool", "\"Edge Pool\"", "name of an IPPool"]),
            (&[("ippool", "edge"), ("ipam", "dhcp")], &["/ippool", "/ipam is dhcp"]),
            (&[("ippool", "edge"), ("ipam", "static"), ("want", "10.0.0.7")], &["/ipam is static"]),
        ] {
            let text = asked(annotations).unwrap_err();
            assert!(parts.iter().all(|part| text.contains(part)), "{annotations:?}: {text}");
        }
    }

    #[test]
    fn an_address_of_a_family_that_the_service_does_not_have_is_refused_with_field_value_and_what_is_accepted() {
        use Family::{V4, V6};
        for (ipam, ip, families, served, expected) in [
            (
                "static",
                "fd00::7",
                &[V4][..],
                false,
                Some("fd00::7, an IPv6 address, and spec.ipFamilies of the Service is [IPv4]"),
            ),
            (
                "static",
                "10.0.0.7",
                &[V6],
                false,
                Some("10.0.0.7, an IPv4 address, and spec.ipFamilies of the Service is [IPv6]"),
            ),
            ("static", "10.0.0.7", &[V6], true, Some("/ip has the value 10.0.0.7")),
            ("static", "fd00::7", &[V4, V6], false, None),
            ("static", "fd00::7", &[], false, None),
            ("static", "10.0.0.7", &[V4], false, None),
            ("pool", "fd00::7", &[V4], false, Some("accepted is an address of these families")),
            ("dhcp", "fd00::7", &[V4], false, Some("accepted is an address of these families")),
            ("pool", "fd00::7", &[V4], true, None),
            ("dhcp", "fd00::7", &[V4], true, None),
        ] {
            let web = service("default/web").short(&[("ipam", ipam), ("want", ip)]).families(families);
            let web = if served { web.ingress("10.0.0.1") } else { web }.done();
            let told = read(&web).err().map(|error| error.to_string());
            let fits = told.as_deref().zip(expected).is_some_and(|(told, part)| told.contains(part));
            assert!(fits || told.is_none() && expected.is_none(), "{ipam} {ip} {families:?} {served}: {told:?}");
        }
    }

    /// Decision 9.
    #[test]
    fn a_foreign_request_is_written_down_when_the_service_is_first_seen() {
        let seen = |annotations: &[(&str, &str)], ip: Option<&str>| {
            let mut view = service("default/web").short(annotations).done();
            view.load_balancer_ip = ip.map(str::to_owned);
            at_first_sight(&view).remove(cloudprovider::IP).flatten()
        };
        assert_eq!(seen(&[], None), None);
        assert_eq!(seen(&[], Some("10.0.0.7")).as_deref(), Some("10.0.0.7"));
        assert_eq!(seen(&[("ip", "10.0.0.8")], None).as_deref(), Some("10.0.0.8"));
        assert_eq!(seen(&[("ip", "10.0.0.8")], Some("10.0.0.7")).as_deref(), Some("10.0.0.7"));
        assert_eq!(seen(&[("want", "10.0.0.9")], Some("10.0.0.7")), None, "it stands there already");
        for nothing in ["0.0.0.0", "x", "10.0.0.1,10.0.0.2", ""] {
            assert_eq!(seen(&[("ip", nothing)], None), None, "{nothing}");
        }
    }
}
