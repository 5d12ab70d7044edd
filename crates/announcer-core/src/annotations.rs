//! Reads the annotations of a Service (kube-vip spec 2.1).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use contract::is_unicast;
pub use contract::keys::cloudprovider::{DHCP_LEASE, DHCP6_LEASE, PRIMARY_SERVICE, PROBE, TERM};
pub use contract::keys::kube_vip::{
    DDNS, DHCP_BROADCAST, EGRESS, FLUSH_CONNTRACK, FORWARD_UPNP, HWADDR, IGNORE, IGNORE_SERVICE_SECURITY, LEASE_NAME,
    LOADBALANCER_HOSTNAME, LOADBALANCER_IPS, MACVLAN_NAME, REQUESTED_IP, RP_FILTER, SERVICE_INTERFACE, SERVICE_VLAN,
    VIP_HOST,
};
pub use contract::{LeaseFacts, LeaseFacts6};
use l2_types::Mac;

/// The reverse-path filter of a macvlan (`Documentation/networking/ip-sysctl`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RpFilter {
    /// 0.
    Off,
    /// 1: the kernel accepts only packets that it would answer through the same interface. For a VIP on a macvlan it
    /// never would.
    Strict,
    /// 2, our default: answers may leave through another interface.
    #[default]
    Loose,
}

impl RpFilter {
    /// The kernel's value.
    pub fn value(self) -> u32 {
        match self {
            Self::Off => 0,
            Self::Strict => 1,
            Self::Loose => 2,
        }
    }
}

/// An annotation or field that the announcer cannot follow. Its text is shown in the Event.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
#[error(
    "{}{annotation} is {value:?}: {accepted}{meanwhile}",
    if annotation.starts_with("spec.") { "" } else { "annotation " }
)]
pub struct Problem {
    /// Name of the annotation or field.
    pub annotation: &'static str,
    /// Its value.
    pub value: String,
    /// What would be accepted, and what the announcer does meanwhile.
    pub accepted: &'static str,
    /// What the announcer does meanwhile, if that depends on what the Service said before.
    pub meanwhile: Meanwhile,
}

/// What happens to an address until a [`Problem`] is fixed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Meanwhile {
    /// [`Problem::accepted`] says it already.
    #[default]
    Said,
    /// It is not announced, because the value cannot be read.
    NotAnnounced,
    /// What the Service asked for before is still announced.
    Former,
    /// Clients know its leased address, so it is announced with the MAC that it most probably had.
    UsualMac,
}

impl std::fmt::Display for Meanwhile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Said => "",
            Self::NotAnnounced => "; it is not announced until that is corrected",
            Self::UsualMac => {
                "; until that is corrected it has the MAC of its macvlan, or where there is none the usual one"
            }
            Self::Former => "; what the Service asked for before is announced until that is corrected",
        })
    }
}

impl Problem {
    /// Values come from users and are shown in Events and logs, so a long value is cut.
    pub(crate) fn new(annotation: &'static str, value: &str, accepted: &'static str) -> Self {
        Self { annotation, value: cut(value), accepted, meanwhile: Meanwhile::Said }
    }

    /// A problem because of which the announcer does not know what the Service asks for.
    pub(crate) fn unreadable(annotation: &'static str, value: &str, accepted: &'static str) -> Self {
        Self { meanwhile: Meanwhile::NotAnnounced, ..Self::new(annotation, value, accepted) }
    }

    /// The same problem for a Service whose address clients know, if it is about the MAC.
    pub(crate) fn with_usual_mac(self) -> Self {
        if self.annotation == HWADDR { Self { meanwhile: Meanwhile::UsualMac, ..self } } else { self }
    }

    /// The same problem without consequences, if it is about `annotation`, which this Service does not need.
    pub(crate) fn without_effect(self, annotation: &'static str) -> Self {
        if self.annotation == annotation { Self { meanwhile: Meanwhile::Said, ..self } } else { self }
    }
}

