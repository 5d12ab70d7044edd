//! One run: nodes, LAN, API server and clock, moved from event to event.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::IpAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use announcer::engine::{Action, Input, WireOp};
use announcer::frames;
use announcer::network::Family;
use announcer::{Config, ElectionMode};
use jiff::Timestamp;
use l2::Mac;
use l2::arp::Arp;
use l2::ethernet::EthernetHeader;
use l2::netlink::AddressLifetime;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use crate::api::{self, Answer, Api, Change, Request};
use crate::checks::{Checks, Trouble, Violation};
use crate::kernel::{ETH0, GATEWAY, Kernel};
use crate::process::{Mail, Process, Purpose};
use crate::sabotage::Sabotage;
use crate::scenario::{CALM, DELETION, END, Kind, Scenario, WARM_UP};

/// A process that asks for nothing within this many steps at one moment goes round in circles.
const STEPS_AT_ONCE: u32 = 200;
/// A pod that does not end in time is killed.
const GRACE: Duration = Duration::from_secs(30);
/// Frames that wait in a socket.
const SOCKET: usize = 1024;
/// Frames that the hypervisor keeps for a machine that stands still.
const TAP_QUEUE: usize = 64;

#[derive(Debug)]
enum Event {
    Begins(usize),
    Ends(usize),
    Starts { node: usize, boot: u64 },
    Wake { node: usize, life: u64 },
    Expiry { node: usize, boot: u64 },
    Perform { node: usize, life: u64 },
    Frame { to: usize, frame: Rc<[u8]> },
    Request { node: usize, life: u64, id: u64, request: Request },
    Answer { node: usize, life: u64, id: u64, answer: Answer },
    Watch { node: usize, life: u64, epoch: u64, change: Change },
    List { node: usize, life: u64 },
    Deadline { node: usize, life: u64 },
    Rob { service: usize, fault: usize },
    Delete,
}

/// A node: kernel, process, clocks and what is wrong with it.
struct Node {
    name: String,
    kernel: Kernel,
    process: Option<Process>,
    /// Counts boots and processes: what was meant for a former one is not delivered.
    boot: u64,
    life: u64,
    powered: bool,
    frozen: u32,
    paused: u32,
    /// How far the process's clock is behind: what it did not see pass.
    behind: Duration,
    /// How long the kernel has stood still.
    stood_still: Duration,
    paused_at: Duration,
    wall_jump: i64,
    wake_at: Option<Duration>,
    performing: bool,
    waiting: BTreeMap<u64, Purpose>,
    /// The watches: which connection, and when the last event arrives.
    epoch: u64,
    connected: bool,
    arrives: Duration,
    api_away: u32,
    stale: u32,
    mute: u32,
    deaf: u32,
    tap: VecDeque<Rc<[u8]>>,
    /// Since when nothing has been wrong with it.
    well_since: Duration,
    /// Addresses that it has set in this life, for the sabotage.
    set: BTreeSet<IpAddr>,
    steps: (Duration, u32),
}

/// What a run was.
#[derive(Debug, Clone, Default)]
pub struct Outcome {
    /// The promise that was broken first.
    pub violation: Option<Violation>,
    /// What happened, if it was to be written down.
    pub trace: Vec<String>,
    /// Events that were simulated.
    pub events: u64,
    /// How often an address came to another node.
    pub moves: u64,
}

/// See the module.
pub struct World<'a> {
    scenario: &'a Scenario,
    sabotage: Option<Sabotage>,
    rng: SmallRng,
    origin: Instant,
    wall: Timestamp,
    now: Duration,
    queue: BTreeMap<(Duration, u64), Event>,
    order: u64,
    nodes: Vec<Node>,
    api: Api,
    api_down: u32,
    splits: BTreeMap<usize, BTreeSet<usize>>,
    robbed: BTreeSet<usize>,
    generation: Vec<u32>,
    wanted: BTreeSet<usize>,
    /// Where each unicast MAC was seen last.
    learned: BTreeMap<Mac, usize>,
    /// Which Service's address each node answers for.
    answering: BTreeMap<usize, BTreeSet<usize>>,
    last_answerer: BTreeMap<usize, usize>,
    /// Since when each pair of nodes has heard each other.
    contact: BTreeMap<(usize, usize), Duration>,
    changed: bool,
    checks: Checks,
    moves: Vec<u64>,
    writes_at_rest: Option<u64>,
    violation: Option<Violation>,
    trace: Option<Vec<String>>,
    events: u64,
}

/// Runs a scenario to its end, or to the first broken promise.
pub fn run(scenario: &Scenario, sabotage: Option<Sabotage>, trace: bool) -> Outcome {
    let mut world = World::new(scenario, sabotage, trace);
    world.begin();
    while world.violation.is_none() {
        let Some(((at, _), event)) = world.queue.pop_first() else { break };
        if at > END {
            break;
        }
        world.now = at;
        world.events += 1;
        world.happens(event);
        world.check();
    }
    Outcome {
        violation: world.violation,
        trace: world.trace.unwrap_or_default(),
        events: world.events,
        moves: world.moves.iter().sum(),
    }
}

