//! The annotations that announcer and users exchange on a Service, and how their values are read. kube-vip spec 2.1.
//! Those that the cloud provider writes stand in the keys of `harvester-api` too; a test of `crates/cli` compares them.

use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use jiff::Timestamp;
use l2_types::Mac;
use serde::{Deserialize, Serialize};

/// Comma-separated addresses; `0.0.0.0` or `::` asks for DHCP.
pub const LOADBALANCER_IPS: &str = "kube-vip.io/loadbalancerIPs";
/// MAC of the macvlan.
pub const HWADDR: &str = "kube-vip.io/hwaddr";
/// The last address that DHCP gave.
pub const REQUESTED_IP: &str = "kube-vip.io/requestedIP";
/// The node that announces.
pub const VIP_HOST: &str = "kube-vip.io/vipHost";
/// Interface for this Service, or `auto`.
pub const SERVICE_INTERFACE: &str = "kube-vip.io/serviceInterface";
/// `true`: not ours.
pub const IGNORE: &str = "kube-vip.io/ignore";
/// Host name for the DHCP server.
pub const LOADBALANCER_HOSTNAME: &str = "kube-vip.io/loadbalancerHostname";
/// `true`: ask the DHCP server to answer by broadcast.
pub const DHCP_BROADCAST: &str = "kube-vip.io/dhcp-broadcast";
/// `rp_filter` of the macvlan.
pub const RP_FILTER: &str = "kube-vip.io/rp_filter";
/// Name of the macvlan instead of `vip-<uid8>`.
pub const MACVLAN_NAME: &str = "kube-vip.io/macvlanName";
/// Name of the Lease in `service` mode; `namespace/name` where `svc_lease_namespaces` names that namespace.
pub const LEASE_NAME: &str = "kube-vip.io/leaseName";
/// An 802.1Q sub-interface, which we do not make.
pub const SERVICE_VLAN: &str = "kube-vip.io/serviceVLAN";
/// The cloud provider's: `namespace/name` of the Service whose address this one shares.
pub const PRIMARY_SERVICE: &str = "cloudprovider.harvesterhci.io/primary-service";
/// Ours: since which change of owner `vipHost` stands, as a decimal number (decisions.md 20).
pub const TERM: &str = "cloudprovider.harvesterhci.io/announcer-term";
/// Ours: what a successor needs to go on with the DHCP lease (see [`LeaseFacts`]).
pub const DHCP_LEASE: &str = "cloudprovider.harvesterhci.io/dhcp-lease";
/// Ours: the same for DHCPv6 (see [`LeaseFacts6`]).
pub const DHCP6_LEASE: &str = "cloudprovider.harvesterhci.io/dhcp6-lease";

/// The reverse-path filter of a macvlan (`Documentation/networking/ip-sysctl`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RpFilter {
    /// 0.
    Off,
    /// 1: only packets that would be answered through the same interface. A VIP's never are.
    Strict,
    /// 2, our default: answers leave by the route, which is another interface.
    #[default]
    Loose,
}

impl RpFilter {
    /// The kernel's number.
    pub fn value(self) -> u32 {
        match self {
            Self::Off => 0,
            Self::Strict => 1,
            Self::Loose => 2,
        }
    }
}

/// An annotation that says something we cannot follow. The text is what the user reads in the Event.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
#[error("{}{annotation} is {value:?}: {accepted}{meanwhile}", if annotation.starts_with("spec.") { "" } else { "annotation " })]
pub struct Problem {
    /// Which annotation or field.
    pub annotation: &'static str,
    /// What it says.
    pub value: String,
    /// What would be accepted, and what we do meanwhile.
    pub accepted: &'static str,
    /// What we do meanwhile, where that depends on what the Service said before.
    pub meanwhile: Meanwhile,
}

/// What becomes of an address until a [`Problem`] is mended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Meanwhile {
    /// The text says it already.
    #[default]
    Said,
    /// It is not announced: what cannot be read cannot be done.
    NotAnnounced,
    /// What the Service asked for before is announced.
    Former,
    /// Clients know its leased address: it is announced with the MAC that it most probably had.
    UsualMac,
}

