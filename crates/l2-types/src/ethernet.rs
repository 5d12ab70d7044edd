//! The Ethernet header, and what our ARP and NDP frames have in common.

use crate::Mac;

/// Length of the header without VLAN tag.
pub(crate) const HEADER_LEN: usize = 14;
/// The shortest frame (without check sequence); shorter ones are padded by the sender.
pub(crate) const MIN_FRAME_LEN: usize = 60;
/// Bytes that an ARP frame has left for an opaque payload: 42 to 59. The NDP frames carry as much in an option.
pub const PAYLOAD_LEN: usize = MIN_FRAME_LEN - HEADER_LEN - 28;

/// An opaque payload that travels beside the ARP or NDP message; what is in it is the caller's affair.
pub type Payload = [u8; PAYLOAD_LEN];

/// `ethertype` of IPv4.
pub const ETHERTYPE_IPV4: u16 = 0x0800;
/// `ethertype` of ARP.
pub const ETHERTYPE_ARP: u16 = 0x0806;
/// `ethertype` of IPv6.
pub const ETHERTYPE_IPV6: u16 = 0x86dd;

/// The head of every frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EthernetHeader {
    /// Who shall receive the frame.
    pub destination: Mac,
    /// Who sent it.
    pub source: Mac,
    /// What it carries (an ethertype), in host order.
    pub ethertype: u16,
}

impl EthernetHeader {
    /// Splits a frame into its header and what follows. `None` if it is too short.
    ///
    /// VLAN tags are no concern here: the kernel strips them before a packet socket sees the frame.
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