impl<'a> World<'a> {
    fn new(scenario: &'a Scenario, sabotage: Option<Sabotage>, trace: bool) -> Self {
        let nodes = (0..scenario.nodes)
            .map(|n| Node {
                name: format!("node-{}", n + 1),
                kernel: Kernel::new(n),
                process: None,
                boot: 0,
                life: 0,
                powered: true,
                frozen: 0,
                paused: 0,
                behind: Duration::ZERO,
                stood_still: Duration::ZERO,
                paused_at: Duration::ZERO,
                wall_jump: 0,
                wake_at: None,
                performing: false,
                waiting: BTreeMap::new(),
                epoch: 0,
                connected: false,
                arrives: Duration::ZERO,
                api_away: 0,
                stale: 0,
                mute: 0,
                deaf: 0,
                tap: VecDeque::new(),
                well_since: Duration::ZERO,
                set: BTreeSet::new(),
                steps: (Duration::ZERO, 0),
            })
            .collect();
        Self {
            scenario,
            sabotage,
            rng: SmallRng::seed_from_u64(scenario.seed),
            // Clocks of nodes never go back beyond it.
            origin: Instant::now() + Duration::from_hours(1),
            wall: "2026-01-01T00:00:00Z".parse().expect("a timestamp"),
            now: Duration::ZERO,
            queue: BTreeMap::new(),
            order: 0,
            nodes,
            api: Api::new(sabotage == Some(Sabotage::NoCompareAndSwap)),
            api_down: 0,
            splits: BTreeMap::new(),
            robbed: BTreeSet::new(),
            generation: vec![0; scenario.services],
            wanted: BTreeSet::new(),
            learned: BTreeMap::new(),
            answering: BTreeMap::new(),
            last_answerer: BTreeMap::new(),
            contact: BTreeMap::new(),
            changed: true,
            checks: Checks::new(scenario.mode),
            moves: vec![0; scenario.services],
            writes_at_rest: None,
            violation: None,
            trace: trace.then(Vec::new),
            events: 0,
        }
    }

    fn begin(&mut self) {
        for service in 0..self.scenario.services {
            self.create(service);
        }
        for node in 0..self.nodes.len() {
            let after = Duration::from_millis(self.rng.random_range(0..3000));
            self.schedule(after, Event::Starts { node, boot: 0 });
        }
        for (index, fault) in self.scenario.faults.iter().enumerate() {
            self.schedule(fault.at, Event::Begins(index));
            self.schedule(fault.at + fault.lasts, Event::Ends(index));
        }
        self.schedule(DELETION, Event::Delete);
    }

    fn schedule(&mut self, after: Duration, event: Event) {
        self.order += 1;
        self.queue.insert((self.now + after, self.order), event);
    }

    fn note(&mut self, text: impl FnOnce() -> String) {
        if let Some(trace) = &mut self.trace {
            trace.push(format!("{:>11.6} {}", self.now.as_secs_f64(), text()));
        }
    }

    fn between(&mut self, low_us: u64, high_us: u64) -> Duration {
        Duration::from_micros(self.rng.random_range(low_us..=high_us))
    }

    /// Between warm-up and calm things are lost and refused.
    fn stormy(&self) -> bool {
        self.now >= WARM_UP && self.now < CALM
    }

    fn chance(&mut self, of: f64) -> bool {
        self.stormy() && of > 0.0 && self.rng.random_bool(of)
    }

    fn happens(&mut self, event: Event) {
        match event {
            Event::Begins(fault) => self.begins(fault),
            Event::Ends(fault) => self.ends(fault),
            Event::Starts { node, boot } => {
                if self.nodes[node].boot == boot {
                    self.start(node);
                }
            }
            Event::Wake { node, life } => {
                if self.nodes[node].life == life && self.nodes[node].wake_at == Some(self.now) {
                    self.nodes[node].wake_at = None;
                    self.wake(node);
                }
            }
            Event::Expiry { node, boot } => {
                let at = self.kernel_time(node);
                let found = &mut self.nodes[node];
                if found.boot == boot && found.paused == 0 && found.kernel.expire(at) {
                    self.changed = true;
                    let name = found.name.clone();
                    self.note(|| format!("{name} kernel: an address came to its end"));
                }
            }
            Event::Perform { node, life } => self.perform(node, life),
            Event::Frame { to, frame } => self.arrives(to, &frame),
            Event::Request { node, life, id, request } => self.serve(node, life, id, &request),
            Event::Answer { node, life, id, answer } => {
                if self.nodes[node].life == life
                    && let Some(purpose) = self.nodes[node].waiting.remove(&id)
                {
                    self.post(node, Mail::Answer(purpose, answer));
                }
            }
            Event::Watch { node, life, epoch, change } => {
                if self.nodes[node].life == life && self.nodes[node].epoch == epoch {
                    self.post(node, Mail::Watch(change));
                }
            }
            Event::List { node, life } => self.list(node, life),
            Event::Deadline { node, life } => {
                if self.nodes[node].life == life {
                    self.end_process(node, "killed after its grace period");
                    self.expect_restart(node);
                }
            }
            Event::Rob { service, fault } => self.rob(service, fault),
            Event::Delete => {
                self.writes_at_rest = None;
                for service in 0..self.scenario.services {
                    self.delete(service);
                }
            }
        }
    }

    // Faults.

