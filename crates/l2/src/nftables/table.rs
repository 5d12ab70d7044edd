//! The wanted content of a table, and the requests that establish it. Pure.

use std::collections::BTreeSet;
use std::net::IpAddr;

use super::expression::Expression;
use super::message::{APPEND, Attributes, CREATE, DUMP, NEW_ELEMENT, Request};

pub(super) const NEW_TABLE: u16 = 0;
pub(super) const DELETE_TABLE: u16 = 2;
const NEW_CHAIN: u16 = 3;
const NEW_RULE: u16 = 6;
const GET_RULE: u16 = 7;
const NEW_SET: u16 = 9;
const GET_ELEMENT: u16 = 13;
pub(super) const DELETE_ELEMENT: u16 = 14;

/// Limit of elements per attribute list, which can be 64 KiB long.
const ELEMENTS_AT_ONCE: usize = 500;

/// `IFNAMSIZ`: length of a name with the terminating zero.
const INTERFACE_NAME_LENGTH: usize = 16;

/// Content of a table of the family `inet` (IPv4 and IPv6).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Table {
    /// The sets, in the order in which users see them.
    pub sets: Vec<Set>,
    /// The chains. A chain may come after one that jumps to it.
    pub chains: Vec<Chain>,
}

/// A named set of keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Set {
    name: &'static str,
    parts: &'static [Part],
    elements: BTreeSet<Vec<u8>>,
}

/// One part of the keys of a set. In registers and keys each part takes whole words of four bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// An IPv4 address.
    Ipv4 = 7,
    /// An IPv6 address.
    Ipv6 = 8,
    /// Number of a protocol above IP.
    Protocol = 12,
    /// A port.
    Service = 13,
    /// Name of an interface, which need not exist yet.
    InterfaceName = 41,
}

impl Part {
    const fn length(self) -> usize {
        match self {
            Self::Ipv4 | Self::Protocol | Self::Service => 4,
            Self::Ipv6 => 16,
            Self::InterfaceName => INTERFACE_NAME_LENGTH,
        }
    }
}

/// The value of one part of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Value<'a> {
    /// An address.
    Address(IpAddr),
    /// Number of a protocol above IP.
    Protocol(u8),
    /// A port.
    Service(u16),
    /// Name of an interface.
    InterfaceName(&'a str),
}

impl Value<'_> {
    fn is(self, part: Part) -> bool {
        matches!(
            (self, part),
            (Self::Address(IpAddr::V4(_)), Part::Ipv4)
                | (Self::Address(IpAddr::V6(_)), Part::Ipv6)
                | (Self::Protocol(_), Part::Protocol)
                | (Self::Service(_), Part::Service)
        ) || matches!((self, part),
            (Self::InterfaceName(name), Part::InterfaceName) if name.len() < INTERFACE_NAME_LENGTH)
    }

    fn bytes(self) -> Vec<u8> {
        match self {
            Self::Address(IpAddr::V4(v4)) => v4.octets().to_vec(),
            Self::Address(IpAddr::V6(v6)) => v6.octets().to_vec(),
            Self::Protocol(number) => vec![number],
            Self::Service(port) => port.to_be_bytes().to_vec(),
            Self::InterfaceName(name) => name.as_bytes().to_vec(),
        }
    }
}

impl Set {
    /// An empty set whose keys have these parts.
    pub const fn new(name: &'static str, parts: &'static [Part]) -> Self {
        Self { name, parts, elements: BTreeSet::new() }
    }

    /// Adds a key. A key that the set cannot hold is left out, such as an IPv6 address in an IPv4 set or a name that is
    /// too long.
    pub fn insert(&mut self, key: &[Value<'_>]) {
        if key.len() != self.parts.len() || !key.iter().zip(self.parts).all(|(value, part)| value.is(*part)) {
            return;
        }
        let words = key.iter().zip(self.parts).flat_map(|(value, part)| {
            let mut bytes = value.bytes();
            bytes.resize(part.length(), 0);
            bytes
        });
        self.elements.insert(words.collect());
    }

    /// Whether both are the same set, regardless of the elements.
    fn is(&self, other: &Self) -> bool {
        self.name == other.name && self.parts == other.parts
    }

    /// Types of the parts, six bits each, for `nft list`.
    fn kind(&self) -> u32 {
        self.parts.iter().fold(0, |kind, part| kind << 6 | *part as u32)
    }

    fn length(&self) -> u32 {
        u32::try_from(self.parts.iter().map(|part| part.length()).sum::<usize>()).expect("a few words")
    }
}

/// A list of rules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chain {
    /// Its name, for jumps.
    pub name: &'static str,
    /// Whether packets for this machine pass it (hook `input`, policy `accept`), after all address translation;
    /// otherwise it is only reached by jumps.
    pub at_input: bool,
    /// The rules, in order.
    pub rules: Vec<Vec<Expression>>,
}

