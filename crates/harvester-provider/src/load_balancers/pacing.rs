//! When a LoadBalancer with an address from a pool may be created or deleted.
//!
//! The host books addresses one after another; more than one request at a time makes it slower (host-throughput.md). Every create
//! and every delete passes through here. For now all pass at once; the adaptive window (decisions 6 and 7) belongs here.

use cloud_provider::provider::Waiting;

/// What wants to be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// A POST.
    Create,
    /// A DELETE.
    Delete,
}

/// Lets operations on the host through.
#[derive(Debug, Default)]
pub struct Pacing {}

impl Pacing {
    /// `Err`: not now, the Service is woken when its turn has come.
    pub fn admit(&self, operation: Operation, name: &str, pooled: bool) -> Result<(), Waiting> {
        tracing::debug!(?operation, name, pooled, "admitted");
        Ok(())
    }
}
