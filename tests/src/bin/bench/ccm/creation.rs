//! Services that come and go.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use harvester_api::ip_pool::IpPool;
use harvester_api::load_balancer::LoadBalancer;
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::{Api, ResourceExt};
use tokio::sync::oneshot;

use super::setup::{Setup, Times, middle};
use super::{Figure, Results, nodes};
use crate::bench_bed::service;
use crate::crowd::{self, names};
use crate::progress::say;
use crate::requests::Side;

/// Services made one after the other.
const RUNS: usize = 20;
/// When the first Service comes that is made while many are.
const MEANWHILE: Duration = Duration::from_millis(500);
/// When the next of them comes, as long as the many are not all published.
const BETWEEN: Duration = Duration::from_secs(20);
/// So many tell what the API server takes.
const RAW: usize = 1000;
/// With more there are several pools.
const MOST_IN_ONE_POOL: usize = 1000;
/// Services that are deleted right after they were made.
const HASTY: usize = 26;

/// One Service at a time.
pub async fn one(ccm_args: &[String], told: &mut Results<'_>) -> Result<()> {
    let setup = Setup::set("fast", ccm_args).await?;
    setup.start().await?;
    let mut each = Vec::new();
    // One watch for all: the start of a watch takes longer than a Service does.
    let mut watching = setup.watch().await?;
    for name in names("one", RUNS) {
        tokio::time::sleep(Duration::from_millis(300)).await;
        let name = [name];
        let made = setup.make(&name).await?;
        let published = watching.wait_for(&name, 1).await?;
        each.extend(Times { begin: None, made, published }.each());
    }
    let slowest = each.iter().max().copied().unwrap_or_default();
    let one = Figure::seconds("fast: one Service, made to published, median of 20", middle(each.clone())).of(&each);
    told.tell(one.below(0.06).go("1.09 s"));
    told.tell(Figure::seconds("fast: the same, slowest of 20", slowest));

    setup.bench.wait_until_quiet().await?;
    let mark = setup.bench.bed.mark();
    setup.publish(&names("counted", 1), 1).await?;
    setup.serve().await?;
    setup.bench.wait_until_quiet().await?;
    let tally = setup.bench.tally(mark)?;
    let (guest, host) = (tally.side(Side::CcmGuest), tally.side(Side::CcmHarvester));
    // Serving the twenty others writes their status.address, one GET and one PUT each, and here their condition with an
    // Event.
    let others = RUNS;
    let (host_writes, guest_writes) = (host.writes.saturating_sub(others), guest.writes.saturating_sub(others));
    let what = "writes per Service, guest (Events apart, with the condition that it is served)";
    told.tell(Figure::count(what, guest_writes).at_most(3.0).go("7-11"));
    told.tell(Figure::count("writes per Service, Harvester", host_writes).at_most(2.0).go("8-13"));
    let guest_all = guest_writes + guest.reads + guest.events.saturating_sub(others);
    told.tell(Figure::count("all requests per Service, guest", guest_all).at_most(5.0));
    let host_all = host_writes + host.reads.saturating_sub(others);
    told.tell(Figure::count("all requests per Service, Harvester", host_all).at_most(3.0));

    hasty(&setup, told).await
}

/// Services that are deleted right after they were made leave nothing behind.
async fn hasty(setup: &Setup, told: &mut Results<'_>) -> Result<()> {
    let objects = || async {
        let client = setup.bench.bed.harvester_client().await?;
        let lbs: Api<LoadBalancer> = Api::namespaced(client.clone(), e2e::VM_NAMESPACE);
        let pools: Api<IpPool> = Api::all(client);
        let lbs = lbs.list(&ListParams::default()).await.context("failed to list load balancers")?.items;
        let lbs: BTreeSet<String> = lbs.iter().map(ResourceExt::name_any).collect();
        let pools = pools.list(&ListParams::default()).await.context("failed to list pools")?.items;
        let booked: usize = pools.into_iter().map(|pool| pool.status.unwrap_or_default().allocated.len()).sum();
        Ok::<_, anyhow::Error>((lbs, booked))
    };
    let before = objects().await?;
    let (api, names) = (setup.bench.services(), names("hasty", HASTY));
    for (name, pause) in names.iter().zip([0, 10, 20, 30, 50].into_iter().cycle()) {
        api.create(&PostParams::default(), &service(name, "pool")).await.context("failed to create a Service")?;
        tokio::time::sleep(Duration::from_millis(pause)).await;
        api.delete(name, &DeleteParams::default()).await.context("failed to delete a Service")?;
    }
    crowd::wait_until_gone(&setup.bench, &names).await?;
    setup.bench.wait_until_quiet().await?;
    let after = objects().await?;
    let left: Vec<&String> = after.0.difference(&before.0).collect();
    if !left.is_empty() {
        say(format!("  load balancers left: {left:?}"));
    }
    let left = Figure::count("load balancers left of 26 Services deleted at once", left.len());
    told.tell(left.at_most(0.0).go("24 of 26"));
    told.tell(Figure::count("pool addresses leaked by them", after.1.saturating_sub(before.1)).at_most(0.0));
    Ok(())
}

