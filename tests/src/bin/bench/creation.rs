//! New Services: how long until their address, until it is on the wire, until it answers; and what that costs in requests.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::core::v1::Service;
use kube::ResourceExt;
use kube::api::{DeleteParams, PostParams};
use serde::Serialize;
use testbed::Frame;
use tokio::sync::mpsc;

use crate::figures::{Quantiles, ms, per};
use crate::progress::{EVERY, say};
use crate::requests::{Counts, Side, Tally};
use crate::sampler::Sampler;
use crate::stage::{PARALLEL, Stage, address, ipv4, service};
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
struct Born {
    at: Instant,
    at_time: SystemTime,
    address: Option<(Instant, IpAddr)>,
}

/// Makes `count` Services called `<prefix>-<n>` and follows them until all answer and the product is quiet.
pub async fn create(stage: &Stage, prefix: &str, count: usize, ipam: &str) -> Result<Creation> {
    let names: Vec<String> = (0..count).map(|n| format!("{prefix}-{n}")).collect();
    stage.publish(&names, &stage.bed.pods()).await?;
    let mut seen = watch(stage).await?;
    let capture = stage.bed.lan.client().capture("eth0", "arp")?;
    let sampler = Sampler::start(stage)?;
    let processes = Processes::of(stage);
    let (before, mark) = (processes.usage()?, stage.bed.mark());

    let begin = Instant::now();
    let making = make(stage, &names, ipam);
    let following = follow(&mut seen, count, &sampler);
    let (made, got) = tokio::try_join!(making, following)?;
    let mut born = made;
    for (name, (at, address)) in got {
        if let Some(born) = born.get_mut(&name) {
            born.address = Some((at, address));
        }
    }
    let all_ms = born.values().filter_map(|born| born.address).map(|(at, _)| ms(at - begin)).fold(0.0, f64::max);
    let replies = sampler.finish(Duration::from_mins(1)).await?;
    stage.wait_until_quiet().await?;
    let tally = stage.tally(mark)?;
    let cpu_ms = Processes::cpu_between(&before, &processes.usage()?);
    let frames = capture.stop()?;
    Ok(summarize(&born, &replies, &frames, &tally, ipam, all_ms, cpu_ms))
}

/// One Service at a time, `runs` of them, each deleted before the next; the times of all and the requests of the last.
pub async fn one_by_one(stage: &Stage, prefix: &str, runs: usize, ipam: &str) -> Result<Creation> {
    let (mut born, mut replies, mut frames, mut last) = (BTreeMap::new(), BTreeMap::new(), Vec::new(), None);
    for run in 0..runs {
        let name = format!("{prefix}-one{run}");
        let names = [name.clone()];
        stage.publish(&names, &stage.bed.pods()).await?;
        let mut seen = watch(stage).await?;
        let capture = stage.bed.lan.client().capture("eth0", "arp")?;
        let sampler = Sampler::start(stage)?;
        let processes = Processes::of(stage);
        let (before, mark) = (processes.usage()?, stage.bed.mark());
        let (made, got) = tokio::try_join!(make(stage, &names, ipam), follow(&mut seen, 1, &sampler))?;
        let mut made = made;
        for (name, found) in got {
            made.entry(name).and_modify(|born| born.address = Some(found));
        }
        replies.append(&mut sampler.finish(Duration::from_mins(1)).await?);
        stage.wait_until_quiet().await?;
        last = Some((stage.tally(mark)?, Processes::cpu_between(&before, &processes.usage()?)));
        frames.extend(capture.stop()?);
        born.append(&mut made);
        stage.services().delete(&name, &DeleteParams::default()).await.context("failed to delete a Service")?;
        gone(stage, &name).await?;
        say(format!("  {}/{runs} done", run + 1));
    }
    let (tally, cpu_ms) = last.context("no run was asked for")?;
    let mut creation = summarize(&born, &replies, &frames, &tally, ipam, 0.0, cpu_ms);
    creation.services = 1;
    creation.requests = asked(&tally, 1);
    creation.all_ms = creation.address.map_or(0.0, |address| address.median_ms);
    creation.addresses.clear();
    Ok(creation)
}

async fn gone(stage: &Stage, name: &str) -> Result<()> {
    e2e::wait_for(&format!("Service {name} to be gone"), e2e::PATIENCE, || async {
        match stage.services().get_opt(name).await {
            Ok(None) => Ok(()),
            Ok(Some(service)) => Err(format!("it is there, finalizers {:?}", service.finalizers())),
            Err(error) => Err(error.to_string()),
        }
    })
    .await?;
    stage.wait_until_quiet().await
}