/// Requests that replace the content of the table or remove it. In one batch, so that the content is never missing in
/// between.
pub(super) fn replace(name: &str, wanted: Option<&Table>) -> Vec<Request> {
    let table = Attributes::new().text(1, name);
    // The table is created first, because a table that does not exist cannot be deleted.
    let mut requests =
        vec![Request::new(NEW_TABLE, CREATE, table.clone()), Request::new(DELETE_TABLE, 0, table.clone())];
    let Some(wanted) = wanted else { return requests };
    requests.push(Request::new(NEW_TABLE, CREATE, table));
    for (id, set) in (1..).zip(&wanted.sets) {
        let mut attributes = Attributes::new()
            .text(1, name)
            .text(2, set.name)
            .number(4, set.kind())
            .number(5, set.length())
            .number(10, id);
        if set.parts == [Part::InterfaceName] {
            // For `nft list`: a note (type 0, length 4) which tells `nft` that interface names are not numbers in
            // network byte order.
            let [a, b, c, d] = 1_u32.to_ne_bytes();
            attributes = attributes.bytes(13, &[0, 4, a, b, c, d]);
        }
        requests.push(Request::new(NEW_SET, CREATE, attributes));
        requests.extend(refill(name, set, &BTreeSet::new()));
    }
    requests.extend(wanted.chains.iter().map(|chain| new_chain(name, chain)));
    requests.extend(wanted.chains.iter().flat_map(|chain| chain.rules.iter().map(|rule| new_rule(name, chain, rule))));
    requests
}

/// Requests that turn `current` into `wanted`; none if they are equal. `None` if they differ in more than the elements
/// of sets.
pub(super) fn change(name: &str, current: &Table, wanted: &Table) -> Option<Vec<Request>> {
    let alike = current.sets.len() == wanted.sets.len()
        && current.sets.iter().zip(&wanted.sets).all(|(old, new)| old.is(new))
        && current.chains == wanted.chains;
    let both = current.sets.iter().zip(&wanted.sets);
    alike.then(|| both.flat_map(|(old, new)| refill(name, new, &old.elements)).collect())
}

/// Requests that show whether the table still holds `held`, each with the expected number of objects: the rules of each
/// chain, the elements of each set.
pub(super) fn look_up(name: &str, held: &Table) -> Vec<(Request, usize)> {
    let ask = |kind: u16, part: &str| Request::new(kind, DUMP, Attributes::new().text(1, name).text(2, part));
    let chains = held.chains.iter().map(|chain| (ask(GET_RULE, chain.name), chain.rules.len()));
    chains.chain(held.sets.iter().map(|set| (ask(GET_ELEMENT, set.name), set.elements.len()))).collect()
}

/// Requests that change the elements of a set from `current` to the wanted ones.
fn refill(table: &str, set: &Set, current: &BTreeSet<Vec<u8>>) -> Vec<Request> {
    let gone: Vec<&Vec<u8>> = current.difference(&set.elements).collect();
    let added: Vec<&Vec<u8>> = set.elements.difference(current).collect();
    let request = |kind: u16, flags: u16, keys: &[&Vec<u8>]| {
        let list = keys.iter().fold(Attributes::new(), |list, key| {
            list.nested(1, Attributes::new().nested(1, Attributes::new().bytes(1, key)))
        });
        Request::new(kind, flags, Attributes::new().text(1, table).text(2, set.name).nested(3, list))
    };
    let gone = gone.chunks(ELEMENTS_AT_ONCE).map(|part| request(DELETE_ELEMENT, 0, part));
    gone.chain(added.chunks(ELEMENTS_AT_ONCE).map(|part| request(NEW_ELEMENT, CREATE, part))).collect()
}

fn new_chain(table: &str, chain: &Chain) -> Request {
    const LOCAL_IN: u32 = 1;
    // Sources are translated back at 100 (`NF_IP_PRI_NAT_SRC`).
    const AFTER_TRANSLATION: u32 = 150;
    const ACCEPT: u32 = 1;
    let mut attributes = Attributes::new().text(1, table).text(3, chain.name);
    if chain.at_input {
        let hook = Attributes::new().number(1, LOCAL_IN).number(2, AFTER_TRANSLATION);
        attributes = attributes.nested(4, hook).number(5, ACCEPT).text(7, "filter");
    }
    Request::new(NEW_CHAIN, CREATE, attributes)
}

