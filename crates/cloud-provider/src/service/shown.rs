//! Writes the conditions of a Service.

use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use runtime::error::chain;
use tokio::time::Instant;

use super::memory::{Rest, ServiceState};
use super::{ServiceController, condition};
use crate::provider::{Ensured, ProviderError};
use crate::view::ServiceView;

impl ServiceController {
    /// Writes the conditions of the Service if they differ, or returns when to check again. After a failure that is
    /// also when to write again: each time later, because an API server that refuses goes on refusing.
    pub(super) async fn show(
        &self,
        service: &ServiceView,
        answer: Result<&Ensured, &ProviderError>,
        memory: &mut ServiceState,
    ) -> Option<Duration> {
        if memory.shown.as_ref() == Some(&service.conditions) {
            memory.shown = None;
        }
        let conditions = memory.shown.clone().unwrap_or_else(|| service.conditions.clone());
        let seen = ServiceView { conditions, ..service.clone() };
        let text = answer.err().map(|error| chain(error)).unwrap_or_default();
        let wanted = condition::after(&seen, answer, &text, self.provider.announced(), &timestamp());
        let (wanted, later) = condition::settled(&seen.conditions, wanted, &mut memory.moved, Instant::now());
        let is_failure = condition::is_failure(answer);
        let wanted =
            if is_failure { condition::reworded(&seen, wanted, memory.failure_shown, Instant::now()) } else { wanted };
        let Some(patch) = condition::patch(&seen, &wanted) else { return later };
        let within = |rest: Duration| Some(later.map_or(rest, |later| later.min(rest)));
        if let Some(left) = memory.refused_conditions.and_then(|rest| rest.left(Instant::now())) {
            return within(left);
        }
        match self.writer.patch_conditions(service, patch).await {
            Ok(_) => {
                memory.shown = Some(wanted);
                memory.refused_conditions = None;
                memory.failure_shown = is_failure.then(Instant::now);
                later
            }
            Err(error) => {
                tracing::debug!(error = chain(&error), "the controller could not write the conditions of the Service");
                let rest = Rest::after(memory.refused_conditions, Instant::now());
                memory.refused_conditions = Some(rest);
                within(rest.pause)
            }
        }
    }
}

/// The current time in the format of conditions.
pub(super) fn timestamp() -> String {
    let now = Timestamp::from_second(Timestamp::now().as_second()).expect("a clock within the range of a timestamp");
    now.to_string()
}
