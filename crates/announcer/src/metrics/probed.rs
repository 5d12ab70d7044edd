//! Metrics of the Services that this node probes as a client.

use std::time::Duration;

use announcer_core::prober::Outcome;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use runtime::metrics::Register;

/// Buckets: in a LAN an answer takes a millisecond, and a lost frame is repeated after 300 ms.
const SECONDS: [f64; 8] = [0.001, 0.0025, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0];

/// The metrics of the probes.
#[derive(Debug)]
pub struct Probed {
    outcomes: Family<[(&'static str, &'static str); 1], Counter>,
    seconds: Histogram,
    unserved: Gauge,
}

impl Probed {
    pub(super) fn register(registry: &mut Registry) -> Self {
        Self {
            outcomes: registry.make(
                "hcp_announcer_service_probes",
                "Connections begun to addresses of Services as a client would, by how that ended: served, refused, \
                silent, no-neighbor (nobody has the address)",
            ),
            seconds: registry.keep(
                "hcp_announcer_service_probe_seconds",
                "How soon such a connection was accepted or refused",
                Histogram::new(SECONDS),
            ),
            unserved: registry.make(
                "hcp_announcer_unserved",
                "Addresses and ports of Services that do not answer this node, or refuse, three times in a row",
            ),
        }
    }

    /// Counts a probe that has ended.
    pub fn ended(&self, outcome: Outcome, after: Option<Duration>) {
        self.outcomes.get_or_create(&[("result", outcome.as_str())]).inc();
        if let Some(after) = after {
            self.seconds.observe(after.as_secs_f64());
        }
    }

    /// Shows how many targets do not answer.
    pub fn unserved(&self, count: usize) {
        self.unserved.set(i64::try_from(count).unwrap_or(i64::MAX));
    }
}
