//! Decides which addresses a Node shows, from what KubeVirt reports of its VM (CCM spec 4.2-4.4). Pure.
//!
//! The result distinguishes "the machine has these addresses" from "the addresses are not known now". The second never
//! removes addresses that a Node already shows (W-05).

use std::collections::BTreeSet;
use std::net::IpAddr;

use cloud_provider::node::{PROVIDED_NODE_IP, is_uninitialized, parse_node_ips};
use cloud_provider::view::{NodeAddress, NodeAddressKind, NodeView};
use harvester_api::keys;
use harvester_api::virtual_machine_instance::Phase;
use ipnet::IpNet;

use super::view::VmiView;
use crate::config::ProviderConfig;

/// The part of the configuration that the addresses depend on.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AddressRules {
    /// `--management-network`, normalised to `namespace/name`.
    pub management_network: Option<String>,
    /// `--node-ip-cidr`.
    pub node_ip_cidr: Vec<IpNet>,
    /// `--node-exclude-ip-ranges`.
    pub exclude_ranges: Vec<IpNet>,
    /// `--disable-annotation-alpha-provided-ip-addr`.
    pub ignore_node_annotations: bool,
}

impl From<&ProviderConfig> for AddressRules {
    fn from(config: &ProviderConfig) -> Self {
        Self {
            management_network: config.management_network.as_ref().map(ToString::to_string),
            node_ip_cidr: config.node_ip_cidr.clone(),
            exclude_ranges: config.node_exclude_ip_ranges.clone(),
            ignore_node_annotations: config.ignore_node_annotations,
        }
    }
}

/// The result for the addresses of a machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Addresses {
    /// These, in this order; the host name is last.
    Known(Vec<NodeAddress>),
    /// The machine has no network of this cluster and will get none while it runs: only its host name can be shown.
    HostnameOnly(String),
    /// Not known now, with the reason for the user. A Node keeps what it shows; one under initialisation stays tainted.
    Unknown(String),
    /// A NIC that the Node may be on has no address now, or none of a family in which the Node has an InternalIP, and
    /// these are left. An initialised Node waits before it shows them alone: its InternalIP would jump to another
    /// network or family, and back when the guest agent has reported the NIC, or the guest has its lease again.
    Incomplete {
        /// What is missing.
        reason: String,
        /// What the Node shows while it waits: the addresses of the family that is there, and what it shows already of
        /// the other one. Empty: all stays as it is.
        meanwhile: Vec<NodeAddress>,
        /// The addresses, as in [`Self::Known`].
        addresses: Vec<NodeAddress>,
    },
}

/// How InternalIPs are chosen (CCM spec 4.3, step 2).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Mode {
    /// The addresses that the kubelet was started with.
    Provided(Vec<IpAddr>),
    /// The first address of each family inside one of these ranges.
    Cidr(Vec<IpNet>),
    /// The first address of each family.
    FirstFit,
}

impl Mode {
    /// Whether the address may be an InternalIP.
    fn allows(&self, ip: &IpAddr) -> bool {
        match self {
            Self::Provided(provided) => provided.contains(ip),
            Self::Cidr(prefixes) => prefixes.iter().any(|prefix| prefix.contains(ip)),
            Self::FirstFit => true,
        }
    }
}

/// Addresses that are not shown as ExternalIPs. An InternalIP is never filtered.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Hidden {
    /// Single addresses, from the annotation `additional-internal-ips`.
    pub addresses: BTreeSet<IpAddr>,
    /// `--node-exclude-ip-ranges`.
    pub ranges: Vec<IpNet>,
}

