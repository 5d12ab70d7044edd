//! Messages from the plan and the VIPs to the authors of Services.

use std::net::IpAddr;
use std::time::Instant;

use super::{Engine, Owner, Ownership};
use crate::plan::VipId;
use crate::reason::Reason;

impl Engine {
    pub(super) fn tell_problems(&mut self, now: Instant) {
        for (key, text) in self.plan.told.iter().cloned().chain(self.lease_problems()) {
            if self.ownership.announces(self.services.get(&key)) {
                self.out.warn(now, &key, Reason::CannotAnnounce, &text);
            }
        }
        self.tell_without_effect(now);
    }

    /// Reports annotations without effect, once a day: an author who knows may keep them for kube-vip.
    pub(super) fn tell_without_effect(&mut self, now: Instant) {
        for view in self.services.values().filter(|view| view.without_effect.is_some()) {
            if self.ownership.of(view) == Owner::Mine
                && let Some(text) = &view.without_effect
            {
                self.out.remind(now, &view.key, Reason::AnnotationIgnored, text);
            }
        }
    }

    /// Notes that the Services of this VIP were told that its address is not announced any more.
    pub(super) fn tell_over(&mut self, id: &VipId, address: IpAddr) {
        for member in self.vips.get(id).into_iter().flat_map(|vip| &vip.members) {
            self.records.told_over(member, address);
        }
    }

    pub(super) fn tell_members(&mut self, now: Instant, id: &VipId, reason: Reason, text: &str) {
        for member in self.vips.get(id).into_iter().flat_map(|vip| &vip.members) {
            self.out.warn(now, member, reason, text);
        }
    }
}
