//! What is remembered of a Node while its host is upgraded.

use std::collections::BTreeSet;

use super::shown::Reason;

/// Remembered of a Node beside what is shown.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Course {
    /// Events of this window.
    pub told: BTreeSet<Reason>,
    /// Since when it is off.
    pub off: Option<i64>,
    /// For how long it was off before, in this window.
    pub was_off: i64,
    /// How often it has moved in this window.
    pub moves: u32,
    /// Its host when the window opened.
    pub first_host: String,
    /// Its addresses when the window opened.
    pub first_addresses: Vec<String>,
}
