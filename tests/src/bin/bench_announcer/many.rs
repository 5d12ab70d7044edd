//! 200 addresses on three nodes: until all answer, and what they cost at rest.

use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use e2e::product::ANNOUNCER_ACCOUNT;
use e2e::{Bed, service, wait_for};
use serde::Serialize;

use crate::cases::ms;

const COUNT: u8 = 200;
/// How long it is watched at rest.
const QUIET: Duration = Duration::from_mins(1);

/// What they cost.
#[derive(Debug, Clone, Serialize)]
pub struct Many {
    /// From the first Service to an address on a node for all.
    pub all_set_ms: f64,
    /// Addresses per node.
    pub spread: Vec<usize>,
    /// Broadcast ARP frames per minute at rest.
    pub broadcasts_per_minute: usize,
    /// Unicast ARP frames per second at rest, seen by the nodes.
    pub unicasts_per_second: f64,
    /// Requests of all announcers to the API per second at rest.
    pub requests_per_second: f64,
    /// Resident memory of the largest announcer in MB of 10^6 bytes.
    pub rss_mb: f64,
    /// Processor time of the busiest announcer in per cent of one core.
    pub cpu_percent: f64,
    /// After the power loss of one node: until the survivors have all of its addresses.
    pub all_moved_ms: f64,
}

/// On a bed of its own.
pub async fn measure() -> Result<Many> {
    eprintln!("200-vips: {COUNT} addresses on three nodes");
    let bed =
        Bed::builder().nodes(3).without_ccm().without_pool().announcer_env("election_mode", "node").start().await?;
    let place = bed.case("many").await?;
    tokio::time::sleep(Duration::from_secs(5)).await;
    let begun = Instant::now();
    for n in 1..=COUNT {
        place.create(service(&format!("web{n}")).at(&address(n).to_string()).tcp(80)).await?;
    }
    wait_for("every address to be set", Duration::from_mins(3), || async {
        let missing = usize::from(COUNT) - distinct(&bed, &[1, 2, 3]).map_err(|error| format!("{error:#}"))?;
        if missing == 0 { Ok(()) } else { Err(format!("{missing} are missing")) }
    })
    .await?;
    let all_set_ms = ms(begun.elapsed());
    let spread = (1..=3).map(|n| distinct(&bed, &[n])).collect::<Result<Vec<_>>>()?;
    tokio::time::sleep(Duration::from_secs(15)).await;

    let broadcasts = bed.lan.client().capture("eth0", "arp and ether broadcast")?;
    let unicasts = bed.lan.host(1).capture("eth0", "arp and not ether broadcast")?;
    let (mark, since) = (bed.mark(), Instant::now());
    let before = bed.announcers().map(|announcer| announcer.usage()).collect::<Result<Vec<_>>>()?;
    tokio::time::sleep(QUIET).await;
    let after = bed.announcers().map(|announcer| announcer.usage()).collect::<Result<Vec<_>>>()?;
    let seconds = since.elapsed().as_secs_f64();
    let account = format!("system:serviceaccount:kube-system:{ANNOUNCER_ACCOUNT}");
    let requests = bed.control_plane.audit().since(mark.guest)?;
    let requests = requests.iter().filter(|request| request.user == account).count();
    let (broadcasts, unicasts) = (broadcasts.stop()?.len(), unicasts.stop()?.len());
    let per_second =
        |count: usize| (f64::from(u32::try_from(count).unwrap_or(u32::MAX)) / seconds * 100.0).round() / 100.0;
    let rss = after.iter().map(|usage| usage.rss_bytes).max().context("there are announcers")?;
    let cpu = before.iter().zip(&after).map(|(before, after)| after.cpu_ms.saturating_sub(before.cpu_ms)).max();
    let cpu = ms(Duration::from_millis(cpu.unwrap_or(0))) / 1000.0 / seconds * 100.0;

    bed.power_off(1)?;
    let begun = Instant::now();
    wait_for("the survivors to have all", Duration::from_mins(2), || async {
        let missing = usize::from(COUNT) - distinct(&bed, &[2, 3]).map_err(|error| format!("{error:#}"))?;
        if missing == 0 { Ok(()) } else { Err(format!("{missing} are missing")) }
    })
    .await?;
    Ok(Many {
        all_set_ms,
        spread,
        broadcasts_per_minute: broadcasts,
        unicasts_per_second: per_second(unicasts),
        requests_per_second: per_second(requests),
        rss_mb: (f64::from(u32::try_from(rss / 1000).unwrap_or(u32::MAX)) / 100.0).round() / 10.0,
        cpu_percent: (cpu * 100.0).round() / 100.0,
        all_moved_ms: ms(begun.elapsed()),
    })
}

/// Of a range of their own: the LAN's has not that many left.
fn address(n: u8) -> IpAddr {
    Ipv4Addr::new(172, 31, 0, n).into()
}

/// How many of them these nodes have.
fn distinct(bed: &Bed, nodes: &[usize]) -> Result<usize> {
    let mut found = std::collections::BTreeSet::new();
    for n in nodes {
        let here = bed.lan.host(*n).addresses()?;
        found.extend(here.into_iter().map(|(_, ip, _)| ip).filter(|ip| (1..=COUNT).any(|n| address(n) == *ip)));
    }
    Ok(found.len())
}
