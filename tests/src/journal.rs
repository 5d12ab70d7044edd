//! What the test runner does not show of a test that passes: how often something was tried, and what clients have seen.
//! One line of JSON each, appended to the file that [`VARIABLE`] names; without it nothing is written. `make test`
//! prints the sum.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use testbed::{AnswerReport, ProbeReport};

use crate::watch::{EXPLAINS, OVERLAP_OF_MODES};

/// Names the file.
pub const VARIABLE: &str = "HCP_JOURNAL";

/// One attempt at something that a busy machine can spoil: the error of one that failed, and for how long the machine
/// let others wait in the worst second of it.
pub fn attempt(what: &str, number: usize, error: Option<&str>, stalled: Duration) {
    write(json!({"kind": "attempt", "what": what, "number": number, "error": error, "stalled_ms": ms(stalled),
        "explains_ms": ms(EXPLAINS)}));
}

/// A test fails, and so long processes were kept waiting in the worst second since it began: what `dev/test.py` goes by
/// when it decides whether the test may run again. Called while a panic is under way, in which a second one would end
/// the whole program: what cannot be written is told, and costs the test its second chance.
pub fn failed(stalled: Duration) {
    if let Err(error) = note(json!({"kind": "failed", "stalled_ms": ms(stalled), "explains_ms": ms(EXPLAINS)})) {
        eprintln!("{error}");
    }
}

/// What a client saw that asked all the time, and for how long it may have been without an answer.
pub fn watched(what: &str, report: &ProbeReport, bound: Option<Duration>) {
    let (first_lost, last_lost) = report.lost_between.unzip();
    write(json!({"kind": "watch", "what": what, "sent": report.sent, "lost": report.lost, "late": report.late,
        "first_lost_ms": first_lost.map(ms), "last_lost_ms": last_lost.map(ms),
        "latest_ms": ms(report.latest), "gap_ms": ms(report.longest_gap), "outage_ms": ms(report.outage),
        "prober_stall_ms": ms(report.longest_stall), "bound_ms": bound.map(ms)}));
}

/// Who answered for an address. `dev/test.py` holds all of them to the widest bound.
pub fn answered(what: &str, report: &AnswerReport) {
    write(json!({"kind": "answers", "what": what, "asked": report.asked, "unanswered": report.unanswered,
        "double_ms": ms(report.double), "span_ms": ms(report.double_span), "overlap_ms": ms(report.overlap),
        "bound_ms": ms(OVERLAP_OF_MODES)}));
}

fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn write(line: Value) {
    if let Err(error) = note(line) {
        // An error here must not be ignored: the sum would be too small, and a retry would remain unknown.
        panic!("{error}");
    }
}

fn note(mut line: Value) -> Result<(), String> {
    let Some(file) = std::env::var_os(VARIABLE) else { return Ok(()) };
    let program = std::env::current_exe().unwrap_or_default();
    line["program"] = json!(program.file_stem().map(|name| name.to_string_lossy()));
    line["test"] = json!(std::thread::current().name());
    append(Path::new(&file), &line).map_err(|error| format!("cannot write {}: {error}", file.display()))
}

/// One call writes the whole line, because several programs write to the file at the same time.
fn append(file: &Path, line: &Value) -> std::io::Result<()> {
    OpenOptions::new().create(true).append(true).open(file)?.write_all(format!("{line}\n").as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_is_a_record_of_its_own() {
        let file = std::env::temp_dir().join(format!("hcp-journal-{}", std::process::id()));
        for number in 1..=3 {
            append(&file, &json!({"number": number, "what": "two\nlines"})).unwrap();
        }
        let text = std::fs::read_to_string(&file).unwrap();
        std::fs::remove_file(&file).unwrap();
        let numbers = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()["number"].clone());
        assert_eq!(numbers.collect::<Vec<_>>(), [1, 2, 3]);
    }
}
