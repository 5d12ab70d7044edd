//! What an operator is told of the whole installation: `status` shows it, `doctor` names what is wrong, why it
//! matters and the command that corrects it.
//!
//! [`collect`] reads both APIs into one plain [`Snapshot`] and is all the I/O there is; everything else is a pure
//! function of that.

pub mod collect;
pub mod doctor;
mod facts;
#[cfg(test)]
mod healthy;
pub mod installed;
pub mod jsonpath;
pub mod reasons;
pub mod snapshot;
pub mod status;
pub mod table;

pub use snapshot::Snapshot;
