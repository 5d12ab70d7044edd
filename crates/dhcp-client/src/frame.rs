//! Whole Ethernet frames around UDP datagrams: Ethernet II, IPv4 without options, UDP. Pure functions with both
//! checksums, because a packet socket bypasses the kernel's stack in both directions.

use std::net::Ipv4Addr;

use crate::Mac;

/// Where DHCP servers and relays listen.
pub const SERVER_PORT: u16 = 67;
/// Port to which servers send replies. It need not be bound, because a packet socket receives them anyway.
pub const CLIENT_PORT: u16 = 68;

const ETHERTYPE_IPV4: u16 = 0x0800;
const PROTOCOL_UDP: u8 = 17;
const ETHERNET_BYTES: usize = 14;
const IPV4_BYTES: usize = 20;
const UDP_BYTES: usize = 8;
const DONT_FRAGMENT: u16 = 0x4000;
/// More-fragments bit and fragment offset: zero in a datagram that is whole.
const FRAGMENT_BITS: u16 = 0x3fff;
const TIME_TO_LIVE: u8 = 64;

/// A UDP datagram with its addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Datagram<'a> {
    /// Ethernet source.
    pub source_mac: Mac,
    /// Ethernet destination.
    pub destination_mac: Mac,
    /// IPv4 source.
    pub source: Ipv4Addr,
    /// IPv4 destination.
    pub destination: Ipv4Addr,
    /// UDP source port.
    pub source_port: u16,
    /// UDP destination port.
    pub destination_port: u16,
    /// The payload.
    pub payload: &'a [u8],
}

/// Why bytes are not a UDP datagram in an Ethernet frame, or cannot become one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The frame is shorter than its headers say.
    #[error("the frame is truncated")]
    Truncated,
    /// The frame is not UDP over IPv4 over untagged Ethernet.
    #[error("the frame carries no UDP over IPv4")]
    OtherProtocol,
    /// The datagram is a fragment. DHCP messages of the requested size (option 57) are never fragmented.
    #[error("the frame carries a fragment")]
    Fragment,
    /// The header length or the total length is invalid.
    #[error("a header's length field is wrong")]
    Length,
    /// The IPv4 header checksum is wrong.
    #[error("the IPv4 header checksum is wrong")]
    HeaderChecksum,
    /// The UDP checksum is wrong.
    #[error("the UDP checksum is wrong")]
    UdpChecksum,
    /// The payload is too long for one datagram.
    #[error("a payload of {0} bytes does not fit in a datagram")]
    TooLong(usize),
}

/// Makes a frame for a packet socket from a datagram.
pub fn build(datagram: &Datagram<'_>) -> Result<Vec<u8>, FrameError> {
    let too_long = || FrameError::TooLong(datagram.payload.len());
    let udp_bytes = UDP_BYTES + datagram.payload.len();
    let udp_length = u16::try_from(udp_bytes).map_err(|_| too_long())?;
    let total_length = u16::try_from(IPV4_BYTES + udp_bytes).map_err(|_| too_long())?;

    let mut header = [0; IPV4_BYTES];
    header[0] = 0x45;
    header[2..4].copy_from_slice(&total_length.to_be_bytes());
    header[6..8].copy_from_slice(&DONT_FRAGMENT.to_be_bytes());
    header[8] = TIME_TO_LIVE;
    header[9] = PROTOCOL_UDP;
    header[12..16].copy_from_slice(&datagram.source.octets());
    header[16..20].copy_from_slice(&datagram.destination.octets());
    let checksum = !folded(sum(&header));
    header[10..12].copy_from_slice(&checksum.to_be_bytes());

    let mut udp = Vec::with_capacity(udp_bytes);
    for field in [datagram.source_port, datagram.destination_port, udp_length, 0] {
        udp.extend_from_slice(&field.to_be_bytes());
    }
    udp.extend_from_slice(datagram.payload);
    let checksum = match !folded(pseudo_header_sum(datagram.source, datagram.destination, udp_length) + sum(&udp)) {
        0 => 0xffff, // zero on the wire means "no checksum"
        checksum => checksum,
    };
    udp[6..8].copy_from_slice(&checksum.to_be_bytes());

    let mut frame = Vec::with_capacity(ETHERNET_BYTES + IPV4_BYTES + udp_bytes);
    frame.extend_from_slice(&datagram.destination_mac.octets());
    frame.extend_from_slice(&datagram.source_mac.octets());
    frame.extend_from_slice(&ETHERTYPE_IPV4.to_be_bytes());
    frame.extend_from_slice(&header);
    frame.extend_from_slice(&udp);
    Ok(frame)
}

