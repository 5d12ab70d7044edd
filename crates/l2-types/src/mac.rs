//! The Ethernet address.

use std::{fmt, str::FromStr};

/// An Ethernet (MAC) address, printed and parsed as `00:00:6c:1a:2b:3c`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Mac([u8; 6]);

impl Mac {
    /// `ff:ff:ff:ff:ff:ff`: all hosts on the segment.
    pub const BROADCAST: Self = Self([0xff; 6]);
    /// `00:00:00:00:00:00`: "unknown", as the target of an ARP request.
    pub const ZERO: Self = Self([0; 6]);

    /// The address with these six bytes.
    pub const fn new(octets: [u8; 6]) -> Self {
        Self(octets)
    }

    /// Its six bytes, as on the wire.
    pub const fn octets(self) -> [u8; 6] {
        self.0
    }

    /// A group address; the broadcast address is one of them.
    pub const fn is_multicast(self) -> bool {
        self.0[0] & 1 == 1
    }

    /// An address that one interface can own: neither a group nor all zero.
    pub fn is_unicast(self) -> bool {
        !self.is_multicast() && self != Self::ZERO
    }

    /// A MAC for the macvlan of a VIP: locally administered, with five bytes of its own. kube-vip varies only three
    /// bytes behind a manufacturer's prefix; with 5,000 Services two of them then have the same MAC with a probability
    /// of one half.
    pub fn of_vip(own: [u8; 5]) -> Self {
        let mut octets = [0x02; 6];
        octets[1..].copy_from_slice(&own);
        Self(octets)
    }

    /// Reads a MAC from the start of `bytes`.
    pub(crate) fn read(bytes: &[u8]) -> Option<Self> {
        bytes.first_chunk::<6>().map(|octets| Self(*octets))
    }
}

impl From<[u8; 6]> for Mac {
    fn from(octets: [u8; 6]) -> Self {
        Self(octets)
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [head, tail @ ..] = self.0;
        write!(f, "{head:02x}")?;
        tail.iter().try_for_each(|octet| write!(f, ":{octet:02x}"))
    }
}

impl fmt::Debug for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The text is not a MAC address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not a MAC address: accepted are six pairs of hexadecimal digits separated by ':' or '-', as \
    00:00:6c:1a:2b:3c"
)]
pub struct ParseMacError(String);

impl FromStr for Mac {
    type Err = ParseMacError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = || ParseMacError(text.to_owned());
        let separator = if text.contains('-') { '-' } else { ':' };
        let mut octets = [0; 6];
        let mut pairs = text.split(separator);
        for octet in &mut octets {
            let pair = pairs.next().ok_or_else(error)?;
            // `from_str_radix` alone would accept "+f" and "f".
            if pair.len() != 2 || !pair.bytes().all(|digit| digit.is_ascii_hexdigit()) {
                return Err(error());
            }
            *octet = u8::from_str_radix(pair, 16).map_err(|_| error())?;
        }
        if pairs.next().is_some() {
            return Err(error());
        }
        Ok(Self(octets))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn reads_the_common_spellings() {
        let mac = Mac::new([0x00, 0x00, 0x6c, 0x1a, 0x2b, 0xfc]);
        for text in ["00:00:6c:1a:2b:fc", "00:00:6C:1A:2B:FC", "00-00-6c-1a-2b-fc"] {
            assert_eq!(text.parse(), Ok(mac), "{text}");
        }
        assert_eq!(mac.to_string(), "00:00:6c:1a:2b:fc");
    }

    #[test]
    fn refuses_the_rest_and_says_what_is_accepted() {
        for text in [
            "",
            "00",
            "00:00:6c:1a:2b",
            "00:00:6c:1a:2b:fc:00",
            "0:0:6c:1a:2b:fc",
            "+0:00:6c:1a:2b:fc",
            "00:00-6c:1a:2b:fc",
            "gg:00:6c:1a:2b:fc",
            "00:00:6c:1a:2b:fc ",
        ] {
            let error = text.parse::<Mac>().expect_err(text);
            assert!(error.to_string().starts_with(&format!("{text:?} is not a MAC address: accepted are")), "{error}");
        }
    }

    #[test]
    fn a_vip_mac_is_locally_administered_and_unicast() {
        let mac = Mac::of_vip([0xff, 2, 3, 4, 5]);
        assert_eq!(mac.octets(), [0x02, 0xff, 2, 3, 4, 5]);
        assert!(mac.is_unicast());
    }

    #[test]
    fn broadcast_is_a_group_and_zero_is_nobody() {
        assert!(Mac::BROADCAST.is_multicast() && !Mac::BROADCAST.is_unicast());
        assert!(!Mac::ZERO.is_multicast() && !Mac::ZERO.is_unicast());
    }

    proptest! {
        #[test]
        fn what_is_printed_is_read_back(octets: [u8; 6]) {
            let mac = Mac::new(octets);
            prop_assert_eq!(mac.to_string().parse(), Ok(mac));
        }

        #[test]
        fn any_text_is_answered(text: String) {
            let _ = text.parse::<Mac>();
        }
    }
}
