//! One run: everything that happens, in the order of one virtual clock. What each part does is in the modules below.
//!
//! | module | |
//! | --- | --- |
//! | [`node`] | a node: kernel, process, clocks, and what is wrong with it |
//! | [`queue`] | what is still to happen |
//! | [`faults`] | faults begin and end |
//! | [`users`] | Services come and go, endpoints move, others use the API |
//! | [`run_process`] | a process wakes, is fed, and what it says is done |
//! | [`lan`] | frames |
//! | [`clients`] | hosts that ask for the addresses |
//! | [`dhcp`] | the DHCP server |
//! | [`requests`] | requests to the API, answers, watches |
//! | [`judge`] | what users were promised |

mod clients;
mod dhcp;
mod faults;
mod judge;
mod lan;
mod node;
mod queue;
mod requests;
mod run_process;
mod users;

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use announcer_core::ownership::node::NodeFacts;
use announcer_core::view::ServiceKey;
use clients::Clients;
use dhcp::{Dhcp, Refusal};
use jiff::Timestamp;
use judge::Judge;
use l2_types::Mac;
use node::Node;
use queue::Queue;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use crate::api::{Api, ApiAnswer, Change, Request};
use crate::checks::Violation;
use crate::kernel::Lan;
use crate::sabotage::Sabotage;
use crate::scenario::{Scenario, WARM_UP};

/// An event at its time. An event for a former process, or for a former boot of a node, has no effect.
#[derive(Debug)]
enum Event {
    /// A fault.
    Begins(usize),
    Ends(usize),
    /// Frames and requests begin to be lost, or cease to be.
    Weather,
    /// The passing of time alone changes what is promised: it is judged again.
    Look,
    Starts {
        node: usize,
        boot: u64,
    },
    Wake {
        node: usize,
        life: u64,
    },
    /// An address comes to its end.
    Expiry {
        node: usize,
        boot: u64,
    },
    /// The kernel does what waits.
    Perform {
        node: usize,
        life: u64,
    },
    Frame {
        to: usize,
        lan: Lan,
        frame: Rc<[u8]>,
    },
    /// The DHCP server answers; perhaps it takes an address away.
    FromServer {
        frame: Vec<u8>,
        refused: Option<Refusal>,
    },
    Request {
        node: usize,
        life: u64,
        id: u64,
        request: Box<Request>,
    },
    Answer {
        node: usize,
        life: u64,
        id: u64,
        answer: ApiAnswer,
    },
    Watch {
        node: usize,
        life: u64,
        epoch: u64,
        change: Change,
    },
    /// A watch begins anew.
    List {
        node: usize,
        life: u64,
    },
    /// The election's own watch is back; it waits longer than the others.
    LeaseWatch {
        node: usize,
        life: u64,
        epoch: u64,
    },
    /// The grace period of a pod is over.
    Deadline {
        node: usize,
        life: u64,
    },
    /// A host that uses somebody's address says so again.
    Rob {
        service: usize,
        fault: usize,
    },
    /// A Node is not ready any more, or again.
    Ready {
        node: usize,
        begins: bool,
    },
    /// A kube-vip renews its Lease.
    KubeVip {
        fault: usize,
    },
    /// Clients ask for every address.
    ClientsAsk,
    /// All Services are deleted.
    Delete,
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
    /// The longest that each kind of trouble has lasted.
    pub longest: BTreeMap<&'static str, Duration>,
}

