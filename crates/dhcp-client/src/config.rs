//! The configuration of a client, and its validation.

use std::net::Ipv4Addr;

use crate::{Mac, RememberedLease};

/// Configuration of a client. A client serves one address on one interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// MAC of the interface: source of every frame and `chaddr` of every message.
    pub mac: Mac,
    /// Host name, option 12, and with it option 61; annotation `kube-vip.io/loadbalancerHostname`. An empty name counts
    /// as none.
    ///
    /// The client ID has kube-vip's form: the bytes of the host name without a type octet, and no option 61 without a
    /// host name. A server finds leases and reservations made for kube-vip only by the same bytes. The ID must not
    /// change while the lease lives. It is in every message, also in RENEW, RELEASE and DECLINE, where kube-vip omits
    /// it (kube-vip spec 10.1 row 24).
    pub hostname: Option<String>,
    /// The requested address (option 50 of DISCOVER); annotation `kube-vip.io/requestedIP`. If the server offers
    /// another address, the client takes that one.
    pub requested_ip: Option<Ipv4Addr>,
    /// Whether to ask the server for broadcast replies; annotation `kube-vip.io/dhcp-broadcast`.
    pub broadcast_flag: bool,
    /// The lease that this Service had before, on any node.
    pub remembered: Option<RememberedLease>,
}

impl Config {
    /// A configuration without host name and requested address.
    pub fn new(mac: Mac) -> Self {
        Self { mac, hostname: None, requested_ip: None, broadcast_flag: false, remembered: None }
    }

    /// Checks every field.
    pub fn validate(&self) -> Result<(), ConfigError> {
        if !self.mac.is_unicast() {
            return Err(ConfigError::Mac(self.mac));
        }
        if let Some(name) = &self.hostname
            && (name.len() > MAX_NAME_BYTES || name.chars().any(char::is_control))
        {
            return Err(ConfigError::Hostname(name.chars().take(64).collect()));
        }
        let remembered = self.remembered.as_ref().map(|lease| lease.address);
        for (field, address) in [("requested_ip", self.requested_ip), ("remembered.address", remembered)] {
            if let Some(address) = address
                && !is_host_address(address)
            {
                return Err(ConfigError::Address { field, value: address });
            }
        }
        Ok(())
    }

    /// The bytes of option 61. `None` omits the option, also for a name of one byte: RFC 2132 9.14 requires two bytes,
    /// and Kea drops every message with fewer.
    pub(crate) fn client_id(&self) -> Option<Vec<u8>> {
        self.hostname().map(|name| name.as_bytes().to_vec()).filter(|id| id.len() >= 2)
    }

    pub(crate) fn hostname(&self) -> Option<&str> {
        self.hostname.as_deref().filter(|name| !name.is_empty())
    }
}

/// An option holds 255 bytes; a DNS name has at most 253 and a trailing dot.
const MAX_NAME_BYTES: usize = 254;

/// A field of [`Config`] that cannot work.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// The interface's MAC is a group address or zero.
    #[error("DHCP client: mac {0} cannot be an interface's address: expected a unicast Ethernet address")]
    Mac(Mac),
    /// The host name, here its first 64 characters, does not fit in a DHCP option.
    #[error("DHCP client: hostname {0:?} is not accepted: expected at most 254 bytes without control characters")]
    Hostname(String),
    /// An address that no host can have.
    #[error("DHCP client: {field} {value} cannot be leased: expected a host's unicast IPv4 address")]
    Address {
        /// Which field.
        field: &'static str,
        /// Its value.
        value: Ipv4Addr,
    },
}

/// Whether an address can be a host's on a LAN: not 0.0.0.0/8, loopback, multicast, reserved or broadcast.
pub(crate) fn is_host_address(address: Ipv4Addr) -> bool {
    let first = address.octets()[0];
    first != 0 && first != 127 && first < 224
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> Config {
        Config::new(Mac::from([0, 0, 0x6c, 1, 2, 3]))
    }

    #[test]
    fn the_client_id_has_kube_vips_form() {
        let named = |name: &str| Config { hostname: Some(name.into()), ..config() };
        assert_eq!(config().client_id(), None);
        assert_eq!(named("").client_id(), None);
        assert_eq!(named("w").client_id(), None, "too short for the option");
        assert_eq!(named("web").client_id(), Some(b"web".to_vec()));
    }

    #[test]
    fn what_cannot_work_is_refused_with_field_and_value() {
        let remembered = |address: &str| RememberedLease {
            address: address.parse().unwrap(),
            server_id: None,
            server_mac: None,
            expiry: None,
            network: None,
        };
        let cases = [
            (Config { mac: Mac::BROADCAST, ..config() }, "mac ff:ff:ff:ff:ff:ff"),
            (Config { hostname: Some("a".repeat(255)), ..config() }, "hostname"),
            (Config { hostname: Some("a\nb".into()), ..config() }, r#"hostname "a\nb""#),
            (Config { requested_ip: Some(Ipv4Addr::UNSPECIFIED), ..config() }, "requested_ip 0.0.0.0"),
            (Config { remembered: Some(remembered("224.0.0.1")), ..config() }, "remembered.address 224.0.0.1"),
            (Config { remembered: Some(remembered("127.0.0.1")), ..config() }, "remembered.address 127.0.0.1"),
        ];
        for (config, expected) in cases {
            let text = config.validate().unwrap_err().to_string();
            assert!(text.contains(expected) && text.contains("expected"), "{text}");
        }
        let longest =
            Config { hostname: Some("a".repeat(254)), requested_ip: Some(Ipv4Addr::new(10, 0, 0, 1)), ..config() };
        assert_eq!(longest.validate(), Ok(()));
    }
}