/// How many characters of a user's value are quoted.
const QUOTED_LENGTH: usize = 64;

/// The beginning of a user's value, for Events and logs.
pub(crate) fn cut(value: &str) -> String {
    let mut characters = value.chars();
    let mut beginning: String = characters.by_ref().take(QUOTED_LENGTH).collect();
    if characters.next().is_some() {
        beginning.push_str("...");
    }
    beginning
}

/// Makes a text for an Event. Control characters are escaped, because a part may come from users and terminals show it.
/// The text is limited to the 1024 bytes that the API server accepts.
pub(crate) fn printable(text: &str) -> String {
    let escaped: String = text
        .chars()
        .flat_map(|c| {
            let (plain, escaped) = if c.is_control() { (None, Some(c.escape_default())) } else { (Some(c), None) };
            plain.into_iter().chain(escaped.into_iter().flatten())
        })
        .collect();
    match escaped.char_indices().find(|(at, c)| at + c.len_utf8() > 1000) {
        Some((end, _)) => format!("{}...", &escaped[..end]),
        None => escaped,
    }
}

/// One entry of an address list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AddressRequest {
    /// This static address.
    Static(IpAddr),
    /// Any address from a DHCPv4 server.
    Dhcp4,
    /// Any address from a DHCPv6 server.
    Dhcp6,
}

impl std::fmt::Display for AddressRequest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Static(address) => address.fmt(f),
            Self::Dhcp4 => f.write_str("a lease by DHCP"),
            Self::Dhcp6 => f.write_str("a lease by DHCPv6"),
        }
    }
}

/// Maximum of addresses per Service. Each costs every node a plan, an address on an interface and frames, so that one
/// Service with thousands would stop all announcers.
const MAX_ADDRESSES: usize = 16;

/// Reads a list of addresses (kube-vip spec 3.3). IPs are made canonical, and an unspecified address means DHCP. With
/// DHCP there are at most two entries. An entry that cannot be served becomes a [`Problem`] and does not affect the
/// others.
pub(crate) fn parse_addresses(source: &'static str, list: &str) -> (Vec<AddressRequest>, Vec<Problem>) {
    let count = list.split(',').filter(|entry| !entry.trim().is_empty()).count();
    if count > MAX_ADDRESSES {
        let value = format!("{count} addresses");
        let accepted = "accepted are at most 16 addresses";
        return (Vec::new(), vec![Problem::unreadable(source, &value, accepted)]);
    }
    let mut wanted = Vec::new();
    let mut problems = Vec::new();
    let mut dhcp = false;
    let mut entries = 0;
    for entry in list.split(',').map(str::trim).filter(|entry| !entry.is_empty()) {
        entries += 1;
        let Ok(address) = entry.parse::<IpAddr>() else {
            problems.push(Problem::unreadable(
                source,
                entry,
                "accepted are IP addresses separated by commas, 0.0.0.0 for DHCP and :: for DHCPv6; host names are not \
                supported",
            ));
            continue;
        };
        let address = address.to_canonical();
        let entry = if address.is_unspecified() {
            dhcp = true;
            match address {
                IpAddr::V4(_) => AddressRequest::Dhcp4,
                IpAddr::V6(_) => AddressRequest::Dhcp6,
            }
        } else if is_unicast(address) {
            AddressRequest::Static(address)
        } else {
            problems.push(Problem::unreadable(
                source,
                entry,
                "accepted are unicast addresses that other hosts can reach: no loopback, multicast, broadcast or IPv6 \
                link-local ones",
            ));
            continue;
        };
        if !wanted.contains(&entry) {
            wanted.push(entry);
        }
    }
    if dhcp && entries > 2 {
        problems.push(Problem::unreadable(
            source,
            list,
            "accepted are at most two entries where one of them asks for DHCP",
        ));
        wanted.clear();
    }
    (wanted, problems)
}

