//! One life of the announcer on a node: the engine and what stands beside it in the real process, each fed by message.
//!
//! | module | what it stands for |
//! | --- | --- |
//! | [`election`] | requests of the elections |
//! | [`membership`] | `node` mode: those of the membership Lease |
//! | [`swaps`] | `node` mode: those of changes of owner |
//! | [`records`] | those of the writer of Services, and its queue |
//! | [`clients`] | DHCP clients behind their sockets |

mod clients;
mod election;
mod membership;
mod records;
mod swaps;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use announcer_core::api_clock::ApiClock;
use announcer_core::engine::{Engine, Input};
use announcer_core::kernel_queue::KernelQueue;
use announcer_core::network::Family;
use announcer_core::ownership::LeaseState;
use announcer_core::view::{ServiceKey, ServiceView, Uid};
use announcer_core::{Config, ElectionMode};
use clients::Clients;
use election::Elections;
use jiff::Timestamp;
use membership::Membership;
use records::Writer;
use swaps::Swapper;

use crate::api::{ApiAnswer, Change, Request};

/// Namespace of all Leases but those of single Services.
const NAMESPACE: &str = "kube-system";

/// What a request was sent for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Purpose {
    /// The election with this number.
    Elect(u64),
    /// Handing its Lease back.
    HandBack(u64),
    /// Seeing who takes it.
    Successor,
    /// Writing on a Service.
    Write(ServiceKey),
    /// Changing the owner of a Service.
    Swap(u64),
    /// The membership Lease.
    Membership(u64),
}

/// What waits for the process.
#[derive(Debug)]
pub enum Message {
    /// For the engine.
    Engine(Input),
    /// From the watches.
    Watch(Change),
    /// A list is complete.
    Listed(Vec<Change>),
    /// Answer to a request.
    Answer(Purpose, ApiAnswer),
}

/// Requests that the process sends, with what for.
pub type Requests = Vec<(Purpose, Request)>;

/// See the module.
pub struct Process {
    /// The machine under test.
    pub engine: Engine,
    /// Frames that wait.
    pub frames: VecDeque<Input>,
    /// Everything else that waits.
    pub inbox: VecDeque<Message>,
    /// Requests to the kernel, performed in order.
    pub kernel_queue: KernelQueue,
    /// What it wants to hear.
    pub listening: BTreeSet<(u32, Family)>,
    /// Requests that it sends now.
    pub requests: Requests,
    /// DHCP clients.
    pub clients: Clients,
    /// Frames that they send now, and on which interface.
    pub sent: Vec<(u32, Vec<u8>)>,
    /// `node` mode: changes of owner.
    pub swapper: Swapper,
    /// `node` mode: its Lease.
    pub membership: Membership,
    /// Writes on Services.
    pub writer: Writer,
    /// Takes part in elections.
    pub elections: Elections,
    /// As the answers of the API tell it.
    pub api_clock: ApiClock,
    /// It was told to stop.
    pub stopping: bool,
    /// `node` mode: the cloud controller says that the cluster is no copy, as soon as the Leases are listed.
    pub hears_controller: bool,
    mode: ElectionMode,
    known: BTreeMap<ServiceKey, ServiceView>,
    synced: bool,
    renew_deadline: Duration,
}

impl Process {
    /// A process that has just started.
    pub fn new(now: Instant, config: Config) -> Self {
        Self {
            swapper: Swapper::default(),
            membership: Membership::new(&config),
            writer: Writer::default(),
            elections: Elections::new(now, &config, NAMESPACE),
            mode: config.election_mode,
            renew_deadline: config.lease.renew_deadline,
            engine: Engine::new(now, config),
            frames: VecDeque::new(),
            inbox: VecDeque::new(),
            kernel_queue: KernelQueue::default(),
            listening: BTreeSet::new(),
            requests: Vec::new(),
            clients: Clients::default(),
            sent: Vec::new(),
            known: BTreeMap::new(),
            synced: false,
            api_clock: ApiClock::default(),
            stopping: false,
            hears_controller: true,
        }
    }

    /// Whether it believes to hold the one Lease, and that others honour that.
    pub fn leads(&self) -> bool {
        *self.engine.lease() == LeaseState::Held { confirmed: true }
    }

    /// Which Service of this name it has seen last, if there is one.
    pub fn seen(&self, key: &ServiceKey) -> Option<&Uid> {
        self.known.get(key).map(|view| &view.uid)
    }

    /// Whether it has listed everything once.
    pub fn has_listed(&self) -> bool {
        self.synced
    }

