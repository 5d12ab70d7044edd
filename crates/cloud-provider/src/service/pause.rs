//! Computes when a Service is reconciled again.

use std::time::Duration;

use crate::provider::Waiting;
use crate::worker::Next;

pub(super) fn within(next: Next, longest: Option<Duration>) -> Next {
    match (next, longest) {
        (Next::BackOff, Some(longest)) => Next::BackOffWithin(longest),
        (next, _) => next,
    }
}

/// Limits the pause to this time.
pub(super) fn not_after(next: Next, latest: Duration) -> Next {
    match next {
        Next::OnChange => Next::After(latest),
        Next::After(pause) => Next::After(pause.min(latest)),
        Next::BackOff | Next::BackOffWithin(_) => next,
    }
}

pub(super) fn wait(waiting: &Waiting) -> Next {
    tracing::debug!(
        reason = waiting.message,
        needs_user = waiting.needs_user,
        "the controller waits before it goes on with the Service"
    );
    // A wait without a time of its own is ended by a wake-up; the resync is its safety net.
    waiting.retry_after.map_or(Next::OnChange, Next::After)
}
