//! Decides what the user is told about a Service. Reasons and messages are the Go framework's, but nothing is reported
//! twice, and a pass that changed nothing reports nothing (framework spec 1.12, 7.7).

use std::time::Duration;

use runtime::events::EventKind;
use tokio::time::Instant;

use super::condition::shows;
use crate::damping::undone;
use crate::provider::{Deleted, Ensured, ProviderError, Remark, Waiting};
use crate::view::Condition;

/// A wait that needs the user is reported again after this time, because Events expire after an hour.
const REPEAT: Duration = Duration::from_mins(10);

/// An Event to emit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ServiceEvent {
    pub(super) kind: EventKind,
    pub(super) reason: &'static str,
    pub(super) message: String,
}

impl ServiceEvent {
    fn normal(reason: &'static str, message: &str) -> Self {
        Self { kind: EventKind::Normal, reason, message: message.to_owned() }
    }

    fn warning(reason: &'static str, message: String) -> Self {
        Self { kind: EventKind::Warning, reason, message }
    }

    fn remark(remark: &Remark) -> Self {
        let kind = if remark.warning { EventKind::Warning } else { EventKind::Normal };
        Self { kind, reason: remark.reason, message: remark.message.clone() }
    }

    /// `by`: another program that writes the Service, if it can be identified.
    pub(super) fn undone(by: Option<&str>) -> Self {
        let whole = "the finalizer, the labels and the annotations of this program";
        Self::warning("UndoneByOthers", undone("this Service", by, whole))
    }

    fn ensuring() -> Self {
        Self::normal("EnsuringLoadBalancer", "Ensuring load balancer")
    }

    fn ensured() -> Self {
        Self::normal("EnsuredLoadBalancer", "Ensured load balancer")
    }

    fn deleting() -> Self {
        Self::normal("DeletingLoadBalancer", "Deleting load balancer")
    }

    fn deleted() -> Self {
        Self::normal("DeletedLoadBalancer", "Deleted load balancer")
    }
}

/// What was reported about one Service so far.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Reports {
    /// The start of the work or a failure was reported; `EnsuredLoadBalancer` is due when the Service is ready.
    working: bool,
    /// The Service is ready; small corrections are not reported.
    ready: bool,
    deleting: bool,
    warned: Option<(String, Instant)>,
    remarked: Option<Remark>,
}

/// How a failed step is reported: for an existing Service, or for one of which only the stored view is left (framework
/// spec 1.8).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Failing {
    Sync,
    Delete,
    /// As `Delete`, for a Service that never had anything: only what is found and deleted after all is told.
    Unseen,
}

impl Failing {
    /// Whether the Service that has the name by now gets the Events about what keeps the former one from being deleted.
    /// As a rule the former one gets them. One that is not known to have had a load balancer gets none.
    pub(super) fn is_told_to_next(self) -> bool {
        self == Self::Unseen
    }

    fn tell(self, text: &str) -> ServiceEvent {
        match self {
            Self::Sync => {
                ServiceEvent::warning("SyncLoadBalancerFailed", format!("Error syncing load balancer: {text}"))
            }
            Self::Delete | Self::Unseen => {
                ServiceEvent::warning("DeleteLoadBalancerFailed", format!("Error deleting load balancer: {text}"))
            }
        }
    }
}