    fn begins(&mut self, index: usize) {
        let fault = self.scenario.faults[index].clone();
        self.note(|| format!("FAULT begins: {:?}", fault.kind));
        self.changed = true;
        match fault.kind {
            Kind::ApiAway(n) => {
                self.nodes[n].api_away += 1;
                self.disconnect(n);
            }
            Kind::ApiDown => {
                self.api_down += 1;
                (0..self.nodes.len()).for_each(|n| self.disconnect(n));
            }
            Kind::Stale(n) => self.nodes[n].stale += 1,
            Kind::Cut(n) => {
                self.nodes[n].mute += 1;
                self.nodes[n].deaf += 1;
            }
            Kind::Mute(n) => self.nodes[n].mute += 1,
            Kind::Deaf(n) => self.nodes[n].deaf += 1,
            Kind::Split(group) => {
                self.splits.insert(index, group.into_iter().collect());
            }
            Kind::Carrier(n) => {
                self.nodes[n].mute += 1;
                self.nodes[n].deaf += 1;
                self.nodes[n].kernel.set_carrier(false);
                self.post(n, Mail::Engine(Input::NetworkChanged));
            }
            Kind::Kill(n) => self.end_process(n, "killed"),
            Kind::Terminate(n) => {
                if let Some(process) = &mut self.nodes[n].process
                    && !std::mem::replace(&mut process.stopping, true)
                {
                    self.post(n, Mail::Engine(Input::Stop));
                    let life = self.nodes[n].life;
                    self.schedule(GRACE, Event::Deadline { node: n, life });
                }
            }
            Kind::Freeze(n) => self.nodes[n].frozen += 1,
            Kind::Pause(n, _) => {
                self.nodes[n].paused += 1;
                if self.nodes[n].paused == 1 {
                    self.nodes[n].paused_at = self.now;
                }
            }
            Kind::PowerLoss(n) => {
                self.end_process(n, "power lost");
                let node = &mut self.nodes[n];
                node.powered = false;
                node.boot += 1;
                node.kernel = Kernel::new(n);
                self.disconnect(n);
            }
            Kind::WallJump(n, seconds) => self.nodes[n].wall_jump += seconds,
            Kind::Deleted(service) => self.delete(service),
            Kind::Thief(service) => {
                self.robbed.insert(service);
                self.rob(service, index);
            }
        }
    }

    fn ends(&mut self, index: usize) {
        let fault = self.scenario.faults[index].clone();
        self.note(|| format!("FAULT ends: {:?}", fault.kind));
        self.changed = true;
        match fault.kind {
            Kind::ApiAway(n) => self.nodes[n].api_away -= 1,
            Kind::ApiDown => self.api_down -= 1,
            Kind::Stale(n) => self.nodes[n].stale -= 1,
            Kind::Cut(n) => {
                self.nodes[n].mute -= 1;
                self.nodes[n].deaf -= 1;
            }
            Kind::Mute(n) => self.nodes[n].mute -= 1,
            Kind::Deaf(n) => self.nodes[n].deaf -= 1,
            Kind::Split(_) => {
                self.splits.remove(&index);
            }
            Kind::Carrier(n) => {
                self.nodes[n].mute -= 1;
                self.nodes[n].deaf -= 1;
                self.nodes[n].kernel.set_carrier(true);
                self.post(n, Mail::Engine(Input::NetworkChanged));
            }
            Kind::Kill(n) | Kind::Terminate(n) => {
                let boot = self.nodes[n].boot;
                self.schedule(Duration::ZERO, Event::Starts { node: n, boot });
            }
            Kind::Freeze(n) => {
                self.nodes[n].frozen -= 1;
                self.resume(n);
            }
            Kind::Pause(n, shows) => {
                self.nodes[n].paused -= 1;
                if self.nodes[n].paused == 0 {
                    let stood = self.now.saturating_sub(self.nodes[n].paused_at);
                    self.nodes[n].stood_still += stood;
                    if !shows {
                        self.nodes[n].behind += stood;
                    }
                    for frame in std::mem::take(&mut self.nodes[n].tap) {
                        self.arrives(n, &frame);
                    }
                    self.expect_expiry(n);
                    self.resume(n);
                }
            }
            Kind::PowerLoss(n) => {
                self.nodes[n].powered = true;
                let boot = self.nodes[n].boot;
                let after = self.between(500_000, 3_000_000);
                self.schedule(after, Event::Starts { node: n, boot });
            }
            Kind::WallJump(n, seconds) => self.nodes[n].wall_jump -= seconds,
            Kind::Deleted(service) => self.create(service),
            Kind::Thief(service) => {
                let others = self.scenario.faults.iter().enumerate().any(|(other, found)| {
                    other != index
                        && found.kind == fault.kind
                        && found.at <= self.now
                        && found.at + found.lasts > self.now
                });
                if !others {
                    self.robbed.remove(&service);
                }
            }
        }
    }

    fn create(&mut self, service: usize) {
        if self.now >= DELETION || !self.wanted.insert(service) {
            return;
        }
        self.generation[service] += 1;
        let change = self.api.put(api::key(service), api::service(service, self.generation[service]));
        self.changed = true;
        self.publish(&change);
    }

    fn delete(&mut self, service: usize) {
        self.wanted.remove(&service);
        self.changed = true;
        if let Some(change) = self.api.delete(&api::key(service)) {
            self.publish(&change);
        }
    }

    fn rob(&mut self, service: usize, fault: usize) {
        let found = &self.scenario.faults[fault];
        if self.now < found.at + found.lasts {
            for frame in frames::announcement(thief(), api::address(service)) {
                self.transmit(None, frame);
            }
            let after = self.between(500_000, 3_000_000);
            self.schedule(after, Event::Rob { service, fault });
        }
    }

    // Nodes.

    fn clock(&self, n: usize) -> Instant {
        self.origin + self.now.saturating_sub(self.nodes[n].behind)
    }

    fn kernel_time(&self, n: usize) -> Duration {
        let node = &self.nodes[n];
        let now = if node.paused > 0 { node.paused_at } else { self.now };
        now.saturating_sub(node.stood_still)
    }

    fn wall(&self, n: usize) -> Timestamp {
        let seconds = jiff::SignedDuration::from_secs(self.nodes[n].wall_jump);
        let passed = jiff::SignedDuration::try_from(self.now).expect("a run is short");
        self.wall + passed + seconds
    }

