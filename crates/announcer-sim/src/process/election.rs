//! What `handover.rs` and `elections.rs` do in the real process, around the same [`Elector`].

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use announcer::{leader_config, lease_state};
use announcer_core::engine::Input;
use announcer_core::ownership::LeaseState;
use announcer_core::ownership::service::LeaseKey;
use announcer_core::{Config, ElectionMode};
use jiff::Timestamp;
use runtime::leader::LeaderConfig;
use runtime::leader::elector::{self, Elector, Observation};

use super::{Purpose, Requests};
use crate::api::{Answer, Request};

/// While stopping: how often the Lease is read.
const SUCCESSOR_POLL: Duration = Duration::from_millis(200);

struct Running {
    id: u64,
    elector: Elector,
    told: Option<LeaseState>,
}

struct Leaving {
    name: String,
    elector: Elector,
    retried: bool,
}

/// All elections that the process takes part in.
pub struct Elections {
    pattern: LeaderConfig,
    /// The one Lease of `global` mode; `service` mode has none.
    lock: Option<String>,
    running: BTreeMap<String, Running>,
    leaving: BTreeMap<u64, Leaving>,
    /// Wanted again while their Lease is being handed back.
    waiting: BTreeSet<LeaseKey>,
    /// A Lease was given up and may still bear our name.
    uncertain: bool,
    begun: u64,
    poll: Option<Instant>,
}

impl Elections {
    /// In `global` mode it takes part at once.
    pub fn new(now: Instant, config: &Config, namespace: &str) -> Self {
        let pattern = leader_config(config, namespace);
        let lock = LeaseKey { namespace: namespace.to_owned(), name: pattern.name.clone() };
        let mut elections = Self {
            lock: (config.election_mode == ElectionMode::Global).then(|| name(&lock)),
            pattern,
            running: BTreeMap::new(),
            leaving: BTreeMap::new(),
            waiting: BTreeSet::new(),
            uncertain: false,
            begun: 0,
            poll: None,
        };
        if elections.lock.is_some() {
            elections.begin(now, &lock);
        }
        elections
    }

    fn begin(&mut self, now: Instant, key: &LeaseKey) {
        self.begun += 1;
        let LeaseKey { namespace, name: lease } = key.clone();
        let config = LeaderConfig { namespace, name: lease, ..self.pattern.clone() };
        let running = Running { id: self.begun, elector: Elector::new(now.into(), config), told: None };
        self.running.insert(name(key), running);
    }

    /// When something is due.
    pub fn deadline(&self) -> Option<Instant> {
        let electors = self.running.values().filter_map(|running| running.elector.deadline());
        electors.map(tokio::time::Instant::into_std).chain(self.poll).min()
    }

    /// What is due.
    pub fn tick(&mut self, now: Instant, wall: Timestamp, out: &mut Requests, inputs: &mut Vec<Input>) {
        for (lease, running) in &mut self.running {
            if running.elector.deadline().is_some_and(|at| at.into_std() <= now) {
                running.step(now, wall, (lease, self.lock.is_some()), elector::Input::Tick, out, inputs);
            }
        }
        if self.poll.take_if(|at| *at <= now).is_some() {
            self.look_for_successor(out);
        }
    }

    /// The watch shows this Lease. `service` mode watches none.
    pub fn watched(
        &mut self,
        now: Instant,
        wall: Timestamp,
        lease: &str,
        seen: Observation,
        out: &mut Requests,
        inputs: &mut Vec<Input>,
    ) {
        if self.lock.as_deref() == Some(lease)
            && let Some(running) = self.running.get_mut(lease)
        {
            running.step(now, wall, (lease, true), elector::Input::Watched(Some(seen)), out, inputs);
        }
    }

    /// An election's request was answered.
    pub fn answered(
        &mut self,
        now: Instant,
        wall: Timestamp,
        id: u64,
        answer: Answer,
        out: &mut Requests,
        inputs: &mut Vec<Input>,
    ) {
        let Some((lease, running)) = self.running.iter_mut().find(|(_, running)| running.id == id) else { return };
        let input = match answer {
            Answer::Lease(seen) => elector::Input::Read(seen),
            Answer::LeaseWritten(seen) => elector::Input::Wrote(seen),
            Answer::Conflict => elector::Input::Conflict,
            Answer::Service(_) | Answer::MemberFound(_) | Answer::MemberWritten(_) | Answer::Failed => {
                elector::Input::Failed
            }
        };
        running.step(now, wall, (lease, self.lock.is_some()), input, out, inputs);
    }

    /// `service` mode: take part in these and in no others.
    pub fn campaign(
        &mut self,
        now: Instant,
        wall: Timestamp,
        wanted: &BTreeSet<LeaseKey>,
        out: &mut Requests,
    ) -> Option<Input> {
        self.uncertain = false;
        let names: BTreeMap<String, &LeaseKey> = wanted.iter().map(|key| (name(key), key)).collect();
        let left: Vec<String> = self.running.keys().filter(|lease| !names.contains_key(*lease)).cloned().collect();
        for lease in left {
            self.hand_back(wall, &lease, out);
        }
        self.waiting.clear();
        for (lease, key) in names {
            if self.leaving.values().any(|leaving| leaving.name == lease) {
                self.waiting.insert(key.clone());
            } else if !self.running.contains_key(&lease) {
                self.begin(now, key);
            }
        }
        self.all_released()
    }

