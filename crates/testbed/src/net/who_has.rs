//! Who answers for an address, asked all the time; and a host that answers for every address.

use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use l2::arp::{self, Arp, ArpFrame, Operation};
use l2::{Mac, PacketSocket, Traffic};

use crate::net::host::Host;
use crate::net::namespace::Task;
use crate::stall::{self, Stalls};

/// Questions with two answers that are further apart belong to two moves.
const ONE_MOVE: Duration = Duration::from_millis(500);

/// Large enough for a frame of ARP with its padding.
const FRAME: usize = 128;

/// What was answered.
#[derive(Debug, Clone, Default)]
struct Journal {
    /// For each question its answerers.
    rounds: Vec<(Instant, BTreeSet<Mac>)>,
}

/// Asks everybody on the LAN who has an address, until it is dropped.
#[derive(Debug)]
pub struct Answerers {
    journal: Arc<Mutex<Journal>>,
    interval: Duration,
    _task: Task,
}

/// Asks everybody on the LAN for many addresses, each until it is answered, until it is dropped.
#[derive(Debug)]
pub struct Roll {
    answered: Arc<Mutex<BTreeMap<Ipv4Addr, Option<Instant>>>>,
    _task: Task,
}

/// What [`Answerers`] saw.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AnswerReport {
    /// Questions.
    pub asked: usize,
    /// Questions that nobody answered.
    pub unanswered: usize,
    /// How many questions each MAC answered.
    pub by: BTreeMap<String, usize>,
    /// Time during which two or more answered, in all.
    pub double: Duration,
    /// From the first to the last question with two answers.
    pub double_span: Duration,
    /// The longest time in one stretch during which two or more answered, without the machine's stalls: who has lost
    /// withdraws when its process has its turn.
    pub overlap: Duration,
}

impl fmt::Display for AnswerReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} asked, {} unanswered, two answered for {} ms (within {} ms; in one stretch, without stalls, {} ms), by \
            {:?}",
            self.asked,
            self.unanswered,
            self.double.as_millis(),
            self.double_span.as_millis(),
            self.overlap.as_millis(),
            self.by
        )
    }
}

impl Host {
    /// Asks by broadcast who has `address`, in the name of this host, every `interval`.
    pub fn ask_who_has(&self, address: Ipv4Addr, interval: Duration) -> Result<Answerers> {
        let journal: Arc<Mutex<Journal>> = Arc::default();
        let (mac, own) = self.arp_identity()?;
        let question = Arp::who_has(mac, own, address).frame(Mac::BROADCAST).to_vec();
        let (asking, hearing) = (Arc::clone(&journal), Arc::clone(&journal));
        let ask = move || {
            ask_again(&asking);
            vec![question.clone()]
        };
        let hear = move |answer: &Arp| {
            let mut journal = hearing.lock();
            if answer.is_answer_for(address)
                && let Some((_, answerers)) = journal.rounds.last_mut()
            {
                answerers.insert(answer.sender_mac);
            }
        };
        let task = self.ask_and_hear("who-has", interval, ask, hear)?;
        Ok(Answerers { journal, interval, _task: task })
    }

    /// Asks by broadcast who has each of these addresses, every `interval`, until it is answered.
    pub fn call_the_roll(&self, addresses: impl IntoIterator<Item = Ipv4Addr>, interval: Duration) -> Result<Roll> {
        let roll: BTreeMap<Ipv4Addr, Option<Instant>> = addresses.into_iter().map(|address| (address, None)).collect();
        let answered = Arc::new(Mutex::new(roll));
        let (mac, own) = self.arp_identity()?;
        let (asking, hearing) = (Arc::clone(&answered), Arc::clone(&answered));
        let ask = move || {
            let roll = asking.lock();
            let open = roll.iter().filter(|(_, at)| at.is_none());
            open.map(|(address, _)| Arp::who_has(mac, own, *address).frame(Mac::BROADCAST).to_vec()).collect()
        };
        let hear = move |answer: &Arp| {
            let mut roll = hearing.lock();
            if answer.is_answer_for(answer.sender_ip)
                && let Some(at) = roll.get_mut(&answer.sender_ip)
            {
                at.get_or_insert_with(Instant::now);
            }
        };
        let task = self.ask_and_hear("roll", interval, ask, hear)?;
        Ok(Roll { answered, _task: task })
    }