    fn start(&mut self, n: usize) {
        let node = &self.nodes[n];
        if node.process.is_some() || !node.powered {
            return;
        }
        // Another fault still holds it down; its end starts it.
        let held = self.scenario.faults.iter().any(|fault| {
            matches!(fault.kind, Kind::Kill(m) | Kind::Terminate(m) | Kind::PowerLoss(m) if m == n)
                && fault.at <= self.now
                && fault.at + fault.lasts > self.now
        });
        if held {
            return;
        }
        let name = node.name.clone();
        self.note(|| format!("{name} process starts"));
        let [duration, deadline, retry] = self.scenario.lease.map(|seconds| seconds.to_string());
        let env = [
            ("vip_interface", "eth0"),
            ("election_mode", self.scenario.mode.as_str()),
            ("vip_leaseduration", &duration),
            ("vip_renewdeadline", &deadline),
            ("vip_retryperiod", &retry),
        ];
        let env = env.map(|(key, value)| (key.to_owned(), value.to_owned()));
        let config = Config::from_env_and_args(env, [], &name).expect("a valid configuration");
        let process = Process::new(self.clock(n), config);
        let node = &mut self.nodes[n];
        node.life += 1;
        node.process = Some(process);
        node.set.clear();
        node.well_since = self.now;
        node.performing = false;
        node.waiting.clear();
        node.wake_at = None;
        node.epoch += 1;
        node.connected = false;
        node.arrives = self.now;
        let life = node.life;
        let after = self.between(1_000, 20_000);
        self.schedule(after, Event::List { node: n, life });
        self.rouse(n);
    }

    fn end_process(&mut self, n: usize, how: &str) {
        let node = &mut self.nodes[n];
        if node.process.take().is_some() {
            node.life += 1;
            node.epoch += 1;
            node.waiting.clear();
            node.wake_at = None;
            self.changed = true;
            let name = self.nodes[n].name.clone();
            self.note(|| format!("{name} process ends: {how}"));
        }
    }

    /// The DaemonSet's next pod.
    fn expect_restart(&mut self, n: usize) {
        let boot = self.nodes[n].boot;
        let after = self.between(300_000, 2_000_000);
        self.schedule(after, Event::Starts { node: n, boot });
    }

    fn resume(&mut self, n: usize) {
        self.nodes[n].wake_at = None;
        self.rouse(n);
        let life = self.nodes[n].life;
        if self.nodes[n].process.as_ref().is_some_and(|process| !process.wire.is_empty()) {
            self.nodes[n].performing = true;
            self.schedule(Duration::ZERO, Event::Perform { node: n, life });
        }
    }

    fn runs(&self, n: usize) -> bool {
        let node = &self.nodes[n];
        node.process.is_some() && node.frozen == 0 && node.paused == 0
    }

    fn post(&mut self, n: usize, mail: Mail) {
        if let Some(process) = &mut self.nodes[n].process {
            process.mail.push_back(mail);
            self.rouse(n);
        }
    }

    /// Something waits: the scheduler lets the process run soon.
    fn rouse(&mut self, n: usize) {
        let after = self.between(10, self.scenario.busy_us);
        self.wake_at(n, self.now + after);
    }

    fn wake_at(&mut self, n: usize, at: Duration) {
        let node = &mut self.nodes[n];
        if node.wake_at.is_some_and(|planned| planned <= at) {
            return;
        }
        node.wake_at = Some(at);
        let life = node.life;
        self.order += 1;
        self.queue.insert((at, self.order), Event::Wake { node: n, life });
    }

    fn wake(&mut self, n: usize) {
        if !self.runs(n) {
            return;
        }
        let (clock, wall) = (self.clock(n), self.wall(n));
        let name = self.nodes[n].name.clone();
        let traced = self.trace.is_some();
        let process = self.nodes[n].process.as_mut().expect("it runs");
        let mut inputs = process.gather(clock, wall);
        if inputs.is_empty() && process.engine.deadline() <= clock {
            inputs.push(Input::Tick);
        }
        let mut actions = Vec::new();
        let mut seen = Vec::new();
        let last = inputs.len();
        for (index, input) in inputs.into_iter().enumerate() {
            let dull = matches!(&input, Input::Tick | Input::Wire(_) | Input::Member(..) | Input::Node(..))
                || matches!(&input, Input::Heard(frame) if frame.what != frames::Heard::Claim);
            if traced && !dull {
                seen.push(describe(&input));
            }
            // As `node.rs`: what waits is taken in before a timer is judged.
            let step = index + 1 == last;
            actions.extend(if step { process.engine.step(clock, input) } else { process.engine.hear(clock, input) });
        }
        let requests = std::mem::take(&mut process.requests);
        for text in seen {
            self.note(|| format!("{name} <- {text}"));
        }
        for action in actions {
            if !self.act(n, action) {
                return;
            }
        }
        let process = self.nodes[n].process.as_mut().expect("it did not exit");
        let late = std::mem::take(&mut process.requests);
        for (purpose, request) in requests.into_iter().chain(late) {
            self.send(n, purpose, request);
        }
        let process = self.nodes[n].process.as_ref().expect("it did not exit");
        let sleep = process.deadline().saturating_duration_since(clock);
        if !sleep.is_zero() {
            self.nodes[n].steps.1 = 0;
        } else if self.nodes[n].steps.0 == self.now {
            self.nodes[n].steps.1 += 1;
        } else {
            self.nodes[n].steps = (self.now, self.nodes[n].steps.1 + 1);
        }
        if self.nodes[n].steps.1 > STEPS_AT_ONCE {
            self.broken("no timer stays due", format!("{name} goes round in circles"));
        }
        let lateness = self.between(0, self.scenario.busy_us);
        let at = self.now + sleep + lateness;
        self.wake_at(n, at);
    }

