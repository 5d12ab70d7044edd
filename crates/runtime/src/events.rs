//! Kubernetes Events as client-go writes them: `v1` Events (the charts grant no `events.k8s.io`), written in the
//! background.
//!
//! No program waits for an Event, and nothing depends on one. The number of waiting Events is limited, Normal Events
//! are written at a limited rate, Warnings at once. A missing right is logged once.

mod correlator;
mod waiting;
mod writer;

use std::sync::Arc;

use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use tokio::sync::mpsc;

use correlator::{Correlator, Write};

/// Capacity of the channel to the writer; further Events are dropped (the number is client-go's).
const BUFFER: usize = 1000;

/// Reports Events for one component. Cheap to clone; [`Recorder::for_component`] gives another source over the same
/// writer.
#[derive(Debug, Clone)]
pub struct Recorder {
    component: Arc<str>,
    sender: mpsc::Sender<Entry>,
}

/// One Event to report.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    /// `source.component`.
    pub component: Arc<str>,
    /// The object that the Event is about.
    pub object: ObjectReference,
    /// Normal or Warning.
    pub kind: EventKind,
    /// The reason, a short word in CamelCase, for programs.
    pub reason: String,
    /// The message, for users.
    pub message: String,
}

/// Refers to an object of API version `v1`, for an Event about it. With the UID the Event is found from the object.
pub fn reference(kind: &str, namespace: Option<&str>, name: &str, uid: Option<String>) -> ObjectReference {
    ObjectReference {
        api_version: Some("v1".into()),
        kind: Some(kind.into()),
        namespace: namespace.map(Into::into),
        name: Some(name.into()),
        uid,
        ..ObjectReference::default()
    }
}

/// Type of an Event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EventKind {
    /// Information.
    Normal,
    /// The user should look at the object.
    Warning,
}

impl EventKind {
    /// The value of the `type` field.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Normal => "Normal",
            Self::Warning => "Warning",
        }
    }
}

impl Recorder {
    /// A recorder, and the task that writes its Events as long as a clone of the recorder exists.
    pub fn new(client: Client, component: &str) -> (Self, impl Future<Output = ()> + Send + 'static) {
        let (recorder, entries) = Self::to_channel(component);
        (recorder, writer::run(client, entries))
    }

    /// A recorder whose Events go to a channel, for tests.
    pub fn to_channel(component: &str) -> (Self, mpsc::Receiver<Entry>) {
        let (sender, entries) = mpsc::channel(BUFFER);
        (Self { component: component.into(), sender }, entries)
    }

    /// The same writer with another source component.
    pub fn for_component(&self, component: &str) -> Self {
        Self { component: component.into(), sender: self.sender.clone() }
    }

    /// Reports a Normal Event.
    pub fn normal(&self, object: &ObjectReference, reason: &str, message: &str) {
        self.record(object, EventKind::Normal, reason, message);
    }

    /// Reports a Warning Event.
    pub fn warning(&self, object: &ObjectReference, reason: &str, message: &str) {
        self.record(object, EventKind::Warning, reason, message);
    }

    /// Reports an Event. Never blocks.
    pub fn record(&self, object: &ObjectReference, kind: EventKind, reason: &str, message: &str) {
        let entry = Entry {
            component: Arc::clone(&self.component),
            object: object.clone(),
            kind,
            reason: reason.to_owned(),
            message: truncated(message),
        };
        tracing::debug!(kind = kind.as_str(), reason, object = ?object.name, text = message, "an Event is reported");
        if self.sender.try_send(entry).is_err() {
            tracing::debug!(reason, "the buffer of Events is full or closed; one Event was dropped");
        }
    }
}

/// The API server rejects longer messages.
const LONGEST_MESSAGE: usize = 1024;

fn truncated(message: &str) -> String {
    if message.len() <= LONGEST_MESSAGE {
        return message.to_owned();
    }
    let mut end = LONGEST_MESSAGE - '…'.len_utf8();
    while !message.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}…", &message[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_full_buffer_drops_instead_of_blocking() {
        let (recorder, mut entries) = Recorder::to_channel("test");
        for _ in 0..=BUFFER {
            recorder.normal(&ObjectReference::default(), "Reason", "message");
        }
        let mut count = 0;
        while entries.try_recv().is_ok() {
            count += 1;
        }
        assert_eq!(count, BUFFER);
    }

    #[test]
    fn a_message_that_the_api_server_would_refuse_is_cut_at_a_character() {
        let cut = truncated(&"ä".repeat(600));
        assert!(cut.len() <= LONGEST_MESSAGE && cut.ends_with("ä…"));
        assert_eq!(truncated("short"), "short");
    }
}
