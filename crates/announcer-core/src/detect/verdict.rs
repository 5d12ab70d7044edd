//! What the detector is asked, and what it answers.

use std::collections::BTreeSet;
use std::net::IpAddr;

use contract::Term;
use l2_types::Mac;

use super::landmarks::Side;

/// One address that an owner has to answer for, and with which MAC (its interface's, or that of the Service's macvlan).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Watched {
    /// The VIP.
    pub address: IpAddr,
    /// Who must answer.
    pub mac: Mac,
    /// Under which record: a new term has to be heard anew before it may be suspected (R5).
    pub term: Term,
}

/// One owner to watch on one interface. It is probed once per period, each time about another of its VIPs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Target {
    /// Name of the owner's node.
    pub owner: String,
    /// Our interface towards it (the parent, where its VIPs are on macvlans).
    pub link: u32,
    /// Our place in the line of successors: 0 suspects after K periods, 1 after K + 3.
    pub rank: u8,
    /// Who stands before us as the second in line. If this node does not hear that one either, there is nobody to wait
    /// for.
    pub ahead: Option<String>,
    /// Nodes that are lost with it, itself among them: they are no landmarks when it is missed.
    pub apart: BTreeSet<String>,
    /// MACs of its cards in this LAN: it may answer from any of them.
    pub cards: BTreeSet<Mac>,
    /// In the order of their addresses.
    pub vips: Vec<Watched>,
}

/// Everybody whom this node watches; replaces what was said before.
pub(crate) type Targets = Vec<Target>;

/// What the detector has found out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The owner does not answer for these VIPs in the confirmation burst.
    Silent {
        /// Name of the owner's node.
        owner: String,
        /// For which nobody answers: all that were watched there, or single ones that are missing.
        vips: Vec<Watched>,
        /// For which another MAC answers.
        taken: Vec<(Watched, Mac)>,
        /// On which side of the LAN we are.
        side: Side,
        /// We hear the owner itself, or have lost nobody else.
        certain: bool,
        /// This node has heard the owner answer before.
        heard: bool,
        /// How many landmarks that are no members have answered us in the same burst.
        outside: u8,
    },
    /// It answers again for this: a take-over that was only considered is off.
    Answers {
        /// Name of the owner's node.
        owner: String,
        /// For what.
        vip: IpAddr,
    },
}
