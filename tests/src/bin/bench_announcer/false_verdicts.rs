//! Three real nodes while every core is busy and machines stand still now and then, as in a live migration: nobody is
//! lost, so each verdict is a false one.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use e2e::lost_node::{NODES, NodeLossBed};
use harvester_sim::guest::machines::{Machines, MigrationOutcome};
use k8s_openapi::api::core::v1::Event;
use kube::Api;
use kube::api::ListParams;
use serde::{Deserialize, Serialize};

use crate::load::{Busy, ticks};

/// How long machines stand still, in turn.
const PAUSES: [Duration; 4] =
    [Duration::from_millis(100), Duration::from_millis(500), Duration::from_secs(1), Duration::from_secs(2)];
/// From one migration to the next.
const PACE: Duration = Duration::from_secs(15);
/// From the start of a migration until the machine stands still: its memory is copied first, which takes longer than
/// this of the smallest machine.
const COPY: Duration = Duration::from_secs(1);
/// From the end of a pause until Harvester says that the migration is over.
const ARRIVAL: Duration = Duration::from_secs(2);
/// Answers to each client that end the watch.
const ENOUGH: u64 = 50;

/// What was seen.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct FalseVerdicts {
    /// How long.
    pub minutes: f64,
    /// Threads that did nothing but turn.
    pub busy_threads: usize,
    /// How busy all cores were, in per cent, by these threads and by whatever else ran on the machine.
    pub busy_percent: f64,
    /// How long machines stood still, one by one, in milliseconds.
    pub pauses_ms: Vec<u128>,
    /// Nodes that one watcher called silent on its Lease: no verdict yet.
    pub reports: usize,
    /// Nodes that were called lost: each is a false verdict.
    pub verdicts: usize,
    /// Pods and EndpointSlices that controllers have marked, or unmarked.
    pub writes: usize,
    /// Requests of three clients.
    pub sent: u64,
    /// Of them without an answer within a second.
    pub missed: u64,
}

/// For so long.
pub async fn measure(time: Duration) -> Result<FalseVerdicts> {
    let bed = NodeLossBed::start().await?;
    let machines = Machines::new(bed.cluster.harvester.client().await?);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    eprintln!("false-verdicts: {} minutes, {threads} busy threads", time.as_secs() / 60);
    let mark = bed.cluster.control_plane.audit().mark();
    let known = verdicts(&bed).await?.len();
    let busy = Busy::threads(threads);
    let (before, begun) = (ticks(), Instant::now());
    let (mut pauses_ms, mut reports) = (Vec::new(), BTreeSet::new());
    for turn in 0.. {
        if begun.elapsed() >= time {
            break;
        }
        let machine = bed.cluster.machine(turn % NODES + 1);
        machines.start_migration("guests", machine.name(), "host-2").await?;
        tokio::time::sleep(COPY).await;
        let stood = machine.pause(PAUSES[turn % PAUSES.len()])?;
        pauses_ms.push(stood.as_millis());
        let until = Instant::now() + PACE;
        let arrives = Instant::now() + ARRIVAL;
        let mut moving = true;
        while Instant::now() < until {
            tokio::time::sleep(Duration::from_millis(250)).await;
            reports.extend(bed.reports().await?.into_iter().map(|report| (turn, report)));
            if moving && Instant::now() >= arrives {
                machines.finish_migration("guests", machine.name(), MigrationOutcome::Failed).await?;
                moving = false;
            }
        }
        let told = verdicts(&bed).await?;
        eprintln!(
            "  {:.1} min: {} stood still for {} ms; {} reports, {} verdicts{}",
            begun.elapsed().as_secs_f64() / 60.0,
            machine.name(),
            stood.as_millis(),
            reports.len(),
            told.len(),
            told.last().map(|last| format!(", the last: {last}")).unwrap_or_default()
        );
    }
    let after = ticks();
    drop(busy);
    let users = bed.clients.lock().since(begun, ENOUGH)?;
    let found = FalseVerdicts {
        minutes: (begun.elapsed().as_secs_f64() / 6.0).round() / 10.0,
        busy_threads: threads,
        busy_percent: after.busy_since(&before),
        pauses_ms,
        reports: reports.len(),
        verdicts: verdicts(&bed).await?.len().saturating_sub(known),
        writes: bed.writes_since(mark)?.len(),
        sent: users.sent(),
        missed: users.missed(),
    };
    println!("{found:?}");
    Ok(found)
}

/// What was told of nodes that are called lost. The same again counts again.
async fn verdicts(bed: &NodeLossBed) -> Result<Vec<String>> {
    let events: Api<Event> = Api::all(bed.client.clone());
    let told = ListParams::default().fields("reason=NodeSilent");
    let events = events.list(&told).await.context("failed to list Events")?;
    let times = |event: &Event| usize::try_from(event.count.unwrap_or(1)).unwrap_or(1);
    let texts = events.iter().flat_map(|event| {
        let name = event.involved_object.name.clone().unwrap_or_default();
        std::iter::repeat_n(format!("{name}: {}", event.message.clone().unwrap_or_default()), times(event))
    });
    Ok(texts.collect())
}
