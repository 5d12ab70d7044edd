//! The conditions on a Service: pure. `LoadBalancerReady` says whether a node serves its address, and why not;
//! `LoadBalancerWarning` says what is not as asked for while it is served.
//!
//! Phases that pass within seconds share one reason, so that a new Service costs one write more than its address: the
//! first condition travels with the finalizer.

use std::time::Duration;

use contract::keys::kube_vip::VIP_HOST;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::provider::{
    Announced, Ensured, HARVESTER_SILENT, HOST_UPGRADE, NOT_READ_YET, ProviderError, Remark, Waiting,
};
use crate::view::{Condition, ConditionStatus, Conditions, ServiceView};

/// A node serves the address.
const SERVED: &str = "Served";
/// The work is under way.
const PENDING: &str = "Pending";
/// Nobody is left that would notice if the address were served no more.
const NO_ANNOUNCER: &str = "NoAnnouncer";
/// A request failed and is repeated.
const CALL_FAILED: &str = "CallFailed";

/// A condition's message may not be longer in the API; nobody reads that much anyway.
const LONGEST_MESSAGE: usize = 2048;

/// An address that goes to another node is noted when it has stayed there for so long: a node that fails takes hundreds
/// of Services along, and their new nodes have the API to themselves first.
const SETTLED: Duration = Duration::from_secs(10);

type Answer<'a> = Result<&'a Ensured, &'a ProviderError>;

/// What the conditions should say after a call of `ensure`. `now` is RFC 3339.
pub(super) fn after(
    service: &ServiceView,
    answer: Answer<'_>,
    text: &str,
    announced: Announced,
    now: &str,
) -> Conditions {
    let current = &service.conditions;
    let ready = ready(service, answer, text, announced);
    let warning = match warning(service, answer, text) {
        Warning::Stays => current.warning.clone(),
        Warning::None => None,
        Warning::Is(status, reason, message) => Some((status, reason, message).since(current.warning.as_ref(), now)),
    };
    Conditions {
        ready: ready.map_or_else(|| current.ready.clone(), |said| Some(said.since(current.ready.as_ref(), now))),
        warning,
    }
}

/// What goes onto a Service together with the finalizer, unless it says so already.
pub(super) fn first(service: &ServiceView, announced: Announced, now: &str) -> Option<Condition> {
    after(service, Ok(&Ensured::ready(false)), "", announced, now).ready.filter(|_| service.conditions.ready.is_none())
}

trait Said {
    fn since(self, current: Option<&Condition>, now: &str) -> Condition;
}

impl Said for (ConditionStatus, &str, String) {
    fn since(self, current: Option<&Condition>, now: &str) -> Condition {
        let (status, reason, message) = self;
        let since = current.filter(|current| current.status == status).map_or(now, |current| &current.since).to_owned();
        Condition { status, reason: reason.to_owned(), message: cut(&message).to_owned(), since }
    }
}

/// `None`: what is there stays.
fn ready<'a>(
    service: &ServiceView,
    answer: Answer<'a>,
    text: &str,
    announced: Announced,
) -> Option<(ConditionStatus, &'a str, String)> {
    let current = service.conditions.ready.as_ref();
    let is = |reason: &str| current.is_some_and(|current| current.reason == reason);
    if !service.ingress.is_empty() {
        return match announced {
            // What a former process has seen.
            Announced::Untold if is(NO_ANNOUNCER) => None,
            Announced::Away => Some((ConditionStatus::Unknown, NO_ANNOUNCER, unwatched(service))),
            Announced::Yes | Announced::Untold => Some((ConditionStatus::True, SERVED, served(service))),
        };
    }
    match answer {
        Ok(Ensured::Waiting(Waiting { needs_user: true, reason, message, .. })) => {
            let unknown = [NOT_READ_YET, HARVESTER_SILENT].contains(reason);
            let status = if unknown { ConditionStatus::Unknown } else { ConditionStatus::False };
            Some((status, reason, message.clone()))
        }
        Err(error) if !error.reason.is_empty() => Some((ConditionStatus::False, error.reason, text.to_owned())),
        // Texts of failures differ from attempt to attempt.
        Err(_) if is(CALL_FAILED) => None,
        Err(_) => {
            let message = format!("the last attempt failed, and the next one follows: {text}");
            Some((ConditionStatus::Unknown, CALL_FAILED, message))
        }
        // These say nothing about the Service.
        Ok(Ensured::Waiting(waiting))
            if current.is_some() && [NOT_READ_YET, HOST_UPGRADE].contains(&waiting.reason) =>
        {
            None
        }
        Ok(_) => {
            let message = "no node serves an address of this Service yet: the cloud controller gets one from Harvester, and an \
                           announcer puts it on the network. The Events of this Service say what delays that";
            Some((ConditionStatus::False, PENDING, message.to_owned()))
        }
    }
}

