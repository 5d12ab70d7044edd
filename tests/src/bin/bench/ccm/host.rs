//! A Harvester that is away, and pools that are missing, used up, made and enlarged.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use e2e::Bed;
use e2e::bed::NETWORK;
use harvester_api::ip_pool::IpPool;
use harvester_api::load_balancer::LoadBalancer;
use kube::Api;
use kube::api::{ListParams, PostParams};

use super::setup::Setup;
use super::{Figure, Results};
use crate::crowd::names;
use crate::progress;
use crate::requests::Side;

/// How long Harvester's API is away.
const AWAY: Duration = Duration::from_mins(1);
/// Nobody reaches the API from outside. Not by cutting the cable: the API server of this bed has its etcd behind it,
/// and would be slow for seconds after.
const CUT: &str = "add table inet cut; add chain inet cut in { type filter hook input priority 0; }; \
                   add rule inet cut in iifname != \"lo\" tcp dport 6443 drop";
/// The host's back-off grows up to two minutes, and ours wakes it once a minute.
const BOOKED: Duration = Duration::from_secs(80);
/// How long a stuck Service is watched.
const STUCK: Duration = Duration::from_mins(2);

/// Services made while Harvester's API is away have their address when it is back.
pub async fn outage(ccm_args: &[String], told: &mut Results<'_>) -> Result<()> {
    let setup = Setup::set("fast", ccm_args).await?;
    setup.start().await?;
    setup.publish(&names("before", 3), 3).await?;
    for (how, text) in [(How::Dead, "its API server is dead"), (How::Cut, "its packets are lost")] {
        away(&setup, how, text, told).await?;
    }
    Ok(())
}

/// How Harvester is away: connections are refused, or nothing is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum How {
    Dead,
    Cut,
}

async fn away(setup: &Setup, how: How, text: &str, told: &mut Results<'_>) -> Result<()> {
    setup.bench.wait_until_quiet().await?;
    let harvester = &setup.bench.bed.harvester;
    match how {
        How::Dead => harvester.api_server().kill(),
        How::Cut => harvester.namespace().nft(CUT)?,
    }
    let mut watching = setup.watch().await?;
    let names = names(if how == How::Dead { "dead" } else { "cut" }, 3);
    for name in &names {
        tokio::time::sleep(AWAY / 4).await;
        setup.make(std::slice::from_ref(name)).await?;
    }
    progress::sleep("Harvester is away", AWAY / 4).await;
    match how {
        How::Dead => harvester.api_server().start().await?,
        How::Cut => harvester.namespace().nft("delete table inet cut")?,
    }
    let back = Instant::now();
    let published = watching.wait_for(&names, names.len()).await?;
    let last = published.values().max().map_or(Duration::ZERO, |at| at.saturating_duration_since(back));
    told.tell(
        Figure::seconds(format!("Harvester away for 60 s, {text}: 3 Services published after the return"), last)
            .below(1.0)
            .go("11-16 s"),
    );
    Ok(())
}

/// A Service that nothing fits, and what mends it.
pub async fn pools(ccm_args: &[String], told: &mut Results<'_>) -> Result<()> {
    let bed = ccm_args.iter().fold(Bed::builder(), |bed, arg| bed.ccm_arg(arg));
    let setup = Setup::with(bed.harvester_flag("--profile=fast"), false).await?;
    setup.start().await?;
    let bench = &setup.bench;
    let mark = bench.bed.mark();
    setup.make(&names("stuck", 1)).await?;
    progress::sleep("one Service without a pool", STUCK).await;
    let tally = bench.tally(mark)?;
    let (guest, host) = (tally.side(Side::CcmGuest), tally.side(Side::CcmHarvester));
    let all = guest.writes + guest.reads + guest.events + host.writes + host.reads;
    told.tell(Figure::count("a Service without a pool: all requests in its first 2 minutes", all));
    let mark = bench.bed.mark();
    progress::sleep("one Service without a pool", STUCK).await;
    let tally = bench.tally(mark)?;
    // Watches end after five minutes and begin anew, however many Services there are.
    let (guest, host) = (tally.side(Side::CcmGuest), tally.side(Side::CcmHarvester));
    let watches = [&guest, &host].into_iter().flat_map(|counts| &counts.reads_by_kind);
    let watches: usize = watches.filter(|(kind, _)| kind.starts_with("watch ")).map(|(_, count)| count).sum();
    let hourly = (tally.work() - watches) * 30;
    told.tell(Figure::count("a Service without a pool: requests per hour (from 2 minutes)", hourly).below(60.0));

    let mut watching = setup.watch().await?;
    let begin = Instant::now();
    // Ninety-nine addresses: for the stuck one and ninety-eight others.
    bench.bed.harvester.create_pool("small", NETWORK, "10.200.0.0/20,start=10.200.0.10,end=10.200.0.108")?;
    watching.wait_for(&names("stuck", 1), 1).await?;
    told.tell(
        Figure::seconds("pool made: the pending Service is published", begin.elapsed()).below(1.5).go("up to 300 s"),
    );

    let others = names("others", 99);
    let times = setup.publish(&others, 98).await?;
    told.tell(
        Figure::seconds("one of 99 Services stuck (pool used up): the 98 others published", times.all()).below(2.0),
    );
    // The stand-in's back-off is the host's: up to two minutes. What counts is our part after the host has booked.
    tokio::time::sleep(Duration::from_secs(5)).await;
    let client = bench.bed.harvester_client().await?;
    let lbs: Api<LoadBalancer> = Api::namespaced(client.clone(), e2e::VM_NAMESPACE);
    let mut watching = setup.watch().await?;
    let left: Vec<String> = others.iter().filter(|name| !times.published.contains_key(*name)).cloned().collect();
    enlarge(&client).await?;
    let enlarged = Instant::now();
    let booked = async {
        loop {
            let list = lbs.list(&ListParams::default()).await.context("failed to list load balancers")?.items;
            let Some(lb) = list.iter().find(|lb| lb.usable_address().is_none()) else {
                return Ok::<_, anyhow::Error>(Instant::now());
            };
            anyhow::ensure!(enlarged.elapsed() < BOOKED, "the host has not booked in {BOOKED:?}: {:?}", lb.status);
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let (booked, published) = tokio::try_join!(booked, watching.wait_for(&left, left.len()))?;
    let last = published.values().max().copied().unwrap_or(booked);
    told.tell(Figure::seconds("pool enlarged: the host has booked", booked - enlarged));
    told.tell(
        Figure::seconds("… and after that the Service is published", last.saturating_duration_since(booked)).below(1.0),
    );
    Ok(())
}

async fn enlarge(client: &kube::Client) -> Result<()> {
    let pools: Api<IpPool> = Api::all(client.clone());
    for _ in 0..20 {
        let mut pool = pools.get("small").await.context("failed to read the pool")?;
        for range in &mut pool.spec.ranges {
            range.range_end = Some("10.200.0.200".into());
        }
        match pools.replace("small", &PostParams::default(), &pool).await {
            Err(kube::Error::Api(status)) if status.code == 409 => {}
            outcome => return outcome.map(drop).context("failed to enlarge the pool"),
        }
    }
    anyhow::bail!("failed to enlarge the pool: conflicts for ever")
}
