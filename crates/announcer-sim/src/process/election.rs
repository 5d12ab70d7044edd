//! Sends the requests of the elections. Each election has an [`Elector`] and a [`HandingBack`]. [`Campaigns`] decides
//! about the elections of `service` mode. [`successor::Search`] watches who follows in `global` mode.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use announcer::{leader_config, lease_state};
use announcer_core::campaigns::{CampaignAct, Campaigns};
use announcer_core::engine::Input;
use announcer_core::ownership::LeaseState;
use announcer_core::ownership::service::LeaseKey;
use announcer_core::successor;
use announcer_core::{Config, ElectionMode};
use jiff::Timestamp;
use runtime::leader::LeaderConfig;
use runtime::leader::elector::{self, Elector, Observation};
use runtime::leader::hand_back::{HandBack, HandingBack, Step};

use super::{Purpose, Requests};
use crate::api::{ApiAnswer, Request};

struct Running {
    id: u64,
    elector: Elector,
    told: Option<LeaseState>,
}

/// All elections that the process takes part in.
pub struct Elections {
    pattern: LeaderConfig,
    /// The one Lease of `global` mode; `service` mode has none.
    lock: Option<LeaseKey>,
    campaigns: Campaigns,
    running: BTreeMap<LeaseKey, Running>,
    leaving: BTreeMap<u64, (LeaseKey, HandingBack)>,
    successor: Option<successor::Search>,
    begun: u64,
}

impl Elections {
    /// In `global` mode it takes part at once.
    pub fn new(now: Instant, config: &Config, namespace: &str) -> Self {
        let pattern = leader_config(config, namespace);
        let lock = LeaseKey { namespace: namespace.to_owned(), name: pattern.name.clone() };
        let mut elections = Self {
            lock: (config.election_mode == ElectionMode::Global).then_some(lock),
            pattern,
            campaigns: Campaigns::default(),
            running: BTreeMap::new(),
            leaving: BTreeMap::new(),
            successor: None,
            begun: 0,
        };
        if let Some(lock) = elections.lock.clone() {
            elections.begin(now, lock);
        }
        elections
    }

    fn begin(&mut self, now: Instant, key: LeaseKey) {
        self.begun += 1;
        let LeaseKey { namespace, name } = key.clone();
        let config = LeaderConfig { namespace, name, ..self.pattern.clone() };
        let running = Running { id: self.begun, elector: Elector::new(now.into(), config), told: None };
        self.running.insert(key, running);
    }

    /// When something is due.
    pub fn deadline(&self) -> Option<Instant> {
        let electors = self.running.values().filter_map(|running| running.elector.deadline());
        let successor = self.successor.as_ref().and_then(successor::Search::deadline);
        electors.map(tokio::time::Instant::into_std).chain(successor).min()
    }

