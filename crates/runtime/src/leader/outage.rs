//! Reports an outage of the API server during an election.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether requests fail. An outage is reported when it begins and when it ends, and not for each request.
#[derive(Debug, Clone, Default)]
pub(super) struct Outage(Arc<AtomicBool>);

impl Outage {
    pub(super) fn failed(&self, lease: &str, what: &str, error: &str) {
        if self.0.swap(true, Ordering::Relaxed) {
            tracing::debug!(lease, error, "the process failed to {what} the Lease");
        } else {
            tracing::warn!(lease, error, "the process failed to {what} the Lease; it tries again");
        }
    }

    pub(super) fn over(&self, lease: &str) {
        if self.0.swap(false, Ordering::Relaxed) {
            tracing::info!(lease, "the API server answers requests for the Lease again");
        }
    }
}
