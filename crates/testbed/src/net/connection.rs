//! One long-lived TCP connection, as a database client or a stream keeps it.

use parking_lot::Mutex;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::echo;
use crate::net::host::Host;
use crate::net::namespace::Task;
use crate::wait::wait_until;

/// An answer that does not come in this time: the connection hangs. Longer than any process has to wait for its turn,
/// and shorter than TCP gives up.
const PATIENCE: Duration = Duration::from_secs(20);

/// How a connection has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Broken {
    /// When.
    pub at: Instant,
    /// From the last answer until then.
    pub after: Duration,
    /// What the client saw: `Connection reset by peer`, or that it hung.
    pub how: String,
}

#[derive(Debug, Default)]
struct Journal {
    answers: u64,
    answered_by: Option<String>,
    last: Option<Instant>,
    longest_gap: Duration,
    broken: Option<Broken>,
}

/// Asks over one connection again and again, until that breaks or this is dropped.
#[derive(Debug)]
pub struct Connection {
    journal: Arc<Mutex<Journal>>,
    _task: Task,
}

impl fmt::Display for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let journal = self.journal.lock();
        write!(f, "{} answers of {:?}", journal.answers, journal.answered_by)?;
        write!(f, ", longest gap {} ms", journal.longest_gap.as_millis())?;
        match &journal.broken {
            Some(broken) => write!(f, ", broken {} ms after the last: {}", broken.after.as_millis(), broken.how),
            None => write!(f, ", alive"),
        }
    }
}

impl Host {
    /// Opens an HTTP connection to `target` and sends one request after another on it, every `interval`. When this
    /// returns, it has answers.
    pub fn hold_connection(&self, target: SocketAddr, interval: Duration) -> Result<Connection> {
        let connection = self.begin_connection(target, interval)?;
        connection.wait_for_answers()?;
        Ok(connection)
    }

    /// The same without waiting: who wants many begins all of them, and then waits once for as long as one takes.
    pub fn begin_connection(&self, target: SocketAddr, interval: Duration) -> Result<Connection> {
        let journal: Arc<Mutex<Journal>> = Arc::default();
        let shared = Arc::clone(&journal);
        let task = self.task("connection", move || async move {
            let error = talk(target, interval, &shared).await.expect_err("it talks until it fails");
            let mut journal = shared.lock();
            let at = Instant::now();
            let after = journal.last.map_or(Duration::ZERO, |last| at - last);
            journal.broken = Some(Broken { at, after, how: error.to_string() });
        })?;
        Ok(Connection { journal, _task: task })
    }
}

impl Connection {
    /// Waits until several requests were answered.
    pub fn wait_for_answers(&self) -> Result<()> {
        wait_until("answers over one connection", Duration::from_secs(20), || {
            if self.journal.lock().answers > 3 { Ok(()) } else { Err(self.to_string()) }
        })
    }

    /// How it has ended; absent: it has not.
    pub fn broken(&self) -> Option<Broken> {
        self.journal.lock().broken.clone()
    }

    /// How long ago the last answer came; for ever, once it is broken.
    pub fn silence(&self) -> Duration {
        let journal = self.journal.lock();
        let last = journal.last.filter(|_| journal.broken.is_none());
        last.map_or(Duration::MAX, |last| last.elapsed())
    }

    /// The node that answers.
    pub fn answered_by(&self) -> Option<String> {
        self.journal.lock().answered_by.clone()
    }
}

async fn talk(target: SocketAddr, interval: Duration, journal: &Mutex<Journal>) -> std::io::Result<()> {
    let mut stream = TcpStream::connect(target).await?;
    stream.set_nodelay(true)?;
    let mut buffer = [0; 2048];
    loop {
        stream.write_all(b"GET / HTTP/1.1\r\nHost: vip\r\n\r\n").await?;
        // Answers are shorter than a segment: one read is one answer.
        let read = tokio::time::timeout(PATIENCE, stream.read(&mut buffer)).await;
        let length = read.map_err(|_| std::io::Error::other("it hangs"))??;
        if length == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        let now = Instant::now();
        let node = String::from_utf8_lossy(&buffer[..length]);
        let node = echo::field(&node, "node").map(str::to_owned);
        {
            let mut journal = journal.lock();
            journal.answers += 1;
            journal.answered_by = node;
            let gap = journal.last.map_or(Duration::ZERO, |last| now - last);
            journal.longest_gap = journal.longest_gap.max(gap);
            journal.last = Some(now);
        }
        tokio::time::sleep(interval).await;
    }
}
