//! What the product costs while nothing happens: requests, processor time, memory, frames on the LAN.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use anyhow::Result;
use e2e::product::Handle;
use serde::Serialize;
use testbed::Frame;
use testbed::process::Usage;

use crate::bench_bed::{ANNOUNCER_LEASE, BenchBed, CCM_LEASE};
use crate::figures::{megabytes, ms, per_minute, tenths};
use crate::progress;
use crate::requests::Side;

/// ARP, neighbour solicitations and neighbour advertisements.
const ADDRESS_RESOLUTION: &str = "arp or (icmp6 and (ip6[40] == 135 or ip6[40] == 136))";

/// The product's processes that run, by name.
pub struct Processes<'a>(Vec<(String, Handle<'a>, [Side; 2])>);

impl<'a> Processes<'a> {
    /// Those of a bench that run now.
    pub fn of(bench: &'a BenchBed) -> Self {
        let ccm = [Side::CcmGuest, Side::CcmHarvester];
        let mut all = vec![("CCM".to_owned(), bench.bed.ccm(), ccm), ("CCM, standby".to_owned(), bench.standby(), ccm)];
        for (n, announcer) in bench.bed.announcers().enumerate() {
            all.push((format!("announcer of node{}", n + 1), announcer, [Side::Announcer; 2]));
        }
        all.retain(|(_, handle, _)| handle.check().is_ok());
        Self(all)
    }

    /// Memory and processor time of each.
    pub fn usage(&self) -> Result<BTreeMap<String, Usage>> {
        self.0.iter().map(|(name, handle, _)| Ok((name.clone(), handle.usage()?))).collect()
    }

    /// Processor time that each used in between, in milliseconds.
    pub fn cpu_between(before: &BTreeMap<String, Usage>, after: &BTreeMap<String, Usage>) -> BTreeMap<String, u64> {
        let used = |(name, after): (&String, &Usage)| {
            let before = before.get(name).map_or(0, |usage| usage.cpu_ms);
            (name.clone(), after.cpu_ms.saturating_sub(before))
        };
        after.iter().map(used).collect()
    }
}

/// A quiet time.
#[derive(Debug, Clone, Serialize)]
pub struct Steady {
    /// Services that were there.
    pub services: usize,
    /// How long it was watched.
    pub seconds: f64,
    /// What each process did.
    pub processes: Vec<Idle>,
    /// ARP and NDP frames that the product's nodes sent to the LAN.
    pub frames: usize,
    /// The same per minute.
    pub frames_per_minute: f64,
}

/// One process in a quiet time.
#[derive(Debug, Clone, Serialize)]
pub struct Idle {
    /// Program and role.
    pub name: String,
    /// Requests per minute, all API servers, Leases included.
    pub requests_per_minute: f64,
    /// Of these, Leases.
    pub leases_per_minute: f64,
    /// Writes other than Leases, all in all: there should be none.
    pub writes: usize,
    /// Processor seconds per minute.
    pub cpu_seconds_per_minute: f64,
    /// Resident memory at the end.
    pub rss_mb: f64,
}

/// Watches for `time`.
pub async fn observe(bench: &BenchBed, services: usize, time: Duration) -> Result<Steady> {
    let hosts = bench.bed.lan.hosts();
    let captures = hosts.iter().map(|host| host.capture("eth0", ADDRESS_RESOLUTION)).collect::<Result<Vec<_>>>()?;
    let processes = Processes::of(bench);
    let leaders = leaders(bench).await?;
    let (begin, before, mark) = (Instant::now(), processes.usage()?, bench.bed.mark());
    progress::sleep("watching", time).await;
    let (tally, after, took) = (bench.tally(mark)?, processes.usage()?, begin.elapsed());
    let cpu = Processes::cpu_between(&before, &after);
    let mut idle = Vec::new();
    for (name, handle, sides) in &processes.0 {
        let counts = tally.process(sides, BenchBed::management_address(handle.host())?);
        let role = if leaders.contains(name) { "leader" } else { "follower" };
        idle.push(Idle {
            name: format!("{} ({role})", name.trim_end_matches(", standby")),
            requests_per_minute: per_minute(counts.total(), took),
            leases_per_minute: per_minute(counts.leases, took),
            writes: counts.writes + counts.events,
            cpu_seconds_per_minute: cpu_per_minute(cpu[name], took),
            rss_mb: megabytes(after[name].rss_bytes),
        });
    }
    let mut frames = 0;
    for (host, capture) in hosts.iter().zip(captures) {
        let own: BTreeSet<String> = host
            .namespace()
            .ip_json("link show")?
            .iter()
            .filter_map(|link| link["address"].as_str().map(str::to_owned))
            .collect();
        frames += sent_by(&own, &capture.stop()?);
    }
    Ok(Steady {
        services,
        seconds: tenths(took.as_secs_f64()),
        processes: idle,
        frames,
        frames_per_minute: per_minute(frames, took),
    })
}

/// Names of the processes that lead.
async fn leaders(bench: &BenchBed) -> Result<BTreeSet<String>> {
    let mut leaders = BTreeSet::new();
    if let Some(holder) = bench.holder(ANNOUNCER_LEASE).await? {
        leaders.insert(format!("announcer of {holder}"));
    }
    // Identities of cloud controller managers begin with the host name.
    if let Some(holder) = bench.holder(CCM_LEASE).await? {
        let standby = bench.standby();
        let on_first = holder.split('_').next() == Some(standby.host().name());
        leaders.insert(if on_first { "CCM, standby" } else { "CCM" }.to_owned());
    }
    Ok(leaders)
}

fn cpu_per_minute(cpu_ms: u64, time: Duration) -> f64 {
    let per_minute = ms(Duration::from_millis(cpu_ms)) / 1000.0 * 60.0 / time.as_secs_f64().max(0.001);
    (per_minute * 100.0).round() / 100.0
}

/// Frames whose sender has one of these MAC addresses.
fn sent_by(own: &BTreeSet<String>, frames: &[Frame]) -> usize {
    let sender = |frame: &&Frame| {
        let mac: Vec<String> =
            frame.data.get(6..12).unwrap_or_default().iter().map(|byte| format!("{byte:02x}")).collect();
        own.contains(&mac.join(":"))
    };
    frames.iter().filter(sender).count()
}

/// Addresses of the first few Services, spread over all of them.
pub fn spread(addresses: &[IpAddr], wanted: usize) -> Vec<IpAddr> {
    addresses.iter().step_by(addresses.len().div_ceil(wanted.max(1)).max(1)).copied().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_frames_of_the_node_itself_count() {
        let frame = |sender: [u8; 6]| {
            let data = [&[0xff; 6][..], &sender, &[8, 6]].concat();
            Frame { at: Duration::ZERO, data }
        };
        let frames = [
            frame([2, 0xc0, 0xde, 0, 0, 1]),
            frame([2, 0xc0, 0xde, 0, 0, 9]),
            Frame { at: Duration::ZERO, data: vec![1] },
        ];
        assert_eq!(sent_by(&BTreeSet::from(["02:c0:de:00:00:01".to_owned()]), &frames), 1);
    }

    #[test]
    fn five_of_a_hundred_are_spread_evenly() {
        let all: Vec<IpAddr> = (0..100).map(|n| IpAddr::from([10, 0, 0, n])).collect();
        let some = spread(&all, 5);
        assert_eq!(some.len(), 5);
        assert_eq!(some[1], IpAddr::from([10, 0, 0, 20]));
        assert_eq!(spread(&all[..1], 5).len(), 1);
        assert!(spread(&[], 5).is_empty());
    }
}
