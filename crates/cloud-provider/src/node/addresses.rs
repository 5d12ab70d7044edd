//! Computes which addresses a Node shows: those of the cloud, the Node's own host name if the cloud gives none, and the
//! kubelet's `--node-ip` first (framework spec 2.6 and 2.7).

use std::net::{IpAddr, Ipv4Addr};

use crate::view::{NodeAddress, NodeAddressKind, NodeView};

/// Annotation in which the kubelet publishes its `--node-ip`.
pub const PROVIDED_NODE_IP: &str = "alpha.kubernetes.io/provided-node-ip";

/// Why the requested address of a Node cannot be used. The texts are the Go framework's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NodeIpError {
    /// The annotation is malformed.
    #[error("failed to parse node IP {value:?}: {reason}")]
    Malformed {
        /// Its value.
        value: String,
        /// What is wrong, and what is accepted.
        reason: &'static str,
    },
    /// The machine has no such address.
    #[error("failed to get node address from cloud provider that matches ip: {0}")]
    NotFound(IpAddr),
}

/// The addresses that `node` should show, given those of its machine. Empty if the cloud knows none now.
/// `obey_node_ip`: whether the kubelet's annotation counts (CCM spec W-12: the Go provider has a flag to ignore it,
/// which affects only half of the code).
pub fn desired_addresses(
    node: &NodeView,
    cloud: &[NodeAddress],
    obey_node_ip: bool,
) -> Result<Vec<NodeAddress>, NodeIpError> {
    if cloud.is_empty() {
        return Ok(Vec::new());
    }
    let mut addresses = cloud.to_vec();
    if !addresses.iter().any(|address| address.kind == NodeAddressKind::Hostname) {
        let names = node.addresses.iter().filter(|address| address.kind == NodeAddressKind::Hostname);
        addresses.extend(names.cloned());
    }
    match node.annotations.get(PROVIDED_NODE_IP).filter(|_| obey_node_ip) {
        Some(value) => lead_with(&parse_node_ips(value)?, &addresses),
        None => Ok(addresses),
    }
}

/// Puts the requested addresses first. Other addresses of the same types are dropped; addresses of other types follow.
fn lead_with(requested: &[IpAddr], cloud: &[NodeAddress]) -> Result<Vec<NodeAddress>, NodeIpError> {
    let mut result: Vec<NodeAddress> = Vec::new();
    for ip in requested {
        let mut matching = cloud.iter().filter(|address| parse_ip(&address.address) == Some(*ip)).peekable();
        if matching.peek().is_none() {
            return Err(NodeIpError::NotFound(*ip));
        }
        for address in matching {
            if !result.contains(address) {
                result.push(address.clone());
            }
        }
    }
    let pinned: Vec<NodeAddressKind> = result.iter().map(|address| address.kind.clone()).collect();
    for address in cloud {
        if !pinned.contains(&address.kind) && !result.contains(address) {
            result.push(address.clone());
        }
    }
    Ok(result)
}

/// Parses the value of [`PROVIDED_NODE_IP`]: one address, or two of different families separated by a comma. Providers
/// have to use this parser, too, so that they agree with [`desired_addresses`].
pub fn parse_node_ips(value: &str) -> Result<Vec<IpAddr>, NodeIpError> {
    let malformed = |reason| NodeIpError::Malformed { value: value.to_owned(), reason };
    let accepted = "expected one IP address, or an IPv4 and an IPv6 address separated by a comma";
    let ips: Option<Vec<IpAddr>> = value.split(',').map(parse_ip).collect();
    let ips = ips.ok_or_else(|| malformed(accepted))?;
    match ips.as_slice() {
        [first, second] if first.is_ipv4() == second.is_ipv4() => {
            return Err(malformed("both addresses are of one family"));
        }
        [first, second] if first.is_unspecified() || second.is_unspecified() => {
            return Err(malformed("an unspecified address cannot be part of a pair"));
        }
        [_] | [_, _] => {}
        _ => return Err(malformed(accepted)),
    }
    Ok(ips)
}

