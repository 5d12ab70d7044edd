//! Writes records on Services: read, compare, write the object, then its status. What is wanted on each Service, which
//! request comes next, what an answer means, and when it is tried again.
//!
//! A machine without I/O: whoever drives it keeps a queue in which a key waits once and is worked on once at a time,
//! asks
//! [`RecordWriter::begin`] for the key whose turn it is, sends what [`Write::next`] says, and does with the key what
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

/// A Service as the API returned it, with all the fields that nobody here knows (decisions.md 4).
#[derive(Debug, Clone, PartialEq)]
pub struct Object {
    /// Its metadata.
    pub metadata: ObjectMeta,
    /// Everything else.
    pub data: Value,
}

/// A request.
#[derive(Debug, Clone, PartialEq)]
pub enum Ask {
    /// The Service as it stands.
    Read,
    /// PUT of the object, whose annotations have changed.
    Annotate(Box<Object>),
    /// PUT of its status.
    Publish(Box<Object>),
}

/// What came back.
#[derive(Debug, Clone, PartialEq)]
pub enum Answer {
    /// The Service as it stands, after a write too; or there is none of that name.
    Service(Option<Box<Object>>),
    /// Somebody else has written it meanwhile.
    Conflict,
    /// Whatever else went wrong.
    Failed,
}

/// What comes next in a write.
#[derive(Debug, Clone, PartialEq)]
pub enum Next {
    /// Send this, and feed the answer back.
    Send(Ask),
    /// It is over.
    End(End),
}

/// What came of a write.
#[derive(Debug, Clone, PartialEq)]
pub enum End {
    /// The record stands there, on this object.
    Written(Box<Object>),
    /// The Service that is meant is gone.
    Gone,
    /// Another owner stands there.
    Superseded,
    /// Somebody else has written it meanwhile.
    Conflict,
    /// Whatever else went wrong.
    Failed,
}

/// What to do with the key in the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Again {
    /// Nothing, and its failures are forgotten.
    No,
    /// It comes again at once.
    AtOnce,
    /// It comes again after its back-off.
    Later,
}

#[derive(Debug)]
struct Wanted {
    record: Record,
    /// As the API returned it after our last write, so that the status can be written without reading again.
    object: Option<Object>,
}

/// What is wanted on each Service.
#[derive(Debug, Default)]
pub struct RecordWriter(BTreeMap<ServiceKey, Wanted>);

/// One write under way.
#[derive(Debug)]
pub struct Write {
    record: Record,
    /// It begins with an object that we remembered, which may be old.
    remembered: Option<Object>,
    began_remembered: bool,
    stage: Stage,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Read,
    Annotate,
    Publish,
}

impl RecordWriter {
    /// Writes this, instead of what was wanted before. The key goes into the queue.
    pub fn want(&mut self, key: ServiceKey, record: Record) {
        let object = self.0.remove(&key).and_then(|old| old.object);
        self.0.insert(key, Wanted { record, object });
    }

    /// Writes nothing there any more. The key's failures are to be forgotten.
    pub fn forget(&mut self, key: &ServiceKey) {
        self.0.remove(key);
    }

    /// How many records are wanted or remembered.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether nothing is.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The key's turn has come. Nothing, if it was given up meanwhile: its failures are to be forgotten.
    pub fn begin(&mut self, key: &ServiceKey) -> Option<Write> {
        let wanted = self.0.get_mut(key)?;
        let remembered = wanted.object.take();
        let began_remembered = remembered.is_some();
        Some(Write { record: wanted.record.clone(), remembered, began_remembered, stage: Stage::Read })
    }

    /// A write is over: what the engine hears, and what becomes of the key.
    pub fn ended(&mut self, key: &ServiceKey, write: &Write, end: End) -> (Option<Recorded>, Again) {
        let superseded = end == End::Superseded;
        match end {
            End::Written(object) => (self.written(key, &write.record, *object), Again::No),
            End::Gone | End::Superseded => {
                // Another record has come meanwhile, for a later Service of the name or under a newer term: the queue
                // has the
                // key again, and what became of the old one is nobody's concern.
                if self.0.get(key).is_some_and(|wanted| wanted.record != write.record) {
                    return (None, Again::No);
                }
                self.0.remove(key);
                (Some(if superseded { Recorded::Superseded } else { Recorded::Gone }), Again::No)
            }
            End::Conflict if write.began_remembered => (None, Again::AtOnce),
            // Given up while it was under way: no retry, and the next Service of the name begins without failures.
            End::Conflict | End::Failed if !self.0.contains_key(key) => (None, Again::No),
            End::Conflict | End::Failed => (Some(Recorded::Failed), Again::Later),
        }
    }

    fn written(&mut self, key: &ServiceKey, record: &Record, object: Object) -> Option<Recorded> {
        match self.0.get_mut(key) {
            // Another record has come meanwhile: the queue has the key again.
            Some(wanted) if wanted.record != *record => {
                wanted.object = Some(object);
                return None;
            }
            // The status is still to come, within milliseconds.
            Some(wanted) if record.ingress.is_none() => wanted.object = Some(object),
            // It stands there: a thousand records at rest are not worth their room.
            _ => {
                self.0.remove(key);
            }
        }
        Some(Recorded::Done)
    }
}

impl Write {
    /// What is being written.
    pub fn record(&self) -> &Record {
        &self.record
    }

    /// The next request; at first without an answer. `wall` is only written, never compared.
    pub fn next(&mut self, wall: Timestamp, answer: Option<Answer>) -> Next {
        let object = match answer {
            None => match self.remembered.take() {
                Some(object) => Box::new(object),
                None => return Next::Send(Ask::Read),
            },
            Some(Answer::Service(Some(object))) => object,
            Some(Answer::Service(None)) => return Next::End(End::Gone),
            Some(Answer::Conflict) => return Next::End(End::Conflict),
            Some(Answer::Failed) => return Next::End(End::Failed),
        };
        self.compare(wall, object)
    }

    fn compare(&mut self, wall: Timestamp, mut object: Box<Object>) -> Next {
        if self.stage == Stage::Read {
            if object.metadata.uid.as_deref() != Some(self.record.uid.0.as_str()) {
                return Next::End(End::Gone);
            }
            if is_superseded(&object.metadata, &self.record) {
                return Next::End(End::Superseded);
            }
            if annotate(&mut object.metadata, &self.record) {
                self.stage = Stage::Annotate;
                return Next::Send(Ask::Annotate(object));
            }
        }
        if self.stage != Stage::Publish && publish(&mut object.data, &self.record, wall) {
            self.stage = Stage::Publish;
            return Next::Send(Ask::Publish(object));
        }
        object.metadata.managed_fields = None;
        Next::End(End::Written(object))
    }
}
