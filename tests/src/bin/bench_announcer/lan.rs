//! A LAN that lies, and many at once: the faults that tests hold to their limits, played some times over.

use anyhow::{Context, Result};
use e2e::lan_faults::{ObservedOutage, groups, late_writes, strangers, upgrade};
use e2e::vip::{all_well, three_nodes};
use e2e::{Bed, Case as Place};
use serde::{Deserialize, Serialize};

use crate::case_result::CaseResult;
use crate::cases::ms;

/// What is played.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LanFault {
    /// A hypervisor with the owner and the node behind it is lost.
    Hypervisor,
    /// The nodes that do not own the address are cut off together, and the clients are not with them.
    Minority,
    /// The owner is cut off, and the clients are with the others.
    Majority,
    /// One of each kind answers while the owner lives, with an API and without.
    Strangers,
    /// One of each kind answers for an owner that has lost its power.
    StrangersPowerLoss,
    /// Each write is late when the owner loses its power.
    LateWrites,
    /// Every announcer is replaced on its node.
    Upgrade,
    /// All nodes are unready and ready again.
    Unready,
}

/// Each with its name for `--only`, and for people.
pub const FAULTS: [(&str, &str, LanFault); 8] = [
    ("hypervisor", "loss of the hypervisor that carries the owner and the node behind it", LanFault::Hypervisor),
    ("minority", "the nodes without the address cut off from owner, clients and gateway", LanFault::Minority),
    ("majority", "the owner cut off, the clients with the other nodes", LanFault::Majority),
    ("strangers", "a stranger of each kind answers while the owner lives", LanFault::Strangers),
    ("strangers-power-loss", "a stranger of each kind answers for a lost owner", LanFault::StrangersPowerLoss),
    ("late-writes", "node power loss, each write late by 1 s", LanFault::LateWrites),
    ("upgrade", "upgrade of the DaemonSet", LanFault::Upgrade),
    ("unready", "all nodes unready and back", LanFault::Unready),
];

/// What one client saw.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Watched {
    /// Of what.
    pub what: String,
    /// For how long it may be without answers; zero: it may lose none.
    pub bound_ms: f64,
    /// The longest time without an answer.
    pub gap_ms: f64,
    /// What of it the machine's stalls do not explain.
    pub outage_ms: f64,
    /// The longest time in which the prober itself was not scheduled.
    pub prober_stall_ms: f64,
    /// Requests.
    pub sent: u64,
    /// Of them without an answer.
    pub lost: u64,
    /// From the beginning to the sending of the first and of the last of them.
    #[serde(default)]
    pub lost_between_ms: Option<(f64, f64)>,
    /// Answered only after a retransmission, or as late.
    pub late: u64,
    /// Time during which two MACs answered who-has, where that was asked.
    pub double_ms: Option<f64>,
}

impl From<&ObservedOutage> for Watched {
    fn from(seen: &ObservedOutage) -> Self {
        let report = &seen.report;
        Self {
            what: seen.what.clone(),
            bound_ms: ms(seen.limits.bound),
            gap_ms: ms(report.longest_gap),
            outage_ms: ms(report.outage),
            prober_stall_ms: ms(report.longest_stall),
            sent: report.sent,
            lost: report.lost,
            lost_between_ms: report.lost_between.map(|(first, last)| (ms(first), ms(last))),
            late: report.late,
            double_ms: seen.answers.as_ref().map(|answers| ms(answers.double)),
        }
    }
}

/// One time. Addresses that move though they should not make it a failure.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Run {
    /// By client.
    pub watched: Vec<Watched>,
    /// Connections that were held open.
    pub open: usize,
    /// Those of them that broke.
    pub broken: usize,
}

/// Plays it on a bed of its own. `keep` is told what there is after each time.
pub async fn measure(
    (name, title, fault): (&str, &str, LanFault),
    runs: usize,
    outage: u64,
    mut keep: impl FnMut(&CaseResult<Run>) -> Result<()>,
) -> Result<()> {
    let mut found = CaseResult::begin(name, title);
    let builder = if fault == LanFault::Upgrade { upgrade::bed() } else { three_nodes() };
    let bed = builder.start().await.with_context(|| name.to_owned())?;
    for number in 1..=runs {
        let place = bed.case(name).await?;
        let outcome = play(&bed, &place, fault, outage).await;
        match outcome {
            Ok(run) => {
                eprintln!("  {number}/{runs}: {run:?}");
                found.runs.push(run);
            }
            Err(error) => {
                eprintln!("  {number}/{runs}: {error:#}");
                found.failures.push(format!("run {number}: {error:#}"));
                all_well(&bed).await?;
            }
        }
        keep(&found)?;
        // The next one has the same addresses, also after one that failed.
        bed.control_plane.kubectl(&["delete", "services", "--all", "--namespace", place.namespace()])?;
    }
    Ok(())
}

async fn play(bed: &Bed, place: &Place<'_>, fault: LanFault, outage: u64) -> Result<Run> {
    let one = |seen: ObservedOutage| vec![seen];
    let seen = match fault {
        LanFault::Hypervisor => one(groups::a_hypervisor_is_lost(bed, place, 188).await?),
        LanFault::Minority => one(groups::a_minority_is_cut_off(bed, place, 186).await?),
        LanFault::Majority => one(groups::the_owner_is_cut_off_with_a_few(bed, place, 187).await?),
        LanFault::Strangers => strangers::take_nothing_from_an_owner_that_lives(bed, place, outage).await?,
        LanFault::StrangersPowerLoss => strangers::answer_for_an_owner_that_is_lost(bed, place).await?,
        LanFault::LateWrites => one(late_writes::a_power_loss_while_writes_are_late(bed, place, 195).await?),
        LanFault::Unready => one(groups::all_nodes_are_unready_and_back(bed, place, 189).await?),
        LanFault::Upgrade => {
            let cost = upgrade::Served::new(bed, place).await?.upgrade(bed).await?;
            let watched = cost.seen.iter().map(Watched::from).collect();
            return Ok(Run { watched, open: cost.open, broken: cost.broken.len() });
        }
    };
    Ok(Run { watched: seen.iter().map(Watched::from).collect(), ..Run::default() })
}

/// As a table in Markdown.
pub fn print(found: &[CaseResult<Run>]) {
    println!("\n| a LAN that lies | n | bound, ms | gap ms, median (max) | lost, max | connections broken |");
    println!("| --- | --- | --- | --- | --- | --- |");
    for one in found {
        let broken: usize = one.runs.iter().map(|run| run.broken).sum();
        let open: usize = one.runs.iter().map(|run| run.open).sum();
        let clients = one.runs.first().map_or(0, |run| run.watched.len());
        for at in 0..clients {
            let watched: Vec<&Watched> = one.runs.iter().filter_map(|run| run.watched.get(at)).collect();
            let mut gaps: Vec<f64> = watched.iter().map(|watched| watched.gap_ms).collect();
            gaps.sort_by(f64::total_cmp);
            let (median, max) = (gaps[(gaps.len() - 1) / 2], gaps[gaps.len() - 1]);
            let lost = watched.iter().map(|watched| watched.lost).max().unwrap_or_default();
            println!(
                "| {} | {} | {} | {median:.0} ({max:.0}) | {lost} | {broken} of {open} |",
                watched[0].what,
                watched.len(),
                watched[0].bound_ms
            );
        }
    }
}
