//! `node` mode: one membership Lease per node, ownership and term on each Service (fail-over spec 1, decisions.md
//! 19 to 26).
//!
//! The interfaces between this module and the other parts of the engine:
//!
//! * The failure detector (`detect`) gets [`Targets`], the owners that this node has to watch, whenever they change. It
//!   returns [`OwnerVerdict`]s. Arming (R5), confirmation (R3), the landmarks (R4) and the self-check (R2) belong to
//!   the detector. This module decides what follows from a verdict.
//! * The claims (`claim`) get the MAC, address and term of each former owner after a take-over; they are repeated until
//!   that MAC is silent. They return the term of each claim whose tag was valid.
//! * The API gets a compare-and-swap of one Service's record, and this node's own membership Lease.

mod asking;
mod candidates;
mod cluster;
mod decide;
mod facts;
mod foreign;
mod gateways;
mod given_up;
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
mod unreached;
mod vacant;
mod watchers;

pub(crate) use cluster::Cluster;
pub use contract::{OwnerRecord, Term};
pub(crate) use decide::Why;
use l2_types::Mac;
pub(crate) use member::card_links;
pub use member::{Card, CardLink, ForeignLock, Member, NodeFacts};
#[cfg(test)]
pub(crate) use place::preferred;
pub(crate) use round::{Review, ReviewContext};
pub(crate) use swaps::Change;
pub(crate) use timing::HAND_OVER_LINGER;

pub(crate) use crate::detect::verdict::{OwnerVerdict, Target, Targets, Watched};
use crate::view::{ServiceKey, Uid};
use crate::vip_id::VipId;

/// A compare-and-swap of one Service's record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Swap {
    /// UID of the Service; a later Service of the same name is not meant.
    pub uid: Uid,
    /// The record that this node expects on the Service.
    pub expect: Option<OwnerRecord>,
    /// The record to write.
    pub owner_record: OwnerRecord,
}

impl Swap {
    /// Whether the swap changes nothing and only reads what stands.
    pub fn is_read(&self) -> bool {
        self.expect.as_ref() == Some(&self.owner_record)
    }

    /// Whether the swap may overwrite the record `standing`. A record older than the expected one was restored by
    /// another writer, so it may be overwritten. A different or newer record names an owner that this node did not
    /// know. A read overwrites nothing: this node may have given up the record that it reads.
    pub fn may_replace(&self, standing: Option<&OwnerRecord>) -> bool {
        match (standing, &self.expect) {
            _ if self.is_read() => false,
            (None, _) => true,
            (Some(standing), Some(expect)) => standing == expect || standing.term < expect.term,
            (Some(_), None) => false,
        }
    }
}

/// Result of a [`Swap`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Swapped {
    /// The record is written.
    Won,
    /// Another record is on the Service; the swap was not written.
    Other(OwnerRecord),
    /// The swap was only a read, and no record is on the Service.
    Unrecorded,
    /// The Service does not exist any more.
    Gone,
    /// The API server did not answer in time or could not answer. Holds the error of the last attempt.
    Failed(String),
    /// The API server refuses the write until the Service, a right or an admission rule is changed. Holds the server's
    /// message.
    Refused(String),
}

/// A former owner that has to learn that it lost a VIP (fail-over spec 1.5).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LostVip {
    /// Name of the former owner's node.
    pub owner: String,
    /// Our interface towards it.
    pub link: u32,
    /// The own MAC of the former owner's interface. A claim reaches it there, also if the VIP moves with a MAC of its
    /// own.
    pub mac: Mac,
    /// The VIP that it has lost.
    pub vip: VipId,
    /// The term under which this node owns the VIP.
    pub term: Term,
    /// The Service that holds the record; its UID is the key of the tag.
    pub service: ServiceKey,
    /// True if this node may never have had the VIP and is told only as a precaution.
    pub suspected: bool,
}
