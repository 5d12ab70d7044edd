//! Encodes requests and decodes the servers' replies. RFC 2131 table 5 says which option is in which message.
//!
//! dhcproto encodes the requests. For decoding, its owned message stops at the first invalid option, and its debug
//! build panics on a malformed option 80. So replies are read through its borrowed option iterator, and only the
//! options that the client needs are interpreted.

use std::net::Ipv4Addr;

use dhcproto::{
    Encodable,
    v4::{self, DhcpOption, MessageType, OptionCode, borrowed},
};

use crate::{
    Config, Mac,
    frame::{self, CLIENT_PORT},
};

/// The options that kube-vip requests (subnet mask, router, DNS, domain name), and T1 and T2, which some servers send
/// only on request.
const PARAMETERS: [OptionCode; 6] = [
    OptionCode::SubnetMask,
    OptionCode::Router,
    OptionCode::DomainNameServer,
    OptionCode::DomainName,
    OptionCode::Renewal,
    OptionCode::Rebinding,
];

const MAX_MESSAGE_BYTES: u16 = 1500;

/// Old relays and servers drop messages that are shorter than a BOOTP message.
const MIN_MESSAGE_BYTES: usize = 300;

const HARDWARE_ETHERNET: u8 = 1;
const OP_REPLY: u8 = 2;
const HEADER_BYTES: usize = 240;

/// A message of the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Request {
    Discover {
        wish: Option<Ipv4Addr>,
    },
    /// Names the offered address, not the requested one. A server that offered another address would refuse the
    /// requested one for ever (kube-vip spec 10.1 row 9).
    Select {
        offered: Ipv4Addr,
        server_id: Ipv4Addr,
    },
    /// INIT-REBOOT: confirms a remembered address.
    Confirm {
        address: Ipv4Addr,
    },
    /// RENEW and REBIND differ only in where they are sent.
    Extend {
        address: Ipv4Addr,
    },
    Decline {
        address: Ipv4Addr,
        server_id: Ipv4Addr,
        used_by: Mac,
    },
    Release {
        address: Ipv4Addr,
        server_id: Ipv4Addr,
    },
}

pub(crate) fn encode(config: &Config, request: &Request, xid: u32, secs: u16) -> Vec<u8> {
    let nobody = Ipv4Addr::UNSPECIFIED;
    let (kind, client_address) = match *request {
        Request::Discover { .. } => (MessageType::Discover, nobody),
        Request::Select { .. } | Request::Confirm { .. } => (MessageType::Request, nobody),
        Request::Extend { address } => (MessageType::Request, address),
        Request::Decline { .. } => (MessageType::Decline, nobody),
        Request::Release { address, .. } => (MessageType::Release, address),
    };
    let mut message = v4::Message::new_with_id(xid, client_address, nobody, nobody, nobody, &config.mac.octets());
    message.set_secs(secs);

    let options = message.opts_mut();
    options.insert(DhcpOption::MessageType(kind));
    if let Some(id) = config.client_id() {
        options.insert(DhcpOption::ClientIdentifier(id));
    }
    let (requested, server) = match *request {
        Request::Discover { wish } => (wish, None),
        Request::Select { offered, server_id } => (Some(offered), Some(server_id)),
        Request::Confirm { address } => (Some(address), None),
        Request::Extend { .. } => (None, None),
        Request::Decline { address, server_id, .. } => (Some(address), Some(server_id)),
        Request::Release { server_id, .. } => (None, Some(server_id)),
    };
    if let Some(address) = requested {
        options.insert(DhcpOption::RequestedIpAddress(address));
    }
    if let Some(server_id) = server {
        options.insert(DhcpOption::ServerIdentifier(server_id));
    }
    if let Request::Decline { used_by, .. } = request {
        options.insert(DhcpOption::Message(format!("address in use by {used_by}")));
    }
    if !matches!(kind, MessageType::Decline | MessageType::Release) {
        options.insert(DhcpOption::ParameterRequestList(PARAMETERS.to_vec()));
        options.insert(DhcpOption::MaxMessageSize(MAX_MESSAGE_BYTES));
        if let Some(name) = config.hostname() {
            options.insert(DhcpOption::Hostname(name.to_owned()));
        }
        // With a leased address the server answers to that address; the flag is for clients without one.
        if config.broadcast_flag && client_address == nobody {
            message.set_flags(v4::Flags::default().set_broadcast());
        }
    }

    let mut bytes = message.to_vec().expect("the header is fixed and Config::validate bounds every text");
    bytes.resize(bytes.len().max(MIN_MESSAGE_BYTES), 0);
    bytes
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReplyKind {
    Offer,
    Ack,
    Nak,
}

/// A server's message to our MAC. The state machine decides whether it answers the current request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Reply {
    pub kind: ReplyKind,
    pub xid: u32,
    pub your_address: Ipv4Addr,
    /// Option 54.
    pub server_id: Option<Ipv4Addr>,
    /// IPv4 source of the datagram: the server or its relay.
    pub sender: Ipv4Addr,
    pub sender_mac: Mac,
    pub netmask: Option<Ipv4Addr>,
    pub routers: Vec<Ipv4Addr>,
    pub lease_seconds: Option<u32>,
    pub renewal_seconds: Option<u32>,
    pub rebinding_seconds: Option<u32>,
    /// Option 56, without control characters.
    pub message: Option<String>,
}

