//! One fault, some times over: what a client missed, and how long two nodes answered.

use std::time::Duration;

use e2e::Bed;
use serde::{Deserialize, Serialize};

use crate::case_result::CaseResult;
use crate::experiment::Experiment;

/// What is done to the owner, or to all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Cables out, processes dead.
    PowerLoss,
    /// SIGKILL of the announcer, started again after 2 s.
    Kill,
    /// SIGTERM of the announcer; another one is there.
    Terminate,
    /// SIGTERM of the only announcer, started again at once.
    TerminateAlone,
    /// The owner alone does not reach the API.
    OwnerWithoutApi,
    /// No node reaches the API: the API server is killed and started again.
    NobodyHasApi,
    /// The owner's machine stands still for so many milliseconds, as in a live migration: neither its kernel nor its
    /// processes do anything, and none of them can tell.
    Pause(u64),
    /// Power loss of the owner and, in the same moment, of the member of etcd that leads.
    PowerLossWithEtcdLeader,
}

/// A line of the table.
#[derive(Debug)]
pub struct Case {
    /// For `--only`.
    pub name: &'static str,
    /// For people.
    pub title: &'static str,
    /// What happens; `None`: no fault, a Service is given its address.
    pub fault: Option<Fault>,
    /// Timers of the detector.
    pub profile: &'static str,
    /// The address comes from a DHCP server.
    pub dhcp: bool,
    /// Endpoints are on every node, the owner's too; else on the others only.
    pub spread: bool,
}

/// All of them, in the order of the table.
pub const CASES: [Case; 14] = [
    case("power-loss", "node power loss, default timers", Fault::PowerLoss),
    Case { profile: "fast", ..case("power-loss-fast", "node power loss, fast profile", Fault::PowerLoss) },
    case("kill", "announcer killed, restarted after 2 s", Fault::Kill),
    case("terminate", "graceful stop with a successor", Fault::Terminate),
    case("terminate-alone", "SIGTERM on a one-node cluster", Fault::TerminateAlone),
    case("owner-without-api", "owner alone loses the API", Fault::OwnerWithoutApi),
    case("nobody-has-api", "API server down for all", Fault::NobodyHasApi),
    NEW_SERVICE,
    Case { dhcp: true, ..case("dhcp-power-loss", "DHCP address, node power loss", Fault::PowerLoss) },
    case("pause-300", "owner's machine stands still for 0.3 s", Fault::Pause(300)),
    case("pause-1000", "owner's machine stands still for 1 s", Fault::Pause(1000)),
    case("pause-3000", "owner's machine stands still for 3 s", Fault::Pause(3000)),
    Case { spread: true, ..case("power-loss-spread", "node power loss, endpoints on all nodes", Fault::PowerLoss) },
    case("power-loss-etcd", "node power loss with the leader of three etcd members", Fault::PowerLossWithEtcdLeader),
];

const NEW_SERVICE: Case = Case {
    name: "new-service",
    title: "address set to first ARP answer",
    fault: None,
    profile: "default",
    dhcp: false,
    spread: false,
};

const fn case(name: &'static str, title: &'static str, fault: Fault) -> Case {
    Case { name, title, fault: Some(fault), profile: "default", dhcp: false, spread: false }
}

/// One run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Run {
    /// The longest time without an answer, or the time that was asked for.
    pub gap_ms: f64,
    /// Requests without an answer.
    pub lost: u64,
    /// From the beginning of the watch to the sending of the first and of the last of them.
    #[serde(default)]
    pub lost_between_ms: Option<(f64, f64)>,
    /// Time during which two MACs answered who-has.
    pub double_ms: f64,
    /// From the first to the last question that two answered.
    pub double_span_ms: f64,
    /// The longest time in which the prober itself was not scheduled: no gap is known better.
    pub prober_stall_ms: f64,
    /// What of the gap the machine's stalls do not explain.
    #[serde(default)]
    pub outage_ms: f64,
    /// Answers that came only after a retransmission, or as late.
    #[serde(default)]
    pub late: u64,
    /// From the address to the first HTTP reply, for a new Service.
    pub http_ms: Option<f64>,
    /// The owner before and after.
    pub owners: [usize; 2],
}

/// Runs it on a bed of its own.
pub async fn measure(case: &Case, runs: usize, outage: Duration) -> CaseResult<Run> {
    let mut found = CaseResult::begin(case.name, case.title);
    let nodes = if case.fault == Some(Fault::TerminateAlone) { 1 } else { 3 };
    let bed = Bed::builder()
        .nodes(nodes)
        .without_ccm()
        .announcer_env("vip_handover", "true")
        .without_pool()
        .announcer_env("election_mode", "node")
        .announcer_env("failover_profile", case.profile);
    let bed = if case.fault == Some(Fault::PowerLossWithEtcdLeader) { bed.etcd_members(3) } else { bed };
    let outcome = async {
        let bed = bed.start().await?;
        let place = bed.case("bench").await?;
        let experiment = Experiment::new(&bed, &place, case).await?;
        for run in 1..=runs {
            match experiment.one(case, run, outage).await {
                Ok(one) => {
                    eprintln!("  {run}/{runs}: {one:?}");
                    found.runs.push(one);
                }
                Err(error) => {
                    eprintln!("  {run}/{runs}: {error:#}");
                    found.failures.push(format!("run {run}: {error:#}"));
                    experiment.mend(outage).await?;
                }
            }
        }
        Ok::<(), anyhow::Error>(())
    }
    .await;
    if let Err(error) = outcome {
        eprintln!("  {error:#}");
        found.failures.push(format!("{error:#}"));
    }
    found
}

/// Milliseconds with one decimal, which is more than the machine is good for.
pub fn ms(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 10_000.0).round() / 10.0
}
