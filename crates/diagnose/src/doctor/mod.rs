//! `doctor`: the problems of the installation, their consequences, and the commands that correct them. Each check is a
//! pure function of the snapshot; what could not be read is not checked.

mod advice;
mod announcers;
mod apis;
mod certificates;
mod checks;
mod clocks;
mod cluster;
mod controllers;
mod endpoints;
mod events;
mod finding;
mod host;
pub(crate) mod nodes;
mod pods;
mod pools;
mod remedies;
mod services;

use crate::snapshot::{Snapshot, Unread};
pub use checks::Check;
pub use finding::{Clusters, Examination, Finding, Severity};

/// Runs all checks.
pub fn examine(snapshot: &Snapshot) -> Examination {
    let checks: [fn(&Snapshot) -> Vec<Finding>; 11] = [
        apis::findings,
        certificates::findings,
        clocks::findings,
        host::findings,
        cluster::findings,
        controllers::findings,
        nodes::findings,
        announcers::findings,
        pods::findings,
        services::findings,
        pools::findings,
    ];
    let mut findings: Vec<Finding> = checks.iter().flat_map(|check| check(snapshot)).collect();
    leave_out_consequences(snapshot, &mut findings);
    findings.sort();
    findings.dedup();
    let unread: Vec<Unread> = snapshot.unread.clone();
    Examination { findings, clusters: Clusters::of(snapshot), unread }
}

/// A cause, and what each node and each Service would repeat of it: other faults would be lost among them.
const CONSEQUENCES: [(Check, &[Check]); 2] = [
    (Check::AnnouncerMissing, &[Check::AnnouncerSilent, Check::OwnerSilent]),
    (Check::HarvesterTokenRefused, &[Check::HarvesterForbids]),
];

fn leave_out_consequences(snapshot: &Snapshot, findings: &mut Vec<Finding>) {
    for (cause, repeated) in CONSEQUENCES {
        if findings.iter().any(|finding| finding.check == cause) {
            findings.retain(|finding| !repeated.contains(&finding.check));
        }
    }
    // Where nothing is installed, the finding about the controller says so of both.
    let uninstalled = controllers::is_not_installed(snapshot) && announcers::is_not_installed(snapshot);
    if uninstalled && findings.iter().any(|finding| finding.check == Check::ControllerMissing) {
        findings.retain(|finding| finding.check != Check::AnnouncerMissing);
    }
}

#[cfg(test)]
mod tests;