    /// No answer within this: the request has failed. As in the real process.
    pub fn limit(&self, purpose: &Purpose) -> Duration {
        match purpose {
            Purpose::Elect(_) | Purpose::HandBack(_) => self.renew_deadline / 2,
            Purpose::Successor => announcer_core::successor::LIMIT,
            Purpose::Write(_) => Duration::from_secs(5),
            // Their machines wait for what they have patience for.
            Purpose::Swap(_) | Purpose::Membership(_) => Duration::from_secs(15),
        }
    }

    /// When it has to be woken if nothing happens before.
    pub fn wake_at(&mut self, now: Instant) -> Instant {
        let beside = [
            self.elections.deadline(),
            self.writer.deadline(),
            self.clients.deadline(),
            self.membership.deadline(),
            self.swapper.deadline(now),
        ];
        beside.into_iter().flatten().fold(self.engine.wake_at(now), Instant::min)
    }

    /// Takes in all messages and what is due beside the engine; answers with what the engine is to be fed.
    pub fn gather(&mut self, now: Instant, wall: Timestamp) -> Vec<Input> {
        let mut inputs: Vec<Input> = self.frames.drain(..).collect();
        for message in std::mem::take(&mut self.inbox) {
            match message {
                Message::Engine(input) => inputs.push(input),
                Message::Watch(change) => self.watched(now, wall, change, &mut inputs),
                Message::Listed(changes) => self.listed(now, wall, changes, &mut inputs),
                Message::Answer(purpose, answer) => self.answered(now, wall, purpose, answer, &mut inputs),
            }
        }
        self.elections.tick(now, wall, &mut self.requests, &mut inputs);
        self.writer.tick(now, &mut self.requests, &mut inputs);
        self.membership.tick(now, wall, &mut self.requests);
        inputs.extend(self.swapper.tick(now, &mut self.requests));
        self.clients.run(now, self.api_clock.earliest(now, wall), &mut self.sent, &mut inputs);
        inputs
    }

    fn watched(&mut self, now: Instant, wall: Timestamp, change: Change, inputs: &mut Vec<Input>) {
        match change {
            Change::Service(key, view) => {
                // As the cache of the real process: what has not changed is not told.
                let old = match &view {
                    Some(view) => self.known.insert(key.clone(), (**view).clone()),
                    None => self.known.remove(&key),
                };
                if old.as_ref() != view.as_deref() {
                    inputs.push(Input::Service(key, view));
                }
            }
            Change::Lease(name, seen) => {
                self.elections.watched(now, wall, &name, seen, &mut self.requests, inputs);
            }
            Change::Endpoints(key, nodes) => inputs.push(Input::Endpoints(key, Some(nodes))),
            // What only `node` mode watches.
            _ if self.mode != ElectionMode::Node => {}
            Change::Member(node, member) => inputs.push(Input::Member(node, Some(member))),
            Change::Lock(lock) => inputs.push(Input::Foreign(Some(lock))),
            Change::Node(node, facts) => inputs.push(Input::Node(node, Some(facts))),
        }
    }

    fn listed(&mut self, now: Instant, wall: Timestamp, changes: Vec<Change>, inputs: &mut Vec<Input>) {
        let listed: BTreeSet<&ServiceKey> = changes
            .iter()
            .filter_map(|change| match change {
                Change::Service(key, _) => Some(key),
                _ => None,
            })
            .collect();
        let gone: Vec<ServiceKey> = self.known.keys().filter(|key| !listed.contains(key)).cloned().collect();
        for key in gone {
            self.known.remove(&key);
            inputs.push(Input::Missing(key));
        }
        for change in changes {
            self.watched(now, wall, change, inputs);
        }
        if !std::mem::replace(&mut self.synced, true) {
            inputs.push(Input::Synced);
            if self.mode == ElectionMode::Node {
                inputs.extend([Input::MembersSynced, Input::NodesSynced { readable: true }]);
                inputs.extend(self.hears_controller.then_some(Input::SafeMode(false)));
            }
        }
    }

    fn answered(
        &mut self,
        now: Instant,
        wall: Timestamp,
        purpose: Purpose,
        answer: ApiAnswer,
        inputs: &mut Vec<Input>,
    ) {
        let out = &mut self.requests;
        match purpose {
            Purpose::Elect(id) => self.elections.answered(now, wall, id, answer, out, inputs),
            Purpose::HandBack(id) => self.elections.handed_back(now, wall, id, answer, out, inputs),
            Purpose::Successor => self.elections.successor(now, &answer, inputs),
            Purpose::Write(key) => self.writer.written(now, &key, answer, out, inputs),
            Purpose::Swap(id) => inputs.extend(self.swapper.answered(now, id, answer, out)),
            Purpose::Membership(id) => self.membership.answered(now, wall, id, &answer, out),
        }
    }
}
