//! Groups that go from one node to another while both are well.

use std::collections::BTreeMap;
use std::time::Instant;

use super::timing::GIVE_BACK_PAUSE;
use crate::view::ServiceKey;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct HandOvers {
    /// Handed over, and still served until then or until the new owner is heard.
    pub lingering: BTreeMap<ServiceKey, Instant>,
    /// Groups that belong to another node, and since when.
    pub misplaced: BTreeMap<ServiceKey, (String, Instant)>,
    /// Groups that came here because that node was not well: they go back.
    pub lent: BTreeMap<ServiceKey, String>,
    /// When one has gone back last.
    pub gave_back: Option<Instant>,
}

impl HandOvers {
    /// Whether the last one that went back was a moment ago: one at a time.
    pub fn rests(&self, now: Instant) -> bool {
        self.gave_back.is_some_and(|at| now < at + GIVE_BACK_PAUSE)
    }

    /// Nothing is known of Services that are gone, and what is not ours any more is lent no more.
    pub fn retain(
        &mut self,
        now: Instant,
        is_there: impl Fn(&ServiceKey) -> bool,
        is_mine: impl Fn(&ServiceKey) -> bool,
    ) {
        self.lingering.retain(|key, until| is_there(key) && now < *until);
        self.misplaced.retain(|key, _| is_there(key));
        self.lent.retain(|key, _| is_mine(key));
    }
}
