//! The flags `--node-ip-cidr` and `--node-exclude-ip-ranges` (CCM spec 1.4, 8.10). Error texts are the Go provider's,
//! because users search for them.

use std::net::{IpAddr, Ipv4Addr};

use ipnet::IpNet;

/// Value of `--node-ip-cidr`: at most one prefix per family that chooses the InternalIP.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NodeIpCidr {
    /// The parts, trimmed, joined by `,`.
    pub text: String,
    /// The parsed parts. Host bits are kept; the comparison masks them.
    pub prefixes: Vec<IpNet>,
}

/// Why a value of `--node-ip-cidr` is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NodeIpCidrError {
    /// Neither a prefix nor an address.
    #[error("invalid configuration for --node-ip-cidr: invalid CIDR or IP format {0:?}")]
    Format(String),
    /// Two IPv4 entries.
    #[error("invalid configuration for --node-ip-cidr: multiple IPv4 entries in {0:?}")]
    MultipleIpv4(String),
    /// Two IPv6 entries.
    #[error("invalid configuration for --node-ip-cidr: multiple IPv6 entries in {0:?}")]
    MultipleIpv6(String),
    /// `127.0.0.0/8`, `::1`.
    #[error("invalid configuration for --node-ip-cidr ({0:?}): loopback addresses not allowed")]
    Loopback(String),
    /// `169.254.0.0/16`, `fe80::/10`, `224.0.0.0/24`, `ff02::`.
    #[error("invalid configuration for --node-ip-cidr ({0:?}): link-local addresses not allowed")]
    LinkLocal(String),
    /// Multicast or unspecified.
    #[error("invalid configuration for --node-ip-cidr ({0:?}): must be a valid unicast address")]
    NotUnicast(String),
    /// `255.255.255.255`.
    #[error("invalid configuration for --node-ip-cidr ({0:?}): broadcast address not allowed")]
    Broadcast(String),
}

impl NodeIpCidr {
    /// Parses the flag; `None` if it has only commas and blanks, which counts as unset.
    pub fn parse(value: &str) -> Result<Option<Self>, NodeIpCidrError> {
        let mut parts = Vec::new();
        let mut prefixes: Vec<IpNet> = Vec::new();
        for part in value.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let prefix = prefix_or_address(part).ok_or_else(|| NodeIpCidrError::Format(part.to_owned()))?;
            if prefixes.iter().any(|known| is_v4(known) == is_v4(&prefix)) {
                let whole = value.to_owned();
                return Err(if is_v4(&prefix) {
                    NodeIpCidrError::MultipleIpv4(whole)
                } else {
                    NodeIpCidrError::MultipleIpv6(whole)
                });
            }
            check_address(prefix.addr(), part)?;
            parts.push(part);
            prefixes.push(prefix);
        }
        Ok((!prefixes.is_empty()).then(|| Self { text: parts.join(","), prefixes }))
    }
}

/// Validates the address part only, not the range that it covers.
fn check_address(address: IpAddr, part: &str) -> Result<(), NodeIpCidrError> {
    let part = part.to_owned();
    // An IPv4-mapped IPv6 address is validated as the IPv4 address.
    let address = address.to_canonical();
    let (link_local, local_multicast) = match address {
        IpAddr::V4(v4) => (v4.is_link_local(), v4.octets()[..3] == [224, 0, 0]),
        IpAddr::V6(v6) => (v6.is_unicast_link_local(), v6.segments()[0] & 0xff0f == 0xff02),
    };
    if address.is_loopback() {
        Err(NodeIpCidrError::Loopback(part))
    } else if link_local || local_multicast {
        Err(NodeIpCidrError::LinkLocal(part))
    } else if address.is_multicast() || address.is_unspecified() {
        Err(NodeIpCidrError::NotUnicast(part))
    } else if address == IpAddr::V4(Ipv4Addr::BROADCAST) {
        Err(NodeIpCidrError::Broadcast(part))
    } else {
        Ok(())
    }
}

/// An entry of `--node-exclude-ip-ranges` that is neither address nor prefix.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid entry in --node-exclude-ip-ranges ({entry:?}): invalid IP or CIDR format: {entry:?}")]
pub struct ExcludeRangeError {
    /// The entry, trimmed.
    pub entry: String,
}

/// Parses `--node-exclude-ip-ranges`, already split at commas and repetitions of the flag. Any family, any number, any
/// range.
pub fn parse_exclude_ranges<S: AsRef<str>>(entries: &[S]) -> Result<Vec<IpNet>, ExcludeRangeError> {
    entries
        .iter()
        .map(|entry| entry.as_ref().trim())
        .filter(|entry| !entry.is_empty())
        .map(|entry| prefix_or_address(entry).ok_or_else(|| ExcludeRangeError { entry: entry.to_owned() }))
        .collect()
}

/// Whether a prefix covers an address of the same family (CCM spec 4.3). An IPv4-mapped IPv6 address counts as IPv6.
pub fn covers(prefix: &IpNet, address: IpAddr) -> bool {
    prefix.contains(&address)
}

fn is_v4(prefix: &IpNet) -> bool {
    matches!(prefix, IpNet::V4(_))
}

