//! The Ethernet header, and the common constants of our ARP and NDP frames.

use crate::Mac;

/// Length of the header without VLAN tag.
pub(crate) const HEADER_LEN: usize = 14;
/// Length of the shortest frame, without check sequence; the sender pads shorter ones.
pub(crate) const MIN_FRAME_LEN: usize = 60;
/// Length of the opaque payload: bytes 42 to 59 of an ARP frame. NDP frames carry as much in an option.
pub const PAYLOAD_LEN: usize = MIN_FRAME_LEN - HEADER_LEN - 28;

/// An opaque payload beside the ARP or NDP message; the caller defines its content.
pub type Payload = [u8; PAYLOAD_LEN];

/// `ethertype` of IPv4.
pub const ETHERTYPE_IPV4: u16 = 0x0800;
/// `ethertype` of ARP.
pub const ETHERTYPE_ARP: u16 = 0x0806;
/// `ethertype` of IPv6.
pub const ETHERTYPE_IPV6: u16 = 0x86dd;

/// The Ethernet header of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EthernetHeader {
    /// MAC of the recipient.
    pub destination: Mac,
    /// MAC of the sender.
    pub source: Mac,
    /// Ethertype of the content, in host byte order.
    pub ethertype: u16,
}

impl EthernetHeader {
    /// Splits a frame into its header and what follows. `None` if it is too short.
    ///
    /// VLAN tags are not handled, because the kernel strips them before a packet socket receives the frame.
    pub fn parse(frame: &[u8]) -> Option<(Self, &[u8])> {
        let (header, rest) = frame.split_first_chunk::<HEADER_LEN>()?;
        let [d0, d1, d2, d3, d4, d5, s0, s1, s2, s3, s4, s5, t0, t1] = *header;
        let header = Self {
            destination: Mac::new([d0, d1, d2, d3, d4, d5]),
            source: Mac::new([s0, s1, s2, s3, s4, s5]),
            ethertype: u16::from_be_bytes([t0, t1]),
        };
        Some((header, rest))
    }

    pub(crate) fn bytes(&self) -> [u8; HEADER_LEN] {
        let mut bytes = [0; HEADER_LEN];
        bytes[..6].copy_from_slice(&self.destination.octets());
        bytes[6..12].copy_from_slice(&self.source.octets());
        bytes[12..].copy_from_slice(&self.ethertype.to_be_bytes());
        bytes
    }
}
