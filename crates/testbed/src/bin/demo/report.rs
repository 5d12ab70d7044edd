//! `report.json`: the steps, and the figures that the issue sets bounds for.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result};
use serde::Serialize;
use testbed::{ProbeReport, Request, Users};

use crate::step_log::{Step, StepLog};

/// Everything that was measured.
#[derive(Debug, Default, Serialize)]
pub struct Figures {
    /// Services with an address from a pool.
    pub pool: Option<Series>,
    /// Services with an address by DHCP.
    pub dhcp: Option<Series>,
    /// The least time between two updates of kube-proxy's rules: a floor for first replies that is not ours.
    pub kube_proxy_min_sync_ms: u64,
    /// Requests per new Service, from the series.
    pub writes_per_service: BTreeMap<&'static str, Writes>,
    /// The owner of a VIP loses power.
    pub failover: Option<Outage>,
    /// What several clients at once missed of it.
    pub node_loss: Option<NodeLoss>,
    /// The announcer's process on the owner is killed.
    pub announcer_killed: Option<Outage>,
    /// All requests of ours, by API server and user, from the audit logs.
    pub api_requests: BTreeMap<&'static str, BTreeMap<String, BTreeMap<String, u64>>>,
    /// What our processes cost.
    pub processes: Vec<ProcessFigure>,
    /// Size of the program that is shipped.
    pub binary_bytes: u64,
    /// Size of its image as an archive.
    pub image_bytes: u64,
    /// From the start of the CCM's process to `/readyz`.
    pub ccm_ready_ms: Option<u64>,
    /// From `kubectl apply` of our manifests to all our pods Ready.
    pub install_ms: Option<u64>,
}

/// How long new Services took, and the medians.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Series {
    /// One entry per Service.
    pub samples: Vec<Sample>,
    /// Median of [`Sample::address_ms`].
    pub median_address_ms: u64,
    /// Median of [`Sample::reply_ms`].
    pub median_reply_ms: u64,
}

/// One new Service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Sample {
    /// From the request that creates it to its address in the status.
    pub address_ms: u64,
    /// From the same to the first HTTP reply at the client.
    pub reply_ms: u64,
}

/// Requests that one new Service costs, on average.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Writes {
    /// Neither Events nor Leases.
    pub writes: f64,
    /// Events.
    pub events: f64,
}

/// What a client that asks every 10 ms missed.
#[allow(clippy::struct_field_names)] // the figure has the same name in all reports
#[derive(Debug, Clone, Serialize)]
pub struct Outage {
    /// The node that owned the VIP before.
    pub from: String,
    /// The node that owns it after.
    pub to: String,
    /// The longest time without an answer.
    pub gap_ms: u64,
    /// What of it the machine's stalls do not explain.
    pub outage_ms: u64,
    /// The prober itself was not scheduled for this long at most; the gap is not known better.
    pub prober_stall_ms: u64,
    /// Answers that came only after a retransmission.
    pub late: u64,
    /// Requests.
    pub sent: u64,
    /// Not answered within a second.
    pub lost: u64,
}

/// A node that was lost, as its users count.
#[derive(Debug, Clone, Serialize)]
pub struct NodeLoss {
    /// Clients.
    pub clients: usize,
    /// Requests since the loss.
    pub sent: u64,
    /// Of them without an answer within a second.
    pub missed: u64,
    /// Answered in time, but only when TCP had sent something again.
    pub late: u64,
    /// The last one that was missed was sent so long after the loss; the machine's stalls are subtracted.
    pub missed_for_ms: u64,
    /// Connections that were open.
    pub open: usize,
    /// Of them broken.
    pub broken: usize,
}

/// One of our processes.
#[derive(Debug, Clone, Serialize)]
pub struct ProcessFigure {
    /// Program and part.
    pub name: String,
    /// Where it runs.
    pub node: String,
    /// Resident memory.
    pub rss_mb: f64,
    /// Processor time since its start.
    pub cpu_ms: u64,
    /// How long ago that was.
    pub up_s: u64,
}