async fn make(stage: &Stage, names: &[String], ipam: &str) -> Result<BTreeMap<String, Born>> {
    let api = stage.services();
    stream::iter(names.iter().cloned())
        .map(|name| {
            let (api, service) = (api.clone(), service(&name, ipam));
            async move {
                let born = Born { at: Instant::now(), at_time: SystemTime::now(), address: None };
                api.create(&PostParams::default(), &service)
                    .await
                    .with_context(|| format!("failed to create Service {name}"))?;
                Ok((name, born))
            }
        })
        .buffer_unordered(PARALLEL)
        .try_collect()
        .await
}

type Sight = (String, Instant, IpAddr);

/// Every Service of ours that has an address.
async fn watch(stage: &Stage) -> Result<mpsc::UnboundedReceiver<Sight>> {
    stage.watch(|service| address(service).map(|address| (service.name_any(), Instant::now(), address))).await
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

fn summarize(
    born: &BTreeMap<String, Born>,
    replies: &BTreeMap<String, Instant>,
    frames: &[Frame],
    tally: &Tally,
    ipam: &str,
    all_ms: f64,
    cpu_ms: BTreeMap<String, u64>,
) -> Creation {
    let times = born.values().filter_map(|born| Some(born.address?.0 - born.at)).collect();
    let answered = born.iter().filter_map(|(name, born)| Some(*replies.get(name)? - born.at)).collect();
    Creation {
        services: born.len(),
        ipam: ipam.to_owned(),
        all_ms,
        address: Quantiles::of(times),
        announced: Quantiles::of(announced(born, frames)),
        reply: Quantiles::of(answered),
        requests: asked(tally, born.len()),
        cpu_ms,
        addresses: born.values().filter_map(|born| Some(born.address?.1)).collect(),
    }
}

/// From birth to the first ARP frame after it whose sender has the address.
fn announced(born: &BTreeMap<String, Born>, frames: &[Frame]) -> Vec<Duration> {
    let mut first: BTreeMap<Ipv4Addr, Vec<Duration>> = BTreeMap::new();
    for frame in frames {
        if let Some(sender) = arp_sender(&frame.data) {
            first.entry(sender).or_default().push(frame.at);
        }
    }
    let of_one = |born: &Born| {
        let IpAddr::V4(address) = born.address?.1 else { return None };
        let at = born.at_time.duration_since(UNIX_EPOCH).ok()?;
        // An address may have belonged to another Service before.
        first.get(&address)?.iter().find_map(|seen| seen.checked_sub(at))
    };
    born.values().filter_map(of_one).collect()
}

/// Sender's protocol address of an ARP frame on Ethernet.
fn arp_sender(frame: &[u8]) -> Option<Ipv4Addr> {
    if frame.get(12..14)? == [0x08, 0x06] { ipv4(frame.get(28..32)?) } else { None }
}

/// Deletes all measured Services and waits until they are gone; how long that took.
pub async fn delete_all(stage: &Stage, names: impl Iterator<Item = String>) -> Result<Duration> {
    let begin = Instant::now();
    let api = stage.services();
    stream::iter(names)
        .map(|name| {
            let api = api.clone();
            async move { api.delete(&name, &DeleteParams::default()).await }
        })
        .buffer_unordered(PARALLEL)
        .try_collect::<Vec<_>>()
        .await
        .context("failed to delete the Services")?;
    let mut told = Instant::now();
    loop {
        let left: Vec<Service> =
            api.list(&kube::api::ListParams::default()).await.context("failed to list Services")?.items;
        if left.is_empty() {
            return Ok(begin.elapsed());
        }
        if told.elapsed() > EVERY {
            say(format!("  {} Services are left", left.len()));
            told = Instant::now();
        }
        if begin.elapsed() > Duration::from_mins(20) {
            bail!("{} Services are left after {} s", left.len(), begin.elapsed().as_secs());
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
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
        let born = Born { at: Instant::now(), at_time: UNIX_EPOCH + at, address };
        let born = BTreeMap::from([("web".to_owned(), born)]);
        assert_eq!(announced(&born, &frames), [Duration::from_millis(250)]);
        assert_eq!(arp_sender(&frame[..30]), None);
    }
}
