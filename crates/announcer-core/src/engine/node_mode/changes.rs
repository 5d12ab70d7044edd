//! Changes of owner to this node, kept until its VIPs are up and the change can be reported.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::super::Observations;
use crate::ownership::node::{Change, Swapped, Why};
use crate::view::ServiceKey;

/// The changes and their counters.
pub(in crate::engine) struct OwnerChanges {
    unreported: BTreeMap<ServiceKey, Change>,
    /// How long an owner has been silent when the detector reports it.
    silence: Duration,
    counted: BTreeMap<&'static str, u64>,
    failed_swaps: u64,
    last_gap: Option<Duration>,
}

/// A change of owner whose VIPs are up.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::engine) struct EffectiveChange {
    /// The former owner; `None`: there was none.
    pub from: Option<String>,
    /// The reason as text.
    pub why: &'static str,
    /// How long clients got no answer, including the time for the API; `None`: the former owner was not silent.
    pub gap: Option<Duration>,
}

impl OwnerChanges {
    /// Starts without changes. `silence`: see the field.
    pub fn new(silence: Duration) -> Self {
        Self { unreported: BTreeMap::new(), silence, counted: BTreeMap::new(), failed_swaps: 0, last_gap: None }
    }

    /// Adds a Service that this node has become the owner of.
    pub fn add(&mut self, change: Change) {
        *self.counted.entry(change.why).or_default() += 1;
        self.unreported.insert(change.key.clone(), change);
    }

    /// Whether this Service has come from another node while no stranger answered, and its VIPs have not been up since.
    pub fn is_from_another(&self, key: &ServiceKey) -> bool {
        let despite = [Why::DespiteAStranger.words(), Why::ThoughItRenews.words()];
        self.unreported.get(key).is_some_and(|change| change.from.is_some() && !despite.contains(&change.why))
    }

    /// The same, because that node was silent.
    pub fn is_from_the_silent(&self, key: &ServiceKey) -> bool {
        self.is_from_another(key) && self.unreported[key].silent.is_some()
    }

    /// Counts the answer to a swap.
    pub fn swapped(&mut self, swapped: &Swapped) {
        self.failed_swaps += u64::from(matches!(swapped, Swapped::Failed(_) | Swapped::Refused(_)));
    }

    /// The VIPs of this Service are up. Returns its change of owner, if that was not reported yet.
    pub fn take(&mut self, now: Instant, key: &ServiceKey) -> Option<EffectiveChange> {
        let Change { from, why, silent, .. } = self.unreported.remove(key)?;
        let gap = silent.map(|verdict| now.saturating_duration_since(verdict) + self.silence);
        self.last_gap = gap.or(self.last_gap);
        Some(EffectiveChange { from, why, gap })
    }

    /// The Service is deleted.
    pub fn forget(&mut self, key: &ServiceKey) {
        self.unreported.remove(key);
    }

    /// Adds the counters, for metrics.
    pub fn count(&self, counted: &mut Observations) {
        counted.changes.clone_from(&self.counted);
        (counted.failed_swaps, counted.last_gap) = (self.failed_swaps, self.last_gap);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_told_once_with_the_time_that_clients_had_nobody() {
        let (now, silence) = (Instant::now(), Duration::from_millis(200));
        let key = ServiceKey::new("default", "web");
        let change = |silent| Change { key: key.clone(), from: Some("node-2".into()), why: "it was silent", silent };
        let mut changes = OwnerChanges::new(silence);
        changes.add(change(Some(now)));
        let told = changes.take(now + silence, &key).unwrap();
        assert_eq!(told, EffectiveChange { from: Some("node-2".into()), why: "it was silent", gap: Some(silence * 2) });
        assert_eq!(changes.take(now, &key), None);
        changes.add(change(None));
        assert_eq!(changes.take(now, &key).unwrap().gap, None);
        changes.add(change(None));
        changes.forget(&key);
        assert_eq!(changes.take(now, &key), None);
        changes.swapped(&Swapped::Failed("away".into()));
        changes.swapped(&Swapped::Won);
        let mut counted = Observations::default();
        changes.count(&mut counted);
        assert_eq!((counted.changes["it was silent"], counted.failed_swaps), (3, 1));
        assert_eq!(counted.last_gap, Some(silence * 2), "the last one that had a gap");
    }
}
