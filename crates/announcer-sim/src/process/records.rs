//! The queue of [`RecordWriter`], which the real process takes from `runtime`. One key is handled at a time by one
//! worker, and a failed key is handled again after its back-off.

use std::collections::BTreeMap;
use std::time::Instant;

use announcer::writer::BACKOFF;
use announcer_core::engine::{Input, Record};
use announcer_core::record_writer::{Object, RecordAnswer, RecordRequest, RecordStep, RecordWriter, Requeue, Write};
use announcer_core::view::ServiceKey;
use jiff::Timestamp;
use kube::api::DynamicObject;

use super::{Purpose, Requests};
use crate::api::{self, Request};

#[derive(Debug, Default)]
struct Key {
    /// Under way.
    write: Option<Write>,
    /// The key waits for a worker, or was added while a worker handled it.
    added: bool,
    failures: u32,
    retry: Option<Instant>,
}

/// Records that are wanted on Services.
#[derive(Debug, Default)]
pub struct Writer {
    records: RecordWriter,
    queue: BTreeMap<ServiceKey, Key>,
}

impl Writer {
    /// The engine wants this on a Service.
    pub fn want(&mut self, now: Instant, key: &ServiceKey, record: Record, out: &mut Requests) -> Vec<Input> {
        self.records.want(key.clone(), record);
        self.queue.entry(key.clone()).or_default().added = true;
        let mut inputs = Vec::new();
        self.work(now, key, out, &mut inputs);
        inputs
    }

    /// Nothing is wanted there any more.
    pub fn forget(&mut self, key: &ServiceKey) {
        self.records.forget(key);
        if let Some(key) = self.queue.get_mut(key) {
            key.failures = 0;
        }
    }

    /// When something is due.
    pub fn deadline(&self) -> Option<Instant> {
        self.queue.values().filter_map(|key| key.retry).min()
    }

    /// What is due.
    pub fn tick(&mut self, now: Instant, out: &mut Requests, inputs: &mut Vec<Input>) {
        let mut due = Vec::new();
        for (name, key) in &mut self.queue {
            if key.retry.take_if(|at| *at <= now).is_some() {
                key.added = true;
                due.push(name.clone());
            }
        }
        for key in due {
            self.work(now, &key, out, inputs);
        }
    }

    fn work(&mut self, now: Instant, name: &ServiceKey, out: &mut Requests, inputs: &mut Vec<Input>) {
        while let Some(key) = self.queue.get_mut(name).filter(|key| key.write.is_none() && key.added) {
            key.added = false;
            match self.records.begin(name) {
                Some(write) => self.go_on(now, name, write, None, out, inputs),
                None => key.failures = 0,
            }
        }
    }

    /// A request was answered.
    pub fn written(
        &mut self,
        now: Instant,
        name: &ServiceKey,
        answer: api::ApiAnswer,
        out: &mut Requests,
        inputs: &mut Vec<Input>,
    ) {
        let Some(write) = self.queue.get_mut(name).and_then(|key| key.write.take()) else { return };
        let answer = match answer {
            api::ApiAnswer::Service(found) => {
                RecordAnswer::Service(found.map(|(version, object)| Box::new(read(version, *object))))
            }
            api::ApiAnswer::Conflict => RecordAnswer::Conflict,
            _ => RecordAnswer::Failed,
        };
        self.go_on(now, name, write, Some(answer), out, inputs);
        self.work(now, name, out, inputs);
    }

    fn go_on(
        &mut self,
        now: Instant,
        name: &ServiceKey,
        mut write: Write,
        answer: Option<RecordAnswer>,
        out: &mut Requests,
        inputs: &mut Vec<Input>,
    ) {
        let Some(key) = self.queue.get_mut(name) else { return };
        match write.next(Timestamp::UNIX_EPOCH, answer) {
            RecordStep::Send(ask) => {
                out.push((Purpose::Write(name.clone()), request(name, &write, ask)));
                key.write = Some(write);
            }
            RecordStep::End(end) => {
                let (recorded, again) = self.records.ended(name, &write, end);
                match again {
                    Requeue::No => key.failures = 0,
                    Requeue::AtOnce => key.added = true,
                    Requeue::Later => {
                        key.failures += 1;
                        key.retry = Some(now + BACKOFF.delay(key.failures));
                    }
                }
                inputs.extend(recorded.map(|recorded| Input::Recorded(name.clone(), recorded)));
            }
        }
    }
}

fn read(version: u64, object: DynamicObject) -> Object {
    let DynamicObject { mut metadata, data, .. } = object;
    metadata.resource_version = Some(version.to_string());
    Object { metadata, data }
}

fn version(object: &Object) -> u64 {
    let version = object.metadata.resource_version.as_deref();
    version.and_then(|version| version.parse().ok()).expect("it was read here")
}

fn request(key: &ServiceKey, write: &Write, ask: RecordRequest) -> Request {
    match ask {
        RecordRequest::Read => Request::ReadService(key.clone()),
        RecordRequest::Annotate(object) => Request::Annotate(key.clone(), version(&object), write.record().clone()),
        RecordRequest::Publish(object) => Request::Publish(key.clone(), version(&object), write.record().clone()),
    }
}
