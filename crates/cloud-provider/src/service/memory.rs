//! State that a pass leaves to the next one.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::reports::Reports;
use crate::damping::Damper;
use crate::own_write::OwnWrite;
use crate::view::{Conditions, ServiceView, Uid};

/// State of a Service between passes. It is lost with the process, and nothing depends on it.
#[derive(Debug, Default)]
pub(super) struct ServiceState {
    /// The last view of a pass that wanted or had a load balancer.
    pub(super) served: Option<Arc<ServiceView>>,
    pub(super) written: OwnWrite<ServiceView>,
    pub(super) reports: Reports,
    pub(super) conflicts: u32,
    /// States of the Service that were corrected repeatedly, without their resourceVersion.
    pub(super) damper: Damper<ServiceView>,
    /// The Service that was told what the deletion for the one before it waits for.
    pub(super) next: Option<Uid>,
    /// The conditions that were written, until the cache shows them.
    pub(super) shown: Option<Conditions>,
    /// After a write of conditions that the API server refused.
    pub(super) refused_conditions: Option<Rest>,
    /// When conditions that quote a failed request were written last.
    pub(super) failure_shown: Option<Instant>,
    /// The delayed condition about another node, and since when.
    pub(super) moved: Option<(String, Instant)>,
}

/// The pause after a refused write.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rest {
    until: Instant,
    pub(super) pause: Duration,
}

impl Rest {
    const FIRST: Duration = Duration::from_secs(1);
    const LONGEST: Duration = Duration::from_mins(1);

    /// The pause that begins now; after a refusal it is twice as long as the one before.
    pub(super) fn after(before: Option<Self>, now: Instant) -> Self {
        let pause = before.map_or(Self::FIRST, |before| (before.pause * 2).min(Self::LONGEST));
        Self { until: now + pause, pause }
    }

    /// How much of it is left; `None`: it is over.
    pub(super) fn left(self, now: Instant) -> Option<Duration> {
        self.until.checked_duration_since(now).filter(|left| !left.is_zero())
    }
}

impl ServiceState {
    /// A deletion that waits for the cloud keeps the entry: it has been told.
    pub(super) fn is_empty(&self) -> bool {
        self.served.is_none() && self.written.is_settled() && !self.reports.is_deleting()
    }

    /// What was written and told about a Service says nothing about the next one of its name.
    pub(super) fn is_about(&mut self, next: &Uid) {
        if self.next.as_ref() != Some(next) {
            self.next = Some(next.clone());
            self.shown = None;
            self.refused_conditions = None;
            self.failure_shown = None;
            self.reports.go_on();
        }
    }

    pub(super) fn nothing_is_left(&mut self) {
        self.served = None;
        self.reports = Reports::default();
    }
}
