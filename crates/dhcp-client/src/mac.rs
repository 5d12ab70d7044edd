//! Ethernet addresses.

use std::{fmt, str::FromStr};

/// An Ethernet address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mac([u8; 6]);

impl Mac {
    /// Everybody on the link.
    pub const BROADCAST: Self = Self([0xff; 6]);

    /// The six bytes as they are on the wire.
    pub const fn octets(self) -> [u8; 6] {
        self.0
    }

    /// Whether a network interface can have this address: not the zero address, not a group.
    pub fn is_unicast(self) -> bool {
        self.0[0] & 1 == 0 && self.0 != [0; 6]
    }
}

impl From<[u8; 6]> for Mac {
    fn from(octets: [u8; 6]) -> Self {
        Self(octets)
    }
}

impl From<Mac> for [u8; 6] {
    fn from(mac: Mac) -> Self {
        mac.0
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [head, tail @ ..] = self.0;
        write!(f, "{head:02x}")?;
        tail.iter().try_for_each(|octet| write!(f, ":{octet:02x}"))
    }
}

/// The text is not an Ethernet address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not an Ethernet address: expected six hexadecimal bytes separated by colons, such as 00:00:6c:aa:bb:cc"
)]
pub struct MacError(String);

impl FromStr for Mac {
    type Err = MacError;

    fn from_str(text: &str) -> Result<Self, MacError> {
        let mut octets = [0; 6];
        let mut parts = text.split(':');
        for octet in &mut octets {
            *octet = parts
                .next()
                .filter(|part| part.len() == 2 && part.bytes().all(|byte| byte.is_ascii_hexdigit()))
                .and_then(|part| u8::from_str_radix(part, 16).ok())
                .ok_or_else(|| MacError(text.to_owned()))?;
        }
        match parts.next() {
            None => Ok(Self(octets)),
            Some(_) => Err(MacError(text.to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_survives_text() {
        let mac = Mac::from([0, 0, 0x6c, 0xaa, 0x0b, 0xff]);
        assert_eq!(mac.to_string(), "00:00:6c:aa:0b:ff");
        assert_eq!(mac.to_string().parse(), Ok(mac));
        assert_eq!("00:00:6C:AA:0B:FF".parse(), Ok(mac));
    }

    #[test]
    fn anything_else_is_refused_and_named() {
        for text in
            ["", "00:00:6c:aa:bb", "00:00:6c:aa:bb:cc:dd", "0:0:6c:aa:bb:cc", "00-00-6c-aa-bb-cc", "00:00:6c:aa:bb:+c"]
        {
            let error = text.parse::<Mac>().unwrap_err();
            assert!(error.to_string().contains(&format!("{text:?}")), "{error}");
        }
    }

    #[test]
    fn groups_and_zero_belong_to_no_interface() {
        assert!(!Mac::BROADCAST.is_unicast());
        assert!(!Mac::from([0; 6]).is_unicast());
        assert!(!Mac::from([1, 0, 0x5e, 0, 0, 1]).is_unicast());
        assert!(Mac::from([2, 0, 0, 0, 0, 1]).is_unicast());
    }
}