/// `count` Services at once on a fast host, in a cluster with `more` Nodes besides its own.
pub async fn fast(count: usize, more: usize, ccm_args: &[String], told: &mut Results<'_>) -> Result<()> {
    let mut setup = Setup::set("fast", ccm_args).await?;
    if count > MOST_IN_ONE_POOL {
        setup = setup.spread(count)?;
    }
    let some = count.min(RAW);
    let raw = setup.raw_rate(some).await?;
    told.tell(Figure::new(format!("the bed alone: Services made per second, of {some}"), raw, "/s"));
    setup.start().await?;
    if more > 0 {
        let nodes = names("many", more);
        nodes::make_machines(&setup, &nodes).await?;
        let (_, joined) = nodes::register(&setup, &nodes).await?;
        let what = format!("{more} Nodes join at once, before the Services are made: all initialised");
        told.tell(Figure::seconds(what, joined));
        setup.bench.wait_until_only_events_are_left().await?;
    }
    let names = names("fast", count);
    let before = setup.bench.bed.ccm().usage()?;
    let mark = setup.bench.bed.mark();
    let (done, over) = oneshot::channel();
    let crowd = async {
        let times = setup.publish(&names, count).await;
        drop(done);
        times
    };
    let (times, newcomers) = tokio::try_join!(crowd, newcomers(&setup, over))?;
    let pools = if setup.pools() > 1 { format!(" from {} pools", setup.pools()) } else { String::new() };
    let all = Figure::seconds(format!("fast: {count} Services{pools} at once, all published"), times.all());
    told.tell(match count {
        100 => all.below(2.0).go("80-82 s"),
        1000 => all.below(15.0).go("0.8 s each"),
        3000 => all.below(120.0),
        // Of ten thousand it tells the pace of the bed, whose servers share the machine with the product.
        _ => all,
    });
    let mut sorted = newcomers.clone();
    sorted.sort_unstable();
    let (median, slowest) = (sorted.get(sorted.len() / 2), sorted.last());
    let what =
        |which| format!("fast: a Service of another namespace while {count} are made, {which} of {}", newcomers.len());
    told.tell(Figure::seconds(what("median"), median.copied().unwrap_or_default()));
    told.tell(Figure::seconds(what("slowest"), slowest.copied().unwrap_or_default()).of(&newcomers).below(2.0));
    told.tell(Figure::seconds(format!("fast: {count}, median from the start"), times.median_from_start()));
    setup.bench.wait_until_only_events_are_left().await?;
    let after = setup.bench.bed.ccm().usage()?;
    let tally = setup.bench.tally(mark)?;
    // With a conflict now and then: finalizer and address; the object. Nobody serves these, so their conditions do not
    // say so and the object gets no address, unlike the single one above. But what is published and not served for a
    // minute has a condition that says that: three thousand may take longer.
    let guest = if count > 1000 { 3.1 } else { 2.1 };
    for (side, text, most) in [(Side::CcmGuest, "guest", guest), (Side::CcmHarvester, "Harvester", 1.1)] {
        let writes = f64::from(u32::try_from(tally.side(side).writes).unwrap_or(u32::MAX));
        let each = writes / f64::from(u32::try_from(count + newcomers.len()).unwrap_or(u32::MAX));
        told.tell(Figure::new(format!("fast: {count}, writes per Service, {text}"), each, "").at_most(most));
    }
    let cpu = Duration::from_millis(after.cpu_ms - before.cpu_ms);
    told.tell(Figure::seconds(format!("fast: {count}, processor time of the CCM until only Events are left"), cpu));
    let rss =
        Figure::new(format!("fast: {count}, RSS of the CCM then"), crate::figures::megabytes(after.rss_bytes), "MB");
    told.tell(if count > 1000 { rss.below(200.0) } else { rss });
    let gone =
        Figure::seconds(format!("fast: {count} deleted at once, all gone"), crowd::delete(&setup.bench, &names).await?);
    told.tell(if count == 100 { gone.below(3.0).go("58 s") } else { gone });
    Ok(())
}