    /// False if the process has ended.
    fn act(&mut self, n: usize, action: Action) -> bool {
        let name = self.nodes[n].name.clone();
        let dull = matches!(
            action,
            Action::Wire(WireOp::Put(_) | WireOp::Extend(_) | WireOp::Observe)
                | Action::Ask { .. }
                | Action::Membership(_)
        );
        if self.trace.is_some() && !dull {
            self.note(|| format!("{name} -> {}", short(&action)));
        }
        match action {
            Action::Wire(op) => {
                if let Some(op) = self.altered(n, op) {
                    let wire = &mut self.nodes[n].process.as_mut().expect("it acts").wire;
                    // Of what waits it goes first, as on a node.
                    if let WireOp::Extend(_) = op {
                        wire.push_front(op);
                    } else {
                        wire.push_back(op);
                    }
                    if !std::mem::replace(&mut self.nodes[n].performing, true) {
                        let life = self.nodes[n].life;
                        let after = self.between(50, 500);
                        self.schedule(after, Event::Perform { node: n, life });
                    }
                }
            }
            Action::Announce { mac, address, .. } => {
                for frame in frames::announcement(mac, address) {
                    self.transmit(Some(n), frame);
                }
            }
            Action::Probe { mac, address, .. } => {
                self.transmit(Some(n), frames::probe(mac, address));
            }
            Action::Ask { mac, source, ask } => {
                if let Some(frame) = frames::question(mac, source, ask.address, ask.to) {
                    self.transmit(Some(n), frame);
                }
            }
            Action::Claim { mac, address, to, payload, .. } => {
                self.transmit(Some(n), frames::claim(mac, address, to, &payload));
            }
            Action::Listen(links) => self.process(n).listening = links,
            Action::StartDhcp(..)
            | Action::StopDhcp { .. }
            | Action::StartDhcp6(..)
            | Action::StopDhcp6 { .. }
            | Action::DhcpLink { .. }
            | Action::Campaign(_)
            | Action::Tell(..) => {}
            Action::Swap(key, swap) => self.process(n).swap(key, swap),
            Action::Membership(card) => {
                let wall = self.wall(n);
                self.process(n).enrol(wall, card);
            }
            Action::Record(key, record) => self.process(n).want(&key, record),
            Action::Forget(key) => self.process(n).forget(&key),
            Action::ReleaseLease => {
                let wall = self.wall(n);
                self.process(n).release(wall);
            }
            Action::Exit => {
                // What was asked of the kernel is done before the process ends.
                let at = self.kernel_time(n);
                for op in std::mem::take(&mut self.process(n).wire) {
                    self.nodes[n].kernel.perform(at, op);
                }
                self.expect_expiry(n);
                self.end_process(n, "it is done");
                self.expect_restart(n);
                return false;
            }
        }
        true
    }

    fn process(&mut self, n: usize) -> &mut Process {
        self.nodes[n].process.as_mut().expect("it acts")
    }

    /// What a broken engine would have asked for instead.
    fn altered(&mut self, n: usize, mut op: WireOp) -> Option<WireOp> {
        let node = &mut self.nodes[n];
        match (&mut op, self.sabotage) {
            (WireOp::Put(puts) | WireOp::Extend(puts), sabotage) => {
                node.set.extend(puts.iter().map(|put| put.net.addr()));
                if sabotage == Some(Sabotage::NoFence) {
                    for put in puts {
                        put.valid = Duration::from_hours(1);
                    }
                }
                Some(op)
            }
            (WireOp::Remove { net, .. }, Some(Sabotage::NoSweep)) if !node.set.contains(&net.addr()) => None,
            _ => Some(op),
        }
    }

    fn perform(&mut self, n: usize, life: u64) {
        if self.nodes[n].life != life || !self.runs(n) {
            self.nodes[n].performing &= self.nodes[n].life == life && self.nodes[n].process.is_some();
            if self.nodes[n].life == life {
                // Goes on when the process does.
                self.nodes[n].performing = false;
            }
            return;
        }
        let at = self.kernel_time(n);
        let Some(op) = self.process(n).wire.pop_front() else {
            self.nodes[n].performing = false;
            return;
        };
        let name = self.nodes[n].name.clone();
        let before = self.nodes[n].kernel.marked();
        let done = self.nodes[n].kernel.perform(at, op);
        let after = self.nodes[n].kernel.marked();
        if before != after {
            self.changed = true;
            self.note(|| format!("{name} kernel: has {after:?}"));
        }
        self.expect_expiry(n);
        if let Some(done) = done {
            self.post(n, Mail::Engine(Input::Wire(done)));
        }
        let pause = self.between(50, 500);
        self.schedule(pause, Event::Perform { node: n, life });
    }

    fn expect_expiry(&mut self, n: usize) {
        if let Some(end) = self.nodes[n].kernel.next_end() {
            let boot = self.nodes[n].boot;
            let after = end.saturating_sub(self.kernel_time(n)) + self.between(0, 300_000);
            self.schedule(after, Event::Expiry { node: n, boot });
        }
    }

    // The LAN.

    /// Whether what `from` sends reaches `to`; others than nodes are on the core switch.
    fn reaches(&self, from: Option<usize>, to: usize) -> bool {
        let sends = from.is_none_or(|from| self.nodes[from].powered && self.nodes[from].mute == 0);
        let hears = self.nodes[to].powered && self.nodes[to].deaf == 0;
        let together =
            self.splits.values().all(|group| from.is_some_and(|from| group.contains(&from)) == group.contains(&to));
        sends && hears && together
    }

