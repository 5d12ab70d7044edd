//! Columns for people.

pub use announcer_core::status::table::{age, table};

/// What stands for nothing.
pub fn or_dash(text: &str) -> String {
    if text.is_empty() { "-".to_owned() } else { text.to_owned() }
}
