//! Handles Services for which nothing may be written now.

use std::time::Duration;

use super::decide::wants_load_balancer;
use crate::provider::LoadBalancers;
use crate::view::ServiceView;
use crate::worker::Next;

/// Interval of the checks whether the load balancer of a deleted Service may be deleted again.
const WHILE_HELD: Duration = Duration::from_secs(5);

/// Ends the pass if nothing may be written. Afterwards the provider wakes existing Services, but not deleted ones, so
/// those are checked again after [`WHILE_HELD`].
pub(super) fn held(
    provider: &dyn LoadBalancers,
    current: Option<&ServiceView>,
    remembered: Option<&ServiceView>,
) -> Option<Next> {
    let hold = provider.hold(current.or(remembered)?)?;
    tracing::debug!(
        reason = hold.reason,
        "the controller leaves the load balancer unchanged for now: {}",
        hold.message
    );
    let stays = current.is_some_and(wants_load_balancer);
    Some(if stays { Next::OnChange } else { Next::After(WHILE_HELD) })
}
