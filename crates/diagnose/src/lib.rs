//! Diagnosis of the whole installation: `status` shows it, `doctor` names problems, their consequences and the commands
//! that correct them.
//!
//! [`collect`] reads both APIs into one plain [`Snapshot`] and contains all I/O; everything else is a pure function of
//! the snapshot.

pub mod collect;
pub mod doctor;
mod facts;
#[cfg(test)]
mod healthy;
pub mod installed;
pub mod jsonpath;
pub mod reasons;
mod sharing;
mod silence;
pub mod snapshot;
pub mod status;

pub use snapshot::Snapshot;
