//! `doctor`: the problems of the installation, their consequences, and the commands that correct them. Each check is a
//! pure function of the snapshot; what could not be read is not checked.

mod announcers;
mod apis;
mod certificates;
mod clocks;
mod cluster;
mod controllers;
mod finding;
mod host;
mod nodes;
mod services;

use crate::snapshot::{Snapshot, Unread};
pub use finding::{Clusters, Examination, Finding, Severity};

/// Runs all checks.
pub fn examine(snapshot: &Snapshot) -> Examination {
    let checks: [fn(&Snapshot) -> Vec<Finding>; 9] = [
        apis::findings,
        certificates::findings,
        clocks::findings,
        host::findings,
        cluster::findings,
        controllers::findings,
        nodes::findings,
        announcers::findings,
        services::findings,
    ];
    let mut findings: Vec<Finding> = checks.iter().flat_map(|check| check(snapshot)).collect();
    findings.sort();
    findings.dedup();
    let unread: Vec<Unread> = snapshot.unread.clone();
    Examination { findings, clusters: Clusters::of(snapshot), unread }
}

#[cfg(test)]
mod tests;
