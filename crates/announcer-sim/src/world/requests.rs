//! Requests to the API and their answers; watches, and what becomes of them.

use std::time::{Duration, Instant};

use rand::RngExt;

use super::{Event, World};
use crate::api::{ApiAnswer, Change, Request};
use crate::process::{Message, Purpose};
use crate::promises::ONLY_FROM_WHOM;
use crate::scenario::{Fault, Kind};
use crate::words::outcome;

/// One way of a request or an answer, in microseconds.
const LATENCY_US: (u64, u64) = (300, 10_000);
/// Additional delay of a node whose connection is slow, at most.
const SLOW_US: u64 = 150_000;
/// From a write until a watcher gets the event.
const WATCH_US: (u64, u64) = (500, 30_000);
/// From the end of a broken watch until the next list. A `Reflector` waits for up to a second.
const RELIST_US: (u64, u64) = (10_000, 1_000_000);
/// The same for the election's own watch, whose back-off is much longer.
const LEASE_RELIST_US: (u64, u64) = (800_000, 30_000_000);

impl World<'_> {
    pub(super) fn reaches_api(&self, n: usize) -> bool {
        self.api_down == 0 && self.nodes[n].api_away == 0 && self.nodes[n].powered
    }

    fn latency(&mut self, n: usize, (low, high): (u64, u64)) -> Duration {
        let more = if self.nodes[n].api_slow > 0 { self.between(0, SLOW_US) } else { Duration::ZERO };
        self.between(low, high) + more
    }

    pub(super) fn send(&mut self, n: usize, purpose: Purpose, request: Request) {
        self.order += 1;
        let (id, life) = (self.order, self.nodes[n].life);
        let limit = self.nodes[n].process.as_ref().map_or(Duration::ZERO, |process| process.limit(&purpose));
        let asked = self.clock(n);
        self.nodes[n].waiting.insert(id, (purpose, asked));
        let after = self.latency(n, LATENCY_US) + self.api_late;
        self.schedule(after, Event::Request { node: n, life, id, request: Box::new(request) });
        self.schedule(limit, Event::Answer { node: n, life, id, answer: ApiAnswer::Failed });
    }

    pub(super) fn serve(&mut self, n: usize, life: u64, id: u64, request: &Request) {
        // A request is performed even if its process has died meanwhile.
        if !self.reaches_api(n) {
            if self.api_down > 0 && self.rng.random_bool(0.5) {
                let after = self.between(100, 1_000);
                self.schedule(after, Event::Answer { node: n, life, id, answer: ApiAnswer::Failed });
            }
            return;
        }
        let latency = self.latency(n, LATENCY_US);
        if self.nodes[n].read_only > 0 && request.writes() {
            self.schedule(latency, Event::Answer { node: n, life, id, answer: ApiAnswer::Failed });
            return;
        }
        if self.chance(self.scenario.refusals) {
            let answer = match self.rng.random_range(0..3) {
                0 if request.writes() => Some(ApiAnswer::Conflict),
                1 => {
                    // The request is performed, and its answer is lost.
                    self.commit(request);
                    None
                }
                _ => Some(ApiAnswer::Failed),
            };
            if let Some(answer) = answer {
                self.schedule(latency, Event::Answer { node: n, life, id, answer });
            }
            return;
        }
        let renewal = self.api.renews(request);
        let answer = self.commit(request);
        if let (Request::Sit(key, _, swap), ApiAnswer::Service(Some(_))) = (request, &answer) {
            self.judge_taking(n, key, swap);
        }
        if let (Request::Sit(key, _, swap), ApiAnswer::Service(Some(_))) = (request, &answer)
            && swap.owner_record.host != self.nodes[n].name
        {
            self.handed.insert((n, key.clone()), self.now);
        }
        if request.writes() && !(renewal && matches!(answer, ApiAnswer::LeaseWritten(_) | ApiAnswer::MemberWritten(_)))
        {
            self.note_of(n, || format!("API: {request}: {}", outcome(&answer)));
        }
        self.schedule(latency, Event::Answer { node: n, life, id, answer });
    }

    fn commit(&mut self, request: &Request) -> ApiAnswer {
        let (answer, change) = self.api.perform(self.now, request);
        if let Some(seen) = self.api.stolen.take() {
            self.broken(ONLY_FROM_WHOM, seen);
        }
        if let Some(change) = change {
            self.judge.changed |= matches!(change, Change::Member(..));
            self.publish(&change);
        }
        answer
    }

    pub(super) fn answered(&mut self, n: usize, life: u64, id: u64, answer: ApiAnswer) {
        if self.nodes[n].life == life
            && let Some((purpose, asked)) = self.nodes[n].waiting.remove(&id)
        {
            if !matches!(answer, ApiAnswer::Failed) {
                self.tell_time(n, asked);
            }
            self.deliver(n, Message::Answer(purpose, answer));
        }
    }

    /// The API server's clock, which is right, in an answer to what node `n` asked then.
    fn tell_time(&mut self, n: usize, asked: Instant) {
        let (clock, date) = (self.clock(n), self.api_time().strftime("%a, %d %b %Y %H:%M:%S GMT").to_string());
        if let Some(process) = &mut self.nodes[n].process {
            process.api_clock.answered(asked, clock, &date);
        }
    }

    /// To all watchers, in order.
    pub(super) fn publish(&mut self, change: &Change) {
        for n in 0..self.nodes.len() {
            if !self.nodes[n].connected || !self.reaches_api(n) {
                continue;
            }
            let held = if self.nodes[n].stale > 0 { self.hold(n) } else { Duration::ZERO };
            let delay = self.latency(n, WATCH_US) + held;
            let node = &mut self.nodes[n];
            node.arrives = node.arrives.max(self.now + delay) + Duration::from_micros(1);
            let (life, epoch, after) = (node.life, node.epoch, node.arrives.saturating_sub(self.now));
            self.schedule(after, Event::Watch { node: n, life, epoch, change: change.clone() });
        }
    }

    pub(super) fn watched(&mut self, n: usize, life: u64, epoch: u64, change: Change) {
        let node = &self.nodes[n];
        let told = node.lease_watched || !matches!(change, Change::Lease(..));
        if node.life == life && node.epoch == epoch && told {
            self.deliver(n, Message::Watch(change));
        }
    }

    /// How long the watches of this node still stand still.
    fn hold(&self, n: usize) -> Duration {
        let stale = |fault: &&Fault| fault.kind == Kind::Stale(n) && fault.is_on(self.now);
        let holds = self.scenario.faults.iter().filter(stale);
        holds.map(|fault| fault.end().saturating_sub(self.now)).max().unwrap_or_default()
    }

    pub(super) fn disconnect(&mut self, n: usize) {
        let node = &mut self.nodes[n];
        node.epoch += 1;
        node.connected = false;
        node.lease_watched = false;
        let life = node.life;
        let after = self.between(RELIST_US.0, RELIST_US.1);
        self.schedule(after, Event::List { node: n, life });
    }

    pub(super) fn list(&mut self, n: usize, life: u64) {
        if self.nodes[n].life != life || self.nodes[n].process.is_none() || self.nodes[n].connected {
            return;
        }
        if !self.reaches_api(n) {
            let after = self.between(RELIST_US.0, RELIST_US.1);
            self.schedule(after, Event::List { node: n, life });
            return;
        }
        self.nodes[n].connected = true;
        // The first connection of a process is made at once.
        let first = !self.nodes[n].process.as_ref().is_some_and(crate::process::Process::has_listed);
        let changes = self.api.list();
        self.tell_time(n, self.clock(n));
        self.deliver(
            n,
            Message::Listed(changes.into_iter().filter(|change| !matches!(change, Change::Lease(..))).collect()),
        );
        let epoch = self.nodes[n].epoch;
        let after = if first { Duration::ZERO } else { self.between(LEASE_RELIST_US.0, LEASE_RELIST_US.1) };
        self.schedule(after, Event::LeaseWatch { node: n, life, epoch });
    }

    pub(super) fn watch_lease(&mut self, n: usize, life: u64, epoch: u64) {
        if self.nodes[n].life != life || self.nodes[n].epoch != epoch {
            return;
        }
        self.nodes[n].lease_watched = true;
        for change in self.api.list().into_iter().filter(|change| matches!(change, Change::Lease(..))) {
            self.deliver(n, Message::Watch(change));
        }
    }
}
