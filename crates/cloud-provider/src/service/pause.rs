//! When a Service is looked at again.

use std::time::Duration;

use crate::provider::Waiting;
use crate::worker::Next;

pub(super) fn within(next: Next, longest: Option<Duration>) -> Next {
    match (next, longest) {
        (Next::BackOff, Some(longest)) => Next::BackOffWithin(longest),
        (next, _) => next,
    }
}

pub(super) fn wait(waiting: &Waiting) -> Next {
    tracing::debug!(reason = waiting.message, needs_user = waiting.needs_user, "waiting");
    // A wait without a time of its own is ended by a wake-up; the resync is its safety net.
    waiting.retry_after.map_or(Next::OnChange, Next::After)
}
