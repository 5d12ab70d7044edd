//! What the plan and the VIPs have to tell the authors of Services.

use std::time::Instant;

use super::{Engine, Owner, Ownership};
use crate::plan::VipId;
use crate::reason::Reason;

impl Engine {
    pub(super) fn tell_problems(&mut self, now: Instant) {
        for (key, text) in self.plan.told.iter().cloned().chain(self.lease_problems()) {
            if self.services.get(&key).is_some_and(|view| self.ownership.of(view) == Owner::Mine) {
                self.out.warn(now, &key, Reason::CannotAnnounce, &text);
            }
        }
    }

    pub(super) fn tell_members(&mut self, now: Instant, id: &VipId, reason: Reason, text: &str) {
        for member in self.vips.get(id).into_iter().flat_map(|vip| &vip.members) {
            self.out.warn(now, member, reason, text);
        }
    }
}
