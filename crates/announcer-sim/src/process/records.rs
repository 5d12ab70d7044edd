//! What the writer of `record.rs` does in the real process, with the same `annotate` and `publish`.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use announcer_core::engine::{Input, Record, Recorded};
use announcer_core::record::{annotate, is_superseded, publish};
use announcer_core::view::ServiceKey;

use jiff::Timestamp;

use super::{Purpose, Requests};
use crate::api::{Answer, Request};

/// First pause after a write that failed; doubled each time.
const BACKOFF: Duration = Duration::from_millis(20);

#[derive(Debug)]
struct Job {
    record: Record,
    /// The record that the request under way is about.
    doing: Option<Record>,
    annotated: bool,
    failures: u32,
    retry: Option<Instant>,
}

/// Records that are wanted on Services.
#[derive(Debug, Default)]
pub struct Writer {
    jobs: BTreeMap<ServiceKey, Job>,
}

impl Writer {
    /// The engine wants this on a Service.
    pub fn want(&mut self, key: &ServiceKey, record: Record, out: &mut Requests) {
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
        self.write(key, out);
    }

    /// Nothing is wanted there any more.
    pub fn forget(&mut self, key: &ServiceKey) {
        self.jobs.remove(key);
    }

    /// When something is due.
    pub fn deadline(&self) -> Option<Instant> {
        self.jobs.values().filter_map(|job| job.retry).min()
    }

    /// What is due.
    pub fn tick(&mut self, now: Instant, out: &mut Requests) {
        let due: Vec<ServiceKey> = self
            .jobs
            .iter_mut()
            .filter_map(|(key, job)| job.retry.take_if(|at| *at <= now).map(|_| key.clone()))
            .collect();
        for key in due {
            self.write(&key, out);
        }
    }

    fn write(&mut self, key: &ServiceKey, out: &mut Requests) {
        let Some(job) = self.jobs.get_mut(key) else { return };
        job.doing = Some(job.record.clone());
        job.annotated = false;
        out.push((Purpose::Write(key.clone()), Request::ReadService(key.clone())));
    }

    /// A request was answered.
    pub fn written(
        &mut self,
        now: Instant,
        key: &ServiceKey,
        answer: Answer,
        out: &mut Requests,
        inputs: &mut Vec<Input>,
    ) {
        let Some(job) = self.jobs.get_mut(key) else { return };
        let Some(doing) = job.doing.clone() else { return };
        match answer {
            Answer::Service(Some((version, mut object))) if object.metadata.uid.as_deref() == Some(&doing.uid.0) => {
                let superseded = is_superseded(&object.metadata, &doing);
                let request = if superseded {
                    None
                } else if !job.annotated && annotate(&mut object.metadata, &doing) {
                    job.annotated = true;
                    Some(Request::Annotate(key.clone(), version, doing.clone()))
                } else if publish(&mut object.data, &doing, Timestamp::UNIX_EPOCH) {
                    Some(Request::Publish(key.clone(), version, doing.clone()))
                } else {
                    None
                };
                if let Some(request) = request {
                    out.push((Purpose::Write(key.clone()), request));
                    return;
                }
                job.failures = 0;
                if job.record == doing {
                    self.jobs.remove(key);
                    let recorded = if superseded { Recorded::Superseded } else { Recorded::Done };
                    inputs.push(Input::Recorded(key.clone(), recorded));
                } else {
                    self.write(key, out);
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