    /// What is due.
    pub fn tick(&mut self, now: Instant, wall: Timestamp, out: &mut Requests, inputs: &mut Vec<Input>) {
        let is_lock = self.lock.is_some();
        for (lease, running) in &mut self.running {
            if running.elector.deadline().is_some_and(|at| at.into_std() <= now) {
                running.step(now, wall, (lease, is_lock), elector::Input::Tick, out, inputs);
            }
        }
        if let (Some(successor), Some(lock)) = (&mut self.successor, &self.lock)
            && successor.reads(now)
        {
            out.push((Purpose::Successor, Request::ReadLease(name(lock))));
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
        if let Some(lock) = self.lock.as_ref().filter(|lock| name(lock) == lease)
            && let Some(running) = self.running.get_mut(lock)
        {
            running.step(now, wall, (lock, true), elector::Input::Watched(Some(seen)), out, inputs);
        }
    }

    /// An election's request was answered.
    pub fn answered(
        &mut self,
        now: Instant,
        wall: Timestamp,
        id: u64,
        answer: ApiAnswer,
        out: &mut Requests,
        inputs: &mut Vec<Input>,
    ) {
        let is_lock = self.lock.is_some();
        if let Some((lease, running)) = self.running.iter_mut().find(|(_, running)| running.id == id) {
            running.step(now, wall, (lease, is_lock), heard(answer), out, inputs);
        }
    }

    /// `service` mode: take part in these and in no others.
    pub fn campaign(
        &mut self,
        now: Instant,
        wall: Timestamp,
        wanted: BTreeSet<LeaseKey>,
        out: &mut Requests,
    ) -> Vec<Input> {
        let acts = self.campaigns.want(wanted);
        self.act(now, wall, acts, out)
    }

    fn act(&mut self, now: Instant, wall: Timestamp, acts: Vec<CampaignAct>, out: &mut Requests) -> Vec<Input> {
        let mut inputs = Vec::new();
        for act in acts {
            match act {
                CampaignAct::Begin(key) => self.begin(now, key),
                CampaignAct::HandBack(key) => {
                    if let Some(left) = self.hand_back(wall, &key, out) {
                        let next = self.campaigns.handed_back(&key, left.is_confirmed());
                        inputs.extend(self.act(now, wall, next, out));
                    }
                }
                CampaignAct::Released(confirmed) => inputs.push(Input::Released(confirmed)),
            }
        }
        inputs
    }

    /// `global` mode: the engine wants the Lease handed back.
    pub fn release(&mut self, now: Instant, wall: Timestamp, out: &mut Requests) -> Vec<Input> {
        let Some(lock) = self.lock.clone() else { return Vec::new() };
        let left = self.hand_back(wall, &lock, out);
        left.map(|left| self.released(now, &left)).into_iter().flatten().collect()
    }

    /// Hands a Lease back. Returns the result if that needs no request.
    fn hand_back(&mut self, wall: Timestamp, lease: &LeaseKey, out: &mut Requests) -> Option<HandBack> {
        let Running { id, elector, .. } = self.running.remove(lease)?;
        match elector.hand_back(wall) {
            Ok((handing_back, action)) => {
                out.push((Purpose::HandBack(id), lease_request(lease, action)));
                self.leaving.insert(id, (lease.clone(), handing_back));
                None
            }
            Err(left) => Some(left),
        }
    }

    /// A request of a Lease that is being handed back was answered.
    pub fn handed_back(
        &mut self,
        now: Instant,
        wall: Timestamp,
        id: u64,
        answer: ApiAnswer,
        out: &mut Requests,
        inputs: &mut Vec<Input>,
    ) {
        let Some((lease, handing_back)) = self.leaving.get_mut(&id) else { return };
        match handing_back.step(heard(answer)) {
            Step::Send(action) => out.push((Purpose::HandBack(id), lease_request(lease, action))),
            Step::End(left) => {
                let Some((lease, _)) = self.leaving.remove(&id) else { return };
                if self.lock.is_some() {
                    inputs.extend(self.released(now, &left));
                } else {
                    let acts = self.campaigns.handed_back(&lease, left.is_confirmed());
                    if let HandBack::Taken(holder) = left {
                        inputs.push(Input::ServiceLease(lease, LeaseState::Other(holder)));
                    }
                    inputs.extend(self.act(now, wall, acts, out));
                }
            }
        }
    }

    fn released(&mut self, now: Instant, left: &HandBack) -> [Input; 2] {
        self.successor = Some(successor::Search::new(now));
        [Input::Lease(LeaseState::Other(String::new())), Input::Released(left.is_confirmed())]
    }

    /// The Lease was read after it had been handed back.
    pub fn successor(&mut self, now: Instant, answer: &ApiAnswer, inputs: &mut Vec<Input>) {
        let holder = match answer {
            ApiAnswer::Lease(Some(seen)) => Some(seen.record.holder.clone()),
            _ => None,
        };
        if let Some(successor) = &mut self.successor {
            inputs.extend(successor.answered(now, holder).map(Input::Successor));
        }
    }
}

impl Running {
    fn step(
        &mut self,
        now: Instant,
        wall: Timestamp,
        (lease, is_lock): (&LeaseKey, bool),
        input: elector::Input,
        out: &mut Requests,
        inputs: &mut Vec<Input>,
    ) {
        let action = self.elector.step(now.into(), wall, input);
        let state = lease_state(&self.elector.leadership());
        if self.told.as_ref() != Some(&state) {
            self.told = Some(state.clone());
            inputs.push(if is_lock { Input::Lease(state) } else { Input::ServiceLease(lease.clone(), state) });
        }
        out.extend(action.map(|action| (Purpose::Elect(self.id), lease_request(lease, action))));
    }
}

fn heard(answer: ApiAnswer) -> elector::Input {
    match answer {
        ApiAnswer::Lease(seen) => elector::Input::Read(seen),
        ApiAnswer::LeaseWritten(seen) => elector::Input::Wrote(seen),
        ApiAnswer::Conflict => elector::Input::Conflict,
        ApiAnswer::Service(_) | ApiAnswer::MemberFound(_) | ApiAnswer::MemberWritten(_) | ApiAnswer::Failed => {
            elector::Input::Failed
        }
    }
}

fn name(key: &LeaseKey) -> String {
    format!("{}/{}", key.namespace, key.name)
}

fn lease_request(key: &LeaseKey, action: elector::Action) -> Request {
    match action {
        elector::Action::Read => Request::ReadLease(name(key)),
        elector::Action::Create(record) => Request::CreateLease(name(key), record),
        elector::Action::Update { record, version } => Request::UpdateLease(name(key), record, version),
    }
}
