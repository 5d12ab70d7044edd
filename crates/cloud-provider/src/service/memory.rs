//! What a pass leaves to the next one.

use std::sync::Arc;

use tokio::time::Instant;

use super::reports::Reports;
use crate::damping::Damper;
use crate::own_write::OwnWrite;
use crate::view::{Conditions, ServiceView};

/// What is kept about a Service between passes. Lost with the process, and nothing depends on it.
#[derive(Debug, Default)]
pub(super) struct ServiceState {
    /// The last view of a pass that wanted or had a load balancer.
    pub(super) served: Option<Arc<ServiceView>>,
    pub(super) written: OwnWrite<ServiceView>,
    pub(super) story: Reports,
    pub(super) conflicts: u32,
    /// States of the Service that were corrected again and again. Its version is left out of them.
    pub(super) damper: Damper<ServiceView>,
    /// The conditions that we wrote, until the cache shows them.
    pub(super) shown: Option<Conditions>,
    /// What the condition is to say of another node, and since when.
    pub(super) moved: Option<(String, Instant)>,
}

impl ServiceState {
    pub(super) fn is_empty(&self) -> bool {
        self.served.is_none() && self.written.is_settled()
    }
}
