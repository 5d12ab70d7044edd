//! The steps as the terminal shows them, and what of them goes into the report.

use std::future::Future;
use std::io::Write;
use std::time::{Duration, Instant};

use anyhow::Result;
use serde::Serialize;

/// Limit for what was last seen, in a line about a wait.
const LONGEST_SEEN: usize = 120;
/// Where the text of a step begins.
const INDENT: usize = 18;

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
            let seen = cut(last_seen.lines().next().unwrap_or_default(), LONGEST_SEEN);
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
        self.tell(&told(ok, &details, begin.elapsed()));
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

/// A step as the terminal shows it: how long it took stands in the first line, further lines begin below its text.
fn told(ok: bool, details: &str, took: Duration) -> String {
    let (first, further) = details.split_once('\n').unwrap_or((details, ""));
    let first = format!("{} {first}  ({:.1} s)", if ok { "ok    " } else { "FAILED" }, took.as_secs_f64());
    let further = further.lines().map(|line| format!("\n{:INDENT$}{line}", ""));
    std::iter::once(first).chain(further).collect()
}

/// At most so many characters; "…" stands for the rest.
fn cut(text: &str, longest: usize) -> String {
    match text.char_indices().nth(longest) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_cut_off_shows_that_it_was() {
        assert_eq!(cut("192.168.100.213", 15), "192.168.100.213");
        assert_eq!(cut("192.168.100.213", 14), "192.168.100.21…");
        assert_eq!(cut("ééé", 2), "éé…");
    }

    #[test]
    fn a_step_of_several_lines_is_one_block() {
        let took = Duration::from_millis(2140);
        assert_eq!(told(true, "gone", took), "ok     gone  (2.1 s)");
        assert_eq!(told(false, "gone\nback", took), "FAILED gone  (2.1 s)\n                  back");
    }
}
