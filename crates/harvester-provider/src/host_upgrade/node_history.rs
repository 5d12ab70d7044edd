//! The history of one Node during an upgrade of its host.

use std::collections::BTreeSet;

use super::shown::Reason;

/// What the controller remembers of a Node besides the status that is shown.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeHistory {
    /// Reasons that an Event was written for in this window.
    pub told: BTreeSet<Reason>,
    /// Since when the machine is off.
    pub off: Option<i64>,
    /// Seconds that the machine was off before that, in this window.
    pub was_off: i64,
    /// How often the machine has moved in this window.
    pub moves: u32,
    /// Its host when the window opened.
    pub first_host: String,
    /// Its addresses when the window opened.
    pub first_addresses: Vec<String>,
}
