//! A client that asks all the time and remembers what it missed.

mod missed;
mod report;

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
pub use missed::{IN_TIME, Missed};
use parking_lot::Mutex;
pub use report::ProbeReport;
use report::summarize;
use tokio::net::{TcpSocket, TcpStream, UdpSocket};

use crate::echo;
use crate::net::namespace::{Namespace, Task};
use crate::stall;

/// TCP sends again what was lost after this at the earliest: an answer that takes longer came at a second attempt.
const RETRANSMISSION: Duration = Duration::from_millis(200);

/// What is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Traffic {
    /// A new connection and one GET each time.
    Http(SocketAddr),
    /// A datagram from a new port each time, so that no connection tracking entry keeps it on an old path.
    Udp(SocketAddr),
    /// Datagrams from one port all the time, as a long-lived client sends them.
    UdpFlow(SocketAddr),
    /// A new TCP connection each time, nothing sent.
    Connect(SocketAddr),
}

impl Traffic {
    /// HTTP to `target`.
    pub fn http(target: SocketAddr) -> Self {
        Self::Http(target)
    }
}

/// How it asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProbeOptions {
    /// From one request to the next, whether answered or not.
    pub interval: Duration,
    /// A connection not made after this is lost. Kernels make it, and no process has to run for that: it is as quick on
    /// a busy machine. It ends before TCP sends its first packet again, which is after a second, so that a packet lost
    /// is a request lost.
    pub connect: Duration,
    /// A request not answered after this is lost. Whoever answers is a process, and may have to wait for its turn.
    pub answer: Duration,
}

impl Default for ProbeOptions {
    fn default() -> Self {
        Self {
            interval: Duration::from_millis(10),
            connect: Duration::from_millis(900),
            answer: Duration::from_secs(5),
        }
    }
}

/// Asks until it is stopped or dropped.
#[derive(Debug)]
pub struct Probe {
    journal: Arc<Mutex<Journal>>,
    options: ProbeOptions,
    task: Option<Task>,
}

#[derive(Debug)]
struct Journal {
    start: Instant,
    sends: u64,
    last_send: Instant,
    longest_stall: Duration,
    /// From one request to the next, where that took longer than it should have.
    stalls: Vec<(Instant, Instant)>,
    /// When it was sent, when its fate was known, and the answer. In order of fate.
    fates: Vec<(Instant, Instant, Result<String, String>)>,
    /// How many of them are answers: a wait for some does not count all of them again and again.
    answered: u64,
}

impl Journal {
    fn new(start: Instant) -> Self {
        Self {
            start,
            sends: 0,
            last_send: start,
            longest_stall: Duration::ZERO,
            stalls: Vec::new(),
            fates: Vec::new(),
            answered: 0,
        }
    }
}

impl Probe {
    pub(crate) fn start(namespace: &Namespace, traffic: Traffic, options: ProbeOptions) -> Result<Self> {
        let start = Instant::now();
        let journal = Arc::new(Mutex::new(Journal::new(start)));
        let shared = journal.clone();
        let task = namespace.task("probe", move || ask_for_ever(traffic, options, shared))?;
        Ok(Self { journal, options, task: Some(task) })
    }

    /// What it has seen up to now. Requests still open count neither as answered nor as lost.
    pub fn report(&self) -> ProbeReport {
        self.summary(Instant::now())
    }

    /// What it has seen up to now, when the requests still open have met their fate.
    pub fn settled_report(&self) -> ProbeReport {
        let end = self.settle();
        self.summary(end)
    }

    /// Waits until the requests that are open now have met their fate; when this "now" was.
    fn settle(&self) -> Instant {
        let (asked, known) = {
            let journal = self.journal.lock();
            (journal.sends, journal.fates.len())
        };
        let end = Instant::now();
        // Later requests go on meanwhile, and do not stand in for those that are still open: a gap just before the end
        // counts.
        let open = |journal: &Journal| {
            let later = journal.fates[known..].iter().filter(|(sent, ..)| *sent <= end).count();
            ((known + later) as u64) < asked
        };
        while end.elapsed() < self.options.answer + Duration::from_millis(500) && open(&self.journal.lock()) {
            std::thread::sleep(Duration::from_millis(5));
        }
        end
    }

