//! What is logged at info level while a test runs.

use parking_lot::Mutex;
use std::sync::Arc;

use tracing::dispatcher::Dispatch;
use tracing::subscriber::{DefaultGuard, NoSubscriber};

/// The lines so far.
#[derive(Debug, Clone, Default)]
pub struct Lines(Arc<Mutex<Vec<u8>>>);

/// Lines of this thread are collected for as long as it lives.
#[derive(Debug)]
pub struct Collecting {
    _here: DefaultGuard,
    _beside: Dispatch,
}

impl Lines {
    /// Begins to collect.
    pub fn collect(&self) -> Collecting {
        let lines = self.clone();
        let subscriber =
            tracing_subscriber::fmt().without_time().with_ansi(false).with_writer(move || lines.clone()).finish();
        let here = tracing::subscriber::set_default(subscriber);
        // Where only one subscriber lives, a line that the thread of another test reaches first is off for all threads.
        Collecting { _here: here, _beside: Dispatch::new(NoSubscriber::default()) }
    }

    /// All that was said.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock()).into_owned()
    }

    /// How often this was said.
    pub fn count(&self, words: &str) -> usize {
        self.text().matches(words).count()
    }
}

impl std::io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
