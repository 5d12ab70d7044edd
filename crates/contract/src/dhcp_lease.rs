//! The state of a DHCP lease that passes from one node to the next.

use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use jiff::Timestamp;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::is_unicast;

/// The state that the holder of a DHCP lease leaves for its successor. With it and the MAC address, the successor
/// continues by INIT-REBOOT, and within the lease even before the server has answered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseRecord<A, S> {
    /// The address.
    pub address: A,
    /// The server that granted it last.
    pub server: S,
    /// When the lease ends unless renewed; absent: never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires: Option<Timestamp>,
}

/// The state of a DHCPv4 lease; the server is option 54 of the last ACK.
pub type LeaseFacts = LeaseRecord<Ipv4Addr, Ipv4Addr>;

/// The state of a DHCPv6 lease; the server is the DUID of the last REPLY, in hexadecimal digits. The client's DUID is
/// derived from the Service's UID.
pub type LeaseFacts6 = LeaseRecord<Ipv6Addr, String>;

impl<A: Copy + Into<IpAddr> + Serialize + DeserializeOwned, S: Serialize + DeserializeOwned> LeaseRecord<A, S> {
    /// The text of the annotation.
    pub fn to_annotation(&self) -> String {
        serde_json::to_string(self).expect("three plain fields are always valid JSON")
    }

    fn read(text: &str) -> Option<Self> {
        serde_json::from_str(text).ok().filter(|facts: &Self| is_unicast(facts.address.into()))
    }
}

impl LeaseFacts {
    /// Parses the annotation; a malformed one counts as absent.
    pub fn parse(text: &str) -> Option<Self> {
        Self::read(text)
    }
}

impl LeaseFacts6 {
    /// Parses the annotation; a malformed one counts as absent.
    pub fn parse(text: &str) -> Option<Self> {
        Self::read(text).filter(|facts| facts.server_duid().is_some())
    }

    /// A DUID as hexadecimal digits.
    pub fn digits(duid: &[u8]) -> String {
        duid.iter().fold(String::new(), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        })
    }

    /// The server's DUID; `None` if the text is malformed.
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
