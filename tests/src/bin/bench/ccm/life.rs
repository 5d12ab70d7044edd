//! Many healthy Services: rest, Nodes that come and go, restart and hand-over of the cloud controller.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use e2e::machines::NodeSketch;
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::json;

use super::setup::Setup;
use super::{Figure, Results};
use crate::bench_bed::{CCM_LEASE, stop};
use crate::crowd::names;
use crate::figures::megabytes;
use crate::progress;
use crate::requests::{Side, Tally};

/// How long nothing is done to see what that costs.
const REST: Duration = Duration::from_mins(1);

/// See the module's description.
pub async fn healthy(count: usize, ccm_args: &[String], told: &mut Results<'_>) -> Result<()> {
    let setup = Setup::set("fast", ccm_args).await?;
    setup.start().await?;
    setup.publish(&names("healthy", count), count).await?;
    setup.serve().await?;
    setup.bench.wait_until_quiet().await?;
    rest(&setup, count, told).await?;
    around_nodes(&setup, count, told).await?;
    restart(&setup, count, told).await?;
    hand_over(&setup, told).await
}

async fn rest(setup: &Setup, count: usize, told: &mut Results<'_>) -> Result<()> {
    let bench = &setup.bench;
    let (before, mark) = (bench.bed.ccm().usage()?, bench.bed.mark());
    progress::sleep("at rest", REST).await;
    let (after, tally) = (bench.bed.ccm().usage()?, bench.tally(mark)?);
    told.tell(
        Figure::count(format!("{count} Services at rest for a minute: requests, Leases apart"), tally.work())
            .at_most(0.0),
    );
    let cpu = Duration::from_millis(after.cpu_ms - before.cpu_ms).as_secs_f64() / REST.as_secs_f64() * 100.0;
    told.tell(Figure::new(format!("{count} Services at rest: processor"), cpu, "%").below(0.3).go("0.17 %"));
    told.tell(
        Figure::new(format!("{count} Services at rest: RSS"), megabytes(after.rss_bytes), "MB").below(20.0).go("89 MB"),
    );
    Ok(())
}

/// Requests that concern Services or load balancers, by kind. Watches end after five minutes and begin anew, however
/// many Services there are.
fn for_services(tally: &Tally) -> BTreeMap<String, usize> {
    let counts = [Side::CcmGuest, Side::CcmHarvester].map(|side| tally.side(side));
    let all = counts.into_iter().flat_map(|counts| counts.writes_by_kind.into_iter().chain(counts.reads_by_kind));
    let about =
        |kind: &str| (kind.contains("services") || kind.contains("loadbalancers")) && !kind.starts_with("watch ");
    let mut found = BTreeMap::new();
    for (kind, count) in all.filter(|(kind, _)| about(kind)) {
        *found.entry(kind).or_default() += count;
    }
    found
}

async fn around_nodes(setup: &Setup, count: usize, told: &mut Results<'_>) -> Result<()> {
    let (bench, bed) = (&setup.bench, &setup.bench.bed);
    let mark = bed.mark();
    bed.machines().await?.save(&bed.machine("extra", &["192.168.100.60"])).await?;
    bed.register_node(&NodeSketch::new("extra")).await?;
    bed.wait_until_initialized().await?;
    let nodes: Api<Node> = Api::all(bench.client.clone());
    let label = json!({"metadata": {"labels": {"node.kubernetes.io/exclude-from-external-load-balancers": "true"}}});
    nodes.patch("extra", &PatchParams::default(), &Patch::Merge(&label)).await.context("failed to label a Node")?;
    tokio::time::sleep(Duration::from_secs(2)).await;
    bed.delete_node("extra").await?;
    bench.wait_until_quiet().await?;
    let asked = for_services(&bench.tally(mark)?);
    let what = format!("node added, excluded, removed with {count} Services: requests for Services");
    if !asked.is_empty() {
        progress::say(format_args!("  {asked:?}"));
    }
    told.tell(Figure::count(what, asked.values().sum()).at_most(0.0).go("600"));
    Ok(())
}

async fn restart(setup: &Setup, count: usize, told: &mut Results<'_>) -> Result<()> {
    let (bench, ccm) = (&setup.bench, setup.bench.bed.ccm());
    let mark = bench.bed.mark();
    told.tell(Figure::seconds("SIGTERM to exit", stop(&ccm).await?).below(1.0).go("> 8 s"));
    let begin = Instant::now();
    ccm.start()?;
    bench.wait_until_ccm_is_ready(&ccm).await?;
    let ready = begin.elapsed();
    bench.wait_until_quiet().await?;
    let tally = bench.tally(mark)?;
    let writes = tally.side(Side::CcmGuest).writes + tally.side(Side::CcmHarvester).writes;
    told.tell(Figure::count(format!("restart over {count} Services: writes"), writes).at_most(0.0).go("1003"));
    told.tell(Figure::seconds(format!("restart over {count} Services: ready"), ready).below(2.0));
    Ok(())
}

/// A stand-by takes over from a leader that ends, and publishes the address of a Service that was made in the same
/// moment.
async fn hand_over(setup: &Setup, told: &mut Results<'_>) -> Result<()> {
    let (bench, ccm, standby) = (&setup.bench, setup.bench.bed.ccm(), setup.bench.standby());
    let former = bench.holder(CCM_LEASE).await?;
    standby.start()?;
    tokio::time::sleep(Duration::from_secs(5)).await;
    let begin = Instant::now();
    let leads = async {
        bench.wait_for_other_holder(CCM_LEASE, former.as_deref(), Duration::from_secs(40)).await?;
        Ok::<_, anyhow::Error>(begin.elapsed())
    };
    let works = async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        setup.publish(&names("handed-over", 1), 1).await?;
        Ok(begin.elapsed())
    };
    let (_, leads, works) = tokio::try_join!(stop(&ccm), leads, works)?;
    told.tell(Figure::seconds("SIGTERM of the leader: the stand-by holds the Lease", leads));
    told.tell(
        Figure::seconds("SIGTERM of the leader: the stand-by has published a new Service", works)
            .below(2.5)
            .go("16-20 s"),
    );
    stop(&standby).await?;
    Ok(())
}
