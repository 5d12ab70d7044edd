//! Writes records on Services: read, compare, write the object, then its status. It holds the wanted record of each
//! Service, and decides the next request, what an answer means, and when to retry.
//!
//! A machine without I/O. The caller keeps a queue in which each key waits only once and is processed by one worker at
//! a time. It calls [`RecordWriter::begin`] for the next key, sends what [`Write::next`] says, and handles the key as
//! [`RecordWriter::ended`] says.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::Value;

use crate::engine::{Record, Recorded};
use crate::record::{annotate, is_superseded, publish};
use crate::view::ServiceKey;

/// A Service as the API server returned it, with all unknown fields (decisions.md 4).
#[derive(Debug, Clone, PartialEq)]
pub struct Object {
    /// Its metadata.
    pub metadata: ObjectMeta,
    /// All other fields.
    pub data: Value,
}

/// A request.
#[derive(Debug, Clone, PartialEq)]
pub enum RecordRequest {
    /// Read the Service.
    Read,
    /// PUT the object with changed annotations.
    Annotate(Box<Object>),
    /// PUT its status.
    Publish(Box<Object>),
}

/// Answer to a request.
#[derive(Debug, Clone, PartialEq)]
pub enum RecordAnswer {
    /// The Service, also after a write; `None`: it does not exist.
    Service(Option<Box<Object>>),
    /// Another writer has changed the Service meanwhile.
    Conflict,
    /// Any other failure.
    Failed,
}

/// The next step of a write.
#[derive(Debug, Clone, PartialEq)]
pub enum RecordStep {
    /// Send this request, and feed the answer back.
    Send(RecordRequest),
    /// The write has ended.
    End(End),
}

/// Result of a write.
#[derive(Debug, Clone, PartialEq)]
pub enum End {
    /// The record is on this object.
    Written(Box<Object>),
    /// The Service does not exist any more, or is being deleted.
    Gone,
    /// The Service names another owner.
    Superseded,
    /// Another writer has changed the Service meanwhile.
    Conflict,
    /// Any other failure.
    Failed,
}

/// What the caller has to do with the key in its queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Requeue {
    /// Nothing; its failures are forgotten.
    No,
    /// Process it again at once.
    AtOnce,
    /// Process it again after its back-off.
    Later,
}

#[derive(Debug)]
struct Wanted {
    record: Record,
    /// The object after our last write, so that the status can be written without another read.
    object: Option<Object>,
}

/// The wanted records of all Services.
#[derive(Debug, Default)]
pub struct RecordWriter(BTreeMap<ServiceKey, Wanted>);

/// A write that is under way.
#[derive(Debug)]
pub struct Write {
    record: Record,
    /// The object of the last write, from which this write starts; it may be outdated.
    remembered: Option<Object>,
    began_remembered: bool,
    step: WriteStep,
}

/// How far a write has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WriteStep {
    Read,
    Annotate,
    Publish,
}

impl RecordWriter {
    /// Requests that this record is written; it replaces an earlier one. The caller adds the key to its queue.
    pub fn want(&mut self, key: ServiceKey, record: Record) {
        let object = self.0.remove(&key).and_then(|old| old.object);
        self.0.insert(key, Wanted { record, object });
    }

    /// Cancels the record of a Service. The caller forgets the key's failures.
    pub fn forget(&mut self, key: &ServiceKey) {
        self.0.remove(key);
    }

    /// How many records are wanted or kept.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether no record is wanted or kept.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Starts the write for a key. `None`: it was cancelled meanwhile, and the caller forgets the key's failures.
    pub fn begin(&mut self, key: &ServiceKey) -> Option<Write> {
        let wanted = self.0.get_mut(key)?;
        let remembered = wanted.object.take();
        let began_remembered = remembered.is_some();
        Some(Write { record: wanted.record.clone(), remembered, began_remembered, step: WriteStep::Read })
    }

    /// A write has ended. Returns the result for the engine, and what to do with the key.
    pub fn ended(&mut self, key: &ServiceKey, write: &Write, end: End) -> (Option<Recorded>, Requeue) {
        let superseded = end == End::Superseded;
        match end {
            End::Written(object) => (self.written(key, &write.record, *object), Requeue::No),
            End::Gone | End::Superseded => {
                // The engine wants another record meanwhile, for a later Service of the name or under a newer term. The
                // queue has the key again, and the result of the old record does not matter.
                if self.0.get(key).is_some_and(|wanted| wanted.record != write.record) {
                    return (None, Requeue::No);
                }
                self.0.remove(key);
                (Some(if superseded { Recorded::Superseded } else { Recorded::Gone }), Requeue::No)
            }
            End::Conflict if write.began_remembered => (None, Requeue::AtOnce),
            // The record was cancelled while it was being written: there is no retry, and the next Service of the name
            // starts without failures.
            End::Conflict | End::Failed if !self.0.contains_key(key) => (None, Requeue::No),
            End::Conflict | End::Failed => (Some(Recorded::Failed), Requeue::Later),
        }
    }

    fn written(&mut self, key: &ServiceKey, record: &Record, object: Object) -> Option<Recorded> {
        match self.0.get_mut(key) {
            // The engine wants another record meanwhile, and the queue has the key again.
            Some(wanted) if wanted.record != *record => {
                wanted.object = Some(object);
                return None;
            }
            // The engine will want the status within milliseconds.
            Some(wanted) if record.ingress.is_none() => wanted.object = Some(object),
            // The record is written; keeping a thousand of them would waste memory.
            _ => {
                self.0.remove(key);
            }
        }
        Some(Recorded::Done)
    }
}

impl Write {
    /// The record that is being written.
    pub fn record(&self) -> &Record {
        &self.record
    }

    /// The next request; the first call has no answer. `wall` is only written, never compared.
    pub fn next(&mut self, wall: Timestamp, answer: Option<RecordAnswer>) -> RecordStep {
        let object = match answer {
            None => match self.remembered.take() {
                Some(object) => Box::new(object),
                None => return RecordStep::Send(RecordRequest::Read),
            },
            Some(RecordAnswer::Service(Some(object))) => object,
            Some(RecordAnswer::Service(None)) => return RecordStep::End(End::Gone),
            Some(RecordAnswer::Conflict) => return RecordStep::End(End::Conflict),
            Some(RecordAnswer::Failed) => return RecordStep::End(End::Failed),
        };
        self.compare(wall, object)
    }

    fn compare(&mut self, wall: Timestamp, mut object: Box<Object>) -> RecordStep {
        if self.step == WriteStep::Read {
            if object.metadata.uid.as_deref() != Some(self.record.uid.0.as_str()) {
                return RecordStep::End(End::Gone);
            }
            // Its finalizers keep the object, perhaps for long, but for announcers the Service is gone. Only a lease is
            // kept until they are done.
            if object.metadata.deletion_timestamp.is_some() && !self.record.is_of_lease() {
                return RecordStep::End(End::Gone);
            }
            if is_superseded(&object.metadata, &self.record) {
                return RecordStep::End(End::Superseded);
            }
            if annotate(&mut object.metadata, &self.record) {
                self.step = WriteStep::Annotate;
                return RecordStep::Send(RecordRequest::Annotate(object));
            }
        }
        if self.step != WriteStep::Publish && publish(&mut object.data, &self.record, wall) {
            self.step = WriteStep::Publish;
            return RecordStep::Send(RecordRequest::Publish(object));
        }
        object.metadata.managed_fields = None;
        RecordStep::End(End::Written(object))
    }
}
