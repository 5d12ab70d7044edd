//! Messages of clients, read; messages of servers, written.

use std::net::Ipv4Addr;

use dhcp_client::Mac;
use dhcp_client::frame::{self, CLIENT_PORT, Datagram, SERVER_PORT};
use dhcproto::v4::{DhcpOption, Message, MessageType, Opcode, OptionCode};
use dhcproto::{Decodable, Encodable};

/// By what a server tells clients from each other.
pub type ClientId = Vec<u8>;

/// What an answer gives unless a test says otherwise, by whom and for how long.
pub const ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 100);
/// See there.
pub const SERVER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
/// See there.
pub const LEASE_SECONDS: u32 = 3600;

/// The MAC of that server.
pub fn server_mac() -> Mac {
    Mac::from([2, 0, 0, 0, 0, 1])
}

/// A message of a client.
#[derive(Debug, Clone)]
pub struct Sent {
    /// Ethernet source.
    pub source_mac: Mac,
    /// Ethernet destination.
    pub destination_mac: Mac,
    /// IPv4 source.
    pub source: Ipv4Addr,
    /// IPv4 destination.
    pub destination: Ipv4Addr,
    /// Length of the message.
    pub payload_bytes: usize,
    /// The message.
    pub message: Message,
}

impl Sent {
    /// Reads a frame; `None` if it is nothing for a DHCP server.
    pub fn read(bytes: &[u8]) -> Option<Self> {
        let datagram = frame::parse(bytes).ok()?;
        if (datagram.source_port, datagram.destination_port) != (CLIENT_PORT, SERVER_PORT) {
            return None;
        }
        Some(Self {
            source_mac: datagram.source_mac,
            destination_mac: datagram.destination_mac,
            source: datagram.source,
            destination: datagram.destination,
            payload_bytes: datagram.payload.len(),
            message: Message::from_bytes(datagram.payload).ok()?,
        })
    }

    /// Option 53.
    pub fn kind(&self) -> MessageType {
        self.message.opts().msg_type().expect("every message of ours has a type")
    }

    /// Option 50.
    pub fn requested(&self) -> Option<Ipv4Addr> {
        match self.message.opts().get(OptionCode::RequestedIpAddress) {
            Some(DhcpOption::RequestedIpAddress(address)) => Some(*address),
            _ => None,
        }
    }

    /// The address that it is about: option 50, else `ciaddr`.
    pub fn named(&self) -> Option<Ipv4Addr> {
        self.requested().or_else(|| Some(self.message.ciaddr()).filter(|address| !address.is_unspecified()))
    }

    /// Option 54.
    pub fn server_id(&self) -> Option<Ipv4Addr> {
        match self.message.opts().get(OptionCode::ServerIdentifier) {
            Some(DhcpOption::ServerIdentifier(address)) => Some(*address),
            _ => None,
        }
    }

    /// Option 61.
    pub fn client_id(&self) -> Option<&[u8]> {
        match self.message.opts().get(OptionCode::ClientIdentifier) {
            Some(DhcpOption::ClientIdentifier(id)) => Some(id),
            _ => None,
        }
    }

    /// By what a server tells this client from others: option 61, else the MAC (RFC 2131 4.2).
    pub fn client(&self) -> ClientId {
        self.client_id().unwrap_or(self.message.chaddr()).to_vec()
    }

    /// Whether this option is there.
    pub fn has(&self, code: OptionCode) -> bool {
        self.message.opts().contains(code)
    }

    /// Panics unless it went to everybody, from this address.
    #[track_caller]
    pub fn assert_broadcast_from(&self, source: Ipv4Addr) {
        assert_eq!(
            (self.source, self.destination, self.destination_mac),
            (source, Ipv4Addr::BROADCAST, Mac::BROADCAST)
        );
    }
}

/// A server's message. Starts right; tests change it.
#[derive(Debug, Clone)]
pub struct ServerMessage {
    /// Ethernet source.
    pub source_mac: Mac,
    /// Ethernet destination.
    pub destination_mac: Mac,
    /// IPv4 source.
    pub source: Ipv4Addr,
    /// The message.
    pub message: Message,
}

impl ServerMessage {
    fn to(sent: &Sent, kind: MessageType) -> Self {
        let mut message = Message::new_with_id(
            sent.message.xid(),
            Ipv4Addr::UNSPECIFIED,
            Ipv4Addr::UNSPECIFIED,
            Ipv4Addr::UNSPECIFIED,
            Ipv4Addr::UNSPECIFIED,
            sent.message.chaddr(),
        );
        message.set_opcode(Opcode::BootReply);
        message.opts_mut().insert(DhcpOption::MessageType(kind));
        message.opts_mut().insert(DhcpOption::ServerIdentifier(SERVER));
        Self { source_mac: server_mac(), destination_mac: sent.source_mac, source: SERVER, message }
    }

    /// OFFER of [`ADDRESS`].
    pub fn offer(sent: &Sent) -> Self {
        Self::to(sent, MessageType::Offer).address(ADDRESS).lease(LEASE_SECONDS)
    }

    /// ACK of what was asked for.
    pub fn ack(sent: &Sent) -> Self {
        let address = sent.requested().unwrap_or(sent.message.ciaddr());
        Self::to(sent, MessageType::Ack).address(address).lease(LEASE_SECONDS)
    }

    /// NAK.
    pub fn nak(sent: &Sent) -> Self {
        Self::to(sent, MessageType::Nak).option(DhcpOption::Message("lease not found".into()))
    }

    /// Option 53.
    pub fn kind(&self) -> MessageType {
        self.message.opts().msg_type().expect("it was made with one")
    }

    /// With this address.
    pub fn address(mut self, address: Ipv4Addr) -> Self {
        self.message.set_yiaddr(address);
        self
    }

    /// For so long.
    pub fn lease(self, seconds: u32) -> Self {
        self.option(DhcpOption::AddressLeaseTime(seconds))
    }

    /// By this server.
    pub fn server(mut self, server: Ipv4Addr) -> Self {
        self.source = server;
        self.option(DhcpOption::ServerIdentifier(server))
    }

    /// With this option.
    pub fn option(mut self, option: DhcpOption) -> Self {
        self.message.opts_mut().insert(option);
        self
    }

    /// Without this option.
    pub fn without(mut self, code: OptionCode) -> Self {
        self.message.opts_mut().remove(code);
        self
    }

    /// Changed.
    pub fn with(mut self, change: impl FnOnce(&mut Message)) -> Self {
        change(&mut self.message);
        self
    }

    /// As it is on the wire.
    pub fn frame(&self) -> Vec<u8> {
        self.frame_with_payload(&self.message.to_vec().expect("an answer of the tests can be encoded"))
    }

    /// With something else in its place.
    pub fn frame_with_payload(&self, payload: &[u8]) -> Vec<u8> {
        frame::build(&Datagram {
            source_mac: self.source_mac,
            destination_mac: self.destination_mac,
            source: self.source,
            destination: Ipv4Addr::BROADCAST,
            source_port: SERVER_PORT,
            destination_port: CLIENT_PORT,
            payload,
        })
        .expect("an answer of the tests fits")
    }
}
