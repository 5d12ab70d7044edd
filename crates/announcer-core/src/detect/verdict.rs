//! The input and the output of the detector.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use contract::Term;
use l2_types::Mac;

use super::landmarks::Side;

/// One address that an owner has to answer for, and the MAC that has to answer: that of its interface, or that of the
/// Service's macvlan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Watched {
    /// The VIP.
    pub address: IpAddr,
    /// The MAC that has to answer.
    pub mac: Mac,
    /// Term of the record. Under a new term the owner must be heard anew before it may be suspected (R5).
    pub term: Term,
}

/// One owner to watch on one interface. It is asked once per period, each time about another of its VIPs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Target {
    /// Name of the owner's node.
    pub owner: String,
    /// Our interface towards it (the parent, where its VIPs are on macvlans).
    pub link: u32,
    /// Our place in the line of successors: 0 suspects after K periods, 1 after K + 3.
    pub rank: u8,
    /// The first successor, if this node is the second. If this node does not hear that node either, it does not wait
    /// for it.
    pub ahead: Option<String>,
    /// Nodes that fail together with the owner, including the owner. They are no landmarks when it is missed.
    pub apart: BTreeSet<String>,
    /// MACs of the owner's NICs in this LAN; it may answer from any of them.
    pub nic_macs: BTreeSet<Mac>,
    /// The VIPs, ordered by address.
    pub vips: Vec<Watched>,
}

/// All owners that this node watches; replaces the previous list.
pub(crate) type Targets = Vec<Target>;

/// A finding of the detector about an owner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum OwnerVerdict {
    /// The owner does not answer for these VIPs in the confirmation burst.
    Silent {
        /// Name of the owner's node.
        owner: String,
        /// The VIPs for which no host answers: all that are watched there, or single missing ones.
        vips: Vec<Watched>,
        /// The VIPs for which another MAC answers.
        taken: Vec<(Watched, Mac)>,
        /// The side of the LAN that this node is on.
        side: Side,
        /// This node hears the owner itself, or has lost no other host.
        certain: bool,
        /// The VIPs for which the owner has answered this node under their record.
        heard: Vec<Watched>,
        /// When the owner has last answered this node as a landmark, at an address of its own.
        last: Option<Instant>,
        /// How many landmarks that are not members have answered in the same burst.
        outside: u8,
        /// How much longer the burst took than usual: many VIPs have turns, and questions may be asked again.
        longer: Duration,
    },
    /// The owner answers again for this VIP, so a take-over that is only planned is dropped.
    Answers {
        /// Name of the owner's node.
        owner: String,
        /// The VIP.
        vip: IpAddr,
    },
}