/// Services of another namespace that come one after the other while the crowd is served: its user does not know that
/// ten thousand others wait. How long each of them took.
async fn newcomers(setup: &Setup, mut over: oneshot::Receiver<()>) -> Result<Vec<Duration>> {
    let namespace = setup.bench.bed.control_plane.test_namespace("newcomers").await?;
    let services = Api::namespaced(setup.bench.client.clone(), &namespace);
    let mut watching = Setup::watch_these(services.clone()).await?;
    tokio::time::sleep(MEANWHILE).await;
    let mut each = Vec::new();
    loop {
        let name = [format!("meanwhile-{}", each.len())];
        let made = setup.make_in(&services, &name).await?;
        let published = watching.wait_for(&name, 1).await?;
        each.extend(Times { begin: None, made, published }.each());
        if tokio::time::timeout(BETWEEN, &mut over).await.is_ok() {
            return Ok(each);
        }
    }
}

/// The same where each answer takes half a second.
pub async fn slow(count: usize, ccm_args: &[String], told: &mut Results<'_>) -> Result<()> {
    let setup = Setup::set("slow", ccm_args).await?;
    setup.start().await?;
    let times = setup.publish(&names("slow", count), count).await?;
    told.tell(Figure::seconds(format!("slow: {count} Services at once, all published"), times.all()));
    told.tell(Figure::seconds(format!("slow: {count}, median from the start"), times.median_from_start()));
    Ok(())
}

/// A real host's pace: a hundred at once, then three new ones while fifty deletions wait.
pub async fn real(ccm_args: &[String], told: &mut Results<'_>) -> Result<()> {
    let setup = Setup::set("real", ccm_args).await?;
    setup.start().await?;
    let hundred = names("real", 100);
    let times = setup.publish(&hundred, 100).await?;
    told.tell(Figure::seconds("real: 100 Services at once, all published", times.all()).below(42.0).go("81-101 s"));
    told.tell(Figure::seconds("real: 100, median from the start", times.median_from_start()).below(20.0));
    setup.bench.wait_until_quiet().await?;
    tokio::time::sleep(Duration::from_secs(3)).await;

    let deletions = crowd::delete(&setup.bench, &hundred[..50]);
    let new = async {
        tokio::time::sleep(Duration::from_secs(4)).await;
        setup.publish(&names("new", 3), 3).await
    };
    let (gone, new) = tokio::try_join!(deletions, new)?;
    let each = new.each();
    let slowest = each.iter().max().copied().unwrap_or_default();
    let new = Figure::seconds("real: 3 new Services while 50 deletions wait, slowest", slowest).of(&each);
    told.tell(new.below(2.5).go("last"));
    told.tell(Figure::seconds("real: the 50 deletions meanwhile", gone));
    Ok(())
}

/// A new Service while five hundred wait for their turn after a restart.
pub async fn backlog(ccm_args: &[String], told: &mut Results<'_>) -> Result<()> {
    let setup = Setup::set("real", ccm_args).await?;
    setup.make(&names("backlog", 500)).await?;
    setup.bench.bed.ccm().start()?;
    setup.bench.bed.wait_until_initialized().await?;
    let mut each = Vec::new();
    for (name, pause) in names("new", 4).into_iter().zip([0, 5, 3, 4]) {
        tokio::time::sleep(Duration::from_secs(pause)).await;
        let begin = Instant::now();
        setup.publish(&[name], 1).await?;
        each.push(begin.elapsed());
    }
    let slowest = each.iter().max().copied().unwrap_or_default();
    told.tell(
        Figure::seconds("real: a new Service while 500 wait after a restart, slowest of 4", slowest)
            .of(&each)
            .below(2.0)
            .go("416 s"),
    );
    Ok(())
}
