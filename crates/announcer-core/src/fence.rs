//! How long an address stays on its node when its announcer has ended or hangs. The kernel removes it then.

use std::time::Duration;

use crate::config::{Config, ElectionMode};

/// The kernel counts whole seconds, and the announcer puts the deadline off once a second. With less, an announcer that
/// is well would lose its address. The shortest Lease that the rules allow lasts 3 s.
const MIN_FENCE: Duration = Duration::from_secs(2);
/// Fail-over spec 2.
const NODE_FENCE: Duration = Duration::from_secs(5);

/// After an orderly end the addresses stay this long for the next process of the same node (decisions.md 26).
pub(crate) const LEFT_BEHIND: Duration = Duration::from_mins(5);

impl Config {
    /// How long the kernel keeps a VIP after the last sign of life of this process. It is shorter than the time that
    /// other nodes wait before they may take over: an announcer that hangs or died is silent on the wire before its
    /// successor speaks. In `node` mode no node takes over while the kernel answers, so the kernel does not answer for
    /// a dead process longer than a restart takes (fail-over spec 2).
    pub fn fence(&self) -> Duration {
        let lease = self.lease.duration;
        let fence = lease.saturating_sub(self.lease.retry_period + Duration::from_secs(1)).max(MIN_FENCE);
        match self.election_mode {
            ElectionMode::Global | ElectionMode::Service => fence,
            ElectionMode::Node => fence.min(NODE_FENCE),
        }
    }
}
