//! The conditions on a Service. Pure. `LoadBalancerReady` says whether a node serves its address, and why not.
//! `LoadBalancerWarning` says what is not as requested, although the Service is served.
//!
//! Phases that last only seconds share one reason. So a new Service costs only one more write than its address: the
//! first condition is written together with the finalizer.

use std::time::Duration;

use contract::keys::cloudprovider::{IP, IPAM};
use contract::keys::kube_vip::VIP_HOST;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::provider::{
    AnnouncerPresence, Ensured, HARVESTER_SILENT, HOST_UPGRADE, NOT_READ_YET, ProviderError, Remark, Waiting,
};
use crate::view::{Condition, ConditionStatus, Conditions, ServiceView};

/// Reason: a node serves the address.
const SERVED: &str = "Served";
/// Reason: the Service has an address, but this controller has not had a load balancer for it yet, so another program
/// assigned the address. An outage neither removes nor adds this reason.
pub const NO_LOAD_BALANCER_YET: &str = "NoLoadBalancerYet";
/// Reason: the work is under way.
const PENDING: &str = "Pending";
/// Reason: no announcer is running that could notice if the address were no longer served.
const NO_ANNOUNCER: &str = "NoAnnouncer";
/// Reason: a request failed and will be repeated.
const CALL_FAILED: &str = "CallFailed";

/// Limit of a condition's message in the API.
const LONGEST_MESSAGE: usize = 2048;

/// An address that moves to another node is reported after it has stayed there for this long. The failure of a node
/// moves hundreds of Services, and their new nodes need the API server first.
const SETTLED: Duration = Duration::from_secs(10);

/// A failure whose reason stays and whose text differs is written anew after this time. The text differs with each
/// attempt where it has times, or addresses that take turns, and there may be an attempt per second and Service.
const REWORD: Duration = Duration::from_mins(5);

type EnsureResult<'a> = Result<&'a Ensured, &'a ProviderError>;

/// The conditions after a call of `ensure`. `now` is RFC 3339.
pub(super) fn after(
    service: &ServiceView,
    answer: EnsureResult<'_>,
    text: &str,
    announced: AnnouncerPresence,
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

/// The condition to write together with the finalizer, unless the Service already has one.
pub(super) fn first(service: &ServiceView, announced: AnnouncerPresence, now: &str) -> Option<Condition> {
    let (reason, message) = (PENDING, String::new());
    let nothing_yet =
        Ensured::Waiting(Waiting { reason, message, needs_user: false, failure: false, retry_after: None });
    after(service, Ok(&nothing_yet), "", announced, now).ready.filter(|_| service.conditions.ready.is_none())
}

trait IntoCondition {
    fn since(self, current: Option<&Condition>, now: &str) -> Condition;
}

impl IntoCondition for (ConditionStatus, &str, String) {
    fn since(self, current: Option<&Condition>, now: &str) -> Condition {
        let (status, reason, message) = self;
        let since = current.filter(|current| current.status == status).map_or(now, |current| &current.since).to_owned();
        Condition { status, reason: reason.to_owned(), message: cut(&message).to_owned(), since }
    }
}

/// The new condition; `None` if the existing one stays.
fn ready<'a>(
    service: &ServiceView,
    answer: EnsureResult<'a>,
    text: &str,
    announced: AnnouncerPresence,
) -> Option<(ConditionStatus, &'a str, String)> {
    let current = service.conditions.ready.as_ref();
    let is = |reason: &str| current.is_some_and(|current| current.reason == reason);
    if !service.ingress.is_empty() {
        let made = matches!(answer, Ok(Ensured::Ready { .. }));
        let was_made = current.is_some_and(|current| current.reason != NO_LOAD_BALANCER_YET);
        if !made && !was_made {
            let told = current.is_some() || !says_nothing(answer);
            return told.then(|| (ConditionStatus::True, NO_LOAD_BALANCER_YET, served_before(service)));
        }
        return match announced {
            // The observation of a former process stays.
            AnnouncerPresence::NotKnownYet if is(NO_ANNOUNCER) => None,
            AnnouncerPresence::Away => Some((ConditionStatus::Unknown, NO_ANNOUNCER, unwatched(service))),
            AnnouncerPresence::Running | AnnouncerPresence::NotKnownYet => {
                Some((ConditionStatus::True, SERVED, served(service)))
            }
        };
    }
    match answer {
        Ok(Ensured::Waiting(Waiting { needs_user: true, reason, message, .. })) => {
            let unknown = [NOT_READ_YET, HARVESTER_SILENT].contains(reason);
            let status = if unknown { ConditionStatus::Unknown } else { ConditionStatus::False };
            Some((status, reason, message.clone()))
        }
        Err(error) if !error.reason.is_empty() => Some((ConditionStatus::False, error.reason, text.to_owned())),
        // The text of a failure differs from attempt to attempt, so an existing condition stays.
        Err(_) if is(CALL_FAILED) => None,
        Err(_) => {
            let message = format!("the last attempt failed, and the next one follows: {text}");
            Some((ConditionStatus::Unknown, CALL_FAILED, message))
        }
        // These answers tell nothing about the Service.
        answer if current.is_some() && says_nothing(answer) => None,
        Ok(_) => Some((ConditionStatus::False, PENDING, pending(service))),
    }
}

