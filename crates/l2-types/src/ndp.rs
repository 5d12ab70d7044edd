//! IPv6 neighbour discovery (RFC 4861): the two messages we send and listen to, and what they mean. Their bytes, in
//! whole Ethernet frames: `ndp/frame.rs`.
//!
//! failover-protocol.md 5 tells why the frames look as they do: only an advertisement with *override* moves an
//! entry; a solicitation from `::` to the VIP itself is never answered, and one to the solicited-node group is
//! answered to everybody, so a probe comes from a link-local address.

mod frame;

use std::net::Ipv6Addr;

pub use frame::{NdpFrame, parse_frame};

use crate::Mac;

const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);

/// What a message asks or says about its target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Message {
    /// Who has the target address?
    Solicitation {
        /// The asker's MAC; absent in duplicate address detection.
        source_mac: Option<Mac>,
    },
    /// The target address is here.
    Advertisement {
        /// The sender is a router.
        router: bool,
        /// It answers a solicitation.
        solicited: bool,
        /// It replaces an existing entry.
        override_entry: bool,
        /// Where the target is.
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
    /// What is asked or said.
    pub message: Message,
}

impl Ndp {
    /// "`address` is at `mac`" to all nodes: the NDP form of a gratuitous ARP. Comes from the address itself,
    /// which works on a macvlan without link-local address too.
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

    /// Duplicate address detection (RFC 4862): from `::` to the solicited-node group. A holder answers to all nodes.
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
    /// For a standby that is about to take over: whoever has the address answers, also one that is not the owner it
    /// knows.
    pub fn multicast_probe(source: Ipv6Addr, source_mac: Mac, target: Ipv6Addr) -> Self {
        Self {
            source,
            destination: solicited_node(target),
            target,
            message: Message::Solicitation { source_mac: Some(source_mac) },
        }
    }

    /// Asks one node, whose MAC is known, whether it still has `target`. `source` must not be `::`: nobody answers
    /// that.
    ///
    /// For a standby that watches the owner of a VIP, and for a new owner until the old one is silent: it disturbs
    /// nobody else.
    pub fn unicast_probe(source: Ipv6Addr, source_mac: Mac, target: Ipv6Addr) -> Self {
        Self { source, destination: target, target, message: Message::Solicitation { source_mac: Some(source_mac) } }
    }

    /// The sender claims `address` unasked: an advertisement that answers nobody, or duplicate detection for it.
    ///
    /// An advertisement in answer to duplicate detection looks the same: it too says who has the address.
    pub fn is_claim_of(&self, address: Ipv6Addr) -> bool {
        self.target == address
            && match self.message {
                Message::Advertisement { solicited, .. } => !solicited,
                Message::Solicitation { .. } => self.source.is_unspecified(),
            }
    }

    /// The sender answers a question for `address`: it is alive and has it. A claim says only the second, so the two
    /// are told apart.
    pub fn is_answer_for(&self, address: Ipv6Addr) -> bool {
        self.target == address && matches!(self.message, Message::Advertisement { solicited: true, .. })
    }

    /// The Ethernet destination that follows from the IPv6 destination, if that is a group.
    pub fn group_mac(&self) -> Option<Mac> {
        group_mac(self.destination)
    }
}

/// The group that a holder of `address` listens to (`ff02::1:ffxx:xxxx`).
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
