//! Whose turn it is to create or delete a load balancer on the host: pure. Decision 6; host-throughput.md 1.
//!
//! One window over creates and deletes together. Who asks and has no turn yet waits in a line, and is woken when a
//! place is free.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::time::Duration;

use cloud_provider::view::ServiceKey;
use tokio::time::Instant;

use super::window::Window;

/// A place that the host neither fills nor gives back in this time is free again (host-throughput.md 1.8). Also the
/// time within which whoever was called has to come.
const PLACE: Duration = Duration::from_secs(5);

/// For so long a Service is new. After that whoever made it does not look at it any more, and the next new one goes
/// first.
const NEW: Duration = Duration::from_secs(5);

/// Every so many places one goes to who waits longest, whatever it is, so that nobody starves.
const TO_THE_OLDEST: u64 = 5;

/// What somebody wants to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Work {
    /// Create the object of a Service that was made while we looked.
    CreateNew,
    /// Create that of a Service which was there before us, or that was tried before.
    CreateAgain,
    /// Delete.
    Delete,
}

/// The answer to who asks for a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    /// Send the request now.
    Now,
    /// A wake-up comes. So many go before, as things are.
    NotYet {
        /// Under way or in the line before.
        ahead: usize,
    },
}

/// What the watch shows of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seen {
    /// The host has not finished.
    Working,
    /// The host's workers collided: `fail to reserve`, `duplicate allocation`. It goes on by itself.
    Collided,
    /// Ready with an address.
    Ready,
    /// Not Ready for a reason that stays: it costs the host nothing more.
    Refused,
    /// There is no such object.
    Gone,
}

#[derive(Debug, Clone)]
struct Waiting {
    name: String,
    service: ServiceKey,
    since: Instant,
    work: Work,
}

#[derive(Debug)]
struct Place {
    service: ServiceKey,
    delete: bool,
    since: Instant,
    sent: bool,
    /// How many were under way when it was sent, itself included.
    load: usize,
}

/// The line and the window.
#[derive(Debug, Default)]
pub struct Scheduler {
    window: Window,
    /// By arrival.
    line: BTreeMap<u64, Waiting>,
    /// Numbers of the line by what is wanted.
    lanes: [BTreeSet<u64>; 3],
    /// The same by who wants it.
    services: BTreeSet<(ServiceKey, u64)>,
    numbers: HashMap<String, u64>,
    arrivals: u64,
    under_way: HashMap<String, Place>,
    /// Who had a turn already: the next one is a retry.
    tried: HashSet<String>,
    turns: u64,
    called: Vec<ServiceKey>,
}

impl Scheduler {
    /// Somebody wants to do `work` on the object `name`. Who has a place keeps it until the host is done with it.
    pub fn ask(&mut self, now: Instant, name: &str, service: &ServiceKey, work: Work) -> Turn {
        self.tick(now);
        if let Some(place) = self.under_way.get_mut(name) {
            place.delete = work == Work::Delete;
            return Turn::Now;
        }
        let work = if work == Work::CreateNew && self.tried.contains(name) { Work::CreateAgain } else { work };
        self.stand_in_line(now, name, service, work);
        self.call(now);
        if self.under_way.contains_key(name) {
            self.called.retain(|called| called != service);
            return Turn::Now;
        }
        let before = self.numbers.get(name).map_or(0, |number| self.before(*number));
        Turn::NotYet { ahead: before + self.under_way.len() }
    }

    fn stand_in_line(&mut self, now: Instant, name: &str, service: &ServiceKey, work: Work) {
        if let Some(number) = self.numbers.get(name).copied() {
            let Some(waiting) = self.line.get_mut(&number) else { return };
            // A Service that has become old while it waited does not become new by asking again.
            if (waiting.work == Work::Delete) != (work == Work::Delete) {
                self.lanes[lane(waiting.work)].remove(&number);
                waiting.work = work;
                self.lanes[lane(work)].insert(number);
            }
            return;
        }
        let number = self.arrivals;
        self.arrivals += 1;
        self.numbers.insert(name.to_owned(), number);
        self.lanes[lane(work)].insert(number);
        self.services.insert((service.clone(), number));
        self.line.insert(number, Waiting { name: name.to_owned(), service: service.clone(), since: now, work });
    }

    /// How many go before this one, if nobody else comes.
    fn before(&self, number: u64) -> usize {
        let Some(waiting) = self.line.get(&number) else { return 0 };
        let own = lane(waiting.work);
        self.lanes[own].range(..number).count() + self.lanes[..own].iter().map(BTreeSet::len).sum::<usize>()
    }

    /// The request is about to be sent, or was just answered: the host's time runs from here.
    pub fn sent(&mut self, now: Instant, name: &str) {
        let load = self.under_way.len();
        if let Some(place) = self.under_way.get_mut(name) {
            if !place.sent {
                place.load = load;
            }
            place.sent = true;
            place.since = now;
            self.tried.insert(name.to_owned());
        }
    }

