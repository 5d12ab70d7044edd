//! Checks the clocks of the nodes, of this machine and of the two API servers.

use std::collections::BTreeMap;

use announcer_core::status::table::age;
use k8s_openapi::api::coordination::v1::Lease;
use kube::ResourceExt;

use super::checks::Check;
use super::finding::Finding;
use crate::facts;
use crate::snapshot::{Side, Snapshot};

/// Clocks that differ by more make live Leases look expired, or expired ones live.
const SKEW: i64 = 5;

pub fn findings(snapshot: &Snapshot) -> Vec<Finding> {
    let mut all: Vec<Finding> = nodes(snapshot).iter().filter_map(|(node, ahead)| of_node(node, *ahead)).collect();
    all.extend(of_server("guest", &snapshot.guest));
    all.extend(of_server("Harvester", &snapshot.harvester));
    all
}

/// Seconds that each node's clock is ahead of the guest's API server: from the announcer's Lease, else from the
/// kubelet's.
fn nodes(snapshot: &Snapshot) -> BTreeMap<String, i64> {
    let kubelets = snapshot.kubelet_leases.iter().map(|lease| (lease.name_any(), lease));
    let known = |(node, _): &(String, &Lease)| snapshot.nodes.iter().any(|one| one.name_any() == *node);
    let announcers = snapshot.leases.iter().filter_map(|lease| Some((facts::member(lease)?.to_owned(), lease)));
    let both = kubelets.filter(known).chain(announcers);
    both.filter_map(|(node, lease)| Some((node, ahead(lease)?))).collect()
}

/// Difference between the renewal time by the writer's clock and the write time by the API server's clock.
fn ahead(lease: &Lease) -> Option<i64> {
    let said = lease.spec.as_ref()?.renew_time.as_ref()?.0.as_second();
    let fields = lease.metadata.managed_fields.as_ref()?;
    let written = fields.iter().filter_map(|entry| entry.time.as_ref()).map(|time| time.0.as_second()).max()?;
    Some(said - written)
}

fn differs(ahead: i64, than: &str) -> Option<String> {
    let direction = if ahead > 0 { "ahead of" } else { "behind" };
    (ahead.abs() > SKEW).then(|| format!("{} {direction} {than}", age(ahead.abs())))
}

const REMEDY: &str = "timedatectl set-ntp true && systemctl restart systemd-timesyncd     # or chronyc makestep";

fn of_node(node: &str, ahead: i64) -> Option<Finding> {
    Some(
        Finding::warning(Check::ClockSkew, format!("node {node}"))
            .what(format!("its clock is {}", differs(ahead, "the API server's")?))
            .why("Leases look expired or fresh to it when they are not, and certificates may look invalid to it")
            .remedy(format!("on that node: {REMEDY}")),
    )
}

fn of_server(which: &str, side: &Side) -> Option<Finding> {
    Some(
        Finding::warning(Check::ClockSkew, format!("{which} API {}", side.server))
            .what(format!("its clock is {}", differs(side.clock_ahead?, "this machine's")?))
            .why("certificates and tokens may look expired or not valid yet to one of the two")
            .remedy(format!("on the one that is wrong: {REMEDY}")),
    )
}