impl Reply {
    /// The server by option 54, or otherwise the sender of the datagram.
    pub fn server(&self) -> Ipv4Addr {
        self.server_id.unwrap_or(self.sender)
    }
}

/// The reply to `mac` in a received frame; `None` for anything else.
pub(crate) fn parse(frame: &[u8], mac: Mac) -> Option<Reply> {
    let datagram = frame::parse(frame).ok()?;
    if datagram.destination_port != CLIENT_PORT {
        return None;
    }
    let bytes = datagram.payload;
    let header = bytes.first_chunk::<HEADER_BYTES>()?;
    let is_reply_to_ethernet = header[0] == OP_REPLY && header[1] == HARDWARE_ETHERNET && header[2] == 6;
    if !is_reply_to_ethernet || header[28..34] != mac.octets() || header[236..] != v4::MAGIC {
        return None;
    }
    let message = borrowed::Message::new(bytes).ok()?;

    let mut reply = Reply {
        kind: ReplyKind::Offer,
        xid: message.xid(),
        your_address: message.yiaddr(),
        server_id: None,
        sender: datagram.source,
        sender_mac: datagram.source_mac,
        netmask: None,
        routers: Vec::new(),
        lease_seconds: None,
        renewal_seconds: None,
        rebinding_seconds: None,
        message: None,
    };
    let mut kind = None;
    let mut take = |code: OptionCode, data: &[u8]| match code {
        OptionCode::MessageType => first(&mut kind, data.first().copied()),
        OptionCode::ServerIdentifier => first(&mut reply.server_id, address(data)),
        OptionCode::SubnetMask => first(&mut reply.netmask, address(data)),
        OptionCode::AddressLeaseTime => first(&mut reply.lease_seconds, seconds(data)),
        OptionCode::Renewal => first(&mut reply.renewal_seconds, seconds(data)),
        OptionCode::Rebinding => first(&mut reply.rebinding_seconds, seconds(data)),
        OptionCode::Message => first(&mut reply.message, printable(data)),
        OptionCode::Router if reply.routers.is_empty() => {
            reply.routers = data.as_chunks::<4>().0.iter().map(|octets| Ipv4Addr::from(*octets)).collect();
        }
        _ => {}
    };
    for option in message.opts() {
        take(option.code(), option.data());
    }
    // RFC 2132 9.3: bit 1, options go on in `file`; bit 2, in `sname`.
    let overload = message.opts().find(|option| option.code() == OptionCode::OptionOverload);
    let overload = overload.and_then(|option| option.data().first().copied()).unwrap_or(0);
    let areas = [(overload & 1 != 0, 108..236), (overload & 2 != 0, 44..108)];
    for (_, area) in areas.into_iter().filter(|(used, _)| *used) {
        for option in borrowed::DhcpOptionIterator::new(&bytes[area]) {
            take(option.code(), option.data());
        }
    }
    reply.kind = match kind.map(MessageType::from)? {
        MessageType::Offer => ReplyKind::Offer,
        MessageType::Ack => ReplyKind::Ack,
        MessageType::Nak => ReplyKind::Nak,
        _ => return None,
    };
    Some(reply)
}

/// Only the first occurrence of an option counts, so that later ones cannot change it.
fn first<T>(slot: &mut Option<T>, value: Option<T>) {
    if slot.is_none() {
        *slot = value;
    }
}

fn address(data: &[u8]) -> Option<Ipv4Addr> {
    <[u8; 4]>::try_from(data).ok().map(Ipv4Addr::from)
}

fn seconds(data: &[u8]) -> Option<u32> {
    <[u8; 4]>::try_from(data).ok().map(u32::from_be_bytes)
}

/// Makes a server's text safe for logs and Events: no control characters, limited, `None` if empty.
fn printable(data: &[u8]) -> Option<String> {
    let text: String = String::from_utf8_lossy(data).chars().filter(|c| !c.is_control()).take(128).collect();
    let text = text.trim();
    (!text.is_empty()).then(|| text.to_owned())
}
