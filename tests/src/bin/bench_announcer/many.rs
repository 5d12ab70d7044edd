//! 200 addresses on three nodes: until all answer, what they cost at rest, and how they move when a node loses power.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use e2e::product::ANNOUNCER_ACCOUNT;
use e2e::{Bed, Case as Place, Exposed, PATIENCE, service, wait_for};
use futures::{StreamExt, TryStreamExt};
use serde::{Deserialize, Serialize};
use testbed::service_account_user;

use crate::cases::ms;

const COUNT: u8 = 200;
/// Requests to the API at a time: "at once" for 200 Services.
const AT_ONCE: usize = 16;
/// How often everybody is asked for each address that has not answered yet. Each question is a broadcast, which costs
/// every node something.
const ASKED_EVERY: Duration = Duration::from_millis(100);
/// How long it is watched at rest.
const QUIET: Duration = Duration::from_mins(1);

/// What they cost.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Many {
    /// All made at once.
    pub made: Vec<Made>,
    /// At rest, spread over the nodes.
    pub spread: Rest,
    /// At rest, all on one node.
    pub on_one: Rest,
    /// Power losses.
    pub moved: Vec<Moved>,
}

/// From the first request for the first of 200 Services.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Made {
    /// Until the last Service was made.
    pub created_ms: f64,
    /// Until the median address answered.
    pub median_ms: f64,
    /// Until all answered.
    pub all_ms: f64,
    /// Addresses per node.
    pub spread: Vec<usize>,
}

/// At rest.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Rest {
    /// Addresses per node.
    pub addresses: Vec<usize>,
    /// Broadcast ARP frames per minute.
    pub broadcasts_per_minute: f64,
    /// Unicast ARP frames per second, seen by the first node.
    pub unicasts_per_second: f64,
    /// Requests of all announcers to the API per second.
    pub requests_per_second: f64,
    /// Resident memory of each announcer in MB of 10^6 bytes.
    pub rss_mb: Vec<f64>,
    /// Processor time of each announcer in per cent of one core.
    pub cpu_percent: Vec<f64>,
}

/// After the power loss of a node.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Moved {
    /// Addresses that it had.
    pub count: usize,
    /// Until the first of them answered again, as a client that asks each address every 100 ms sees it.
    pub first_ms: f64,
    /// The median.
    pub median_ms: f64,
    /// The last.
    pub last_ms: f64,
}

impl Many {
    /// For people.
    pub fn print(&self) {
        println!("\n200 addresses on three nodes, seconds");
        let row = |name: &str, times: &dyn Fn() -> Vec<f64>| {
            let mut times = times();
            times.sort_by(f64::total_cmp);
            if let (Some(median), Some(last)) = (times.get(times.len().saturating_sub(1) / 2), times.last()) {
                println!("  {name}: {:.2} ({:.2} at most, {} runs)", median / 1000.0, last / 1000.0, times.len());
            }
        };
        row("made at once, all Services there", &|| self.made.iter().map(|made| made.created_ms).collect());
        row("… the median address answers", &|| self.made.iter().map(|made| made.median_ms).collect());
        row("… all answer", &|| self.made.iter().map(|made| made.all_ms).collect());
        let counts: Vec<usize> = self.moved.iter().map(|moved| moved.count).collect();
        println!("  power losses of nodes with {counts:?} addresses");
        row("… the first answers again", &|| self.moved.iter().map(|moved| moved.first_ms).collect());
        row("… the median answers again", &|| self.moved.iter().map(|moved| moved.median_ms).collect());
        row("… the last answers again", &|| self.moved.iter().map(|moved| moved.last_ms).collect());
        println!("  at rest, spread: {:?}\n  at rest, on one node: {:?}", self.spread, self.on_one);
    }
}

/// On a bed of its own.
pub async fn measure(runs: usize) -> Result<Many> {
    eprintln!("200-vips: {COUNT} addresses on three nodes");
    let bed =
        Bed::builder().nodes(3).without_ccm().without_pool().announcer_env("election_mode", "node").start().await?;
    let place = bed.case("many").await?;
    tokio::time::sleep(Duration::from_secs(5)).await;
    let mut many = Many::default();
    for run in 1..=runs {
        let made = make(&bed, &place).await?;
        eprintln!("  {run}/{runs}: {made:?}");
        many.made.push(made);
        if run < runs {
            delete(&bed, &place).await?;
        }
    }
    tokio::time::sleep(Duration::from_secs(10)).await;
    many.spread = rest(&bed).await?;
    eprintln!("  at rest: {:?}", many.spread);
    let mut lost = 1;
    for run in 1..=runs {
        let moved = lose(&bed, lost).await?;
        eprintln!("  {run}/{runs}: {moved:?}");
        many.moved.push(moved);
        lost = most(&bed)?;
    }
    many.on_one = rest(&bed).await?;
    eprintln!("  at rest: {:?}", many.on_one);
    Ok(many)
}

async fn make(bed: &Bed, place: &Place<'_>) -> Result<Made> {
    let begun = Instant::now();
    let roll = bed.lan.client().call_the_roll((1..=COUNT).map(address), ASKED_EVERY)?;
    let names = futures::stream::iter(1..=COUNT);
    let made = names.map(|n| place.create(service(&name(n)).at(&address(n).to_string()).tcp(80)));
    made.buffer_unordered(AT_ONCE).try_for_each(async |_| Ok(())).await?;
    let created_ms = ms(begun.elapsed());
    let answered = roll.wait(Duration::from_mins(2))?;
    let spread = (1..=3).map(|n| Ok(here(bed, n)?.len())).collect::<Result<Vec<_>>>()?;
    let [_, median_ms, all_ms] = times(&answered, begun);
    Ok(Made { created_ms, median_ms, all_ms, spread })
}