enum Warning<'a> {
    /// What is there stays.
    Stays,
    None,
    Is(ConditionStatus, &'a str, String),
}

fn warning<'a>(service: &ServiceView, answer: Answer<'a>, text: &str) -> Warning<'a> {
    let (reason, message) = match answer {
        Ok(Ensured::Ready { remark: Some(remark), .. }) => {
            // A note is no warning: the user said that less is enough.
            let status = if remark.warning { ConditionStatus::True } else { ConditionStatus::False };
            return Warning::Is(status, remark.reason, remark.message.clone());
        }
        Ok(Ensured::Ready { remark: None, .. }) => return Warning::None,
        Ok(Ensured::Waiting(Waiting { needs_user: true, reason, message, .. })) => (*reason, message.as_str()),
        Err(error) if !error.reason.is_empty() => (error.reason, text),
        Ok(Ensured::Waiting(_)) | Err(_) => return Warning::Stays,
    };
    if service.ingress.is_empty() {
        // The other condition has it.
        return Warning::None;
    }
    Warning::Is(ConditionStatus::True, reason, message.to_owned())
}

fn addresses(service: &ServiceView) -> String {
    service.ingress.iter().map(ToString::to_string).collect::<Vec<_>>().join(" and ")
}

fn served(service: &ServiceView) -> String {
    match service.annotations.get(VIP_HOST).filter(|host| !host.is_empty()) {
        Some(host) => format!("node {host} serves {}", addresses(service)),
        None => format!("{} is served", addresses(service)),
    }
}

fn unwatched(service: &ServiceView) -> String {
    let host = service.annotations.get(VIP_HOST).map(|host| format!(" by node {host}")).unwrap_or_default();
    format!(
        "no announcer has renewed its Lease for minutes: {} was served{host}, and may be served no more. See that the announcer \
         (DaemonSet kube-vip) runs on the nodes and reaches the API server",
        addresses(service)
    )
}

/// What is to be shown now, and when to look again: a change of the node alone is put off.
pub(super) fn settled(
    current: &Conditions,
    wanted: Conditions,
    moved: &mut Option<(String, Instant)>,
    now: Instant,
) -> (Conditions, Option<Duration>) {
    let before = moved.take();
    let (Some(shown), Some(next)) = (&current.ready, &wanted.ready) else { return (wanted, None) };
    let only_moved = shown.status == next.status
        && [&shown.reason, &next.reason] == [SERVED; 2]
        && shown.message != next.message
        // Another address is told at once.
        && shown.message.rsplit(" serves ").next() == next.message.rsplit(" serves ").next();
    if !only_moved {
        return (wanted, None);
    }
    let since = before.filter(|(message, _)| *message == next.message).map_or(now, |(_, since)| since);
    let rest = SETTLED.saturating_sub(now.saturating_duration_since(since));
    if rest.is_zero() {
        return (wanted, None);
    }
    *moved = Some((next.message.clone(), since));
    (Conditions { ready: current.ready.clone(), ..wanted }, Some(rest))
}

/// Whether the Service shows this remark already.
pub(super) fn shows(current: &Condition, remark: &Remark) -> bool {
    current.reason == remark.reason && current.message == cut(&remark.message)
}

fn cut(message: &str) -> &str {
    &message[..message.floor_char_boundary(LONGEST_MESSAGE)]
}

/// One condition as the status has it.
pub(super) fn entry(kind: &str, condition: &Condition) -> Value {
    json!({"type": kind, "status": condition.status.word(), "reason": condition.reason, "message": condition.message,
        "lastTransitionTime": condition.since})
}

/// What takes a condition of this type off, in a strategic merge patch.
pub(super) fn forgotten(kind: &str) -> Value {
    json!({"type": kind, "$patch": "delete"})
}

/// Strategic merge patch of the status: others' conditions stay. The UID is a precondition. `None`: nothing is
/// different.
pub(super) fn patch(service: &ServiceView, wanted: &Conditions) -> Option<Value> {
    let pairs = service.conditions.by_type().into_iter().zip(wanted.by_type());
    let changes: Vec<Value> = pairs
        .filter(|((_, current), (_, wanted))| current != wanted)
        .map(|(_, (kind, wanted))| wanted.as_ref().map_or_else(|| forgotten(kind), |wanted| entry(kind, wanted)))
        .collect();
    (!changes.is_empty()).then(|| json!({"metadata": {"uid": service.uid.0}, "status": {"conditions": changes}}))
}

#[cfg(test)]
mod tests {
    use ConditionStatus::{False, True, Unknown};

    use super::*;
    use crate::test_support::service;
    use crate::view::{LOAD_BALANCER_READY, LOAD_BALANCER_WARNING};

    const NOW: &str = "2026-01-02T00:00:00Z";