/// Reads the datagram in a received frame. Padding behind the IPv4 packet is not part of the payload.
pub fn parse(frame: &[u8]) -> Result<Datagram<'_>, FrameError> {
    let (ethernet, packet) = frame.split_first_chunk::<ETHERNET_BYTES>().ok_or(FrameError::Truncated)?;
    if be16(ethernet, 12)? != ETHERTYPE_IPV4 {
        return Err(FrameError::OtherProtocol);
    }
    let version_and_length = *packet.first().ok_or(FrameError::Truncated)?;
    let header_bytes = usize::from(version_and_length & 0x0f) * 4;
    if version_and_length >> 4 != 4 {
        return Err(FrameError::OtherProtocol);
    }
    if header_bytes < IPV4_BYTES {
        return Err(FrameError::Length);
    }
    let header = packet.get(..header_bytes).ok_or(FrameError::Truncated)?;
    if folded(sum(header)) != 0xffff {
        return Err(FrameError::HeaderChecksum);
    }
    if header[9] != PROTOCOL_UDP {
        return Err(FrameError::OtherProtocol);
    }
    if be16(header, 6)? & FRAGMENT_BITS != 0 {
        return Err(FrameError::Fragment);
    }
    let total_bytes = usize::from(be16(header, 2)?);
    if total_bytes < header_bytes + UDP_BYTES {
        return Err(FrameError::Length);
    }
    let after_header = packet.get(header_bytes..total_bytes).ok_or(FrameError::Truncated)?;
    let udp_length = be16(after_header, 4)?;
    if usize::from(udp_length) < UDP_BYTES {
        return Err(FrameError::Length);
    }
    let udp = after_header.get(..usize::from(udp_length)).ok_or(FrameError::Truncated)?;
    let source = address(header, 12)?;
    let destination = address(header, 16)?;
    if !udp_checksum_is_plausible(udp, pseudo_header_sum(source, destination, udp_length)) {
        return Err(FrameError::UdpChecksum);
    }
    Ok(Datagram {
        source_mac: mac(ethernet, 6)?,
        destination_mac: mac(ethernet, 0)?,
        source,
        destination,
        source_port: be16(udp, 0)?,
        destination_port: be16(udp, 2)?,
        payload: &udp[UDP_BYTES..],
    })
}

/// Whether the checksum is right, absent or incomplete. A frame from a server on the same host (another VM or network
/// namespace) reaches a packet socket before a network card completes its checksum; the field then holds only the sum
/// of the pseudo header. A strict check would lose every reply of such a server.
fn udp_checksum_is_plausible(udp: &[u8], pseudo: u32) -> bool {
    let field = u16::from_be_bytes([udp[6], udp[7]]);
    field == 0 || field == folded(pseudo) || folded(pseudo + sum(udp)) == 0xffff
}

fn pseudo_header_sum(source: Ipv4Addr, destination: Ipv4Addr, udp_length: u16) -> u32 {
    sum(&source.octets()) + sum(&destination.octets()) + u32::from(PROTOCOL_UDP) + u32::from(udp_length)
}

/// Sum of 16-bit words (RFC 1071) without folding of carries; 65,535 bytes cannot overflow it.
pub(crate) fn sum(bytes: &[u8]) -> u32 {
    let (words, rest) = bytes.as_chunks::<2>();
    let tail = rest.first().map_or(0, |byte| u32::from(*byte) << 8);
    words.iter().map(|word| u32::from(u16::from_be_bytes(*word))).sum::<u32>() + tail
}

pub(crate) fn folded(mut sum: u32) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    u16::try_from(sum).expect("the loop ends only when the sum fits in 16 bits")
}

fn chunk<const N: usize>(bytes: &[u8], at: usize) -> Result<[u8; N], FrameError> {
    bytes.get(at..).and_then(|rest| rest.first_chunk::<N>()).copied().ok_or(FrameError::Truncated)
}

fn be16(bytes: &[u8], at: usize) -> Result<u16, FrameError> {
    chunk(bytes, at).map(u16::from_be_bytes)
}

fn address(bytes: &[u8], at: usize) -> Result<Ipv4Addr, FrameError> {
    chunk::<4>(bytes, at).map(Ipv4Addr::from)
}

fn mac(bytes: &[u8], at: usize) -> Result<Mac, FrameError> {
    chunk::<6>(bytes, at).map(Mac::from)
}
