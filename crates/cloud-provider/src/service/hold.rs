//! Handles Services for which nothing may be written now.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::ServiceController;
use super::decide::{Release, Step, wants_load_balancer};
use super::memory::ServiceState;
use crate::provider::PAUSED;
use crate::view::ServiceView;
use crate::worker::Next;

/// Interval of the checks whether the load balancer of a deleted Service may be deleted again.
const WHILE_HELD: Duration = Duration::from_secs(5);

impl ServiceController {
    /// Ends the pass if nothing may be written. Afterwards the provider wakes existing Services, but not deleted ones,
    /// so those are checked again after [`WHILE_HELD`].
    pub(super) fn held(
        &self,
        step: &Step<'_>,
        current: Option<&Arc<ServiceView>>,
        memory: &mut ServiceState,
    ) -> Option<Next> {
        if *step == Step::Nothing {
            return None;
        }
        let hold = self.provider.hold(current.or(memory.served.as_ref())?)?;
        tracing::debug!(
            reason = hold.reason,
            "the controller leaves the load balancer unchanged for now: {}",
            hold.message
        );
        // What a user does meanwhile is known afterwards: a Service that vanishes after its deletion was seen, or after
        // its finalizer was taken off, was not lost by a restore of etcd.
        let known = match step {
            Step::Cleanup(Release::Ours) => true,
            Step::Ensure { .. } => memory.served.is_some(),
            Step::Cleanup(Release::IfExisted) | Step::DeleteRemembered(_) | Step::Nothing => false,
        };
        if known {
            memory.served = current.cloned();
        }
        if let Some(service) = current.filter(|service| service.deleting && *step == Step::Cleanup(Release::Ours))
            && !hold.passing
            && let Some(told) = memory.reports.held(Instant::now(), &hold.message)
        {
            tracing::warn!("{}", told.message);
            // Only a pause is told on the Service: any other hold has its one Event, whatever changes meanwhile.
            if hold.reason == PAUSED {
                self.tell(service, [told]);
            }
        }
        let stays = current.is_some_and(|service| wants_load_balancer(service));
        Some(if stays { Next::OnChange } else { Next::After(WHILE_HELD) })
    }
}
