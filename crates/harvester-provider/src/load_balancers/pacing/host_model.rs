//! The host's load balancer controller as a model in simulated time: bucket, two workers, caches, retries.
//! Host pace spec 5.
//!
//! One pool. Only tests use it; the stand-in that talks to a real API server is `harvester-sim`.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque};

use super::random::Random;

pub(super) type Name = u32;

/// How fast the host is.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pace {
    /// Requests per second and burst; `None`: no limit, and nobody collides.
    pub(super) bucket: Option<(f64, f64)>,
    pub(super) workers: usize,
}

impl Pace {
    pub(super) const REAL: Self = Self { bucket: Some((5.0, 10.0)), workers: 2 };
    pub(super) const FAST: Self = Self { bucket: None, workers: 16 };
}

/// A load balancer as the API has it.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Lb {
    version: u64,
    pub(super) deleting: bool,
    pub(super) finalizer: bool,
    /// `None`: no status yet. `Err`: not Ready, with the text.
    pub(super) ready: Option<Result<u32, String>>,
}

#[derive(Debug, Clone, Default)]
struct Pool {
    version: u64,
    booked: BTreeMap<Name, u32>,
    history: BTreeMap<Name, u32>,
    last: u32,
}

/// What the host sends next in one pass over one object.
#[derive(Debug, Clone)]
enum Put {
    Pool(Pool),
    Lb(Lb),
}

#[derive(Debug, Clone)]
struct Pass {
    name: Name,
    base: Lb,
    step: Step,
    failed: bool,
}

#[derive(Debug, Clone)]
enum Step {
    Book(u32),
    PutBack,
    Status(Lb),
    Finalizer,
    Release,
    Drop,
}

#[derive(Debug, Clone)]
enum Event {
    Kick,
    Add(Name),
    Arrive(Box<Pass>, Put),
    Answer(Box<Pass>, Option<Lb>),
    ShowLb(Name, Option<Lb>),
    ShowPool(Box<Pool>),
    Call(u32),
}

/// What the watch of a client shows, and alarms that it has set.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Shown {
    Object(Name, Option<Lb>),
    Alarm(u32),
}

struct Entry(f64, u64, Event);

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}
impl Eq for Entry {}
impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Entry {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0).then(self.1.cmp(&other.1))
    }
}

/// The host, and the time.
pub(super) struct Host {
    pace: Pace,
    random: Random,
    pub(super) now: f64,
    agenda: BinaryHeap<Reverse<Entry>>,
    count: u64,
    tokens: f64,
    filled: f64,
    queue: VecDeque<Name>,
    dirty: BTreeSet<Name>,
    working: BTreeSet<Name>,
    failures: BTreeMap<Name, u32>,
    idle: usize,
    api: BTreeMap<Name, Lb>,
    cache: BTreeMap<Name, Lb>,
    pool: Pool,
    pool_cache: Pool,
    last_event: [f64; 2],
    pub(super) writes: usize,
    pub(super) collisions: usize,
}

impl Host {
    pub(super) fn new(seed: u64, pace: Pace) -> Self {
        Self {
            pace,
            random: Random::new(seed),
            now: 0.0,
            agenda: BinaryHeap::new(),
            count: 0,
            tokens: pace.bucket.map_or(0.0, |(_, burst)| burst),
            filled: 0.0,
            queue: VecDeque::new(),
            dirty: BTreeSet::new(),
            working: BTreeSet::new(),
            failures: BTreeMap::new(),
            idle: pace.workers,
            api: BTreeMap::new(),
            cache: BTreeMap::new(),
            pool: Pool::default(),
            pool_cache: Pool::default(),
            last_event: [0.0; 2],
            writes: 0,
            collisions: 0,
        }
    }

    /// Addresses that are booked for objects which do not exist.
    pub(super) fn leaked(&self) -> Vec<Name> {
        self.pool.booked.keys().filter(|name| !self.api.contains_key(name)).copied().collect()
    }

    pub(super) fn exists(&self, name: Name) -> bool {
        self.api.contains_key(&name)
    }

    /// POST.
    pub(super) fn create(&mut self, name: Name, finalizer: bool) {
        let lb = Lb { version: 1, deleting: false, finalizer, ready: None };
        self.api.insert(name, lb.clone());
        self.show(0, Event::ShowLb(name, Some(lb)));
    }

