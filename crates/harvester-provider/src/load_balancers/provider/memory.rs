//! What is remembered between calls.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use cloud_provider::view::ServiceKey;

use super::super::sharing::{Group, Occupant};
use super::super::under_way::UnderWay;
use super::unserved::Unserved;

/// What is not worth losing while the process lives, and no harm if it is lost. Most of it comes in a burst and is gone soon after: a
/// tree gives the room back, a hash table never does.
#[derive(Debug, Default)]
pub(super) struct Memory {
    /// Our POSTs without a published address, for the metrics.
    pub(super) created: BTreeMap<String, Instant>,
    /// When an object that waits for an address was last sent, or first seen waiting.
    pub(super) sent: BTreeMap<String, Instant>,
    /// Objects that a deletion found.
    pub(super) deleted: BTreeSet<String>,
    /// Services that were there before us and have no address yet.
    pub(super) backlog: BTreeSet<ServiceKey>,
    /// By primary: secondaries whose patch is on its way, so that two applicants cannot take one port (W-20).
    pub(super) claims: BTreeMap<ServiceKey, Vec<Occupant>>,
    /// What passes under way are about to take.
    pub(super) under_way: UnderWay,
    /// By group without an address: who of its members is to get one, so that two do not begin at once.
    pub(super) founders: BTreeMap<Group, ServiceKey>,
    /// By heir: the object that was handed over to it, for as long as the watch does not show that.
    pub(super) inherited: BTreeMap<ServiceKey, String>,
    /// To whom an object is being handed over at this moment.
    pub(super) heirs: BTreeSet<ServiceKey>,
    /// Since when nothing but Harvester keeps a Service from being deleted.
    pub(super) deleting: BTreeMap<ServiceKey, Instant>,
    /// Addresses that are published and not served.
    pub(super) unserved: BTreeMap<ServiceKey, Unserved>,
}

#[cfg(test)]
impl Memory {
    pub(super) fn is_empty(&self) -> bool {
        self.created.is_empty()
            && self.sent.is_empty()
            && self.deleted.is_empty()
            && self.backlog.is_empty()
            && self.claims.is_empty()
            && self.under_way.is_empty()
            && self.founders.is_empty()
            && self.inherited.is_empty()
            && self.heirs.is_empty()
            && self.deleting.is_empty()
            && self.unserved.is_empty()
    }
}