/// See the module.
struct World<'a> {
    scenario: &'a Scenario,
    sabotage: Option<Sabotage>,
    rng: SmallRng,
    origin: Instant,
    wall: Timestamp,
    now: Duration,
    queue: Queue<Event>,
    order: u64,
    nodes: Vec<Node>,
    api: Api,
    api_down: u32,
    /// How much longer each request takes.
    api_late: Duration,
    /// Node groups that are cut off from the rest of one LAN, or of all LANs, by the number of the fault.
    splits: BTreeMap<usize, (Option<Lan>, BTreeSet<usize>)>,
    /// Services whose addresses another host uses.
    robbed: BTreeSet<usize>,
    /// Services whose addresses another host uses that answers questions and announces nothing.
    duplicated: BTreeSet<usize>,
    /// Routers that answer for everybody, and clusters whose nodes do.
    proxies: u32,
    ipvs: u32,
    /// Fabrics that answer for everybody, and which MAC they saw with which address last.
    fabrics: u32,
    fabric_saw: BTreeMap<Ipv4Addr, Mac>,
    /// Pairs of nodes that do not hear each other.
    apart: Vec<(usize, usize)>,
    /// Until then no address moves because of a Node that is not ready: many were not ready at the same time.
    storm_until: Duration,
    /// Since when a host answers for the address of a Service.
    strange_since: BTreeMap<usize, Duration>,
    /// When each Service was last created while no node had its address.
    made: Vec<Duration>,
    /// Until when the former use of an address by another host may still have effects, by Service.
    conflicts: BTreeMap<usize, Duration>,
    /// How often each Service was made.
    generation: Vec<u32>,
    wanted: BTreeSet<usize>,
    endpoints: Vec<BTreeSet<usize>>,
    kube_vips: u32,
    /// Until when the Lease of a kube-vip is honoured at most.
    kube_vip: Option<Duration>,
    dhcp: Dhcp,
    /// When a node has handed a Service over last.
    handed: BTreeMap<(usize, ServiceKey), Duration>,
    /// Where the switches of each side of a LAN have seen each unicast MAC last.
    learned: BTreeMap<(Lan, lan::Side, Mac), usize>,
    /// How often that has changed.
    learnings: u64,
    clients: Clients,
    judge: Judge,
    trace: Option<Vec<String>>,
    events: u64,
}

/// Runs a scenario to its end, or to the first broken promise.
pub fn run(scenario: &Scenario, sabotage: Option<Sabotage>, trace: bool) -> Outcome {
    let mut world = World::new(scenario, sabotage, trace);
    world.begin();
    while world.judge.violation.is_none() {
        let Some((at, event)) = world.queue.pop() else { break };
        if at > scenario.end {
            break;
        }
        world.now = at;
        world.events += 1;
        world.happens(event);
        world.check();
    }
    world.check_end();
    Outcome {
        moves: world.judge.moves.iter().sum(),
        longest: world.judge.checks.longest(),
        violation: world.judge.violation,
        trace: world.trace.unwrap_or_default(),
        events: world.events,
    }
}

impl<'a> World<'a> {
    fn new(scenario: &'a Scenario, sabotage: Option<Sabotage>, trace: bool) -> Self {
        let judge = Judge::new(scenario);
        Self {
            scenario,
            sabotage,
            rng: SmallRng::seed_from_u64(scenario.seed),
            // Clocks of nodes never go back beyond it.
            origin: Instant::now() + Duration::from_hours(1),
            wall: "2026-01-01T00:00:00Z".parse().expect("a timestamp"),
            now: Duration::ZERO,
            queue: Queue::default(),
            order: 0,
            nodes: (0..scenario.nodes).map(|n| Node::new(n, scenario.nics)).collect(),
            api: Api::new(sabotage == Some(Sabotage::NoCompareAndSwap)),
            api_down: 0,
            api_late: Duration::ZERO,
            splits: BTreeMap::new(),
            robbed: BTreeSet::new(),
            duplicated: BTreeSet::new(),
            proxies: 0,
            ipvs: 0,
            fabrics: 0,
            fabric_saw: BTreeMap::new(),
            apart: Vec::new(),
            storm_until: Duration::ZERO,
            strange_since: BTreeMap::new(),
            made: vec![Duration::ZERO; scenario.services.len()],
            conflicts: BTreeMap::new(),
            generation: vec![0; scenario.services.len()],
            wanted: BTreeSet::new(),
            endpoints: scenario.services.iter().map(|wish| wish.local.clone().unwrap_or_default()).collect(),
            kube_vips: 0,
            kube_vip: None,
            dhcp: Dhcp::new(scenario),
            handed: BTreeMap::new(),
            learned: BTreeMap::new(),
            learnings: 0,
            clients: Clients::new(scenario, judge.moves.len()),
            judge,
            trace: trace.then(Vec::new),
            events: 0,
        }
    }