async fn delete(bed: &Bed, place: &Place<'_>) -> Result<()> {
    let services: Vec<Exposed<'_>> = (1..=COUNT).map(|n| place.named(&name(n))).collect();
    futures::stream::iter(&services)
        .map(Exposed::delete)
        .buffer_unordered(AT_ONCE)
        .try_for_each(async |()| Ok(()))
        .await?;
    wait_for("all addresses to be gone", PATIENCE, || async {
        let left = (1..=3).map(|n| here(bed, n).map_or(1, |here| here.len())).sum::<usize>();
        if left == 0 { Ok(()) } else { Err(format!("{left} are left")) }
    })
    .await?;
    tokio::time::sleep(Duration::from_secs(2)).await;
    Ok(())
}

async fn rest(bed: &Bed) -> Result<Rest> {
    let addresses = (1..=3).map(|n| Ok(here(bed, n)?.len())).collect::<Result<Vec<_>>>()?;
    let broadcasts = bed.lan.client().capture("eth0", "arp and ether broadcast")?;
    let unicasts = bed.lan.host(1).capture("eth0", "arp and not ether broadcast")?;
    let (mark, since) = (bed.mark(), Instant::now());
    let usage = || bed.announcers().map(|announcer| announcer.usage()).collect::<Result<Vec<_>>>();
    let before = usage()?;
    tokio::time::sleep(QUIET).await;
    let after = usage()?;
    let seconds = since.elapsed().as_secs_f64();
    let account = service_account_user("kube-system", ANNOUNCER_ACCOUNT);
    let requests = bed.control_plane.audit().since(mark.guest)?;
    let requests = requests.iter().filter(|request| request.user == account).count();
    let (broadcasts, unicasts) = (broadcasts.stop()?.len(), unicasts.stop()?.len());
    let per_second = |count: usize| f64::from(u32::try_from(count).unwrap_or(u32::MAX)) / seconds;
    let cpu = before.iter().zip(&after).map(|(before, after)| {
        let milliseconds = after.cpu_ms.saturating_sub(before.cpu_ms);
        hundredths(Duration::from_millis(milliseconds).as_secs_f64() / seconds * 100.0)
    });
    let rss = after.iter().map(|usage| {
        let kilobytes = u32::try_from(usage.rss_bytes / 1000).unwrap_or(u32::MAX);
        hundredths(f64::from(kilobytes) / 1000.0)
    });
    Ok(Rest {
        addresses,
        broadcasts_per_minute: hundredths(per_second(broadcasts) * 60.0),
        unicasts_per_second: hundredths(per_second(unicasts)),
        requests_per_second: hundredths(per_second(requests)),
        rss_mb: rss.collect(),
        cpu_percent: cpu.collect(),
    })
}

/// Node `n` loses power, and comes back when the others have all that it had.
async fn lose(bed: &Bed, n: usize) -> Result<Moved> {
    let lost = here(bed, n)?;
    if lost.is_empty() {
        bail!("node{n} has none of the addresses");
    }
    bed.power_off(n)?;
    let begun = Instant::now();
    let roll = bed.lan.client().call_the_roll(lost.iter().copied(), ASKED_EVERY)?;
    let answered = roll.wait(Duration::from_mins(1))?;
    // Longer than the kernel of the dead node keeps them.
    tokio::time::sleep(Duration::from_secs(6)).await;
    bed.power_on(n)?;
    bed.wait_until_announcing(n).await?;
    tokio::time::sleep(Duration::from_secs(5)).await;
    let [first_ms, median_ms, last_ms] = times(&answered, begun);
    Ok(Moved { count: lost.len(), first_ms, median_ms, last_ms })
}

/// The node that has most of them.
fn most(bed: &Bed) -> Result<usize> {
    let mut most = (0, 1);
    for n in 1..=3 {
        most = most.max((here(bed, n)?.len(), n));
    }
    Ok(most.1)
}

/// First, median and last.
fn times(answered: &[Instant], begun: Instant) -> [f64; 3] {
    let mut all: Vec<Duration> = answered.iter().map(|at| at.saturating_duration_since(begun)).collect();
    all.sort_unstable();
    let at = |index: usize| all.get(index).map_or(f64::NAN, |time| ms(*time));
    [at(0), at(all.len().saturating_sub(1) / 2), at(all.len().saturating_sub(1))]
}

fn hundredths(value: f64) -> f64 {
    (value * 100.0).round() / 100.0
}

fn name(n: u8) -> String {
    format!("web{n}")
}

/// Of a range of their own: the LAN's has not that many left.
fn address(n: u8) -> Ipv4Addr {
    Ipv4Addr::new(172, 31, 0, n)
}

/// Those of them that this node has.
fn here(bed: &Bed, n: usize) -> Result<BTreeSet<Ipv4Addr>> {
    let here = bed.lan.host(n).addresses()?;
    let ours = |ip| match ip {
        IpAddr::V4(v4) => (1..=COUNT).any(|n| address(n) == v4).then_some(v4),
        IpAddr::V6(_) => None,
    };
    Ok(here.into_iter().filter_map(|(_, ip, _)| ours(ip)).collect())
}
