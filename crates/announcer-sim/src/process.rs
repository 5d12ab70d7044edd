//! One life of the announcer on a node: the engine and what stands beside it in the real process (election, writer of
//! Services), each fed by mail.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use announcer::engine::{Engine, Input, Record, Recorded, WireOp};
use announcer::network::Family;
use announcer::ownership::LeaseState;
use announcer::ownership::node::{Card, Member, NodeFacts, Swap, Swapped};
use announcer::record::{annotate, is_superseded, publish, seat};
use announcer::view::{ServiceKey, ServiceView};
use announcer::{Config, ElectionMode};
use jiff::Timestamp;
use runtime::leader::elector::{self, Elector};
use runtime::leader::{LeaderConfig, Leadership, OnLoss, Timing};

use crate::api::{Answer, Change, Request};

/// First pause after a write that failed; doubled each time, up to half a minute.
const BACKOFF: Duration = Duration::from_millis(20);
/// While stopping: how often the Lease is read.
const SUCCESSOR_POLL: Duration = Duration::from_millis(200);

/// What a request was sent for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Purpose {
    /// The election.
    Elect,
    /// Handing the Lease back.
    Release,
    /// Seeing who takes it.
    Successor,
    /// Writing on a Service.
    Write(ServiceKey),
    /// Changing the owner of a Service.
    Swap(u64),
    /// The membership Lease.
    Membership,
}

impl Purpose {
    /// No answer within this: the request has failed. As in the real process.
    pub fn limit(&self, attempt: u32) -> Duration {
        match self {
            Self::Swap(_) if attempt == 0 => Duration::from_millis(100),
            Self::Swap(_) => Duration::from_millis(300),
            Self::Membership => Duration::from_secs(3),
            _ => Duration::from_secs(5),
        }
    }
}

/// A change of owner under way.
#[derive(Debug)]
struct Swapping {
    key: ServiceKey,
    swap: Swap,
    attempt: u32,
}

/// The membership Lease.
#[derive(Debug, Default)]
struct Membership {
    card: Option<Card>,
    /// It was read, or written; then its version, absent if it does not exist.
    known: bool,
    version: Option<u64>,
    busy: bool,
    tries: u32,
}

/// What waits for the process.
#[derive(Debug)]
pub enum Mail {
    /// For the engine.
    Engine(Input),
    /// From the watches.
    Watch(Change),
    /// A list is complete; the names of all nodes with it.
    Listed(Vec<Change>, Vec<String>),
    /// Answer to a request.
    Answer(Purpose, Answer),
}

/// A record that is wanted on a Service.
#[derive(Debug)]
struct Job {
    record: Record,
    /// The record that the request under way is about.
    doing: Option<Record>,
    annotated: bool,
    failures: u32,
    retry: Option<Instant>,
}

/// See the module.
#[allow(clippy::struct_excessive_bools, reason = "independent facts, not the states of one machine")]
pub struct Process {
    /// The machine under test.
    pub engine: Engine,
    /// Frames that wait.
    pub frames: VecDeque<Input>,
    /// Everything else that waits.
    pub mail: VecDeque<Mail>,
    /// Requests to the kernel, performed in order.
    pub wire: VecDeque<WireOp>,
    /// What it wants to hear.
    pub listening: BTreeSet<(u32, Family)>,
    /// Requests that it sends now.
    pub requests: Vec<(Purpose, Request)>,
    known: BTreeMap<ServiceKey, ServiceView>,
    synced: bool,
    lease: String,
    identity: String,
    elector: Option<Elector>,
    told: Option<LeaseState>,
    jobs: BTreeMap<ServiceKey, Job>,
    lease_duration: Duration,
    membership: Membership,
    swaps: BTreeMap<u64, Swapping>,
    swaps_begun: u64,
    release_told: bool,
    release_retried: bool,
    successor_poll: Option<Instant>,
    /// It was told to stop.
    pub stopping: bool,
}

impl Process {
    /// A process that has just started.
    pub fn new(now: Instant, config: Config) -> Self {
        let leader = LeaderConfig {
            namespace: "kube-system".into(),
            name: config.lease.name.clone(),
            identity: config.node_name.clone(),
            component: "sim".into(),
            timing: Timing {
                lease_duration: config.lease.duration,
                renew_deadline: config.lease.renew_deadline,
                retry_period: config.lease.retry_period,
            },
            on_loss: OnLoss::KeepTrying,
            watch: true,
        };
        Self {
            lease: config.lease.name.clone(),
            identity: config.node_name.clone(),
            lease_duration: config.lease.duration,
            membership: Membership::default(),
            swaps: BTreeMap::new(),
            swaps_begun: 0,
            elector: (config.election_mode != ElectionMode::Node).then(|| Elector::new(now.into(), leader)),
            engine: Engine::new(now, config),
            frames: VecDeque::new(),
            mail: VecDeque::new(),
            wire: VecDeque::new(),
            listening: BTreeSet::new(),
            requests: Vec::new(),
            known: BTreeMap::new(),
            synced: false,
            told: None,
            jobs: BTreeMap::new(),
            release_told: false,
            release_retried: false,
            successor_poll: None,
            stopping: false,
        }
    }

