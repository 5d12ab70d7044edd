//! Ethernet addresses, as far as this crate needs them: it does no input or output, so it does not share the type of a crate that does.

use std::fmt;

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

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [head, tail @ ..] = self.0;
        write!(f, "{head:02x}")?;
        tail.iter().try_for_each(|octet| write!(f, ":{octet:02x}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_printed_with_colons() {
        assert_eq!(Mac::from([0, 0, 0x6c, 0xaa, 0x0b, 0xff]).to_string(), "00:00:6c:aa:0b:ff");
    }

    #[test]
    fn groups_and_zero_belong_to_no_interface() {
        assert!(!Mac::BROADCAST.is_unicast());
        assert!(!Mac::from([0; 6]).is_unicast());
        assert!(!Mac::from([1, 0, 0x5e, 0, 0, 1]).is_unicast());
        assert!(Mac::from([2, 0, 0, 0, 0, 1]).is_unicast());
    }
}