    /// Answers every ARP question on the LAN with this host's MAC, as a broken or hostile machine does, until it is
    /// dropped.
    pub fn answer_everything(&self) -> Result<Task> {
        let (mac, _) = self.arp_identity()?;
        self.answer_arp("rogue", mac, move |_| true)
    }

    /// Answers broadcast questions for this address in the name of `mac` until it is dropped: with this host's own MAC
    /// as a router with proxy ARP, with another machine's as a fabric that answers for its hosts, also the dead ones.
    pub fn answer_for(&self, address: Ipv4Addr, mac: &str) -> Result<Task> {
        let mac = mac.parse().with_context(|| format!("{mac} is no MAC"))?;
        self.answer_arp("proxy-arp", mac, move |found| {
            found.arp.target_ip == address && found.ethernet.destination == Mac::BROADCAST
        })
    }

    fn answer_arp(
        &self,
        name: &str,
        mac: Mac,
        answers: impl Fn(&ArpFrame<'_>) -> bool + Send + 'static,
    ) -> Result<Task> {
        let (own, _) = self.arp_identity()?;
        self.arp_task(name, move |socket| async move {
            let mut buffer = [0; FRAME];
            loop {
                let Ok(length) = socket.recv(&mut buffer).await else { continue };
                let Some(found) = arp::parse_frame(&buffer[..length]) else { continue };
                let asked = found.arp.operation == Operation::Request && found.arp.sender_ip != found.arp.target_ip;
                if asked && ![own, mac].contains(&found.arp.sender_mac) && answers(&found) {
                    sent(&socket, &Arp::answer(&found.arp, mac).frame(found.arp.sender_mac)).await;
                }
            }
        })
    }

    /// Sends what `ask` says every `interval`, and shows `hear` whatever arrives.
    fn ask_and_hear(
        &self,
        name: &str,
        interval: Duration,
        mut ask: impl FnMut() -> Vec<Vec<u8>> + Send + 'static,
        mut hear: impl FnMut(&Arp) + Send + 'static,
    ) -> Result<Task> {
        self.arp_task(name, move |socket| async move {
            let mut ticks = tokio::time::interval(interval);
            ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
            let mut buffer = [0; FRAME];
            loop {
                tokio::select! {
                    biased;
                    received = socket.recv(&mut buffer) => {
                        let Ok(length) = received else { continue };
                        if let Some(found) = arp::parse_frame(&buffer[..length]) {
                            hear(&found.arp);
                        }
                    }
                    _ = ticks.tick() => {
                        for question in ask() {
                            sent(&socket, &question).await;
                        }
                    }
                }
            }
        })
    }

    /// A task with a socket that is open when this returns: an observer that is deaf proves nothing.
    fn arp_task<F: Future<Output = ()>>(
        &self,
        name: &str,
        make: impl FnOnce(PacketSocket) -> F + Send + 'static,
    ) -> Result<Task> {
        let link = self.interface_index("eth0")?;
        let (opened, is_open) = std::sync::mpsc::channel();
        let task = self.task(name, move || async move {
            match PacketSocket::open(link, Traffic::Arp) {
                Ok(socket) => {
                    let _ = opened.send(Ok(()));
                    make(socket).await;
                }
                Err(error) => {
                    let _ = opened.send(Err(error));
                }
            }
        })?;
        let open = is_open.recv().with_context(|| format!("{name} on {} ended at once", self.name()))?;
        open.with_context(|| format!("no socket for {name} on {}", self.name()))?;
        Ok(task)
    }

    /// Index of an interface of this host.
    pub fn interface_index(&self, interface: &str) -> Result<u32> {
        let links = self.namespace().ip_json(&format!("link show dev {interface}"))?;
        let index = links.first().and_then(|link| link["ifindex"].as_u64());
        index.and_then(|index| u32::try_from(index).ok()).with_context(|| format!("{} has no {interface}", self.name()))
    }

    fn arp_identity(&self) -> Result<(Mac, Ipv4Addr)> {
        let mac = self.mac().parse().with_context(|| format!("{} is no MAC", self.mac()))?;
        Ok((mac, self.ipv4()))
    }
}

impl Roll {
    /// Waits until all have answered; when each did so for the first time.
    pub fn wait(&self, deadline: Duration) -> Result<Vec<Instant>> {
        crate::wait::wait_until("every address to be answered for", deadline, || {
            let roll = self.answered.lock();
            let missing = roll.values().filter(|at| at.is_none()).count();
            if missing == 0 {
                Ok(roll.values().flatten().copied().collect())
            } else {
                Err(format!("{missing} are not"))
            }
        })
    }
}

impl Answerers {
    /// What it has seen up to now; the question that is still open is left out.
    pub fn report(&self) -> AnswerReport {
        let mut journal = self.journal.lock().clone();
        journal.rounds.pop();
        let begin = journal.rounds.first().map_or_else(Instant::now, |(at, _)| *at);
        summarize(&journal, &stall::since(begin), self.interval)
    }

