//! Which kubelets live: each was seen to report again while this process watched. A report is compared only with an
//! earlier one of the same kubelet, never with another clock. In a restored snapshot a Node may look alive for as long
//! as the Kubernetes controller manager is late, and its report stays the same or is an older one.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures::future::join_all;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::jiff::Timestamp;
use kube::{Api, Client};
use runtime::error::api_code;
use tokio::time::Instant;

/// Pause between two reads.
const ASK_EVERY: Duration = Duration::from_secs(5);

/// What kubelets have reported so far.
#[derive(Debug, Default)]
pub struct Kubelets {
    /// The first report of each, by where it was read.
    first: BTreeMap<(String, &'static str), Timestamp>,
    alive: BTreeSet<String>,
    /// Nodes whose kubelets are asked for.
    asked: Vec<String>,
    next: Option<Instant>,
    /// Every kubelet counts as alive.
    pub all: bool,
}

impl Kubelets {
    /// Takes in what the kubelet of a Node reported last.
    fn note(&mut self, node: &str, place: &'static str, report: Timestamp) {
        let first = self.first.entry((node.to_owned(), place)).or_insert(report);
        if report > *first {
            self.alive.insert(node.to_owned());
        }
        // An older one is that of a snapshot, or of a kubelet whose clock was set back: its next report counts.
        *first = report;
    }

    /// Whether the kubelet of this Node was seen to report.
    pub fn lives(&self, node: &str) -> bool {
        self.all || self.alive.contains(node)
    }

    /// From now on the reports of these Nodes are read. None: nothing is read.
    pub fn watch(&mut self, nodes: Vec<String>) {
        self.asked = nodes;
    }

    /// When to read next.
    pub fn due(&self) -> Option<Instant> {
        (!self.asked.is_empty()).then(|| self.next.unwrap_or_else(Instant::now))
    }

    /// Reads the reports.
    pub async fn ask(&mut self, client: &Client) {
        let reports = join_all(self.asked.iter().map(|node| last_report(client, node))).await;
        for (node, report) in std::mem::take(&mut self.asked).iter().zip(reports) {
            if let Some((place, report)) = report {
                self.note(node, place, report);
            }
        }
        self.next = Some(Instant::now() + ASK_EVERY);
    }
}

/// Where the last report of the kubelet of a Node was read, and its time; `None` if nothing can be read. Its Lease is
/// renewed every 10 s. Where that may not be read, the Node itself shows a report every 5 minutes.
async fn last_report(client: &Client, node: &str) -> Option<(&'static str, Timestamp)> {
    let leases: Api<Lease> = Api::namespaced(client.clone(), "kube-node-lease");
    match leases.get(node).await {
        Ok(lease) => return Some(("Lease", lease.spec?.renew_time?.0)),
        Err(error) if matches!(api_code(&error), Some(403 | 404)) => {}
        Err(_) => return None,
    }
    let nodes: Api<Node> = Api::all(client.clone());
    let conditions = nodes.get(node).await.ok()?.status?.conditions?;
    let ready = conditions.into_iter().find(|condition| condition.type_ == "Ready" && condition.status != "Unknown")?;
    Some(("Node", ready.last_heartbeat_time?.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_later_report_shows_a_kubelet_that_lives() {
        let mut kubelets = Kubelets::default();
        for (node, place, report, expected) in [
            ("a", "Lease", "10:00:00", false),
            ("a", "Lease", "10:00:00", false),
            ("a", "Node", "09:57:00", false),
            ("b", "Lease", "10:00:10", false),
            ("b", "Lease", "09:00:00", false),
            ("b", "Lease", "09:00:10", true),
            ("a", "Lease", "10:00:10", true),
            ("a", "Node", "09:57:00", true),
        ] {
            kubelets.note(node, place, format!("2026-01-02T{report}Z").parse().unwrap());
            assert_eq!(kubelets.lives(node), expected, "{node} {place} {report}");
        }
        assert!(!kubelets.lives("c"));
    }
}
