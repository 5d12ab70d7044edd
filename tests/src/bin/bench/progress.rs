//! What a person at the terminal sees while something takes its time.

use std::io::Write;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// How often to tell of something that goes on.
pub const EVERY: Duration = Duration::from_secs(5);

fn start() -> Instant {
    static START: OnceLock<Instant> = OnceLock::new();
    *START.get_or_init(Instant::now)
}

/// One line, with the time since the first one.
pub fn say(text: impl std::fmt::Display) {
    let elapsed = start().elapsed().as_secs_f64();
    // A reader that has gone away (`| head`) is no reason to stop measuring.
    let _ = writeln!(std::io::stdout(), "[{elapsed:6.1} s] {text}");
}

/// A table, as it is.
pub fn show(text: impl std::fmt::Display) {
    let _ = writeln!(std::io::stdout(), "{text}");
}

/// Waits of the test-bed that take over two seconds.
pub fn waits(what: &str, waited: Duration, last_seen: &str) {
    let short: String = last_seen.lines().next().unwrap_or_default().chars().take(100).collect();
    say(format!("  waiting for {what}, {:.0} s: {short}", waited.as_secs_f64()));
}

/// Sleeps, and tells how long it still takes.
pub async fn sleep(what: &str, time: Duration) {
    let begin = Instant::now();
    loop {
        let left = time.saturating_sub(begin.elapsed());
        if left.is_zero() {
            return;
        }
        tokio::time::sleep(left.min(EVERY * 2)).await;
        let left = time.saturating_sub(begin.elapsed());
        if left > EVERY {
            say(format!("  {what}: {:.0} s to go", left.as_secs_f64()));
        }
    }
}
