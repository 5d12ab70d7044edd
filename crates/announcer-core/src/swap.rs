//! Changes the owner in the record of a Service by compare-and-swap, as fast as possible (decisions.md 20). Clients
//! wait for this write, and the API server that is asked may have been on the node that has just died.
//!
//! A machine without I/O: it says which request goes over which connection, and takes in the answers. A request that is
//! not answered soon is repeated over one other connection, which all swaps share. The first request goes on meanwhile,
//! because an API server that is slow for every client answers in the end. What was learnt from its answer spares the
//! next swaps the second connection.

mod backlog;
mod connections;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use backlog::Backlog;
pub use backlog::WAIT_LIMIT;

use crate::ownership::node::{OwnerRecord, Swap, Swapped};
use crate::view::{ServiceKey, Uid};

/// A swap fails if nothing was heard of it for this long. A slow API server is better than none.
const LIMIT: Duration = Duration::from_secs(10);
/// Limit of requests per swap that may end with an error or a conflict. After that the engine decides anew.
const FAILURES: u32 = 4;
/// Swaps at a time. When a node with 200 VIPs dies, the API server must not become slow for all of them.
const AT_ONCE: usize = 16;

/// The connection that the rest of the process uses too. It is never opened or closed here.
pub const USUAL: u64 = 0;

/// A Service as it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundService<O> {
    /// UID, which tells it from a later Service of the same name.
    pub uid: Uid,
    /// The record on the Service.
    pub owner_record: Option<OwnerRecord>,
    /// What the caller needs to write the Service.
    pub object: O,
}

/// Content of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SwapRequest<O> {
    /// The Service as it stands.
    Read,
    /// Write this record on the object, unless the Service has changed since it was read.
    Write(O, Swap),
}

/// Answer to a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SwapAnswer<O> {
    /// The Service; `None`: no Service of that name exists.
    Found(Option<FoundService<O>>),
    /// The record was written.
    Written,
    /// Another writer has changed the Service meanwhile.
    Conflict,
    /// The API server refuses; another server or a later attempt would too. Examples: object too large, no permission,
    /// an admission rule.
    Refused(String),
    /// Any other failure.
    Failed(String),
}

/// An action of the caller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SwapAct<O> {
    /// Open a connection. `server` counts up; the caller maps it to the API servers in turn. If none is known, it is
    /// another connection to the usual address.
    Open {
        /// Number of the connection.
        connection: u64,
        /// Which API server.
        server: usize,
    },
    /// Close this connection; no request uses it any more.
    Close(u64),
    /// Send a request, and report its answer with this number.
    Send {
        /// Number of the request.
        id: u64,
        /// Number of the connection.
        connection: u64,
        /// The Service.
        key: ServiceKey,
        /// Content of the request.
        ask: SwapRequest<O>,
    },
    /// Cancel this request; its answer is not needed any more.
    Drop(u64),
    /// Report the result of a swap to the engine.
    Tell(ServiceKey, Swap, Swapped),
}

/// A request that was sent.
#[derive(Debug)]
struct Request {
    key: ServiceKey,
    connection: u64,
    since: Instant,
}

#[derive(Debug)]
struct Running {
    swap: Swap,
    /// When the API was last heard.
    progress: Instant,
    failures: u32,
    last: Option<String>,
    /// At most two requests, over different connections.
    requests: Vec<u64>,
}

/// The second connection.
#[derive(Debug)]
struct Spare {
    connection: u64,
    since: Instant,
    patience: Duration,
}

/// The connection that swaps begin with.
#[derive(Debug)]
struct Main {
    connection: u64,
    heard: Option<Instant>,
}

/// All swaps of one process. `O` is what the caller keeps of a Service to write it.
#[derive(Debug)]
pub struct Swaps<O> {
    backlog: Backlog,
    running: BTreeMap<ServiceKey, Running>,
    requests: BTreeMap<u64, Request>,
    main: Main,
    spare: Option<Spare>,
    /// How long to wait for an answer, as learnt from slow answers, and until when that counts.
    learnt: Option<(Duration, Instant)>,
    servers: usize,
    numbers: u64,
    acts: Vec<SwapAct<O>>,
}

impl<O> Default for Swaps<O> {
    fn default() -> Self {
        Self {
            backlog: Backlog::default(),
            running: BTreeMap::new(),
            requests: BTreeMap::new(),
            main: Main { connection: USUAL, heard: None },
            spare: None,
            learnt: None,
            servers: 0,
            numbers: USUAL,
            acts: Vec::new(),
        }
    }
}

impl<O> Swaps<O> {
    /// The engine requests another owner.
    pub fn ask(&mut self, now: Instant, key: ServiceKey, swap: Swap) {
        let running = self.running.get(&key).map(|running| &running.swap);
        self.backlog.ask(now, key, swap, running);
        self.begin(now);
    }

    /// A request was answered.
    pub fn answered(&mut self, now: Instant, id: u64, answer: SwapAnswer<O>) {
        let Some(request) = self.requests.remove(&id) else { return };
        let Some(running) = self.running.get_mut(&request.key) else { return };
        running.requests.retain(|other| *other != id);
        if !matches!(answer, SwapAnswer::Failed(_)) {
            running.progress = now;
            self.heard(now, &request);
            self.repeat_overtaken(now, &request);
        }
        match answer {
            SwapAnswer::Found(found) => self.found(now, &request, found),
            SwapAnswer::Written => self.finish(now, &request, Swapped::Won),
            SwapAnswer::Refused(why) => self.finish(now, &request, Swapped::Refused(why)),
            SwapAnswer::Conflict => self.conflict(now, &request),
            SwapAnswer::Failed(why) => self.failed(now, &request, why),
        }
    }

