//! Decides when garbage may be deleted. Pure: the clock is an argument.

use std::collections::BTreeMap;
use std::time::Instant;

use super::list::{Garbage, Kind};
use crate::config::GarbageConfig;
use crate::load_balancers::booking::is_booked;
use crate::load_balancers::view::LbView;

/// Remembers since when each object has been garbage.
#[derive(Debug)]
pub struct Sweep {
    settings: GarbageConfig,
    since: BTreeMap<String, Instant>,
    trouble: Instant,
}

impl Sweep {
    /// Starts with `now`: nothing is garbage yet, and the settling time begins.
    pub fn new(settings: GarbageConfig, now: Instant) -> Self {
        Self { settings, since: BTreeMap::new(), trouble: now }
    }

    /// Records that an API does not answer as it should, as during an upgrade of the host. All observations so far
    /// become void.
    pub fn trouble(&mut self, now: Instant) {
        self.trouble = now;
        self.since.clear();
    }

    /// Whether there was no trouble for the settling time. Before, a view may show the past, or only a part.
    pub fn is_settled(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.trouble) >= self.settings.pace.settled
    }

    /// The objects that have been garbage for the whole grace period without trouble, are proven to belong to this
    /// cluster, and can be deleted without a leak.
    pub fn due<'a>(&mut self, now: Instant, garbage: &'a [Garbage]) -> Vec<&'a Garbage> {
        self.since.retain(|uid, _| garbage.iter().any(|garbage| garbage.lb.uid == *uid));
        for garbage in garbage {
            self.since.entry(garbage.lb.uid.clone()).or_insert(now);
        }
        if !self.is_settled(now) {
            return Vec::new();
        }
        let old =
            |garbage: &&Garbage| now.saturating_duration_since(self.since[&garbage.lb.uid]) >= self.settings.grace;
        garbage
            .iter()
            .filter(|garbage| garbage.kind == Kind::Ours)
            .filter(old)
            .filter(|garbage| is_booked(&garbage.lb, self.settings.grace))
            .collect()
    }
}

/// What is told of an object that was deleted.
pub fn text_of_deletion(namespace: &str, lb: &LbView) -> String {
    let leak = if lb.keeps_booking() {
        "; it had no spec.ipam, so Harvester may keep its address booked: see status.allocated of the IPPools"
    } else {
        ""
    };
    format!("deleted load balancer {namespace}/{} on Harvester, which no Service has{leak}", lb.name)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::super::super::load_balancers::build::lb;
    use super::*;
    use crate::config::GarbageMode;

    const GRACE: Duration = Duration::from_hours(1);

    fn after(grace: Duration) -> GarbageConfig {
        GarbageConfig::new(GarbageMode::Delete, grace)
    }

    fn settled() -> Duration {
        after(GRACE).pace.settled
    }

    fn garbage(kind: Kind) -> Garbage {
        Garbage { lb: Arc::new(lb("x").ready("10.0.0.1").done()), kind, service: None }
    }

    #[test]
    fn garbage_is_deleted_after_the_grace_period_if_it_is_proven_to_be_ours() {
        let start = Instant::now();
        for (kind, expected) in [(Kind::Ours, 1), (Kind::Suspected, 0)] {
            let mut sweep = Sweep::new(after(GRACE), start);
            let found = [garbage(kind)];
            assert_eq!(sweep.due(start, &found).len(), 0);
            assert_eq!(sweep.due(start + GRACE.mul_f64(0.9), &found).len(), 0);
            assert_eq!(sweep.due(start + GRACE, &found).len(), expected, "{kind:?}");
        }
    }

    #[test]
    fn trouble_and_a_service_that_came_back_begin_the_grace_period_anew() {
        let start = Instant::now();
        let found = [garbage(Kind::Ours)];
        let mut sweep = Sweep::new(after(GRACE), start);
        sweep.due(start, &found);
        sweep.trouble(start + GRACE);
        assert_eq!(sweep.due(start + GRACE + settled(), &found).len(), 0);
        let mut sweep = Sweep::new(after(GRACE), start);
        sweep.due(start, &found);
        sweep.due(start + GRACE / 2, &[]);
        assert_eq!(sweep.due(start + GRACE, &found).len(), 0, "it was needed meanwhile");
    }

    #[test]
    fn nothing_is_deleted_soon_after_a_start_however_short_the_grace_period_is() {
        let start = Instant::now();
        let mut sweep = Sweep::new(after(Duration::ZERO), start);
        assert_eq!(sweep.due(start, &[garbage(Kind::Ours)]).len(), 0);
        assert_eq!(sweep.due(start + settled(), &[garbage(Kind::Ours)]).len(), 1);
    }

    #[test]
    fn an_object_that_the_host_is_booking_for_is_left_until_that_cannot_leak() {
        let start = Instant::now();
        let booking = lb("x").not_ready("fail to reserve 10.0.0.1 into edge").done();
        let found = [Garbage { lb: Arc::new(booking), kind: Kind::Ours, service: None }];
        let mut sweep = Sweep::new(after(GRACE), start);
        sweep.due(start, &found);
        assert_eq!(sweep.due(start + GRACE, &found).len(), 0);
    }
    /// Harvester does not release its address, and would not later either.
    #[test]
    fn an_object_without_a_mode_is_deleted_and_its_address_told_of() {
        let start = Instant::now();
        let lb = LbView { ipam: None, booked_pool: Some("edge".into()), ..lb("x").ready("10.0.0.1").done() };
        let text = text_of_deletion("guests", &lb);
        assert!(text.contains("guests/x") && text.contains("no spec.ipam"), "{text}");
        let found = [Garbage { lb: Arc::new(lb), kind: Kind::Ours, service: None }];
        let mut sweep = Sweep::new(after(GRACE), start);
        sweep.due(start, &found);
        assert_eq!(sweep.due(start + GRACE, &found).len(), 1);
    }
}
