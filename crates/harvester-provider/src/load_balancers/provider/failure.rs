//! Translates failed requests and refusals into errors for the controller. Pure.

use std::time::Duration;

use cloud_provider::provider::ProviderError;
use runtime::error::{api_code, chain, is_denied};

use super::super::apply::RequestError;
use super::super::plan::PlanRefusal;
use super::super::wait_reason::WaitReason;
use crate::config::{lacks_rights, remedy};

/// The longest pause after a refusal of Harvester: as long as that of Harvester's own controllers.
const AFTER_REFUSAL: Duration = Duration::from_mins(2);

/// Reason of the condition on the Service after a failed request; empty for a failure that passes by itself.
fn condition_reason(error: &RequestError) -> &'static str {
    let (RequestError::Write { source, .. } | RequestError::Read { source, .. } | RequestError::Delete { source, .. }) =
        error
    else {
        return "";
    };
    match source {
        kube::Error::Api(status) if status.message.contains("denied the request") => WaitReason::Refused.word(),
        kube::Error::Api(status) if is_denied(status.code) => "HarvesterForbidden",
        kube::Error::Api(status) if status.code == 422 => WaitReason::Refused.word(),
        _ => "",
    }
}

/// Whether Harvester answered with a refusal. During an upgrade of the host its webhooks do so for minutes, and nothing
/// signals the end.
fn is_refusal(error: &RequestError) -> bool {
    matches!(
        error,
        RequestError::Write { source: kube::Error::Api(_), .. }
            | RequestError::Delete { source: kube::Error::Api(_), .. }
    )
}

/// The cause and the advice, if Harvester refused the request because of credentials or rights.
fn not_allowed(error: &RequestError) -> Option<String> {
    let (RequestError::Write { source, .. } | RequestError::Read { source, .. } | RequestError::Delete { source, .. }) =
        error
    else {
        return None;
    };
    let cause = chain(source);
    let remedy = match api_code(source) {
        Some(401) => remedy("Unauthorized"),
        Some(403) if lacks_rights(&cause) => remedy(&cause),
        _ => return None,
    };
    Some(format!("{cause}; {remedy}"))
}

pub(super) fn failed(error: RequestError) -> ProviderError {
    let message = error.to_string();
    let reason = condition_reason(&error);
    let longest_pause = is_refusal(&error).then_some(AFTER_REFUSAL);
    if let Some(refused) = not_allowed(&error) {
        return ProviderError { source: Some(refused.into()), reason, longest_pause, ..ProviderError::new(message) };
    }
    let source = match error {
        RequestError::Write { source, .. }
        | RequestError::Read { source, .. }
        | RequestError::Delete { source, .. }
        | RequestError::Service { source, .. }
        | RequestError::Patch { source, .. } => source.into(),
        RequestError::Malformed { source, .. } => source.into(),
    };
    ProviderError { source: Some(source), reason, longest_pause, ..ProviderError::new(message) }
}

pub(super) fn refused(refusal: &PlanRefusal) -> ProviderError {
    ProviderError::new(refusal.to_string()).permanent().because(refusal.word())
}
