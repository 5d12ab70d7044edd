//! IPv6 neighbour discovery (RFC 4861): the two messages that the announcer sends and receives, and their meaning.
//! `ndp/frame.rs` encodes them as whole Ethernet frames.
//!
//! Fail-over spec 5 tells why the frames look as they do: only an advertisement with *override* moves an entry. A
//! solicitation from `::` to the VIP itself is never answered, and one from `::` to the solicited-node group is
//! answered to all nodes. So a probe comes from a link-local address.

mod frame;

use std::net::Ipv6Addr;

pub use frame::{NdpFrame, parse_frame};

use crate::Mac;

const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);

/// Kind of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Message {
    /// The sender asks which host has the target address.
    Solicitation {
        /// The asker's MAC; absent in duplicate address detection.
        source_mac: Option<Mac>,
    },
    /// The sender says where the target address is.
    Advertisement {
        /// Whether the sender is a router.
        router: bool,
        /// Whether it answers a solicitation.
        solicited: bool,
        /// Whether it replaces an existing entry.
        override_entry: bool,
        /// MAC of the target.
        target_mac: Option<Mac>,
    },
}

/// A neighbour solicitation or advertisement with its IPv6 addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Ndp {
    /// IPv6 source.
    pub source: Ipv6Addr,
    /// IPv6 destination.
    pub destination: Ipv6Addr,
    /// The address in question.
    pub target: Ipv6Addr,
    /// Kind of the message.
    pub message: Message,
}

impl Ndp {
    /// "`address` is at `mac`" to all nodes: the NDP form of a gratuitous ARP. Its source is the address itself, so
    /// that it also works on a macvlan without a link-local address.
    pub fn announcement(mac: Mac, address: Ipv6Addr) -> Self {
        Self {
            source: address,
            destination: ALL_NODES,
            target: address,
            message: Message::Advertisement {
                router: false,
                solicited: false,
                override_entry: true,
                target_mac: Some(mac),
            },
        }
    }

    /// Duplicate address detection (RFC 4862): from `::` to the solicited-node group. A host with the address answers
    /// to all nodes.
    pub fn duplicate_detection(target: Ipv6Addr) -> Self {
        Self {
            source: Ipv6Addr::UNSPECIFIED,
            destination: solicited_node(target),
            target,
            message: Message::Solicitation { source_mac: None },
        }
    }

    /// Asks the solicited-node group of `target`; the answer comes to `source` alone. `source` should be link-local.
    ///
    /// A watcher uses it before a take-over: every host that has the address answers, also one that is not the known
    /// owner.
    pub fn multicast_probe(source: Ipv6Addr, source_mac: Mac, target: Ipv6Addr) -> Self {
        Self {
            source,
            destination: solicited_node(target),
            target,
            message: Message::Solicitation { source_mac: Some(source_mac) },
        }
    }

    /// Asks one node, whose MAC is known, whether it still has `target`. `source` must not be `::`, because hosts do
    /// not answer that.
    ///
    /// A watcher uses it to watch the owner of a VIP, and a new owner until the former owner is silent. It disturbs no
    /// other host.
    pub fn unicast_probe(source: Ipv6Addr, source_mac: Mac, target: Ipv6Addr) -> Self {
        Self { source, destination: target, target, message: Message::Solicitation { source_mac: Some(source_mac) } }
    }

    /// Whether the sender claims `address` unasked: by an unsolicited advertisement, or by duplicate address detection
    /// for it.
    ///
    /// An advertisement in answer to duplicate address detection looks the same; it too says which host has the
    /// address.
    pub fn is_claim_of(&self, address: Ipv6Addr) -> bool {
        self.target == address
            && match self.message {
                Message::Advertisement { solicited, .. } => !solicited,
                Message::Solicitation { .. } => self.source.is_unspecified(),
            }
    }

    /// Whether the sender answers a question for `address`, so it is alive and has it. A claim proves only that it has
    /// the address, so the two are told apart.
    pub fn is_answer_for(&self, address: Ipv6Addr) -> bool {
        self.target == address && matches!(self.message, Message::Advertisement { solicited: true, .. })
    }

    /// The Ethernet destination of a message to an IPv6 group; `None` for a unicast destination.
    pub fn group_mac(&self) -> Option<Mac> {
        group_mac(self.destination)
    }
}

/// The solicited-node group of `address` (`ff02::1:ffxx:xxxx`).
fn solicited_node(address: Ipv6Addr) -> Ipv6Addr {
    let [.., high, low] = address.segments();
    Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00 | (high & 0xff), low)
}

fn is_solicited_node(address: Ipv6Addr) -> bool {
    address == solicited_node(address)
}

/// The Ethernet group of an IPv6 group (`33:33` and its last four bytes); `None` for a unicast address.
pub fn group_mac(address: Ipv6Addr) -> Option<Mac> {
    let [.., a, b, c, d] = address.octets();
    address.is_multicast().then(|| Mac::new([0x33, 0x33, a, b, c, d]))
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: Mac = Mac::new([0x02, 0, 0, 0, 0, 0x01]);
    const THEM: Mac = Mac::new([0x02, 0, 0, 0, 0, 0x02]);

    fn vip() -> Ipv6Addr {
        "2001:db8::1:a".parse().expect("an address")
    }

    fn link_local() -> Ipv6Addr {
        "fe80::1".parse().expect("an address")
    }

    #[test]
    fn groups_follow_from_the_address() {
        assert_eq!(solicited_node(vip()), "ff02::1:ff01:a".parse::<Ipv6Addr>().expect("an address"));
        assert_eq!(group_mac(solicited_node(vip())), Some(Mac::new([0x33, 0x33, 0xff, 0x01, 0x00, 0x0a])));
        assert_eq!(group_mac(vip()), None);
    }

    #[test]
    fn a_solicited_answer_is_no_claim() {
        let answer = Ndp {
            source: vip(),
            destination: link_local(),
            target: vip(),
            message: Message::Advertisement {
                router: false,
                solicited: true,
                override_entry: true,
                target_mac: Some(THEM),
            },
        };
        let probe = Ndp::unicast_probe(link_local(), US, vip());
        assert!(Ndp::announcement(US, vip()).is_claim_of(vip()) && !Ndp::announcement(US, vip()).is_answer_for(vip()));
        assert!(Ndp::duplicate_detection(vip()).is_claim_of(vip()));
        assert!(answer.is_answer_for(vip()) && !answer.is_claim_of(vip()));
        assert!(!probe.is_claim_of(vip()) && !probe.is_answer_for(vip()));
        assert!(!Ndp::announcement(US, vip()).is_claim_of(link_local()));
    }
}