    fn hear_each_other(&self, a: usize, b: usize) -> bool {
        self.reaches(Some(a), b) && self.reaches(Some(b), a)
    }

    fn transmit(&mut self, from: Option<usize>, frame: Vec<u8>) {
        let Some((header, _)) = EthernetHeader::parse(&frame) else { return };
        match from {
            Some(n) => self.learned.insert(header.source, n),
            None => self.learned.remove(&header.source),
        };
        let only = self.learned.get(&header.destination).copied();
        if header.destination == gateway() || (from.is_some() && header.destination.is_multicast()) {
            self.others_answer(from, &frame);
        }
        let frame: Rc<[u8]> = frame.into();
        for to in 0..self.nodes.len() {
            if from == Some(to) || only.is_some_and(|only| only != to) || !self.reaches(from, to) {
                continue;
            }
            if self.chance(self.scenario.loss) {
                continue;
            }
            let late = if self.chance(0.02) { self.between(0, 20_000) } else { Duration::ZERO };
            let after = self.between(20, 300) + late;
            self.schedule(after, Event::Frame { to, frame: Rc::clone(&frame) });
        }
    }

    fn arrives(&mut self, n: usize, frame: &Rc<[u8]>) {
        let node = &mut self.nodes[n];
        if !node.powered {
            return;
        }
        if node.paused > 0 {
            if node.tap.len() < TAP_QUEUE {
                node.tap.push_back(Rc::clone(frame));
            }
            return;
        }
        for reply in node.kernel.reply(frame) {
            self.transmit(Some(n), reply);
        }
        let node = &mut self.nodes[n];
        let Some(process) = &mut node.process else { return };
        let Some((header, _)) = EthernetHeader::parse(frame) else { return };
        let links: Vec<u32> = process
            .listening
            .iter()
            .filter(|(_, family)| *family == Family::V4)
            .map(|(link, _)| *link)
            .filter(|link| {
                let own = node.kernel.link(*link).and_then(|link| link.mac);
                node.kernel.lower(*link) == ETH0
                    && own.is_some_and(|own| header.destination.is_multicast() || header.destination == own)
            })
            .collect();
        for link in links {
            if let Some(heard) = frames::read(link, frame)
                && process.frames.len() < SOCKET
            {
                process.frames.push_back(Input::Heard(heard));
            }
        }
        if !process.frames.is_empty() {
            self.rouse(n);
        }
    }

    /// Hosts that are no nodes: the gateway, and whoever uses somebody's address.
    fn others_answer(&mut self, from: Option<usize>, frame: &[u8]) {
        let Some(question) = l2::arp::parse_frame(frame).map(|found| found.arp) else { return };
        // What the asker sends must get there.
        if !question.is_probe() || !from.is_some_and(|from| self.is_heard_outside(from)) {
            return;
        }
        let robbed = self.robbed.iter().any(|service| api::address(*service) == IpAddr::V4(question.target_ip));
        for (has, mac) in [(robbed, thief()), (question.target_ip == GATEWAY, gateway())] {
            if has {
                self.transmit(None, Arp::answer(&question, mac).frame(question.sender_mac).to_vec());
            }
        }
    }

    fn is_heard_outside(&self, from: usize) -> bool {
        let node = &self.nodes[from];
        node.powered && node.mute == 0 && self.splits.values().all(|group| !group.contains(&from))
    }

    // The API.

    fn reaches_api(&self, n: usize) -> bool {
        self.api_down == 0 && self.nodes[n].api_away == 0 && self.nodes[n].powered
    }

    fn send(&mut self, n: usize, purpose: Purpose, request: Request) {
        self.order += 1;
        let (id, life) = (self.order, self.nodes[n].life);
        let limit =
            self.nodes[n].process.as_ref().map_or(Duration::ZERO, |process| purpose.limit(process.attempt(&purpose)));
        self.nodes[n].waiting.insert(id, purpose);
        let after = self.between(300, 10_000);
        self.schedule(after, Event::Request { node: n, life, id, request });
        self.schedule(limit, Event::Answer { node: n, life, id, answer: Answer::Failed });
    }

    fn serve(&mut self, n: usize, life: u64, id: u64, request: &Request) {
        // A request of a process that has died meanwhile is performed all the same.
        if !self.reaches_api(n) {
            if self.api_down > 0 && self.rng.random_bool(0.5) {
                let after = self.between(100, 1_000);
                self.schedule(after, Event::Answer { node: n, life, id, answer: Answer::Failed });
            }
            return;
        }
        let latency = self.between(300, 10_000);
        if self.chance(self.scenario.refusals) {
            let answer = match self.rng.random_range(0..3) {
                0 if request.writes() => Some(Answer::Conflict),
                1 => {
                    // Performed, and nobody learns of it.
                    self.commit(request);
                    None
                }
                _ => Some(Answer::Failed),
            };
            if let Some(answer) = answer {
                self.schedule(latency, Event::Answer { node: n, life, id, answer });
            }
            return;
        }
        let name = self.nodes[n].name.clone();
        let renewal = self.api.renews(request);
        let answer = self.commit(request);
        if request.writes() && !(renewal && matches!(answer, Answer::LeaseWritten(_))) {
            self.note(|| format!("{name} API: {request}: {}", outcome(&answer)));
        }
        self.schedule(latency, Event::Answer { node: n, life, id, answer });
    }

