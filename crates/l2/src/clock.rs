//! The clock that goes on while the machine sleeps.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Time since boot (`CLOCK_BOOTTIME`), suspension included.
///
/// A fence must not be fooled by a suspended machine: `Instant` stands still meanwhile, this clock does not.
/// A paused VM is another matter: its clocks may all stand still.
pub fn since_boot() -> Duration {
    let now = clock_gettime(ClockId::Boottime);
    Duration::try_from(now).expect("the boot-time clock counts up from zero")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_counts_up() {
        let before = since_boot();
        assert!(before > Duration::ZERO);
        assert!(since_boot() >= before);
    }
}