    /// When the first question that was answered was asked.
    pub fn first_answer(&self) -> Option<Instant> {
        let journal = self.journal.lock();
        journal.rounds.iter().find(|(_, answerers)| !answerers.is_empty()).map(|(at, _)| *at)
    }
}

/// Told where the test's output is: whoever judges sees too few answers, and here why.
async fn sent(socket: &PacketSocket, frame: &[u8]) {
    if let Err(error) = socket.send(frame).await {
        eprintln!("cannot send ARP: {error}");
    }
}

/// What is answered from now on belongs to the next question.
fn ask_again(journal: &Mutex<Journal>) {
    let mut journal = journal.lock();
    journal.rounds.push((Instant::now(), BTreeSet::new()));
}

/// Pure.
fn summarize(journal: &Journal, machine: &Stalls, interval: Duration) -> AnswerReport {
    let mut report = AnswerReport { asked: journal.rounds.len(), ..AnswerReport::default() };
    let mut double = Vec::new();
    for (at, answerers) in &journal.rounds {
        for mac in answerers {
            *report.by.entry(mac.to_string()).or_default() += 1;
        }
        match answerers.len() {
            0 => report.unanswered += 1,
            1 => {}
            _ => double.push(*at),
        }
    }
    report.double = interval * u32::try_from(double.len()).unwrap_or(u32::MAX);
    if let (Some(first), Some(last)) = (double.first(), double.last()) {
        report.double_span = *last - *first + interval;
    }
    report.overlap = stretches(&double)
        .map(|(first, last)| (last - first + interval).saturating_sub(machine.within(first, last + interval, &[])))
        .max()
        .unwrap_or_default();
    report
}

/// First and last of those that are not further apart than [`ONE_MOVE`].
fn stretches(at: &[Instant]) -> impl Iterator<Item = (Instant, Instant)> {
    at.chunk_by(|one, next| *next - *one < ONE_MOVE).filter_map(|chunk| Some((*chunk.first()?, *chunk.last()?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_answers_to_one_question_are_counted_by_time() {
        let start = Instant::now();
        let [a, b] = [1, 2].map(|last| Mac::new([2, 0, 0, 0, 0, last]));
        let round = |ms, macs: &[Mac]| (start + Duration::from_millis(ms), macs.iter().copied().collect());
        let journal = Journal {
            rounds: vec![round(0, &[a]), round(10, &[a, b]), round(20, &[]), round(30, &[a, b]), round(40, &[b])],
        };
        let report = summarize(&journal, &Stalls::default(), Duration::from_millis(10));
        assert_eq!((report.asked, report.unanswered), (5, 1));
        assert_eq!((report.double, report.double_span), (Duration::from_millis(20), Duration::from_millis(30)));
        assert_eq!(report.by[&a.to_string()], 3);
        assert_eq!(report.overlap, Duration::from_millis(30));
    }

    #[test]
    fn two_answers_are_judged_move_by_move_and_without_the_stalls_of_the_machine() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let both: BTreeSet<Mac> = [1, 2].map(|last| Mac::new([2, 0, 0, 0, 0, last])).into();
        let rounds = [0, 10, 250, 900, 910, 920].map(|ms| (at(ms), both.clone())).to_vec();
        let report =
            |machine: &Stalls| summarize(&Journal { rounds: rounds.clone() }, machine, Duration::from_millis(10));
        let idle = report(&Stalls::default());
        assert_eq!((idle.overlap, idle.double), (Duration::from_millis(260), Duration::from_millis(60)));
        // The first move had to wait for 240 ms, so the second one counts.
        let busy = report(&Stalls::of(vec![(at(5), at(245))], Vec::new()));
        assert_eq!(busy.overlap, Duration::from_millis(30));
        assert_eq!(
            summarize(&Journal::default(), &Stalls::default(), Duration::from_millis(10)).overlap,
            Duration::ZERO
        );
    }
}
