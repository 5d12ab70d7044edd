//! Groups that move from one node to another while both nodes work.

use std::collections::BTreeMap;
use std::time::Instant;

use super::timing::GIVE_BACK_PAUSE;
use crate::view::ServiceKey;

/// Groups that move or have moved between well nodes.
#[derive(Debug, Default)]
pub(super) struct HandOvers {
    /// Groups that this node has handed over and still serves, until then or until the new owner is heard.
    pub lingering: BTreeMap<ServiceKey, Instant>,
    /// Own groups that belong to another node, and since when.
    pub misplaced: BTreeMap<ServiceKey, (String, Instant)>,
    /// Groups that the named node has handed to this node, and when. The defect that was the reason may become known
    /// later.
    pub received: BTreeMap<ServiceKey, (String, Instant)>,
    /// Groups that came here because the named node had a defect; they go back to it.
    pub lent: BTreeMap<ServiceKey, String>,
    /// When a group was last given back.
    pub gave_back: Option<Instant>,
}

impl HandOvers {
    /// Whether a group was given back a moment ago; groups go back one at a time.
    pub fn rests(&self, now: Instant) -> bool {
        self.gave_back.is_some_and(|at| now < at + GIVE_BACK_PAUSE)
    }

    /// Forgets Services that do not exist any more, and loans of groups that are not ours any more.
    pub fn retain(
        &mut self,
        now: Instant,
        is_there: impl Fn(&ServiceKey) -> bool,
        is_mine: impl Fn(&ServiceKey) -> bool,
    ) {
        self.lingering.retain(|key, until| is_there(key) && now < *until);
        self.misplaced.retain(|key, _| is_there(key));
        self.received.retain(|key, _| is_mine(key));
        self.lent.retain(|key, _| is_mine(key));
    }
}