    /// Whether it believes to hold the Lease, and that others honour that.
    pub fn leads(&self) -> bool {
        *self.engine.lease() == LeaseState::Held { confirmed: true }
    }

    /// When it has to be woken if nothing happens before.
    pub fn deadline(&self) -> Instant {
        let elector = self.elector.as_ref().and_then(Elector::deadline).map(tokio::time::Instant::into_std);
        let retries = self.jobs.values().filter_map(|job| job.retry);
        elector.into_iter().chain(retries).chain(self.successor_poll).fold(self.engine.deadline(), Instant::min)
    }

    /// Takes in all mail and what is due beside the engine; answers with what the engine is to be fed.
    pub fn gather(&mut self, now: Instant, wall: Timestamp) -> Vec<Input> {
        let mut inputs: Vec<Input> = self.frames.drain(..).collect();
        for mail in std::mem::take(&mut self.mail) {
            match mail {
                Mail::Engine(input) => inputs.push(input),
                Mail::Watch(change) => self.watched(now, wall, change, &mut inputs),
                Mail::Listed(changes, nodes) => self.listed(now, wall, changes, nodes, &mut inputs),
                Mail::Answer(purpose, answer) => self.answered(now, wall, purpose, answer, &mut inputs),
            }
        }
        if self.elector.as_ref().and_then(Elector::deadline).is_some_and(|at| at.into_std() <= now) {
            self.elect(now, wall, elector::Input::Tick, &mut inputs);
        }
        if self.successor_poll.take_if(|at| *at <= now).is_some() {
            self.requests.push((Purpose::Successor, Request::ReadLease(self.lease.clone())));
        }
        let due: Vec<ServiceKey> = self
            .jobs
            .iter_mut()
            .filter_map(|(key, job)| job.retry.take_if(|at| *at <= now).map(|_| key.clone()))
            .collect();
        for key in due {
            self.write(&key);
        }
        inputs
    }

    fn elect(&mut self, now: Instant, wall: Timestamp, input: elector::Input, inputs: &mut Vec<Input>) {
        let Some(elector) = &mut self.elector else { return };
        let action = elector.step(now.into(), wall, input);
        let state = match elector.leadership() {
            Leadership::Unknown => LeaseState::Unknown,
            Leadership::Following { holder } => LeaseState::Other(holder),
            Leadership::Leading { confirmed, .. } => LeaseState::Held { confirmed },
        };
        self.tell(state, inputs);
        if let Some(action) = action {
            self.requests.push((Purpose::Elect, lease_request(&self.lease, action)));
        }
    }

