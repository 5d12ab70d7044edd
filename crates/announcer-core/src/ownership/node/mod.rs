//! `node` mode: one membership Lease per node, ownership and term on each Service (failover-protocol.md 1, decisions.md
//! 19 to 26).
//!
//! Between this module and the engine's other organs:
//!
//! * to the failure detector (`detect`): [`Targets`], the owners that this node has to watch, whenever they change.
//!   From it: [`Verdict`]s. Arming (R5), confirmation (R3), the landmarks (R4) and the self-check (R2) are the
//!   detector's; what follows from a verdict is decided here.
//! * to the claims (`claim`): the old owner's MAC, address and term of what was taken over; it claims until that MAC is
//!   silent. From it: a tag that was found good, with its term.
//! * to the API: a compare-and-swap of one Service's record, and this node's own membership Lease.

mod asking;
mod candidates;
mod cluster;
mod decide;
mod facts;
mod foreign;
mod hand_overs;
mod landmarks;
mod member;
#[cfg(test)]
mod model;
mod owner_records;
mod place;
mod probers;
mod reach;
mod readiness;
mod review;
mod round;
mod silence;
mod standing;
mod stranger;
mod swapping;
mod swaps;
mod timing;
mod unable;
mod vacant;
mod watchers;

pub(crate) use cluster::Cluster;
pub use contract::{OwnerRecord, Term};
use l2_types::Mac;
pub(crate) use member::card_links;
pub use member::{
    CARD, Card, CardLink, ForeignLock, HAND_OVER, HOST, LEASE_PREFIX, Member, NodeFacts, SAFE_MODE, SAFE_MODE_HOLDER,
    SILENCE,
};
#[cfg(test)]
pub(crate) use place::preferred;
pub(crate) use round::{Review, ReviewContext};
pub(crate) use swaps::Change;
pub(crate) use timing::HAND_OVER_LINGER;

pub(crate) use crate::detect::verdict::{Target, Targets, Verdict, Watched};
use crate::view::{ServiceKey, Uid};
use crate::vip_id::VipId;

/// A compare-and-swap of one Service's record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Swap {
    /// The Service that is meant, not a later one of its name.
    pub uid: Uid,
    /// What is believed to stand there.
    pub expect: Option<OwnerRecord>,
    /// What is to stand there.
    pub owner_record: OwnerRecord,
}

impl Swap {
    /// Whether it may be written over what stands there. An older record than expected is what somebody has put back;
    /// another one, or a newer one, is an owner that we did not know.
    pub fn may_replace(&self, standing: Option<&OwnerRecord>) -> bool {
        match (standing, &self.expect) {
            (None, _) => true,
            (Some(standing), Some(expect)) => standing == expect || standing.term < expect.term,
            (Some(_), None) => false,
        }
    }
}

/// What became of a [`Swap`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Swapped {
    /// It is written.
    Won,
    /// Something else stands there.
    Other(OwnerRecord),
    /// The Service is gone.
    Gone,
    /// The API did not answer in time, or could not: why, of the last attempt.
    Failed(String),
    /// The API server will not have it until somebody changes the Service, a right or a rule of admission: what it
    /// says.
    Refused(String),
}

/// A former owner that has to learn what it has lost (failover-protocol.md 1.5).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LostVip {
    /// Its node.
    pub owner: String,
    /// Our interface towards it.
    pub link: u32,
    /// Its interface's own MAC: where a claim reaches it, also if the address moves with a MAC of its own.
    pub mac: Mac,
    /// What it has lost.
    pub vip: VipId,
    /// To whom: our term.
    pub term: Term,
    /// Whose record it is: the key of the tag.
    pub service: ServiceKey,
    /// It may never have had it, and is only told to be sure.
    pub suspected: bool,
}