    /// DELETE.
    pub(super) fn delete(&mut self, name: Name) {
        let Some(lb) = self.api.get_mut(&name) else { return };
        lb.version += 1;
        lb.deleting = true;
        let shown = lb.finalizer.then(|| lb.clone());
        if shown.is_none() {
            self.api.remove(&name);
        }
        self.show(0, Event::ShowLb(name, shown));
    }

    /// An alarm for the client.
    pub(super) fn call_at(&mut self, at: f64, alarm: u32) {
        self.at((at - self.now).max(0.0), Event::Call(alarm));
    }

    /// Runs to the next thing that a client sees.
    pub(super) fn next(&mut self) -> Option<Shown> {
        while let Some(Reverse(Entry(time, _, event))) = self.agenda.pop() {
            self.now = time;
            match event {
                Event::Kick => self.kick(),
                Event::Add(name) => self.add(name),
                Event::Arrive(pass, put) => self.arrive(pass, put),
                Event::Answer(pass, written) => self.answer(*pass, written),
                Event::ShowPool(pool) => self.pool_cache = *pool,
                Event::Call(alarm) => return Some(Shown::Alarm(alarm)),
                Event::ShowLb(name, lb) => {
                    match &lb {
                        Some(lb) => self.cache.insert(name, lb.clone()),
                        None => self.cache.remove(&name),
                    };
                    self.add(name);
                    return Some(Shown::Object(name, lb));
                }
            }
        }
        None
    }

    fn at(&mut self, delay: f64, event: Event) {
        self.count += 1;
        self.agenda.push(Reverse(Entry(self.now + delay, self.count, event)));
    }

    /// Events of one watch stay in order (5.3).
    fn show(&mut self, watch: usize, event: Event) {
        let lag = self.random.between(0.0004, 0.0025);
        self.last_event[watch] = self.last_event[watch].max(self.now + lag);
        self.at(self.last_event[watch] - self.now, event);
    }

    /// 5.1: first come, first served, and it may be overdrawn.
    fn token(&mut self) -> f64 {
        let Some((rate, burst)) = self.pace.bucket else { return 0.0 };
        self.tokens = burst.min(self.tokens + (self.now - self.filled) * rate) - 1.0;
        self.filled = self.now;
        (-self.tokens / rate).max(0.0)
    }

    fn add(&mut self, name: Name) {
        if !self.dirty.insert(name) || self.working.contains(&name) {
            return;
        }
        self.queue.push_back(name);
        self.at(0.0002, Event::Kick);
    }

    fn kick(&mut self) {
        while self.idle > 0
            && let Some(name) = self.queue.pop_front()
        {
            self.dirty.remove(&name);
            self.working.insert(name);
            self.idle -= 1;
            match self.begin(name) {
                Some(pass) => self.send(pass),
                None => self.end(name, false),
            }
        }
    }

    fn end(&mut self, name: Name, failed: bool) {
        self.idle += 1;
        if failed {
            let failures = self.failures.entry(name).or_default();
            let delay = (0.005 * f64::from(1_u32 << (*failures).min(20))).min(30.0);
            *failures += 1;
            self.at(delay, Event::Add(name));
        } else {
            self.failures.remove(&name);
        }
        self.working.remove(&name);
        if self.dirty.contains(&name) {
            self.queue.push_back(name);
        }
        self.at(0.0, Event::Kick);
    }

    /// 5.4 and 5.5: what a pass begins with.
    fn begin(&mut self, name: Name) -> Option<Pass> {
        let base = self.cache.get(&name)?.clone();
        let pass = |step| Some(Pass { name, base: base.clone(), step, failed: false });
        let booked = self.pool_cache.booked.contains_key(&name);
        if base.deleting {
            let releases = booked && matches!(base.ready, Some(Ok(_)));
            return if base.finalizer { pass(if releases { Step::Release } else { Step::Drop }) } else { None };
        }
        match base.ready {
            Some(Ok(_)) if base.finalizer => None,
            Some(Ok(_)) => pass(Step::Finalizer),
            _ if booked && !self.pool_cache.history.contains_key(&name) => pass(Step::PutBack),
            _ => {
                let remembered = self.pool_cache.history.get(&name).copied();
                pass(Step::Book(remembered.unwrap_or(self.pool_cache.last + 1)))
            }
        }
    }

