//! Telling what Services ask for and do not get.

use std::time::Instant;

use super::{Engine, Owner, Owners, Ownership};
use crate::reason::Reason;
use crate::screen::Reporter;

impl Engine {
    /// `node` mode: what is known of the addresses of machines.
    pub(super) fn note_machines(&mut self) {
        if let Owners::Node(cluster) = &self.ownership {
            self.services.set_machines(cluster.machines());
        }
    }

    pub(super) fn tell_refused(&mut self, now: Instant) {
        for (key, refusal) in self.services.refusals() {
            let ours = match &refusal.reporter {
                Reporter::Node(node) => *node == self.config.node_name,
                Reporter::OwnerOf(owner) => {
                    self.services.get(owner).is_some_and(|view| self.ownership.of(view) == Owner::Mine)
                }
            };
            if ours {
                self.out.warn(now, key, Reason::CannotAnnounce, &refusal.text);
            }
        }
    }
}
