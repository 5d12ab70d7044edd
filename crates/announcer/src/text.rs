//! An error and its causes in one line, for Events and logs.

pub(crate) use runtime::error::chain;