/// Computes the addresses of a Node. `service_vips` are addresses that an announcer may have put on the machine's NIC:
/// they belong to Services and never to a Node (W-29).
pub fn node_addresses(
    node: &NodeView,
    vmi: &VmiView,
    rules: &AddressRules,
    service_vips: &BTreeSet<IpAddr>,
) -> Addresses {
    let networks = candidate_networks(vmi, rules.management_network.as_deref());
    if networks.is_empty() {
        return no_network(node, vmi, rules.management_network.as_deref());
    }

    let mode = mode(node, rules);
    let provided: &[IpAddr] = if let Mode::Provided(ips) = &mode { ips } else { &[] };
    let current = current_internal_ips(node);
    let may_wait = !current.is_empty() && !is_uninitialized(node);
    let its_own = |ip: &IpAddr| provided.contains(ip) || current.contains(ip);
    let (mut silent, mut later) = (false, None);
    let mut reason = String::new();
    for network in &networks {
        let raw = match reported(vmi, network) {
            Ok(raw) => raw,
            Err(text) => {
                keep_first(&mut reason, text);
                silent = true;
                continue;
            }
        };
        let usable = usable(raw);
        let candidates: Vec<IpAddr> =
            usable.iter().copied().filter(|ip| provided.contains(ip) || !service_vips.contains(ip)).collect();
        if candidates.is_empty() {
            let what = if usable.is_empty() { "0 valid IPs" } else { "only addresses of Services" };
            keep_first(
                &mut reason,
                format!("Found {what} for node {} on network {network:?} of its VMI {}", node.name, vmi.key()),
            );
            silent = true;
            continue;
        }
        let mut addresses = classify(&candidates, &mode, &hidden(node, rules, &mode), &current);
        if addresses.is_empty() {
            let text = format!(
                "Found {} IPs but all were filtered for node {}: --node-ip-cidr, --node-exclude-ip-ranges and the \
                 Node's annotations leave none of {}",
                candidates.len(),
                node.name,
                candidates.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
            );
            keep_first(&mut reason, text);
            continue;
        }
        addresses.push(NodeAddress { kind: NodeAddressKind::Hostname, address: node.name.clone() });
        let jumps = silent && may_wait && !candidates.iter().any(its_own);
        if let Some(lost) = current.iter().find(|ip| may_wait && lacks_family(&candidates, &mode, ip)) {
            let text = format!(
                "network {network:?} of VMI {} has no address of the family of the Node's InternalIP {lost} now",
                vmi.key()
            );
            keep_first(&mut reason, text);
            let meanwhile = if jumps { Vec::new() } else { beside_lost_family(node, &addresses, *lost, service_vips) };
            return Addresses::Incomplete { reason, meanwhile, addresses };
        }
        if jumps {
            later = later.or(Some(addresses));
            continue;
        }
        return Addresses::Known(addresses);
    }
    match later {
        Some(addresses) => Addresses::Incomplete { reason, meanwhile: Vec::new(), addresses },
        None => Addresses::Unknown(reason),
    }
}

/// Whether an InternalIP that the Node shows, and may go on to show, has no successor: its family has no address left.
fn lacks_family(candidates: &[IpAddr], mode: &Mode, internal: &IpAddr) -> bool {
    mode.allows(internal) && !candidates.iter().any(|ip| ip.is_ipv4() == internal.is_ipv4())
}

/// The addresses, and what the Node shows of the family of `lost`, where it shows it: which family's InternalIP is
/// first does not change, since clients use the first one, and nothing is written where nothing is new. Empty if
/// `addresses` has no InternalIP in another family in which the Node has one: the Node would only change its family.
fn beside_lost_family(
    node: &NodeView,
    addresses: &[NodeAddress],
    lost: IpAddr,
    service_vips: &BTreeSet<IpAddr>,
) -> Vec<NodeAddress> {
    let shown = || node.addresses.iter().filter_map(|address| Some((address, ip_of(address)?)));
    let is_internal = |address: &NodeAddress| address.kind == NodeAddressKind::InternalIp;
    let is_lost = |ip: IpAddr| ip.is_ipv4() == lost.is_ipv4();
    let has_other = shown().any(|(address, ip)| is_internal(address) && !is_lost(ip));
    let Some(mut other) = addresses.iter().position(is_internal).filter(|_| has_other) else {
        return Vec::new();
    };
    let mut all = addresses.to_vec();
    let mut after_other = false;
    for (place, (address, ip)) in shown().enumerate() {
        if !is_lost(ip) {
            after_other |= is_internal(address);
        } else if is_internal(address) || !service_vips.contains(&ip) {
            let place = if after_other { place.max(other + 1) } else { place.min(other) };
            // The host name stays last.
            all.insert(place.min(all.len() - 1), address.clone());
            other += usize::from(!after_other);
        }
    }
    all
}

