//! New Services: how long until their address, until it is on the wire, until it answers; and what that costs in
//! requests.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};
use k8s_openapi::api::core::v1::Service;
use kube::ResourceExt;
use serde::Serialize;
use testbed::Frame;
use tokio::sync::mpsc;

use crate::bench_bed::{BenchBed, address, ipv4};
use crate::crowd;
use crate::figures::{Quantiles, ms, per};
use crate::progress::{EVERY, say};
use crate::requests::{Counts, Side, Tally};
use crate::sampler::Sampler;
use crate::steady::Processes;

/// As many Services at most are asked over HTTP.
const ASKED: usize = 100;
/// Without any new address for this long, the measurement is given up.
const STALLED: Duration = Duration::from_secs(90);

/// New Services, made as fast as the API server takes them.
#[derive(Debug, Clone, Serialize)]
pub struct Creation {
    /// How many.
    pub services: usize,
    /// Where their addresses come from.
    pub ipam: String,
    /// From the first request to the last address.
    pub all_ms: f64,
    /// From the request that makes a Service to the address in its status, as a watch of Services sees it.
    pub address: Option<Quantiles>,
    /// From the same to the first ARP frame that announces the address, at the client.
    pub announced: Option<Quantiles>,
    /// From the same to the first HTTP reply at the client, for a sample.
    pub reply: Option<Quantiles>,
    /// Requests until the product was quiet.
    pub requests: BTreeMap<&'static str, Asked>,
    /// Processor time of each process until the product was quiet, in milliseconds.
    pub cpu_ms: BTreeMap<String, u64>,
    /// What each Service got.
    #[serde(skip)]
    pub addresses: Vec<IpAddr>,
}

/// Requests of one part of the product.
#[derive(Debug, Clone, Serialize)]
pub struct Asked {
    /// All.
    pub total: Counts,
    /// Reads per Service.
    pub reads_per_service: f64,
    /// Writes per Service, without Events and Leases.
    pub writes_per_service: f64,
    /// Events per Service.
    pub events_per_service: f64,
}

impl Asked {
    fn of(total: Counts, services: usize) -> Self {
        Self {
            reads_per_service: per(total.reads, services),
            writes_per_service: per(total.writes, services),
            events_per_service: per(total.events, services),
            total,
        }
    }
}

/// What is known of one Service.
#[derive(Debug, Clone, Copy)]
struct Created {
    at: Instant,
    at_time: SystemTime,
    address: Option<(Instant, IpAddr)>,
}

/// What was seen of Services from their birth until the product was quiet again.
struct Run {
    begin: Instant,
    created: BTreeMap<String, Created>,
    replies: BTreeMap<String, Instant>,
    frames: Vec<Frame>,
    tally: Tally,
    cpu_ms: BTreeMap<String, u64>,
}

/// Makes `count` Services called `<prefix>-<n>` and follows them until all answer and the product is quiet.
pub async fn create(bench: &BenchBed, prefix: &str, count: usize, ipam: &str) -> Result<Creation> {
    let run = run(bench, &crowd::names(prefix, count), ipam).await?;
    let all = run
        .created
        .values()
        .filter_map(|created| created.address)
        .map(|(at, _)| ms(at - run.begin))
        .fold(0.0, f64::max);
    Ok(summarize(&run, ipam, all))
}

/// One Service at a time, `runs` of them, each deleted before the next; the times of all and the requests of the last.
pub async fn one_by_one(bench: &BenchBed, prefix: &str, runs: usize, ipam: &str) -> Result<Creation> {
    let mut all: Option<Run> = None;
    for done in 1..=runs {
        let names = [format!("{prefix}-one{done}")];
        let mut last = run(bench, &names, ipam).await?;
        if let Some(mut former) = all.take() {
            last.created.append(&mut former.created);
            last.replies.append(&mut former.replies);
            last.frames.splice(0..0, former.frames);
        }
        all = Some(last);
        crowd::delete(bench, &names).await?;
        bench.wait_until_quiet().await?;
        say(format!("  {done}/{runs} done"));
    }
    let all = all.context("no run was asked for")?;
    let mut creation = summarize(&all, ipam, 0.0);
    creation.services = 1;
    creation.requests = asked(&all.tally, 1);
    creation.all_ms = creation.address.as_ref().map_or(0.0, |address| address.median_ms);
    creation.addresses.clear();
    Ok(creation)
}