    fn begin(&mut self) {
        for node in 0..self.nodes.len() {
            let host = self.scenario.hosts.get(node).map(|host| format!("host-{host}"));
            let uid = format!("uid-{}", self.nodes[node].name);
            let facts = NodeFacts { uid, ready: true, host, ..NodeFacts::default() };
            self.api.note(Change::Node(self.nodes[node].name.clone(), facts));
            let after = Duration::from_millis(self.rng.random_range(0..3000));
            self.schedule(after, Event::Starts { node, boot: 0 });
        }
        for service in 0..self.scenario.services.len() {
            self.create(service);
            self.tell_endpoints(service);
        }
        for (index, fault) in self.scenario.faults.iter().enumerate() {
            self.schedule(fault.at, Event::Begins(index));
            self.schedule(fault.end(), Event::Ends(index));
        }
        for at in [WARM_UP, self.scenario.calm] {
            self.schedule(at, Event::Weather);
        }
        self.schedule(self.scenario.deletion, Event::Delete);
        self.schedule(Duration::ZERO, Event::ClientsAsk);
    }

    fn schedule(&mut self, after: Duration, event: Event) {
        self.order += 1;
        self.queue.push(self.now + after, self.order, event);
    }

    fn note(&mut self, text: impl FnOnce() -> String) {
        if let Some(trace) = &mut self.trace {
            trace.push(format!("{:>11.6} {}", self.now.as_secs_f64(), text()));
        }
    }

    fn note_of(&mut self, n: usize, text: impl FnOnce() -> String) {
        if let Some(trace) = &mut self.trace {
            trace.push(format!("{:>11.6} {} {}", self.now.as_secs_f64(), self.nodes[n].name, text()));
        }
    }

    fn between(&mut self, low_us: u64, high_us: u64) -> Duration {
        Duration::from_micros(self.rng.random_range(low_us..=high_us))
    }

    /// Between warm-up and calm things are lost and refused.
    fn stormy(&self) -> bool {
        self.now >= WARM_UP && self.now < self.scenario.calm
    }

    fn chance(&mut self, of: f64) -> bool {
        of > 0.0 && self.stormy() && self.rng.random_bool(of)
    }

    fn happens(&mut self, event: Event) {
        match event {
            Event::Begins(fault) => self.begins(fault),
            Event::Ends(fault) => self.ends(fault),
            Event::Weather | Event::Look => self.judge.changed = true,
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
            Event::Expiry { node, boot } => self.expire(node, boot),
            Event::Perform { node, life } => self.perform(node, life),
            Event::Frame { to, lan, frame } => self.arrives(to, lan, &frame),
            Event::FromServer { frame, refused } => self.server_answers(frame, refused),
            Event::Request { node, life, id, request } => self.serve(node, life, id, &request),
            Event::Answer { node, life, id, answer } => self.answered(node, life, id, answer),
            Event::Watch { node, life, epoch, change } => self.watched(node, life, epoch, change),
            Event::List { node, life } => self.list(node, life),
            Event::LeaseWatch { node, life, epoch } => self.watch_lease(node, life, epoch),
            Event::Deadline { node, life } => {
                if self.nodes[node].life == life {
                    self.end_process(node, "killed after its grace period");
                    self.expect_restart(node);
                }
            }
            Event::Rob { service, fault } => self.rob(service, fault),
            Event::Ready { node, begins } => self.ready(node, begins),
            Event::KubeVip { fault } => self.renew_kube_vip(fault),
            Event::ClientsAsk => self.clients_ask(),
            Event::Delete => {
                self.judge.at_rest = None;
                for service in 0..self.scenario.services.len() {
                    self.delete(service);
                }
            }
        }
    }
}
