//! Collects the results of one step of the engine: actions, Events that are not repetitions, and whether to plan again.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::{Action, ServiceEvent};
use crate::annotations::printable;
use crate::reason::Reason;
use crate::view::ServiceKey;

/// Minimum time between two equal Events on a Service.
const TELL_INTERVAL: Duration = Duration::from_mins(10);
/// The same for Events about harmless facts.
const REMIND_INTERVAL: Duration = Duration::from_hours(24);
/// Minimum time between two reports of a DHCP client with the same reason. Their text changes with each attempt.
const REPORT_INTERVAL: Duration = Duration::from_mins(1);

/// The collected results.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    actions: Vec<Action>,
    /// The texts that were told on each Service, and until when they are not repeated.
    told: BTreeMap<ServiceKey, BTreeMap<String, Instant>>,
    replan: bool,
    urgent: bool,
}

impl Outbox {
    /// Adds an action, after the earlier ones.
    pub fn push(&mut self, action: Action) {
        self.actions.push(action);
    }

    /// Adds actions in this order.
    pub fn extend(&mut self, actions: impl IntoIterator<Item = Action>) {
        self.actions.extend(actions);
    }

    /// Takes the collected actions.
    pub fn take(&mut self) -> Vec<Action> {
        std::mem::take(&mut self.actions)
    }

    /// Requests a plan, because something has changed that it depends on.
    pub fn replan(&mut self) {
        self.replan = true;
    }

    /// Requests a plan if `changed`.
    pub fn replan_if(&mut self, changed: bool) {
        self.replan |= changed;
    }

    /// Requests a plan for which clients wait.
    pub fn replan_urgently(&mut self) {
        (self.replan, self.urgent) = (true, true);
    }

    /// Whether clients wait for the next plan.
    pub fn is_urgent(&self) -> bool {
        self.urgent
    }

    /// Whether a plan was requested; clears the request.
    pub fn take_replan(&mut self) -> bool {
        self.urgent = false;
        std::mem::take(&mut self.replan)
    }

    /// Whether a plan was requested.
    #[cfg(test)]
    pub fn plans(&self) -> bool {
        self.replan
    }

    /// Sends a warning Event, unless the same text was told recently.
    pub fn warn(&mut self, now: Instant, key: &ServiceKey, reason: Reason, text: &str) {
        self.tell(now, key, ServiceEvent { warning: true, reason, text: printable(text) });
    }

    /// Sends a normal Event, unless the same text was told recently.
    pub fn inform(&mut self, now: Instant, key: &ServiceKey, reason: Reason, text: &str) {
        self.tell(now, key, ServiceEvent { warning: false, reason, text: printable(text) });
    }

    /// Sends a warning Event, at most once a day, about something that its author may have intended.
    pub fn remind(&mut self, now: Instant, key: &ServiceKey, reason: Reason, text: &str) {
        let text = printable(text);
        if self.may_tell(now, key, &text, REMIND_INTERVAL) {
            self.actions.push(Action::Tell(key.clone(), ServiceEvent { warning: true, reason, text }));
        }
    }

    /// Sends an Event about a change. It is never suppressed, because a change may lead back to a state that was told
    /// recently.
    pub fn news(&mut self, key: &ServiceKey, warning: bool, reason: Reason, text: &str) {
        self.actions.push(Action::Tell(key.clone(), ServiceEvent { warning, reason, text: printable(text) }));
    }

    fn tell(&mut self, now: Instant, key: &ServiceKey, tell: ServiceEvent) {
        if self.may_tell(now, key, &tell.text, TELL_INTERVAL) {
            self.actions.push(Action::Tell(key.clone(), tell));
        }
    }

    /// Sends a report of a DHCP client, unless one with the same reason was told recently.
    pub fn report(&mut self, now: Instant, key: &ServiceKey, reason: Reason, text: &str) {
        if self.may_tell(now, key, reason.as_str(), REPORT_INTERVAL) {
            let warning = reason != Reason::DhcpOtherAddress;
            self.actions.push(Action::Tell(key.clone(), ServiceEvent { warning, reason, text: printable(text) }));
        }
    }

    fn may_tell(&mut self, now: Instant, key: &ServiceKey, what: &str, interval: Duration) -> bool {
        // This is asked for each Service with each plan, and is nearly always false; so it avoids allocations.
        if self.told.get(key).and_then(|told| told.get(what)).is_some_and(|until| *until > now) {
            return false;
        }
        self.told.entry(key.clone()).or_default().insert(what.to_owned(), now + interval);
        true
    }

    /// Forgets texts that may be told again.
    pub fn forget_told(&mut self, now: Instant) {
        self.told.retain(|_, told| {
            told.retain(|_, until| *until > now);
            !told.is_empty()
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_is_told_again_after_a_while_and_takes_no_room_if_it_is_not() {
        let (mut out, mut now, key) = (Outbox::default(), Instant::now(), ServiceKey::new("default", "web"));
        let told = |out: &mut Outbox, now: Instant, text: &str| {
            out.warn(now, &key, Reason::CannotAnnounce, text);
            !out.take().is_empty()
        };
        assert_eq!([told(&mut out, now, "a"), told(&mut out, now, "a"), told(&mut out, now, "b")], [true, false, true]);
        now += Duration::from_mins(9);
        assert!(!told(&mut out, now, "a"));
        now += Duration::from_mins(2);
        out.forget_told(now);
        assert!(out.told.is_empty(), "{:?}", out.told);
        assert!(told(&mut out, now, "a"));
    }

    #[test]
    fn of_one_kind_of_trouble_a_client_is_quoted_once_a_minute() {
        let (mut out, now, key) = (Outbox::default(), Instant::now(), ServiceKey::new("default", "web"));
        for (seconds, reason, text, expected) in [
            (0, Reason::DhcpNoAnswer, "attempt 1", 1),
            (5, Reason::DhcpNoAnswer, "attempt 2", 0),
            (5, Reason::DhcpRefused, "refused", 1),
            (61, Reason::DhcpNoAnswer, "attempt 9", 1),
        ] {
            out.report(now + Duration::from_secs(seconds), &key, reason, text);
            assert_eq!(out.take().len(), expected, "{text}");
        }
    }

    #[test]
    fn a_plan_that_was_begun_is_not_due_any_more() {
        let mut out = Outbox::default();
        out.replan_if(false);
        assert!(!out.take_replan());
        out.replan_urgently();
        assert!(out.is_urgent() && out.take_replan());
        assert!(!out.is_urgent() && !out.take_replan());
    }
}
