//! nfnetlink messages: attributes, and batches that the kernel performs completely or not at all.

/// `NFNL_SUBSYS_NFTABLES`, the upper half of the type of each message.
const SUBSYSTEM: u16 = 10;
const BATCH_BEGIN: u16 = 0x10;
const BATCH_END: u16 = 0x11;
const HEADER: usize = 16;

const REQUEST: u16 = 0x1;
const ACK: u16 = 0x4;
pub(super) const CREATE: u16 = 0x400;
pub(super) const APPEND: u16 = 0x800;
/// Flags that request all matching objects instead of one.
pub(super) const DUMP: u16 = 0x300;

pub(super) const NEW_ELEMENT: u16 = 12;

/// `NFPROTO_INET`: IPv4 and IPv6 in one table.
const INET: u8 = 1;
const UNSPECIFIED: u8 = 0;

/// A list of netlink attributes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Attributes(Vec<u8>);

impl Attributes {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn bytes(mut self, kind: u16, value: &[u8]) -> Self {
        let length = u16::try_from(4 + value.len()).expect("long lists are sent in parts");
        self.0.extend(length.to_ne_bytes());
        self.0.extend(kind.to_ne_bytes());
        self.0.extend(value);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
        self
    }

    /// Adds a number; nftables uses big endian.
    pub fn number(self, kind: u16, value: u32) -> Self {
        self.bytes(kind, &value.to_be_bytes())
    }

    pub fn text(self, kind: u16, value: &str) -> Self {
        let mut bytes = value.as_bytes().to_vec();
        bytes.push(0);
        self.bytes(kind, &bytes)
    }

    pub fn nested(self, kind: u16, Self(value): Self) -> Self {
        const NESTED: u16 = 0x8000;
        self.bytes(kind | NESTED, &value)
    }
}

/// A request without its place in a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Request {
    pub kind: u16,
    pub flags: u16,
    pub attributes: Attributes,
}

impl Request {
    pub fn new(kind: u16, flags: u16, attributes: Attributes) -> Self {
        Self { kind, flags, attributes }
    }

    /// The request as a message of its own, as reading needs it.
    pub fn alone(&self, sequence: u32) -> Vec<u8> {
        let mut bytes = Vec::new();
        push(&mut bytes, SUBSYSTEM << 8 | self.kind, REQUEST | self.flags, sequence, INET, 0, &self.attributes.0);
        bytes
    }
}

/// All requests as one transaction, numbered from `first` on; other programs see all of it or nothing. Only the last
/// request is acknowledged, with the returned number; a failed one always is.
pub(super) fn batch(requests: &[Request], first: u32) -> (Vec<u8>, u32) {
    let (mut bytes, mut sequence) = (Vec::new(), first);
    push(&mut bytes, BATCH_BEGIN, REQUEST, sequence, UNSPECIFIED, SUBSYSTEM, &[]);
    for (place, request) in requests.iter().enumerate() {
        sequence += 1;
        let ack = if place + 1 == requests.len() { ACK } else { 0 };
        let kind = SUBSYSTEM << 8 | request.kind;
        push(&mut bytes, kind, REQUEST | ack | request.flags, sequence, INET, 0, &request.attributes.0);
    }
    push(&mut bytes, BATCH_END, REQUEST, sequence + 1, UNSPECIFIED, SUBSYSTEM, &[]);
    (bytes, sequence)
}

fn push(bytes: &mut Vec<u8>, kind: u16, flags: u16, sequence: u32, family: u8, resource: u16, attributes: &[u8]) {
    let length = u32::try_from(HEADER + 4 + attributes.len()).expect("an attribute list is under 64 KiB");
    bytes.extend(length.to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(flags.to_ne_bytes());
    bytes.extend(sequence.to_ne_bytes());
    bytes.extend([0; 4]);
    bytes.extend([family, 0]);
    bytes.extend(resource.to_be_bytes());
    bytes.extend(attributes);
}

/// A message of the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum KernelReply {
    /// The result of the request with this number; the errno if it failed.
    Acknowledged(u32, Result<(), i32>),
    /// An object in answer to the request with this number, or this many elements of a set.
    Objects(u32, usize),
    /// All objects of the request with this number were sent.
    Done(u32),
}

/// All messages of one datagram from the kernel; a damaged message ends the list.
pub(super) fn answers(mut datagram: &[u8]) -> Vec<KernelReply> {
    const NLMSG_ERROR: u16 = 2;
    const NLMSG_DONE: u16 = 3;
    const ELEMENTS: u16 = SUBSYSTEM << 8 | NEW_ELEMENT;
    let mut all = Vec::new();
    while let Some((header, _)) = datagram.split_first_chunk::<HEADER>() {
        let word = |at: usize| u32::from_ne_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
        let length = word(0) as usize;
        let Some(body) = datagram.get(HEADER..length) else { break };
        let sequence = word(8);
        match u16::from_ne_bytes([header[4], header[5]]) {
            NLMSG_ERROR => {
                let Some(code) = body.first_chunk::<4>() else { break };
                let code = i32::from_ne_bytes(*code);
                all.push(KernelReply::Acknowledged(
                    sequence,
                    if code == 0 { Ok(()) } else { Err(code.saturating_neg()) },
                ));
            }
            NLMSG_DONE => all.push(KernelReply::Done(sequence)),
            ELEMENTS => all.push(KernelReply::Objects(sequence, count_elements(body))),
            _ => all.push(KernelReply::Objects(sequence, 1)),
        }
        let Some(rest) = datagram.get(length.next_multiple_of(4)..) else { break };
        datagram = rest;
    }
    all
}

