//! The timing profiles of the detector (fail-over spec 2).

use std::time::Duration;

/// Grace of R5; it covers the slow start of an owner's process.
pub(crate) const GRACE: Duration = Duration::from_secs(5);
/// How many periods the second in line waits longer than the first.
const PER_RANK: u32 = 3;
/// Broadcast questions in the confirmation burst.
pub(super) const BURST: u32 = 3;

/// A set of timers with a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Profile {
    /// A dead owner costs a client 0.23 s.
    #[default]
    Default,
    /// 0.15 s, for twice the probes.
    Fast,
    /// 0.5 s, for clusters with live migration, which pauses a node for up to 0.4 s.
    Patient,
}

/// The name is no profile.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a detection profile: accepted are default, fast, patient")]
pub struct ParseProfileError(String);

impl std::str::FromStr for Profile {
    type Err = ParseProfileError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.trim().to_ascii_lowercase().as_str() {
            "default" => Ok(Self::Default),
            "fast" => Ok(Self::Fast),
            "patient" => Ok(Self::Patient),
            _ => Err(ParseProfileError(text.to_owned())),
        }
    }
}

/// The timers of the detector.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timers {
    /// P: the period in which each owner is asked once.
    pub period: Duration,
    /// K: after how many silent periods the first in line suspects an owner.
    pub periods: u32,
    /// Q: duration of the confirmation burst.
    pub confirm: Duration,
    /// How long after a new record an owner that was never heard may stay silent.
    pub grace: Duration,
}

impl From<Profile> for Timers {
    fn from(profile: Profile) -> Self {
        let (period_ms, periods) = match profile {
            Profile::Default => (50, 3),
            Profile::Fast => (25, 3),
            Profile::Patient => (100, 4),
        };
        let confirm = Duration::from_millis(30);
        Self { period: Duration::from_millis(period_ms), periods, confirm, grace: GRACE }
    }
}

impl Timers {
    /// How many silent periods the successor of this rank waits before it suspects an owner.
    pub fn patience(&self, rank: u8) -> u32 {
        self.periods + PER_RANK * u32::from(rank)
    }

    /// R2: if a timer of this process is later than this, silence proves nothing about other hosts.
    pub fn tolerance(&self) -> Duration {
        (self.period / 4).max(Duration::from_millis(10))
    }

    pub(super) fn burst_gap(&self) -> Duration {
        self.confirm / BURST
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn profiles_are_the_measured_ones() {
        let of = |name: &str| {
            let timers = Timers::from(name.parse::<Profile>().unwrap());
            (timers.period.as_millis(), timers.patience(0), timers.patience(1), timers.confirm.as_millis())
        };
        assert_eq!(of("default"), (50, 3, 6, 30));
        assert_eq!(of("Fast"), (25, 3, 6, 30));
        assert_eq!(of("patient"), (100, 4, 7, 30));
        let error = "slow".parse::<Profile>().unwrap_err().to_string();
        assert_eq!(error, r#""slow" is not a detection profile: accepted are default, fast, patient"#);
    }

    #[test]
    fn a_quarter_of_a_period_late_is_late_but_ten_milliseconds_never_are() {
        let of = |profile| Timers::from(profile).tolerance();
        assert_eq!(of(Profile::Patient), Duration::from_millis(25));
        assert_eq!(of(Profile::Fast), Duration::from_millis(10));
    }
}