impl std::fmt::Display for Meanwhile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Said => "",
            Self::NotAnnounced => "; it is not announced until that is mended",
            Self::UsualMac => {
                "; until that is mended it has the MAC of its macvlan, or where there is none the usual one"
            }
            Self::Former => "; what the Service asked for before is announced until that is mended",
        })
    }
}

impl Problem {
    /// Values come from users and end in Events and logs: a long one is cut.
    pub(crate) fn new(annotation: &'static str, value: &str, accepted: &'static str) -> Self {
        Self { annotation, value: cut(value), accepted, meanwhile: Meanwhile::Said }
    }

    /// One that leaves open what the Service asks for.
    pub(crate) fn unreadable(annotation: &'static str, value: &str, accepted: &'static str) -> Self {
        Self { meanwhile: Meanwhile::NotAnnounced, ..Self::new(annotation, value, accepted) }
    }

    /// The same, where it is about the MAC of a Service that clients know.
    pub(crate) fn with_usual_mac(self) -> Self {
        if self.annotation == HWADDR { Self { meanwhile: Meanwhile::UsualMac, ..self } } else { self }
    }

    /// The same, where it is about `annotation`, which this Service does not need.
    pub(crate) fn without_effect(self, annotation: &'static str) -> Self {
        if self.annotation == annotation { Self { meanwhile: Meanwhile::Said, ..self } } else { self }
    }
}

/// How much of what a user wrote is repeated to people.
const QUOTED_LENGTH: usize = 64;

/// The beginning of what a user wrote, for Events and logs.
pub(crate) fn cut(value: &str) -> String {
    let mut characters = value.chars();
    let mut beginning: String = characters.by_ref().take(QUOTED_LENGTH).collect();
    if characters.next().is_some() {
        beginning.push_str("...");
    }
    beginning
}

/// One text for an Event: whoever wrote a part of it, no control character gets through to a terminal, and the API takes
/// it (at most 1024 bytes).
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
pub enum Wanted {
    /// This address.
    Static(IpAddr),
    /// Any that a DHCPv4 server gives.
    Dhcp4,
    /// Any that a DHCPv6 server gives.
    Dhcp6,
}

/// Addresses of one Service. Nobody needs more than a few, and each costs every node a plan, an address on an interface and
/// frames: one Service with thousands would stop all announcers.
const MAX_ADDRESSES: usize = 16;