    /// `global` mode: the engine wants the Lease handed back.
    pub fn release(&mut self, wall: Timestamp, out: &mut Requests) -> Vec<Input> {
        let Some(lease) = self.lock.clone() else { return Vec::new() };
        self.hand_back(wall, &lease, out);
        if self.leaving.is_empty() { self.released(out).into() } else { Vec::new() }
    }

    fn hand_back(&mut self, wall: Timestamp, lease: &str, out: &mut Requests) {
        let Some(Running { id, elector, .. }) = self.running.remove(lease) else { return };
        if let Some(action) = elector.release(wall) {
            out.push((Purpose::HandBack(id), lease_request(lease, action)));
            self.leaving.insert(id, Leaving { name: lease.to_owned(), elector, retried: false });
        } else {
            self.uncertain |= elector.may_name_us();
        }
    }

    /// A Lease was handed back, or was not.
    pub fn handed_back(
        &mut self,
        now: Instant,
        wall: Timestamp,
        id: u64,
        answer: &Answer,
        out: &mut Requests,
        inputs: &mut Vec<Input>,
    ) {
        let Some(leaving) = self.leaving.get_mut(&id) else { return };
        match answer {
            // A renewal that was on its way may have landed: read once and try again.
            Answer::Conflict if !std::mem::replace(&mut leaving.retried, true) => {
                out.push((Purpose::HandBack(id), Request::ReadLease(leaving.name.clone())));
                return;
            }
            Answer::Lease(Some(seen)) if seen.record.holder == self.pattern.identity => {
                if let Some(elector::Action::Update { record, .. }) = leaving.elector.release(wall) {
                    let request = Request::UpdateLease(leaving.name.clone(), record, seen.version.clone());
                    out.push((Purpose::HandBack(id), request));
                    return;
                }
            }
            _ => {}
        }
        self.uncertain |= !matches!(answer, Answer::LeaseWritten(_) | Answer::Lease(_));
        if let Some(leaving) = self.leaving.remove(&id)
            && let Some(again) = self.waiting.take(&key(&leaving.name))
        {
            self.begin(now, &again);
        }
        if self.lock.is_some() {
            inputs.extend(self.released(out));
        } else {
            inputs.extend(self.all_released());
        }
    }

    /// `service` mode: the engine waits for this when it is about to end.
    fn all_released(&mut self) -> Option<Input> {
        (self.running.is_empty() && self.leaving.is_empty() && self.waiting.is_empty())
            .then(|| Input::Released(!std::mem::take(&mut self.uncertain)))
    }

    fn released(&self, out: &mut Requests) -> [Input; 2] {
        self.look_for_successor(out);
        [Input::Lease(LeaseState::Other(String::new())), Input::Released(!self.uncertain)]
    }

    fn look_for_successor(&self, out: &mut Requests) {
        out.extend(self.lock.clone().map(|lock| (Purpose::Successor, Request::ReadLease(lock))));
    }

    /// The Lease was read after it had been handed back.
    pub fn successor(&mut self, now: Instant, answer: &Answer, inputs: &mut Vec<Input>) {
        let holder = match answer {
            Answer::Lease(seen) => Some(seen.as_ref().map_or("", |seen| seen.record.holder.as_str())),
            _ => None,
        };
        match holder.filter(|holder| !holder.is_empty()) {
            Some(holder) => inputs.push(Input::Successor(holder.to_owned())),
            None => self.poll = Some(now + SUCCESSOR_POLL),
        }
    }
}

impl Running {
    fn step(
        &mut self,
        now: Instant,
        wall: Timestamp,
        (lease, is_lock): (&str, bool),
        input: elector::Input,
        out: &mut Requests,
        inputs: &mut Vec<Input>,
    ) {
        let action = self.elector.step(now.into(), wall, input);
        let state = lease_state(&self.elector.leadership());
        if self.told.as_ref() != Some(&state) {
            self.told = Some(state.clone());
            inputs.push(if is_lock { Input::Lease(state) } else { Input::ServiceLease(key(lease), state) });
        }
        out.extend(action.map(|action| (Purpose::Elect(self.id), lease_request(lease, action))));
    }
}

fn name(key: &LeaseKey) -> String {
    format!("{}/{}", key.namespace, key.name)
}

fn key(name: &str) -> LeaseKey {
    let (namespace, name) = name.split_once('/').expect("it was made from both");
    LeaseKey { namespace: namespace.to_owned(), name: name.to_owned() }
}

fn lease_request(name: &str, action: elector::Action) -> Request {
    match action {
        elector::Action::Read => Request::ReadLease(name.to_owned()),
        elector::Action::Create(record) => Request::CreateLease(name.to_owned(), record),
        elector::Action::Update { record, version } => Request::UpdateLease(name.to_owned(), record, version),
    }
}