/// The way to an address, which depends on nothing but what the user has asked for: a phase is no news.
fn pending(service: &ServiceView) -> String {
    let way = match service.annotations.get(IPAM) {
        Some("static") => format!(
            "annotation {IP} names it, and an announcer asks the network whether another host has it before a node \
             announces it"
        ),
        Some("dhcp") => "an announcer asks a DHCP server for one, and puts it on the network".to_owned(),
        _ => "the cloud controller gets one from Harvester, and an announcer puts it on the network".to_owned(),
    };
    format!("no node serves an address of this Service yet: {way}. The Events of this Service say what delays that")
}

/// Whether the answer is about the controller or the host, and not about the Service.
fn says_nothing(answer: EnsureResult<'_>) -> bool {
    matches!(answer, Ok(Ensured::Waiting(waiting)) if [NOT_READ_YET, HOST_UPGRADE].contains(&waiting.reason))
}

/// Whether the answer quotes a failed request, and its text may therefore differ from attempt to attempt.
pub(super) fn is_failure(answer: EnsureResult<'_>) -> bool {
    matches!(answer, Ok(Ensured::Waiting(waiting)) if waiting.failure)
}

/// The conditions to write now, after an answer that quotes a failed request. A message that has other words under the
/// same reason was told already; `since`: when this process wrote such a message last.
///
/// The condition of a Service that is served quotes no failure: it names the node that serves it.
pub(super) fn reworded(service: &ServiceView, wanted: Conditions, since: Option<Instant>, now: Instant) -> Conditions {
    let current = &service.conditions;
    if since.is_none_or(|since| now.saturating_duration_since(since) >= REWORD) {
        return wanted;
    }
    let choose = |current: &Option<Condition>, wanted: Option<Condition>| {
        let same = |shown: &&Condition| {
            wanted.as_ref().is_some_and(|next| (next.status, &next.reason) == (shown.status, &shown.reason))
        };
        current.as_ref().filter(same).cloned().or(wanted)
    };
    let ready = if service.ingress.is_empty() { choose(&current.ready, wanted.ready) } else { wanted.ready };
    Conditions { ready, warning: choose(&current.warning, wanted.warning) }
}

enum Warning<'a> {
    /// The existing condition stays.
    Stays,
    None,
    Is(ConditionStatus, &'a str, String),
}

fn warning<'a>(service: &ServiceView, answer: EnsureResult<'a>, text: &str) -> Warning<'a> {
    let (reason, message) = match answer {
        Ok(Ensured::Ready { remark: Some(remark), .. }) => {
            // A remark that is no warning: the user declared that less is sufficient.
            let status = if remark.warning { ConditionStatus::True } else { ConditionStatus::False };
            return Warning::Is(status, remark.reason, remark.message.clone());
        }
        Ok(Ensured::Ready { remark: None, .. }) => return Warning::None,
        Ok(Ensured::Waiting(Waiting { needs_user: true, reason, message, .. })) => (*reason, message.as_str()),
        Err(error) if !error.reason.is_empty() => (error.reason, text),
        Ok(Ensured::Waiting(_)) | Err(_) => return Warning::Stays,
    };
    if service.ingress.is_empty() {
        // The other condition already has this reason.
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

fn served_before(service: &ServiceView) -> String {
    format!(
        "{} was served before this controller had a load balancer for the Service. The Events of this Service say what \
         delays that",
        addresses(service)
    )
}

fn unwatched(service: &ServiceView) -> String {
    let host = service.annotations.get(VIP_HOST).map(|host| format!(" by node {host}")).unwrap_or_default();
    format!(
        "no announcer has renewed its Lease for minutes: {} was served{host}, and may be served no more. See that the \
         announcer (DaemonSet kube-vip) runs on the nodes and reaches the API server",
        addresses(service)
    )
}

/// The conditions to write now, and when to check again: a mere change of the node is delayed.
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
        // A change of the address is reported at once.
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

/// Whether the Service already shows this remark.
pub(super) fn shows(current: &Condition, remark: &Remark) -> bool {
    current.reason == remark.reason && current.message == cut(&remark.message)
}

fn cut(message: &str) -> &str {
    &message[..message.floor_char_boundary(LONGEST_MESSAGE)]
}

/// The condition as an entry of the status.
pub(super) fn entry(kind: &str, condition: &Condition) -> Value {
    json!({"type": kind, "status": condition.status.word(), "reason": condition.reason, "message": condition.message,
        "lastTransitionTime": condition.since})
}

/// The entry that removes a condition of this type with a strategic merge patch.
pub(super) fn forgotten(kind: &str) -> Value {
    json!({"type": kind, "$patch": "delete"})
}

/// The strategic merge patch of the status, which keeps the conditions of other controllers. The UID is a precondition.
/// `None` if nothing differs.
pub(super) fn patch(service: &ServiceView, wanted: &Conditions) -> Option<Value> {
    let pairs = service.conditions.by_type().into_iter().zip(wanted.by_type());
    let changes: Vec<Value> = pairs
        .filter(|((_, current), (_, wanted))| current != wanted)
        .map(|(_, (kind, wanted))| wanted.as_ref().map_or_else(|| forgotten(kind), |wanted| entry(kind, wanted)))
        .collect();
    (!changes.is_empty()).then(|| json!({"metadata": {"uid": service.uid.0}, "status": {"conditions": changes}}))
}

#[cfg(test)]
mod tests;
