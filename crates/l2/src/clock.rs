//! The clock that includes suspensions of the machine.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Time since boot (`CLOCK_BOOTTIME`), suspension included.
///
/// Lifetimes of addresses need this clock: `Instant` stops while the machine is suspended. In a paused VM all clocks
/// may stop.
pub fn since_boot() -> Duration {
    let now = clock_gettime(ClockId::Boottime);
    Duration::try_from(now).expect("the boot-time clock counts up from zero")
}
