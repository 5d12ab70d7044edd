//! Health of the engine's loop, and what the engine does not know yet.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

/// The state for the health checks.
#[derive(Debug)]
pub struct Liveness {
    /// Seconds since boot at the last step.
    pub(super) beat: AtomicU64,
    /// What the engine does not know yet.
    unknown: Mutex<Option<&'static str>>,
}

impl Default for Liveness {
    fn default() -> Self {
        Self { beat: AtomicU64::default(), unknown: Mutex::new(Some("the Services")) }
    }
}

impl Liveness {
    /// Fails if the loop has made no step for a while; it normally wakes every second.
    pub fn alive(&self) -> Result<(), String> {
        self.alive_at(l2::clock::since_boot())
    }

    /// `now`: time since boot.
    pub(super) fn alive_at(&self, now: Duration) -> Result<(), String> {
        let silent = now.as_secs().saturating_sub(self.beat.load(Ordering::Relaxed));
        if silent > 30 { Err(format!("the engine has not made a step for {silent} s")) } else { Ok(()) }
    }

    /// Fails with the missing item until everything is known that decisions need.
    pub fn ready(&self) -> Result<(), String> {
        let unknown = *self.unknown.lock();
        unknown.map_or(Ok(()), |what| Err(format!("not known yet: {what}")))
    }

    pub(super) fn beat(&self, now: Duration) {
        self.beat.store(now.as_secs(), Ordering::Relaxed);
    }

    pub(super) fn knows_all_but(&self, unknown: Option<&'static str>) {
        *self.unknown.lock() = unknown;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loop_is_alive_for_half_a_minute_after_its_last_step() {
        let (liveness, boot) = (Liveness::default(), Duration::from_hours(24));
        assert_eq!(liveness.alive_at(boot).unwrap_err(), "the engine has not made a step for 86400 s");
        liveness.beat(boot);
        assert_eq!(liveness.alive_at(boot + Duration::from_secs(30)), Ok(()));
        let stuck = liveness.alive_at(boot + Duration::from_secs(31));
        assert_eq!(stuck.unwrap_err(), "the engine has not made a step for 31 s");
        liveness.beat(boot + Duration::from_secs(40));
        assert_eq!(liveness.alive_at(boot + Duration::from_secs(41)), Ok(()));
    }

    #[test]
    fn a_process_is_not_ready_until_all_is_known_and_says_what_is_not() {
        let liveness = Liveness::default();
        assert_eq!(liveness.ready().unwrap_err(), "not known yet: the Services");
        liveness.knows_all_but(Some("the Nodes"));
        assert_eq!(liveness.ready().unwrap_err(), "not known yet: the Nodes");
        liveness.knows_all_but(None);
        assert_eq!(liveness.ready(), Ok(()));
    }
}
