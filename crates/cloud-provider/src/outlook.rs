//! The writes that the controllers would make, and the reasons for those they would not make, as values.

use serde_json::Value;

use crate::view::{NodeView, ServiceView};

/// The cluster that a write goes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// The guest cluster.
    Guest,
    /// The cloud.
    Cloud,
}

/// The kind of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verb {
    /// It is made.
    Create,
    /// It is changed.
    Update,
    /// It is deleted.
    Delete,
}

impl Verb {
    /// The verb as it is shown.
    pub fn word(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Update => "update",
            Self::Delete => "delete",
        }
    }
}

/// One object in one cluster.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Target {
    /// Kind of the object.
    pub kind: &'static str,
    /// Its namespace; empty where it has none.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

impl Target {
    /// A Service.
    pub fn service(service: &ServiceView) -> Self {
        Self { kind: "Service", namespace: service.key.namespace.clone(), name: service.key.name.clone() }
    }

    /// A Node.
    pub fn node(node: &NodeView) -> Self {
        Self { kind: "Node", namespace: String::new(), name: node.name.clone() }
    }
}

/// One request that would be sent.
#[derive(Debug, Clone, PartialEq)]
pub struct Write {
    /// The API that it is sent to.
    pub place: Place,
    /// The kind of the write.
    pub verb: Verb,
    /// The object.
    pub target: Target,
    /// The reason, if it does not follow from the rest.
    pub why: String,
    /// The patch, or the new object; null for a deletion.
    pub body: Value,
}

impl Write {
    /// A patch of an object of the guest cluster.
    pub fn patch(target: Target, body: Value) -> Self {
        Self { place: Place::Guest, verb: Verb::Update, target, why: String::new(), body }
    }
}

/// Something that would not be done, or not yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutlookNote {
    /// The object.
    pub target: Target,
    /// One word in CamelCase.
    pub reason: String,
    /// The complete message.
    pub message: String,
    /// The user has to do something.
    pub needs_user: bool,
}

/// Everything that would be done, and what would not.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Outlook {
    /// In the order in which the objects were evaluated.
    pub writes: Vec<Write>,
    /// What waits, is refused, or is on hold.
    pub notes: Vec<OutlookNote>,
}

impl Outlook {
    /// Appends another outlook.
    pub fn extend(&mut self, other: Self) {
        self.writes.extend(other.writes);
        self.notes.extend(other.notes);
    }

    /// Adds a note.
    pub fn note(&mut self, target: Target, reason: &str, message: String, needs_user: bool) {
        self.notes.push(OutlookNote { target, reason: reason.to_owned(), message, needs_user });
    }
}
