//! A silent owner that begins to answer at an address of its own.

use std::time::Instant;

use super::super::Engine;
use crate::ownership::Owners;

impl Engine {
    /// Asks for a review when an owner that is silent for all that it owns answers at an address of its own and did not
    /// at the last review. It may be no silent node then. Nothing else would tell before its next card.
    pub(super) fn note_own_answers(&mut self, now: Instant) {
        let Owners::Node(cluster) = &self.ownership else { return };
        let mut lost = cluster.lost_owners().peekable();
        if lost.peek().is_none() {
            return;
        }
        let (answers, known) = (self.node_mode.detector.at_own_addresses(now), &self.node_mode.at_own_addresses);
        let news = lost.any(|owner| answers.get(owner) == Some(&true) && known.get(owner) != Some(&true));
        self.out.replan_if(news);
    }
}
