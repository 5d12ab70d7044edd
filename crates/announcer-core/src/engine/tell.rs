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
        // Asked for each Service with each plan, and the answer is nearly always no.
        if self.told.get(key).and_then(|told| told.get(what)).is_some_and(|until| *until > now) {
            return false;
        }
        self.told.entry(key.clone()).or_default().insert(what.to_owned(), now + interval);
        true
    }

    /// What was told long ago may be told again, and needs no room any more.
    pub(super) fn forget_told(&mut self, now: Instant) {
        self.told.retain(|_, told| {
            told.retain(|_, until| *until > now);
            !told.is_empty()
        });
    }

    pub(super) fn tell_members(&mut self, now: Instant, id: &VipId, reason: Reason, text: &str) {
        let members = self.vips.get(id).map(|vip| vip.members.clone()).unwrap_or_default();
        for member in members {
            self.tell(now, &member, true, reason, text);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{Node, view};
    use super::*;

    #[test]
    fn the_same_is_told_again_after_a_while_and_takes_no_room_if_it_is_not() {
        let mut node = Node::leading(&[view("web", &["10.0.0.50"])]);
        let key = ServiceKey::new("default", "web");
        let told = |node: &mut Node, text: &str| node.engine.may_tell(node.now, &key, text, TELL_INTERVAL);
        assert_eq!([told(&mut node, "a"), told(&mut node, "a"), told(&mut node, "b")], [true, false, true]);
        node.pass(Duration::from_mins(9));
        assert!(!told(&mut node, "a"));
        node.pass(Duration::from_mins(2));
        assert!(node.engine.told.is_empty(), "{:?}", node.engine.told);
        assert!(told(&mut node, "a"));
    }
}
