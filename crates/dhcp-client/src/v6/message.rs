//! Encodes requests and decodes the servers' replies (RFC 8415 18 and 21).

use std::net::Ipv6Addr;
use std::time::Duration;

use dhcproto::v6::{DhcpOption, DhcpOptions, IAAddr, IANA, Message, MessageType, ORO, OptionCode, Status, StatusCode};
use dhcproto::{Decodable, Decoder, Encodable, Encoder};

use super::lease::Times;

/// A message of the client: its type, the server and the address.
#[derive(Debug, Clone, Copy)]
pub(super) struct Request<'a> {
    pub kind: MessageType,
    pub server: Option<&'a [u8]>,
    pub address: Option<Ipv6Addr>,
}

/// A server's reply.
#[derive(Debug, Clone)]
pub(super) struct Reply {
    pub advertise: bool,
    pub xid: [u8; 3],
    pub server: Vec<u8>,
    pub granted: Option<(Ipv6Addr, Times)>,
    /// The first status other than success, in any option.
    pub status: Option<(Status, String)>,
    /// Whether the reply has our association, with or without an address.
    pub has_association: bool,
    /// SOL_MAX_RT, if its value is valid.
    pub longest_wait: Option<Duration>,
}

pub(super) fn encode(duid: &[u8], iaid: u32, xid: [u8; 3], elapsed: u16, request: &Request<'_>) -> Vec<u8> {
    let mut message = Message::new_with_id(request.kind, xid);
    let options = message.opts_mut();
    options.insert(DhcpOption::ClientId(duid.to_vec()));
    if let Some(server) = request.server {
        options.insert(DhcpOption::ServerId(server.to_vec()));
    }
    options.insert(DhcpOption::ElapsedTime(elapsed));
    let mut inner = DhcpOptions::new();
    if let Some(addr) = request.address {
        inner.insert(DhcpOption::IAAddr(IAAddr { addr, preferred_life: 0, valid_life: 0, opts: DhcpOptions::new() }));
    }
    options.insert(DhcpOption::IANA(IANA { id: iaid, t1: 0, t2: 0, opts: inner }));
    if !matches!(request.kind, MessageType::Release | MessageType::Decline | MessageType::Confirm) {
        // SOL_MAX_RT is always requested, because the client must obey it (RFC 8415 18.2.1).
        options.insert(DhcpOption::ORO(ORO { opts: vec![OptionCode::SolMaxRt] }));
    }
    let mut bytes = Vec::new();
    message.encode(&mut Encoder::new(&mut bytes)).expect("a message of ours has short options only");
    bytes
}

/// The reply to the client with this DUID; `None` for anything else.
pub(super) fn parse(bytes: &[u8], duid: &[u8], iaid: u32) -> Option<Reply> {
    let message = Message::decode(&mut Decoder::new(&readable(bytes)?)).ok()?;
    let advertise = match message.msg_type() {
        MessageType::Advertise => true,
        MessageType::Reply => false,
        _ => return None,
    };
    let mut reply = Reply {
        advertise,
        xid: message.xid(),
        server: Vec::new(),
        granted: None,
        status: None,
        has_association: false,
        longest_wait: None,
    };
    let mut ours = false;
    for option in message.opts().iter() {
        match option {
            DhcpOption::ClientId(id) => ours = id == duid,
            DhcpOption::ServerId(id) => reply.server.clone_from(id),
            DhcpOption::StatusCode(code) => reply.fault(code),
            DhcpOption::IANA(association) if association.id == iaid => reply.association(association),
            // dhcproto does not decode this option.
            DhcpOption::Unknown(option) if option.code() == OptionCode::SolMaxRt => {
                reply.longest_wait = longest_wait(option.data());
            }
            _ => {}
        }
    }
    // Required by RFC 8415 16.3 and 16.10.
    (ours && !reply.server.is_empty() && reply.server.len() <= 130).then_some(reply)
}

/// Reads SOL_MAX_RT (RFC 8415 21.24): four bytes; values outside the range are ignored.
fn longest_wait(value: &[u8]) -> Option<Duration> {
    let seconds = u32::from_be_bytes(value.try_into().ok()?);
    (60..=86_400).contains(&seconds).then(|| Duration::from_secs(seconds.into()))
}

/// The message with only those options that the client reads, each at least as long as its fixed part. `None` if an
/// option exceeds the message. dhcproto does not check lengths: a status code of one byte would panic.
fn readable(bytes: &[u8]) -> Option<Vec<u8>> {
    let (head, options) = bytes.split_at_checked(4)?;
    Some([head, &readable_options(options)?].concat())
}