    /// What it has missed since an event, when the requests that are open now have met their fate.
    pub fn missed_since(&self, event: Instant) -> Missed {
        self.settle();
        let journal = self.journal.lock();
        let machine = stall::since(event.checked_sub(IN_TIME).unwrap_or(journal.start));
        missed::missed_since(&journal, &machine, event)
    }

    fn summary(&self, end: Instant) -> ProbeReport {
        let journal = self.journal.lock();
        summarize(&journal, &stall::since(journal.start), end, self.options)
    }

    /// Not for others: who just stops may have stopped before anything came again, and sees neither a loss nor a gap.
    fn stop(mut self) -> ProbeReport {
        let report = self.settled_report();
        drop(self.task.take());
        report
    }

    /// Waits until `n` more requests are answered.
    pub fn wait_for_answers(&self, n: u64, deadline: Duration) -> Result<()> {
        self.wait_until_answered(self.answered() + n, deadline)
    }

    /// How many requests were answered up to now.
    pub fn answered(&self) -> u64 {
        self.journal.lock().answered
    }

    /// Waits until so many are, in all.
    pub fn wait_until_answered(&self, wanted: u64, deadline: Duration) -> Result<()> {
        let waited = crate::wait::wait_until(&format!("{wanted} answers in all"), deadline, || {
            let answered = self.answered();
            if answered >= wanted { Ok(()) } else { Err(format!("{answered} answers")) }
        });
        waited.with_context(|| self.report().to_string())
    }

    /// Stops when it has got `n` more answers: what comes right after an event belongs to it, and a short watch proves
    /// little.
    pub fn stop_after(self, n: u64, deadline: Duration) -> Result<ProbeReport> {
        self.wait_for_answers(n, deadline)?;
        Ok(self.stop())
    }

    /// Waits until `node` has answered a request that was sent from now on.
    pub fn wait_for_answer_by(&self, node: &str, deadline: Duration) -> Result<()> {
        let since = Instant::now();
        let waited = crate::wait::wait_until(&format!("an answer by {node}"), deadline, || {
            let journal = self.journal.lock();
            // Fates are in their order, and none is known before its request is sent.
            let later = journal.fates.iter().rev().take_while(|(_, at, _)| *at >= since);
            let mut asked_since = later.filter(|(sent, ..)| *sent >= since);
            if asked_since.any(|(.., fate)| fate.as_ref().is_ok_and(|answer| answerer(answer) == node)) {
                return Ok(());
            }
            Err("answers by others only".to_owned())
        });
        waited.with_context(|| self.report().to_string())
    }
}

fn answerer(answer: &str) -> &str {
    echo::field(answer, "node").or_else(|| answer.lines().next()).unwrap_or_default()
}

async fn ask_for_ever(traffic: Traffic, options: ProbeOptions, journal: Arc<Mutex<Journal>>) {
    let flow = match traffic {
        Traffic::UdpFlow(target) => Flow::open(target).await,
        _ => None,
    };
    let mut ticks = tokio::time::interval(options.interval);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let sent = Instant::now();
        let number = {
            let mut journal = journal.lock();
            journal.sends += 1;
            let since = std::mem::replace(&mut journal.last_send, sent);
            journal.longest_stall = journal.longest_stall.max(sent - since);
            if sent - since > options.interval * 2 {
                journal.stalls.push((since, sent));
            }
            journal.sends
        };
        let journal = journal.clone();
        let flow = flow.clone();
        tokio::spawn(async move {
            let fate = ask(traffic, number, flow.as_ref(), options).await.map_err(|error| format!("{error:#}"));
            let mut journal = journal.lock();
            journal.answered += u64::from(fate.is_ok());
            journal.fates.push((sent, Instant::now(), fate));
        });
    }
}

async fn ask(traffic: Traffic, number: u64, flow: Option<&Flow>, options: ProbeOptions) -> Result<String> {
    let answer = exchange(traffic, number, flow, options.connect);
    tokio::time::timeout(options.answer, answer).await.context("no answer in time")?
}