impl Series {
    /// With the medians; `None` without samples.
    pub fn new(samples: Vec<Sample>) -> Option<Self> {
        let median = |value: fn(&Sample) -> u64| {
            let mut values: Vec<u64> = samples.iter().map(value).collect();
            values.sort_unstable();
            values.get(values.len() / 2).copied()
        };
        let (address, reply) = (median(|sample| sample.address_ms)?, median(|sample| sample.reply_ms)?);
        Some(Self { median_address_ms: address, median_reply_ms: reply, samples })
    }
}

impl Outage {
    /// From what a prober saw.
    pub fn new(from: &str, to: &str, report: &ProbeReport) -> Self {
        let ms = |duration: std::time::Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        Self {
            from: from.into(),
            to: to.into(),
            gap_ms: ms(report.longest_gap),
            outage_ms: ms(report.outage),
            prober_stall_ms: ms(report.longest_stall),
            late: report.late,
            sent: report.sent,
            lost: report.lost,
        }
    }
}

impl NodeLoss {
    /// From what clients saw.
    pub fn new(users: &Users) -> Self {
        Self {
            clients: users.clients.len(),
            sent: users.sent(),
            missed: users.missed(),
            late: users.late(),
            missed_for_ms: u64::try_from(users.lasted().as_millis()).unwrap_or(u64::MAX),
            open: users.open,
            broken: users.broken,
        }
    }
}

impl Writes {
    /// Of the requests of `user` (its end), shared out over `services`.
    pub fn of(requests: &[Request], user: &str, services: u32) -> Self {
        let count = |wanted: &dyn Fn(&Request) -> bool| {
            let n = requests
                .iter()
                .filter(|request| request.user.ends_with(user) && request.is_write() && wanted(request))
                .count();
            f64::from(u32::try_from(n).unwrap_or(u32::MAX)) / f64::from(services)
        };
        Self {
            writes: count(&|request| !request.is_bookkeeping()),
            events: count(&|request| request.resource == "events"),
        }
    }
}

/// Requests by user and by verb with resource, of those users that `ours` accepts.
pub fn by_user(requests: &[Request], ours: impl Fn(&str) -> bool) -> BTreeMap<String, BTreeMap<String, u64>> {
    let mut users: BTreeMap<String, BTreeMap<String, u64>> = BTreeMap::new();
    for request in requests.iter().filter(|request| ours(&request.user)) {
        let what = if request.resource.is_empty() {
            request.verb.clone()
        } else {
            format!("{} {}", request.verb, request.resource)
        };
        *users.entry(request.user.clone()).or_default().entry(what).or_default() += 1;
    }
    users
}

/// Writes the report.
pub fn write(path: &Path, step_log: &StepLog, figures: &Figures) -> Result<()> {
    #[derive(Serialize)]
    struct Report<'a> {
        ok: bool,
        seconds: f64,
        processors: usize,
        kernel: String,
        steps: &'a [Step],
        figures: &'a Figures,
    }
    let report = Report {
        ok: step_log.held(),
        seconds: step_log.elapsed().as_secs_f64(),
        processors: std::thread::available_parallelism().map_or(0, usize::from),
        kernel: std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned(),
        steps: step_log.steps(),
        figures,
    };
    let text = serde_json::to_string_pretty(&report).context("failed to make JSON of the report")?;
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent).with_context(|| format!("failed to create {}", parent.display()))?;
    }
    std::fs::write(path, text + "\n").with_context(|| format!("failed to write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_five_is_the_third() {
        let samples = [40, 10, 30, 20, 1000].map(|ms| Sample { address_ms: ms, reply_ms: ms + 5 }).to_vec();
        let series = Series::new(samples).unwrap();
        assert_eq!((series.median_address_ms, series.median_reply_ms), (30, 35));
        assert_eq!(Series::new(Vec::new()), None);
    }
}
