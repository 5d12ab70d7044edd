//! How fast and how patient the detector is (failover-protocol.md 2).

use std::time::Duration;

/// R5: covers the slow start of an owner's process.
const GRACE: Duration = Duration::from_secs(5);
/// By how many periods the second in line is more patient than the first.
const PER_RANK: u32 = 3;
/// Broadcast questions in the confirmation burst.
pub(super) const BURST: u32 = 3;

/// A set of timers by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Profile {
    /// A dead owner costs a client 0.23 s.
    #[default]
    Default,
    /// 0.15 s, for twice the probes.
    Fast,
    /// 0.5 s: for clusters whose nodes are migrated live, which stops them for up to 0.4 s.
    Patient,
}

/// A name that is no profile.
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
    /// P: how often each owner is asked.
    pub period: Duration,
    /// K: after how many silent periods the first in line suspects it.
    pub periods: u32,
    /// Q: how long the confirmation burst takes.
    pub confirm: Duration,
    /// How long after a new record its owner may be silent before it was heard once.
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
    /// Silent periods before who stands at this place in the line suspects an owner.
    pub fn patience(&self, rank: u8) -> u32 {
        self.periods + PER_RANK * u32::from(rank)
    }

    /// R2: a timer of ours that is later than this proves nothing about others.
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