fn new_rule(table: &str, chain: &Chain, rule: &[Expression]) -> Request {
    let list = rule.iter().fold(Attributes::new(), |list, step| list.nested(1, step.clone().attributes()));
    Request::new(NEW_RULE, CREATE | APPEND, Attributes::new().text(1, table).text(2, chain.name).nested(4, list))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::expression::Verdict;
    use super::*;

    const PORTS: &[Part] = &[Part::Ipv4, Part::Protocol, Part::Service];

    fn table(ports: &[u16]) -> Table {
        let mut set = Set::new("ports", PORTS);
        for port in ports {
            set.insert(&[Value::Address([10, 0, 0, 5].into()), Value::Protocol(6), Value::Service(*port)]);
        }
        let rule = vec![Expression::counter(), Expression::verdict(Verdict::Drop)];
        Table { sets: vec![set], chains: vec![Chain { name: "input", at_input: true, rules: vec![rule] }] }
    }

    fn kinds(requests: &[Request]) -> Vec<u16> {
        requests.iter().map(|request| request.kind).collect()
    }

    #[test]
    fn nothing_changes_nothing_is_sent() {
        assert_eq!(change("t", &table(&[80]), &table(&[80])), Some(vec![]));
    }

    #[test]
    fn a_changed_element_touches_its_set_alone() {
        let requests = change("t", &table(&[80, 81]), &table(&[80, 53])).unwrap();
        assert_eq!(kinds(&requests), [DELETE_ELEMENT, NEW_ELEMENT]);
    }

    #[test]
    fn other_chains_or_sets_need_the_table_anew() {
        let one = table(&[80]);
        let more_rules = Table { chains: Vec::new(), ..one.clone() };
        let other_key = Table { sets: vec![Set::new("ports", &[Part::Ipv6])], ..one.clone() };
        for other in [more_rules, other_key, Table::default()] {
            assert_eq!(change("t", &one, &other), None);
        }
    }

    #[test]
    fn a_key_has_its_parts_in_words() {
        let mut set = Set::new("ports", PORTS);
        set.insert(&[Value::Address([10, 0, 0, 5].into()), Value::Protocol(6), Value::Service(443)]);
        assert_eq!(set.elements, [vec![10, 0, 0, 5, 6, 0, 0, 0, 1, 187, 0, 0]].into());
        assert_eq!((set.kind(), set.length()), ((7 << 12) + (12 << 6) + 13, 12));
    }

    #[test]
    fn what_a_set_cannot_hold_is_left_out() {
        let mut set = Set::new("names", &[Part::InterfaceName]);
        set.insert(&[Value::InterfaceName("sixteen-letters-")]);
        set.insert(&[Value::Address([10, 0, 0, 5].into())]);
        set.insert(&[]);
        assert_eq!(set.elements, [].into());
        set.insert(&[Value::InterfaceName("fifteen-letters")]);
        assert_eq!(set.elements.len(), 1);
    }

    #[test]
    fn no_table_leaves_none() {
        assert_eq!(kinds(&replace("t", None)), [NEW_TABLE, DELETE_TABLE]);
    }

    #[test]
    fn thousands_of_elements_are_sent_in_parts() {
        let many: Vec<u16> = (1..=2000).collect();
        assert_eq!(change("t", &table(&[]), &table(&many)).unwrap().len(), 4);
    }

    proptest! {
        /// What is sent for a change, done by hand, gives what was wanted.
        #[test]
        fn a_change_adds_what_is_new_and_removes_what_is_gone(old: Vec<u16>, new: Vec<u16>) {
            let (old, new) = (table(&old), table(&new));
            let (old_elements, new_elements) = (&old.sets[0].elements, &new.sets[0].elements);
            let (gone, added) = (old_elements - new_elements, new_elements - old_elements);
            let requests = change("t", &old, &new).unwrap();
            let of = |kind: u16| requests.iter().filter(|request| request.kind == kind).count();
            prop_assert_eq!(of(DELETE_ELEMENT), gone.len().div_ceil(ELEMENTS_AT_ONCE));
            prop_assert_eq!(of(NEW_ELEMENT), added.len().div_ceil(ELEMENTS_AT_ONCE));
            prop_assert_eq!(requests.is_empty(), old == new);
        }
    }
}