/// Whether the cloud has refused the request, or the request is impossible. It lasts until somebody changes something.
pub(super) fn is_refusal(error: &(dyn std::error::Error + 'static)) -> bool {
    error.downcast_ref().is_some_and(|error: &ProviderError| {
        error.permanent || error.longest_pause.is_some() || !error.reason.is_empty()
    })
}

impl Reports {
    /// Whether the Service is ready: further writes correct changes of other programs.
    pub(super) fn is_settled(&self) -> bool {
        self.ready
    }

    /// Whether the start of a deletion was reported, and its end was not.
    pub(super) fn is_deleting(&self) -> bool {
        self.deleting
    }

    /// The next Service of the name has heard nothing. A deletion goes on.
    pub(super) fn go_on(&mut self) {
        *self = Self { deleting: self.deleting, ..Self::default() };
    }

    /// The reports after the finalizer was written: the work begins.
    pub(super) fn began(&mut self) -> Vec<ServiceEvent> {
        self.working = true;
        vec![ServiceEvent::ensuring()]
    }

    /// The reports for the provider's answer to `ensure`. `served`: the Service has an address in its status; before
    /// that it is not ready.
    pub(super) fn ensured(&mut self, now: Instant, answer: &Ensured, served: bool) -> Vec<ServiceEvent> {
        match answer {
            Ensured::Ready { changed, .. } => {
                let begins = !self.working && !self.ready && *changed;
                let working = self.working || begins;
                let ensuring = begins.then(ServiceEvent::ensuring);
                let ensured = (working && served).then(ServiceEvent::ensured);
                let remarked = self.remarked.take();
                *self = Self { ready: true, working: working && !served, remarked, ..Self::default() };
                ensuring.into_iter().chain(ensured).collect()
            }
            Ensured::Waiting(waiting) => {
                self.ready = false;
                let told = self.waiting(now, waiting, Failing::Sync, "failed to ensure load balancer");
                self.working |= !told.is_empty();
                told
            }
        }
    }

    /// The report that the user requested more than there is, once. `shown` is the condition on the Service, by which a
    /// former process may have reported it.
    pub(super) fn remark(&mut self, remark: Option<&Remark>, shown: Option<&Condition>) -> Option<ServiceEvent> {
        let said =
            self.remarked.as_ref() == remark || remark.zip(shown).is_some_and(|(remark, shown)| shows(shown, remark));
        self.remarked = remark.cloned();
        remark.filter(|_| !said).map(ServiceEvent::remark)
    }

    /// The reports for the provider's answer to `delete`.
    pub(super) fn deleted(&mut self, now: Instant, answer: &Deleted, failing: Failing) -> Vec<ServiceEvent> {
        match answer {
            Deleted::Gone { existed } => {
                let tell = match (self.deleting, existed) {
                    (true, _) => vec![ServiceEvent::deleted()],
                    (false, true) => vec![ServiceEvent::deleting(), ServiceEvent::deleted()],
                    (false, false) => Vec::new(),
                };
                *self = Self::default();
                tell
            }
            Deleted::Left(left) => {
                *self = Self::default();
                vec![ServiceEvent::remark(left)]
            }
            Deleted::Waiting(_) if self.is_silent(failing) => Vec::new(),
            Deleted::Waiting(waiting) => {
                let mut tell = Vec::new();
                if !std::mem::replace(&mut self.deleting, true) {
                    tell.push(ServiceEvent::deleting());
                }
                tell.extend(self.waiting(now, waiting, failing, "failed to delete load balancer"));
                tell
            }
        }
    }

    /// The report that nothing may be written for a Service that is being deleted, as for a wait that needs the user.
    pub(super) fn held(&mut self, now: Instant, hold: &str) -> Option<ServiceEvent> {
        let text =
            format!("{hold}. Until this ends, the load balancer, its address and the finalizer of the Service stay");
        self.is_news(now, &text).then(|| Failing::Sync.tell(&format!("failed to delete load balancer: {text}")))
    }

    /// The reports for a failed step. Every failure is reported; the recorder counts repetitions, and the back-off
    /// makes them rare. A refusal, which lasts until somebody changes something, is reported like a wait: once, and
    /// again before Events expire.
    pub(super) fn failed(&mut self, now: Instant, text: &str, failing: Failing, refusal: bool) -> Vec<ServiceEvent> {
        if self.is_silent(failing) {
            return Vec::new();
        }
        self.working = failing == Failing::Sync && !self.deleting;
        self.ready = false;
        if !refusal {
            self.warned = None;
            return vec![failing.tell(text)];
        }
        if self.is_news(now, text) { vec![failing.tell(text)] } else { Vec::new() }
    }

    /// Whether nothing is told before something is found: no deletion was told yet, and there was nothing to delete.
    fn is_silent(&self, failing: Failing) -> bool {
        failing == Failing::Unseen && !self.deleting
    }

    /// Stores what was reported; returns false if it was reported recently.
    fn is_news(&mut self, now: Instant, text: &str) -> bool {
        if self.warned.as_ref().is_some_and(|(said, at)| said == text && now - *at < REPEAT) {
            return false;
        }
        self.warned = Some((text.to_owned(), now));
        true
    }

    fn waiting(&mut self, now: Instant, waiting: &Waiting, failing: Failing, step: &str) -> Vec<ServiceEvent> {
        if !waiting.needs_user {
            return Vec::new();
        }
        // What quotes a failed request is known by its reason: the text differs from attempt to attempt.
        let about = if waiting.failure { waiting.reason } else { &waiting.message };
        if !self.is_news(now, about) {
            return Vec::new();
        }
        let text = match failing {
            Failing::Sync => format!("{step}: {}", waiting.message),
            Failing::Delete | Failing::Unseen => waiting.message.clone(),
        };
        vec![failing.tell(&text)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::ConditionStatus;

    const READY: Ensured = Ensured::Ready { changed: false, remark: None };
    const CHANGED: Ensured = Ensured::Ready { changed: true, remark: None };

    fn waiting(message: &str, needs_user: bool) -> Waiting {
        Waiting { reason: "Test", message: message.into(), needs_user, failure: false, retry_after: None }
    }

    fn reasons(tell: &[ServiceEvent]) -> Vec<&'static str> {
        tell.iter().map(|tell| tell.reason).collect()
    }

    #[test]
    fn the_next_service_is_told_only_where_the_former_one_never_had_anything() {
        let told = [Failing::Sync, Failing::Delete, Failing::Unseen].map(Failing::is_told_to_next);
        assert_eq!(told, [false, false, true]);
    }

    #[test]
    fn a_load_balancer_that_stays_is_not_told_as_deleted() {
        let left =
            |warning| Deleted::Left(Remark { reason: "AbandonedLoadBalancer", message: "it stays".into(), warning });
        for (warning, kind) in [(true, EventKind::Warning), (false, EventKind::Normal)] {
            let mut reports = Reports::default();
            let told = reports.deleted(Instant::now(), &left(warning), Failing::Sync);
            assert_eq!(told, [ServiceEvent { kind, reason: "AbandonedLoadBalancer", message: "it stays".into() }]);
            assert_eq!(reports, Reports::default());
        }
    }

    #[test]
    fn what_is_served_otherwise_than_asked_for_is_told_once_and_again_when_it_changes() {
        let remark = |message: &str| Remark { reason: "AddressNotAsAsked", message: message.into(), warning: true };
        let (ten, eleven) = (remark("10 is served"), remark("11 is served"));
        let mut reports = Reports::default();
        let told = reports.remark(Some(&ten), None);
        assert_eq!(told, Some(ServiceEvent::warning("AddressNotAsAsked", "10 is served".into())));
        reports.ensured(Instant::now(), &CHANGED, true);
        assert_eq!(reports.remark(Some(&ten), None), None);
        assert_eq!(reports.remark(Some(&eleven), None).map(|tell| tell.message), Some("11 is served".into()));
        assert_eq!(reports.remark(None, None), None);
        assert!(reports.remark(Some(&eleven), None).is_some(), "it was over in between");

        let (reason, since) = ("AddressNotAsAsked".to_owned(), String::new());
        let shown = Condition { status: ConditionStatus::True, reason, message: "10 is served".into(), since };
        assert_eq!(Reports::default().remark(Some(&ten), Some(&shown)), None, "a former process told it");
        assert!(Reports::default().remark(Some(&eleven), Some(&shown)).is_some());
    }

    #[test]
    fn a_new_service_costs_two_events() {
        let now = Instant::now();
        let mut reports = Reports::default();
        assert_eq!(reports.began(), [ServiceEvent::normal("EnsuringLoadBalancer", "Ensuring load balancer")]);
        assert_eq!(reports.ensured(now, &Ensured::Waiting(waiting("allocating", false)), true), []);
        assert_eq!(
            reports.ensured(now, &CHANGED, true),
            [ServiceEvent::normal("EnsuredLoadBalancer", "Ensured load balancer")]
        );
        // The address was published by the announcer, the provider notes it on its object: no news for the user.
        assert_eq!(reports.ensured(now, &CHANGED, true), []);
        assert_eq!(reports.ensured(now, &READY, true), []);
    }

    #[test]
    fn nothing_is_ensured_that_nobody_serves() {
        let now = Instant::now();
        let mut reports = Reports::default();
        reports.began();
        assert_eq!(reports.ensured(now, &CHANGED, false), []);
        assert_eq!(reports.ensured(now, &READY, false), []);
        assert!(reports.is_settled(), "what is undone now is undone by others");
        assert_eq!(reasons(&reports.ensured(now, &READY, true)), ["EnsuredLoadBalancer"]);
        assert_eq!(reports.ensured(now, &READY, true), []);
        let mut restarted = Reports::default();
        assert_eq!(reasons(&restarted.ensured(now, &CHANGED, false)), ["EnsuringLoadBalancer"]);
        assert_eq!(reasons(&restarted.ensured(now, &READY, true)), ["EnsuredLoadBalancer"]);
    }

    #[test]
    fn a_restart_over_a_healthy_service_says_nothing() {
        let now = Instant::now();
        assert_eq!(Reports::default().ensured(now, &READY, true), []);
        // Nor if the provider was not ready to tell at first.
        let mut reports = Reports::default();
        assert_eq!(reports.ensured(now, &Ensured::Waiting(waiting("starting", false)), true), []);
        assert_eq!(reports.ensured(now, &READY, true), []);
    }

    #[test]
    fn a_restart_in_the_middle_of_the_work_says_when_it_is_done() {
        assert_eq!(
            reasons(&Reports::default().ensured(Instant::now(), &CHANGED, true)),
            ["EnsuringLoadBalancer", "EnsuredLoadBalancer"]
        );
    }

    #[test]
    fn a_change_that_takes_its_time_is_told_again() {
        let now = Instant::now();
        let mut reports = Reports::default();
        reports.ensured(now, &READY, true);
        reports.ensured(now, &Ensured::Waiting(waiting("moving", false)), true);
        assert_eq!(reasons(&reports.ensured(now, &CHANGED, true)), ["EnsuringLoadBalancer", "EnsuredLoadBalancer"]);
    }

    #[test]
    fn what_the_user_has_to_do_is_a_warning_told_once_per_message_and_repeated_before_events_expire() {
        let start = Instant::now();
        let mut reports = Reports::default();
        reports.began();
        let at = |seconds| start + Duration::from_secs(seconds);
        let no_pool = Ensured::Waiting(waiting("no pool matches", true));
        let told = reports.ensured(at(0), &no_pool, true);
        assert_eq!(
            told,
            [ServiceEvent::warning(
                "SyncLoadBalancerFailed",
                "Error syncing load balancer: failed to ensure load balancer: no pool matches".into()
            )]
        );
        assert_eq!(reports.ensured(at(5), &no_pool, true), []);
        assert_eq!(
            reasons(&reports.ensured(at(6), &Ensured::Waiting(waiting("pool exhausted", true)), true)),
            ["SyncLoadBalancerFailed"]
        );
        assert_eq!(reports.ensured(at(605), &Ensured::Waiting(waiting("pool exhausted", true)), true), []);
        assert_eq!(reports.ensured(at(607), &Ensured::Waiting(waiting("pool exhausted", true)), true).len(), 1);
        assert_eq!(reasons(&reports.ensured(at(608), &CHANGED, true)), ["EnsuredLoadBalancer"]);
    }

    #[test]
    fn every_failure_is_a_warning_and_recovery_is_told() {
        let now = Instant::now();
        let mut reports = Reports::default();
        reports.ensured(now, &READY, true);
        let text = "failed to ensure load balancer: x";
        assert_eq!(
            reports.failed(now, text, Failing::Sync, false),
            [ServiceEvent::warning("SyncLoadBalancerFailed", format!("Error syncing load balancer: {text}"))]
        );
        assert_eq!(reasons(&reports.ensured(now, &READY, true)), ["EnsuredLoadBalancer"]);
    }

    /// The certificate of Harvester has expired, and each attempt says since how many seconds.
    #[test]
    fn a_failure_whose_text_differs_from_attempt_to_attempt_is_told_once() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let expired = |seconds: u64| {
            let message = format!("certificate expired {seconds} seconds ago");
            Waiting { message, needs_user: true, failure: true, reason: "NotReadYet", retry_after: None }
        };
        let mut reports = Reports::default();
        let told = (0..1200).map(|second| reports.ensured(at(second), &Ensured::Waiting(expired(second)), false).len());
        assert_eq!(told.sum::<usize>(), 2, "at once, and before Events expire");
        let mut going = Reports::default();
        let told = (0..600).map(|second| {
            let told = going.deleted(at(second), &Deleted::Waiting(expired(second)), Failing::Sync);
            reasons(&told).iter().filter(|reason| **reason == "SyncLoadBalancerFailed").count()
        });
        assert_eq!(told.sum::<usize>(), 1);
        let escape = Waiting { reason: "Terminating", ..expired(600) };
        assert_eq!(going.deleted(at(600), &Deleted::Waiting(escape), Failing::Sync).len(), 1, "another reason is news");
    }

    /// H15.
    #[test]
    fn a_refusal_is_not_told_twice() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut reports = Reports::default();
        let mut refused = |seconds, text| reports.failed(at(seconds), text, Failing::Sync, true).len();
        assert_eq!([refused(0, "port 80 is taken"), refused(1, "port 80 is taken")], [1, 0]);
        assert_eq!(refused(2, "port 81 is taken"), 1);
        assert_eq!(refused(603, "port 81 is taken"), 1, "Events expire after an hour");
    }

    #[test]
    fn deletion_is_told_once_at_each_end_and_not_at_all_for_nothing() {
        let now = Instant::now();
        let mut reports = Reports::default();
        let under_way = Deleted::Waiting(waiting("terminating", false));
        assert_eq!(reasons(&reports.deleted(now, &under_way, Failing::Sync)), ["DeletingLoadBalancer"]);
        assert_eq!(reports.deleted(now, &under_way, Failing::Sync), []);
        assert_eq!(
            reasons(&reports.deleted(now, &Deleted::Gone { existed: true }, Failing::Sync)),
            ["DeletedLoadBalancer"]
        );
        let gone = Deleted::Gone { existed: true };
        assert_eq!(
            reasons(&Reports::default().deleted(now, &gone, Failing::Sync)),
            ["DeletingLoadBalancer", "DeletedLoadBalancer"]
        );
        assert_eq!(Reports::default().deleted(now, &Deleted::Gone { existed: false }, Failing::Sync), []);
    }

    #[test]
    fn a_service_that_is_gone_has_its_own_reason_for_a_failed_deletion() {
        assert_eq!(
            Reports::default().failed(Instant::now(), "API away", Failing::Delete, false),
            [ServiceEvent::warning("DeleteLoadBalancerFailed", "Error deleting load balancer: API away".into())]
        );
    }
}
