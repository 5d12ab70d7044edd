//! The steps as the terminal shows them, and what of them goes into the report.

use std::future::Future;
use std::io::Write;
use std::time::{Duration, Instant};

use anyhow::Result;
use serde::Serialize;

/// One thing that was tried.
#[derive(Debug, Clone, Serialize)]
pub struct Step {
    /// Short, stable name for programs.
    pub name: String,
    /// Whether it held.
    pub ok: bool,
    /// How long it took.
    pub ms: u64,
    /// What was seen, or what went wrong.
    pub details: String,
}

/// Prints steps as they happen.
#[derive(Debug)]
pub struct StepLog {
    start: Instant,
    steps: Vec<Step>,
}

impl StepLog {
    /// The clock starts.
    pub fn begin() -> Self {
        testbed::wait::report_progress_to(|what, waited, last_seen| {
            let seen: String = last_seen.lines().next().unwrap_or_default().chars().take(90).collect();
            line(&format!("          … waiting for {what}, {:.0} s: {seen}", waited.as_secs_f64()));
        });
        Self { start: Instant::now(), steps: Vec::new() }
    }

    /// Since the beginning.
    pub fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }

    /// A line that is no step.
    pub fn tell(&self, text: &str) {
        line(&format!("{:>7.1} s  {text}", self.elapsed().as_secs_f64()));
    }

    /// Does something and tells how it went. The text that comes with the result is shown and reported.
    pub async fn step<T>(&mut self, name: &str, work: impl Future<Output = Result<(T, String)>>) -> Result<T> {
        let begin = Instant::now();
        let outcome = work.await;
        let ms = u64::try_from(begin.elapsed().as_millis()).unwrap_or(u64::MAX);
        let (ok, details) = match &outcome {
            Ok((_, text)) => (true, text.clone()),
            Err(error) => (false, format!("{error:#}")),
        };
        self.tell(&format!(
            "{} {details}  ({:.1} s)",
            if ok { "ok    " } else { "FAILED" },
            begin.elapsed().as_secs_f64()
        ));
        self.steps.push(Step { name: name.into(), ok, ms, details });
        outcome.map(|(value, _)| value)
    }

    /// All steps so far.
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// True if there were steps and every one held.
    pub fn held(&self) -> bool {
        !self.steps.is_empty() && self.steps.iter().all(|step| step.ok)
    }
}

/// A headline.
pub fn chapter(title: &str) {
    line(&format!("\n{title}"));
}

/// What a user would type at this point.
pub fn command(text: &str) {
    line(&format!("             $ {text}"));
}

/// Writes a line at once; a reader that went away is no reason to stop before everything is cleaned up.
pub fn line(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{text}");
    let _ = out.flush();
}