    fn commit(&mut self, request: &Request) -> Answer {
        let (answer, change) = self.api.perform(self.now, request);
        if let Some(seen) = self.api.stolen.take() {
            self.broken("ownership is taken only from whom it may be taken", seen);
        }
        if let Some(change) = change {
            self.publish(&change);
        }
        answer
    }

    /// To all watchers, in order.
    fn publish(&mut self, change: &Change) {
        for n in 0..self.nodes.len() {
            if !self.nodes[n].connected || !self.reaches_api(n) {
                continue;
            }
            let held = self.nodes[n].stale > 0;
            let delay = self.between(500, 30_000) + if held { self.hold(n) } else { Duration::ZERO };
            let node = &mut self.nodes[n];
            node.arrives = node.arrives.max(self.now + delay) + Duration::from_micros(1);
            let (life, epoch, after) = (node.life, node.epoch, node.arrives.saturating_sub(self.now));
            self.schedule(after, Event::Watch { node: n, life, epoch, change: change.clone() });
        }
    }

    /// How long the watches of this node still stand still.
    fn hold(&self, n: usize) -> Duration {
        let holds = self.scenario.faults.iter().filter(|fault| fault.kind == Kind::Stale(n));
        holds.map(|fault| (fault.at + fault.lasts).saturating_sub(self.now)).max().unwrap_or_default()
    }

    fn disconnect(&mut self, n: usize) {
        self.nodes[n].epoch += 1;
        self.nodes[n].connected = false;
        let life = self.nodes[n].life;
        let after = self.between(10_000, 1_000_000);
        self.schedule(after, Event::List { node: n, life });
    }

    fn list(&mut self, n: usize, life: u64) {
        if self.nodes[n].life != life || self.nodes[n].process.is_none() || self.nodes[n].connected {
            return;
        }
        if !self.reaches_api(n) {
            let after = self.between(200_000, 1_500_000);
            self.schedule(after, Event::List { node: n, life });
            return;
        }
        self.nodes[n].connected = true;
        let changes = self.api.list();
        let names = self.nodes.iter().map(|node| node.name.clone()).collect();
        self.post(n, Mail::Listed(changes, names));
    }

    // Promises.

    fn broken(&mut self, promise: &'static str, seen: String) {
        let at = self.now;
        self.note(|| format!("BROKEN: {promise}: {seen}"));
        self.violation.get_or_insert(Violation { at, promise, seen });
    }

    /// Everything that can be wrong with a node is right.
    fn is_well(&self, n: usize) -> bool {
        let node = &self.nodes[n];
        self.runs(n)
            && !node.process.as_ref().is_some_and(|process| process.stopping)
            && self.reaches_api(n)
            && node.stale == 0
            && node.mute == 0
            && node.deaf == 0
            && self.splits.is_empty()
            && !self.stormy_weather()
    }

    fn stormy_weather(&self) -> bool {
        self.stormy() && (self.scenario.loss > 0.0 || self.scenario.refusals > 0.0)
    }

    /// Neither it nor what it left can be in the way.
    fn is_out(&self, n: usize) -> bool {
        !self.nodes[n].powered
    }

    fn check(&mut self) {
        if std::mem::take(&mut self.changed) {
            self.look();
        }
        let troubles = self.troubles();
        self.checks.follow(self.now, troubles);
        if let Some(found) = self.checks.broken(self.now) {
            self.broken(found.promise, found.seen);
        }
        self.check_rest();
    }

    /// Who answers for what, and who hears whom.
    fn look(&mut self) {
        for service in 0..self.scenario.services {
            let address = api::address(service);
            let now: BTreeSet<usize> = (0..self.nodes.len())
                .filter(|n| self.nodes[*n].powered && self.nodes[*n].paused == 0 && self.nodes[*n].kernel.has(address))
                .collect();
            let before = self.answering.insert(service, now.clone()).unwrap_or_default();
            if let Some(new) = now.difference(&before).next().copied()
                && self.last_answerer.insert(service, new).is_some_and(|last| last != new)
            {
                self.moves[service] += 1;
            }
            if now != before {
                self.note(|| format!("ANSWERS for {address}: {:?}", now.iter().map(|n| n + 1).collect::<Vec<_>>()));
            }
        }
        for a in 0..self.nodes.len() {
            for b in a + 1..self.nodes.len() {
                if self.hear_each_other(a, b) {
                    self.contact.entry((a, b)).or_insert(self.now);
                } else {
                    self.contact.remove(&(a, b));
                }
            }
            if !self.is_well(a) {
                self.nodes[a].well_since = self.now;
            }
        }
    }

    fn troubles(&self) -> Vec<Trouble> {
        let mut troubles = Vec::new();
        for (service, nodes) in &self.answering {
            let nodes: Vec<usize> = nodes.iter().copied().collect();
            for (index, a) in nodes.iter().enumerate() {
                for b in &nodes[index + 1..] {
                    if self.contact.contains_key(&(*a, *b)) {
                        troubles.extend(self.split(*a, *b, *service));
                    }
                }
            }
            if self.wanted.contains(service) && !self.robbed.contains(service) && self.is_missed(&nodes) {
                troubles.push(Trouble::Unanswered(*service));
            }
        }
        for n in 0..self.nodes.len() {
            if self.is_well(n) && self.has_too_much(n) {
                troubles.push(Trouble::LeftBehind(n));
            }
            for other in n + 1..self.nodes.len() {
                let leads = |n: usize| self.is_well(n) && self.nodes[n].process.as_ref().is_some_and(Process::leads);
                if leads(n) && leads(other) {
                    troubles.push(Trouble::TwoLeaders(n, other));
                }
            }
        }
        troubles
    }

