//! Damps a change of an object that another writer keeps undoing: the repetitions get rarer, and the other writer is
//! reported.

use std::collections::BTreeMap;

use cloud_provider::damping::{Damper, undone};
use tokio::time::Instant;

use super::super::desired::Change;
use super::super::wait_reason::{Wait, WaitReason};
use super::HarvesterLoadBalancers;
use super::perform::Done;

/// Objects that were changed within the last minutes.
#[derive(Debug, Default)]
pub(super) struct Undone(BTreeMap<String, Repeated>);

#[derive(Debug, Default)]
struct Repeated {
    damper: Damper<Vec<Change>>,
    /// The text about the writer that undoes the changes.
    told: Option<String>,
}

impl Undone {
    /// Records a change. Returns true if another writer keeps undoing it.
    fn changed(&mut self, name: &str, changes: &[Change], now: Instant) -> bool {
        self.0.retain(|other, repeated| other == name || !repeated.damper.is_over(now));
        self.0.entry(name.to_owned()).or_default().damper.repaired(changes.to_vec(), now)
    }
}

impl HarvesterLoadBalancers {
    /// The outcome of a change that is suspended for a while; `None` if it may be sent.
    pub(super) fn rests(&self, name: &str, changes: &[Change]) -> Option<Done> {
        let undone = self.undone.lock();
        let repeated = undone.0.get(name)?;
        let rest = repeated.damper.rest(&changes.to_vec(), Instant::now())?;
        let reason = WaitReason::Undone;
        let message = repeated.told.clone().unwrap_or_default();
        Some(Done::NotYet(Wait { reason, message, needs_user: true, retry_after: Some(rest) }))
    }

    /// Records that the object was changed.
    pub(super) async fn changed(&self, name: &str, changes: &[Change]) {
        if changes.is_empty() || !self.undone.lock().changed(name, changes, Instant::now()) {
            return;
        }
        let by = self.requests.other_writer(name).await.ok().flatten();
        let lb = format!("load balancer {}/{name} on Harvester", self.given.namespace);
        let text = undone(&lb, by.as_deref(), "its labels, annotations and status");
        tracing::warn!("{text}");
        if let Some(repeated) = self.undone.lock().0.get_mut(name) {
            repeated.told = Some(text);
        }
    }
}
