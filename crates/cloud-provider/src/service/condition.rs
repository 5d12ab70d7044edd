//! The condition on a Service: pure. Written only when something is not as asked for and when that is over, so that a Service without
//! trouble costs no write (decision 5).

use serde_json::{Value, json};

use crate::provider::{Ensured, ProviderError, Remark};
use crate::view::{CONDITION, Condition, ServiceView};

/// Reason of the condition when all is well again.
const READY: &str = "Ready";

/// A condition's message may not be longer in the API; nobody reads that much anyway.
const LONGEST_MESSAGE: usize = 2048;

/// What the condition should say after a call of `ensure`; `None`: leave it as it is. `now` is RFC 3339.
pub(super) fn after(
    service: &ServiceView,
    answer: Result<&Ensured, &ProviderError>,
    text: &str,
    now: &str,
) -> Option<Condition> {
    let (status, reason, message) = match answer {
        Ok(Ensured::Ready { remark: None, .. }) => (true, READY, ""),
        Ok(Ensured::Ready { remark: Some(remark), .. }) => (true, remark.reason, remark.message.as_str()),
        Ok(Ensured::Waiting(waiting)) if waiting.needs_user => (false, waiting.reason, waiting.message.as_str()),
        Err(error) if !error.reason.is_empty() => (false, error.reason, text),
        _ => return None,
    };
    let current = service.condition.as_ref();
    // A Service that never had trouble needs no condition to say so.
    if status && reason == READY && current.is_none() {
        return None;
    }
    let message = cut(message);
    if current.is_some_and(|current| says(current, status, reason, message)) {
        return None;
    }
    let since = current.filter(|current| current.status == status).map_or(now, |current| &current.since).to_owned();
    Some(Condition { status, reason: reason.to_owned(), message: message.to_owned(), since })
}

/// Whether the Service shows this remark already.
pub(super) fn shows(current: &Condition, remark: &Remark) -> bool {
    says(current, true, remark.reason, cut(&remark.message))
}

fn says(current: &Condition, status: bool, reason: &str, message: &str) -> bool {
    current.status == status && current.reason == reason && current.message == message
}

fn cut(message: &str) -> &str {
    &message[..message.floor_char_boundary(LONGEST_MESSAGE)]
}

/// Strategic merge patch of the status: others' conditions stay. The UID is a precondition.
pub(super) fn patch(service: &ServiceView, condition: &Condition) -> Value {
    let status = if condition.status { "True" } else { "False" };
    json!({"metadata": {"uid": service.uid.0}, "status": {"conditions": [{
        "type": CONDITION, "status": status, "reason": condition.reason, "message": condition.message,
        "lastTransitionTime": condition.since,
    }]}})
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::provider::Waiting;
    use crate::test_support::service;

    const NOW: &str = "2026-01-02T00:00:00Z";

    fn waiting(needs_user: bool) -> Ensured {
        let message = "no pool matches".to_owned();
        Ensured::Waiting(Waiting { reason: "NoMatchingPool", message, needs_user, retry_after: None })
    }

    fn with(condition: Option<Condition>) -> ServiceView {
        ServiceView { condition, ..service("default/web") }
    }

    fn said(status: bool, reason: &str, message: &str, since: &str) -> Condition {
        Condition { status, reason: reason.into(), message: message.into(), since: since.into() }
    }

    #[test]
    fn a_service_without_trouble_never_has_a_condition() {
        for answer in [Ensured::ready(true), Ensured::ready(false), waiting(false)] {
            assert_eq!(after(&with(None), Ok(&answer), "", NOW), None, "{answer:?}");
        }
        let passing = ProviderError::new("connection refused");
        assert_eq!(after(&with(None), Err(&passing), "connection refused", NOW), None);
    }

    #[test]
    fn what_the_user_has_to_mend_is_said_once_and_taken_back_once() {
        let trouble = said(false, "NoMatchingPool", "no pool matches", NOW);
        assert_eq!(after(&with(None), Ok(&waiting(true)), "", NOW), Some(trouble.clone()));
        assert_eq!(after(&with(Some(trouble.clone())), Ok(&waiting(true)), "", "later"), None, "nothing new");
        let refused = ProviderError::new("x").because("HostRefused");
        let other = after(&with(Some(trouble.clone())), Err(&refused), "denied", "later");
        assert_eq!(other, Some(said(false, "HostRefused", "denied", NOW)), "False since the first trouble");
        let well = after(&with(Some(trouble)), Ok(&Ensured::ready(true)), "", "later");
        assert_eq!(well, Some(said(true, "Ready", "", "later")));
        assert_eq!(after(&with(well), Ok(&Ensured::ready(false)), "", "still later"), None);
    }

    #[test]
    fn who_is_served_otherwise_than_asked_for_is_ready_and_says_so_until_it_is_over() {
        let remark = Remark { reason: "AddressNotAsAsked", message: "10 is served".into(), warning: true };
        let served = Ensured::Ready { changed: false, remark: Some(remark.clone()) };
        let told = after(&with(None), Ok(&served), "", NOW);
        assert_eq!(told, Some(said(true, "AddressNotAsAsked", "10 is served", NOW)));
        assert!(told.as_ref().is_some_and(|condition| shows(condition, &remark)));
        assert_eq!(after(&with(told.clone()), Ok(&served), "", "later"), None, "nothing new");
        let over = after(&with(told), Ok(&Ensured::ready(false)), "", "later");
        assert_eq!(over, Some(said(true, "Ready", "", NOW)), "it was ready all the time");
        let trouble = said(false, "NotServed", "nobody serves it", NOW);
        assert_eq!(
            after(&with(Some(trouble)), Ok(&served), "", "later"),
            Some(said(true, "AddressNotAsAsked", "10 is served", "later"))
        );
    }

    #[test]
    fn a_long_story_is_cut_at_a_character() {
        let error = ProviderError::new("").because("HostRefused");
        let condition = after(&with(None), Err(&error), &"ä".repeat(3000), NOW).expect("a condition");
        assert!(condition.message.len() <= LONGEST_MESSAGE);
        let again = after(&with(Some(condition)), Err(&error), &"ä".repeat(3000), NOW);
        assert_eq!(again, None);
    }

    #[test]
    fn others_conditions_are_not_in_the_patch() {
        let patch = patch(&service("default/web"), &said(true, "Ready", "", NOW));
        assert_eq!(patch["status"]["conditions"].as_array().map(Vec::len), Some(1));
        assert_eq!(patch["metadata"], json!({"uid": "u1"}));
    }
}
