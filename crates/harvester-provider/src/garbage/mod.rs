//! LoadBalancer objects of this cluster without a Service: listed always, deleted only where that was asked for (decision 11).
//!
//! [`list`] tells what they are, [`sweep`] when one may be deleted, [`collector`] looks, tells and deletes.

pub mod collector;
pub mod list;
pub mod sweep;

use std::time::Duration;

/// What is done about garbage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// It is not looked for.
    Off,
    /// Metric and Event tell of it.
    List,
    /// What is proven to be ours is deleted after the grace period.
    Delete,
}

/// Configuration of the collection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GarbageConfig {
    /// `--garbage-collection`.
    pub mode: Mode,
    /// `--garbage-collection-grace-period`.
    pub grace: Duration,
    /// Not the user's to choose.
    pub pace: Pace,
}

impl GarbageConfig {
    /// At the usual pace.
    pub fn new(mode: Mode, grace: Duration) -> Self {
        Self { mode, grace, pace: Pace::default() }
    }
}

/// How often it is looked, and for how long nothing may have gone wrong. Anything but the default is for tests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pace {
    /// The first look comes after this time, too: a start has other things to do.
    pub every: Duration,
    /// See [`sweep::SETTLED`].
    pub settled: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        Self { every: Duration::from_mins(10), settled: sweep::SETTLED }
    }
}