    /// The request failed, or there was nothing to send after all.
    pub fn give_back(&mut self, now: Instant, name: &str) {
        self.leave_line(name);
        if self.under_way.remove(name).is_some() {
            self.call(now);
        }
    }

    /// The Service sends requests for these objects and for no others, as things are: nobody else would take the others
    /// out of the line, and each would hold a place when its turn comes. What was sent stays the host's matter.
    pub fn wants_only(&mut self, now: Instant, service: &ServiceKey, names: &[String]) {
        let given_up = |name: &str| !names.iter().any(|wanted| wanted == name);
        let first = (service.clone(), 0);
        let numbers = self.services.range(first..).take_while(|(key, _)| key == service).map(|(_, number)| number);
        let in_line = numbers.filter_map(|number| Some(&self.line.get(number)?.name)).filter(|name| given_up(name));
        for name in in_line.cloned().collect::<Vec<_>>() {
            self.leave_line(&name);
        }
        self.under_way.retain(|name, place| place.sent || place.service != *service || !given_up(name));
        self.call(now);
    }

    /// The watch shows this.
    pub fn seen(&mut self, now: Instant, name: &str, seen: Seen) {
        match seen {
            Seen::Working => return,
            Seen::Collided => return self.window.narrow(),
            Seen::Ready | Seen::Refused | Seen::Gone => {}
        }
        if matches!(seen, Seen::Ready | Seen::Gone) {
            self.tried.remove(name);
        }
        let Some(place) = self.under_way.get(name) else { return };
        if !place.sent || place.delete && seen != Seen::Gone {
            return;
        }
        let done = if place.delete { Seen::Gone } else { Seen::Ready };
        if seen == done {
            self.window.finished(now, now.saturating_duration_since(place.since), place.load);
        }
        self.under_way.remove(name);
        self.call(now);
    }

    /// Nothing of this object is left to remember.
    pub fn forget(&mut self, now: Instant, name: &str) {
        self.give_back(now, name);
        self.tried.remove(name);
    }

    /// Time passed.
    pub fn tick(&mut self, now: Instant) {
        let late: Vec<String> = self
            .under_way
            .iter()
            .filter(|(_, place)| now.saturating_duration_since(place.since) >= PLACE)
            .map(|(name, _)| name.clone())
            .collect();
        for name in late {
            if self.under_way.remove(&name).is_some_and(|place| place.sent) {
                self.window.narrow();
            }
        }
        self.call(now);
    }

    /// When to call [`Self::tick`] if nothing happens before.
    pub fn deadline(&self) -> Option<Instant> {
        if self.line.is_empty() {
            return None;
        }
        self.under_way.values().map(|place| place.since + PLACE).min()
    }

    /// Services whose turn has come since the last call.
    pub fn take_called(&mut self) -> Vec<ServiceKey> {
        std::mem::take(&mut self.called)
    }

    /// How many may be under way.
    pub fn window(&self) -> usize {
        self.window.size()
    }

    fn leave_line(&mut self, name: &str) -> Option<Waiting> {
        let number = self.numbers.remove(name)?;
        let waiting = self.line.remove(&number)?;
        self.lanes[lane(waiting.work)].remove(&number);
        self.services.remove(&(waiting.service.clone(), number));
        Some(waiting)
    }

    /// Gives free places away.
    fn call(&mut self, now: Instant) {
        while self.under_way.len() < self.window.size() {
            self.grow_old(now);
            let Some(name) = self.next() else { return };
            let Some(waiting) = self.leave_line(&name) else { return };
            self.turns += 1;
            let service = waiting.service.clone();
            let place = Place { service, delete: waiting.work == Work::Delete, since: now, sent: false, load: 1 };
            self.under_way.insert(name, place);
            self.called.push(waiting.service);
        }
    }

    fn grow_old(&mut self, now: Instant) {
        let [new, again, _] = &mut self.lanes;
        while let Some(number) = new.first().copied() {
            let Some(waiting) = self.line.get_mut(&number) else { return };
            if now.saturating_duration_since(waiting.since) < NEW {
                return;
            }
            waiting.work = Work::CreateAgain;
            new.remove(&number);
            again.insert(number);
        }
    }

    fn next(&self) -> Option<String> {
        let oldest = || self.line.keys().next().copied();
        let first = || self.lanes.iter().find_map(|lane| lane.first().copied());
        let number = if self.turns % TO_THE_OLDEST == TO_THE_OLDEST - 1 { oldest() } else { first() };
        Some(self.line.get(&number?)?.name.clone())
    }
}

fn lane(work: Work) -> usize {
    match work {
        Work::CreateNew => 0,
        Work::CreateAgain => 1,
        Work::Delete => 2,
    }
}

#[cfg(test)]
#[path = "scheduler_tests.rs"]
mod tests;
