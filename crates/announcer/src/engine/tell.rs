//! What people are told, once.

use std::time::{Duration, Instant};

use super::{Action, Engine, Owner, Ownership, TELL_INTERVAL, Tell};
use crate::annotations::printable;
use crate::plan::VipId;
use crate::reason::Reason;
use crate::view::ServiceKey;

impl Engine {
    pub(super) fn tell_problems(&mut self, now: Instant) {
        let problems: Vec<(ServiceKey, String)> = self.plan.told.iter().cloned().collect();
        for (key, text) in problems.into_iter().chain(self.lease_problems()) {
            if self.services.get(&key).is_some_and(|view| self.ownership.of(view) == Owner::Mine) {
                self.tell(now, &key, true, Reason::CannotAnnounce, &text);
            }
        }
    }

    /// An Event, unless the same was told a short while ago.
    pub(super) fn tell(&mut self, now: Instant, key: &ServiceKey, warning: bool, reason: Reason, text: &str) {
        let text = printable(text);
        if self.may_tell(now, key, &text, TELL_INTERVAL) {
            self.out.push(Action::Tell(key.clone(), Tell { warning, reason, text }));
        }
    }

    pub(super) fn may_tell(&mut self, now: Instant, key: &ServiceKey, what: &str, interval: Duration) -> bool {
        self.told.retain(|_, until| *until > now);
        let entry = (key.clone(), what.to_owned());
        if self.told.contains_key(&entry) {
            return false;
        }
        self.told.insert(entry, now + interval);
        true
    }

    pub(super) fn tell_members(&mut self, now: Instant, id: &VipId, reason: Reason, text: &str) {
        let members = self.vips.get(id).map(|vip| vip.members.clone()).unwrap_or_default();
        for member in members {
            self.tell(now, &member, true, reason, text);
        }
    }
}