/// The address, if it is an InternalIP or ExternalIP.
fn ip_of(address: &NodeAddress) -> Option<IpAddr> {
    let is_ip = matches!(address.kind, NodeAddressKind::InternalIp | NodeAddressKind::ExternalIp);
    address.address.parse().ok().filter(|_| is_ip)
}

fn keep_first(reason: &mut String, text: String) {
    if reason.is_empty() {
        *reason = text;
    }
}

fn no_network(node: &NodeView, vmi: &VmiView, wanted: Option<&str>) -> Addresses {
    let text = format!("No management networks found for node {} via its VMI {}", node.name, vmi.key());
    let offered: Vec<&str> = vmi.networks.iter().filter_map(|network| network.multus.as_deref()).collect();
    match wanted {
        // No network will be added: a VM's networks are fixed while it runs.
        None => Addresses::HostnameOnly(text),
        Some(wanted) if offered.is_empty() => {
            Addresses::Unknown(format!("{text}: --management-network names {wanted:?}, the VM has no Multus network"))
        }
        Some(wanted) => Addresses::Unknown(format!(
            "{text}: --management-network names {wanted:?}, the VM is attached to {}",
            offered.join(", ")
        )),
    }
}

/// NIC names to try, in this order (CCM spec 4.2). Without `--management-network`, the NICs after the first one are
/// tried only while the first one has no usable address (W-30).
pub fn candidate_networks(vmi: &VmiView, management_network: Option<&str>) -> Vec<String> {
    let multus = vmi.networks.iter().filter_map(|network| Some((&network.name, network.multus.as_deref()?)));
    match management_network {
        Some(wanted) => multus
            .filter(|(_, nad)| *nad == wanted || vmi.qualified_network(nad) == wanted)
            .map(|(name, _)| name.clone())
            .take(1)
            .collect(),
        None => multus.map(|(name, _)| name.clone()).collect(),
    }
}

/// The addresses that KubeVirt reports for a NIC, as text.
fn reported<'a>(vmi: &'a VmiView, network: &str) -> Result<&'a [String], String> {
    let Some(interface) = vmi.interfaces.iter().find(|interface| interface.name == network) else {
        let text = waits_for_agent(vmi);
        return Err(format!("management network {network:?} status not yet available for VMI {}{text}", vmi.key()));
    };
    if interface.addresses.is_empty() {
        let text = waits_for_agent(vmi);
        return Err(format!(
            "management network {network:?} found but no IPs reported yet for VMI {}{text}",
            vmi.key()
        ));
    }
    Ok(&interface.addresses)
}

/// The reason why addresses are missing. For a bridged NIC only the guest agent knows them (Harvester spec 9.2).
fn waits_for_agent(vmi: &VmiView) -> String {
    let missing = match (vmi.phase, vmi.agent_connected) {
        (Phase::Starting, _) => "the VM is starting",
        (_, false) => "its guest agent is not connected: install and start qemu-guest-agent in the VM",
        (_, true) => return String::new(),
    };
    format!("; {missing}")
}

/// The addresses that a Node may show, in the given order and without duplicates (CCM spec 8.13). A malformed address
/// is skipped; the Go provider rejected the whole list because of one (W-32).
pub fn usable(raw: &[String]) -> Vec<IpAddr> {
    let mut ips = Vec::with_capacity(raw.len());
    for text in raw {
        match text.trim().parse() {
            Ok(ip) if may_be_shown(ip) && !ips.contains(&ip) => ips.push(ip),
            Ok(_) => {}
            Err(_) => tracing::debug!(
                address = text,
                "KubeVirt reports an address that is not an IP address; the controller ignores it"
            ),
        }
    }
    ips
}