/// A MAC that an interface can have.
pub(crate) fn parse_mac(text: &str) -> Result<Mac, Problem> {
    let accepted = "accepted is a unicast MAC address such as 00:00:6c:1a:2b:3c, or none";
    text.trim()
        .parse::<Mac>()
        .ok()
        .filter(|mac| mac.is_unicast())
        .ok_or_else(|| Problem::unreadable(HWADDR, text, accepted))
}

/// The problem of a MAC that a machine already has.
pub(crate) fn mac_of_a_node(mac: Mac) -> Problem {
    let accepted = "an interface of a node has this MAC; accepted is a unicast MAC address that nobody on the network \
        has, or none; the address is not announced until it is corrected or removed";
    Problem::new(HWADDR, &mac.to_string(), accepted)
}

/// The IPv4 address of `v4`, `v6` or `v4,v6`.
pub(crate) fn parse_requested(text: &str) -> Result<Option<Ipv4Addr>, Problem> {
    let bad = || {
        Problem::new(
            REQUESTED_IP,
            text,
            "accepted is one IPv4 address, one IPv6 address, or both, that a host can have; the DHCP server is asked \
            for any address",
        )
    };
    let mut found = None;
    let mut entries = 0;
    for entry in text.split(',').map(str::trim).filter(|entry| !entry.is_empty()) {
        entries += 1;
        let address = entry.parse::<IpAddr>().map_err(|_| bad())?.to_canonical();
        if !address.is_unspecified() && !is_unicast(address) {
            return Err(bad());
        }
        match address {
            IpAddr::V4(v4) if found.is_none() => found = Some(v4).filter(|v4| !v4.is_unspecified()),
            IpAddr::V4(_) => return Err(bad()),
            IpAddr::V6(_) => {}
        }
    }
    if entries > 2 { Err(bad()) } else { Ok(found) }
}

/// The IPv6 address of `v4`, `v6` or `v4,v6`. [`parse_requested`] reports errors in the text.
pub(crate) fn parse_requested6(text: &str) -> Option<Ipv6Addr> {
    text.split(',')
        .find_map(|entry| entry.trim().parse::<Ipv6Addr>().ok())
        .filter(|address| is_unicast((*address).into()))
}

/// Annotations that kube-vip follows and the announcer does not, each with an alternative.
const WITHOUT_EFFECT: [(&str, &str); 4] = [
    (EGRESS, "pods do not send from the address: take the egress gateway of the network plugin"),
    (FORWARD_UPNP, "no router is asked to map ports: map them there"),
    (
        DDNS,
        "no address follows from a DNS name: give the DHCP server a host name with kube-vip.io/loadbalancerHostname",
    ),
    (FLUSH_CONNTRACK, "tracked connections stay: run conntrack -D -d <address> on the node where that is wanted"),
];

/// A sentence for the author of the Service about the annotations that are set and have no effect.
pub(crate) fn without_effect<'a>(annotation: &impl Fn(&str) -> Option<&'a str>) -> Option<String> {
    let set = WITHOUT_EFFECT.iter().filter(|(key, _)| annotation(key).is_some_and(|value| value.trim() == "true"));
    let said: Vec<String> = set.map(|(key, instead)| format!("annotation {key} has no effect: {instead}")).collect();
    (!said.is_empty()).then(|| said.join("; "))
}

/// Reads annotation `rp_filter` (kube-vip spec 2.1).
pub(crate) fn parse_rp_filter(text: &str) -> Result<RpFilter, Problem> {
    match text.trim() {
        "0" => Ok(RpFilter::Off),
        "1" => Ok(RpFilter::Strict),
        "2" => Ok(RpFilter::Loose),
        _ => Err(Problem::new(RP_FILTER, text, "accepted are 0 (off), 1 (strict) and 2 (loose); 2 is used")),
    }
}

#[cfg(test)]
mod tests;