    fn tell(&mut self, state: LeaseState, inputs: &mut Vec<Input>) {
        if self.told.as_ref() != Some(&state) {
            self.told = Some(state.clone());
            inputs.push(Input::Lease(state));
        }
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
            Change::Lease(name, seen) if name == self.lease => {
                self.elect(now, wall, elector::Input::Watched(Some(seen)), inputs);
            }
            Change::Lease(..) => {}
            Change::Member(node, member) => inputs.push(Input::Member(node, Some(member))),
        }
    }

    fn listed(
        &mut self,
        now: Instant,
        wall: Timestamp,
        changes: Vec<Change>,
        nodes: Vec<String>,
        inputs: &mut Vec<Input>,
    ) {
        let listed: BTreeSet<&ServiceKey> = changes
            .iter()
            .filter_map(|change| match change {
                Change::Service(key, _) => Some(key),
                Change::Lease(..) | Change::Member(..) => None,
            })
            .collect();
        let gone: Vec<ServiceKey> = self.known.keys().filter(|key| !listed.contains(key)).cloned().collect();
        for key in gone {
            self.watched(now, wall, Change::Service(key, None), inputs);
        }
        for change in changes {
            self.watched(now, wall, change, inputs);
        }
        if !std::mem::replace(&mut self.synced, true) {
            inputs.push(Input::Synced);
            inputs.push(Input::MembersSynced);
            inputs.push(Input::Foreign(None));
            for node in nodes {
                let facts = NodeFacts { ready: true, shut_out: false, cordoned: false };
                inputs.push(Input::Node(node, Some(facts)));
            }
            inputs.push(Input::NodesSynced { readable: true });
            inputs.push(Input::KubeProxy(true));
        }
    }

    fn answered(&mut self, now: Instant, wall: Timestamp, purpose: Purpose, answer: Answer, inputs: &mut Vec<Input>) {
        match purpose {
            Purpose::Elect => {
                let input = match answer {
                    Answer::Lease(seen) => elector::Input::Read(seen),
                    Answer::LeaseWritten(seen) => elector::Input::Wrote(seen),
                    Answer::Conflict => elector::Input::Conflict,
                    Answer::Service(_) | Answer::Member(_) | Answer::Failed => elector::Input::Failed,
                };
                self.elect(now, wall, input, inputs);
            }
            Purpose::Release => self.released(wall, &answer, inputs),
            Purpose::Successor => self.successor(now, &answer, inputs),
            Purpose::Write(key) => self.written(now, &key, answer, inputs),
            Purpose::Swap(id) => self.swapping(id, answer, inputs),
            Purpose::Membership => self.enrolled(wall, &answer),
        }
    }

    /// The engine wants the Lease handed back.
    pub fn release(&mut self, wall: Timestamp) {
        let action = self.elector.as_ref().and_then(|elector| elector.release(wall));
        match action {
            Some(action) => self.requests.push((Purpose::Release, lease_request(&self.lease, action))),
            None => self.requests.push((Purpose::Successor, Request::ReadLease(self.lease.clone()))),
        }
    }

    fn released(&mut self, wall: Timestamp, answer: &Answer, inputs: &mut Vec<Input>) {
        match answer {
            // A renewal that was on its way may have landed: read once and try again.
            Answer::Conflict if !std::mem::replace(&mut self.release_retried, true) => {
                self.requests.push((Purpose::Release, Request::ReadLease(self.lease.clone())));
                return;
            }
            Answer::Lease(Some(seen)) if seen.record.holder == self.identity => {
                let again = self.elector.as_ref().and_then(|elector| elector.release(wall));
                if let Some(elector::Action::Update { record, .. }) = again {
                    let request = Request::UpdateLease(self.lease.clone(), record, seen.version.clone());
                    self.requests.push((Purpose::Release, request));
                    return;
                }
            }
            _ => {}
        }
        self.elector = None;
        self.tell(LeaseState::Other(String::new()), inputs);
        self.requests.push((Purpose::Successor, Request::ReadLease(self.lease.clone())));
    }

    fn successor(&mut self, now: Instant, answer: &Answer, inputs: &mut Vec<Input>) {
        self.elector = None;
        let holder = match answer {
            Answer::Lease(seen) => Some(seen.as_ref().map_or("", |seen| seen.record.holder.as_str())),
            _ => None,
        };
        if !std::mem::replace(&mut self.release_told, true) {
            inputs.push(Input::Released(holder.is_some_and(|holder| holder != self.identity)));
        }
        match holder.filter(|holder| !holder.is_empty()) {
            Some(holder) => inputs.push(Input::Successor(holder.to_owned())),
            None => self.successor_poll = Some(now + SUCCESSOR_POLL),
        }
    }

    /// `node` mode: the engine wants another owner on a Service.
    pub fn swap(&mut self, key: ServiceKey, swap: Swap) {
        self.swaps_begun += 1;
        self.requests.push((Purpose::Swap(self.swaps_begun), Request::ReadService(key.clone())));
        self.swaps.insert(self.swaps_begun, Swapping { key, swap, attempt: 0 });
    }

    /// How often a request of this purpose was tried before.
    pub fn attempt(&self, purpose: &Purpose) -> u32 {
        match purpose {
            Purpose::Swap(id) => self.swaps.get(id).map_or(0, |swapping| swapping.attempt),
            _ => 0,
        }
    }

    fn swapping(&mut self, id: u64, answer: Answer, inputs: &mut Vec<Input>) {
        let Some(mut swapping) = self.swaps.remove(&id) else { return };
        let Swapping { key, swap, .. } = &swapping;
        let swapped = match answer {
            Answer::Service(Some((version, object))) if object.metadata.uid.as_deref() == Some(&swap.uid.0) => {
                let standing = seat(&object);
                if standing.as_ref() == Some(&swap.seat) {
                    Some(Swapped::Won)
                } else if swap.may_replace(standing.as_ref()) {
                    self.requests.push((Purpose::Swap(id), Request::Sit(key.clone(), version, swap.clone())));
                    None
                } else {
                    Some(Swapped::Other(standing))
                }
            }
            Answer::Service(_) => Some(Swapped::Gone),
            _ => {
                swapping.attempt += 1;
                let tried = swapping.attempt >= 4;
                if !tried {
                    self.requests.push((Purpose::Swap(id), Request::ReadService(swapping.key.clone())));
                }
                tried.then_some(Swapped::Failed)
            }
        };
        match swapped {
            Some(swapped) => inputs.push(Input::Swapped(swapping.key, swapped)),
            None => {
                self.swaps.insert(id, swapping);
            }
        }
    }

    /// `node` mode: the engine wants its membership Lease renewed.
    pub fn enrol(&mut self, wall: Timestamp, card: Card) {
        self.membership.card = Some(card);
        if !self.membership.busy {
            self.membership.tries = 0;
            self.send_card(wall);
        }
    }

    fn send_card(&mut self, wall: Timestamp) {
        let Some(card) = &self.membership.card else { return };
        self.membership.busy = true;
        let request = if self.membership.known {
            let member = Member { renewal: wall.to_string(), duration: self.lease_duration, card: card.clone() };
            Request::WriteMember(self.identity.clone(), self.membership.version, member)
        } else {
            Request::ReadMember(self.identity.clone())
        };
        self.requests.push((Purpose::Membership, request));
    }

    fn enrolled(&mut self, wall: Timestamp, answer: &Answer) {
        self.membership.busy = false;
        match answer {
            Answer::Member(found) if !self.membership.known => {
                self.membership.known = true;
                self.membership.version = *found;
                self.send_card(wall);
            }
            Answer::Member(found) => {
                self.membership = Membership { known: true, version: *found, ..Membership::default() };
            }
            Answer::Conflict if self.membership.tries < 3 => {
                self.membership.known = false;
                self.membership.tries += 1;
                self.send_card(wall);
            }
            // The engine asks again.
            _ => self.membership = Membership::default(),
        }
    }

    /// The engine wants this on a Service.
    pub fn want(&mut self, key: &ServiceKey, record: Record) {
        if let Some(job) = self.jobs.get_mut(key) {
            job.record = record;
            if job.doing.is_some() {
                return;
            }
            job.retry = None;
        } else {
            let job = Job { record, doing: None, annotated: false, failures: 0, retry: None };
            self.jobs.insert(key.clone(), job);
        }
        self.write(key);
    }

    /// Nothing is wanted there any more.
    pub fn forget(&mut self, key: &ServiceKey) {
        self.jobs.remove(key);
    }

    fn write(&mut self, key: &ServiceKey) {
        let Some(job) = self.jobs.get_mut(key) else { return };
        job.doing = Some(job.record.clone());
        job.annotated = false;
        self.requests.push((Purpose::Write(key.clone()), Request::ReadService(key.clone())));
    }

    fn written(&mut self, now: Instant, key: &ServiceKey, answer: Answer, inputs: &mut Vec<Input>) {
        let Some(job) = self.jobs.get_mut(key) else { return };
        let Some(doing) = job.doing.clone() else { return };
        match answer {
            Answer::Service(Some((version, mut object))) if object.metadata.uid.as_deref() == Some(&doing.uid.0) => {
                let request = if is_superseded(&object, &doing) {
                    None
                } else if !job.annotated && annotate(&mut object, &doing) {
                    job.annotated = true;
                    Some(Request::Annotate(key.clone(), version, doing.clone()))
                } else if doing.ingress.as_ref().is_some_and(|ingress| publish(&mut object, ingress)) {
                    Some(Request::Publish(key.clone(), version, doing.clone()))
                } else {
                    None
                };
                if let Some(request) = request {
                    self.requests.push((Purpose::Write(key.clone()), request));
                    return;
                }
                job.failures = 0;
                if job.record == doing {
                    self.jobs.remove(key);
                    inputs.push(Input::Recorded(key.clone(), Recorded::Done));
                } else {
                    self.write(key);
                }
            }
            Answer::Service(_) => {
                self.jobs.remove(key);
                inputs.push(Input::Recorded(key.clone(), Recorded::Gone));
            }
            _ => {
                job.doing = None;
                job.retry = Some(now + BACKOFF * (1 << job.failures.min(10)));
                job.failures += 1;
                inputs.push(Input::Recorded(key.clone(), Recorded::Failed));
            }
        }
    }
}

fn lease_request(name: &str, action: elector::Action) -> Request {
    match action {
        elector::Action::Read => Request::ReadLease(name.to_owned()),
        elector::Action::Create(record) => Request::CreateLease(name.to_owned(), record),
        elector::Action::Update { record, version } => Request::UpdateLease(name.to_owned(), record, version),
    }
}
