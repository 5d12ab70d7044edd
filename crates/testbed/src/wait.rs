//! Waiting for a condition: a generous deadline, and the last thing seen when giving up.

use std::future::Future;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

/// From one look to the next at first. Each costs a request, here and at an API server, and several tests wait at any
/// time.
const POLL: Duration = Duration::from_millis(40);
/// The same of a wait that has lasted for long: a twentieth of it, but at most this.
const POLL_AT_MOST: Duration = Duration::from_millis(120);
/// When to tell of a wait for the first time; then after twice the time, but at least this often.
const TELL_AFTER: Duration = Duration::from_secs(2);
const TELL_AT_LEAST_EVERY: Duration = Duration::from_secs(15);

/// Told of a wait that takes over two seconds, again and again: what is waited for, since when, and what was last seen.
pub type Reporter = fn(what: &str, waited: Duration, last_seen: &str);

static REPORTER: OnceLock<Reporter> = OnceLock::new();

/// Lets a program with a terminal show that a wait goes on. Tests stay silent without one.
pub fn report_progress_to(reporter: Reporter) {
    let _ = REPORTER.set(reporter);
}

/// Asks `probe` again and again until it returns `Ok`. `Err` says what is seen instead; the last one is part of the
/// error.
pub async fn wait_for<T, F, Fut>(what: &str, deadline: Duration, mut probe: F) -> Result<T>
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Result<T, String>>,
{
    let mut wait = Wait::new(what, deadline);
    loop {
        // A probe that hangs, on a node without power for example, must not outlive the deadline.
        let seen = match tokio::time::timeout(wait.left().max(POLL), probe()).await {
            Ok(Ok(value)) => return Ok(value),
            Ok(Err(seen)) => seen,
            Err(_) => format!("no answer in time; before that: {}", wait.last_seen),
        };
        wait.again(seen)?;
        tokio::time::sleep(wait.pause()).await;
    }
}

/// [`wait_for`] for code without async.
pub fn wait_until<T>(what: &str, deadline: Duration, mut probe: impl FnMut() -> Result<T, String>) -> Result<T> {
    let mut wait = Wait::new(what, deadline);
    loop {
        match probe() {
            Ok(value) => return Ok(value),
            Err(seen) => wait.again(seen)?,
        }
        std::thread::sleep(wait.pause());
    }
}

struct Wait<'a> {
    what: &'a str,
    start: Instant,
    deadline: Duration,
    tell_at: Duration,
    last_seen: String,
}

impl<'a> Wait<'a> {
    fn new(what: &'a str, deadline: Duration) -> Self {
        Self { what, start: Instant::now(), deadline, tell_at: TELL_AFTER, last_seen: "nothing".into() }
    }

    fn left(&self) -> Duration {
        self.deadline.saturating_sub(self.start.elapsed())
    }

    fn pause(&self) -> Duration {
        (self.start.elapsed() / 20).clamp(POLL, POLL_AT_MOST)
    }

    fn again(&mut self, seen: String) -> Result<()> {
        self.last_seen = seen;
        let waited = self.start.elapsed();
        if waited >= self.deadline {
            bail!(
                "gave up after {:.1} s waiting for {}; last seen: {}",
                waited.as_secs_f64(),
                self.what,
                self.last_seen
            );
        }
        if waited >= self.tell_at {
            self.tell_at = waited + waited.min(TELL_AT_LEAST_EVERY);
            if let Some(reporter) = REPORTER.get() {
                reporter(self.what, waited, &self.last_seen);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn giving_up_names_the_wait_and_the_last_thing_seen() {
        let mut n = 0;
        let error = wait_until::<()>("the moon", Duration::from_millis(60), || {
            n += 1;
            Err(format!("cloud {n}"))
        })
        .unwrap_err()
        .to_string();
        assert!(error.contains("the moon") && error.ends_with(&format!("cloud {n}")), "{error}");
    }

    #[tokio::test]
    async fn a_probe_that_hangs_does_not_outlive_the_deadline() {
        let start = Instant::now();
        let error =
            wait_for::<(), _, _>("an answer", Duration::from_millis(80), std::future::pending).await.unwrap_err();
        assert!(start.elapsed() < Duration::from_secs(5));
        assert!(error.to_string().contains("an answer"));
    }
}
