//! What some runs of one thing have shown, whatever it is.

use serde::{Deserialize, Serialize};

/// What was played, and what each run of it gave.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct CaseResult<R> {
    /// Its name.
    pub case: String,
    /// For people.
    pub title: String,
    /// One by one.
    pub runs: Vec<R>,
    /// What could not be measured, or broke a promise that is no number.
    pub failures: Vec<String>,
}

impl<R> CaseResult<R> {
    /// Nothing yet.
    pub fn begin(case: &str, title: &str) -> Self {
        eprintln!("{case}: {title}");
        Self { case: case.into(), title: title.into(), runs: Vec::new(), failures: Vec::new() }
    }
}
