//! Damps what is written on a Node that another writer keeps undoing: the repetitions get rarer, and the other writer
//! is reported.

use std::collections::HashMap;

use cloud_provider::damping::{Damper, undone};
use cloud_provider::node::reference;
use cloud_provider::view::NodeView;
use runtime::events::Recorder;
use tokio::time::Instant;

use super::requests::Requests;

/// By Node: the write that was made last, and how often. `S` is what the write changes.
#[derive(Debug)]
pub struct Undone<S>(HashMap<String, Damper<S>>);

impl<S> Default for Undone<S> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<S: PartialEq> Undone<S> {
    /// Whether this write has to wait.
    pub fn rests(&self, node: &str, write: &S) -> bool {
        self.0.get(node).is_some_and(|damper| damper.rest(write, Instant::now()).is_some())
    }

    /// Records the write. If another writer keeps undoing it, that is reported once.
    pub async fn written(&mut self, node: &NodeView, write: S, requests: &Requests, events: &Recorder) {
        let now = Instant::now();
        self.0.retain(|name, damper| *name == node.name || !damper.is_over(now));
        if !self.0.entry(node.name.clone()).or_default().repaired(write, now) {
            return;
        }
        let by = requests.other_writer(&node.name).await.ok().flatten();
        let text = undone("this Node", by.as_deref(), "annotations and the taint of this program");
        tracing::warn!(node = node.name, "{text}");
        events.warning(&reference(node), "UndoneByOthers", &text);
    }
}
