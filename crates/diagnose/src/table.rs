//! Tables of text.

pub use announcer_core::status::table::{age, table};

/// The text, or a dash if it is empty.
pub fn or_dash(text: &str) -> String {
    if text.is_empty() { "-".to_owned() } else { text.to_owned() }
}