async fn run(bench: &BenchBed, names: &[String], ipam: &str) -> Result<Run> {
    bench.publish(names, &bench.bed.pods()).await?;
    let mut seen = watch(bench).await?;
    let capture = bench.bed.lan.client().capture("eth0", "arp")?;
    let sampler = Sampler::start(bench)?;
    let processes = Processes::of(bench);
    let (before, mark) = (processes.usage()?, bench.bed.mark());
    let (begin, begin_time) = (Instant::now(), SystemTime::now());
    let following = follow(&mut seen, names.len(), &sampler);
    let (made, got) = tokio::try_join!(crowd::make(bench, names, ipam), following)?;
    let created = made.into_iter().map(|(name, at)| {
        let address = got.get(&name).copied();
        (name, Created { at, at_time: begin_time + (at - begin), address })
    });
    let created = created.collect();
    let replies = sampler.finish(Duration::from_mins(1)).await?;
    bench.wait_until_quiet().await?;
    let tally = bench.tally(mark)?;
    let cpu_ms = Processes::cpu_between(&before, &processes.usage()?);
    Ok(Run { begin, created, replies, frames: capture.stop()?, tally, cpu_ms })
}

type Sight = (String, Instant, IpAddr);

/// Every Service of ours that has an address.
async fn watch(bench: &BenchBed) -> Result<mpsc::UnboundedReceiver<Sight>> {
    let sight = |service: &Service| Some((service.name_any(), Instant::now(), address(service)?));
    BenchBed::watch(bench.services(), sight).await
}

/// Until `count` Services have their address; evenly spaced ones are handed to the sampler.
async fn follow(
    seen: &mut mpsc::UnboundedReceiver<Sight>,
    count: usize,
    sampler: &Sampler,
) -> Result<BTreeMap<String, (Instant, IpAddr)>> {
    let every = count.div_ceil(ASKED);
    let mut found = BTreeMap::new();
    let mut told = Instant::now();
    while found.len() < count {
        let Ok(sight) = tokio::time::timeout(STALLED, seen.recv()).await else {
            bail!("{} of {count} Services got an address, then none for {} s", found.len(), STALLED.as_secs());
        };
        let (name, at, address) = sight.context("the watch of the bench has ended")?;
        if found.contains_key(&name) {
            continue;
        }
        if found.len().is_multiple_of(every) {
            sampler.ask(&name, address);
        }
        found.insert(name, (at, address));
        if told.elapsed() > EVERY {
            say(format!("  {} of {count} Services have an address", found.len()));
            told = Instant::now();
        }
    }
    Ok(found)
}

fn asked(tally: &Tally, services: usize) -> BTreeMap<&'static str, Asked> {
    Side::ALL.into_iter().map(|side| (side.name(), Asked::of(tally.side(side), services))).collect()
}

fn summarize(run: &Run, ipam: &str, all_ms: f64) -> Creation {
    let created = &run.created;
    let times = created.values().filter_map(|created| Some(created.address?.0 - created.at)).collect();
    let answered = created.iter().filter_map(|(name, created)| Some(*run.replies.get(name)? - created.at)).collect();
    Creation {
        services: created.len(),
        ipam: ipam.to_owned(),
        all_ms,
        address: Quantiles::of(times),
        announced: Quantiles::of(announced(created, &run.frames)),
        reply: Quantiles::of(answered),
        requests: asked(&run.tally, created.len()),
        cpu_ms: run.cpu_ms.clone(),
        addresses: created.values().filter_map(|created| Some(created.address?.1)).collect(),
    }
}

/// From birth to the first ARP frame after it whose sender has the address.
fn announced(created: &BTreeMap<String, Created>, frames: &[Frame]) -> Vec<Duration> {
    let mut first: BTreeMap<Ipv4Addr, Vec<Duration>> = BTreeMap::new();
    for frame in frames {
        if let Some(sender) = arp_sender(&frame.data) {
            first.entry(sender).or_default().push(frame.at);
        }
    }
    let of_one = |created: &Created| {
        let IpAddr::V4(address) = created.address?.1 else { return None };
        let at = created.at_time.duration_since(UNIX_EPOCH).ok()?;
        // An address may have belonged to another Service before.
        first.get(&address)?.iter().find_map(|seen| seen.checked_sub(at))
    };
    created.values().filter_map(of_one).collect()
}

/// Sender's protocol address of an ARP frame on Ethernet.
fn arp_sender(frame: &[u8]) -> Option<Ipv4Addr> {
    if frame.get(12..14)? == [0x08, 0x06] { ipv4(frame.get(28..32)?) } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_announced_by_the_first_frame_after_its_birth() {
        let mut frame = vec![0; 42];
        frame[12..14].copy_from_slice(&[0x08, 0x06]);
        frame[28..32].copy_from_slice(&[10, 200, 0, 10]);
        let at = Duration::from_secs(1);
        let frames = [995, 1250, 1300].map(|ms| Frame { at: Duration::from_millis(ms), data: frame.clone() });
        let address = Some((Instant::now(), IpAddr::from([10, 200, 0, 10])));
        let created = Created { at: Instant::now(), at_time: UNIX_EPOCH + at, address };
        let created = BTreeMap::from([("web".to_owned(), created)]);
        assert_eq!(announced(&created, &frames), [Duration::from_millis(250)]);
        assert_eq!(arp_sender(&frame[..30]), None);
    }
}
