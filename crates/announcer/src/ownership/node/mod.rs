//! `node` mode: one membership Lease per node, ownership and term on each Service (failover-protocol.md 1, decisions.md
//! 19 to 26).
//!
//! Between this module and the engine's other organs:
//!
//! * to the failure detector (`detect`): [`Targets`], the owners that this node has to watch, whenever they change. From
//!   it: [`Verdict`]s. Arming (R5), confirmation (R3), the witness (R4) and the self-check (R2) are the detector's; what
//!   follows from a verdict is decided here.
//! * to the claims (`claim`): the old owner's MAC, address and term of what was taken over; it claims until that MAC is
//!   silent. From it: a tag that was found good, with its term.
//! * to the API: a compare-and-swap of one Service's record, and this node's own membership Lease.

use std::net::IpAddr;

use l2::Mac;

/// Counts the changes of owner of a Service. A record or a claim with a newer term wins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Term(pub u64);

impl Term {
    /// The one after it.
    pub fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

impl std::fmt::Display for Term {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// One address that an owner has to answer for, and with which MAC (its interface's, or that of the Service's macvlan).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Watched {
    /// The VIP.
    pub address: IpAddr,
    /// Who must answer.
    pub mac: Mac,
    /// Under which record: a new term has to be heard anew before it may be suspected (R5).
    pub term: Term,
}

/// One owner to watch on one interface. It is probed once per period, each time about another of its VIPs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// Name of the owner's node.
    pub owner: String,
    /// Our interface towards it (the parent, where its VIPs are on macvlans).
    pub link: u32,
    /// Our place in the line of successors: 0 suspects after K periods, 1 after K + 3.
    pub rank: u8,
    /// In the order of their addresses.
    pub vips: Vec<Watched>,
}

/// Everybody whom this node watches; replaces what was said before.
pub type Targets = Vec<Target>;

/// What the detector has found out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// The owner does not answer for these VIPs, and nobody else has either, in the confirmation burst.
    Silent {
        /// Name of the owner's node.
        owner: String,
        /// For which it is silent: all that were watched there, or single ones that are missing.
        vips: Vec<IpAddr>,
        /// Somebody else answered *us* in the same burst: it is not we who are cut off.
        witnessed: bool,
    },
    /// It answers again for all that was watched: a take-over that was only considered is off.
    Answers {
        /// Name of the owner's node.
        owner: String,
    },
}
