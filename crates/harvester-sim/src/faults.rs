//! Faults on demand: what is switched on, for one namespace or for all. Set by command line, in process, or over HTTP.

use parking_lot::Mutex;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tokio::sync::watch;

/// Key for [`FaultSwitch`]: every namespace that has no entry of its own.
pub const ALL_NAMESPACES: &str = "*";

/// What goes wrong. The default is: nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
#[allow(clippy::struct_excessive_bools)] // switches that have nothing to do with each other
pub struct Faults {
    /// A new load balancer is left alone for this long before anything is allocated, in milliseconds.
    pub allocation_delay_ms: u64,
    /// The validating webhook refuses every create of a load balancer with this text.
    pub refuse_creates: Option<String>,
    /// The webhooks answer 503: creates and updates fail, `failed calling webhook`.
    pub webhook_outage: bool,
    /// This many updates of load balancers by others meet a conflict: the object changes under their hands. Counts
    /// down.
    pub conflicts: u32,
    /// Nothing is ever allocated. A text becomes the message of `Ready=False`; the empty text means that no status is
    /// written.
    pub never_ready: Option<String>,
    /// No guest agent answers.
    pub agents_silent: bool,
    /// The webhooks take a request and never answer it: the API server gives up after its ten seconds.
    pub webhooks_hang: bool,
    /// The host forgets the bookings of the namespace's load balancers when its controllers start again, see `POST
    /// /restart`.
    pub forget_bookings: bool,
    /// This many requests to the API are answered 429. Counts down. This and all below: through `--api-bind` only.
    pub too_many_requests: u32,
    /// What `Retry-After` of those says, in seconds; at least 1.
    pub retry_after_seconds: u32,
    /// This many requests for a further page of a list are answered 410. Counts down.
    pub expired_continues: u32,
    /// The API has two caches, and the second lags behind by this much. Lists and watches use them in turn.
    /// One object is always read live.
    pub stale_seconds: u32,
    /// Watches send only bookmarks. The events are sent when the fault ends.
    pub bookmarks_only: bool,
}

/// The faults of a running stand-in.
#[derive(Debug)]
pub struct FaultSwitch {
    faults: Mutex<BTreeMap<String, Faults>>,
    changed: watch::Sender<()>,
}

impl FaultSwitch {
    /// With these faults in all namespaces.
    pub fn new(initial: Faults) -> Self {
        let faults = Mutex::new(BTreeMap::from([(ALL_NAMESPACES.to_owned(), initial)]));
        Self { faults, changed: watch::Sender::new(()) }
    }

    /// What applies to a namespace: its own entry, else the one for all.
    pub fn get(&self, namespace: &str) -> Faults {
        let faults = self.faults.lock();
        faults.get(namespace).or_else(|| faults.get(ALL_NAMESPACES)).cloned().unwrap_or_default()
    }

    /// Sets the faults of a namespace, or of all others with [`ALL_NAMESPACES`].
    pub fn set(&self, namespace: &str, faults: Faults) {
        self.faults.lock().insert(namespace.to_owned(), faults);
        self.changed.send_replace(());
    }

    /// Everything that is set.
    pub fn all(&self) -> BTreeMap<String, Faults> {
        self.faults.lock().clone()
    }

    /// Uses up one of those that count down; `false` when none is left.
    pub fn take(&self, namespace: &str, which: fn(&mut Faults) -> &mut u32) -> bool {
        let mut faults = self.faults.lock();
        let key = if faults.contains_key(namespace) { namespace } else { ALL_NAMESPACES };
        let Some(left) = faults.get_mut(key).map(which).filter(|left| **left > 0) else {
            return false;
        };
        *left -= 1;
        true
    }

    /// Tells of every later [`Self::set`].
    pub fn subscribe(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespaces_own_entry_wins_over_the_one_for_all() {
        let switch = FaultSwitch::new(Faults { conflicts: 1, ..Faults::default() });
        switch.set("a", Faults { webhook_outage: true, ..Faults::default() });
        assert!(switch.get("a").webhook_outage && !switch.get("b").webhook_outage);
        let take = |namespace| switch.take(namespace, |faults| &mut faults.conflicts);
        assert!(!take("a"));
        assert!(take("b") && !take("b"), "conflicts are used up");
    }

    #[test]
    fn a_misspelt_fault_is_refused() {
        assert!(serde_json::from_str::<Faults>(r#"{"webhookOutage": true}"#).unwrap().webhook_outage);
        assert!(serde_json::from_str::<Faults>(r#"{"webhook_outage": true}"#).is_err());
    }
}