/// Parses an address like Kubernetes' lenient Go parser: leading zeros are tolerated, and an IPv4-mapped IPv6 address
/// becomes the IPv4 address.
fn parse_ip(text: &str) -> Option<IpAddr> {
    if let Ok(ip) = text.parse::<IpAddr>() {
        return Some(ip.to_canonical());
    }
    let octets: Option<Vec<u8>> = text
        .split('.')
        .map(|octet| {
            let digits = !octet.is_empty() && octet.bytes().all(|byte| byte.is_ascii_digit());
            let significant = octet.trim_start_matches('0');
            digits.then(|| if significant.is_empty() { Some(0) } else { significant.parse().ok() })?
        })
        .collect();
    let octets: [u8; 4] = octets?.try_into().ok()?;
    Some(IpAddr::V4(Ipv4Addr::from(octets)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_support::node;

    /// `I 10.1.1.1, H host`: types by their initials.
    fn list(text: &str) -> Vec<NodeAddress> {
        let entries = text.split(", ").filter(|entry| !entry.is_empty());
        entries
            .map(|entry| {
                let (kind, address) = entry.split_once(' ').unwrap();
                let kind = match kind {
                    "I" => NodeAddressKind::InternalIp,
                    "E" => NodeAddressKind::ExternalIp,
                    "H" => NodeAddressKind::Hostname,
                    other => NodeAddressKind::Other(other.into()),
                };
                NodeAddress { kind, address: address.into() }
            })
            .collect()
    }

    fn requesting(value: &str) -> NodeView {
        let mut view = node("n");
        view.annotations.insert(PROVIDED_NODE_IP, value);
        view
    }

    /// Framework spec 5.5, TestGetNodeAddressesFromNodeIP.
    #[test]
    fn the_requested_address_leads_and_hides_others_of_its_type() {
        let pair = "10.1.1.1,fc01:1234::5678";
        let twice_two = "I 10.1.1.1, I 10.1.1.2, I fc01:1234::1234, I fc01:1234::5678, H h";
        for (case, requested, cloud, expected) in [
            ("a single InternalIP", "10.1.1.1", "I 10.1.1.1, H h", "I 10.1.1.1, H h"),
            (
                "the node IP is external",
                "55.55.55.55",
                "I 10.1.1.1, E 55.55.55.55, H h",
                "E 55.55.55.55, I 10.1.1.1, H h",
            ),
            (
                "InternalIP and ExternalIP are the same",
                "55.55.55.55",
                "I 44.44.44.44, E 44.44.44.44, I 55.55.55.55, E 55.55.55.55, H h",
                "I 55.55.55.55, E 55.55.55.55, H h",
            ),
            (
                "DNS names follow",
                "10.1.1.1",
                "I 10.1.1.1, E 55.55.55.55, InternalDNS a, ExternalDNS b, H h",
                "I 10.1.1.1, E 55.55.55.55, InternalDNS a, ExternalDNS b, H h",
            ),
            (
                "several internal IPs",
                "10.1.1.1",
                "I 10.1.1.1, I 10.2.2.2, I 10.3.3.3, E 55.55.55.55, H h",
                "I 10.1.1.1, E 55.55.55.55, H h",
            ),
            (
                "another spelling of an IPv6 address",
                "2600:1f14:1d4:d101::ba3d",
                "I 10.1.1.1, I 2600:1f14:1d4:d101:0:0:0:ba3d, H h",
                "I 2600:1f14:1d4:d101:0:0:0:ba3d, H h",
            ),
            ("dual stack", pair, "I 10.1.1.1, I fc01:1234::5678, H h", "I 10.1.1.1, I fc01:1234::5678, H h"),
            (
                "dual stack, the cloud has IPv6 first",
                pair,
                "I fc01:1234::5678, I 10.1.1.1, H h",
                "I 10.1.1.1, I fc01:1234::5678, H h",
            ),
            ("dual stack, several of each", pair, twice_two, "I 10.1.1.1, I fc01:1234::5678, H h"),
            (
                "dual stack with an ExternalIP",
                pair,
                "I 10.1.1.1, E 55.55.55.55, I fc01:1234::1234, I fc01:1234::5678, H h",
                "I 10.1.1.1, I fc01:1234::5678, E 55.55.55.55, H h",
            ),
            (
                "dual stack with several ExternalIPs, IPv6 first",
                "fc01:1234::5678,10.1.1.1",
                "I 10.1.1.1, E 55.55.55.55, I fc01:1234::5678, E 2001:db1::1, H h",
                "I fc01:1234::5678, I 10.1.1.1, E 55.55.55.55, E 2001:db1::1, H h",
            ),
            (
                "dual stack, one of them external",
                "55.55.55.55,fc01:1234::5678",
                "I 10.1.1.1, E 55.55.55.55, I fc01:1234::5678, E 2001:db1::1, H h",
                "E 55.55.55.55, I fc01:1234::5678, H h",
            ),
            ("leading zeros", "010.001.001.001", "I 10.1.1.1, H h", "I 10.1.1.1, H h"),
        ] {
            assert_eq!(desired_addresses(&requesting(requested), &list(cloud), true), Ok(list(expected)), "{case}");
        }
    }

    #[test]
    fn an_address_that_the_machine_does_not_have_is_refused_and_named() {
        for (requested, cloud, missing) in [
            ("10.2.2.2", "I 10.1.1.1, E 55.55.55.55, H h", "10.2.2.2"),
            ("10.1.1.1,fc01:1234::5678", "I 10.1.1.1, H h", "fc01:1234::5678"),
        ] {
            let error = desired_addresses(&requesting(requested), &list(cloud), true).unwrap_err();
            assert_eq!(error, NodeIpError::NotFound(missing.parse().unwrap()));
        }
    }

    #[test]
    fn a_malformed_annotation_is_refused_with_its_value() {
        for value in [
            "",
            "invalid-ip",
            "10.1.1.1, fc01::1",
            "10.1.1.1,10.1.1.2",
            "10.1.1.1,fc01::1,10.1.1.2",
            "0.0.0.0,fc01::1",
            "1.2.3",
            "1.2.3.999",
        ] {
            let error = desired_addresses(&requesting(value), &list("I 10.1.1.1, H h"), true).unwrap_err();
            assert!(error.to_string().starts_with(&format!("failed to parse node IP {value:?}: ")), "{error}");
        }
    }

    /// Framework spec 5.2, Test_syncNode, "cloud provider missing hostname".
    #[test]
    fn the_nodes_own_host_name_is_kept_where_the_cloud_gives_none() {
        let mut view = node("n");
        view.addresses = list("I 10.9.9.9, H overridden");
        assert_eq!(
            desired_addresses(&view, &list("I 10.0.0.1, E 132.1.1.1"), true),
            Ok(list("I 10.0.0.1, E 132.1.1.1, H overridden"))
        );
        assert_eq!(desired_addresses(&view, &list("H cloud, I 10.0.0.1"), true), Ok(list("H cloud, I 10.0.0.1")));
    }

    /// CCM spec W-12.
    #[test]
    fn with_the_annotation_disabled_every_address_of_the_machine_is_shown() {
        for value in ["10.2.2.2", "not an address", "10.1.1.1"] {
            let all = list("I 10.1.1.1, I fc01::1, E 55.55.55.55, H h");
            assert_eq!(desired_addresses(&requesting(value), &all, false), Ok(all));
        }
    }

    #[test]
    fn no_addresses_from_the_cloud_means_not_known_now() {
        assert_eq!(desired_addresses(&requesting("10.1.1.1"), &[], true), Ok(Vec::new()));
    }
}