/// Number of elements in a message about a set.
fn count_elements(body: &[u8]) -> usize {
    const LIST: u16 = 3; // NFTA_SET_ELEM_LIST_ELEMENTS
    const FAMILY_AND_RESOURCE: usize = 4;
    let lists = list(body.get(FAMILY_AND_RESOURCE..).unwrap_or_default()).filter(|(kind, _)| *kind == LIST);
    lists.map(|(_, elements)| list(elements).count()).sum()
}

/// The attributes of a list; a damaged attribute ends it.
fn list(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    const TYPE: u16 = 0x3fff;
    std::iter::from_fn(move || {
        let ([low, high, kind @ ..], _) = bytes.split_first_chunk::<4>()?;
        let length = usize::from(u16::from_ne_bytes([*low, *high]));
        let value = bytes.get(4..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((u16::from_ne_bytes(*kind) & TYPE, value))
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn attributes_are_padded_to_four_bytes_but_say_their_true_length() {
        let Attributes(bytes) = Attributes::new().text(1, "ab").number(2, 7);
        let length = |at: usize| u16::from_ne_bytes([bytes[at], bytes[at + 1]]);
        assert_eq!((length(0), bytes.len()), (7, 16));
        assert_eq!(bytes[4..8], *b"ab\0\0");
        assert_eq!((length(8), &bytes[12..]), (8, &[0, 0, 0, 7][..]));
    }

    #[test]
    fn a_batch_is_framed_and_only_its_last_request_is_acknowledged() {
        let request = Request::new(0, CREATE, Attributes::new());
        let (bytes, last) = batch(&[request.clone(), request], 10);
        let flags: Vec<u16> = bytes.chunks(20).map(|message| u16::from_ne_bytes([message[6], message[7]])).collect();
        assert_eq!(flags, [REQUEST, REQUEST | CREATE, REQUEST | ACK | CREATE, REQUEST]);
        assert_eq!(last, 12);
    }

    #[test]
    fn an_error_is_read_with_the_number_of_its_request() {
        let mut message = vec![0; 20];
        message[..4].copy_from_slice(&20_u32.to_ne_bytes());
        message[4..6].copy_from_slice(&2_u16.to_ne_bytes());
        message[8..12].copy_from_slice(&12_u32.to_ne_bytes());
        message[16..].copy_from_slice(&(-2_i32).to_ne_bytes());
        let twice = [message.clone(), message].concat();
        assert_eq!(answers(&twice), [KernelReply::Acknowledged(12, Err(2)); 2]);
    }

    #[test]
    fn what_a_dump_holds_is_counted_up_to_its_end() {
        let message = |kind: u16, list: Attributes| Request::new(kind, DUMP, list).alone(7);
        let element = |key: u32| Attributes::new().nested(1, Attributes::new().number(1, key));
        let elements = (1..=3).fold(Attributes::new(), |list, key| list.nested(1, element(key)));
        let elements = Attributes::new().text(1, "table").text(2, "set").nested(3, elements);
        let mut end = vec![0; 20];
        end[..4].copy_from_slice(&20_u32.to_ne_bytes());
        end[4..6].copy_from_slice(&3_u16.to_ne_bytes());
        end[8..12].copy_from_slice(&7_u32.to_ne_bytes());
        let datagram = [message(NEW_ELEMENT, elements), message(6, Attributes::new().text(1, "table")), end].concat();
        assert_eq!(answers(&datagram), [KernelReply::Objects(7, 3), KernelReply::Objects(7, 1), KernelReply::Done(7)]);
    }

    /// The length that a message says it has, with each attribute list inside it as long as it says: what is left over
    /// is what the kernel calls "invalid argument".
    fn is_whole(mut list: &[u8]) -> bool {
        while !list.is_empty() {
            let Some(([low, high, ..], _)) = list.split_first_chunk::<4>() else { return false };
            let length = usize::from(u16::from_ne_bytes([*low, *high]));
            let Some(rest) = list.get(length.next_multiple_of(4)..) else { return false };
            if length < 4 {
                return false;
            }
            list = rest;
        }
        true
    }

    proptest! {
        #[test]
        fn any_attributes_make_whole_messages(
            values in proptest::collection::vec((0..100_u16, proptest::collection::vec(any::<u8>(), 0..50)), 0..20),
        ) {
            let list = values.iter().fold(Attributes::new(), |list, (kind, value)| list.bytes(*kind, value));
            prop_assert!(is_whole(&list.0));
            let request = Request::new(9, CREATE, Attributes::new().nested(1, list));
            let (batch, last) = batch(&[request.clone(), request], 1);
            prop_assert_eq!(last, 3);
            // Begin, twice the request, end.
            let (mut rest, mut messages) = (batch.as_slice(), 0);
            while let Some((length, _)) = rest.split_first_chunk::<4>() {
                let message;
                (message, rest) = rest.split_at(u32::from_ne_bytes(*length) as usize);
                prop_assert!(is_whole(&message[HEADER + 4..]));
                messages += 1;
            }
            prop_assert_eq!(messages, 4);
        }

        #[test]
        fn any_datagram_is_answered(datagram: Vec<u8>) {
            let _ = answers(&datagram);
        }
    }
}