    fn waiting(reason: &'static str, needs_user: bool) -> Ensured {
        Ensured::Waiting(Waiting { reason, message: "no pool matches".into(), needs_user, retry_after: None })
    }

    fn remarked(warning: bool) -> Ensured {
        let remark = Remark { reason: "AddressNotAsAsked", message: "10 is served".into(), warning };
        Ensured::Ready { changed: false, remark: Some(remark) }
    }

    fn pending() -> ServiceView {
        service("default/web")
    }

    fn served_by(node: &str) -> ServiceView {
        let mut view = service("default/web");
        view.ingress = vec!["10.0.0.1".parse().unwrap()];
        view.annotations.insert(VIP_HOST, node);
        view
    }

    fn told(view: &ServiceView, answer: Answer<'_>, announced: Announced) -> Conditions {
        let text = answer.err().map(|error| error.message.clone()).unwrap_or_default();
        after(view, answer, &text, announced, NOW)
    }

    fn words(condition: Option<&Condition>) -> (ConditionStatus, &str) {
        condition.map_or((Unknown, ""), |condition| (condition.status, condition.reason.as_str()))
    }

    /// What is there in the end: written over what the answers before have left.
    fn shown(view: &ServiceView, answers: &[Answer<'_>]) -> Conditions {
        let mut view = view.clone();
        for answer in answers {
            view.conditions = told(&view, *answer, Announced::Yes);
        }
        view.conditions
    }

    #[test]
    fn ready_says_whether_a_node_serves_the_service_and_the_warning_what_is_wrong_with_one_that_is_served() {
        let refused = ProviderError::new("denied").because("RefusedByHarvester");
        let passing = ProviderError::new("connection refused");
        let (ready, note, warned) = (Ensured::ready(false), remarked(false), remarked(true));
        let (no_pool, turn) = (waiting("NoMatchingPool", true), waiting("WaitingForTurn", false));
        let (silent, unread) = (waiting(HARVESTER_SILENT, true), waiting(NOT_READ_YET, true));
        let none = (Unknown, "");
        for (answer, new, served) in [
            (Ok(&ready), (False, "Pending"), none),
            (Ok(&warned), (False, "Pending"), (True, "AddressNotAsAsked")),
            (Ok(&note), (False, "Pending"), (False, "AddressNotAsAsked")),
            (Ok(&turn), (False, "Pending"), none),
            (Ok(&no_pool), (False, "NoMatchingPool"), (True, "NoMatchingPool")),
            (Ok(&silent), (Unknown, HARVESTER_SILENT), (True, HARVESTER_SILENT)),
            (Ok(&unread), (Unknown, NOT_READ_YET), (True, NOT_READ_YET)),
            (Err(&refused), (False, "RefusedByHarvester"), (True, "RefusedByHarvester")),
            (Err(&passing), (Unknown, "CallFailed"), none),
        ] {
            let told = shown(&pending(), &[answer]);
            assert_eq!(words(told.ready.as_ref()), new, "{answer:?}");
            let told = shown(&served_by("node-1"), &[answer]);
            assert_eq!(
                (words(told.ready.as_ref()), words(told.warning.as_ref())),
                ((True, "Served"), served),
                "{answer:?}"
            );
        }
    }

    #[test]
    fn a_service_is_served_by_a_node_at_its_address() {
        let message = |view: &ServiceView| shown(view, &[Ok(&Ensured::ready(false))]).ready.unwrap().message;
        assert_eq!(message(&served_by("node-1")), "node node-1 serves 10.0.0.1");
        assert_eq!(message(&served_by("")), "10.0.0.1 is served");
    }

    #[test]
    fn while_no_announcer_is_there_nobody_knows_whether_an_address_is_served() {
        let ready = Ensured::ready(false);
        let mut view = served_by("node-1");
        view.conditions = told(&view, Ok(&ready), Announced::Away);
        assert_eq!(words(view.conditions.ready.as_ref()), (Unknown, NO_ANNOUNCER));
        let after_a_restart = told(&view, Ok(&ready), Announced::Untold);
        assert_eq!(after_a_restart, view.conditions, "the next process has not looked yet");
        let back = told(&view, Ok(&ready), Announced::Yes);
        assert_eq!(words(back.ready.as_ref()), (True, SERVED));
        assert_eq!(words(told(&served_by("node-1"), Ok(&ready), Announced::Untold).ready.as_ref()), (True, SERVED));
        let new = told(&pending(), Ok(&ready), Announced::Away);
        assert_eq!(words(new.ready.as_ref()), (False, PENDING), "nobody has served it yet");
    }

    #[test]
    fn what_stays_the_same_is_not_written_again_and_keeps_its_time() {
        let (ready, trouble) = (Ensured::ready(true), waiting("NoMatchingPool", true));
        for view in [pending(), served_by("node-1")] {
            let mut view = view;
            for answer in [&ready, &trouble, &ready, &waiting("Allocating", false)] {
                let said = told(&view, Ok(answer), Announced::Yes);
                view.conditions = said.clone();
                assert_eq!(patch(&view, &told(&view, Ok(answer), Announced::Yes)), None, "{answer:?}");
            }
        }
        let mut view = pending();
        view.conditions = after(&view, Ok(&trouble), "", Announced::Yes, "before");
        let other = told(&view, Ok(&waiting("NoSuchPool", true)), Announced::Yes).ready.unwrap();
        assert_eq!(
            (other.reason.as_str(), other.since.as_str()),
            ("NoSuchPool", "before"),
            "False since the first one"
        );
    }

    #[test]
    fn a_process_that_knows_nothing_yet_leaves_what_is_said() {
        let trouble = waiting("NotServed", true);
        for passing in [waiting(NOT_READ_YET, false), waiting(HOST_UPGRADE, false)] {
            assert_eq!(shown(&pending(), &[Ok(&trouble), Ok(&passing)]), shown(&pending(), &[Ok(&trouble)]));
        }
        let failed = ProviderError::new("timeout");
        let other = ProviderError::new("connection refused");
        assert_eq!(shown(&pending(), &[Err(&failed), Err(&other)]), shown(&pending(), &[Err(&failed)]));
        assert_eq!(
            words(shown(&pending(), &[Ok(&trouble), Ok(&Ensured::ready(true))]).ready.as_ref()),
            (False, PENDING)
        );
    }

    #[test]
    fn a_warning_goes_when_it_is_over() {
        let (wrong, well) = (ProviderError::new("no").because("WrongAnnotation"), Ensured::ready(false));
        let mut view = served_by("node-1");
        view.conditions = shown(&view, &[Ok(&well), Err(&wrong)]);
        let over = told(&view, Ok(&well), Announced::Yes);
        let expected = json!([{"type": LOAD_BALANCER_WARNING, "$patch": "delete"}]);
        assert_eq!(patch(&view, &over).unwrap()["status"]["conditions"], expected);
    }

    #[test]
    fn the_first_condition_travels_with_the_finalizer() {
        assert_eq!(words(first(&pending(), Announced::Yes, NOW).as_ref()), (False, PENDING));
        assert_eq!(words(first(&served_by("node-1"), Announced::Yes, NOW).as_ref()), (True, SERVED));
        let mut known = pending();
        known.conditions = shown(&known, &[Ok(&waiting("NoSuchPool", true))]);
        assert_eq!(first(&known, Announced::Yes, NOW), None, "it is there");
    }

    #[test]
    fn another_node_is_told_when_it_has_stayed_for_a_moment_and_another_address_at_once() {
        let start = Instant::now();
        let said = |view: &ServiceView| shown(view, &[Ok(&Ensured::ready(false))]);
        let (one, two, three) = (said(&served_by("node-1")), said(&served_by("node-2")), said(&served_by("node-3")));
        let mut moved = None;
        assert_eq!(settled(&one, two.clone(), &mut moved, start), (one.clone(), Some(SETTLED)));
        let later = start + Duration::from_secs(4);
        assert_eq!(settled(&one, two.clone(), &mut moved, later), (one.clone(), Some(Duration::from_secs(6))));
        assert_eq!(settled(&one, three.clone(), &mut moved, later), (one.clone(), Some(SETTLED)), "it goes on");
        assert_eq!(settled(&one, three.clone(), &mut moved, later + SETTLED), (three, None));
        let mut elsewhere = served_by("node-2");
        elsewhere.ingress = vec!["10.0.0.2".parse().unwrap()];
        assert_eq!(settled(&one, said(&elsewhere), &mut moved, start).1, None);
        assert_eq!(settled(&one, said(&pending()), &mut moved, start).1, None);
        assert_eq!(settled(&Conditions::default(), two, &mut moved, start).1, None);
    }

    #[test]
    fn a_long_story_is_cut_at_a_character() {
        let error = ProviderError::new("ä".repeat(3000)).because("HostRefused");
        let mut view = pending();
        view.conditions = shown(&view, &[Err(&error)]);
        assert!(view.conditions.ready.as_ref().is_some_and(|ready| ready.message.len() <= LONGEST_MESSAGE));
        assert_eq!(patch(&view, &told(&view, Err(&error), Announced::Yes)), None);
    }

    #[test]
    fn others_conditions_are_not_in_the_patch() {
        let view = service("default/web");
        let patch = patch(&view, &shown(&view, &[Ok(&Ensured::ready(true))])).unwrap();
        let conditions = patch["status"]["conditions"].as_array().unwrap();
        assert_eq!((conditions.len(), &conditions[0]["type"]), (1, &json!(LOAD_BALANCER_READY)));
        assert_eq!(patch["metadata"], json!({"uid": "u1"}));
    }
}