/// Parses strictly: no leading zeros, no zone, prefix length in range.
fn prefix_or_address(text: &str) -> Option<IpNet> {
    let Some((address, length)) = text.split_once('/') else {
        return text.parse::<IpAddr>().ok().map(IpNet::from);
    };
    let canonical = length.bytes().all(|b| b.is_ascii_digit()) && (length.len() == 1 || !length.starts_with('0'));
    IpNet::new(address.parse().ok()?, length.parse().ok().filter(|_| canonical)?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// CCM spec 8.10
    #[test]
    fn accepted_values_are_trimmed_and_counted() {
        let table = [
            ("192.168.0.0/24", "192.168.0.0/24", 1),
            ("2001:db8::/32", "2001:db8::/32", 1),
            ("192.168.0.0/24,2001:db8::/32", "192.168.0.0/24,2001:db8::/32", 2),
            ("  192.168.0.0/24,   2001:db8::/32  ", "192.168.0.0/24,2001:db8::/32", 2),
            ("  192.168.0.0/24,   ", "192.168.0.0/24", 1),
            ("192.168.1.5/24", "192.168.1.5/24", 1),
            ("10.0.0.1", "10.0.0.1", 1),
        ];
        for (value, text, count) in table {
            let parsed = NodeIpCidr::parse(value).unwrap_or_else(|e| panic!("{value}: {e}")).expect("not unset");
            assert_eq!((parsed.text.as_str(), parsed.prefixes.len()), (text, count), "{value}");
        }
        for unset in ["", " , ,"] {
            assert_eq!(NodeIpCidr::parse(unset), Ok(None));
        }
    }

    #[test]
    fn refused_values_get_the_go_providers_text() {
        let table = [
            ("999.999.999.999/invalid", r#": invalid CIDR or IP format "999.999.999.999/invalid""#),
            ("192.168.1.0/24-invalid-string", r#": invalid CIDR or IP format "192.168.1.0/24-invalid-string""#),
            ("2001:db8::/129", r#": invalid CIDR or IP format "2001:db8::/129""#),
            ("192.168.01.0/24", r#": invalid CIDR or IP format "192.168.01.0/24""#),
            ("192.168.1.0/+8", r#": invalid CIDR or IP format "192.168.1.0/+8""#),
            ("192.168.1.0/08", r#": invalid CIDR or IP format "192.168.1.0/08""#),
            ("fe80::1%eth0/64", r#": invalid CIDR or IP format "fe80::1%eth0/64""#),
            ("192.168.0.0/24,192.168.1.0/24", r#": multiple IPv4 entries in "192.168.0.0/24,192.168.1.0/24""#),
            (
                "192.168.0.0/24,192.168.1.0/24,2001:db8::/32",
                r#": multiple IPv4 entries in "192.168.0.0/24,192.168.1.0/24,2001:db8::/32""#,
            ),
            ("2001:db8::/32,2002:db8::/32", r#": multiple IPv6 entries in "2001:db8::/32,2002:db8::/32""#),
            ("127.0.0.0/8", r#" ("127.0.0.0/8"): loopback addresses not allowed"#),
            ("fe80::/10", r#" ("fe80::/10"): link-local addresses not allowed"#),
            ("224.0.0.5", r#" ("224.0.0.5"): link-local addresses not allowed"#),
            ("239.1.1.1", r#" ("239.1.1.1"): must be a valid unicast address"#),
            ("0.0.0.0/0", r#" ("0.0.0.0/0"): must be a valid unicast address"#),
            ("::/0", r#" ("::/0"): must be a valid unicast address"#),
            ("255.255.255.255", r#" ("255.255.255.255"): broadcast address not allowed"#),
        ];
        for (value, text) in table {
            let error = NodeIpCidr::parse(value).expect_err(value).to_string();
            assert_eq!(error, format!("invalid configuration for --node-ip-cidr{text}"), "{value}");
        }
    }

    #[test]
    fn excluded_ranges_may_be_anything_that_parses() {
        let parsed =
            parse_exclude_ranges(&["192.168.0.0/24", " 192.168.0.255 ", "192.168.0.254", "2001:db8::/32", ""]).unwrap();
        assert_eq!(parsed.len(), 4);
        assert_eq!(
            parse_exclude_ranges(&["10.0.0.1", "x"]).unwrap_err().to_string(),
            r#"invalid entry in --node-exclude-ip-ranges ("x"): invalid IP or CIDR format: "x""#
        );
    }

    #[test]
    fn host_bits_are_masked_when_matching_and_families_do_not_mix() {
        let prefix: IpNet = "192.168.1.5/24".parse().unwrap();
        assert!(covers(&prefix, "192.168.1.200".parse().unwrap()));
        assert!(!covers(&prefix, "::ffff:192.168.1.200".parse().unwrap()));
    }

    proptest! {
        #[test]
        fn no_input_panics(value in ".*") {
            let _ = NodeIpCidr::parse(&value);
            let _ = parse_exclude_ranges(&[value]);
        }

        #[test]
        fn what_was_accepted_is_accepted_again(
            a in any::<Ipv4Addr>(), b in any::<std::net::Ipv6Addr>(), p in 0u8..=32, q in 0u8..=128,
        ) {
            if let Ok(Some(parsed)) = NodeIpCidr::parse(&format!(" {a}/{p}, {b}/{q},")) {
                prop_assert_eq!(NodeIpCidr::parse(&parsed.text), Ok(Some(parsed.clone())));
                prop_assert_eq!(parsed.prefixes.len(), 2);
            }
        }
    }
}