    /// Handles what is late: swaps and requests without an answer.
    pub fn tick(&mut self, now: Instant) {
        let over: Vec<ServiceKey> = self
            .running
            .iter()
            .filter(|(_, running)| running.progress + LIMIT <= now)
            .map(|(key, _)| key.clone())
            .collect();
        for key in over {
            let last = self.running.get_mut(&key).and_then(|running| running.last.take());
            let silent = format!("no answer within {LIMIT:?}");
            self.end(
                now,
                &key,
                Swapped::Failed(last.map_or(silent.clone(), |last| format!("{silent}; before: {last}"))),
            );
        }
        self.next_spare(now);
        let patience = self.patience(now);
        let late: Vec<ServiceKey> = self
            .running
            .iter()
            .filter(|(_, running)| self.late_at(running, patience).is_some_and(|at| at <= now))
            .map(|(key, _)| key.clone())
            .collect();
        for key in late {
            self.elsewhere(now, &key);
        }
    }

    /// When to call [`Self::tick`] if nothing happens before.
    pub fn deadline(&self, now: Instant) -> Option<Instant> {
        let patience = self.patience(now);
        let ends = self.running.values().map(|running| running.progress + LIMIT);
        let late = self.running.values().filter_map(|running| self.late_at(running, patience));
        ends.chain(late).chain(self.silent_spare().map(|(_, until)| until)).min()
    }

    /// Takes the actions, in the order in which they have to be performed.
    pub fn acts(&mut self) -> Vec<SwapAct<O>> {
        std::mem::take(&mut self.acts)
    }

    fn begin(&mut self, now: Instant) {
        while self.running.len() < AT_ONCE
            && let Some((key, swap, late)) = self.backlog.begin(now, |key| self.running.contains_key(key))
        {
            if late {
                let why = format!("it had to wait for more than {WAIT_LIMIT:?}");
                self.acts.push(SwapAct::Tell(key, swap, Swapped::Failed(why)));
                continue;
            }
            let running = Running { swap, progress: now, failures: 0, last: None, requests: Vec::new() };
            self.running.insert(key.clone(), running);
            self.send(now, &key, self.main.connection, SwapRequest::Read);
        }
    }

    fn send(&mut self, now: Instant, key: &ServiceKey, connection: u64, ask: SwapRequest<O>) {
        let Some(running) = self.running.get_mut(key) else { return };
        self.numbers += 1;
        let id = self.numbers;
        running.requests.push(id);
        self.requests.insert(id, Request { key: key.clone(), connection, since: now });
        self.acts.push(SwapAct::Send { id, connection, key: key.clone(), ask });
    }

    fn found(&mut self, now: Instant, request: &Request, found: Option<FoundService<O>>) {
        let Some(running) = self.running.get(&request.key) else { return };
        let swap = running.swap.clone();
        let Some(FoundService { owner_record, object, .. }) = found.filter(|found| found.uid == swap.uid) else {
            return self.finish(now, request, Swapped::Gone);
        };
        // An earlier request was written and its answer was lost.
        if owner_record.as_ref() == Some(&swap.owner_record) {
            return self.finish(now, request, Swapped::Won);
        }
        if swap.may_replace(owner_record.as_ref()) {
            return self.send(now, &request.key, request.connection, SwapRequest::Write(object, swap));
        }
        self.finish(now, request, owner_record.map_or(Swapped::Unrecorded, Swapped::Other));
    }

    /// After a conflict the Service is read again at once.
    fn conflict(&mut self, now: Instant, request: &Request) {
        if self.count(&request.key, "somebody else writes the Service all the time".to_owned()) {
            self.send(now, &request.key, request.connection, SwapRequest::Read);
        } else {
            self.give_up(now, &request.key);
        }
    }

    fn failed(&mut self, now: Instant, request: &Request, why: String) {
        if !self.count(&request.key, why) {
            return self.give_up(now, &request.key);
        }
        let next = self.instead_of(now, request.connection);
        if !self.asks_over(&request.key, next) {
            self.send(now, &request.key, next, SwapRequest::Read);
        }
    }

    /// Counts a request that failed. Returns whether another one may follow.
    fn count(&mut self, key: &ServiceKey, why: String) -> bool {
        self.running.get_mut(key).is_some_and(|running| {
            running.failures += 1;
            running.last = Some(why);
            running.failures < FAILURES
        })
    }

    fn give_up(&mut self, now: Instant, key: &ServiceKey) {
        if let Some(running) = self.running.get_mut(key).filter(|running| running.requests.is_empty()) {
            let last = running.last.take().unwrap_or_default();
            self.end(now, key, Swapped::Failed(last));
        }
    }

    /// The API server has decided the swap.
    fn finish(&mut self, now: Instant, request: &Request, swapped: Swapped) {
        let spare = self.spare.as_ref().filter(|spare| spare.connection == request.connection);
        if spare.is_some_and(|spare| self.main_is_silent_since(spare)) {
            // Later swaps begin over the connection that answers.
            let old = std::mem::replace(&mut self.main, Main { connection: request.connection, heard: Some(now) });
            self.spare = None;
            self.close(old.connection);
        }
        self.end(now, &request.key, swapped);
    }

    fn end(&mut self, now: Instant, key: &ServiceKey, swapped: Swapped) {
        let Some(running) = self.running.remove(key) else { return };
        self.drop_requests(running.requests);
        self.acts.push(SwapAct::Tell(key.clone(), running.swap, swapped));
        self.begin(now);
        if self.running.is_empty()
            && let Some(spare) = self.spare.take()
        {
            self.close(spare.connection);
        }
    }

    fn drop_requests(&mut self, ids: Vec<u64>) {
        for id in ids {
            self.requests.remove(&id);
            self.acts.push(SwapAct::Drop(id));
        }
    }
}
