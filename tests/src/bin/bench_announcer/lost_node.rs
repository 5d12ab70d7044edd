//! A node of three real ones loses its power: what users miss, row by row, with kube-proxy in a hurry and as it is
//! delivered.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use e2e::lost_node::{NODES, NodeLossBed, expose};
use serde::{Deserialize, Serialize};
use testbed::stall;

use crate::cases::ms;

/// Which node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Whose {
    /// It owns the address.
    Owner,
    /// It neither owns the address nor leads.
    Other,
    /// The leading cloud controller is there; a Service is made right after the loss.
    Leader,
    /// An API server and a member of etcd are lost with it.
    Server,
}

/// For each row: its name, for people, whose node, kube-proxy's `minSyncPeriod` in milliseconds.
const ROWS: [(&str, &str, Whose, u64); 6] = [
    ("owner", "power loss of the node that owns the address", Whose::Owner, 100),
    ("other", "power loss of another node", Whose::Other, 100),
    ("leader", "power loss of the leader's node: a new Service", Whose::Leader, 100),
    ("server", "power loss of a node with an API server and a member of etcd", Whose::Server, 100),
    ("owner-default", "power loss of the node that owns the address, kube-proxy as delivered", Whose::Owner, 1000),
    ("other-default", "power loss of another node, kube-proxy as delivered", Whose::Other, 1000),
];

/// One loss.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Run {
    /// Requests of all clients since the loss.
    pub sent: u64,
    /// Of them without an answer within a second.
    pub missed: u64,
    /// The most that one client missed, without what stalls explain.
    pub worst: u64,
    /// Answered in time, but only when TCP had sent something again.
    pub late: u64,
    /// The last that was missed was sent so long after the loss, without the machine's stalls.
    pub missed_for_ms: f64,
    /// Connections that were open.
    pub open: usize,
    /// Of them broken.
    pub broken: usize,
    /// The node's endpoints had left before.
    pub left_ms: f64,
    /// From the loss to the first reply of a Service that was made then, without the machine's stalls.
    pub served_ms: Option<f64>,
    /// From the power to ready pods.
    pub ready_ms: f64,
    /// From then on to their first traffic.
    pub traffic_ms: f64,
}

/// A row of the table.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Row {
    /// Its name.
    pub case: String,
    /// For people.
    pub title: String,
    /// kube-proxy's `minSyncPeriod`.
    pub proxy_min_sync_ms: u64,
    /// One by one.
    pub runs: Vec<Run>,
    /// What could not be measured.
    pub failures: Vec<String>,
}

/// All rows on one bed, each row once and then again, so that a bench that is ended early has something of each.
/// `keep` is told what there is after each round.
pub async fn measure(runs: usize, mut keep: impl FnMut(&[Row]) -> Result<()>) -> Result<()> {
    let bed = NodeLossBed::start().await?;
    let row = |(case, title, _, min_sync): (&str, &str, Whose, u64)| Row {
        case: case.into(),
        title: title.into(),
        proxy_min_sync_ms: min_sync,
        runs: Vec::new(),
        failures: Vec::new(),
    };
    let (mut rows, mut pace) = (ROWS.map(row), 100);
    for number in 1..=runs {
        for (row, (.., whose, min_sync)) in rows.iter_mut().zip(ROWS) {
            if pace != min_sync {
                for n in 1..=NODES {
                    bed.cluster.machine(n).set_proxy_min_sync(Duration::from_millis(min_sync))?;
                }
                bed.is_well().await?;
                pace = min_sync;
            }
            match one(&bed, whose).await {
                Ok(run) => {
                    eprintln!("  {}, {number}/{runs}: {run:?}", row.case);
                    row.runs.push(run);
                }
                Err(error) => {
                    eprintln!("  {}, {number}/{runs}: {error:#}", row.case);
                    row.failures.push(format!("{}, run {number}: {error:#}", row.case));
                    bed.cluster.control_plane.mend_servers().await?;
                    for machine in bed.cluster.machines() {
                        machine.power_on()?;
                    }
                    bed.is_well().await?;
                }
            }
        }
        keep(&rows)?;
    }
    Ok(())
}

async fn one(bed: &NodeLossBed, whose: Whose) -> Result<Run> {
    let (owner, leader) = (bed.owner()?, bed.leader().await?);
    let n = match whose {
        Whose::Owner => owner,
        Whose::Leader => leader,
        Whose::Server => bed.node_with_a_server().await?,
        Whose::Other => NodeLossBed::other_than(&[owner, leader].into()).unwrap_or(leader),
    };
    let (loss, served) = match whose {
        Whose::Server => (bed.lose_with_its_server(n).await?, None),
        Whose::Leader => {
            let served = async |at: Instant| {
                expose(&bed.cluster, "late").await?;
                let (took, stalled) = (at.elapsed(), stall::since(at).within(at, Instant::now(), &[]));
                Ok(Some(ms(took.saturating_sub(stalled))))
            };
            bed.lose_and(n, served).await?
        }
        Whose::Owner | Whose::Other => (bed.lose(n).await?, None),
    };
    if served.is_some() {
        bed.cluster.control_plane.kubectl(&["delete", "service", "late"])?;
    }
    let back = bed.give_back(n).await?;
    ensure!(!loss.users.clients.is_empty(), "nobody has asked");
    Ok(Run {
        sent: loss.users.sent(),
        missed: loss.users.missed(),
        worst: loss.users.worst(),
        late: loss.users.late(),
        missed_for_ms: ms(loss.users.lasted()),
        open: loss.users.open,
        broken: loss.users.broken,
        left_ms: ms(loss.left),
        served_ms: served,
        ready_ms: ms(back.ready),
        traffic_ms: ms(back.traffic),
    })
}

/// As a table in Markdown.
pub fn print(rows: &[Row]) {
    println!(
        "\n| a node is lost | n | missed by one client, median (max) | for ms, median (max) | open connections broken \
         | served again, ms |"
    );
    println!("| --- | --- | --- | --- | --- | --- |");
    for row in rows {
        let column = |value: &dyn Fn(&Run) -> Option<f64>| {
            let mut values: Vec<f64> = row.runs.iter().filter_map(value).collect();
            values.sort_by(f64::total_cmp);
            match (values.get(values.len().saturating_sub(1) / 2), values.last()) {
                (Some(median), Some(max)) => format!("{median:.0} ({max:.0})"),
                _ => "-".to_owned(),
            }
        };
        let number = |value: u64| Some(f64::from(u32::try_from(value).unwrap_or(u32::MAX)));
        let (worst, lasted) = (column(&|run| number(run.worst)), column(&|run| Some(run.missed_for_ms)));
        let (open, broken) = row.runs.iter().fold((0, 0), |(open, broken), run| (open + run.open, broken + run.broken));
        let served = column(&|run| run.served_ms);
        println!("| {} | {} | {worst} | {lasted} | {broken} of {open} | {served} |", row.title, row.runs.len());
    }
}
