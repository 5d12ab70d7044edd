//! DHCP leases over ten times their life, by announcers with no more rights than the chart gives them.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use e2e::{Bed, ENOUGH, PATIENCE, service};
use serde::{Deserialize, Serialize};
use testbed::{DhcpOptions, Traffic};

use crate::cases::ms;

/// The least that dnsmasq gives.
const LEASE: Duration = Duration::from_mins(2);
const LEASES: u32 = 10;

/// What has become of them.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Renew {
    /// Services with a lease each.
    pub services: usize,
    /// How many times the duration of a lease it was watched.
    pub lease_times: u32,
    /// In seconds.
    pub lease_seconds: u64,
    /// Capabilities of the announcers.
    pub capabilities: Vec<String>,
    /// Services that had the same address all the time.
    pub kept: usize,
    /// What the server has heard meanwhile: renewals are requests.
    pub requests: usize,
    /// It was asked for an address anew.
    pub discovers: usize,
    /// It refused.
    pub naks: usize,
    /// Requests of a client to the first of them, and how many were lost.
    pub asked: u64,
    /// Of these.
    pub lost: u64,
    /// The longest time without an answer.
    pub longest_gap_ms: f64,
}

/// On a bed of its own.
pub async fn measure(count: usize) -> Result<Renew> {
    eprintln!("dhcp-renew: {count} leases of {} s over {LEASES} times as long", LEASE.as_secs());
    let bed = Bed::builder()
        .nodes(3)
        .without_ccm()
        .without_pool()
        .dhcp(DhcpOptions { lease: LEASE, ..DhcpOptions::default() })
        .announcer_env("election_mode", "node");
    let bed = bed.start().await?;
    let place = bed.case("renew").await?;
    let mut services = BTreeMap::new();
    for n in 0..count {
        let web = place.expose(service(&format!("web{n}")).at("0.0.0.0").tcp(80).udp(80)).await?;
        let address = web.address().await?;
        web.reply(address, 80).await?;
        services.insert(address, web);
    }
    let first: IpAddr = *services.keys().next().context("there is one at least")?;
    let server = bed.lan.dhcp();
    let heard = || ["DHCPREQUEST", "DHCPDISCOVER", "DHCPNAK"].map(|message| server.count(message));
    let before = heard();
    let probe = bed.lan.client().probe(Traffic::Udp((first, 80).into()))?;
    let begun = Instant::now();
    let mut kept = services.len();
    while begun.elapsed() < LEASE * LEASES {
        tokio::time::sleep(LEASE / 4).await;
        let mut now = 0;
        for (address, web) in &services {
            now += usize::from(web.address().await? == *address && bed.owner_of(*address)?.is_some());
        }
        kept = kept.min(now);
        eprintln!("  {:.0} s: {now} of {count}, {}", begun.elapsed().as_secs_f64(), probe.report());
    }
    let after = heard();
    let report = probe.stop_after(ENOUGH, PATIENCE)?;
    Ok(Renew {
        services: services.len(),
        lease_times: LEASES,
        lease_seconds: LEASE.as_secs(),
        capabilities: bed.announcer(1).program().capabilities().to_vec(),
        kept,
        requests: after[0] - before[0],
        discovers: after[1] - before[1],
        naks: after[2] - before[2],
        asked: report.sent,
        lost: report.lost,
        longest_gap_ms: ms(report.longest_gap),
    })
}