/// kube-vip spec 3.3: IPs are made canonical, unspecified means DHCP, at most two entries where DHCP is involved. What
/// cannot be served is a [`Problem`] and does not stop the others.
pub(crate) fn parse_addresses(source: &'static str, list: &str) -> (Vec<Wanted>, Vec<Problem>) {
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
                "accepted are IP addresses separated by commas, 0.0.0.0 for DHCP and :: for DHCPv6; host names are not supported",
            ));
            continue;
        };
        let address = address.to_canonical();
        let entry = if address.is_unspecified() {
            dhcp = true;
            match address {
                IpAddr::V4(_) => Wanted::Dhcp4,
                IpAddr::V6(_) => Wanted::Dhcp6,
            }
        } else if is_usable(address) {
            Wanted::Static(address)
        } else {
            problems.push(Problem::unreadable(
                source,
                entry,
                "accepted are unicast addresses that other hosts can reach: no loopback, multicast, broadcast or IPv6 link-local ones",
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

fn is_usable(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => {
            !(v4.is_loopback()
                || v4.is_multicast()
                || v4.is_broadcast()
                || v4.octets()[0] == 0
                || v4.octets()[0] >= 240)
        }
        IpAddr::V6(v6) => !(v6.is_loopback() || v6.is_multicast() || v6.is_unicast_link_local()),
    }
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

/// A MAC that a machine has already.
pub(crate) fn mac_of_a_node(mac: Mac) -> Problem {
    let accepted = "an interface of a node has this MAC; accepted is a unicast MAC address that nobody on the network has, or none; the address is not announced until it is mended or removed";
    Problem::new(HWADDR, &mac.to_string(), accepted)
}

/// The IPv4 address of `v4`, `v6` or `v4,v6`.
pub(crate) fn parse_requested(text: &str) -> Result<Option<Ipv4Addr>, Problem> {
    let bad = || {
        Problem::new(
            REQUESTED_IP,
            text,
            "accepted is one IPv4 address, one IPv6 address, or both, that a host can have; the DHCP server is asked for any address",
        )
    };
    let mut found = None;
    let mut entries = 0;
    for entry in text.split(',').map(str::trim).filter(|entry| !entry.is_empty()) {
        entries += 1;
        let address = entry.parse::<IpAddr>().map_err(|_| bad())?.to_canonical();
        if !address.is_unspecified() && !is_usable(address) {
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

/// The IPv6 address of `v4`, `v6` or `v4,v6`. What is wrong with the text [`parse_requested`] says.
pub(crate) fn parse_requested6(text: &str) -> Option<Ipv6Addr> {
    text.split(',')
        .find_map(|entry| entry.trim().parse::<Ipv6Addr>().ok())
        .filter(|address| is_usable((*address).into()))
}

/// kube-vip spec 2.1 `rp_filter`.
pub(crate) fn parse_rp_filter(text: &str) -> Result<RpFilter, Problem> {
    match text.trim() {
        "0" => Ok(RpFilter::Off),
        "1" => Ok(RpFilter::Strict),
        "2" => Ok(RpFilter::Loose),
        _ => Err(Problem::new(RP_FILTER, text, "accepted are 0 (off), 1 (strict) and 2 (loose); 2 is used")),
    }
}

/// What the node that holds a DHCP lease leaves for its successor: with the MAC and this, it goes on by INIT-REBOOT,
/// and within the lease even before the server has answered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseFacts {
    /// The address.
    pub address: Ipv4Addr,
    /// Option 54 of the last ACK.
    pub server: Ipv4Addr,
    /// When the lease ends unless renewed; absent: never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires: Option<Timestamp>,
}

impl LeaseFacts {
    /// Our own annotation; whatever somebody else made of it is as good as none.
    pub fn parse(text: &str) -> Option<Self> {
        serde_json::from_str(text).ok().filter(|facts: &Self| is_usable(facts.address.into()))
    }

    /// What to write.
    pub fn to_annotation(&self) -> String {
        serde_json::to_string(self).expect("three plain fields are always valid JSON")
    }
}

/// The same for DHCPv6; the client's DUID comes from the Service's UID.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseFacts6 {
    /// The address.
    pub address: Ipv6Addr,
    /// DUID of the server of the last REPLY, in hexadecimal digits.
    pub server: String,
    /// When the valid lifetime ends unless renewed; absent: never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires: Option<Timestamp>,
}

impl LeaseFacts6 {
    /// Our own annotation; whatever somebody else made of it is as good as none.
    pub fn parse(text: &str) -> Option<Self> {
        serde_json::from_str(text)
            .ok()
            .filter(|facts: &Self| facts.server_duid().is_some() && is_usable(facts.address.into()))
    }

    /// What to write.
    pub fn to_annotation(&self) -> String {
        serde_json::to_string(self).expect("three plain fields are always valid JSON")
    }

    /// The digits for a DUID.
    pub fn digits(duid: &[u8]) -> String {
        duid.iter().fold(String::new(), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        })
    }

    /// The server's DUID, unless somebody wrote something else there.
    pub fn server_duid(&self) -> Option<Vec<u8>> {
        if self.server.is_empty()
            || self.server.len() > 260
            || !self.server.bytes().all(|byte| byte.is_ascii_hexdigit())
        {
            return None;
        }
        let (pairs, rest) = self.server.as_bytes().as_chunks::<2>();
        let byte = |pair: &[u8; 2]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
        rest.is_empty().then(|| pairs.iter().filter_map(byte).collect())
    }
}

#[cfg(test)]
mod tests;