fn may_be_shown(ip: IpAddr) -> bool {
    if ip.is_loopback() || ip.is_multicast() || ip.is_unspecified() {
        return false;
    }
    match ip {
        IpAddr::V4(ip) => !ip.is_link_local() && !ip.is_broadcast(),
        IpAddr::V6(ip) => !ip.is_unicast_link_local(),
    }
}

/// Chooses the mode (CCM spec 4.3, step 2). The annotation may name one address per family; the Go provider compared
/// the whole text (W-13). With a malformed annotation no address is chosen. The framework already rejects the Node for
/// it and tells the user, so it is not reported here again.
fn mode(node: &NodeView, rules: &AddressRules) -> Mode {
    if !rules.ignore_node_annotations
        && let Some(text) = node.annotations.get(PROVIDED_NODE_IP)
    {
        return Mode::Provided(parse_node_ips(text).unwrap_or_else(|error| {
            tracing::debug!(
                node = node.name,
                %error,
                "annotation {PROVIDED_NODE_IP} is not valid; the controller ignores it"
            );
            Vec::new()
        }));
    }
    if rules.node_ip_cidr.is_empty() { Mode::FirstFit } else { Mode::Cidr(rules.node_ip_cidr.clone()) }
}

fn hidden(node: &NodeView, rules: &AddressRules, mode: &Mode) -> Hidden {
    let mut hidden = Hidden { addresses: BTreeSet::new(), ranges: rules.exclude_ranges.clone() };
    // `--node-ip-cidr` replaces this annotation.
    if !rules.ignore_node_annotations && !matches!(mode, Mode::Cidr(_)) {
        hidden.addresses = additional_internal_ips(node);
    }
    hidden
}

/// Parses the annotation: a JSON array of addresses. A malformed annotation is ignored, as in the Go provider.
fn additional_internal_ips(node: &NodeView) -> BTreeSet<IpAddr> {
    let Some(text) =
        node.annotations.get(keys::cloudprovider::ADDITIONAL_INTERNAL_IPS).filter(|text| !text.trim().is_empty())
    else {
        return BTreeSet::new();
    };
    match serde_json::from_str::<Option<Vec<String>>>(text) {
        Ok(list) => list.unwrap_or_default().iter().filter_map(|ip| ip.trim().parse().ok()).collect(),
        Err(error) => {
            tracing::warn!(
                node = node.name,
                "skipping optional internal IP filtering for node {} due to malformed annotation: {error}",
                node.name
            );
            BTreeSet::new()
        }
    }
}

/// The InternalIPs that the Node shows now. They are kept as long as the machine has them, in whatever order KubeVirt
/// lists the addresses (W-29).
fn current_internal_ips(node: &NodeView) -> Vec<IpAddr> {
    node.addresses
        .iter()
        .filter(|address| address.kind == NodeAddressKind::InternalIp)
        .filter_map(|address| address.address.parse().ok())
        .collect()
}

/// CCM spec 4.3, steps 5 and 6; tables 8.9.
pub fn classify(ips: &[IpAddr], mode: &Mode, hidden: &Hidden, current: &[IpAddr]) -> Vec<NodeAddress> {
    let internal_of = |v4: bool| {
        let of_family = |ip: &&IpAddr| ip.is_ipv4() == v4 && mode.allows(ip);
        ips.iter().filter(of_family).find(|ip| current.contains(ip)).or_else(|| ips.iter().find(of_family))
    };
    let internal = [internal_of(true), internal_of(false)];
    let is_hidden = |ip: &IpAddr| hidden.addresses.contains(ip) || hidden.ranges.iter().any(|range| range.contains(ip));

    ips.iter()
        .filter_map(|ip| {
            let kind = match internal.contains(&Some(ip)) {
                true => NodeAddressKind::InternalIp,
                false if is_hidden(ip) => return None,
                false => NodeAddressKind::ExternalIp,
            };
            Some(NodeAddress { kind, address: ip.to_string() })
        })
        .collect()
}

#[cfg(test)]
#[path = "addresses_tests.rs"]
mod tests;