async fn exchange(traffic: Traffic, number: u64, flow: Option<&Flow>, connect: Duration) -> Result<String> {
    let connected = async |target: SocketAddr| {
        tokio::time::timeout(connect, connect_afresh(target))
            .await
            .context("no connection in time")?
            .context("no connection")
    };
    match traffic {
        Traffic::Http(target) => echo::get_over(connected(target).await?, target, "/").await,
        Traffic::Connect(target) => {
            let stream = connected(target).await?;
            Ok(format!("connected to {}", stream.peer_addr()?))
        }
        Traffic::Udp(target) => {
            let socket = udp_to(target).await?;
            let data = number.to_string();
            socket.send(data.as_bytes()).await?;
            let mut buffer = [0; 512];
            let n = socket.recv(&mut buffer).await?;
            let answer = String::from_utf8_lossy(&buffer[..n]).into_owned();
            if echo::field(&answer, "data").is_some_and(|back| back != data) {
                bail!("asked with {data}, got {answer:?}");
            }
            Ok(answer)
        }
        Traffic::UdpFlow(_) => flow.context("failed to open a UDP socket")?.ask(number).await,
    }
}

/// Ports that connections are made from.
const PORTS: Range<u32> = 10_000..60_000;
/// The next one, for all probes of this process.
static NEXT_PORT: AtomicU32 = AtomicU32::new(0);

/// Connects from a port that was not used lately. A connection that was never answered, because its pod is lost, stays
/// in the node's table of connections for two minutes: one from the same port would be sent to the lost pod again.
async fn connect_afresh(target: SocketAddr) -> std::io::Result<TcpStream> {
    let any: IpAddr = if target.is_ipv4() { [0, 0, 0, 0].into() } else { Ipv6Addr::UNSPECIFIED.into() };
    loop {
        let step = NEXT_PORT.fetch_add(1, Ordering::Relaxed) % (PORTS.end - PORTS.start);
        let port = u16::try_from(PORTS.start + step).expect("below 60000");
        let socket = if target.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
        socket.set_reuseaddr(true)?;
        let connected = match socket.bind((any, port).into()) {
            Ok(()) => socket.connect(target).await,
            Err(error) => Err(error),
        };
        // Somebody else's, on this host; the limit of time around ends a search without success.
        let is_taken =
            |error: &std::io::Error| matches!(error.kind(), ErrorKind::AddrInUse | ErrorKind::AddrNotAvailable);
        match connected {
            Err(error) if is_taken(&error) => tokio::task::yield_now().await,
            connected => return connected,
        }
    }
}

async fn udp_to(target: SocketAddr) -> Result<UdpSocket> {
    let any: IpAddr = if target.is_ipv4() { [0, 0, 0, 0].into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((any, 0)).await.context("failed to open a UDP socket")?;
    socket.connect(target).await.with_context(|| format!("no route to {target}"))?;
    Ok(socket)
}

/// One socket, many questions: answers find their question by its number.
#[derive(Debug, Clone)]
struct Flow {
    socket: Arc<UdpSocket>,
    waiting: Arc<Mutex<BTreeMap<u64, tokio::sync::oneshot::Sender<String>>>>,
}

impl Flow {
    async fn open(target: SocketAddr) -> Option<Self> {
        let flow = Self { socket: Arc::new(udp_to(target).await.ok()?), waiting: Arc::default() };
        let reader = flow.clone();
        tokio::spawn(async move {
            let mut buffer = [0; 512];
            loop {
                // "Connection refused" from an ICMP error: the questions concerned run into their time-out.
                let Ok(n) = reader.socket.recv(&mut buffer).await else {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                    continue;
                };
                let answer = String::from_utf8_lossy(&buffer[..n]).into_owned();
                let number = echo::field(&answer, "data").and_then(|data| data.parse().ok());
                let asker = number.and_then(|number: u64| reader.waiting().remove(&number));
                if let Some(asker) = asker {
                    let _ = asker.send(answer);
                }
            }
        });
        Some(flow)
    }

    async fn ask(&self, number: u64) -> Result<String> {
        let (asker, answer) = tokio::sync::oneshot::channel();
        self.waiting().insert(number, asker);
        self.socket.send(number.to_string().as_bytes()).await?;
        answer.await.context("the reader has ended")
    }

    fn waiting(&self) -> parking_lot::MutexGuard<'_, BTreeMap<u64, tokio::sync::oneshot::Sender<String>>> {
        self.waiting.lock()
    }
}

#[cfg(test)]
mod tests;
