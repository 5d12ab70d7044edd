//! The reports about other nodes in a watcher's membership Lease. No other part reads the Lease.

use std::collections::BTreeMap;
use std::time::Duration;

use contract::leases::MEMBER_PREFIX;
use contract::{Card, Silence, keys};
use k8s_openapi::api::coordination::v1::Lease;

/// Selects the Leases with a report, so that those of a healthy cluster are not watched.
pub fn selector() -> String {
    format!("{}=true", keys::cloudprovider::SILENCE)
}

/// The report of one watcher.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// Name of the watcher's node.
    pub watcher: String,
    /// Changes with each renewal. Only equality is compared, because the clocks of nodes differ.
    pub renewal: String,
    /// How long a renewal is valid.
    pub duration: Duration,
    /// The nodes that the watcher does not hear any more, by name.
    pub silent: BTreeMap<String, Silence>,
}

impl Report {
    /// Parses the Lease; `None` if it is no membership Lease, or has no report.
    pub fn of(lease: &Lease) -> Option<Self> {
        let watcher = lease.metadata.name.as_deref()?.strip_prefix(MEMBER_PREFIX)?.to_owned();
        let card = lease.metadata.annotations.as_ref()?.get(keys::cloudprovider::CARD)?;
        let silent = Card::<String>::parse(card).silent;
        let spec = lease.spec.as_ref()?;
        let renewal = spec.renew_time.as_ref()?.0.to_string();
        let seconds = spec.lease_duration_seconds.and_then(|seconds| u64::try_from(seconds).ok())?;
        (!silent.is_empty()).then_some(Self { watcher, renewal, duration: Duration::from_secs(seconds), silent })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn report(name: &str, card: &str) -> Option<Report> {
        let lease = json!({"metadata": {"name": name, "annotations": {keys::cloudprovider::CARD: card}},
            "spec": {"leaseDurationSeconds": 15, "renewTime": "2026-01-01T00:00:00.000000Z"}});
        Report::of(&serde_json::from_value(lease).unwrap())
    }

    #[test]
    fn only_a_membership_lease_that_names_a_silent_node_is_a_report() {
        let says = r#"{"silent":{"node-2":{"uid":"u","ms":200,"unanswered":["arp 10.0.0.2"]}}}"#;
        let found = report("harvester-announcer-node-1", says).unwrap();
        assert_eq!((found.watcher.as_str(), found.duration), ("node-1", Duration::from_secs(15)));
        assert_eq!(found.silent["node-2"].uid, "u");
        assert_eq!(report("harvester-announcer-node-1", "{}"), None);
        assert_eq!(report("kube-scheduler", says), None);
        assert_eq!(report("harvester-announcer-node-1", "nonsense"), None);
    }
}