    /// Whether somebody should answer and nobody does.
    fn is_missed(&self, answering: &[usize]) -> bool {
        let someone = (0..self.nodes.len()).any(|n| self.is_well(n));
        match self.scenario.mode {
            // Whatever is wrong with the others: one that is well is enough.
            ElectionMode::Node => {
                let heard = |n: &usize| self.is_heard_outside(*n) && self.nodes[*n].deaf == 0;
                someone && !answering.iter().any(heard)
            }
            // A holder of the Lease that nobody hears keeps it.
            ElectionMode::Global | ElectionMode::Service => {
                let all = (0..self.nodes.len()).all(|n| self.is_well(n) || self.is_out(n));
                someone && all && answering.is_empty()
            }
        }
    }

    /// How bad it is that these two, who hear each other, both answer.
    fn split(&self, a: usize, b: usize, service: usize) -> Option<Trouble> {
        let pair = [a, b];
        let running = pair.iter().all(|n| self.runs(*n));
        let stopping = pair.iter().any(|n| self.nodes[*n].process.as_ref().is_some_and(|process| process.stopping));
        // What a process left behind for its successor stays until that one has come.
        if pair.iter().any(|n| self.nodes[*n].process.is_none() && self.left_for_successor(*n)) {
            return None;
        }
        match self.scenario.mode {
            ElectionMode::Node if running && !stopping && !self.stormy_weather() => Some(Trouble::Split(a, b, service)),
            ElectionMode::Node => Some(Trouble::SlowSplit(a, b, service)),
            // A node that does not reach the API learns only from one burst of announcements that it has lost.
            ElectionMode::Global | ElectionMode::Service => pair
                .iter()
                .all(|n| {
                    let node = &self.nodes[*n];
                    node.process.is_none() || self.reaches_api(*n) && node.stale == 0 && self.runs(*n)
                })
                .then_some(Trouble::Split(a, b, service))
                .filter(|_| !stopping && !self.stormy_weather()),
        }
    }

    /// It was asked to stop, found no successor, and has left its addresses for the next process.
    fn left_for_successor(&self, n: usize) -> bool {
        self.nodes[n].kernel.network(self.kernel_time(n)).addresses.iter().any(
            |address| matches!(address.valid, AddressLifetime::For(left) if left > Duration::from_secs(20) && self.sabotage != Some(Sabotage::NoFence)),
        )
    }

    /// An address of a Service that is gone.
    fn has_too_much(&self, n: usize) -> bool {
        let wanted: BTreeSet<IpAddr> = self.wanted.iter().map(|service| api::address(*service)).collect();
        self.nodes[n]
            .kernel
            .network(self.kernel_time(n))
            .addresses
            .iter()
            .any(|address| address.is_ours() && !wanted.contains(&address.net.addr()))
    }

    fn check_rest(&mut self) {
        let limit = 2
            + 3 * u64::try_from(self.scenario.faults.len()).unwrap_or(0)
            + if self.scenario.loss > 0.0 || self.scenario.refusals > 0.0 { 6 } else { 0 };
        if let Some(service) = self.moves.iter().position(|moves| *moves > limit) {
            self.broken(
                "an address does not flap",
                format!("{} moved {} times", api::address(service), self.moves[service]),
            );
        }
        // The last seconds before the Services are deleted: nothing moves and nothing is written.
        let rest = DELETION.saturating_sub(Duration::from_secs(10));
        if self.now < rest || self.now >= DELETION {
            return;
        }
        let state = self.api.service_writes + self.moves.iter().sum::<u64>();
        match self.writes_at_rest {
            None => {
                self.writes_at_rest = Some(state);
                for service in 0..self.scenario.services {
                    let nodes = self.answering[&service].len();
                    if nodes != 1 {
                        self.broken(
                            "when all is well, one node answers for each address",
                            format!("{nodes} answer for {}", api::address(service)),
                        );
                    }
                }
            }
            Some(before) if before != state => {
                self.broken(
                    "when all is well, nothing is written and nothing moves",
                    format!("{} changes", state - before),
                );
            }
            Some(_) => {}
        }
    }
}

fn gateway() -> Mac {
    Mac::new([2, 0, 0, 0, 0xaa, 1])
}

fn thief() -> Mac {
    Mac::new([2, 0, 0, 0, 0xbb, 1])
}

fn describe(input: &Input) -> String {
    match input {
        Input::Service(key, Some(view)) => {
            format!("Service {key} vipHost {:?} status {:?}", view.published.vip_host, view.published.ingress.len())
        }
        other => format!("{other:?}"),
    }
}

fn short(action: &Action) -> String {
    match action {
        Action::Record(key, record) => {
            let ingress = record.ingress.as_ref().map(|all| all.iter().map(|(ip, _)| *ip).collect::<Vec<_>>());
            format!("Record on {key}: vipHost {}, ingress {ingress:?}", record.vip_host)
        }
        Action::Tell(key, tell) => format!("Tell {key} {}: {}", tell.reason, tell.text),
        Action::Announce { address, .. } => format!("Announce {address}"),
        Action::Probe { address, .. } => format!("Probe {address}"),
        other => format!("{other:?}"),
    }
}

fn outcome(answer: &Answer) -> &'static str {
    match answer {
        Answer::Lease(_) | Answer::Service(Some(_)) | Answer::Member(_) => "ok",
        Answer::LeaseWritten(_) => "written",
        Answer::Service(None) => "not found",
        Answer::Conflict => "409",
        Answer::Failed => "failed",
    }
}