    fn send(&mut self, pass: Pass) {
        let mut pool = if self.pace.bucket.is_some() { self.pool_cache.clone() } else { self.pool.clone() };
        let mut lb = pass.base.clone();
        let put = match &pass.step {
            Step::Book(address) => {
                pool.history.remove(&pass.name);
                pool.booked.insert(pass.name, *address);
                pool.last = pool.last.max(*address);
                Put::Pool(pool)
            }
            Step::PutBack => {
                let address = pool.booked.remove(&pass.name).unwrap_or_default();
                pool.history.insert(pass.name, address);
                Put::Pool(pool)
            }
            Step::Release => {
                pool.booked.remove(&pass.name);
                Put::Pool(pool)
            }
            Step::Status(new) => Put::Lb(new.clone()),
            Step::Finalizer => {
                lb.finalizer = true;
                Put::Lb(lb)
            }
            Step::Drop => {
                lb.finalizer = false;
                Put::Lb(lb)
            }
        };
        let half = self.random.between(0.001, 0.0025);
        // Without a limit nobody reads an old pool: what is computed arrives.
        let delay = if self.pace.bucket.is_some() { self.token() + half } else { 0.0 };
        self.at(delay, Event::Arrive(Box::new(pass), put));
    }

    /// The PUT at the API server, guarded by its version.
    fn arrive(&mut self, pass: Box<Pass>, put: Put) {
        self.writes += 1;
        let mut written = None;
        match put {
            Put::Pool(mut new) => {
                if let (None, Step::Book(_)) = (self.pace.bucket, &pass.step) {
                    // Computed from the pool as it is now.
                    let address = self.pool.last + 1;
                    new = self.pool.clone();
                    new.booked.insert(pass.name, address);
                    new.last = address;
                } else if self.pace.bucket.is_none() {
                    new = self.pool.clone();
                    new.booked.remove(&pass.name);
                }
                if new.version == self.pool.version {
                    new.version += 1;
                    self.pool = new.clone();
                    self.show(1, Event::ShowPool(Box::new(new)));
                    written = Some(pass.base.clone());
                } else {
                    self.collisions += 1;
                }
            }
            Put::Lb(mut new) => {
                if self.api.get(&pass.name).is_some_and(|lb| lb.version == new.version) {
                    new.version += 1;
                    let gone = new.deleting && !new.finalizer;
                    if gone {
                        self.api.remove(&pass.name);
                    } else {
                        self.api.insert(pass.name, new.clone());
                    }
                    self.show(0, Event::ShowLb(pass.name, (!gone).then(|| new.clone())));
                    written = Some(new);
                }
            }
        }
        let half = self.random.between(0.001, 0.0025);
        self.at(half, Event::Answer(pass, written));
    }

    fn answer(&mut self, mut pass: Pass, written: Option<Lb>) {
        let ok = written.is_some();
        let report = |lb: &Lb, ready| Some(Step::Status(Lb { ready: Some(ready), ..lb.clone() }));
        let mut next = match &pass.step {
            Step::Book(address) if ok => report(&pass.base, Ok(*address)),
            Step::Book(address) => report(&pass.base, Err(format!("fail to reserve {address}"))),
            Step::PutBack => report(&pass.base, Err("duplicate allocation is not allowed".into())),
            Step::Status(_) => {
                if let Some(lb) = written {
                    pass.base = lb;
                }
                Some(Step::Finalizer)
            }
            Step::Release if ok => Some(Step::Drop),
            Step::Release | Step::Finalizer | Step::Drop => None,
        };
        pass.failed |= !ok || matches!(pass.step, Step::PutBack);
        if matches!(&next, Some(Step::Status(lb)) if *lb == pass.base) {
            next = Some(Step::Finalizer);
        }
        if matches!(next, Some(Step::Finalizer)) && pass.base.finalizer {
            next = None;
        }
        match next {
            Some(step) => self.send(Pass { step, ..pass }),
            None => self.end(pass.name, pass.failed),
        }
    }
}
