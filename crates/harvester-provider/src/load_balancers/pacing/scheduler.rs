//! Decides when a load balancer may be created or deleted on the host (decision 6; host pace spec 1). Pure.
//!
//! One window covers creates and deletes together. A request without a turn waits in a queue, and its Service is woken
//! when a place is free. Namespaces take turns.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::time::Duration;

use cloud_provider::view::ServiceKey;
use tokio::time::Instant;

use super::lane::Lane;
use super::window::Window;

/// A place becomes free again if the host has not finished after this time (host pace spec 1.8). A woken Service
/// also has to use its turn within this time.
const PLACE: Duration = Duration::from_secs(5);

/// How long a waiting Service counts as new. After that its user no longer watches it, and the next new Service goes
/// first.
const NEW: Duration = Duration::from_secs(5);

/// Every n-th place goes to the request that has waited longest, whatever it is, so that none starves.
const TO_THE_OLDEST: u64 = 5;

/// The kind of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Work {
    /// Create the object of a Service that was created while this process was running.
    CreateNew,
    /// Create the object of a Service that existed before, or whose creation was tried before.
    CreateAgain,
    /// Delete.
    Delete,
}

/// The answer to a request for a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    /// Send the request now.
    Now,
    /// The Service is woken when its turn comes.
    NotYet {
        /// Number of requests that currently come first: under way, or earlier in the queue.
        ahead: usize,
    },
}

/// The state of an object, as the watch shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ObjectState {
    /// The host has not finished.
    Working,
    /// The host's workers collided (`fail to reserve`, `duplicate allocation`). The host continues by itself.
    Collided,
    /// Ready with an address.
    Ready,
    /// Not Ready for a permanent reason, so the host has no more work with it.
    Refused,
    /// There is no such object.
    Gone,
}

#[derive(Debug, Clone)]
struct Waiting {
    name: String,
    service: ServiceKey,
    /// Others that asked for the same object meanwhile, as its Service after the collector. They are woken, too.
    others: Vec<ServiceKey>,
    since: Instant,
    work: Work,
}

#[derive(Debug)]
struct Place {
    service: ServiceKey,
    delete: bool,
    since: Instant,
    sent: bool,
    /// Number of requests under way when this one was sent, itself included.
    load: usize,
}

/// The queue and the window.
#[derive(Debug, Default)]
pub struct Scheduler {
    window: Window,
    /// Waiting requests, by order of arrival.
    line: BTreeMap<u64, Waiting>,
    /// Numbers of the queue, by kind of the request.
    lanes: [Lane; 3],
    /// The same by Service.
    services: BTreeSet<(ServiceKey, u64)>,
    numbers: HashMap<String, u64>,
    /// Counts arrivals and turns: orders the queue and the namespaces in it.
    clock: u64,
    under_way: HashMap<String, Place>,
    /// Objects that had a turn before: their next create counts as a retry.
    tried: HashSet<String>,
    turns: u64,
    called: Vec<ServiceKey>,
}

impl Scheduler {
    /// Requests a turn for `work` on the object `name`. An object that has a place keeps it until the host has
    /// finished.
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
            if waiting.service != *service && !waiting.others.contains(service) {
                waiting.others.push(service.clone());
            }
            // A new request of a Service that is no longer new does not make it new again.
            if (waiting.work == Work::Delete) != (work == Work::Delete) {
                self.clock += 1;
                // Not the namespace of `service`: the collector asks in another name than the Service itself.
                let namespace = &waiting.service.namespace;
                self.lanes[lane(waiting.work)].remove(namespace, number);
                waiting.work = work;
                self.lanes[lane(work)].insert(namespace, number, self.clock);
            }
            return;
        }
        self.clock += 1;
        let number = self.clock;
        self.numbers.insert(name.to_owned(), number);
        self.lanes[lane(work)].insert(&service.namespace, number, number);
        self.services.insert((service.clone(), number));
        let (name, service) = (name.to_owned(), service.clone());
        self.line.insert(number, Waiting { name, service, others: Vec::new(), since: now, work });
    }

    /// Number of requests before this one, if no others arrive.
    fn before(&self, number: u64) -> usize {
        let Some(waiting) = self.line.get(&number) else { return 0 };
        let own = lane(waiting.work);
        let of_its_kind = self.lanes[own].before(&waiting.service.namespace, number);
        of_its_kind + self.lanes[..own].iter().map(Lane::len).sum::<usize>()
    }

    /// The request is about to be sent, or was just answered: the time for the host starts now.
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

    /// The request failed, or nothing was left to send.
    pub fn give_back(&mut self, now: Instant, name: &str) {
        self.leave_line(name);
        if self.under_way.remove(name).is_some() {
            self.call(now);
        }
    }

    /// Removes the Service's requests for other objects from the queue. Nothing else would remove them, and each would
    /// occupy a place when its turn comes. Requests that were already sent keep their places.
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

    /// Processes what the watch shows of an object.
    pub fn seen(&mut self, now: Instant, name: &str, seen: ObjectState) {
        match seen {
            ObjectState::Working => return,
            ObjectState::Collided => return self.window.narrow(),
            ObjectState::Ready | ObjectState::Refused | ObjectState::Gone => {}
        }
        if matches!(seen, ObjectState::Ready | ObjectState::Gone) {
            self.tried.remove(name);
        }
        let Some(place) = self.under_way.get(name) else { return };
        if !place.sent || place.delete && seen != ObjectState::Gone {
            return;
        }
        let done = if place.delete { ObjectState::Gone } else { ObjectState::Ready };
        if seen == done {
            self.window.finished(now, now.saturating_duration_since(place.since), place.load);
        }
        self.under_way.remove(name);
        self.call(now);
    }

    /// Removes everything about this object.
    pub fn forget(&mut self, now: Instant, name: &str) {
        self.give_back(now, name);
        self.tried.remove(name);
    }

    /// Frees the places whose time is over.
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

    /// How many requests may be under way.
    pub fn window(&self) -> usize {
        self.window.size()
    }

    fn leave_line(&mut self, name: &str) -> Option<Waiting> {
        let number = self.numbers.remove(name)?;
        let waiting = self.line.remove(&number)?;
        self.lanes[lane(waiting.work)].remove(&waiting.service.namespace, number);
        self.services.remove(&(waiting.service.clone(), number));
        Some(waiting)
    }

    /// Grants the free places.
    fn call(&mut self, now: Instant) {
        while self.under_way.len() < self.window.size() {
            self.grow_old(now);
            let Some(name) = self.next() else { return };
            let Some(waiting) = self.leave_line(&name) else { return };
            self.turns += 1;
            self.clock += 1;
            self.lanes[lane(waiting.work)].had_a_turn(&waiting.service.namespace, self.clock);
            let service = waiting.service.clone();
            let place = Place { service, delete: waiting.work == Work::Delete, since: now, sent: false, load: 1 };
            self.under_way.insert(name, place);
            self.called.push(waiting.service);
            self.called.extend(waiting.others);
        }
    }

    fn grow_old(&mut self, now: Instant) {
        let [new, again, _] = &mut self.lanes;
        while let Some(number) = new.oldest() {
            let Some(waiting) = self.line.get_mut(&number) else { return };
            if now.saturating_duration_since(waiting.since) < NEW {
                return;
            }
            waiting.work = Work::CreateAgain;
            new.remove(&waiting.service.namespace, number);
            self.clock += 1;
            again.insert(&waiting.service.namespace, number, self.clock);
        }
    }

    fn next(&self) -> Option<String> {
        let oldest = || self.line.keys().next().copied();
        let first = || self.lanes.iter().find_map(Lane::next);
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