fn readable_options(mut bytes: &[u8]) -> Option<Vec<u8>> {
    const CLIENT_ID: u16 = 1;
    const SERVER_ID: u16 = 2;
    const ASSOCIATION: u16 = 3;
    const ADDRESS: u16 = 5;
    const STATUS: u16 = 13;
    const SOL_MAX_RT: u16 = 82;
    let mut kept = Vec::new();
    while !bytes.is_empty() {
        let ([a, b, c, d], rest) = bytes.split_first_chunk::<4>()?;
        let (value, rest) = rest.split_at_checked(usize::from(u16::from_be_bytes([*c, *d])))?;
        bytes = rest;
        // The fixed part is followed by further options.
        let (fixed, has_options) = match u16::from_be_bytes([*a, *b]) {
            CLIENT_ID | SERVER_ID => (0, false),
            SOL_MAX_RT => (4, false),
            STATUS => (2, false),
            ASSOCIATION => (12, true),
            ADDRESS => (24, true),
            _ => continue,
        };
        let Some((fixed, inner)) = value.split_at_checked(fixed) else { continue };
        let inner = if has_options { readable_options(inner)? } else { inner.to_vec() };
        let length = u16::try_from(fixed.len() + inner.len()).expect("nothing was added to it");
        kept.extend([*a, *b]);
        kept.extend(length.to_be_bytes());
        kept.extend(fixed);
        kept.extend(inner);
    }
    Some(kept)
}

impl Reply {
    /// The address that it grants, if it grants one.
    pub fn usable(&self) -> Option<(Ipv6Addr, Times)> {
        self.granted.filter(|(_, times)| times.valid > 0 && self.status.is_none())
    }

    fn fault(&mut self, code: &StatusCode) {
        if code.status != Status::Success && self.status.is_none() {
            let words: String = code.msg.chars().filter(|c| !c.is_control()).take(128).collect();
            self.status = Some((code.status, words.trim().to_owned()));
        }
    }

    fn association(&mut self, association: &IANA) {
        self.has_association = true;
        for option in association.opts.iter() {
            match option {
                DhcpOption::StatusCode(code) => self.fault(code),
                // A valid address comes before addresses that are taken back.
                DhcpOption::IAAddr(address)
                    if is_usable(address.addr) && self.granted.is_none_or(|(_, times)| times.valid == 0) =>
                {
                    let times = Times {
                        t1: association.t1,
                        t2: association.t2,
                        preferred: address.preferred_life,
                        valid: address.valid_life,
                    };
                    if let Some(DhcpOption::StatusCode(code)) = address.opts.get(OptionCode::StatusCode) {
                        self.fault(code);
                    }
                    self.granted = Some((address.addr, times));
                }
                _ => {}
            }
        }
    }
}

/// Whether other hosts can reach the address.
fn is_usable(address: Ipv6Addr) -> bool {
    !(address.is_unspecified()
        || address.is_loopback()
        || address.is_multicast()
        || address.is_unicast_link_local()
        || address.to_ipv4_mapped().is_some())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_the_decoder_would_stumble_over_does_not_reach_it() {
        let duid = crate::v6::service_duid("6f1d7c2e-0a1b-4c3d-8e9f-001122334455");
        // Too short: a status code, a vendor class, vendor options, an authentication; also inside an association.
        for option in [&[0, 13, 0, 1, 0][..], &[0, 16, 0, 0], &[0, 17, 0, 3, 0, 0, 0], &[0, 11, 0, 4, 0, 0, 0, 0]] {
            let length = u8::try_from(12 + option.len()).expect("short");
            for option in [option.to_vec(), [&[0, 3, 0, length][..], &[0; 12], option].concat()] {
                let message = [&[7, 0, 0, 0][..], &option, &[0; 8]].concat();
                assert!(parse(&message, &duid, 1).is_none());
            }
        }
        assert_eq!(readable(&[7, 0, 0, 0, 0, 3, 255, 255, 0]), None, "beyond the end");
        let deep = [&[7, 0, 0, 0, 0, 3, 0, 18][..], &[0; 12], &[0, 13, 0, 2, 0, 6]].concat();
        assert_eq!(readable(&deep), Some(deep.clone()), "what is right is left alone");
    }

    proptest! {
        #[test]
        fn no_bytes_make_the_parser_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = parse(&bytes, b"duid", 1);
        }

        #[test]
        fn a_damaged_reply_does_not_make_it_panic(at in 0..60_usize, byte: u8) {
            let address = Some(Ipv6Addr::LOCALHOST);
            let request = Request { kind: MessageType::Reply, server: Some(b"server"), address };
            let mut bytes = encode(b"duid", 1, [1, 2, 3], 0, &request);
            let last = bytes.len() - 1;
            bytes[at.min(last)] = byte;
            let _ = parse(&bytes, b"duid", 1);
        }
    }

    #[test]
    fn a_reply_to_another_client_is_not_ours() {
        let request = Request { kind: MessageType::Reply, server: Some(b"server"), address: None };
        let bytes = encode(b"duid", 1, [1, 2, 3], 0, &request);
        assert!(parse(&bytes, b"duid", 1).is_some_and(|reply| reply.has_association));
        assert!(parse(&bytes, b"other", 1).is_none());
        assert!(parse(&bytes, b"duid", 2).is_some_and(|reply| !reply.has_association));
    }
}
