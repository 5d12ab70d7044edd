//! What the controllers would write now, without writing it: the decisions that they make, asked once for each object.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures::StreamExt;
use serde_json::Value;

use crate::controllers::{Controller, Controllers};
use crate::provider::{Instances, LoadBalancers};
use crate::start::{Caches, Settings};
use crate::view::{NodeView, ServiceView};
use crate::{lifecycle, node, service};

/// Machines that are asked for at the same time.
const PARALLEL: usize = 8;

/// Where something would be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// The guest cluster.
    Guest,
    /// The cloud.
    Cloud,
}

/// What would be done to an object.
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
    /// As it is shown.
    pub fn word(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Update => "update",
            Self::Delete => "delete",
        }
    }
}

/// One object of one cluster.
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
    /// To which API.
    pub place: Place,
    /// What is done.
    pub verb: Verb,
    /// To what.
    pub target: Target,
    /// Why, where that does not follow from the rest.
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
pub struct Note {
    /// About what.
    pub target: Target,
    /// One word in CamelCase.
    pub reason: String,
    /// The whole story.
    pub message: String,
    /// Somebody has to do something about it.
    pub needs_user: bool,
}

/// Everything that would be done, and what would not be.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Outlook {
    /// In the order in which objects were looked at.
    pub writes: Vec<Write>,
    /// What waits, is refused, or is held.
    pub notes: Vec<Note>,
}

impl Outlook {
    /// Adds what was found elsewhere.
    pub fn extend(&mut self, other: Self) {
        self.writes.extend(other.writes);
        self.notes.extend(other.notes);
    }

    /// Adds a note.
    pub fn note(&mut self, target: Target, reason: &str, message: String, needs_user: bool) {
        self.notes.push(Note { target, reason: reason.to_owned(), message, needs_user });
    }
}

/// The first pass of each chosen controller over each object. What would come after it (the address that the cloud books for a new load
/// balancer, say) follows from answers that nobody has given yet.
pub async fn outlook(
    caches: &Caches,
    load_balancers: &dyn LoadBalancers,
    instances: &dyn Instances,
    settings: &Settings,
) -> Outlook {
    let chosen = |controllers: &Controllers, controller| controllers.has(controller);
    let mut outlook = Outlook::default();
    let mut nodes = caches.nodes.all();
    nodes.sort_by(|a, b| a.name.cmp(&b.name));
    if chosen(&settings.controllers, Controller::Node) {
        let looks = futures::stream::iter(&nodes).map(|node| node::preview(instances, node, settings));
        let found: Vec<Outlook> = looks.buffered(PARALLEL).collect().await;
        for found in found {
            outlook.extend(found);
        }
    }
    if chosen(&settings.controllers, Controller::NodeLifecycle) && instances.hold().is_none() {
        outlook.extend(lifecycle::preview(instances, &nodes).await);
    }
    if chosen(&settings.controllers, Controller::Service) && instances.hold().is_none() {
        let services: BTreeMap<_, Arc<ServiceView>> =
            caches.services.all().into_iter().map(|service| (service.key.clone(), service)).collect();
        for service in services.values() {
            outlook.extend(service::preview(load_balancers, service));
        }
    }
    outlook
}
